# SPDX-License-Identifier: Apache-2.0
"""Answers of aggregate queries: private values of groups, with the receipt of their charge."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from labeldp._files import STORES, path_text
from labeldp._hash import digest, exact_array
from labeldp._registry import Registry
from labeldp.aggregates._base import Query, check_groups, facts_of
from labeldp.aggregates._histogram import Histogram, Marginals
from labeldp.aggregates._sums import FeatureSums
from labeldp.aggregates._vote import Vote
from labeldp.errors import InvalidInput
from labeldp.laws._columns import LabelColumns, classes_of
from labeldp.receipt import PrivacySpent, Receipt, spent_together

if TYPE_CHECKING:
    import pyarrow as pa

QUERIES: Registry[Query] = Registry()
QUERIES.update({query.name: query for query in (Histogram, Marginals, Vote, FeatureSums)})
QUERIES.place(
    {"confident-gnmax": "labeldp.papers._gnmax:ConfidentGNMax", "peer": "labeldp.papers._peer:Peer"}
)
METADATA_KEY = b"labeldp-aggregate"
FORMAT = 1


@dataclass(frozen=True, eq=False)
class Aggregate:
    """The private answer to a query about groups of rows. Whatever is computed from it is
    post-processing.

    Attributes
    ----------
    query : Query
    values : (n_groups, K) or (n_groups,) int64
        Noisy counts of a histogram, class codes of a vote (-1 for a query to teachers without an
        answer), or noisy sums of features, which `query.sums(values)` converts to the features' own
        unit.
    n_rows : (n_groups,) int64
        Number of rows of each group that were counted, of all rows that were summed, or of teachers
        that voted, which is public, as the groups are.
    classes : tuple of K values
    receipt : Receipt
    group_names : tuple of n_groups values, optional
        Names of the groups, which `prior` and `predict` then take. None (default): their numbers.
    chosen : int, optional
        Number of the candidate that this answers, if it was chosen by
        `labeldp.custody._aggregation.aggregate_best`.

    See Also
    --------
    labeldp.aggregate : Answers a query.
    """

    query: Query
    values: NDArray[np.int64]
    n_rows: NDArray[np.int64]
    classes: tuple[object, ...]
    receipt: Receipt
    group_names: tuple[object, ...] | None = None
    chosen: int | None = None

    def __post_init__(self) -> None:
        if self.values.shape != self.query.value_shape() or self.n_rows.shape != (
            self.query.n_groups,
        ):
            raise InvalidInput(
                f"Expected values of shape {self.query.value_shape()}, one entry a group; got"
                f" {self.values.shape}."
            )
        if len(self.classes) != self.query.n_classes:
            raise InvalidInput(f"Expected {self.query.n_classes} classes, got {len(self.classes)}.")
        if self.group_names is not None and len(set(self.group_names)) != self.query.n_groups:
            raise InvalidInput(
                f"Expected {self.query.n_groups} different names of groups, got"
                f" {len(set(self.group_names))}."
            )

    def __repr__(self) -> str:
        return f"Aggregate({self.query}, run {self.receipt.run_id})"

    @property
    def n_groups(self) -> int:
        """The number of groups, including empty ones."""
        return self.query.n_groups

    @property
    def epsilon(self) -> float:
        """The epsilon that one unit spent; infinite if the noise came from a seed."""
        return self.privacy.epsilon

    @property
    def delta(self) -> float:
        """The delta that one unit spent; 0 for a pure mechanism."""
        return self.privacy.delta

    @property
    def privacy(self) -> PrivacySpent:
        """The privacy that one unit spent on this answer."""
        return spent_together([self.receipt])

    def prior(self, groups: "ArrayLike") -> NDArray[np.float64]:
        """Estimate class probabilities of rows by their groups, from a histogram or another query
        of counts.

        Parameters
        ----------
        groups : (n,) array
            Integers in 0..n_groups-1, or names if the groups have names.

        Returns
        -------
        (n, K) float64
            Rows sum to 1; see `Histogram.shares`. Uniform for an empty group, or one whose counts
            are lost in noise.
        """
        table = self.query.shares(self.values, self.n_rows, self.receipt.max_rows_per_unit)
        # The values of an empty group are noise alone.
        table[self.n_rows == 0] = 1 / self.query.n_classes
        return np.asarray(table[self._numbers(groups)])

    def codes(self) -> NDArray[np.int64]:
        """Return one class code for each group, (n_groups,) int64: the vote, or the first of the
        largest noisy counts; -1 for no answer."""
        return self.values.argmax(axis=1) if self.values.ndim == 2 else self.values

    @property
    def answered(self) -> NDArray[np.bool_]:
        """Tell which groups have an answer: (n_groups,) bool; all, but for queries to teachers of
        which too few agree."""
        return self.codes() >= 0

    def labels(self) -> NDArray[np.generic]:
        """Return `codes` as class values: (n_groups,); None where there is no answer."""
        found, answered = exact_array(self.classes)[np.maximum(self.codes(), 0)], self.answered
        if answered.all():
            return found
        found = found.astype(object)
        found[~answered] = None
        return found

    def predict(self, groups: "ArrayLike") -> NDArray[np.generic]:
        """Predict the class value of each row's group: (n,) from (n,) integers in 0..n_groups-1, or
        names."""
        return np.asarray(self.labels()[self._numbers(groups)])

    def _numbers(self, groups: ArrayLike) -> NDArray[np.int64]:
        if self.group_names is None:
            return check_groups(groups, self.n_groups)
        table = {name: number for number, name in enumerate(self.group_names)}
        # An array of a list with numbers and text would have text alone.
        given = groups if isinstance(groups, list | tuple) else np.asarray(groups).tolist()
        found = np.array(
            [
                table.get(name.item() if isinstance(name, np.generic) else name, -1)
                for name in given
            ],
            np.int64,
        )
        if (found < 0).any():
            raise InvalidInput(
                "Expected names of groups that were asked about, got another one in row"
                f" {np.argmin(found)}."
            )
        return found

    # Files
    # ----------------------------------------------------------------------------------------------

    def to_table(self) -> "pa.Table":
        """Convert to an Arrow table that `from_table` reads, with one row a group.

        Columns: group, n_rows, and count_CLASS for each class of a histogram, or code and label of
        a vote.
        """
        import pyarrow as pa

        columns: dict[str, object] = {
            "group": (
                np.arange(self.n_groups) if self.group_names is None else list(self.group_names)
            ),
            "n_rows": self.n_rows,
        }
        classes = [
            value.item() if isinstance(value, np.generic) else value for value in self.classes
        ]
        if self.values.ndim == 1:
            columns |= {"code": self.values, "label": self.labels()}
        else:
            columns |= dict(zip(_count_names(classes), self.values.T, strict=True))
        facts = {
            "format": FORMAT,
            "query": self.query.to_dict(),
            "classes": classes,
            "receipt": self.receipt.to_dict(),
        }
        facts |= self.classes.facts() if isinstance(self.classes, LabelColumns) else {}
        facts |= {} if self.group_names is None else {"named": True}
        facts |= {} if self.chosen is None else {"chosen": self.chosen}
        table = pa.table(columns)
        facts |= {"drawn": _drawn(facts, table)}
        return table.replace_schema_metadata({METADATA_KEY: json.dumps(facts)})

    @classmethod
    def from_table(cls, table: "pa.Table") -> Self:
        """Read an aggregate from the table that `to_table` made.

        Raises
        ------
        InvalidInput
            The table is no aggregate of this format, or its values, groups, receipt or query were
            changed, as its digest shows.
        """
        raw = (table.schema.metadata or {}).get(METADATA_KEY)
        facts = json.loads(raw) if raw else {}
        if facts.get("format") != FORMAT:
            raise InvalidInput(
                f"Expected a labeldp aggregate of format {FORMAT} in the table's metadata, got"
                f" {facts.get('format', 'none')}."
            )
        query = query_from_dict(facts["query"])
        classes = classes_of(facts) if "columns" in facts else tuple(facts["classes"])
        names = ["code"] if len(query.value_shape()) == 1 else _count_names(classes)
        known = ["group", "n_rows", *names, *(["label"] if names == ["code"] else [])]
        if table.column_names != known or table.num_rows != query.n_groups:
            raise InvalidInput(
                f"Expected columns {', '.join(known)} of {query.n_groups}"
                " rows, got others: the table was changed."
            )
        values = np.column_stack([table[name].to_numpy() for name in names]).astype(np.int64)
        shaped = values.reshape(query.value_shape())
        groups = tuple(table["group"].to_pylist()) if facts.get("named") else None
        if facts.get("drawn") != _drawn(facts, table):
            raise InvalidInput(
                "Expected the answer that was drawn, got another one: values, groups or what the"
                " table says of itself were changed. Restore the file; counts that something else"
                " has made are no labeldp aggregate."
            )
        n_rows, receipt = table["n_rows"].to_numpy(), Receipt.from_dict(facts["receipt"])
        return cls(query, shaped, n_rows, classes, receipt, groups, facts.get("chosen"))

    def save(self, path: str | Path) -> None:
        """Write `to_table()` as a Parquet file."""
        import pyarrow.parquet as pq

        pq.write_table(self.to_table(), path_text(path, STORES))

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read the file that `save` wrote."""
        import pyarrow.parquet as pq

        return cls.from_table(pq.read_table(path_text(path, STORES)))


def _drawn(facts: Mapping[str, object], table: "pa.Table") -> str:
    """Digest an answer's values, groups and facts. The digest detects accidents; it does not stop a
    forger."""
    said = {name: value for name, value in facts.items() if name != "drawn"}
    values = [
        [repr(value) for value in column.to_pylist()]
        for name, column in zip(table.column_names, table.columns, strict=True)
        if name != "label"
    ]
    return digest({"said": said, "values": values})


def _count_names(classes: Iterable[object]) -> list[str]:
    """Name the columns of counts by the classes, or by their codes if two classes have the same
    text."""
    texts = ["" if value is None else str(value) for value in classes]
    return [
        f"count_{text}" for text in (texts if len(set(texts)) == len(texts) else range(len(texts)))
    ]


def query_from_dict(data: object) -> Query:
    """Make the query that `to_dict` wrote; an unknown kind or field is refused and named."""
    kind, facts = facts_of(data, QUERIES)
    try:
        return kind(**facts)  # type: ignore[arg-type]  # the constructor checks each
    except TypeError:
        raise InvalidInput(
            f"Expected the fields of a {kind.name} query, got {', '.join(facts)}. A newer labeldp"
            " may know them."
        ) from None
