# SPDX-License-Identifier: Apache-2.0
"""Who knows a paper finds its methods: each name is there, documented, and on the page of the
papers."""

import inspect
import re
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import make_blobs

import labeldp as ldp
from labeldp.aggregates import Histogram
from labeldp.learn import ClusterPrior
from labeldp.papers import esfandiari2022, ghazi2021, tang2022

PAGE = (Path(__file__).parents[2] / "docs" / "papers.md").read_text(encoding="utf-8")
PAPERS = ("esfandiari2022", "ghazi2021", "malek2021", "regression", "tang2022")
K = 4
X, Y = make_blobs(3000, centers=K, random_state=0, cluster_std=0.5)
PROBLEM = ghazi2021.Problem("logistic", radius=20.0, norm=3.0)


def private(y: np.ndarray = Y, **facts: object) -> ldp.PrivateLabels:
    return ldp.PrivateLabels(y, classes=range(K), **facts)


@pytest.mark.parametrize("paper", PAPERS)
def test_names_are_documented_and_on_the_page(paper: str) -> None:
    module = import_module(f"labeldp.papers.{paper}")
    assert len(set(module.__all__)) == len(module.__all__)
    torch = find_spec("torch") is not None
    for name in module.__all__:
        thing = getattr(module, name) if torch or name not in TORCH else None
        assert thing is None or not callable(thing) or inspect.getdoc(thing), name
        named = re.search(rf"`[^`]*\b{name}\b[^`]*`", PAGE) or name in SETTINGS
        assert named, f"{name} is not on the page"


TORCH = set(tang2022.__all__) - {
    "NoiseCluster",
    "PATEClassifier",
    "RandRes",
    "aug_descent",
    "ldp_normal",
    "ldp_ssl",
}
SETTINGS = {
    *("MULTISTAGE", "Multistage", "PUBLISHED", "Published", "correction", "mixups", "multistage"),
    *("BYOL", "SCAN", "SELF_LABEL", "SIMCLR", "ScanSettings", "without_head"),
    *(
        "ClusterSplit",
        "TeacherCounts",
        "histogram_epsilon",
        "resampling_epsilon",
        "Problem",
        "minimise",
    ),
}
"""Values and parts of the methods that the page names."""


def test_a_wrong_name_is_corrected() -> None:
    with pytest.raises(AttributeError, match="aug_descent"):
        _ = tang2022.aug_descend


# Ghazi et al.
# ---------------------------------------------------------------------------------------


def test_a_self_supervised_prior_is_algorithm_4(ledger: ldp.Ledger) -> None:
    asked = ghazi2021.self_supervised_prior("byol", "standard", epsilon=1.0)
    assert (asked["law"], asked["prior"].n_clusters, asked["prior"].epsilon) == (
        "rr-with-prior",
        100,
        0.05,
    )
    labels = private(dataset="blobs", column="label", ledger=ledger)
    model = ldp.LabelDPClassifier(**asked).fit(X, labels)
    assert [run.receipt.epsilon for run in ledger.runs()] == [0.05, 0.95]
    assert model.score(X, Y) > 0.6  # of four classes
    with pytest.raises(ldp.InvalidInput, match="byol, dino"):
        ghazi2021.self_supervised_prior("clip", "standard", epsilon=1.0)


@pytest.mark.parametrize(
    "law", [ldp.RandomizedResponse(K, 2.0), ldp.SubsetSelection(K, 2.0)], ids=lambda law: law.name
)
def test_lp_rr_sgd_is_sgd_with_the_law_s_own_steps(law: ldp.Law) -> None:
    noisy = ldp.privatize(private(noise=ldp.SeededNoise(0)), law)
    found = ghazi2021.lp_rr_sgd(X, noisy, PROBLEM)
    steps = ghazi2021.second_moment(law)
    assert np.array_equal(
        found, ghazi2021.sgd(X, ghazi2021.label_vectors(noisy), PROBLEM, steps, last=True)
    )
    assert (
        ((X @ found).argmax(axis=1) == Y).mean() > 0.4 > ((X @ -found).argmax(axis=1) == Y).mean()
    )
    both = ldp.concat(
        [
            noisy[:10],
            ldp.privatize(
                private(Y[10:20], noise=ldp.SeededNoise(0)),
                ldp.RandomizedResponse(K, 1.0),
            ),
        ]
    )
    with pytest.raises(ldp.InvalidInput, match="by one law"):
        ghazi2021.lp_rr_sgd(X[:20], both, PROBLEM)


def test_lp_normal_sgd_learns_from_labels_with_gaussian_noise() -> None:
    query = Histogram(K, 4.0, len(Y), "gaussian", 1e-6)
    answer = ldp.aggregate(private(noise=ldp.SeededNoise(0)), query, np.arange(len(Y)))
    found = ghazi2021.lp_normal_sgd(X, answer, PROBLEM, last=False)
    wanted = ghazi2021.sgd(
        X, ghazi2021.label_vectors(answer), PROBLEM, ghazi2021.second_moment(query)
    )
    assert np.array_equal(found, wanted)
    assert ((X @ found).argmax(axis=1) == Y).mean() > 0.4


# Esfandiari et al.
# ----------------------------------------------------------------------------------


def test_the_modified_loss_is_the_formula_and_the_debiased_loss_at_lambda() -> None:
    law, q = ldp.ClusterRR(K, 1.0, 0.05, realised=False), np.array([0.7, 0.1, 0.1, 0.1])
    noisy = ldp.privatize(
        private(noise=ldp.SeededNoise(0)),
        law,
        prior=np.tile(q, (len(Y), 1)),
    )
    (block,) = noisy.blocks
    losses = np.random.default_rng(0).random((len(Y), K))
    found = esfandiari2022.modified_loss(law, losses, block.outputs, block.side)
    assert np.allclose(found, noisy.debias(losses))
    beta = 0.3
    wanted = (losses[np.arange(len(Y)), block.outputs] - beta * losses @ q) / (1 - beta)
    assert np.allclose(
        esfandiari2022.modified_loss(law, losses, block.outputs, block.side, beta),
        wanted,
        atol=1e-6,
    )


def test_the_split_of_the_paper_s_prior_is_charged_in_two_parts(tmp_path: Path) -> None:
    """Where `ClusterPrior` takes a share by rule, this one divides the budget by the clusters'
    sizes."""
    spent = {}
    for kind in (ClusterPrior, esfandiari2022.ClusterRRPrior):
        ledger = ldp.Ledger(tmp_path / f"{kind.__name__}.db")
        settings = {"prior": kind(n_clusters=8), "validation_fraction": 0.0}
        model = ldp.LabelDPClassifier(epsilon=0.5, law="cluster-rr", **settings)
        model.fit(X, private(dataset="blobs", column="label", ledger=ledger))
        spent[kind.__name__] = [run.receipt.epsilon for run in ledger.runs()]
        assert sum(spent[kind.__name__]) <= 0.5 and model.score(X, Y) > 0.6
    assert spent["ClusterPrior"] != spent["ClusterRRPrior"]
    stated = esfandiari2022.ClusterRRPrior(n_clusters=8, epsilon=0.1)
    model = ldp.LabelDPClassifier(epsilon=0.5, law="cluster-rr", prior=stated).fit(
        X, private(noise=ldp.SeededNoise(0))
    )
    assert [receipt.epsilon for receipt in model.receipts_] == [0.1, 0.4]
