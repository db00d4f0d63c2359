# SPDX-License-Identifier: Apache-2.0
"""PATEClassifier: teachers on disjoint shards of the labels vote, and a student learns from the
noisy majority of their votes."""

import contextlib
import random
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from inspect import signature
from typing import TYPE_CHECKING, Any

import numpy as np
from joblib import parallel_config
from numpy.typing import NDArray
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.validation import check_is_fitted

from labeldp import _validate
from labeldp._hash import digest
from labeldp.aggregates import _gaussian
from labeldp.errors import InvalidInput, NoisyVotesWarning, warn
from labeldp.evidence import NoisyLabels
from labeldp.learn._classifier import dry_run
from labeldp.learn._cluster_estimators import CuratorEstimator
from labeldp.learn._clusters import setting_text
from labeldp.learn._corrections import (
    Model,
    fit_codes,
    require_classifier,
    seeded,
)
from labeldp.learn._data import (
    Codes,
    Estimator,
    Floats,
    features_digest,
    takes_images,
    taking_inputs_of,
)
from labeldp.papers._gnmax import ConfidentGNMax
from labeldp.protocol._estimator import undisturbed
from labeldp.protocol._matching import take

if TYPE_CHECKING:
    from labeldp.custody._private import PrivateLabels

_ROWS_A_CLASS = 10  # of a shard, on average, by the rule for the number of teachers
# the rule's number of teachers is at least so many standard deviations of the noise on an answer's
# count
_SIGMAS = 5
_MOST_TEACHERS = 1000  # of the rule: more take long
# that are enough, by the rule: beyond the larger of the two, less noise is worth more
_ANSWERS, _ANSWERS_A_CLASS = 500, 30
_AGREED = 0.6  # of the teachers, for an answer
_MOST_WRONG = 0.1  # of the answers, by noise alone, without a warning
# workers and caches are out of the door's sight
_QUIET: dict[str, Any] = {"verbose": 0, "n_jobs": None, "memory": None}
_FILES = "allow_writing_files"
_DELTA = "Pass a chance far below one in the number of rows, such as delta=1e-6."


@dataclass(frozen=True)
class TeacherCounts:
    """How many teachers, queries and answers, and what agreement, suit a budget; `plan_teachers`
    finds them from public facts.

    Attributes
    ----------
    n_teachers, n_queries, max_answers, threshold : int
    """

    n_teachers: int
    n_queries: int
    max_answers: int
    threshold: int


class PATEClassifier(CuratorEstimator):
    """Train teachers on disjoint shards of the rows, ask them about some rows, and train a student
    on the noisy majority of their votes.

    Parameters
    ----------
    estimator : classifier or pipeline, default=None
        The student; cloned. None: logistic regression on scaled columns.
    teacher : classifier, pipeline, or function (X, rows, codes, asked) -> votes, default=None
        What a teacher is; cloned for each. None: the student's own kind. A function gets all
        features, the positions of its shard's rows, their class codes 0..K-1, and the positions of
        the rows that it is asked about; it returns a class code for each of these, and may learn
        from all features. It must be a function of these alone, and keep, print and send nothing:
        it holds raw labels. A ledger knows a function by its name, and a classifier by its class
        and settings.
    epsilon : float > 0, default=1.0
        Total label-DP budget of a fit, for one unit (a row, or the labels' own unit): all
        queries together.
    delta : float in (0, 1), default=1e-06
        Far below one over the number of rows.
    n_teachers : int in 1..n, default=None
        None: as many as have shards of 10 rows a class, and at most 1000.
    n_queries : int in 1..n, default=None
        Rows that the teachers are asked about. None: twice `max_answers`, or as many where there is
        no threshold.
    max_answers : int >= 1, default=None
        Further answers are not given, and not paid for. None: as many as leave noise with a fifth
        of the teachers as its standard deviation, at least K, and at most 500, or 30 a class, or
        half of the rows; where n_queries is given half of these, or all without a threshold.
    threshold : int in 0..n_teachers, default=None
        Votes for the leading class, noise added, that a query needs to be answered. None: 60 % of
        the teachers. 0: all are answered, and no check is paid for.
    check_share : float in (0, 1), default=0.25
        Part of the budget that the checks against the threshold get.
    semi_supervised : bool, default=False
        True: the student is fitted to all rows, with -1 as the label of those without an answer, as
        estimators of `sklearn.semi_supervised` take them. False: to rows with an answer alone.
    random_state : int >= 0, default=0
        Of the shards, the choice of queries, and the teachers' training; public and fixed, so that
        a repeat is recognised. Never drives the noise.

    Warns
    -----
    NoisyVotesWarning
        Before the charge: noise overrules the votes of all teachers together in more than a tenth
        of the answers, as it does that of a single teacher at any budget.

    Attributes
    ----------
    classes_ : (K,) array
    aggregate_ : Aggregate
        The answers, with the query's public facts; `aggregate_.answered` tells which queries got
        one.
    queries_ : (n_queries,) int64
        The rows of X that they are about.
    estimator_ : fitted estimator (of class codes)
        The student.
    privacy_ : PrivacySpent
    receipts_ : tuple of Receipt
        Of the one charge.
    n_features_in_, feature_names_in_

    See Also
    --------
    ProportionClassifier : learns from counts of clusters; more accurate in our benchmark.
    labeldp.papers.malek2021.ConfidentGNMax : the query, its noise and its account.

    References
    ----------
    Papernot et al. (2018), "Scalable Private Learning with PATE"; Malek et al. (2021), "Antipodes
    of Label Differential Privacy: PATE and ALIBI"; Tang et al. (2022), "Machine Learning with
    Differentially Private Labels", Algorithms 4 and 5 (PATE-FM).

    Notes
    -----
    Guarantee: (epsilon, delta)-label-DP of everything the fit leaves behind; a trusted curator
    trains on raw labels. A changed label changes one teacher, so one vote of each query. All
    checks, failed ones too, and `max_answers` answers are charged before the noise of the first one
    is drawn, whatever the votes are. Rows are put into shards by a public rule on ids, never by
    labels. Teachers are trained before the charge, each with random states of its own, and nothing
    of them is kept; one whose training fails votes for its shard's most frequent class, and nobody
    is told. How long they take can depend on labels: do not let others measure it. Where the
    teachers agree, less was spent than is charged: that figure depends on the labels, and is not
    computed. A teacher that calls for random numbers from elsewhere than NumPy, Python or PyTorch
    must seed them itself. While a teacher is trained and asked, this process is silent: what any of
    its threads prints, logs or warns of is lost, and so is what code in C writes to standard output
    and error. Cost: `n_teachers` fits on n / n_teachers rows, each with `n_queries` predictions,
    and the student's fit.

    Examples
    --------
    >>> import labeldp as ldp
    >>> from sklearn.datasets import make_blobs
    >>> X, y = make_blobs(3000, centers=3, random_state=0, cluster_std=0.5)
    >>> labels = ldp.PrivateLabels(y, classes=[0, 1, 2], noise=ldp.SeededNoise(0))
    >>> model = PATEClassifier(epsilon=4.0).fit(X, labels)
    >>> bool(model.score(X, y) > 0.95)
    True
    """

    _not_noisy = "which no teacher needs"

    def __init__(
        self,
        estimator: Any = None,
        *,
        teacher: Any = None,
        epsilon: float = 1.0,
        delta: float = 1e-6,
        n_teachers: int | None = None,
        n_queries: int | None = None,
        max_answers: int | None = None,
        threshold: int | None = None,
        check_share: float = 0.25,
        semi_supervised: bool = False,
        random_state: int = 0,
    ) -> None:
        self.estimator = estimator
        self.teacher = teacher
        self.epsilon = epsilon
        self.delta = delta
        self.n_teachers = n_teachers
        self.n_queries = n_queries
        self.max_answers = max_answers
        self.threshold = threshold
        self.check_share = check_share
        self.semi_supervised = semi_supervised
        self.random_state = random_state

    def __sklearn_tags__(self) -> Any:
        student = self._student()
        tags = taking_inputs_of(student, super().__sklearn_tags__())
        tags.input_tags.three_d_array = takes_images(student)
        return tags

    # Fitting
    # ----------------------------------------------------------------------------------------------

    def _fit_private(self, X: Any, inputs: Any, labels: "PrivateLabels") -> None:
        from labeldp.custody._answer import TeacherQuestion, answer

        classes = labels.classes
        query, seed = self._query(labels), self._seed()
        self._dry_runs(inputs, query)
        wrong = float(query.failure(np.full((1, query.n_classes - 1), query.n_teachers))[0])
        if wrong > _MOST_WRONG:
            agree = (
                f"all {query.n_teachers} teachers agree"
                if query.n_teachers > 1
                else "the only teacher agrees"
            )
            warn(
                NoisyVotesWarning(
                    f"Noise with a standard deviation of {query.standard_deviations()[1]:.1f} votes"
                    f" can make {min(wrong, 1):.0%} of the answers wrong even where {agree} on the"
                    " right one. Take more teachers (n_teachers=), fewer answers (max_answers=) or"
                    " a larger epsilon; or ProportionClassifier, which needs no teachers."
                )
            )

        def teach(number: int, mine: Codes, codes: Codes, asked: Codes) -> Any:
            with _seeded_alone(seed, number):
                return self._votes(inputs, number, mine, codes, asked)

        question = TeacherQuestion(
            query=query,
            teach=teach,
            origin=lambda order: self._named(inputs, order),
            seed=seed,
        )
        asked = answer(labels, question)
        found = asked.answer
        self._set_classes(classes)
        self.aggregate_, self.privacy_ = found, found.privacy
        self.receipts_, self._learned, self.queries_ = (found.receipt,), None, asked.queries
        codes, answered = found.codes(), found.answered
        if not answered.any():  # that there are none is a part of the answer, as its noise made it
            raise InvalidInput(
                f"Expected some answers to train a student on, got none to {query.n_queries}"
                f" queries with threshold={query.threshold} of {query.n_teachers} teachers."
                f" epsilon={query.epsilon:g} is spent (run {found.receipt.run_id}), and a repeat"
                " gets the same. A fit with a lower threshold= (0 answers every query), or with"
                " fewer teachers, which have more rows each, is a new charge."
            )
        self._model = self._taught(
            self._student(), inputs, asked.queries[answered], codes[answered], len(classes)
        )
        self.estimator_ = self._model.estimator

    def _query(self, labels: "PrivateLabels") -> ConfidentGNMax:
        """Make the query; whatever is wrong with the numbers is refused here."""
        n_classes, n_rows, unit = len(labels.classes), len(labels), labels.rows.given.unit
        n_units = n_rows if unit is None else len({str(each) for each in np.asarray(unit).tolist()})
        for name in ("n_teachers", "n_queries", "max_answers"):
            if getattr(self, name) is not None:
                _validate.integer(low=1, **{name: getattr(self, name)})
        if self.threshold is not None:
            _validate.integer(threshold=self.threshold, low=0, fix="0 answers every query.")
        _validate.boolean(semi_supervised=self.semi_supervised)
        delta, share = (
            _validate.fraction(delta=self.delta, fix=_DELTA),
            _validate.fraction(check_share=self.check_share),
        )
        given = (self.n_teachers, self.n_queries, self.max_answers, self.threshold)
        found = plan_teachers(
            n_rows, n_units, n_classes, _validate.epsilon(self.epsilon), delta, share, given
        )
        return ConfidentGNMax(
            n_classes,
            self.epsilon,
            found.n_queries,
            delta=delta,
            n_teachers=found.n_teachers,
            threshold=found.threshold,
            max_answers=found.max_answers,
            check_share=share,
        )

    def _seed(self) -> int:
        return _validate.integer(
            random_state=self.random_state,
            low=0,
            fix="Shards must come out the same for a repeat to be recognised.",
        )

    def _named(self, X: Any, order: NDArray[np.intp] | None) -> str:
        """Digest what the votes follow from, besides labels: features and settings; of a function
        only its name."""
        table = X if order is None else take(X, np.asarray(order))
        teacher = self._teacher()
        kind = teacher if callable(teacher) and hasattr(teacher, "__qualname__") else type(teacher)
        params = (
            teacher.get_params()
            if hasattr(teacher, "get_params") and not isinstance(teacher, type)
            else {}
        )
        # of a setting that is not plain, which could hold labels, only the type
        settings = {
            str(name): setting_text(value) or type(value).__qualname__
            for name, value in params.items()
        }
        return digest(
            {
                "features": features_digest(table),
                "teacher": {"": f"{kind.__module__}.{kind.__qualname__}"} | settings,
            }
        )

    # Teachers and student
    # ----------------------------------------------------------------------------------------------

    def _student(self) -> Estimator:
        if self.estimator is not None:
            return self.estimator
        return make_pipeline(StandardScaler(with_mean=False), LogisticRegression(max_iter=200))

    def _teacher(self) -> Any:
        return self._student() if self.teacher is None else self.teacher

    def _require_estimator(self) -> None:
        teacher = self._teacher()
        for each in (self._student(), *([teacher] if _is_estimator(teacher) else [])):
            require_classifier(each)
        if not _is_estimator(teacher):
            _validate.function(
                teacher=teacher, takes="X, rows, codes and asked rows, where it is no classifier"
            )

    def _votes(self, X: Any, number: int, rows: Codes, codes: Codes, asked: Codes) -> Any:
        """Train a teacher on raw class codes and give its votes; called inside the door alone."""
        teacher = self._teacher()
        if not _is_estimator(teacher):
            return teacher(X, rows, codes, asked)
        quiet = _silenced(seeded(teacher, np.random.RandomState([self._seed(), number])))
        with parallel_config(backend="sequential"):  # n_jobs=None follows the caller's context
            return np.asarray(fit_codes(quiet, X, rows, codes).predict(take(X, asked)), np.int64)

    def _taught(
        self, student: Estimator, X: Any, rows: Codes, codes: Codes, n_classes: int
    ) -> Model:
        """Train the student on answers alone: post-processing."""
        copy = seeded(student, np.random.RandomState(self._seed()))
        if not self.semi_supervised or codes.min() == codes.max():
            return Model(fit_codes(copy, X, rows, codes), n_classes)
        every = np.full(X.shape[0], -1)
        every[rows] = codes
        fitted = copy.fit(X, every)
        if -1 in np.asarray(fitted.classes_).tolist():
            raise InvalidInput(
                "Expected an estimator that takes -1 for no label with semi_supervised=True, got"
                f" {type(student).__name__}, whose class it is. Pass one of"
                " sklearn.semi_supervised, such as SelfTrainingClassifier."
            )
        return Model(fitted, n_classes)

    def _dry_runs(self, X: Any, query: ConfidentGNMax) -> None:
        """Refuse a student or a teacher that will fail whatever the labels are, before anything is
        charged."""
        k, n_rows = query.n_classes, X.shape[0]

        def taught(copy: Estimator, few: Any, noisy: NoisyLabels) -> Model:
            labelled = np.arange(0, len(noisy), 2) if len(noisy) >= 2 * k else np.arange(len(noisy))
            return self._taught(copy, few, labelled, np.arange(len(labelled)) % k, k)

        dry_run(self._student(), X, k, query.max_answers or n_rows, taught)
        teacher, shard = self._teacher(), max(1, n_rows // query.n_teachers)
        if _is_estimator(teacher):
            # else the student's dry run was the teacher's, too
            if self.teacher is not None or self.semi_supervised:
                with parallel_config(backend="sequential"):
                    dry_run(_silenced(clone(teacher)), X, k, shard)
            return
        if hasattr(teacher, "require_outputs"):  # which votes on trial need not show
            teacher.require_outputs(X, k)
        rows, asked = np.arange(shard), np.arange(n_rows - query.n_queries, n_rows)
        try:
            with undisturbed():
                votes = np.asarray(teacher(X, rows, rows % k, asked))
        except MemoryError:
            raise
        except Exception as error:  # no label was there to quote
            raise InvalidInput(
                "Expected a teacher that votes when called with X, rows, codes and asked rows, got"
                f" {type(error).__name__}: {error}. Nothing was charged."
            ) from error
        if (
            votes.shape != asked.shape
            or votes.dtype.kind not in "iu"
            or votes.min() < 0
            or votes.max() >= k
        ):
            raise InvalidInput(
                f"Expected a teacher that returns a class code in 0..{k - 1} for each of"
                f" {len(asked)} asked rows, got {votes.dtype} of shape {votes.shape}. Nothing was"
                " charged."
            )

    # Predicting
    # ----------------------------------------------------------------------------------------------

    def predict_proba(self, X: Any) -> Floats:
        """Predict probabilities of the classes by the student: (n, K) float64, columns in the order
        of `classes_`.

        Parameters
        ----------
        X : (n, ...) features, as in the fit
        """
        check_is_fitted(self, "aggregate_")
        return self._model.predict_proba(self._checked(X, reset=False))


def plan_teachers(
    n_rows: int,
    n_units: int,
    n_classes: int,
    epsilon: float,
    delta: float,
    check_share: float = 0.25,
    given: tuple[int | None, int | None, int | None, int | None] = (None, None, None, None),
) -> TeacherCounts:
    """Choose teachers, queries, answers and threshold by a rule of public facts alone.

    With a fifth of the teachers as standard deviation of an answer's noise, a lead of half of them
    is overruled by another class with probability 0.04; a shard of 10 rows a class is the least
    that a linear model learns something from. Both together fix how many answers a budget is good
    for. A larger budget buys less noise.

    Parameters
    ----------
    n_rows, n_units, n_classes : int
    epsilon, delta, check_share : float
    given : (n_teachers, n_queries, max_answers, threshold), default=(None, None, None, None)
        None: by the rule.
    """
    n_teachers, n_queries, max_answers, threshold = given
    part = 1.0 if threshold == 0 else 1.0 - check_share
    mean = float(_gaussian.calibrated_mean(epsilon, delta, n_rows))
    teachers = (
        int(np.clip(min(n_rows // (_ROWS_A_CLASS * n_classes), n_units), 1, _MOST_TEACHERS))
        if n_teachers is None
        else n_teachers
    )
    if max_answers is None:
        # Noise on an answer has the squared deviation 2 answers / (part mean).
        most = min(max(_ANSWERS, _ANSWERS_A_CLASS * n_classes), max(1, n_rows // 2))
        affordable = int(
            np.clip(part * mean / 2 * (teachers / _SIGMAS) ** 2, min(n_classes, most), most)
        )
        max_answers = (
            affordable
            if n_queries is None
            else n_queries
            if threshold == 0
            else (n_queries + 1) // 2
        )
    if n_queries is None:
        n_queries = (
            max_answers if threshold == 0 else min(2 * max_answers, max(n_rows, max_answers))
        )
    return TeacherCounts(
        teachers,
        n_queries,
        max_answers,
        int(np.ceil(_AGREED * teachers)) if threshold is None else threshold,
    )


def _is_estimator(teacher: object) -> bool:
    return hasattr(teacher, "fit") or isinstance(teacher, type)


def _silenced(estimator: Estimator) -> Estimator:
    """Turn off, in an estimator that is a clone already, messages, workers, caches and files of its
    own: each can carry labels out."""
    params = estimator.get_params()
    ends = {name: name.rpartition("__")[2] for name in params}
    loud = {name: _QUIET[end] for name, end in ends.items() if end in _QUIET and params[name]}
    for each in (estimator, *params.values()):
        # CatBoost keeps each round's loss in a folder, and names the parameter only if it was
        # given.
        if (
            hasattr(each, "fit")
            and not isinstance(each, type)
            and _FILES in signature(type(each)).parameters
        ):
            each.set_params(**{_FILES: False})
    return estimator.set_params(**loud)


@contextlib.contextmanager
def _seeded_alone(seed: int, number: int) -> Iterator[None]:
    """Seed the global generators for one teacher, and put them back.

    Were they to run on, the numbers that a teacher gets would depend on how many those before it
    took, and that on their labels: one changed label would change every teacher.
    """
    torch = sys.modules.get("torch")
    # The generators of all GPUs, too: `manual_seed` seeds them.
    forked = (
        contextlib.nullcontext()
        if torch is None
        else torch.random.fork_rng(range(torch.cuda.device_count()))
    )
    with undisturbed(), forked:
        own = int(np.random.RandomState([seed, number]).randint(1 << 31))
        np.random.seed(own)
        random.seed(own)
        if torch is not None:
            torch.manual_seed(own)
        yield
