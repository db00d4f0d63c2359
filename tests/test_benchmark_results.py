# SPDX-License-Identifier: Apache-2.0
"""Figures in the documents are those of the kept results: the tables are made again from the JSON and compared."""

import importlib
import json
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"


@pytest.fixture
def tabular(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    for name in ("tabular", "conditions"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    import tabular

    return tabular


def test_tables_in_the_documents_are_the_kept_results(tabular):
    runs = json.loads((RESULTS / "tabular.json").read_text(encoding="utf-8"))["runs"]
    assert tabular.markdown(runs) in (ROOT / "benchmarks" / "README.md").read_text(encoding="utf-8")
    methods = ("randomized response", "RR, tuned C", "LP-2ST", "labeldp", "non-private")
    assert tabular.markdown(runs, (1.0,), methods) in (ROOT / "README.md").read_text(encoding="utf-8")


def test_every_run_that_was_started_is_finished_and_says_how(tabular):
    runs = json.loads((RESULTS / "tabular.json").read_text(encoding="utf-8"))["runs"]
    assert {tabular.key(run) for run in runs} == {tabular.key(run) for run in tabular.wanted(tabular.ESTIMATORS, tabular.EPSILONS, 10)}
    assert all("finished" in run and "error" not in run and run["machine"]["versions"] and run["estimator"] for run in runs)


def test_speed_targets_are_listed_with_what_was_measured():
    kept = json.loads((RESULTS / "speed.json").read_text(encoding="utf-8"))
    page = (ROOT / "benchmarks" / "README.md").read_text(encoding="utf-8")
    for row in kept["targets"]:
        assert f"| {row['what']} | {row['measured']} | {row['target']} |" in page
    assert f"{kept['aggregates']['mb_beyond']} MB beyond what Python and pyarrow have loaded" in page


@pytest.fixture
def benchmark(monkeypatch):
    """Imports a benchmark by name, as its own folder's modules see each other."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    for module in ("faults", "rare", "scale", "speed_release", "conditions"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    return importlib.import_module


def test_the_page_on_scale_says_how_many_kills_there_were(benchmark):
    kept = json.loads((RESULTS / "faults.json").read_text(encoding="utf-8"))
    assert benchmark("faults").table(kept) in (ROOT / "docs" / "scale.md").read_text(encoding="utf-8")


def test_rare_classes_are_the_kept_results_and_nowhere_worse_than_a_constant_or_what_is_done_by_hand(benchmark):
    rare = benchmark("rare")
    runs = json.loads((RESULTS / "rare.json").read_text(encoding="utf-8"))["runs"]
    assert rare.markdown(runs) in (ROOT / "benchmarks" / "README.md").read_text(encoding="utf-8")
    whole = {at: group for at, group in rare.cells(runs).items() if len(group) == rare.SEEDS}
    assert len(whole) >= 15
    for at, group in whole.items():
        assert min(rare.worse(group, method) for method in rare.METHODS[1:]) > 0.01 / len(whole), at


def test_no_kill_lost_or_doubled_anything():
    kept = json.loads((RESULTS / "faults.json").read_text(encoding="utf-8"))
    killed = {engine: sum(run["killed"] for run in each["kills"]) for engine, each in kept.items()}
    assert killed["local"] >= 200
    assert min(killed["spark"], killed["ray"]) >= 20
    assert not [run for each in kept.values() for run in each["kills"] if run["problems"]]


def test_the_page_on_scale_shows_what_was_measured_and_the_plan_that_follows(benchmark):
    kept = json.loads((RESULTS / "scale.json").read_text(encoding="utf-8"))
    page = (ROOT / "docs" / "scale.md").read_text(encoding="utf-8")
    assert benchmark("scale").markdown(kept) in page
    assert benchmark("scale").plan(kept) in page


def test_a_release_keeps_to_its_bars_of_time_and_memory():
    kept = json.loads((RESULTS / "scale.json").read_text(encoding="utf-8"))
    for case in (kept["laws"]["randomized response, K = 1000"], kept["rows"]["80 M rows"]):
        assert case["results"]["keep"]["ratio"] <= 1.5
        assert case["results"]["shuffle"]["ratio"] <= 3.0
        assert max(found["peak_mb"] for found in case["results"].values()) < 400
    assert kept["spark"]["randomized response, K = 1000"]["results"]["keep"]["ratio"] <= 1.5


def test_no_kill_of_a_fit_lost_or_doubled_anything():
    trials = json.loads((RESULTS / "deep_resume.json").read_text(encoding="utf-8"))["trials"]
    assert sum(len(each["kills"]) for each in trials) >= 50
    assert not [each for each in trials if each["problems"]]


def test_tables_of_small_epsilon_are_the_kept_results(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    for name in [module.stem for module in (ROOT / "benchmarks").glob("*.py")]:
        monkeypatch.delitem(sys.modules, name, raising=False)
    found = importlib.import_module("small_epsilon")
    assert found.documented() in (ROOT / "benchmarks" / "README.md").read_text(encoding="utf-8")
    assert all("finished" in run and "error" not in run and run["machine"]["versions"] for run in found.load_runs())
    assert found.summary() in (ROOT / "README.md").read_text(encoding="utf-8")
