# SPDX-License-Identifier: Apache-2.0
"""Several private columns of a row as one label: the combination of their classes, and laws that
release something about it.

Three ways to spend one epsilon on L columns, each epsilon-DP for the whole combination:

* `Independent`: every column has a law of its own, and an equal share of epsilon;
* `OneColumn`: every row is asked about one column, which public words choose, with all of epsilon;
* a law on the K = K_1 x ... x K_L combinations, such as `SubsetSelection`, which `ColumnCounts`
  reads for one column.
"""

import itertools
import math
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Any, ClassVar, Final, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from labeldp import _validate
from labeldp._validate import exact, float_down, joined
from labeldp.errors import InvalidInput
from labeldp.laws import _grid
from labeldp.laws._base import (
    MAX_CELLS,
    Cell,
    Law,
    Side,
    Table,
    law_named,
    no_inclusion,
    worst_ratio,
)
from labeldp.laws._exact import Array, Floats, PlainWords, Words, as_prior
from labeldp.laws._grid import Grid
from labeldp.laws._square_wave import law_of_numbers
from labeldp.laws._subset import SubsetSelection

MOST_COMBINATIONS: Final = 100_000
SPLITS: Final = ("one", "joint", "equal")
"""The rules by which `LabelColumns.law` divides epsilon among columns."""

_OF_ORDER: Final = ("threshold", "prior-bins", "square-wave", "laplace", "rr-on-bins", "unbiased")
_PARTS: Final = 1 << 32  # grid of the shares by which OneColumn chooses a column
_NAN: Final = float("nan")


# Classes
# --------------------------------------------------------------------------------------------------


class LabelColumns(tuple[tuple[object, ...], ...]):
    """Declare several private columns and the classes of each, for labels that are charged and
    drawn together.

    Parameters
    ----------
    classes : mapping of str to sequence of classes, or Grid
        For each column its public list of classes, in the order of their codes. At least two
        columns.

    Raises
    ------
    InvalidInput
        There are fewer than two columns, a column has no two different classes, or there are more
        than 100,000 combinations.

    Attributes
    ----------
    names : tuple of L str
    lists : tuple of L tuples
        The classes of each column.

    Notes
    -----
    It is the tuple of all K = K_1 x ... x K_L combinations, in the order of `itertools.product`,
    and is taken wherever classes are: code c stands for the combination columns[c]. It does not
    matter whether a column follows from another: the bill is for all of them together.

    Examples
    --------
    >>> import labeldp as ldp
    >>> columns = ldp.LabelColumns({"clicked": ["no", "yes"], "rating": [1, 2, 3]})
    >>> columns, len(columns), columns[5]
    (LabelColumns(clicked=('no', 'yes'), rating=(1, 2, 3)), 6, ('yes', 3))
    >>> columns.law(epsilon=1.0).name
    'one-column'
    """

    names: tuple[str, ...]
    lists: tuple[tuple[object, ...], ...]

    def __new__(cls, classes: Mapping[str, Sequence[object]]) -> Self:
        names, lists = _checked(classes)
        made = super().__new__(cls, itertools.product(*lists))
        made.names, made.lists = names, lists
        return made

    def __getnewargs__(self) -> tuple[dict[str, tuple[object, ...]]]:
        return (dict(zip(self.names, self.lists, strict=True)),)

    def __repr__(self) -> str:
        columns = zip(self.names, self.lists, strict=True)
        return f"LabelColumns({', '.join(f'{name}={values!r}' for name, values in columns)})"

    @property
    def sizes(self) -> tuple[int, ...]:
        """The number of classes of each column, K_1 .. K_L."""
        return tuple(map(len, self.lists))

    @property
    def name(self) -> str:
        """The names of all columns in one text, as receipts show it."""
        return joined(self.names)

    def place(self, name: object) -> int:
        """Find the position of a column by its name; InvalidInput for another name."""
        return self.names.index(_validate.one_of(self.names, column=name))

    def some(self, names: Sequence[str]) -> "LabelColumns":
        """Take the columns of these names, in this order."""
        return LabelColumns({name: self.lists[self.place(name)] for name in names})

    def law(
        self,
        epsilon: float,
        split: str = "one",
        law: str | Sequence[str] | None = None,
    ) -> Law:
        """Make the law that releases all columns for one epsilon.

        Parameters
        ----------
        epsilon : float
            Guarantee: pure epsilon-label-DP for all columns of a row together.
        split : str, default="one"
            "one" asks every row about one column, each equally often, with all of epsilon
            (`OneColumn`): best at small epsilons. "joint" releases a set of combinations
            (`SubsetSelection`): best at large ones. "equal" gives every column the same share of
            epsilon (`Independent`).
        law : str or sequence of L str, optional
            The law of each column, or of the combinations. None (default): "subset", and for a grid
            "square-wave", of more than 700 points "threshold", as for a grid alone. Laws that read
            a prior, such as "auto", read that of each column, and with "joint" that of the
            combinations (`prior`); a column of such a joint draw is told only together with the
            others: by a net with heads, or `marginals`.
        Raises
        ------
        InvalidInput
            The rule is unknown, or the arguments do not fit it.

        """
        _validate.one_of(SPLITS, split=split)
        if split != "joint":
            if law is None:
                law = [
                    law_of_numbers(len(values)) if isinstance(values, Grid) else "subset"
                    for values in self.lists
                ]
            laws = (law,) * len(self.names) if isinstance(law, str) else tuple(law)
            kind = OneColumn if split == "one" else Independent
            return kind(len(self), epsilon, self.sizes, laws)
        if law is not None and not isinstance(law, str):
            raise InvalidInput(
                "Expected the name of one law of the combinations with split='joint', got"
                f" law={_validate.shown(law)}."
            )
        found = law_named("subset" if law is None else law, len(self), epsilon)
        if found.name in _OF_ORDER:
            raise InvalidInput(
                f"Expected a law of classes without an order with split='joint', got {law!r}:"
                " combinations have none."
            )
        return found

    def prior(
        self, weights: "Mapping[str, ArrayLike]", n_rows: int | None = None
    ) -> Callable[[NDArray[np.int64]], Floats]:
        """Make a prior of the combinations from public weights of each column: their products.

        Parameters
        ----------
        weights : mapping of a column's name to its (n, K_l) weights, or (K_l,) weights of all rows
            Finite and >= 0, of any scale; they must not depend on these labels. Columns that are
            left out count as uniform.
        n_rows : int, optional
            The number of rows that there will be, which the arrays must have; None (default) does
            not check it.

        Returns
        -------
        function of (m,) positions
            Returns the (m, K) weights of these rows, with maximum 1 in each: the `prior=` of
            `privatize`, which asks for few rows at a time. Cost: O(m K).

        Raises
        ------
        InvalidInput
            A name is none of the columns, or an array has another shape or other numbers; (n, K_l)
            arrays differ in n.
        """
        tables: dict[int, Floats] = {}
        for name, given in weights.items():
            place = self.place(name)
            table = np.atleast_2d(np.asarray(given, np.float64))
            if table.ndim != 2 or table.shape[1] != self.sizes[place]:
                raise InvalidInput(
                    f"Expected weights (n, {self.sizes[place]}) of column {name!r}, one a class,"
                    f" got shape {table.shape}."
                )
            if not ((table >= 0) & (table < math.inf)).all():
                raise InvalidInput(
                    f"Expected finite weights >= 0 of column {name!r}, got other ones. Clip them,"
                    " or leave the column out."
                )
            most = table.max(axis=1, keepdims=True)
            tables[place] = np.where(most > 0, table / np.where(most > 0, most, 1.0), 1.0)
        counts = {
            len(table) for name, table in tables.items() if np.ndim(weights[self.names[name]]) == 2
        }
        if len(counts) > 1 or (n_rows is not None and counts - {n_rows}):
            wanted = "one number of" if n_rows is None else str(n_rows)
            raise InvalidInput(
                f"Expected weights of {wanted} rows, got {' and '.join(map(str, sorted(counts)))}."
            )

        def of_rows(rows: NDArray[np.int64]) -> Floats:
            found = np.ones((len(rows), 1))
            for number, size in enumerate(self.sizes):
                table = tables.get(number, np.ones((1, size)))
                part = table[rows] if len(table) > 1 else table
                found = (found[:, :, None] * part[:, None, :]).reshape(len(rows), -1)
            return found

        return of_rows

    def marginals(self, weights: "ArrayLike") -> list[Floats]:
        """Add up weights of the combinations, (n, K), for the classes of each column: L arrays (n,
        K_l).

        Of `noisy.posterior(prior)` they are the columns' posteriors under a prior of the
        combinations, for draws of every law.
        """
        array = np.asarray(weights, np.float64)
        if array.ndim != 2 or array.shape[1] != len(self):
            raise InvalidInput(
                f"Expected weights of shape (n, {len(self)}), one a combination, got {array.shape}."
            )
        return [_marginal(array, self.sizes, number) for number in range(len(self.sizes))]

    def separated(self, side_by_side: NDArray[Any]) -> list[NDArray[Any]]:
        """Separate an array (n, K_1 + ... + K_L) into those of the columns: L arrays (n, K_l)."""
        return np.split(side_by_side, np.cumsum(self.sizes)[:-1], axis=1)

    def check(self, law: Law) -> None:
        """Refuse a law that was made for columns of other sizes; any law on as many combinations
        may draw them."""
        if getattr(law, "sizes", self.sizes) != self.sizes:
            raise InvalidInput(
                f"Expected a law for columns of {list(self.sizes)} classes, got {law}. Make it with"
                " LabelColumns.law."
            )

    def codes(self, parts: Sequence[NDArray[np.integer]]) -> NDArray[np.int32]:
        """Combine the codes of each column, L arrays (n,), to codes of combinations: (n,) int32."""
        total = np.zeros(len(parts[0]), np.int32)
        for part, size in zip(parts, self.sizes, strict=True):
            total = total * np.int32(size) + part.astype(np.int32)
        return total

    def parts(self, codes: NDArray[np.integer]) -> list[NDArray[np.int32]]:
        """Separate codes of combinations, (n,), into the codes of each column: L arrays (n,)
        int32."""
        return parts_of(codes, self.sizes)

    def facts(self) -> dict[str, object]:
        """Return the classes as JSON-ready data, which `classes_of` reads."""
        lists = [_grid.grid_facts(values) or [*values] for values in self.lists]
        return {"columns": list(self.names), "classes": lists}


def _checked(classes: object) -> tuple[tuple[str, ...], tuple[tuple[object, ...], ...]]:
    if not (isinstance(classes, Mapping) and len(classes) > 1):
        raise InvalidInput(
            "Expected a mapping of two or more column names to their classes, such as {'a': ['no',"
            " 'yes'], 'b': [1, 2]}."
        )
    for name, values in classes.items():
        if not (isinstance(name, str) and name and name.isprintable()):
            raise InvalidInput(
                f"Expected the names of columns as printable text, got {_validate.shown(name)}."
            )
        if isinstance(values, str | bytes | set | frozenset) or not isinstance(values, Iterable):
            raise InvalidInput(
                f"Expected the classes of column {name!r} as a list of values, got"
                f" {_validate.shown(values)}."
            )
    lists = tuple(_grid.as_classes(values) for values in classes.values())
    for name, values in zip(classes, lists, strict=True):
        again = [value for value, count in Counter(values).items() if count > 1]
        if again:
            raise InvalidInput(
                f"Expected different classes of column {name!r}, got {again[0]!r} more than once."
                " Declare each class once."
            )
        if len(values) < 2:
            raise InvalidInput(
                f"Expected at least 2 classes of column {name!r}, got {len(values)}. One class"
                " needs no privacy."
            )
    total = math.prod(map(len, lists))
    if total > MOST_COMBINATIONS:
        raise InvalidInput(
            f"Expected at most {MOST_COMBINATIONS:,} combinations of classes, got {total:,} of"
            f" {len(lists)} columns. Declare fewer columns or classes (a grid of fewer points), or"
            " charge groups of columns apart: then their epsilons add up."
        )
    return tuple(classes), lists


def as_classes(values: Sequence[object]) -> tuple[object, ...]:
    """Return classes as a tuple; a grid, and the classes of several columns, stay what they are."""
    return values if isinstance(values, LabelColumns) else _grid.as_classes(values)


def class_facts(classes: tuple[object, ...]) -> dict[str, object]:
    """Return classes as JSON-ready data, which `classes_of` reads: under "classes", and what a grid
    or several columns need besides."""
    if isinstance(classes, LabelColumns):
        return classes.facts()
    return {"classes": [*_grid.as_classes(classes)]} | _grid.grid_facts(classes)


def classes_of(facts: Mapping[str, Any]) -> tuple[object, ...]:
    """Read classes from the data of `class_facts`."""
    if "columns" not in facts:
        listed = tuple(facts["classes"])
        if "grid" not in facts:
            return listed
        try:
            grid = Grid(**facts["grid"])
        except TypeError:
            grid = None
        if grid != listed:
            raise InvalidInput(
                "Expected the classes to be the points of the grid that is named beside them, got"
                " others. Restore the file."
            )
        return grid
    lists = [
        Grid(**each["grid"]) if isinstance(each, Mapping) else tuple(each)
        for each in facts["classes"]
    ]
    return LabelColumns(dict(zip(facts["columns"], lists, strict=True)))


def parts_of(codes: NDArray[np.integer], sizes: Sequence[int]) -> list[NDArray[np.int32]]:
    """Separate codes of combinations, (n,), into the codes of each column: L arrays (n,) int32."""
    found, rest = [], np.asarray(codes).astype(np.int32)
    for size in reversed(sizes):
        rest, part = np.divmod(rest, np.int32(size))
        found.append(part)
    return found[::-1]


# Laws
# --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _OfColumns(Law):
    """Base of the laws that draw columns by laws of their own. A row's output is the bytes of the
    columns' outputs, one after another."""

    kind: ClassVar = "columns"
    uses_prior: ClassVar[bool] = True
    draws_side: ClassVar[bool] = True

    sizes: tuple[int, ...]
    laws: tuple[str, ...]

    def __post_init__(self) -> None:
        super().__post_init__()
        sizes = tuple(_validate.integer(sizes=size, low=2) for size in self.sizes)
        if len(sizes) < 2 or math.prod(sizes) != self.n_classes:
            raise InvalidInput(
                f"Expected the sizes of two or more columns, whose product is {self.n_classes}, got"
                f" {list(sizes)}."
            )
        if len(self.laws) != len(sizes):
            raise InvalidInput(
                f"Expected a law for each of {len(sizes)} columns, got {len(self.laws)}."
            )
        object.__setattr__(self, "sizes", sizes)
        _ = self.parts  # made now, so that a column's law that is impossible is refused here

    @cached_property
    def parts(self) -> tuple[Law, ...]:
        """The law of each column."""
        made = zip(self.laws, self.sizes, self._epsilons(), strict=True)
        return tuple(law_named(name, size, epsilon) for name, size, epsilon in made)

    @abstractmethod
    def _epsilons(self) -> list[float]:
        """Return the epsilon of each column's law."""

    # Bytes of outputs, names of sides
    # ----------------------------------------------------------------------------------------------

    @cached_property
    def _edges(self) -> list[int]:
        widths = [
            math.prod(shape) * kind.itemsize
            for kind, shape in (part.layout()["output"] for part in self.parts)
        ]
        return [0, *itertools.accumulate(widths)]

    def _packed(self, column: int, outputs: Array) -> NDArray[np.uint8]:
        kind, _ = self.parts[column].layout()["output"]
        return (
            np.ascontiguousarray(outputs, kind.newbyteorder("<"))
            .view(np.uint8)
            .reshape(len(outputs), self._edges[column + 1] - self._edges[column])
        )

    @staticmethod
    def _side(column: int, side: Side) -> dict[str, Array]:
        start = f"{column}."
        return {
            name.removeprefix(start): values
            for name, values in side.items()
            if name.startswith(start)
        }

    def layout(self) -> dict[str, tuple[np.dtype, tuple[int, ...]]]:
        found: dict[str, tuple[np.dtype, tuple[int, ...]]] = {
            "output": (np.dtype(np.uint8), (self._edges[-1],))
        }
        for column, part in enumerate(self.parts):
            found |= {
                f"{column}.{name}": value
                for name, value in part.layout().items()
                if name != "output"
            }
        return found

    def prepare(self, prior: Array, words: Words | None = None) -> dict[str, Array]:
        array = as_prior(prior, self.n_classes)
        if (
            not any(part.uses_prior for part in self.parts)
            and array.strides != (0, 0)
            and (array != array[:, :1]).any()
        ):
            raise InvalidInput(
                f"Expected no prior with the laws {', '.join(self.laws)}, which read none. Drop"
                " prior=, or take 'auto'."
            )
        stream = PlainWords(np.arange(len(array))) if words is None else words
        found: dict[str, Array] = {}
        for column, part in enumerate(self.parts):
            marginal = (
                _marginal(array, self.sizes, column)
                if part.uses_prior
                else np.broadcast_to(1.0, (len(array), self.sizes[column]))
            )
            made = part.prepare(marginal, _Lane(stream, column + 1, len(self.parts) + 1))
            found |= {f"{column}.{name}": values for name, values in made.items()}
        return found

    # What follows from the columns
    # ----------------------------------------------------------------------------------------------

    def column(
        self, number: int, outputs: Array, side: Side
    ) -> tuple[Law, Array, dict[str, Array], NDArray[np.bool_]]:
        """Read the draws of one column: its law, the outputs and the side of the rows that were
        asked about it, and the mask of these."""
        asked = self._asked(number, len(outputs), side)
        part = {name: values[asked] for name, values in self._side(number, side).items()}
        kind, shape = self.parts[number].layout()["output"]
        raw = np.ascontiguousarray(outputs[asked, self._edges[number] : self._edges[number + 1]])
        drawn = raw.view(kind.newbyteorder("<")).astype(kind).reshape(len(raw), *shape)
        return self.parts[number], drawn, part, asked

    def _asked(self, number: int, n_rows: int, side: Side) -> NDArray[np.bool_]:
        return np.ones(n_rows, bool)

    def possible(self, outputs: Array, side: Side) -> NDArray[np.bool_]:
        found, told = np.ones(len(outputs), bool), np.zeros(len(outputs), bool)
        for number in range(len(self.parts)):
            law, drawn, part, asked = self.column(number, outputs, side)
            found[asked] &= law.possible(drawn, part)
            found[~asked] &= ~outputs[~asked, self._edges[number] : self._edges[number + 1]].any(
                axis=1
            )
            told |= asked
        return found & told

    def log_likelihood(self, outputs: Array, side: Side) -> Floats:
        total = np.zeros((len(outputs), *self.sizes))
        for number, size in enumerate(self.sizes):
            law, drawn, part, asked = self.column(number, outputs, side)
            shape = [1] * len(self.sizes)
            shape[number] = size
            total[asked] += law.log_likelihood(drawn, part).reshape(-1, *shape)
        found = total.reshape(len(outputs), self.n_classes)
        return np.asarray(found - found.max(axis=1, keepdims=True))

    def inclusion(self, outputs: Array, side: Side) -> tuple[Floats, Floats]:
        return no_inclusion(outputs)


@dataclass(frozen=True)
class Independent(_OfColumns):
    """Release every column by a law of its own, with an equal share of epsilon.

    Parameters
    ----------
    n_classes : int
        The number of combinations, K_1 x ... x K_L.
    epsilon : float
        Guarantee: pure epsilon-label-DP, local, for all columns of a row together.
    sizes : tuple of L int
        K_1 .. K_L.
    laws : tuple of L str
        The name of each column's law.

    See Also
    --------
    labeldp.LabelColumns.law : Makes it, by rule.

    Notes
    -----
    Proof: column l draws with words that no other column reads, at epsilon_l = epsilon / L,
    rounded down, so that the sum of all epsilon_l is at most epsilon. For two combinations y, y'
    the probabilities of an output z multiply, and P[z | y] / P[z | y'] is the product of the
    columns' ratios, at most the product of e^epsilon_l, at most e^epsilon, however many columns
    differ. Output: the columns' outputs as bytes, (n, bytes) uint8. Side: those of the columns,
    "0.NAME" and so on. Cost: the sum of the columns'.

    References
    ----------
    Sequential composition: Dwork and Roth 2014, "The algorithmic foundations of differential
    privacy", theorem 3.16.
    """

    name: ClassVar[str] = "independent"

    def _epsilons(self) -> list[float]:
        # Of the float's binary and its decimal value the smaller one is divided: the sum must be
        # within both.
        total = min(Fraction(self.epsilon), exact(self.epsilon))
        share = float_down(total / len(self.sizes), binary=True)
        # also within the share as the decimal number that the float shows
        while exact(share) * len(self.sizes) > total:
            share = math.nextafter(share, 0.0)
        fix = "The share of a column is too small; use fewer columns."
        return [_validate.positive(epsilon=share, fix=fix)] * len(self.sizes)

    def sample(self, labels: NDArray[np.integer], words: Words, side: Side) -> NDArray[np.uint8]:
        drawn = [
            self._packed(
                number,
                part.sample(codes, _Lane(words, number, len(self.parts)), self._side(number, side)),
            )
            for number, (part, codes) in enumerate(
                zip(self.parts, parts_of(labels, self.sizes), strict=True)
            )
        ]
        return np.concatenate(drawn, axis=1)

    def weights(self, outputs: Array, side: Side) -> Floats:
        """Compute unbiased weights, the products of those of the columns: (n, K) float64."""
        # The draws of the columns are independent given the labels, so the expectation of the
        # product is the product of indicators.
        total = np.ones((len(outputs), *self.sizes))
        for number, size in enumerate(self.sizes):
            law, drawn, part, _ = self.column(number, outputs, side)
            shape = [1] * len(self.sizes)
            shape[number] = size
            total *= law.weights(drawn, part).reshape(-1, *shape)
        return np.asarray(total.reshape(len(outputs), self.n_classes))

    def questions(self, prior: "ArrayLike") -> tuple[tuple[float, dict[str, Array]], ...] | None:
        row = np.asarray(prior, dtype=np.float64)[None]
        listed: list[list[tuple[float, dict[str, Array]]]] = []
        for number, part in enumerate(self.parts):
            marginal = _marginal(row, self.sizes, number)
            asked = part.questions(marginal[0])
            if asked is None and part.draws_side:  # which has no weights, or some for each question
                return None
            known = asked or (
                (1.0, {name: values[0] for name, values in part.prepare(marginal).items()}),
            )
            listed.append(
                [
                    (p, {f"{number}.{name}": values for name, values in side.items()})
                    for p, side in known
                ]
            )
        # Columns draw from words of their own, so their questions are independent.
        found = []
        for chosen in itertools.product(*listed):
            side = {name: values for _, part_side in chosen for name, values in part_side.items()}
            found.append((math.prod(p for p, _ in chosen), side))
        return tuple(found) if len(found) > 1 else None

    def exact_epsilon(self, side_row: Side | None = None) -> float:
        """Compute the epsilon of the sampler from those of the columns, whose ratios multiply; see
        `Law.exact_epsilon`."""
        if side_row is None and any(part.uses_prior for part in self.parts):
            return self.epsilon
        row = {} if side_row is None else side_row
        ratios = [
            worst_ratio(part.profile(self._side(number, row)))
            for number, part in enumerate(self.parts)
        ]
        return (
            math.inf
            if None in ratios
            else self._certified(
                math.prod((ratio for ratio in ratios if ratio is not None), start=Fraction(1))
            )
        )

    def profile(self, side_row: Side) -> tuple[Cell, ...]:
        found = [
            part.profile(self._side(number, side_row)) for number, part in enumerate(self.parts)
        ]
        if math.prod(map(len, found)) > MAX_CELLS // 10:
            raise InvalidInput(
                "Expected few columns to list the cells of, got many. Use the profiles of `parts`."
            )
        return tuple(
            Cell(
                " & ".join(cell.label for cell in cells),
                " & ".join(cell.output for cell in cells),
                " & ".join(cell.relation for cell in cells),
                math.prod((cell.probability for cell in cells), start=Fraction(1)),
                math.prod(cell.outputs for cell in cells),
            )
            for cells in itertools.product(*found)
        )

    def table(self, side_row: Side) -> Table:
        tables = [
            part.table(self._side(number, side_row)) for number, part in enumerate(self.parts)
        ]
        count = math.prod(len(table.outputs) for table in tables)
        if self.n_classes * count > MAX_CELLS:
            raise InvalidInput(
                f"Expected a matrix of at most {MAX_CELLS} cells, got {self.n_classes} x {count}."
                " Use those of `parts`."
            )
        values: tuple[Fraction, ...] = (Fraction(1),)
        index = np.zeros((1, 1), np.int64)
        outputs = np.zeros((1, 0), np.uint8)
        for number, table in enumerate(tables):
            index = np.kron(index, np.full(table.index.shape, len(table.values))) + np.kron(
                np.ones(index.shape, np.int64), table.index
            )
            values = tuple(a * b for a in values for b in table.values)
            drawn = _stored(self.parts[number], table, self._packed, number)
            outputs = np.concatenate(
                [np.repeat(outputs, len(drawn), axis=0), np.tile(drawn, (len(outputs), 1))], axis=1
            )
        return Table(outputs, values, index.astype(np.uint32))


@dataclass(frozen=True)
class OneColumn(_OfColumns):
    """Ask every row about one column, which public words choose, with all of epsilon.

    Parameters
    ----------
    n_classes, sizes, laws : as in Independent
    epsilon : float
        Guarantee: pure epsilon-label-DP, local, for all columns of a row together.

    See Also
    --------
    labeldp.LabelColumns.law : Makes it, by rule.

    Notes
    -----
    Proof: the column is chosen before any label is read, by words that depend on public facts only.
    Given the choice l, the output depends on the label of column l alone, which is drawn once by a
    law of this epsilon: P[z | y] / P[z | y'] <= e^epsilon for all y, y'. At a small epsilon a law
    tells about epsilon^2 of a label. So L columns with epsilon / L each tell 1 / L as much together
    as one column with all of epsilon. Output: the columns' outputs as bytes, (n, bytes) uint8,
    zeros for those that were not asked about. Side: column (n,) int32, and those of the columns.
    Cost: that of the column asked about; a public word.

    References
    ----------
    Wang et al. 2019, "Collecting and analyzing multidimensional data with local differential
    privacy", on sampling attributes instead of splitting the budget.
    """

    name: ClassVar[str] = "one-column"

    def _epsilons(self) -> list[float]:
        return [self.epsilon] * len(self.sizes)

    def layout(self) -> dict[str, tuple[np.dtype, tuple[int, ...]]]:
        return super().layout() | {"column": (np.dtype(np.int32), ())}

    def prepare(self, prior: Array, words: Words | None = None) -> dict[str, Array]:
        stream = PlainWords(np.arange(len(prior))) if words is None else words
        count = len(self.parts)
        edges = [number * _PARTS // count for number in range(1, count)]
        place = _Lane(stream, 0, count + 1).take(0) >> np.uint64(32)
        chosen = np.searchsorted(np.array(edges, np.uint64), place, side="right").astype(np.int32)
        return super().prepare(prior, stream) | {"column": chosen}

    def _asked(self, number: int, n_rows: int, side: Side) -> NDArray[np.bool_]:
        return np.asarray(side["column"] == number)

    def sample(self, labels: NDArray[np.integer], words: Words, side: Side) -> NDArray[np.uint8]:
        outputs = np.zeros((len(labels), self._edges[-1]), np.uint8)
        for number, (part, codes) in enumerate(
            zip(self.parts, parts_of(labels, self.sizes), strict=True)
        ):
            rows = np.flatnonzero(self._asked(number, len(labels), side))  # public
            drawn = part.sample(
                codes[rows],
                words.select(rows),
                {name: v[rows] for name, v in self._side(number, side).items()},
            )
            outputs[rows, self._edges[number] : self._edges[number + 1]] = self._packed(
                number, drawn
            )
        return outputs

    def _of_row(self, side_row: Side) -> tuple[int, Law, dict[str, Array]]:
        number = int(side_row["column"])
        return number, self.parts[number], self._side(number, side_row)

    def profile(self, side_row: Side) -> tuple[Cell, ...]:
        _, part, side = self._of_row(side_row)
        return part.profile(side)

    def exact_epsilon(self, side_row: Side | None = None) -> float:
        """Compute the epsilon of the sampler: that of the row's column, or the largest one; see
        `Law.exact_epsilon`."""
        if side_row is None:
            return max(part.exact_epsilon() for part in self.parts)
        _, part, side = self._of_row(side_row)
        return part.exact_epsilon(side)

    def table(self, side_row: Side) -> Table:
        number, part, side = self._of_row(side_row)
        table = part.table(side)
        if self.n_classes * len(table.outputs) > MAX_CELLS:
            raise InvalidInput(
                f"Expected a matrix of at most {MAX_CELLS} cells, got {self.n_classes} x"
                f" {len(table.outputs)}."
            )
        outputs = np.zeros((len(table.outputs), self._edges[-1]), np.uint8)
        outputs[:, self._edges[number] : self._edges[number + 1]] = _stored(
            part, table, self._packed, number
        )
        return Table(
            outputs,
            table.values,
            table.index[parts_of(np.arange(self.n_classes), self.sizes)[number]],
        )


@dataclass(frozen=True)
class ColumnCounts(Law):
    """Count, in a random set of combinations, those with each class of one column: what subset
    selection tells about that column.

    Parameters
    ----------
    n_classes : int
        K_l, the number of classes of the column.
    epsilon : float
        That of the set. Guarantee: pure epsilon-label-DP, local.
    others : int
        M, the number of combinations of the other columns, at least 1.
    size : int
        d, the number of combinations in the set, 1 to K_l M - 1.

    Notes
    -----
    Let S be the set that `SubsetSelection` releases of K = K_l M combinations, and c_v the number
    of those in S whose column has class v. Permuting the combinations of the other columns changes
    neither the law nor c, and brings every combination with class v to every other one. So P[c | y]
    depends on the class of the column alone, whatever the other columns are and however they are
    distributed: P[c | v] is proportional to c_v p + (M - c_v) q, with p and q the probabilities of
    a set with and without y. This likelihood is exact; what S tells through correlations with other
    columns is in the likelihood of the combinations. Output: (n, K_l) int32. Side: none. Cost: that
    of subset selection over K combinations.

    References
    ----------
    Subset selection: Ye and Barg 2018.
    """

    name: ClassVar[str] = "column-counts"
    kind: ClassVar = "columns"
    uses_prior: ClassVar[bool] = False

    others: int
    size: int

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(
            self, "others", _validate.integer(others=self.others, low=1, high=MOST_COMBINATIONS)
        )
        object.__setattr__(
            self,
            "size",
            _validate.integer(size=self.size, low=1, high=self.n_classes * self.others - 1),
        )
        _ = self._whole

    @cached_property
    def _whole(self) -> SubsetSelection:
        return SubsetSelection(self.n_classes * self.others, self.epsilon, self.size)

    @classmethod
    def of(cls, law: SubsetSelection, n_classes: int) -> Self:
        """Make the law of a column with `n_classes` classes from that of all combinations."""
        return cls(n_classes, law.epsilon, law.n_classes // n_classes, law.set_size)

    @staticmethod
    def count(sets: NDArray[np.bool_], sizes: Sequence[int], column: int) -> NDArray[np.int32]:
        """Count the members with each class of a column in sets of combinations, (n, K) bool: (n,
        K_l) int32."""
        shaped = sets.reshape(len(sets), *sizes)
        return np.asarray(
            shaped.sum(axis=tuple(a + 1 for a in range(len(sizes)) if a != column), dtype=np.int32)
        )

    def prepare(self, prior: Array, words: Words | None = None) -> dict[str, Array]:
        as_prior(prior, self.n_classes)
        return {}

    def sample(self, labels: NDArray[np.integer], words: Words, side: Side) -> NDArray[np.int32]:
        # By symmetry the law is that of any combination with this class: the first one is taken.
        sets = self._whole.sample(
            np.asarray(labels).astype(np.int32) * np.int32(self.others), words, {}
        )
        return self.count(self._whole.members(sets, {}), (self.n_classes, self.others), 0)

    def possible(self, outputs: Array, side: Side) -> NDArray[np.bool_]:
        return np.asarray(
            ((outputs >= 0) & (outputs <= self.others)).all(axis=1)
            & (outputs.sum(axis=1) == self.size)
        )

    def log_likelihood(self, outputs: Array, side: Side) -> Floats:
        ratio = math.exp(self._whole._lacks)  # of a combination outside the set to one inside
        found = np.log(self.others * ratio + outputs * -math.expm1(self._whole._lacks))
        return np.asarray(found - found.max(axis=1, keepdims=True))

    def inclusion(self, outputs: Array, side: Side) -> tuple[Floats, Floats]:
        return no_inclusion(outputs)

    def weights(self, outputs: Array, side: Side) -> Floats:
        """Compute unbiased weights: those of the combinations, added over the other columns, (n,
        K_l) float64."""
        (own,), (other,) = self._whole.inclusion(np.empty((1, 0)), {})
        gap = own - other
        return np.asarray(
            (outputs - self.others * other) / gap if gap else np.full(outputs.shape, _NAN)
        )

    def profile(self, side_row: Side) -> tuple[Cell, ...]:
        with_label, without = (cell.probability for cell in self._whole.profile({}))
        kinds = itertools.product(range(self.n_classes), self._all_counts())
        return tuple(
            Cell(
                f"class {v}",
                str(c),
                f"{c[v]} of its own",
                self._chance(c, v, with_label, without),
                1,
            )
            for v, c in kinds
        )

    def _all_counts(self) -> list[tuple[int, ...]]:
        most = range(min(self.others, self.size) + 1)
        if len(most) ** (self.n_classes - 1) > MAX_CELLS:
            raise InvalidInput(
                f"Expected a matrix of at most {MAX_CELLS} cells, got more. Use log_likelihood"
                " instead."
            )
        firsts = itertools.product(most, repeat=self.n_classes - 1)
        return [
            (*first, self.size - sum(first))
            for first in firsts
            if 0 <= self.size - sum(first) <= self.others
        ]

    def _chance(
        self, counts: tuple[int, ...], v: int, with_label: Fraction, without: Fraction
    ) -> Fraction:
        """Compute P[counts | class v]: the sets with these counts that hold one combination with
        class v, and those that lack it."""
        sets = math.prod(math.comb(self.others, count) for count in counts)
        holding = Fraction(sets * counts[v], self.others)
        return holding * with_label + (sets - holding) * without

    def layout(self) -> dict[str, tuple[np.dtype, tuple[int, ...]]]:
        return {"output": (np.dtype(np.int32), (self.n_classes,))}

    def table(self, side_row: Side) -> Table:
        counts = self._all_counts()
        if self.n_classes * len(counts) > MAX_CELLS:
            raise InvalidInput(
                f"Expected a matrix of at most {MAX_CELLS} cells, got {self.n_classes} x"
                f" {len(counts)}."
            )
        with_label, without = (cell.probability for cell in self._whole.profile({}))
        chances = [
            [self._chance(each, v, with_label, without) for each in counts]
            for v in range(self.n_classes)
        ]
        values = tuple(sorted({chance for row in chances for chance in row}))
        place = {value: j for j, value in enumerate(values)}
        return Table(
            np.array(counts, np.int32),
            values,
            np.array([[place[c] for c in row] for row in chances], np.uint32),
        )


# What a release tells
# --------------------------------------------------------------------------------------------------


def column_of(
    law: Law, sizes: Sequence[int], number: int, outputs: Array, side: Side
) -> tuple[Law, Array, dict[str, Array], Array]:
    """Read what a law on combinations tells about one column.

    Parameters
    ----------
    law : Law
        `Independent`, `OneColumn` or `SubsetSelection`, over the combinations.
    sizes : sequence of L int
    number : int
        The column, 0 to L - 1.
    outputs, side
        Of n rows.

    Returns
    -------
    law : Law
        Of the column.
    outputs, side
        Of the m rows that were asked about it.
    asked : (n,) bool

    Raises
    ------
    InvalidInput
        The law is another one.
    """
    if isinstance(law, _OfColumns):
        return law.column(number, outputs, side)
    if isinstance(law, SubsetSelection):
        made = ColumnCounts.of(law, sizes[number])
        step = max(1, MAX_CELLS // law.n_classes)
        parts = [
            law.members(outputs[start : start + step], {}) for start in range(0, len(outputs), step)
        ]
        counts = [ColumnCounts.count(part, sizes, number) for part in parts] or [
            np.empty((0, sizes[number]), np.int32)
        ]
        return made, np.concatenate(counts), {}, np.ones(len(outputs), bool)
    raise InvalidInput(
        f"Expected combinations that were drawn by the law of LabelColumns.law, got {law.name!r},"
        " whose likelihood of one column depends on how the others are distributed. Use that of"
        " the combinations: columns.marginals(noisy.posterior(prior)) under a prior, or a net with"
        " a head a column (labeldp.deep.TorchClassifier)."
    )


def laws_of_columns(law: Law, sizes: Sequence[int]) -> list[Law]:
    """List the laws by which `column_of` reads each column; none for a law on combinations that
    cannot be read so."""
    if isinstance(law, _OfColumns):
        return list(law.parts)
    return (
        [ColumnCounts.of(law, size) for size in sizes] if isinstance(law, SubsetSelection) else []
    )


def reads_prior(law: Law) -> bool:
    """Tell whether a law reads a prior; one of several columns if that of some column does."""
    return (
        any(part.uses_prior for part in law.parts)
        if isinstance(law, _OfColumns)
        else law.uses_prior
    )


# Helpers
# --------------------------------------------------------------------------------------------------


class _Lane:
    """Every `lanes`-th word of a stream, from number `lane` on: streams of different lanes share no
    word. A `Words`."""

    def __init__(self, words: Words, lane: int, lanes: int) -> None:
        self._words, self._lane, self._lanes = words, lane, lanes

    def __len__(self) -> int:
        return len(self._words)

    def take(self, counter: int, rows: NDArray[np.intp] | None = None) -> NDArray[np.uint64]:
        return self._words.take(self._lane + counter * self._lanes, rows)

    def select(self, rows: NDArray[np.intp]) -> "_Lane":
        return _Lane(self._words.select(rows), self._lane, self._lanes)


def _marginal(prior: ArrayLike, sizes: Sequence[int], column: int) -> Floats:
    """Add up weights of combinations, (n, K), for each class of a column: (n, K_l)."""
    array = np.asarray(prior)
    if array.strides == (0, 0):  # one weight for all: nothing to add up
        return np.broadcast_to(np.float64(1.0), (len(array), sizes[column]))
    shaped = array.reshape(len(array), *sizes)
    return np.asarray(
        shaped.sum(axis=tuple(a + 1 for a in range(len(sizes)) if a != column), dtype=np.float64)
    )


def _stored(part: Law, table: Table, packed: Any, number: int) -> NDArray[np.uint8]:
    """Write the outputs of a column's table as the bytes that a draw of them has: (n_outputs,
    bytes) uint8."""
    outputs = (
        np.packbits(table.outputs, axis=1, bitorder="little")
        if part.kind == "set"
        else table.outputs
    )
    return np.asarray(packed(number, outputs))
