# SPDX-License-Identifier: Apache-2.0
"""Ghazi, Golowich, Kumar, Manurangsi and Zhang, "Deep Learning with Label Differential Privacy"
(NeurIPS 2021).

Algorithms 1, 2    `RRTopK`, `RRWithPrior`
Algorithm 3        LP-MST: `lp_1st`, `lp_2st`, `lp_3st` for nets, `stages` for any estimator
Algorithm 4        `ClusterPrior`, the noisy histogram of each cluster; `self_supervised_prior`
Algorithm 5        LP-RR-SGD: `lp_rr_sgd`; Algorithm 6, LP-Normal-SGD: `lp_normal_sgd`: `sgd`
                   on `label_vectors` of a `Problem`, which `minimise` solves to the end
Theorems 5, 9, 17  `excess_risk`, `generalisation_gap`; Propositions 12, 13 and Lemma 15:
                   `sco_lower_bound`, `erm_lower_bound`; `local_lower_bound` and `second_moment`
Private tuning     `RepeatAndSelect`, with `labeldp.custody.aggregate_best`

A fit in stages is the library's own (`stages` of `LabelDPClassifier` and `TorchClassifier`); what
is here are the paper's choices, to compare with. Each is the paper's, or is named as one that it
leaves open.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from numpy.typing import ArrayLike

from labeldp import _validate
from labeldp.aggregates import Aggregate
from labeldp.errors import InvalidInput
from labeldp.evidence import NoisyLabels
from labeldp.laws import RRTopK, RRWithPrior
from labeldp.learn import ClusterPrior
from labeldp.papers._bounds import (
    erm_lower_bound,
    excess_risk,
    generalisation_gap,
    local_lower_bound,
    sco_lower_bound,
    second_moment,
)
from labeldp.papers._convex import Floats, Problem, label_vectors, minimise, sgd
from labeldp.papers._recipes import (
    MULTISTAGE,
    PUBLISHED,
    Multistage,
    Published,
    correction,
    lp_1st,
    lp_2st,
    lp_3st,
    mixups,
    multistage,
    stages,
)
from labeldp.papers._tuning import RepeatAndSelect

__all__ = [
    "MULTISTAGE",
    "PUBLISHED",
    "ClusterPrior",
    "Multistage",
    "Problem",
    "Published",
    "RRTopK",
    "RRWithPrior",
    "RepeatAndSelect",
    "correction",
    "erm_lower_bound",
    "excess_risk",
    "generalisation_gap",
    "label_vectors",
    "local_lower_bound",
    "lp_1st",
    "lp_2st",
    "lp_3st",
    "lp_normal_sgd",
    "lp_rr_sgd",
    "minimise",
    "mixups",
    "multistage",
    "sco_lower_bound",
    "second_moment",
    "self_supervised_prior",
    "sgd",
    "stages",
]

_PRIORS: Mapping[str, tuple[int, float]] = MappingProxyType(
    {"byol": (100, 0.05), "dino": (50, 0.025)}
)


def self_supervised_prior(features: str, embedder: Any, *, epsilon: float) -> dict[str, Any]:
    """Make LP-1ST with a prior from self-supervised features (Algorithm 4) as parameters of an
    estimator.

    Parameters
    ----------
    features : {"byol", "dino"}
        Whose number of clusters and share of epsilon are used: 100 and 0.05, or 50 and 0.025.
    embedder : transformer, or function of X
        Gives these features, for example `labeldp.papers.tang2022.Embedder(net)`; learned without
        labels.
    epsilon : float
        Total of the fit; what the prior leaves of it is RRWithPrior's.

    Returns
    -------
    dict
        epsilon, law, prior, and validation_fraction=0: `LabelDPClassifier(**...)`,
        `TorchClassifier(net, **...)`.

    Notes
    -----
    Guarantee: that of the fit; both charges are on the same labels and add up to epsilon.
    Simplified: noisy counts are projected to the cluster's public size where the paper clamps them
    at 0.
    """
    clusters, own = _PRIORS[_validate.one_of(_PRIORS, features=features)]
    prior = ClusterPrior(embedder, clusters, own)
    return {"epsilon": epsilon, "law": RRWithPrior.name, "prior": prior, "validation_fraction": 0.0}


def lp_rr_sgd(X: ArrayLike, noisy: NoisyLabels, problem: Problem, *, last: bool = True) -> Floats:
    """Run LP-RR-SGD (Algorithm 5): one pass over the rows with the unbiased gradients of equation
    7.

    Parameters
    ----------
    X : (n, d) array
    noisy : NoisyLabels of n rows
        By one law: RandomizedResponse as in the paper, RRTopK (Corollary 10), or SubsetSelection.
    problem : Problem
    last : bool, default=True
        As in `sgd`: the paper's steps and the last iterate; False has the better bound.

    Returns
    -------
    (d, K) float64
    """
    laws = {block.law for block in noisy.blocks}
    if len(laws) != 1:
        raise InvalidInput(
            f"Expected noisy labels by one law, got {len(laws)}. Pass a draw of one stage."
        )
    return sgd(X, label_vectors(noisy), problem, second_moment(laws.pop()), last=last)


def lp_normal_sgd(
    X: ArrayLike, answer: Aggregate, problem: Problem, *, last: bool = True
) -> Floats:
    """Run LP-Normal-SGD (Algorithm 6) on labels with Gaussian noise, which were drawn once.

    Parameters
    ----------
    X : (n, d) array
    answer : Aggregate
        To `Histogram(K, epsilon, n, "gaussian", delta)` with a group for each row.
    problem : Problem
    last : bool, default=True
        As in `sgd`.

    Returns
    -------
    (d, K) float64

    Notes
    -----
    Simplified: the paper adds noise to the gradient of each step, here it is in the label's vector.
    """
    query: Any = answer.query
    return sgd(X, label_vectors(answer), problem, second_moment(query), last=last)
