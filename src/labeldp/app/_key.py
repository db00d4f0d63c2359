# SPDX-License-Identifier: Apache-2.0
"""`labeldp key`: create a release secret in a file, and destroy it once no run needs it."""

from collections.abc import Callable
from pathlib import Path

from labeldp.errors import LedgerError
from labeldp.ledger._ledger import Ledger
from labeldp.ledger._run_store import RunStore
from labeldp.noise._secrets import create_key_file, destroy_key_file, key_file_id


def create(path: Path) -> dict[str, object]:
    """Make a key file; what may be said of it."""
    source = create_key_file(path)
    return {"path": source.text.removeprefix("file:"), "source": source.text, "key_id": source.key_id}


def runs_that_need(ledger: Ledger, key_id: str) -> list[str]:
    """Ids of the runs that were charged under a release secret and have neither settled nor been given up."""
    charged = [run.run_id for run in ledger.runs() if run.state == "charged"]
    return [run_id for run_id in charged if RunStore(ledger.run_dir(run_id)).key_id() == key_id]


def destroy(path: Path, ledger: Callable[[], Ledger], force: bool = False) -> dict[str, object]:
    """Overwrite and remove a key file.

    Parameters
    ----------
    path : Path
    ledger : function that returns a Ledger
        Whose charged runs may still need the key. Not asked with force.
    force : bool
        Destroy it whatever runs need it: they can never be finished.
    """
    key_id = key_file_id(path)
    if not force:
        _check_unneeded(path, ledger(), key_id)
    destroy_key_file(path)
    return {"path": str(Path(path).expanduser().absolute()), "key_id": key_id, "destroyed": True}


def _check_unneeded(path: Path, ledger: Ledger, key_id: str) -> None:
    if not ledger.runs():
        raise LedgerError(
            f"Expected the ledger whose runs were charged under {path}, got {ledger.location}, which knows no run. Name it with --ledger; "
            "if the key was never used, say --force."
        )
    needed = runs_that_need(ledger, key_id)
    if needed:
        raise LedgerError(
            f"Expected no charged run that needs {path}, got {len(needed)} in {ledger.location}: {', '.join(needed)}. Finish them, by "
            "asking for the same release again, or abandon them with `labeldp ledger abandon RUN`. With --force the key is destroyed and "
            "they can never be finished."
        )
