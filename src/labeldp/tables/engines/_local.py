# SPDX-License-Identifier: Apache-2.0
"""The steps of one batch, from raw labels to released rows, on every engine; and the engine of one
machine, which streams a table twice.

The first pass pins the rows, the second draws and writes them.
"""

import functools
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from labeldp._files import private_file
from labeldp.custody._draw import Ids, filtered
from labeldp.custody._encode import declare, infers
from labeldp.custody._stream import TableDraw, TablePin, changed_input, repeated_rows
from labeldp.errors import InvalidInput
from labeldp.evidence import NoisyLabels
from labeldp.evidence._noisy import pack
from labeldp.laws._columns import LabelColumns, laws_of_columns
from labeldp.ledger._ledger import Ledger
from labeldp.tables._evidence import check_unchanged, warn_of_copies, warn_of_names
from labeldp.tables._place import Place, Staging
from labeldp.tables._priors import (
    Answers,
    AnswersFolder,
    Floats,
    OpenPrior,
    OpenTable,
    kept_weights,
    weight_columns,
    weights_of,
    write_answers,
)
from labeldp.tables._release import (
    Manifest,
    OutputFacts,
    ReleaseFacts,
    check_raw,
    default_dataset,
    passed_on,
    to_json,
    unchanged,
)
from labeldp.tables._spec import ReleaseSpec, declared_or_infer
from labeldp.tables.formats._parquet import (
    DatasetSource,
    ParquetSource,
    check_layout,
    check_same_format,
    layout_of,
    row_name,
    written_types,
)
from labeldp.tables.formats._table import (
    DRAWN,
    WEIGHTS,
    ArrowDigest,
    Batch,
    Columns,
    LabelCodec,
    PartsSink,
    Source,
    check_columns,
    check_type,
    codec_of,
    distinct_labels,
    draw_salt,
    drawn_words,
    evidence_width,
    id_column,
    needs_evidence,
    row_ids,
)

GROUP_BATCHES = 4
"""Number of batches that are drawn ahead: about a row group, so that drawing goes on while a group
is written."""
BUCKET_BYTES = 1 << 24
MAX_BITS = 9
WORD = "__labeldp_word"
Progress = Callable[[str, int, int], None]
"""Called with the name of the pass, the part that is done, and the total, in units of the table's
choice."""


def silent(phase: str, done: int, total: int) -> None:
    """Report nothing."""


@dataclass(frozen=True, repr=False)
class Facts:
    """The codes, ids, units and side that a release reads from a batch of n rows.

    Attributes
    ----------
    codes : (n,) int32
        Raw labels.
    ids, units : (n,) NumPy integers or Arrow text, a list of such columns, or None
    prior : (n, K) float64 or None
    """

    codes: NDArray[np.int32]
    ids: Ids | None
    units: Ids | None
    prior: NDArray[np.float64] | None


Read = Callable[[Columns, int | None], Facts]
"""A function from a batch and the number of its first row (None: rows have no numbers) to its
facts."""


@dataclass(frozen=True)
class Reader:
    """Reads the facts of a batch from its columns; a `Read`.

    Attributes
    ----------
    spec : ReleaseSpec
    codec : LabelCodec
    prior : OpenPrior or None
        The prior to ask; None for prior columns, for no prior, and if it is not to be asked.
    answered : bool
        True if the rows have a column `WEIGHTS` of stored answers.
    """

    spec: ReleaseSpec
    codec: LabelCodec
    prior: OpenPrior | None = None
    answered: bool = False

    @property
    def columns(self) -> list[str]:
        """The columns that are read."""
        return list(
            dict.fromkeys([*self.spec.columns, *(self.prior.columns if self.prior else ())])
        )

    def __call__(self, batch: Columns, start: int | None) -> Facts:
        """Read and check codes, ids, units and prior of a batch; `start` is the number of its first
        row, for messages, or None."""
        spec, codes = self.spec, self.codec.read(batch)
        ids, units = (
            row_ids(batch, spec.ids),
            (None if spec.unit is None else id_column(batch, spec.unit)),
        )
        return Facts(codes, ids, units, self._prior(batch, start))

    def _prior(self, batch: Columns, start: int | None) -> NDArray[np.float64] | None:
        n_classes = len(self.codec.classes)
        if self.answered:
            return kept_weights(batch.column(WEIGHTS), n_classes)
        if self.prior is not None:
            return weights_of(self.prior, batch, start, n_classes)
        # here, before the charge, also for laws that ignore the prior
        names = self.spec.prior_columns
        return weight_columns(batch, names) if names else None


def published(
    batch: pa.RecordBatch,
    facts: Facts,
    noisy: NoisyLabels,
    kept: NDArray[np.bool_],
    rewrite: Callable[
        [pa.RecordBatch, NDArray[np.integer], NDArray[np.uint8] | None], pa.RecordBatch
    ],
    salt: str,
    words: NDArray[np.uint64] | None = None,
) -> pa.RecordBatch:
    """Make the released rows of a drawn batch, with a column `DRAWN` of their words in the digest
    of drawn rows.

    Parameters
    ----------
    batch : pyarrow.RecordBatch of n rows
        Rows with raw labels, which are replaced.
    facts : Facts
        The facts of the batch.
    noisy : NoisyLabels
        The drawn labels of the m kept rows.
    kept : (n,) bool
        True for rows within their unit's cap and in the part that is drawn. Others are dropped.
    rewrite : function
        Replaces the labels of rows by these codes, with this evidence (`Source.rewrite`).
    salt : str
        The salt of the digest of drawn rows (`draw_salt`).
    words : (m,) uint64, optional
        Secret words of the kept rows, which break ties if there is no id column.
    """
    ids, prior = facts.ids, facts.prior
    if not kept.all():
        # Rows over the cap, or of another stage, are not in the released table at all.
        batch = batch.filter(pa.array(kept))
        ids, prior = (
            None if ids is None else filtered(ids, kept),
            (None if prior is None else prior[kept]),
        )
    (block,) = noisy.blocks
    # Ties between equally likely classes are broken by a hash of the row's id. Row numbers must not
    # be used instead: ties, whose hash everybody can compute, would reveal them, and the order of
    # the input, which the shuffle hides, may depend on the labels.
    named = noisy if noisy.explicit_ids or words is None else replace(noisy, ids=words)
    codes = block.outputs if block.law.releases_codes else _likeliest(named, prior)
    evidence = pack(block.law, block.outputs, block.side) if needs_evidence(block.law) else None
    return rewrite(batch, codes, evidence).append_column(
        DRAWN, pa.array(drawn_words(salt, ids, codes, evidence).view(np.int64))
    )


def _likeliest(noisy: NoisyLabels, prior: NDArray[np.float64] | None) -> NDArray[np.integer]:
    """Choose the label that is written for each row: of several columns each one's likeliest class,
    if the law tells of each."""
    classes = noisy.classes
    if (
        prior is None
        and isinstance(classes, LabelColumns)
        and laws_of_columns(noisy.blocks[0].law, classes.sizes)
    ):
        return classes.codes([noisy.column(name).hard_codes() for name in classes.names])
    return noisy.hard_codes(prior)


# The engine
# --------------------------------------------------------------------------------------------------


class LocalEngine:
    """The `Engine` (`labeldp.tables._release`) that streams a table in this process.

    Parameters
    ----------
    table : Source
    given : sequence of str
        The parts of the table's path as the user gave it.
    progress : function, optional
    """

    def __init__(self, table: Source, given: Sequence[str], progress: Progress = silent):
        self.files, self._given, self._progress = table, given, progress
        self.names: Sequence[str] = table.names
        self.types = table.types
        self.written = table.types if table.text else written_types(table.schema)
        self.many = isinstance(table, DatasetSource)
        self.source: Place | None = table.path
        self.earlier: Sequence[Manifest] = ()

    def dataset(self, spec: ReleaseSpec, out: Place) -> str:
        """Return the data set's name: the given one, or the table's."""
        # Checks of schema and path, before any row is read.
        check_same_format(self.files, out)
        check_columns(self.files, spec.columns)
        return spec.dataset or default_dataset(self.files)

    def codec(self, spec: ReleaseSpec, ledger: Ledger) -> LabelCodec:
        """Return the codec of the declared or inferred classes; refuse a table that was released,
        or whose path names a class, and private columns as ids, unit or prior."""
        # A released Parquet file says so in its metadata, so only text tables need their SHA-256
        # compared with the ledger.
        dataset = spec.dataset or default_dataset(self.files)
        check_raw(
            self.files, spec.labels, ledger if self.files.text else None, except_dataset=dataset
        )
        check_unchanged(unchanged(spec.columns, spec), dataset, ledger, self.files)
        self.earlier = passed_on(self.files, spec.labels)
        codec = declared_codec(self.files, spec.label, spec.classes)
        listed = (
            codec.classes.lists if isinstance(codec.classes, LabelColumns) else (codec.classes,)
        )
        layout = layout_of(self.files, self._given)
        for label, classes in zip(spec.labels, listed, strict=True):
            check_layout(layout, label, classes, public=spec.order == "keep")
        return codec

    def check_private(self, spec: ReleaseSpec, dataset: str, ledger: Ledger) -> None:
        """Refuse private columns beside the label that are not proven to hold what an earlier run
        has drawn."""
        names = unchanged(self.names, spec)
        check_unchanged(names, dataset, ledger, self.files)
        warn_of_names(names, dataset, ledger, self.earlier)
        warn_of_copies(spec.labels, dataset, ledger)

    def passes(
        self, spec: ReleaseSpec, codec: LabelCodec, pin: TablePin, prior: OpenPrior | None
    ) -> "LocalPasses":
        """Return the passes over batches, one after another."""
        return LocalPasses(self.files, Reader(spec, codec, prior), pin, self._progress)


def declared_codec(table: Source, label: str, classes: Sequence[object] | None) -> LabelCodec:
    """Make the codec of the declared classes, or with "infer" of those in the column."""
    known = declared_or_infer(classes)
    if infers(known):
        kind = table.type_of(label)
        check_type(label, kind)
        known = declare(
            distinct_labels((batch.column(label) for batch in table.batches([label])), kind)
        )
    return codec_of(known, label, table.type_of, text_table=table.text)


class LocalPasses:
    """The two passes over a local table for one run.

    Parameters
    ----------
    source : Source
    reader : Reader
    pin : TablePin
    progress : function
    """

    def __init__(self, source: Source, reader: Reader, pin: TablePin, progress: Progress):
        self._source, self._reader, self._pin, self._progress = source, reader, pin, progress
        self._spec, self._pinned = reader.spec, 0
        self._digest = ArrowDigest(source.schema, tuple(unchanged(source.names, self._spec)))

    def pin(self) -> str:
        """Run the first pass, which checks and pins every row; return the digest of the public
        columns if there are no ids, else ""."""
        by_columns = not self._spec.ids
        # Who reads the release could not read it, and to convert it afterwards would make it
        # another table than the one that was charged.
        self._source.all_utf8 = True
        # Without ids rows are named by position, and only a digest of all public columns shows
        # later that it is the same file.
        for batch in self._batches(
            "check", ahead(self._source.batches(None if by_columns else self._reader.columns))
        ):
            facts = self._reader(batch, self._pinned)
            self._pin.add(facts.codes, ids=facts.ids, units=facts.units, prior=facts.prior)
            if by_columns:
                self._digest.update(batch)
            self._pinned += len(batch)
        if not self._pinned:
            raise InvalidInput(
                f"Expected rows, got none in {self._source.path.name}: only a header or a schema."
            )
        if by_columns:
            return self._digest.hexdigest()
        # Two rows with one id would be drawn with the same words, and their outputs could reveal
        # whether their labels differ.
        find = functools.cache(lambda: repeated_rows(self._ids))
        self._pin.require_distinct(lambda: find() is not None, lambda: self._same_id(find()))
        return ""

    def _same_id(self, rows: tuple[int, int] | None) -> str:
        first, second = map(partial(row_name, self._source), rows or (0, 0))
        # from what rows are counted is said once
        return f"{first.partition(' (the first is')[0]} and {second} have the same one"

    def _ids(self) -> Iterator[Ids]:
        for batch in self._source.batches(self._spec.ids):
            ids = row_ids(batch, self._spec.ids)
            assert ids is not None
            yield ids

    def ask(self, folder: AnswersFolder, prior: OpenPrior) -> Answers:
        """Run a model prior once, between the passes, and store its answers. No label is read."""
        return write_answers(self._asked(prior), self._spec.ids, self._pin.facts, folder)

    def _asked(self, prior: OpenPrior) -> Iterator[tuple[Columns, NDArray[np.float64]]]:
        rows, columns = 0, list(dict.fromkeys([*self._spec.ids, *prior.columns]))
        for batch in self._batches("prior", ahead(self._source.batches(columns))):
            yield batch, weights_of(prior, batch, rows, self._pin.facts.law.n_classes)
            rows += len(batch)

    def draw(
        self,
        run: TableDraw,
        facts: ReleaseFacts,
        staging: Staging,
        scratch: Path,
        answers: Sequence[Place],
    ) -> OutputFacts:
        """Run the second pass, which draws and writes every row, through a shuffle unless the order
        is public."""
        spec = self._spec
        # Batches become row groups of the output, so from here on their sizes must not depend on
        # the raw labels.
        self._source.plan(self._reader.codec.releasing(facts.law), evidence_width(facts.law))
        text = to_json(facts.shared, indent=None)
        sink = PartsSink(
            staging,
            lambda place: self._source.sink(place, text),
            ordered=not spec.ids,
        )
        read = (
            AnswersReader(self._reader, answers, spec.ids, facts.law.n_classes)
            if answers
            else self._reader
        )
        shuffle = Shuffle(scratch, self._pinned) if spec.order == "shuffle" else None
        try:
            rows = self._write(run, self._drawn(run, read, draw_salt(facts.shared)), sink, shuffle)
            sink.close()
        finally:
            sink.abort()
        return OutputFacts(tuple(sink.parts), self._pinned - rows, self._digest.hexdigest())

    def _write(
        self,
        run: TableDraw,
        drawn: Iterator[tuple[pa.RecordBatch, NDArray[np.uint64] | None]],
        sink: PartsSink,
        shuffle: "Shuffle | None",
    ) -> int:
        rows = 0
        for released, words in ahead(drawn, depth=GROUP_BATCHES):
            rows += released.num_rows
            if shuffle is None or words is None:
                sink.write(released)
            elif released.num_rows:
                shuffle.scatter(released, words)
        # If the input has changed since the first pass, nothing is published.
        run.check_pin()
        # The output is in the order of secret words, so that it does not reveal the order of the
        # input.
        if shuffle is not None:
            done = 0
            # `ahead` reads and sorts a bucket while the one before is compressed.
            for released in ahead(shuffle.gather()):
                sink.write(released)
                done += released.num_rows
                self._progress("write", done, rows)
        return rows

    def _drawn(
        self, run: TableDraw, read: Read, salt: str
    ) -> Iterator[tuple[pa.RecordBatch, NDArray[np.uint64] | None]]:
        """Draw all batches: (released rows, secret words to sort them and break ties by)."""
        rows, ordered = 0, self._spec.order == "shuffle" or not self._spec.ids
        for batch in self._batches("draw", self._source.batches()):
            facts = read(batch, rows)
            if run.facts.weights:
                facts = replace(
                    facts,
                    prior=np.broadcast_to(
                        np.array(run.facts.weights), (len(batch), len(run.facts.weights))
                    ),
                )
            noisy, kept, words = run.draw(
                facts.codes, ids=facts.ids, units=facts.units, prior=facts.prior, ordered=ordered
            )
            if self._spec.ids:
                self._digest.update(batch)
            yield (
                published(batch.rows, facts, noisy, kept, self._source.rewrite, salt, words),
                words,
            )
            rows += len(batch)

    def _batches(self, phase: str, batches: Iterator[Batch]) -> Iterator[Batch]:
        done = 0
        for batch in batches:
            yield batch
            done += batch.extent
            self._progress(phase, done, self._source.extent)


class AnswersReader:
    """Reads the facts of a table's rows, with their weights from the stored answers of a model; a
    `Read`.

    Parameters
    ----------
    read : Read
        Reads everything but the prior.
    files : sequence of Place
        The stored answers.
    ids : sequence of str
        Columns that name the rows; if empty, rows are named by number.
    n_classes : int
    """

    # The answers are in the order of the table when the model was asked, so both are read side by
    # side. If the ids of a batch differ, the table has another order by now, and the weights are
    # looked up by id, in memory: no row may get another row's weights.

    def __init__(self, read: Read, files: Sequence[Place], ids: Sequence[str], n_classes: int):
        self._read, self._files, self._ids, self._n_classes = read, files, tuple(ids), n_classes
        self._coming, self._waiting = self._batches(), pa.table({})
        self._by_id: OpenTable | None = None

    def __call__(self, batch: Columns, start: int | None) -> Facts:
        """Read the facts of the next batch."""
        facts = self._read(batch, start)
        return replace(facts, prior=self._weights(batch, len(facts.codes)))

    def _weights(self, batch: Columns, n: int) -> Floats:
        if self._by_id is None:
            rows = self._next(n)
            if len(rows) == n and all(
                pa.array(id_column(batch, name)).equals(pa.array(id_column(rows, name)))
                for name in self._ids
            ):
                return kept_weights(rows.column(WEIGHTS), self._n_classes)
            if not self._ids:
                raise changed_input()
            whole = pa.Table.from_batches(self._batches()).combine_chunks().to_batches()[0]
            keys = [pa.array(id_column(whole, name)).cast(pa.large_string()) for name in self._ids]
            weights = kept_weights(whole.column(WEIGHTS), self._n_classes)
            self._by_id, _ = OpenTable.sorted(self._ids, {"table": ""}, keys, weights)
        try:
            return self._by_id.weights(
                pa.record_batch(
                    [pa.array(id_column(batch, name)) for name in self._ids], list(self._ids)
                ),
                None,
            )
        except InvalidInput:
            raise changed_input() from None  # an id for which the model was not asked

    def _batches(self) -> Iterator[pa.RecordBatch]:
        for file in self._files:
            yield from ParquetSource(file).record_batches()

    def _next(self, n: int) -> pa.RecordBatch:
        """Read the next n rows of the files, or the remaining ones."""
        while len(self._waiting) < n and (more := next(self._coming, None)) is not None:
            self._waiting = pa.Table.from_batches([*self._waiting.to_batches(), more])
        found, self._waiting = self._waiting.slice(0, n), self._waiting.slice(n)
        return found.combine_chunks().to_batches()[0] if len(found) else pa.record_batch({})


# The shuffle: rows in the order of secret words
# -------------------------------------------------------------------------------------------


class Shuffle:
    """An external sort of rows by uniform words, through files on disk, in bounded memory.

    Rows are scattered into buckets by the leading bits of their word, and each bucket is sorted in
    memory. The words are uniform and secret, so the result is a uniformly random permutation, which
    reveals nothing about the order of the input.

    Parameters
    ----------
    folder : Path
        A private folder, on a disk with room for the decoded rows. Bucket files are deleted as they
        are read.
    total_rows : int
        Number of rows to come, which sets the number of buckets together with the width of the
        first rows.

    Notes
    -----
    Cost: each row is written and read once, and sorted in its bucket. Memory: about 5 buckets of 16
    MiB for tables below 8 GiB, 1/100 of the table above that.
    """

    def __init__(self, folder: Path, total_rows: int):
        self._folder, self._rows, self._bits = folder, total_rows, 0
        self._paths: list[Path] = []
        self._files: list[pa.OSFile] = []
        self._writers: list[pa.RecordBatchStreamWriter] = []

    def scatter(self, rows: pa.RecordBatch, words: NDArray[np.uint64]) -> None:
        """Write rows into their buckets, by (n,) uniform uint64 words."""
        worded = rows.append_column(WORD, pa.array(words))
        if not self._writers:
            self._open(worded)
        # A small table is one bucket.
        if not self._bits:
            self._writers[0].write_batch(worded)
            return
        bucket = (words >> np.uint64(64 - self._bits)).astype(np.uint16)
        # Sorting the batch by bucket and slicing it costs less than a filter for each bucket.
        grouped = pc.take(worded, pa.array(np.argsort(bucket, kind="stable")), boundscheck=False)
        edges = np.concatenate([[0], np.cumsum(np.bincount(bucket, minlength=len(self._paths)))])
        for writer, start, stop in zip(self._writers, edges[:-1], edges[1:], strict=True):
            if stop > start:
                writer.write_batch(grouped.slice(start, stop - start))

    def _open(self, first: pa.RecordBatch) -> None:
        # The width of the first rows is a guess for all; only the size of buckets depends on it.
        total = self._rows * first.nbytes / max(len(first), 1)
        self._bits = min(max(int(np.ceil(np.log2(max(total, 1) / BUCKET_BYTES))), 0), MAX_BITS)
        self._paths = [self._folder / f"bucket-{i:03d}.arrow" for i in range(1 << self._bits)]
        for path in self._paths:
            self._files.append(pa.OSFile(str(private_file(path)), "wb"))
            self._writers.append(pa.ipc.new_stream(self._files[-1], first.schema))

    def gather(self) -> Iterator[pa.RecordBatch]:
        """Yield all rows in the order of their words; delete each bucket's file after reading."""
        for writer, file in zip(self._writers, self._files, strict=True):
            writer.close()
            file.close()
        for path in self._paths:
            with pa.OSFile(str(path), "rb") as file, pa.ipc.open_stream(file) as stream:
                table = stream.read_all()
            if table.num_rows:
                order = order_of(table.column(WORD).to_numpy(), self._bits)
                rows = table.drop_columns([WORD]).unify_dictionaries().combine_chunks()
                yield from pc.take(rows, pa.array(order), boundscheck=False).to_batches()
            path.unlink()


def order_of(words: NDArray[np.uint64], bits: int = 0) -> NDArray[np.int64]:
    """Return the positions that sort words whose first `bits` bits are equal: (n,) int64."""
    # Each word's last bits are replaced by its position, so that one plain sort suffices, which is
    # many times faster than argsort.
    width = np.uint64(max(len(words) - 1, 1).bit_length())
    keys = ((words << np.uint64(bits)) >> width << width) | np.arange(len(words), dtype=np.uint64)
    keys.sort()
    leading = keys >> width
    # If two words differ in the replaced bits only, which is rare, argsort decides by the whole
    # words.
    if (leading[1:] == leading[:-1]).any():
        return np.argsort(words, kind="stable")
    return (keys & ((np.uint64(1) << width) - np.uint64(1))).view(np.int64)


# Reading ahead
# --------------------------------------------------------------------------------------------------


Item = TypeVar("Item")


def ahead(source: Iterator[Item], depth: int = 1) -> Iterator[Item]:
    """Iterate over `source` in order while a thread computes up to `depth` + 1 items in advance.

    It is faster if computing an item releases Python's lock, as Arrow's readers do. If the consumer
    stops, the thread ends, too.
    """
    end: Any = object()
    with ThreadPoolExecutor(1) as thread:
        coming = deque(thread.submit(next, source, end) for _ in range(depth + 1))
        try:
            while (item := coming.popleft().result()) is not end:
                coming.append(thread.submit(next, source, end))
                yield item
        finally:
            # Also if the consumer raised: after a failed release no thread may go on reading.
            thread.shutdown(cancel_futures=True)
