# SPDX-License-Identifier: Apache-2.0
"""Checks of numbers and settings that users give, and exact sums of budgets.

Every check tests that a value is good, never that it is bad: all comparisons with NaN are false, so
NaN is refused.

Every message says what was expected, what was given and how to fix it. Call the checks with a
keyword: `positive(epsilon=eps)`.

A budget is read as the decimal number that its shortest representation shows, so that three charges
of 0.1 are 0.3 and not a little more. A guarantee is rounded up, a share of a budget down.
"""

import contextlib
import difflib
import json
import math
import numbers
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labeldp.errors import InvalidInput

_SHOWN = 80  # characters of a text in a message
_TOLD = 4  # differences in a message
PLAIN = (bool, int, float, str, type(None))


def shown(value: object) -> str:
    """Show a value in a message: a number or a short text as it is, of anything else the type,
    since it may hold labels."""
    if isinstance(value, str):
        return repr(value) if len(value) <= _SHOWN else f"a text of {len(value)} characters"
    return (
        repr(value)
        if value is None or isinstance(value, numbers.Number | np.generic)
        else type(value).__name__
    )


def _single(named: dict[str, object]) -> tuple[str, object]:
    ((name, value),) = named.items()
    return name, value


def _between(
    name: str, value: object, high: float, ends: Sequence[float], expected: str, fix: str
) -> float:
    """Check a number above 0 and below `high`, or one of these ends of the interval."""
    is_real = isinstance(value, numbers.Real) and not isinstance(value, bool)
    number = float(value) if is_real else math.nan  # type: ignore[arg-type]
    if not (0 < number < high or number in ends):
        raise InvalidInput(f"Expected {expected}, got {name}={shown(value)}. {fix}".rstrip())
    return number


def floats(**named: object) -> NDArray[np.float64]:
    """Check an array of real numbers, NaN among them, and return it as float64; masked ones would
    be what lies beneath the mask."""
    name, value = _single(named)
    unmasked(**named)
    with contextlib.suppress(TypeError, ValueError, RuntimeError):
        array = np.asarray(value)
        if array.dtype.kind != "c":
            return array.astype(np.float64, copy=False)
    raise InvalidInput(f"Expected {name} as an array of real numbers, got something else.")


def unmasked(**named: object) -> None:
    """Refuse an array of which values are masked: as a plain array they would be what lies beneath
    the mask."""
    name, value = _single(named)
    if hides(value):
        raise InvalidInput(
            f"Expected {name} without masked values, got some. Fill them, or leave their rows out."
        )


def hides(value: object) -> bool:
    """Return whether a mask hides values of an array, or of an array within a list."""
    parts = value if isinstance(value, (list, tuple)) else (value,)
    return any(isinstance(part, np.ma.MaskedArray) and np.ma.is_masked(part) for part in parts)


def positive(*, zero: bool = False, fix: str = "", **named: object) -> float:
    """Check a finite number above 0 and return it as a float; 0 only if asked for."""
    name, value = _single(named)
    expected = f"0 {'<=' if zero else '<'} {name} < inf"
    return _between(name, value, math.inf, (0,) if zero else (), expected, fix)


def epsilon(value: object) -> float:
    """Check a total budget: a finite number above 0."""
    return positive(epsilon=value, fix="Pass the total budget, for example epsilon=1.0.")


def fraction(*, zero: bool = False, one: bool = False, fix: str = "", **named: object) -> float:
    """Check a number between 0 and 1 and return it as a float; the ends only if asked for."""
    name, value = _single(named)
    expected = f"0 {'<=' if zero else '<'} {name} {'<=' if one else '<'} 1"
    ends = [end for end, allowed in ((0, zero), (1, one)) if allowed]
    return _between(name, value, 1, ends, expected, fix)


def integer(*, low: int, high: int | None = None, fix: str = "", **named: object) -> int:
    """Check a whole number in [low, high] and return it as an int."""
    name, value = _single(named)
    expected = f"a whole number {name} >= {low}" + ("" if high is None else f" and <= {high}")
    if (
        isinstance(value, bool)
        or not isinstance(value, numbers.Integral)
        or not (int(value) >= low and (high is None or int(value) <= high))
    ):
        raise InvalidInput(f"Expected {expected}, got {name}={shown(value)}. {fix}".rstrip())
    return int(value)


def one_of(allowed: Iterable[str], /, *, fix: str = "", **named: object) -> str:
    """Check that a name is one of those allowed; suggest one for a near miss."""
    name, value = _single(named)
    names = list(allowed)
    if isinstance(value, str) and value in names:
        return value
    raise InvalidInput(
        f"Expected {name} to be one of {', '.join(names)}; got"
        f" {shown(value)}.{suggest(value, names)} {fix}".rstrip()
    )


def changes_of(kind: type[Any], changes: Iterable[str]) -> None:
    """Refuse changes of fields that a dataclass does not have."""
    for name in changes:
        one_of([field.name for field in fields(kind)], field=name)


def boolean(**named: object) -> bool:
    """Check that a value is True or False, and not what merely counts as such."""
    name, value = _single(named)
    if not isinstance(value, bool):
        raise InvalidInput(f"Expected {name} as True or False, got {shown(value)}.")
    return value


def function(*, takes: str, none: bool = False, **named: object) -> None:
    """Check that a value can be called, or is None where `none` allows it; `takes` says what it is
    called with, for the message."""
    name, value = _single(named)
    if not callable(value) and not (none and value is None):
        raise InvalidInput(
            f"Expected {name} as a function of {takes}{' or None' if none else ''}, got"
            f" {shown(value)}."
        )


def suggest(given: object, known: Iterable[str]) -> str:
    """Suggest the nearest known names, " Did you mean ...?", or nothing."""
    near = (
        difflib.get_close_matches(given, list(known), n=3, cutoff=0.55)
        if isinstance(given, str)
        else []
    )
    return f" Did you mean {' or '.join(map(repr, near))}?" if near else ""


def quoted(names: Iterable[object]) -> str:
    """List names for a message, each in quotes."""
    return ", ".join(map(repr, names))


def differences(kept: object, now: object, name: str = "") -> Iterator[str]:
    """Yield the names at which two descriptions differ; with `(kept ..., now ...)` if both are
    plain settings."""
    if isinstance(kept, Mapping) and isinstance(now, Mapping):
        for key in sorted(kept.keys() | now.keys()):
            yield from differences(
                kept.get(key), now.get(key), f"{name}.{key}" if name else str(key)
            )
    elif isinstance(kept, list) and isinstance(now, list) and len(kept) == len(now):
        for i, pair in enumerate(zip(kept, now, strict=True)):
            yield from differences(*pair, f"{name}[{i}]")
    elif kept != now:
        plain = isinstance(kept, PLAIN) and isinstance(now, PLAIN)
        yield f"{name} (kept {_setting(kept)}, now {_setting(now)})" if plain else name


def told(found: Sequence[str], between: str = "; ") -> str:
    """List the first of these texts for a message, and how many more there are."""
    more = len(found) - _TOLD
    return between.join([*found[:_TOLD], *([f"and {more:,} more"] if more > 0 else [])])


def _setting(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def joined(names: Iterable[str]) -> str:
    """Join names of columns to one text, with commas in names escaped: different lists give
    different texts."""
    return ",".join(name.replace("\\", "\\\\").replace(",", "\\,") for name in names)


def parted(text: str) -> list[str]:
    """Take apart what `joined` made."""
    return [
        re.sub(r"\\(.)", r"\1", name, flags=re.DOTALL)
        for name in re.findall(r"(?:[^\\,]|\\.)+", text, re.DOTALL)
    ]


# Exact sums of budgets
# --------------------------------------------------------------------------------------------------


def exact(value: float) -> Fraction:
    """Read a float as the decimal number that `repr` shows, exactly."""
    return Fraction(repr(float(value)))


def float_up(value: Fraction) -> float:
    """Round up to the least float that is not below `value`; infinity above them all."""
    try:
        near = float(value)
    except OverflowError:
        return math.inf
    return near if exact(near) >= value else math.nextafter(near, math.inf)


def float_down(value: Fraction, *, binary: bool = False) -> float:
    """Round down to the greatest float that is not above `value`, as the decimal number that it
    shows; if asked for, as the binary one."""
    near = float(value)
    read = Fraction(near) if binary else exact(near)
    return near if read <= value else math.nextafter(near, -math.inf)


def sum_up(values: Iterable[float]) -> float:
    """Sum of budgets, exact in decimals, then rounded up to a float."""
    return float_up(sum((exact(v) for v in values), Fraction(0)))


def left_of(total: float, part: float, what: str = "the prior") -> float:
    """Compute the budget that is left after a part, rounded down so that the decimals as written
    never sum to more than the total.

    Parameters
    ----------
    total, part : float
    what : str, default="the prior"
        Whose part it is, for the message.
    """
    whole, first = exact(epsilon(total)), exact(epsilon(part))
    if not first < whole:
        raise InvalidInput(
            f"Expected {what} to cost less than the total epsilon={total!r}, got {part!r}. Lower"
            " it: something must be left for labels."
        )
    rest = float_down(whole - first)
    if not rest > 0:
        raise InvalidInput(
            f"Expected {what} to leave something of epsilon={total!r}, got {part!r}. Lower it."
        )
    return rest
