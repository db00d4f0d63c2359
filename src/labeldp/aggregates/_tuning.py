# SPDX-License-Identifier: Apache-2.0
"""Tunes a central mechanism at a known cost: run it a random number of times, release the best run,
and keep the others secret.

Tuning on the outputs of a law is post-processing, which is free. But each run of a central
mechanism reads the labels anew: choosing the best of k runs can cost k times as much. With a random
number of runs it costs two to three times as much, whatever their number.

References
----------
Papernot and Steinke 2022, "Hyperparameter tuning with Renyi differential privacy" (ICLR), Theorem 2
and Corollary 3; Liu and Talwar 2019, "Private selection from private candidates" (STOC).
"""

import math
import numbers
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from importlib import import_module
from types import ModuleType
from typing import TypeVar

from labeldp import _validate
from labeldp._validate import exact, float_up
from labeldp.errors import InvalidInput, MissingExtra
from labeldp.laws._exact import WORD, Words, whole_above

Result = TypeVar("Result")

_SLACK = 1e-9  # relative; it covers the rounding of the accountant's floats


@dataclass(frozen=True)
class RepeatAndSelect:
    """Repeat a private mechanism a random number of times and release the run with the best score.

    Parameters
    ----------
    mean : float
        Expected number of runs, above 1.
    shape : float
        eta of the truncated negative binomial distribution of the number of runs: 1 (default) is
        geometric, the only one that `repeats` draws; 0 is logarithmic, infinity Poisson. A smaller
        eta costs less and has a longer tail.

    Notes
    -----
    Guarantee: `pure_epsilon` or `epsilon` for the released run and its choice. Each run must be
    private, with its score as a part of its output; and neither the other runs, nor their number,
    nor the time that they took, may be released.

    Examples
    --------
    >>> RepeatAndSelect(mean=20).pure_epsilon(0.1)
    0.3
    """

    mean: float
    shape: float = 1.0

    def __post_init__(self) -> None:
        mean = _validate.positive(
            mean=self.mean, fix="Pass the expected number of runs, for example mean=10."
        )
        if not mean > 1:
            raise InvalidInput(
                f"Expected mean > 1, got mean={self.mean!r}. A single run needs no tuning."
            )
        given: object = self.shape
        if isinstance(given, bool) or not isinstance(given, numbers.Real) or not float(given) >= 0:
            raise InvalidInput(
                f"Expected shape >= 0, got shape={given!r}. 1 is geometric, 0 logarithmic, math.inf"
                " Poisson."
            )
        object.__setattr__(self, "mean", mean)
        object.__setattr__(self, "shape", float(given))

    def pure_epsilon(self, epsilon: float) -> float:
        """Return the epsilon of tuning a pure mechanism, for any mean: (2 + shape) epsilon, rounded
        up. Infinite for Poisson."""
        base = _validate.epsilon(epsilon)
        return (
            math.inf if math.isinf(self.shape) else float_up(exact(base) * (2 + exact(self.shape)))
        )

    def epsilon(self, base: object, delta: float) -> float:
        """Compute an upper bound of the whole tuning's epsilon at delta.

        Parameters
        ----------
        base : float or dp_accounting.DpEvent
            The cost of one run: a pure epsilon, or an event that dp-accounting knows
            (`GaussianDpEvent(sigma / sqrt(2))` for noisy votes, since a replaced label moves two
            counts).
        delta : float
            0 < delta < 1.

        Returns
        -------
        float
            The bound of dp-accounting's Renyi accountant, raised by one part in 10^9; for a pure
            base at most `pure_epsilon`.

        Raises
        ------
        MissingExtra
            dp-accounting is not installed.
        """
        target = _validate.fraction(delta=delta)
        accounting, renyi = _accounting()
        pure, event = math.inf, base
        if isinstance(base, int | float):
            pure = self.pure_epsilon(base)
            # pure epsilon implies epsilon^2 / 2 zCDP (Bun and Steinke 2016)
            event = accounting.ZCDpEvent(float(base) ** 2 / 2)
        accountant = renyi.RdpAccountant(
            neighboring_relation=accounting.NeighboringRelation.REPLACE_ONE
        )
        if not (isinstance(event, accounting.DpEvent) and accountant.supports(event)):
            raise InvalidInput(
                f"Expected an event that dp-accounting's Renyi accountant knows, got {base!r}. Pass"
                " a pure epsilon instead."
            )
        accountant.compose(accounting.dp_event.RepeatAndSelectDpEvent(event, self.mean, self.shape))
        return min(
            pure, math.nextafter(float(accountant.get_epsilon(target)) * (1 + _SLACK), math.inf)
        )

    def repeats(self, words: Words) -> int:
        """Draw the number of runs, at least 1, exactly geometric with a mean of at most `mean`.
        Keep it secret.

        Parameters
        ----------
        words : Words
            The words of one row, which are taken until one is below the threshold.
        """
        if self.shape != 1:
            raise InvalidInput(
                f"Expected shape=1 to draw the number of runs, got shape={self.shape!r}: only the"
                " geometric one is exact here."
            )
        if len(words) != 1:
            raise InvalidInput(f"Expected the word stream of one row, got {len(words)}.")
        stop, count = whole_above(WORD / Fraction(self.mean)), 0
        while int(words.take(count)[0]) >= stop:
            count += 1
        return count + 1

    def select(self, run: Callable[[int], tuple[float, Result]], words: Words) -> Result:
        """Return the result of the best of a random number of runs.

        Parameters
        ----------
        run : function of the run's number (0, 1, ...) to (score, result)
            One private run with fresh noise, which may draw its parameters at random. The score is
            computed from the private output, or is private within the run's epsilon. The highest
            score wins, the first of equal ones; NaN loses to every number.
        words : Words
            As in `repeats`. The runs' noise must come from other words.
        """
        count = self.repeats(words)
        best_score, best = run(0)
        for i in range(1, count):
            score, result = run(i)
            if score > best_score or (math.isnan(best_score) and not math.isnan(score)):
                best_score, best = score, result
        return best


def _accounting() -> tuple[ModuleType, ModuleType]:
    try:
        return import_module("dp_accounting"), import_module("dp_accounting.rdp")
    except ImportError:
        raise MissingExtra(
            "Expected dp-accounting for this bound, which is not installed. pip install"
            " 'labeldp[central]'"
        ) from None
