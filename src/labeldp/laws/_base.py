# SPDX-License-Identifier: Apache-2.0
"""The base class of laws, and the registry of their names.

A law is a frozen value: the number of classes, epsilon, and the rule P[output | label, side]. It
does no input or output and has no randomness of its own: its caller passes uniform 64-bit words.
Outputs and side are plain arrays with one entry a row:

* label-valued laws release `outputs` of shape (n,), int32 class codes;
* set-valued laws release `outputs` of shape (n, ceil(K/8)), uint8: the set as packed bits, class c
  in bit c % 8 of byte c // 8;
* number-valued laws release `outputs` of shape (n,), int32: j stands for number j of
  `Law.released`, which may be no class;
* score-valued laws release `outputs` of shape (n, K), uint8: one level a class, higher where the
  class is likelier;
* laws on several columns release `outputs` of a layout of their own (`labeldp.laws._columns`);
* `side` is a dict of arrays, first axis n: what the law has derived from each row's public prior,
  which is needed to read its output.
"""

from __future__ import annotations

import inspect
import math
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, replace
from fractions import Fraction
from typing import Any, ClassVar, Literal, Self, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from labeldp import _validate
from labeldp._registry import Registry
from labeldp.errors import InvalidInput, MergedClassesWarning, warn
from labeldp.laws._exact import (
    Array,
    Bits,
    Floats,
    Words,
    exp_floor,
    full_set,
    log_ceil,
    pack_sets,
    set_sizes,
    unpack_sets,
)

Side = Mapping[str, Array]

MAX_CELLS = 10**6  # of a matrix that is built as a whole: 8 MB


@dataclass(frozen=True)
class Cell:
    """A set of outputs that share one probability, seen from one kind of label.

    Attributes
    ----------
    label : str
        The kind of label, for example "candidate" or "outside".
    output : str
        The kind of output. Two labels can have the same output in cells of equal `output`, so the
        ratio of these cells bounds epsilon.
    relation : str
        The relation of output and label, for example "kept", "other", "contains", "lacks".
    probability : Fraction
        Probability of each single output of this cell, given such a label. Over one kind of label,
        probability x outputs sums to 1.
    outputs : int
        Number of outputs in the cell.
    """

    label: str
    output: str
    relation: str
    probability: Fraction
    outputs: int


@dataclass(frozen=True)
class Table:
    """All outputs of a law and their exact probabilities, for one row's side.

    Attributes
    ----------
    outputs : (n_outputs,) int32 labels, (n_outputs, K) bool sets, or (n_outputs, K) uint8 levels
        The possible outputs, in the order of the matrix's columns.
    values : tuple of Fraction
        The distinct probabilities.
    index : (K, n_outputs) uint8, or a wider type
        P[outputs[j] | y] is values[index[y, j]].
    """

    outputs: Array
    values: tuple[Fraction, ...]
    index: NDArray[np.unsignedinteger[Any]]


def no_inclusion(outputs: Array) -> tuple[Floats, Floats]:
    """Return what `Law.inclusion` says of rows without such probabilities: NaN."""
    return np.full(len(outputs), np.nan), np.full(len(outputs), np.nan)


def range_over(weights: Floats, losses: Floats) -> Floats:
    """Compute the range of each row's debiased loss, (n,), over m outputs with these weights, (m,
    K)."""
    high, low = np.full(len(losses), -np.inf), np.full(len(losses), np.inf)
    for each in weights:  # one output at a time: no (n, m) table
        found = losses @ each
        high, low = np.maximum(high, found), np.minimum(low, found)
    return np.asarray(high - low)


@dataclass(frozen=True)
class Law(ABC):
    """A label-DP mechanism as a value.

    Parameters
    ----------
    n_classes : int
        K, at least 2.
    epsilon : float
        The claimed pure, local epsilon of one draw; finite and above 0. The running sampler never
        exceeds it, in exact arithmetic.

    Notes
    -----
    A subclass sets `name`, by which it is registered and stored; `kind` of its outputs;
    `uses_prior`, if it reads a prior; `draws_side`, if it draws each row's question from public
    words; `declared_only`, if it says how others have drawn and has no sampler; and `parameter`,
    the field that a number after the name sets, as in "rr-top-k:3", or "".
    """

    name: ClassVar[str]
    kind: ClassVar[Literal["label", "number", "set", "scores", "columns"]]
    uses_prior: ClassVar[bool]
    draws_side: ClassVar[bool] = False
    declared_only: ClassVar[bool] = False
    parameter: ClassVar[str] = ""

    n_classes: int
    epsilon: float

    def __post_init__(self) -> None:
        object.__setattr__(
            self,
            "n_classes",
            _validate.integer(n_classes=self.n_classes, low=2, fix="One class needs no privacy."),
        )
        object.__setattr__(self, "epsilon", _validate.epsilon(self.epsilon))

    # What every law implements
    # ----------------------------------------------------------------------------------------------

    @abstractmethod
    def prepare(self, prior: Array, words: Words | None = None) -> dict[str, Array]:
        """Compute each row's side from its public prior.

        Parameters
        ----------
        prior : (n, K) float
            Weights >= 0 of any scale; a zero-stride view is accepted. It must depend on public
            facts only, never on these raw labels.
        words : Words of n rows, optional
            Public words, from which a law with `draws_side` draws each row's question; other laws
            ignore them. None: words of the row numbers 0 .. n-1, for studying a law without a run.

        Returns
        -------
        dict of str to array
            Arrays of n rows; empty for laws that use no prior. The result must be the same on every
            machine.
        """

    @abstractmethod
    def sample(self, labels: NDArray[np.integer], words: Words, side: Side) -> Array:
        """Draw one output for each of n rows, from (n,) codes in [0, K), which were checked, and
        the rows' words and side."""

    @abstractmethod
    def log_likelihood(self, outputs: Array, side: Side) -> NDArray[np.float64]:
        """Compute ln P[output | y], up to a constant of each row: (n, K), with maximum 0 in each
        row, from the sampler's integers."""

    @abstractmethod
    def inclusion(
        self, outputs: Array, side: Side
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Compute the probabilities that a class is in the output: (own, other), each (n,) float64.

        own[i] = P[y in output | label y] and other[i] = P[y in output | label y'] for y' != y. Both
        are NaN if they depend on y or y': then the row has no unbiased weights of this form.
        """

    @abstractmethod
    def profile(self, side_row: Side) -> tuple[Cell, ...]:
        """List the exact distinct probabilities of the sampler, for one row's side (arrays without
        the first axis)."""

    @abstractmethod
    def layout(self) -> dict[str, tuple[np.dtype, tuple[int, ...]]]:
        """Return the dtype and shape of one row's output (key "output") and of each side array, by
        which files store them."""

    @abstractmethod
    def table(self, side_row: Side) -> Table:
        """List all outputs and their exact probabilities for one row's side; InvalidInput above
        10^6 cells."""

    # What follows from these
    # ----------------------------------------------------------------------------------------------

    def members(self, outputs: Array, side: Side) -> NDArray[np.bool_]:
        """Read outputs as sets of classes: (n, K) bool, one-hot for label-valued laws, the
        likeliest of scores, numbers and columns."""
        if self.kind == "set":
            return unpack_sets(outputs, self.n_classes)
        if self.kind != "label":
            return unpack_sets(self.likeliest(outputs, side), self.n_classes)
        return np.asarray(np.asarray(outputs)[:, None] == np.arange(self.n_classes, dtype=np.int32))

    def likeliest(self, outputs: Array, side: Side) -> Bits:
        """Find the classes with the largest likelihood: packed sets, (n, ceil(K/8)) uint8."""
        score = self.log_likelihood(outputs, side)
        return pack_sets(score == score.max(axis=1, keepdims=True))

    def weights(self, outputs: Array, side: Side) -> Floats:
        """Compute weights that make the weighted sum of class losses an unbiased estimate of the
        loss of the label.

        Returns
        -------
        (n, K) float64
            (1{c in output} - other) / (own - other), with own and other from `inclusion`. Rows sum
            to 1, or are NaN if the law has no such weights. Laws that are invertible in another way
            override this.

        References
        ----------
        Ghazi et al. 2021, "Deep learning with label differential privacy", equation 7, here also
        for sets; Natarajan et al. 2013, "Learning with noisy labels".
        """
        own, other = (part[:, None] for part in self.inclusion(outputs, side))
        gap = np.where(own == other, np.nan, own - other)
        return np.asarray((self.members(outputs, side) - other) / gap)

    def possible(self, outputs: Array, side: Side) -> NDArray[np.bool_]:
        """Mark the rows whose output and side the law can have drawn, as far as it checks them:
        (n,) bool.

        By default, where outputs are classes or sets of them, these must be among the K classes,
        and sets not empty; laws on several columns ask those of the columns. Readers of files
        refuse other rows, whose likelihood would mean nothing.
        """
        drawn = np.asarray(outputs)
        if self.kind == "label":
            return np.asarray((drawn >= 0) & (drawn < self.n_classes))
        if self.kind == "set":
            return np.asarray(
                (set_sizes(drawn) > 0) & (drawn & ~full_set(self.n_classes) == 0).all(axis=1)
            )
        return np.ones(len(drawn), np.bool_)

    @property
    def releases_codes(self) -> bool:
        """Whether outputs are (n,) codes, each of which stands for one value of `released`."""
        return self.kind in ("label", "number")

    def released(self, classes: Sequence[object]) -> tuple[object, ...]:
        """List the values that the codes of a label-valued or number-valued law stand for: the
        classes, or numbers in their unit.

        InvalidInput if a law releases numbers, and the classes are no evenly spaced ones.
        """
        return tuple(classes)

    def at(self, epsilon: float) -> Self:
        """Return the law at another epsilon, or at the next smaller one that it can have. A law
        that was made best for its epsilon is made again.
        """
        return replace(self, epsilon=epsilon)

    def questions(self, prior: ArrayLike) -> tuple[tuple[float, dict[str, Array]], ...] | None:
        """List the sides that the public words can draw under one prior (K,), each with its
        probability, if `weights` need them.

        Returns
        -------
        tuple of (float, dict of str to array), or None
            None (default) if the weights are unbiased for each side; else they are so over output
            and side together.
        """
        return None

    def made_for(self, prior: Sequence[float]) -> Self:
        """Return the law that is best for one prior (K,) of all rows, if the law is made for a
        prior; InvalidInput for others."""
        raise InvalidInput(
            "Expected a law that is made for one prior of all rows, such as 'rr-on-bins', got"
            f" {self}."
        )

    def told_apart(self, side: Side) -> Bits | None:
        """Find the classes that at least one row distinguishes from all others: a packed set,
        (ceil(K/8),); None if every row distinguishes all classes.

        Two classes that are not in the set have equally likely outputs in every row, so nothing can
        be learned that separates them.
        """
        return None

    def loss_range(self, losses: Floats, outputs: Array, side: Side) -> Floats:
        """Compute the range of a row's debiased loss, sum_c weights[i, c] losses[i, c], over all
        outputs: (n,), NaN without weights.

        Parameters
        ----------
        losses : (n, K) float64
        outputs, side : of n rows
            Of the outputs only the sizes of sets are used, except for laws that override `weights`
            but not this method.
        """
        # The weights of such a law are known at the released output only: (largest - least loss) x
        # sum of |weight|.
        if type(self).weights is not Law.weights:
            return np.asarray(
                np.ptp(losses, axis=1) * np.abs(self.weights(outputs, side)).sum(axis=1)
            )
        own, other = self.inclusion(outputs, side)
        spread = np.ptp(losses, axis=1)
        if self.kind == "set":
            # Over sets of the released size, the sum of losses lies between that of the smallest
            # losses and that of the largest.
            ordered = np.sort(losses, axis=1)
            below = np.cumsum(ordered, axis=1)
            size = set_sizes(outputs).astype(np.int64)[:, None]
            least = np.take_along_axis(below, np.maximum(size - 1, 0), axis=1)[:, 0]
            rest = np.take_along_axis(below, np.maximum(self.n_classes - size - 1, 0), axis=1)[:, 0]
            spread = below[:, -1] - np.where(size[:, 0] < self.n_classes, rest, 0.0) - least
        return np.asarray(spread / np.where(own == other, np.nan, own - other))

    def matrix(self, prior: ArrayLike | None = None, exact: bool = False) -> Array:
        """Compute the matrix for one row's prior: row y holds P[output | label y].

        Parameters
        ----------
        prior : (K,) weights, optional
            Uniform if None (default). Laws that use no prior ignore it.
        exact : bool
            Return Fractions (an object array) instead of float64. False by default.

        Returns
        -------
        (K, n_outputs) array
            Columns are in the order of `outputs(prior)`. InvalidInput above 10^6 cells.
        """
        table = self.table(self.side_row(prior))
        values = np.empty(len(table.values), dtype=object)
        values[:] = table.values
        return np.asarray((values if exact else values.astype(np.float64))[table.index])

    def outputs(self, prior: ArrayLike | None = None) -> Array:
        """List the possible outputs: (n_outputs,) int32 labels, or (n_outputs, K) bool sets."""
        return self.table(self.side_row(prior)).outputs

    def side_row(self, prior: ArrayLike | None = None) -> dict[str, Array]:
        """Compute the side of one row with this prior (K,), uniform if None: arrays without the
        first axis."""
        row = np.ones(self.n_classes) if prior is None else np.asarray(prior)
        if row.ndim != 1:
            raise InvalidInput(
                f"Expected one prior row of shape ({self.n_classes},), got shape {row.shape}. Pass"
                " prior[i]."
            )
        return {name: value[0] for name, value in self.prepare(row[None]).items()}

    def information(self, prior: ArrayLike | None = None) -> float | Floats:
        """Compute the mutual information of label and output in nats, for a label that follows the
        prior.

        Parameters
        ----------
        prior : (K,) or (n, K) weights, optional
            Uniform if None (default).

        Returns
        -------
        float or (n,) float64
            A float for one prior. Laws without a closed form compute it from the matrix, of at most
            10^6 cells.
        """
        rows = np.ones((1, self.n_classes)) if prior is None else np.atleast_2d(np.asarray(prior))
        side = self.prepare(rows)
        result = np.empty(len(rows))
        step = max(1, MAX_CELLS // self.n_classes)
        for start in range(0, len(rows), step):
            part = slice(start, start + step)
            weights = rows[part].astype(np.float64)
            total = weights.sum(axis=1, keepdims=True)
            # A row of zeros counts as uniform, as `prepare` takes it.
            weights = np.where(total > 0, weights, 1.0)
            weights /= weights.sum(axis=1, keepdims=True)
            result[part] = self._information(
                weights, {name: value[part] for name, value in side.items()}
            )
        return result if prior is not None and np.ndim(prior) == 2 else float(result[0])

    def _information(self, prior: Floats, side: Side) -> Floats:
        """Compute the information of each row, whose prior (n, K) sums to 1, from the matrix. Laws
        with a closed form override this."""
        result = np.empty(len(prior))
        for i, row in enumerate(prior):
            table = self.table({name: value[i] for name, value in side.items()})
            values = np.array([float(v) for v in table.values])
            channel = values[table.index]
            out = row @ channel
            terms = np.log(channel, out=np.zeros_like(channel), where=channel > 0) - np.log(
                out, out=np.zeros_like(out), where=out > 0
            )
            result[i] = max(0.0, float(row @ (channel * terms).sum(axis=1)))
        return result

    def exact_epsilon(self, side_row: Side | None = None) -> float:
        """Compute the epsilon of the sampler itself, from its integers, rounded up to the next
        double. It is never above the claim.

        Parameters
        ----------
        side_row : mapping of arrays, optional
            One row's side. None (default): the epsilon of any row if the law uses no prior, else
            the claim.
        """
        if side_row is None:
            if self.uses_prior:
                return self.epsilon
            side_row = self.side_row()
        ratio = worst_ratio(self.profile(side_row))
        return math.inf if ratio is None else self._certified(ratio)

    def _certified(self, ratio: Fraction) -> float:
        """Round up the ln of the sampler's largest ratio, but to no more than the claim if the
        ratio is proven to be within it."""
        bound = log_ceil(ratio)
        return min(bound, self.epsilon) if ratio <= exp_floor(self.epsilon) else bound

    def event(self) -> dict[str, object]:
        """Return JSON-ready data for an event: the law's fields, and the exact epsilon of one
        draw."""
        return self.to_dict() | {"epsilon_exact": self.exact_epsilon()}

    def to_dict(self) -> dict[str, object]:
        """Return the law as JSON-ready data, which `law_from_dict` reads."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        return {"law": self.name} | {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in values.items()
        }

    @classmethod
    def from_fields(cls, data: Mapping[str, object]) -> Self:
        """Make the law with these fields, in which JSON's lists become tuples."""
        made = {k: tuple(v) if isinstance(v, list) else v for k, v in data.items()}
        return cls(**made)  # type: ignore[arg-type]


def proper_size(size: object, n_classes: int, what: str) -> int | None:
    """Check the size of a law's sets, 1 to K - 1; None stays None, the default."""
    if size is None:
        return None
    return _validate.integer(
        size=size,
        low=1,
        high=n_classes - 1,
        fix=f"{what} of all classes says nothing; pass None for the default.",
    )


def check_told_apart(law: Law, told: Bits | None, classes: Sequence[object], n_rows: int) -> None:
    """Refuse, before the charge, a draw whose outputs distinguish no classes; warn if some pair of
    classes is distinguished in no row.

    Parameters
    ----------
    law : Law
    told : (ceil(K/8),) uint8, or None
        The result of `Law.told_apart` for the n rows.
    classes : sequence of K values
        Their names, for the message.
    n_rows : int

    Notes
    -----
    It is not called for later stages, whose rows are used together with those of earlier stages,
    which may distinguish more.
    """
    if told is None or not n_rows:
        return
    left = [
        value
        for value, known in zip(classes, unpack_sets(told[None], len(classes))[0], strict=True)
        if not known
    ]
    fix = "Use the law 'auto', 'subset' or 'rr', drop the prior, or draw a first stage without it."
    if len(left) == len(classes):
        raise InvalidInput(
            f"Expected a law whose outputs depend on the labels, got {law.name}, which has one"
            f" candidate in each of {n_rows} rows under this prior, so that every label gives the"
            f" same outputs. Nothing was charged. {fix}"
        )
    if len(left) > 1:
        named = ", ".join(map(repr, left[:5])) + (
            f" and {len(left) - 5} more" if len(left) > 5 else ""
        )
        warn(
            MergedClassesWarning(
                f"The classes {named} are told apart by none of {n_rows} rows: {law.name} has other"
                " candidates in each of them under this prior, and nothing that is learned can"
                f" tell these classes apart. {fix}"
            )
        )


def within(law: Law, epsilon: float) -> Law:
    """Return a law that was made for this epsilon; refuse one that claims more of it, as a law that
    rounds epsilon up does.

    Whoever makes a law at a part of an epsilon, by its name or by `Law.at`, passes it through here:
    charges and guarantees count on the epsilon that was asked for.

    Parameters
    ----------
    law : Law
        As it was made.
    epsilon : float
        What was asked for.
    """
    if not law.epsilon <= epsilon:  # False for NaN
        raise InvalidInput(
            f"Expected a law {law.name!r} within the epsilon that it was made for, {epsilon!r}, got"
            f" {law.epsilon!r}. Nothing was drawn. Let it keep epsilon, or round it down."
        )
    return law


def made_for_shares(law: Law, shares: Floats) -> Law:
    """Return a law of numbers made for the estimated shares (K,) of its points.

    Where the shares know the label so well that a constant is the best number at this epsilon, the
    law stays as it is: its epsilon is paid by then, so an answer must follow.
    """
    if np.count_nonzero(shares > 0) < 2:
        shares = 0.99 * shares + 0.01 / len(shares)
    try:
        return within(law.made_for(shares.tolist()), law.epsilon)
    except InvalidInput:
        return law


def require_sampler(law: Law | type[Law]) -> None:
    """Refuse a law that only declares how others have drawn."""
    if law.declared_only:
        raise InvalidInput(
            f"Expected a law that draws, got {law.name!r}, which only declares how others have"
            " randomised their labels. Nothing was drawn. Draw by 'rr', 'subset' or 'auto', or"
            " declare labels: NoisyLabels.from_labels(labels, law)."
        )


def worst_ratio(cells: Iterable[Cell]) -> Fraction | None:
    """Find the largest ratio of two probabilities of one output; None if it is unbounded, because
    one of the two is 0."""
    # Cells of one kind of output can occur at the same output for two labels, so the extremes of
    # each kind suffice, at any K.
    extremes: dict[str, tuple[Fraction, Fraction]] = {}
    for cell in cells:
        low, high = extremes.get(cell.output, (cell.probability, cell.probability))
        extremes[cell.output] = (min(low, cell.probability), max(high, cell.probability))
    if any(low == 0 < high for low, high in extremes.values()):
        return None
    return max((high / low for low, high in extremes.values() if high), default=Fraction(1))


def exact_epsilon(matrix: ArrayLike) -> float:
    """Compute the epsilon of a mechanism from its matrix: the largest log-ratio over outputs and
    pairs of labels, rounded up.

    Parameters
    ----------
    matrix : (K, n_outputs) float or Fraction
        Row y holds P[. | y] >= 0. Floats count as their exact binary value.

    Returns
    -------
    float
        Infinite if an output is possible for one label and not for another.

    Examples
    --------
    >>> exact_epsilon([[0.75, 0.25], [0.25, 0.75]])
    1.0986122886681098
    """
    values = np.asarray(matrix, dtype=object)
    if not any(isinstance(v, Fraction) for v in values.flat):
        values = values.astype(np.float64)
    if values.ndim != 2 or not values.size or not all(0 <= v < math.inf for v in values.flat):
        raise InvalidInput(
            "Expected a matrix (K, n_outputs) of finite probabilities >= 0, got shape"
            f" {values.shape}."
        )
    low, high = values.min(axis=0), values.max(axis=0)
    used = high > 0
    if (low[used] == 0).any():
        return math.inf
    ratios = (Fraction(h) / Fraction(v) for h, v in zip(high[used], low[used], strict=True))
    return log_ceil(max(ratios, default=Fraction(1)))


# The registry of laws, and the only place that parses names such as "rr-top-k:3"
# ----------------------------------------------------------


LAWS: Registry[Law] = Registry()
"""All registered laws by name; those of papers by their place, imported at first use."""

AnyLaw = TypeVar("AnyLaw", bound=Law)
Number = int | float

_OWN = (
    "A law of your own is registered first: labeldp.register_law(cls), or --law"
    " package.module:Class."
)


def register_law(cls: type[AnyLaw]) -> type[AnyLaw]:
    """Register a law under its name for estimators, specs, files and the command line; usable as a
    decorator.

    Parameters
    ----------
    cls : subclass of Law, a frozen dataclass
        Its `name` must not be taken, except by an earlier definition of the same class, as in a
        notebook.

    Returns
    -------
    cls

    Raises
    ------
    InvalidInput
        The class is no law or lacks a method, or its name is missing or taken.

    See Also
    --------
    labeldp.testing.check_law : Proves the epsilon of a law. A law of your own must pass it before
    it is charged for (docs/concepts/laws.md).
    """
    if not (isinstance(cls, type) and issubclass(cls, Law)):
        raise InvalidInput(f"Expected a subclass of labeldp.Law, got {_validate.shown(cls)}.")
    if inspect.isabstract(cls):
        missing = ", ".join(sorted(cls.__abstractmethods__))
        raise InvalidInput(
            f"Expected a law with all methods of labeldp.Law, got {cls.__name__} without {missing}."
            " Write them."
        )
    name = getattr(cls, "name", None)
    if not (isinstance(name, str) and re.fullmatch(r"[\w.-]+", name)):
        raise InvalidInput(
            f"Expected a law with a name of letters, digits and dashes, got {_validate.shown(name)}"
            f" in {cls.__name__}."
        )
    # A class of the same module and name is a new definition of the same law, as when a cell of a
    # notebook runs again.
    known = LAWS.setdefault(name, cls)
    if (known.__module__, known.__qualname__) != (cls.__module__, cls.__qualname__):
        raise InvalidInput(
            f"Expected a new law name, got {name!r}, which {known.__name__} has. Rename the law."
        )
    LAWS[name] = cls
    return cls


def spellings() -> list[str]:
    """List the names of the laws that draw as users write them, such as "rr-top-k:K" and
    "subset[:SIZE]"."""
    return [_spelling(cls) for cls in LAWS.values() if _has_a_name(cls)]


def _has_a_name(cls: type[Law]) -> bool:
    """Tell whether users ask for a law by its name: not for one that only declares, nor for those
    on several columns, which have rules."""
    return not cls.declared_only and cls.kind != "columns"


def parse_law(text: str) -> tuple[type[Law], dict[str, Number | str]]:
    """Parse a law's name, with a number or a word after a colon if the law takes one.

    Parameters
    ----------
    text : str
        For example "rr", "subset", "subset:2", "rr-top-k:3" or "prior-bins:information".

    Returns
    -------
    cls : subclass of Law
    fields : dict of str to number or str
        The field that the number or word sets; empty without one.

    Raises
    ------
    InvalidInput
        No law has this name, it takes nothing of the kind, or it has further required fields.
    """
    name, colon, value = text.partition(":") if isinstance(text, str) else (text, "", "")
    cls = _law_type(name)
    require_sampler(cls)
    if colon and not cls.parameter:
        raise InvalidInput(
            f"Expected law {name!r} without a number, got law={text!r}. Leave the colon out."
        )
    by_word = any(
        field.name == cls.parameter and isinstance(field.default, str) for field in fields(cls)
    )
    given = {cls.parameter: value if by_word else _number(text, value, cls)} if colon else {}
    made = {"n_classes", "epsilon", *given}
    missing = [
        field.name
        for field in fields(cls)
        if field.name not in made and field.default is field.default_factory is MISSING
    ]
    if missing == [cls.parameter]:
        raise InvalidInput(
            f"Expected {_spelling(cls)}, got law={text!r}. Say the number, for example {name}:3."
        )
    if missing:
        listed = ", ".join(missing)
        raise InvalidInput(
            f"Expected a Law instance for {name!r}, which cannot be made without {listed}. Pass"
            f" law={cls.__name__}(...)."
        )
    return cls, given


def law_named(text: str, n_classes: int, epsilon: float) -> Law:
    """Make the law with this name (see `parse_law`) for `n_classes` classes at `epsilon`."""
    cls, given = parse_law(text)
    return within(
        law_from_dict({"law": cls.name, "n_classes": n_classes, "epsilon": epsilon} | given),
        epsilon,
    )


def law_from_dict(data: Mapping[str, object]) -> Law:
    """Make a law from the data of `to_dict` or `event`; refuse an unknown name or field."""
    cls = _law_type(data.get("law"))
    # `event` adds the exact epsilon, which follows from the fields.
    values = {k: v for k, v in data.items() if k not in ("law", "epsilon_exact")}
    known = {f.name for f in fields(cls)}
    if extra := sorted(set(values) - known):
        raise InvalidInput(
            f"Expected only {', '.join(sorted(known))} for law {cls.name!r}, got also"
            f" {', '.join(extra)}."
        )
    # The constructor checks every value, so that a changed file cannot make a law that code could
    # not make.
    try:
        return cls.from_fields(values)
    except TypeError as error:
        raise InvalidInput(
            f"Expected the fields {', '.join(sorted(known))} for law {cls.name!r}: {error}."
        ) from error


def _law_type(name: object) -> type[Law]:
    # A law that nobody asks for by its name is known to files all the same.
    if not (isinstance(name, str) and name in LAWS):
        _validate.one_of(
            [each for each, cls in LAWS.items() if _has_a_name(cls)], law=name, fix=_OWN
        )
    cls = LAWS[str(name)]
    if cls.name != name:
        raise InvalidInput(
            f"Expected {cls.__name__} to keep the name that it was registered by, {name!r}, got"
            f" {cls.name!r}."
        )
    return cls


def _spelling(cls: type[Law]) -> str:
    if not cls.parameter:
        return cls.name
    needed = any(
        field.name == cls.parameter and field.default is field.default_factory is MISSING
        for field in fields(cls)
    )
    number = f":{cls.parameter.upper()}"
    return cls.name + (number if needed else f"[{number}]")


def _number(text: str, number: str, cls: type[Law]) -> Number:
    """Parse the number after the colon; its type and range are checked by the law."""
    try:
        return (
            _validate.positive(law=float(number))
            if not number.isdecimal()
            else _validate.integer(law=int(number), low=1)
        )
    except ValueError:  # InvalidInput is one
        raise InvalidInput(
            f"Expected {_spelling(cls)} with a number above 0, got law={text!r}."
        ) from None
