# SPDX-License-Identifier: Apache-2.0
"""Tracebacks with variables show no label: they are the same, whatever the labels are."""

import io
import re
import traceback
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import pytest
import rich.console
import rich.traceback
from sklearn.linear_model import LogisticRegression

import labeldp as ldp

N = 40
Y = np.random.default_rng(0).permutation(np.repeat(["no", "yes"], N // 2)).astype("U9")
Z = np.where(Y == "no", "yes", "no").astype("U9")
X = np.random.default_rng(1).normal(size=(N, 2))
LAW, QUERY = ldp.RandomizedResponse(2, 1.0), ldp.aggregates.Histogram(2, 1.0, 2)
GROUPS, NOISE = np.arange(N) % 2, ldp.SeededNoise(0)


def closed(y: Any, **more: Any) -> ldp.PrivateLabels:
    return ldp.PrivateLabels(y, classes=["no", "yes"], noise=NOISE, **more)


def frame(y: Any) -> pd.DataFrame:
    return pd.DataFrame({"a": X[:, 0], "bought": y})


def bad(y: Any) -> Any:
    return np.where(np.arange(N) == 3, "si", y)


class Stops:
    """Labels that somebody interrupts while they are read."""

    def __init__(self, y: Any) -> None:
        self.y = y

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise KeyboardInterrupt(str(self.y))


def learner() -> ldp.LabelDPClassifier:
    return ldp.LabelDPClassifier(LogisticRegression(), epsilon=1.0, law=LAW, random_state=0)


FAULTS: dict[str, tuple[Callable[[Any], Any], Callable[[Any], object]]] = {
    "bad label": (bad, closed),
    "bad column": (lambda y: pd.Series(bad(y)), closed),
    "bad number": (bad, lambda given: ldp.PrivateLabels(given, range=(0, 1))),
    "stopped": (Stops, closed),
    "ids": (np.array, lambda given: closed(given, ids=[1])),
    "split": (
        lambda y: frame(bad(y)),
        lambda given: ldp.split_labels(given, "bought", classes=["no", "yes"]),
    ),
    "no column": (frame, lambda given: ldp.split_labels(given, "bougt")),
    "rows": (closed, lambda labels: learner().fit(X[:9], labels)),
    "groups": (closed, lambda labels: ldp.aggregate(labels, QUERY, GROUPS[:9])),
}
DRAWS: dict[str, Callable[[Any], object]] = {
    "privatize": lambda labels: ldp.privatize(labels, LAW),
    "aggregate": lambda labels: ldp.aggregate(labels, QUERY, GROUPS),
    "fit": lambda labels: learner().fit(X, labels),
    "votes": lambda labels: ldp.learn.NoiseCluster(epsilon=1.0, n_clusters=2, random_state=0).fit(
        X, labels
    ),
}


def error_of(call: Callable[[], object]) -> BaseException:
    """What a call raises, without the frames of the caller, which has the labels anyway."""
    try:
        call()
    except BaseException as error:
        trace = error.__traceback__
        while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
            trace = trace.tb_next
        return error.with_traceback(trace)
    raise AssertionError("nothing was raised")


def variables(error: BaseException) -> Iterator[str]:
    """Each variable of each frame, of the causes, too."""
    known: BaseException | None = error
    while known is not None:
        yield f"{type(known).__name__}: {known}"
        for each, line in traceback.walk_tb(known.__traceback__):
            yield from (
                f"{each.f_code.co_name}:{line} {n} = {v!r}" for n, v in each.f_locals.items()
            )
        known = known.__cause__ or known.__context__


def by_rich(error: BaseException) -> str:
    shown = rich.traceback.Traceback.from_exception(
        type(error), error, error.__traceback__, show_locals=True, locals_max_string=None
    )
    console = rich.console.Console(file=io.StringIO(), width=200)
    console.print(shown)
    return console.file.getvalue()  # type: ignore[attr-defined]


def by_ipython(error: BaseException) -> str:
    views = pytest.importorskip("IPython.core.ultratb")
    view = views.VerboseTB(include_vars=True)
    return str(view.text(type(error), error, error.__traceback__))


VIEWS: dict[str, Callable[[BaseException], str]] = {
    "variables": lambda error: "\n".join(variables(error)),
    "rich": by_rich,
}


def told(view: Callable[[BaseException], str], call: Callable[[], object]) -> str:
    """What a debugger shows of a call's error, without addresses."""
    return re.sub("0x[0-9a-f]+", "", view(error_of(call)))


def check_faults(view: Callable[[BaseException], str]) -> None:
    for name, (make, act) in FAULTS.items():
        shown = [told(view, partial(act, make(y))) for y in (Y, Z)]
        assert shown[0] == shown[1], name


def check_draws(
    view: Callable[[BaseException], str], patch: pytest.MonkeyPatch, names: Sequence[str]
) -> None:
    """Also where a sampler is interrupted, or raises an error that quotes labels."""
    for error in (KeyboardInterrupt, SystemExit, MemoryError, ValueError):

        def stop(self: Any, labels: Any, *rest: Any, error: Any = error) -> Any:
            own = np.asarray(labels) + 1
            raise error(f"got {own}")

        patch.setattr(ldp.RandomizedResponse, "sample", stop)
        patch.setattr(ldp.aggregates.Histogram, "release", stop)
        patch.setattr(ldp.aggregates.Vote, "release", stop)
        for name in names:
            shown = [told(view, partial(DRAWS[name], closed(y))) for y in (Y, Z)]
            assert shown[0] == shown[1], (name, error)
            assert "got [" not in shown[0]


@pytest.mark.parametrize("view", VIEWS)
def test_no_traceback_shows_labels(view: str, monkeypatch: pytest.MonkeyPatch) -> None:
    check_faults(VIEWS[view])
    # rich takes its time over the frames of a fit
    names = [name for name in DRAWS if view == "variables" or name in ("privatize", "aggregate")]
    check_draws(VIEWS[view], monkeypatch, names)


def test_a_planted_variable_is_found() -> None:
    def show(y: Any) -> str:
        return told(VIEWS["variables"], lambda: np.linalg.cholesky(-np.diag((y == "no") + 1.0)))

    assert show(Y) != show(Z)


class Odd(BaseException):
    """An end of other code that takes arguments."""

    def __init__(self, number: int, text: str) -> None:
        super().__init__(text)


def ends(*_: object) -> Any:
    raise Odd(1, str(Y))


def warns(*_: object) -> Any:
    raise UserWarning(str(Y))


@pytest.mark.parametrize(("end", "kind"), [(ends, KeyboardInterrupt), (warns, ldp.InvalidInput)])
def test_ends_and_warnings_of_other_code_bring_nothing_out(
    end: Any, kind: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    labels = closed(Y)
    monkeypatch.setattr(ldp.RandomizedResponse, "sample", end)
    with pytest.raises(kind) as caught:
        ldp.privatize(labels, LAW)
    told = traceback.TracebackException.from_exception(caught.value, capture_locals=True)
    assert str(Y).splitlines()[0] not in "".join(told.format())
