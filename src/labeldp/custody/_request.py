# SPDX-License-Identifier: Apache-2.0
"""What is asked of private labels, as values: of which column, charged to which account, and what makes two requests the same."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

from labeldp import _validate
from labeldp._hash import digest
from labeldp.custody._encode import declare
from labeldp.custody._row_ids import PLAIN, RowIds
from labeldp.errors import InvalidInput, SeededNoiseWarning, UnrecordedWarning, warn
from labeldp.ledger._events import AggregateDraw, LabelDraw
from labeldp.ledger._ledger import Ledger, Spending, as_ledger
from labeldp.noise._words import SeededNoise

Overlap = Literal["charge", "refuse"]


@dataclass(frozen=True)
class PrivateColumn:
    """A column of private labels, by the public facts that enter every key of its runs.

    Attributes
    ----------
    dataset, column : str
        What the ledger calls it.
    unit : str
        What is protected: "row", or the name of the unit's column.
    max_rows_per_unit : int
    values : tuple of K values
        The declared classes, by their codes.
    """

    dataset: str
    column: str
    unit: str
    max_rows_per_unit: int
    values: tuple[object, ...]

    @cached_property
    def classes(self) -> str:
        """Digest of the declared classes in their order."""
        return digest({"classes": list(map(repr, self.values))})

    def public(self) -> dict[str, object]:
        """The facts of every key."""
        return {name: getattr(self, name) for name in ("dataset", "column", "unit", "max_rows_per_unit", "classes")}


@dataclass(frozen=True)
class Account:
    """Where labels are charged, and how they are drawn.

    Attributes
    ----------
    dataset, column : str
        The names under which a budget is kept; without a ledger they may be empty.
    max_rows_per_unit : int
        Rows of one unit that are used.
    ledger : Ledger, its path, or None
        None: nothing is recorded.
    noise : SeededNoise or None
        For tests and benchmarks on public data only.
    redraw : bool
        Draw again, and charge again, what has settled.
    overlap : {"charge", "refuse"}
        Whether rows of an earlier run may be charged again.
    resumes : str
        Id of the run that must be picked up, or "" for any: then nothing is ever charged.
    """

    dataset: str | None = None
    column: str = "label"
    max_rows_per_unit: int = 1
    ledger: Ledger | None = None
    noise: SeededNoise | None = None
    redraw: bool = False
    overlap: Overlap = "charge"
    resumes: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "ledger", as_ledger(self.ledger))
        object.__setattr__(self, "max_rows_per_unit", _validate.integer(max_rows_per_unit=self.max_rows_per_unit, low=1))
        object.__setattr__(self, "dataset", self.dataset or "")

    def private_column(self, classes: Sequence[object], rows: RowIds, n_classes: int | None = None) -> PrivateColumn:
        """The column whose labels these rows have; classes that are no list of values are refused."""
        return PrivateColumn(str(self.dataset), self.column, rows.unit_name, self.max_rows_per_unit, declare(classes, n_classes))

    def check(self) -> None:
        """Refuse a charge that nobody could find again; say aloud that noise is seeded, or, once, that nothing is recorded."""
        if self.ledger is not None and not self.dataset:
            raise InvalidInput("Expected dataset= with a ledger: the public name under which this data set's budget is kept.")
        if self.noise is not None:
            warn(SeededNoiseWarning("The noise comes from a seed: nothing is protected. For tests and public data only."))
        elif self.ledger is None and "unrecorded" not in _warned:
            _warned.add("unrecorded")
            warn(
                UnrecordedWarning(
                    "No ledger: nothing records this spend, so the same labels can be drawn again and each draw adds to the total. "
                    "Pass ledger=labeldp.Ledger(path) and dataset='name'. (Said once.)"
                )
            )


_warned: set[str] = set()


@dataclass(frozen=True)
class Request:
    """What is asked of a column's labels: the one list of the public facts that make two requests the same request.

    Attributes
    ----------
    column : PrivateColumn
    epsilon, delta : float
        The unit's total.
    asked : mapping
        As JSON-ready data: the laws and how the rows are divided among them; or the query about groups.
    prior : str
        Digest of the public prior; "" for none.
    rows : str
        Digest of the explicit ids, or of the public columns, of a query also of each row's group; "" if neither is known.
    units : str
        Digest of which row is about whom; "" where each row is its own unit.
    id_name : str
        What the ids are called: equal numbers of another column are other rows. "" without ids.
    of_groups : bool
        A query about groups is asked, and no label comes out.
    """

    column: PrivateColumn
    epsilon: float
    asked: Mapping[str, object]
    prior: str = ""
    rows: str = ""
    units: str = ""
    delta: float = 0.0
    id_name: str = ""
    of_groups: bool = False

    @property
    def identity(self) -> str:
        """Digest of all of it: requests with equal identity are repeats of each other."""
        facts = self.column.public() | {"epsilon": self.epsilon, "delta": self.delta, "laws": self.asked}
        facts |= {"prior": self.prior, "rows": self.rows, "units": self.units}
        return digest(facts | ({} if self.id_name in ("", PLAIN) else {"id_name": self.id_name}))

    @property
    def question(self) -> str:
        """Digest of all but the rows: of a run whose rows have no ids, and whose labels in their order may name them as well."""
        return replace(self, rows="").identity

    @property
    def event(self) -> dict[str, object]:
        """What is done, as the ledger keeps it."""
        kind = AggregateDraw if self.of_groups else LabelDraw
        return kind(self.asked, self.epsilon, self.delta, self.column.unit, self.column.max_rows_per_unit).to_dict()

    def spending(self, run_id: str) -> Spending:
        """What a run of it spends; an answer about groups cannot be drawn again, so its run is never picked up."""
        column = self.column
        return Spending(
            column.dataset,
            column.column,
            self.epsilon,
            self.event,
            self.identity,
            run_id,
            self.delta,
            column.unit,
            column.max_rows_per_unit,
            repeatable=not self.of_groups,
        )
