# SPDX-License-Identifier: Apache-2.0
"""Noisy labels as tensors: every form of every law is what NumPy says."""

import numpy as np
import pytest
import torch
from tests.deep.datasets import closed

import labeldp as ldp
from labeldp.deep import (
    Candidates,
    Dense,
    PackedSets,
    Sum,
    debias_weights,
    debiased_loss,
    evidence_of,
    likelihood_loss,
)
from labeldp.deep import _losses as evidence
from labeldp.papers.malek2021 import Alibi

LAWS = {
    "rr": (ldp.RandomizedResponse, Candidates),
    "subset": (lambda k, e: ldp.SubsetSelection(k, e, size=2), PackedSets),
    "rr-top-k": (lambda k, e: ldp.RRTopK(k, e, k=3), PackedSets),
    "rr-with-prior": (ldp.RRWithPrior, PackedSets),
    "split": (ldp.PriorSplit, PackedSets),
    "auto": (ldp.AutoLaw, (PackedSets, Candidates)),  # of few classes it asks for labels alone
    "cluster-rr": (ldp.ClusterRR, Candidates),
    "alibi": (Alibi, Dense),
}


def draw(law, n=120, seed=0):
    rng = np.random.default_rng(seed)
    prior = rng.dirichlet(np.ones(law.n_classes) * 0.3, n) if law.uses_prior else None
    labels = rng.integers(law.n_classes, size=n)
    kept = closed(labels, law.n_classes, noise=ldp.SeededNoise(seed))
    return ldp.privatize(kept, law, prior=prior)


@pytest.mark.parametrize("k", [5, 19])
@pytest.mark.parametrize("name", LAWS)
def test_both_forms_equal_numpy(name, k, monkeypatch):
    monkeypatch.setattr(evidence, "CELLS", 50 * k)  # several batches
    noisy = draw(LAWS[name][0](k, 1.5))
    table = torch.from_numpy(noisy.log_likelihood())
    compact = evidence_of(noisy, form="compact")
    assert isinstance(compact, LAWS[name][1])
    for form in (compact, evidence_of(noisy, form="dense"), evidence_of(noisy)):
        torch.testing.assert_close(form.expand(k), table, rtol=0, atol=0)


def test_a_hundred_thousand_classes_of_released_labels():
    noisy = draw(ldp.RandomizedResponse(100_000, 8.0), n=2000)
    form = evidence_of(noisy)
    assert isinstance(form, Candidates)
    assert sum(each.nbytes for each in form.tensors) == 2000 * 12
    for i in (0, 1999):
        torch.testing.assert_close(
            form[i : i + 1].expand(100_000),
            torch.from_numpy(noisy[i : i + 1].log_likelihood()),
            rtol=0,
            atol=0,
        )


def test_the_loss_is_the_log_likelihood_of_what_was_released():
    noisy = draw(ldp.RRTopK(6, 1.0, k=3))
    logits = torch.randn(
        len(noisy), 6, generator=torch.Generator().manual_seed(1), dtype=torch.float64
    )
    expected = -ldp.metrics.mean_log_evidence(noisy, torch.softmax(logits, 1).numpy())
    for form in ("dense", "compact"):
        assert float(likelihood_loss(logits, evidence_of(noisy, form=form))) == pytest.approx(
            expected, abs=1e-7
        )


def test_stages_of_several_laws_stay_compact_and_two_draws_become_a_sum():
    first, second = draw(ldp.SubsetSelection(40, 1.0)), draw(ldp.PriorSplit(40, 1.0), seed=1)
    stages = ldp.concat([first, second])
    assert isinstance(evidence_of(stages, form="compact"), PackedSets)
    torch.testing.assert_close(
        evidence_of(stages, form="compact").expand(40), torch.from_numpy(stages.log_likelihood())
    )
    both = first.combine(second)
    twice = evidence_of(both, form="compact")
    assert isinstance(twice, Sum)
    table = twice.expand(40)
    torch.testing.assert_close(
        table - table.amax(1, keepdim=True),
        torch.from_numpy(both.log_likelihood()),
        rtol=0,
        atol=1e-6,
    )


@pytest.mark.parametrize(
    "law",
    [
        ldp.RandomizedResponse(5, 1.0),
        ldp.SubsetSelection(9, 0.7),
        ldp.ClusterRR(4, 1.0),
        Alibi(4, 1.0),
    ],
    ids=lambda law: law.name,
)
def test_debias_weights_are_those_of_numpy(law):
    noisy = draw(law)
    both = noisy.combine(draw(law, seed=1))
    losses = np.random.default_rng(2).normal(size=(120, law.n_classes))
    for labels in (noisy, both):
        for form in ("dense", "compact"):
            weights = debias_weights(labels, form=form).expand(law.n_classes, torch.float64).numpy()
            np.testing.assert_allclose(
                (weights * losses).sum(axis=1), labels.debias(losses), rtol=1e-5, atol=1e-5
            )
            np.testing.assert_allclose(weights.sum(axis=1), 1, rtol=1e-5)


def test_debiased_loss_is_unbiased_over_the_outputs():
    """The expectation over the law's own matrix, at every label."""
    law = ldp.RandomizedResponse(4, 0.8)
    noisy = draw(law, n=400)
    one_of_each = noisy[[int(np.flatnonzero(noisy.hard_codes() == c)[0]) for c in range(4)]]
    logits = torch.randn(1, 4, dtype=torch.float64).repeat(4, 1)
    loss = debiased_loss(logits, debias_weights(one_of_each), "none")
    truth = -torch.log_softmax(logits[0], 0)
    torch.testing.assert_close(
        torch.from_numpy(law.matrix().astype(float)) @ loss, truth, rtol=1e-5, atol=1e-6
    )


def test_what_cannot_be_done_is_refused():
    with pytest.raises(ldp.InvalidInput, match="unbiased"):
        debias_weights(draw(ldp.PriorSplit(5, 1.0)))
    noisy = draw(ldp.RandomizedResponse(5, 1.0))
    with pytest.raises(ldp.InvalidInput, match="form"):
        evidence_of(noisy, form="sparse")
    with pytest.raises(ldp.InvalidInput, match="at least one row"):
        evidence_of(noisy[:0])
    with pytest.raises(ldp.InvalidInput, match="got ndarray"):
        evidence_of(noisy.hard_codes())
