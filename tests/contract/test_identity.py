# SPDX-License-Identifier: Apache-2.0
"""K declared classes are K different values after each conversion, and so are labels, ids and
units; else they are refused."""

import datetime as dt
import decimal
import enum
import uuid
from collections import deque

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import labeldp as ldp
from labeldp.aggregates import Histogram
from labeldp.custody import aggregate_batches
from labeldp.learn import NoiseCluster

N = 300
CODES = np.random.default_rng(0).integers(0, 3, N)
EXACT = ldp.RandomizedResponse(3, 40.0)  # flips none of so few rows


class Diagnosis(str, enum.Enum):  # noqa: UP042  # str() of its members is not their text
    BENIGN = "benign"
    MALIGNANT = "malignant"
    UNCLEAR = "unclear"


class Level(enum.IntEnum):
    LOW = 1
    MIDDLE = 2
    HIGH = 3


class Plain(enum.Enum):
    YES = "yes"
    NO = "no"


KINDS = {"text": Diagnosis, "number": Level}
COLUMNS = {
    "list": list,
    "tuple": tuple,
    "deque": deque,
    "objects": lambda y: np.array(y, object),
    "series": lambda y: pd.Series(y, dtype=object),
    "inferred": pd.Series,
    "categories": lambda y: pd.Series(y).astype("category"),
    "values": lambda y: [member.value for member in y],
    "arrow": lambda y: pa.array([member.value for member in y]),
}
CLASSES = {
    "members": list,
    "the enum": lambda kind: kind,
    "values": lambda kind: [member.value for member in kind],
    "inferred": lambda kind: "infer",
}
RNG = {"noise": ldp.SeededNoise(0)}


def members(kind):
    return [list(kind)[code] for code in CODES]


@pytest.mark.filterwarnings("ignore::labeldp.errors.DomainLeakWarning")
@pytest.mark.parametrize("declared", CLASSES)
@pytest.mark.parametrize("column", COLUMNS)
@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_members_of_an_enum_are_their_values(tmp_path, kind, column, declared):
    y, classes = COLUMNS[column](members(kind)), CLASSES[declared](kind)
    noisy = ldp.privatize(ldp.PrivateLabels(y, classes=classes, **RNG), EXACT)
    values = tuple(member.value for member in kind)
    assert noisy.classes == values
    assert all(type(value) in (str, int) for value in noisy.classes)
    assert noisy.hard_codes().tolist() == CODES.tolist()
    assert noisy.hard().tolist() == [values[code] for code in CODES]
    noisy.save(tmp_path / "n.parquet")
    assert ldp.NoisyLabels.load(tmp_path / "n.parquet").classes == values


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_members_are_one_request_with_their_values(ledger, kind):
    drawn = [
        ldp.privatize(
            ldp.PrivateLabels(
                y, classes=classes, dataset="d", column="label", ids=range(N), ledger=ledger
            ),
            EXACT,
        )
        for y in (members(kind), [member.value for member in members(kind)])
        for classes in (list(kind), [member.value for member in kind])
    ]
    assert len(ledger.runs()) == 1
    assert [each.privacy.repeated for each in drawn] == [False, True, True, True]


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_every_door_counts_members_apart(kind):
    y, X = members(kind), np.eye(3)[CODES]
    true = np.bincount(CODES)
    labels = ldp.PrivateLabels(y, classes=list(kind), **RNG)
    found = ldp.aggregate(labels, Histogram(3, 60.0, 1), np.zeros(N, int))
    assert found.values[0].tolist() == true.tolist()
    model = ldp.LabelDPClassifier(epsilon=40.0).fit(X, labels)
    assert model.classes_.tolist() == [member.value for member in kind]
    assert model.score(X, y) == model.score(X, np.array(y, object)) == 1.0
    votes = NoiseCluster(epsilon=40.0, n_clusters=3).fit(X, labels)
    assert votes.score(X, y) == 1.0
    columns = ldp.LabelColumns({"a": list(kind), "b": list(kind)})
    both = list(zip(y, y[::-1], strict=True))
    for rows in (both, {"a": y, "b": y[::-1]}, pd.DataFrame(both, columns=["a", "b"])):
        noisy = ldp.privatize(
            ldp.PrivateLabels(rows, classes=columns, **RNG), columns.law(80.0, "joint")
        )
        assert noisy["a"].hard_codes().tolist() == CODES.tolist()
        assert noisy["b"].hard_codes().tolist() == CODES[::-1].tolist()


def test_labels_that_others_drew_keep_their_members():
    y = members(Diagnosis)
    for labels in (y, np.array(y, object)):
        noisy = ldp.NoisyLabels.from_labels(labels, EXACT, list(Diagnosis))
        assert noisy.hard_codes().tolist() == CODES.tolist()
        assert noisy.classes == ("benign", "malignant", "unclear")
    with pytest.raises(ldp.InvalidInput, match="different classes"):
        ldp.NoisyLabels.from_labels(["a", "a\0"], ldp.RandomizedResponse(2, 1.0), ["a", "a\0"])
    named = ldp.NoisyLabels.from_labels(y, EXACT, range(3), outputs=list(Diagnosis))
    assert named.hard_codes().tolist() == CODES.tolist()


def test_figures_and_measures_keep_members():
    y = members(Diagnosis)
    noisy = ldp.privatize(ldp.PrivateLabels(CODES, classes=range(3), **RNG), EXACT)
    assert ldp.stats.crosstab(noisy, y).counts.shape == (3, 3)
    drawn = ldp.privatize(ldp.PrivateLabels(y, classes=list(Diagnosis), **RNG), EXACT)
    assert ldp.metrics.accuracy(drawn, y).value == pytest.approx(1.0)


PEOPLE = enum.Enum("PEOPLE", {f"P{i}": f"p{i}" for i in range(20)}, type=str)


@pytest.mark.parametrize("column", ["list", "tuple", "objects", "series"])
def test_ids_and_units_are_their_values(tmp_path, column):
    """Their text by str() is longer than their value, to whose length NumPy cuts it: all of them
    would become one."""
    made = COLUMNS[column](list(PEOPLE))
    plain = COLUMNS[column]([member.value for member in PEOPLE])
    ledger = ldp.Ledger(tmp_path / "l.db", budget=9.0)
    law, y = ldp.RandomizedResponse(2, 1.0), [0, 1] * 10

    def drawn(**facts):
        given = {"classes": [0, 1], "column": "label", "ledger": ledger} | facts
        return ldp.privatize(ldp.PrivateLabels(y, **given), law)

    for name, roles in {"a": {"ids": made}, "b": {"ids": range(20), "unit": made}}.items():
        assert drawn(dataset=name, **roles).evidenced.all()
        again = drawn(dataset=name, **roles | {("unit", "ids")[name == "a"]: plain})
        assert again.privacy.repeated
        assert len(ledger.runs(name)) == 1
    noisy = ldp.privatize(ldp.PrivateLabels(y, classes=[0, 1], ids=made), law)
    assert noisy.ids.tolist() == [member.value for member in PEOPLE]
    assert len(noisy.by_id(made)) == len(noisy.by_id(plain)) == 20
    others = COLUMNS[column]([*list(PEOPLE)[:19], next(iter(PEOPLE))])
    more = {"dataset": "b", "ids": range(20), "max_rows_per_unit": 2}
    assert not drawn(unit=others, **more).privacy.repeated


DAY = dt.date(2020, 1, 1)
REFUSED = {
    "members without a value's type": list(Plain),
    "dates": [DAY, DAY + dt.timedelta(1)],
    "times": list(np.array(["2020-01-01", "2020-01-02"], "datetime64[D]")),
    "durations": list(np.array([1, 2], "timedelta64[ns]")),
    "periods": list(pd.period_range("2020", periods=2, freq="D")),
    "decimals": [decimal.Decimal(1), decimal.Decimal(2)],
    "bytes": [b"a", b"b"],
    "ids": [uuid.UUID(int=1), uuid.UUID(int=2)],
    "complex": [1j, 2j],
    "text with NULs": ["a", "a\0"],
    "numbers that are one float": [2.0**60, 2**60 + 1],
    "tuples": [(1, 2), (3, 4)],
}


@pytest.mark.filterwarnings("ignore::labeldp.errors.DomainLeakWarning")
@pytest.mark.parametrize("door", ["privatize", "aggregate", "classifier"])
@pytest.mark.parametrize("declared", [True, False], ids=["declared", "inferred"])
@pytest.mark.parametrize("values", REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_kept_apart_is_refused_before_the_charge(ledger, values, declared, door):
    y = np.empty(10, object)
    y[:] = [values[i % 2] for i in range(10)]
    facts = {
        "classes": values if declared else "infer",
        "dataset": "d",
        "column": "label",
        "ledger": ledger,
    }
    doors = {
        "privatize": lambda labels: ldp.privatize(labels, ldp.RandomizedResponse(2, 1.0)),
        "aggregate": lambda labels: ldp.aggregate(labels, Histogram(2, 1.0, 1), np.zeros(10, int)),
        "classifier": lambda labels: ldp.LabelDPClassifier(epsilon=1.0).fit(
            np.arange(20.0).reshape(10, 2), labels
        ),
    }
    for labels in (y, list(y)):
        with pytest.raises(ldp.InvalidInput):
            doors[door](ldp.PrivateLabels(labels, **facts))
    assert not ledger.runs()


def test_a_narrow_column_does_not_join_classes():
    near = [0.1, 0.1 + 1e-12]
    table = pa.table({"y": pa.array([0.1] * 5, pa.float32()), "g": [0] * 5})
    with pytest.raises(ldp.InvalidInput, match="some label is not"):
        aggregate_batches(table, Histogram(2, 1.0, 1), label="y", group="g", classes=near)
