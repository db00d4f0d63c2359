# SPDX-License-Identifier: Apache-2.0
"""TorchClassifier: train any torch net on private labels, with scikit-learn's interface; what it
shares with TorchRegressor; and the checks before a charge.

The base class (`labeldp.protocol._estimator`) decides when raw labels are read, charged and drawn.
This module adds the part for nets: inputs and settings are checked, and one training step is tried,
before anything is charged; a `Trainer` learns the stages.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

from labeldp import _validate
from labeldp.custody._encode import is_closed
from labeldp.deep._consistency import Consistency
from labeldp.deep._inputs import (
    Inputs,
    Resident,
    inputs_digest,
    inputs_name,
    inputs_of,
    require_own_order,
    together,
)
from labeldp.deep._loop import (
    Epoch,
    Recipe,
    Result,
    device_of,
    from_first,
    is_first,
    plain,
    predict,
    require_likelihoods,
    require_one_process,
    takes_labels,
    train,
)
from labeldp.deep._losses import Dense, Heads, debiased_loss
from labeldp.deep._stages import (
    Checkpoint,
    RatedNet,
    SharedRun,
    StageSettings,
    TrainedNet,
    Trainer,
    evidence_digest,
    facts_of_labels,
    facts_of_training,
    logits_of,
    opened,
    rated,
    require_held_out,
    seed_of,
    seeded,
    softmax,
    weights_given,
)
from labeldp.deep.models import Ensemble
from labeldp.errors import InvalidInput, LabelDPError, LabelDPWarning, UntrainedWarning, warn
from labeldp.evidence import NoisyLabels
from labeldp.laws import LabelColumns, Law
from labeldp.protocol._estimator import (
    ClassifierEstimator,
    StagedEstimator,
    judged,
    not_fitted,
    undisturbed,
)
from labeldp.protocol._fit import (
    FitPlan,
    is_group_prior,
    open_fit,
    require_known_rates,
)
from labeldp.protocol._fit import Rows as Positions
from labeldp.protocol._prior import Prior, TopK, stages_of
from labeldp.protocol._several import (
    columns_told,
    rates_of,
    share_right,
    stacked,
    untold,
)
from labeldp.protocol.metrics import class_rates

if TYPE_CHECKING:
    from labeldp.custody._private import LabelFacts, PrivateLabels
    from labeldp.protocol._fit import GroupPrior

Floats = NDArray[np.float64]


class NetEstimator(StagedEstimator[TrainedNet]):
    """The part of an estimator around a torch net: its inputs and settings, the checks before a
    charge, and a folder that resumes a fit."""

    module: Any
    recipe: Any
    class_prior: Any = None
    random_state: Any
    device: Any
    folder: str | Path | None
    progress: Callable[[Epoch], object] | None

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.three_d_array = True
        return tags

    # Fitting
    # ----------------------------------------------------------------------------------------------

    def fit(
        self,
        X: Any,
        y: Any = None,
        *,
        ids: ArrayLike | None = None,
        id_of: Callable[[Any], object] | None = None,
    ) -> Self:
        """Privatize the labels and learn from them, or learn from noisy labels.

        Parameters
        ----------
        X : (n, ...) array or tensor, map-style Dataset, or DataLoader of one; public
            Bytes (uint8) with three or more axes are images and reach the net scaled to [0, 1];
            other numbers are passed unchanged. If a Dataset's items are tuples, the first part is
            the input. Row i of y belongs to item i of the Dataset, whatever the order of a
            DataLoader; `with_evidence(dataset, noisy, ids=...)` matches items to noisy labels by
            id.
        y : PrivateLabels, which are charged once for all stages, or NoisyLabels, which cost nothing
            Only the first process reads PrivateLabels; the others may pass None. Of several
            columns, which a classifier takes, `epsilon` is the total for all of them, `law` is
            "auto", the name of each column's law, or one of `labels.classes.law`, and the ledger
            has one charge, which counts in the account of each column. The losses of the heads add
            up, each the exact likelihood of its column; where a draw tells of the columns only
            together, as under a prior, the likelihood of the combinations is taken. `predict`
            returns (n, L), `predict_proba` a list of L arrays.
        ids : (n,) or (n, columns) array, optional
            Public ids of X's rows: each row of X gets the label of its id, and rows without one are
            left out; by default row i of X gets label i. With a ledger, of labels without ids, a
            Dataset is read once before anything is charged, so that a repeat is recognised; with a
            folder it is read once in any case.
        id_of : function of an item, optional
            Returns the id of a Dataset's item. Each item that is read is checked by it: against
            `ids`, or those of NoisyLabels, or else its position.

        Returns
        -------
        self

        Raises
        ------
        InvalidInput
            Before anything is charged: for any fault of X, y, the net or the settings (a step is
            tried with a copy of the net), or a folder of another fit. During training: for logits
            or losses that are not finite, or a Dataset whose order changes; the run keeps the
            labels that were drawn, and the same fit, or another recipe in another folder, resumes
            from them.
        """
        from_first(lambda: self._require_public(X, y, ids))
        known = isinstance(y, NoisyLabels) or (is_closed(y) and y.explicit_ids)
        named = y.ids if ids is None and known else ids
        inputs = self._inputs(X, y, id_of, named if id_of is not None else None)
        if not isinstance(y, NoisyLabels):
            require_own_order(X, ids)
        with self._whole():
            return self._fit(X, inputs, self._shared(y), ids)

    def _inputs(
        self, X: Any, y: Any, id_of: Callable[[Any], object] | None = None, ids: Any = None
    ) -> Inputs:
        self._require_settings()
        return inputs_of(X, id_of=id_of, ids=ids)

    def _matched(
        self, X: Any, inputs: Inputs | None, labels: Any, ids: ArrayLike | None
    ) -> tuple[Inputs, Any]:
        return together(X, inputs_of(X, watch=False) if inputs is None else inputs, labels, ids)

    def _require_public(self, X: Any, y: Any, ids: Any) -> None:
        if y is None:
            raise InvalidInput(
                "Expected y: PrivateLabels or NoisyLabels, got None. Labels in a Dataset or"
                " DataLoader are not looked at: take them out by labeldp.deep.split_labels; of a"
                " dataset of with_evidence pass dataset.noisy."
            )
        super()._require_public(X, y, ids)

    def _shared(self, y: Any) -> Any:
        """Return the labels, and to other processes than the first what is public about them."""
        if isinstance(y, NoisyLabels):
            return y
        from labeldp.custody._private import of_facts

        made: list[PrivateLabels] = []

        def tell() -> LabelFacts:
            made.append(y)
            if self.folder is not None and y.account.ledger is None and y.account.noise is None:
                raise InvalidInput(
                    "Expected a ledger of the labels with folder=: without one a killed fit could"
                    " not draw the same labels again. Make them with ledger=."
                )
            facts: LabelFacts = y.facts
            return facts

        facts = from_first(tell)
        return made[0] if made else of_facts(facts)

    def _start(self, training: Trainer, plan: FitPlan) -> tuple[Trainer, None]:
        if plan.rates is not None:
            for net in rated(training.template):
                net.know(plan.rates)
        return replace(training, first=plan.prior), None

    def _state(self) -> AbstractContextManager[Checkpoint]:
        return opened(self.folder)

    def _once(self, make: Callable[[], Result]) -> Result:
        return from_first(make)

    def _open(self, plan: FitPlan, training: Trainer, state: Checkpoint) -> SharedRun:
        resumes, runs = state.run_id, []

        def charge() -> None:  # in the first process alone: two of them would charge twice
            runs.append(open_fit(plan, public_digest=training.public_digest, resumes=resumes))
            state.charged(runs[0].receipt)

        from_first(charge)
        return SharedRun(runs[0] if runs else None, len(training.inputs), state)

    def _training(
        self, inputs: Inputs, source: FitPlan | NoisyLabels, state: Checkpoint
    ) -> Trainer:
        if isinstance(source, NoisyLabels):
            recipes = recipes_for(self.recipe, len(stages_of(self.stages)), 1, source.classes)
            return self._trainer(
                inputs,
                source.classes,
                recipes,
                state,
                lambda: {"noisy_labels": evidence_digest(None, source)},
            )
        stages = source.stages
        recipes = recipes_for(
            self.recipe, len(stages_of(self.stages)), stages.n_stages, source.classes
        )
        if source.grouped is not None and not source.asks_rates:
            world = 1 if self._fabric is None else self._fabric.world_size
            recipes = (_learns_from_prior(recipes[0], world), *recipes[1:])
        if any(plain(recipe.loss) is debiased_loss for recipe in recipes) and not source.invertible:
            raise InvalidInput(
                f"Expected one invertible law for all rows with debiased_loss, got {stages.law} in"
                f" {stages.n_stages} stages. Use law='rr' or 'subset', stages=1 without a prior,"
                " or likelihood_loss."
            )
        share, within = (
            stages.fractions[-stages.n_stages],
            source.labels.rows.given.within(source.labels.account.max_rows_per_unit, len(inputs)),
        )
        require_held_out(recipes, round(stages.validation_fraction * within))
        return self._trainer(
            inputs, source.classes, recipes, state, lambda: facts_of_labels(source), share, within
        )

    def _template(self, classes: Sequence[object], seed: int, few: Tensor) -> nn.Module:
        """Make the net with its initial weights, from inputs to logits (m, K), and try it on a few
        inputs."""
        sizes = sizes_of(classes)
        made = template_of(self.module, sum(sizes), seed, few, sizes=sizes)
        if isinstance(made, Ensemble) and (made.sizes or (sum(sizes),)) != sizes:
            raise InvalidInput(
                f"Expected an Ensemble with sizes={sizes} for these classes, got {made.sizes}. Give"
                " it the columns' numbers."
            )
        return made

    def _trainer(
        self,
        inputs: Inputs,
        classes: Sequence[object],
        recipes: tuple[Recipe, ...],
        checkpoint: Checkpoint,
        facts: Callable[[], dict[str, object]],
        share: float = 1.0,
        within: int | None = None,
    ) -> Trainer:
        """Make the learner of the stages, after a trial step and a check that the folder is this
        fit's.

        `share` of the rows is expected in the first stage; `within` is the number of rows within
        their units' cap, None for all.
        """
        seed, few = (
            from_first(lambda: seed_of(self.random_state)),
            next(iter(inputs.batches([inputs.telling()]))),
        )
        columns = classes if isinstance(classes, LabelColumns) else None
        if columns is not None:
            if is_group_prior(self._prior.table):
                raise InvalidInput(
                    "Expected a prior of weights with a net of several label columns, got one that"
                    " asks about groups. Drop it."
                )
            require_several(recipes, self._prior.top_k)
        if self.class_prior is not None and any(takes_labels(recipe.loss) for recipe in recipes):
            raise InvalidInput(
                "Expected class_prior=None with a loss on hard labels, which takes noisy labels as"
                " if they were true, got rates. Use likelihood_loss."
            )
        template = self._template(classes, seed, few)
        fabric = self._fabric
        device = torch.device(device_of(self.device) if fabric is None else fabric.device)
        require_one_process(recipes, 1 if fabric is None else fabric.world_size)
        least = fewest(
            len(inputs) if within is None else within,
            min(recipe.rows_of_batch(1) for recipe in recipes),
            share,
        )
        dry_run(template, few, sizes_of(classes), recipes, device, rows=least)
        # for a Dataset it costs a pass over all items: only if needed, and once
        digest = functools.cache(lambda: inputs_digest(inputs))
        if checkpoint.folder is not None:
            known = from_first(
                lambda: (
                    facts_of_training(self, lambda: inputs_name(inputs, digest), recipes, template)
                    | facts()
                )
            )
            seed = checkpoint.begin(known, seed, template, weights_given=weights_given(self))
        self._row_shape, self._row_type = tuple(few.shape[1:]), few.dtype
        settings = StageSettings(recipes, self._prior.temperature, self._prior.top_k, self.progress)
        return Trainer(
            inputs, template, settings, seed, device, fabric, checkpoint, digest, columns=columns
        )

    def _keep(
        self, training: Trainer, noisy: NoisyLabels, model: TrainedNet, held_out: Positions
    ) -> Positions:
        self._keep_net(training, model)
        return held_out

    def _keep_net(self, training: Trainer, model: TrainedNet) -> None:
        self.module_, self.history_ = model.module, [list(each) for each in model.history]
        self._precision = training.settings.recipes[model.number - 1].precision
        self.__dict__.pop("n_features_in_", None)
        if len(self._row_shape) == 1:  # a table: scikit-learn's name for its number of columns
            self.n_features_in_ = int(self._row_shape[0])

    def _require_settings(self) -> None:
        _validate.function(progress=self.progress, takes="an Epoch", none=True)
        if self._fabric is None:
            device_of(self.device)

    @property
    def _fabric(self) -> Any:
        """The device, if it is a launched Fabric; else None."""
        return self.device if hasattr(self.device, "launch") else None

    # Predicting
    # ----------------------------------------------------------------------------------------------

    def _probabilities(self, X: Any, sizes: Sequence[int] = ()) -> Floats:
        """Predict probabilities of the net's classes or points: (n, K); those of several heads with
        `sizes` outputs side by side."""
        if not hasattr(self, "module_"):
            raise not_fitted(type(self).__name__)
        inputs = inputs_of(X, watch=False)
        try:
            return softmax(
                logits_of(
                    self.module_, inputs, np.arange(len(inputs)), self._precision, self._fabric
                ),
                sizes,
            )
        except LabelDPError:
            raise
        # if the inputs have another shape or type than in fit, that is the reason, and the message
        # says so
        except Exception as error:
            one = next(inputs.batches([torch.zeros(1, dtype=torch.int64)]))
            found, shape = tuple(one.shape[1:]), self._row_shape
            if found == shape and one.dtype == self._row_type:
                raise
            if found != shape and len(found) == len(shape) == 1:
                raise InvalidInput(
                    f"X has {found[0]} features, but {type(self).__name__} is expecting"
                    f" {shape[0]} features as input."
                ) from error
            raise InvalidInput(
                f"Expected rows of shape {shape} and type {self._row_type}, as in fit, got {found}"
                f" and {one.dtype}, which the net does not take: {error}. {_AS_NETS_TAKE_THEM}"
            ) from error


class TorchClassifier(ClassifierEstimator, NetEstimator):
    """Train any torch net under label differential privacy, in one stage or several.

    Parameters
    ----------
    module : nn.Module, or function from the number of classes to one
        Returns logits (m, K). Copied, never changed. No default. With several label columns it has
        a head for each: K_1 + ... + K_L outputs, the classes of one column after another.
    recipe : Recipe or sequence of one a stage, default=None
        Training settings: one Recipe for all stages, or one for each; if there are fewer stages
        than asked for, the first ones are used. None: `Recipe()`, with five epochs for two classes,
        whose noise a net memorises sooner. Losses on hard labels get the most likely label of each
        row, `debiased_loss` its weights, all others log-likelihoods (see `Recipe.loss` for your own
        losses).
    epsilon : float > 0, default=1.0
        Total label-DP budget of a fit, for one unit (a row, or the labels' own unit).
    stages : int >= 1, or sequence of floats > 0, default=1
        Number of stages, or the share of the rows in each, at any scale. With 2 or more the rows
        are drawn in parts, and each stage's model is the prior with which the next part is
        privatized (LP-MST), at the same epsilon; each stage has all epochs of its recipe. On some
        thousand rows one stage was mostly better. One stage is used if a prior cannot help.
    law : str or Law, default="auto"
        A law's name, or a Law. "auto" draws each row with the most informative law. The papers'
        recipes are parameters by name: `**papers.ghazi2021.lp_2st("cifar10", epsilon=2.0)`.
    prior : (n, K) array of floats >= 0, function of X, ClusterPrior or Prior, default=None
        Public class weights for the first stage; they must not depend on these labels. A
        ClusterPrior asks for them privately, at a part of epsilon, and the law gets the rest; for a
        Dataset it needs an embedder. With `Recipe(consistency=...)` they are also the first
        predictions. With a ClusterPrior, losses on likelihoods and one process, a first recipe
        without it gets `Consistency(strong=None)`. `labeldp.learn.Prior` adds settings of later
        stages.
    class_prior : (K,) floats, mapping, or labeldp.learn.HistogramPrior, default=None
        Known rates of the classes: public, or released before, never counted from these labels
        without noise. After each stage the logits are shifted until the mean probability of each
        class over the rows of X is its rate, at the cost of a prediction of some of them. It costs
        no budget. Not with losses on hard labels. Of several label columns a mapping of columns to
        them; a column that is left out has none. `prior` is what rows are asked by; this is what is
        learned from the answers. `HistogramPrior(epsilon)` asks the raw labels of one column for
        the rates, at this part of the fit's epsilon, without a `prior`; it does not count held-out
        rows.
    validation_fraction : float in [0, 1), default=0.0
        Share of the rows held out of training, to measure the model by their noisy labels; with
        `Recipe(patience=...)` every other one chooses the epoch and the rest measure.
        `LabelDPClassifier` holds out 0.1 and learns from these rows in a final refit; a net is not
        trained twice, so it would lose them, and the default is 0. Pass 0.1 for the estimates
        below.
    random_state : int >= 0, RandomState or None, default=None
        Seed of the training only, never of the noise or of the partition into stages.
    device : str, torch.device, or lightning's Fabric, default="auto"
        "auto": the GPU if there is one. A launched Fabric decides device, precision and
        distribution; every process then calls `fit` with the same X, and the first one alone reads
        the labels, draws, and writes to the folder: pass y=None in the others.
    folder : str or Path, default=None
        Folder for the state of a fit. The same call after a kill resumes from it: finished stages
        are not trained again, and no label is drawn twice. PrivateLabels then need a ledger, and
        `module` should be a function, or have the same initial weights each time.
    progress : function of an Epoch, default=None
        Called after each epoch of each stage; may raise an error to stop.

    Attributes
    ----------
    classes_ : (K,) array
        With several label columns a list of L, as are the estimates below.
    module_ : nn.Module
        Trained, in evaluation mode; output k is classes_[k]. With `class_prior` your net is its
        `net`, and lacks the shift.
    noisy_labels_ : NoisyLabels of all rows, in the order of X
    privacy_ : PrivacySpent
    prior_ : ClusterModel or None
        The clusters and their noisy histograms, with a ClusterPrior.
    receipts_ : tuple of Receipt
        Receipts of all charges: the ClusterPrior's, and the rows'.
    stages_ : tuple of Stage
    estimated_accuracy_ : Estimate or None
        Estimated true-label accuracy, on held-out noisy rows that chose no epoch. None if there are
        fewer than 20 such rows (by default there are none), or the law has no unbiased estimator.
        Where the classes are a `Grid`, the share of rows whose point is predicted exactly, however
        near the others are.
    estimated_log_loss_ : Estimate or None
        Estimated log-loss on the same rows.
    baseline_accuracy_, baseline_log_loss_ : Estimate or None
        The same metrics of a constant prediction, the class frequencies.
    history_ : list of lists of Epoch, one for each stage
    n_features_in_ : int
        Number of columns of X, if it is a table.

    See Also
    --------
    labeldp.LabelDPClassifier : the same for any estimator of scikit-learn.
    labeldp.deep.train : one training, on evidence.

    References
    ----------
    Ghazi, Golowich, Kumar, Manurangsi and Zhang (2021), "Deep Learning with Label Differential
    Privacy": RRWithPrior and LP-MST.

    Notes
    -----
    Guarantee: everything that the fit returns or stores is epsilon-label-DP. Each label is
    randomized once, and all else is post-processing of the outputs. Features are not protected.

    scikit-learn is optional. If it is installed, this is one of its estimators: it can be cloned,
    tuned by a search, and put into `LabelDPClassifier`, which then decides about stages and laws.
    Learning from noisy labels needs torch, numpy and pyarrow alone.

    Examples
    --------
    >>> import labeldp as ldp
    >>> from labeldp.deep.models import Mlp
    >>> y = np.arange(900) % 3
    >>> X = np.eye(3, dtype=np.float32)[y] + np.random.default_rng(0).normal(
    ...     0, 0.3, (900, 3)
    ... ).astype(np.float32)
    >>> net = TorchClassifier(
    ...     lambda k: Mlp(3, k, (16,)),
    ...     recipe=Recipe(epochs=4),
    ...     epsilon=2.0,
    ...     random_state=0,
    ... )
    >>> labels = ldp.PrivateLabels(y, classes=[0, 1, 2], noise=ldp.SeededNoise(0))
    >>> bool(net.fit(X, labels).score(X, y) > 0.8)
    True
    """

    takes_columns = True

    def __init__(
        self,
        module: nn.Module | Callable[[int], nn.Module],
        *,
        recipe: Recipe | Sequence[Recipe] | None = None,
        epsilon: float = 1.0,
        stages: int | Sequence[float] = 1,
        law: str | Law = "auto",
        prior: ArrayLike | Callable[[Any], ArrayLike] | GroupPrior | Prior | None = None,
        class_prior: ArrayLike | Mapping[object, float] | GroupPrior | None = None,
        validation_fraction: float = 0.0,
        random_state: Any = None,
        device: Any = "auto",
        folder: str | Path | None = None,
        progress: Callable[[Epoch], object] | None = None,
    ) -> None:
        self.module = module
        self.recipe = recipe
        self.epsilon = epsilon
        self.stages = stages
        self.law = law
        self.prior = prior
        self.class_prior = class_prior
        self.validation_fraction = validation_fraction
        self.random_state = random_state
        self.device = device
        self.folder = folder
        self.progress = progress

    def _template(self, classes: Sequence[object], seed: int, few: Tensor) -> nn.Module:
        net = super()._template(classes, seed, few)
        if self.class_prior is None:
            return net
        # Rates that are asked for are known after the charge (`_start`); until then equal ones
        # stand for them.
        given = (
            np.full(len(classes), 1 / len(classes))
            if is_group_prior(self.class_prior)
            else self.class_prior
        )
        rates = (
            rates_of(given, classes)
            if isinstance(classes, LabelColumns)
            else [class_rates(given, list(classes))]
        )
        heads = list(zip(sizes_of(classes), rates, strict=True))
        # Each net of several is held to the rates, and so is their mean.
        return (
            Ensemble([RatedNet(each, heads) for each in net.nets], net.sizes)
            if isinstance(net, Ensemble)
            else RatedNet(net, heads)
        )

    def fit_likelihood(self, X: Any, log_likelihood: ArrayLike) -> Self:
        """Learn in one stage from likelihoods, as `LabelDPClassifier` asks for; the classes are
        0..K-1. Nothing is charged or stored.

        Parameters
        ----------
        X : (n, ...) array or tensor, map-style Dataset, or DataLoader of one
        log_likelihood : (n, K) array
            ln P[output | y] up to a constant per row; -inf where a class is impossible.
        """
        self._require_settings()
        require_known_rates(self.class_prior)
        inputs = inputs_of(X)
        table = likelihood_table(log_likelihood, len(inputs))
        recipes = recipes_for(
            self.recipe, len(stages_of(self.stages)), 1, range(table.values.shape[1])
        )
        require_likelihoods(recipes[0].loss, "in fit_likelihood")
        require_held_out(recipes, 0)
        with self._whole():
            trainer = self._trainer(
                inputs, range(table.values.shape[1]), recipes, Checkpoint(None), dict
            )
            model = trainer.learn(
                copy.deepcopy(trainer.template), None, np.arange(len(inputs)), table, None
            )
            self._keep_net(trainer, model)
        self._set_classes(range(table.values.shape[1]))
        self._columns = None
        # drop an earlier fit's guarantee: nothing is known about the origin of these likelihoods
        for name in _OF_LABELS:
            self.__dict__.pop(name, None)
        self._learned = None
        return self

    def predict_proba(self, X: Any) -> Any:
        """Predict probabilities of the true label: (n, K) float64, columns in the order of
        `classes_`; of several columns a list of them.

        Parameters
        ----------
        X : as in `fit`
        """
        columns = self._columns
        return (
            self._probabilities(X)
            if columns is None
            else columns.separated(self._probabilities(X, columns.sizes))
        )

    # Several label columns
    # ----------------------------------------------------------------------------------------------

    _columns: LabelColumns | None = None  # of the last fit

    def predict(self, X: Any) -> NDArray[Any]:
        """Predict the most likely class of each row: (n,) class values; (n, L) for several label
        columns.

        Parameters
        ----------
        X : as in `fit`
        """
        if self._columns is None:
            return super().predict(X)
        pairs = zip(self.classes_, self.predict_proba(X), strict=True)
        return stacked([values[proba.argmax(axis=1)] for values, proba in pairs])

    def score(
        self,
        X: Any,
        y: Any,
        sample_weight: ArrayLike | None = None,
        *,
        ids: ArrayLike | None = None,
    ) -> float:
        """Measure the accuracy on true labels; of several label columns the share of rows in which
        all are right, on public labels.

        Parameters
        ----------
        X : as in `fit`
        y : NoisyLabels of n rows, or (n,) public true labels; (n, L) public true labels of several
        columns
            Where a column's classes are a `Grid`, a true number counts as its nearest point.
        sample_weight, ids
            As of every classifier.
        """
        columns = self._columns
        if columns is None:
            return super().score(X, y, sample_weight, ids=ids)
        return share_right(
            self.predict(X),
            y,
            columns,
            None if sample_weight is None else np.asarray(sample_weight, np.float64),
        )

    def _measure(
        self,
        noisy: NoisyLabels,
        held_out: Positions,
        proba: Callable[[Positions], NDArray[np.floating]],
    ) -> None:
        columns = noisy.classes if isinstance(noisy.classes, LabelColumns) else None
        self._columns = columns
        if columns is None:
            super()._measure(noisy, held_out, proba)
            return
        if lacking := untold(noisy):
            warn(
                UntrainedWarning(
                    f"No row was asked about {_validate.quoted(lacking)}, so that these heads have"
                    " learned nothing. Predict the others."
                )
            )
        found: dict[str, list[Any]] = {name: [] for name in ("classes_", *_ESTIMATES)}
        heads = columns.separated(proba(held_out)) if len(held_out) else []
        for number, each in enumerate(columns_told(noisy)):

            def head(rows: Any, n: int = number) -> Any:
                return heads[n][np.searchsorted(held_out, rows)]

            self._describe(each, judged(each, held_out, head))
            for name, values in found.items():
                values.append(getattr(self, name))
        for name, values in found.items():
            setattr(self, name, values)


_ESTIMATES = (
    "estimated_accuracy_",
    "estimated_log_loss_",
    "baseline_accuracy_",
    "baseline_log_loss_",
)
_OF_LABELS = ("prior_", "noisy_labels_", "privacy_", "receipts_", "stages_", *_ESTIMATES)


# Before the charge
# --------------------------------------------------------------------------------------------------


def sizes_of(classes: Sequence[object]) -> tuple[int, ...]:
    """Return the number of classes of each head of a net: one, or one for each of several label
    columns."""
    return classes.sizes if isinstance(classes, LabelColumns) else (len(classes),)


def require_several(recipes: Sequence[Recipe], top_k: TopK | None) -> None:
    """Refuse, before anything is charged, what a net of several label columns cannot learn by."""
    if top_k is not None:
        raise InvalidInput(
            "Expected no Prior(top_k=) with several label columns: it compares the classes of one."
        )
    for recipe in recipes:
        if recipe.consistency is not None:
            raise InvalidInput(
                "Expected a recipe without consistency with several label columns: its targets are"
                " of one. Leave it out."
            )
        require_likelihoods(recipe.loss, "with several label columns")


def recipes_for(
    recipe: Any, n_stages: int, used: int, classes: Sequence[object]
) -> tuple[Recipe, ...]:
    """Return the recipe of each stage: one for all, or the first ones of a sequence with one per
    stage.

    Parameters
    ----------
    recipe : Recipe, sequence of Recipe, or None
    n_stages : int
        Number of stages that the user set.
    used : int
        Number of stages that there will be: one if a prior cannot help.
    classes : sequence of K values
    """
    if recipe is None:
        # a net memorises the noise of two classes sooner
        recipe = Recipe(epochs=5) if max(sizes_of(classes)) == 2 else Recipe()
    if isinstance(recipe, Recipe):
        return (recipe,) * used
    found = tuple(recipe) if isinstance(recipe, Sequence) else (recipe,)
    if len(found) != n_stages or not all(isinstance(each, Recipe) for each in found):
        kinds = ", ".join(type(each).__name__ for each in found)
        raise InvalidInput(
            f"Expected a Recipe, or a sequence of one for each of {n_stages} stages; got"
            f" {kinds or 'none'}."
        )
    return found[:used]


def _learns_from_prior(recipe: Recipe, world: int) -> Recipe:
    """The first stage's recipe with targets that begin with a prior that was paid for, where it has
    none and can have them.

    The likelihood of the noisy labels alone would forget what the prior says: it only decides how
    rows are drawn.
    """
    if (
        recipe.consistency is not None
        or world > 1
        or takes_labels(recipe.loss)
        or plain(recipe.loss) is debiased_loss
    ):
        return recipe
    return replace(recipe, consistency=Consistency(strong=None))


def template_of(
    module: Any,
    n_outputs: int,
    seed: int,
    few: Tensor,
    what: str = "one for each of {} classes",
    sizes: Sequence[int] = (),
) -> nn.Module:
    """Make the net with its initial weights; refuse one that does not return that many finite
    outputs for these inputs.

    Parameters
    ----------
    module : nn.Module, which is copied, or function from the number of outputs to one
    n_outputs : int
    seed : int
        Seed of the weights that a function makes.
    few : (m, ...) tensor
        Inputs to try it on.
    what : str
        What the outputs are, for messages.
    sizes : sequence of int, optional
        The number of classes of each head, if outputs are logits; a net that returns probabilities
        instead is then warned of.
    """
    if isinstance(module, nn.Module):
        made = copy.deepcopy(module)
    elif callable(module):
        # the same weights on every device, and in a fit that resumes
        with seeded(seed, 0, torch.device("cpu")):
            made = module(n_outputs)
    else:
        made = module
    if not isinstance(made, nn.Module) or not any(True for _ in made.parameters()):
        raise InvalidInput(
            "Expected an nn.Module with weights, or a function of the number of outputs that makes"
            f" one; got {type(made).__name__}."
        )
    try:
        logits = predict(made, few, precision="float32")
    except InvalidInput:
        raise
    except Exception as error:
        raise InvalidInput(
            f"Expected a net that takes inputs of shape {tuple(few.shape[1:])} and type"
            f" {few.dtype}, got {type(error).__name__}: {error}. Nothing was drawn."
            f" {_AS_NETS_TAKE_THEM}"
        ) from error
    if logits.shape != (len(few), n_outputs):
        raise InvalidInput(
            f"Expected outputs of shape {(len(few), n_outputs)} for {len(few)} inputs,"
            f" {what.format(n_outputs)}; got {tuple(logits.shape)}. Give the net {n_outputs}"
            " outputs."
        )
    if not bool(torch.isfinite(logits).all()):
        raise InvalidInput(
            "Expected finite outputs of the net before training, got NaN or infinity. Check its"
            " first weights."
        )
    if sizes and is_first() and _gives_probabilities(made, logits.split(list(sizes), dim=1)):
        warn(
            LabelDPWarning(
                "The net returns probabilities, as one that ends in Softmax or Sigmoid does. Losses"
                " and predictions take its outputs as logits, so that it learns less and is never"
                " sure. Leave the last layer out."
            )
        )
    return made


def _gives_probabilities(net: nn.Module, heads: Sequence[Tensor]) -> bool:
    """Return whether outputs of a few inputs are probabilities; log-probabilities are logits, of
    which a softmax gives the same."""
    # its outputs alone could be logits by chance
    if isinstance(net, nn.Sequential) and isinstance(net[-1], nn.Sigmoid):
        return True
    return any(
        head.shape[1] > 1
        and len(head.unique(dim=0)) > 1  # a last layer of zeros gives all inputs the same
        and bool((head >= 0).all())
        and bool(((head.sum(1) - 1).abs() < _SUM_TO_ONE).all())
        for head in heads
    )


_SUM_TO_ONE = 1e-4  # how near, in single precision
_AS_NETS_TAKE_THEM = (
    "Give X an axis of rows first, also for one row: X[:1]; numbers as X.astype('float32'), or"
    " bytes of images as 'uint8'; and the channels of images before their rows:"
    " X.transpose(0, 3, 1, 2), of a tensor X.permute(0, 3, 1, 2)."
)


def likelihood_table(log_likelihood: Any, n_rows: int) -> Dense:
    """Check a table of log-likelihoods and convert it to a `Dense` form.

    Raises
    ------
    InvalidInput
        If the shape is not (n, K), a value is NaN or +inf, or a row has likelihood 0 for every
        class.
    """
    table = np.asarray(log_likelihood)
    if (
        table.ndim != 2
        or table.shape[0] != n_rows
        or table.shape[1] < 2
        or table.dtype.kind not in "fiu"
    ):
        raise InvalidInput(
            f"Expected log_likelihood as numbers of shape ({n_rows}, K), a row for each of X and K"
            f" >= 2; got shape {table.shape} of {table.dtype}. Pass noisy.log_likelihood()."
        )
    if not np.isfinite(table.max(axis=1)).all():
        raise InvalidInput(
            "Expected log-likelihoods without NaN or +inf, and above -inf, a likelihood above 0,"
            " for some class of every row; got others. Pass noisy.log_likelihood()."
        )
    return Dense(torch.from_numpy(table.astype(np.float32)))


_MORE_ROWS = (
    " So few rows may be left to a stage or a batch: give more, stages=1, or a net without batch"
    " normalisation."
)
# a part with this expected number of rows has a single row in less than one of a hundred thousand
# fits
_CERTAIN = 16


def dry_run(
    module: nn.Module,
    few: Tensor,
    sizes: Sequence[int],
    recipes: Sequence[Recipe],
    device: torch.device,
    *,
    rows: int,
) -> None:
    """Try one step of each recipe, on a copy of the net with made-up labels, so that a fault costs
    no budget.

    Parameters
    ----------
    module : nn.Module
        Copied, never changed.
    few : (m, ...) tensor
        Inputs; repeated or cut to the number of rows.
    sizes : sequence of int
        The number of classes of each head.
    recipes : sequence of Recipe
    device : torch.device
        Device of the fit.
    rows : int
        Smallest number of rows that a batch of the fit can have.

    Raises
    ------
    InvalidInput
        If the step fails.

    Notes
    -----
    Random states are restored, so a seeded fit has the same result as without the trial. Cost: a
    step, and a copy of the net.
    """
    if not any(weight.requires_grad for weight in module.parameters()):
        raise InvalidInput(
            "Expected a net with weights to train, got one whose weights are all frozen. Call"
            " requires_grad_() on some."
        )
    inputs = Resident(few[torch.arange(rows) % len(few)])
    # each once, where several stages have the same
    for recipe in {id(each): each for each in recipes}.values():
        loss = plain(recipe.loss)
        if str(getattr(loss, "__module__", "")).split(".")[0] == "torch":
            raise InvalidInput(
                "Expected a loss of what was released, got torch's"
                f" {getattr(loss, '__name__', type(loss).__name__)}, which takes true labels, and"
                " would learn the noise as if it were true. Use deep.likelihood_loss, or"
                " deep.cross_entropy for noisy labels as if they were true."
            )
        # hides warnings, since the real training gives its own
        with undisturbed(), seeded(0, 0, device) as generator:
            # so that the step has targets
            shared = None if recipe.consistency is None else replace(recipe.consistency, warm_up=0)
            step = replace(
                recipe, epochs=1, batch_size=max(2, rows), patience=None, consistency=shared
            )
            try:
                train(
                    copy.deepcopy(module),
                    inputs,
                    _target(recipe.loss, rows, sizes),
                    step,
                    generator=generator,
                    device=device,
                )
            # its own message says what is wrong, and on which device
            except torch.OutOfMemoryError:
                raise
            except Exception as error:
                found = (
                    str(error)
                    if isinstance(error, InvalidInput)
                    else f"{type(error).__name__}: {error}"
                )
                raise InvalidInput(
                    f"Expected a net and a recipe that can take a step on {rows}"
                    f" input{'s' * (rows > 1)} of shape {tuple(few.shape[1:])}, got:"
                    f" {found.removesuffix('.')}. Nothing was charged or"
                    f" drawn.{_MORE_ROWS if rows == 1 else ''}"
                ) from error


def fewest(n_rows: int, batch_size: int, share: float) -> int:
    """Return the smallest number of rows that a batch of the fit can have, at most 2: batch
    normalisation fails on one row only.

    Parameters
    ----------
    n_rows : int
    batch_size : int
    share : float
        Expected share of the rows in the first stage.
    """
    few = n_rows if share == 1 else 2 if n_rows * share > _CERTAIN else 1
    return min(2, few, batch_size)


def _target(loss: Any, rows: int, sizes: Sequence[int]) -> Any:
    """Make the evidence that a loss takes, for rows with made-up classes."""
    if len(sizes) > 1:
        return Heads(tuple(_target(loss, rows, (size,)) for size in sizes), tuple(sizes))
    (n_classes,) = sizes
    labels = torch.arange(rows) % n_classes
    if takes_labels(loss):
        return labels
    one = nn.functional.one_hot(labels, n_classes).float()
    return Dense(one if plain(loss) is debiased_loss else one - 1)
