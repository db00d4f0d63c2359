# SPDX-License-Identifier: Apache-2.0
"""What the benchmark of small epsilon needs torch for: features that are learned once and kept, and DP-SGD."""

import importlib
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_digits

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture
def benchmark(monkeypatch, tmp_path):
    """Imports a benchmark by name, with a cache of its own."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    monkeypatch.setenv("SMALL_EPSILON_CACHE", str(tmp_path / "cache"))
    for name in [module.stem for module in BENCHMARKS.glob("*.py")]:
        monkeypatch.delitem(sys.modules, name, raising=False)
    return importlib.import_module


@pytest.fixture(scope="module")
def images():
    X = (load_digits().data / 16).astype(np.float32)
    return X[:400], X[400:500]


def trained(found):
    """When each file of the cache was written."""
    return {path.name: path.stat().st_mtime_ns for path in found.CACHE.glob("*.npz")}


def test_features_are_learned_once_for_a_recipe_and_images(benchmark, images):
    found = benchmark("small_epsilon_features")
    recipe = found.SimCLR(widths=(4, 4, 8, 8), epochs=3, batch=100)
    train, test, facts = found.learned("mnist", "self-supervised", *images, recipe)
    assert (train.shape, test.shape) == ((400, 8), (100, 8))
    np.testing.assert_allclose(np.linalg.norm(train, axis=1), 1, rtol=1e-5)
    assert facts["losses"][-1] < facts["losses"][0]
    assert facts["training_seconds"] > 0
    before = trained(found)
    again, _, same = found.learned("mnist", "self-supervised", *images, recipe)
    np.testing.assert_array_equal(again, train)
    assert (trained(found), same) == (before, facts)
    found.learned("mnist", "self-supervised", *images, replace(recipe, epochs=1))
    found.learned("mnist", "self-supervised", images[0][::-1], images[1], replace(recipe, epochs=1))
    assert len(trained(found)) == 3


def test_clusters_of_scan_start_from_the_net_that_is_kept(benchmark, images):
    found = benchmark("small_epsilon_features")
    net = found.SimCLR(widths=(4, 4, 8, 8), epochs=1, batch=100)
    kept = found.learned("mnist", "self-supervised", *images, net)[0]
    before = trained(found)
    recipe = found.SCAN(net, clusters=5, neighbours=5, epochs=1, self_label_epochs=1, batch=100)
    train, test, facts = found.learned("mnist", "SCAN", *images, recipe)
    assert (train.shape, test.shape) == ((400, 5), (100, 5))
    assert set(np.unique(train)) == {0.0, 1.0}
    assert (train.sum(axis=1) == 1).all()
    assert facts["recipe"]["net"]["epochs"] == 1
    assert before.items() < trained(found).items()
    np.testing.assert_array_equal(found.learned("mnist", "self-supervised", *images, net)[0], kept)


def test_methods_that_are_about_images_are_asked_for_images_only(benchmark):
    found = benchmark("small_epsilon")
    cells = found.wanted("main", ("digits", "adult", "mnist"), (0.1, 1.0), 1, None)
    kinds = {(cell["data"], found.kind_of(cell["data"], cell["method"])) for cell in cells}
    assert kinds == {
        ("digits", "plain"),
        ("adult", "plain"),
        *(("mnist", kind) for kind in ("plain", "gradients", "self-supervised", "SCAN")),
    }


def test_dp_sgd_learns_with_much_budget_and_not_without(benchmark):
    pytest.importorskip("opacus")
    found = benchmark("small_epsilon")
    cell = {"table": "clusters", "data": "digits", "method": found.tables.DP_SGD, "features": "plain", "seed": 0}
    much, little = (found.measure(cell | {"epsilon": epsilon}) for epsilon in (50.0, 0.5))
    assert much["accuracy"] > 0.7
    assert little["accuracy"] < much["accuracy"] - 0.2
    assert much["settings"]["delta"] == 1e-5
