# SPDX-License-Identifier: Apache-2.0
"""What a release does with its output besides drawing it, on every engine: whose the name is, publish and settle, or repeat."""

import errno
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace

from labeldp.errors import ReleaseError
from labeldp.privacy.ledger import Ledger, RunRecord
from labeldp.privacy.ledger_repair import STAGING
from labeldp.privacy.run_store import RunStore
from labeldp.privacy.stream import RELEASE, StreamRun
from labeldp.receipt import Receipt
from labeldp.tables.digest import drawn_in_all
from labeldp.tables.manifest import manifest_place, read_manifest, to_json
from labeldp.tables.output import Output
from labeldp.tables.staging import Part, Staging

OUTPUT, MANIFEST = "output", "manifest.json"


def kept_name(name: str, stage: str) -> str:
    """Name of what a run's folder keeps of a release: `OUTPUT`, where it is, or `MANIFEST`."""
    return name if stage == RELEASE else f"{stage}.{name}"


class Publication:
    """The output of one request.

    Parameters
    ----------
    out : Output
    ledger : Ledger
    dataset, column : str
    redraw : bool
        The request asks for a new draw.
    """

    def __init__(self, out: Output, ledger: Ledger, dataset: str, column: str, *, redraw: bool):
        self.out, self._ledger, self._names, self._redraw = out, ledger, (dataset, column), redraw

    def check_free(self) -> None:
        """First of all: an existing output may only be one that a run of this ledger and column has written."""
        self.out.check_apart()
        # A new draw may only take the place of one that died just before it settled.
        if self.out.exists() and not self.out.is_of(r for r in self._runs() if not self._redraw or r.state == "charged"):
            raise self.out.taken()

    def check_owner(self, known: RunRecord | None) -> None:
        """Before anything is charged: an existing output belongs to the run that this request repeats."""
        if self.out.exists() and not self.out.is_of(r for r in self._runs() if known is not None and r.identity == known.identity):
            raise self.out.taken()

    @contextmanager
    def staging(self, run_id: str) -> Iterator[Staging]:
        """An empty staging folder that is gone afterwards and that `labeldp ledger repair` knows of meanwhile."""
        staging = self.out.staging(run_id)
        if self.out.exists() and self.out.run_id != run_id and not staging.begun:
            raise self.out.taken()  # by an earlier draw, while a later one was never finished
        self._store(run_id).write(STAGING, str(staging.folder).encode())
        with self._written(staging):
            yield staging

    def publish(self, run: StreamRun, facts: dict[str, object], parts: Sequence[Part], artefact: str) -> None:
        """Announce the files in the ledger, give them their final names, and settle."""
        run_id, text = run.receipt.run_id, to_json(facts).encode()
        store, staging = self._store(run_id), self.out.staging(run_id)
        store.write(kept_name(OUTPUT, self.out.stage), str(self.out.place).encode())
        store.write(kept_name(MANIFEST, self.out.stage), text)
        named = [replace(part, name=name) for part, name in zip(parts, staging.names(parts), strict=True)]
        run.announce(named, drawn_in_all(part.drawn for part in parts))
        staging.publish(parts, text + b"\n", replace=self.out.run_id == run_id)
        run.settle(f"sha256:{artefact}")
        (store.folder / STAGING).unlink(missing_ok=True)

    def repeat(self, receipt: Receipt, artefact: str | None) -> dict[str, object]:
        """The manifest of the settled release, whose table is there as it was, or is copied from where it was first written."""
        store = self._store(receipt.run_id)
        text, first = (store.read(kept_name(name, self.out.stage)) for name in (MANIFEST, OUTPUT))
        facts = {} if text is None else json.loads(text)
        place = self.out.place
        places = [place, *([self.out.first_place(first.decode())] if first else [])]
        found = next((p for p in places if p is not None and self.out.holds(p, artefact, facts)), None)
        if text is None or found is None:
            raise ReleaseError(
                f"Expected the table that this release wrote to {places[-1]}, but it is gone or was changed. It was settled and is never "
                "computed again. Restore it, or ask for a new draw with redraw (--redraw), which is charged."
            )
        staging = self.out.staging(receipt.run_id)
        if found != place:
            if self.out.exists():
                raise self.out.taken()
            with self._written(staging):
                self.out.copy(found, receipt.run_id, text + b"\n", facts)
        elif not manifest_place(place).exists():
            staging.write_manifest(text + b"\n")
            staging.abandon()
        return read_manifest(place) or {}

    def _runs(self) -> list[RunRecord]:
        return list(self._ledger.runs(*self._names))

    def _store(self, run_id: str) -> RunStore:
        return RunStore(self._ledger.run_dir(run_id))

    @contextmanager
    def _written(self, staging: Staging) -> Iterator[None]:
        """An empty staging folder that is gone afterwards; what goes wrong with the disk is told in words."""
        try:
            staging.prepare()
            yield
        except OSError as error:
            full = error.errno in (errno.ENOSPC, errno.EDQUOT)
            what = "no room is left" if full else error.strerror or type(error).__name__
            fix = "Make room" if full else "Mend it"
            raise ReleaseError(
                f"Expected to write {self.out.place} and temporary files for it, got: {what}. Nothing was published; a charge that was "
                f"made stands. {fix}, and run the same command again: it picks up the charge."
            ) from None
        finally:
            with suppress(OSError, ReleaseError):
                staging.tidy()
