# SPDX-License-Identifier: Apache-2.0
"""LabelDPClassifier: any scikit-learn classifier, trained on private labels."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.metrics import accuracy_score
from sklearn.pipeline import Pipeline
from sklearn.utils import check_random_state, get_tags
from sklearn.utils.validation import check_is_fitted, validate_data

from labeldp.errors import InvalidInput
from labeldp.evidence import NoisyLabels
from labeldp.laws import Law
from labeldp.learn.features import check_features, encoder_of, features_digest
from labeldp.learn.labels import checked_labels, len_of, together
from labeldp.learn.learners import Learner, LearnOptions, make_learner, takes_raw_labels
from labeldp.learn.model import Floats, Model, require_classifier, seeded, take
from labeldp.learn.priors import ClusterModel, ClusterPrior
from labeldp.learn.rehearsal import rehearse
from labeldp.privacy.encode import infers
from labeldp.privacy.ledger import Ledger, as_ledger
from labeldp.privacy.noise import SeededNoise
from labeldp.privacy.row_ids import Name, RowIds
from labeldp.protocol import metrics
from labeldp.protocol.fitting import (
    FitPlan,
    HeldOut,
    answer_for,
    check_noisy,
    evidenced,
    hold_out,
    judged,
    open_fit,
    paid,
    plan_fit,
    require_mean,
    require_own_labels,
    settled_classes,
    with_prior_behind,
)
from labeldp.protocol.stages import Rows, Stage, run_stages

_FEW_ROWS = 2000


class LabelDPClassifier(ClassifierMixin, BaseEstimator):
    """Train any scikit-learn classifier or pipeline under label differential privacy.

    Parameters
    ----------
    estimator : classifier or pipeline, optional
        Histogram gradient boosting if None, which takes columns of text and categories, and gaps. Cloned; trained on class codes 0..K-1.
    epsilon : float
        Total label-DP budget of a fit, for one unit (a row, or a person with `fit(unit=...)`).
    n_stages : int
        Stages of training. With 2 or more the rows are drawn in parts, and each stage's model is the prior with which the next part is
        privatized (LP-MST); the cost is the same epsilon, and time. It pays where the first part alone makes a good model; judged by
        held-out noisy labels, it mostly did not, so the default is one. One stage is used where a prior could not help: two classes with
        law="auto", or a law that ignores priors.
    stage_sizes : sequence of floats, optional
        Share of the rows in each stage; equal by default.
    law : "auto", a law's name, or a Law
        "auto" draws each row with the most informative law. A Law instance must have this epsilon, or what a ClusterPrior leaves of it.
        The paper's LP-1ST and LP-2ST are `law="rr-with-prior", correction="none", validation_fraction=0` with n_stages=1 and 2, and
        `options=LearnOptions(top_k_filter="mean")`.
    correction : {"auto", "likelihood", "em", "debias", "none"}
        How the noise is accounted for: the exact likelihood (an estimator with `fit_likelihood`, or LogisticRegression, which becomes
        the equal SoftmaxRegression with a penalty chosen on held-out noisy rows), expectation-maximisation with sample weights (any
        estimator), the law undone on predictions, or not at all. "auto": likelihood where possible, else em; and em with a ClusterPrior,
        whose histograms are where it starts.
    prior : (n, K) array, function of X, or ClusterPrior, optional
        Public class weights for the first stage; they must not depend on these labels. A `ClusterPrior` asks them privately, at a part of
        epsilon, and the law gets the rest.
    classes : sequence of K values, or "infer", optional
        The public list of classes. Raw labels need one, unless they are integer codes and `law` is a Law, which knows K; noisy labels
        bring theirs. "infer" reads it off raw labels, which tells everybody which classes occur: it warns, `privacy_.except_for` says so,
        and floats, or more than sqrt(n) different values, are refused.
    validation_fraction : float in [0, 1)
        Rows held out to choose and measure the model by their noisy labels, and not asked by a ClusterPrior; then learned from too (see
        `options`). None are held out where they would be fewer than 20.
    dataset, column : str
        What a durable ledger charges.
    max_rows_per_unit : int
        Rows of one unit that are used, where `fit` gets `unit`.
    ledger : Ledger, or its path, optional
        Durable record of the spend. A fit that is repeated on the same rows then returns the stored outputs at no further cost.
    noise : SeededNoise, optional
        For tests and benchmarks on public data only.
    random_state : int, RandomState or None
        Drives training only, never the noise or who is in which stage.
    options : LearnOptions, optional
        Rounds of EM, row budget, prior temperature, top-k filter, consensus retraining, refit.

    Attributes
    ----------
    classes_ : (K,) array
    estimator_ : fitted estimator (of class codes)
    noisy_labels_ : NoisyLabels of all rows, in the order of X
    privacy_ : PrivacySpent
    stages_ : tuple of Stage
    prior_ : ClusterModel or None
        The clusters and their noisy histograms, with a ClusterPrior.
    estimated_accuracy_ : Estimate or None
        True-label accuracy on held-out noisy rows that chose nothing, measured before the final refit. None without such rows: where they
        would be fewer than 20, and under a law without an unbiased estimator.
    estimated_log_loss_ : Estimate or None
        The log-loss of its probabilities, measured there too.
    baseline_accuracy_, baseline_log_loss_ : Estimate or None
        What the class frequencies by themselves get there. Where a class is rare, accuracy says nothing without it.
    n_features_in_, feature_names_in_

    Notes
    -----
    Guarantee: epsilon-label-DP of everything the fit leaves behind: labels pass the door once, and all else (stages, choice of model,
    `estimated_accuracy_`) is post-processing of what it released. Features are not protected. Cost, in one
    stage: with em up to 12 fits of the estimator, two thirds of them with weighted copies of rows; with an exact likelihood two fits.

    Examples
    --------
    >>> import labeldp as ldp
    >>> from sklearn.datasets import make_blobs
    >>> X, y = make_blobs(600, centers=3, random_state=0, cluster_std=0.5)
    >>> model = ldp.LabelDPClassifier(epsilon=2.0, classes=[0, 1, 2], noise=ldp.SeededNoise(0), random_state=0).fit(X, y)
    >>> bool(model.score(X, y) > 0.9)
    True
    """

    takes_raw_labels: ClassVar[bool] = True
    """`fit` privatizes what it is given, so no other estimator may call it with labels of its own making."""

    _model: Model

    def __init__(
        self,
        estimator: Any = None,
        *,
        epsilon: float = 1.0,
        n_stages: int = 1,
        stage_sizes: Sequence[float] | None = None,
        law: str | Law = "auto",
        correction: str = "auto",
        prior: ArrayLike | Callable[[Any], ArrayLike] | ClusterPrior | None = None,
        classes: Sequence[object] | None = None,
        validation_fraction: float = 0.1,
        dataset: str | None = None,
        column: str = "label",
        max_rows_per_unit: int = 1,
        ledger: Ledger | None = None,
        noise: SeededNoise | None = None,
        random_state: Any = None,
        options: LearnOptions | None = None,
    ) -> None:
        self.estimator = estimator
        self.epsilon = epsilon
        self.n_stages = n_stages
        self.stage_sizes = stage_sizes
        self.law = law
        self.correction = correction
        self.prior = prior
        self.classes = classes
        self.validation_fraction = validation_fraction
        self.dataset = dataset
        self.column = column
        self.max_rows_per_unit = max_rows_per_unit
        self.ledger = ledger
        self.noise = noise
        self.random_state = random_state
        self.options = options

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        inner = get_tags(self._base()).input_tags
        tags.input_tags.sparse, tags.input_tags.allow_nan = inner.sparse, inner.allow_nan
        return tags

    # Fitting ----------------------------------------------------------------------------------------------------------------------

    def fit(
        self,
        X: Any,
        y: Any,
        *,
        ids: ArrayLike | None = None,
        unit: ArrayLike | None = None,
        id_name: Name | None = None,
        unit_name: Name | None = None,
    ) -> Self:
        """Privatize the labels and learn from them, or learn from noisy labels.

        Parameters
        ----------
        X : (n, n_features) array, sparse matrix or data frame; public
        y : (n,) raw labels, which are charged, or NoisyLabels, which cost nothing
        ids : (n,) or (n, columns) array, optional
            Public ids of the rows; their positions by default. With NoisyLabels, each row of X gets the label of its id, and rows without
            one are left out; by default row i of X gets noisy label i, which warns where the two may lie in another order.
        unit : (n,) array, optional
            Who each row is about.
        id_name, unit_name : str, optional
            What the columns of ids and units are called, as in `labeldp.privatize`; columns of data frames say it themselves.

        Raises
        ------
        InvalidInput
            Before anything is charged, for whatever is wrong with X, y, the estimator or the settings; a copy of the estimator is fitted
            to a few rows of X with made-up labels. Where the training fails later, the labels stay with the run, and the same fit goes on
            from them: with another estimator or another X, as long as the ids, or without ids the labels in their order, are the same.
        """
        require_classifier(self._base())
        options = self.options or LearnOptions()
        random_state = check_random_state(self.random_state)
        X = self._checked(X, y)
        if isinstance(y, NoisyLabels):
            check_noisy(y, self.classes, unit)
            X, y = together(X, y, ids)
        base = self._base(len_of(X))
        encoder = encoder_of(X) if self.estimator is None else None
        inputs = X if encoder is None else encoder.fit_transform(X)  # of public columns, so once for all parts
        if encoder is not None:
            base.set_params(categorical_features=list(range(len(encoder.transformers[0][2]))))
        estimator = seeded(base, random_state if self.random_state is not None else None)
        settings: dict[str, Any] = {"linear": not isinstance(self.prior, ClusterPrior)}
        learner = make_learner(estimator, self._correction(estimator, y), options, random_state, **settings)
        if isinstance(y, NoisyLabels):
            self._fit_noisy(inputs, y.looked_up(as_ledger(self.ledger)), learner, options, random_state)
        else:

            def try_out(copy: Any, few: Any, noisy: NoisyLabels) -> Model:
                learner = make_learner(copy, self._correction(copy, y), options, check_random_state(0), **settings)
                return learner.fit(few, noisy, None, None)

            rehearsal = partial(rehearse, estimator, inputs, fit=try_out)
            self._fit_raw(X, inputs, y, RowIds.of(ids, unit, id_name, unit_name).beside(y), learner, options, rehearsal)
        if encoder is not None:
            self._model = replace(self._model, estimator=Pipeline([("encoder", encoder), ("classifier", self._model.estimator)]))
            self.estimator_ = self._model.estimator
        return self

    def _fit_raw(
        self, X: Any, inputs: Any, y: Any, rows: RowIds, learner: Learner, options: LearnOptions, rehearsal: Callable[[int, int], None]
    ) -> None:
        require_own_labels(self)
        labels = checked_labels(y, len_of(X), inferred=infers(self.classes))
        classes, inferred = settled_classes(self, labels)
        plan = plan_fit(self, classes, X, len_of(X), inferred=inferred)
        self._require_estimate(plan)
        require_mean(options.top_k_filter, plan)
        rehearsal(len(classes), int(len_of(X) * plan.stages.fractions[-plan.stages.n_stages]))
        plan = plan.with_answer(answer_for(self, plan, labels, rows))
        known = None if plan.answer is None or plan.grouped is None else ClusterModel(plan.grouped.found, plan.answer)
        start = None if known is None else Model(known, len(plan.classes))
        with open_fit(self, plan, labels, rows, public_digest=lambda: features_digest(X)) as run, paid(run, rows):
            staged = run_stages(
                run,
                plan.stages,
                fit=lambda rows, noisy, model, held_out: _learn(learner, inputs, rows, noisy, model or start, held_out),
                prior_of=lambda model, rows: model.predict_proba(take(inputs, rows)) ** (1.0 / options.temperature),
                first_prior=plan.prior_of_rows,
                held_out=plan.held_out,
            )
        self.prior_, self._raw_rows = known, len_of(X)
        noisy = with_prior_behind(plan, staged.noisy)
        self._finish(inputs, noisy, staged.model, staged.validation, staged.stages, learner, options)

    def _require_estimate(self, plan: FitPlan) -> None:
        if self.correction == "debias" and not plan.invertible:
            prior = "no prior" if plan.prior is None and plan.grouped is None else "a prior"
            raise InvalidInput(
                f"Expected one invertible law for all rows with correction='debias', got {plan.stages.law}, "
                f"n_stages={plan.stages.n_stages} and {prior}. Use law='rr' or 'subset', n_stages=1 without a prior, or correction='em'. "
                "What ClusterRR has released is inverted row by row, by noisy.debias(losses) or the loss of a net."
            )

    def _fit_noisy(self, X: Any, noisy: NoisyLabels, learner: Learner, options: LearnOptions, random_state: np.random.RandomState) -> None:
        usable = np.flatnonzero(noisy.evidenced)
        held_out = hold_out(noisy, self.validation_fraction, random_state.permutation)
        training = np.setdiff1d(usable, held_out)
        model = _learn(learner, X, training, noisy[training], None, (held_out, noisy[held_out]) if len(held_out) else None)
        self.prior_, self._raw_rows = None, 0
        self._finish(X, noisy, model, held_out, (), learner, options)

    def _finish(
        self, X: Any, noisy: NoisyLabels, model: Model, held_out: Rows, stages: tuple[Stage, ...], learner: Learner, options: LearnOptions
    ) -> None:
        self.classes_ = np.asarray(noisy.classes)
        held_out = held_out[noisy.evidenced[held_out]]
        found = judged(noisy, held_out[1::2] if model.chose else held_out, lambda rows: model.predict_proba(take(X, rows)))
        self.estimated_accuracy_: metrics.Estimate | None = found.accuracy if found else None
        self.estimated_log_loss_: metrics.Estimate | None = found.log_loss if found else None
        self.baseline_accuracy_: metrics.Estimate | None = found.baseline_accuracy if found else None
        self.baseline_log_loss_: metrics.Estimate | None = found.baseline_log_loss if found else None
        if len(held_out) and options.refit:
            usable = np.flatnonzero(noisy.evidenced)
            model = learner.refit(take(X, usable), noisy[usable], model)
        unseen = held_out if not options.refit else np.empty(0, np.int64)
        self._learned = noisy[np.setdiff1d(np.arange(len(noisy)), unseen)] if len(unseen) else noisy
        self._model = model
        self.estimator_ = model.estimator
        self.noisy_labels_, self.privacy_, self.stages_ = noisy, noisy.privacy, stages

    def _correction(self, estimator: Any, y: Any) -> str:
        """What was asked for; "auto" with a ClusterPrior is "em", which begins with what is known of the clusters."""
        known = self.correction == "auto" and isinstance(self.prior, ClusterPrior) and not isinstance(y, NoisyLabels)
        return "em" if known and not takes_raw_labels(estimator) else self.correction

    # What was asked for -----------------------------------------------------------------------------------------------------------

    def _base(self, n_rows: int = _FEW_ROWS) -> Any:
        """The estimator, or the default: boosted shallow trees; few rows of noisy labels bear only a few small ones with large leaves."""
        if self.estimator is not None:
            return self.estimator
        if n_rows < _FEW_ROWS:
            return HistGradientBoostingClassifier(max_iter=30, max_leaf_nodes=4, min_samples_leaf=40, early_stopping=False)
        return HistGradientBoostingClassifier(max_leaf_nodes=15, l2_regularization=1.0, early_stopping=False)

    def _checked(self, X: Any, y: Any) -> Any:
        if y is None:
            raise InvalidInput("This LabelDPClassifier requires y to be passed, but the target y is None.")
        checked = check_features(X, self._base(), type(self).__name__)
        validate_data(self, X, skip_check_array=True)
        return checked

    # Predicting -------------------------------------------------------------------------------------------------------------------

    def predict_proba(self, X: Any) -> Floats:
        """Probabilities of the true label: (n, K) float64, columns in the order of `classes_`."""
        check_is_fitted(self)
        checked = check_features(X, self._base(), type(self).__name__)
        validate_data(self, X, reset=False, skip_check_array=True)
        return self._model.predict_proba(checked)

    def predict(self, X: Any) -> NDArray[np.generic]:
        """The most likely class of each row: (n,) class values."""
        proba = self.predict_proba(X)
        return np.asarray(self.classes_[proba.argmax(axis=1)])

    def score(self, X: Any, y: Any, sample_weight: ArrayLike | None = None, *, ids: ArrayLike | None = None) -> float:
        """Accuracy on true labels.

        Parameters
        ----------
        X : (n, n_features) array, sparse matrix or data frame
        y : NoisyLabels of n rows that the model did not learn from: unbiased through the law, with a SeenRowsWarning on others; or (n,)
            public true labels: plain
        sample_weight : (n,) array, optional
            With public labels only.
        ids : (n,) or (n, columns) array, optional
            Of the rows, with NoisyLabels: as in `fit`.
        """
        if isinstance(y, NoisyLabels):
            if sample_weight is not None:
                raise InvalidInput("Expected no sample_weight with NoisyLabels.")
            X, y = together(X, y, ids)
            metrics.warn_of_seen_rows(y, self._learned)
            return metrics.accuracy(y, self.predict(X)).value
        predicted = self.predict(X)
        metrics.warn_of_raw_labels(len(predicted), self._raw_rows, self.noise)
        return float(accuracy_score(y, predicted, sample_weight=sample_weight))


def _learn(learner: Learner, X: Any, rows: Rows, noisy: NoisyLabels, start: Model | None, held_out: HeldOut | None) -> Model:
    """Learn from the rows that have evidence."""
    rows, noisy, kept = evidenced(rows, noisy, held_out)
    return learner.fit(take(X, rows), noisy, start, None if kept is None else (take(X, kept[0]), kept[1]))
