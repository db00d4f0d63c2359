# SPDX-License-Identifier: Apache-2.0
"""The deep tables in the documents are made again from the kept runs and compared."""

import json
import math
import sys
from dataclasses import fields
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def deep(monkeypatch):
    """The benchmark's modules, found as it finds them itself."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    for name in [name for name in sys.modules if name == "conditions" or name.startswith("deep_")]:
        monkeypatch.delitem(sys.modules, name)
    import deep_cells
    import deep_published
    import deep_report

    return deep_cells, deep_published, deep_report


def test_tables_in_the_documents_are_the_kept_runs(deep):
    cells, published, report = deep
    page = (ROOT / "benchmarks" / "README.md").read_text(encoding="utf-8")
    tables = sorted({(run["table"], run["size"]) for run in cells.load_runs(cells.results_file(False))})
    assert tables
    for table, size in tables:
        assert report.markdown(table, size, published.EPSILONS.get(table, ())) in page


def test_the_summary_in_the_readme_is_the_kept_runs(deep):
    _, _, report = deep
    assert report.summary() in (ROOT / "README.md").read_text(encoding="utf-8")


def test_recipes_name_every_setting_so_that_no_default_changes_what_they_mean(deep, monkeypatch):
    """And the published ones are those of the kept runs: SGD, clipped only where that is said."""
    import deep_recipes

    from labeldp.deep import Recipe

    given = []
    monkeypatch.setattr(deep_recipes, "Recipe", lambda **named: given.append(named) or Recipe(**named))
    for frozen in deep_recipes.FROZEN.values():
        for training in (frozen.paper, frozen.clean, *(stage for stages in frozen.ours for stage in stages)):
            made = training.recipe()
            assert given[-1].keys() == {field.name for field in fields(Recipe)}
            assert (made.optimizer, made.momentum, made.clip) == ("sgd", 0.9, math.inf if training.clip is None else training.clip)
    assert given


def test_a_run_says_what_its_precision_came_to(deep):
    from dataclasses import replace

    from deep_recipes import method
    from deep_train import precision_used

    two = method("mnist", "cpu", "ours-2", 1.0)
    first, second = two.stages
    low, high = replace(first, precision="bf16"), replace(second, precision="float32")
    assert precision_used(replace(two, stages=(low, low)), "cpu") == "bf16"
    assert precision_used(replace(two, stages=(low, high)), "cpu") == "bf16, float32"
    assert precision_used(replace(two, stages=(high, high)), "cpu") == "float32"
    assert precision_used(two, "cpu") in ("bf16", "float32")
    assert precision_used(method("mnist", "cpu", "dp-sgd", 1.0), "cpu") == "float32"


def test_where_time_allows_no_privacy_is_trained_as_long_as_ours(deep):
    from deep_recipes import FROZEN

    assert all(frozen.clean.epochs >= frozen.ours[0][0].epochs for (_, size), frozen in FROZEN.items() if size == "gpu")


def test_every_run_that_was_started_says_how_it_ended(deep):
    cells, _, _ = deep
    runs = cells.load_runs(cells.results_file(False))
    assert all(run["status"] in ("finished", "failed") for run in runs)
    finished = [run for run in runs if run["status"] == "finished"]
    assert all(run["recipe"] and run["machine"]["versions"] and run["noise"].startswith("seeded") for run in finished)
    assert all(run["precision"] in ("bf16", "float32") and run["at_once"] for run in finished if run["device"] == "cuda")


def test_the_table_of_speed_is_the_kept_run_and_meets_its_targets(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    monkeypatch.delitem(sys.modules, "conditions", raising=False)
    import deep_speed

    kept = json.loads(deep_speed.RESULT.read_text(encoding="utf-8"))["cpu"]
    assert deep_speed.markdown(kept) in (ROOT / "benchmarks" / "README.md").read_text(encoding="utf-8")
    first, last = kept["cases"][0]["steps"], kept["cases"][-1]["steps"]
    assert max(found["ratio"] for found in first.values()) <= deep_speed.TARGET
    assert last["labeldp.deep.train"]["ratio"] <= 1 / deep_speed.LOOP_TARGET
    on_gpu = json.loads(deep_speed.RESULT.read_text(encoding="utf-8"))["gpu"]
    assert deep_speed.markdown(on_gpu) in (ROOT / "benchmarks" / "README.md").read_text(encoding="utf-8")


def test_the_run_that_had_both_cores_took_what_the_page_says(deep):
    cells, _, _ = deep
    (run,) = [run for run in cells.load_runs(cells.results_file(False)) if (run["table"], run["seed"]) == ("fashion-mnist", 103)]
    page = (ROOT / "benchmarks" / "README.md").read_text(encoding="utf-8")
    assert run["threads"] == 2
    assert f"(`--threads 2`), and took {run['seconds'] / 60:.1f} minutes" in page
    assert run["seconds"] <= 600
