# SPDX-License-Identifier: Apache-2.0
"""The models that `labeldp train` offers, with their scikit-learn preprocessing: boosting, a linear
model, clusters, and nets by name.

Boosting, the linear model and nets also learn numbers, whose classes are a `Grid`.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from sklearn.compose import ColumnTransformer
from sklearn.dummy import DummyClassifier
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import OneHotEncoder, OrdinalEncoder, StandardScaler

from labeldp import _validate
from labeldp.app._boosters import BOOSTERS, LIGHTGBM, facts_of, require_library
from labeldp.deep import _named as named
from labeldp.errors import InvalidInput, RareCategoriesWarning, warn
from labeldp.inputs import Inputs
from labeldp.inputs._arrays import ArrayInputs
from labeldp.inputs._columns import ColumnInputs
from labeldp.laws import Grid
from labeldp.laws._columns import LabelColumns
from labeldp.learn._boosting import LikelihoodBoosting
from labeldp.learn._classifier import FEW_ROWS
from labeldp.learn._data import MAX_CATEGORIES
from labeldp.learn._location import LocationBoosting
from labeldp.learn._regressor import MOST_ROUNDS, default_regressor
from labeldp.ledger._database import per_row_epsilon
from labeldp.papers import _recipes as recipes
from labeldp.tables.engines._local import Progress

if TYPE_CHECKING:
    from labeldp.deep._loop import Recipe

AUTO, BOOSTING, LINEAR = "auto", "boosting", "linear"
TREES = (BOOSTING, *BOOSTERS)
NOISE_CLUSTER, PROPORTIONS = "noise-cluster", "proportions"
CLUSTER_MODELS = (NOISE_CLUSTER, PROPORTIONS)
MODELS = (AUTO, *TREES, LINEAR, *CLUSTER_MODELS, *named.NETS)
NUMBER_MODELS = (AUTO, *TREES, LINEAR, *named.NETS)
"""Those that learn numbers of a range, too."""
SEVERAL_MODELS = (AUTO, *TREES, LINEAR, *named.NETS)
"""Those that learn several label columns under one charge."""
ESTIMATES = ("estimated_accuracy", "estimated_log_loss", "baseline_accuracy", "baseline_log_loss")
"""Estimates in model.json, from held-out noisy rows: unbiased values with their intervals, or
null."""
IMAGES_BY_DEFAULT = "small-convnet"
MANY_CATEGORIES = 300
"""Number of categories, over all columns, from which "auto" is a linear model: trees could split so
many in ways that fit the noise."""
MOST_CATEGORIES = 10_000
"""Maximal number of categories of a column in the linear model; those beyond the 254 most frequent
must occur at least twice."""


# Options
# --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class NetOptions:
    """Training options of a net; None stands for the net's own default.

    Parameters
    ----------
    epochs, batch_size : int, optional
    rate : float, optional
        The learning rate's peak.
    nets : int, optional
        Number of nets of an Ensemble.
    device : str, default="auto"
        "auto": the GPU if there is one.
    folder : Path, optional
        Folder for the state of the training, from which the same call resumes after a kill.
    """

    epochs: int | None = None
    batch_size: int | None = None
    rate: float | None = None
    nets: int | None = None
    device: str = AUTO
    folder: Path | None = None

    def __post_init__(self) -> None:
        put = object.__setattr__  # plain numbers, also of NumPy's: the model's facts are JSON
        if self.epochs is not None:
            put(self, "epochs", _validate.integer(epochs=self.epochs, low=1))
        if self.batch_size is not None:
            put(self, "batch_size", _validate.integer(batch_size=self.batch_size, low=1))
        if self.rate is not None:
            put(self, "rate", _validate.positive(rate=self.rate))
        if self.nets is not None:
            put(self, "nets", _validate.integer(nets=self.nets, low=1, high=named.MOST_NETS))

    @property
    def given(self) -> list[str]:
        """Names, as on the command line, of the options that the user gave."""
        values = {
            "--epochs": self.epochs,
            "--batch-size": self.batch_size,
            "--rate": self.rate,
            "--nets": self.nets,
            "--device": None if self.device == AUTO else self.device,
            "--folder": self.folder,
        }
        return [name for name, value in values.items() if value is not None]

    def require_net(self, model: str, *, images: bool) -> None:
        """Refuse options of a net with a model that is none; `images`: the inputs are images, or
        may be."""
        if self.given and not needs_torch(model, images=images):
            name = "no net" if model == AUTO else model
            raise InvalidInput(
                f"Expected a net with {', '.join(self.given)}, got {name}. Choose one: --model mlp."
            )


class _AskedPrior:
    """A prior that is asked for at a part of the budget."""

    what: ClassVar[str]
    epsilon: float | None

    def __post_init__(self) -> None:
        if self.epsilon is not None:
            _validate.epsilon(self.epsilon)

    def require_less_than(self, epsilon: float | None) -> None:
        """Check that the prior leaves a part of the budget for the rows."""
        if epsilon is None:
            raise InvalidInput(
                f"Expected no {self.what} with a released table: its labels are drawn and paid for."
                " Leave it out."
            )
        if self.epsilon is not None and not self.epsilon < epsilon:
            raise InvalidInput(
                f"Expected a {self.what} that costs less than the total epsilon={epsilon!r}, got"
                f" eps={self.epsilon!r}. Lower it."
            )


@dataclass(frozen=True)
class ClustersSpec(_AskedPrior):
    """A prior of clusters of the inputs.

    Parameters
    ----------
    n_clusters : int, optional
        Number of clusters. Default: see `labeldp.learn.ClusterPrior`.
    epsilon : float, optional
        Cost of their histograms, a part of the total. Default: see `labeldp.learn.ClusterPrior`.
    """

    what = "prior of clusters"
    n_clusters: int | None = None
    epsilon: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.n_clusters is not None:
            _validate.integer(n_clusters=self.n_clusters, low=1)


@dataclass(frozen=True)
class HistogramSpec(_AskedPrior):
    """A prior of numbers: the noisy histogram of all of them.

    Parameters
    ----------
    epsilon : float, optional
        Its cost, a part of the total. Default: see `labeldp.learn.HistogramPrior`.
    """

    what = "histogram"
    epsilon: float | None = None


def prior_of_text(text: str | None) -> ClustersSpec | HistogramSpec | None:
    """Parse the option --prior: clusters, clusters:NUMBER, histogram, each with ,eps=E or without
    it. None gives None."""
    if text is None:
        return None
    name, *settings = (
        part.strip() for part in text.replace("clusters:", "clusters,", 1).split(",")
    )
    of_clusters = name == "clusters"
    numbers, options = (
        [each for each in settings if "=" not in each],
        [each for each in settings if "=" in each],
    )
    try:
        if name not in ("clusters", "histogram") or len(numbers) > of_clusters or len(options) > 1:
            raise ValueError
        epsilon = float(options[0].removeprefix("eps=")) if options else None
        return (
            ClustersSpec(int(numbers[0]) if numbers else None, epsilon)
            if of_clusters
            else HistogramSpec(epsilon)
        )
    except InvalidInput:
        raise
    except ValueError:
        raise InvalidInput(
            "Expected as a prior clusters[:NUMBER][,eps=E] with a whole NUMBER, or of numbers"
            f" histogram[,eps=E] with a number E, got {text!r}. For example clusters:100,eps=0.05,"
            " or histogram,eps=0.1."
        ) from None


@dataclass(frozen=True)
class PaperSpec:
    """A recipe of a source paper, from `labeldp.papers.ghazi2021`.

    Parameters
    ----------
    name : {"lp-1st", "lp-2st", "lp-3st", "alibi"}
    data : str, optional
        One of `recipes.PUBLISHED`, whose published training a net gets. None: the training of its
        own, with the recipe's loss and mixup.
    """

    name: str
    data: str | None = None

    def __post_init__(self) -> None:
        _validate.one_of(recipes.NAMES, recipe=self.name)
        if self.data is not None:
            _validate.one_of(recipes.PUBLISHED, data=self.data)
            if self.name == recipes.ALIBI:
                raise InvalidInput(
                    f"Expected {self.name} without a data set, whose training its authors do not"
                    f" give, got {self.data!r}."
                )

    def require_alone(self, options: Sequence[str]) -> None:
        """Refuse options that the recipe decides."""
        if options:
            raise InvalidInput(
                f"Expected --recipe {self.name} to decide law, stages and correction, got"
                f" {' and '.join(options)}, too. Leave {'it' if len(options) == 1 else 'them'} out,"
                " or the recipe."
            )

    def settings(self, epsilon: float) -> dict[str, Any]:
        """Return law, stages, filter and correction, as parameters of `LabelDPClassifier`, for a
        row's epsilon."""
        found = recipes.stages(self.name, epsilon=epsilon) | {
            "correction": recipes.correction(self.name)
        }
        del found["epsilon"]  # a row's, where the classifier takes the total
        return found

    def training(
        self, own: "Recipe", options: NetOptions, epsilon: float, *, images: bool
    ) -> "Recipe | tuple[Recipe, ...]":
        """Make the Recipe of a net in each stage, from its own one where no data set is named.

        Parameters
        ----------
        own : Recipe
        options : NetOptions
        epsilon : float
            A row's.
        images : bool
            Whether the inputs are images.
        """
        if self.data is None:
            alphas = recipes.mixups(self.name, epsilon=epsilon)
            made = tuple(replace(own, alpha=alpha if images else 0.0) for alpha in alphas)
            return made if len(made) > 1 else made[0]
        if recipes.PUBLISHED[self.data].images != images:
            kind, other = (
                ("images", "rows of numbers")
                if recipes.PUBLISHED[self.data].images
                else ("rows of numbers", "images")
            )
            raise InvalidInput(
                f"Expected {kind} for the training of {self.data}, got {other}. Leave it out:"
                f" --recipe {self.name}."
            )
        given = {"epochs": options.epochs, "batch_size": options.batch_size, "rate": options.rate}
        changes = {name: value for name, value in given.items() if value is not None}
        found: Recipe | tuple[Recipe, ...] = getattr(recipes, self.name.replace("-", "_"))(
            self.data, epsilon=epsilon, **changes
        )["recipe"]
        return found


def paper_of(text: str | None) -> PaperSpec | None:
    """Parse the option --recipe: NAME or NAME:DATA. None gives None."""
    if text is None:
        return None
    name, colon, data = text.partition(":")
    return PaperSpec(name.strip(), data.strip() if colon else None)


def _prior_for(spec: ClustersSpec | HistogramSpec | None, embedder: Any) -> Any:
    from labeldp.learn import ClusterPrior, HistogramPrior

    if isinstance(spec, HistogramSpec):
        return HistogramPrior(spec.epsilon)
    return None if spec is None else ClusterPrior(embedder, spec.n_clusters, spec.epsilon)


# From inputs to numbers
# --------------------------------------------------------------------------------------------------


def fit_ordinal(
    inputs: ColumnInputs, table: pa.Table, most: int
) -> tuple[ColumnTransformer, dict[str, int]]:
    """Fit an encoder from a table to a matrix: category codes (unknown ones as NaN), then numbers
    unchanged.

    Parameters
    ----------
    inputs : ColumnInputs
    table : Table
        All rows, as `inputs` reads them; public.
    most : int
        Maximal number of categories of a column with a code: the 254 most frequent, then those that
        occur at least twice.

    Returns
    -------
    transformer : ColumnTransformer
        Fitted.
    rarer : dict of str to int
        Number of categories without a code, for each column that has some.
    """
    kept, rarer = [], {}
    for name in inputs.categories:
        found = [(each["values"], each["counts"]) for each in _counts(table[name]).to_pylist()]
        # an array of text drops them: two categories would become one
        if any(value.endswith("\0") for value, _ in found):
            raise InvalidInput(
                f"Expected text without NUL at its end in column {name!r}, got some. Remove these"
                " characters, or leave the column out (--exclude)."
            )
        ordered = sorted(found, key=lambda each: (-each[1], each[0]))
        kept.append(
            np.array(
                [
                    value
                    for i, (value, count) in enumerate(ordered[:most])
                    if i < MAX_CATEGORIES or count > 1
                ]
            )
        )
        if len(ordered) > len(kept[-1]):
            rarer[name] = len(ordered) - len(kept[-1])
    codes = OrdinalEncoder(
        categories=kept, handle_unknown="use_encoded_value", unknown_value=np.nan
    )
    # "passthrough" does not take Arrow tables
    unchanged = StandardScaler(with_mean=False, with_std=False)
    made = ColumnTransformer(
        [("categories", codes, inputs.categories), ("numbers", unchanged, inputs.numbers)]
    ).fit(table)
    if kept:
        # scikit-learn converts the texts to an array of objects, each of which skops writes in 400
        # bytes; arrays of text are compact.
        made.named_transformers_["categories"].categories_ = kept
    return made, rarer


def _counts(column: pa.ChunkedArray) -> pa.StructArray:
    return pc.value_counts(column.cast(pa.large_string()))


def count_categories(inputs: ColumnInputs, table: pa.Table) -> int:
    """Count the categories that would have a weight each in the linear model."""
    counts = [_counts(table[name]).field("counts").to_numpy() for name in inputs.categories]
    return sum(
        max(min(len(each), MAX_CATEGORIES), min(int(np.sum(each > 1)), MOST_CATEGORIES))
        for each in counts
    )


def one_hot(n_codes: int, width: int) -> ColumnTransformer:
    """Make an encoder from the matrix of `fit_ordinal` to one without missing values: a column per
    category, then standardised numbers.

    A missing number becomes the mean, with an indicator column. The matrix is sparse if there are
    categories.

    Parameters
    ----------
    n_codes, width : int
        Number of columns of codes, which come first, and of all columns.
    """
    numbers = make_pipeline(
        StandardScaler(),
        SimpleImputer(
            strategy="constant", fill_value=0.0, add_indicator=True, keep_empty_features=True
        ),
    )
    categories = OneHotEncoder(handle_unknown="ignore", dtype=np.float32)
    parts = [
        ("categories", categories, list(range(n_codes))),
        ("numbers", numbers, list(range(n_codes, width))),
    ]
    return ColumnTransformer(parts, sparse_threshold=1.0)


class Encoding:
    """The scikit-learn steps from inputs to a model's matrix, fitted on all rows, which is allowed
    since inputs are public.

    Parameters
    ----------
    inputs : Inputs
    """

    def __init__(self, inputs: Inputs):
        self.steps: list[tuple[str, Any]] = []
        self._inputs = inputs

    @property
    def n_codes(self) -> int:
        """Number of columns that hold category codes."""
        return len(self._inputs.categories) if isinstance(self._inputs, ColumnInputs) else 0

    def ordinal(self, X: Any, most: int = MAX_CATEGORIES) -> NDArray[np.floating[Any]]:
        """Encode as numbers and category codes, with missing values. Warn of rare categories that
        this model merges into one."""
        if not isinstance(self._inputs, ColumnInputs):
            return np.asarray(X)
        transformer, rarer = fit_ordinal(self._inputs, X, most)
        if rarer and most == MAX_CATEGORIES:
            told = ", ".join(f"{count:,} of {name!r}" for name, count in rarer.items())
            warn(
                RareCategoriesWarning(
                    f"This model takes {most} categories of a column and counts rarer ones as one:"
                    f" {told}. --model linear has a weight for each that occurs twice; --exclude"
                    " leaves columns out."
                )
            )
        self.steps.append(("columns", transformer))
        return np.asarray(transformer.transform(X))

    def one_hot(self, X: Any, most: int = MAX_CATEGORIES) -> Any:
        """Encode as numbers without missing values; sparse if there are categories."""
        matrix = self.ordinal(X, most)
        transformer = one_hot(self.n_codes, matrix.shape[1])
        self.steps.append(("numbers", transformer))
        # a column without any value has mean NaN, which is not used
        with np.errstate(invalid="ignore"):
            return transformer.fit_transform(matrix)

    def pipeline(self, estimator: Any) -> Any:
        """Put the steps before an estimator; without steps, return the estimator itself."""
        last = list(estimator.steps) if isinstance(estimator, Pipeline) else [("model", estimator)]
        return Pipeline([*self.steps, *last]) if self.steps else estimator

    @property
    def transformer(self) -> Pipeline | None:
        """The steps without a model; None if there are none."""
        return Pipeline(self.steps) if self.steps else None


# Models
# --------------------------------------------------------------------------------------------------


class Learner(Protocol):
    """The interface of a model that `labeldp train` offers."""

    def prepared(self, X: Any) -> Any:
        """Convert the inputs of all rows to what the estimator takes."""
        ...

    def estimator(self, seed: int, progress: Progress, **settings: Any) -> Any:
        """Make the estimator to fit, with the settings that all learners share."""
        ...

    def parts(self, model: Any) -> Sequence[Any]:
        """Return the models of several label columns that a fitted estimator has, each as `result`
        takes it, with its estimates."""
        ...

    def result(self, model: Any) -> tuple[Any, dict[str, object]]:
        """Return the part of the fitted estimator to store, and the facts needed to read it
        back."""
        ...


def learner_for(
    model: str,
    inputs: Inputs,
    classes: Sequence[object],
    options: NetOptions,
    paper: PaperSpec | None = None,
) -> Learner:
    """Choose the learner with this name in `MODELS`, for these inputs; a net is trained as the
    paper's recipe says.

    If the classes are a `Grid`, the name is one of `NUMBER_MODELS`, and the learner learns numbers.
    Of `LabelColumns` it is one of `SEVERAL_MODELS`.
    """
    if isinstance(classes, LabelColumns):
        require_of_several(model)
    if model in named.NETS or (model == AUTO and inputs.image is not None):
        return NetLearner(
            IMAGES_BY_DEFAULT if model == AUTO else model, inputs, classes, options, paper
        )
    if paper is not None and paper.data is not None:
        raise InvalidInput(
            f"Expected a net with the training of {paper.data}, got model {model!r}. Choose one"
            f" (--model mlp), or leave it out: --recipe {paper.name}."
        )
    if model in BOOSTERS:
        require_library(model)
    if model in (*TREES, LINEAR) and inputs.image is not None:
        raise InvalidInput(
            f"Expected rows of numbers or categories with --model {model}, got images. Choose a"
            " net, as small-convnet."
        )
    options.require_net(model, images=False)
    if model in CLUSTER_MODELS:
        return ClusterLearner(model, inputs)
    return (NumberLearner if isinstance(classes, Grid) else TabularLearner)(model, inputs)


def require_of_several(model: str) -> None:
    """Refuse models that do not learn several label columns."""
    if model not in SEVERAL_MODELS:
        raise InvalidInput(
            f"Expected a model of several label columns, got {model!r}, which asks clusters about"
            f" one. Choose one of {', '.join(SEVERAL_MODELS)} (--model)."
        )


def needs_torch(model: str, *, images: bool) -> bool:
    """Return whether the model will be a net."""
    return model in named.NETS or (model == AUTO and images)


class TabularLearner:
    """Gradient boosting, or a logistic regression with a weight for each category, on the exact
    likelihood.

    Parameters
    ----------
    model : {"auto", "boosting", "lightgbm", "xgboost", "linear"}
        "auto": linear if the table's columns have many categories, else boosting.
    inputs : Inputs
    """

    def __init__(self, model: str, inputs: Inputs):
        self._model, self._inputs, self._encoding = model, inputs, Encoding(inputs)
        self._rows = self._width = 0

    def prepared(self, X: Any) -> Any:
        """Encode the inputs: codes and numbers with missing values for trees, a sparse matrix for
        the linear model."""
        if self._model == AUTO:
            many = (
                isinstance(self._inputs, ColumnInputs)
                and count_categories(self._inputs, X) >= MANY_CATEGORIES
            )
            self._model = LINEAR if many else BOOSTING
        made = (
            self._encoding.one_hot(X, MOST_CATEGORIES)
            if self._model == LINEAR
            else self._encoding.ordinal(X)
        )
        self._rows, self._width = made.shape
        return made

    def estimator(
        self,
        seed: int,
        progress: Progress,
        prior: ClustersSpec | HistogramSpec | None = None,
        **settings: Any,
    ) -> Any:
        """Make a LabelDPClassifier."""
        from labeldp.learn import LabelDPClassifier

        if self._model == LINEAR:
            linear = make_pipeline(LogisticRegression(max_iter=200))
            return LabelDPClassifier(
                linear, random_state=seed, prior=_prior_for(prior, None), **settings
            )
        # Clusters need distances, and category codes have none.
        spoken = _prior_for(prior, one_hot(self._encoding.n_codes, self._width))
        if (
            self._model == BOOSTING
            and settings["correction"] == AUTO
            and (self._rows < FEW_ROWS or spoken is not None)
        ):
            settings["correction"] = "em"
        trees = self._trees(seed, by_likelihood=settings["correction"] in (AUTO, "likelihood"))
        return LabelDPClassifier(trees, random_state=seed, prior=spoken, **settings)

    def _trees(self, seed: int, *, by_likelihood: bool) -> Any:
        """Make the unfitted trees, which are told the columns of category codes."""
        codes = list(range(self._encoding.n_codes))
        if self._model == BOOSTING:
            # No early stopping of scikit-learn's own: it would measure by noisy labels as if they
            # were true.
            shape = (
                {}
                if by_likelihood
                else {"max_leaf_nodes": 15, "l2_regularization": 1.0, "early_stopping": False}
            )
            return HistGradientBoostingClassifier(
                categorical_features=codes or None, random_state=seed, **shape
            )
        return LikelihoodBoosting(*self._trees_of_library("Classifier", seed))

    def _trees_of_library(
        self, kind: str, seed: int, **settings: Any
    ) -> tuple[Any, list[int] | None]:
        """Make the library's "Classifier" or "Regressor", and the columns of category codes if its
        `fit` has to be told."""
        codes = list(range(self._encoding.n_codes)) or None
        if self._model == LIGHTGBM:
            import lightgbm

            # LightGBM times two orders of summing up and takes the faster one, so a loaded machine
            # could give another model.
            same = {"deterministic": True, "force_row_wise": True}
            return (
                getattr(lightgbm, f"LGBM{kind}")(random_state=seed, verbose=-1, **same, **settings),
                codes,
            )
        import xgboost

        kinds = None if codes is None else ["c"] * len(codes) + ["q"] * (self._width - len(codes))
        return (
            getattr(xgboost, f"XGB{kind}")(
                random_state=seed, enable_categorical=True, feature_types=kinds, **settings
            ),
            None,
        )

    def parts(self, model: Any) -> Sequence[Any]:
        """Return the classifier of each label column."""
        return list(model.estimators_)

    def result(self, model: Any) -> tuple[Any, dict[str, object]]:
        """Return a pipeline of scikit-learn's own types, or boosted trees with the steps before
        them; and how to correct probabilities."""
        made, found = model._model, model.estimator_
        drawn = (
            None
            if made.frequencies is None
            else {"share": made.share, "frequencies": [float(f) for f in made.frequencies]}
        )
        if isinstance(found, LikelihoodBoosting):
            more = {"channel": made.channel, "drawn": drawn}
            if found.estimator_ is None:  # no column can be split
                constant = DummyClassifier().fit(
                    np.zeros((len(found.start_), 1)),
                    found.classes_,
                    sample_weight=np.exp(found.start_),
                )
                return self._encoding.pipeline(constant), more
            return (found.estimator_, self._encoding.transformer), more | {
                "boosting": facts_of(found, self._width)
            }
        if isinstance(found, Pipeline) and hasattr(found.steps[-1][1], "C_"):
            found = as_logistic(found)
        return self._encoding.pipeline(found), {"channel": made.channel, "drawn": drawn}


class NumberLearner(TabularLearner):
    """Gradient boosting, or a ridge regression with a weight for each category, by the location
    model of numbers.

    Parameters
    ----------
    model : {"auto", "boosting", "lightgbm", "xgboost", "linear"}
        As for `TabularLearner`.
    inputs : Inputs
    """

    def estimator(
        self,
        seed: int,
        progress: Progress,
        prior: ClustersSpec | HistogramSpec | None = None,
        **settings: Any,
    ) -> Any:
        """Make a LabelDPRegressor; of clusters it knows nothing, and `TrainSpec` refuses them."""
        from labeldp.learn import LabelDPRegressor

        base: Any
        if self._model in BOOSTERS:
            base = LocationBoosting(
                *self._trees_of_library("Regressor", seed, n_estimators=MOST_ROUNDS)
            )
        elif self._model == LINEAR:
            base = Ridge()
        else:
            base = default_regressor(
                self._rows, categorical_features=list(range(self._encoding.n_codes)) or None
            )
        return LabelDPRegressor(base, random_state=seed, prior=_prior_for(prior, None), **settings)

    def result(self, model: Any) -> tuple[Any, dict[str, object]]:
        """Return a pipeline that predicts locations, or boosted trees with the steps before them;
        and what makes distributions of them."""
        made = model._model
        location: dict[str, object] = {
            "scale": float(made.family.scale),
            "centre": float(made.centre),
            "share": min(1.0, float(made.share)),
            "cuts": None if made.family.cuts is None else made.family.cuts.tolist(),
        }
        found = model.estimator_
        # else the start alone is left, which no library is needed for
        if self._model in BOOSTERS and found.pieces_:
            return (found, self._encoding.transformer), {
                "location": location,
                "boosting": facts_of(found, self._width),
            }
        return self._encoding.pipeline(found), {"location": location}


_PENALTY_OF_VOTES = 0.1  # C of columns of variance 1
_OF_ROWS = {
    "law",
    "prior",
    "n_stages",
    "stage_sizes",
    "prior_temperature",
    "top_k_filter",
    "correction",
}
"""Settings of noisy labels of rows, which clusters do not have."""


class ClusterLearner:
    """NoiseCluster or ProportionClassifier on rows of numbers, stored as the logistic regression
    that learns the votes or the counts.

    Parameters
    ----------
    model : {"noise-cluster", "proportions"}
    inputs : Inputs
    """

    def __init__(self, model: str, inputs: Inputs):
        if inputs.image is not None:
            raise InvalidInput(
                f"Expected rows of numbers with --model {model}, got images, whose pixels cluster"
                " badly. Save features of them as an array (.npz), or use labeldp.learn with an"
                " embedder."
            )
        self._model, self._encoding = model, Encoding(inputs)

    def prepared(self, X: Any) -> Any:
        """Standardise rows of numbers."""
        made = named.as_floats(self._encoding.one_hot(X))
        # the stored model predicts dense rows, a batch at a time
        self._encoding.steps[-1][1].sparse_output_ = False
        return made

    def estimator(self, seed: int, progress: Progress, **settings: Any) -> Any:
        """Make the cluster classifier, which has neither stages nor a law for rows."""
        from labeldp.learn import NoiseCluster, ProportionClassifier

        # refused by TrainSpec
        own = {name: value for name, value in settings.items() if name not in _OF_ROWS}
        if self._model == PROPORTIONS:
            return ProportionClassifier(random_state=seed, **own)
        return NoiseCluster(
            LogisticRegression(C=_PENALTY_OF_VOTES, max_iter=1000), random_state=seed, **own
        )

    def parts(self, model: Any) -> Sequence[Any]:
        """Return none: clusters are asked about one label column."""
        return []

    def result(self, model: Any) -> tuple[Any, dict[str, object]]:
        """Return the logistic regression, as scikit-learn's, and what is told of the clusters."""
        answer = model.aggregate_
        sizes, query = answer.n_rows, answer.query
        facts: dict[str, object] = {"number": len(sizes)}
        if self._model == PROPORTIONS:
            facts |= {
                "mechanism": query.mechanism,
                "deviation": query.standard_deviation(answer.receipt.max_rows_per_unit),
            }
            return self._encoding.pipeline(as_logistic(model.estimator_)), {"clusters": facts}
        facts |= {
            "mechanism": query.chosen(),
            "failure": float(model.failure_ @ sizes / sizes.sum()),
        }
        return self._encoding.pipeline(model.estimator_), {"clusters": facts}


def as_logistic(fitted: Pipeline) -> Pipeline:
    """Replace the final SoftmaxRegression of a pipeline by the equivalent LogisticRegression, so
    that its file holds scikit-learn types only."""
    *before, (name, last) = fitted.steps
    two = len(last.classes_) == 2
    logistic = LogisticRegression(C=last.C_)
    logistic.classes_, logistic.n_features_in_, logistic.n_iter_ = (
        last.classes_,
        last.n_features_in_,
        np.array([last.n_iter_], np.int32),
    )
    # For two classes scikit-learn stores one row of coefficients, the difference of the two.
    logistic.coef_ = last.coef_[1:] - last.coef_[:1] if two else last.coef_
    logistic.intercept_ = last.intercept_[1:] - last.intercept_[:1] if two else last.intercept_
    return Pipeline([*before, (name, logistic)])


class NetLearner:
    """A net of `labeldp.deep._named`, by name.

    Parameters
    ----------
    name : str
    inputs : Inputs
    classes : sequence of K values, Grid, or LabelColumns
        Of several label columns one net has a head for each.
    options : NetOptions
    paper : PaperSpec, optional
    """

    def __init__(
        self,
        name: str,
        inputs: Inputs,
        classes: Sequence[object],
        options: NetOptions,
        paper: PaperSpec | None = None,
    ):
        named.require_torch()
        from labeldp.deep._loop import device_of

        self._paper = paper
        self.name, self._inputs, self._encoding, self._options = (
            name,
            inputs,
            Encoding(inputs),
            options,
        )
        self._numbers = isinstance(classes, Grid)
        self._columns: Any = classes if isinstance(classes, LabelColumns) else None
        sizes = (len(classes),) if self._columns is None else self._columns.sizes
        self._n_outputs = 2 if self._numbers else sum(sizes)  # of numbers a location and a scale
        self._recipe = named.recipe_for(
            name, max(sizes), options.epochs, options.batch_size, options.rate
        )
        self._device = device_of(options.device)
        width = math.prod(inputs.shape) if isinstance(inputs, ArrayInputs) else len(inputs.names)
        # Here, to refuse faults before all rows are read.
        self._several = {"n_nets": options.nets} if options.nets not in (None, 1) else {}
        self._parameters = (
            named.parameters_for(name, self._n_outputs, inputs.image, width) | self._several
        )

    def prepared(self, X: Any) -> Any:
        """Return images unchanged, and rows of numbers standardised."""
        if self._inputs.image is not None:
            return X
        made = named.as_floats(self._encoding.one_hot(X))
        self._parameters = (
            named.parameters_for(self.name, self._n_outputs, None, made.shape[1]) | self._several
        )
        return made

    def estimator(
        self,
        seed: int,
        progress: Progress,
        prior: ClustersSpec | HistogramSpec | None = None,
        correction: str = AUTO,
        **settings: Any,
    ) -> Any:
        """Make a TorchClassifier, or of numbers a TorchRegressor, around the net."""
        from labeldp.deep import TorchClassifier, TorchRegressor

        options, parameters = self._options, self._parameters
        recipe: Any = replace(self._recipe, loss=named.loss_for(correction))
        if self._paper is not None:
            row = per_row_epsilon(settings["epsilon"], settings["max_rows_per_unit"])
            recipe = self._paper.training(
                recipe, options, row, images=self._inputs.image is not None
            )
        self._recipe = recipe[0] if isinstance(recipe, tuple) else recipe
        sizes = () if self._columns is None else settings["classes"].sizes
        return (TorchRegressor if self._numbers else TorchClassifier)(
            lambda n_outputs: named.build(self.name, parameters | {"n_classes": n_outputs}, sizes),
            recipe=recipe,
            random_state=seed,
            device=self._device,
            folder=options.folder,
            progress=_Epochs(progress, options.nets or 1),
            prior=_prior_for(prior, "pca"),
            **{"validation_fraction": 0.1} | settings,
        )

    def parts(self, model: Any) -> Sequence[Any]:
        """Return the net of each label column: the net with the outputs of this column's head
        alone."""
        # a net of a released table has a head for every column that was released
        heads, learned = self._columns, model._columns
        found = []
        for number in map(learned.place, heads.names):
            start, size = sum(learned.sizes[:number]), learned.sizes[number]
            module = named.head_of(model.module_, start, size)
            quality = {f"{name}_": getattr(model, f"{name}_")[number] for name in ESTIMATES}
            found.append(
                SimpleNamespace(module_=module, history_=model.history_, n_classes=size, **quality)
            )
        return found

    def result(self, model: Any) -> tuple[Any, dict[str, object]]:
        """Return the net with its preprocessing, and the parameters that rebuild it."""
        from labeldp.deep._regressor import without_location

        recipe, of_column = (
            self._recipe,
            ({} if self._columns is None else {"n_classes": model.n_classes}),
        )
        module, head = (
            (without_location(model.module_), {"head": model.head})
            if self._numbers
            else (model.module_, {})
        )
        return (module, self._encoding.transformer), {
            "net": {"name": self.name, "parameters": self._parameters | of_column} | head,
            "recipe": {
                "epochs": recipe.epochs,
                "batch_size": recipe.batch_size,
                "rate": recipe.rate,
                "stages": len(model.history_),
            },
        }


class _Epochs:
    """Reports the epochs of each stage as progress."""

    def __init__(self, progress: Progress, nets: int):
        self._progress, self._nets, self._begun = progress, nets, 0

    def __call__(self, epoch: Any) -> None:
        self._begun += epoch.number == 1
        stage, net = divmod(self._begun - 1, self._nets)
        which = f"stage {stage + 1}" + (f", net {net + 1}" if self._nets > 1 else "")
        self._progress(which, epoch.number, epoch.epochs)
