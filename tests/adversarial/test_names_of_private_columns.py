# SPDX-License-Identifier: Apache-2.0
"""Private columns that names show: no feature, no group, no public column of a figure, and no
second budget."""

import pickle

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from sklearn.linear_model import LogisticRegression

import labeldp as ldp
from labeldp.errors import InvalidInput
from labeldp.learn import CountsClassifier, Groupings, NoiseCluster, ProportionClassifier
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


@pytest.fixture
def ledger(tmp_path):
    return ldp.Ledger(tmp_path / "ledger.db", budget=4.0)


@pytest.fixture
def charge(ledger):
    """Draws churn in one data set; `facts` may name the column or not."""
    return lambda y=TABLE.churn, **facts: ldp.privatize(
        y, RR, **({"dataset": "x", "ids": IDS, "ledger": ledger} | facts)
    )


ESTIMATORS = {
    "classifier": lambda **facts: ldp.LabelDPClassifier(classes=[0, 1], **facts),
    "regressor": lambda **facts: ldp.LabelDPRegressor(range=(0, 1), **facts),
    "votes": lambda **facts: NoiseCluster(classes=[0, 1], **facts),
    "counts": lambda **facts: ProportionClassifier(classes=[0, 1], **facts),
    "teachers": lambda **facts: PATEClassifier(classes=[0, 1], **facts),
}


@pytest.mark.parametrize("kind", ESTIMATORS)
def test_the_label_column_is_no_feature(kind, ledger):
    facts = {"dataset": "x", "ledger": ledger}
    for y, more in [
        (TABLE.churn, {}),
        (TABLE[["churn"]], {}),
        (TABLE.churn.to_numpy(), {"column": "churn"}),
    ]:
        with pytest.raises(
            InvalidInput,
            match=rf"features, got {PRIVATE}.*Nothing was charged.*drop\(columns=\['churn'\]\)",
        ):
            ESTIMATORS[kind](**facts, **more).fit(RAW, y, ids=IDS)
    # without a name the account's own is taken
    with pytest.raises(InvalidInput, match="got 'label'"):
        ESTIMATORS[kind](**facts).fit(
            RAW.rename(columns={"churn": "label"}), TABLE.churn.to_numpy(), ids=IDS
        )
    assert not ledger.runs()


def test_an_arrow_table_has_names_and_an_array_has_none():
    model = ldp.LabelDPClassifier(classes=[0, 1], column="churn", noise=ldp.SeededNoise(0))
    with pytest.raises(InvalidInput, match=PRIVATE):
        model.fit(pa.table(RAW), TABLE.churn.to_numpy())
    model.fit(RAW.to_numpy(), TABLE.churn)


def test_a_net_learns_from_no_private_column():
    pytest.importorskip("torch")
    from labeldp.deep import TorchClassifier
    from labeldp.deep.models import Mlp

    net = TorchClassifier(
        lambda k: Mlp(2, k, (2,)),
        epsilon=1.0,
        classes=[0, 1],
        column="churn",
        noise=ldp.SeededNoise(0),
    )
    with pytest.raises(InvalidInput, match=PRIVATE):
        net.fit(RAW.astype(np.float32), TABLE.churn.to_numpy())


@pytest.mark.parametrize("named", [{}, {"column": "churn"}])
def test_a_column_that_was_charged_is_no_feature_of_another_target(charge, ledger, named):
    charge(**named)
    model = ldp.LabelDPClassifier(classes=[0, 1, 2], column="ward", dataset="x", ledger=ledger)
    with pytest.raises(InvalidInput, match=PRIVATE):
        model.fit(RAW, TABLE.ward, ids=IDS)
    assert len(ledger.runs()) == 1
    model.fit(PUBLIC, TABLE.ward, ids=IDS)


@pytest.mark.parametrize("named", [{}, {"column": "churn"}])
def test_noisy_labels_know_their_own_column(charge, named):
    noisy = charge(ledger=None, **named)
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
    facts = {"dataset": "x", "column": "ward", "ids": IDS, "ledger": ledger}
    asked = Groupings(TABLE, by=["churn"])
    tables = asked.query(3, epsilon=1.0)
    copied = pickle.loads(pickle.dumps(asked)).groups  # as a worker gets it
    for query, groups in [
        (ldp.aggregates.Histogram(3, 1.0, 2), TABLE.churn),
        (tables, asked.groups),
        (tables, copied[::-1]),
    ]:
        with pytest.raises(InvalidInput, match=f"groups, got {PRIVATE}"):
            ldp.aggregate(TABLE.ward, query, groups, **facts)
    assert len(ledger.runs()) == 1


@pytest.mark.parametrize("y", [TABLE.churn, TABLE[["churn"]]], ids=["series", "frame"])
def test_labels_charged_without_a_name_get_no_second_budget_under_their_own(charge, ledger, y):
    assert charge(y).receipts[0].column == "label"
    with pytest.raises(
        InvalidInput, match=r"labels of the name 'churn'.*Pass column='label'.*Nothing was charged"
    ):
        charge(column="churn")
    assert len(ledger.runs()) == 1
    again = charge(y)  # a repeat is none the less free
    assert again.privacy.repeated
    assert not ledger.verify(again.receipts)
    charge(TABLE.ward.clip(0, 1), column="ward")  # another name is another column
    assert (ledger.spent("x", "label"), ledger.spent("x", "ward")) == (1.0, 1.0)


def test_labels_that_carry_another_name_are_not_warned_of(charge, recwarn):
    charge(TABLE.ward.clip(0, 1))
    charge(column="churn")
    assert not recwarn.list


def test_advice_names_the_name_that_the_labels_carry(charge):
    charge(column="ill")
    with pytest.raises(
        InvalidInput,
        match="column='ill' if they are that one's, column='fraud' if they are of another",
    ):
        charge(TABLE.churn.rename("fraud"))


@pytest.mark.parametrize("named", ["ill", None])
def test_a_feature_called_label_is_refused_with_what_to_type(named: str | None) -> None:
    """Labels without column= are charged under this name, so it may be their column; the name of
    another is told by column=."""
    X, y = (
        pd.DataFrame({"label": np.tile([0.0, 1.0], 50), "x": np.arange(100.0)}),
        pd.Series(np.tile([0, 1], 50), name=named),
    )
    model = ldp.LabelDPClassifier(LogisticRegression(), classes=[0, 1], noise=ldp.SeededNoise(0))
    with pytest.raises(
        ldp.InvalidInput,
        match=f"got 'label', which is .* name that of the labels: column='{named or 'NAME'}'",
    ):
        model.fit(X, y)
    model.set_params(column="ill").fit(X, y)  # whatever else the frame holds
    with pytest.raises(ldp.InvalidInput, match="got 'label', whose labels are private"):
        model.set_params(column="label").fit(X, y)
