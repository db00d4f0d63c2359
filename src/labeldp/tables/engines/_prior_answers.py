# SPDX-License-Identifier: Apache-2.0
"""What a model said of each row as a release's prior: asked once before the charge, kept as public weights until the release is published.

A model's answers can differ in the last bits between batches, machines and runs, and a row that is drawn under two priors is paid for
twice. So the model is asked once. What it said is put on the grid of `labeldp.laws._exact` and written to files of ids and weights, which
every draw of the run reads. Neither holds a label.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import cached_property, partial

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from labeldp._files import sync
from labeldp._hash import SetDigest, public_hash
from labeldp.custody._draw import FirstPass, PassSums, RunFacts
from labeldp.custody._stream import TableDraw, TablePin, changed_input
from labeldp.errors import InvalidInput, ReleaseError
from labeldp.laws._exact import quantise
from labeldp.ledger._ledger import Ledger, RunRecord
from labeldp.ledger._repair import ANSWERS
from labeldp.ledger._run_store import RunStore
from labeldp.tables._priors import OpenTable
from labeldp.tables.engines._batch import Columns, Facts, Read, id_column, kept_weights, row_ids
from labeldp.tables.formats._parquet import ParquetSink, ParquetSource
from labeldp.tables.formats._table import WEIGHTS
from labeldp.tables.output._place import Place
from labeldp.tables.output._staging import Part, PartsSink, Staging, remove

Floats = NDArray[np.float64]


class AnswersFolder(Staging):
    """Where the files are: a private, hidden folder beside the output."""

    @cached_property
    def folder(self) -> Place:
        """Unlike the folder of files to publish, it outlives a killed process: the charged run needs it."""
        return self.out.beside(f".{self.out.name}.labeldp_prior-{self.run_id[:8]}")


@dataclass(frozen=True)
class Answers:
    """What a model said of a table or a partition: the files, and the sums over ids and sides of a first pass."""

    parts: tuple[Part, ...]
    sums: PassSums

    @classmethod
    def merged(cls, found: Sequence["Answers"]) -> "Answers":
        """Of all partitions, in their order."""
        sums = found[0].sums
        for each in found[1:]:
            sums.merge(each.sums)
        return cls(tuple(part for each in found for part in each.parts), sums)


def write_answers(rows: Iterable[tuple[Columns, Floats]], ids: Sequence[str], facts: RunFacts, folder: AnswersFolder) -> Answers:
    """Write ids and weights of rows into files in a folder: batches of the ids' columns with (n, K) weights, the first row being row 0."""
    first, sink = FirstPass(facts, ()), None
    try:
        for batch, weights in rows:
            whole = quantise(weights)
            first.add(np.zeros(len(whole), np.int32), row_ids(batch, tuple(ids)), first.sums.rows, prior=whole)  # no label is read
            raw = np.ascontiguousarray(whole.astype("<u4")).view(np.uint8).reshape(len(whole), -1)
            kept = pa.record_batch({name: _plain(batch.column(name)) for name in ids} | {WEIGHTS: _binary(raw)})
            sink = sink or PartsSink(folder, partial(_sink, schema=kept.schema), ".parquet")
            sink.write(kept)
        if sink is not None:
            sink.close()
        return Answers(() if sink is None else tuple(sink.parts), first.sums)
    finally:
        if sink is not None:
            sink.abort()


def _sink(place: Place, schema: pa.Schema) -> ParquetSink:
    return ParquetSink(place, schema, {"compression": "snappy", "use_dictionary": []})


def _plain(column: pa.Array) -> pa.Array:
    return column.dictionary_decode() if pa.types.is_dictionary(column.type) else column


def _binary(raw: NDArray[np.uint8]) -> pa.Array:
    fixed = pa.FixedSizeBinaryArray.from_buffers(pa.binary(raw.shape[1]), len(raw), [None, pa.py_buffer(raw)])
    return fixed.cast(pa.binary())


# The files of a charge ----------------------------------------------------------------------------------------------------------------


class AskedOnce:
    """The answers of one charge: made before it, found again when it is picked up, deleted when the release is published.

    A note in the run's folder names the files and the digest of the sides that the law decides from them. Before anything is drawn,
    the digest is also written down as what the draw begins with (`TablePin.charge`), and no other one is ever drawn with. So lost files
    are made anew, by asking again, as long as no draw has begun, or if the model says what leads to the same sides.

    Parameters
    ----------
    pin : TablePin
        After all rows.
    ledger : Ledger
    out : Place
        The folder of the files is beside it.
    """

    def __init__(self, pin: TablePin, ledger: Ledger, out: Place):
        self._pin, self._ledger, self._out = pin, ledger, out
        self._run_id = ""
        self._folder: Place | None = None
        self.files: tuple[Place, ...] = ()

    def charge(self, ask: Callable[[AnswersFolder], Answers], public_digest: str = "") -> TableDraw | RunRecord:
        """Ask the prior, unless a charge that is picked up has its answers, and charge; afterwards `files` are the answers.

        Parameters
        ----------
        ask : function of a folder
            Reads the table's ids and the prior's columns, asks the prior, and writes the files into the folder.
        public_digest : str
            As in `TablePin.charge`.
        """
        secret = self._pin.planned(public_digest)
        if secret is None:
            return self._pin.charge(public_digest)
        self._run_id = secret.run_id
        try:
            if not self._found():
                self._pin.check_may_ask(secret, noted=self._store.read(self._note) is not None)
                self._ask(ask)
            run = self._pin.charge(public_digest)
        except BaseException:
            if all(each.run_id != secret.run_id for each in self._ledger.runs(self._pin.facts.dataset, self._pin.facts.column)):
                self._undo()
            raise
        if run.receipt.run_id != secret.run_id:
            raise ReleaseError("Expected one process to work on this release, but another one has finished it. Run the same command again.")
        return run

    def forget(self) -> None:
        """Delete the files; after the release is published."""
        if self._folder is not None:
            with suppress(OSError, ReleaseError):
                remove(self._folder)
                for name in (self._note, ANSWERS):
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
        return f"{self._pin.stage_name}.{ANSWERS}"

    def _found(self) -> bool:
        """Whether the noted files are there, whole; anything else in the folder is of attempts that do not count."""
        note, said = self._store.read(self._note), self._store.read(ANSWERS)
        if note is None or said is None:
            return False
        facts, beside = json.loads(note), AnswersFolder(self._out, self._run_id).folder
        self._folder = beside if str(beside) == said.decode() else Place.of(said.decode())
        parts = [Part(**part) for part in facts["parts"]]
        self.files = tuple(self._folder.child(part.name) for part in parts)
        if any(file.size != part.size for file, part in zip(self.files, parts, strict=True)):
            return False
        self._pin.take_side(SetDigest.from_hexdigest(facts["side"]))
        return True

    def _ask(self, ask: Callable[[AnswersFolder], Answers]) -> None:
        folder = AnswersFolder(self._out, self._run_id)
        self._folder = folder.folder
        self._store.write(ANSWERS, str(folder.folder).encode())  # for `labeldp ledger repair`
        folder.folder.make_folder(private=True)
        made = ask(folder)
        if made.sums.rows != self._pin.sums.rows or made.sums.ids.hexdigest() != self._pin.sums.ids.hexdigest():
            raise changed_input()
        side = made.sums.side.hexdigest()
        self._pin.check_side(self._run_id, side)  # before the note is replaced: the former files may be found again
        if folder.folder.local is not None:
            sync(folder.folder.local)
        self._store.write(self._note, json.dumps({"side": side, "parts": [asdict(part) for part in made.parts]}).encode())
        self._pin.take_side(made.sums.side, made.sums.told)
        self.files = tuple(folder.folder.child(part.name) for part in made.parts)


# Reading them on one machine ----------------------------------------------------------------------------------------------------------


class AnswersReader:
    """Reads the facts of a table's rows, and their weights from the files: a `Read`.

    Rows come in the order in which the model was asked. If a table with ids has another order by now, the weights are looked up by id, in
    memory. A row is never given another one's weights.

    Parameters
    ----------
    read : Read
        Of everything but the prior.
    files : sequence of Place
    ids : sequence of str
        Columns that name the rows; without any, rows are their numbers.
    n_classes : int
    """

    def __init__(self, read: Read, files: Sequence[Place], ids: Sequence[str], n_classes: int):
        self._read, self._files, self._ids, self._n_classes = read, files, tuple(ids), n_classes
        self._coming, self._waiting = self._batches(), pa.table({})
        self._by_id: OpenTable | None = None

    def __call__(self, batch: Columns, start: int | None) -> Facts:
        """Facts of the next batch."""
        facts = self._read(batch, start)
        return replace(facts, prior=self._weights(batch, len(facts.codes)))

    def _weights(self, batch: Columns, n: int) -> Floats:
        if self._by_id is None:
            rows = self._next(n)
            if len(rows) == n and all(_equal(id_column(batch, name), id_column(rows, name)) for name in self._ids):
                return kept_weights(rows.column(WEIGHTS), self._n_classes)
            if not self._ids:
                raise changed_input()
            self._by_id = self._looked_up()
        try:
            return self._by_id.weights(pa.record_batch([pa.array(id_column(batch, name)) for name in self._ids], list(self._ids)), None)
        except InvalidInput:
            raise changed_input() from None  # an id that the model was not asked about

    def _batches(self) -> Iterator[pa.RecordBatch]:
        for file in self._files:
            yield from ParquetSource(file).record_batches()

    def _next(self, n: int) -> pa.RecordBatch:
        """The next n rows of the files, or those that are left."""
        while len(self._waiting) < n and (more := next(self._coming, None)) is not None:
            self._waiting = pa.Table.from_batches([*self._waiting.to_batches(), more])
        found, self._waiting = self._waiting.slice(0, n), self._waiting.slice(n)
        return found.combine_chunks().to_batches()[0] if len(found) else pa.record_batch({})

    def _looked_up(self) -> OpenTable:
        whole = pa.Table.from_batches(self._batches()).combine_chunks().to_batches()[0]
        keys = [pa.array(id_column(whole, name)).cast(pa.large_string()) for name in self._ids]
        words = public_hash("prior", keys)
        order = np.argsort(words, kind="stable")
        taken = tuple(key.take(pa.array(order)) for key in keys)
        return OpenTable(
            self._ids, {"table": ""}, words[order], taken, kept_weights(whole.column(WEIGHTS), self._n_classes)[order], "error"
        )


def _equal(one: NDArray[np.integer] | pa.Array, other: NDArray[np.integer] | pa.Array) -> bool:
    if isinstance(one, np.ndarray) or isinstance(other, np.ndarray):
        return isinstance(one, np.ndarray) and isinstance(other, np.ndarray) and np.array_equal(one, other)
    return bool(one.equals(other))
