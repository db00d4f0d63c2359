# SPDX-License-Identifier: Apache-2.0
"""A release in several stages as a frozen value: what is public about it before anything is read, and the spec of each stage."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

from labeldp.custody._staged import Stage, StagedRun
from labeldp.errors import InvalidInput
from labeldp.laws import Law, parse_law
from labeldp.ledger._ledger import Ledger, LedgerUrl, ledger_of
from labeldp.noise._words import new_run_id
from labeldp.tables._spec import ReleaseSpec, law_of

FORMAT = "labeldp-stages/1"
FIRST = {"split": "subset", "rr-top-k": "rr"}
"""Laws that would cut the classes by their index where there is no prior yet, and what takes their place in the first stage."""


@dataclass(frozen=True)
class ReleasePlan:
    """Several releases of one table under one charge: each row is drawn in one stage, by the law of that stage.

    Made by `labeldp.app.stage.plan`. Public: it can be logged and kept with the released tables.

    Attributes
    ----------
    id : str
        128 random bits in hexadecimal: one plan is one charge.
    label, id_columns, unit, max_rows_per_unit, dataset, order : as in ReleaseSpec
    classes : tuple
    epsilon : float
        Total of one unit over all stages.
    laws : tuple of str
        Of each stage, as in ReleaseSpec.
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
        first = self.spec(1)  # checks the facts that all stages share
        object.__setattr__(self, "classes", first.classes)

    @property
    def n_stages(self) -> int:
        """How many."""
        return len(self.fractions)

    def spec(self, stage: int, prior: Sequence[str] | None = None) -> ReleaseSpec:
        """What one stage releases, for `labeldp.release` and those of Spark and Ray Data, with the ledger of the plan.

        Parameters
        ----------
        stage : int
            From 1.
        prior : as in ReleaseSpec
            Public weights of the classes for all rows, usually what a model of the stages before predicts.
        """
        made = Stage(self.id, stage, tuple(self._law(name) for name in self.laws), self.fractions)
        return self._spec(made.law, prior, made)

    def run(self) -> StagedRun:
        """Where the plan stands."""
        return StagedRun(self.ledger, self.dataset, self.label, self.id)

    def to_json(self) -> str:
        """The plan as JSON text."""
        facts = {field.name: getattr(self, field.name) for field in fields(self)}
        try:
            return json.dumps({"format": FORMAT} | facts | {"ledger": _ledger_facts(self.ledger)}, indent=2, ensure_ascii=False)
        except TypeError:
            raise InvalidInput("Expected classes of text or numbers in a plan, got others. Write them as text.") from None

    @classmethod
    def from_json(cls, text: str, ledger: Ledger) -> "ReleasePlan":
        """The plan that `to_json` wrote, with the ledger that the curator gives.

        A plan is public and can be edited: it never decides where a spend is written down, what the budget is, or where a release secret
        is (which may be code). It is compared with what is given.

        Raises
        ------
        InvalidInput
            It is no plan, or it was made for another ledger, budget or release secret than is given.
        """
        try:
            facts = json.loads(text)
            if facts.pop("format") != FORMAT:
                raise ValueError
            lists = {name: tuple(facts[name]) for name in ("classes", "id_columns", "laws", "fractions")}
            said = {name: facts["ledger"][name] for name in ("location", "budget", "key")}
            plan = cls(**facts | lists | {"ledger": ledger_of(ledger)})
        except InvalidInput:
            raise  # says what is wrong in it, such as a law that is not registered
        except (ValueError, KeyError, TypeError, AttributeError):
            raise InvalidInput(f"Expected a plan of format {FORMAT}, got something else. Restore it, or make a new one.") from None
        _check_same_ledger(said, plan)
        return plan

    def _law(self, name: str) -> Law:
        return law_of(self._spec(name), len(self.classes))

    def _spec(self, law: Law | str, prior: Sequence[str] | None = None, stage: Stage | None = None) -> ReleaseSpec:
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
            stage=stage,
        )


def make_plan(spec: ReleaseSpec, fractions: Sequence[float], first_law: str | None, ledger: Ledger) -> ReleasePlan:
    """Make a new plan from what all stages share. The first stage has `first_law`, or a law that serves without a prior."""
    if spec.prior is not None or spec.stage is not None or spec.overlap != "charge":
        raise InvalidInput(
            "Expected a spec without prior, stage and overlap= for a plan, got one. Give the prior when a stage is released."
        )
    if spec.infers_classes:
        raise InvalidInput("Expected declared classes in a plan, got 'infer': all stages share them. Pass classes=['no', 'yes'].")
    law = spec.law or "auto"
    if isinstance(law, Law):
        raise InvalidInput(f"Expected the name of a law in a plan, which is a file, got {law}. Name your own law after register_law.")
    first = first_law or FIRST.get(parse_law(law)[0].name, law)
    return ReleasePlan(
        new_run_id(),
        spec.label,
        tuple(spec.classes),
        spec.epsilon,
        spec.ids,
        spec.dataset or "",
        (first, *[law] * (len(fractions) - 1)),
        tuple(fractions),
        ledger,
        spec.unit,
        spec.max_rows_per_unit,
        spec.order,
    )


def _check_same_ledger(said: Mapping[str, object], plan: ReleasePlan) -> None:
    """The plan was made for the ledger, budget and key source that the curator gives; what it says is shown, and never used."""
    given = _ledger_facts(plan.ledger)
    if given["location"] != said["location"]:
        raise InvalidInput(
            f"Expected the ledger that the plan was made for, {said['location']!r}, got {given['location']!r}. A plan does not choose the "
            "ledger: if it is the right one, give it yourself (ledger=, --ledger)."
        )
    if said["key"] is not None and given["key"] != said["key"]:
        raise InvalidInput(
            f"Expected the key source that the plan was made for, {said['key']!r}, got {given['key']!r}. A plan does not choose it: if it "
            "is the right one, give it yourself (Ledger(key=), --key, LABELDP_KEY)."
        )
    known = said["budget"] is None or given["budget"] == said["budget"]
    if not known and plan.ledger.budget_of(plan.dataset, plan.label) is None:
        raise InvalidInput(
            f"Expected the budget that the plan was made for, {said['budget']!r}, got {given['budget']!r}. A plan does not set it: give it "
            "yourself (Ledger(budget=), --budget), or set it with labeldp ledger set-budget."
        )


def _ledger_facts(ledger: Ledger) -> Mapping[str, object]:
    location = ledger.location
    if isinstance(location, LedgerUrl) and str(location) != location.url:
        raise InvalidInput(
            f"Expected a ledger's URL without a password, since a plan is public, got {location}. Keep it in ~/.pgpass or PGPASSWORD."
        )
    text = location.url if isinstance(location, LedgerUrl) else str(location)
    return {"location": text, "budget": ledger.budget, "key": None if ledger.key_source is None else ledger.key_source.text}
