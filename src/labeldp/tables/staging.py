# SPDX-License-Identifier: Apache-2.0
"""A release of many files: written in a private folder, and under their final names only when all are there."""

import json
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from labeldp._files import clear_own, own_folder, sync, usual_rights
from labeldp.errors import InvalidInput, ReleaseError
from labeldp.tables.place import Place, unused_name

JOURNAL, MANIFEST, READY = "_publishing.json", "_manifest.json", "ready"
FINAL = re.compile(r"part-\d{5,}\.\w+")
_OURS = re.compile(rf"attempt-[0-9a-f]{{32}}[.\w]*|part-\d{{5,}}[.\w]*|{MANIFEST}|{READY}")
_AND_JOURNAL = re.compile(f"{_OURS.pattern}|{JOURNAL}")


@dataclass(frozen=True)
class Part:
    """A finished file in staging, as whoever wrote it says.

    Attributes
    ----------
    name : str
        In staging.
    rows, size : int
    sha256 : str
        Hexadecimal.
    drawn : str
        Digest of what was drawn for its rows; "" where that is not known.
    """

    name: str
    rows: int
    size: int
    sha256: str
    drawn: str = ""


def part_name(number: int, suffix: str = ".parquet") -> str:
    """part-00000.parquet."""
    return f"part-{number:05d}{suffix}"


def manifest_name(name: str) -> str:
    """OUT.manifest.json."""
    return f"{name}.manifest.json"


@dataclass(frozen=True)
class Staging:
    """The private folder of one run's files, until they are published or given up.

    Where folders can be renamed it stands beside the output, hidden, and becomes the output in one step. In an object store it is
    below the output; files are moved out of it one by one, and the manifest, written last, is what makes the release complete.
    It is a frozen value that pickles, so that the workers of a cluster can write to it.

    Parameters
    ----------
    out : Place
        The released folder; with `single`, the released file.
    run_id : str
        Of the charge.
    single : bool
    """

    out: Place
    run_id: str
    single: bool = False

    def __post_init__(self) -> None:
        if "/" not in self.out.path.strip("/") and self.out.local is None:
            raise InvalidInput(f"Expected an output inside a bucket or folder, got {self.out} itself. Add a name to it.")

    @property
    def folder(self) -> Place:
        """The staging folder."""
        if self.out.renames:
            return self.out.beside(f".{self.out.name}.labeldp-{self.run_id[:8]}")
        name = f"_labeldp_staging_{self.run_id}"
        return self.out.beside(f"{name}_{self.out.name}") if self.single else self.out.child(name)

    @property
    def manifest(self) -> Place:
        """Beside the output: OUT.manifest.json."""
        return self.out.beside(manifest_name(self.out.name))

    def prepare(self) -> None:
        """An empty staging folder: what a killed attempt left in it is deleted. Only the driver calls this, before any worker writes.

        The list of files that a killed publication had begun to move stays, for `publish`.
        """
        local = self.folder.local
        self.folder.make_folder(private=True)
        if local is not None:
            _clear(local, _OURS)
            return
        for file in self.folder.files():
            if file.name != JOURNAL:
                file.delete()

    @property
    def begun(self) -> bool:
        """A publication of this very run was killed: some of the parts may be under their final names."""
        return self.folder.child(JOURNAL).exists()

    def new_file(self, suffix: str = ".parquet") -> Place:
        """A name for one attempt's file, like no other."""
        return self.folder.child(f"attempt-{unused_name()}{suffix}")

    def names(self, parts: Sequence[Part]) -> tuple[str, ...]:
        """The final names of parts, in this order."""
        return (self.out.name,) if self.single else tuple(part_name(i, _suffix(part.name)) for i, part in enumerate(parts))

    def publish(self, parts: Sequence[Part], manifest: bytes, *, replace: bool = False) -> tuple[str, ...]:
        """Give the parts, in this order, their final names, write the manifest, and delete everything else in staging.

        After a crash the same call finishes what was begun.

        Parameters
        ----------
        parts : sequence of Part
            The committed attempts; files of other attempts are deleted.
        manifest : bytes
        replace : bool
            What lies under the output's name is an earlier state of this very run, and may go.

        Returns
        -------
        The final names, part-00000.parquet and so on; of a single file, its name.

        Raises
        ------
        ReleaseError
            A part is missing or is not what was written, or the output's name holds something else.
        """
        names = self.names(parts)
        if self.single and len(parts) != 1:
            raise ReleaseError(f"Expected one file for {self.out.name}, got {len(parts)}.")
        if self.single:
            self._publish_one(parts[0], manifest)
        elif self.out.renames:
            self._publish_folder(parts, names, manifest, replace)
        else:
            self._publish_objects(parts, names, manifest, replace)
        return names

    def write_manifest(self, data: bytes) -> None:
        """The manifest appears whole or not at all."""
        if not self.out.renames:  # an object appears when it is complete
            self.manifest.write_bytes(data)
            return
        self.folder.make_folder(private=True)
        made = self.folder.child(MANIFEST)
        made.write_bytes(data)
        made.move(self.manifest)

    def abandon(self) -> None:
        """Delete everything in staging."""
        remove(self.folder)
        if not self.out.renames and not self.single and self.out.is_folder() and not self.out.files():
            self.out.delete()  # an object store's marker of an empty folder

    def tidy(self) -> None:
        """Delete the attempts in staging, and all of it unless a publication has begun, which the same run can finish."""
        if not self.begun:
            self.abandon()

    # One rename -------------------------------------------------------------------------------------------------------------------

    def _publish_folder(self, parts: Sequence[Part], names: Sequence[str], manifest: bytes, replace: bool) -> None:
        done = self.out.exists() and self._holds(self.out, parts, names)
        if not done:
            if self.out.exists() and not replace and self.out.files():
                raise self._taken()
            ready = self.folder.child(READY)  # a folder that no late attempt writes to
            ready.make_folder(private=True)
            for part, name in zip(parts, names, strict=True):
                self._settle_name(part, ready.child(name))
            for file in ready.files():
                if file.below(ready) not in {(name,) for name in names}:
                    file.delete()
            if self.out.local is not None:
                _sync_folder(Path(ready.path))
        self.write_manifest(manifest)
        if not done:
            self.out.delete()
            _rename(ready, self.out)
        remove(self.folder)

    def _holds(self, folder: Place, parts: Sequence[Part], names: Sequence[str]) -> bool:
        """True if a folder has exactly these parts under their final names, byte for byte."""
        if sorted(file.name for file in folder.files()) != sorted(names):
            return False
        return all(_same(folder.child(name), part) for part, name in zip(parts, names, strict=True))

    def _settle_name(self, part: Part, target: Place) -> None:
        """Move a part from where its worker wrote it; it may stand under its final name since a crash."""
        made = self.folder.child(part.name)
        if made.exists():
            if made.size != part.size:
                raise self._lost(part)
            made.move(target)
        elif not _same(target, part):
            raise self._lost(part)

    # One by one -------------------------------------------------------------------------------------------------------------------

    def _publish_objects(self, parts: Sequence[Part], names: Sequence[str], manifest: bytes, replace: bool) -> None:
        journal = self.folder.child(JOURNAL)
        begun = set(json.loads(journal.read_bytes())["names"]) if journal.exists() else set[str]()
        there = [f for f in self.out.files() if f.below(self.out)[0] != self.folder.name]
        stale = [f for f in there if f.name not in names]
        known = begun | set(names)
        foreign = [f for f in there if len(f.below(self.out)) > 1 or not FINAL.fullmatch(f.name) or f.name not in known]
        if not replace and (foreign or (there and not begun and not self._holds_all(parts, names))):
            raise self._taken()
        facts = {"names": sorted(known), "parts": [asdict(part) for part in parts]}
        if self.folder.files():
            journal.write_bytes(json.dumps(facts).encode())
        for part, name in zip(parts, names, strict=True):
            self._settle_name(part, self.out.child(name))
        for file in stale:
            file.delete()
        self.write_manifest(manifest)
        remove(self.folder)

    def _holds_all(self, parts: Sequence[Part], names: Sequence[str]) -> bool:
        return all(_same(self.out.child(name), part) for part, name in zip(parts, names, strict=True))

    def _publish_one(self, part: Part, manifest: bytes) -> None:
        if self.out.renames:
            self.write_manifest(manifest)
        self._settle_name(part, self.out)
        if not self.out.renames:
            self.write_manifest(manifest)
        remove(self.folder)

    # Errors -----------------------------------------------------------------------------------------------------------------------

    def _lost(self, part: Part) -> ReleaseError:
        return ReleaseError(
            f"Expected the file {part.name} in {self.folder} as it was written, got none or another one. Run the same command again."
        )

    def _taken(self) -> ReleaseError:
        return ReleaseError(
            f"Expected a new name for the output, got {self.out}, which holds something else. Remove it, or choose another name."
        )


def remove(folder: Place) -> None:
    """Delete a private folder, with all that is ours in it; no effect if it is not there.

    Raises
    ------
    ReleaseError
        A local one is a link, or somebody else's, or holds what labeldp did not make: that is never deleted.
    """
    local = folder.local
    if local is None:
        folder.delete()
    elif local.exists() or local.is_symlink():
        own_folder(local)
        _clear(local, _AND_JOURNAL)
        local.rmdir()


def _clear(folder: Path, ours: re.Pattern[str]) -> None:
    strangers = [path for path in clear_own(folder, ours) if path.name != JOURNAL]
    if strangers:
        raise ReleaseError(
            f"Expected only files that labeldp makes in {folder}, got {strangers[0].name}. Nothing else is deleted there: move it away."
        )


def _same(file: Place, part: Part) -> bool:
    return file.size == part.size and file.digest() == part.sha256


def _suffix(name: str) -> str:
    return "".join(re.findall(r"\.\w+$", name)) or ".parquet"


def _sync_folder(folder: Path) -> None:
    """Wait until all files of a folder, and its list of them, are on disk."""
    for path in sorted(folder.iterdir()):
        sync(path)
    sync(folder)


def _rename(made: Place, out: Place) -> None:
    """The folder gets its final name, and the rights that new folders have here, in one step."""
    if made.local is None or out.local is None:
        made.filesystem.move(made.path, out.path)
        return
    made.local.chmod(usual_rights(made.local, True))
    made.local.rename(out.local)
    sync(out.local.parent)
