# SPDX-License-Identifier: Apache-2.0
"""Cross tables of the true labels with public columns, and a chi-square test of independence that
accounts for the noise."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy.linalg import block_diag
from scipy.special import chdtrc

from labeldp.errors import InvalidInput
from labeldp.evidence import NoisyLabels
from labeldp.stats._columns import Codes, Column, Floats, rows_of
from labeldp.stats._figures import (
    Contributions,
    Figures,
    asked_by_prior,
    contributions_of,
    figures_of,
    members_of,
    sum_by,
)

_RANK = 1e-9  # an eigenvalue below this share of the largest counts as 0


@dataclass(frozen=True, eq=False)
class CrossTable:
    """A cross table of public groups and private classes, with a test of independence.

    Attributes
    ----------
    shares : Figures
        Share of each class in each group, with simultaneous intervals.
    counts : (G, K) float64
        Estimated number of rows of each group and class: shares times rows.
    statistic : float
        Chi-square statistic; NaN if fewer than two groups have rows, or the evidence tells no
        classes apart.
    df : int
        Degrees of freedom: (groups with rows - 1) times the rank of what the evidence tells of the
        frequencies, at most K - 1.
    pvalue : float
        Probability of a larger statistic if label and column are independent; NaN without degrees
        of freedom.
    """

    shares: Figures
    counts: Floats
    statistic: float
    df: int
    pvalue: float

    def __str__(self) -> str:
        return (
            f"{self.shares}\nindependence: chi-square {self.statistic:.4g} with {self.df} degrees"
            f" of freedom, p = {self.pvalue:.4g}"
        )


def crosstab(
    noisy: NoisyLabels,
    by: Column,
    *,
    groups: Sequence[object] | None = None,
    units: Column = None,
    ids: "ArrayLike | None" = None,
    confidence: float = 0.95,
) -> CrossTable:
    """Cross-tabulate the true labels with a public column, and test whether they are independent.

    Parameters
    ----------
    noisy : NoisyLabels of n rows
    by : (n,) or (n, columns) public column
    groups, units, ids, confidence
        As for `frequencies`.

    Returns
    -------
    CrossTable

    Raises
    ------
    InvalidInput
        As for `frequencies`.

    Notes
    -----
    Guarantee: post-processing of released outputs, at no cost in privacy.

    The test is a generalised score test. Each row has a vector u_i, the law's unbiased weights of
    the classes (or, where there are none, the score of the class frequencies at their common
    maximum-likelihood estimate). U_g is the sum over group g, D_g its derivative in the common
    frequencies and V the covariance of all U_g. The statistic is the least (U - D f)' V^-1 (U - D
    f) over common frequencies f, which under independence is chi-square with (G - 1) r degrees of
    freedom, r the rank of a row's covariance. V takes rows of one law for equally variable, as the
    hypothesis says. For laws that read a prior it is taken from each group by itself, and with
    units from sums over these. For randomized response in all rows it is Pearson's test of the
    noisy labels. Cost O(n K^2 + (G K)^3).

    References
    ----------
    Boos 1992, "On generalized score tests"; Rao and Scott 1984, "On chi-squared tests for multiway
    contingency tables".

    Examples
    --------
    >>> import labeldp as ldp, numpy as np
    >>> region = np.repeat(["north", "south"], 2000)
    >>> answers = np.arange(4000) % np.where(region == "north", 2, 3)
    >>> labels = ldp.PrivateLabels(answers, classes=range(3), noise=ldp.SeededNoise(0))
    >>> noisy = ldp.privatize(labels, ldp.RandomizedResponse(3, epsilon=1.0))
    >>> table = ldp.stats.crosstab(noisy, region)
    >>> table.df, table.pvalue < 0.001
    (2, True)
    """
    rows = rows_of(noisy, by, groups=groups, units=units, ids=ids)
    shares = figures_of(rows, np.eye(noisy.n_classes), noisy.classes, confidence, True)
    inside = np.flatnonzero(rows.groups.codes >= 0)
    if not len(inside):
        raise InvalidInput("Expected rows with evidence in at least one group, got none.")
    members = [np.searchsorted(inside, mine) for mine in members_of(rows) if len(mine)]
    statistic, df = _independence(
        rows.noisy[inside], members, None if rows.units is None else rows.units[inside]
    )
    return CrossTable(
        shares,
        shares.value * shares.n_rows[:, None],
        statistic,
        df,
        float(chdtrc(df, statistic)) if df else np.nan,
    )


def _independence(
    noisy: NoisyLabels, members: Sequence[Codes], units: Codes | None
) -> tuple[float, int]:
    """Test whether groups, given as positions of their rows, have the same class frequencies:
    statistic and degrees of freedom."""
    part = contributions_of(noisy)
    k, g = noisy.n_classes, len(members)
    # of the differences of frequencies
    basis = np.linalg.qr(np.column_stack([np.ones(k), np.eye(k)[:, 1:]]))[0][:, 1:]
    scores = (part.table - part.table.mean(axis=0)) @ basis
    sums = np.concatenate([scores[mine].sum(axis=0) for mine in members])
    if units is not None:
        covariance = _clustered(scores, members, units)
    else:
        covariance = (
            _blocks(noisy, scores, members)
            if part.spans is None
            else _of_bits(part, basis, members)
        )
    d = k - 1
    own = [covariance[i * d : (i + 1) * d, i * d : (i + 1) * d] for i in range(g)]
    # Unbiased weights have a derivative of 1 in the frequencies, scores one of their information.
    spread = _spread(scores) if part.spans is None else sum(own) / len(scores)
    rate = np.eye(d) if part.unbiased else np.linalg.pinv(spread, rcond=_RANK, hermitian=True)
    slopes = np.vstack(
        [
            len(mine) * rate if part.unbiased else each @ rate
            for mine, each in zip(members, own, strict=True)
        ]
    )
    values, vectors = np.linalg.eigh(covariance)
    kept = values > _RANK * max(float(values.max(initial=0.0)), 1e-300)
    white = (vectors[:, kept] / np.sqrt(values[kept])).T
    target, design = white @ sums, white @ slopes
    left, sizes, _ = np.linalg.svd(design, full_matrices=False)
    span = left[:, sizes > _RANK**0.5 * max(float(sizes.max(initial=0.0)), 1e-300)]
    df = len(target) - span.shape[1]
    if g < 2 or df < 1:
        return np.nan, 0
    rest = target - span @ (span.T @ target)
    return float(rest @ rest), df


def _blocks(noisy: NoisyLabels, scores: Floats, members: Sequence[Codes]) -> Floats:
    """Compute the covariance of the groups' sums of scores (n, d) for independent rows: (G d, G d),
    a block for each group."""
    if any(asked_by_prior(block) for block in noisy.blocks):
        return np.asarray(block_diag(*(_spread(scores[mine]) * len(mine) for mine in members)))
    # Rows of the same draws have the same covariance if labels do not depend on the group, unless a
    # prior made their questions.
    drawn = np.column_stack([place >= 0 for place in noisy._places])
    kinds = np.unique(drawn, axis=0, return_inverse=True)[1].reshape(-1)
    common = [_spread(scores[kinds == kind]) for kind in range(kinds.max(initial=-1) + 1)]
    counts = [np.bincount(kinds[mine], minlength=len(common)) for mine in members]
    return np.asarray(block_diag(*(np.tensordot(count, common, axes=1) for count in counts)))


def _of_bits(part: Contributions, basis: Floats, members: Sequence[Codes]) -> Floats:
    """Compute `_blocks` of rows that answer by one bit, whose variance is known at common
    frequencies.

    The squares of their scores are too far apart to estimate it: with 300 rows a group the test at
    5 % would reject 7 %.
    """
    assert part.spans is not None
    assert part.answered is not None
    lengths = (part.spans @ basis) * np.sqrt(part.answered * (1 - part.answered))[:, None]
    return np.asarray(block_diag(*(lengths[mine].T @ lengths[mine] for mine in members)))


def _spread(scores: Floats) -> Floats:
    centred = scores - scores.mean(axis=0)
    return np.asarray(centred.T @ centred / max(1, len(scores)))


def _clustered(scores: Floats, members: Sequence[Codes], units: Codes) -> Floats:
    """Compute the covariance of the groups' sums of scores for independent units: (G d, G d)."""
    _, codes = np.unique(units, return_inverse=True)
    codes = codes.reshape(-1)
    number = int(codes.max(initial=-1)) + 1
    stacked = np.zeros((number, len(members) * scores.shape[1]))
    d = scores.shape[1]
    for i, mine in enumerate(members):
        # Centred in its group: under another hypothesis the test keeps its power.
        centred = scores[mine] - scores[mine].mean(axis=0)
        stacked[np.unique(codes[mine]), i * d : (i + 1) * d] = sum_by(centred, codes[mine])
    return np.asarray(stacked.T @ stacked * (number / max(1, number - 1)))
