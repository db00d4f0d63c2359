# SPDX-License-Identifier: Apache-2.0
"""Private columns that names show: no feature, no group, no public column of a figure, and no
second budget."""

import pickle
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

import labeldp as ldp
from labeldp.custody import aggregate_batches, aggregate_best
from labeldp.errors import InvalidInput
from labeldp.learn import CountsClassifier, Groupings, NoiseCluster, ProportionClassifier
from labeldp.papers.ghazi2021 import RepeatAndSelect
from labeldp.papers.malek2021 import PATEClassifier

N = 400
RNG = np.random.default_rng(0)
TABLE = pd.DataFrame(
    {
        "age": RNG.normal(size=N),
        "ward": RNG.integers(0, 3, N),
        "churn": RNG.integers(0, 2, N),
        "customer": np.arange(N) + 7,
    }
)
RAW, PUBLIC, IDS = TABLE[["age", "churn"]], TABLE[["age"]], TABLE["customer"]
RR = ldp.RandomizedResponse(2, 1.0)
PRIVATE = "'churn', whose labels are private"


def churn(y=TABLE.churn, **facts):
    return ldp.PrivateLabels(y, **{"classes": [0, 1]} | facts)


@pytest.fixture
def charge(ledger):
    """Draws churn in one data set."""
    return lambda **facts: ldp.privatize(
        churn(**{"dataset": "x", "ids": IDS, "ledger": ledger} | facts), RR
    )


ESTIMATORS = {
    "classifier": ldp.LabelDPClassifier,
    "regressor": ldp.LabelDPRegressor,
    "votes": NoiseCluster,
    "counts": ProportionClassifier,
    "teachers": lambda: PATEClassifier(epsilon=3.0, n_teachers=200, n_queries=2),
}


def declared(kind, n_classes):
    """What the labels of an estimator are: numbers, or classes."""
    if kind == "regressor":
        return {"range": (0, n_classes - 1), "classes": None}
    return {"classes": range(n_classes)}


@pytest.mark.parametrize("kind", ESTIMATORS)
def test_the_label_column_is_no_feature(kind, ledger):
    facts = {"dataset": "x", "ids": IDS, "ledger": ledger, **declared(kind, 2)}
    for y, more in [
        (TABLE.churn, {}),
        (TABLE[["churn"]], {}),
        (TABLE.churn.to_numpy(), {"column": "churn"}),
    ]:
        with pytest.raises(
            InvalidInput, match=rf"features, got {PRIVATE}.*drop\(columns=\['churn'\]\)"
        ):
            ESTIMATORS[kind]().fit(RAW, churn(y, **facts, **more))
    assert not ledger.runs()


def test_an_arrow_table_has_names_and_an_array_has_none():
    labels = churn(TABLE.churn.to_numpy(), column="churn", noise=ldp.SeededNoise(0))
    with pytest.raises(InvalidInput, match=PRIVATE):
        ldp.LabelDPClassifier().fit(pa.table(RAW), labels)
    ldp.LabelDPClassifier().fit(RAW.to_numpy(), labels)


def test_a_net_learns_from_no_private_column():
    pytest.importorskip("torch")
    from labeldp.deep import TorchClassifier
    from labeldp.deep.models import Mlp

    net = TorchClassifier(lambda k: Mlp(2, k, (2,)), epsilon=1.0)
    with pytest.raises(InvalidInput, match=PRIVATE):
        net.fit(RAW.astype(np.float32), churn(noise=ldp.SeededNoise(0)))


def test_a_column_that_was_charged_is_no_feature_of_another_target(charge, ledger):
    charge()
    labels = ward(ledger, ids=IDS)
    with pytest.raises(InvalidInput, match=PRIVATE):
        ldp.LabelDPClassifier().fit(RAW, labels)
    assert len(ledger.runs()) == 1
    ldp.LabelDPClassifier().fit(PUBLIC, labels)


def test_noisy_labels_know_their_own_column(charge):
    noisy = charge(ledger=None)
    with pytest.raises(InvalidInput, match=PRIVATE):
        ldp.LabelDPClassifier().fit(RAW, noisy)
    ldp.LabelDPClassifier().fit(PUBLIC, noisy)
    public = {
        "by": ["ward"],
        "cells": [(0,), (1,), (2,)],
        "classes": (0, 1),
        "counts": np.ones((3, 2)),
        "variance": 1.0,
    }
    for where in ({"X": TABLE[["ward", "churn"]]}, {"X": TABLE[["ward"]], "rows": TABLE}):
        with pytest.raises(InvalidInput, match=PRIVATE):
            CountsClassifier().fit(
                where["X"],
                [ldp.learn.CountTable(**public)],
                rows=where.get("rows"),
                released=(TABLE[["ward"]], noisy),
            )


def test_no_figure_has_the_labels_own_column_as_a_public_one(charge):
    noisy = charge()
    figures = {
        "crosstab": lambda by: ldp.stats.crosstab(noisy, by, ids=IDS),
        "difference": lambda by: ldp.stats.difference(noisy, by, ids=IDS),
        "effect": lambda by: ldp.stats.effect(noisy, by, ids=IDS),
        "table": lambda by: ldp.stats.frequencies(
            noisy, pd.DataFrame({"age": TABLE.age > 0, by.name: by}), ids=IDS
        ),
        "adjusted": lambda by: ldp.stats.effect(noisy, TABLE.age > 0, X=by.to_frame(), ids=IDS),
        "regress": lambda by: ldp.stats.regress(noisy, by, "logistic", ids=IDS),
    }
    for figure in figures.values():
        with pytest.raises(InvalidInput, match=PRIVATE):
            figure(TABLE.churn)
        figure((TABLE.ward > 0).astype(int))


def test_groups_are_no_charged_column(charge, ledger):
    charge()
    asked = Groupings(TABLE, by=["churn"])
    tables = asked.query(3, epsilon=1.0)
    copied = pickle.loads(pickle.dumps(asked)).groups  # as a worker gets it
    for query, groups in [
        (ldp.aggregates.Histogram(3, 1.0, 2), TABLE.churn),
        (tables, asked.groups),
        (tables, copied[::-1]),
    ]:
        with pytest.raises(InvalidInput, match=f"groups, got {PRIVATE}"):
            ldp.aggregate(ward(ledger, ids=IDS), query, groups)
    assert len(ledger.runs()) == 1


# Ids, units and groups
# -----------------------------------------------------------------------------

BOTH = TABLE.assign(visit=np.arange(N) + 9)
ROLE = "whose labels are private"
WARD_RR = ldp.RandomizedResponse(3, 1.0)
IDS_OF = {  # each gives the values of the private column beside public ones
    "one": lambda: (BOTH["churn"] * N + BOTH["visit"]).rename("churn"),
    "a frame": lambda: BOTH[["visit", "churn"]],
    "named anew": lambda: {"visit": BOTH.visit, "stay": BOTH.churn},
    "levels": (
        lambda: BOTH[["visit", "churn"]].set_axis(
            pd.MultiIndex.from_tuples([("a", "visit"), ("a", "churn")]), axis=1
        )
    ),
    "arrow": lambda: pa.table(BOTH[["visit", "churn"]]),
}


def ward(ledger, **facts):
    return ldp.PrivateLabels(
        BOTH.ward, **{"classes": [0, 1, 2], "dataset": "x", "ledger": ledger} | facts
    )


def _count(labels, groups):
    return ldp.aggregate(labels, ldp.aggregates.Histogram(3, 1.0, 2), groups)


def _release(folder, ledger, **roles):
    BOTH.to_parquet(folder / "in.parquet")
    spec = ldp.ReleaseSpec("ward", [0, 1, 2], 1.0, dataset="x", **roles)
    ldp.release(folder / "in.parquet", folder / "out.parquet", spec, ledger)


@pytest.mark.parametrize("how", IDS_OF)
def test_no_charged_column_is_an_id(how, charge, ledger):
    charge()
    with pytest.raises(InvalidInput, match=ROLE):
        ward(ledger, ids=IDS_OF[how]())


@pytest.mark.parametrize("unit", [BOTH.churn, {"household": BOTH.churn}], ids=["own", "anew"])
def test_no_charged_column_is_a_unit(unit, charge, ledger):
    charge()
    with pytest.raises(InvalidInput, match=ROLE):
        ward(ledger, ids=BOTH.visit, unit=unit)


@pytest.mark.parametrize("how", IDS_OF)
@pytest.mark.parametrize("kind", ESTIMATORS)
def test_no_fit_matches_rows_by_a_charged_column(kind, how, charge, ledger):
    charge()
    labels = ward(ledger, ids=BOTH.visit, **declared(kind, 3))
    with pytest.raises(InvalidInput, match=ROLE):
        ESTIMATORS[kind]().fit(PUBLIC, labels, ids=IDS_OF[how]())
    assert len(ledger.runs()) == 1


DOORS = {
    "best, groups": lambda L, folder: aggregate_best(
        ward(L),
        [(ldp.aggregates.Histogram(3, 1.0, 2), BOTH.churn)],
        lambda found: 0.0,
        tuning=RepeatAndSelect(2),
    ),
    "batches": lambda L, folder: aggregate_batches(
        pa.table(BOTH),
        ldp.aggregates.Histogram(3, 1.0, 2),
        label="ward",
        group="churn",
        classes=[0, 1, 2],
        dataset="x",
        ledger=L,
    ),
    "groups in levels": lambda L, folder: _count(ward(L), BOTH.churn.rename(("a", "churn"))),
    "features in levels": lambda L, folder: ldp.LabelDPClassifier().fit(
        RAW.set_axis(pd.MultiIndex.from_product([["a"], RAW.columns]), axis=1), ward(L)
    ),
    "features above levels": lambda L, folder: ldp.LabelDPClassifier().fit(
        RAW.set_axis(pd.MultiIndex.from_product([RAW.columns, ["value"]]), axis=1), ward(L)
    ),
    "release, ids": lambda L, folder: _release(folder, L, id=["visit", "churn"]),
    "release, unit": lambda L, folder: _release(folder, L, id="visit", unit="churn"),
}


@pytest.mark.parametrize("door", DOORS)
def test_no_other_door_takes_a_charged_column(door, charge, ledger, tmp_path):
    charge()
    with pytest.raises(InvalidInput, match=r"private|charged as private"):
        DOORS[door](ledger, tmp_path)
    assert len(ledger.runs()) == 1
    assert not (tmp_path / "out.parquet").exists()


COMMANDS = [("aggregate", "--group")]
COMMANDS += [(name, role) for name in ("release", "train") for role in ("--id", "--unit")]


@pytest.mark.parametrize(("command", "option"), COMMANDS)
def test_no_command_takes_a_charged_column(command, option, charge, ledger, tmp_path):
    from tests.cli.commands import run

    charge()
    BOTH.to_parquet(tmp_path / "t.parquet")
    roles = {
        "--id": ("--id", "churn", "--id", "visit"),
        "--unit": ("--id", "visit", "--unit", "churn"),
    }
    named = roles.get(option, ("--group", "churn"))
    common = ("--label", "ward", "--classes", "0,1,2", "--epsilon", 1, "--dataset", "x", *named)
    where = ("--ledger", ledger.location)
    table, out = tmp_path / "t.parquet", tmp_path / "out"
    out = out if command == "train" else out.with_suffix(".parquet")
    code, _, said = run(command, table, *common, "--out", out, *where)
    assert code, said
    assert "private" in said, said
    assert "'churn'" in said, said
    assert len(ledger.runs()) == 1


NOISY_DOORS = {
    "fit": lambda noisy, ids: ldp.LabelDPClassifier().fit(PUBLIC, noisy, ids=ids),
    "regressor": lambda noisy, ids: ldp.LabelDPRegressor().fit(PUBLIC, noisy, ids=ids),
    "score": (
        lambda noisy, ids: ldp.LabelDPClassifier().fit(PUBLIC, noisy).score(PUBLIC, noisy, ids=ids)
    ),
    "frequencies": lambda noisy, ids: ldp.stats.frequencies(noisy, BOTH.ward, ids=ids),
    "means": lambda noisy, ids: ldp.stats.mean(noisy, ids=ids),
}


@pytest.mark.parametrize("door", NOISY_DOORS)
def test_noisy_labels_are_matched_by_no_private_column(door, charge):
    ids = IDS_OF["one"]()
    noisy = charge(ids=ids.rename("visit"))
    with pytest.raises(InvalidInput, match=f"ids.*{ROLE}"):
        NOISY_DOORS[door](noisy, ids)


def test_the_levels_above_a_label_are_no_private_columns():
    levels = PUBLIC.set_axis(pd.MultiIndex.from_tuples([("a", "age")]), axis=1)
    labels = churn(TABLE.churn.rename(("a", "churn")), noise=ldp.SeededNoise(0))
    ldp.LabelDPClassifier().fit(levels, labels)
    with pytest.raises(InvalidInput, match=PRIVATE):
        ldp.LabelDPClassifier().fit(RAW, labels)


def test_a_net_takes_no_private_column_as_ids(charge, ledger):
    pytest.importorskip("torch")
    from labeldp.deep import TorchClassifier, TorchRegressor, with_evidence
    from labeldp.deep.models import Mlp

    charge()
    X, ids = PUBLIC.to_numpy(np.float32), IDS_OF["one"]()
    nets = {TorchClassifier: "classifier", TorchRegressor: "regressor"}
    for net, kind in nets.items():
        labels = ward(ledger, ids=BOTH.visit, **declared(kind, 3))
        with pytest.raises(InvalidInput, match=ROLE):
            net(lambda k: Mlp(1, k, (2,)), epsilon=1.0).fit(X, labels, ids=ids)
    assert len(ledger.runs()) == 1
    noisy = ldp.privatize(churn(ids=ids.rename("visit")), RR)
    with pytest.raises(InvalidInput, match=ROLE):
        with_evidence([(x, 0) for x in X], noisy, ids=ids)
    with pytest.raises(InvalidInput, match=ROLE):
        TorchClassifier(lambda k: Mlp(1, k, (2,))).fit(X, noisy, ids=ids)


@pytest.mark.parametrize("ending", ["csv", "parquet"])
@pytest.mark.parametrize("role", ["id", "unit"])
def test_a_private_column_is_refused_before_its_values_are_compared(
    tmp_path: Path, ending: str, role: str
) -> None:
    """The message about repeated ids would tell which rows have the same label."""
    # A column that holds what was drawn passes; 60 raw labels are all drawn with probability 1e-8.
    answers, paid = ["no", "no", "yes"] * 20, [1, 2] * 30
    table = pa.table({"visit": range(60), "bought": answers, "paid": paid})
    source, ledger = tmp_path / f"in.{ending}", ldp.Ledger(tmp_path / "ledger.db")
    write = pq.write_table if ending == "parquet" else pyarrow.csv.write_csv
    write(table, source)
    first = ldp.ReleaseSpec("bought", ["no", "yes"], 1.0, id="visit", dataset="d")
    ldp.release(source, tmp_path / f"first.{ending}", first, ledger)
    roles = {"id": "visit"} | {role: "bought"}
    wrong = ldp.ReleaseSpec("paid", [1, 2], 1.0, dataset="d", **roles)
    with pytest.raises(ldp.InvalidInput, match="'bought', which the ledger has charged") as caught:
        ldp.release(source, tmp_path / f"second.{ending}", wrong, ledger)
    assert "row" not in str(caught.value).partition("bought")[0]
    assert len(ledger.runs()) == 1
