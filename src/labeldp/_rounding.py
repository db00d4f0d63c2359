# SPDX-License-Identifier: Apache-2.0
"""Exact sums of budgets. A guarantee is rounded up, a share of a budget down.

A budget is read as the decimal number that its shortest representation shows, so that three charges of 0.1 are 0.3 and not a little more.
"""

import math
from collections.abc import Iterable
from fractions import Fraction


def exact(value: float) -> Fraction:
    """The decimal number that `repr(value)` shows, exactly."""
    return Fraction(repr(float(value)))


def float_up(value: Fraction) -> float:
    """The least float that is not below `value`; infinity above them all."""
    try:
        near = float(value)
    except OverflowError:
        return math.inf
    return near if exact(near) >= value else math.nextafter(near, math.inf)


def float_down(value: Fraction, *, binary: bool = False) -> float:
    """The greatest float that is not above `value`, as the decimal number that it shows; if asked for, as the binary number that it is."""
    near = float(value)
    read = Fraction(near) if binary else exact(near)
    return near if read <= value else math.nextafter(near, -math.inf)


def sum_up(values: Iterable[float]) -> float:
    """Sum of budgets, exact in decimals, then rounded up to a float."""
    return float_up(sum((exact(v) for v in values), Fraction(0)))
