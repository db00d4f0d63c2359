# SPDX-License-Identifier: Apache-2.0
"""Releases a table, by the same steps on every engine: this process, Spark or Ray.

The steps are: check the arguments, pin the input (first pass), charge, draw into a private folder
(second pass), publish the files and then the manifest, and settle. An engine reads the table, asks
a prior for its rows, and writes the drawn rows.
"""

import errno
import json
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cache, cached_property, partial, reduce
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from pyarrow.fs import FileType

from labeldp import _validate
from labeldp._hash import digest
from labeldp._validate import joined
from labeldp.aggregates import Aggregate, Histogram
from labeldp.aggregates._result import query_from_dict
from labeldp.custody._draw import law_per_row
from labeldp.custody._request import REDRAW, Account, warn_of_repeat
from labeldp.custody._staged import stage_name
from labeldp.custody._stream import HISTOGRAM, RELEASE, TableDraw, TablePin
from labeldp.errors import ChargesUnwarned, InvalidInput, LabelDPWarning, ReleaseError, warn
from labeldp.evidence._noisy import FORMAT
from labeldp.laws import Law, law_from_dict
from labeldp.laws._columns import LabelColumns, class_facts
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
from labeldp.tables._priors import (
    Answers,
    AnswersFolder,
    AskedOnce,
    OpenPrior,
    Prior,
    opened,
)
from labeldp.tables._spec import ReleaseSpec, law_of
from labeldp.tables.formats._parquet import (
    DatasetSource,
    ParquetSource,
    check_apart,
    open_table,
    table_name,
)
from labeldp.tables.formats._table import (
    EVIDENCE,
    LabelCodec,
    Source,
    altered,
    drawn_in_all,
    needs_evidence,
    row_words,
)

KEPT_PLACE, KEPT_MANIFEST = "output", "manifest.json"
"""Files in a run's private folder by which a repeat finds the release: the place of the table, and
the manifest's text."""
Manifest = Mapping[str, Any]
EARLIER = "earlier"
"""The list, in the facts of a release, of earlier releases whose noisy columns passed through."""
_ORDERS = {"shuffle": "keyed permutation", "keep": "kept: stated to be public"}
_PASSED_ON = (
    "label",
    "columns",
    "classes",
    "grid",
    "evidence",
    "id",
    "law",
    "receipt",
    "stage",
    "rows_over_the_cap",
    HISTOGRAM,
)
"""The facts of an earlier release by which its column is read and proven; besides them the digest
of what it drew."""

_PLAN_ANEW = "make a new plan with labeldp.app.stage.plan, which is charged"


class Passes(Protocol):
    """An engine's two passes over the rows of one release."""

    def pin(self) -> str:
        """Run the first pass, which checks and pins every row. Return the digest of the public
        columns if rows have no ids, else ""."""

    def ask(self, folder: AnswersFolder, prior: OpenPrior) -> Answers:
        """Run a model prior once, between the passes, and store its answers. No label is read."""

    def draw(
        self,
        run: TableDraw,
        facts: "ReleaseFacts",
        staging: Staging,
        scratch: Path,
        answers: Sequence[Place],
    ) -> "OutputFacts":
        """Run the second pass, which draws and writes every row, with the stored answers of the
        prior if there are any.

        ReleaseError if the input has changed since the first pass.
        """


class Engine(Protocol):
    """An execution engine: this process, Spark or Ray.

    Attributes
    ----------
    names : sequence of str
        Columns of the table; set by `codec`.
    many : bool
        True if the output is a folder of files.
    source : Place or None
        The input's place, if the output could overwrite it.
    types, written : mapping of column to type
        The columns' types, and those that they have once they were written, in the same words
        (`altered`); set by `codec`.
    earlier : sequence of mappings
        The facts of earlier releases whose noisy columns pass unchanged (`passed_on`); set by
        `codec`.
    """

    names: Sequence[str]
    many: bool
    source: Place | None
    types: Mapping[str, str]
    written: Mapping[str, str]
    earlier: Sequence[Manifest]

    @property
    def files(self) -> Source | None:
        """The table; None if a cluster has it, and its files are not known."""

    def dataset(self, spec: ReleaseSpec, out: Place) -> str:
        """Return the data set's name in the ledger; refuse a spec that this engine cannot
        release."""

    def codec(self, spec: ReleaseSpec, ledger: Ledger) -> LabelCodec:
        """Return the codec of the label column; refuse a table that lacks a column, or was released
        already, and private columns as ids, unit or prior."""

    def check_private(self, spec: ReleaseSpec, dataset: str, ledger: Ledger) -> None:
        """Refuse columns that pass unchanged but are private in this data set, by the ledger; warn
        of earlier files with these labels."""

    def passes(
        self, spec: ReleaseSpec, codec: LabelCodec, pin: TablePin, prior: OpenPrior | None
    ) -> Passes:
        """Return the passes of one run, which ask `prior` for each row. None: no prior, or a model,
        which `ask` runs once."""


@dataclass(frozen=True)
class TableRelease:
    """The result of a release: its place, receipt and manifest.

    Attributes
    ----------
    place : Place
        The file, or the folder of files.
    receipt : Receipt
    repeated : bool
        True if this release had settled before, so that nothing was drawn or charged.
    manifest : dict
    unchanged : tuple of str
        The columns of the written table that have the name, type and values of the input's.
    """

    place: Place
    receipt: Receipt
    repeated: bool
    manifest: dict[str, object]
    unchanged: tuple[str, ...]


def release_table(
    engine: Engine, out: Place, spec: ReleaseSpec, ledger: Ledger, *, redraw: bool
) -> TableRelease:
    """Release an engine's table; see `labeldp.release` and `labeldp.tables.spark.release`."""
    with ChargesUnwarned(spec.strict):
        task = _Release(engine, out, spec, ledger, redraw=redraw)
        with scratch(out) as folder:  # locks a local output on POSIX machines
            return task.run(folder)


class _Release:
    """One release."""

    def __init__(
        self, engine: Engine, out: Place, spec: ReleaseSpec, ledger: Ledger, *, redraw: bool
    ):
        dataset = engine.dataset(spec, out)
        self._engine, self._spec, self._ledger = engine, spec, ledger
        self._account = Account(
            dataset, spec.label, spec.max_rows_per_unit, ledger, redraw=redraw, overlap=spec.overlap
        )
        self._out = Publication(
            out,
            engine.many,
            engine.source,
            spec.stage_name,
            replace(self._account, column=spec.labels[0]),
        )
        # Before any row is read, so that a taken name is refused at once; and private columns as
        # ids, as the message about repeated ids tells which rows have one value.
        self._out.check_free()
        self._codec = engine.codec(spec, ledger)
        self._prior = (
            opened(spec.prior, self._codec.classes, spec.label, engine.names)
            if isinstance(spec.prior, Prior)
            else None
        )

    def run(self, folder: Path) -> TableRelease:
        """Pin, charge, draw, publish and settle."""
        prior, pin = self._prior, self._begin()
        # A model may give other answers if it is asked again (other batches, another machine), and
        # rows would be drawn under two priors. So it is asked once, between the passes, and its
        # answers are stored until the release is published.
        model = (
            None if prior is None or prior.exact else AskedOnce(pin, self._ledger, self._out.place)
        )
        passes = self._engine.passes(self._spec, self._codec, pin, prior if model is None else None)
        rows = passes.pin()
        # Only after the first pass is it known which run this request repeats, so which existing
        # output it may replace.
        known = pin.lookup(rows)
        self._out.check_owner(known)
        # What a repeat returns, or a resumed run publishes, was settled by its own charge; a later
        # charge does not take it back.
        if known is None or self._account.redraw:
            self._engine.check_private(self._spec, str(self._account.dataset), self._ledger)
            found = altered(self._engine.types, self._engine.written)
            names = unchanged(tuple(found), self._spec)
            if told := [f"{name!r} ({found[name]})" for name in names]:
                warn(
                    LabelDPWarning(
                        "Columns that the released table has in another type, or without what the"
                        f" input says they are: {_validate.told(told, ', ')}. Convert them first,"
                        " or leave them out, if that matters to its readers."
                    )
                )
        run = (
            pin.charge(rows)
            if model is None or prior is None
            else model.charge(partial(passes.ask, prior=prior), rows)
        )
        # The same request has settled: the table that was published then is returned, byte for
        # byte.
        if isinstance(run, RunRecord):
            # The table may be gone: only an answer that is there comes back.
            manifest = self._out.repeat(run, self._spec, self._differing)
            stale = "Later changes to the table's labels are not in it."
            # A prior under which the law draws otherwise was refused above, or made another
            # request.
            if model is not None:
                stale += " The prior's model was not asked again."
            elif self._spec.prior is not None and self._spec.histogram is None:
                stale += " The prior given now leads to the same draw."
            warn_of_repeat(run.receipt, stale, REDRAW if self._spec.stage is None else _PLAN_ANEW)
            return TableRelease(
                self._out.place, run.receipt, True, manifest, self._unchanged(manifest)
            )
        facts = ReleaseFacts(
            self._spec,
            str(self._account.dataset),
            self._codec.classes,
            run.facts.law,
            run.receipt,
            None if prior is None else prior.facts,
            tuple(self._engine.earlier),
            run.histogram,
        )
        # From here on the charge stays. After any error the same request resumes the run and draws
        # the same outputs.
        with self._out.staging(run.receipt.run_id) as staging:
            written = passes.draw(run, facts, staging, folder, () if model is None else model.files)
            manifest = manifest_of(facts, written, many=self._engine.many)
            self._out.publish(run, staging, manifest, written.parts)
        if model is not None:
            model.forget()
        return TableRelease(
            self._out.place, run.receipt, False, manifest, self._unchanged(manifest)
        )

    def _unchanged(self, manifest: Manifest) -> tuple[str, ...]:
        """List the columns that the file that was written has as the input has them."""
        first = [str(part["name"]) for part in manifest.get("parts", [])[:1]]
        types = open_table(reduce(Place.child, first, self._out.place)).types
        kept = types.keys() - altered(self._engine.types, types) - set(self._spec.labels)
        return tuple(name for name in self._engine.names if name in kept)

    def _differing(self, released: Source, facts: Manifest) -> list[str]:
        """List the public columns that are not those of a release of the same rows: new, gone, of
        another type, or, where the table is in files, with other values."""
        today, then = self._engine.written, released.types
        names = [
            name
            for name in {**today, **then}
            if name not in (*self._spec.labels, facts.get("evidence"))
        ]
        found = [name for name in names if today.get(name) != then.get(name)]
        source, ids = self._engine.files, self._spec.ids
        # Rows without ids are a request by their public columns: with others it is no repeat.
        same = [name for name in names if name not in found]
        if source is None or not ids or {*ids} & {*found} or _has_rows(source, released, same):
            return found
        return found + [n for n in same if not _has_rows(source, released, list({*ids, n}))]

    def _begin(self) -> TablePin:
        """Start the first pass. Its request does not depend on the engine, so that one engine can
        resume or repeat another's run."""
        spec, classes = self._spec, self._codec.classes
        return TablePin(
            law_of(spec, len(classes)),
            # Classes enter the request's identity by their repr, and None is no class there.
            _without_null(classes),
            self._account,
            unit_name=spec.unit or "row",
            id_name=joined(spec.ids),
            stage=spec.stage,
            prior=(
                None  # the digest of the sides names an exact prior
                if self._prior is None or self._prior.exact
                else digest({"prior": dict(self._prior.facts)})
            ),
            facts={"classes_inferred": True} if spec.infers_classes else None,
            divide=(
                None
                if spec.histogram is None
                else spec.histogram.divided(spec.epsilon, len(classes))
            ),
        )


def _has_rows(source: Source, released: Source, names: Sequence[str]) -> bool:
    """Tell whether a table has all rows of a released one, by these columns, in any order."""
    known = np.sort(np.concatenate([row_words(batch, names) for batch in source.batches(names)]))
    there = (row_words(batch, names) for batch in released.batches(names))
    return all((known[np.searchsorted(known[:-1], words)] == words).all() for words in there)


def unchanged(names: Sequence[str], spec: ReleaseSpec) -> list[str]:
    """List the columns that a release passes on as they are: all but the private ones."""
    return [name for name in names if name not in spec.labels]


def _without_null(classes: tuple[object, ...]) -> tuple[object, ...]:
    """Name the null class, in each of several columns, by a text."""
    if isinstance(classes, LabelColumns):
        return LabelColumns(
            {
                name: _without_null(values)
                for name, values in zip(classes.names, classes.lists, strict=True)
            }
        )
    return tuple("(null)" if value is None else value for value in classes)


# The output: its owner, its publication, and its recovery
# ---------------------------------------------------------------------------------


class Publication:
    """The output of a release: it checks which run wrote an existing output, publishes and settles,
    and recovers a settled release.

    Parameters
    ----------
    place : Place
    many : bool
        True for a folder of files, False for one file.
    source : Place or None
        The input's place, if it is in files.
    stage : str
        Name of the stage; each stage of a run is a release of its own.
    account : Account
        The account whose runs may have written an existing output: of several columns that of the
        first one.
    """

    def __init__(
        self, place: Place, many: bool, source: Place | None, stage: str, account: Account
    ):
        assert account.ledger is not None  # no release without one
        self.place, self._many, self._source, self._stage = place, many, source, stage
        self._account, self._ledger = account, account.ledger

    # Before the charge
    # ----------------------------------------------------------------------------------------------

    def check_free(self) -> None:
        """Refuse an impossible name, and an existing output that no run of this account has
        written."""
        self.files_of("")  # raises for a place that can have no staging folder
        kind = self.place.info.type
        if self._many and kind == FileType.File:
            raise ReleaseError(f"Expected a folder name for the output, got the file {self.place}.")
        if not self._many and kind == FileType.Directory:
            raise ReleaseError(f"Expected a file name for the output, got the folder {self.place}.")
        if self._many and self._source is not None:
            check_apart(self._source, self.place)
        elif (
            self._source is not None
            and kind == FileType.File
            and (
                self.place == self._source
                if self.place.local is None or self._source.local is None
                else os.path.samefile(self.place.local, self._source.local)
            )
        ):
            raise ReleaseError(
                f"Expected another file for the output, got the input {self.place}. It would be"
                " overwritten."
            )
        # With redraw, an output may be replaced only if its run died right before it settled: a
        # settled release is never overwritten.
        there = self._occupied() if kind == FileType.Directory else kind != FileType.NotFound
        if there and not self._is_of(
            run for run in self._runs() if not self._account.redraw or run.state == "charged"
        ):
            raise name_taken_error(self.place)

    def check_owner(self, known: RunRecord | None) -> None:
        """Refuse an existing output of another run than the one that this request repeats; called
        before the charge."""
        if self._occupied() and not self._is_of(
            run for run in self._runs() if known is not None and run.identity == known.identity
        ):
            raise name_taken_error(self.place)

    def _occupied(self) -> bool:
        """Tell whether there is anything that a release would replace."""
        if not self._many or not self.place.is_folder():
            return self.place.exists()
        return any(
            not file.below(self.place)[0].startswith(STAGING_PREFIX) for file in self.place.files()
        )

    def _is_of(self, runs: Iterable[RunRecord]) -> bool:
        """Tell whether one of these runs wrote the existing output, completely or until it was
        killed."""
        known = {run.run_id: run for run in runs}
        if self._producing_run() in known or any(self.files_of(run_id).started for run_id in known):
            return True
        # If the manifest was removed, the table is recognised by its bytes.
        if manifest_place(self.place).exists():
            return False
        digest_of = cache(Place.digest)  # the output may be large: it is read once for all runs
        texts = (
            (run, self._store(run_id).read(kept_name(KEPT_MANIFEST, self._stage)))
            for run_id, run in known.items()
        )
        return any(
            holds(self.place, run.artefact, json.loads(text), digest_of)
            for run, text in texts
            if text is not None
        )

    def _producing_run(self) -> str:
        """Return the id of the run that wrote the existing output in this stage, by its manifest;
        "" if there is none."""
        facts = read_manifest(self.place) or {}
        return _draw_of(facts)[0] if facts.get("stage") == self._stage else ""

    def _runs(self) -> list[RunRecord]:
        return list(self._ledger.runs(str(self._account.dataset), self._account.column))

    # A release
    # ----------------------------------------------------------------------------------------------

    def files_of(self, run_id: str) -> Staging:
        """Return the staging folder of a run's files."""
        return Staging(self.place, run_id, single=not self._many)

    @contextmanager
    def staging(self, run_id: str) -> Iterator[Staging]:
        """Make an empty staging folder for a `with` block, and delete it afterwards."""
        staging = replace(self.files_of(run_id), occupied=self._occupied())
        if staging.occupied and self._producing_run() != run_id and not staging.started:
            # the output of an earlier draw, while this run was charged for a later one
            raise name_taken_error(self.place)
        # The run's folder names the staging folder before it is made, so that `labeldp ledger
        # repair` finds what a killed process leaves.
        self._store(run_id).write(STAGING, str(staging.folder).encode())
        with self._prepared(staging):
            yield staging

    def publish(
        self, run: TableDraw, staging: Staging, facts: dict[str, Any], parts: Sequence[Part]
    ) -> None:
        """Record the files in the ledger, give them their final names, and settle."""
        run_id, text, digests = run.receipt.run_id, to_json(facts).encode(), facts["digests"]
        store = self._store(run_id)
        # The ledger has the files' digests before anybody can read them: so a released file is
        # never taken for raw labels, even without its manifest.
        run.announce(
            [
                replace(part, name=name)
                for part, name in zip(parts, staging.names(parts), strict=True)
            ],
            digests["drawn"],
        )
        # Place and manifest are on disk before the run settles: then the secret is gone, and a
        # repeat can only copy the table from there. They are written after the files are announced,
        # which is refused if another process has settled the run: its place stays known.
        store.write(kept_name(KEPT_PLACE, self._stage), str(self.place).encode())
        store.write(kept_name(KEPT_MANIFEST, self._stage), text)
        # The owner is checked again, since the draw may have taken hours.
        staging.publish(
            parts, text + b"\n", replace=staging.occupied and self._producing_run() == run_id
        )
        # The secret is destroyed after table and manifest are on disk: a run that is killed before
        # that can draw the same outputs again.
        run.settle(digests["output"])
        (store.folder / STAGING).unlink(missing_ok=True)

    # A settled release
    # ----------------------------------------------------------------------------------------------

    def repeat(
        self,
        record: RunRecord,
        spec: ReleaseSpec,
        differing: Callable[[Source, Manifest], list[str]],
    ) -> dict[str, object]:
        """Restore the output of a settled release, by a copy of the table it first wrote if needed,
        and return its manifest.

        ReleaseError if its rows are in another order than the spec's: labels would be read beside
        other rows, or an order be published. InvalidInput if `differing` lists public columns that
        are not those of the request.
        """
        store = self._store(record.run_id)
        text, first = (
            store.read(kept_name(name, self._stage)) for name in (KEPT_MANIFEST, KEPT_PLACE)
        )
        facts = {} if text is None else json.loads(text)
        if facts.get("order", _ORDERS[spec.order]) != _ORDERS[spec.order]:
            asked, written = sorted(_ORDERS, key=lambda name: name != spec.order)
            raise ReleaseError(
                f"Expected order={written!r}, in which this release has written"
                f" its rows, got {asked!r}. It was settled and is never written anew. Ask for it in"
                " its order, or for a new draw with redraw=True, which is charged."
            )
        places = [self.place, *([self._first_place(first.decode())] if first else [])]
        # Only a table with the digest that the run settled with is returned as the release.
        found = next(
            (
                place
                for place in places
                if place is not None and holds(place, record.artefact, facts)
            ),
            None,
        )
        if text is None:
            store.require()
        if text is None or found is None:
            raise ReleaseError(
                f"Expected the table that this release wrote to {places[-1]}, but it is gone or was"
                " changed. It was settled and is never computed again. Restore it, or ask for a"
                " new draw with redraw=True, which is charged."
            )
        if names := differing(open_table(found), facts):
            raise InvalidInput(
                f"Expected the public columns that run {record.run_id} has released with these"
                f" rows, got others: {_validate.told([repr(name) for name in names], ', ')}"
                f" changed, came or went since. Its table {found} stays as it is; nothing was"
                " charged. Join today's columns to its noisy labels by id, which is free, or ask"
                " for a new draw with redraw=True, which is charged."
            )
        staging = self.files_of(record.run_id)
        if found != self.place:
            if self._occupied() and not staging.started:
                raise name_taken_error(self.place)
            with self._prepared(staging):
                files = (
                    [found.child(str(part["name"])) for part in facts.get("parts", [])]
                    if self._many
                    else [found]
                )
                staging.publish([_copied(file, staging) for file in files], text + b"\n")
        # The manifest is missing, or another one: a process was killed after the table, or somebody
        # changed it.
        elif read_manifest(self.place) != facts:
            staging.write_manifest(text + b"\n")
            staging.delete()
        return dict(facts)

    def _first_place(self, text: str) -> Place | None:
        """Return the place with this address: on this machine, or in the output's or the input's
        file system; None if it is unknown."""
        if not URI.match(text):
            return Place.of(text)
        for known in filter(None, (self.place, self._source)):
            # The address holds no credentials, but a file system that the caller has opened has
            # them.
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
        """Make an empty staging folder for a `with` block; after an error delete it, unless the run
        has started to publish."""
        try:
            staging.prepare()
            yield
        except BaseException as error:
            with suppress(OSError, ReleaseError):
                staging.delete_unless_started()
            if not isinstance(error, OSError):
                raise
            # The charge and the secret are kept, so the message says that the same command
            # continues.
            full = error.errno in (errno.ENOSPC, errno.EDQUOT)
            what = "no room is left" if full else error.strerror or type(error).__name__
            fix = "Make room" if full else "Mend it"
            raise ReleaseError(
                f"Expected to write {self.place} and temporary files for it, got: {what}. Nothing"
                f" was published; a charge that was made stands. {fix}, and run the same command"
                " again: it picks up the charge."
            ) from None


def kept_name(name: str, stage: str) -> str:
    """Return the name of a file (`KEPT_PLACE` or `KEPT_MANIFEST`) in a run's folder, which has one
    for each stage."""
    return name if stage == RELEASE else f"{stage}.{name}"


def holds(
    place: Place,
    artefact: str | None,
    facts: Mapping[str, Any],
    digest_of: Callable[[Place], str] = Place.digest,
) -> bool:
    """Tell whether a place holds, byte for byte, the table with this manifest and this digest."""
    if "parts" not in facts:
        return place.is_file() and f"sha256:{digest_of(place)}" == artefact
    names = [str(part["name"]) for part in facts.get("parts", [])]
    # With a file more or less it is another table, even if all listed files are unchanged.
    if sorted(names) != sorted("/".join(file.below(place)) for file in place.files()):
        return False
    return (
        f"sha256:{release_digest([digest_of(place.child(name)) for name in names], single=False)}"
        == artefact
    )


def _copied(file: Place, staging: Staging) -> Part:
    made = staging.new_file()
    target = HashedFile(made)
    with file.filesystem.open_input_stream(file.path) as stream:
        while chunk := stream.read(CHUNK):
            target.write(chunk)
    return Part(made.name, 0, target.size, target.finish())


# The manifest: public facts only
# --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ReleaseFacts:
    """The facts of a release, for its manifest and for the metadata of its files."""

    spec: ReleaseSpec
    dataset: str
    classes: tuple[object, ...]
    law: Law
    receipt: Receipt
    prior: Mapping[str, object] | None = None
    earlier: tuple[Manifest, ...] = ()
    histogram: Aggregate | None = None

    @cached_property
    def shared(self) -> dict[str, object]:
        """The facts that all rows share and that a reader of the table needs."""
        counted = (
            {}
            if self.histogram is None
            else {
                "counts": self.histogram.values[0].tolist(),
                "rows": int(self.histogram.n_rows[0]),
            }
        )
        return {
            "format": FORMAT,
            "kind": "release",
            "label": self.spec.label,
            **class_facts(self.classes),
            "evidence": self.spec.label + EVIDENCE if needs_evidence(self.law) else None,
            "id": list(self.spec.ids) or None,
            "law": self.law.to_dict(),
            "receipt": self.receipt.to_dict(),
            "stage": self.spec.stage_name,
            **({EARLIER: list(self.earlier)} if self.earlier else {}),
            **({HISTOGRAM: counted} if counted else {}),
        }


@dataclass(frozen=True)
class OutputFacts:
    """The result of the second pass.

    Attributes
    ----------
    parts : tuple of Part
        The files, in order.
    dropped : int
        Number of rows over the cap or in other stages, which were not drawn.
    public_digest : str or None
        Digest of the public columns; None if it was not computed.
    """

    parts: tuple[Part, ...]
    dropped: int
    public_digest: str | None = None


def manifest_of(release: ReleaseFacts, written: OutputFacts, *, many: bool) -> dict[str, Any]:
    """Return the manifest as JSON-ready data, guarantee first. `many`: the output is a folder, even
    if it has one file."""
    spec, receipt = release.spec, release.receipt
    prior = release.prior if spec.histogram is None else spec.histogram.to_dict()
    left_out: dict[str, object] = (
        {"rows_over_the_cap": written.dropped}
        if spec.stage is None
        else {
            "stages": {"number": spec.stage.number} | spec.stage.facts(),
            "rows_of_other_stages_or_over_the_cap": written.dropped,
        }
    )
    facts: dict[str, Any] = release.shared | {
        "dataset": release.dataset,
        "dataset_from": (
            "given"
            if spec.dataset
            else "name of the input file"
            if not many
            else "name of the input folder"
        ),
        "classes_inferred": spec.infers_classes,
        "order": _ORDERS[spec.order],
        "prior": (list(spec.prior_columns) or None) if prior is None else dict(prior),
        "rows": sum(part.rows for part in written.parts),
        **left_out,
        "digests": {
            "output": (
                f"sha256:{release_digest([part.sha256 for part in written.parts], single=not many)}"
            ),
            "drawn": drawn_in_all([part.drawn for part in written.parts]),
            "public_columns": (
                None if written.public_digest is None else f"sha256:{written.public_digest}"
            ),
        },
    }
    if many:
        facts["parts"] = [
            {"name": part_name(number), "rows": part.rows, "sha256": part.sha256}
            for number, part in enumerate(written.parts)
        ]
    # Seeded noise protects nothing, so such a manifest has no guarantee that somebody could quote.
    if not receipt.secure:
        return {"insecure": True} | facts
    return {"guarantee": guarantee(receipt, release.law), "insecure": False} | facts


def guarantee(receipt: Receipt, law: Law) -> dict[str, object]:
    """Return the guarantee of a receipt and a row's law as JSON-ready data, the unit of protection
    first."""
    query = charged_histogram(receipt)
    return {
        "unit": receipt.unit,
        "max_rows_per_unit": receipt.max_rows_per_unit,
        "epsilon": receipt.epsilon,
        "delta": receipt.delta,
        "epsilon_per_row": law.epsilon,
        **({} if query is None else {"epsilon_of_histogram": query.epsilon}),
    } | ({"except_for": receipt.except_for} if receipt.except_for else {})


def misstated(facts: Manifest, charged: Receipt, law: Law | None) -> list[str]:
    """List what a manifest says besides its receipt that is not what was charged; `law` is that of
    a row."""
    due: dict[str, object] = {
        "dataset": charged.dataset,
        "label": charged.column,
        "insecure": not charged.secure,
        "classes_inferred": bool(charged.except_for),
    }
    if law is not None:
        due["guarantee"] = guarantee(charged, law) if charged.secure else None
    # The metadata of a file, and the list of earlier releases, say less than a manifest.
    whole = {"kind", "digests"} <= facts.keys()
    return sorted(name for name in due if (whole or name in facts) and facts.get(name) != due[name])


def to_json(facts: Mapping[str, object], *, indent: int | None = 2) -> str:
    """Return JSON text; ValueError for NaN and infinity, which JSON lacks."""
    return json.dumps(facts, indent=indent, allow_nan=False, ensure_ascii=False)


def charged_law(receipt: Receipt, stage: str) -> Law | None:
    """Return the law of one row in a stage of a charged run, from its receipt; None if the receipt
    names none."""
    drawn = receipt.event.get("law")
    if not isinstance(drawn, Mapping):
        return None
    laws = {drawn.get("stage"): drawn.get("law")} | {
        stage_name(number): each["law"] for number, each in enumerate(drawn.get("stages") or (), 1)
    }
    facts = laws.get(stage)
    return None if facts is None else law_per_row(law_from_dict(facts), receipt.max_rows_per_unit)


def is_charged(law: Law, receipt: Receipt, stage: str) -> bool:
    """Tell whether a receipt names this law of one row in this stage."""
    charged = charged_law(receipt, stage)
    if charged is None or law == charged:
        return law == charged
    # A law of numbers is made for the run's own histogram after the charge; or it was solved for
    # again at a row's share of a unit's epsilon, and another machine may find another of several
    # best mechanisms. The digest of the drawn rows covers the one drawn with.
    again = law.kind == "number" and (
        receipt.max_rows_per_unit > 1 or charged_histogram(receipt) is not None
    )
    return again and (law.name, law.n_classes, law.epsilon) == (
        charged.name,
        charged.n_classes,
        charged.epsilon,
    )


def charged_histogram(receipt: Receipt) -> Histogram | None:
    """Return the query of the histogram that a run was charged for as its prior; None if there is
    none."""
    drawn = receipt.event.get("law")
    asked = drawn.get(HISTOGRAM) if isinstance(drawn, Mapping) else None
    if not isinstance(asked, Mapping):
        return None
    query = query_from_dict(asked)
    if type(query) is not Histogram:
        raise InvalidInput(
            f"Expected a histogram as the prior that run {receipt.run_id} was charged for, got a"
            f" {query.name} query."
        )
    return query


def read_manifest(out: Path | Place, *, named: bool = False) -> dict[str, object] | None:
    """Read the manifest beside a table, or (`named`) at this place; None if there is none.

    Raises
    ------
    InvalidInput
        The file is no manifest of this format.
    """
    path = Place.of(out) if named else manifest_place(Place.of(out))
    try:
        facts = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValueError):
        facts = None
    if (
        not isinstance(facts, dict)
        or facts.get("format") != FORMAT
        or facts.get("kind") != "release"
    ):
        raise InvalidInput(
            f"Expected a manifest of format {FORMAT}, got something else in {path.name}. Restore it"
            " from where the table came from."
        )
    return facts


# Facts that a table carries
# --------------------------------------------------------------------------------------------------


def released_facts(source: Source, manifest: Any = None) -> Manifest | None:
    """Read the release facts of a table from `manifest`, from the manifest beside it, or from its
    Parquet metadata; None if there are none.

    `proven` checks that they describe this table.
    """
    if manifest is not None:
        place = Place.of(manifest)
        found = read_manifest(place, named=True)
        if found is None:
            raise InvalidInput(f"Expected a manifest, got none at {place}. Check the path.")
        return found
    # The manifest comes first, because it covers a whole folder; the metadata of a file covers that
    # file alone.
    found = read_manifest(source.path)
    embedded = None if found is not None else embedded_facts(source)
    # A single Parquet file is complete once it has its name, but a folder may still lack files.
    if (
        found is None
        and (embedded is None or isinstance(source, DatasetSource))
        and unfinished(source.path)
    ):
        raise InvalidInput(
            f"Expected a whole release, got {source.path.name}, whose files are being published, or"
            " were when that was interrupted: its manifest is not there yet. The same labeldp"
            " release command finishes it, free of charge."
        )
    return found or embedded


def facts_of(source: Source, label: str | None, manifest: Any = None) -> Manifest | None:
    """Read the facts of the release that drew a column: the table's own (`released_facts`), or
    those of an earlier one that it lists."""
    own = released_facts(source, manifest)
    if own is None or label is None or is_of(own, label):
        return own
    # The rows are in the order of the last release, whatever that of the earlier one was.
    return next(
        ({**each, "order": own.get("order")} for each in earlier_of(own) if is_of(each, label)), own
    )


def all_facts(source: Source, manifest: Any = None) -> list[Manifest]:
    """List the facts of all releases of whose columns a table says (or the named manifest) that it
    has them: its own and earlier ones."""
    own = released_facts(source, manifest)
    inside = [] if manifest is not None else _embedded(source)
    listed = inside if own is None else [own, *earlier_of(own), *inside]
    return list({_draw_of(each): each for each in reversed(listed)}.values())[::-1]


def _embedded(source: Source) -> list[Manifest]:
    """List the facts of all releases that the metadata of a table's files name."""
    return [
        each
        for facts in filter(None, map(embedded_facts, source.files))
        for each in (facts, *earlier_of(facts))
    ]


def contradicted(source: Source, facts: Manifest) -> bool:
    """Tell whether the metadata of a table's files say something else of the same draw."""
    said = [each for each in _embedded(source) if _draw_of(each) == _draw_of(facts)]
    return any(
        each[name] != facts[name]
        for each in said
        for name in each.keys() & facts.keys() & set(_PASSED_ON)
    )


def earlier_of(facts: Manifest) -> Sequence[Manifest]:
    """List the facts of the earlier releases that a manifest names; refuse a list that labeldp did
    not write."""
    listed = facts.get(EARLIER) or []
    try:
        whole = all(
            {"label", "classes", "stage"} <= each.keys()
            and Receipt.from_dict(each["receipt"])
            and "law" in each["law"]
            and "drawn" in each["digests"]
            for each in listed
        )
    except (AttributeError, KeyError, TypeError, InvalidInput):
        whole = False
    if not whole:
        raise InvalidInput(
            "Expected earlier releases in a manifest as labeldp wrote them, got something else."
            " Restore it."
        )
    return tuple(listed)


def _draw_of(facts: Manifest) -> tuple[str, str]:
    return Receipt.from_dict(facts["receipt"]).run_id, str(facts["stage"])


def default_dataset(source: Source, own: str | None = None) -> str:
    """Name the data set of a table for which none is named: that of the releases that it says it is
    of, or else its own name."""
    said = {Receipt.from_dict(facts["receipt"]).dataset for facts in all_facts(source)}
    return said.pop() if len(said) == 1 else table_name(source) if own is None else own


def is_of(facts: Manifest, label: str) -> bool:
    """Tell whether a release drew this column, alone or with others; `label` may be the name of all
    of them."""
    return label in (facts["label"], *labels_of(facts))


def noisy_names(found: Iterable[Manifest]) -> set[str]:
    """List the columns that releases drew or added, by their facts."""
    return {name for facts in found for name in (*labels_of(facts), facts.get("evidence")) if name}


def passed_on(source: Source, labels: Collection[str]) -> tuple[Manifest, ...]:
    """Make the facts of those earlier releases whose columns a table has beside the label, as the
    next manifest lists them."""
    beside = set(source.names).difference(labels)
    return tuple(
        _passed(source, facts)
        for facts in all_facts(source)
        if not beside.isdisjoint(labels_of(facts))
    )


def _passed(source: Source, facts: Manifest) -> Manifest:
    if "digests" in facts:
        drawn = facts["digests"].get("drawn")
    else:  # the metadata of a file has the digest of its own rows
        said = [
            each
            for each in map(embedded_facts, source.files)
            if each is not None and _draw_of(each) == _draw_of(facts)
        ]
        drawn = (
            drawn_in_all(str(each["drawn"]) for each in said)
            if all("drawn" in each for each in said)
            else None
        )
    return {name: facts[name] for name in _PASSED_ON if name in facts} | {
        "digests": {"drawn": drawn}
    }


def check_raw(
    table: Source,
    labels: str | Sequence[str],
    ledger: Ledger | None = None,
    except_dataset: str | None = None,
) -> None:
    """Refuse a table whose labels are noisy already, according to its manifest, its metadata, or a
    ledger that knows the file.

    With a ledger that has releases of this column, the file is read once for its SHA-256. Releases
    of `except_dataset` are not compared: with few rows the input of a repeat may equal its own
    output.
    """
    names = (labels,) if isinstance(labels, str) else tuple(labels)
    marks = [name + EVIDENCE for name in (*names, joined(names))]
    if set(marks) & set(table.names):
        raise released_already(*names)
    if found_already := set(names) & {
        name for facts in all_facts(table) for name in labels_of(facts)
    }:
        raise released_already(*sorted(found_already))
    if ledger is None:
        return
    # Compared by content, since the file may have been renamed, too.
    runs = {
        part.sha256: run.run_id
        for name in names
        for run in ledger.runs(column=name)
        if run.receipt.dataset != except_dataset
        for part in ledger.parts(run.run_id)
    }
    digests = file_digests(table.path) if runs else []
    for found in (runs[sha256] for sha256 in digests if sha256 in runs):
        raise InvalidInput(
            f"Expected a table with raw labels, got {table.path.name}, which run {found} released"
            f" and whose manifest is gone. To train on it, put {manifest_place(table.path).name}"
            " beside it again, or name it (manifest=); while it lies where it was"
            " written, the same labeldp release command writes its manifest again, free of charge."
            " Elsewhere name its original."
        )


def labels_of(facts: Mapping[str, Any]) -> tuple[str, ...]:
    """List the label columns of a release, by its facts: one, or several that were drawn
    together."""
    return tuple(map(str, facts.get("columns") or [facts["label"]]))


def released_already(*names: str) -> InvalidInput:
    """Make the error for a table whose label columns hold noisy labels."""
    what = (
        f"column{'s' * (len(names) > 1)} {_validate.quoted(names)}"
        f" {'were' if len(names) > 1 else 'was'}"
    )
    return InvalidInput(
        f"Expected a table with raw labels, got one whose {what} released already. Name its"
        " original."
    )


def embedded_facts(source: Source) -> dict[str, object] | None:
    """Read the release facts that a Parquet file carries in its metadata (of a folder, its first
    file); None if there are none."""
    file = source.files[0]
    facts = (
        json.loads(file.facts)
        if isinstance(file, ParquetSource) and file.facts is not None
        else None
    )
    return (
        facts
        if isinstance(facts, dict)
        and facts.get("kind") == "release"
        and facts.get("format") == FORMAT
        else None
    )


def file_digests(place: Place) -> list[str]:
    """Compute the SHA-256 of a file, or of each file below a folder except hidden ones, sorted by
    path; hexadecimal."""
    files = (
        [file for file in place.files() if file.name[:1] not in "._"]
        if place.is_folder()
        else [place]
    )
    return [file.digest() for file in files if file.is_file()]
