# SPDX-License-Identifier: Apache-2.0
"""The filter of multi-stage training: which rows the next stage learns from, and what it refuses
before anything is charged."""

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

import labeldp as ldp
from labeldp.evidence import concat
from labeldp.learn import Prior
from labeldp.learn import _corrections as corrections
from labeldp.protocol._estimator import in_top_k

N = 300


def staged(rng, k, n_stages, epsilon=1.0):
    """Noisy labels stage by stage, the later ones under random priors."""
    parts = []
    for number in range(n_stages):
        labels, ids = rng.integers(k, size=N), np.arange(number * N, (number + 1) * N)
        prior = rng.dirichlet(np.full(k, 0.3), N) if number else None
        noise, name = ldp.SeededNoise(number), f"stage-{number + 1}"
        law = ldp.RRWithPrior(k, epsilon)
        parts.append(
            ldp.privatize(
                ldp.PrivateLabels(labels, classes=range(k), ids=ids, noise=noise),
                law,
                prior=prior,
                stage=name,
            )
        )
    return parts


def by_definition(parts, proba):
    """Rows of the last part, and earlier ones whose released label is among as many likeliest
    classes as the last part's law kept."""
    k = max(1, int(parts[-1].blocks[0].side["size"].mean()))
    first = len(parts[-1]) * (len(parts) - 1)
    labels = np.concatenate([part.hard_codes() for part in parts])
    return [
        i for i in range(len(labels)) if i >= first or (proba[i] > proba[i, labels[i]]).sum() < k
    ]


@pytest.mark.parametrize("n_stages", [2, 3])
@pytest.mark.parametrize("k", [2, 3, 10])
def test_the_mean_filter_is_the_papers(k, n_stages):
    rng = np.random.default_rng(k)
    parts = staged(rng, k, n_stages)
    proba = rng.dirichlet(np.full(k, 0.3), N * n_stages)
    kept = in_top_k(concat(parts), proba, "mean")
    assert kept.tolist() == by_definition(parts, proba)
    assert N < len(kept) < N * n_stages


def test_rows_of_the_latest_stage_stay_whatever_k_is():
    rng = np.random.default_rng(0)
    parts = staged(rng, 4, 2)
    proba = rng.dirichlet(np.ones(4), 2 * N)
    kept = in_top_k(concat(parts), proba, 1)
    assert kept[-N:].tolist() == list(range(N, 2 * N))
    assert set(kept[:-N]) == set(np.flatnonzero(parts[0].hard_codes() == proba[:N].argmax(axis=1)))
    assert len(in_top_k(concat(parts), proba, 4)) == 2 * N
    assert len(in_top_k(parts[0], proba[:N], 1)) == N  # one stage has none before it


def blobs(**facts):
    rng = np.random.default_rng(0)
    y = rng.integers(4, size=800)
    labels = ldp.PrivateLabels(y, classes=range(4), **facts or {"noise": ldp.SeededNoise(0)})
    return 3 * np.eye(4)[y] + rng.normal(size=(800, 4)), labels


def test_the_classifier_keeps_the_latest_rows(monkeypatch):
    seen = []
    fit = corrections.HardLearner.fit
    monkeypatch.setattr(
        corrections.HardLearner,
        "fit",
        lambda self, X, noisy, *rest: seen.append(noisy) or fit(self, X, noisy, *rest),
    )
    settings = {"law": "rr-with-prior", "correction": "none", "validation_fraction": 0.0}
    model = ldp.LabelDPClassifier(
        LogisticRegression(), stages=2, prior=Prior(top_k="mean"), **settings
    )
    model.fit(*blobs())
    seen = [noisy for noisy in seen if noisy.blocks[0].stage != "declared"]  # without the dry run
    latest = [
        sum(len(block.rows) for block in noisy.blocks if block.stage == "stage-2") for noisy in seen
    ]
    assert latest[:2] == [0, model.stages_[1].n_rows]
    assert latest[1] < len(seen[1]) < 800


def test_laws_without_candidates_have_no_mean_and_nothing_is_charged(ledger):
    model = ldp.LabelDPClassifier(law="auto", stages=2, prior=Prior(top_k="mean"))
    X, labels = blobs(dataset="d", column="label", ledger=ledger)
    with pytest.raises(ldp.InvalidInput, match="rr-with-prior"):
        model.fit(X, labels)
    assert not ledger.runs()


@pytest.mark.parametrize("law", ["auto", "rr", "subset", "rr-with-prior"])
def test_in_one_stage_the_mean_leaves_no_row_out(law, monkeypatch):
    seen = []
    fit = corrections.HardLearner.fit
    monkeypatch.setattr(
        corrections.HardLearner,
        "fit",
        lambda self, X, noisy, *rest: seen.append(len(noisy)) or fit(self, X, noisy, *rest),
    )
    settings = {"law": law, "correction": "none", "prior": Prior(top_k="mean")}
    ldp.LabelDPClassifier(LogisticRegression(), **settings).fit(*blobs())
    assert 700 < seen[-2] < seen[-1] == 800  # and the held-out rows in the last fit
