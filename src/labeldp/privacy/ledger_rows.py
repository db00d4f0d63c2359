# SPDX-License-Identifier: Apache-2.0
"""Row sets in the runs' private folders: written before the charge, read back by their digest, and compared with each other.

The ledger keeps a set's kind, count and digest; the bytes lie in the run's folder as `rows.bin`. A set that is missing or does not have
its digest proves nothing: its run then counts for every row.
"""

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from labeldp.errors import LedgerError
from labeldp.privacy.keys import new_secret
from labeldp.privacy.ledger_entries import RunRecord
from labeldp.privacy.rowset import RowSet, RowSetBuilder, key_id, name_hashes
from labeldp.privacy.rowset_integers import IntegerSet
from labeldp.privacy.run_store import RunStore, private_folder
from labeldp.privacy.secrets import LentSecret

IdsOf = Callable[[RunRecord], Iterable[object] | None]
"""The ids that an earlier run released, batch by batch, or None where they are gone."""

FILE: Final = "rows.bin"
_SECRET: Final = ".ids-key"


class RowSets:
    """The row sets of a ledger's runs.

    Parameters
    ----------
    folder : Path
        Private folder of all runs.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def keep(self, run_id: str, rows: RowSet) -> None:
        """Write the set of a run that is to be charged; on disk when this returns."""
        if (self.folder / run_id / FILE).exists():
            raise LedgerError(f"Expected a run id that was never charged, got {run_id}. Make one with new_run_id().")
        RunStore(self.folder / run_id).write(FILE, rows.to_bytes())

    def forget(self, run_id: str) -> None:
        """Remove the set of a run that was not charged after all."""
        (self.folder / run_id / FILE).unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            (self.folder / run_id).rmdir()  # only where nothing else is in it

    def load(self, run: RunRecord) -> RowSet | None:
        """A run's set, or None where it has none, or none that can be trusted."""
        if run.rows is None:
            return None
        try:
            data = RunStore(self.folder / run.run_id).read(FILE)
            return None if data is None else RowSet.from_bytes(data, str(run.rows["digest"]))
        except (LedgerError, OSError, ValueError, KeyError):
            return None

    def integers(self, run: RunRecord) -> IntegerSet | None:
        """A run's exact set."""
        found = self.load(run) if run.rows is not None and run.rows["kind"] == "integers" else None
        return None if found is None else found.integers

    def harmed(self, run: RunRecord) -> bool:
        """Whether the ledger names a set that is missing or damaged."""
        return run.rows is not None and self.load(run) is None

    def builder(self, runs: Iterable[RunRecord], integers: bool | None, names: str, *, spill: bool = False) -> RowSetBuilder:
        """An empty builder that knows the filters of these runs."""
        if integers:
            return RowSetBuilder(True, names=names)
        near = [run for run in runs if run.rows is not None and run.rows["kind"] == "names" and run.rows["names"] == names]
        secret = self.secret()
        loaded = {run.run_id: rows for run in near if (rows := self.load(run)) is not None}
        found = {run_id: rows.filter for run_id, rows in loaded.items() if rows.key_id == key_id(secret)}
        return RowSetBuilder(integers, names=names, secret=secret, earlier=found)

    def secret(self) -> bytes:
        """The ledger's own 32 bytes for hashing names; made at the first call."""
        path = self.folder / _SECRET
        if not path.exists():
            private_folder(self.folder)
            part = self.folder / f"{_SECRET}.{os.getpid()}.{os.urandom(4).hex()}.part"
            with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                file.write(new_secret())
                file.flush()
                os.fsync(file.fileno())
            with contextlib.suppress(FileExistsError):  # another process was first: its bytes stand
                os.link(part, path)
            part.unlink()
        secret = LentSecret(path.read_bytes())
        if len(secret) != 32:
            raise LedgerError(f"Expected 32 bytes in {path}, got {len(secret)}. Restore it; without it names cannot be compared.")
        return secret

    def shown_disjoint(self, rows: RowSet, runs: Iterable[RunRecord], ids_of: IdsOf | None) -> dict[str, int]:
        """Of runs with names: how many of `rows` are in each, where that is known; 0: disjoint. Other runs are left out.

        Names that may be in an earlier run are looked up in the ids that it released, if `ids_of` has them.
        """
        found: dict[str, int] = {}
        for run in runs:
            if run.run_id not in rows.candidates or run.rows is None or run.rows["names"] != rows.names:
                continue
            candidates = rows.candidates[run.run_id]
            if candidates is not None:
                shared = self._shared(candidates, run, ids_of) if len(candidates) else 0
                if shared is not None:
                    found[run.run_id] = shared
        return found

    def _shared(self, candidates: NDArray[np.uint64], run: RunRecord, ids_of: IdsOf | None) -> int | None:
        released = None if ids_of is None else ids_of(run)
        if released is None or run.rows is None:
            return None
        seen, count = np.zeros(len(candidates), bool), 0
        for hashes in self._hashes(released):
            count += len(hashes)
            place = np.minimum(np.searchsorted(candidates, hashes), len(candidates) - 1)
            seen[place[candidates[place] == hashes]] = True
        return int(seen.sum()) if count >= int(str(run.rows["count"])) else None  # some of what was charged for is not there

    def _hashes(self, released: Iterable[object]) -> Iterator[NDArray[np.uint64]]:
        secret = self.secret()
        return (name_hashes(batch, secret) for batch in released)


def overlaps(rows: RowSet | None, runs: Mapping[str, RunRecord], sets: RowSets, known: Mapping[str, int]) -> dict[str, int | None]:
    """The runs that may share rows with `rows`: how many rows, or None where that is not known."""
    found: dict[str, int | None] = {}
    for run in runs.values():
        shared: int | None = None
        if rows is not None and run.rows is not None and (run.rows["kind"], run.rows["names"]) == (rows.kind, rows.names):
            if rows.kind == "integers":
                theirs = sets.integers(run)
                shared = None if theirs is None else rows.integers.shared(theirs)
            else:
                shared = known.get(run.run_id)
        if shared != 0:
            found[run.run_id] = shared
    return found
