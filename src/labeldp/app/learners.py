# SPDX-License-Identifier: Apache-2.0
"""What `labeldp train` can train: gradient boosting or clusters of rows of numbers, and nets by name; each with facts to keep."""

import warnings
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from numpy.typing import NDArray

from labeldp import _validate
from labeldp.app.clusters import CLUSTER_MODELS, ClusterLearner, ClustersSpec, Embedding, as_logistic, prior_for, standardised_by
from labeldp.deep import named
from labeldp.errors import InvalidInput, RareCategoriesWarning
from labeldp.tables.arrays import ArrayInputs
from labeldp.tables.features import MAX_CATEGORIES
from labeldp.tables.inputs import ColumnInputs, Inputs, StandardisedInputs
from labeldp.tables.passes import Progress
from labeldp.tables.standardised import Standardised, learn_standardised

AUTO = "auto"
LINEAR = "linear"
BOOSTING = "boosting"
MODELS = (AUTO, BOOSTING, LINEAR, *CLUSTER_MODELS, *named.NETS)
MANY_CATEGORIES = 300
"""Categories of all columns together from which "auto" is a linear model: trees choose among all ways to part them, and find the noise."""
IMAGES_BY_DEFAULT = "small-convnet"


@dataclass(frozen=True)
class NetOptions:
    """How a net is trained; None is its own default.

    Parameters
    ----------
    epochs, batch_size : int, optional
    rate : float, optional
        The learning rate's peak.
    device : str
        "auto": the GPU if there is one.
    folder : Path, optional
        Where the training keeps its state, so that the same call goes on after it was killed.
    """

    epochs: int | None = None
    batch_size: int | None = None
    rate: float | None = None
    device: str = AUTO
    folder: Path | None = None

    def __post_init__(self) -> None:
        if self.epochs is not None:
            _validate.integer(epochs=self.epochs, low=1)
        if self.batch_size is not None:
            _validate.integer(batch_size=self.batch_size, low=1)
        if self.rate is not None:
            _validate.positive(rate=self.rate)

    @property
    def given(self) -> list[str]:
        """Options that say something, as the command line calls them."""
        values = {
            "--epochs": self.epochs,
            "--batch-size": self.batch_size,
            "--rate": self.rate,
            "--device": None if self.device == AUTO else self.device,
            "--folder": self.folder,
        }
        return [name for name, value in values.items() if value is not None]


class Learner(Protocol):
    """One way to train."""

    inputs: Inputs
    """How the trained model reads its inputs; complete after `prepared`."""

    def prepared(self, X: NDArray[Any]) -> NDArray[Any]:
        """What was read of all rows, as the classifier takes it."""
        ...

    def classifier(self, seed: int, progress: Progress, **settings: Any) -> Any:
        """The classifier to fit, with the settings that all have in common."""
        ...

    def result(self, model: Any) -> tuple[Any, dict[str, object]]:
        """What is stored of the fitted classifier, and the facts to read it by."""
        ...


def learner_for(model: str, inputs: Inputs, n_classes: int, options: NetOptions) -> Learner:
    """The learner of a name that `MODELS` has, for these inputs."""
    if model in (BOOSTING, LINEAR) and inputs.image is not None:
        raise InvalidInput(f"Expected rows of numbers or categories with --model {model}, got images. Choose a net, as small-convnet.")
    if model in (BOOSTING, LINEAR, *CLUSTER_MODELS) or (model == AUTO and inputs.image is None):
        if options.given:
            name = "no net" if model == AUTO else model
            raise InvalidInput(f"Expected a net with {', '.join(options.given)}, got {name}. Choose one: --model mlp.")
        if model in CLUSTER_MODELS:
            return ClusterLearner(model, _limited(inputs))
        linear = model == LINEAR or (model == AUTO and _categories(inputs) >= MANY_CATEGORIES)
        return Linear(inputs) if linear else Boosting(_limited(inputs))
    return NetLearner(IMAGES_BY_DEFAULT if model == AUTO else model, _limited(inputs), n_classes, options)


def _categories(inputs: Inputs) -> int:
    return sum(len(column.categories) for column in inputs.features.columns) if isinstance(inputs, ColumnInputs) else 0


def _limited(inputs: Inputs) -> Inputs:
    """Inputs whose columns have as many categories as trees and nets take; a column that had more is warned of."""
    if not isinstance(inputs, ColumnInputs):
        return inputs
    features = inputs.features.limited()
    if cut := [f"{column.rarer:,} of {column.name!r}" for column in features.columns if column.rarer]:
        warnings.warn(
            RareCategoriesWarning(
                f"This model takes {MAX_CATEGORIES} categories of a column and counts rarer ones as one: {', '.join(cut)}. --model linear "
                "has a weight for each that occurs twice; --exclude leaves columns out."
            ),
            stacklevel=3,
        )
    return replace(inputs, features=features)


def needs_torch(model: str, *, images: bool) -> bool:
    """Whether the model will be a net."""
    return model in named.NETS or (model == AUTO and images)


@dataclass
class Boosting:
    """Histogram gradient boosting, told which columns are categories."""

    inputs: Inputs
    _standardised: Standardised | None = None

    def prepared(self, X: NDArray[Any]) -> NDArray[Any]:
        """Unchanged."""
        self._standardised = standardised_by(self.inputs, X)
        return X

    def classifier(self, seed: int, progress: Progress, prior: ClustersSpec | None = None, **settings: Any) -> Any:
        """LabelDPClassifier around its own default."""
        from labeldp.learn import LabelDPClassifier

        categories = self.inputs.features.categorical if isinstance(self.inputs, ColumnInputs) else []
        estimator = self._estimator(categories, seed)
        known = prior_for(prior, None if self._standardised is None else Embedding(self._standardised))
        return LabelDPClassifier(estimator, random_state=seed, prior=known, **settings)

    def _estimator(self, categories: list[int], seed: int) -> Any:
        from sklearn.ensemble import HistGradientBoostingClassifier

        return HistGradientBoostingClassifier(
            max_leaf_nodes=15,
            l2_regularization=1.0,
            early_stopping=False,
            categorical_features=categories or None,
            random_state=seed,
        )

    def result(self, model: Any) -> tuple[Any, dict[str, object]]:
        """The estimator, and how to read its probabilities."""
        made = model._model
        drawn = None if made.frequencies is None else {"share": made.share, "frequencies": [float(f) for f in made.frequencies]}
        return model.estimator_, {"channel": made.channel, "drawn": drawn}


class Linear(Boosting):
    """Logistic regression on the exact likelihood: a weight for each category, numbers standardised, gaps filled."""

    def prepared(self, X: NDArray[Any]) -> Any:
        """Rows of numbers standardised and categories as columns: a sparse matrix."""
        standardised = standardised_by(self.inputs, X)
        self.inputs = StandardisedInputs(self.inputs, standardised, sparse=True)
        return standardised.sparse(X)

    def _estimator(self, categories: list[int], seed: int) -> Any:
        from sklearn.linear_model import LogisticRegression
        from sklearn.pipeline import make_pipeline

        return make_pipeline(LogisticRegression(max_iter=200))

    def result(self, model: Any) -> tuple[Any, dict[str, object]]:
        """The estimator with scikit-learn's own type at its end."""
        found, facts = super().result(model)
        return (as_logistic(found) if hasattr(found, "steps") and hasattr(found.steps[-1][1], "C_") else found), facts


class NetLearner:
    """A net of `labeldp.deep.named`.

    Parameters
    ----------
    name : str
    inputs : Inputs
    n_classes : int
    options : NetOptions
    """

    def __init__(self, name: str, inputs: Inputs, n_classes: int, options: NetOptions):
        self.name, self.inputs, self._n_classes, self._options = name, inputs, n_classes, options
        self._recipe = named.recipe_for(name, n_classes, options.epochs, options.batch_size, options.rate)
        self._device = named.device_of(options.device)
        self._parameters: dict[str, int] = {}
        if inputs.image is not None:  # faults are told before all rows are read
            self._parameters = named.parameters_for(name, n_classes, inputs.image, 0)
        elif named.net_named(name).side:
            named.parameters_for(name, n_classes, None, inputs.shape[0] if isinstance(inputs, ArrayInputs) else len(inputs.names))

    def prepared(self, X: NDArray[Any]) -> NDArray[Any]:
        """Images as they are; rows of numbers standardised."""
        if self.inputs.image is not None:
            return X
        features = self.inputs.features if isinstance(self.inputs, ColumnInputs) else None
        standardised = learn_standardised(X, features)
        self.inputs = StandardisedInputs(self.inputs, standardised)
        self._parameters = named.parameters_for(self.name, self._n_classes, None, standardised.width)
        return standardised.apply(X)

    def classifier(self, seed: int, progress: Progress, prior: ClustersSpec | None = None, **settings: Any) -> Any:
        """TorchClassifier around the net."""
        from labeldp.deep import TorchClassifier

        options, parameters = self._options, self._parameters
        return TorchClassifier(
            lambda n_classes: named.build(self.name, parameters | {"n_classes": n_classes}),
            recipe=self._recipe,
            validation_fraction=0.1,
            random_state=seed,
            device=self._device,
            folder=options.folder,
            progress=_Epochs(progress),
            prior=prior_for(prior, "pca"),
            **settings,
        )

    def result(self, model: Any) -> tuple[Any, dict[str, object]]:
        """The net, and what makes it again."""
        recipe = self._recipe
        return model.module_, {
            "net": {"name": self.name, "parameters": self._parameters},
            "recipe": {"epochs": recipe.epochs, "batch_size": recipe.batch_size, "rate": recipe.rate, "stages": len(model.history_)},
        }


class _Epochs:
    """Epochs of one stage after another as progress."""

    def __init__(self, progress: Progress):
        self._progress, self._stage = progress, 0

    def __call__(self, epoch: Any) -> None:
        """After each epoch."""
        self._stage += epoch.number == 1
        self._progress(f"stage {self._stage}", epoch.number, epoch.epochs)
