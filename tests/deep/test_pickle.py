# SPDX-License-Identifier: Apache-2.0
"""Recipes are values, and a fitted classifier can be kept by pickle and joblib."""

import pickle
from functools import partial

import joblib
import numpy as np
import pytest
from tests.deep.datasets import closed

import labeldp as ldp
from labeldp.deep import Recipe, TorchClassifier, augment, schedules
from labeldp.deep.models import Mlp


def net(n_classes):
    return Mlp(3, n_classes, (8,))


def moved(images, generator):
    return augment.shift(augment.flip(images, generator), generator, pixels=2)


def unchanged(X, generator):
    return X


def noted(epoch):
    pass


def test_recipes_made_alike_are_equal_and_survive_pickle():
    assert Recipe() == Recipe() == pickle.loads(pickle.dumps(Recipe()))
    recipe = Recipe(augment=moved, schedule=schedules.cosine)
    assert recipe == Recipe(augment=moved, schedule=schedules.cosine) != Recipe(augment=moved)
    kept = pickle.loads(pickle.dumps(recipe))
    assert kept == recipe and kept.augment is moved
    ramped = pickle.loads(pickle.dumps(Recipe(schedule=partial(schedules.cosine, ramp=0.1))))
    assert ramped.schedule(0.05) == pytest.approx(0.5)


def test_a_fitted_classifier_predicts_the_same_after_pickle_and_joblib(tmp_path):
    y = np.random.default_rng(0).integers(3, size=300)
    X, ledger = np.eye(3, dtype=np.float32)[y], ldp.Ledger(tmp_path / "ledger.db")
    labels = closed(y, 3, ledger=ledger)
    model = TorchClassifier(
        net,
        recipe=[Recipe(epochs=1, augment=unchanged), Recipe(epochs=1, average=0.9)],
        stages=2,
        validation_fraction=0.1,
        folder=tmp_path / "fit",
        random_state=0,
        progress=noted,
    ).fit(X, labels)
    joblib.dump(model, tmp_path / "model.joblib")
    for kept in (pickle.loads(pickle.dumps(model)), joblib.load(tmp_path / "model.joblib")):
        assert np.array_equal(kept.predict_proba(X), model.predict_proba(X))
        assert kept.recipe == model.recipe and kept.privacy_ == model.privacy_
        again = kept.fit(X, labels)  # the stored labels and the finished stages, at no further cost
        assert ledger.spent("d", "label") == 1.0
        assert np.array_equal(again.predict_proba(X), model.predict_proba(X))
