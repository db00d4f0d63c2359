# SPDX-License-Identifier: Apache-2.0
"""What ClusterRR costs together with the private histogram behind its prior, and how to divide a budget between the two.

The mechanism has two parts on the same labels: a noisy label distribution of every cluster (Laplace noise of scale sigma on the counts),
then ClusterRR with that distribution as prior. A replaced label takes one from one count and gives one to another: the counts' sensitivity
is 2, so the first part costs 2 / sigma, not the 1 / sigma of Theorem 1 of Esfandiari et al. (2021). The parts add.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from labeldp import _validate
from labeldp._validate import exact, float_down, float_up, sum_up
from labeldp.errors import InvalidInput
from labeldp.laws._cluster import ClusterRR, checked_floor
from labeldp.laws._exact import exp_floor, log_ceil

_SHARES = (0.0, *(float(s) for s in np.round(np.geomspace(0.005, 0.9, 24), 4)))  # of the budget, for the histogram
_FLOORS = tuple(float(f) for f in np.round(np.geomspace(0.004, 1.0, 32), 4))  # in units of 1 / K


def smoothed(frequencies: ArrayLike, floor: float | Fraction) -> NDArray[np.object_] | NDArray[np.float64]:
    """Turn noisy label frequencies into distributions with no class below the floor: clipped and renormalised as in Algorithm 1.

    Parameters
    ----------
    frequencies : (n, K) or (K,) numbers
        Noisy counts divided by the cluster's size; may be negative or above 1. Fractions give exact results.
    floor : float or Fraction
        tau, 0 <= tau <= 1 / K.

    Returns
    -------
    Distributions of the same shape, in [floor, 1]. ClusterRR takes them as prior unchanged, to its grid of 2^-32. A cluster without rows
    has no frequencies: use the uniform distribution.
    """
    values = np.asarray(frequencies)
    values = values if values.dtype == object else values.astype(np.float64)
    if values.ndim not in (1, 2) or values.shape[-1] < 2:
        raise InvalidInput(f"Expected frequencies of shape (n, K) or (K,), K >= 2; got shape {values.shape}.")
    if not all(-math.inf < v < math.inf for v in values.flat):
        raise InvalidInput("Expected finite frequencies, got NaN or infinity. Give clusters without rows the uniform distribution.")
    if not 0 <= floor <= (Fraction(1, values.shape[-1]) if isinstance(floor, Fraction) else 1.0 / values.shape[-1]):
        raise InvalidInput(f"Expected 0 <= floor <= 1/{values.shape[-1]}, got floor={floor!r}: the floors of all classes must fit.")
    least = np.asarray(floor, dtype=values.dtype)
    clipped = np.minimum(np.maximum(values, least), 1)
    # What clipping added is taken from the classes above the floor, in proportion; what it took is given in proportion to the room.
    missing = 1 - clipped.sum(axis=-1, keepdims=True)
    room = np.where(missing < 0, clipped - least, 1 - clipped)
    total = room.sum(axis=-1, keepdims=True)
    return np.asarray(clipped + room * (missing / np.where(total == 0, 1, total)))


def resampling_epsilon(floor: float, resample: float) -> float:
    """Compute what releasing labels costs: ln(1 + (1 - lambda) / (lambda tau)), rounded up. 0 at lambda = 1, infinite at tau = 0.

    Parameters
    ----------
    floor : float
        tau, 0 <= tau < 1.
    resample : float
        lambda, 0 < lambda <= 1. At 0 the labels would be released as they are: refused.
    """
    tau, rate = exact(_validate.fraction(floor=floor, zero=True)), _resample(resample)
    if rate == 1:
        return 0.0
    return math.inf if tau == 0 else log_ceil(1 + (1 - rate) / (rate * tau))


def _resample(resample: float) -> Fraction:
    fix = "0 releases the labels as they are, at no finite epsilon."
    return exact(_validate.fraction(resample=resample, one=True, fix=fix))


def histogram_epsilon(sigma: float) -> float:
    """Compute what Laplace noise of scale sigma on the counts of disjoint clusters costs: 2 / sigma, rounded up. Infinite at 0.

    Parameters
    ----------
    sigma : float
        Scale of the noise on each count, >= 0; infinity is no histogram at all, at no cost.
    """
    if isinstance(sigma, bool) or not isinstance(sigma, int | float) or not sigma >= 0:
        raise InvalidInput(f"Expected sigma >= 0, got sigma={sigma!r}. Pass the scale of the noise on a count.")
    if sigma in (0, math.inf):
        return math.inf if sigma == 0 else 0.0
    return float_up(2 / exact(sigma))


@dataclass(frozen=True)
class ClusterBudget:
    """The two parts of the clustering mechanism, with what each costs.

    Parameters
    ----------
    n_classes : int
        K, at least 2.
    histogram_epsilon : float
        Of the private histogram, at least 0 (infinity without noise); 0 where the floor is 1 / K, since nothing of it is then seen.
    floor : float
        tau, 2^-32 <= tau <= 1 / K; or 0 where label_epsilon is 0.
    label_epsilon : float
        Of ClusterRR, finite; 0 where lambda is 1: all outputs are draws from the distributions, and say no more than these do.

    Guarantee: `epsilon`, their sum, for the release of everything: the distributions and all outputs.
    """

    n_classes: int
    histogram_epsilon: float
    floor: float
    label_epsilon: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "n_classes", _classes(self.n_classes))
        tells = self.label_epsilon != 0
        object.__setattr__(self, "floor", checked_floor(self.floor, self.n_classes) if tells or self.floor != 0 else 0.0)
        object.__setattr__(self, "label_epsilon", _validate.positive(label_epsilon=self.label_epsilon) if tells else 0.0)
        given = self.histogram_epsilon
        if isinstance(given, bool) or not isinstance(given, int | float) or not given >= 0:
            raise InvalidInput(
                f"Expected histogram_epsilon >= 0, got {given!r}. 0 is no histogram; 2 / sigma is that of noise of scale sigma."
            )
        object.__setattr__(self, "histogram_epsilon", float(given))

    @classmethod
    def of(cls, n_classes: int, *, sigma: float, floor: float, resample: float) -> Self:
        """Make the budget that the paper's parameters cost.

        Parameters
        ----------
        n_classes : int
            K, at least 2.
        sigma : float
            Scale of the Laplace noise on the counts (sigma / n_c on frequencies).
        floor : float
            tau, 2^-32 <= tau <= 1 / K; 0 with lambda = 1 alone.
        resample : float
            lambda, 0 < lambda <= 1.
        """
        k = _classes(n_classes)
        tau = 0.0 if floor == 0 and resample == 1 else checked_floor(floor, k)
        return cls(k, 0.0 if tau == 1.0 / k else histogram_epsilon(sigma), tau, resampling_epsilon(tau, resample))

    @property
    def epsilon(self) -> float:
        """Add up what both parts cost, rounded up."""
        total = (self.histogram_epsilon, self.label_epsilon)
        return math.inf if math.inf in total else sum_up(total)

    @property
    def published_epsilon(self) -> float:
        """Compute what Theorem 1 of Esfandiari et al. (2021) claims for the same mechanism: too little, its first part by half."""
        return self.histogram_epsilon / 2 + self.label_epsilon

    @property
    def sigma(self) -> float:
        """Compute the scale of the noise on a count."""
        return math.inf if self.histogram_epsilon == 0 else 2.0 / self.histogram_epsilon

    @property
    def resample(self) -> float:
        """Compute lambda where the least class has the floor itself; a row with a higher minimum resamples less often at this epsilon."""
        gain = exp_floor(self.label_epsilon) - 1 if self.label_epsilon else Fraction(0)
        return float(1 / (1 + exact(self.floor) * gain))

    @property
    def law(self) -> ClusterRR:
        """Make the law of the second part; refuse lambda = 1, which needs none."""
        if self.label_epsilon == 0:
            raise InvalidInput(
                "Expected lambda < 1 (label_epsilon > 0) for a law of the labels, got lambda = 1, at which outputs are draws from the "
                "clusters' distributions alone. Release these, and draw from them as you like."
            )
        return ClusterRR(self.n_classes, self.label_epsilon, self.floor)

    def require(self, epsilon: float) -> Self:
        """Check that this budget costs at most epsilon; InvalidInput names both numbers otherwise."""
        if not self.epsilon <= _validate.epsilon(epsilon):
            raise InvalidInput(
                f"Expected parameters that cost at most epsilon={epsilon!r}, got {self.epsilon!r}: {self.histogram_epsilon!r} for the "
                f"distributions (2 / sigma: a replaced label changes two counts) and {self.label_epsilon!r} for the labels. "
                "Raise sigma or lambda, or let split_budget choose."
            )
        return self


def _classes(n_classes: object) -> int:
    return _validate.integer(n_classes=n_classes, low=2, fix="One class needs no privacy.")


def corollary_1(n_classes: int, epsilon: float) -> ClusterBudget:
    """Make the budget of UniformRR: tau = 1 / K, lambda = K / (K - 1 + e^epsilon), any sigma. Exactly randomized response, at epsilon.

    Source: Esfandiari et al. 2021, Corollary 1; sigma need not be infinite, since no cluster's distribution is seen through tau = 1 / K.
    """
    k = _classes(n_classes)
    return ClusterBudget(k, 0.0, 1.0 / k, _validate.epsilon(epsilon))


def corollary_2(n_classes: int, epsilon: float, phi: float) -> ClusterBudget:
    """Make the paper's settings: sigma = 1 / epsilon, tau = phi, lambda = 1 / (1 + (e^epsilon - 1) phi). They cost 3 epsilon.

    Parameters
    ----------
    n_classes : int
    epsilon : float
        The paper's parameter, a third of the true cost.
    phi : float
        At most 1 / K. In the paper the heterogeneity of the clusters, the mean over rows of sum_y |P(y | row) - P(y | cluster)|, which is
        not public (estimating it from labels costs more) and may be above 1 / K, where no floor is that large: then refused.

    Source: Esfandiari et al. 2021, Corollary 2, which says O(epsilon); 2 epsilon by its Theorem 1, 3 with the histogram's sensitivity of 2.
    """
    k, budget = _classes(n_classes), _validate.epsilon(epsilon)
    floor = checked_floor(phi, k)
    return ClusterBudget(k, 0.0 if floor == 1.0 / k else float_up(2 * exact(budget)), floor, budget)


@dataclass(frozen=True)
class ClusterSplit:
    """A division of a budget, and what is expected of it.

    Attributes
    ----------
    budget : ClusterBudget
        epsilon_1, tau and epsilon_2 (and so lambda).
    agreement : float
        Expected share of outputs that equal the label: 1 minus the noise rate that a trainer on hard labels meets.
    information : float
        Expected nats about a row's label in the cluster's distribution and the output together.
    """

    budget: ClusterBudget
    agreement: float
    information: float


def split_budget(
    epsilon: float,
    sizes: Sequence[int] | NDArray[np.integer],
    n_classes: int,
    *,
    purity: float = 0.75,
    criterion: Literal["information", "agreement"] = "information",
) -> ClusterSplit:
    """Divide epsilon between the clusters' distributions and the labels, from public facts only.

    Parameters
    ----------
    epsilon : float
        For everything.
    sizes : (n_clusters,) integers
        Rows in each cluster, public since features are. Empty clusters count for nothing.
    n_classes : int
        K, at least 2.
    purity : float
        What you believe, without having looked, of the share of a cluster's most frequent label; at least 1 / K. The others are taken to
        share the rest evenly. A wrong belief costs accuracy, never privacy.
    criterion : {"information", "agreement"}
        Maximise the information that a learner with likelihoods has, or the share of outputs that equal the label, for hard labels.

    Returns
    -------
    ClusterSplit. The best of 25 shares of the budget x 32 floors by a closed-form prediction: Laplace noise in expectation, renormalised at
    its mean. Cost O(number of different sizes).

    Notes
    -----
    With the distribution known to the reader, tau = 1 / K would tell most by the output alone: a lower floor pays because the cluster's
    distribution is then in the release, and because outputs agree with labels more often.

    Examples
    --------
    >>> split = split_budget(0.5, [600] * 100, 10)
    >>> split.budget.epsilon <= 0.5
    True
    """
    total, k = _validate.epsilon(epsilon), _classes(n_classes)
    name = _validate.one_of(("information", "agreement"), criterion=criterion)
    share = _validate.fraction(purity=purity, one=True)
    if share < 1.0 / k:
        raise InvalidInput(f"Expected purity >= 1/{k}, the share of the most frequent label, got purity={purity!r}.")
    counts = np.asarray(sizes)
    if counts.ndim != 1 or counts.dtype.kind not in "iu" or not (counts >= 0).all() or not counts.any():
        raise InvalidInput("Expected the sizes of the clusters as whole numbers >= 0, at least one above 0. Pass np.bincount(cluster).")
    distinct, times = np.unique(counts[counts > 0], return_counts=True)
    weight = distinct * times / float((distinct * times).sum())
    uniform = corollary_1(k, total).law  # what cannot be done with the most even distribution, cannot be done at all
    options = [ClusterBudget(k, 0.0, 1.0 / k, uniform.epsilon)]
    options += [_option(total, k, part, floor) for part in _SHARES[1:] for floor in _FLOORS[:-1]]
    made = [ClusterSplit(option, *_predict(option, distinct, weight, share)) for option in options if _honoured(option)]
    return max(made, key=lambda split: float(getattr(split, name)))


def _option(total: float, n_classes: int, share: float, floor: float) -> ClusterBudget:
    first = float_down(exact(total) * exact(share))
    rest = float_down(exact(total) - exact(first))
    # Two floats may add up to more as decimals, and a ledger compares budgets without any tolerance.
    if exact(first) + exact(rest) > exact(total):  # read as decimals, as they are charged
        rest = math.nextafter(rest, 0.0)
    return ClusterBudget(n_classes, first, floor / n_classes, rest)


def _honoured(option: ClusterBudget) -> bool:
    """Tell whether 64-bit words can honour the law."""
    try:
        return option.law.epsilon == option.label_epsilon
    except InvalidInput:
        return False


def _predict(option: ClusterBudget, sizes: NDArray[np.integer], weight: NDArray[np.float64], purity: float) -> tuple[float, float]:
    """Predict (agreement, information), in expectation over clusters of these sizes."""
    k, tau, rate = option.n_classes, option.floor, option.resample
    shares = np.array([purity, (1.0 - purity) / (k - 1)])
    count = np.array([1.0, k - 1.0])
    if option.histogram_epsilon:
        scale = (option.sigma / sizes)[:, None]
        gap = shares - tau
        above = np.maximum(gap, 0.0) + 0.5 * scale * np.exp(-np.abs(gap) / scale)  # E max(share + noise - tau, 0)
        q = tau + (1.0 - k * tau) * above / (above @ count)[:, None]
    else:
        q = np.full((len(sizes), 2), 1.0 / k)
    keep = (1.0 - rate) + rate * q
    agreement = (keep * shares * count).sum(axis=1)
    told = keep * np.log(keep) + rate * (1.0 - q) * np.log(rate * q)  # of one label: E ln posterior, by q and the output
    information = math.log(k) + (told * shares * count).sum(axis=1)
    return float(agreement @ weight), float(information @ weight)
