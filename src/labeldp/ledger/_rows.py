# SPDX-License-Identifier: Apache-2.0
"""Row sets in the runs' private folders: written before the charge, read back by their digest, and compared with each other.

The ledger keeps a set's facts and digest; the bytes lie in the run's folder as `rows.bin`. A set that is missing, does not have its digest,
or is of an older format, proves nothing: its run then counts for every row.
"""

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from labeldp.errors import LedgerError
from labeldp.ledger._entries import RunRecord
from labeldp.ledger._rowset import RowSet
from labeldp.ledger._run_store import RunStore, private_folder
from labeldp.noise._secrets import SentSecret, new_secret

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
        """Write the set of a run that is to be charged, before the last file of its charge."""
        if (self.folder / run_id / FILE).exists():
            raise LedgerError(f"Expected a run id that was never charged, got {run_id}. Make one with new_run_id().")
        RunStore(self.folder / run_id).write(FILE, rows.to_bytes(), last=False)

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

    def harmed(self, run: RunRecord) -> bool:
        """Whether the ledger names a set that is missing or damaged."""
        return run.rows is not None and self.load(run) is None

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
        secret = SentSecret(path.read_bytes())
        if len(secret) != 32:
            raise LedgerError(f"Expected 32 bytes in {path}, got {len(secret)}. Restore it; without it names cannot be compared.")
        return secret


def overlaps(rows: RowSet | None, runs: Iterable[RunRecord], sets: RowSets) -> dict[str, str]:
    """The runs that may share a row or a unit with `rows`, and in words how many."""
    found: dict[str, str] = {}
    for run in runs:
        theirs = None if rows is None else sets.load(run)
        shared = {} if rows is None or theirs is None else rows.shared(theirs)
        if not shared or None in shared.values():
            found[run.run_id] = "an unknown number of them"
        elif shared.get("row"):
            found[run.run_id] = f"{shared['row']:,} of them"
        elif shared.get("unit"):
            found[run.run_id] = f"{shared['unit']:,} of their units"
    return found
