# SPDX-License-Identifier: Apache-2.0
"""`labeldp aggregate`: a table in, private answers about each of its groups out, in bounded
memory."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
from numpy.typing import NDArray

from labeldp import _validate
from labeldp._files import path_text, private_file
from labeldp.aggregates import Aggregate, Histogram, Query, Vote
from labeldp.custody._aggregation import aggregate_batches
from labeldp.custody._encode import infers
from labeldp.errors import InvalidInput, LabelDPWarning, ReleaseError, warn
from labeldp.ledger._database import AggregateDraw
from labeldp.ledger._ledger import Ledger, ledger_of
from labeldp.tables._evidence import check_unchanged, warn_of_names
from labeldp.tables._place import Place, workplace
from labeldp.tables._release import all_facts, check_raw, default_dataset
from labeldp.tables._spec import declared_or_infer
from labeldp.tables.engines._local import Progress, declared_codec, silent
from labeldp.tables.formats._parquet import (
    ParquetSource,
    check_layout,
    format_of,
    layout_of,
    open_table,
    row_name,
    table_writer,
)
from labeldp.tables.formats._table import (
    Columns,
    LabelCodec,
    Source,
    check_columns,
    check_type,
    is_text,
    plain,
    value_type,
)

QUERIES: dict[str, type[Query]] = {query.name: query for query in (Histogram, Vote)}


@dataclass(frozen=True)
class AggregateSpec:
    """A query over the groups of a table, with its cost.

    Parameters
    ----------
    label : str
        The private column.
    group : str
        The public column with each row's group: text, whole numbers or booleans, never missing.
    classes : sequence of K values, or "infer"
        The declared classes; "infer" as in `ReleaseSpec`.
    epsilon : float
        Total budget of one row.
    query : {"histogram", "vote"}, default="histogram"
    mechanism : str, optional
        As in `Histogram` and `Vote`; default: theirs.
    delta : float, default=0.0
        0 for pure mechanisms.
    dataset : str, optional
        Name in the ledger; default: that of the releases that wrote the table, else the file's name
        without its ending.
    """

    label: str
    group: str
    classes: Sequence[object]
    epsilon: float
    query: str = "histogram"
    mechanism: str | None = None
    delta: float = 0.0
    dataset: str | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "classes", declared_or_infer(self.classes))
        if self.group == self.label:
            raise InvalidInput(
                f"Expected a public column of groups, got the label column {self.label!r}. Name"
                " another one."
            )
        # refuses faults before anything is read
        self.asked(np.ones(1, np.int64), 2 if infers(self.classes) else len(self.classes))

    def asked(self, sizes: NDArray[np.int64], n_classes: int) -> Query:
        """Make the query over groups of these sizes, and this many classes."""
        kind = QUERIES[_validate.one_of(tuple(QUERIES), query=self.query)]
        chosen = {} if self.mechanism is None else {"mechanism": self.mechanism}
        return kind(
            n_classes=n_classes,
            epsilon=self.epsilon,
            n_groups=len(sizes),
            delta=self.delta,
            **chosen,
        )


@dataclass(frozen=True)
class AggregateFile:
    """The file of an answer. `repeated`: the ledger had the same answer, so nothing was drawn or
    charged."""

    path: Path
    answer: Aggregate
    repeated: bool


def aggregate(
    source: Any,
    out: str | Path,
    spec: AggregateSpec,
    ledger: Ledger | None = None,
    *,
    redraw: bool = False,
    progress: Progress = silent,
) -> AggregateFile:
    """Answer a query about the labels of each group of a table's rows, and write the answer.

    Parameters
    ----------
    source : str, Path or Place
        A Parquet or CSV file, or a folder or pattern of Parquet files, read twice.
    out : str or Path
        New file. Parquet is read back by `Aggregate.load`; CSV has the same columns without the
        receipt. It has one row per group, in the order of the groups' values: group, n_rows, and a
        noisy count for each class (count_CLASS), or the voted label.
    spec : AggregateSpec
    ledger : Ledger, or its path, optional
        The user's own by default, never none.
    redraw : bool, default=False
        Draw and charge again, even if the ledger has the same answer.
    progress : function of (phase, done, total), optional

    Returns
    -------
    AggregateFile, when the file is on disk.
    """
    table, record, target = open_table(source), ledger_of(ledger), Path(path_text(out))
    dataset = spec.dataset or default_dataset(table)
    check_layout(layout_of(table), spec.label, (), public=True)
    check_columns(table, [spec.label, spec.group])
    check_raw(table, spec.label, record if table.text else None)
    check_type(spec.label, table.type_of(spec.label))
    kind = value_type(table.type_of(spec.group))
    if not (pa.types.is_integer(kind) or pa.types.is_boolean(kind) or is_text(kind)):
        raise InvalidInput(
            f"Expected a group column of text, whole numbers or booleans, got {spec.group!r} of"
            f" type {kind}. Cast it."
        )
    # the sizes of groups are published as they are
    check_unchanged([spec.group], dataset, record, table)
    warn_of_names([spec.group], dataset, record, all_facts(table))
    format_of(target)  # refuses any other ending
    runs = record.runs(dataset, spec.label)
    # An existing file can be this request's answer only if some answer was drawn before; whether it
    # is is known after reading the table. If none was drawn, refuse at once, before a long table is
    # read.
    if target.exists() and not any(
        run.receipt.event.get("event") == AggregateDraw.kind for run in runs
    ):
        _taken(target)
    codec = declared_codec(table, spec.label, spec.classes)
    with workplace(target) as folder:
        names, sizes = _distinct_groups(table, spec.group, progress)
        # Only the names are compared, which are public: comparing a group's rows with their labels
        # would itself reveal labels. Numbers are often equal by chance, so only text is a sign of a
        # copy of the labels.
        if is_text(names.type) and set(names.to_pylist()) <= set(codec.classes):
            warn(
                LabelDPWarning(
                    f"Every group in column {spec.group!r} is called like a class of"
                    f" {spec.label!r}. If the column was made from the labels, the exact numbers of"
                    " rows of the groups give them away: name a column that was not."
                )
            )
        new: list[bool] = []

        # Called when a charge is due, just before it: a target that exists then cannot be the
        # answer, and nothing has been spent.
        def before_charge() -> None:
            if target.exists():
                _taken(target)
            new.append(True)

        answer = aggregate_batches(
            _numbered(table, spec, codec, names, progress),
            spec.asked(sizes, len(codec.classes)),
            label=spec.label,
            group=spec.group,
            classes=codec.classes,
            inferred=infers(spec.classes),
            dataset=dataset,
            ledger=record,
            redraw=redraw,
            before_charge=before_charge,
        )
        named = replace(answer, group_names=tuple(names.to_pylist()))
        _publish(named, private_file(folder / target.name), target)
    return AggregateFile(target, named, not new)


def _taken(target: Path) -> NoReturn:
    raise ReleaseError(
        f"Expected a new name for the answer, got {target}, which exists and is something else."
        " Remove it, or choose another name."
    )


def _distinct_groups(
    table: Source, group: str, progress: Progress
) -> tuple[pa.Array, NDArray[np.int64]]:
    """Read the distinct values of the group column, sorted, and the number of rows of each; refuse
    a missing one."""
    seen: Counter[Any] = Counter()
    start = done = 0
    for batch in table.batches([group]):
        column = _plain(batch, group)
        missing = pc.fill_null(pc.equal(column, ""), True) if table.text else pc.is_null(column)
        if pc.any(missing).as_py():
            row = start + int(np.flatnonzero(missing.to_numpy(zero_copy_only=False))[0])
            raise InvalidInput(
                f"Expected a group in every row of column {group!r}, got none in"
                f" {row_name(table, row)}. Give such rows a group of their own, or drop them."
            )
        found = pc.value_counts(column)
        seen.update(
            dict(
                zip(
                    found.field("values").to_pylist(),
                    found.field("counts").to_pylist(),
                    strict=True,
                )
            )
        )
        start, done = start + len(batch), done + batch.extent
        progress("groups", done, table.extent)
    if not seen:
        raise InvalidInput(f"Expected at least one row, got none in {table.path.name}.")
    kind = value_type(table.type_of(group))
    names = sorted(seen)
    return pa.array(names, pa.large_string() if is_text(kind) else kind), np.array(
        [seen[name] for name in names], np.int64
    )


def _plain(batch: Columns, name: str) -> pa.Array:
    """Return a column without dictionary encoding, and all kinds of text as one type."""
    column = plain(batch.column(name))
    return column.cast(pa.large_string()) if is_text(column.type) else column


def _numbered(
    table: Source, spec: AggregateSpec, codec: LabelCodec, names: pa.Array, progress: Progress
) -> Iterator[pa.RecordBatch]:
    """Yield the labels of all rows as indices into the classes, with the indices of their
    groups."""
    done = 0
    for batch in table.batches([spec.label, spec.group]):
        numbers = pc.index_in(_plain(batch, spec.group), value_set=names)
        if numbers.null_count:  # the first pass read all groups, so the file has changed since
            raise ReleaseError(
                f"Expected {table.path.name} to stay as it is while it is read, got another group."
                " Nothing was charged."
            )
        yield pa.record_batch(
            {spec.label: codec.listed(batch.column(spec.label)), spec.group: numbers}
        )
        done += batch.extent
        progress("count", done, table.extent)


def _publish(answer: Aggregate, made: Path, target: Path) -> None:
    """Write the answer's file, and name it. An existing file of this name must be the same answer,
    byte for byte."""
    # `repeated` is a fact of the call, not of the draw: without it, the files of a request and its
    # repeat are equal byte for byte.
    table = replace(answer, receipt=replace(answer.receipt, repeated=False)).to_table()
    if format_of(target) is not ParquetSource:
        table = table.drop_columns([name for name in table.column_names if name == "code"])
    with table_writer(made, table.schema) as writer:
        writer.write_table(table)
    if not target.exists():
        Place.of(made).move(Place.of(target))
    elif made.read_bytes() != target.read_bytes():
        _taken(target)
