# SPDX-License-Identifier: Apache-2.0
"""LabelDPClassifier: any scikit-learn classifier, trained on private labels."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import clone
from sklearn.compose import ColumnTransformer
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.pipeline import Pipeline
from sklearn.utils import check_random_state, get_tags
from sklearn.utils.validation import check_is_fitted, validate_data

from labeldp import _validate
from labeldp.custody._encode import RowIds
from labeldp.errors import InvalidInput
from labeldp.evidence import NoisyLabels
from labeldp.laws import Law, RandomizedResponse
from labeldp.learn._clusters import ClusterModel, ClusterPrior
from labeldp.learn._corrections import (
    CORRECTIONS,
    DEFAULTS,
    Learner,
    LearnOptions,
    Model,
    fit_codes,
    heard_by,
    make_learner,
    require_classifier,
    seeded,
    takes_raw_labels,
)
from labeldp.learn._data import (
    Estimator,
    Floats,
    check_features,
    encoder_of,
    features_digest,
    read_labels,
    take,
    text_columns,
    together,
)
from labeldp.ledger._ledger import Ledger
from labeldp.noise._words import SeededNoise
from labeldp.protocol._estimator import StagedEstimator, TopK, evidenced, undisturbed
from labeldp.protocol._fit import FitPlan, FitSettings, HeldOut, Rows

_FEW_ROWS = 2000


class LabelDPClassifier(StagedEstimator[Model]):
    """Train any scikit-learn classifier or pipeline under label differential privacy.

    Parameters
    ----------
    estimator : classifier or pipeline, default=None
        Histogram gradient boosting if None, which takes columns of text and categories, and gaps. Cloned; trained on class codes 0..K-1.
    epsilon : float > 0, default=1.0
        Total label-DP budget of a fit, for one unit (a row, or a person with `fit(unit=...)`).
    n_stages : int >= 1, default=1
        Stages of training. With 2 or more the rows are drawn in parts, and each stage's model is the prior with which the next part is
        privatized (LP-MST); the cost is the same epsilon, and time. It pays where the first part alone makes a good model; judged by
        held-out noisy labels, it mostly did not, so the default is one. One stage is used where a prior could not help: two classes with
        law="auto", or a law that ignores priors.
    stage_sizes : sequence of n_stages floats > 0, default=None
        Share of the rows in each stage, at any scale. None: equal shares.
    law : str or Law, default="auto"
        A law's name, or a Law, which must have this epsilon, or what a ClusterPrior leaves of it. "auto" draws each row with the most
        informative law.
        The paper's LP-1ST and LP-2ST are `law="rr-with-prior", correction="none", validation_fraction=0` with n_stages=1 and 2, and
        `top_k_filter="mean"`.
    correction : {"auto", "likelihood", "em", "debias", "none"}, default="auto"
        How the noise is accounted for: the exact likelihood (an estimator with `fit_likelihood`, or LogisticRegression, which becomes
        the equal SoftmaxRegression with a penalty chosen on held-out noisy rows), expectation-maximisation with sample weights (any
        estimator), the law undone on predictions, or not at all. "auto": likelihood where possible, else em; and em with a ClusterPrior,
        whose histograms are where it starts.
    prior : (n, K) array of floats >= 0, function of X, or ClusterPrior, default=None
        Public class weights for the first stage; they must not depend on these labels. A `ClusterPrior` asks them privately, at a part of
        epsilon, and the law gets the rest.
    prior_temperature : float > 0, default=1.0
        Of the model that becomes the next stage's prior: below 1 sharpens it, above 1 flattens it.
    top_k_filter : int >= 1, "mean" or None, default=None
        In later stages, leave out rows of earlier ones whose output misses the k classes that the model so far holds likeliest. "mean", as
        in the paper: k is the mean number of candidates of the latest stage, so the law must be rr-with-prior or rr-top-k.
    classes : sequence of K values, or "infer", default=None
        The public list of classes. Raw labels need one, unless they are integer codes and `law` is a Law, which knows K; noisy labels
        bring theirs. "infer" reads it off raw labels, which tells everybody which classes occur: it warns, `privacy_.except_for` says so,
        and floats, or more than sqrt(n) different values, are refused.
    validation_fraction : float in [0, 1), default=0.1
        Rows held out to choose and measure the model by their noisy labels, and not asked by a ClusterPrior; then learned from too (see
        `options`). None are held out where they would be fewer than 20.
    dataset : str, default=None
        The name of the data set in the ledger; a ledger needs one.
    column : str, default="label"
        The name of the label column in the ledger.
    max_rows_per_unit : int >= 1, default=1
        Rows of one unit that are used, where `fit` gets `unit`.
    ledger : Ledger or its path, default=None
        Durable record of the spend. A fit that is repeated on the same rows then returns the stored outputs at no further cost.
    noise : SeededNoise, default=None
        For tests and benchmarks on public data only.
    random_state : int >= 0, RandomState or None, default=None
        Drives training only, never the noise or who is in which stage.
    options : LearnOptions, default=None
        Rounds of EM, row budget, consensus retraining, refit. None: `LearnOptions()`.

    Attributes
    ----------
    classes_ : (K,) array
    estimator_ : fitted estimator (of class codes)
    noisy_labels_ : NoisyLabels of all rows, in the order of X
    privacy_ : PrivacySpent
    receipts_ : tuple of Receipt
        Of all charges: of a ClusterPrior, and of the rows.
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

    See Also
    --------
    labeldp.deep.TorchClassifier : the same for a torch net.
    labeldp.learn.NoiseCluster, labeldp.learn.ProportionClassifier : for budgets at which a single row's label says nothing.

    References
    ----------
    Ghazi, Golowich, Kumar, Manurangsi and Zhang (2021), "Deep Learning with Label Differential Privacy": RRWithPrior and LP-MST.

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
        prior_temperature: float = 1.0,
        top_k_filter: TopK | None = None,
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
        self.prior_temperature = prior_temperature
        self.top_k_filter = top_k_filter
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

    def _inputs(self, X: Any, y: Any) -> Any:
        require_classifier(self._base())
        self._require_settings()
        _validate.one_of(CORRECTIONS, correction=self.correction)
        if y is None:
            raise InvalidInput("This LabelDPClassifier requires y to be passed, but the target y is None.")
        return self._checked(X, reset=True)

    def _matched(self, X: Any, inputs: Any, noisy: NoisyLabels, ids: ArrayLike | None) -> tuple[Any, NoisyLabels]:
        return together(X if inputs is None else inputs, noisy, ids)

    def _fit_raw(self, X: Any, inputs: Any, y: Any, rows: RowIds) -> None:
        super()._fit_raw(inputs, inputs, y, rows)  # a prior, too, gets X as it was checked

    def _read(self, settings: FitSettings, y: Any, n_rows: int) -> tuple[NDArray[Any], tuple[tuple[object, ...], bool]]:
        return read_labels(settings, y, n_rows)

    def _start(self, known: ClusterModel, n_classes: int) -> Model:
        return Model(known, n_classes)

    def _training(self, inputs: Any, source: FitPlan | NoisyLabels, state: None) -> "_Training":
        options, random_state = self.options or DEFAULTS, check_random_state(self.random_state)
        base, encoder = self._base(inputs.shape[0]), encoder_of(inputs) if self.estimator is None else None
        encoded = inputs if encoder is None else encoder.fit_transform(inputs)  # of public columns, so once for all parts
        if encoder is not None:
            base.set_params(categorical_features=list(range(len(encoder.transformers[0][2]))))
        estimator = seeded(base, random_state if self.random_state is not None else None)
        raw = isinstance(source, FitPlan)  # noisy labels come without an answer about clusters, so nothing is known of these

        def learner_of(copy: Any, generator: np.random.RandomState) -> Learner:
            known = self.correction == "auto" and isinstance(self.prior, ClusterPrior) and raw and not takes_raw_labels(copy)
            correction = "em" if known else self.correction  # which begins with what is known of the clusters
            linear = not isinstance(self.prior, ClusterPrior)
            return make_learner(copy, correction, options, generator, linear=linear, top_k_filter=self.top_k_filter)

        learner = learner_of(estimator, random_state)
        if isinstance(source, FitPlan):
            self._require_estimate(source)
            rows = int(inputs.shape[0] * source.stages.fractions[-source.stages.n_stages])

            def fit(copy: Any, few: Any, noisy: NoisyLabels) -> Model:
                # by a generator of its own: the training draws the same numbers whether the dry run made one try or three
                return learner_of(copy, check_random_state(0)).fit(few, noisy, None, None)

            dry_run(estimator, encoded, len(source.classes), rows, fit)
        return _Training(
            encoded,
            learner,
            options.refit,
            self.prior_temperature,
            encoder,
            lambda: features_digest(inputs),
            lambda rows: random_state.permutation(rows),
        )

    def _require_estimate(self, plan: FitPlan) -> None:
        if self.correction == "debias" and not plan.invertible:
            prior = "no prior" if plan.prior is None and plan.grouped is None else "a prior"
            raise InvalidInput(
                f"Expected one invertible law for all rows with correction='debias', got {plan.stages.law}, "
                f"n_stages={plan.stages.n_stages} and {prior}. Use law='rr' or 'subset', n_stages=1 without a prior, or correction='em'. "
                "What ClusterRR has released is inverted row by row, by noisy.debias(losses) or the loss of a net."
            )

    def _keep(self, training: "_Training", noisy: NoisyLabels, model: Model, held_out: Rows) -> Rows:
        if len(held_out) and training.refit:
            usable = np.flatnonzero(noisy.evidenced)
            model = training.learner.refit(take(training.inputs, usable), noisy[usable], model)
        if training.encoder is not None:  # the model was fitted to encoded columns, and predicts from columns as users have them
            model = replace(model, estimator=Pipeline([("encoder", training.encoder), ("classifier", model.estimator)]))
        self._model, self.estimator_ = model, model.estimator
        return np.empty(0, np.int64) if training.refit else held_out

    # What was asked for -----------------------------------------------------------------------------------------------------------

    def _base(self, n_rows: int = _FEW_ROWS) -> Any:
        """Give the estimator, or the default: boosted shallow trees, of few noisy rows only a few small ones with large leaves.

        No early stopping: it would hold out rows of its own and measure by noisy labels as if they were true.
        """
        if self.estimator is not None:
            return self.estimator
        if n_rows < _FEW_ROWS:
            return HistGradientBoostingClassifier(max_iter=30, max_leaf_nodes=4, min_samples_leaf=40, early_stopping=False)
        return HistGradientBoostingClassifier(max_leaf_nodes=15, l2_regularization=1.0, early_stopping=False)

    def _checked(self, X: Any, *, reset: bool) -> Any:
        checked = check_features(X, self._base(), type(self).__name__)
        validate_data(self, X, reset=reset, skip_check_array=True)
        return checked

    def __sklearn_is_fitted__(self) -> bool:
        """Whether a fit has ended: the features of X, which scikit-learn looks for, are known before."""
        return "_model" in vars(self)

    def predict_proba(self, X: Any) -> Floats:
        """Predict probabilities of the true label: (n, K) float64, columns in the order of `classes_`.

        Parameters
        ----------
        X : (n, n_features) array, sparse matrix or data frame
        """
        check_is_fitted(self)
        return self._model.predict_proba(self._checked(X, reset=False))


@dataclass(frozen=True, eq=False)
class _Training:
    """A `Learner` on the encoded inputs of a fit, whose rows are positions; see `labeldp.protocol._estimator.Training`."""

    inputs: Any
    learner: Learner
    refit: bool
    temperature: float
    encoder: ColumnTransformer | None
    public_digest: Callable[[], str]
    permutation: Callable[[NDArray[np.int64]], NDArray[np.int64]]

    def fit(self, rows: Rows, noisy: NoisyLabels, model: Model | None, held_out: HeldOut | None) -> Model:
        rows, noisy, kept = evidenced(rows, noisy, held_out)
        scored = None if kept is None else (take(self.inputs, kept[0]), kept[1])
        return self.learner.fit(take(self.inputs, rows), noisy, model, scored)

    def prior_of(self, model: Model, rows: Rows) -> Floats:
        return np.asarray(self.proba(model, rows) ** (1.0 / self.temperature))

    def proba(self, model: Model, rows: Rows) -> Floats:
        return model.predict_proba(take(self.inputs, rows))

    def judging(self, model: Model, held_out: Rows) -> Rows:
        return held_out[1::2] if model.chose else held_out  # the others have chosen its rounds


# The dry run ------------------------------------------------------------------------------------------------------------------------------

_FEW, _ROUNDS, _CATEGORIES = 60, 5, 300  # rows, rounds of training and categories of a column that are enough to find what is wrong
_LENGTHS = ("__max_iter", "__n_estimators", "__iterations", "__n_iter", "__num_boost_round")
_OF_THE_REAL_FIT = ("__folder", "__progress")
_Fit = Callable[[Estimator, Any, NoisyLabels], Model]


def dry_run(estimator: Estimator, X: Any, n_classes: int, rows: int, fit: _Fit | None = None) -> None:
    """Fit a copy to some rows of X with made-up labels, and predict all of X: first few rows and rounds, then as many as the fit will have.

    Parameters
    ----------
    estimator : scikit-learn classifier or pipeline
        Cloned, never changed.
    X : array, sparse matrix or data frame of n rows
    n_classes : int
    rows : int
        As many as the smallest part of the fit is expected to have.
    fit : function of an estimator, inputs and noisy labels, optional
        How the fit will learn; None: from class codes.

    Raises
    ------
    InvalidInput
        Whatever stops both of them. A few rows can be too few for an estimator, so that they do not decide.

    Notes
    -----
    No label is read. Cost: a fit of a few rounds on a few rows and a prediction of X; a whole fit only where that fails. Global random
    states are as before.
    """
    n = X.shape[0]
    few = min(max(2, rows), max(_FEW, 4 * n_classes))
    tries = [_some_rows(X, few), *([_of_each_category(X)] if text_columns(X) else [])]
    # A column of a category that the first rows lack, or a gap that comes late, would else stop the training when labels are paid for.
    failures = (_failure(_short(estimator), X, some, n_classes, fit) for some in tries)
    found = next((failure for failure in failures if failure is not None), None)
    if found is not None and few < rows:  # were the rows just too few? As many as the fit will have decide
        found = _failure(_stateless(clone(estimator)), X, _some_rows(X, rows), n_classes, fit)
    if found is not None:
        what = str(found).strip().split("\n")[0].removesuffix(".") or type(found).__name__
        raise (_WrongType if isinstance(found, TypeError) else InvalidInput)(
            f"Expected an estimator that can be fitted to some rows of X and predict all {n}, got {type(found).__name__}: {what}. "
            f"Nothing was charged or drawn.{_advice(what)}"
        ) from found


class _WrongType(InvalidInput, TypeError):
    """A refusal that is a TypeError, too, since callers may wait for what their estimator raises."""


def _failure(estimator: Estimator, X: Any, rows: NDArray[np.int64], n_classes: int, fit: _Fit | None) -> Exception | None:
    codes = np.arange(len(rows)) % n_classes
    try:
        with undisturbed(), heard_by(None):
            if fit is None:
                model = Model(fit_codes(estimator, X, rows, codes), n_classes)
            else:
                model = fit(estimator, take(X, rows), NoisyLabels.from_labels(codes, RandomizedResponse(n_classes, 1.0)))
            model.predict_proba(X)
    except MemoryError:  # of the machine, not of the estimator
        raise
    except Exception as error:
        return error
    return None


def _some_rows(X: Any, count: int) -> NDArray[np.int64]:
    """Choose so many rows, spread evenly, and for each column the first one in which a value is missing."""
    n = X.shape[0]
    return np.union1d(np.linspace(0, n - 1, min(count, n)).astype(np.int64), _first_missing(X))


def _first_missing(X: Any) -> NDArray[np.int64]:
    if hasattr(X, "isna"):
        missing = X.isna().to_numpy()
    elif isinstance(X, np.ndarray) and X.ndim == 2 and X.dtype.kind == "f":
        missing = np.isnan(X)
    else:
        return np.empty(0, np.int64)
    return np.asarray(missing.argmax(axis=0)[missing.any(axis=0)], np.int64)


def _of_each_category(X: Any) -> NDArray[np.int64]:
    """Choose the first row of every value of columns of text and categories, up to some hundreds: the number of them can be too large."""
    found = [np.arange(min(2, X.shape[0]))]
    for j in text_columns(X):
        values = np.asarray(X.iloc[:, j] if hasattr(X, "iloc") else X[:, j], object)
        found.append(np.sort(np.unique([str(value) for value in values], return_index=True)[1])[:_CATEGORIES])
    return np.unique(np.concatenate(found))


def _short(estimator: Estimator) -> Estimator:
    """Clone an estimator so that it stops after a few rounds, where it has a number of them."""
    copy = _stateless(clone(estimator))
    numbers = {name: value for name, value in copy.get_params().items() if f"__{name}".endswith(_LENGTHS)}
    return copy.set_params(**{name: _ROUNDS for name, value in numbers.items() if isinstance(value, int) and value > _ROUNDS})


def _stateless(estimator: Estimator) -> Estimator:
    """Drop the folder where a training keeps its state, and the function that shows progress: both are for the real training alone."""
    kept = [name for name in estimator.get_params() if f"__{name}".endswith(_OF_THE_REAL_FIT)]
    return estimator.set_params(**dict.fromkeys(kept)) if kept and getattr(estimator, "takes_raw_labels", False) else estimator


def _advice(what: str) -> str:
    if "could not convert string" in what or "dtype" in what:
        return " Encode text columns, as OneHotEncoder(handle_unknown='ignore') in a ColumnTransformer does; estimator=None does it itself."
    if "NaN" in what or "missing values" in what:
        return " Fill the gaps, for example with SimpleImputer() as the first step of a pipeline; estimator=None takes them as they are."
    if "unknown categor" in what:
        return " Categories that are rare are new to a part of the rows: OneHotEncoder(handle_unknown='ignore') takes them."
    return ""
