# SPDX-License-Identifier: Apache-2.0
"""A release of a table, the same steps on every engine: this process, Spark or Ray.

Check, first pass (pin), charge, second pass (draw) into a private folder, publish the files and then the manifest, settle. What an engine
does is to bring rows and workers together: it reads the table, asks a prior of its rows, and writes what is drawn.
"""

import errno
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Protocol

from pyarrow.fs import FileType

from labeldp.custody._draw import law_per_row
from labeldp.custody._encode import joined
from labeldp.custody._request import Account, Overlap
from labeldp.custody._staged import stage_name
from labeldp.custody._stream import RELEASE, TableDraw, TablePin
from labeldp.errors import InvalidInput, ReleaseError
from labeldp.evidence._noisy import FORMAT, plain
from labeldp.laws import Law, law_from_dict
from labeldp.ledger._ledger import Ledger, RunRecord
from labeldp.ledger._repair import STAGING
from labeldp.ledger._run_store import RunStore
from labeldp.receipt import Receipt
from labeldp.tables._place import (
    CHUNK,
    STAGING_PREFIX,
    URI,
    HashedFile,
    Part,
    Place,
    Staging,
    manifest_place,
    name_taken_error,
    part_name,
    release_digest,
    scratch,
    unfinished,
)
from labeldp.tables._priors import Answers, AnswersFolder, AskedOnce, OpenPrior, Prior, opened, prior_identity
from labeldp.tables._spec import ReleaseSpec, law_of
from labeldp.tables.formats._parquet import DatasetSource, ParquetSource, check_apart
from labeldp.tables.formats._table import EVIDENCE, LabelCodec, Source, drawn_in_all, evidence_width

KEPT_PLACE, KEPT_MANIFEST = "output", "manifest.json"
"""What a run's private folder keeps of a release, so that a repeat finds it: where the table went, and the manifest's text."""
Manifest = Mapping[str, Any]


class Passes(Protocol):
    """An engine's two passes over the rows of one release."""

    def pin(self) -> str:
        """First pass: check every row and pin it. The digest of the public columns where nothing else names the rows, else ""."""
        ...

    def ask(self, folder: AnswersFolder, prior: OpenPrior) -> Answers:
        """Run a model prior once, between the passes, and store its answers. No label is read."""
        ...

    def draw(self, run: TableDraw, facts: "ReleaseFacts", staging: Staging, scratch: Path, answers: Sequence[Place]) -> "OutputFacts":
        """Second pass: draw every row, with the answers if there are any, and write it; refuse another input than was pinned."""
        ...


class Engine(Protocol):
    """An execution engine: this process, Spark or Ray.

    Attributes
    ----------
    names : sequence of str
        Columns of the table; after `codec`.
    many : bool
        The output is a folder.
    source : Place or None
        The input, if it is in files that the output could overwrite.
    """

    names: Sequence[str]
    many: bool
    source: Place | None

    def dataset(self, spec: ReleaseSpec, out: Place) -> str:
        """The data set's name in the ledger; what this engine cannot release is refused."""
        ...

    def codec(self, spec: ReleaseSpec, ledger: Ledger) -> LabelCodec:
        """The classes as values of the label column; a table that lacks a column, or was released already, is refused."""
        ...

    def passes(self, spec: ReleaseSpec, codec: LabelCodec, pin: TablePin, prior: OpenPrior | None) -> Passes:
        """The passes of one run, which ask `prior` for each row; None: there is none, or it is a model that `ask` asks once."""
        ...


@dataclass(frozen=True)
class TableRelease:
    """The result of a release: its place, receipt and manifest.

    Attributes
    ----------
    place : Place
        The file, or the folder of files.
    receipt : Receipt
    repeated : bool
        True if this very release had settled before: nothing was drawn and nothing was charged.
    manifest : dict
    """

    place: Place
    receipt: Receipt
    repeated: bool
    manifest: dict[str, object]


def release_table(engine: Engine, out: Place, spec: ReleaseSpec, ledger: Ledger, *, redraw: bool) -> TableRelease:
    """Release an engine's table; see `labeldp.release` and `labeldp.tables.spark.release`."""
    task = _Release(engine, out, spec, ledger, redraw=redraw)
    with scratch(out) as folder:  # of a local output, one release at a time on a POSIX machine
        return task.run(folder)


class _Release:
    """One release."""

    def __init__(self, engine: Engine, out: Place, spec: ReleaseSpec, ledger: Ledger, *, redraw: bool):
        self._engine, self._spec, self._ledger = engine, spec, ledger
        overlap: Overlap = "refuse" if spec.overlap == "refuse" else "charge"
        dataset = engine.dataset(spec, out)
        self._account = Account(dataset, spec.label, spec.max_rows_per_unit, ledger, redraw=redraw, overlap=overlap)
        self._out = Publication(out, engine.many, engine.source, spec.stage_name, self._account)
        # Before the classes are read off, or a single row is: a wrong name costs nothing.
        self._out.check_free()
        self._codec = engine.codec(spec, ledger)
        self._prior = opened(spec.prior, self._codec.classes, spec.label, engine.names) if isinstance(spec.prior, Prior) else None

    def run(self, folder: Path) -> TableRelease:
        """Pin, charge, draw, publish, settle."""
        prior, pin = self._prior, self._begin()
        # A model may answer otherwise the next time: it is asked once, between the passes, and its answers are kept until the release is
        # published.
        model = None if prior is None or prior.exact else AskedOnce(pin, self._ledger, self._out.place)
        passes = self._engine.passes(self._spec, self._codec, pin, prior if model is None else None)
        rows = passes.pin()
        # Only after the first pass it is known which run this request repeats; nothing is charged yet.
        self._out.check_owner(pin.lookup(rows))
        run = pin.charge(rows) if model is None or prior is None else model.charge(partial(passes.ask, prior=prior), rows)
        # The same request has settled: what was published then is given again, byte for byte.
        if isinstance(run, RunRecord):
            return TableRelease(self._out.place, run.receipt, True, self._out.repeat(run))
        prior_facts = None if prior is None else prior.facts
        facts = ReleaseFacts(self._spec, str(self._account.dataset), self._codec.classes, run.facts.law, run.receipt, prior_facts)
        # From here on the charge stands, whatever happens: the same request picks it up and draws the same rows.
        with self._out.staging(run.receipt.run_id) as staging:
            written = passes.draw(run, facts, staging, folder, () if model is None else model.files)
            manifest = manifest_of(facts, written, many=self._engine.many)
            self._out.publish(run, staging, manifest, written.parts)
        if model is not None:
            model.forget()
        return TableRelease(self._out.place, run.receipt, False, manifest)

    def _begin(self) -> TablePin:
        """Begin the first pass. Nothing in it depends on the engine, so that engines find each other's charges."""
        spec, classes = self._spec, self._codec.classes
        return TablePin(
            law_of(spec, len(classes)),
            # Part of the identity, in which null needs a name.
            tuple("(null)" if value is None else value for value in classes),
            self._account,
            unit_name=spec.unit_name,
            id_name=joined(spec.ids),
            stage=spec.stage,
            prior=None if self._prior is None else prior_identity(self._prior),
            facts={"classes_inferred": True} if spec.infers_classes else None,
        )


# The output: whose it is, how it gets its names, how it is found again --------------------------------------------------------------------


class Publication:
    """The output of a release: finds out whose run wrote what is there, publishes and settles, and finds a settled release again.

    Parameters
    ----------
    place : Place
    many : bool
        A folder of files, and not one file.
    source : Place or None
        The input, if it is in files.
    stage : str
        Name of the draw: another stage of the same run is another release.
    account : Account
        Whose runs may have written what is there.
    """

    def __init__(self, place: Place, many: bool, source: Place | None, stage: str, account: Account):
        assert account.ledger is not None  # no release without one
        self.place, self._many, self._source, self._stage = place, many, source, stage
        self._account, self._ledger = account, account.ledger

    # Before the charge ------------------------------------------------------------------------------------------------------------

    def check_free(self) -> None:
        """Refuse, first of all, an existing output that no run of this ledger and column has written, and names that cannot be used."""
        self.files_of("")  # says where none can be
        kind = self.place.info.type
        if self._many and kind == FileType.File:
            raise ReleaseError(f"Expected a folder name for the output, got the file {self.place}.")
        if not self._many and kind == FileType.Directory:
            raise ReleaseError(f"Expected a file name for the output, got the folder {self.place}.")
        if self._many and self._source is not None:
            check_apart(self._source, self.place)
        elif self._source is not None and kind == FileType.File and _same_file(self.place, self._source):
            raise ReleaseError(f"Expected another file for the output, got the input {self.place}. It would be overwritten.")
        # A new draw may only take the place of one that died just before it settled.
        there = self._occupied() if kind == FileType.Directory else kind != FileType.NotFound
        if there and not self._is_of(run for run in self._runs() if not self._account.redraw or run.state == "charged"):
            raise name_taken_error(self.place)

    def check_owner(self, known: RunRecord | None) -> None:
        """Refuse, before anything is charged, an existing output of another run than this request repeats."""
        if self._occupied() and not self._is_of(run for run in self._runs() if known is not None and run.identity == known.identity):
            raise name_taken_error(self.place)

    def _occupied(self) -> bool:
        """True if something is there that a release would replace."""
        if not self._many or not self.place.is_folder():
            return self.place.exists()
        return any(not file.below(self.place)[0].startswith(STAGING_PREFIX) for file in self.place.files())

    def _is_of(self, runs: Iterable[RunRecord]) -> bool:
        """True if one of these runs wrote what is there, as a whole or until it was killed."""
        known = {run.run_id: run for run in runs}
        if self._producing_run() in known or any(self.files_of(run_id).begun for run_id in known):
            return True
        # Somebody removed the manifest: a table that is a run's to the byte is still that run's.
        return not manifest_place(self.place).exists() and any(map(self._wrote, known.values()))

    def _wrote(self, run: RunRecord) -> bool:
        """True if the output is what this settled run wrote, byte for byte."""
        text = self._store(run.run_id).read(kept_name(KEPT_MANIFEST, self._stage))
        return text is not None and holds(self.place, run.artefact, json.loads(text))

    def _producing_run(self) -> str:
        """The run that wrote what is there, in this very stage; "" if none did."""
        return producing_run(read_manifest(self.place) or {}, self._stage)

    def _runs(self) -> list[RunRecord]:
        return list(self._ledger.runs(str(self._account.dataset), self._account.column))

    # A release --------------------------------------------------------------------------------------------------------------------

    def files_of(self, run_id: str) -> Staging:
        """Where a run's files are until they are published."""
        return Staging(self.place, run_id, single=not self._many)

    @contextmanager
    def staging(self, run_id: str) -> Iterator[Staging]:
        """An empty staging folder that is gone afterwards and that `labeldp ledger repair` knows of meanwhile."""
        staging = replace(self.files_of(run_id), occupied=self._occupied())
        if staging.occupied and self._producing_run() != run_id and not staging.begun:
            raise name_taken_error(self.place)  # by an earlier draw, while a later one was never finished
        # Before the folder is made: files that a killed process leaves are found by the ledger alone.
        self._store(run_id).write(STAGING, str(staging.folder).encode())
        with self._prepared(staging):
            yield staging

    def publish(self, run: TableDraw, staging: Staging, facts: dict[str, Any], parts: Sequence[Part]) -> None:
        """Announce the files in the ledger, give them their final names, and settle."""
        run_id, text, digests = run.receipt.run_id, to_json(facts).encode(), facts["digests"]
        store = self._store(run_id)
        # Where it went and what it says, on disk before it settles: a repeat copies the table from there and never draws again.
        store.write(kept_name(KEPT_PLACE, self._stage), str(self.place).encode())
        store.write(kept_name(KEPT_MANIFEST, self._stage), text)
        # The ledger knows the bytes before anybody sees them: such a file is never taken for raw labels, with or without its manifest.
        run.announce([replace(part, name=name) for part, name in zip(parts, staging.names(parts), strict=True)], digests["drawn"])
        # Asked again, since the draw took long and the name may have changed hands.
        staging.publish(parts, text + b"\n", replace=staging.occupied and self._producing_run() == run_id)
        # The secret goes only after table and manifest are on disk; killed before, the run is picked up and draws the same again.
        run.settle(digests["output"])
        (store.folder / STAGING).unlink(missing_ok=True)

    # A settled release ------------------------------------------------------------------------------------------------------------

    def repeat(self, record: RunRecord) -> dict[str, object]:
        """The manifest of the settled release, whose table is there as it was, or is copied from where it was first written."""
        store = self._store(record.run_id)
        text, first = (store.read(kept_name(name, self._stage)) for name in (KEPT_MANIFEST, KEPT_PLACE))
        facts = {} if text is None else json.loads(text)
        places = [self.place, *([self._first_place(first.decode())] if first else [])]
        # Byte for byte: a table that was changed is not handed out as the release.
        found = next((place for place in places if place is not None and holds(place, record.artefact, facts)), None)
        if text is None or found is None:
            raise ReleaseError(
                f"Expected the table that this release wrote to {places[-1]}, but it is gone or was changed. It was settled and is never "
                "computed again. Restore it, or ask for a new draw with redraw (--redraw), which is charged."
            )
        staging = self.files_of(record.run_id)
        if found != self.place:
            if self._occupied() and not staging.begun:
                raise name_taken_error(self.place)
            with self._prepared(staging):
                files = [found.child(str(part["name"])) for part in _parts_of(facts)] if self._many else [found]
                staging.publish([_copied(file, staging) for file in files], text + b"\n")
        # Killed between the table and its manifest, or somebody removed it.
        elif not manifest_place(self.place).exists():
            staging.write_manifest(text + b"\n")
            staging.delete()
        return read_manifest(self.place) or {}

    def _first_place(self, text: str) -> Place | None:
        """Find the place that a run wrote down: on this machine, or in the output's or the input's file system."""
        if not URI.match(text):
            return Place.of(text)
        for known in filter(None, (self.place, self._source)):
            # The text holds no credentials: a file system that the caller opened knows them.
            path = text.split("://", 1)[1]
            if str(Place(known.filesystem, path)) == text:
                return Place(known.filesystem, path if known.path[:1] != "/" else f"/{path}")
        try:
            return Place.of(text)
        except InvalidInput:
            return None

    def _store(self, run_id: str) -> RunStore:
        return RunStore(self._ledger.run_dir(run_id))

    @contextmanager
    def _prepared(self, staging: Staging) -> Iterator[None]:
        """An empty staging folder; what goes wrong with the disk is told in words, and leaves nothing but what the same run can finish."""
        try:
            staging.prepare()
            yield
        except BaseException as error:
            with suppress(OSError, ReleaseError):
                staging.delete_unless_begun()
            if not isinstance(error, OSError):
                raise
            # The charge stands and the secret is kept: the message says that nothing is lost.
            full = error.errno in (errno.ENOSPC, errno.EDQUOT)
            what = "no room is left" if full else error.strerror or type(error).__name__
            fix = "Make room" if full else "Mend it"
            raise ReleaseError(
                f"Expected to write {self.place} and temporary files for it, got: {what}. Nothing was published; a charge that was "
                f"made stands. {fix}, and run the same command again: it picks up the charge."
            ) from None


def kept_name(name: str, stage: str) -> str:
    """Name of what a run's folder keeps of a release: `KEPT_PLACE` or `KEPT_MANIFEST`."""
    return name if stage == RELEASE else f"{stage}.{name}"


def holds(place: Place, artefact: str | None, facts: Mapping[str, Any]) -> bool:
    """True if the released table that a manifest is about is at a place as a whole, byte for byte."""
    if "parts" not in facts:
        return place.is_file() and f"sha256:{place.digest()}" == artefact
    names = [str(part["name"]) for part in _parts_of(facts)]
    # A file more or less is another table, even if those that are listed are whole.
    if sorted(names) != sorted("/".join(file.below(place)) for file in place.files()):
        return False
    return f"sha256:{release_digest([place.child(name).digest() for name in names], single=False)}" == artefact


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


# The manifest: public facts only ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ReleaseFacts:
    """What a release is made of, for its manifest and for the facts that a file carries."""

    spec: ReleaseSpec
    dataset: str
    classes: tuple[object, ...]
    law: Law
    receipt: Receipt
    prior: Mapping[str, object] | None = None

    @cached_property
    def evidence_bytes(self) -> int:
        """Width of a row's evidence; 0 where the label says all."""
        return evidence_width(self.law)

    @cached_property
    def shared(self) -> dict[str, object]:
        """What all rows share and a reader of the table needs."""
        return {
            "format": FORMAT,
            "kind": "release",
            "label": self.spec.label,
            "classes": plain(self.classes),
            "evidence": self.spec.label + EVIDENCE if self.evidence_bytes else None,
            "id": list(self.spec.ids) or None,
            "law": self.law.to_dict(),
            "receipt": self.receipt.to_dict(),
            "stage": self.spec.stage_name,
        }


@dataclass(frozen=True)
class OutputFacts:
    """What the second pass wrote.

    Attributes
    ----------
    parts : tuple of Part
        The files, in order.
    dropped : int
        Rows left out by the cap or as other parts'.
    public_digest : str or None
        Of the public columns, where it was taken.
    """

    parts: tuple[Part, ...]
    dropped: int
    public_digest: str | None = None


def manifest_of(release: ReleaseFacts, written: OutputFacts, *, many: bool) -> dict[str, Any]:
    """The manifest as JSON-ready data, the unit first. `many`: files in a folder, even if there is one."""
    spec, receipt = release.spec, release.receipt
    facts: dict[str, Any] = release.shared | {
        "dataset": release.dataset,
        "dataset_from": "given" if spec.dataset else "name of the input file" if not many else "name of the input folder",
        "classes_inferred": spec.infers_classes,
        "order": "keyed permutation" if spec.order == "shuffle" else "kept: stated to be public",
        "prior": (list(spec.prior_columns) or None) if release.prior is None else dict(release.prior),
        "rows": sum(part.rows for part in written.parts),
        **_left_out(spec, written),
        "digests": {
            "output": f"sha256:{release_digest([part.sha256 for part in written.parts], single=not many)}",
            "drawn": drawn_in_all([part.drawn for part in written.parts]),
            "public_columns": None if written.public_digest is None else f"sha256:{written.public_digest}",
        },
    }
    if many:
        named = [(part_name(number), part) for number, part in enumerate(written.parts)]
        facts["parts"] = [{"name": name, "rows": part.rows, "sha256": part.sha256} for name, part in named]
    # Seeded noise protects nobody: such a manifest carries no guarantee, so nobody can quote one.
    if not receipt.secure:
        return {"insecure": True} | facts
    return {"guarantee": guarantee(receipt, release.law), "insecure": False} | facts


def guarantee(receipt: Receipt, law: Law) -> dict[str, object]:
    """What a receipt and a row's law promise, the unit first."""
    return {
        "unit": receipt.unit,
        "max_rows_per_unit": receipt.max_rows_per_unit,
        "epsilon": receipt.epsilon,
        "delta": receipt.delta,
        "epsilon_per_row": law.epsilon,
    } | ({"except_for": receipt.except_for} if receipt.except_for else {})


def _left_out(spec: ReleaseSpec, written: OutputFacts) -> dict[str, object]:
    """Rows that are not in the table, and why."""
    if spec.stage is None:
        return {"rows_over_the_cap": written.dropped}
    return {"stages": {"number": spec.stage.number} | spec.stage.facts(), "rows_of_other_stages_or_over_the_cap": written.dropped}


def to_json(facts: Mapping[str, object], *, indent: int | None = 2) -> str:
    """JSON text; numbers that JSON lacks are refused."""
    return json.dumps(facts, indent=indent, allow_nan=False, ensure_ascii=False)


def charged_law(receipt: Receipt, stage: str) -> Law | None:
    """The law of one row in a stage of what a receipt was charged for; None where the receipt does not say."""
    drawn = receipt.event.get("law")
    if not isinstance(drawn, Mapping):
        return None
    stages = drawn.get("stages")
    facts: Any
    if stages:
        facts = next((each["law"] for number, each in enumerate(stages, 1) if stage_name(number) == stage), None)
    else:
        facts = drawn.get("law") if drawn.get("stage") == stage else None
    return None if facts is None else law_per_row(law_from_dict(facts), receipt.max_rows_per_unit)


def read_manifest(out: Path | Place, *, named: bool = False) -> dict[str, object] | None:
    """The manifest beside a table, or (`named`) at this very place; None if there is none.

    Raises
    ------
    InvalidInput
        It is there but is not a manifest of this format.
    """
    path = Place.of(out) if named else manifest_place(Place.of(out))
    try:
        facts = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValueError):
        facts = None
    if not isinstance(facts, dict) or facts.get("format") != FORMAT or facts.get("kind") != "release":
        raise InvalidInput(
            f"Expected a manifest of format {FORMAT}, got something else in {path.name}. Restore it from where the table came from."
        )
    return facts


def producing_run(facts: Mapping[str, object], stage: str) -> str:
    """The run that made the table in this stage; "" if none did."""
    receipt = facts.get("receipt")
    return str(receipt["run_id"]) if isinstance(receipt, Mapping) and "run_id" in receipt and facts.get("stage") == stage else ""


# What a table says of itself --------------------------------------------------------------------------------------------------------------


def released_facts(source: Source, manifest: Any = None) -> Manifest | None:
    """Read the release facts of a table from `manifest`, from the manifest beside it, or from its Parquet metadata; None if there are none.

    That it is what these facts speak of is for `proven` to find out.
    """
    if manifest is not None:
        place = Place.of(manifest)
        found = read_manifest(place, named=True)
        if found is None:
            raise InvalidInput(f"Expected a manifest, got none at {place}. Check the path.")
        return found
    # The manifest comes first: it covers a whole folder, where each file's metadata speaks of itself alone.
    found = read_manifest(source.path)
    embedded = None if found is not None else embedded_facts(source)
    # one file of Parquet is whole once it has its name; a folder may still lack files
    if found is None and (embedded is None or isinstance(source, DatasetSource)) and unfinished(source.path):
        raise InvalidInput(
            f"Expected a whole release, got {source.path.name}, whose files are being published, or were when that was interrupted: its "
            "manifest is not there yet. The same labeldp release command finishes it, free of charge."
        )
    return found or embedded


def check_raw(table: Source, label: str, ledger: Ledger | None = None, except_dataset: str | None = None) -> None:
    """Refuse a table whose labels are noisy already, according to its manifest, its metadata, or a ledger that knows the file.

    The ledger is asked where it is given; the file is then read once to take its SHA-256, if the ledger has releases of this column.
    Those of `except_dataset` are left out: what a repeat reads can be, where rows are few, what it has written, to the byte.
    """
    facts = {} if label + EVIDENCE in table.names else released_facts(table) or {}
    if label + EVIDENCE in table.names or facts.get("label") == label:
        raise released_already(label)
    if ledger is None:
        return
    # By the bytes, since whoever took the manifest away may have renamed the file, too.
    runs = {
        part.sha256: run.run_id for run in ledger.runs(column=label) if run.dataset != except_dataset for part in ledger.parts(run.run_id)
    }
    found = next((runs[sha256] for sha256 in file_digests(table.path) if sha256 in runs), None) if runs else None
    if found is not None:
        raise InvalidInput(
            f"Expected a table with raw labels, got {table.path.name}, which run {found} released and whose manifest is gone. To train on "
            f"it, put {manifest_place(table.path).name} beside it again, or name it (manifest=, --manifest); the same labeldp release "
            "command writes both again, free of charge. Elsewhere name its original."
        )


def released_already(label: str) -> InvalidInput:
    """The error for a table whose label column holds noisy labels."""
    return InvalidInput(f"Expected a table with raw labels, got one whose column {label!r} was released already. Name its original.")


def embedded_facts(source: Source) -> dict[str, object] | None:
    """Read the release facts that a Parquet file carries in its metadata (of a folder, its first file); None if there are none."""
    file = source.first if isinstance(source, DatasetSource) else source
    facts = json.loads(file.facts) if isinstance(file, ParquetSource) and file.facts is not None else None
    return facts if isinstance(facts, dict) and facts.get("kind") == "release" and facts.get("format") == FORMAT else None


def file_digests(place: Place) -> list[str]:
    """SHA-256 of a file, or of each file below a folder but hidden ones, sorted by path; hexadecimal."""
    files = [file for file in place.files() if file.name[:1] not in "._"] if place.is_folder() else [place]
    return [file.digest() for file in files if file.is_file()]
