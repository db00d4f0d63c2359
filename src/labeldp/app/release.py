# SPDX-License-Identifier: Apache-2.0
"""`labeldp release`: a table in, the same table with a private label column out, and a manifest beside it.

Order of events: check everything, first pass (pin), charge, second pass (draw) into a private folder beside the output, publish the
manifest and then the table under their final names, settle. A process killed anywhere leaves nothing under the table's name, and the
same command run again picks up the charge and writes the same table.
"""

import os
import re
import shutil
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from labeldp import _validate
from labeldp.errors import DomainLeakWarning, InvalidInput, ReleaseError
from labeldp.laws import Law, law_from_dict
from labeldp.privacy.custody import RunStore
from labeldp.privacy.ledger import Ledger, RunRecord, default_ledger
from labeldp.privacy.stream import StreamRun
from labeldp.receipt import Receipt
from labeldp.tables.batch import evidence_bytes
from labeldp.tables.formats import check_same_format, open_table
from labeldp.tables.labels import LabelCodec, check_type, distinct_labels, parse_classes
from labeldp.tables.manifest import Released, manifest, manifest_path, read_manifest, run_id_of, shared_facts, to_json
from labeldp.tables.passes import Passes, Progress, Written, silent
from labeldp.tables.publish import publish, workplace
from labeldp.tables.spec import ReleaseSpec, parse_law
from labeldp.tables.table import EVIDENCE, Source, check_columns, file_digest

OUTPUT, MANIFEST = "output", "manifest.json"  # kept in the run's folder


@dataclass(frozen=True)
class Release:
    """What a release left behind.

    Attributes
    ----------
    path, manifest_path : Path
        The table and its manifest.
    receipt : Receipt
        The charge.
    repeated : bool
        True if this very release had settled before: nothing was drawn and nothing was charged.
    manifest : mapping
        The manifest's facts.
    """

    path: Path
    manifest_path: Path
    receipt: Receipt
    repeated: bool
    manifest: Mapping[str, object]


def release(
    source: str | Path,
    out: str | Path,
    spec: ReleaseSpec,
    ledger: Ledger | None = None,
    engine: str = "local",
    *,
    redraw: bool = False,
    progress: Progress | None = None,
) -> Release:
    """Release a table whose label column is private.

    Parameters
    ----------
    source, out : str or Path
        Parquet or CSV, both of one format. `out` must not exist, unless it is this very release.
    spec : ReleaseSpec
    ledger : Ledger, optional
        Where the spend is recorded; the user's own by default, never none.
    engine : {"local"}
        This process, in bounded memory.
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
    Two passes over the input; the shuffle needs as much room beside `out` as the decoded rows take. Memory does not grow with the
    file, but for a byte a row with integer ids and 20 bytes a row with capped units.
    """
    _validate.one_of(("local",), engine=engine)
    task = _Task(Path(source), Path(out), spec, ledger or default_ledger(), redraw, progress or silent)
    with workplace(task.out) as folder:
        return task.run(folder)


class _Task:
    """One call of `release`."""

    def __init__(self, source: Path, out: Path, spec: ReleaseSpec, ledger: Ledger, redraw: bool, progress: Progress):
        self.out, self.spec, self.ledger, self.redraw, self.progress = out, spec, ledger, redraw, progress
        self.dataset = spec.dataset or source.stem
        _check_layout(source, spec)
        self.table = open_table(source)
        check_same_format(source, out)
        check_columns(self.table, [spec.label, *spec.ids, *([spec.unit] if spec.unit else []), *(spec.prior or ())])
        self._check_output(source)
        self.codec = _codec(self.table, spec)
        _check_layout(source, spec, self.codec.classes)
        self.law = build_law(spec, len(self.codec.classes))

    def run(self, folder: Path) -> Release:
        """Both passes, then publish and settle."""
        classes = tuple("(null)" if c is None else c for c in self.codec.classes)
        with _closing(
            StreamRun(
                self.law,
                classes=classes,
                dataset=self.dataset,
                column=self.spec.label,
                ledger=self.ledger,
                unit_name=self.spec.unit_name,
                max_rows_per_unit=self.spec.max_rows_per_unit,
                redraw=self.redraw,
            )
        ) as run:
            return self._draw(run, folder)

    def _draw(self, run: StreamRun, folder: Path) -> Release:
        passes = Passes(self.table, self.spec, self.codec, run, self.progress)
        digest = self.table.public_digest(self.spec.label)
        pinned = passes.pin(None if self.spec.ids else digest)
        rows = "" if self.spec.ids else digest.hexdigest()
        self._check_owner(run.lookup(rows))
        receipt = run.charge(rows)
        if run.settled is not None:
            return self._repeat(receipt, run.settled.artefact, folder)
        if self.out.exists() and run_id_of(read_manifest(self.out) or {}) != receipt.run_id:
            raise self._taken()  # by an earlier draw, while a later one was never finished
        made = Released(self.spec, self.dataset, self.codec.classes, run.law, receipt)
        self.table.plan(self.codec, evidence_bytes(run.law))
        sink = self.table.sink(folder / self.out.name, to_json(shared_facts(made), indent=None))
        try:
            written = passes.draw(sink, folder, pinned, digest if self.spec.ids else None)
        finally:
            sink.abort()
        return self._publish(run, made, written, digest.hexdigest(), folder)

    def _publish(self, run: StreamRun, made: Released, written: Written, public_digest: str, folder: Path) -> Release:
        facts = manifest(made, written, public_digest)
        store = RunStore(self.ledger.run_dir(made.receipt.run_id))
        store.write(OUTPUT, str(self.out.absolute()).encode())
        store.write(MANIFEST, to_json(facts).encode())
        self._write_manifest(to_json(facts).encode(), folder)
        publish(folder / self.out.name, self.out)
        run.settle(f"sha256:{written.digest}")
        return Release(self.out, manifest_path(self.out), made.receipt, False, facts)

    def _write_manifest(self, text: bytes, folder: Path) -> None:
        part = folder / MANIFEST
        part.write_bytes(text + b"\n")
        publish(part, manifest_path(self.out))

    # What is there already --------------------------------------------------------------------------------------------------------

    def _check_output(self, source: Path) -> None:
        """An existing output may only be one that a run of this ledger and column has written."""
        if not self.out.exists():
            return
        if self.out.is_dir():
            raise ReleaseError(f"Expected a file name for the output, got the folder {self.out}.")
        if os.path.samefile(source, self.out):
            raise ReleaseError(f"Expected another file for the output, got the input {self.out}. It would be overwritten.")
        facts = read_manifest(self.out)
        # A new draw may only take the place of one that died just before it settled.
        runs = [r for r in self.ledger.runs(self.dataset, self.spec.label) if not self.redraw or r.state == "charged"]
        if facts is None or run_id_of(facts) not in {record.run_id for record in runs}:
            raise self._taken()

    def _check_owner(self, known: RunRecord | None) -> None:
        """Before anything is charged: an existing output belongs to the run that this request repeats."""
        if not self.out.exists():
            return
        runs = self.ledger.runs(self.dataset, self.spec.label)
        same = {record.run_id for record in runs if known is not None and record.identity == known.identity}
        if run_id_of(read_manifest(self.out) or {}) not in same:
            raise self._taken()

    def _taken(self) -> ReleaseError:
        return ReleaseError(
            f"Expected a new name for the output, got {self.out}, which holds something else. Remove it, or choose another name."
        )

    def _repeat(self, receipt: Receipt, artefact: str | None, folder: Path) -> Release:
        """The settled release: as it stands, or copied from where it was first written."""
        store = RunStore(self.ledger.run_dir(receipt.run_id))
        facts, first = store.read(MANIFEST), store.read(OUTPUT)
        places = [self.out] + ([Path(first.decode())] if first else [])
        found = next((p for p in places if p.is_file() and f"sha256:{file_digest(p)}" == artefact), None)
        if facts is None or found is None:
            raise ReleaseError(
                f"Expected the table that this release wrote to {places[-1]}, but it is gone or was changed. It was settled and is never "
                "computed again. Restore it, or ask for a new draw with redraw (--redraw), which is charged."
            )
        if found != self.out:
            if self.out.exists():
                raise self._taken()
            shutil.copyfile(found, folder / self.out.name)
            self._write_manifest(facts, folder)
            publish(folder / self.out.name, self.out)
        elif not manifest_path(self.out).exists():
            self._write_manifest(facts, folder)
        return Release(self.out, manifest_path(self.out), receipt, True, read_manifest(self.out) or {})


class _closing:
    """Deletes a run's temporary files at the end."""

    def __init__(self, run: StreamRun):
        self._run = run

    def __enter__(self) -> StreamRun:
        return self._run

    def __exit__(self, *_: object) -> None:
        self._run.close()


def build_law(spec: ReleaseSpec, n_classes: int) -> Law:
    """The law that the spec names, over this many classes."""
    if isinstance(spec.law, Law):
        if spec.law.n_classes != n_classes:
            raise InvalidInput(
                f"Expected a law over the {n_classes} classes, got one over {spec.law.n_classes}. Build it with n_classes={n_classes}."
            )
        return spec.law
    name, number = parse_law(spec.law_name)
    extra = {} if number is None else {"k" if name == "rr-top-k" else "size": number}
    return law_from_dict({"law": name, "n_classes": n_classes, "epsilon": spec.epsilon} | extra)


def _codec(table: Source, spec: ReleaseSpec) -> LabelCodec:
    if spec.label + EVIDENCE in table.names:
        raise InvalidInput(f"Expected a table with raw labels, got one with a column {spec.label + EVIDENCE!r}. It was released already.")
    check_type(spec.label, table.type_of(spec.label))
    return declared_codec(table, spec.label, spec.classes)


def declared_codec(table: Source, label: str, classes: Sequence[object] | None) -> LabelCodec:
    """The declared classes as values of the label's type; None reads them off the column, with a warning."""
    kind = table.type_of(label)
    if classes is None:
        warnings.warn(
            "The classes are read off the private labels, which reveals that each of them occurs. Declare them: classes=[...].",
            DomainLeakWarning,
            stacklevel=4,
        )
        found = distinct_labels(batch.column(label) for batch in table.batches([label]))
        classes = tuple(c for c in found if not (table.text and c == ""))
        if len(classes) < 2:
            raise InvalidInput(f"Expected at least 2 distinct labels in column {label!r}, got {len(classes)}. Declare the classes.")
    return LabelCodec(parse_classes(classes, label, kind, text_table=table.text), label, kind)


def _check_layout(source: Path, spec: ReleaseSpec, classes: tuple[object, ...] = ()) -> None:
    """A path that names the label's value gives it away for the whole file."""
    if spec.order == "keep":
        return
    parts = [*source.parts, source.stem]
    if any(re.match(re.escape(spec.label) + r"=", part) for part in parts):
        raise InvalidInput(
            f"Expected the label as a column of the file, got {spec.label!r} as a part of the path. Merge the parts into one file first."
        )
    texts = {str(c) for c in classes if c is not None and str(c)}
    if texts & set(parts):
        raise InvalidInput(
            "Expected a path that says nothing about the labels, got one with a folder or file named like a class. "
            "Move the file, or state that order and layout are public with order='keep' (--order keep)."
        )
