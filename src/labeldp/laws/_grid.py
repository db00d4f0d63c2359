# SPDX-License-Identifier: Apache-2.0
"""Classes of numbers: a public range with evenly spaced points, to the nearest of which a private
number is rounded."""

import contextlib
import math
import numbers
from collections.abc import Sequence
from decimal import Decimal
from fractions import Fraction
from functools import lru_cache
from itertools import pairwise
from typing import Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from labeldp import _validate
from labeldp._hash import plain_value
from labeldp.errors import InvalidInput

POINTS = 64
MOST_POINTS = 10_000
_WHOLE = 2**53  # up to here every whole number is a float
_LARGE = 1e100  # numbers whose squares, and weights by them, are floats


class Grid(tuple[float, ...]):
    """Declare the range of a private number, and the points that it is rounded to, as classes.

    Parameters
    ----------
    low, high : float
        The public range, low < high: 1e-100 or wider, with ends within -1e100 and 1e100. Choose it
        without looking at the labels.
    points : int, optional
        K, the number of evenly spaced points, `low` and `high` among them: 2 to 10,000. 64 by
        default.

    Raises
    ------
    InvalidInput
        The range is reversed, empty, infinite, or too large or narrow for squares of its numbers to
        be floats; or the points are too few, too many or not all different floats.

    Notes
    -----
    A grid is the tuple of its K points, and is taken wherever classes are: code c stands for
    grid[c]. Besides, a number between two points is encoded as the nearest one, of two equally near
    as the lower one. A number outside the range is clamped: it becomes `low` or `high`, and no
    message, log or file says how many were, since such a count would reveal labels. NaN, infinity
    and missing values are refused before anything is charged.

    The points are ints if all are whole numbers, else floats: low + i (high - low) / (K - 1),
    computed exactly and rounded once. So all machines encode alike.

    Examples
    --------
    >>> import labeldp as ldp
    >>> grid = ldp.Grid(0, 100, points=5)
    >>> grid, list(grid)
    (Grid(0, 100, points=5), [0, 25, 50, 75, 100])
    >>> labels = ldp.PrivateLabels([12.5, 13, 250], range=grid, noise=ldp.SeededNoise(0))
    >>> ldp.privatize(labels, ldp.RandomizedResponse(5, 700.0)).hard()
    array([  0,  25, 100])
    """

    __slots__ = ()

    def __new__(cls, low: float, high: float, points: int | None = None) -> Self:
        start, end = _bound(low=low), _bound(high=high)
        if not start < end:
            raise InvalidInput(
                f"Expected a range with low < high, got low={low!r} and high={high!r}. Give the"
                " lower end first."
            )
        if max(-start, end) > _LARGE or (end - start) * Fraction(_LARGE) < 1:
            raise InvalidInput(
                f"Expected a range of {1 / _LARGE:g} or more with ends of at most {_LARGE:g}, got"
                f" ({float(start):g}, {float(end):g}): squares of its numbers are no floats. Give"
                " the numbers in another unit."
            )
        fix = "Each point is a class, and costs memory in every row of a likelihood."
        count = _validate.integer(
            points=POINTS if points is None else points, low=2, high=MOST_POINTS, fix=fix
        )
        return super().__new__(cls, _points(start, end, count))

    def __getnewargs__(self) -> tuple[float, float, int]:
        return self.low, self.high, self.points

    def __repr__(self) -> str:
        return f"Grid({self.low!r}, {self.high!r}, points={self.points})"

    @property
    def low(self) -> float:
        """The lowest point."""
        return self[0]

    @property
    def high(self) -> float:
        """The highest point."""
        return self[-1]

    @property
    def points(self) -> int:
        """The number of points, K."""
        return len(self)

    @property
    def resolution(self) -> float:
        """The distance of two neighbouring points, rounded to a float."""
        return float((_validate.exact(self.high) - _validate.exact(self.low)) / (len(self) - 1))

    def codes(self, values: "ArrayLike") -> NDArray[np.int32]:
        """Find the nearest point of each number: (n,) int32 in 0..K-1, -1 for NaN and infinity.

        Parameters
        ----------
        values : (n,) array of numbers

        Notes
        -----
        The lower one of two equally near points, exactly; the first or last point for numbers
        outside the range. O(n log K).
        """
        given = np.asarray(values).astype(np.float64, copy=False)
        found = np.searchsorted(_cuts(self), given).astype(np.int32)
        return np.where(np.isfinite(given), found, np.int32(-1))

    def to_dict(self) -> dict[str, object]:
        """Return the grid as JSON-ready data: low, high and points."""
        return {"low": self.low, "high": self.high, "points": self.points}


def as_numbers(values: NDArray[np.generic]) -> NDArray[np.float64]:
    """Convert an array of labels to floats, with NaN for what is no number; refuse types that are
    none.

    Raises
    ------
    InvalidInput
        The array's type is text, boolean, complex or a time. The message names the type only.
    """
    kind = values.dtype.kind
    if kind in "iuf":
        with np.errstate(over="ignore"):
            return np.asarray(values.astype(np.float64))
    if kind == "O":
        return np.fromiter((_number(value) for value in values.tolist()), np.float64, len(values))
    named = {
        "U": "text",
        "S": "bytes",
        "b": "booleans",
        "c": "complex numbers",
        "M": "times",
        "m": "times",
    }.get(kind, str(values.dtype))
    raise InvalidInput(
        f"Expected numbers, as the classes are a grid, got {named}. Convert them to numbers, or"
        " declare their classes."
    )


def as_classes(values: Sequence[object]) -> tuple[object, ...]:
    """Return classes as a tuple of plain values; a grid stays one."""
    return values if isinstance(values, Grid) else tuple(map(plain_value, values))


def grid_facts(classes: Sequence[object]) -> dict[str, object]:
    """Return what is kept of classes besides their list: the range under "grid" if they are a
    `Grid`, else nothing."""
    return {"grid": classes.to_dict()} if isinstance(classes, Grid) else {}


def on_steps(classes: Sequence[object], steps: Sequence[float]) -> tuple[float, ...]:
    """Convert numbers in steps of evenly spaced classes, from the first one, to numbers in the unit
    of the classes.

    Computed exactly, as decimals, and rounded once. InvalidInput if the classes are no evenly
    spaced increasing numbers, or if two of the results are one float.
    """
    found = _evenly_spaced(classes)
    if found is None:
        raise InvalidInput(
            "Expected evenly spaced numbers as classes, for a law that releases numbers, got"
            " others. Declare a range: classes=labeldp.Grid(low, high, points), --range LOW:HIGH."
        )
    low, step = found
    numbers = tuple(float(low + step * Fraction(each)) for each in steps)
    if not all(a < b for a, b in pairwise(numbers)):
        raise InvalidInput(
            "Expected a range in which the released numbers are different floats, got a narrower"
            " one. Widen it."
        )
    return numbers


def _evenly_spaced(classes: Sequence[object]) -> tuple[Fraction, Fraction] | None:
    """Return the first of evenly spaced increasing numbers, and their distance; None for others."""
    if isinstance(classes, Grid):
        low = _validate.exact(classes.low)
        return low, (_validate.exact(classes.high) - low) / (len(classes) - 1)
    if any(
        isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= _LARGE
        for value in classes
    ):
        return None
    exact = [_validate.exact(value) for value in classes if isinstance(value, int | float)]
    gaps = {b - a for a, b in pairwise(exact)}
    return (exact[0], gaps.pop()) if len(gaps) == 1 and min(gaps) > 0 else None


def _bound(**named: object) -> Fraction:
    ((name, value),) = named.items()
    found = math.nan
    if not isinstance(value, bool | np.bool_) and isinstance(value, numbers.Real | Decimal):
        with contextlib.suppress(OverflowError, ValueError):
            found = float(value)
    if not math.isfinite(found):
        raise InvalidInput(
            f"Expected {name} as a finite number, got {name}={_validate.shown(value)}. Give the"
            " ends of a public range."
        )
    return _validate.exact(found)


def _points(low: Fraction, high: Fraction, count: int) -> list[int] | list[float]:
    exact = [low + (high - low) * i / (count - 1) for i in range(count)]
    if all(point.denominator == 1 and abs(point) <= _WHOLE for point in exact):
        return [point.numerator for point in exact]
    found = [float(point) for point in exact]
    if not all(a < b for a, b in pairwise(found)):
        raise InvalidInput(
            f"Expected a range in which {count} points are different floats, got a narrower one."
            " Widen it, or subtract low."
        )
    return found


@lru_cache(maxsize=64)
def _cuts(grid: Grid) -> NDArray[np.float64]:
    """Compute the largest float that is nearest to each point but the last, or as near to the next:
    (K - 1,)."""
    middles = ((Fraction(a) + Fraction(b)) / 2 for a, b in pairwise(grid))
    return np.array([_validate.float_down(middle, binary=True) for middle in middles])


def _number(value: object) -> float:
    if isinstance(value, bool | np.bool_) or not isinstance(value, numbers.Real | Decimal):
        return math.nan
    try:
        return float(value)
    except (ValueError, OverflowError):
        return math.nan
