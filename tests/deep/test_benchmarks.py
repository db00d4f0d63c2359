# SPDX-License-Identifier: Apache-2.0
"""The benchmarks that need torch: pages that show the kept runs, recipes, a run in a process of its
own, features that are learned once."""

import json
import math
import tempfile
from dataclasses import fields, replace
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
import torch
from benchmarks import BENCHMARKS, pages
from benchmarks.common import load_json, load_runs
from benchmarks.deep import counts as counted
from benchmarks.deep import images as shared
from benchmarks.deep import recipes, report, runs, share, step
from benchmarks.deep.data import Data
from benchmarks.deep.recipes import FROZEN, GRIDS, method
from benchmarks.deep.train import best_by_noisy_labels, fit, precision_used, probabilities
from benchmarks.small_epsilon import command, features, methods
from sklearn.datasets import load_digits

from labeldp.deep import Optimizer, Recipe
from labeldp.laws import SubsetSelection

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "results" / "nets.md"


# Kept runs
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("page", "name"), [pair for pair in pages.every() if pages.needs_torch(pair[1])]
)
def test_pages_are_what_the_command_would_write(page, name):
    text = (ROOT / page).read_text(encoding="utf-8")
    assert pages.put(text, name, pages.made(page, name)) == text


def test_prose_says_by_how_much_the_kept_runs_lead():
    def lead(table, ahead, others, digits):
        found = report.cells(table, "cpu")
        mean = {
            key: np.mean([100 * run["accuracy"] for run in kept]) for key, kept in found.items()
        }
        rivals = {
            e: max(mean[name, e] for name in others if (name, e) in mean)
            for name, e in mean
            if name == others[0]
        }
        return {
            e: f"{mean[ahead, e] - best:.{digits}f}"
            for e, best in rivals.items()
            if (ahead, e) in mean
        }

    def spread(table, digits):
        leads = sorted(lead(table, "ours-1", report.THEIRS, digits).values(), key=float)
        return leads[0].removeprefix("0"), leads[-1].removeprefix("0")

    def counts(table):
        found = lead(table, "counts", ["ours-1"], 1)
        return found[0.5], found[1.0]

    page = " ".join(PAGE.read_text(encoding="utf-8").split())
    said = (
        "is {} to {} points on Fashion-MNIST, {} to {} on CIFAR-10 with the small net, and {} to {}"
        " on MNIST"
    ).format(*spread("fashion-mnist", 1), *spread("cifar10", 1), *spread("mnist", 2))
    assert said in page
    said = "by {} and {} points on Fashion-MNIST at epsilon 0.5 and 1, and by {} and {} on MNIST"
    assert said.format(*counts("fashion-mnist"), *counts("mnist")) in page


def test_every_run_that_was_started_says_how_it_ended():
    kept = load_runs(runs.results_file(False))
    # the last finished, too
    assert all(run["status"] in ("finished", "failed", "earlier law") for run in kept)
    finished = [run for run in kept if run["status"] == "finished"]
    assert all(
        run["recipe"] and run["machine"]["versions"] and run["noise"].startswith("seeded")
        for run in finished
    )
    assert all(
        run["precision"] in ("bf16", "float32") and run["at_once"]
        for run in finished
        if run["device"] == "cuda"
    )


def test_a_step_on_likelihoods_meets_its_targets():
    kept = load_json(step.RESULT)["cpu"]
    first, last = kept["cases"][0]["steps"], kept["cases"][-1]["steps"]
    assert max(found["ratio"] for found in first.values()) <= step.TARGET
    assert last["labeldp.deep.train"]["ratio"] <= 1 / step.LOOP_TARGET


def test_the_run_that_had_both_cores_took_what_the_page_says():
    kept = load_runs(runs.results_file(False))
    (run,) = [run for run in kept if (run["table"], run["seed"]) == ("fashion-mnist", 103)]
    assert run["threads"] == 2
    assert f"(`--threads 2`), and took {run['seconds'] / 60:.1f} minutes" in PAGE.read_text(
        encoding="utf-8"
    )
    assert run["seconds"] <= 600


# Recipes
# --------------------------------------------------------------------------------------------------


def test_recipes_name_every_setting_so_that_no_default_changes_what_they_mean(monkeypatch):
    """And the published ones are those of the kept runs: SGD, clipped only where that is said."""
    given = []
    monkeypatch.setattr(recipes, "Recipe", lambda **named: given.append(named) or Recipe(**named))
    for frozen in FROZEN.values():
        for training in (
            frozen.paper,
            frozen.clean,
            *(stage for stages in frozen.ours for stage in stages),
        ):
            made = training.recipe()
            assert given[-1].keys() == {field.name for field in fields(Recipe)}
            assert made.optimizer == Optimizer(
                "sgd",
                0.9,
                training.weight_decay,
                math.inf if training.clip is None else training.clip,
            )
    assert given


def test_a_run_says_what_its_precision_came_to():
    two = method("mnist", "cpu", "ours-2", 1.0)
    first, second = two.stages
    low, high = replace(first, precision="bf16"), replace(second, precision="float32")
    assert precision_used(replace(two, stages=(low, low)), "cpu") == "bf16"
    assert precision_used(replace(two, stages=(low, high)), "cpu") == "bf16, float32"
    assert precision_used(replace(two, stages=(high, high)), "cpu") == "float32"
    assert precision_used(two, "cpu") in ("bf16", "float32")
    assert precision_used(method("mnist", "cpu", "dp-sgd", 1.0), "cpu") == "float32"


def test_where_time_allows_no_privacy_is_trained_as_long_as_ours():
    assert all(
        frozen.clean.epochs >= frozen.ours[0][0].epochs
        for (_, size), frozen in FROZEN.items()
        if size == "gpu"
    )


def test_the_grid_of_precision_differs_from_the_frozen_recipes_in_precision_alone():
    grid = GRIDS["precision"](1.0)
    assert recipes.data_of("precision") == "mnist"
    assert len(grid) == 4
    for title, row in grid.items():
        name, precision = title.split(", ")
        frozen = method("mnist", "cpu", name, 1.0)
        assert row == replace(
            frozen, stages=tuple(replace(stage, precision=precision) for stage in frozen.stages)
        )
        assert {stage.precision for stage in row.stages} == {precision}


def test_a_run_that_is_finished_is_known_again():
    """By the recipe that it was run with, as JSON keeps it."""
    kept = [
        run
        for run in load_runs(runs.results_file(False))
        if run["status"] == "finished" and run["seed"] >= runs.FIRST_SEED
    ]
    wanted = list(
        runs.wanted("movielens", "cpu", ["ours-1", "ours-2", "non-private"], [1, 2], 3, False)
    )
    assert len(wanted) == 2 * 2 * 3 + 3
    for run in wanted:
        again = json.loads(json.dumps(run))
        assert any(runs.same(again, other) for other in kept)
        again["recipe"]["stages"][0]["rate"] *= 2
        assert not any(runs.same(again, other) for other in kept)


def test_probabilities_move_towards_the_counts_by_how_sure_these_are():
    """Without noise the sums become the counts; with boundless noise nothing moves; in between each
    sum is weighed by its variance."""
    groups, counts = np.array([0, 0, 0, 0, 1]), np.array([[3.0, 1.0], [0.0, 1.0]])
    proba = np.array([[0.5, 0.5]] * 4 + [[0.2, 0.8]])
    sure, unsure, half = (
        counted.towards(proba, groups, counts, variance) for variance in (1e-9, 1e9, 1.0)
    )
    assert np.allclose(sure[:4], [0.75, 0.25], atol=1e-6)
    assert np.allclose(unsure, proba, atol=1e-6)
    # labels of four rows at 1/2 have variance 1, as the noise
    assert np.allclose(half[:4], [0.625, 0.375])
    assert np.allclose(half.sum(axis=1), 1)


def test_a_net_learns_from_counts_alone():
    """1,400 digits, no label of a single row: the net is near the linear model that counts taught,
    far above chance."""
    X, y = load_digits(return_X_y=True)
    X = (
        torch.from_numpy((X * 15).astype(np.uint8))
        .view(-1, 1, 8, 8)
        .repeat_interleave(4, 2)
        .repeat_interleave(4, 3)[:, :, 2:30, 2:30]
    )
    data = Data("mnist", X[:1400], y[:1400], X[1400:], y[1400:], 10, np.empty((0, 0), np.float32))
    recipe = method("mnist", "cpu", "counts", 4.0)
    recipe = replace(
        recipe,
        stages=tuple(
            replace(stage, batch_size=64, average=0.9) for stage in recipe.shortened(2).stages
        ),
    )
    found = counted.fit(data, recipe, 4.0, 0)
    assert len(found.stages) == 2
    assert [epoch["stage"] for epoch in found.epochs] == [1, 1, 2, 2]
    assert (probabilities(found.net, data.X_test).argmax(1) == data.y_test).mean() > 0.6


def test_a_recipe_trains_in_stages_and_draws_each_row_once():
    """As a table's run does, on digits."""
    X, y = load_digits(return_X_y=True)
    X = (
        torch.from_numpy((X * 15).astype(np.uint8))
        .view(-1, 1, 8, 8)
        .repeat_interleave(4, 2)
        .repeat_interleave(4, 3)[:, :, 2:30, 2:30]
    )
    data = Data("mnist", X[:600], y[:600], X[600:700], y[600:700], 10, np.empty((0, 0), np.float32))
    found = fit(data, method("mnist", "cpu", "ours-2", 4.0).shortened(), 4.0, 0)
    assert sum(stage["drawn"] for stage in found.stages) == 600
    assert [stage["learned_from"] for stage in found.stages] == [found.stages[0]["drawn"], 600]
    assert [epoch["stage"] for epoch in found.epochs] == [1, 2]
    assert set(found.hits(1, data.y, 10)) <= {"label_in_candidates"}
    assert probabilities(found.net, data.X_test, "shift 1").shape == (100, 10)
    clean = fit(data, method("mnist", "cpu", "non-private", None).shortened(20), None, 0)
    assert np.mean(probabilities(clean.net, data.X_test).argmax(axis=1) == data.y_test) > 0.5


def test_an_epoch_is_chosen_by_noisy_labels_of_other_rows_than_those_that_score_it():
    """Collapsed nets lose by e^-20 of probability a row; 200 noisy labels at epsilon 4 cannot
    prefer one of these."""
    labels = np.arange(400) % 10
    good = np.full((400, 10), 0.01, np.float32)
    good[np.arange(400), labels] = 0.91
    one_class = np.full((400, 10), 1e-9, np.float32)
    one_class[:, 3] = 1
    worse = good.copy()
    # right where true labels score it, wrong where noisy labels choose
    worse[200:] = good[200:][::-1]
    found = best_by_noisy_labels(
        [worse, good, one_class], labels, SubsetSelection(10, 4.0), 0, rates=False
    )
    assert (found["epoch"], found["epochs"], found["rows"], found["law"]) == (2, 3, 200, "subset")
    assert (found["accuracy"], found["last_accuracy"]) == (1.0, 0.1)
    assert set(best_by_noisy_labels([good], labels, SubsetSelection(10, 4.0), 0, rates=True)) >= {
        "rmse",
        "last_rmse",
    }


def test_a_run_records_last_epoch_and_best_by_noisy_labels(monkeypatch):
    X, y = load_digits(return_X_y=True)
    X = (
        torch.from_numpy((X * 15).astype(np.uint8))
        .view(-1, 1, 8, 8)
        .repeat_interleave(4, 2)
        .repeat_interleave(4, 3)[:, :, 2:30, 2:30]
    )
    monkeypatch.setattr(
        runs,
        "load",
        lambda _: Data(
            "mnist", X[:500], y[:500], X[500:700], y[500:700], 10, np.empty((0, 0), np.float32)
        ),
    )
    monkeypatch.setattr(torch, "set_num_threads", lambda _: None)
    asked = {
        "table": "mnist",
        "size": "cpu",
        "seed": 100,
        "tiny": True,
        "device": "cpu",
        "threads": 1,
    }
    found = runs.measure(asked | {"method": "ours-2", "epsilon": 4.0})
    assert {"accuracy", "worst_class", "calibration_error", "core_seconds"} <= found.keys()
    assert (
        found["validation"]["rows"],
        found["validation"]["epochs"],
        found["validation"]["law"],
    ) == (100, 2, "subset")
    assert "validation" not in runs.measure(asked | {"method": "non-private", "epsilon": None})


@pytest.fixture
def lent(tmp_path, monkeypatch):
    """A machine for `deep-images`: random images, and a cache and results of its own."""
    images = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (700, 3, 32, 32), np.uint8))
    labels = np.random.default_rng(1).integers(0, 10, 700)
    colour = Data(
        "cifar10",
        images[:600],
        labels[:600],
        images[600:],
        labels[600:],
        10,
        np.empty((0, 0), np.float32),
    )
    monkeypatch.setattr(shared, "CACHE", tmp_path / "cache")
    monkeypatch.setattr(shared, "load", lambda name: colour)
    monkeypatch.setattr(torch, "set_num_threads", lambda _: None)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path / "labeldp-deep-images-tiny.json.gz"


def test_the_smallest_setting_of_a_gpu_runs_here_once(lent, monkeypatch):
    asked = ["--tiny", "--table", "cifar10", "--epsilon"]
    shared.main([*asked, "0"])
    (run,) = load_runs(lent)
    assert (run["epsilon"], run["status"], run["law"]) == (None, "finished", "none")
    lent.unlink()
    shared.main([*asked, "1"])
    kept = load_runs(lent)
    (run,) = kept
    device = shared._name("cuda" if torch.cuda.is_available() else "cpu")
    assert (run["law"], run["status"], run["device"]) == ("subset", "finished", device)
    assert all(0 <= run[name] <= 1 for name in ("accuracy", "worst_class", "calibration_error"))
    assert [path.name for path in (lent.parent / "cache").iterdir()] == [
        "cifar10-600-1-fast-resnet-8.pt"
    ]
    shared.main([*asked, "1"])
    assert load_runs(lent) == kept
    monkeypatch.setattr(
        shared,
        "load_runs",
        lambda path: [run | {"settings": run["settings"] | {"rows": None}} for run in kept],
    )
    assert "| cifar10 | fast-resnet | 1 | " in shared.tables()
    monkeypatch.setattr(shared, "load_runs", load_runs)

    def fails(*_: object) -> None:
        raise RuntimeError("out of memory")

    monkeypatch.setattr(shared, "fit", fails)
    with pytest.raises(RuntimeError, match="out of memory"):
        shared.main([*asked, "2"])
    ends = [(each["epsilon"], each["status"]) for each in load_runs(lent)]
    assert ends == [(1.0, "finished"), (2.0, "failed")]


def test_images_that_are_stopped_after_each_epoch_get_there(lent, monkeypatch):
    """First weights and training are stopped after each epoch, and no epoch is run twice."""
    monkeypatch.setattr(shared, "TINY", replace(shared.TINY, feature_epochs=3, epochs=3, rows=200))
    epochs, progress = [], shared.Training.progress

    def one_epoch(self, epoch):
        epochs.append((self.path.suffix, epoch.epochs, epoch.number))
        progress(self, epoch)
        if epoch.number < epoch.epochs:
            raise KeyboardInterrupt

    monkeypatch.setattr(shared.Training, "progress", one_epoch)
    monkeypatch.setattr(shared, "wanted", lambda seed: [shared.Piece("cifar10", 1.0, seed)])
    asked, starts = ["--tiny", "--table", "cifar10", "--epsilon", "1"], []
    for _ in range(4):
        with pytest.raises(KeyboardInterrupt):
            shared.main(asked)
        starts.append(load_runs(lent))
    shared.main(asked)
    assert [[run["status"] for run in kept] for kept in starts] == [["started"]] * 4
    (run,) = load_runs(lent)
    assert (run["status"], run["started"]) == ("finished", starts[0][0]["started"])
    assert [number for _, _, number in epochs] == [1, 2, 3, 1, 2, 3]
    assert min(run["seconds"], run["feature_seconds"]) > 0
    assert [path.name for path in (lent.parent / "cache").iterdir()] == [
        "cifar10-200-3-fast-resnet-8.pt"
    ]


def test_a_gpu_does_what_matters_most_first():
    wanted = [(piece.table, piece.epsilon) for piece in shared.wanted(100)]
    assert set(wanted[:4]) == {("cifar10", epsilon) for epsilon in shared.GOALS["cifar10"]}
    assert set(wanted[4:8]) == {("cifar100", epsilon) for epsilon in shared.GOALS["cifar100"]}
    assert wanted[8:] == [("cifar10", None), ("cifar100", None)]


@pytest.mark.nightly
def test_a_method_of_sharing_is_run_once_and_tabled(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(share, "PATH", tmp_path / "share.json.gz")
    monkeypatch.setattr(share, "EPOCHS", 5)
    asked = [
        "--epsilon",
        "1",
        "--seeds",
        "1",
        "--epochs",
        "5",
        "--methods",
        "denoise",
        "counts",
        "retrain",
    ]
    for _ in range(2):
        share.main(asked)
    kept = load_runs(tmp_path / "share.json.gz")
    assert [(run["method"], run["status"]) for run in kept] == [
        (name, "finished") for name in asked[7:]
    ]
    for run in kept:
        assert all(
            0 <= run[at][what] <= 1
            for at in ("last", "best")
            for what in ("accuracy", "worst_class", "calibration_error")
        )
    assert kept[1]["law"] == "auto"
    said = capsys.readouterr().out
    assert said.count("counts at 1, seed 100") == 1
    assert said.count("| DenoiseSSL | ") == 2


def test_every_benchmark_of_nets_has_a_command():
    for module, *_ in (BENCHMARKS[name] for name in BENCHMARKS if pages.needs_torch(name)):
        assert callable(import_module(f"benchmarks.{module}").main)


# Features that a net learns without labels, and DP-SGD
# --------------------------------------------------------------------------------


@pytest.fixture
def cache(monkeypatch, tmp_path):
    """A cache of its own."""
    monkeypatch.setattr(features, "CACHE", tmp_path / "cache")
    return tmp_path / "cache"


@pytest.fixture(scope="module")
def images():
    X = (load_digits().data / 16).astype(np.float32)
    return X[:400], X[400:500]


def trained(cache):
    """When each file of the cache was written."""
    return {path.name: path.stat().st_mtime_ns for path in cache.glob("*.npz")}


def test_features_are_learned_once_for_a_recipe_and_images(cache, images):
    recipe = features.SimCLR(widths=(4, 4, 8, 8), epochs=3, batch=100)
    train, test, facts = features.learned("mnist", "self-supervised", *images, recipe)
    assert (train.shape, test.shape) == ((400, 8), (100, 8))
    np.testing.assert_allclose(np.linalg.norm(train, axis=1), 1, rtol=1e-5)
    assert facts["losses"][-1] < facts["losses"][0]
    assert facts["training_seconds"] >= 0
    before = trained(cache)
    again, _, same = features.learned("mnist", "self-supervised", *images, recipe)
    np.testing.assert_array_equal(again, train)
    assert (trained(cache), same) == (before, facts)
    features.learned("mnist", "self-supervised", *images, replace(recipe, epochs=1))
    features.learned(
        "mnist", "self-supervised", images[0][::-1], images[1], replace(recipe, epochs=1)
    )
    assert len(trained(cache)) == 3


def test_clusters_of_scan_start_from_the_net_that_is_kept(cache, images):
    net = features.SimCLR(widths=(4, 4, 8, 8), epochs=1, batch=100)
    kept = features.learned("mnist", "self-supervised", *images, net)[0]
    before = trained(cache)
    recipe = features.SCAN(net, clusters=5, neighbours=5, epochs=1, self_label_epochs=1, batch=100)
    train, test, facts = features.learned("mnist", "SCAN", *images, recipe)
    assert (train.shape, test.shape) == ((400, 5), (100, 5))
    assert set(np.unique(train)) == {0.0, 1.0}
    assert (train.sum(axis=1) == 1).all()
    assert facts["recipe"]["net"]["epochs"] == 1
    assert before.items() < trained(cache).items()
    np.testing.assert_array_equal(
        features.learned("mnist", "self-supervised", *images, net)[0], kept
    )


def test_methods_that_are_about_images_are_asked_for_images_only():
    cells = command.wanted("main", ("digits", "adult", "mnist"), (0.1, 1.0), 1, None)
    kinds = {(cell["data"], methods.kind_of(cell["data"], cell["method"])) for cell in cells}
    assert kinds == {
        ("digits", "plain"),
        ("adult", "plain"),
        *(("mnist", kind) for kind in ("plain", "gradients", "self-supervised", "SCAN")),
    }


def test_dp_sgd_learns_with_much_budget_and_not_without():
    pytest.importorskip("opacus")
    cell = {
        "table": "clusters",
        "data": "digits",
        "method": methods.DP_SGD,
        "features": "plain",
        "seed": 0,
    }
    much, little = (command.measure(cell | {"epsilon": epsilon}) for epsilon in (50.0, 0.5))
    assert much["accuracy"] > 0.7
    assert little["accuracy"] < much["accuracy"] - 0.2
    assert much["settings"]["delta"] == 1e-5
