# SPDX-License-Identifier: Apache-2.0
"""Rows of X meet their own noisy labels: by ids, by a named index, or by an order that something
vouches for; else a warning says so."""

import pickle
import warnings

import numpy as np
import pandas as pd
import pytest
from sklearn.datasets import make_blobs
from sklearn.metrics import accuracy_score
from sklearn.naive_bayes import GaussianNB

import labeldp as ldp
from labeldp import read_noisy
from labeldp.errors import LabelDPWarning
from labeldp.learn import NoiseCluster

pytestmark = pytest.mark.filterwarnings(
    "ignore::labeldp.errors.SeededNoiseWarning", "ignore::labeldp.errors.UnrecordedWarning"
)
K, N, EPS = 3, 600, 5.0
FEATURES = ["x0", "x1"]


@pytest.fixture(scope="module")
def raw():
    X, y = make_blobs(N, centers=K, random_state=3, cluster_std=0.8)
    return pd.DataFrame(X, columns=FEATURES).assign(
        visit=np.random.default_rng(0).permutation(N) + 1000, y=y
    )


def released(raw, folder, *, file="pub.parquet", **spec):
    """A released table and its path, as another team gets them."""
    write, read = (
        ("to_csv", pd.read_csv) if file.endswith("csv") else ("to_parquet", pd.read_parquet)
    )
    source, out = folder / f"raw-{file}", folder / file
    getattr(raw, write)(source, index=False)
    ldp.release(
        source,
        out,
        ldp.ReleaseSpec("y", range(K), EPS, dataset="d", **spec),
        ldp.Ledger(folder / "ledger.db"),
    )
    return read(out), out


def model():
    return ldp.LabelDPClassifier(GaussianNB(), random_state=0)


def truth(raw, table):
    return table[FEATURES], raw.set_index("visit").y.loc[table.visit].to_numpy()


@pytest.mark.parametrize("file", ["pub.parquet", "pub.csv"])
def test_a_sorted_table_finds_its_labels_by_id(raw, tmp_path, file):
    table, path = released(raw, tmp_path, file=file, id="visit")
    noisy, by_visit = read_noisy(path), table.sort_values("visit")
    with pytest.warns(LabelDPWarning, match="Pass ids="):
        model().fit(by_visit[FEATURES], noisy)
    seeing = model().fit(by_visit[FEATURES], noisy, ids=by_visit["visit"])
    X, y = truth(raw, table)
    assert np.array_equal(
        model().fit(by_visit[FEATURES], noisy, ids=by_visit[["visit"]]).predict(X),
        seeing.predict(X),
    )
    assert accuracy_score(y, seeing.predict(X).astype(int)) > 0.95
    # in the order of X
    assert np.array_equal(
        seeing.noisy_labels_.likelihood(), noisy[np.argsort(table.visit)].likelihood()
    )


@pytest.mark.parametrize("given", ["visit", 7, np.array("visit")])
def test_ids_that_are_no_column_are_refused_in_words(raw, given):
    noisy = ldp.privatize(
        ldp.PrivateLabels(raw.y, classes=range(K), ids=raw.visit, noise=ldp.SeededNoise(0)),
        ldp.RandomizedResponse(K, EPS),
    )
    with pytest.raises(
        ldp.InvalidInput,
        match=r"ids as a column of 600 values, got one (str|int)\. Pass the column's values",
    ):
        model().fit(raw[FEATURES], noisy, ids=given)


def test_rows_without_a_label_are_left_out_and_labels_without_a_row_refused(raw, tmp_path):
    table, path = released(raw, tmp_path, id="visit")
    noisy = read_noisy(path)
    half = noisy.by_id(table.visit[:300])
    assert len(model().fit(table[FEATURES], half, ids=table.visit).noisy_labels_) == 300
    with pytest.raises(ldp.InvalidInput, match="300 ids have none"):
        model().fit(table[FEATURES][:300], noisy, ids=table.visit[:300])
    with pytest.raises(ldp.InvalidInput, match="Pass ids="):
        model().fit(table[FEATURES][:300], noisy)
    with pytest.raises(ldp.InvalidInput, match="all different"):
        model().fit(table[FEATURES], noisy, ids=np.zeros(N, int))
    with pytest.raises(ldp.InvalidInput, match="without one"):
        noisy.by_id([7])


def test_labels_put_into_the_order_of_ids_need_no_more_said(raw, tmp_path):
    table, path = released(raw, tmp_path, id="visit")
    by_visit = table.sort_values("visit")
    noisy = read_noisy(path).by_id(by_visit.visit)
    assert np.array_equal(noisy.ids, by_visit.visit)
    with warnings.catch_warnings():
        warnings.simplefilter("error", LabelDPWarning)
        fitted = model().fit(by_visit[FEATURES], noisy)
    assert fitted.score(*truth(raw, table)) > 0.95


def test_a_shuffled_release_without_ids_is_told_of(raw, tmp_path):
    table, path = released(raw, tmp_path)
    with pytest.warns(LabelDPWarning, match=r"ids=range\(len\(X\)\)"):
        model().fit(raw[FEATURES], read_noisy(path))
    with warnings.catch_warnings():
        warnings.simplefilter("error", LabelDPWarning)
        assert (
            model().fit(table[FEATURES], read_noisy(path), ids=range(N)).score(*truth(raw, table))
            > 0.95
        )


# A score of few rows of which chance flipped none lies above 1, and its interval with it.
@pytest.mark.filterwarnings("ignore::labeldp.errors.UnmeasuredWarning")
def test_a_score_on_noisy_labels_matches_by_id_too(raw, tmp_path):
    table, path = released(raw, tmp_path, id="visit")
    noisy, by_visit = read_noisy(path), table.sort_values("visit")
    known = GaussianNB().fit(raw[FEATURES], raw.y)  # a model of another source
    asking = NoiseCluster(epsilon=5.0, n_clusters=K).fit(
        raw[FEATURES], ldp.PrivateLabels(raw.y, classes=range(K), noise=ldp.SeededNoise(0))
    )
    fitted = model().fit(table[FEATURES][:300], noisy[:300], ids=table.visit[:300])
    for each in (asking, fitted):
        assert known.score(by_visit[FEATURES], each.predict(by_visit[FEATURES])) > 0.95
        with pytest.warns(LabelDPWarning, match="Pass ids="):
            blind = each.score(by_visit[FEATURES][:300], noisy[300:])
        rest = by_visit[~by_visit.visit.isin(table.visit[:300])]
        seeing = each.score(rest[FEATURES], noisy[300:], ids=rest.visit)
        assert blind < 0.6 < 0.9 < seeing


@pytest.mark.parametrize("named", [True, False])
def test_predictions_beside_a_release_in_its_own_order_are_warned_of(raw, tmp_path, named):
    pub, path = released(raw, tmp_path, **({"id": "visit"} if named else {}))
    noisy, ids = read_noisy(path), pub["visit"].to_numpy() if named else np.arange(N)
    in_order = noisy.by_id(ids)
    trained = model().fit(pub[FEATURES], noisy, ids=ids)
    proba = trained.predict_proba(pub[FEATURES])
    for measure, predicted in (
        (ldp.metrics.balanced_accuracy, proba.argmax(axis=1)),
        (lambda *rest: ldp.metrics.roc_auc(*rest, positive=0), proba),
        (ldp.metrics.brier_score, proba),
        (ldp.metrics.mean_squared_error, proba @ np.arange(K)),
    ):
        with pytest.warns(LabelDPWarning, match=r"prediction belongs to which.*noisy\.by_id"):
            measure(noisy, predicted)
        measure(in_order, predicted)  # warnings are errors here


def in_memory(raw, **more):
    labels = ldp.PrivateLabels(raw.y, classes=range(K), noise=ldp.SeededNoise(0), **more)
    return ldp.privatize(labels, ldp.RandomizedResponse(K, EPS))


def test_noisy_labels_of_a_frame_know_its_index(raw):
    raw = raw.sample(frac=1, random_state=0)
    X, half = raw[FEATURES], raw.index < N // 2
    noisy, rows = in_memory(raw), np.argsort(raw.x0.to_numpy())
    fitted = model().fit(X, ldp.PrivateLabels(raw.y, classes=range(K), noise=ldp.SeededNoise(0)))
    parts = ldp.evidence.concat([noisy[half], noisy[~half]])
    cases = [
        (X, noisy),
        (X, fitted.noisy_labels_),
        (X[half], noisy[half]),
        (X.iloc[rows], noisy[rows]),
        (X.iloc[5:9], noisy[5:9]),
        (pd.concat([X[half], X[~half]]), parts),
        (X, pickle.loads(pickle.dumps(noisy))),
    ]
    for table, known in cases:
        for each in (table, table.to_numpy()):
            assert len(model().fit(each, known).noisy_labels_) == len(known)
        for other in (table.sort_values("x0", ascending=False), table.reset_index(drop=True)):
            with pytest.raises(ldp.InvalidInput, match=r"labeldp\.split_labels.*ids=.*to_numpy"):
                model().fit(other, known)
    with pytest.raises(ldp.InvalidInput, match="index of the labels"):
        fitted.score(X.sort_index(), noisy)


def test_ids_outlive_the_index(raw, tmp_path):
    noisy, X = in_memory(raw, ids=raw.visit), raw.set_index("visit")[FEATURES]
    noisy.save(tmp_path / "noisy.parquet")
    saved, loaded = (
        ldp.NoisyLabels.load(tmp_path / "noisy.parquet"),
        released(raw, tmp_path, id="visit"),
    )
    for known in (saved, noisy.by_id(raw.visit), read_noisy(loaded[1]).by_id(raw.visit)):
        assert len(model().fit(X, known).noisy_labels_) == N
        with pytest.raises(ldp.InvalidInput, match=r"ids=X\.index"):
            model().fit(X.sort_index(), known)
    by_ids = model().fit(X.sort_index(), noisy, ids=X.sort_index().index).noisy_labels_
    assert len(model().fit(X.sort_index(), by_ids).noisy_labels_) == N


def test_columns_in_another_order_than_x_are_refused(raw):
    mixed, X = raw.sample(frac=1, random_state=0), raw[FEATURES]
    noisy, weights = in_memory(raw, ids=raw.visit), mixed.x0.abs()
    fitted = model().fit(X, noisy)
    score = ldp.metrics.make_scorer("accuracy")
    for what, act in {
        "ids": lambda: model().fit(X, noisy, ids=mixed.visit),
        "id": lambda: in_memory(raw, ids={"visit": mixed.visit}),
        "unit": lambda: in_memory(raw, unit=mixed.visit),
        "sample_weight": lambda: model().fit(X, noisy, weights),
        "sample": lambda: fitted.score(X, raw.y, weights),
        "weight": lambda: score(fitted, X, noisy, weights),
        "y": lambda: fitted.score(X, mixed.y),
    }.items():
        with pytest.raises(ldp.InvalidInput, match=rf"{what}.*another order.*\.loc\["):
            act()
    assert 0 < fitted.score(X, raw.y, weights.loc[X.index]) <= 1
    model().fit(X, noisy, weights.to_numpy())
