# SPDX-License-Identifier: Apache-2.0
"""`labeldp plan` against closed forms."""

import json
import math
import re
from pathlib import Path

import numpy as np
import pytest
from tests.cli.commands import run

import labeldp as ldp
from labeldp.app.plan import (
    EMBEDDINGS,
    EVENTS,
    FEW,
    NEXT,
    NUMBERS,
    OF_NUMBERS,
    RULES,
    TABLES,
    advantage,
    plan,
    plan_numbers,
)
from labeldp.laws import law_named


@pytest.mark.parametrize(
    ("epsilon", "expected"), [(0.5, 0.1225), (1, 0.2428), (2, 0.4612), (4, 0.7614), (8, 0.9640)]
)
def test_advantage_of_an_attacker(epsilon: float, expected: float) -> None:
    assert advantage(epsilon, 1000) == pytest.approx(expected, abs=6e-5)
    every = [
        (math.exp(epsilon) - 1) * (k - 1) / (k * (math.exp(epsilon) + k - 1))
        for k in range(2, 1001)
    ]
    assert advantage(epsilon, 1000) == pytest.approx(max(every))
    assert advantage(epsilon, 2) == pytest.approx(math.tanh(epsilon / 2) / 2)
    assert advantage(epsilon, 1000) <= math.tanh(epsilon / 4) + 1e-12


def test_laws_at_one_budget() -> None:
    made = {line["law"]: line for line in plan(10, [1.0], rows=1000, laws=["alibi"])["laws"]}
    keep = math.e / (math.e + 9)
    assert made["rr"]["keep_probability"] == pytest.approx(keep)
    assert made["rr"]["noisy_accuracy"] == pytest.approx(keep)
    assert made["rr"]["bits_per_row"] * math.log(2) == pytest.approx(0.0734, abs=5e-5)
    assert made["subset"]["bits_per_row"] * math.log(2) == pytest.approx(0.1224, abs=5e-5)
    assert made["subset"]["set_size"] == 3
    assert made["subset"]["keep_probability"] == pytest.approx(3 * math.e / (3 * math.e + 7))
    assert made["split"]["keep_probability"] == pytest.approx(math.e / (math.e + 1))
    assert made["alibi"]["bits_per_row"] * math.log(2) == pytest.approx(0.0954, abs=5e-5)
    assert made["alibi"]["noisy_accuracy"] == pytest.approx(0.16367, abs=5e-5)
    assert 0.16367 < made["alibi"]["keep_probability"] < made["alibi"]["set_size"] / 2
    assert [line["recommended"] for line in made.values()] == [False, True, False, False]


def test_errors_of_numbers_are_those_that_releases_have() -> None:
    """Of 20,000 rows the mean and its stated error: 5 standard errors; and the released numbers'
    errors, within a tenth of them."""
    grid, y = ldp.Grid(0, 10, points=21), np.tile(np.linspace(0, 10, 21), 1000)
    made = {line["law"]: line for line in plan_numbers(grid, [1.0], rows=len(y))["laws"]}
    for name in ("square-wave", "threshold", "unbiased", "rr"):
        noisy = ldp.privatize(
            ldp.PrivateLabels(y, classes=grid, noise=ldp.SeededNoise(0)), law_named(name, 21, 1.0)
        )
        stated, found = made[name]["mean_error"], ldp.stats.mean(noisy)["mean"]
        assert stated == pytest.approx(made[name]["row_error"] / math.sqrt(len(y)))
        assert found.stderr == pytest.approx(stated, rel=0.05) and abs(found.value - 5) < 5 * stated
        if name != "rr":
            assert made[name]["row_error"] < made["rr"]["row_error"]
        if made[name]["released_error"] is not None:
            error = np.sqrt(np.mean((np.asarray(noisy.released(), float) - y) ** 2))
            assert made[name]["released_error"] == pytest.approx(error, rel=0.1)
    assert made["rr-on-bins"]["row_error"] is None and made["square-wave"]["released_error"] is None
    assert made["rr-on-bins"]["released_error"] < y.std() < made["unbiased"]["released_error"]
    half = {line["law"]: line for line in plan_numbers(grid, [2.0], max_rows_per_unit=2)["laws"]}
    assert (
        half["rr"]["row_error"] == pytest.approx(made["rr"]["row_error"])
        and half["rr"]["epsilon_per_row"] == 1.0
    )


def test_the_command_tells_classes_and_ranges_apart() -> None:
    for of, n_laws, learns in (
        (("--classes", "no, yes,unknown"), 3, "labeldp train"),
        (("--range", "0:100:11"), 6, "in two stages: --stages 2"),
    ):
        asked = ("plan", *of, "--epsilon", "1,30", "--rows", 900)
        code, said, _ = run(*asked)
        assert code == 0 and learns in said and said.count("30 protects nothing") == 1
        facts = json.loads(run(*asked, "--json")[1])
        assert facts["rows"] == 900 and len(facts["laws"]) == 2 * n_laws
    assert facts["grid"] == {"low": 0, "high": 100, "points": 11}
    assert run("plan", "--classes", 3, "--epsilon", 1) == run(
        "plan", "--classes", "no,yes,unknown", "--epsilon", 1
    )
    assert run("plan", "--classes", 100_000, "--epsilon", 1)[0] == 0


@pytest.mark.parametrize(
    "asked",
    [
        "--epsilon 1",
        "--epsilon 1 --classes 2 --range 0:1",
        "--epsilon 1 --range 1:0",
        "--epsilon nan --range 0:1",
        "--epsilon 1e-300 --range 0:1",
        "--epsilon 1 --range 0:1 --rows 0",
        "--epsilon 1 --classes 2 --max-rows-per-unit 0",
        "--epsilon 0 --classes 2",
        "--epsilon x --classes 2",
        "--epsilon 1 --classes 1",
        "--epsilon 1 --classes no",
        "--epsilon 1 --classes no,",
        "--epsilon 1 --classes no,no",
        "--epsilon 1 --classes no,yes;1,2",
    ],
)
def test_what_makes_no_plan_is_a_usage_error(asked: str) -> None:
    assert run("plan", *asked.split())[0] == 2


def test_laws_of_numbers_that_a_tiny_epsilon_rules_out_are_named() -> None:
    made = plan_numbers(ldp.Grid(0, 100, points=11), [1e-12, 1.0])
    assert [line["law"] for line in made["laws"] if line["epsilon"] == 1.0] == list(OF_NUMBERS)
    left = [line["law"] for line in made["laws"] if line["epsilon"] == 1e-12]
    assert any("not unbiased. Expected an epsilon" in reason for reason in made["reasons"])
    assert "square-wave" in left and "unbiased" not in left
    with pytest.raises(ldp.InvalidInput, match="Take 1e-6 or more"):
        plan_numbers(ldp.Grid(0, 100, points=11), [1e-300])


@pytest.mark.parametrize("n_classes", [2, 3, 4, 6, 8, 10, 20, 26, 100])
@pytest.mark.parametrize("epsilon", [1e-12, 3e-8, 1e-4, 0.05, 0.1, 0.2, 0.5, 1.0, 4.0, 30.0])
def test_what_is_recommended_can_be_learned_from(n_classes: int, epsilon: float) -> None:
    """Of laws that tell as much, the one that has an inverse: rounding once chose a split that
    asked all rows the same."""
    made = plan(n_classes, [epsilon])
    told = {line["law"]: line["bits_per_row"] for line in made["laws"]}
    assert [line["law"] for line in made["laws"] if line["recommended"]] == [
        "subset" if told["subset"] > 1.001 * told["rr"] else "rr"
    ]
    assert all(0 < bits < 10 for bits in told.values())


@pytest.mark.parametrize("epsilon", [30.0, 56.0, 60.0, 72.0, 76.0, 200.0])
def test_noisy_accuracy_keeps_its_digits_at_large_budgets(epsilon: float) -> None:
    """The likeliest of noisy scores is the label but for about (K - 1) e^(-epsilon / 2);
    cancellation once left 0.027 of it."""
    (hit,) = (
        line["noisy_accuracy"]
        for line in plan(10, [epsilon], laws=["alibi"])["laws"]
        if line["law"] == "alibi"
    )
    assert hit <= 1.0
    assert 1.0 - hit == pytest.approx(0.0, abs=9 * (1 + epsilon) * math.exp(-epsilon / 2) + 1e-13)


def test_what_to_learn_with_follows_the_budget_the_classes_and_the_rows() -> None:
    *said, following = plan(2, (0.01, 0.5, 2.0, 4.0))["learners"]
    assert following == NEXT
    assert ["LightGBM" in line for line in said] == [False, True, True, True]
    assert ["--model lightgbm" in line for line in said] == [False, True, True, True]
    assert ["counts of clusters" in line for line in said] == [True, True, True, False]
    assert ["one row in a hundred" in line for line in said] == [False, True, True, False]
    assert not any("one row in a hundred" in line for line in plan(10, (0.5, 2.0))["learners"])
    many, few = (plan(26, [1.0], rows=rows)["learners"][0] for rows in (60_000, 15_000))
    assert (
        "LightGBM" in many and "LightGBM" not in few and "are worth 21.8 true labels a class" in few
    )
    assert "LightGBM" in plan(2, [1.0], rows=60_000)["learners"][0]
    shared = plan(2, [1.0], max_rows_per_unit=4)["learners"][0]  # a quarter of it for each row
    assert "LightGBM" not in shared and shared.startswith("epsilon 1: ")
    assert "TorchClassifier" in plan(10, [0.5, 4.0])["learners"][1]


def test_the_page_of_gains_says_what_to_use_as_plan_does() -> None:
    """Each rule's epsilon, in the line of its data, and there the names that plan prints."""
    page = (Path(__file__).parents[2] / "docs/results/gains.md").read_text(encoding="utf-8")
    lines = dict(re.findall(r"^\* \*\*(.+?)\*\*: (.+)$", page, re.MULTILINE))
    assert [name.lower() for name in lines] == [TABLES, EMBEDDINGS, NUMBERS]
    names = {
        "ProportionClassifier",
        "LabelDPClassifier",
        "TorchClassifier",
        "LabelDPRegressor",
        "LightGBM",
        "two stages",
        "one stage",
    }
    for rule in RULES:
        line = lines["Tables" if rule.data == EVENTS else rule.data.capitalize()]
        assert f"{rule.word} epsilon {rule.epsilon:g}" in line, rule
        assert all(name in line for name in names if name in rule.learner), rule
    assert f"fewer than {FEW:g} true labels a class" in lines["Tables"]
    said = {
        (word, float(epsilon))
        for word, epsilon in re.findall(
            r"(below|up to|from|above) epsilon ([\d.]+\d|\d)", " ".join(lines.values())
        )
    }
    assert said == {(rule.word, rule.epsilon) for rule in RULES}
    for data in (TABLES, EMBEDDINGS, NUMBERS):  # one answer at every epsilon
        assert all(
            sum(rule.holds(epsilon) for rule in RULES if rule.data == data) == 1
            for epsilon in (0.01, 0.5, 1.0, 1.5, 9.0)
        )
