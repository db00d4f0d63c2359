# SPDX-License-Identifier: Apache-2.0
"""The benchmark of small epsilon on results that are not complete: cells that are there are known again, and what is there is drawn."""

import importlib
import random
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"
FOUND = {"lambda": 0.9, "error_of_mean_loss": -0.01, "spread_of_one_loss": 0.5, "purity": 0.9, "accuracy": 0.8}


@pytest.fixture
def benchmark(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    for name in [module.stem for module in BENCHMARKS.glob("*.py")]:
        monkeypatch.delitem(sys.modules, name, raising=False)
    return importlib.import_module("small_epsilon")


def cells(benchmark, rows=None):
    names = ("mnist", "fashion_mnist", "adult", "digits", "cifar10")
    tables = ("main", *benchmark.tables.TABLES)
    return [cell for table in tables for cell in benchmark.wanted(table, names, (0.1, 1.0), 2, rows)]


def finished(cell):
    """As a run that measured everything, in the tables whose cells measure it too."""
    return cell | FOUND | {"finished": "now"} | ({"beta": 0.45} if cell["table"] == "beta" else {})


def test_a_cell_is_known_again_when_it_is_finished(benchmark):
    wanted = cells(benchmark)
    assert len({benchmark.key(cell) for cell in wanted}) == len(wanted)
    assert [benchmark.key(finished(cell)) for cell in wanted] == [benchmark.key(cell) for cell in wanted]
    assert benchmark.key(wanted[0] | {"clusters": 30}) == benchmark.key(wanted[0])


def test_the_table_of_beta_has_bias_and_spread_beside_accuracy(benchmark):
    lines = sys.modules["small_epsilon_report"].beta_table([finished(cell) for cell in cells(benchmark)]).splitlines()
    assert lines[2] == "| mnist | 0.5 | 0.900 | 0.0 | -0.0100 ± 0.0000 | 0.50 ± 0.00 | 80.0 ± 0.0 |"
    assert len(lines) == 2 + 2 * 2 * 6


@pytest.mark.parametrize("share", [0.01, 0.1, 1.0])
def test_what_is_there_is_drawn(benchmark, tmp_path, share):
    pytest.importorskip("matplotlib")
    chance = random.Random(0)
    runs = [finished(cell) for cell in cells(benchmark) if chance.random() < share]
    for run in runs:
        if chance.random() < 0.3:
            run.pop(chance.choice(list(FOUND)))
    made = benchmark.plots.write(runs, tmp_path)
    assert {path.name for path in made} == {f"small-epsilon-{run['table']}.png" for run in runs}
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in made)
    assert benchmark.plots.write([], tmp_path) == []


def test_a_trial_has_plots_of_its_own(benchmark, tmp_path):
    pytest.importorskip("matplotlib")
    runs = [finished(cell) for cell in cells(benchmark, rows=500)[:5]]
    assert benchmark.plots.write(runs, tmp_path) == []
    assert [path.name for path in benchmark.plots.write(runs, tmp_path, 500)] == ["small-epsilon-main-500-rows.png"]
