# SPDX-License-Identifier: Apache-2.0
"""`labeldp release`: a table in, the same table with a private label column out, and a manifest beside it.

Order of events: check everything, first pass (pin), charge, second pass (draw) into a private folder beside the output, publish the
table's files, then the manifest, settle. A process killed anywhere leaves nothing with a manifest that is not whole, and the same command
run again picks up the charge and writes the same table.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from labeldp import _validate
from labeldp.app.cluster import release_on_cluster
from labeldp.errors import InvalidInput
from labeldp.privacy.encode import declare, infers
from labeldp.privacy.ledger import Ledger, ledger_of
from labeldp.privacy.stream import StreamRun
from labeldp.privacy.table_rows import warn_of_cap
from labeldp.receipt import Receipt
from labeldp.tables.batch import evidence_bytes
from labeldp.tables.dataset import DatasetSource
from labeldp.tables.digest import draw_salt
from labeldp.tables.evidence import check_raw
from labeldp.tables.formats import check_layout, check_same_format, given_parts, open_table, row_name, table_name
from labeldp.tables.labels import LabelCodec, check_type, distinct_labels, parse_classes
from labeldp.tables.manifest import Released, manifest, manifest_path, manifest_place, shared_facts, to_json
from labeldp.tables.output import Output, Publication
from labeldp.tables.passes import Passes, Progress, silent
from labeldp.tables.place import URI, Place
from labeldp.tables.prior_answers import AskedOnce
from labeldp.tables.priors import opened, prior_identity
from labeldp.tables.request import run_of
from labeldp.tables.spec import ReleaseSpec, declared_or_infer, law_of
from labeldp.tables.staging import PartsSink, scratch
from labeldp.tables.table import Readable, Source, check_columns


@dataclass(frozen=True)
class Release:
    """What a release left behind.

    Attributes
    ----------
    path, manifest_path : Path, or Place where it is not on this machine
        The table, a file or a folder, and its manifest.
    receipt : Receipt
        The charge.
    repeated : bool
        True if this very release had settled before: nothing was drawn and nothing was charged.
    manifest : mapping
        The manifest's facts.
    """

    path: Path | Place
    manifest_path: Path | Place
    receipt: Receipt
    repeated: bool
    manifest: Mapping[str, object]


def release(
    source: Any,
    out: Any,
    spec: ReleaseSpec,
    ledger: Ledger | None = None,
    engine: str = "local",
    *,
    master: str | None = None,
    redraw: bool = False,
    progress: Progress | None = None,
) -> Release:
    """Release a table whose label column is private.

    Parameters
    ----------
    source : str, Path, Place, (file system, path), or a list of these
        A Parquet or CSV file; or a folder, a pattern ("day=*/*.parquet") or a list of Parquet files, read in the order of their paths.
        Addresses like s3://bucket/key are places in an object store.
    out : str, Path, Place or (file system, path)
        Of one file, a file of the same format; of many, a folder of numbered files. It must not exist, unless it is this very release.
    spec : ReleaseSpec
    ledger : Ledger, or its path, optional
        Where the spend is recorded; the user's own by default, never none.
    engine : {"local", "spark", "ray"}
        This process, in bounded memory; or Spark or Ray, which take Parquet, need `id` and `classes` in the spec, and write a folder.
    master : str, optional
        Spark's master or Ray's address; by default the engine runs on this machine.
    redraw : bool
        Draw again what was released before; charged once more.
    progress : function of (phase, done, total), optional

    Returns
    -------
    Release, when table and manifest are on disk and the ledger says so.

    Guarantee
    ---------
    `out` is epsilon-label-DP with respect to one row's label, or all labels of one unit; all other columns pass unchanged.

    Cost
    ----
    Two passes over the input; the shuffle needs as much room as the decoded rows take, beside `out` or, if that is not on this machine,
    where temporary files go. Memory does not grow with the table, but for a bit or two a row with integer ids that lie close
    together, 16 bytes with text ids or scattered ones, and 20 with capped units.
    """
    _validate.one_of(("local", "spark", "ray"), engine=engine)
    if engine != "local":
        record = ledger_of(ledger)
        done = release_on_cluster(source, out, spec, record, engine, master, redraw=redraw, progress=progress or silent)
        return _shown(out, done.place, done.receipt, done.manifest, repeated=done.repeated)
    if master is not None:
        raise InvalidInput("Expected engine='spark' or 'ray' (--engine) with a master, got the local engine. Name one, or leave it out.")
    task = _Task(source, out, spec, ledger_of(ledger), redraw, progress or silent)
    with scratch(task.out.out.place) as folder:
        return task.run(folder)


class _Task:
    """One call of `release`."""

    def __init__(self, source: Any, out: Any, spec: ReleaseSpec, ledger: Ledger, redraw: bool, progress: Progress):
        self.spec, self.ledger, self.redraw, self.progress = spec, ledger, redraw, progress
        given = given_parts(source)
        self.table = open_table(source)
        check_layout(self.table, given, spec.label, (), public=spec.order == "keep")
        self.dataset = spec.dataset or table_name(self.table)
        place = Output(Place.of(out), isinstance(self.table, DatasetSource), self.table.path, spec.stage_name)
        self.out = Publication(place, ledger, self.dataset, spec.label, redraw=redraw)
        self._given = out
        check_same_format(self.table, place.place)
        check_columns(self.table, [spec.label, *spec.ids, *([spec.unit] if spec.unit else []), *spec.prior_columns])
        self.out.check_free()
        # Parquet says itself that it was released: no pass over it for its digest.
        check_raw(self.table, spec.label, ledger if self.table.text else None, but=self.dataset)
        self.codec = _codec(self.table, spec)
        check_layout(self.table, given, spec.label, self.codec.classes, public=spec.order == "keep")
        self.law = law_of(spec, len(self.codec.classes))
        self.prior = opened(spec.prior, self.codec.classes, spec.label, self.table.names)

    def run(self, folder: Path) -> Release:
        """Both passes, then publish and settle."""
        prior = None if self.prior is None else prior_identity(self.prior)
        run = run_of(self.spec, self.law, self.codec.classes, self.dataset, self.ledger, redraw=self.redraw, prior=prior)
        return self._draw(run, folder)

    def _draw(self, run: StreamRun, folder: Path) -> Release:
        asked_once = None if self.prior is None or self.prior.exact else self.prior
        passes = Passes(self.table, self.spec, self.codec, run, self.progress, None if asked_once else self.prior)
        digest = self.table.public_digest(self.spec.label)
        pinned = passes.pin(None if self.spec.ids else digest)
        rows = "" if self.spec.ids else digest.hexdigest()
        self.out.check_owner(run.lookup(rows))
        answers = AskedOnce(run, self.ledger, self.out.out.place)
        receipt = run.charge(rows) if asked_once is None else answers.charge(partial(passes.ask, prior=asked_once), rows)
        if run.settled is not None:
            return self._done(receipt, self.out.repeat(receipt, run.settled.artefact), repeated=True)
        if asked_once is not None:
            passes.with_answers(answers.files)
        made = Released(self.spec, self.dataset, self.codec.classes, run.law, receipt, None if self.prior is None else self.prior.facts)
        self.table.plan(self.codec, evidence_bytes(run.law))
        shared = shared_facts(made)
        text = to_json(shared, indent=None)
        with self.out.staging(receipt.run_id) as staging:
            sink = PartsSink(staging, lambda place: self.table.sink(place, text), self._suffix, ordered=not self.spec.ids)
            try:
                written = passes.draw(sink, folder, pinned, digest if self.spec.ids else None, draw_salt(shared))
            finally:
                sink.abort()
            facts = manifest(made, written, digest.hexdigest(), sink.parts, many=self.out.out.many)
            self.out.publish(run, facts, sink.parts, written.digest)
        answers.forget()
        return self._done(receipt, facts, repeated=False)

    @property
    def _suffix(self) -> str:
        return ".parquet" if self.out.out.many else self.out.out.place.suffix

    def _done(self, receipt: Receipt, facts: Mapping[str, object], *, repeated: bool) -> Release:
        return _shown(self._given, self.out.out.place, receipt, facts, repeated=repeated)


def _shown(given: Any, place: Place, receipt: Receipt, facts: Mapping[str, object], *, repeated: bool) -> Release:
    """A path where one was given; rows that were left out are told."""
    over = int(str(facts.get("rows_over_the_cap") or 0))
    warn_of_cap(over, over + int(str(facts["rows"])), receipt.max_rows_per_unit, receipt.unit)
    if isinstance(given, Place | tuple) or URI.match(str(given)):
        return Release(place, manifest_place(place), receipt, repeated, facts)
    return Release(Path(given), manifest_path(Path(given)), receipt, repeated, facts)


def _codec(table: Source, spec: ReleaseSpec) -> LabelCodec:
    check_type(spec.label, table.type_of(spec.label))
    return declared_codec(table, spec.label, spec.classes)


def declared_codec(table: Readable, label: str, classes: Sequence[object] | None) -> LabelCodec:
    """The classes as values of the label's type: as declared, or with "infer" read off the column."""
    kind = table.type_of(label)
    known = declared_or_infer(classes)
    if infers(known):
        known = declare(distinct_labels((batch.column(label) for batch in table.batches([label])), kind))
    return LabelCodec(parse_classes(known, label, kind, text_table=table.text), label, kind, partial(row_name, table))
