# SPDX-License-Identifier: Apache-2.0
"""PATEClassifier: one label moves one teacher, nothing but the noisy answers leaves, and everything
is charged once and beforehand."""

import ctypes
import logging
import os
import pickle
import random
import sys
import threading
import warnings
from pathlib import Path
from typing import Any, ClassVar

import joblib
import numpy as np
import pytest
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.datasets import make_blobs
from sklearn.ensemble import RandomForestClassifier
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.semi_supervised import SelfTrainingClassifier
from sklearn.svm import SVC

import labeldp as ldp
from labeldp.aggregates import Aggregate
from labeldp.custody import aggregate_batches
from labeldp.custody._encode import RowIds
from labeldp.custody._request import PrivateColumn
from labeldp.custody._rows import TableRows
from labeldp.custody._silence import SILENCE
from labeldp.errors import NoisyVotesWarning
from labeldp.ledger import _run_store as run_store
from labeldp.papers.malek2021 import ConfidentGNMax, PATEClassifier, plan_teachers

BUDGET = 20.0  # of each column

X, Y = make_blobs(1200, centers=3, random_state=0, cluster_std=1.0)
FEW: dict[str, Any] = {"epsilon": 8.0, "n_teachers": 24, "n_queries": 40}
SEEDED = ldp.SeededNoise(0)


def private(y: Any = Y, **facts: Any) -> ldp.PrivateLabels:
    """Labels of a ledger, or with seeded noise."""
    ours = {"dataset": "d", "column": "label"} if "ledger" in facts else {"noise": SEEDED}
    return ldp.PrivateLabels(y, **{"classes": range(3)} | ours | facts)


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[np.ndarray]:
    """The raw votes of every release."""
    seen: list[np.ndarray] = []
    release = ConfidentGNMax.release

    def watched(self: ConfidentGNMax, counts: np.ndarray, *rest: object) -> np.ndarray:
        seen.append(counts.copy())
        return release(self, counts, *rest)

    monkeypatch.setattr(ConfidentGNMax, "release", watched)
    return seen


def frequent(X: Any, rows: np.ndarray, codes: np.ndarray, asked: np.ndarray) -> np.ndarray:
    """A teacher in one line: its shard's most frequent class."""
    return np.full(len(asked), np.bincount(codes, minlength=3).argmax())


def drunk(X: Any, rows: np.ndarray, codes: np.ndarray, asked: np.ndarray) -> np.ndarray:
    """It takes as many global random numbers as its labels say, and votes at random."""
    np.random.random(int(codes.sum()))
    [random.random() for _ in range(int(codes.sum()))]
    return (np.random.randint(0, 3, len(asked)) + random.randrange(3)) % 3


# Learning
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("semi", [False, True])
def test_the_student_learns_from_answers(semi: bool) -> None:
    student = make_pipeline(StandardScaler(), LogisticRegression())
    student = SelfTrainingClassifier(student) if semi else student
    model = PATEClassifier(student, epsilon=4.0, n_queries=60, semi_supervised=semi).fit(
        X, private()
    )
    assert model.score(X, Y) > 0.85
    assert model.predict_proba(X).shape == (1200, 3)
    answer = model.aggregate_
    assert 0 < answer.answered.sum() <= 30
    assert (answer.labels()[answer.answered] == Y[model.queries_[answer.answered]]).mean() > 0.8
    assert len(set(model.queries_.tolist())) == 60


def test_names_of_classes_and_what_is_left_behind(ledger: ldp.Ledger) -> None:
    names = np.array(["a", "b", "c"])
    labels = private(names[Y], classes=list("abc"), ledger=ledger)
    model = PATEClassifier(**FEW, delta=1e-5).fit(X, labels)
    assert set(model.predict(X)) <= set("abc")
    assert (
        (model.privacy_.epsilon, model.privacy_.delta)
        == (8.0, 1e-5)
        == (ledger.spent("d", "label"), ledger.spent_delta("d", "label"))
    )
    assert model.privacy_.recorded
    assert ledger.verify(list(model.receipts_)) == []
    (run,) = ledger.runs()
    kept = {path.name for path in ledger.run_dir(run.run_id).iterdir()}
    assert kept == {"aggregate.parquet", "charge.json"}  # no secret, no vote, no teacher
    assert run.receipt.event["query"]["n_teachers"] == 24
    loaded = pickle.loads(pickle.dumps(model))
    assert (loaded.predict(X) == model.predict(X)).all()


@pytest.mark.parametrize(
    "student",
    [None, make_pipeline(StandardScaler(), LogisticRegression()), RandomForestClassifier(20)],
    ids=["default", "pipeline", "forest"],
)
def test_teachers_are_any_classifier_or_a_function(student: Any) -> None:
    def every_row(X: Any, rows: np.ndarray, codes: np.ndarray, asked: np.ndarray) -> np.ndarray:
        labels = np.full(len(X), -1)
        labels[rows] = codes
        return SelfTrainingClassifier(LogisticRegression()).fit(X, labels).predict(X[asked])

    for teacher in (None, RandomForestClassifier(5, n_jobs=2, verbose=1), every_row):
        model = PATEClassifier(student, teacher=teacher, **FEW).fit(X, private())
        assert model.score(X, Y) > 0.8


# One label, one teacher
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "teacher",
    [None, RandomForestClassifier(3), drunk, frequent],
    ids=["default", "forest", "drunk", "frequent"],
)
def test_a_changed_label_changes_one_vote_of_each_query(
    counted: list[np.ndarray], teacher: Any
) -> None:
    """Trained anew, also by teachers that take global random numbers as their labels make them."""
    np.random.seed(0)  # the worst case: a stream that everybody knows
    settings = FEW | {"teacher": teacher}
    for row in (None, 5, 700):
        other = Y.copy()
        if row is not None:
            other[row] = (other[row] + 1) % 3
        PATEClassifier(**settings).fit(X, private(other))
    for changed in counted[1:]:
        moved = np.abs(changed - counted[0]).sum(axis=1)
        assert set(moved.tolist()) <= {0, 2}
    assert (counted[0].sum(axis=1) == 24).all()
    assert len(counted) == 3


def test_all_labels_of_a_unit_change_one_vote_of_each_query(counted: list[np.ndarray]) -> None:
    unit = np.random.default_rng(0).integers(0, 200, 1200)
    mine = unit == np.bincount(unit).argmax()
    for labels in (Y, np.where(mine, (Y + 1) % 3, Y)):
        with pytest.warns(ldp.errors.LeftOutWarning):
            model = PATEClassifier(**FEW).fit(X, private(labels, unit=unit, max_rows_per_unit=4))
    assert set(np.abs(counted[0] - counted[1]).sum(axis=1).tolist()) <= {0, 2}
    assert mine.sum() > 4
    assert model.receipts_[0].rows_over_the_cap > 0
    assert (model.privacy_.unit, model.receipts_[0].max_rows_per_unit) == ("unit", 4)


def test_shards_follow_ids_alone_and_are_of_one_size() -> None:
    column, unit = PrivateColumn("d", "label", "row", 1, (0, 1)), np.arange(103) // 2
    ids = np.random.default_rng(0).permutation(1000)[:103]
    order = np.argsort(ids)
    one = TableRows(RowIds.of(ids, None), 103, column).public_shards(10, 0)
    two = TableRows(RowIds.of(ids[order], None), 103, column).public_shards(10, 0)
    assert (one[order] == two).all()
    assert sorted(np.bincount(one)) == [10] * 7 + [11] * 3
    assert (TableRows(RowIds.of(ids, None), 103, column).public_shards(10, 1) != one).any()
    people = TableRows(
        RowIds.of(None, unit), 103, PrivateColumn("d", "label", "unit", 2, (0, 1))
    ).public_shards(10, 0)
    assert all(len(set(people[unit == person])) == 1 for person in range(52))
    capped = TableRows(
        RowIds.of(None, unit), 103, PrivateColumn("d", "label", "unit", 1, (0, 1))
    ).public_shards(10, 0)
    assert (capped >= 0).sum() == 52
    assert (capped[capped >= 0] == people[capped >= 0]).all()


# Nothing but the answers leaves
# --------------------------------------------------------------------------------------------------


def test_what_a_teacher_says_in_c_is_heard_by_nobody(capfd: pytest.CaptureFixture[str]) -> None:
    """Solvers print their losses by C's `printf`, whose text waits in a buffer of its own; commands
    write where the process writes."""
    trained = []

    def telling(X: Any, rows: np.ndarray, codes: np.ndarray, asked: np.ndarray) -> np.ndarray:
        # and not those of the dry run
        raw = len(codes) != 400 or not np.array_equal(codes, np.arange(400) % 3)
        if raw:
            os.write(2, b"secret")
            os.system("echo secret; echo secret >&2")
            sys.__stdout__.write("secret")
        trained.append(raw)
        return SVC(verbose=raw).fit(X[rows], codes).predict(X[asked])

    print("before")
    with pytest.warns(NoisyVotesWarning):
        PATEClassifier(LogisticRegression(), teacher=telling, **FEW | {"n_teachers": 3}).fit(
            X, private()
        )
    print("after")
    os.write(2, b"heard")
    ctypes.CDLL(None).fflush(None)
    assert trained == [False, True, True, True]
    assert capfd.readouterr() == ("before\nafter\n", "heard")


def test_silence_of_several_threads_ends_with_the_last() -> None:
    """Whatever the order: the first to begin is the first to end here, and what it found is there
    again after the second."""
    begun, ended, heard = (
        threading.Event(),
        threading.Event(),
        (sys.stdout, logging.root.manager.disable, list(warnings.filters)),
    )

    def first() -> None:
        with SILENCE:
            begun.set()
            second_began.wait(10)
        ended.set()

    second_began = threading.Event()
    thread = threading.Thread(target=first)
    thread.start()
    begun.wait(10)
    with SILENCE:
        second_began.set()
        ended.wait(10)
        assert sys.stdout is not heard[0]
        assert logging.root.manager.disable == logging.CRITICAL
    thread.join()
    assert (sys.stdout, logging.root.manager.disable, list(warnings.filters)) == heard


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"n_teachers": 1}, "the only teacher agrees"),
        ({"n_teachers": 1, "epsilon": 600.0}, "the only teacher agrees"),
        ({"n_teachers": 24, "epsilon": 0.5}, "all 24 teachers agree"),
    ],
    ids=["one", "one at a large budget", "a small budget"],
)
def test_teachers_that_noise_outvotes_are_warned_of_before_the_charge(
    ledger: ldp.Ledger, settings: dict[str, Any], said: str
) -> None:
    model = PATEClassifier(LogisticRegression(), **FEW | settings)
    with (
        warnings.catch_warnings(),
        pytest.raises(NoisyVotesWarning, match=f"{said} on the right one.*n_teachers="),
    ):
        warnings.simplefilter("error", NoisyVotesWarning)
        model.fit(X, private(ledger=ledger))
    assert ledger.runs() == []


@pytest.mark.parametrize(
    "votes",
    [
        lambda n: np.full(n, np.nan),
        lambda n: np.zeros(n),
        lambda n: np.full(n, 3),
        lambda n: np.full(n, -1),
        lambda n: np.zeros(n + 1, int),
        lambda n: "no",
        lambda n: np.zeros((n, 3), int),
    ],
    ids=["nan", "floats", "high", "negative", "long", "text", "matrix"],
)
def test_votes_that_are_none_count_as_the_shards_most_frequent_class(
    counted: list[np.ndarray], votes: Any
) -> None:
    calls = iter(range(10**6))

    def teacher(X: Any, rows: np.ndarray, codes: np.ndarray, asked: np.ndarray) -> Any:
        # good in the dry run
        return frequent(X, rows, codes, asked) if next(calls) == 0 else votes(len(asked))

    PATEClassifier(LogisticRegression(), teacher=teacher, **FEW).fit(
        X, private(np.zeros(1200, int))
    )
    assert counted[0].tolist() == [[24, 0, 0]] * 40


def test_shards_of_one_class_and_classes_that_no_row_has(counted: list[np.ndarray]) -> None:
    model = PATEClassifier(LogisticRegression(), **FEW).fit(
        X, private(np.full(1200, 1), classes=range(4))
    )
    assert counted[0].tolist() == [[0, 24, 0, 0]] * 40
    assert set(model.predict(X).tolist()) == {1}
    assert model.predict_proba(X).shape == (1200, 4)
    one_row_each = PATEClassifier(**FEW | {"n_teachers": 1200, "threshold": 0}).fit(X, private())
    assert one_row_each.aggregate_.n_rows.tolist() == [1200] * 40


def test_a_machine_without_memory_is_told_without_a_label(ledger: ldp.Ledger) -> None:
    calls = iter(range(10**6))

    def large(X: Any, rows: np.ndarray, codes: np.ndarray, asked: np.ndarray) -> np.ndarray:
        if next(calls) == 0:
            return frequent(X, rows, codes, asked)
        raise MemoryError(f"secret {codes}")

    with pytest.raises(MemoryError, match="Nothing was charged") as error:
        PATEClassifier(LogisticRegression(), teacher=large, **FEW).fit(X, private(ledger=ledger))
    assert error.value.__cause__ is None
    assert error.value.__context__ is None
    assert ledger.runs() == []


def test_global_random_states_are_as_they_were() -> None:
    np.random.seed(3)
    random.seed(3)
    before = np.random.random(), random.random()
    np.random.seed(3)
    random.seed(3)
    PATEClassifier(LogisticRegression(), teacher=drunk, **FEW).fit(X, private())
    assert (np.random.random(), random.random()) == before


# Charged once, and before the noise is drawn
# --------------------------------------------------------------------------------------------


def test_teachers_come_before_the_charge_and_the_charge_before_the_noise(
    ledger: ldp.Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    spent: dict[str, list[float]] = {"trained": [], "drawn": []}
    release = ConfidentGNMax.release

    def teacher(X: Any, rows: np.ndarray, codes: np.ndarray, asked: np.ndarray) -> np.ndarray:
        spent["trained"].append(ledger.spent("d", "label"))
        return frequent(X, rows, codes, asked)

    def watched(self: ConfidentGNMax, *arguments: object) -> np.ndarray:
        spent["drawn"].append(ledger.spent("d", "label"))
        return release(self, *arguments)

    monkeypatch.setattr(ConfidentGNMax, "release", watched)
    PATEClassifier(LogisticRegression(), teacher=teacher, **FEW).fit(X, private(ledger=ledger))
    assert spent == {"trained": [0.0] * 25, "drawn": [8.0]}


def test_a_repeat_gets_the_stored_answers_and_trains_nobody(ledger: ldp.Ledger) -> None:
    calls: list[int] = []

    def teacher(X: Any, rows: np.ndarray, codes: np.ndarray, asked: np.ndarray) -> np.ndarray:
        calls.append(len(rows))
        return (X[asked] @ [1.0, 2.0] > codes.mean()).astype(int)

    model, ids = PATEClassifier(LogisticRegression(), teacher=teacher, **FEW), np.arange(1200) + 7
    one = model.fit(X, private(ids=ids, ledger=ledger))
    values, queries, trained = one.aggregate_.values, ids[one.queries_], len(calls)
    order = np.random.default_rng(0).permutation(1200)
    two = model.fit(X[order], private(Y[order], ids=ids[order], ledger=ledger))
    assert two.aggregate_.values.tolist() == values.tolist()
    assert ids[order][two.queries_].tolist() == queries.tolist()
    assert len(calls) == trained + 1  # the dry run
    assert ledger.spent("d", "label") == 8.0
    assert two.privacy_.repeated
    settings, more = model.get_params(deep=False), ldp.Ledger(ledger.location)
    more.set_budget("d", "label", 100.0)
    labels = private(ids=ids, ledger=more)
    others = (
        {"n_teachers": 23},
        {"random_state": 1},
        {"threshold": 3},
        {"teacher": LogisticRegression()},
    )
    for number, other in enumerate(others, start=2):
        PATEClassifier(**settings | other).fit(X, labels)
        assert ledger.spent("d", "label") == 8.0 * number  # another question
    PATEClassifier(**settings).fit(2 * X, labels)
    assert ledger.spent("d", "label") == 8.0 * (len(others) + 2)


def test_killed_between_charge_and_store_it_is_spent_and_gives_nothing(
    ledger: ldp.Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = run_store.RunStore.write

    def dying(store: Any, name: str, data: bytes, **more: Any) -> None:
        if name == "aggregate.parquet":
            raise KeyboardInterrupt
        write(store, name, data, **more)

    monkeypatch.setattr(run_store.RunStore, "write", dying)
    model, labels = PATEClassifier(**FEW), private(ledger=ledger)
    with pytest.raises(KeyboardInterrupt):
        model.fit(X, labels)
    assert not hasattr(model, "aggregate_")
    assert ledger.spent("d", "label") == 8.0
    (run,) = ledger.runs()
    assert {path.name for path in ledger.run_dir(run.run_id).iterdir()} == {"charge.json"}
    monkeypatch.setattr(run_store.RunStore, "write", write)
    assert model.fit(X, labels).receipts_[0].run_id != run.run_id
    assert ledger.spent("d", "label") == 16.0


def test_a_budget_that_is_too_small_is_refused_before_a_teacher_is_trained(
    ledger: ldp.Ledger,
) -> None:
    calls: list[int] = []

    def teacher(X: Any, rows: np.ndarray, codes: np.ndarray, asked: np.ndarray) -> np.ndarray:
        calls.append(len(rows))
        return frequent(X, rows, codes, asked)

    with pytest.raises(ldp.BudgetExceeded, match="Nothing was charged"):
        PATEClassifier(LogisticRegression(), teacher=teacher, **FEW | {"epsilon": 21.0}).fit(
            X, private(ledger=ledger)
        )
    assert len(calls) == 1  # the dry run
    assert ledger.runs() == []


def test_without_an_answer_there_is_no_student_and_the_spend_is_told(ledger: ldp.Ledger) -> None:
    calls = iter(range(10**6))

    def divided(X: Any, rows: np.ndarray, codes: np.ndarray, asked: np.ndarray) -> np.ndarray:
        return np.full(len(asked), next(calls) % 3)

    model = PATEClassifier(
        LogisticRegression(),
        teacher=divided,
        epsilon=15.0,
        n_teachers=300,
        n_queries=4,
        threshold=300,
    )
    for _ in range(2):
        with pytest.raises(
            ldp.InvalidInput,
            match=r"none to 4 queries with threshold=300 of 300 teachers\. epsilon=15 is spent",
        ) as error:
            model.fit(X, private(ledger=ledger))
    assert "lower" in str(error.value)
    (run,) = ledger.runs()
    assert run.run_id in str(error.value)
    assert ledger.spent("d", "label") == 15.0
    with pytest.raises(NotFittedError):
        model.predict(X)


# What is refused, before anything is charged
# --------------------------------------------------------------------------------------------


class Failing(ClassifierMixin, BaseEstimator):
    """It cannot be fitted."""

    def fit(self, X: Any, y: Any) -> "Failing":
        raise RuntimeError("broken")

    def predict(self, X: Any) -> Any:
        raise RuntimeError("broken")


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"n_teachers": 0}, "n_teachers >= 1"),
        ({"n_teachers": 1201}, "1200 rows, got n_teachers=1201"),
        ({"n_teachers": True}, "n_teachers >= 1"),
        ({"n_queries": 1201}, "1200 rows, got n_queries=1201"),
        ({"n_queries": 0}, "n_queries >= 1"),
        ({"max_answers": 41}, "at most 40 queries"),
        ({"max_answers": 0}, "max_answers >= 1"),
        ({"threshold": 25}, "at most n_teachers=24"),
        ({"threshold": -1}, "threshold >= 0"),
        ({"threshold": float("nan")}, "threshold >= 0"),
        ({"check_share": 1.0}, "check_share"),
        ({"epsilon": 0.0}, "epsilon"),
        ({"epsilon": float("nan")}, "epsilon"),
        ({"delta": 0.0}, "delta"),
        (
            {"delta": None},
            "got delta=None. Pass a chance far below one in the number of rows, such as delta=1e-6",
        ),
        ({"delta": 1.0}, "delta"),
        ({"semi_supervised": 1}, "semi_supervised"),
        ({"semi_supervised": True}, "takes -1 for no label"),
        ({"random_state": None}, "random_state"),
        ({"random_state": -1}, "random_state"),
        ({"classes": None}, "classes"),
        ({"dataset": None}, "dataset="),
        ({"noise": SEEDED}, "noise=None"),
        ({"teacher": LogisticRegression}, "LogisticRegression itself"),
        ({"teacher": StandardScaler()}, "classifier"),
        ({"teacher": "net"}, "teacher as a function"),
        ({"teacher": Failing()}, "broken"),
        ({"estimator": Failing()}, "broken"),
        ({"teacher": lambda X, rows, codes, asked: codes}, "for each of 40 asked rows"),
        ({"teacher": lambda X, rows, codes, asked: asked * 1.0}, "class code in 0..2"),
        ({"teacher": lambda X, rows: rows}, "TypeError"),
        ({"estimator": ldp.LabelDPClassifier()}, "Expected PrivateLabels"),
        ({"teacher": ldp.learn.NoiseCluster()}, "Expected PrivateLabels"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
@pytest.mark.filterwarnings("ignore::labeldp.errors.NoisyVotesWarning")
def test_what_is_wrong_is_said_before_anything_is_charged(
    ledger: ldp.Ledger, wrong: dict[str, Any], said: str
) -> None:
    settings = {"estimator": LogisticRegression(), **FEW} | wrong
    facts = {name: settings.pop(name) for name in ("classes", "dataset", "noise") if name in wrong}
    with pytest.raises(ldp.InvalidInput, match=said):
        PATEClassifier(**settings).fit(X, private(ledger=ledger, **facts))
    assert ledger.runs() == []


def test_groups_of_rows_are_not_asked_as_teachers_are() -> None:
    query = ConfidentGNMax(3, 1.0, 2, delta=1e-6, n_teachers=600, threshold=0)
    groups = np.arange(1200) % 2
    with pytest.raises(ldp.InvalidInput, match="PATEClassifier asks it"):
        ldp.aggregate(ldp.PrivateLabels(Y, classes=range(query.n_classes)), query, groups)
    with pytest.raises(ldp.InvalidInput, match="PATEClassifier asks it"):
        aggregate_batches([], query, label="y", group="g", classes=range(3))


def test_answers_are_kept_in_a_file_with_those_that_are_missing(tmp_path: Path) -> None:
    labels = private(np.array(list("abc"))[Y], classes=list("abc"))
    model = PATEClassifier(**FEW).fit(X, labels)
    answer = model.aggregate_
    assert not answer.answered.all()
    answer.save(tmp_path / "answer.parquet")
    found = Aggregate.load(tmp_path / "answer.parquet")
    assert found.values.tolist() == answer.values.tolist()
    assert found.query == answer.query
    assert [label is None for label in found.labels()] == (~answer.answered).tolist()
    assert found.predict([0, 1]).tolist() == answer.labels()[:2].tolist()
    with pytest.raises(ldp.InvalidInput, match="Histogram"):
        found.prior([0])


# The rule for the numbers
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n_rows", [1, 2, 7, 300, 60_000])
@pytest.mark.parametrize("epsilon", [1e-3, 0.5, 4.0, 100.0])
@pytest.mark.parametrize(
    "given",
    [
        (None,) * 4,
        (None, None, None, 0),
        (1, None, None, None),
        (None, 1, None, None),
        (None, None, 1, None),
    ],
)
def test_the_rule_gives_numbers_that_fit_together(n_rows: int, epsilon: float, given: Any) -> None:
    for n_classes in (2, 100):
        found = plan_teachers(n_rows, n_rows, n_classes, epsilon, 1e-6, given=given)
        assert 1 <= found.n_teachers <= n_rows
        assert 1 <= found.max_answers <= found.n_queries <= n_rows
        assert 0 <= found.threshold <= found.n_teachers
        assert all(
            mine in (None, theirs) for mine, theirs in zip(given, vars(found).values(), strict=True)
        )


class Writing(ClassifierMixin, BaseEstimator):
    """A classifier that keeps a file of its training in the working folder unless it is told not
    to, as CatBoost does."""

    def __init__(self, allow_writing_files: bool = True) -> None:
        self.allow_writing_files = allow_writing_files

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        # CatBoost names only what was given
        return {} if self.allow_writing_files else {"allow_writing_files": False}

    def set_params(self, **params: Any) -> "Writing":
        vars(self).update(params)
        return self

    def fit(self, X: np.ndarray, y: np.ndarray) -> "Writing":
        if self.allow_writing_files:
            Path("learn_error.tsv").write_text(str(np.bincount(y).tolist()))
        self.model_ = LogisticRegression().fit(X, y)
        self.classes_ = self.model_.classes_
        return self

    def predict(self, X: np.ndarray) -> np.ndarray:
        return self.model_.predict(X)


@pytest.mark.parametrize(
    "teacher",
    [Writing(), make_pipeline(StandardScaler(), Writing())],
    ids=["alone", "in a pipeline"],
)
def test_no_teacher_writes_files_of_its_training(
    teacher: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    PATEClassifier(LogisticRegression(), teacher=teacher, **FEW).fit(X, private())
    assert list(tmp_path.iterdir()) == []


class Workers(LogisticRegression):
    """Notes how many workers joblib would start."""

    seen: ClassVar[list[int]] = []

    def fit(self, X: np.ndarray, y: np.ndarray) -> "Workers":
        self.seen.append(joblib.effective_n_jobs(self.n_jobs))
        return super().fit(X, y)


def test_no_teacher_trains_in_workers_of_the_callers_context() -> None:
    """Workers print, warn and put arrays of labels into files where the door does not see it."""
    Workers.seen.clear()
    with joblib.parallel_config(n_jobs=2):
        PATEClassifier(LogisticRegression(), teacher=Workers(), **FEW).fit(X, private())
    assert Workers.seen
    assert set(Workers.seen) == {1}
