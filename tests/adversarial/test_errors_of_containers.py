# SPDX-License-Identifier: Apache-2.0
"""What a label container of the user's, or the training of a teacher, raises brings no label out;
foreign errors become ours."""

import traceback
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import labeldp as ldp
from labeldp.aggregates import Histogram
from labeldp.custody._answer import TeacherQuestion
from labeldp.papers.malek2021 import ConfidentGNMax, PATEClassifier

SENTINEL = "SENTINEL-4711"
COLUMNS = ldp.LabelColumns({"a": ["a", "b"], "b": ["a", "b"]})


def containers(error):
    """Give containers of four labels, each of which raises where it is read."""

    def fail(*_, **__):
        raise error(SENTINEL)

    four = {"__len__": lambda self: 4, "__getitem__": lambda self, i: "a"}
    of_pairs = {"__len__": lambda self: 2, "__iter__": lambda self: iter(["a", "b"])}
    return {
        "array": type("A", (), {"__array__": fail})(),
        "shaped": type("S", (), {"__array__": fail, "shape": (4,), "__len__": lambda self: 4})(),
        "length": type("L", (Sequence,), four | {"__len__": fail})(),
        "items": type("I", (Sequence,), four | {"__getitem__": fail})(),
        "list": type("T", (list,), {"__iter__": fail})("abab"),
        "lists": type("T", (list,), {"__getitem__": fail, "__len__": fail})("abab"),
        "names": type("N", (Mapping,), four | of_pairs | {"__iter__": fail})(),
        "columns": type("C", (Mapping,), four | of_pairs | {"__getitem__": fail})(),
        "frame": type("F", (), {"columns": ["a", "b"], "shape": (4, 2), "__getitem__": fail})(),
    }


WAYS = {
    "classes": {"classes": ["a", "b"], "column": "y"},
    "infer": {"classes": "infer", "column": "y"},
    "several": {"classes": COLUMNS},
    "numbers": {"range": (0, 1), "column": "y"},
}
declared = pytest.mark.parametrize("facts", WAYS.values(), ids=WAYS)


def chain(error):
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


@pytest.mark.parametrize("error", [ValueError, RuntimeError, SystemExit])
@declared
@pytest.mark.parametrize("name", containers(ValueError))
def test_no_error_of_a_container_comes_out(ledger, name, facts, error):
    with pytest.raises(ldp.InvalidInput) as caught:
        ldp.PrivateLabels(containers(error)[name], dataset="d", ledger=ledger, **facts)
    assert SENTINEL not in "".join(traceback.format_exception(caught.value))
    assert not any(SENTINEL in repr(each) + repr(each.args) for each in chain(caught.value))
    assert not ledger.runs()


FOREIGN = {
    "lists": pd.Series([[1], [2], [1], [2]]),
    "arrow lists": pa.array([[1], [2], [1], [2]]),
    "nested": [["a"], ["b", "c"], ["a"], ["b"]],
    "cells": pd.Series([(1, [2])] * 4),
    "sets": [{1}, {2}, {1}, {2}],
    "records": np.array([(1, 2.0)] * 4, dtype=[("x", int), ("y", float)]),
    "bytes": [b"a", b"b", b"a", b"b"],
    "nothing": None,
    "one": 5,
    "text": "abab",
}


@pytest.mark.filterwarnings("ignore::labeldp.errors.DomainLeakWarning")
@declared
@pytest.mark.parametrize("labels", FOREIGN.values(), ids=FOREIGN)
def test_labels_of_no_use_are_invalid_input(labels, facts):
    with pytest.raises(ldp.InvalidInput):
        ldp.PrivateLabels(labels, **facts)


def test_tensors_that_require_grad_are_invalid_input():
    torch = pytest.importorskip("torch")
    tensor = torch.tensor([0.0, 1.0, 0.0, 1.0], requires_grad=True)
    for facts in WAYS.values():
        with pytest.raises(ldp.InvalidInput):
            ldp.PrivateLabels(tensor, **facts)
    law, y = ldp.RandomizedResponse(2, 1.0), [0, 1, 0, 1]
    weights = tensor[:, None] + tensor[None, :2]
    labels = ldp.PrivateLabels(y, classes=range(2))
    noisy = ldp.privatize(labels, law)
    for attempt in (
        lambda: ldp.PrivateLabels(y, classes=range(2), ids=tensor),
        lambda: ldp.PrivateLabels(y, classes=range(2), unit=tensor),
        lambda: ldp.privatize(labels, ldp.RRWithPrior(2, 1.0), prior=weights),
        lambda: ldp.aggregate(labels, Histogram(2, 1.0, 2), tensor),
        lambda: ldp.NoisyLabels.from_labels(tensor, law),
        lambda: ldp.metrics.accuracy(noisy, tensor),
        lambda: ldp.stats.crosstab(noisy, tensor),
        lambda: ldp.LabelDPClassifier(epsilon=1.0).fit(weights, labels),
    ):
        with pytest.raises(ldp.InvalidInput):
            attempt()


class Teacher:
    """Ends its training on raw labels by an error whose text has them."""

    def __init__(self, error):
        self.error = error

    def __call__(self, number, rows, codes, asked):
        try:
            raise ValueError(SENTINEL)
        except ValueError:
            raise self.error(SENTINEL) from None


def vote(error):
    query = ConfidentGNMax(2, 1.0, 4, delta=1e-6, n_teachers=2, max_answers=4, threshold=1)
    question = TeacherQuestion(
        query=query, teach=Teacher(error), origin=lambda order: "", queries=np.arange(4)
    )
    return question._vote_of(0, np.arange(3), np.array([1, 1, 0]))


@pytest.mark.parametrize("error", [ValueError, SystemExit, GeneratorExit, BaseException])
def test_a_teacher_that_ends_itself_votes_for_its_most_frequent_class(error):
    assert vote(error).tolist() == [1, 1, 1, 1]


@pytest.mark.parametrize("error", [MemoryError, KeyboardInterrupt])
def test_a_teacher_that_is_stopped_stops_the_fit_without_its_text(error):
    with pytest.raises(error) as caught:
        vote(error)
    assert SENTINEL not in "".join(traceback.format_exception(caught.value))
    assert not any(SENTINEL in repr(each) for each in chain(caught.value))


def test_a_fit_outlives_teachers_that_exit():
    from sklearn.base import BaseEstimator, ClassifierMixin

    class Exits(ClassifierMixin, BaseEstimator):
        def fit(self, X, y):
            self.classes_ = np.unique(y)
            if len(y) == 50:  # raw labels, not those of the dry run
                raise SystemExit(f"{SENTINEL} {y}")
            return self

        def predict(self, X):
            return np.full(len(X), self.classes_[0])

    rng = np.random.default_rng(0)
    features, labels = rng.normal(size=(1000, 2)), rng.integers(0, 2, 1000)
    model = PATEClassifier(Exits(), epsilon=8.0, n_teachers=20, n_queries=20)
    model.fit(features, ldp.PrivateLabels(labels, classes=[0, 1], noise=ldp.SeededNoise(0)))
    assert len(model.predict(features)) == 1000
