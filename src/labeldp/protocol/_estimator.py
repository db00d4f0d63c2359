# SPDX-License-Identifier: Apache-2.0
"""Base classes of all estimators: fit private or noisy labels, predict, score, keep receipts.

    LabelDPEstimator            one charge for raw labels, none for noisy ones; scores, receipts
      ClassifierEstimator       predicts classes: a base of all classifiers, beside one of the next
                                two
      RegressorEstimator        predicts numbers of a public range: LabelDPRegressor, TorchRegressor
      StagedEstimator           a law for each row, one or more stages: LabelDPClassifier,
                                TorchClassifier, and the regressors
      learn.CuratorEstimator    one question about all rows: NoiseCluster, ProportionClassifier

A subclass implements the learning. Faults of inputs and settings are refused, and a dry run is
made, before the charge. The functions after the classes choose training and held-out rows.
"""

from __future__ import annotations

import contextlib
import random
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Protocol, Self, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.exceptions import NotFittedError

from labeldp import _validate
from labeldp._hash import exact_array, text_array
from labeldp.custody._encode import index_of, is_closed, require_closed, require_same_order
from labeldp.errors import InvalidInput, UnmeasuredWarning, WrongType, warn
from labeldp.evidence import NoisyLabels
from labeldp.evidence._noisy import derived
from labeldp.laws import Grid
from labeldp.laws._square_wave import law_of_numbers
from labeldp.protocol import metrics
from labeldp.protocol._fit import (
    HELD_OUT,
    MIN_VALIDATION_ROWS,
    FitPlan,
    FitSettings,
    Floats,
    HeldOut,
    Rows,
    Stage,
    StageRun,
    answer_for,
    open_fit,
    plan_fit,
    require_known_rates,
    run_stages,
)
from labeldp.protocol._matching import require_public_beside, together
from labeldp.protocol._prior import Prior, TopK
from labeldp.protocol._several import columns_told, equals, is_several
from labeldp.receipt import Receipt

if TYPE_CHECKING:
    from labeldp.custody._private import PrivateLabels

Fitted = TypeVar("Fitted")
Result = TypeVar("Result")


class LabelDPEstimator(BaseEstimator, ABC):
    """An estimator whose `fit` privatizes the labels that it is given.

    Every estimator has the parameters below and sets `privacy_` and `receipts_`.
    """

    takes_raw_labels: ClassVar[bool] = True
    """`fit` privatizes its labels, so a wrapping estimator must not pass labels that it made
    itself."""

    takes_columns: ClassVar[bool] = False
    """`fit` takes several label columns (`labeldp.LabelColumns`)."""

    epsilon: float

    receipts_: tuple[Receipt, ...]
    _learned: NoisyLabels | None

    # What a subclass implements
    # ----------------------------------------------------------------------------------------------

    @abstractmethod
    def _inputs(self, X: Any, y: Any) -> Any:
        """Check settings, estimator and features, and return X in the form that the training
        takes."""

    def _matched(self, X: Any, inputs: Any, labels: Any, ids: ArrayLike | None) -> tuple[Any, Any]:
        """Return X and the noisy or private labels, row by row in the order of X; `inputs` is None
        where a fitted model is scored."""
        return together(X if inputs is None else inputs, labels, ids)

    @abstractmethod
    def _fit_private(self, X: Any, inputs: Any, labels: PrivateLabels) -> None:
        """Charge and privatize labels, then learn from the noisy ones."""

    @abstractmethod
    def _fit_noisy(self, inputs: Any, noisy: NoisyLabels) -> None:
        """Learn from noisy labels, at no charge."""

    @abstractmethod
    def predict(self, X: Any) -> NDArray[Any]:
        """Predict the label of each row: (n,)."""

    def _threads(self, inputs: Any) -> contextlib.AbstractContextManager[object]:
        """Limit the threads of a fit; by default there is no limit."""
        return contextlib.nullcontext()

    def set_params(self, **params: Any) -> Self:
        """Set parameters by name; `name__part` sets a parameter of a parameter.

        Parameters
        ----------
        **params
            New values.
        """
        # checked here: scikit-learn's own message would show what every parameter holds
        for name in params:
            _validate.one_of(tuple(self.get_params(deep=False)), parameter=name.partition("__")[0])
        super().set_params(**params)
        return self

    # Fitting
    # ----------------------------------------------------------------------------------------------

    def fit(self, X: Any, y: Any, *, ids: ArrayLike | None = None) -> Self:
        """Privatize the labels and learn from them, or learn from noisy labels.

        Parameters
        ----------
        X : (n, ...) array, sparse matrix or data frame of features; public
        y : PrivateLabels, which are charged, or NoisyLabels, which cost nothing
        ids : (n,) or (n, columns) array, optional
            Public ids of X's rows: each row of X gets the label of its id, and rows without one are
            left out. By default row i of X gets label i: a data frame must then have the index of
            PrivateLabels, and of NoisyLabels a warning says where the two may lie in another order.

        Returns
        -------
        self

        Raises
        ------
        InvalidInput
            For any fault of X, y, the estimator or the settings, before anything is charged. To
            find faults early, a copy of the estimator is fitted to a few rows of X with made-up
            labels. If the real training fails later, the run keeps its noisy labels and the same
            fit resumes from them at no further cost: another estimator or X is allowed, if the ids
            (or without ids the labels, in their order) are the same. Whatever is raised, the
            estimator stays as it was before the call: not fitted, or fitted by an earlier one.
        """
        self._require_public(X, y, ids)
        with self._whole():
            inputs = self._inputs(X, y)
            with self._threads(inputs):
                return self._fit(X, inputs, y, ids)

    def _require_public(self, X: Any, y: Any, ids: Any) -> None:
        """Refuse labels that are not closed or of several columns, and a private column among
        features and ids, as far as the names that columns carry tell."""
        if not isinstance(y, NoisyLabels):
            require_closed(y, " or NoisyLabels")
        if is_several(y) and not self.takes_columns:
            raise InvalidInput(
                f"Expected one label column with {type(self).__name__}, got several. Release them"
                " together (labeldp.privatize) and learn each from noisy[name], or take"
                " LabelDPClassifier or deep.TorchClassifier."
            )
        if is_closed(y):
            y.require_public(X, "features")
            return
        require_public_beside(y, X, "features")
        require_public_beside(y, ids, "ids")

    def _fit(self, X: Any, inputs: Any, y: Any, ids: Any) -> Self:
        inputs, labels = self._matched(X, inputs, y, ids)
        if isinstance(labels, NoisyLabels):
            # Noisy labels were charged when they were drawn: nothing on this branch charges again.
            require_evidence(labels)
            self._fit_noisy(inputs, labels)
        else:
            self._fit_private(X, inputs, labels)
        return self

    def _once(self, make: Callable[[], Result]) -> Result:
        """Call a function once for all processes of a training, and return its result to each of
        them."""
        return make()

    @contextlib.contextmanager
    def _whole(self) -> Iterator[None]:
        """Put every attribute back if a fit fails: a new answer beside an old model would claim a
        guarantee that this model has not."""
        before = dict(vars(self))
        try:
            yield
        except BaseException:
            self.__dict__.clear()
            self.__dict__.update(before)
            raise

    def _settings(self, classes: Sequence[object]) -> FitSettings:
        """Collect the parameters that decide how labels of these classes are charged and drawn."""
        given = self.get_params(deep=False)
        given["prior"] = Prior.of(given.get("prior"))
        return FitSettings(
            **{
                field.name: given[field.name]
                for field in fields(FitSettings)
                if field.name in given
            }
        )

    # Measuring
    # ----------------------------------------------------------------------------------------------

    def _describe(self, noisy: NoisyLabels, found: HeldOutRows | None) -> None:
        """Set what was learned about the labels: their classes, and estimates from held-out noisy
        rows, None without such rows."""
        self._set_classes(noisy.classes)

    _grid: Grid | None = None  # whose points are the classes of the last fit

    def _set_classes(self, classes: Sequence[object]) -> None:
        """Set `classes_`, and keep a `Grid`, by which `score` reads numbers."""
        self.classes_, self._grid = (
            exact_array(classes),
            (classes if isinstance(classes, Grid) else None),
        )

    def _to_score(
        self, X: Any, y: Any, sample_weight: ArrayLike | None, ids: ArrayLike | None
    ) -> tuple[NDArray[Any], Any, NDArray[np.float64] | None]:
        """Predict the rows of X; return the predictions, the labels row by row (noisy or plain) and
        the weights."""
        require_same_order(index_of(X), "X", "sample_weight", sample_weight)
        if isinstance(y, NoisyLabels):
            if sample_weight is not None and ids is not None:
                raise InvalidInput(
                    "Expected sample_weight or ids with NoisyLabels, got both: pass"
                    " noisy.by_id(ids) with the weights."
                )
            self._require_public(None, y, ids)
            X, y = self._matched(X, None, y, ids)
            if self._learned is not None:
                metrics.warn_of_seen_rows(y, self._learned)
            y, predicted, weights = metrics.rows_to_score(y, self.predict(X), sample_weight)
            return predicted, y, weights
        if is_closed(y):
            raise WrongType(
                "Expected public true labels or NoisyLabels to score by, got PrivateLabels."
                " Privatize them: model.score(X, labeldp.privatize(labels, law)), which is"
                " charged."
            )
        require_same_order(index_of(X), "X", "y", y)
        predicted, truth = self.predict(X), text_array(y)
        if truth.shape == (len(predicted), 1):
            truth = truth[:, 0]
        if truth.shape != predicted.shape:
            raise InvalidInput(
                f"Expected {predicted.shape} labels, one a row of X, got shape {truth.shape}."
            )
        return (
            predicted,
            truth,
            None if sample_weight is None else metrics.checked_weights(sample_weight, len(truth)),
        )


class ClassifierEstimator(ClassifierMixin, LabelDPEstimator):
    """The part of a classifier: it sets `classes_`, predicts them, and measures accuracy and
    log-loss."""

    @abstractmethod
    def predict_proba(self, X: Any) -> Floats:
        """Predict probabilities of the true label: (n, K) float64, columns in the order of
        `classes_`."""

    def predict(self, X: Any) -> NDArray[np.generic]:
        """Predict the most likely class of each row: (n,) class values.

        Parameters
        ----------
        X : (n, ...) features, as in the fit
        """
        codes = self.predict_proba(X).argmax(axis=1)
        return np.asarray(self.classes_[codes])

    def score(
        self,
        X: Any,
        y: Any,
        sample_weight: ArrayLike | None = None,
        *,
        ids: ArrayLike | None = None,
    ) -> float:
        """Measure the accuracy on true labels.

        Parameters
        ----------
        X : (n, ...) features, as in the fit
        y : NoisyLabels of n rows, or (n,) public true labels
            With NoisyLabels the accuracy on the true labels is estimated without bias; a
            SeenRowsWarning says so where the model has learned from them. Rows without evidence are
            left out. With public labels it is the share of equal ones. Where the classes are a
            `Grid`, a true number counts as its nearest point.
        sample_weight : (n,) array >= 0, optional
            Public weights of the rows.
        ids : (n,) or (n, columns) array, optional
            Ids of X's rows, for NoisyLabels; as in `fit`.

        Returns
        -------
        float
            An unbiased estimate from few noisy rows can lie outside [0, 1]; an UnmeasuredWarning
            says where its interval excludes nothing.
        """
        predicted, truth, weights = self._to_score(X, y, sample_weight, ids)
        if isinstance(truth, NoisyLabels):
            found = metrics.accuracy(truth, predicted, sample_weight=weights)
            metrics.warn_of_score(found, truth)
            return found.value
        return float(np.average(equals(predicted, truth, self._grid), weights=weights))

    def _describe(self, noisy: NoisyLabels, found: HeldOutRows | None) -> None:
        super()._describe(noisy, found)
        judged = {} if found is None else metrics.judge(found.noisy, found.proba, found.frequencies)
        self.estimated_accuracy_: metrics.Estimate | None = judged.get("accuracy")
        self.estimated_log_loss_: metrics.Estimate | None = judged.get("log_loss")
        self.baseline_accuracy_: metrics.Estimate | None = judged.get("baseline_accuracy")
        self.baseline_log_loss_: metrics.Estimate | None = judged.get("baseline_log_loss")


class RegressorEstimator(RegressorMixin, LabelDPEstimator):
    """The part of a regressor: it declares the range of the numbers, predicts means and quantiles,
    and measures squared errors.

    It sets `grid_`, and estimates of the root mean squared error and of R^2.
    """

    prior: Any

    def _settings(self, classes: Sequence[object]) -> FitSettings:
        found = replace(super()._settings(classes), numbers=True)
        if not isinstance(found.law, str) or found.law != "auto":
            return found
        # Rows of later stages are asked about bins of their own prior.
        return replace(found, law=law_of_numbers(len(classes)) if found.plain else "prior-bins")

    def _require_prior_of_numbers(self) -> None:
        """Refuse a prior that asks about classes, and one that filters rows by them."""
        given = Prior.of(self.prior)
        clusters = hasattr(given.table, "plan_groups") and not getattr(
            given.table, "of_all_rows", False
        )
        if clusters or given.top_k is not None:
            raise InvalidInput(
                "Expected a prior of weights, a function of X, or a HistogramPrior, got one of"
                " clusters or with top_k, which are of classes. Drop it."
            )

    @abstractmethod
    def predict_distribution(self, X: Any) -> Floats:
        """Predict probabilities of the true number's grid point: (n, G) float64, columns in the
        order of `grid_`."""

    def predict(self, X: Any) -> Floats:
        """Predict the mean of each row's true number: (n,) float64.

        Parameters
        ----------
        X : (n, ...) features, as in the fit
        """
        return np.asarray(self.predict_distribution(X) @ self.grid_)

    def predict_quantile(self, X: Any, q: float | ArrayLike) -> Floats:
        """Predict a quantile of each row's true number, such as the median: a point of the grid.

        Parameters
        ----------
        X : (n, ...) features, as in the fit
        q : float in (0, 1), or (m,) array of them

        Returns
        -------
        (n,) float64, or (n, m) if q is an array
            The first point up to which the predicted distribution holds a share q.
        """
        wanted = quantiles_of(q)
        below = np.cumsum(self.predict_distribution(X), axis=1)
        found, last = np.empty((len(below), wanted.size)), len(self.grid_) - 1
        # One share at a time, so that no (n, G, m) table is in memory. The last point holds all,
        # whatever the sum is rounded to.
        for j, share in enumerate(wanted.flat):
            found[:, j] = self.grid_[np.minimum((below < share).sum(axis=1), last)]
        return found if wanted.ndim else found[:, 0]

    def score(
        self,
        X: Any,
        y: Any,
        sample_weight: ArrayLike | None = None,
        *,
        ids: ArrayLike | None = None,
    ) -> float:
        """Measure R^2, the share of the variance of the true numbers that is explained.

        Parameters
        ----------
        X : (n, ...) features, as in the fit
        y : NoisyLabels of n rows, or (n,) public true numbers
            With NoisyLabels it is estimated from them (`labeldp.metrics.r2`); a SeenRowsWarning
            says so where the model has learned from them. Rows without evidence are left out.
        sample_weight : (n,) array >= 0, optional
            Public weights of the rows.
        ids : (n,) or (n, columns) array, optional
            Ids of X's rows, for NoisyLabels; as in `fit`.

        Returns
        -------
        float
            1 for a perfect prediction, 0 for that of the mean. An UnmeasuredWarning says where
            noisy rows exclude nothing.
        """
        predicted, truth, weights = self._to_score(X, y, sample_weight, ids)
        if isinstance(truth, NoisyLabels):
            found = metrics.r2(truth, predicted, sample_weight=weights)
            metrics.warn_of_score(found, truth)
            return found.value
        true = np.asarray(truth, np.float64)
        spread = float(np.average((true - np.average(true, weights=weights)) ** 2, weights=weights))
        error = float(np.average((true - predicted) ** 2, weights=weights))
        return 1.0 - error / spread if spread > 0 else float(error == 0)

    def _describe(self, noisy: NoisyLabels, found: HeldOutRows | None) -> None:
        self.grid_: Floats = metrics.points_of(noisy.classes)
        # a sum of frequencies that is 1 up to rounding may leave the range
        means = (
            None
            if found is None
            else (
                found.proba @ self.grid_,
                float(np.clip(found.frequencies @ self.grid_, *self.grid_[[0, -1]])),
            )
        )
        self.estimated_rmse_: metrics.Estimate | None = None
        self.estimated_r2_: metrics.Estimate | None = None
        self.baseline_rmse_: metrics.Estimate | None = None
        if found is not None and means is not None:
            constant = np.full(len(found.noisy), means[1])
            self.estimated_rmse_ = metrics.root_mean_squared_error(found.noisy, means[0])
            self.estimated_r2_ = metrics.r2(found.noisy, means[0], mean=means[1])
            self.baseline_rmse_ = metrics.root_mean_squared_error(found.noisy, constant)
            squares = [(each[:, None] - self.grid_) ** 2 for each in (means[0], constant)]
            metrics.warn_of_worse_than_constant(
                found.noisy, {"mean squared error": (squares[0], squares[1])}, "the mean"
            )


def quantiles_of(q: float | ArrayLike) -> Floats:
    """Check shares in (0, 1): one, or a list of them."""
    wanted = _validate.floats(q=q)
    if wanted.ndim > 1 or not wanted.size or not ((wanted > 0) & (wanted < 1)).all():
        raise InvalidInput(
            "Expected q in (0, 1), such as 0.5 for the median, or a list of such shares, got"
            f" {_validate.shown(q)}."
        )
    return wanted


class Training(Protocol[Fitted]):
    """A staged training, ready before the charge. Rows are positions among its inputs."""

    @property
    def public_digest(self) -> Callable[[], str]:
        """Function that computes the digest of the public columns, by which a ledger recognises a
        repeated fit without ids."""

    @property
    def permutation(self) -> Callable[[NDArray[np.int64]], NDArray[np.int64]]:
        """Function that permutes positions at random, to choose the held-out rows among noisy
        labels."""

    def fit(
        self, rows: Rows, noisy: NoisyLabels, model: Fitted | None, held_out: HeldOut | None
    ) -> Fitted:
        """Learn the next stage's model from all rows drawn so far."""

    def prior_of(self, model: Fitted, rows: Rows) -> Floats:
        """Return the prior of these rows for the next stage's draw: (m, K) class weights."""

    def proba(self, model: Fitted, rows: Rows) -> Floats:
        """Predict probabilities of the true label: (m, K)."""

    def judging(self, model: Fitted, held_out: Rows) -> Rows:
        """Return those held-out rows that chose nothing about the model, so that they can measure
        it."""


class ChargedRun(StageRun, Protocol):
    """A charged run as a context manager: it settles the run if the block ends without an error."""

    @property
    def receipt(self) -> Receipt | None:
        """The charge; None in other processes than the first one of a distributed training."""

    def __enter__(self) -> Self:
        """Return the run."""

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        """Settle the run, unless there is an error."""


class StagedEstimator(LabelDPEstimator, Generic[Fitted]):
    """An estimator that draws each row by a law, in one or more stages; each stage's model is the
    prior of the next.

    Beside those of `LabelDPEstimator` it sets `noisy_labels_`, `stages_`, `prior_`, and estimates
    from held-out noisy rows.
    """

    stages: int | Sequence[float]
    law: Any
    prior: Any
    validation_fraction: float

    @abstractmethod
    def _training(self, inputs: Any, source: FitPlan | NoisyLabels, state: Any) -> Training[Fitted]:
        """Prepare the training; for raw labels (a plan) make a dry run."""

    @abstractmethod
    def _keep(self, training: Any, noisy: NoisyLabels, model: Fitted, held_out: Rows) -> Rows:
        """Set the fitted attributes; return the held-out rows that the final model has still not
        learned from."""

    def _state(self) -> contextlib.AbstractContextManager[Any]:
        """Open the place where the fit keeps its state; by default it keeps none."""
        return contextlib.nullcontext()

    def _open(self, plan: FitPlan, training: Any, state: Any) -> ChargedRun:
        """Charge the run, or reopen the run that this fit repeats."""
        return open_fit(plan, public_digest=training.public_digest)

    def _start(self, training: Any, plan: FitPlan) -> tuple[Training[Fitted], Fitted | None]:
        """Pass prior and rates to the training, and make the initial model of the first stage;
        None: start from nothing."""
        return training, None

    @property
    def _prior(self) -> Prior:
        return Prior.of(self.prior)

    def _fit_private(self, X: Any, inputs: Any, labels: PrivateLabels) -> None:
        # Order matters: plan and dry run find every fault that can be found, because everything
        # after them costs budget.
        plan = plan_fit(self._settings(labels.classes), labels, X)
        law = plan.stages.law
        if (
            self._prior.top_k == "mean"
            and plan.stages.n_stages > 1
            and "candidates" not in law.layout()
        ):
            raise InvalidInput(
                f"Expected law='rr-with-prior' with Prior(top_k='mean'), got {law}. Pass the"
                " number of classes to keep."
            )
        with self._state() as state:
            training = self._training(inputs, plan, state)
            # The first of two charges, if the prior asks about groups. The ledger keeps its answer,
            # so a fit that is killed before the second charge resumes with the same answer.
            plan = plan.with_answer(self._once(lambda: answer_for(plan)))
            training, start = self._start(training, plan)
            with self._open(plan, training, state) as run, paid(run, labels):
                staged = run_stages(
                    run,
                    plan.stages,
                    fit=lambda at, noisy, model, held_out: training.fit(
                        at, noisy, start if model is None else model, held_out
                    ),
                    prior_of=training.prior_of,
                    first_prior=plan.prior,
                    held_out=plan.held_out,
                )
        # Each row's side information shows what the histogram answered, so these noisy labels
        # reveal both releases and must name both receipts.
        noisy = (
            staged.noisy
            if plan.answer is None
            else derived(staged.noisy, behind=(plan.answer.receipt,))
        )
        self._finish(training, noisy, staged.model, staged.validation, staged.stages)
        self.prior_ = plan.known

    def _fit_noisy(self, inputs: Any, noisy: NoisyLabels) -> None:
        require_known_rates(getattr(self, "class_prior", None))
        with self._state() as state:
            training = self._training(inputs, noisy, state)
            held_out = hold_out(noisy, self.validation_fraction, training.permutation)
            # Rows over their unit's cap have no evidence: they carry no label to learn from.
            rows = np.setdiff1d(np.flatnonzero(noisy.evidenced), held_out, assume_unique=True)
            model = training.fit(
                rows, noisy[rows], None, (held_out, noisy[held_out]) if len(held_out) else None
            )
        self._finish(training, noisy, model, held_out, ())
        self.prior_ = None

    def _finish(
        self,
        training: Training[Fitted],
        noisy: NoisyLabels,
        model: Fitted,
        held_out: Rows,
        stages: tuple[Stage, ...],
    ) -> None:
        held_out = held_out[noisy.evidenced[held_out]]  # without rows over a unit's cap
        # Measured before `_keep`, whose final refit may learn from the held-out rows, too.
        self._measure(
            noisy, training.judging(model, held_out), lambda rows: training.proba(model, rows)
        )
        # `score` warns where it is given rows that the model has learned from, so their noisy
        # labels are remembered.
        unseen = self._keep(training, noisy, model, held_out)
        self._learned = (
            noisy[np.setdiff1d(np.arange(len(noisy)), unseen, assume_unique=True)]
            if len(unseen)
            else noisy
        )
        self.noisy_labels_, self.privacy_, self.stages_ = noisy, noisy.privacy, stages
        self.receipts_ = (*noisy.behind, *noisy.receipts)

    def _measure(
        self, noisy: NoisyLabels, held_out: Rows, proba: Callable[[Rows], NDArray[np.floating]]
    ) -> None:
        """Set the estimates from held-out rows that neither trained nor chose the model, by its
        probabilities for them."""
        self._describe(noisy, judged(noisy, held_out, proba))


@contextlib.contextmanager
def paid(run: ChargedRun, labels: PrivateLabels) -> Iterator[None]:
    """Add a note to an error of the training: the labels are paid for and kept, and a repeat of the
    fit costs nothing.

    Parameters
    ----------
    run : ChargedRun
    labels : PrivateLabels
    """
    try:
        yield
    except Exception as error:
        if run.receipt is not None and run.receipt.recorded:
            same = "the same ids" if labels.rows.explicit else "the same labels in the same order"
            error.add_note(
                f"Run {run.receipt.run_id} is charged, and its labels are kept. Fit again at no"
                f" further cost, with {same}; X and the estimator may be others, but not a prior of"
                " your own."
            )
        raise


@contextlib.contextmanager
def undisturbed() -> Iterator[None]:
    """Restore the global random states after a dry run and hide its warnings, which the real
    training gives again."""
    of_numpy, of_python = np.random.get_state(), random.getstate()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        np.random.set_state(of_numpy)
        random.setstate(of_python)


def not_fitted(name: str) -> Exception:
    """Make the error for an unfitted estimator: an InvalidInput that is also scikit-learn's
    NotFittedError."""
    # Both callers of scikit-learn and of this library catch it by their own class. A class made in
    # a function cannot be pickled by name, so it is pickled as a call of this function.
    kind = type(
        "NotFitted",
        (InvalidInput, NotFittedError),
        {"__module__": __name__, "__reduce__": lambda self: (not_fitted, (name,))},
    )
    made: Exception = kind(f"Expected a fitted {name}. Call fit first.")
    return made


# Training rows and held-out rows
# --------------------------------------------------------------------------------------------------


def require_evidence(noisy: NoisyLabels) -> None:
    """Refuse noisy labels that tell nothing."""
    if not noisy.evidenced.any():
        raise InvalidInput("Expected noisy labels with evidence for at least one row, got none.")


def hold_out(
    noisy: NoisyLabels,
    fraction: float,
    permutation: Callable[[NDArray[np.int64]], NDArray[np.int64]],
) -> Rows:
    """Choose at random the rows that measure the model, among `NoisyLabels.measurable`; none if
    they would be too few.

    A warning says so where no row can be measured by.
    """
    share = _validate.fraction(validation_fraction=fraction, zero=True)
    # Only rows drawn without a prior: a later stage has an unbiased estimator just where its prior
    # was flat, and those are the hard rows.
    # of several columns: rows that measure some of them
    fair = [each.measurable.evidenced for each in columns_told(noisy) or [noisy]]
    able = np.flatnonzero(np.any(fair, axis=0))
    if not len(able) and share * len(noisy) >= MIN_VALIDATION_ROWS:
        laws = ", ".join(sorted({block.law.name for block in noisy.blocks}))
        warn(
            UnmeasuredWarning(
                f"No stage of these noisy labels (laws: {laws}) has an unbiased estimator for all"
                " of its rows, so no row can be held out that would measure the model fairly: its"
                " quality on true labels is not estimated. Add rows drawn without a prior ('rr',"
                " 'subset'; numbers also 'square-wave'), or pass validation_fraction=0."
            )
        )
    # At most half of the measurable rows, so that training keeps some of them.
    count = int(min(share * len(noisy), 0.5 * len(able)))
    return (
        np.sort(permutation(able)[:count])
        if count >= MIN_VALIDATION_ROWS
        else np.empty(0, np.int64)
    )


@dataclass(frozen=True, eq=False)
class HeldOutRows:
    """Held-out rows that can measure a model: their noisy labels, its probabilities (m, K), and the
    class frequencies of the other rows."""

    noisy: NoisyLabels
    proba: NDArray[np.floating]
    frequencies: Floats


def judged(
    noisy: NoisyLabels, held_out: Rows, proba: Callable[[Rows], NDArray[np.floating]]
) -> HeldOutRows | None:
    """Predict held-out rows, to measure a model beside the constant prediction of the other rows'
    frequencies; None without such rows.

    Parameters
    ----------
    noisy : NoisyLabels of all rows
    held_out : (m,) int
        Positions of rows that neither trained nor chose the model.
    proba : function of positions -> (m, K) probabilities of the model
    """
    fair = noisy.measurable
    rows = held_out[fair.evidenced[held_out]]
    if not len(rows):
        return None
    # Rows that a model has asked would show other frequencies than theirs; they count only where
    # there are no others.
    plain = np.setdiff1d(np.flatnonzero(fair.evidenced), held_out, assume_unique=True)
    others = (
        fair[plain]
        if len(plain)
        else noisy[np.setdiff1d(np.flatnonzero(noisy.evidenced), held_out, assume_unique=True)]
    )
    frequencies = (
        metrics.likeliest_frequencies(others.likelihood())
        if len(others)
        else np.full(noisy.n_classes, 1 / noisy.n_classes)
    )
    return HeldOutRows(fair[rows], proba(rows), frequencies)


def evidenced(
    rows: Rows, noisy: NoisyLabels, held_out: HeldOut | None
) -> tuple[Rows, NoisyLabels, HeldOut | None]:
    """Drop rows without evidence (those over their unit's cap) from the training rows and the
    held-out rows."""
    found = np.flatnonzero(noisy.evidenced)
    if not len(found):
        raise InvalidInput("Expected at least one row with evidence to learn from. Give more rows.")
    kept = None
    if held_out is not None:
        seen = np.flatnonzero(held_out[1].evidenced)
        kept = (held_out[0][seen], held_out[1][seen]) if len(seen) else None
    return rows[found], noisy[found], kept


def members(noisy: NoisyLabels) -> NDArray[np.bool_]:
    """Return each row's output as a set of classes: (n, K) bool. Each row must have one draw."""
    inside = np.zeros((len(noisy), noisy.n_classes), bool)
    for block in noisy.blocks:
        inside[block.rows] = block.law.members(block.outputs, block.side)
    return inside


def in_top_k(noisy: NoisyLabels, proba: NDArray[np.floating], k: TopK) -> NDArray[np.int64]:
    """Select the latest stage's rows, and earlier rows whose output contains one of the model's k
    likeliest classes: their positions.

    Parameters
    ----------
    noisy : NoisyLabels of n rows, stage by stage
    proba : (n, K) array
        Class probabilities by the model before the latest stage.
    k : int or "mean"
        "mean": the mean number of candidates of the latest stage, rounded down; all classes if its
        law has no candidates.

    References
    ----------
    Ghazi et al. (2021), "Deep Learning with Label Differential Privacy", appendix B, "Multi-stage
    training", where k is "mean".
    """
    name = next(
        (block.stage for block in reversed(noisy.blocks) if block.stage != HELD_OUT), HELD_OUT
    )
    latest = [block for block in noisy.blocks if block.stage == name]
    kept = np.zeros(len(noisy), bool)
    for block in latest:
        kept[block.rows] = True
    sizes = [
        block.side["size"]
        if "candidates" in block.side
        else np.full(len(block.rows), noisy.n_classes)
        for block in latest
    ]
    mean_size = max(1, int(np.concatenate(sizes).mean())) if kept.any() else 1
    n_likely = mean_size if k == "mean" else k
    if n_likely >= noisy.n_classes:
        return np.arange(len(noisy))
    earlier = np.flatnonzero(~kept)
    believed = proba[earlier]
    # By the k-th largest probability, so that ties with it count as likely: no class is dropped by
    # its position.
    likely = believed >= -np.partition(-believed, n_likely - 1, axis=1)[:, n_likely - 1 : n_likely]
    kept[earlier] = (members(noisy[earlier]) & likely).any(axis=1)
    # a filter that leaves nothing filters nothing
    return np.flatnonzero(kept) if kept.any() else np.arange(len(noisy))
