# SPDX-License-Identifier: Apache-2.0
"""The public facts that a draw leaves: the receipt of its charge, and what was spent in total."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from labeldp._validate import sum_up

WHICH_CLASSES = "which classes occur"
"""The exception from a guarantee whose classes were read off the private labels: no epsilon covers
this fact."""
DECLARED = "declared"
"""The kind of event of labels that another mechanism than labeldp drew."""


def columns_of(column: str, event: Mapping[str, object]) -> tuple[str, ...]:
    """Read from an event which columns it concerns: those that it lists, or else the only one,
    `column`."""
    asked = event.get("law", event.get("query"))
    listed = asked.get("columns") if isinstance(asked, Mapping) else None
    return tuple(map(str, listed)) if isinstance(listed, list | tuple) and listed else (column,)


def private_names(receipts: "Iterable[Receipt]") -> set[str]:
    """List the names of all columns whose labels these runs have read."""
    return {name for receipt in receipts for name in receipt.columns}


def guarantee_text(epsilon: float, delta: float, who: str, except_for: str = "") -> str:
    """Write a guarantee in words. Every text for people takes it from here.

    Parameters
    ----------
    epsilon, delta : float
        An infinite epsilon means that there is no guarantee.
    who : str
        Whom the guarantee protects: "row", or a description of the unit.
    except_for : str, default=""
        The part that the guarantee does not cover.
    """
    if epsilon == math.inf:
        return "not protected: the noise came from a seed"
    cost = f"{epsilon:g}" if delta == 0 else f"({epsilon:g}, {delta:g})"
    return f"{cost}-label-DP for each {who}" + (f", except {except_for}" if except_for else "")


@dataclass(frozen=True, repr=False)
class _Facts:
    """Base of both values: how they are shown."""

    def __repr__(self) -> str:
        """Show a value as dataclasses do: `repeated` only if it is True, and always what the
        guarantee does not cover."""
        names = self.__dataclass_fields__
        facts = {name: getattr(self, name) for name in names if name not in _RARE}
        facts |= {name: told for name in _RARE if (told := getattr(self, name))}
        listed = ", ".join(f"{name}={fact!r}" for name, fact in facts.items())
        return f"{type(self).__name__}({listed})"


@dataclass(frozen=True)
class LedgerEntry:
    """The entry of a charge in a durable ledger.

    Attributes
    ----------
    recorded : bool
        True if the charge was on disk, in a durable ledger, before the first random word. False
        also if a ledger that was asked for the charge does not have it.
    ledger_head : str
        Head of the ledger's hash chain after this charge; "" without a durable ledger.
    charged_at : str
        ISO 8601 time of the charge, UTC.
    """

    recorded: bool = False
    ledger_head: str = ""
    charged_at: str = ""


@dataclass(frozen=True, repr=False)
class Receipt(_Facts):
    """Proof that a run was charged before anything was drawn.

    Attributes
    ----------
    run_id : str
        128 random bits in hexadecimal, made with the charge; the same id means the same charge.
    dataset, column : str
        The charged account; `dataset` is "" if the run has no durable ledger. Of a charge on
        several columns `column` joins their names by commas, and `columns` lists them.
    unit : str
        The unit of protection: "row", or the name of the column that names the person.
    max_rows_per_unit : int
        Rows of one unit that the charge covers.
    epsilon, delta : float
        The unit's total for this run.
    secure : bool
        False if the noise came from a seed: then there is no guarantee at all.
    event : mapping
        The event, as JSON data (see `labeldp.ledger._database`).
    entry : LedgerEntry
        The entry of the charge in the ledger.
    repeated : bool
        True if the answer of this run came back to a later request, whose labels were not read. Two
        receipts of one run are equal.
    rows_over_the_cap : int
        Rows for which the run draws nothing, as their units have more than `max_rows_per_unit`. It
        is public, as the units are.
    """

    run_id: str
    dataset: str
    column: str
    unit: str
    max_rows_per_unit: int
    epsilon: float
    delta: float = 0.0
    secure: bool = True
    event: Mapping[str, object] = field(default_factory=dict, compare=False, hash=False)
    entry: LedgerEntry = LedgerEntry()
    repeated: bool = field(default=False, compare=False, repr=False)
    rows_over_the_cap: int = field(default=0, compare=False, repr=False)

    # They follow from fields that are stored already. A stored copy could contradict them.

    @property
    def recorded(self) -> bool:
        """True if the charge is in a durable ledger."""
        return self.entry.recorded

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns whose labels the run has read; each one's budget counts all of epsilon."""
        return columns_of(self.column, self.event)

    @property
    def except_for(self) -> str:
        """The exception from the guarantee, "" for none: which classes occur, if they were inferred
        from the labels."""
        asked = self.event.get("law", self.event.get("query"))
        return WHICH_CLASSES if isinstance(asked, Mapping) and asked.get("classes_inferred") else ""

    @property
    def guarantee(self) -> str:
        """The guarantee in words."""
        cap = self.max_rows_per_unit
        who = (
            self.unit
            if self.unit == "row"
            else f"{self.unit} (at most {cap} row{'s' * (cap != 1)} each)"
        )
        return guarantee_text(
            self.epsilon if self.secure else math.inf, self.delta, who, self.except_for
        )

    @property
    def declared(self) -> bool:
        """True if nothing was charged: the labels were drawn by another mechanism, whose law
        somebody states."""
        return self.event.get("event") == DECLARED

    def to_dict(self) -> dict[str, object]:
        """Return the receipt as JSON-ready data, with rows over the cap and exceptions only if
        there are some."""
        facts = vars(self) | vars(self.entry)
        return (
            {name: facts[name] for name in _STORED if facts[name] or name not in _RARE}
            | {"event": dict(self.event)}
            | ({"except_for": self.except_for} if self.except_for else {})
        )

    @classmethod
    def from_dict(cls, data: Mapping[str, object]) -> "Receipt":
        """Read a receipt from the output of `to_dict`; the constructor refuses unknown fields."""
        given: dict[str, Any] = {name: data[name] for name in data if name != "except_for"}
        names = LedgerEntry.__dataclass_fields__.keys() & given
        entry = LedgerEntry(**{name: given.pop(name) for name in names})
        return cls(**given, entry=entry)


_STORED = (
    "run_id",
    "dataset",
    "column",
    "unit",
    "max_rows_per_unit",
    "epsilon",
    "delta",
    "recorded",
    "secure",
    "event",
    "ledger_head",
    "charged_at",
    "repeated",
    "rows_over_the_cap",
)
"""The facts of a stored receipt, in their order."""
_RARE = ("repeated", "rows_over_the_cap", "except_for")
"""Fields that are shown and stored only if they are true, above 0 or not empty."""


@dataclass(frozen=True, repr=False)
class PrivacySpent(_Facts):
    """The privacy that the labels behind an artefact have spent.

    Attributes
    ----------
    epsilon, delta : float
        Total for one unit, rounded up. Infinite epsilon where the noise came from a seed.
    unit : str
        The unit of protection: "row", or the column that names the person.
    recorded : bool
        True if every charge is in a durable ledger.
    secure : bool
        True if every random word came from the operating system's entropy.
    repeated : bool
        True if an answer among these is of an earlier run, and the labels given for it were not
        read. What was spent is the same, so it does not count in comparisons.
    except_for : str
        The exception from the guarantee, "" for none: which classes occur, if they were inferred
        from the labels.
    declared : bool
        True if some labels were drawn by another mechanism, or were changed after the draw: then
        their law is a claim, not a proof.
    rows_over_the_cap : int
        The largest number of rows that one of these runs left out, because their units have more
        rows than its cap. It does not count in comparisons.
    """

    epsilon: float
    delta: float
    unit: str
    recorded: bool
    secure: bool
    repeated: bool = field(default=False, compare=False)
    except_for: str = ""
    declared: bool = False
    rows_over_the_cap: int = field(default=0, compare=False)

    def __str__(self) -> str:
        said = guarantee_text(
            self.epsilon if self.secure else math.inf, self.delta, self.unit, self.except_for
        )
        more = {
            "not recorded in a ledger": self.secure and not self.recorded and not self.declared,
            "of an earlier run": self.repeated,
            f"{self.rows_over_the_cap:,} rows over the cap left out": self.rows_over_the_cap > 0,
            "declared, not proven": self.declared,
        }
        return "; ".join([said, *(text for text, holds in more.items() if holds)])

    @property
    def evidence(self) -> str:
        """The strength of the evidence: "proven", "not recorded" (a charge is in no given ledger),
        or "declared, not proven"."""
        return (
            "declared, not proven"
            if self.declared
            else "proven"
            if self.recorded
            else "not recorded"
        )


def spent_in_sequence(*spent: PrivacySpent) -> PrivacySpent:
    """Compute what one unit spent if every part concerned every unit: the sums, rounded up; no
    guarantee if a part has none."""
    secure = all(each.secure for each in spent)
    return PrivacySpent(
        epsilon=sum_up(each.epsilon for each in spent) if secure else math.inf,
        # without secure noise it is 1 as well: nothing at all is promised
        delta=min(1.0, sum_up(each.delta for each in spent)) if secure else 1.0,
        # Parts with different units (rows here, persons there) have no common guarantee; their
        # names are joined so that nobody overlooks it.
        unit=" and ".join(sorted({each.unit for each in spent})) or "row",
        recorded=all(each.recorded for each in spent),
        secure=secure,
        repeated=any(each.repeated for each in spent),
        except_for=" and ".join(sorted({each.except_for for each in spent if each.except_for})),
        declared=any(each.declared for each in spent),
        rows_over_the_cap=max((each.rows_over_the_cap for each in spent), default=0),
    )


def spent_together(receipts: Iterable[Receipt]) -> PrivacySpent:
    """Compute what one unit spent on all of these draws, each receipt counted once; see
    `spent_in_sequence`.

    Parameters
    ----------
    receipts : iterable of Receipt
        For example of a histogram, and of the labels that were drawn with a prior made from it.
    """
    # A run is charged once, however many of its stages or copies are at hand. Runs on disjoint rows
    # are added all the same: a receipt does not list rows, so the sum is an upper bound. The
    # ledger, which knows the rows, adds them exactly.
    distinct = {receipt.run_id: receipt for receipt in receipts}.values()
    names = PrivacySpent.__dataclass_fields__
    return spent_in_sequence(
        *(PrivacySpent(**{name: getattr(each, name) for name in names}) for each in distinct)
    )
