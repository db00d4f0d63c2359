# SPDX-License-Identifier: Apache-2.0
"""`labeldp plan` against closed forms."""

import json
import math
import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

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
    count_rows_per_unit,
    plan,
    plan_numbers,
)
from labeldp.cli import app
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
    made = {line.law: line for line in plan(10, [1.0], rows=1000, laws=["alibi"]).laws}
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


def test_errors_of_numbers_are_those_that_releases_have() -> None:
    """Of 20,000 rows the mean and its stated error: 5 standard errors; and the released numbers'
    errors, within a tenth of them."""
    grid, y = ldp.Grid(0, 10, points=21), np.tile(np.linspace(0, 10, 21), 1000)
    made = {line.law: line for line in plan_numbers(grid, [1.0], rows=len(y)).laws}
    for name in ("square-wave", "threshold", "unbiased", "rr"):
        noisy = ldp.privatize(y, law_named(name, 21, 1.0), classes=grid, noise=ldp.SeededNoise(0))
        stated, found = made[name].mean_error, ldp.stats.mean(noisy)["mean"]
        assert stated == pytest.approx(made[name].row_error / math.sqrt(len(y)))
        assert found.stderr == pytest.approx(stated, rel=0.05) and abs(found.value - 5) < 5 * stated
        if name != "rr":
            assert made[name].row_error < made["rr"].row_error
        if made[name].released_error is not None:
            error = np.sqrt(np.mean((np.asarray(noisy.released(), float) - y) ** 2))
            assert made[name].released_error == pytest.approx(error, rel=0.1)
    assert made["rr-on-bins"].row_error is None and made["square-wave"].released_error is None
    assert made["rr-on-bins"].released_error < y.std() < made["unbiased"].released_error
    half = {line.law: line for line in plan_numbers(grid, [2.0], max_rows_per_unit=2).laws}
    assert (
        half["rr"].row_error == pytest.approx(made["rr"].row_error)
        and half["rr"].epsilon_per_row == 1.0
    )


def test_an_epsilon_that_protects_nothing_is_named() -> None:
    for of in (("--classes", "2"), ("--range", "0:10:5")):
        code, said = planned(*of, "--epsilon", "1,30")
        assert (
            code == 0
            and said.count("protects nothing") == 1
            and "An epsilon of 30 protects nothing: the labels come out" in said
        )


def test_a_range_is_planned_on_the_command_line() -> None:
    code, said = planned("--range", "0:100:11", "--epsilon", "1,4", "--rows", "900")
    assert (
        code == 0
        and "labeldp train (best by LabelDPRegressor in two stages: --stages 2) and"
        " labeldp release draw them by default."
        in said
        and "mean_error" in said
        and "28.9" not in said
        and "31.6 off its middle" in said
    )
    code, said = planned("--range", "0:100:11", "--epsilon", "1", "--json")
    found = json.loads(said)
    assert (
        code == 0
        and found["grid"] == {"low": 0, "high": 100, "points": 11}
        and len(found["laws"]) == 6
    )
    for wrong in (
        ("--epsilon", "1"),
        ("--epsilon", "1", "--classes", "2", "--range", "0:1"),
        ("--epsilon", "1", "--range", "1:0"),
        ("--epsilon", "nan", "--range", "0:1"),
        ("--epsilon", "1", "--range", "0:1", "--rows-per-unit", "1:x"),
        ("--epsilon", "1e-300", "--range", "0:1"),
        ("--epsilon", "1", "--range", "0:1", "--rows", "0"),
    ):
        assert planned(*wrong)[0] == 2


def test_laws_of_numbers_that_a_tiny_epsilon_rules_out_are_named() -> None:
    code, said = planned("--range", "0:100:11", "--epsilon", "1e-9")
    assert (
        code == 0
        and "epsilon 1e-09: not unbiased. Expected an epsilon of 1e-09 or more" in said
        and "rr-on-bins (each number" in said
    )
    made = plan_numbers(ldp.Grid(0, 100, points=11), [1e-12, 1.0])
    assert [line.law for line in made.laws if line.epsilon == 1.0] == list(OF_NUMBERS)
    left = [line.law for line in made.laws if line.epsilon == 1e-12]
    assert "square-wave" in left and "unbiased" not in left
    with pytest.raises(ldp.InvalidInput, match="Take 1e-6 or more"):
        plan_numbers(ldp.Grid(0, 100, points=11), [1e-300])


def test_caps_of_numbers_are_compared_by_what_an_interval_tells() -> None:
    grid = ldp.Grid(0, 100, points=11)
    made = plan_numbers(grid, [0.5, 50.0], rows_per_unit=UNITS)
    kept = {1: 5300, 2: 6600, 3: 6900, 5: 7500}
    for epsilon, best in ((0.5, 1), (50.0, 5)):
        caps = [cap for cap in made.caps if cap.epsilon == epsilon]
        assert {cap.max_rows_per_unit: cap.rows_kept for cap in caps} == kept
        for cap in caps:
            bits = float(
                np.asarray(law_named("square-wave", 11, cap.epsilon_per_row).information())
            ) / math.log(2)
            assert cap.bits == pytest.approx(bits * cap.rows_kept)
        assert [cap.max_rows_per_unit for cap in caps if cap.recommended] == [best]
        lines = [line for line in made.laws if line.epsilon == epsilon]
        assert [line.epsilon_per_row for line in lines] == pytest.approx(
            [epsilon / best] * len(lines)
        )
        assert all(
            line.mean_error == pytest.approx(line.row_error / math.sqrt(kept[best]))
            for line in lines
            if line.row_error is not None
        )
    code, said = planned(
        "--range", "0:100:11", "--epsilon", "1", "--rows-per-unit", "1:4000,2:1000,5:300"
    )
    assert (
        code == 0
        and "at most 1 row of each unit (--max-rows-per-unit 1) tells most" in said
        and "mean_error" in said
    )


def planned(*asked: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["plan", *asked])
    return done.exit_code, done.output


UNITS = {1: 4000, 2: 1000, 5: 300}  # 7,500 rows of 5,300 people


def test_caps_are_compared_by_the_rows_of_each_unit() -> None:
    """With two classes the information of randomized response falls with the square of epsilon, so
    one row a unit tells most."""
    made = plan(2, [0.5, 6.0], rows_per_unit=UNITS)
    kept = {1: 5300, 2: 6600, 3: 6900, 5: 7500}
    small, large = made.caps[:4], made.caps[4:]
    assert [(cap.max_rows_per_unit, cap.rows_kept) for cap in small] == list(kept.items())
    for cap in made.caps:
        q = 1 / (1 + math.exp(cap.epsilon / cap.max_rows_per_unit))
        bits = 1 + q * math.log2(q) + (1 - q) * math.log2(1 - q)
        assert cap.bits == pytest.approx(bits * kept[cap.max_rows_per_unit], rel=1e-6)
        assert cap.share_kept == kept[cap.max_rows_per_unit] / 7500
    for caps in (small, large):
        assert [cap.max_rows_per_unit for cap in caps if cap.recommended] == [
            max(caps, key=lambda cap: cap.bits).max_rows_per_unit
        ]
    assert [cap.max_rows_per_unit for cap in made.caps if cap.recommended] == [1, 1]
    assert {line.epsilon_per_row for line in made.laws} == {0.5, 6.0}
    many = plan(2, [20.0], rows_per_unit={5: 1000})
    # enough for all rows of everybody
    assert [cap.max_rows_per_unit for cap in many.caps if cap.recommended] == [5]
    # the laws are compared at that cap
    assert {line.epsilon_per_row for line in many.laws} == {4.0}


def test_a_cap_that_is_given_says_how_many_rows_count() -> None:
    """Ten rows of each of 1,000 units, of which a cap of 1 keeps one, although more would tell
    more."""
    known = plan(2, [4.0, 8.0], rows=1000)
    made = plan(2, [4.0, 8.0], rows=10_000, rows_per_unit={10: 1000}, max_rows_per_unit=1)
    assert made.budgets == known.budgets and made.learners == known.learners
    assert [cap.max_rows_per_unit for cap in made.caps if cap.recommended] == [2, 3]
    assert (
        plan(2, [4.0, 8.0], rows_per_unit={10: 1000}, max_rows_per_unit=1).budgets == known.budgets
    )
    grid = ldp.Grid(0, 100, points=11)
    numbers = plan_numbers(grid, [8.0], rows=10_000, rows_per_unit={10: 1000}, max_rows_per_unit=1)
    assert numbers.laws == plan_numbers(grid, [8.0], rows=1000).laws
    for wrong in (0, -1, 1.5):
        with pytest.raises(ldp.errors.InvalidInput, match="a whole number max_rows_per_unit >= 1"):
            plan(2, [1.0], max_rows_per_unit=wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("file", ["visits.csv", "visits.parquet"])
def test_a_table_says_how_many_rows_a_unit_has(tmp_path: Path, file: str) -> None:
    user = [
        number
        for rows, units in UNITS.items()
        for unit in range(units)
        for number in [f"{rows}/{unit}"] * rows
    ]
    table = pa.table({"user": user, "y": [0] * len(user)})
    (pacsv.write_csv if file.endswith("csv") else pq.write_table)(table, tmp_path / file)
    assert count_rows_per_unit(tmp_path / file, "user") == UNITS
    options = [
        "plan",
        "--classes",
        "2",
        "--epsilon",
        "1",
        "--table",
        str(tmp_path / file),
        "--unit",
        "user",
    ]
    said = CliRunner().invoke(app, options)
    assert (
        said.exit_code == 0
        and "at most 1 row of each unit (--max-rows-per-unit 1) tells most, with 70.7% of the rows"
        in said.stdout
    )
    same = CliRunner().invoke(
        app, ["plan", "--classes", "2", "--epsilon", "1", "--rows-per-unit", "1:4000,2:1000,5:300"]
    )
    assert same.stdout == said.stdout
    worth = json.loads(CliRunner().invoke(app, [*options[:-2], "--json"]).stdout)
    assert worth == json.loads(
        CliRunner().invoke(app, [*options[:5], "--rows", str(table.num_rows), "--json"]).stdout
    )
    assert worth["rows"] == table.num_rows and worth["budgets"][0]["rows_worth"] > 0
    for wrong in (
        [*options[:-2], "--rows", "3"],
        [*options, "--rows-per-unit", "1:2"],
        [*options[:5], "--rows-per-unit", "1:x"],
        [*options[:5], "--rows-per-unit", "1:5,1:7"],
        [*options[:5], "--unit", "u"],
    ):
        assert CliRunner().invoke(app, wrong).exit_code == 2
    assert CliRunner().invoke(app, [*options[:-1], "absent"]).exit_code == 4


def test_the_command() -> None:
    result = CliRunner().invoke(
        app, ["plan", "--classes", "10", "--epsilon", "0.5,1", "--rows", "5000", "--json"]
    )
    assert result.exit_code == 0
    facts = json.loads(result.stdout)
    assert [entry["epsilon"] for entry in facts["budgets"]] == [0.5, 1.0]
    assert len(facts["laws"]) == 6
    text = CliRunner().invoke(app, ["plan", "--classes", "10", "--epsilon", "1"])
    assert "recommended" in text.stdout
    for bad in (["1", "1"], ["10", "nan"], ["10", "0"], ["10", "x"], ["10", ""]):
        assert (
            CliRunner().invoke(app, ["plan", "--classes", bad[0], "--epsilon", bad[1]]).exit_code
            == 2
        )
    assert CliRunner().invoke(app, ["plan", "--classes", "100000", "--epsilon", "1"]).exit_code == 0


def test_classes_are_a_number_or_names_as_for_a_release() -> None:
    by_number, by_name = (
        CliRunner().invoke(app, ["plan", "--classes", given, "--epsilon", "1"])
        for given in ("3", "no, yes,unknown")
    )
    assert by_number.exit_code == by_name.exit_code == 0
    assert by_number.stdout == by_name.stdout
    for given, said in (
        ("no", "got 'no'"),
        ("no,", "got 'no,'"),
        ("no,no", "different names"),
        ("no,yes;1,2", "of one column"),
    ):
        refused = CliRunner().invoke(
            app, ["plan", "--classes", given, "--epsilon", "1"], env={"COLUMNS": "200"}
        )
        assert refused.exit_code == 2
        assert said in refused.stderr


@pytest.mark.parametrize("n_classes", [2, 3, 4, 6, 8, 10, 20, 26, 100])
@pytest.mark.parametrize("epsilon", [1e-12, 3e-8, 1e-4, 0.05, 0.1, 0.2, 0.5, 1.0, 4.0, 30.0])
def test_what_is_recommended_can_be_learned_from(n_classes: int, epsilon: float) -> None:
    """Of laws that tell as much, the one that has an inverse: rounding once chose a split that
    asked all rows the same."""
    made = plan(n_classes, [epsilon])
    told = {line.law: line.bits_per_row for line in made.laws}
    assert [line.law for line in made.laws if line.recommended] == [
        "subset" if told["subset"] > 1.001 * told["rr"] else "rr"
    ]
    assert all(0 < bits < 10 for bits in told.values())


@pytest.mark.parametrize("epsilon", [30.0, 56.0, 60.0, 72.0, 76.0, 200.0])
def test_noisy_accuracy_keeps_its_digits_at_large_budgets(epsilon: float) -> None:
    """The likeliest of noisy scores is the label but for about (K - 1) e^(-epsilon / 2);
    cancellation once left 0.027 of it."""
    (hit,) = (
        line.noisy_accuracy
        for line in plan(10, [epsilon], laws=["alibi"]).laws
        if line.law == "alibi"
    )
    assert hit <= 1.0
    assert 1.0 - hit == pytest.approx(0.0, abs=9 * (1 + epsilon) * math.exp(-epsilon / 2) + 1e-13)


def test_what_to_learn_with_follows_the_budget_the_classes_and_the_rows() -> None:
    said = plan(2, (0.01, 0.5, 2.0, 4.0)).learners
    assert ["LightGBM" in line for line in said] == [False, True, True, True]
    assert ["--model lightgbm" in line for line in said] == [False, True, True, True]
    assert ["counts of clusters" in line for line in said] == [True, True, True, False]
    assert ["one row in a hundred" in line for line in said] == [False, True, True, False]
    assert not any("one row in a hundred" in line for line in plan(10, (0.5, 2.0)).learners)
    many, few = (plan(26, [1.0], rows=rows).learners[0] for rows in (60_000, 15_000))
    assert (
        "LightGBM" in many and "LightGBM" not in few and "are worth 21.8 true labels a class" in few
    )
    assert "LightGBM" in plan(2, [1.0], rows=60_000).learners[0]
    shared = plan(2, [1.0], max_rows_per_unit=4).learners[0]  # a quarter of it for each row
    assert "LightGBM" not in shared and shared.startswith("epsilon 1: ")
    made = plan(10, [0.5, 4.0])
    assert "TorchClassifier" in made.learners[1] and all(
        line in made.to_text() for line in (*made.learners, NEXT)
    )


def test_the_readme_says_what_to_use_as_plan_does() -> None:
    """Each rule's epsilon, in the line of its data, and there the names that plan prints."""
    page = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
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
