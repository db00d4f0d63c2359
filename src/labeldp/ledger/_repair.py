# SPDX-License-Identifier: Apache-2.0
"""Finds and removes files that killed processes left beside a ledger. It never touches a file that
an open run needs."""

import re
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from labeldp import _validate
from labeldp.errors import LabelDPError
from labeldp.ledger._ledger import Ledger
from labeldp.ledger._run_store import RunStore

Kind = Literal["folder", "part", "secret", "staging"]

STAGING: Final = "staging"
"""The file in a run's folder that holds the path or URI of its staging folder."""

ANSWERS: Final = "prior-answers"
"""The file in a run's folder that holds the path or URI of a model's answers, which the run uses as
its prior."""

_PART: Final = re.compile(r"\..+\.\d+\.[0-9a-f]{8}\.part(-wal|-shm|-journal)?")


@dataclass(frozen=True)
class Orphan:
    """A file or folder that no run needs any more.

    Attributes
    ----------
    kind : str
        "folder" (of a run that was never charged), "part" (a file that was not written to its end),
        "secret" (and pin of a run that is settled or abandoned) or "staging" (unpublished files of
        such a run).
    place : str
        Path or URI.
    run_id : str
        "" for parts beside the ledger.
    why : str
        The reason, for people.
    """

    kind: Kind
    place: str
    run_id: str
    why: str


def orphans(ledger: Ledger, *, minutes: float = 60) -> list[Orphan]:
    """Find what may be removed. A ledger that does not exist is an error: without it every folder
    would look unneeded.

    Parameters
    ----------
    ledger : Ledger
    minutes : float
        Folders without a charge, and unfinished files, count only if nothing in them changed for so
        long (60 by default): a living process may be about to charge.
    """
    old = 60 * _validate.positive(
        minutes=minutes, fix="Pass the minutes that a living process may take between two writes."
    )
    ledger.head()  # a ledger that is missing or cannot be read raises here
    states = {run.run_id: run.state for run in ledger.runs()}
    halves, runs = [*_parts(ledger.runs_dir)], ledger.runs_dir
    if isinstance(ledger.location, Path):  # left while the ledger was created
        own = f".{ledger.location.name}."
        halves += [p for p in _parts(ledger.location.parent) if p.name.startswith(own)]
    found = [
        Orphan("part", str(path), "", "an unfinished file") for path in halves if _age(path) > old
    ]
    for folder in sorted(runs.iterdir()) if runs.is_dir() else ():
        is_run = re.fullmatch("[0-9a-f]{32}", folder.name) and not folder.is_symlink()
        if is_run and folder.is_dir():
            found += _of_run(folder, states.get(folder.name), old)
    return found


def repair(
    ledger: Ledger, found: Sequence[Orphan], remove_staging: Callable[[str], None]
) -> list[Orphan]:
    """Remove what `orphans` found, unless its run needs it by now, and return what was removed.

    Parameters
    ----------
    ledger : Ledger
    found : sequence of Orphan
    remove_staging : function of a path or URI
        Removes a staging folder.
    """
    done: list[Orphan] = []
    # runs whose staging folder could not be removed: their own folder stays, since it names that
    # place
    kept: set[str] = set()
    for orphan in found:
        # The ledger is asked again for each: since `orphans` looked, a living process may have
        # charged the run.
        run = ledger.run(orphan.run_id) if orphan.run_id else None
        state = None if run is None else run.state
        needed = state == "charged" or (
            orphan.kind == "folder" and (state is not None or orphan.run_id in kept)
        )
        if needed and orphan.kind != "part":
            continue
        try:
            removed = _remove(ledger, orphan, remove_staging)
        except FileNotFoundError:
            removed = True  # by another process
        except (OSError, LabelDPError):
            removed = False
        done += [orphan] if removed else []
        kept |= {orphan.run_id} if orphan.kind == "staging" and not removed else set()
    return done


def _remove(ledger: Ledger, orphan: Orphan, remove_staging: Callable[[str], None]) -> bool:
    match orphan.kind:
        case "folder":
            RunStore(Path(orphan.place)).forget_secret()
            shutil.rmtree(orphan.place)
        case "part":
            Path(orphan.place).unlink()
        case "secret":
            RunStore(Path(orphan.place)).forget_secret()
        case "staging":
            # A damaged or forged file in the run's folder could name any path; nothing whose name
            # lacks "labeldp" and the run's id, as a staging folder's has, is ever removed.
            name = orphan.place.rstrip("/").rsplit("/", 1)[-1]
            if "labeldp" not in name or orphan.run_id[:8] not in name:
                return False
            remove_staging(orphan.place)
            for name in (STAGING, ANSWERS):
                if _said(ledger.run_dir(orphan.run_id), name) == orphan.place:
                    (ledger.run_dir(orphan.run_id) / name).unlink()
    return True


def _of_run(folder: Path, state: str | None, old: float) -> Iterator[Orphan]:
    """Find what is unneeded in one run's folder; `state` is None if the run was never charged."""
    run_id = folder.name
    if state is None:
        # Results without a charge are no orphan: the ledger was lost or replaced by an older copy,
        # and they are the only trace of what was spent. `verify` reports them and `adopt` charges
        # them.
        if _age(folder) > old and not RunStore(folder).has_results():
            yield from _staging(folder, "its run was never charged")
            yield Orphan("folder", str(folder), run_id, "its run was never charged")
        return
    yield from (
        Orphan("part", str(path), run_id, "an unfinished file")
        for path in _parts(folder)
        if _age(path) > old
    )
    if state == "charged":
        return
    if any((folder / name).exists() for name in ("secret", "pin")):
        yield Orphan("secret", str(folder), run_id, f"its run is {state}")
    yield from _staging(folder, f"its run is {state}")


def _staging(folder: Path, why: str) -> Iterator[Orphan]:
    for place in filter(None, (_said(folder, name) for name in (STAGING, ANSWERS))):
        yield Orphan("staging", place, folder.name, why)


def _said(folder: Path, name: str) -> str:
    """Read the path or URI in a file of a run's folder; "" if there is none."""
    said = RunStore(folder).read(name)
    return "" if said is None else said.decode("utf-8", "replace").strip()


def _parts(folder: Path) -> Iterator[Path]:
    names = sorted(folder.iterdir()) if folder.is_dir() else []
    return (
        path
        for path in names
        if _PART.fullmatch(path.name) and path.is_file() and not path.is_symlink()
    )


def _age(path: Path) -> float:
    """Return the seconds since the last change in a file or folder; negative, so never old, if the
    clock was set back."""
    inside = path.iterdir() if path.is_dir() else iter(())
    return time.time() - max(each.lstat().st_mtime for each in (path, *inside))
