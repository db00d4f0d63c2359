# SPDX-License-Identifier: Apache-2.0
"""Recipes are values, and a fitted classifier can be kept by pickle and joblib."""

import pickle
from functools import partial

import joblib
import numpy as np
import pytest

import labeldp as ldp
from labeldp.deep import Recipe, TorchClassifier, augment, logs, schedules
from labeldp.deep.models import Mlp

SCHEDULES = {
    "triangular": lambda: schedules.triangular(0.2, start=0.1, end=0.05),
    "piecewise": schedules.piecewise_constant,
    "cosine": lambda: schedules.cosine(0.1, end=0.01),
    "one cycle": schedules.one_cycle,
}


def net(n_classes):
    return Mlp(3, n_classes, (8,))


@pytest.mark.parametrize("name", SCHEDULES)
def test_schedules_made_alike_are_equal_and_survive_pickle(name):
    one, other = SCHEDULES[name](), SCHEDULES[name]()
    kept = pickle.loads(pickle.dumps(one))
    assert one == other == kept and hash(one) == hash(other)
    assert one != schedules.cosine(0.7)
    assert [kept(t / 20) for t in range(21)] == [one(t / 20) for t in range(21)]


def test_recipes_made_alike_are_equal_and_survive_pickle():
    assert Recipe() == Recipe() == pickle.loads(pickle.dumps(Recipe()))
    moved = partial(augment.shift, pixels=2)
    recipe = Recipe(augment=augment.chain(augment.flip, moved), schedule=schedules.one_cycle())
    assert recipe == Recipe(
        augment=augment.chain(augment.flip, moved), schedule=schedules.one_cycle()
    )
    assert recipe != Recipe(
        augment=augment.chain(moved, augment.flip), schedule=schedules.one_cycle()
    )
    kept = pickle.loads(pickle.dumps(recipe))
    assert kept.augment.steps[0] is augment.flip and kept.augment.steps[1].keywords == {"pixels": 2}


def test_a_fitted_classifier_predicts_the_same_after_pickle_and_joblib(tmp_path):
    y = np.random.default_rng(0).integers(3, size=300)
    X = np.eye(3, dtype=np.float32)[y]
    model = TorchClassifier(
        net,
        recipe=[Recipe(epochs=1, augment=augment.chain()), Recipe(epochs=1, average=0.9)],
        n_stages=2,
        classes=range(3),
        validation_fraction=0.1,
        dataset="pickled",
        ledger=ldp.Ledger(tmp_path / "ledger.db"),
        folder=tmp_path / "fit",
        random_state=0,
        progress=logs.combine(logs.CsvLog(tmp_path / "log.csv"), logs.progress_bar()),
    ).fit(X, y)
    joblib.dump(model, tmp_path / "model.joblib")
    for kept in (pickle.loads(pickle.dumps(model)), joblib.load(tmp_path / "model.joblib")):
        assert np.array_equal(kept.predict_proba(X), model.predict_proba(X))
        assert kept.recipe == model.recipe and kept.privacy_ == model.privacy_
        again = kept.fit(X, y)  # the stored labels and the finished stages, at no further cost
        assert again.ledger.spent("pickled", "label") == 1.0
        assert np.array_equal(again.predict_proba(X), model.predict_proba(X))
