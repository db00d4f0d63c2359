# SPDX-License-Identifier: Apache-2.0
"""Boosted trees as files: the same predictions after reading, nothing else inside, and no number
that leads out of an array."""

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sklearn.ensemble import HistGradientBoostingClassifier
from tests.app.fuzz_models import without_digests

import labeldp as ldp
from labeldp.app import _boosters
from labeldp.app._boosters import booster_from, booster_of, facts_of, locations_from
from labeldp.app._model import load_model, save_model
from labeldp.app._train import EvidenceSpec, TrainSpec, predict, train
from labeldp.learn._boosting import LikelihoodBoosting
from labeldp.learn._location import LocationBoosting
from labeldp.ledger._ledger import Ledger

lightgbm = pytest.importorskip("lightgbm")
xgboost = pytest.importorskip("xgboost")
each = pytest.mark.parametrize("library", ["lightgbm", "xgboost"])


def rows() -> np.ndarray:
    rng = np.random.default_rng(0)
    X = np.column_stack(
        [rng.integers(0, 6, 900), rng.normal(size=900), rng.normal(size=900)]
    ).astype(float)
    X[::11, 0], X[::7, 1] = np.nan, np.nan
    return X


def noisy(k: int) -> ldp.NoisyLabels:
    X = np.nan_to_num(rows())
    y = (np.isin(X[:, 0], [1, 4]).astype(int) + (X[:, 1] > 0)) % k
    return ldp.privatize(
        y, ldp.RandomizedResponse(k, 3.0), classes=range(k), noise=ldp.SeededNoise(0)
    )


def fitted(library: str, k: int, held_out: bool = False) -> LikelihoodBoosting:
    made = {
        "lightgbm": lambda: LikelihoodBoosting(
            lightgbm.LGBMClassifier(n_estimators=30, n_jobs=1, verbose=-1), categorical=[0]
        ),
        "xgboost": lambda: LikelihoodBoosting(
            xgboost.XGBClassifier(
                n_estimators=30, n_jobs=1, enable_categorical=True, feature_types=["c", "q", "q"]
            )
        ),
        "scikit-learn": lambda: LikelihoodBoosting(
            HistGradientBoostingClassifier(max_iter=10, categorical_features=[0], random_state=0)
        ),
    }[library]()
    table = noisy(k).log_likelihood()
    return made.fit_likelihood(
        rows()[100:], table[100:], (rows()[:100], table[:100]) if held_out else None
    )


@each
@pytest.mark.parametrize(("k", "held_out"), [(2, True), (3, True), (3, False)])
def test_a_booster_predicts_after_reading_as_before_writing(
    library: str, k: int, held_out: bool
) -> None:
    model = fitted(library, k, held_out)
    model.factor_ = 1.25
    read = booster_from(booster_of(model.estimator_), facts_of(model, 3), "file")
    np.testing.assert_allclose(
        read.predict_proba(rows()), model.predict_proba(rows()), rtol=1e-5, atol=1e-7
    )
    with pytest.raises(ldp.InvalidInput, match="Expected 3 columns"):
        read.predict_proba(rows()[:, :2])


def stored(folder: Path, library: str) -> tuple[Path, LikelihoodBoosting]:
    model = fitted(library, 3)
    columns = {"columns": [{"name": f"x{i}", "kind": "number"} for i in range(3)], "left_out": []}
    save_model(
        folder,
        (model.estimator_, None),
        {"classes": ["a", "b", "c"], "features": columns, "boosting": facts_of(model, 3)},
    )
    return folder, model


@pytest.mark.parametrize("library", ["lightgbm", "xgboost", "scikit-learn"])
def test_a_folder_holds_the_same_model_and_no_pickle(library: str, tmp_path: Path) -> None:
    folder, model = stored(tmp_path / "m", library)
    file = {"lightgbm": "booster.txt", "xgboost": "booster.json", "scikit-learn": "model.skops"}[
        library
    ]
    assert sorted(path.name for path in folder.iterdir()) == sorted([file, "model.json"])
    np.testing.assert_allclose(
        load_model(folder).predict_proba(rows()), model.predict_proba(rows()), rtol=1e-5, atol=1e-7
    )
    raw = (folder / file).read_bytes()
    (folder / file).write_bytes(raw + b"\n")
    with pytest.raises(ldp.InvalidInput, match="that was changed"):
        load_model(folder)


def of_numbers(library: str, epsilon: float = 4.0) -> ldp.LabelDPRegressor:
    X = rows()
    y = 3.0 * np.isin(X[:, 0], [1, 4]) + np.nan_to_num(X[:, 1]) + 3
    if library == "lightgbm":
        trees = LocationBoosting(
            lightgbm.LGBMRegressor(n_estimators=30, n_jobs=1, verbose=-1), categorical=[0]
        )
    else:
        kinds = ["c", "q", "q"]
        trees = LocationBoosting(
            xgboost.XGBRegressor(
                n_estimators=30, n_jobs=1, enable_categorical=True, feature_types=kinds
            )
        )
    return ldp.LabelDPRegressor(
        trees, range=(0, 8), epsilon=epsilon, noise=ldp.SeededNoise(0), random_state=0
    ).fit(X, y)


@each
def test_pieces_of_numbers_are_one_booster_in_a_file(library: str) -> None:
    model = of_numbers(library)
    boosting = model.estimator_
    assert len(boosting.pieces_) > 4 and np.ptp(model.predict(rows())) > 2
    raw, facts = booster_of(boosting), facts_of(boosting, 3)
    read = locations_from(raw, facts, "file")
    np.testing.assert_allclose(read.predict(rows()), boosting.predict(rows()), rtol=1e-5)
    with pytest.raises(ldp.InvalidInput, match="Expected 3 columns"):
        read.predict(rows()[:, :2])
    with pytest.raises(ValueError, match="start"):
        locations_from(raw, facts | {"start": float("nan")}, "file")
    for changed in (
        facts | {"features": 4},
        facts | {"library": "xgboost" if library == "lightgbm" else "lightgbm"},
    ):
        with pytest.raises(ldp.InvalidInput, match="got others"):
            locations_from(raw, changed, "file")
    with pytest.raises(ldp.InvalidInput, match="got others"):
        locations_from(raw + b"\n", facts, "file")


def refused(folder: Path, name: str, text: str) -> None:
    (folder / name).write_text(text)
    with pytest.raises(ldp.InvalidInput, match="got others"):
        load_model(folder)


def test_numbers_that_lead_out_of_a_text_are_refused(tmp_path: Path) -> None:
    folder = without_digests(stored(tmp_path / "m", "lightgbm")[0])
    text = (folder / "booster.txt").read_text()
    load_model(folder)
    lines = {line.split("=")[0]: line for line in reversed(text.splitlines()) if "=" in line}
    for name, value in {
        "left_child": "0",  # a walk without an end
        "right_child": "99999",
        "split_feature": "3",
        "threshold": "1e400x",
        "num_leaves": "2000000000",
        "num_cat": "-1",
        "leaf_value": "",
        "tree_sizes": "1",
        "max_feature_idx": "5",
        "num_class": "2",
    }.items():
        rest = lines[name].split("=")[1].split(" ")[1:]
        refused(
            folder,
            "booster.txt",
            text.replace(lines[name], f"{name}={' '.join([value, *rest]).strip()}", 1),
        )
    for other in (
        text + "parameters:\n",
        text.replace("is_linear=0", "is_linear=1"),
        text.replace("shrinkage=1", "leaf_coeff=1", 1),
        "",
    ):
        refused(folder, "booster.txt", other)


def test_numbers_that_lead_out_of_a_json_are_refused(tmp_path: Path) -> None:
    folder = without_digests(stored(tmp_path / "m", "xgboost")[0])
    text = (folder / "booster.json").read_text()
    load_model(folder)
    by_category = next(
        i
        for i, tree in enumerate(json.loads(text)["learner"]["gradient_booster"]["model"]["trees"])
        if tree["categories"]
    )
    for name, value in {
        "left_children": 0,
        "right_children": 10**6,
        "split_indices": 3,
        "split_type": 2,
        "categories": 10**9,
        "categories_nodes": -1,
        "categories_segments": 7,
        "categories_sizes": 10**6,
        "base_weights": "x",
        "parents": 1,
    }.items():
        found = json.loads(text)
        found["learner"]["gradient_booster"]["model"]["trees"][by_category][name][0] = value
        refused(folder, "booster.json", json.dumps(found, separators=(",", ":"), sort_keys=True))
    for change in (
        {"attributes": {"x": "1"}},
        {"feature_types": ["c"]},
        {"objective": {"name": "multi:softprob"}},
    ):
        found = json.loads(text)
        found["learner"] |= change
        refused(folder, "booster.json", json.dumps(found, separators=(",", ":"), sort_keys=True))


def test_facts_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    folder = without_digests(stored(tmp_path / "m", "lightgbm")[0])
    facts = json.loads((folder / "model.json").read_text())
    for change in (
        {"library": "catboost"},
        {"start": [0.0, 0.0]},
        {"start": [0.0, None, 1.0]},
        {"features": 4},
    ):
        (folder / "model.json").write_text(
            json.dumps(facts | {"boosting": facts["boosting"] | change})
        )
        with pytest.raises(ldp.InvalidInput, match="damaged or was changed"):
            load_model(folder)


@each
def test_train_and_predict_by_command(library: str, tmp_path: Path) -> None:
    X, labels = rows(), noisy(2)
    pq.write_table(
        pa.table({f"x{i}": column for i, column in enumerate(X.T)} | {"y": labels.hard_codes()}),
        tmp_path / "in.parquet",
    )
    evidence = EvidenceSpec(declared=True)
    spec = TrainSpec(
        "y", epsilon=3.0, classes=["0", "1"], law="rr", model=library, evidence=evidence
    )
    train(tmp_path / "in.parquet", tmp_path / "m", spec, Ledger(tmp_path / "l.db"))
    predict(tmp_path / "m", tmp_path / "in.parquet", tmp_path / "p.parquet")
    found = pq.read_table(tmp_path / "p.parquet")
    assert (np.array(found["prediction"]).astype(int) == labels.hard_codes()).mean() > 0.85
    np.testing.assert_allclose(
        np.array(found["probability_0"]) + np.array(found["probability_1"]), 1
    )


@each
def test_a_library_that_is_missing_is_named(
    library: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, _ = stored(tmp_path / "m", library)
    monkeypatch.setattr(_boosters, "find_spec", lambda name: None)
    with pytest.raises(
        ldp.MissingExtra,
        match=r"labeldp\[boost\]" if library == "lightgbm" else "pip install xgboost",
    ):
        load_model(folder)
