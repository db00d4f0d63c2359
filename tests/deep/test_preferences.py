# SPDX-License-Identifier: Apache-2.0
"""Preferences: the loss on the page is unbiased for released labels, and tiny policies learn from them, by it and by the likelihood."""

import math
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.stats import norm
from torch import Tensor, nn
from torch.nn.functional import log_softmax, logsigmoid

import labeldp as ldp
from labeldp.deep import evidence_of, likelihood_loss

pytestmark = pytest.mark.deep
MISTAKE = 1e-6  # chance that a right implementation fails a statistical test
PAGE = (Path(__file__).resolve().parents[2] / "docs" / "preferences.md").read_text(encoding="utf-8")
PAIRS, PEOPLE, WORDS, BETA = 4000, 2000, 6, 0.5


def robust_dpo() -> Callable[[Tensor, float], Tensor]:
    """The function on the page, as it stands there."""
    code = next(block for block in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL) if "def robust_dpo" in block)
    found: dict[str, Callable[[Tensor, float], Tensor]] = {}
    exec(compile(code, "preferences.md", "exec"), found)
    return found["robust_dpo"]


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 4.0])
def test_the_robust_loss_is_unbiased_over_the_matrix_of_the_law_that_runs(epsilon: float) -> None:
    law, loss = ldp.RandomizedResponse(2, epsilon), robust_dpo()
    matrix, flip = law.matrix(), 1 / (1 + math.exp(epsilon))
    assert matrix[0, 1] == matrix[1, 0] == pytest.approx(flip, rel=1e-12)
    z = torch.linspace(-20, 20, 41, dtype=torch.float64)
    for label in (0, 1):
        true = -logsigmoid((2 * label - 1) * z)
        mean = sum(float(matrix[label, output]) * loss((2 * output - 1) * z, flip) for output in (0, 1))
        assert torch.allclose(mean, true, atol=1e-10)
        wrong = sum(float(matrix[label, output]) * loss((2 * output - 1) * z, flip / 2) for output in (0, 1))
        assert not torch.allclose(wrong, true, atol=1e-3)


def judgements(seed: int = 0) -> tuple[Tensor, Tensor, np.ndarray, np.ndarray]:
    """Pairs of one-word answers, in public order; whether the first is preferred, by a Bradley-Terry model; and who judged."""
    rng = np.random.default_rng(seed)
    first = rng.integers(0, WORDS, PAIRS)
    second = (first + rng.integers(1, WORDS, PAIRS)) % WORDS
    reward = np.linspace(-2, 2, WORDS)
    preferred = (rng.random(PAIRS) < 1 / (1 + np.exp(reward[second] - reward[first]))).astype(int)
    return torch.from_numpy(first), torch.from_numpy(second), preferred, np.arange(PAIRS) % PEOPLE


def released(preferred: np.ndarray, people: np.ndarray, epsilon: float, seed: int = 0) -> ldp.NoisyLabels:
    law, noise = ldp.RandomizedResponse(2, epsilon), ldp.SeededNoise(seed)
    return ldp.privatize(preferred, law, ids=np.arange(PAIRS), unit=people, max_rows_per_unit=2, noise=noise)


def test_the_robust_loss_of_released_labels_is_that_of_the_true_ones() -> None:
    """A z-test of the mean over 4,000 pairs, and the same by `debias`; half of the person's epsilon is that of a row."""
    first, second, preferred, people = judgements()
    noisy, flip = released(preferred, people, 2.0), 1 / (1 + math.exp(1.0))
    z = (first - second).double()
    sign, truth = (torch.from_numpy(2.0 * codes - 1) for codes in (noisy.hard_codes(), preferred))
    rows = robust_dpo()(sign * z, flip)
    assert np.allclose(rows.numpy(), noisy.debias(torch.stack([-logsigmoid(-z), -logsigmoid(z)], dim=1).numpy()), rtol=1e-9)
    off = rows + logsigmoid(truth * z)
    assert abs(float(off.mean() / (off.std() / math.sqrt(PAIRS)))) < norm.isf(MISTAKE / 2)
    unmoved = -logsigmoid(sign * z) + logsigmoid(truth * z)
    assert abs(float(unmoved.mean() / (unmoved.std() / math.sqrt(PAIRS)))) > norm.isf(MISTAKE / 2)


def trained(loss: Callable[[Tensor], Tensor], first: Tensor, second: Tensor) -> Tensor:
    """A policy over the words, from a uniform reference, by its implicit rewards: beta times its log-ratios, (words,), of mean 0."""
    policy = nn.Parameter(torch.zeros(WORDS, dtype=torch.float64))
    reference = log_softmax(torch.zeros(WORDS, dtype=torch.float64), dim=0)
    optimizer = torch.optim.LBFGS([policy], max_iter=60)

    def closure() -> Tensor:
        optimizer.zero_grad()
        ratios = BETA * (log_softmax(policy, dim=0) - reference)
        value = loss(ratios[first] - ratios[second])
        value.backward()
        return value

    optimizer.step(closure)
    found = BETA * log_softmax(policy.detach(), dim=0)
    return found - found.mean()


def test_tiny_policies_learn_the_rewards_from_released_judgements() -> None:
    first, second, preferred, people = judgements()
    noisy, flip = released(preferred, people, 4.0), 1 / (1 + math.exp(2.0))
    sign, evidence = torch.from_numpy(2.0 * noisy.hard_codes() - 1), evidence_of(noisy)
    found = {
        "robust": trained(lambda z: robust_dpo()(sign * z, flip).mean(), first, second),
        "likelihood": trained(lambda z: likelihood_loss(torch.stack([torch.zeros_like(z), z], dim=1), evidence), first, second),
        "as if true": trained(lambda z: -logsigmoid(sign * z).mean(), first, second),
    }
    off = {name: float((rewards - torch.linspace(-2, 2, WORDS)).abs().max()) for name, rewards in found.items()}
    assert off["robust"] < 0.4 and off["likelihood"] < 0.4 < 0.6 < off["as if true"], off


def test_one_bill_for_all_judgements_of_a_person(tmp_path: Path) -> None:
    _, _, preferred, people = judgements()
    ledger = ldp.Ledger(tmp_path / "ledger.db", budget=2.0)
    told = {"ids": np.arange(PAIRS), "unit": people, "max_rows_per_unit": 2, "dataset": "judgements", "ledger": ledger}
    noisy = ldp.privatize(preferred, ldp.RandomizedResponse(2, 2.0), **told)  # type: ignore[arg-type]
    assert (ledger.spent("judgements", "label"), noisy.privacy.unit, len(ledger.runs())) == (2.0, "unit", 1)
    assert noisy.likelihood().min() == pytest.approx(math.exp(-1.0))  # epsilon of a row is half of the person's
    with pytest.raises(ldp.BudgetExceeded):
        ldp.privatize(preferred, ldp.RandomizedResponse(2, 1.0), **told)  # type: ignore[arg-type]
