# SPDX-License-Identifier: Apache-2.0
"""What is under a release's name, or will be: whose it is, whether it is whole, and how it is copied elsewhere."""

import errno
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace

from labeldp.custody._stream import RELEASE, TableDraw
from labeldp.errors import InvalidInput, ReleaseError
from labeldp.ledger._ledger import Ledger, RunRecord
from labeldp.ledger._repair import STAGING
from labeldp.ledger._run_store import RunStore
from labeldp.receipt import Receipt
from labeldp.tables.formats._dataset import check_apart
from labeldp.tables.formats._digest import drawn_in_all
from labeldp.tables.formats._table import HashedFile
from labeldp.tables.output._manifest import manifest_place, read_manifest, run_id_of, to_json
from labeldp.tables.output._place import CHUNK, URI, Place
from labeldp.tables.output._staging import STAGING_PREFIX, Part, Staging, release_digest

OUTPUT, MANIFEST = "output", "manifest.json"


class Output:
    """The output of a release.

    Parameters
    ----------
    place : Place
    many : bool
        A folder of files, and not one file.
    source : Place, optional
        The input, if it is in files.
    stage : str
        Name of the draw: another stage of the same run is another release.
    """

    def __init__(self, place: Place, many: bool, source: Place | None = None, stage: str = RELEASE):
        self.place, self.many, self._source, self.stage = place, many, source, stage

    def staging(self, run_id: str) -> Staging:
        """Where a run's files are until they are published."""
        return Staging(self.place, run_id, single=not self.many)

    def exists(self) -> bool:
        """Something is there that a release would take the place of."""
        if not self.many or not self.place.is_folder():
            return self.place.exists()
        return any(not file.below(self.place)[0].startswith(STAGING_PREFIX) for file in self.place.files())

    @property
    def run_id(self) -> str:
        """The run that wrote what is there, in this very stage; "" if none did."""
        return run_id_of(read_manifest(self.place) or {}, self.stage)

    def is_of(self, runs: Iterable[RunRecord]) -> bool:
        """One of these runs wrote what is there, as a whole or until it was killed."""
        known = {run.run_id for run in runs}
        return self.run_id in known or any(self.staging(run_id).begun for run_id in known)

    def check_apart(self) -> None:
        """It is not the input, and is a folder or a file as the input asks for."""
        self.staging("")  # says where none can be
        if self.many and self.place.is_file():
            raise ReleaseError(f"Expected a folder name for the output, got the file {self.place}.")
        if not self.many and self.place.is_folder():
            raise ReleaseError(f"Expected a file name for the output, got the folder {self.place}.")
        if self.many and self._source is not None:
            check_apart(self._source, self.place)
        elif self._source is not None and self.place.exists() and _same_file(self.place, self._source):
            raise ReleaseError(f"Expected another file for the output, got the input {self.place}. It would be overwritten.")

    def taken(self) -> ReleaseError:
        """What is said when something else is there."""
        return ReleaseError(
            f"Expected a new name for the output, got {self.place}, which holds something else. Remove it, or choose another name."
        )

    # A settled release ------------------------------------------------------------------------------------------------------------

    def holds(self, place: Place, artefact: str | None, facts: Mapping[str, object]) -> bool:
        """True if the released table is at a place as a whole, byte for byte."""
        if not self.many:
            return place.is_file() and f"sha256:{place.digest()}" == artefact
        names = [str(part["name"]) for part in _parts_of(facts)]
        if sorted(names) != sorted("/".join(file.below(place)) for file in place.files()):
            return False
        return f"sha256:{release_digest([place.child(name).digest() for name in names], single=False)}" == artefact

    def first_place(self, text: str) -> Place | None:
        """The place that a run wrote down; in this output's or the input's file system, if it is none of this machine's."""
        if not URI.match(text):
            return Place.of(text)
        for known in filter(None, (self.place, self._source)):
            path = text.split("://", 1)[1]
            if str(Place(known.filesystem, path)) == text:
                return Place(known.filesystem, path if known.path[:1] != "/" else f"/{path}")
        try:
            return Place.of(text)
        except InvalidInput:
            return None

    def copy(self, found: Place, staging: Staging, manifest: bytes, facts: Mapping[str, object]) -> None:
        """Publish a copy of a settled release here."""
        files = [found.child(str(part["name"])) for part in _parts_of(facts)] if self.many else [found]
        staging.publish([_copied(file, staging) for file in files], manifest)


def _parts_of(facts: Mapping[str, object]) -> list[Mapping[str, object]]:
    parts = facts.get("parts")
    return list(parts) if isinstance(parts, list) else []


def _copied(file: Place, staging: Staging) -> Part:
    made = staging.new_file(file.suffix)
    target = HashedFile(made)
    with file.filesystem.open_input_stream(file.path) as stream:
        while chunk := stream.read(CHUNK):
            target.write(chunk)
    return Part(made.name, 0, target.size, target.finish())


def _same_file(one: Place, other: Place) -> bool:
    if one.local is not None and other.local is not None:
        return os.path.samefile(one.local, other.local)
    return one == other


# What a release does with it ------------------------------------------------------------------------------------------------------------


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

    def publish(self, run: TableDraw, facts: dict[str, object], parts: Sequence[Part], artefact: str) -> None:
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
            if self.out.exists() and not staging.begun:
                raise self.out.taken()
            with self._written(staging):
                self.out.copy(found, staging, text + b"\n", facts)
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
