# SPDX-License-Identifier: Apache-2.0
"""Esfandiari, Mirrokni, Syed and Vassilvitskii, "Label differential privacy via clustering".

Algorithm 1   `ClusterRR` with `ClusterRRPrior` in a fit, or `smoothed` distributions as its prior;
              `ClusterBudget` and `split_budget` say what both parts cost. `modified_loss` learns.
Corollary 1   `UniformRR`, `corollary_1`; Corollary 2: `corollary_2`
Algorithm 2   `PeerToPeer`, the query `Peer` and its protocol `run`; `ones_shares`, `ones_errors`
Theorem 5     `association_limit`

Algorithm 1 has two parts on the same labels: a noisy label distribution of every cluster (Laplace
noise of scale sigma on the counts), then ClusterRR with that distribution as prior. A replaced
label lowers one count by 1 and raises another by 1, so the counts' sensitivity is 2, and the first
part costs 2 / sigma, not the 1 / sigma of Theorem 1. The parts add.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from labeldp import _validate
from labeldp._validate import exact, float_down, float_up, left_of, sum_up
from labeldp.aggregates._histogram import three_digits
from labeldp.errors import InvalidInput
from labeldp.laws import ClusterRR, Law, Side
from labeldp.laws._cluster import checked_floor
from labeldp.laws._exact import exp_floor, log_ceil
from labeldp.learn import ClusterPrior
from labeldp.papers._peer import Peer, PeerToPeer, ones_errors, ones_shares, run
from labeldp.protocol._fit import GroupPlan

__all__ = [
    "ClusterBudget",
    "ClusterRR",
    "ClusterRRPrior",
    "ClusterSplit",
    "Peer",
    "PeerToPeer",
    "UniformRR",
    "association_limit",
    "corollary_1",
    "corollary_2",
    "histogram_epsilon",
    "modified_loss",
    "ones_errors",
    "ones_shares",
    "resampling_epsilon",
    "run",
    "smoothed",
    "split_budget",
]

_LARGEST = 700.0  # e^epsilon is finite in double precision up to here
# shares of the budget for the histogram, to try
_SHARES = (0.0, *(float(s) for s in np.round(np.geomspace(0.005, 0.9, 24), 4)))
# floors to try, in units of 1 / K
_FLOORS = tuple(float(f) for f in np.round(np.geomspace(0.004, 1.0, 32), 4))

UniformRR = ClusterRR.uniform
"""UniformRR (Corollary 1) of K classes at epsilon: tau = 1 / K, which is randomized response."""


def modified_loss(
    law: ClusterRR,
    losses: ArrayLike,
    outputs: NDArray[np.integer],
    side: Side,
    beta: float | None = None,
) -> NDArray[np.float64]:
    """Compute the modified loss (l(z) - beta sum_j q_j l(j)) / (1 - beta) of released labels z.

    Parameters
    ----------
    law : ClusterRR
    losses : (n, K) array
        The loss of each row at every class.
    outputs : (n,) int32
        Released labels z.
    side : mapping
        The result of `law.prepare`, which holds each row's distribution q.
    beta : float, optional
        0 <= beta < 1. None (default): each row's lambda, which makes the loss unbiased.

    Returns
    -------
    (n,) float64
    """
    table = np.asarray(losses, np.float64)
    return np.asarray((law.debiasing_weights(outputs, side, beta) * table).sum(axis=1))


class ClusterRRPrior(ClusterPrior):
    """Algorithm 1 in a fit: `LabelDPClassifier(law="cluster-rr", prior=ClusterRRPrior())`.

    The clusters' histogram and ClusterRR divide the budget as `split_budget` says, unless `epsilon`
    states the histogram's part.

    Parameters
    ----------
    embedder, n_clusters, epsilon, delta, algorithm, random_state, linear
        As in `labeldp.learn.ClusterPrior`.

    Notes
    -----
    Guarantee: that of the fit, in two charges on the same labels that add up to its epsilon.
    """

    def plan_groups(
        self,
        X: Any,
        *,
        n_rows: int,
        n_counted: int,
        n_classes: int,
        epsilon: float,
        max_rows_per_unit: int,
        law: str | Law,
    ) -> GroupPlan:
        """Cluster the rows of X and divide the budget; nothing is charged."""
        plan = super().plan_groups(
            X,
            n_rows=n_rows,
            n_counted=n_counted,
            n_classes=n_classes,
            epsilon=epsilon,
            max_rows_per_unit=max_rows_per_unit,
            law=law,
        )
        if law != ClusterRR.name or self.epsilon is not None or self.delta or max_rows_per_unit > 1:
            return plan
        budget = split_budget(
            epsilon, np.bincount(plan.groups, minlength=plan.query.n_groups), n_classes
        ).budget
        if not budget.histogram_epsilon:
            return plan
        share = three_digits(budget.histogram_epsilon)
        rest = left_of(epsilon, share)
        return replace(
            plan,
            query=replace(plan.query, epsilon=share),
            epsilon=rest,
            law=ClusterRR(n_classes, rest, budget.floor),
        )


def smoothed(
    frequencies: ArrayLike, floor: float | Fraction
) -> NDArray[np.object_] | NDArray[np.float64]:
    """Convert noisy label frequencies to distributions with no class below the floor, clipped and
    renormalised as in Algorithm 1.

    Parameters
    ----------
    frequencies : (n, K) or (K,) numbers
        Noisy counts divided by the cluster's size, which may be negative or above 1. Fractions give
        exact results. For a cluster without rows pass the uniform distribution.
    floor : float or Fraction
        tau, 0 <= tau <= 1 / K.

    Returns
    -------
    array of the same shape
        Distributions in [floor, 1], which are a prior for ClusterRR.
    """
    values = np.asarray(frequencies)
    values = values if values.dtype == object else values.astype(np.float64)
    if values.ndim not in (1, 2) or values.shape[-1] < 2:
        raise InvalidInput(
            f"Expected frequencies of shape (n, K) or (K,), K >= 2; got shape {values.shape}."
        )
    if not all(-math.inf < v < math.inf for v in values.flat):
        raise InvalidInput(
            "Expected finite frequencies, got NaN or infinity. Give clusters without rows the"
            " uniform distribution."
        )
    if (
        not 0
        <= floor
        <= (
            Fraction(1, values.shape[-1]) if isinstance(floor, Fraction) else 1.0 / values.shape[-1]
        )
    ):
        raise InvalidInput(
            f"Expected 0 <= floor <= 1/{values.shape[-1]}, got floor={floor!r}: the floors of all"
            " classes must fit."
        )
    least = np.asarray(floor, dtype=values.dtype)
    clipped = np.minimum(np.maximum(values, least), 1)
    # Mass that clipping added is taken from the classes above the floor, in proportion; mass that
    # it removed is given back in proportion to the room below 1.
    missing = 1 - clipped.sum(axis=-1, keepdims=True)
    room = np.where(missing < 0, clipped - least, 1 - clipped)
    total = room.sum(axis=-1, keepdims=True)
    return np.asarray(clipped + room * (missing / np.where(total == 0, 1, total)))


def resampling_epsilon(floor: float, resample: float) -> float:
    """Compute the epsilon of the released labels: ln(1 + (1 - lambda) / (lambda tau)), rounded up.
    0 at lambda = 1, infinite at tau = 0.

    Parameters
    ----------
    floor : float
        tau, 0 <= tau < 1.
    resample : float
        lambda, 0 < lambda <= 1. 0 is refused, since it releases the labels as they are.
    """
    fix = "0 releases the labels as they are, at no finite epsilon."
    tau, rate = (
        exact(_validate.fraction(floor=floor, zero=True)),
        exact(_validate.fraction(resample=resample, one=True, fix=fix)),
    )
    if rate == 1:
        return 0.0
    return math.inf if tau == 0 else log_ceil(1 + (1 - rate) / (rate * tau))


def histogram_epsilon(sigma: float) -> float:
    """Compute the epsilon of Laplace noise of scale sigma on the counts of disjoint clusters: 2 /
    sigma, rounded up. Infinite at 0.

    Parameters
    ----------
    sigma : float
        Scale of the noise on each count, >= 0. Infinity stands for no histogram, at no cost.
    """
    if isinstance(sigma, bool) or not isinstance(sigma, int | float) or not sigma >= 0:
        raise InvalidInput(
            f"Expected sigma >= 0, got sigma={sigma!r}. Pass the scale of the noise on a count."
        )
    if sigma in (0, math.inf):
        return math.inf if sigma == 0 else 0.0
    return float_up(2 / exact(sigma))


@dataclass(frozen=True)
class ClusterBudget:
    """The privacy cost of the two parts of the clustering mechanism.

    Parameters
    ----------
    n_classes : int
        K, at least 2.
    histogram_epsilon : float
        Epsilon of the private histogram, at least 0 (infinity without noise); 0 if the floor is 1 /
        K, at which the histogram is not used.
    floor : float
        tau, 2^-32 <= tau <= 1 / K; or 0 if label_epsilon is 0.
    label_epsilon : float
        Epsilon of ClusterRR, finite; 0 if lambda is 1, at which all outputs are draws from the
        distributions.

    Notes
    -----
    Guarantee: `epsilon`, the sum of both, for the release of the distributions and all outputs.
    """

    n_classes: int
    histogram_epsilon: float
    floor: float
    label_epsilon: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "n_classes", _classes(self.n_classes))
        tells = self.label_epsilon != 0
        object.__setattr__(
            self,
            "floor",
            checked_floor(self.floor, self.n_classes) if tells or self.floor != 0 else 0.0,
        )
        object.__setattr__(
            self,
            "label_epsilon",
            _validate.positive(label_epsilon=self.label_epsilon) if tells else 0.0,
        )
        given = self.histogram_epsilon
        if isinstance(given, bool) or not isinstance(given, int | float) or not given >= 0:
            raise InvalidInput(
                f"Expected histogram_epsilon >= 0, got {given!r}. 0 is no histogram; 2 / sigma is"
                " that of noise of scale sigma."
            )
        object.__setattr__(self, "histogram_epsilon", float(given))

    @classmethod
    def of(cls, n_classes: int, *, sigma: float, floor: float, resample: float) -> Self:
        """Compute the budget for the paper's parameters.

        Parameters
        ----------
        n_classes : int
            K, at least 2.
        sigma : float
            Scale of the Laplace noise on the counts (sigma / n_c on frequencies).
        floor : float
            tau, 2^-32 <= tau <= 1 / K; or 0 with lambda = 1.
        resample : float
            lambda, 0 < lambda <= 1.
        """
        k = _classes(n_classes)
        tau = 0.0 if floor == 0 and resample == 1 else checked_floor(floor, k)
        return cls(
            k,
            0.0 if tau == 1.0 / k else histogram_epsilon(sigma),
            tau,
            resampling_epsilon(tau, resample),
        )

    @property
    def epsilon(self) -> float:
        """The sum of both parts, rounded up."""
        total = (self.histogram_epsilon, self.label_epsilon)
        return math.inf if math.inf in total else sum_up(total)

    @property
    def published_epsilon(self) -> float:
        """The epsilon that Theorem 1 of Esfandiari et al. (2021) claims for the same mechanism,
        with half of the first part's true cost."""
        return self.histogram_epsilon / 2 + self.label_epsilon

    @property
    def sigma(self) -> float:
        """The scale of the noise on a count; infinite without a histogram."""
        return math.inf if self.histogram_epsilon == 0 else 2.0 / self.histogram_epsilon

    @property
    def resample(self) -> float:
        """The lambda of a row whose least class has the floor. A row with a higher minimum
        resamples less often at the same epsilon."""
        gain = exp_floor(self.label_epsilon) - 1 if self.label_epsilon else Fraction(0)
        return float(1 / (1 + exact(self.floor) * gain))

    @property
    def law(self) -> ClusterRR:
        """The law of the second part; InvalidInput at lambda = 1, which needs none."""
        if self.label_epsilon == 0:
            raise InvalidInput(
                "Expected lambda < 1 (label_epsilon > 0) for a law of the labels, got lambda = 1,"
                " at which outputs are draws from the clusters' distributions alone. Release these,"
                " and draw from them as you like."
            )
        return ClusterRR(self.n_classes, self.label_epsilon, self.floor)

    def require(self, epsilon: float) -> Self:
        """Return this budget if it costs at most epsilon; else raise InvalidInput."""
        if not self.epsilon <= _validate.epsilon(epsilon):
            raise InvalidInput(
                f"Expected parameters that cost at most epsilon={epsilon!r}, got {self.epsilon!r}:"
                f" {self.histogram_epsilon!r} for the distributions (2 / sigma: a replaced label"
                f" changes two counts) and {self.label_epsilon!r} for the labels. Raise sigma or"
                " lambda, or let split_budget choose."
            )
        return self


def _classes(n_classes: object) -> int:
    return _validate.integer(n_classes=n_classes, low=2, fix="One class needs no privacy.")


def corollary_1(n_classes: int, epsilon: float) -> ClusterBudget:
    """Make the budget of UniformRR (Corollary 1): tau = 1 / K, lambda = K / (K - 1 + e^epsilon). It
    is randomized response at epsilon.

    The histogram costs nothing, since at tau = 1 / K no output depends on it.
    """
    k = _classes(n_classes)
    return ClusterBudget(k, 0.0, 1.0 / k, _validate.epsilon(epsilon))


def corollary_2(n_classes: int, epsilon: float, phi: float) -> ClusterBudget:
    """Make the budget of Corollary 2: sigma = 1 / epsilon, tau = phi, lambda = 1 / (1 + (e^epsilon
    - 1) phi). It costs 3 epsilon.

    Parameters
    ----------
    n_classes : int
    epsilon : float
        The paper's parameter, a third of the true cost.
    phi : float
        At most 1 / K. In the paper it is the heterogeneity of the clusters, the mean over rows of
        sum_y |P(y | row) - P(y | cluster)|, which is not public (estimating it from labels costs
        more) and may exceed 1 / K.

    Notes
    -----
    The paper states O(epsilon). It is 2 epsilon by its Theorem 1, and 3 epsilon with the
    histogram's true sensitivity of 2.
    """
    k, budget = _classes(n_classes), _validate.epsilon(epsilon)
    floor = checked_floor(phi, k)
    return ClusterBudget(k, 0.0 if floor == 1.0 / k else float_up(2 * exact(budget)), floor, budget)


@dataclass(frozen=True)
class ClusterSplit:
    """A division of a budget, with its predicted utility.

    Attributes
    ----------
    budget : ClusterBudget
    agreement : float
        Expected share of outputs that equal the label: 1 minus the noise rate for training on hard
        labels.
    information : float
        Expected information about a row's label in the cluster's distribution and the output
        together, in nats.
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
        Total of both parts.
    sizes : (n_clusters,) integers
        Number of rows in each cluster, which is public since features are.
    n_classes : int
        K, at least 2.
    purity : float
        A guess, made without the labels, of the share of a cluster's most frequent label: at least
        1 / K, 0.75 by default. The other labels are assumed to be equally frequent. A wrong guess
        costs accuracy, never privacy.
    criterion : {"information", "agreement"}
        "information" (default) suits learners that use likelihoods, "agreement" those that use hard
        labels.

    Returns
    -------
    ClusterSplit
        The best of 25 shares of the budget x 32 floors, by a closed-form prediction with Laplace
        noise in expectation, renormalised at its mean. Cost: O(number of different sizes).

    Notes
    -----
    If the clusters' distributions were known, outputs at tau = 1 / K would be most informative. A
    lower floor pays because the release then contains the distributions, and because outputs equal
    labels more often.

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
        raise InvalidInput(
            f"Expected purity >= 1/{k}, the share of the most frequent label, got"
            f" purity={purity!r}."
        )
    counts = np.asarray(sizes)
    if (
        counts.ndim != 1
        or counts.dtype.kind not in "iu"
        or not (counts >= 0).all()
        or not counts.any()
    ):
        raise InvalidInput(
            "Expected the sizes of the clusters as whole numbers >= 0, at least one above 0. Pass"
            " np.bincount(cluster)."
        )
    distinct, times = np.unique(counts[counts > 0], return_counts=True)
    weight = distinct * times / float((distinct * times).sum())
    uniform = corollary_1(k, total).law  # raises for an epsilon so small that no floor is possible
    options = [ClusterBudget(k, 0.0, 1.0 / k, uniform.epsilon)]
    options += [_option(total, k, part, floor) for part in _SHARES[1:] for floor in _FLOORS[:-1]]
    made = [
        ClusterSplit(option, *_predict(option, distinct, weight, share))
        for option in options
        if _honoured(option)
    ]
    return max(made, key=lambda split: float(getattr(split, name)))


def _option(total: float, n_classes: int, share: float, floor: float) -> ClusterBudget:
    first = float_down(exact(total) * exact(share))
    rest = float_down(exact(total) - exact(first))
    # Each is rounded to a float, and the two may add up to more as decimals. A ledger, which adds
    # decimals without tolerance, would refuse.
    if exact(first) + exact(rest) > exact(total):
        rest = math.nextafter(rest, 0.0)
    return ClusterBudget(n_classes, first, floor / n_classes, rest)


def _honoured(option: ClusterBudget) -> bool:
    """Tell whether 64-bit words can draw the law at its epsilon."""
    try:
        return option.law.epsilon == option.label_epsilon
    except InvalidInput:
        return False


def _predict(
    option: ClusterBudget, sizes: NDArray[np.integer], weight: NDArray[np.float64], purity: float
) -> tuple[float, float]:
    """Predict (agreement, information) in expectation over clusters of these sizes."""
    k, tau, rate = option.n_classes, option.floor, option.resample
    shares = np.array([purity, (1.0 - purity) / (k - 1)])
    count = np.array([1.0, k - 1.0])
    if option.histogram_epsilon:
        scale = (option.sigma / sizes)[:, None]
        gap = shares - tau
        # E max(share + noise - tau, 0)
        above = np.maximum(gap, 0.0) + 0.5 * scale * np.exp(-np.abs(gap) / scale)
        q = tau + (1.0 - k * tau) * above / (above @ count)[:, None]
    else:
        q = np.full((len(sizes), 2), 1.0 / k)
    keep = (1.0 - rate) + rate * q
    agreement = (keep * shares * count).sum(axis=1)
    # E ln of the posterior of one label, given q and the output
    told = keep * np.log(keep) + rate * (1.0 - q) * np.log(rate * q)
    information = math.log(k) + (told * shares * count).sum(axis=1)
    return float(agreement @ weight), float(information @ weight)


def association_limit(
    n_classes: int, cluster_size: int, epsilon: float, *, published: bool = False
) -> float:
    """Bound the precision of every epsilon-label-DP method that names the classes which occur in
    each cluster of s rows.

    Parameters
    ----------
    n_classes, cluster_size : int
        K > s >= 1; the s rows of a cluster have different labels.
    epsilon : float
    published : bool, default=False
        True: e^epsilon s / (K - s), with which the source bounds precision times recall. False: the
        smaller limit of precision alone, at any recall above 0.

    Returns
    -------
    float
        1 / (1 + e^-epsilon (K - s) / s), at most. Draw the classes of each cluster at random. A
        method that names a class which occurs with probability r names one that does not with r
        e^-epsilon at least: exchanging one label makes it occur, and the table with the exchanged
        label has the same law. So of s classes that occur s r are named, and r e^-epsilon (K - s)
        others at least. With s = 1 randomized response reaches it.

    Examples
    --------
    >>> round(association_limit(1000, 10, 1.0), 4)  # clusters of ten rows, a thousand classes
    0.0267
    >>> round(association_limit(1000, 10, 1.0, published=True), 4)
    0.0275
    """
    K, s = (
        _validate.integer(n_classes=n_classes, low=2),
        _validate.integer(cluster_size=cluster_size, low=1),
    )
    if not s < K:
        raise InvalidInput(
            f"Expected clusters of fewer rows than {K} classes, got cluster_size={s}: larger ones"
            " exclude nothing."
        )
    ratio = math.exp(min(_validate.epsilon(epsilon), _LARGEST)) * s / (K - s)
    return min(1.0, ratio) if published else ratio / (1 + ratio)
