# SPDX-License-Identifier: Apache-2.0
"""What is under a release's name, or will be: whose it is, whether it is whole, and how it is copied elsewhere."""

import os
from collections.abc import Iterable, Mapping

from labeldp.errors import InvalidInput, ReleaseError
from labeldp.privacy.ledger import RunRecord
from labeldp.privacy.stream import RELEASE
from labeldp.tables.dataset import check_apart
from labeldp.tables.manifest import read_manifest, run_id_of
from labeldp.tables.parts import release_digest
from labeldp.tables.place import CHUNK, URI, Place
from labeldp.tables.staging import Part, Staging
from labeldp.tables.table import HashedFile

STAGING_PREFIX = "_labeldp_staging_"


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
        return self.run_id in known or (self.many and not self.place.renames and any(self.staging(run_id).begun for run_id in known))

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

    def copy(self, found: Place, run_id: str, manifest: bytes, facts: Mapping[str, object]) -> None:
        """Publish a copy of a settled release here."""
        staging = self.staging(run_id)
        staging.prepare()
        files = [found.child(str(part["name"])) for part in _parts_of(facts)] if self.many else [found]
        try:
            staging.publish([_copied(file, staging) for file in files], manifest)
        finally:
            staging.abandon()


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
