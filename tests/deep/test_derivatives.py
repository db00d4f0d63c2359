# SPDX-License-Identifier: Apache-2.0
"""Derivatives of any order through the losses, and the transforms of `torch.func`, against torch's
own of the formula."""

import numpy as np
import pytest
import torch
from tests.deep.test_losses import TABLE_LOSSES, batch, by_definition
from torch.autograd import gradgradcheck
from torch.func import functional_call, grad, hessian, jvp, vmap

import labeldp as ldp
from labeldp.deep import (
    Candidates,
    Combined,
    Dense,
    Heads,
    Sum,
    cross_entropy,
    evidence_of,
    generalised_cross_entropy,
    likelihood_loss,
    mixup_loss,
    posterior_loss,
)

LABELS = torch.tensor([0, 5, 3, 3])


def forms(n=4, k=6):
    """One form of each kind, of n rows."""
    noisy = {
        law.name: ldp.privatize(
            ldp.PrivateLabels(
                np.arange(n) % k, classes=range(law.n_classes), noise=ldp.SeededNoise(0)
            ),
            law,
        )
        for law in (ldp.RandomizedResponse(k, 1.0), ldp.SubsetSelection(k, 0.5))
    }
    found = {name: evidence_of(each, form="compact") for name, each in noisy.items()}
    dense = Dense(batch(n, k)[1])
    repeated = Candidates(
        torch.tensor([[0, 3], [5, 5], [1, 2], [4, 0]]),
        torch.tensor([[0.0, -1]] * n),
        -torch.ones(n),
    )
    repeated = Candidates(
        repeated.indices, repeated.values * torch.tensor([[1], [0], [1], [1]]), repeated.rest
    )
    found |= {"sum": Sum((dense, repeated)), "repeated": repeated}
    return found | {
        "heads": Heads((Dense(dense.values[:, :2] * 0), Dense(torch.zeros(n, 4))), (2, 4)),
        "combined": Combined(dense, (2, 3)),
    }


LOSSES = {
    "cross": lambda z, _, *given: cross_entropy(z, LABELS, *given),
    "generalised": lambda z, _, *given: generalised_cross_entropy(z, LABELS, *given),
    "mixup": lambda z, table, *given: mixup_loss(
        likelihood_loss, z, table, table.flip(0), 0.3, *given
    ),
    "prior": lambda z, table, *given: posterior_loss(z, table, *given, prior=torch.arange(1.0, 7)),
} | TABLE_LOSSES


@pytest.mark.parametrize("reduction", ["mean", "none"])
@pytest.mark.parametrize("name", LOSSES)
def test_second_derivatives_pass_gradgradcheck(name, reduction):
    logits, table = batch(4, 6)
    # its target is held constant, so that it is not the gradient of its value
    if name == "model posterior":
        pytest.skip("see the Hessian by the definition")
    assert gradgradcheck(lambda z: LOSSES[name](z, table, reduction), (logits.requires_grad_(),))


@pytest.mark.parametrize("kind", forms())
def test_second_derivatives_through_forms_pass_gradgradcheck(kind):
    form = forms()[kind]
    logits = torch.randn(4, 5 if kind == "combined" else 6, dtype=torch.float64, requires_grad=True)
    assert gradgradcheck(lambda z: likelihood_loss(z, form, "none"), (logits,))


def net_and_inputs():
    net = torch.nn.Sequential(
        torch.nn.Linear(3, 8), torch.nn.Tanh(), torch.nn.Linear(8, 11)
    ).double()
    return net, torch.randn(7, 3, dtype=torch.float64)


@pytest.mark.parametrize("name", TABLE_LOSSES)
def test_hessian_vector_products_and_gradient_penalties_are_those_of_the_definition(name):
    (net, x), (_, table) = net_and_inputs(), batch()
    weights = list(net.parameters())
    along = [torch.randn_like(weight) for weight in weights]

    def products(loss):
        first = torch.autograd.grad(loss(net(x)), weights, create_graph=True)
        penalty = torch.autograd.grad(
            sum((each**2).sum() for each in first), weights, retain_graph=True
        )
        return first, torch.autograd.grad(first, weights, along), penalty

    ours = products(lambda z: TABLE_LOSSES[name](z, table))
    theirs = products(lambda z: by_definition(name, z, table).mean())
    torch.testing.assert_close(ours, theirs)


def test_a_gradient_to_be_differentiated_is_the_one_that_is_saved():
    """In float16, whose gradients are scaled, too; and hooks on the logits are called once."""
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        logits, table = batch(64, 50, torch.float32)
        z = logits.to(dtype).requires_grad_()
        z.register_hook(lambda given: given * 2)
        loss = likelihood_loss(z, table, "sum") * 64
        (plain,) = torch.autograd.grad(loss, z, retain_graph=True)
        (again,) = torch.autograd.grad(loss, z, create_graph=True)
        assert again.requires_grad and not plain.requires_grad
        close = (
            {"rtol": 1e-2, "atol": 1e-4} if dtype.itemsize == 2 else {"rtol": 1e-4, "atol": 1e-4}
        )
        torch.testing.assert_close(again.detach(), plain, **close)


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")  # by torch itself, in jvp
@pytest.mark.parametrize("name", LOSSES)
def test_transforms_of_torch_func_are_those_of_the_definition(name):
    logits, table = batch(4, 6)
    loss = LOSSES[name]
    (expected,) = torch.autograd.grad(loss(logits.requires_grad_(), table), logits)
    logits = logits.detach()
    torch.testing.assert_close(grad(lambda z: loss(z, table))(logits), expected)
    every = torch.stack([logits, logits + 1, -logits])
    torch.testing.assert_close(
        vmap(lambda z: loss(z, table))(every), torch.stack([loss(z, table) for z in every])
    )
    v = torch.randn_like(logits)
    torch.testing.assert_close(
        jvp(lambda z: loss(z, table), (logits,), (v,))[1], (expected * v).sum()
    )
    if name in TABLE_LOSSES:
        second = hessian(lambda z: by_definition(name, z, table).mean())(logits)
        torch.testing.assert_close(hessian(lambda z: loss(z, table))(logits), second)


@pytest.mark.parametrize("kind", [*forms(), "tensor"])
def test_gradients_of_each_row_by_vmap_are_those_of_a_loop(kind):
    form = forms().get(kind, batch(4, 6)[1])
    net, x = (
        torch.nn.Linear(3, 5 if kind == "combined" else 6).double(),
        torch.randn(4, 3, dtype=torch.float64),
    )
    weights = dict(net.named_parameters())

    def loss(given, row, i):
        return likelihood_loss(functional_call(net, given, row[None]), form[i[None]])

    found = vmap(grad(loss), in_dims=(None, 0, 0))(
        {name: each.detach() for name, each in weights.items()}, x, torch.arange(4)
    )
    for i in range(4):
        rows = torch.tensor([i])
        alone = torch.autograd.grad(
            likelihood_loss(net(x[rows]), form[rows]), list(weights.values())
        )
        torch.testing.assert_close([each[i] for each in found.values()], list(alone))
