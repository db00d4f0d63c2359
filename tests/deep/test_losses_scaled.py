# SPDX-License-Identifier: Apache-2.0
"""Gradients of half-precision logits under a loss scale, against float64; and what priors and
mixing weights are refused."""

import math

import pytest
import torch
from torch.nn import functional

from labeldp import InvalidInput
from labeldp.deep import Candidates, likelihood_loss, mixup_loss, posterior_loss
from labeldp.deep import _losses as losses

SCALE = 2.0**16  # GradScaler's first


def gradients(logits, table, loss, dtype):
    """Gradient of the scaled loss by logits of this type, and the same in float64."""
    low = logits.to(dtype).requires_grad_()
    high = low.detach().double().requires_grad_()
    (loss(low, table) * SCALE).backward()
    (loss(high, table.double()) * SCALE).backward()
    return low.grad, high.grad


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_scaled_sum_has_the_gradient_of_float64(dtype, rng):
    table = torch.arange(10.0).neg().repeat(8, 1)
    low, high = gradients(
        torch.randn(8, 10, generator=rng), table, lambda z, t: likelihood_loss(z, t, "sum"), dtype
    )
    assert low.dtype == dtype
    torch.testing.assert_close(low.double(), high, rtol=0.01, atol=0.5)  # of 65,536


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_mean_over_very_many_rows_is_rounded_once(dtype, rng, monkeypatch):
    monkeypatch.setattr(losses, "_CELLS_CPU", 1 << 14)  # several chunks
    logits, table = (
        torch.randn(13_000, 3, generator=rng),
        torch.tensor([0.0, -1.0, -2.0]).repeat(13_000, 1),
    )
    low, high = gradients(logits, table, lambda z, t: likelihood_loss(z, t) / 17, dtype)
    error, least = (float((found.double() - high).norm()) for found in (low, high.to(dtype)))
    # what bfloat16 keeps for the way back is rounded too
    assert error < (1.02 if dtype == torch.float16 else 1.6) * least


def test_small_probabilities_of_many_classes_keep_their_gradient_under_a_scale(rng):
    logits = 2 * torch.randn(4, 100_000, generator=rng)
    form = Candidates(torch.arange(4)[:, None], torch.zeros(4, 1), torch.full((4,), -20.0))
    low = logits.half().requires_grad_()
    high = low.detach().double().requires_grad_()
    (likelihood_loss(low, form) * SCALE).backward()
    (likelihood_loss(high, form) * SCALE).backward()
    assert float((low.grad == 0).double().mean()) < 1e-3
    torch.testing.assert_close(low.grad.double(), high.grad, rtol=2e-3, atol=2**-24)


def test_half_precision_gradients_can_be_taken_twice_from_one_graph(rng):
    logits = torch.randn(5, 4, generator=rng).half().requires_grad_()
    loss = likelihood_loss(logits, torch.arange(4.0).neg().repeat(5, 1))
    (first,) = torch.autograd.grad(loss, logits, retain_graph=True)
    (second,) = torch.autograd.grad(loss, logits)
    assert torch.equal(first, second)


@pytest.mark.parametrize(
    ("prior", "words"),
    [
        (torch.tensor([1.0, -1.0, 1.0]), "none negative"),
        (torch.tensor([1.0, math.nan, 1.0]), "finite weights"),
        (torch.tensor([1.0, math.inf, 1.0]), "finite weights"),
        (torch.zeros(3), "above 0"),
        (torch.tensor([[1.0, 1, 1], [0, 0, 0]]), "above 0"),
        (torch.ones(5), r"shape \(3,\) or \(2, 3\), got \(5,\)"),
        (torch.ones(2, 1), r"got \(2, 1\)"),
    ],
)
def test_a_prior_that_is_none_is_refused(prior, words):
    with pytest.raises(InvalidInput, match=words):
        posterior_loss(torch.zeros(2, 3), torch.zeros(2, 3), prior=prior)


def test_mixing_weights_are_checked_and_never_spread_over_pairs():
    logits, table = torch.randn(4, 3), torch.zeros(4, 3)
    for lam, words in [
        (torch.full((4,), 2.0), "from 0 to 1"),
        (torch.tensor(-0.1), "from 0 to 1"),
        (torch.tensor([0.1, 0.2, math.nan, 0.4]), "from 0 to 1"),
        (torch.full((4, 1), 0.5), r"shape \(4,\), got \(4, 1\)"),
    ]:
        with pytest.raises(InvalidInput, match=words):
            mixup_loss(likelihood_loss, logits, table, table, lam)
    rows = mixup_loss(
        functional.cross_entropy,
        logits,
        torch.arange(4) % 3,
        torch.zeros(4).long(),
        torch.tensor(0.25),
        "none",
    )
    assert rows.shape == (4,)
