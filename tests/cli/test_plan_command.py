# SPDX-License-Identifier: Apache-2.0
"""`labeldp plan` against closed forms."""

import json
import math

import pytest
from typer.testing import CliRunner

from labeldp.app.plan import advantage, plan
from labeldp.cli import app


@pytest.mark.parametrize(("epsilon", "expected"), [(0.5, 0.1225), (1, 0.2428), (2, 0.4612), (4, 0.7614), (8, 0.9640)])
def test_advantage_of_an_attacker(epsilon: float, expected: float) -> None:
    assert advantage(epsilon, 1000) == pytest.approx(expected, abs=6e-5)
    every = [(math.exp(epsilon) - 1) * (k - 1) / (k * (math.exp(epsilon) + k - 1)) for k in range(2, 1001)]
    assert advantage(epsilon, 1000) == pytest.approx(max(every))
    assert advantage(epsilon, 2) == pytest.approx(math.tanh(epsilon / 2) / 2)
    assert advantage(epsilon, 1000) <= math.tanh(epsilon / 4) + 1e-12


def test_advantage_of_huge_budgets() -> None:
    assert advantage(700.0, 10) == pytest.approx(0.9)
    assert 0.999 < advantage(700.0, 10**6) <= 1


def test_laws_at_one_budget() -> None:
    made = {line.law: line for line in plan(10, [1.0], rows=1000).laws}
    keep = math.e / (math.e + 9)
    assert made["rr"].keep_probability == pytest.approx(keep)
    assert made["rr"].noisy_accuracy == pytest.approx(keep)
    assert made["rr"].bits_per_row * math.log(2) == pytest.approx(0.0734, abs=5e-5)
    assert made["subset"].bits_per_row * math.log(2) == pytest.approx(0.1224, abs=5e-5)
    assert made["subset"].set_size == 3
    assert made["subset"].keep_probability == pytest.approx(3 * math.e / (3 * math.e + 7))
    assert made["split"].keep_probability == pytest.approx(math.e / (math.e + 1))
    assert made["alibi"].bits_per_row * math.log(2) == pytest.approx(0.0954, abs=5e-5)
    assert made["alibi"].noisy_accuracy == pytest.approx(0.16367, abs=5e-5)
    assert 0.16367 < made["alibi"].keep_probability < made["alibi"].set_size / 2
    assert [line.recommended for line in made.values()] == [False, True, False, False]


def test_binary_labels_get_rr_and_units_share() -> None:
    made = plan(2, [2.0], max_rows_per_unit=4)
    assert [(line.law, line.epsilon_per_row) for line in made.laws if line.recommended] == [("rr", 0.5)]


def test_the_command() -> None:
    result = CliRunner().invoke(app, ["plan", "--classes", "10", "--epsilon", "0.5,1", "--rows", "5000", "--json"])
    assert result.exit_code == 0
    facts = json.loads(result.stdout)
    assert [entry["epsilon"] for entry in facts["budgets"]] == [0.5, 1.0]
    assert len(facts["laws"]) == 8
    text = CliRunner().invoke(app, ["plan", "--classes", "10", "--epsilon", "1"])
    assert "recommended" in text.stdout
    for bad in (["1", "1"], ["10", "nan"], ["10", "0"], ["10", "x"], ["10", ""]):
        assert CliRunner().invoke(app, ["plan", "--classes", bad[0], "--epsilon", bad[1]]).exit_code == 2
    assert CliRunner().invoke(app, ["plan", "--classes", "100000", "--epsilon", "1"]).exit_code == 0


@pytest.mark.parametrize("n_classes", [2, 3, 4, 6, 8, 10, 20, 26, 100])
@pytest.mark.parametrize("epsilon", [1e-12, 3e-8, 1e-4, 0.05, 0.1, 0.2, 0.5, 1.0, 4.0, 30.0])
def test_what_is_recommended_can_be_learned_from(n_classes: int, epsilon: float) -> None:
    """Of laws that tell as much, the one that has an inverse: rounding once chose a split that asked all rows the same."""
    made = plan(n_classes, [epsilon])
    told = {line.law: line.bits_per_row for line in made.laws}
    assert [line.law for line in made.laws if line.recommended] == ["subset" if told["subset"] > 1.001 * told["rr"] else "rr"]
    assert all(0 < bits < 10 for bits in told.values())
    assert told["alibi"] < 1.001 * max(told["rr"], told["subset"])


@pytest.mark.parametrize("epsilon", [30.0, 56.0, 60.0, 72.0, 76.0, 200.0])
def test_noisy_accuracy_keeps_its_digits_at_large_budgets(epsilon: float) -> None:
    """The likeliest of noisy scores is the label but for about (K - 1) e^(-epsilon / 2); cancellation once left 0.027 of it."""
    (hit,) = (line.noisy_accuracy for line in plan(10, [epsilon]).laws if line.law == "alibi")
    assert hit <= 1.0
    assert 1.0 - hit == pytest.approx(0.0, abs=9 * (1 + epsilon) * math.exp(-epsilon / 2) + 1e-13)
