# SPDX-License-Identifier: Apache-2.0
"""A law of your own: the label, or a class near it on a circle, as days of the week are. The
command line and Python know it by its name.

export PYTHONPATH=examples labeldp release visits.csv --label day --classes mo,tu,we,th,fr,sa,su
--epsilon 2 --law wheel_law:Wheel --out noisy.csv python examples/wheel_law.py
"""

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from itertools import accumulate
from typing import Any, ClassVar

import numpy as np

import labeldp as ldp
from labeldp.laws import WORD, Cell, Side, Table, Words, exp_floor
from labeldp.testing import check_law


@ldp.register_law
@dataclass(frozen=True)
class Wheel(ldp.Law):
    """Release a class of a circle: the label e^epsilon times as often as one further away, its two
    neighbours e^(epsilon / 2) times.

    Notes
    -----
    Output: a label, (n,) int32. Side: none. Cost: one word a row.
    """

    name: ClassVar[str] = "wheel"
    kind: ClassVar = "label"
    uses_prior: ClassVar[bool] = False

    @cached_property
    def _words(self) -> list[int]:
        """How many of the 2^64 words release the class i places behind the label."""
        k = self.n_classes
        away = [min(i, k - i) for i in range(k)]
        wanted = [Fraction(math.exp(-self.epsilon * min(steps / 2, 1.0))) for steps in away]
        words = [math.floor(WORD * share / sum(wanted)) for share in wanted]
        # whole numbers, so that no ratio is above e^epsilon
        words[0] = min(words[0], math.floor(exp_floor(self.epsilon) * min(words)))
        words[k // 2] += WORD - sum(words)  # what rounding left goes to the rarest
        return words

    def prepare(self, prior: Any, words: Words | None = None) -> dict[str, Any]:
        return {}

    def sample(self, labels: Any, words: Words, side: Side) -> Any:
        edges = np.array(list(accumulate(self._words))[:-1], dtype=np.uint64)
        places = np.searchsorted(edges, words.take(0), side="right")
        return ((labels + places) % self.n_classes).astype(np.int32)

    def log_likelihood(self, outputs: Any, side: Side) -> Any:
        score = np.log(self.matrix()).T[outputs]
        return score - score.max(axis=1, keepdims=True)

    def inclusion(self, outputs: Any, side: Side) -> tuple[Any, Any]:
        own, *others = self._words
        known = len(set(others)) == 1  # else how often a class is released depends on its place
        return np.full(len(outputs), own / WORD if known else np.nan), np.full(
            len(outputs), others[0] / WORD if known else np.nan
        )

    def weights(self, outputs: Any, side: Side) -> Any:
        return np.linalg.inv(self.matrix())[outputs]

    def profile(self, side_row: Side) -> tuple[Cell, ...]:
        return tuple(
            Cell("class", "class", f"{i} places behind", Fraction(words, WORD), 1)
            for i, words in enumerate(self._words)
        )

    def layout(self) -> dict[str, tuple[np.dtype, tuple[int, ...]]]:
        return {"output": (np.dtype(np.int32), ())}

    def table(self, side_row: Side) -> Table:
        classes = np.arange(self.n_classes, dtype=np.int32)
        return Table(
            classes,
            tuple(Fraction(words, WORD) for words in self._words),
            ((classes - classes[:, None]) % self.n_classes).astype(np.uint16),
        )


if __name__ == "__main__":
    check_law(Wheel(n_classes=7, epsilon=2.0))
    wheel, response = Wheel(7, 2.0), ldp.RandomizedResponse(7, 2.0)
    print(
        f"epsilon 2, 7 days: wheel tells {wheel.information():.3f} nats, randomized response"
        f" {response.information():.3f}"
    )
    days = np.random.default_rng(0).integers(7, size=1000)
    for law in (wheel, response):
        noisy = ldp.privatize(
            ldp.PrivateLabels(days, classes=range(law.n_classes), noise=ldp.SeededNoise(0)), law
        ).hard_codes()
        off = np.minimum((noisy - days) % 7, (days - noisy) % 7)
        print(
            f"{law.name}: {np.mean(off == 0):.1%} right, {np.mean(off <= 1):.1%} at most a day off"
        )
