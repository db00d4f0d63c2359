# SPDX-License-Identifier: Apache-2.0
"""What a table release is, as a frozen value that can be logged and put into a manifest."""

from collections.abc import Sequence
from dataclasses import dataclass, fields

from labeldp import _validate
from labeldp.custody._encode import declare, infers, undeclared, unit_of
from labeldp.custody._staged import Stage
from labeldp.custody._stream import RELEASE
from labeldp.errors import InvalidInput
from labeldp.laws import Law, law_named, parse_law
from labeldp.tables._priors import Prior


@dataclass(frozen=True)
class ReleaseSpec:
    """What to release: which column is private, at what cost, by which law.

    Parameters
    ----------
    label : str
        The private column. Every other column is taken to be public.
    classes : sequence of values, or "infer"
        The declared classes, in the order of their codes; None as a member declares that the label may be null. "infer" reads them off the
        private column, which tells everybody which classes occur: it warns, manifest and receipt say so, and floats, or more than sqrt(n)
        different values, are refused.
    epsilon : float
        Total budget of one unit, 0 < epsilon < inf.
    law : str, Law or None
        A law's name, such as "auto", "subset:2" or "rr-top-k:3" (docs/laws.md lists them, and your own join by `register_law`), or a law
        (its epsilon must be `epsilon`).
        None: "rr", or "rr-with-prior" where a prior is given; both release plain labels that any trainer can use.
    id : str, sequence of str, or None
        Columns that name a row, unique and never null. None: the row's position in the file names it.
    unit : str or None
        Column that names the person; None: each row is a unit of its own.
    max_rows_per_unit : int
        Rows of one unit that are released; others are dropped. Each row's law runs at epsilon divided by this, rounded down.
    prior : sequence of str, PriorTable, PriorModel or None
        K numeric columns, in the order of `classes`: public weights of each class, never computed from these labels. Or a public table
        to look them up in (`labeldp.tables._priors.PriorTable`), or a model to ask (`labeldp.app._model.PriorModel`).
    dataset : str or None
        Name in the ledger. None: the file's name without its ending. Rows released before under another name must be released
        under that name again, or their spend is not seen.
    order : {"shuffle", "keep"}
        "keep" is the user's statement that the order of the rows, and where the file lies, say nothing about the labels.
    overlap : {"charge", "refuse"}
        Whether rows that an earlier release of this column has may be charged again.
    strict : bool
        Refuse whatever would only be warned about (inferred classes).
    stage : Stage or None
        One stage of a planned release (`labeldp.app.stage`), whose law `law` is: only the rows of its part are released.

    Guarantee
    ---------
    The released file is epsilon-label-DP with respect to the label of one row, or all labels of one unit.
    """

    label: str
    classes: Sequence[object]
    epsilon: float
    law: str | Law | None = None
    id: str | Sequence[str] | None = None
    unit: str | None = None
    max_rows_per_unit: int = 1
    prior: Sequence[str] | Prior | None = None
    dataset: str | None = None
    order: str = "shuffle"
    strict: bool = False
    stage: Stage | None = None
    overlap: str = "charge"

    def __post_init__(self) -> None:
        put = object.__setattr__
        _named(label=self.label)
        put(self, "epsilon", _validate.epsilon(self.epsilon))
        put(self, "max_rows_per_unit", _validate.integer(max_rows_per_unit=self.max_rows_per_unit, low=1))
        put(self, "classes", declared_or_infer(self.classes, strict=self.strict))
        put(self, "id", _columns("id", self.id))
        put(self, "prior", self.prior if isinstance(self.prior, Prior) else _columns("prior", self.prior) or None)
        _validate.one_of(("shuffle", "keep"), order=self.order)
        _validate.one_of(("charge", "refuse"), overlap=self.overlap)
        if self.unit is not None:
            _named(unit=self.unit)
            unit_of(self.unit)
        if self.max_rows_per_unit > 1 and self.unit is None:
            raise InvalidInput("Expected unit= with max_rows_per_unit > 1, got none. Name the column that says whose row it is.")
        self._check_roles()
        self._check_law()
        self._check_stage()

    def _check_roles(self) -> None:
        for role, names in {"id": self.ids, "unit": (self.unit,), "prior": self._prior_reads}.items():
            if self.label in names:
                raise InvalidInput(f"Expected {role} to name public columns, got the label column {self.label!r}. Leave it out.")
        listed = self.prior_columns
        if listed and not self.infers_classes and len(listed) != len(self.classes):
            raise InvalidInput(
                f"Expected one prior column a class ({len(self.classes)}), got {len(listed)}. List them in the order of the classes."
            )

    def _check_law(self) -> None:
        if isinstance(self.law, Law):
            if self.law.epsilon != self.epsilon:
                raise InvalidInput(f"Expected the law's epsilon to be {self.epsilon!r}, got {self.law.epsilon!r}. Give both the same.")
        elif self.infers_classes:
            parse_law(self.law_name)
        else:
            law_of(self, len(self.classes))
        if self.prior and not self._takes_prior():
            raise InvalidInput(f"Expected a law that uses the prior, got {self.law_name!r}. Take rr-with-prior, or leave the prior out.")

    def _check_stage(self) -> None:
        stage = self.stage
        if stage is None:
            return
        if not (self.ids and not self.infers_classes and self.dataset):
            raise InvalidInput("Expected id, declared classes and dataset with a stage, got one without. Name them: all stages share them.")
        if self.law != stage.law:
            raise InvalidInput(f"Expected the law of stage {stage.number}, {stage.law}, got {self.law!r}. Pass law=stage.law.")
        if stage.number > 1 and stage.law.uses_prior and not self.prior:
            raise InvalidInput(
                f"Expected a prior for stage {stage.number}, whose law {stage.law.name!r} is made for one, got none. Pass what the model "
                "of the stages before predicts."
            )

    @property
    def infers_classes(self) -> bool:
        """Whether the classes are read off the private column."""
        return infers(self.classes)

    @property
    def stage_name(self) -> str:
        """Name of the draw."""
        return RELEASE if self.stage is None else self.stage.name

    def _takes_prior(self) -> bool:
        # A set-valued law releases its heaviest member as the label, so a prior serves it too.
        law = self.law if isinstance(self.law, Law) else parse_law(self.law_name)[0]
        return law.uses_prior or law.kind != "label"

    @property
    def prior_columns(self) -> tuple[str, ...]:
        """The columns that are the prior; empty where it is none or something else."""
        return () if self.prior is None or isinstance(self.prior, Prior) else tuple(self.prior)

    @property
    def _prior_reads(self) -> tuple[str, ...]:
        return self.prior.reads if isinstance(self.prior, Prior) else self.prior_columns

    @property
    def ids(self) -> tuple[str, ...]:
        """The id columns; empty where rows are named by position."""
        return tuple(self.id or ())

    @property
    def columns(self) -> tuple[str, ...]:
        """All columns that a release reads by name: label, ids, unit and prior."""
        return tuple(dict.fromkeys([self.label, *self.ids, *([self.unit] if self.unit else []), *self.prior_columns]))

    @property
    def law_name(self) -> str:
        """The law as text, defaults resolved."""
        if isinstance(self.law, Law):
            return self.law.name
        return self.law or ("rr-with-prior" if self.prior else "rr")

    @property
    def unit_name(self) -> str:
        """What is protected: "row", or the unit's column."""
        return self.unit or "row"

    def to_dict(self) -> dict[str, object]:
        """The spec as JSON-ready data."""
        data = {f.name: getattr(self, f.name) for f in fields(self)}
        resolved = {
            "law": self.law.to_dict() if isinstance(self.law, Law) else self.law_name,
            "id": list(self.ids) or None,
            "prior": self.prior.to_dict() if isinstance(self.prior, Prior) else self.prior,
            "stage": None if self.stage is None else {"number": self.stage.number} | self.stage.facts(),
        }
        return data | resolved


def law_of(spec: ReleaseSpec, n_classes: int) -> Law:
    """The law that the spec names, over this many classes."""
    if isinstance(spec.law, Law):
        if spec.law.n_classes != n_classes:
            raise InvalidInput(
                f"Expected a law over the {n_classes} classes, got one over {spec.law.n_classes}. Build it with n_classes={n_classes}."
            )
        return spec.law
    return law_named(spec.law_name, n_classes, spec.epsilon)


def _named(**named: object) -> None:
    ((role, value),) = named.items()
    if not isinstance(value, str) or not value:
        raise InvalidInput(f"Expected {role} to be a column's name, got {value!r}. Pass a string.")


def declared_or_infer(classes: Sequence[object] | None, *, strict: bool = False) -> Sequence[object]:
    """Declared classes as a tuple of plain values, None among them where labels may be null; or "infer", unless `strict`."""
    if classes is None:
        raise undeclared()
    if not infers(classes):
        return declare(classes, null=True)
    if strict:
        text = "Expected declared classes of what is strict, which reads none off private labels. {}"
        raise InvalidInput(text.format("Pass classes=['no', 'yes']."), cli=text.format("Add --classes A,B, or leave out --strict."))
    return classes


def _columns(role: str, names: str | Sequence[str] | None) -> tuple[str, ...] | None:
    if names is None:
        return None
    listed = (names,) if isinstance(names, str) else tuple(names)
    for name in listed:
        _named(**{role: name})
    if len(set(listed)) < len(listed):
        raise InvalidInput(f"Expected distinct columns for {role}, got one twice in {list(listed)}. List each one once.")
    return listed
