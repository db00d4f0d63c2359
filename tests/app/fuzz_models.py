# SPDX-License-Identifier: Apache-2.0
"""Damages model folders at random and loads them, in a process of its own: `python -m
tests.app.fuzz_models FOLDER ROWS SEEDS`."""

import io
import json
import random
import sys
import tempfile
import warnings
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from labeldp.app._model import load_model
from labeldp.errors import LabelDPError

warnings.simplefilter("ignore")
HUGE = [0, 1, 2, 3, 255, 256, 2**31 - 1, 2**32 - 1, -1, 10**6, None, "x", [], 1e300]


def entries_of(raw: bytes) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(raw)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def archive_of(entries: dict[str, bytes]) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        for name, data in entries.items():
            archive.writestr(name, data)
    return made.getvalue()


def with_field(data: bytes, dice: random.Random) -> bytes:
    """An array with another value in some field of some row; of a matrix, another shape or type."""
    array = np.load(io.BytesIO(data))
    if array.dtype.names and len(array):
        field = dice.choice(array.dtype.names)
        kind = array.dtype[field]
        value = dice.choice(
            [0, 1, len(array) - 1, len(array), np.iinfo(kind).max if kind.kind in "iu" else 1e308]
        )
        array[dice.randrange(len(array)) if dice.random() < 0.5 else 0][field] = value
    elif array.size and array.ndim:
        array = dice.choice(
            [
                lambda: array[: len(array) // 2],
                lambda: np.concatenate([array, array]),
                lambda: array.astype(
                    dice.choice(
                        ["f4", "f8", "u1", "i8", "U3"]
                        if array.dtype.kind not in "US"
                        else ["U1", "S3"]
                    )
                ),
                lambda: array.reshape(-1),
                lambda: array[None],
                lambda: array if array.dtype.kind in "US" else array * 0 + dice.choice([0, 1, 250]),
            ]
        )()
    out = io.BytesIO()
    np.save(out, array)
    return out.getvalue()


def edited(value: Any, dice: random.Random) -> Any:
    """JSON with one leaf changed, or one key gone."""
    if isinstance(value, dict) and value:
        key = dice.choice(list(value))
        if dice.random() < 0.05:
            return {k: v for k, v in value.items() if k != key}
        return value | {key: edited(value[key], dice)}
    if isinstance(value, list) and value:
        i = dice.randrange(len(value))
        if dice.random() < 0.1:
            return value[:i] + value[i + 1 :]
        return [*value[:i], edited(value[i], dice), *value[i + 1 :]]
    if isinstance(value, str) and dice.random() < 0.7:
        try:
            return (
                json.dumps(dice.choice(HUGE))
                if isinstance(json.loads(value), int | float)
                else value
            )
        except ValueError:
            return value
    return dice.choice(HUGE)


def damaged(raw: bytes, dice: random.Random) -> bytes:
    how = dice.choice(["field"] * 4 + ["flip", "swap", "cut", "schema", "schema", "bytes"])
    if how == "cut":
        return raw[: dice.randrange(len(raw))]
    if how == "bytes":
        changed = bytearray(raw)
        for _ in range(8):
            changed[dice.randrange(len(raw))] = dice.randrange(256)
        return bytes(changed)
    entries = entries_of(raw)
    arrays = sorted(name for name in entries if name.endswith(".npy"))
    if how == "schema" or not arrays:
        names = [name for name in entries if name.endswith(".json")] or sorted(entries)
        try:
            entries[names[0]] = json.dumps(edited(json.loads(entries[names[0]]), dice)).encode()
        except ValueError:
            entries[names[0]] = entries[names[0]][::-1]
        return archive_of(entries)
    name = dice.choice(arrays)
    if how == "field":
        entries[name] = with_field(entries[name], dice)
    elif how == "swap":
        other = dice.choice(arrays)
        entries[name], entries[other] = entries[other], entries[name]
    else:
        changed = bytearray(entries[name])
        for _ in range(dice.choice([1, 3, 50])):
            changed[
                dice.randrange(
                    128 if len(changed) > 200 and dice.random() < 0.7 else 0, len(changed)
                )
            ] = dice.randrange(256)
        entries[name] = bytes(changed)
    return archive_of(entries)


def without_digests(folder: Path) -> Path:
    """A folder whose maker did not mean to be found out: digests find accidents, and what lies
    behind them must hold without them."""
    facts = json.loads((folder / "model.json").read_text())
    del facts["digests"]
    (folder / "model.json").write_text(json.dumps(facts))
    return folder


def main(folder: Path, rows: Path, seeds: range) -> None:
    X = (
        np.load(rows)
        if rows.suffix == ".npy"
        else load_model(folder).inputs.read(pq.read_table(rows).to_batches()[0])
    )
    facts = json.loads((folder / "model.json").read_text())
    model = next(path for path in folder.iterdir() if path.name != "model.json")
    ends = {"refused": 0, "predicted": 0}
    with tempfile.TemporaryDirectory() as place:
        for seed in seeds:
            dice = random.Random(seed)
            print(seed, flush=True)  # the last line says which one killed the process
            whole = seed % 7 == 0
            (Path(place) / "model.json").write_text(
                json.dumps(edited(facts, dice) if whole else facts)
            )
            (Path(place) / model.name).write_bytes(
                model.read_bytes() if whole else damaged(model.read_bytes(), dice)
            )
            try:
                load_model(Path(place)).predict_proba(X)
                ends["predicted"] += 1
            except LabelDPError:
                ends["refused"] += 1
    print(json.dumps(ends))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), range(int(sys.argv[3])))
