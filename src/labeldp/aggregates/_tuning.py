# SPDX-License-Identifier: Apache-2.0
"""Tuning a central mechanism at a known cost: run it a random number of times, release the best run, keep the others secret.

Tuning on the outputs of a law (randomized response and its kin) is post-processing and free. A central mechanism whose every run reads the
labels anew is not: choosing the best of k runs can cost up to k times as much, but with a random number of runs it costs two to three times
as much, whatever their number. The charge is for the whole tuning, made before the first run.

Source: Papernot and Steinke, "Hyperparameter Tuning with Renyi Differential Privacy" (ICLR 2022), Theorem 2 and Corollary 3; Liu and
Talwar, "Private Selection from Private Candidates" (STOC 2019).
"""

import math
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

_SLACK = 1e-9  # of the accountant's floats, far above their rounding


@dataclass(frozen=True)
class RepeatAndSelect:
    """Repeat a private mechanism a random number of times and release the run with the best score.

    Parameters
    ----------
    mean : float
        Expected number of runs, above 1.
    shape : float
        eta of the truncated negative binomial number of runs: 1 is geometric (the one that `repeats` draws), 0 logarithmic, infinity
        Poisson. Smaller costs less and has the longer tail.

    Notes
    -----
    Guarantee: `pure_epsilon` or `epsilon` for the released run and its choice, where every run is private by itself, its score is part of
    what it gives out, and neither the other runs nor their number (nor how long they took) are released.

    Examples
    --------
    >>> RepeatAndSelect(mean=20).pure_epsilon(0.1)
    0.3
    """

    mean: float
    shape: float = 1.0

    def __post_init__(self) -> None:
        mean = _validate.positive(mean=self.mean, fix="Pass the expected number of runs, for example mean=10.")
        if not mean > 1:
            raise InvalidInput(f"Expected mean > 1, got mean={self.mean!r}. A single run needs no tuning.")
        given = self.shape
        if isinstance(given, bool) or not isinstance(given, int | float) or not given >= 0:
            raise InvalidInput(f"Expected shape >= 0, got shape={given!r}. 1 is geometric, 0 logarithmic, math.inf Poisson.")

    def pure_epsilon(self, epsilon: float) -> float:
        """Bound the epsilon of repeating a pure mechanism, whatever the mean: (2 + shape) epsilon, rounded up. Infinite for Poisson."""
        base = _validate.epsilon(epsilon)
        return math.inf if math.isinf(self.shape) else float_up(exact(base) * (2 + exact(self.shape)))

    def epsilon(self, base: object, delta: float) -> float:
        """Bound epsilon at delta of the whole tuning.

        Parameters
        ----------
        base : float or dp_accounting.DpEvent
            One run: a pure epsilon, or an event that dp-accounting knows (`GaussianDpEvent(sigma / sqrt(2))` for noisy votes: a replaced
            label moves two counts).
        delta : float
            0 < delta < 1.

        Returns
        -------
        float, by dp-accounting's Renyi accountant, raised by one part in 10^9; for a pure base at most `pure_epsilon`.

        Raises
        ------
        MissingExtra
            Without dp-accounting.
        """
        target = _validate.fraction(delta=delta)
        accounting, renyi = _accounting()
        pure, event = math.inf, base
        if isinstance(base, int | float):
            pure = self.pure_epsilon(base)
            event = accounting.ZCDpEvent(float(base) ** 2 / 2)  # pure epsilon implies epsilon^2 / 2 zero-concentrated
        accountant = renyi.RdpAccountant(neighboring_relation=accounting.NeighboringRelation.REPLACE_ONE)
        if not (isinstance(event, accounting.DpEvent) and accountant.supports(event)):
            raise InvalidInput(f"Expected an event that dp-accounting's Renyi accountant knows, got {base!r}. Pass a pure epsilon instead.")
        accountant.compose(accounting.dp_event.RepeatAndSelectDpEvent(event, self.mean, self.shape))
        return min(pure, math.nextafter(float(accountant.get_epsilon(target)) * (1 + _SLACK), math.inf))

    def repeats(self, words: Words) -> int:
        """Draw how many runs: geometric, at least 1, exact in 64-bit words with a mean of at most `mean`. Keep the number secret.

        Parameters
        ----------
        words : Words
            One row: its words number 0, 1, ... are taken until one stops.
        """
        if self.shape != 1:
            raise InvalidInput(
                f"Expected shape=1 to draw the number of runs, got shape={self.shape!r}: only the geometric one is exact here."
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
            One private run with fresh noise, which may draw its parameters at random; the score is computed from its private output, or is
            itself private within the run's epsilon. The highest wins, the first among equals; NaN never wins over a number.
        words : Words
            As in `repeats`; never those of the runs' noise.
        """
        count = self.repeats(words)
        best_score, best = run(0)
        for i in range(1, count):
            score, result = run(i)
            if score > best_score or (math.isnan(best_score) and not math.isnan(score)):
                best_score, best = score, result
        return best


def _accounting() -> tuple[ModuleType, ModuleType]:
    """Import dp-accounting and its Renyi part, or raise MissingExtra."""
    try:
        return import_module("dp_accounting"), import_module("dp_accounting.rdp")
    except ImportError:
        raise MissingExtra("Expected dp-accounting for this bound, which is not installed. pip install 'labeldp[central]'") from None
