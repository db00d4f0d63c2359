# SPDX-License-Identifier: Apache-2.0
"""LabelDPClassifier: train any scikit-learn classifier on private labels."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import clone
from sklearn.compose import ColumnTransformer
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.pipeline import Pipeline
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data

from labeldp import _validate
from labeldp.custody._encode import index_of, require_same_order
from labeldp.errors import InvalidInput, WrongType
from labeldp.evidence import NoisyLabels
from labeldp.laws import Grid, LabelColumns, Law, RandomizedResponse, SubsetSelection
from labeldp.learn._clusters import ClusterPrior, HistogramPrior
from labeldp.learn._corrections import (
    CORRECTIONS,
    DEFAULTS,
    Learner,
    LearnOptions,
    Model,
    fit_codes,
    heard_by,
    last_step,
    make_learner,
    require_classifier,
    require_no_threshold,
    require_weights,
    seeded,
    weights_of,
)
from labeldp.learn._corrections import HeldOut as Scored
from labeldp.learn._data import (
    Estimator,
    Floats,
    advice,
    check_features,
    encoder_of,
    explained,
    features_digest,
    taking_inputs_of,
    text_columns,
    threads_for,
)
from labeldp.learn._location import LocationModel
from labeldp.learn._several import Drawn, SeveralModels, columns_in, drawn, in_stages
from labeldp.protocol._estimator import (
    ClassifierEstimator,
    StagedEstimator,
    evidenced,
    hold_out,
    require_evidence,
    undisturbed,
)
from labeldp.protocol._fit import (
    HELD_OUT,
    MIN_VALIDATION_ROWS,
    MOST_CELLS,
    FitPlan,
    HeldOut,
    Rows,
    plan_fit,
)
from labeldp.protocol._matching import matched_by_id, row_count, take
from labeldp.protocol._prior import Prior
from labeldp.protocol._several import is_several, rates_of, share_right
from labeldp.protocol.metrics import (
    checked_weights,
    class_rates,
    warn_of_constant,
    warn_of_lost_classes,
)

if TYPE_CHECKING:
    from labeldp.custody._private import PrivateLabels

FEW_ROWS = 2000
_COUNTED = 1e9  # mean weight of rows, beyond which sums of squares lose what tells rows apart


Fitted = TypeVar("Fitted", Model, LocationModel)
Result = TypeVar("Result")


class TabularEstimator(StagedEstimator[Fitted]):
    """The part of an estimator around one of scikit-learn's: its tags and the checks of X, and what
    a fit does with both."""

    estimator: Any
    options: LearnOptions | None
    random_state: Any
    _model: Fitted
    _weights: Any = None  # of the rows of X, during a fit

    @abstractmethod
    def _base(self, n_rows: int = FEW_ROWS) -> Any:
        """Return the user's estimator, or the default."""

    def __sklearn_tags__(self) -> Any:
        return taking_inputs_of(self._base(), super().__sklearn_tags__())

    def fit(
        self,
        X: Any,
        y: Any,
        sample_weight: ArrayLike | None = None,
        *,
        ids: ArrayLike | None = None,
    ) -> Self:
        """Privatize the labels and learn from them, or learn from noisy labels.

        Parameters
        ----------
        X, ids
            As of every estimator.
        y : PrivateLabels, which are charged, or NoisyLabels, which cost nothing
            Of several columns, which LabelDPClassifier takes, they are drawn together: `epsilon` is
            the total for all of them, `law` is "auto", the name of each column's law, or one of
            `labels.classes.law`, and the ledger has one charge, which counts in the account of each
            column. A copy of this estimator is trained on each column; `predict` returns (n, L),
            `predict_proba` a list of L arrays. Later stages are drawn by the product of the
            columns' predicted probabilities.
        sample_weight : (n,) array >= 0, optional
            Public weights of the rows, for learning alone: a row of weight 2 counts as two. Their
            mean is from 1e-9 to 1e9. They must not depend on these labels. Which labels are drawn,
            at what cost, and the estimates from held-out rows do not change.

        Returns
        -------
        self

        Raises
        ------
        InvalidInput
            For any fault of X, y, the estimator or the settings, before anything is charged; with
            several targets also for a filter.
        """
        try:
            if sample_weight is not None:
                require_same_order(index_of(X), "X", "sample_weight", sample_weight)
                self._weights = sample_weight  # checked with X
            return super().fit(X, y, ids=ids)
        finally:
            self.__dict__.pop("_weights", None)

    def _matched(self, X: Any, inputs: Any, labels: Any, ids: ArrayLike | None) -> tuple[Any, Any]:
        if self._weights is not None and ids is not None:
            self._weights = self._weights[matched_by_id(ids, len(self._weights), labels)[0]]
        return super()._matched(X, inputs, labels, ids)

    def _threads(self, inputs: Any) -> AbstractContextManager[object]:
        return threads_for(inputs)

    def _fit_private(self, X: Any, inputs: Any, labels: PrivateLabels) -> None:
        super()._fit_private(inputs, inputs, labels)  # a prior gets the checked X, too

    def _prepared(
        self, inputs: Any, base: Any, correction: str
    ) -> tuple[Any, Any, ColumnTransformer | None, np.random.RandomState]:
        """Return the inputs as numbers, this estimator, seeded, the encoder (None unless it is the
        default) and the generator; refuse weights that it cannot take."""
        random_state = check_random_state(self.random_state)
        encoder = encoder_of(inputs) if self.estimator is None else None
        # The encoder sees public columns alone, so it may be fitted once to all parts, held-out
        # rows included.
        encoded = inputs if encoder is None else encoder.fit_transform(inputs)
        if encoder is not None:
            base.set_params(categorical_features=list(range(len(encoder.transformers[0][2]))))
        # An unseeded classifier leaves the estimator's own random_state alone.
        estimator = seeded(base, random_state if self.random_state is not None else None)
        if self._weights is not None:
            require_weights(estimator, correction)
        return encoded, estimator, encoder, random_state

    def _keep(
        self, training: _Training[Fitted], noisy: NoisyLabels, model: Fitted, held_out: Rows
    ) -> Rows:
        if len(held_out) and training.refit:
            usable = np.flatnonzero(noisy.evidenced)
            rows, kept = training.weighed(usable, noisy[usable])
            model = training.learner.refit(
                take(training.inputs, rows), kept, model, **training.given(rows)
            )
        warn_of_constant(lambda rows: training.proba(model, rows), len(noisy), noisy.classes)
        # users predict from their own columns, but the model was fitted to encoded ones
        if training.encoder is not None:
            model = replace(
                model,
                estimator=Pipeline(
                    [("encoder", training.encoder), ("classifier", model.estimator)]
                ),
            )
        self.__dict__.pop("estimators_", None)  # of an earlier fit to several targets
        self._model, self.estimator_ = model, model.estimator
        return np.empty(0, np.int64) if training.refit else held_out

    def _checked(self, X: Any, y: Any = "no_validation", *, reset: bool) -> Any:
        with explained(fitted=not reset):
            checked = check_features(X, self._base(), type(self).__name__)
            validate_data(self, X, y, reset=reset, skip_check_array=True)
        if reset and self._weights is not None:
            self._weights = _counts_of_rows(self._weights, row_count(checked))
        return checked

    def _predicted(self, X: Any, predict: Callable[[Any, Any], Result]) -> Result:
        """Call a function of the fitted model and the checked X."""
        check_is_fitted(self)
        checked = self._checked(X, reset=False)
        with explained(fitted=True):
            return predict(self._model, checked)

    def __sklearn_is_fitted__(self) -> bool:
        """Return whether a fit has ended: `n_features_in_`, by which scikit-learn would decide, is
        set when it starts."""
        return "_model" in vars(self)


def _counts_of_rows(sample_weight: ArrayLike, n: int) -> Floats:
    """Check weights by which each row counts as so many: (n,) float64, of a mean with which
    estimators can compute."""
    weights = checked_weights(sample_weight, n)
    # so that some are left to learn from, whichever rows are held out
    least = min(n // 2, MIN_VALIDATION_ROWS)
    if (told := np.count_nonzero(weights)) < least:
        raise InvalidInput(
            f"Expected sample_weight above 0 for at least {least} rows, got {told} such rows."
        )
    mean = float(weights.mean())
    if not 1 / _COUNTED <= mean <= _COUNTED:
        raise InvalidInput(
            f"Expected sample_weight of a mean from {1 / _COUNTED:g} to {_COUNTED:g}, since a row"
            f" of weight 2 counts as two; got {mean:g}. Divide the weights by their mean."
        )
    return weights


class LabelDPClassifier(ClassifierEstimator, TabularEstimator[Model]):
    """Train any scikit-learn classifier or pipeline under label differential privacy.

    Parameters
    ----------
    estimator : classifier or pipeline, default=None
        None: histogram gradient boosting, which takes columns of text, categories and dates, and
        gaps; of a column the most frequent categories, the rarer ones as one. The estimator is
        cloned and trained on class codes 0..K-1.
    epsilon : float > 0, default=1.0
        Total label-DP budget of a fit, for one unit (a row, or the labels' own unit).
    stages : int >= 1, or sequence of floats > 0, default=1
        Number of stages, or the share of the rows in each, at any scale. With 2 or more the rows
        are drawn in parts, and each stage's model is the prior with which the next part is
        privatized (LP-MST), at the same epsilon and more time. This pays if the first part alone
        makes a good model; on held-out noisy labels it mostly did not, so the default is 1. One
        stage is used where a prior cannot help: two classes with law="auto", or a law that ignores
        priors.
    law : str or Law, default="auto"
        A law's name, or a Law with this epsilon (with a ClusterPrior, the epsilon that it leaves).
        "auto" draws each row with the most informative law. The paper's LP-1ST and LP-2ST are
        `correction="none"` with `**papers.ghazi2021.stages("lp-2st", epsilon=...)`: law
        "rr-with-prior", a `Prior` of `top_k="mean"`, no held-out rows, and the published share and
        temperature.
    correction : {"auto", "likelihood", "em", "debias", "none"}, default="auto"
        Correction for the noise. "likelihood": maximise the exact likelihood (an estimator with
        `fit_likelihood`; the classifiers of LightGBM and XGBoost and
        HistGradientBoostingClassifier, in one fit; LogisticRegression, which is replaced by the
        equivalent SoftmaxRegression with a penalty chosen on held-out noisy rows). "em":
        expectation-maximisation with sample weights (any estimator). "debias": invert the law on
        the predictions. "none": train on noisy labels as if they were true. "auto": "likelihood" if
        possible, else "em"; "em" also without an estimator on fewer than 2,000 rows, and with a
        ClusterPrior, from whose histograms it starts.
    prior : (n, K) array, mapping, function of X, ClusterPrior or Prior, default=None
        Public class weights for the first stage; they must not depend on these labels. A
        `ClusterPrior` asks for them privately, at a part of epsilon, and the law gets the rest. Of
        several targets weights of the combinations, or a mapping of columns to (n, K_l) weights;
        what is asked privately are counts of the combinations. `Prior` adds settings of later
        stages.
    class_prior : (K,) floats above 0, mapping of classes to them, or HistogramPrior, default=None
        Known rates of the classes: public, or released before, never counted from these labels
        without noise. Models are held to them where they are else held to rates that the noisy
        labels speak for: the mean probability of each class is its rate (likelihood), or what
        unseen rows do not believe of the model falls back on the rates (em). It changes neither the
        draw nor its cost. Not with correction="none" or "debias". `prior` is what rows are asked
        by; this is what is learned from the answers. Of several targets a mapping of columns to
        them; a column that is left out has none. `HistogramPrior(epsilon)` asks the raw labels of
        one column for the rates, at this part of the fit's epsilon, without a `prior`; it does not
        count held-out rows.
    columns : sequence of str, default=None
        Of labels of several columns, the names of those to learn, in the order of predictions.
        None: all.
    validation_fraction : float in [0, 1), default=0.1
        Share of the rows held out to choose and measure the model by their noisy labels; a
        ClusterPrior does not count them. The final refit learns from them, too (see `options`). No
        row is held out if they would be fewer than 20.
    random_state : int >= 0, RandomState or None, default=None
        Seed of the training only, never of the noise or of the partition into stages.
    options : LearnOptions, default=None
        Rounds of EM, row budget, consensus retraining, refit. None: `LearnOptions()`.

    Attributes
    ----------
    classes_ : (K,) array
    estimator_ : fitted estimator (of class codes)
        Of boosting on the likelihood, `estimator_.estimator_` has the library's trees, whose raw
        scores (`raw_score=True`, or `output_margin=True` with a `base_margin` of 0) are not yet
        logits. With K > 2 classes probabilities are softmax(start_ + factor_ * raw); with two, that
        of the second class is sigmoid(start_[1] - start_[0] + factor_ * raw), by
        `estimator_.start_` and `estimator_.factor_`.
    estimators_ : list of L fitted LabelDPClassifier
        With several targets only; then `classes_` and the estimates below are lists of L, too, and
        there is no `estimator_`.
    noisy_labels_ : NoisyLabels of all rows, in the order of X
    privacy_ : PrivacySpent
    receipts_ : tuple of Receipt
        Receipts of all charges: that of a prior or of rates which are asked for, and the rows'.
    stages_ : tuple of Stage
    prior_ : ClusterModel or None
        The clusters and their noisy histograms, with a ClusterPrior.
    estimated_accuracy_ : Estimate or None
        Estimated true-label accuracy, on held-out noisy rows that chose nothing, before the final
        refit. None if there are fewer than 20 such rows, or the law has no unbiased estimator.
        Where the classes are a `Grid`, the share of rows whose point is predicted exactly, however
        near the others are.
    estimated_log_loss_ : Estimate or None
        Estimated log-loss on the same rows.
    baseline_accuracy_, baseline_log_loss_ : Estimate or None
        The same metrics of a constant prediction, the class frequencies. Compare with them if a
        class is rare.
    n_features_in_, feature_names_in_

    See Also
    --------
    labeldp.deep.TorchClassifier : the same for a torch net. labeldp.learn.NoiseCluster,
    labeldp.learn.ProportionClassifier : for budgets at which a single row's label says nothing.

    References
    ----------
    Ghazi, Golowich, Kumar, Manurangsi and Zhang (2021), "Deep Learning with Label Differential
    Privacy": RRWithPrior and LP-MST.

    Notes
    -----
    Guarantee: everything that the fit returns or stores is epsilon-label-DP. Each label is
    randomized once; all else (stages, choice of model, `estimated_accuracy_`) is post-processing of
    the outputs. Features are not protected. Cost of one stage: with em up to 12 fits of the
    estimator, two thirds of them on weighted copies of rows; with an exact likelihood two fits, or
    one (boosting).

    Examples
    --------
    >>> import labeldp as ldp
    >>> from sklearn.datasets import make_blobs
    >>> X, y = make_blobs(600, centers=3, random_state=0, cluster_std=0.5)
    >>> labels = ldp.PrivateLabels(y, classes=[0, 1, 2], noise=ldp.SeededNoise(0))
    >>> model = ldp.LabelDPClassifier(epsilon=2.0, random_state=0).fit(X, labels)
    >>> bool(model.score(X, y) > 0.9)
    True
    """

    takes_columns = True

    def __init__(
        self,
        estimator: Any = None,
        *,
        epsilon: float = 1.0,
        stages: int | Sequence[float] = 1,
        law: str | Law = "auto",
        correction: str = "auto",
        prior: ArrayLike | Callable[[Any], ArrayLike] | ClusterPrior | Prior | None = None,
        class_prior: ArrayLike | Mapping[object, float] | HistogramPrior | None = None,
        columns: Sequence[str] | None = None,
        validation_fraction: float = 0.1,
        random_state: Any = None,
        options: LearnOptions | None = None,
    ) -> None:
        self.estimator = estimator
        self.epsilon = epsilon
        self.stages = stages
        self.law = law
        self.correction = correction
        self.prior = prior
        self.class_prior = class_prior
        self.columns = columns
        self.validation_fraction = validation_fraction
        self.random_state = random_state
        self.options = options

    # Fitting
    # ----------------------------------------------------------------------------------------------

    def _inputs(self, X: Any, y: Any) -> Any:
        require_classifier(self._base())
        require_no_threshold(self._base())
        _validate.one_of(CORRECTIONS, correction=self.correction)
        return self._checked(X, y, reset=True)

    def _start(
        self, training: _Training[Model], plan: FitPlan
    ) -> tuple[_Training[Model], Model | None]:
        if plan.rates is not None and training.held_to is not None:
            training = replace(training, learner=training.held_to(plan.rates))
        return training, None if plan.known is None else Model(plan.known, len(plan.classes))

    def _training(
        self, inputs: Any, source: FitPlan | NoisyLabels, state: None
    ) -> _Training[Model]:
        options = self.options or DEFAULTS
        # noisy labels bring no answer about clusters to start from
        raw = isinstance(source, FitPlan)
        correction = self._correction(inputs.shape[0], raw=raw)
        encoded, estimator, encoder, random_state = self._prepared(
            inputs, self._base(inputs.shape[0], correction), correction
        )

        # Rates that are asked for are known after the charge (`_start`); until then equal ones
        # stand for them.
        asked = isinstance(source, FitPlan) and source.asks_rates
        given = np.full(len(source.classes), 1 / len(source.classes)) if asked else self.class_prior
        rates = None if given is None else class_rates(given, list(source.classes))
        settings: dict[str, Any] = {
            "linear": not isinstance(self._prior.table, ClusterPrior),
            "top_k_filter": self._prior.top_k,
        }

        def learner_of(
            copy: Any, generator: np.random.RandomState, known: Floats | None = rates
        ) -> Learner[Model]:
            return make_learner(copy, correction, options, generator, class_prior=known, **settings)

        learner = learner_of(estimator, random_state)
        if isinstance(source, FitPlan):
            self._require_estimate(source)
            # The first stage trains on its own part alone; later ones train on more rows.
            rows = int(inputs.shape[0] * source.stages.fractions[-source.stages.n_stages])

            def fit(copy: Any, few: Any, noisy: NoisyLabels) -> Model:
                # A generator of its own, so that the real training draws the same numbers however
                # many tries the dry run makes.
                return learner_of(copy, check_random_state(0)).fit(few, noisy, None, None)

            dry_run(estimator, encoded, len(source.classes), rows, fit)
        return _Training(
            encoded,
            learner,
            options.refit,
            self._prior.temperature,
            encoder,
            lambda: features_digest(inputs),
            lambda rows: random_state.permutation(rows),
            self._weights,
            lambda known: learner_of(estimator, random_state, known),
        )

    def _require_estimate(self, plan: FitPlan) -> None:
        if self.correction == "debias" and not plan.invertible:
            raise InvalidInput(
                "Expected one invertible law for all rows with correction='debias', got"
                f" {plan.stages.law} in {plan.stages.n_stages} stages. Use law='rr' or"
                " 'subset', stages=1 without a prior, or correction='em'. What ClusterRR has"
                " released is inverted row by row, by noisy.debias(losses) or the loss of a net."
            )

    # Several targets
    # ----------------------------------------------------------------------------------------------

    def _fit(self, X: Any, inputs: Any, y: Any, ids: Any) -> Self:
        if not is_several(y):
            return super()._fit(X, inputs, y, ids)
        if self._prior.top_k is not None:
            raise InvalidInput(
                "Expected no Prior(top_k=) with several label columns: it compares the classes of"
                " one."
            )
        inputs, labels = self._matched(X, inputs, y, ids)
        rates = rates_of(self.class_prior, cast(LabelColumns, labels.classes))
        if isinstance(labels, NoisyLabels):
            require_evidence(labels)
            found = Drawn(labels)
        else:
            found = self._draw_several(inputs, labels, rates)
        noisy, stages = found.noisy, found.stages
        counted = self._counted(noisy, bool(stages))
        model = SeveralModels.fit(
            inputs,
            noisy,
            lambda number: self._of_one_column(rates[number]),
            found.belief,
            self._weights,
            counted,
            self.columns,
        )
        self.__dict__.pop("estimator_", None)  # of an earlier fit to one target
        self._model, self.estimators_ = model, list(model.parts)  # type: ignore[assignment]
        for name in (
            "classes_",
            "estimated_accuracy_",
            "estimated_log_loss_",
            "baseline_accuracy_",
            "baseline_log_loss_",
        ):
            setattr(self, name, [getattr(part, name) for part in model.parts])
        self.noisy_labels_, self.privacy_, self.stages_, self.prior_ = (
            noisy,
            noisy.privacy,
            stages,
            found.known,
        )
        self.receipts_, self._learned = (*noisy.behind, *noisy.receipts), noisy
        return self

    def _counted(self, noisy: NoisyLabels, held_out: bool) -> Rows | None:
        """Choose the rows of which columns are told by counts alone, to measure by: those that
        stages held out, or others; None for all."""
        columns = columns_in(noisy)
        if self.correction in ("none", "debias") or len(noisy) * len(columns) > MOST_CELLS:
            return None
        if held_out or not any(isinstance(block.law, SubsetSelection) for block in noisy.blocks):
            return np.concatenate(
                [
                    np.empty(0, np.int64),
                    *(block.rows for block in noisy.blocks if block.stage == HELD_OUT),
                ]
            )
        chosen = hold_out(
            noisy, self.validation_fraction, check_random_state(self.random_state).permutation
        )
        return (
            None
            if not len(chosen) and self.validation_fraction * len(noisy) >= MIN_VALIDATION_ROWS
            else chosen
        )

    def _of_one_column(self, rates: Floats | None, **changes: Any) -> Self:
        """Make the classifier of one column's noisy labels, from this one's parameters and the
        known rates of the column's classes."""
        own = {
            "law": "auto",
            "prior": None,
            "stages": 1,
            "columns": None,
        }
        return type(self)(**(self.get_params(deep=False) | own | {"class_prior": rates} | changes))

    def _draw_several(
        self, inputs: Any, labels: PrivateLabels, rates: Sequence[Floats | None]
    ) -> Drawn:
        """Check everything that can be checked, then charge and draw the labels of several
        targets."""
        columns = cast(LabelColumns, labels.classes)
        settings = self._settings(columns)
        # each part holds out rows of its own
        plan = None if settings.plain else plan_fit(settings, labels, inputs)
        if plan is not None:
            self._require_estimate(plan)
        least = 1.0 if plan is None else plan.stages.fractions[-plan.stages.n_stages]
        correction = self._correction(inputs.shape[0], raw=False)
        base = self._base(inputs.shape[0], correction)
        encoded, estimator, *_ = self._prepared(inputs, base, correction)
        for each in rates:  # refuses what cannot be learned by
            make_learner(
                estimator,
                correction,
                self.options or DEFAULTS,
                check_random_state(0),
                class_prior=each,
            )
        for size in sorted(set(columns.sizes)):
            dry_run(estimator, encoded, size, int(inputs.shape[0] * least))
        digest = partial(features_digest, inputs)
        if plan is None:
            return drawn(settings, labels, digest)
        return in_stages(
            plan,
            inputs,
            digest,
            lambda number: self._of_one_column(rates[number], validation_fraction=0.0),
            self._prior.temperature,
            self._weights,
            None if self.correction in ("none", "debias") else np.empty(0, np.int64),
        )

    # Predicting
    # ----------------------------------------------------------------------------------------------

    def _correction(self, n_rows: int, *, raw: bool) -> str:
        """Return the correction, "em" where "auto" is not decided by the estimator alone."""
        if self.correction != "auto":
            return self.correction
        # EM can start from the clusters' histograms, and it alone can tell how far to trust trees
        # of few noisy rows.
        net = getattr(last_step(self._base()), "takes_raw_labels", False)
        known = isinstance(self._prior.table, ClusterPrior) and raw and not net
        return "em" if known or (self.estimator is None and n_rows < FEW_ROWS) else "auto"

    def _base(self, n_rows: int = FEW_ROWS, correction: str = "auto") -> Any:
        """Return the user's estimator, or the default: boosted trees."""
        if self.estimator is not None:
            return self.estimator
        # Elsewhere early stopping would hold out rows of its own and measure by noisy labels as if
        # they were true. Few noisy rows allow only a few small trees with large leaves.
        if n_rows < FEW_ROWS:
            return HistGradientBoostingClassifier(
                max_iter=30, max_leaf_nodes=4, min_samples_leaf=40, early_stopping=False
            )
        if correction in ("auto", "likelihood"):
            return HistGradientBoostingClassifier()
        return HistGradientBoostingClassifier(
            max_leaf_nodes=15, l2_regularization=1.0, early_stopping=False
        )

    def predict_proba(self, X: Any) -> Any:
        """Predict probabilities of the true label: (n, K) float64, columns in the order of
        `classes_`; of several targets a list of them.

        Parameters
        ----------
        X : (n, n_features) array, sparse matrix or data frame
        """
        return self._predicted(X, lambda model, rows: model.predict_proba(rows))

    def predict(self, X: Any) -> NDArray[Any]:
        """Predict the most likely class of each row: (n,) class values; (n, L) for several targets.

        Parameters
        ----------
        X : (n, n_features) array, sparse matrix or data frame
        """
        check_is_fitted(self)
        model: Any = self._model
        if not isinstance(model, SeveralModels):
            return super().predict(X)
        return self._predicted(X, lambda model, rows: model.predict(rows))

    def score(
        self,
        X: Any,
        y: Any,
        sample_weight: ArrayLike | None = None,
        *,
        ids: ArrayLike | None = None,
    ) -> float:
        """Measure the accuracy on true labels; of several targets the share of rows in which all
        are right, on public labels.

        Parameters
        ----------
        X : (n, n_features) array, sparse matrix or data frame
        y : NoisyLabels of n rows, or (n,) public true labels; (n, L) public true labels of several
        targets
            With NoisyLabels the accuracy on the true labels is estimated without bias; a
            SeenRowsWarning says so where the model has learned from them. Rows without evidence are
            left out. Where the classes are a `Grid`, a true number counts as its nearest point.
        sample_weight : (n,) array >= 0, optional
            Public weights of the rows.
        ids : (n,) or (n, columns) array, optional
            Ids of X's rows, for NoisyLabels; as in `fit`.

        Returns
        -------
        float
            An unbiased estimate from few noisy rows can lie outside [0, 1].
        """
        check_is_fitted(self)
        model: Any = self._model
        if not isinstance(model, SeveralModels):
            return super().score(X, y, sample_weight, ids=ids)
        weights = None if sample_weight is None else np.asarray(sample_weight, np.float64)
        return share_right(self.predict(X), y, model.columns, weights)


@dataclass(frozen=True, eq=False)
class _Training(Generic[Fitted]):
    """A `Learner` on the encoded inputs of a fit; rows are positions. It implements
    `labeldp.protocol._estimator.Training`."""

    inputs: Any
    learner: Learner[Fitted]
    refit: bool
    temperature: float
    encoder: ColumnTransformer | None
    public_digest: Callable[[], str]
    permutation: Callable[[NDArray[np.int64]], NDArray[np.int64]]
    weights: Floats | None = None
    # makes the learner that holds models to rates
    held_to: Callable[[Floats], Learner[Fitted]] | None = None

    def fit(
        self, rows: Rows, noisy: NoisyLabels, model: Fitted | None, held_out: HeldOut | None
    ) -> Fitted:
        rows, noisy, kept = evidenced(rows, noisy, held_out)
        rows, noisy = self.weighed(rows, noisy)
        scored = (
            None
            if kept is None
            else Scored(take(self.inputs, kept[0]), kept[1], weights_of(self.weights, kept[0]))
        )
        found = self.learner.fit(take(self.inputs, rows), noisy, model, scored, **self.given(rows))
        if not isinstance(noisy.classes, Grid):
            warn_of_lost_classes(
                lambda at: [(noisy[at], self.proba(found, rows[at]))],
                np.arange(len(rows)),
                noisy.n_classes,
                "The model",
                "this estimator, correction or rate of classes leaves it out. Try another one;"
                " labels that were drawn are not drawn again.",
            )
        return found

    def weighed(self, rows: Rows, noisy: NoisyLabels) -> tuple[Rows, NoisyLabels]:
        """Leave out rows of weight 0, so that no part of the others that a learner makes is without
        weight; none if all of them are."""
        some = np.arange(len(rows)) if self.weights is None else np.flatnonzero(self.weights[rows])
        return (rows[some], noisy[some]) if 0 < len(some) < len(rows) else (rows, noisy)

    def given(self, rows: Rows) -> dict[str, Any]:
        """Return the weights of these rows as the learner's argument; nothing where all rows count
        alike."""
        return {} if self.weights is None else {"sample_weight": self.weights[rows]}

    def prior_of(self, model: Fitted, rows: Rows) -> Floats:
        return np.asarray(self.proba(model, rows) ** (1.0 / self.temperature))

    def proba(self, model: Fitted, rows: Rows) -> Floats:
        return model.predict_proba(take(self.inputs, rows))

    def judging(self, model: Fitted, held_out: Rows) -> Rows:
        # the other half has chosen the number of rounds
        return held_out[1::2] if model.chose else held_out


# The dry run
# --------------------------------------------------------------------------------------------------

# rows, rounds of training and categories per column that suffice to find a fault
_FEW, _ROUNDS, _CATEGORIES = 60, 2, 300
_LENGTHS = ("__max_iter", "__n_estimators", "__iterations", "__n_iter", "__num_boost_round")
_OF_THE_REAL_FIT = ("__folder", "__progress")
_Fit = Callable[[Estimator, Any, NoisyLabels], Any]


def dry_run(
    estimator: Estimator, X: Any, n_classes: int, rows: int, fit: _Fit | None = None
) -> None:
    """Fit a copy to some rows of X with made-up labels, and predict all of X: first with few rows
    and rounds, then with as many as the fit.

    Parameters
    ----------
    estimator : scikit-learn classifier or pipeline
        Cloned, never changed.
    X : array, sparse matrix or data frame of n rows
    n_classes : int
    rows : int
        Expected number of rows in the smallest part of the fit.
    fit : function of an estimator, inputs and noisy labels, optional
        The fit's own training; None: train on class codes.

    Raises
    ------
    InvalidInput
        If both tries fail. A failure on few rows alone is ignored, since an estimator may need
        more.

    Notes
    -----
    No label is read. Cost: a fit of a few rounds on a few rows and a prediction of X; a whole fit
    only if that fails. Global random states are restored.
    """
    n = X.shape[0]
    # Enough rows for some of each made-up class, but never more than the smallest part will have.
    few = min(max(2, rows), max(_FEW, 4 * n_classes))
    tries = [_some_rows(X, few), *([_of_each_category(X)] if text_columns(X) else [])]
    # A category that the first rows lack, or a first missing value late in X, must fail here and
    # not after the labels are paid for.
    failures = (_failure(_short(estimator), X, some, n_classes, fit) for some in tries)
    found = next((failure for failure in failures if failure is not None), None)
    # perhaps the rows were just too few: try again with as many as the fit will have
    if found is not None and few < rows:
        found = _failure(_stateless(clone(estimator)), X, _some_rows(X, rows), n_classes, fit)
    if found is not None:
        what = str(found).strip().split("\n")[0].removesuffix(".") or type(found).__name__
        raise (WrongType if isinstance(found, TypeError) else InvalidInput)(
            f"Expected an estimator that can be fitted to some rows of X and predict all {n}, got"
            f" {type(found).__name__}: {what}. Nothing was charged or drawn.{advice(what)}"
        ) from found


def _failure(
    estimator: Estimator, X: Any, rows: NDArray[np.int64], n_classes: int, fit: _Fit | None
) -> Exception | None:
    codes = np.arange(len(rows)) % n_classes
    try:
        with undisturbed(), heard_by(None):
            if fit is None:
                model = Model(fit_codes(estimator, X, rows, codes), n_classes)
            else:
                model = fit(
                    estimator,
                    take(X, rows),
                    NoisyLabels.from_labels(codes, RandomizedResponse(n_classes, 1.0)),
                )
            model.predict_proba(X)
    except MemoryError:  # a limit of the machine, not a fault of the estimator
        raise
    except Exception as error:
        return error
    return None


def _some_rows(X: Any, count: int) -> NDArray[np.int64]:
    """Choose this many rows, spread evenly."""
    n = X.shape[0]
    return np.linspace(0, n - 1, min(count, n)).astype(np.int64)


def _of_each_category(X: Any) -> NDArray[np.int64]:
    """Choose the first row of each value in columns of text and categories, up to _CATEGORIES per
    column."""
    found = [np.arange(min(2, X.shape[0]))]
    for j in text_columns(X):
        values = np.asarray(X.iloc[:, j] if hasattr(X, "iloc") else X[:, j], object)
        found.append(
            np.sort(np.unique([str(value) for value in values], return_index=True)[1])[:_CATEGORIES]
        )
    return np.unique(np.concatenate(found))


def _short(estimator: Estimator) -> Estimator:
    """Clone an estimator and cut its number of rounds, if it has one, to a few."""
    copy = _stateless(clone(estimator))
    numbers = {
        name: value for name, value in copy.get_params().items() if f"__{name}".endswith(_LENGTHS)
    }
    # XGBoost's None is a hundred trees.
    long = [
        name
        for name, value in numbers.items()
        if (value is None and name.endswith("n_estimators"))
        or (isinstance(value, int) and value > _ROUNDS)
    ]
    return copy.set_params(**dict.fromkeys(long, _ROUNDS))


def _stateless(estimator: Estimator) -> Estimator:
    """Drop the training's folder and progress callback."""
    # Both are for the real training alone: a dry run must neither resume nor overwrite its state.
    kept = [name for name in estimator.get_params() if f"__{name}".endswith(_OF_THE_REAL_FIT)]
    return (
        estimator.set_params(**dict.fromkeys(kept))
        if kept and getattr(estimator, "takes_raw_labels", False)
        else estimator
    )
