# SPDX-License-Identifier: Apache-2.0
"""Tunes a central mechanism at a known cost: run it a random number of times, release the best run,
and keep the others secret.

Tuning on the outputs of a law is post-processing, which is free. But each run of a central
mechanism reads the labels anew: choosing the best of k runs can cost k times as much. With a random
number of runs it costs three times as much.

References
----------
Papernot and Steinke 2022, "Hyperparameter tuning with Renyi differential privacy" (ICLR), Theorem 2
and Corollary 3; Liu and Talwar 2019, "Private selection from private candidates" (STOC).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

from labeldp import _validate
from labeldp._validate import exact, float_up
from labeldp.aggregates._base import Result, Tuning
from labeldp.errors import InvalidInput
from labeldp.laws._exact import WORD, Words, whole_above


@dataclass(frozen=True)
class RepeatAndSelect(Tuning):
    """Repeat a private mechanism a geometric number of times and release the run with the best
    score.

    Parameters
    ----------
    mean : float
        Expected number of runs, above 1.

    Notes
    -----
    Guarantee: `pure_epsilon` for the released run and its choice, whatever the mean. Each run must
    be pure, with its score as a part of its output; and neither the other runs, nor their number,
    nor the time that they took, may be released. The paper's other truncated negative binomial
    distributions cost 2 + shape times epsilon; that of shape 1 is geometric, and is drawn exactly.

    Examples
    --------
    >>> RepeatAndSelect(mean=20).pure_epsilon(0.1)
    0.3
    """

    mean: float

    def __post_init__(self) -> None:
        mean = _validate.positive(
            mean=self.mean, fix="Pass the expected number of runs, for example mean=10."
        )
        if not mean > 1:
            raise InvalidInput(
                f"Expected mean > 1, got mean={self.mean!r}. A single run needs no tuning."
            )
        object.__setattr__(self, "mean", mean)

    def pure_epsilon(self, epsilon: float) -> float:
        """Return the epsilon of tuning a pure mechanism, for any mean: 3 epsilon, rounded up."""
        return float_up(3 * exact(_validate.epsilon(epsilon)))

    def to_dict(self) -> dict[str, float]:
        """Return mean and shape of the distribution."""
        return {"mean": self.mean, "shape": 1.0}

    def repeats(self, words: Words) -> int:
        """Draw the number of runs, at least 1, exactly geometric with a mean of at most `mean`.
        Keep it secret.

        Parameters
        ----------
        words : Words
            The words of one row, which are taken until one is below the threshold.
        """
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
