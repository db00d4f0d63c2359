# SPDX-License-Identifier: Apache-2.0
"""The prior by which an estimator draws its rows, with its settings."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Self

from labeldp import _validate
from labeldp.errors import InvalidInput

TopK = int | Literal["mean"]


@dataclass(frozen=True, eq=False)
class Prior:
    """The prior of an estimator, with settings for its later stages.

    Parameters
    ----------
    table : (n, K) array of floats >= 0, mapping, function of X, ClusterPrior, or None
        As an estimator's `prior=` by itself. None: uniform in the first stage.
    weight : float in [0, 1], default=0.0
        How much of the table is mixed into later stages: row by row they draw with (1 - w) x the
        model's prediction + w x the table, both scaled to sum to 1. 0: the model alone; 1: the
        table alone. It costs nothing: both are public, or follow from what was released. It
        identifies the fit, so that a fit with another weight is no repeat. No effect in one stage.
    temperature : float > 0, default=1.0
        Temperature of a model's probabilities as the next stage's prior: below 1 sharpens them,
        above 1 flattens them.
    top_k : int >= 1, "mean" or None, default=None
        In later stages, leave out rows of earlier stages whose output contains none of the k
        classes that are likeliest by the model so far. "mean", as in the paper: k is the mean
        number of candidates of the latest stage, so the law must be rr-with-prior or rr-top-k. None
        keeps all rows.

    References
    ----------
    Ghazi, Golowich, Kumar, Manurangsi and Zhang (2021), "Deep Learning with Label Differential
    Privacy", Algorithm 3 and appendix B.

    Examples
    --------
    >>> from labeldp.learn import Prior
    >>> Prior(temperature=0.5, top_k="mean").weight
    0.0
    """

    table: Any = None
    weight: float = 0.0
    temperature: float = 1.0
    top_k: TopK | None = None

    @classmethod
    def of(cls, given: Any) -> Self:
        """Return an estimator's `prior=` with its settings, also if it is a table alone."""
        return given if isinstance(given, cls) else cls(given)

    def __post_init__(self) -> None:
        _validate.fraction(weight=self.weight, zero=True, one=True)
        _validate.positive(temperature=self.temperature)
        if self.top_k is not None and self.top_k != "mean":
            _validate.integer(
                top_k=self.top_k, low=1, fix="'mean' is the paper's, None keeps all rows."
            )


def stages_of(stages: Any) -> tuple[float, ...]:
    """Check an estimator's stages, a number or their shares at any scale, and return the shares."""
    if not isinstance(stages, Sequence):
        return (1.0,) * _validate.integer(stages=stages, low=1)
    if isinstance(stages, str) or not len(stages):
        raise InvalidInput(
            f"Expected stages as a number, or shares such as (0.7, 0.3), got {stages!r}."
        )
    return tuple(_validate.positive(stages=share) for share in stages)
