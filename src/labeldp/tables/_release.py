# SPDX-License-Identifier: Apache-2.0
"""A release of a table, the same steps on every engine: this process, Spark or Ray.

Check, first pass (pin), charge, second pass (draw) into a private folder, publish the files and then the manifest, settle. What an engine
does is to bring rows and workers together: it reads the table, asks a prior of its rows, and writes what is drawn.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol

from labeldp.custody._encode import joined
from labeldp.custody._request import Account, Overlap
from labeldp.custody._stream import TableDraw, TablePin
from labeldp.ledger._ledger import Ledger, RunRecord
from labeldp.receipt import Receipt
from labeldp.tables._priors import Answers, AnswersFolder, AskedOnce, OpenPrior, Prior, opened, prior_identity
from labeldp.tables._spec import ReleaseSpec, law_of
from labeldp.tables.formats._table import LabelCodec
from labeldp.tables.output._output import OutputFacts, Publication, ReleaseFacts, manifest
from labeldp.tables.output._place import Place, Staging, scratch


class Passes(Protocol):
    """What an engine does with the rows of one release."""

    def pin(self) -> str:
        """First pass: check every row and pin it. The digest of the public columns where nothing else names the rows, else ""."""
        ...

    def ask(self, folder: AnswersFolder, prior: OpenPrior) -> Answers:
        """Between the passes, for a prior that is asked once: ask it, and write what it says. No label is read."""
        ...

    def draw(self, run: TableDraw, made: ReleaseFacts, staging: Staging, scratch: Path, answers: Sequence[Place]) -> OutputFacts:
        """Second pass: draw every row, with the answers if there are any, and write it; refuse another input than was pinned."""
        ...


class Engine(Protocol):
    """Where the rows of a table are worked on.

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
        """The passes of one run; a prior that is asked once is not theirs to ask."""
        ...


@dataclass(frozen=True)
class TableRelease:
    """What a release left behind.

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
    with scratch(out) as folder:  # one release at a time works on a name
        return task.run(folder)


class _Release:
    """One release."""

    def __init__(self, engine: Engine, out: Place, spec: ReleaseSpec, ledger: Ledger, *, redraw: bool):
        self._engine, self._spec, self._ledger = engine, spec, ledger
        overlap: Overlap = "refuse" if spec.overlap == "refuse" else "charge"
        dataset = engine.dataset(spec, out)
        self._account = Account(dataset, spec.label, spec.max_rows_per_unit, ledger, redraw=redraw, overlap=overlap)
        self._out = Publication(out, engine.many, engine.source, spec.stage_name, self._account)
        self._out.check_free()
        self._codec = engine.codec(spec, ledger)
        self._prior = opened(spec.prior, self._codec.classes, spec.label, engine.names) if isinstance(spec.prior, Prior) else None

    def run(self, folder: Path) -> TableRelease:
        """Both passes, then publish and settle."""
        prior, pin = self._prior, self._begin()
        once = None if prior is None or prior.exact else AskedOnce(pin, self._ledger, self._out.place)
        passes = self._engine.passes(self._spec, self._codec, pin, prior if once is None else None)
        rows = passes.pin()
        self._out.check_owner(pin.lookup(rows))
        run = pin.charge(rows) if once is None or prior is None else once.charge(partial(passes.ask, prior=prior), rows)
        if isinstance(run, RunRecord):
            return TableRelease(self._out.place, run.receipt, True, self._out.repeat(run))
        named = None if prior is None else prior.facts
        made = ReleaseFacts(self._spec, str(self._account.dataset), self._codec.classes, run.facts.law, run.receipt, named)
        with self._out.staging(run.receipt.run_id) as staging:
            written = passes.draw(run, made, staging, folder, () if once is None else once.files)
            facts = manifest(made, written, many=self._engine.many)
            self._out.publish(run, staging, facts, written.parts)
        if once is not None:
            once.forget()
        return TableRelease(self._out.place, run.receipt, False, facts)

    def _begin(self) -> TablePin:
        """What the spec asks for, before anything is read: the same on every engine, so that they find each other's charges."""
        spec, classes = self._spec, self._codec.classes
        return TablePin(
            law_of(spec, len(classes)),
            tuple("(null)" if value is None else value for value in classes),
            self._account,
            unit_name=spec.unit_name,
            id_name=joined(spec.ids),
            stage=spec.stage,
            prior=None if self._prior is None else prior_identity(self._prior),
            facts={"classes_inferred": True} if spec.infers_classes else None,
        )
