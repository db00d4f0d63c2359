# SPDX-License-Identifier: Apache-2.0
"""Records what each call of `calls.py` gives and leaves behind, and says where a replay differs.

    python -m tests.corpus.record [NAME ...]     writes recorded/NAME.json of these calls, or of all
                                                 that need no extra

A recording holds what the call returned, every file that it left (content and rights), and the
facts that entered each key: no messages, whose words may change. Not kept as it is, because it
cannot be the same everywhere:

* the folder of the call, which is <folder> in every text;
* Parquet, NumPy and SQLite files, whose bytes are those of the library that wrote them: their
  content is kept. A digest of such bytes that can be computed again from the files reads <bytes of
  FILE>, <parts of FOLDER>, <results of RUN>, <announced parts of RUN>; any other digest stays as it
  is, and is a difference;
* hashes of the ledger's chain, which follow from those: <entry N>, if the chain is whole;
* arrays of floats: shape, type and three digits (processors differ in the last bits);
* work files that a process which died has left (.NAME.PID.HEX.part): there as .NAME.part, without
  content;
* keys that only check ids before a charge, and draw nothing.

Inputs (in, in.*), which the call itself has made, are not kept.

Some digests of libraries' bytes enter others (a receipt names the head of the ledger's chain). So
a replay is made with the versions in libraries.json alone, which are those that the project pins.
"""

import hashlib
import json
import os
import re
import sqlite3
import stat
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from tests.corpus.world import world

# calls wait for the disk thousands of times
MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
RECORDED = Path(__file__).parent / "recorded"
LIBRARIES = Path(__file__).parent / "libraries.json"
PART = ".part"
_HEAD = 6
_LONG = 6000
_PARQUET = (".parquet", ".pq")
_MODELS = (".skops", "model.json")
_PASSING = ("-wal", "-shm")  # SQLite's own, there or not


# Content
# --------------------------------------------------------------------------------------------------


def contents(folder: Path) -> dict[str, Any]:
    """Every file below a folder, by its name: rights and content. Links are read as what they
    are."""
    found: dict[str, Any] = {}
    texts: dict[str, str] = {}
    for path in sorted(folder.rglob("*")):
        name = re.sub(r"\.\d+\.[0-9a-f]{8}\.part$", PART, str(path.relative_to(folder)))
        if re.match(r"in(/|\.|$)", name) or path.name.endswith(_PASSING):
            continue
        facts = {"rights": f"{stat.S_IMODE(path.stat().st_mode):o}"}
        if path.is_dir():
            found[name + "/"] = facts
            continue
        facts |= _content(path)
        if (
            "text" in facts
            and (first := texts.setdefault(facts["text"].rstrip("\n"), name)) != name
        ):
            end = len(facts["text"]) - len(facts["text"].rstrip("\n"))
            facts["text"] = f"<text of {first}, {end} line feeds at its end>"
        found[name] = facts
    return found


def _content(path: Path) -> dict[str, Any]:
    if path.name.endswith((*_MODELS, PART)):
        return {}
    if path.suffix == ".db":
        return _ledger(path)
    if path.suffix in _PARQUET:
        return _parquet(path)
    if path.suffix == ".npy":
        return array(np.load(path))
    if path.suffix == ".npz":
        with np.load(path) as arrays:
            return {"arrays": {name: array(arrays[name]) for name in sorted(arrays.files)}}
    data = path.read_bytes()
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return {"digest": _short_digest(data), "size": len(data), "head": data[:16].hex()}
    if len(text) > _LONG:
        return {"digest": _short_digest(data), "size": len(data), "head": text[:300]}
    return {"text": text}


def _database(path: Path) -> dict[str, Any]:
    with closing(sqlite3.connect(path)) as connection:
        names = [
            name
            for (name,) in connection.execute(
                "SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name"
            )
        ]
        return {
            name: [list(row) for row in connection.execute(f"SELECT * FROM {name} ORDER BY 1, 2")]
            for name in names
        }


def _ledger(path: Path) -> dict[str, Any]:
    """The bodies of a ledger's entries, which a hash ties together, and what it keeps beside
    them."""
    tables = _database(path)
    rows = tables.pop("entries")
    return {
        "tables": tables,
        "entries": [row[2] for row in rows],
        "chain": "whole" if len(_chain(rows)) == len(rows) else "broken",
    }


def _chain(rows: list[list[Any]]) -> dict[str, str]:
    """The hashes of a ledger's entries: of which entry each one is, as far as each is of the entry
    before and the body."""
    found, last = {}, "0" * 64
    for seq, previous, body, entry in rows:
        if previous != last or entry != hashlib.sha256(f"{last}\n{body}".encode()).hexdigest():
            break
        found[entry], last = f"<entry {seq}>", entry
    return found


def _parquet(path: Path) -> dict[str, Any]:
    table = pq.read_table(path)
    facts = {key.decode(): value.decode() for key, value in (table.schema.metadata or {}).items()}
    columns = {
        name: {"type": str(table.schema.field(name).type)} | values(table[name].to_pylist())
        for name in table.column_names
    }
    return {
        "rows": table.num_rows,
        "metadata": facts,
        "order": table.column_names,
        "columns": columns,
    }


def values(column: list[Any]) -> dict[str, Any]:
    """Values of a column: digest of all of them, and the first ones."""
    shown = [value.hex() if isinstance(value, bytes) else value for value in column]
    text = json.dumps(shown, default=str)
    return {"digest": _short_digest(text.encode()), "head": json.loads(text)[:_HEAD]}


def array(given: Any) -> dict[str, Any]:
    """An array: type, shape, digest and the first values; of floats three digits of the first
    ones."""
    found = np.asarray(given)
    facts: dict[str, Any] = {
        "type": found.dtype.str if found.dtype.names is None else str(found.dtype),
        "shape": list(found.shape),
    }
    flat = found.reshape(-1)[:_HEAD].tolist()
    if found.dtype.kind == "f":
        return facts | {"head": [float(f"{value:.3g}") for value in flat]}
    return facts | {
        "sha256": hashlib.sha256(np.ascontiguousarray(found).tobytes()).hexdigest(),
        "head": json.loads(json.dumps(flat, default=str)),
    }


def _short_digest(data: bytes) -> str:
    """16 digits of SHA-256: enough to tell contents apart that nobody chooses."""
    return hashlib.sha256(data).hexdigest()[:16]


# What is the same everywhere
# --------------------------------------------------------------------------------------------------


def _known(folder: Path) -> dict[str, str]:
    """Digests of what lies in a folder, computed from it: of what each one is."""
    files = {
        path: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.suffix in _PARQUET
    }
    found = {sha256: f"<bytes of {path.relative_to(folder)}>" for path, sha256 in files.items()}
    for parent in sorted({path.parent for path in files}):
        inside = [path for path in files if path.parent == parent]
        name = parent.relative_to(folder)
        found[_digest({"format": "parts/1", "files": [files[path] for path in inside]})] = (
            f"<parts of {name}>"
        )
        results = hashlib.sha256(
            b"".join(path.name.encode() + path.read_bytes() for path in inside)
        ).hexdigest()
        found[results] = f"<results of {name.name}>"
    for path in sorted(folder.rglob("*.db")):
        tables = _database(path)
        found |= _chain(tables["entries"])
        for run in {row[0] for row in tables["parts"]}:
            announced = json.dumps(
                [row[1:] for row in sorted(tables["parts"]) if row[0] == run], separators=(",", ":")
            )
            found[hashlib.sha256(announced.encode()).hexdigest()] = f"<announced parts of {run}>"
    return found


def _digest(facts: Mapping[str, object]) -> str:
    return hashlib.sha256(
        json.dumps(facts, sort_keys=True, separators=(",", ":")).encode()
    ).hexdigest()


def portable(found: Any, folder: Path) -> Any:
    """A recording without what differs between machines; texts that are JSON in canonical form as
    what they say."""
    known = _known(folder)
    text = json.dumps(found, sort_keys=True, default=str).replace(str(folder), "<folder>")
    text = re.sub(
        r"(?<![0-9a-f])[0-9a-f]{64}(?![0-9a-f])", lambda match: known.get(match[0], match[0]), text
    )
    return _read(json.loads(text))


def _read(found: Any) -> Any:
    if isinstance(found, dict):
        return {name: _read(each) for name, each in found.items()}
    if isinstance(found, list):
        return [_read(each) for each in found]
    inside = _parsed(found)
    return (
        found
        if inside is None
        or json.dumps(inside, sort_keys=True, separators=(",", ":"), ensure_ascii="\\u" in found)
        != found
        else inside
    )


def recorded(call: Callable[[Path], Any], folder: Path) -> dict[str, Any]:
    """Make a call in a new folder of a world that is always the same, and record it."""
    folder.mkdir(parents=True)
    with world(folder) as seen:
        given = call(folder)
    return summary(given, folder, seen)


def summary(given: Any, folder: Path, seen: Any) -> dict[str, Any]:
    """The recording of a call that was made."""
    keys = sorted(key for key in seen.keys if '"run_id":"check"' not in key)
    found = portable(
        {
            "returned": given,
            "files": contents(folder),
            "keys": keys,
        },
        folder,
    )
    return found | {"keys": _grouped(found["keys"])}


def _grouped(keys: list[Any]) -> dict[str, Any]:
    """Infos of keys, a group for each run: what its keys have in common, and what each has of its
    own."""
    facts = [key for key in keys if isinstance(key, dict)]
    found: dict[str, Any] = {"others": [key for key in keys if not isinstance(key, dict)]}
    for run in sorted({str(key.get("run_id")) for key in facts}):
        mine = [key for key in facts if str(key.get("run_id")) == run]
        common = {
            name: value
            for name, value in mine[0].items()
            if all(name in key and key[name] == value for key in mine)
        }
        found[run] = {
            "common": common,
            "keys": [{n: v for n, v in key.items() if n not in common} for key in mine],
        }
    return found


# Differences
# --------------------------------------------------------------------------------------------------


def differences(was: Any, now: Any, at: str = "") -> Iterator[str]:
    """Where two recordings differ, one line each: the way to the field, what it was, what it is."""
    if json.dumps(was, sort_keys=True) == json.dumps(now, sort_keys=True):  # 1 is not true, nor 1.0
        return
    inside = _inside(was), _inside(now)
    if isinstance(was, dict) and isinstance(now, dict):
        for name in sorted(was.keys() | now.keys()):
            if name not in now:
                yield f"{at} > {name}: gone; it was {_short(was[name])}"
            elif name not in was:
                yield f"{at} > {name}: new: {_short(now[name])}"
            else:
                yield from differences(was[name], now[name], f"{at} > {name}")
    elif isinstance(was, list) and isinstance(now, list):
        for number, (one, other) in enumerate(zip(was, now, strict=False)):
            yield from differences(one, other, f"{at}[{number}]")
        if len(was) != len(now):
            more = max(was, now, key=len)[min(len(was), len(now))]
            yield (
                f"{at}: {len(was)} items before, {len(now)} now; the first that only one has:"
                f" {_short(more)}"
            )
    elif None not in inside and inside[0] != inside[1]:
        yield from differences(*inside, at)
    elif None not in inside:
        texts = [
            each if isinstance(each, str) else json.dumps(each, separators=(",", ":"))
            for each in (was, now)
        ]
        yield f"{at}: the same fields in another order or form: {_around(*texts)}"
    elif isinstance(was, str) and isinstance(now, str) and "\n" in was + now:
        yield from differences(was.split("\n"), now.split("\n"), f"{at} line ")
    else:
        yield f"{at}: was {_short(was)}, is {_short(now)}"


def _inside(value: Any) -> Any:
    return value if isinstance(value, dict | list) else _parsed(value)


def _parsed(value: Any) -> Any:
    try:
        found = json.loads(value) if isinstance(value, str) else None
    except ValueError:
        return None
    return found if isinstance(found, dict | list) else None


def _around(was: str, now: str) -> str:
    start = next(i for i, (a, b) in enumerate(zip(was + "\0", now + "\1", strict=False)) if a != b)
    return (
        f"was …{was[max(0, start - 20) : start + 60]!r}, is"
        f" …{now[max(0, start - 20) : start + 60]!r}"
    )


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 300 else f"{text[:300]}…"


# Recording
# --------------------------------------------------------------------------------------------------


def file_of(name: str) -> Path:
    """Where a call's recording is."""
    return RECORDED / f"{name}.json"


def libraries() -> dict[str, str]:
    """The versions here of what has a hand in the recordings."""
    return {
        name: version(name) for name in ("numpy", "pyarrow", "pyroaring", "scikit-learn", "scipy")
    }


def text_of(found: Mapping[str, Any]) -> str:
    """A recording as it is kept: three levels of fields, each with a line of its own."""
    return _written(found, "\n") + "\n"


def _written(found: Any, line: str, depth: int = 3) -> str:
    more = {"line": line + " ", "depth": depth - 1}
    if isinstance(found, Mapping) and found and depth:
        inside = (f"{json.dumps(name)}: {_written(found[name], **more)}" for name in sorted(found))
        return "{" + line + " " + f",{line} ".join(inside) + line + "}"
    if (
        isinstance(found, list)
        and depth
        and any(isinstance(each, list | Mapping) for each in found)
    ):
        return (
            "["
            + line
            + " "
            + f",{line} ".join(_written(each, **more) for each in found)
            + line
            + "]"
        )
    return json.dumps(found, ensure_ascii=False, sort_keys=True, separators=(",", ":"))


def main(names: list[str]) -> None:
    """Record calls, and say what changed."""
    from tests.corpus.calls import CALLS

    unknown = sorted(set(names) - CALLS.keys())
    if unknown:
        sys.exit(
            f"Expected names of calls, got {', '.join(unknown)}. There are: {', '.join(CALLS)}"
        )
    if not names:
        LIBRARIES.write_text(json.dumps(libraries(), indent=1) + "\n", encoding="utf-8")
    elif json.loads(LIBRARIES.read_text(encoding="utf-8")) != libraries():
        sys.exit(
            f"Expected the libraries that all is recorded with, got {libraries()}. Record all calls"
            " anew, with the pinned versions."
        )
    RECORDED.mkdir(exist_ok=True)
    for name in names or [name for name, each in CALLS.items() if not each.needs]:
        start = time.perf_counter()
        with tempfile.TemporaryDirectory(dir=MEMORY) as place:
            found = json.loads(text_of(recorded(CALLS[name].make, Path(place).resolve() / "call")))
        before = (
            json.loads(file_of(name).read_text(encoding="utf-8")) if file_of(name).exists() else {}
        )
        changed = list(differences(before, found)) if before else ["new"]
        told = (
            "unchanged"
            if not changed
            else changed[0]
            if len(changed) == 1
            else f"{len(changed)} differences"
        )
        print(f"{time.perf_counter() - start:4.1f} s  {name}: {told}")
        file_of(name).write_text(text_of(found), encoding="utf-8")
    if not names:
        for path in RECORDED.glob("*.json"):
            if path.stem not in CALLS:
                path.unlink()


if __name__ == "__main__":
    main(sys.argv[1:])
