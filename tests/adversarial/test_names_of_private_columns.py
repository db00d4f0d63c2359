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
from sklearn.linear_model import LogisticRegression

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


# Ids, units and groups
# -----------------------------------------------------------------------------

BOTH = TABLE.assign(visit=np.arange(N) + 9)
ROLE = "whose labels are private"
WARD = {"dataset": "x", "column": "ward", "classes": [0, 1, 2]}
WARD_RR = ldp.RandomizedResponse(3, 1.0)
IDS_OF = {  # each gives the values of the private column beside public ones
    "one": lambda: (BOTH["churn"] * N + BOTH["visit"]).rename("churn"),
    "a frame": lambda: BOTH[["visit", "churn"]],
    "named anew": lambda: {"ids": BOTH[["visit", "churn"]], "id_name": ["visit", "stay"]},
    "levels": (
        lambda: BOTH[["visit", "churn"]].set_axis(
            pd.MultiIndex.from_tuples([("a", "visit"), ("a", "churn")]), axis=1
        )
    ),
    "arrow": lambda: pa.table(BOTH[["visit", "churn"]]),
}


def _histogram():
    return ldp.aggregates.Histogram(3, 1.0, 2)


def _best(**facts):
    tries = [(ldp.aggregates.Histogram(3, 1.0, 2), facts.pop("groups", np.arange(N) % 2))]
    tuning = RepeatAndSelect(2)
    return aggregate_best(BOTH.ward, tries, lambda found: 0.0, tuning=tuning, **WARD, **facts)


def _release(folder, ledger, **roles):
    BOTH.to_parquet(folder / "in.parquet")
    spec = ldp.ReleaseSpec("ward", [0, 1, 2], 1.0, dataset="x", **roles)
    ldp.release(folder / "in.parquet", folder / "out.parquet", spec, ledger)


RAW_DOORS = {
    "privatize": lambda L, **roles: ldp.privatize(BOTH.ward, WARD_RR, ledger=L, **WARD, **roles),
    "aggregate": lambda L, **roles: ldp.aggregate(
        BOTH.ward, _histogram(), np.arange(N) % 2, ledger=L, **WARD, **roles
    ),
    "sums": lambda L, **roles: ldp.aggregate(
        BOTH.ward,
        ldp.aggregates.FeatureSums(3, 1.0, 1, delta=1e-6),
        np.ones((N, 1)),
        ledger=L,
        **WARD,
        **roles,
    ),
    "classifier": (
        lambda L, **roles: ldp.LabelDPClassifier(ledger=L, **WARD).fit(PUBLIC, BOTH.ward, **roles)
    ),
    "regressor": (
        lambda L, **roles: ldp.LabelDPRegressor(
            range=(0, 2), dataset="x", column="ward", ledger=L
        ).fit(PUBLIC, BOTH.ward, **roles)
    ),
    "votes": lambda L, **roles: NoiseCluster(ledger=L, **WARD).fit(PUBLIC, BOTH.ward, **roles),
    "counts": (
        lambda L, **roles: ProportionClassifier(ledger=L, **WARD).fit(PUBLIC, BOTH.ward, **roles)
    ),
    "teachers": (
        lambda L, **roles: PATEClassifier(
            epsilon=3.0, n_teachers=200, n_queries=2, ledger=L, **WARD
        ).fit(PUBLIC, BOTH.ward, **roles)
    ),
}


@pytest.mark.parametrize("how", IDS_OF)
@pytest.mark.parametrize("door", RAW_DOORS)
def test_no_door_takes_a_charged_column_as_ids(door, how, charge, ledger):
    charge()
    given = IDS_OF[how]()
    with pytest.raises(InvalidInput, match=ROLE):
        RAW_DOORS[door](ledger, **(given if isinstance(given, dict) else {"ids": given}))
    assert len(ledger.runs()) == 1


@pytest.mark.parametrize("door", RAW_DOORS)
def test_no_door_takes_a_charged_column_as_units(door, charge, ledger):
    charge()
    with pytest.raises(InvalidInput, match=ROLE):
        RAW_DOORS[door](ledger, ids=BOTH.visit, unit=BOTH.churn, unit_name="household")
    assert len(ledger.runs()) == 1


OTHER_DOORS = {
    "best, ids": lambda L, folder: _best(ids=IDS_OF["a frame"](), ledger=L),
    "best, groups": lambda L, folder: _best(groups=BOTH.churn, ledger=L),
    "batches": lambda L, folder: aggregate_batches(
        pa.table(BOTH),
        _histogram(),
        label="ward",
        group="churn",
        classes=[0, 1, 2],
        dataset="x",
        ledger=L,
    ),
    "groups in levels": lambda L, folder: ldp.aggregate(
        BOTH.ward, _histogram(), BOTH.churn.rename(("a", "churn")), ledger=L, **WARD
    ),
    "features in levels": (
        lambda L, folder: ldp.LabelDPClassifier(ledger=L, **WARD).fit(
            RAW.set_axis(pd.MultiIndex.from_product([["a"], RAW.columns]), axis=1), BOTH.ward
        )
    ),
    "features above levels": (
        lambda L, folder: ldp.LabelDPClassifier(ledger=L, **WARD).fit(
            RAW.set_axis(pd.MultiIndex.from_product([RAW.columns, ["value"]]), axis=1), BOTH.ward
        )
    ),
    "release, ids": lambda L, folder: _release(folder, L, id=["visit", "churn"]),
    "release, unit": lambda L, folder: _release(folder, L, id="visit", unit="churn"),
}


@pytest.mark.parametrize("door", OTHER_DOORS)
def test_no_other_door_takes_a_charged_column(door, charge, ledger, tmp_path):
    charge()
    with pytest.raises(InvalidInput, match=r"private|charged as private"):
        OTHER_DOORS[door](ledger, tmp_path)
    assert len(ledger.runs()) == 1
    assert not (tmp_path / "out.parquet").exists()


COMMANDS = [("aggregate", "--group")]
COMMANDS += [(name, role) for name in ("release", "train", "stage") for role in ("--id", "--unit")]


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
    if command == "stage":
        code, _, said = run("stage", "plan", out, *common, "--parts", "0.6,0.4", *where)
        assert code == 0, said
        out_table = ("--out", tmp_path / "o.parquet")
        code, _, said = run("stage", "release", out, table, "--stage", 1, *out_table, *where)
    else:
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
def test_noisy_labels_are_matched_by_no_private_column(door, ledger):
    ids = IDS_OF["one"]()
    noisy = ldp.privatize(
        ldp.PrivateLabels(
            BOTH.churn,
            classes=range(RR.n_classes),
            dataset="x",
            column="churn",
            ids=ids.rename("visit"),
            ledger=ledger,
        ),
        RR,
    )
    with pytest.raises(InvalidInput, match=f"ids.*{ROLE}"):
        NOISY_DOORS[door](noisy, ids)


def test_the_ledger_knows_more_than_noisy_labels(charge, ledger):
    charge()
    ids = IDS_OF["one"]()
    noisy = ldp.privatize(BOTH.ward, WARD_RR, ids=ids.rename("visit"), ledger=ledger, **WARD)
    for model in (ldp.LabelDPClassifier, ldp.LabelDPRegressor):
        with pytest.raises(InvalidInput, match=f"ids.*{ROLE}"):
            model(dataset="x", ledger=ledger).fit(PUBLIC, noisy, ids=ids)
        model = model(dataset="x", ledger=ledger).fit(PUBLIC, noisy, ids=ids.rename("visit"))
        with pytest.raises(InvalidInput, match=f"ids.*{ROLE}"):
            model.score(PUBLIC, noisy, ids=ids)


def test_the_levels_above_a_label_are_no_private_columns():
    levels = PUBLIC.set_axis(pd.MultiIndex.from_tuples([("a", "age")]), axis=1)
    model = ldp.LabelDPClassifier(classes=[0, 1], noise=ldp.SeededNoise(0))
    model.fit(levels, TABLE.churn.rename(("a", "churn")))
    with pytest.raises(InvalidInput, match=PRIVATE):
        model.fit(RAW, TABLE.churn.rename(("a", "churn")))


def test_a_net_takes_no_private_column_as_ids(charge, ledger):
    pytest.importorskip("torch")
    from labeldp.deep import TorchClassifier, TorchRegressor, with_evidence
    from labeldp.deep.models import Mlp

    charge()
    X, ids = PUBLIC.to_numpy(np.float32), IDS_OF["one"]()
    nets = {
        TorchClassifier: {"classes": [0, 1, 2]},
        TorchRegressor: {"range": (0, 2)},
    }
    for kind, more in nets.items():
        net = kind(
            lambda k: Mlp(1, k, (2,)), epsilon=1.0, dataset="x", column="ward", ledger=ledger
        )
        net.set_params(**more)
        for roles in ({"ids": ids}, {"ids": BOTH.visit, "unit": BOTH.churn}):
            with pytest.raises(InvalidInput, match=ROLE):
                net.fit(X, BOTH.ward, **roles)
    assert len(ledger.runs()) == 1
    noisy = ldp.privatize(
        ldp.PrivateLabels(
            BOTH.churn, classes=range(RR.n_classes), column="churn", ids=ids.rename("visit")
        ),
        RR,
    )
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
