# SPDX-License-Identifier: Apache-2.0
"""The specification of a table release, and the plan of several releases under one charge, as
frozen values that can be logged."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

from labeldp import _validate
from labeldp.aggregates._histogram import histogram_of_all
from labeldp.custody._encode import declare, infers, undeclared, unit_of
from labeldp.custody._request import Overlap
from labeldp.custody._staged import Stage, StagedRun
from labeldp.custody._stream import RELEASE
from labeldp.errors import InvalidInput
from labeldp.laws import Grid, Law, law_named, parse_law
from labeldp.laws._columns import LabelColumns, as_classes, class_facts, classes_of
from labeldp.laws._square_wave import law_of_numbers
from labeldp.ledger._ledger import Ledger, LedgerUrl, ledger_of
from labeldp.noise._secrets import new_run_id
from labeldp.protocol._fit import without_prior
from labeldp.tables._priors import OwnHistogram, Prior, column_name, column_names

FORMAT = "labeldp-stages/1"


@dataclass(frozen=True)
class ReleaseSpec:
    """The specification of a release: the private column, its privacy cost and its law.

    Parameters
    ----------
    label : str
        The private column. All other columns are assumed to be public. Of several columns the
        `name` of their `LabelColumns`.
    classes : sequence of values, Grid, LabelColumns, or "infer"
        The declared classes, in the order of their codes; for numbers a `Grid`, to whose nearest
        point each label is rounded. None among them declares that the label may be null. "infer"
        reads them off the private column, which reveals the classes that occur: it warns, manifest
        and receipt say so, and floats, or more than sqrt(n) different values, are refused.
    epsilon : float
        Total for one unit, 0 < epsilon < inf.
    law : str, Law, Stage or None
        A law's name, such as "auto", "subset:2" or "rr-top-k:3" (see docs/concepts/laws.md;
        `register_law` adds your own), or a law, whose epsilon must be `epsilon`; of several
        columns one of `LabelColumns.law`. None (default): "rr", or "rr-with-prior" with a prior;
        both release plain labels that any trainer can use. For a grid "square-wave", or
        "threshold" of more than 700 points, as `LabelDPRegressor` draws in one stage, and with a
        prior "threshold"; for several columns each row is asked about one; with a histogram as the
        prior of classes "auto". What pays for a histogram is taken off the law's epsilon. Or a
        stage of a planned release (`labeldp.app.stage`), which has a law: only the rows of its part
        are released.
    id : str, sequence of str, or None
        Columns that name a row, unique and never null. None (default): the row's position in the
        file.
    unit : str or None
        Column that names the person. None (default): each row is its own unit.
    max_rows_per_unit : int
        Largest number of rows of one unit that are released; others are dropped. Each row's law has
        epsilon divided by this, rounded down. 1 by default.
    prior : sequence of str, PriorTable, PriorModel, HistogramPrior or None
        K numeric columns, in the order of `classes`, with public weights that were never computed
        from these labels; or a public table (`labeldp.PriorTable`), or a model
        (`labeldp.PriorModel`). Or `labeldp.learn.HistogramPrior`: a part of epsilon pays for a
        noisy histogram of this column, which the manifest holds, too. None (default): no prior.
    dataset : str or None
        Name in the ledger. None (default): the data set of the releases that wrote the input, else
        the file's name without its ending. Rows that were released under another name must be
        released under that name again, or the ledger does not see their earlier charge.
    order : {"shuffle", "keep"}
        "shuffle" (default) releases the rows in a secret random order. "keep" states that the order
        of the rows, and the path of the file, do not depend on the labels.
    overlap : {"charge", "refuse"}
        Whether rows of an earlier release of this column are charged again (default) or refused.
    strict : bool, default=False
        Refuse, before the charge, what would give a warning before it: inferred classes, an epsilon
        that protects next to nothing, rows or columns that another data set or an earlier file
        shows, and classes that no row tells apart. A repeat, a run that is resumed after a crash,
        and rows over the cap are not refused. False by default.

    Notes
    -----
    Guarantee: the released table is epsilon-label-DP with respect to the label of one row, or to
    all labels of one unit.
    """

    label: str
    classes: Sequence[object]
    epsilon: float
    law: str | Law | Stage | None = None
    id: str | Sequence[str] | None = None
    unit: str | None = None
    max_rows_per_unit: int = 1
    prior: Sequence[str] | Prior | OwnHistogram | None = None
    dataset: str | None = None
    order: str = "shuffle"
    strict: bool = False
    overlap: Overlap = "charge"

    def __post_init__(self) -> None:
        put = object.__setattr__
        column_name(label=self.label)
        put(self, "epsilon", _validate.epsilon(self.epsilon))
        put(
            self,
            "max_rows_per_unit",
            _validate.integer(max_rows_per_unit=self.max_rows_per_unit, low=1),
        )
        put(self, "classes", declared_or_infer(self.classes, strict=self.strict))
        if isinstance(self.classes, LabelColumns) and self.label != self.classes.name:
            raise InvalidInput(
                f"Expected label={self.classes.name!r}, the names of the declared columns, got"
                f" {self.label!r}."
            )
        put(self, "id", column_names("id", self.id))
        put(self, "prior", _prior(self.prior))
        _validate.one_of(("shuffle", "keep"), order=self.order)
        _validate.one_of(("charge", "refuse"), overlap=self.overlap)
        if self.unit is not None:
            column_name(unit=self.unit)
            unit_of(self.unit)
        if self.max_rows_per_unit > 1 and self.unit is None:
            raise InvalidInput(
                "Expected unit= with max_rows_per_unit > 1, got none. Name the column that says"
                " whose row it is."
            )
        self._check_roles()
        self._check_law()
        self._check_stage()

    def _check_roles(self) -> None:
        for role, names in {
            "id": self.ids,
            "unit": (self.unit,),
            "prior": self.prior.reads if isinstance(self.prior, Prior) else self.prior_columns,
        }.items():
            if found := set(self.labels) & set(names):
                raise InvalidInput(
                    f"Expected {role} to name public columns, got the label column {min(found)!r}."
                    " Leave it out."
                )
        if self.prior and len(self.labels) > 1:
            raise InvalidInput(
                "Expected no prior with several label columns, got one. Leave it out, or use"
                " privatize in Python."
            )
        listed = self.prior_columns
        if listed and not self.infers_classes and len(listed) != len(self.classes):
            raise InvalidInput(
                f"Expected one prior column a class ({len(self.classes)}), got {len(listed)}. List"
                " them in the order of the classes."
            )

    def _check_law(self) -> None:
        law = self.own_law
        if isinstance(law, Law):
            if law.epsilon != self.epsilon:
                raise InvalidInput(
                    f"Expected the law's epsilon to be {self.epsilon!r}, got {law.epsilon!r}."
                    " Give both the same."
                )
            if isinstance(self.classes, LabelColumns):
                self.classes.check(law_of(self, len(self.classes)))
        elif self.infers_classes:
            parse_law(self.law_name)
        else:
            # Built here, so that a law that is impossible with these classes or this epsilon is
            # refused before anything is read.
            law_of(self, len(self.classes))
        if isinstance(self.classes, LabelColumns):
            return
        kind = law if isinstance(law, Law) else parse_law(self.law_name)[0]
        if kind.kind == "number":
            if not isinstance(self.classes, Grid):
                raise InvalidInput(
                    f"Expected a range for law {self.law_name!r}, which releases numbers, got a"
                    " list of classes. Pass classes=labeldp.Grid(low, high, points)."
                )
            law_of(self, len(self.classes)).released(self.classes)
        if self.histogram is not None:
            self._check_histogram(self.histogram, kind)
        # Of a set the heaviest class under the prior is written as the label, so laws that release
        # sets can use a prior, too.
        elif self.prior and not kind.uses_prior and kind.kind in ("label", "number"):
            raise InvalidInput(
                f"Expected a law that uses the prior, got {self.law_name!r}. Take rr-with-prior, or"
                " leave the prior out."
            )

    def _check_histogram(self, asked: OwnHistogram, law: Law | type[Law]) -> None:
        kind = type(law) if isinstance(law, Law) else law
        # A law that derives its question from the prior alone would ask all rows the same one.
        if not (kind.draws_side and kind.uses_prior) and kind.made_for is Law.made_for:
            raise InvalidInput(
                "Expected a law that draws each row's question under one prior of all rows"
                " ('auto', 'split', 'threshold'), or is made for it ('rr-on-bins', 'unbiased'),"
                f" with a histogram as the prior, got {self.law_name!r}. Take one of these, or drop"
                " the prior."
            )
        if asked.epsilon is not None:
            # raises if it is impossible
            histogram_of_all(
                self.epsilon, 2 if self.infers_classes else len(self.classes), 1, asked.epsilon
            )

    def _check_stage(self) -> None:
        stage = self.stage
        if stage is None:
            return
        # A row's stage is chosen by its id, and later stages find the plan's charge in the ledger
        # by the data set's name.
        named = self.ids and not self.infers_classes and self.dataset
        lacks_prior = stage.number > 1 and stage.law.uses_prior and not self.prior
        refused = {
            "Expected no histogram as the prior of a stage, got one. The stages before give the"
            " prior: their model.": self.histogram is not None,
            "Expected one label column in a release in stages, got several. Release them without"
            " stages.": len(self.labels) > 1,
            "Expected id, declared classes and dataset with a stage, got one without. Name them:"
            " all stages share them.": not named,
            f"Expected a prior for stage {stage.number}, whose law {stage.law.name!r} is made for"
            " one, got none. Pass what the model of the stages before predicts.": lacks_prior,
        }
        for message in (text for text, found in refused.items() if found):
            raise InvalidInput(message)

    @cached_property
    def labels(self) -> tuple[str, ...]:
        """The private columns: one, or several that are drawn together."""
        return self.classes.names if isinstance(self.classes, LabelColumns) else (self.label,)

    @cached_property
    def lists(self) -> tuple[Sequence[object], ...]:
        """The declared classes of each of `labels`."""
        return self.classes.lists if isinstance(self.classes, LabelColumns) else (self.classes,)

    @cached_property
    def infers_classes(self) -> bool:
        """True if `classes` is "infer", by which the classes are read from the private column."""
        return infers(self.classes)

    @property
    def stage(self) -> Stage | None:
        """The stage of a planned release that is drawn, or None."""
        return self.law if isinstance(self.law, Stage) else None

    @property
    def own_law(self) -> str | Law | None:
        """The law as it was given, or that of the stage."""
        return self.law.law if isinstance(self.law, Stage) else self.law

    @cached_property
    def stage_name(self) -> str:
        """The name of the stage that is drawn."""
        return RELEASE if self.stage is None else self.stage.name

    @cached_property
    def prior_columns(self) -> tuple[str, ...]:
        """The columns of the prior; empty if the prior is no columns."""
        return (
            ()
            if self.prior is None or isinstance(self.prior, Prior | OwnHistogram)
            else tuple(self.prior)
        )

    @property
    def histogram(self) -> OwnHistogram | None:
        """The histogram that the release pays for as its prior, or None."""
        return self.prior if isinstance(self.prior, OwnHistogram) else None

    @cached_property
    def ids(self) -> tuple[str, ...]:
        """The id columns; empty if rows are named by position."""
        return tuple(self.id or ())

    @cached_property
    def columns(self) -> tuple[str, ...]:
        """All columns that a release reads by name: label, ids, unit and prior."""
        return tuple(
            dict.fromkeys(
                [*self.labels, *self.ids, *([self.unit] if self.unit else []), *self.prior_columns]
            )
        )

    @cached_property
    def law_name(self) -> str:
        """The name of the law, with the default resolved."""
        law = self.own_law
        if isinstance(law, Law):
            return law.name
        if isinstance(self.classes, LabelColumns):
            return law_of(self, len(self.classes)).name
        if isinstance(self.classes, Grid):
            return law or law_of_numbers(len(self.classes), prior=bool(self.prior))
        return law or ("auto" if self.histogram else "rr-with-prior" if self.prior else "rr")


def law_of(spec: ReleaseSpec, n_classes: int) -> Law:
    """Return the law of a spec for `n_classes` classes."""
    law = spec.own_law
    if isinstance(law, Law):
        if law.n_classes != n_classes:
            raise InvalidInput(
                f"Expected a law over the {n_classes} classes, got one over {law.n_classes}."
                f" Build it with n_classes={n_classes}."
            )
        return law
    if isinstance(spec.classes, LabelColumns):
        return spec.classes.law(spec.epsilon, law=law)
    return law_named(spec.law_name, n_classes, spec.epsilon)


def declared_or_infer(
    classes: Sequence[object] | None, *, strict: bool = False
) -> Sequence[object]:
    """Check declared classes and return them as plain values, with None if labels may be null;
    "infer" is returned unless `strict`."""
    if classes is None:
        raise undeclared()
    if isinstance(classes, LabelColumns):
        for values in classes.lists:
            declare(values, null=True)
        return classes
    if not infers(classes):
        return declare(classes, null=True)
    if strict:
        raise InvalidInput(
            "Expected declared classes of what is strict, which reads none off private labels. Pass"
            " classes=['no', 'yes'], or leave out strict=True."
        )
    return classes


def _prior(given: Any) -> Sequence[str] | Prior | OwnHistogram | None:
    # `labeldp.learn.HistogramPrior`, which may be changed later
    if getattr(given, "of_all_rows", False):
        return OwnHistogram(given.epsilon)
    if hasattr(given, "plan_groups"):
        raise InvalidInput(
            "Expected columns, a table, a model or a HistogramPrior as the prior of a release, got"
            " one of clusters."
        )
    return given if isinstance(given, Prior) else column_names("prior", given) or None


# Several releases under one charge
# --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ReleasePlan:
    """A plan of several releases of one table under one charge. Each row is drawn in one stage, by
    the stage's law.

    Made by `labeldp.app.stage.plan`. It is public: it can be logged and stored with the released
    tables.

    Attributes
    ----------
    id : str
        128 random bits in hexadecimal, which name the plan's only charge.
    label, id_columns, unit, max_rows_per_unit, dataset, order : as in ReleaseSpec
    classes : tuple
    epsilon : float
        Total for one unit over all stages.
    laws : tuple of str
        The law of each stage, as in ReleaseSpec.
    fractions : tuple of float
        Expected share of the rows in each stage.
    ledger : Ledger
    """

    id: str
    label: str
    classes: tuple[object, ...]
    epsilon: float
    id_columns: tuple[str, ...]
    dataset: str
    laws: tuple[str, ...]
    fractions: tuple[float, ...]
    ledger: Ledger
    unit: str | None = None
    max_rows_per_unit: int = 1
    order: str = "shuffle"

    def __post_init__(self) -> None:
        first = self.spec(1)  # raises if any fact that the stages share is not allowed
        object.__setattr__(self, "classes", first.classes)

    def spec(self, stage: int, prior: Sequence[str] | None = None) -> ReleaseSpec:
        """Return the specification of one stage, for `labeldp.release` and those of Spark and Ray
        Data, with the ledger of the plan.

        Parameters
        ----------
        stage : int
            Number of the stage, from 1.
        prior : as in ReleaseSpec
            Public weights of the classes for all rows, usually the predictions of a model that was
            trained on the stages before.
        """
        made = Stage(
            self.id,
            stage,
            tuple(law_of(self._spec(name), len(self.classes)) for name in self.laws),
            self.fractions,
        )
        return self._spec(made, prior)

    def run(self) -> StagedRun:
        """Return the run of this plan in the ledger, with the state of its stages."""
        return StagedRun(self.ledger, self.dataset, self.label, self.id)

    def to_json(self) -> str:
        """Return the plan as JSON text."""
        facts = {field.name: getattr(self, field.name) for field in fields(self)}
        try:
            return json.dumps(
                {"format": FORMAT}
                | facts
                | class_facts(self.classes)
                | {"ledger": _ledger_facts(self.ledger)},
                indent=2,
                ensure_ascii=False,
            )
        except TypeError:
            raise InvalidInput(
                "Expected classes of text or numbers in a plan, got others. Write them as text."
            ) from None

    @classmethod
    def from_json(cls, text: str, ledger: Ledger, *, draws: bool = True) -> "ReleasePlan":
        """Read a plan that `to_json` wrote, and bind it to the given ledger.

        Parameters
        ----------
        text : str
        ledger : Ledger
        draws : bool, default=True
            False: the plan is only looked at or closed, which needs no budget and no key source.

        Raises
        ------
        InvalidInput
            The text is no plan, or the plan was made for another ledger. Or, if it draws, for
            another budget, or with a key source while the given ledger has none and nothing is
            charged yet.
        """
        # A plan is a public file that others may edit. If it chose the ledger, the budget or the
        # key source, whoever edits it could hide a charge. So these are given by the caller, and
        # only compared with the plan.
        try:
            facts = json.loads(text)
            if facts.pop("format") != FORMAT:
                raise ValueError
            lists = {name: tuple(facts[name]) for name in ("id_columns", "laws", "fractions")} | {
                "classes": classes_of(facts)
            }
            facts.pop("grid", None)
            said = {name: facts["ledger"][name] for name in ("location", "budget", "key")}
            plan = cls(**facts | lists | {"ledger": ledger_of(ledger)})
        except InvalidInput:
            raise  # its message names the fact, such as a law that is not registered
        except (ValueError, KeyError, TypeError, AttributeError):
            raise InvalidInput(
                f"Expected a plan of format {FORMAT}, got something else. Restore it, or make a new"
                " one."
            ) from None
        _check_same_ledger(said, plan, draws)
        return plan

    def _spec(self, law: str | Stage, prior: Sequence[str] | None = None) -> ReleaseSpec:
        return ReleaseSpec(
            self.label,
            self.classes,
            self.epsilon,
            law,
            self.id_columns,
            self.unit,
            self.max_rows_per_unit,
            prior,
            self.dataset,
            self.order,
        )


def make_plan(
    spec: ReleaseSpec, fractions: Sequence[float], first_law: str | None, ledger: Ledger
) -> ReleasePlan:
    """Make a new plan from the spec that all stages share. Stage 1 has `first_law`; by default a
    law that needs no prior."""
    if spec.prior is not None or spec.stage is not None or spec.overlap != "charge":
        raise InvalidInput(
            "Expected a spec without prior, stage and overlap= for a plan, got one. Give the prior"
            " when a stage is released."
        )
    if spec.infers_classes:
        raise InvalidInput(
            "Expected declared classes in a plan, got 'infer': all stages share them. Pass"
            " classes=['no', 'yes']."
        )
    law = spec.own_law or (
        law_of_numbers(len(spec.classes), prior=True) if isinstance(spec.classes, Grid) else "auto"
    )
    if isinstance(law, Law):
        raise InvalidInput(
            f"Expected the name of a law in a plan, which is a file, got {law}. Name your own law"
            " after register_law."
        )
    # The plan stores names of laws, since it is a file; the law is built here to check it.
    drawn = law_named(law, len(spec.classes), spec.epsilon)
    first = without_prior(drawn)
    return ReleasePlan(
        new_run_id(),
        spec.label,
        as_classes(spec.classes),
        spec.epsilon,
        spec.ids,
        spec.dataset or "",
        (first_law or (law if first is drawn else first.name), *[law] * (len(fractions) - 1)),
        tuple(fractions),
        ledger,
        spec.unit,
        spec.max_rows_per_unit,
        spec.order,
    )


def _check_same_ledger(said: Mapping[str, object], plan: ReleasePlan, draws: bool) -> None:
    """Refuse a plan that was made for another ledger than its `ledger`; if it draws, one that lacks
    its budget or key source."""
    given = _ledger_facts(plan.ledger)
    if given["location"] != said["location"]:
        raise InvalidInput(
            f"Expected the ledger that the plan was made for, {said['location']!r}, got"
            f" {given['location']!r}. A plan does not choose the ledger: if it is the right one,"
            " give it yourself (ledger=)."
        )
    if not draws:
        return
    # A source may move, so its text tells nothing. Once the plan is charged, the run's folder names
    # the release secret by its id.
    if said["key"] is not None and given["key"] is None and plan.run().record is None:
        raise InvalidInput(
            f"Expected a key source, since the plan was made with one, {said['key']!r}, got none. A"
            " plan does not choose it: give the place of your release secret yourself"
            " (Ledger(key=), --key, LABELDP_KEY)."
        )
    # A budget that is set in the ledger holds anyway, so the plan's may differ.
    known = said["budget"] is None or given["budget"] == said["budget"]
    if not known and plan.ledger.budget_of(plan.dataset, plan.label) is None:
        raise InvalidInput(
            f"Expected the budget that the plan was made for, {said['budget']!r}, got"
            f" {given['budget']!r}. A plan does not set it: give it yourself (Ledger(budget=)), or"
            f" set it with {plan.ledger.command('set-budget')}."
        )


def _ledger_facts(ledger: Ledger) -> Mapping[str, object]:
    location = ledger.location
    if isinstance(location, LedgerUrl) and str(location) != location.url:
        raise InvalidInput(
            f"Expected a ledger's URL without a password, since a plan is public, got {location}."
            " Keep it in ~/.pgpass or PGPASSWORD."
        )
    return {
        "location": location.url if isinstance(location, LedgerUrl) else str(location),
        "budget": ledger.budget,
        "key": None if ledger.key_source is None else ledger.key_source.text,
    }
