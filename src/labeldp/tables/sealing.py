# SPDX-License-Identifier: Apache-2.0
"""A charge whose prior is a model's: asked once, kept in a sealed copy of the table, noted in the run's private folder until it ends."""

import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict

from labeldp._files import sync
from labeldp._hash import SetDigest
from labeldp.errors import ReleaseError
from labeldp.privacy.ledger import Ledger
from labeldp.privacy.ledger_repair import SEALED
from labeldp.privacy.run_store import RunStore
from labeldp.privacy.stream import StreamRun, changed_input
from labeldp.privacy.worker import RunSecret
from labeldp.receipt import Receipt
from labeldp.tables.place import Place
from labeldp.tables.sealed import SealedFolder, SealSummary
from labeldp.tables.staging import Part, remove

Copy = Callable[[RunSecret, SealedFolder], SealSummary]


class SealedCharge:
    """The sealed copy of one charge.

    Parameters
    ----------
    run : StreamRun
        After the first pass.
    ledger : Ledger
    out : Place
        The copy is beside it.
    """

    def __init__(self, run: StreamRun, ledger: Ledger, out: Place):
        self._run, self._ledger, self._out = run, ledger, out
        self._run_id = ""
        self._folder: Place | None = None
        self.files: tuple[Place, ...] = ()

    def charge(self, copy: Copy, public_digest: str = "") -> Receipt:
        """Ask the prior, unless a charge that is picked up has its copy, and charge; afterwards `files` are the copy.

        Parameters
        ----------
        copy : function of (secret, folder)
            Reads the table, asks the prior, and writes the copy into the folder.
        public_digest : str
            As in `StreamRun.charge`.
        """
        secret = self._run.planned(public_digest)
        if secret is None:
            return self._run.charge(public_digest)
        self._run_id = secret.run_id
        try:
            if self._store.read(self._note) is None:
                self._make(secret, copy)
            self._find()
            receipt = self._run.charge(public_digest)
        except BaseException:
            if all(run.run_id != secret.run_id for run in self._ledger.runs(self._run.facts.dataset, self._run.facts.column)):
                self._undo()
            raise
        if receipt.run_id != secret.run_id:
            raise ReleaseError("Expected one process to work on this release, but another one has finished it. Run the same command again.")
        return receipt

    def forget(self) -> None:
        """Delete the copy; after the release is published."""
        if self._folder is not None:
            with suppress(OSError, ReleaseError):
                remove(self._folder)
                for name in (self._note, SEALED):
                    (self._store.folder / name).unlink(missing_ok=True)

    def _undo(self) -> None:
        """Nothing was charged, so nothing is left."""
        self.forget()
        with suppress(OSError):
            self._store.folder.rmdir()

    @property
    def _store(self) -> RunStore:
        return RunStore(self._ledger.run_dir(self._run_id))

    @property
    def _note(self) -> str:
        return f"{self._run.stage_name}.{SEALED}"

    def _make(self, secret: RunSecret, copy: Copy) -> None:
        if self._run.is_charged(secret) and self._run.stage_name == "release":
            raise self._lost()
        folder = SealedFolder(self._out, secret.run_id)
        self._folder = folder.folder
        self._store.write(SEALED, str(folder.folder).encode())  # for `labeldp ledger repair`
        folder.prepare()
        made = copy(secret, folder)
        sums, mine = made.sums, self._run.sums
        if sums.rows != mine.rows or sums.pins[secret.run_id].hexdigest() != mine.pins[secret.run_id].hexdigest():
            raise changed_input()
        mine.told = sums.told
        facts = {"side": sums.side.hexdigest(), "parts": [asdict(part) for part in made.parts]}
        if folder.folder.local is not None:
            sync(folder.folder.local)
        self._store.keep(self._note, json.dumps(facts).encode())

    def _find(self) -> None:
        """The noted files, if they are whole; anything else in the folder is of attempts that do not count."""
        facts, said = json.loads(self._store.read(self._note) or b"null"), self._store.read(SEALED)
        if facts is None or said is None:
            raise self._lost()
        beside = SealedFolder(self._out, self._run_id).folder
        place = self._folder = beside if str(beside) == said.decode() else Place.of(said.decode())
        parts = [Part(**part) for part in facts["parts"]]
        files = tuple(place.child(part.name) for part in parts)
        if any(file.size != part.size for file, part in zip(files, parts, strict=True)):
            raise self._lost()
        self.files = files
        self._run.take_side(SetDigest.from_hexdigest(facts["side"]))

    def _lost(self) -> ReleaseError:
        return ReleaseError(
            f"Expected the sealed copy of the table that run {self._run_id} was charged with, but it is gone or not whole, and a model is "
            f"never asked twice for one charge. Give the charge up with `labeldp ledger abandon {self._run_id}`; its epsilon stays spent."
        )
