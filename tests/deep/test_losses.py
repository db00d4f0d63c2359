# SPDX-License-Identifier: Apache-2.0
"""Losses: against their definitions, their gradients in float64, and what they refuse."""

import math

import numpy as np
import pytest
import torch
from torch.autograd import gradcheck
from torch.nn import functional

from labeldp import InvalidInput
from labeldp.deep import (
    Candidates,
    Dense,
    PackedSets,
    Recipe,
    Sum,
    cross_entropy,
    debiased_loss,
    generalised_cross_entropy,
    group_votes,
    likelihood_loss,
    mixup_loss,
    neighbour_votes,
    posterior_loss,
    train,
)
from labeldp.deep import _losses as losses
from labeldp.laws._exact import pack_sets

TABLE_LOSSES = {
    "likelihood": likelihood_loss,
    "model posterior": posterior_loss,
    "uniform posterior": lambda *given, **options: posterior_loss(
        *given, prior="uniform", **options
    ),
    "debiased": debiased_loss,
}


def batch(n=7, k=11, dtype=torch.float64, seed=0, scale=3.0):
    rng = torch.Generator().manual_seed(seed)
    logits = torch.randn(n, k, generator=rng, dtype=dtype) * scale
    table = -2 * torch.rand(n, k, generator=rng, dtype=dtype)
    return logits, table - table.amax(dim=1, keepdim=True)


def by_definition(name, logits, table):
    """Each loss as its formula reads, in float64 and without any care for overflow."""
    p, likelihood = torch.softmax(logits.double(), 1), table.double().exp()
    if name == "likelihood":
        return -(p * likelihood).sum(1).log()
    q = {
        "model posterior": p * likelihood,
        "uniform posterior": likelihood,
        "debiased": table.double(),
    }[name].detach()
    q = q if name == "debiased" else q / q.sum(1, keepdim=True)
    return -(q * p.log()).sum(1)


@pytest.mark.parametrize("name", TABLE_LOSSES)
def test_values_and_gradients_are_those_of_the_definition(name):
    logits, table = batch()
    ours, theirs = (logits.clone().requires_grad_() for _ in range(2))
    rows, expected = TABLE_LOSSES[name](ours, table, "none"), by_definition(name, theirs, table)
    torch.testing.assert_close(rows, expected)
    # rows with gradients of their own
    weights = torch.linspace(-1, 2, len(rows), dtype=torch.float64)
    (rows * weights).sum().backward()
    (expected * weights).sum().backward()
    torch.testing.assert_close(ours.grad, theirs.grad)


def test_gradients_of_forms_hard_labels_and_mixup_pass_gradcheck():
    logits, table = batch(4, 6)
    form = Candidates(
        torch.tensor([[0, 3], [5, 5], [1, 2], [4, 0]]),
        -torch.rand(4, 1, dtype=torch.float64).repeat(1, 2),
        -torch.ones(4).double(),
    )
    labels, lam = torch.tensor([0, 5, 3, 3]), torch.tensor([0.2, 1.0, 0.0, 0.7]).double()
    logits.requires_grad_()
    assert gradcheck(lambda z: likelihood_loss(z, form), (logits,))
    assert gradcheck(lambda z: cross_entropy(z, labels), (logits,))
    assert gradcheck(lambda z: generalised_cross_entropy(z, labels, q=0.4), (logits,))
    assert gradcheck(lambda z: mixup_loss(likelihood_loss, z, table, table.flip(0), lam), (logits,))


def test_a_prior_of_the_user_enters_the_posterior():
    logits, table = batch()
    prior = torch.rand(7, 11, dtype=torch.float64)
    q = prior * table.exp()
    expected = -(q / q.sum(1, keepdim=True) * torch.log_softmax(logits, 1)).sum(1)
    torch.testing.assert_close(posterior_loss(logits, table, "none", prior=prior), expected)
    torch.testing.assert_close(
        posterior_loss(logits, table, prior=torch.ones(11)),
        posterior_loss(logits, table, prior="uniform"),
    )


def test_no_evidence_costs_and_teaches_nothing():
    logits, _ = batch()
    logits.requires_grad_()
    loss = likelihood_loss(logits, torch.zeros(7, 11))
    loss.backward()
    torch.testing.assert_close(loss, torch.zeros((), dtype=torch.float64), atol=1e-14, rtol=0)
    torch.testing.assert_close(logits.grad, torch.zeros_like(logits), atol=1e-15, rtol=0)


@pytest.mark.parametrize("q", [1e-6, 0.7, 1.0])
def test_generalised_cross_entropy_by_its_formula_and_at_both_ends(q):
    logits, _ = batch()
    labels = torch.arange(7)
    p = torch.softmax(logits, 1)[torch.arange(7), labels]
    expected = (
        functional.cross_entropy(logits, labels, reduction="none") if q < 1e-3 else (1 - p**q) / q
    )
    torch.testing.assert_close(
        generalised_cross_entropy(logits, labels, "none", q=q), expected, rtol=1e-4, atol=1e-4
    )


# Extreme numbers
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", TABLE_LOSSES)
def test_large_logits_neither_overflow_nor_vanish(name):
    logits = torch.tensor([[1000.0, -1000.0, 0.0], [-3e4, 3e4, 3e4]], requires_grad=True)
    table = torch.tensor([[-5.0, 0.0, -5.0], [0.0, -40.0, -40.0]])
    rows = TABLE_LOSSES[name](logits, table, "none")
    rows.sum().backward()
    assert torch.isfinite(rows).all() and torch.isfinite(logits.grad).all()
    if name == "likelihood":
        torch.testing.assert_close(rows.detach(), torch.tensor([5.0, 40.0]))


def test_excluded_classes_far_above_the_others_are_exact():
    """1 - p would be 0 in float32; the loss is the distance of the logits."""
    logits = torch.tensor([[200.0, 0.0, -1.0]], requires_grad=True)
    loss = likelihood_loss(logits, torch.tensor([[-math.inf, 0.0, -math.inf]]))
    loss.backward()
    torch.testing.assert_close(loss.detach(), torch.tensor(200.0))
    torch.testing.assert_close(logits.grad, torch.tensor([[1.0, -1.0, 0.0]]))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", TABLE_LOSSES)
def test_half_precision_logits_are_summed_in_float32(name, dtype):
    logits, table = batch(64, 5000, torch.float32, scale=1.0)
    low = logits.to(dtype).requires_grad_()
    loss = TABLE_LOSSES[name](low, table)
    loss.backward()
    assert loss.dtype == torch.float32 and low.grad.dtype == dtype
    high = low.detach().double().requires_grad_()
    expected = TABLE_LOSSES[name](high, table.double())
    expected.backward()
    torch.testing.assert_close(loss.detach().double(), expected.detach(), rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(low.grad.double(), high.grad, rtol=2e-2, atol=1e-7)


# Forms
# --------------------------------------------------------------------------------------------------


def sets_of(n, k, seed=0):
    mask = np.random.default_rng(seed).random((n, k)) < 0.4
    return torch.from_numpy(mask), torch.from_numpy(pack_sets(mask))


@pytest.mark.parametrize("k", [2, 8, 11, 300, 2500])
def test_forms_are_the_tables_that_they_stand_for(k):
    n = 9
    mask, bits = sets_of(n, k)
    inside, outside, rest = torch.rand(n), -torch.rand(n), -torch.rand(n)
    label = torch.arange(n) % k
    plain = torch.where(mask, inside[:, None], outside[:, None])
    packed, marked = (
        PackedSets(bits, inside, outside),
        PackedSets(bits, inside, outside, label.int(), rest),
    )
    indices = torch.stack((label, (label + 1) % k), 1)
    values = torch.rand(n, 2)
    few = rest[:, None].repeat(1, k).scatter(1, indices, values)
    total = plain + few + few
    cases = {
        packed: plain,
        marked: plain.scatter(1, label[:, None], rest[:, None]),
        Candidates(indices, values, rest): few,
        Sum((packed, Candidates(indices, values, rest), Dense(few))): (
            total - total.amax(dim=1, keepdim=True)
        ),
    }
    rows = torch.tensor([3, 3, 0])
    for form, table in cases.items():
        assert len(form) == n and form.fits(k) and form.in_range(k)
        # float32 sums in another order
        torch.testing.assert_close(form.expand(k), table, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(
            form.plus(table.double()), 2 * table.double(), rtol=1e-5, atol=1e-6
        )
        torch.testing.assert_close(form[rows].expand(k), table[rows], rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(
            form[2:5].to("cpu").expand(k, torch.float64), table[2:5].double(), rtol=1e-5, atol=1e-6
        )
    assert sum(each.nbytes for each in packed.tensors) == n * (-(-k // 8) + 8)


@pytest.mark.parametrize("name", TABLE_LOSSES)
def test_forms_give_the_loss_of_their_table_in_every_chunk(name, monkeypatch):
    """Chunks of three rows: seven rows end in a part of one."""
    monkeypatch.setattr(losses, "_CELLS_CPU", 3 * 11)
    _, bits = sets_of(7, 11)
    form = PackedSets(bits, torch.zeros(7), -torch.rand(7), torch.arange(7), -torch.rand(7))
    first, second = (batch(7, 11, torch.float32)[0].requires_grad_() for _ in range(2))
    whole = TABLE_LOSSES[name](first, form)
    whole.backward()
    monkeypatch.undo()
    other = TABLE_LOSSES[name](second, form.expand(11))
    other.backward()
    torch.testing.assert_close(whole, other)
    torch.testing.assert_close(first.grad, second.grad)


def test_a_hundred_thousand_classes_need_no_second_table():
    """The largest tensors that are made beside logits and gradient are chunks."""
    n, k = 32, 100_000
    logits = torch.randn(n, k, requires_grad=True)
    form = PackedSets(
        torch.randint(0, 256, (n, k // 8), dtype=torch.uint8), torch.zeros(n), -torch.ones(n)
    )
    likelihood_loss(logits[:2], form[:2]).backward()
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True
    ) as seen:
        likelihood_loss(logits, form)
    made = sorted((event.self_cpu_memory_usage for event in seen.events()), reverse=True)
    whole = 4 * n * k
    assert made[0] == whole and made[1] < whole / 4  # the gradient, then chunks
    assert sum(each.nbytes for each in form.tensors) < whole / 30


# Mixup
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", TABLE_LOSSES)
def test_mixup_mixes_losses_by_one_weight_or_one_a_row(name):
    logits, table = batch()
    loss, other = TABLE_LOSSES[name], table.flip(0)
    lam = torch.linspace(0, 1, 7, dtype=torch.float64)
    first, second = loss(logits, table, "none"), loss(logits, other, "none")
    torch.testing.assert_close(
        mixup_loss(loss, logits, table, other, lam, "none"), lam * first + (1 - lam) * second
    )
    torch.testing.assert_close(
        mixup_loss(loss, logits, Dense(table), Dense(other), 0.25),
        (0.25 * first + 0.75 * second).mean(),
    )
    with pytest.raises(InvalidInput, match="lam"):
        mixup_loss(loss, logits, table, other, 1.5)


# Bad input
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", TABLE_LOSSES)
def test_wrong_shapes_are_refused(name):
    loss, (logits, table) = TABLE_LOSSES[name], batch()
    for bad, words in [
        ((logits[:, :10], table), "one output a class"),
        ((logits, table[:6]), "logits' shape"),
        ((logits[0], table[0]), "logits as a float tensor"),
        ((logits.long(), table), "logits as a float tensor"),
        ((logits[:0], table[:0]), "n >= 1"),
        ((logits, table.numpy()), "evidence_of"),
        ((logits, Dense(table)[:6]), "7 rows"),
        ((logits, Dense(table[:, :10])), "K outputs"),
        (
            (
                logits,
                PackedSets(torch.zeros(7, 1, dtype=torch.uint8), torch.zeros(7), torch.zeros(7)),
            ),
            "K outputs",
        ),
        ((logits, table.clone().requires_grad_()), "Detach"),
    ]:
        with pytest.raises(InvalidInput, match=words):
            loss(*bad)
    with pytest.raises(InvalidInput, match="reduction"):
        loss(logits, table, "average")
    with pytest.raises(InvalidInput, match="from 0 to 10"):
        loss(logits, Candidates(torch.full((7, 1), 11), torch.zeros(7, 1), torch.zeros(7)))


def test_values_that_end_a_training_are_named_with_their_row():
    logits, table = batch()
    bad = logits.clone()
    bad[3, 2] = math.nan
    with pytest.raises(InvalidInput, match=r"finite logits.*1 rows.*row 3"):
        likelihood_loss(bad, table)
    bad[3, 2] = math.inf
    with pytest.raises(InvalidInput, match="finite logits"):
        posterior_loss(bad, table)
    zero = table.clone()
    zero[[1, 5]] = -math.inf
    with pytest.raises(InvalidInput, match=r"above 0.*2 rows.*row 1"):
        likelihood_loss(logits, zero)
    zero[2, 0] = math.nan
    with pytest.raises(InvalidInput, match="got NaN"):
        likelihood_loss(logits, zero)
    masked, certain = logits.clone(), torch.full((7, 11), -math.inf)
    masked[0, 4], certain[:, 4] = -math.inf, 0.0
    with pytest.raises(InvalidInput, match="mask"):
        likelihood_loss(masked, certain)
    assert not torch.isfinite(likelihood_loss(logits, zero, check=False))


WRONG = {
    "likelihoods": lambda table: table.exp(),
    "one-hot labels": lambda table: torch.nn.functional.one_hot(table.argmax(1), 11).to(table),
    "probabilities": lambda table: torch.softmax(table, 1),
    "smoothed labels": (
        lambda table: 0.9 * torch.nn.functional.one_hot(table.argmax(1), 11).to(table) + 0.01
    ),
    "signs": lambda table: -table,
    "a constant above": lambda table: table + 1,
    "a constant below": lambda table: table - 1,
    "log-probabilities": lambda table: torch.log_softmax(table, 1),
    "one row": lambda table: table + torch.eye(7, 1, dtype=table.dtype),
}


@pytest.mark.parametrize(
    "loss",
    [likelihood_loss, posterior_loss, lambda *given: posterior_loss(*given, prior=torch.ones(11))],
)
@pytest.mark.parametrize("kind", WRONG)
def test_what_is_no_log_likelihood_is_refused_on_the_cpu(kind, loss):
    logits, table = batch()
    for given in (WRONG[kind](table), Dense(WRONG[kind](table))):
        with pytest.raises(
            InvalidInput, match=r"largest 0 in each row, got .* evidence_of\(noisy\) .*amax"
        ):
            loss(logits, given)
        if loss is not likelihood_loss:
            continue
        likelihood_loss(logits, given, check=False)
        debiased_loss(logits, given)  # its weights are any numbers
    loss(logits, table)
    loss(logits, table.half())


def test_raw_labels_as_logarithms_of_ones_are_refused():
    logits, labels = torch.zeros(40, 3), torch.arange(40) % 3
    raw = torch.nn.functional.one_hot(labels, 3).float().log()
    for loss in (likelihood_loss, posterior_loss):
        with pytest.raises(InvalidInput, match="labels without noise"):
            loss(logits, raw)
    likelihood_loss(logits[:5], raw[:5])  # a few rows of a channel with zeros may be certain


def test_a_form_above_zero_is_refused_wherever_evidence_is_taken():
    logits, table = batch(64, 3, torch.float32)
    sets = PackedSets(torch.ones(64, 1, dtype=torch.uint8), torch.ones(64), torch.zeros(64))
    wrong = [
        Dense(table.exp()),
        Candidates(torch.zeros(64, 1).long(), torch.ones(64, 1), torch.zeros(64)),
        sets,
    ]
    wrong.append(Sum((Dense(table), wrong[0])))
    held_out, made = (torch.randn(64, 2), Dense(table)), torch.Generator()
    for form in wrong:
        for door in (
            lambda form=form: train(
                torch.nn.Linear(2, 3), held_out[0], form, Recipe(epochs=1), generator=made
            ),
            lambda form=form: neighbour_votes(torch.randn(64, 2), form, 3, 5),
            lambda form=form: group_votes(torch.arange(64) % 4, form, 3),
        ):
            with pytest.raises(InvalidInput, match="largest 0 in each row"):
                door()
        with pytest.raises(InvalidInput, match="largest 0 in each row"):
            train(
                torch.nn.Linear(2, 3),
                *held_out,
                Recipe(epochs=1),
                generator=made,
                held_out=(held_out[0], form),
            )
        with pytest.raises(InvalidInput, match="largest 0 in each row"):
            likelihood_loss(logits, form)


def test_masked_classes_are_fine_where_the_evidence_allows_others():
    logits, table = batch()
    logits[:, 4] = -math.inf
    logits.requires_grad_()
    likelihood_loss(logits, table).backward()
    assert torch.isfinite(logits.grad).all()


@pytest.mark.parametrize("loss", [cross_entropy, generalised_cross_entropy])
def test_hard_labels_are_checked(loss):
    logits, _ = batch()
    labels = torch.arange(7)
    for bad, words in [
        (labels[:6], "codes"),
        (labels.int(), "int64"),
        (labels.numpy(), "from_numpy"),
        (labels - 100, "from 0 to 10"),
        (labels + 5, "from 0 to 10"),
    ]:
        with pytest.raises(InvalidInput, match=words):
            loss(logits, bad)
    with pytest.raises(InvalidInput, match="finite logits"):
        loss(logits * math.nan, labels)
    with pytest.raises(InvalidInput, match="q"):
        generalised_cross_entropy(logits, labels, q=0.0)


@pytest.mark.parametrize("values", [torch.zeros(3), torch.zeros(3, 2).long()])
def test_a_table_of_no_floats_a_row_is_refused(values):
    with pytest.raises(InvalidInput, match=r"values of shape \(n, K\), floats"):
        Dense(values)
