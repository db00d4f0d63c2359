# SPDX-License-Identifier: Apache-2.0
"""What a model's file says, before it is used: scikit-learn's compiled code believes its arrays, and would read beyond them.

Allowed are the types below, whose arrays numpy checks or that are checked here; everything else in a file must be named by the user.
"""

import copy
import io
import types
import zipfile
from collections.abc import Collection, Iterator
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from sklearn.ensemble._hist_gradient_boosting.common import PREDICTOR_RECORD_DTYPE
from sklearn.ensemble._hist_gradient_boosting.predictor import TreePredictor
from sklearn.preprocessing import OneHotEncoder

from labeldp.errors import InvalidInput, LabelDPError

_PLAIN = (type(None), bool, int, float, str, bytes, slice, type, np.generic, np.dtype, np.ufunc, np.random.Generator, np.random.RandomState)
_CONTAINERS = (dict, list, tuple, set)
_FUNCTIONS = (types.FunctionType, types.BuiltinFunctionType, types.MethodType)
_LOSSES = ("sklearn._loss.", "sklearn.linear_model._sgd_fast")  # numbers only
# fmt: off
_CHECKED = frozenset(
    {
        # predict with numpy, which checks what it indexes
        "Pipeline", "ColumnTransformer", "FunctionTransformer", "StandardScaler", "MinMaxScaler", "MaxAbsScaler", "RobustScaler",
        "Normalizer", "PCA", "SimpleImputer", "MissingIndicator", "OrdinalEncoder", "LabelEncoder", "LabelBinarizer", "LogisticRegression",
        "LogisticRegressionCV", "RidgeClassifier", "RidgeClassifierCV", "SGDClassifier", "Perceptron", "GaussianNB", "MultinomialNB",
        "ComplementNB", "BernoulliNB", "LinearDiscriminantAnalysis", "QuadraticDiscriminantAnalysis", "MLPClassifier", "DummyClassifier",
        # are checked below
        "HistGradientBoostingClassifier", "_BinMapper", "TreePredictor", "KNeighborsClassifier", "OneHotEncoder",
        # hold what no file can have without the user's word: sklearn.tree._tree.Tree
        "DecisionTreeClassifier", "DecisionTreeRegressor", "ExtraTreeClassifier", "RandomForestClassifier", "ExtraTreesClassifier",
        "GradientBoostingClassifier",
    }
)
# fmt: on
_BITSET_WORDS = 8
_METRICS = ("euclidean", "manhattan", "chebyshev", "minkowski", "cosine")  # without arrays of their own
_LARGEST_RATIO = 200  # of what is packed in a file to the file


class CheckedPredictor(TreePredictor):
    """A tree that looks at what it is asked with, before compiled code walks it; its own nodes were checked when it was read."""

    def predict(self, X: Any, known_cat_bitsets: Any, f_idx_map: Any, n_threads: Any) -> NDArray[np.float64]:
        """As of `TreePredictor`: (n,) float64."""
        inner = self.nodes[self.nodes["is_leaf"] == 0]
        by_category = inner["feature_idx"][inner["is_categorical"] != 0]
        fits = X.ndim == 2 and np.all(inner["feature_idx"] < X.shape[1]) and np.all(by_category < len(f_idx_map))
        if not (fits and np.all(np.asarray(f_idx_map)[by_category] < len(known_cat_bitsets))):
            raise InvalidInput("Expected trees that ask for features of the table, got others. The model's file is damaged or was changed.")
        return np.asarray(super().predict(X, known_cat_bitsets, f_idx_map, n_threads))


class CheckedOneHotEncoder(OneHotEncoder):
    """An encoder whose sparse matrices are looked at, before compiled code reads what they point to."""

    def transform(self, X: Any) -> Any:
        """As of `OneHotEncoder`: (n, categories), sparse or dense."""
        inner = copy.copy(self)
        inner.sparse_output = True
        found = OneHotEncoder.transform(inner, X)
        if not _sparse_fits(found):
            raise InvalidInput("Expected categories that have a column each, got others. The model's file is damaged or was changed.")
        return found if self.sparse_output else found.toarray()


def check_archive(raw: bytes) -> None:
    """Refuse an archive that unpacks to far more than it is."""
    with zipfile.ZipFile(io.BytesIO(raw)) as archive:
        if sum(each.file_size for each in archive.infolist()) > _LARGEST_RATIO * len(raw):
            raise ValueError("too large")


def check_estimator(estimator: Any, name: str, trust: Collection[str] = ()) -> Any:
    """The estimator, when nothing in it can lead compiled code out of its arrays.

    Parameters
    ----------
    estimator : what skops has built
    name : str
        Of its file.
    trust : collection of str
        Types that the user vouches for.

    Raises
    ------
    InvalidInput
        Something does not fit together, or is of a type that is not known to check what it indexes.
    """
    unknown: set[str] = set()
    for each in _everything(estimator):
        kind = type(each)
        if kind is TreePredictor:
            _require(_tree_fits(each), name, "a tree")
            each.__class__ = CheckedPredictor
        elif kind is OneHotEncoder:
            each.__class__ = CheckedOneHotEncoder
        elif sp.issparse(each):
            _require(_sparse_fits(each), name, "a sparse matrix")
        elif kind.__name__ == "HistGradientBoostingClassifier":
            _require(_boosting_fits(each), name, kind.__name__)
        elif kind.__name__ == "_BinMapper":
            _require(_bins_fit(each), name, "the bins of its columns")
        elif kind.__name__ == "KNeighborsClassifier":
            _require(_neighbours_fit(each), name, kind.__name__)
        if not _is_known(each, trust):
            unknown.add(f"{kind.__module__}.{kind.__qualname__}")
    if unknown:
        raise untrusted(sorted(unknown))
    return estimator


def untrusted(names: list[str]) -> InvalidInput:
    """What is said of types that the user has to vouch for."""
    asked = " ".join(f"--trust {each}" for each in names)
    return InvalidInput(f"Expected a model of known types, got also {', '.join(names)}. If you trust who made the file, add {asked}.")


def probabilities(model: Any, X: Any, n_classes: int) -> NDArray[np.float64]:
    """What a model that was read says of n rows: (n, K), whatever is wrong with it told in words."""
    try:
        found = np.asarray(model.predict_proba(X), np.float64)
    except LabelDPError:
        raise
    except Exception as error:
        raise InvalidInput(
            f"Expected a model that can predict these rows, got {type(error).__name__} from it. Its file is damaged or was changed, or "
            "the rows are of another kind than it was trained on."
        ) from None
    if found.shape != (X.shape[0], n_classes):
        raise InvalidInput(f"Expected {n_classes} probabilities a row from the model, one a class, got shape {found.shape}.")
    return found


def _require(fits: bool, name: str, what: str) -> None:
    if not fits:
        raise InvalidInput(f"Expected a model whose parts fit together in {name}, got {what} that does not. The file was changed.")


def _everything(root: Any) -> Iterator[Any]:
    """Each object that an estimator holds, once."""
    seen: dict[int, Any] = {}
    waiting = [root]
    while waiting:
        each = waiting.pop()
        if id(each) in seen or isinstance(each, _PLAIN):
            continue
        seen[id(each)] = each
        yield each
        if isinstance(each, dict):
            waiting += [*each.keys(), *each.values()]
        elif isinstance(each, _CONTAINERS):
            waiting += list(each)
        elif isinstance(each, np.ndarray):
            waiting += each.ravel().tolist() if each.dtype == object else []
        elif isinstance(each, types.MethodType):
            waiting.append(each.__self__)
        elif not isinstance(each, _FUNCTIONS):
            waiting += list(getattr(each, "__dict__", {}).values())
            waiting += [each.func, each.args, each.keywords] if hasattr(each, "keywords") and hasattr(each, "func") else []


def _is_known(each: Any, trust: Collection[str]) -> bool:
    kind = type(each)
    if (
        kind in _CONTAINERS
        or kind is np.ndarray
        or sp.issparse(each)
        or kind in (CheckedPredictor, CheckedOneHotEncoder)
        or isinstance(each, _FUNCTIONS)
    ):
        return True  # of functions skops builds none but those that it or the user knows by name
    module, name = kind.__module__, kind.__qualname__
    own = f"{getattr(each, '__module__', '')}.{getattr(each, '__qualname__', '')}"
    known = f"{module}.{name}" in ("functools.partial", *trust) or own in trust
    return known or module.startswith(_LOSSES) or _is_checked(module, name)


def _is_checked(module: str, name: str) -> bool:
    return module.startswith("sklearn.") and name in _CHECKED


def _tree_fits(tree: Any) -> bool:
    """Children come after their parents, so that every walk ends; all that a node names is there."""
    nodes: Any = getattr(tree, "nodes", None)
    bitsets: list[Any] = [getattr(tree, f"{kind}_left_cat_bitsets", None) for kind in ("raw", "binned")]
    if type(nodes) is not np.ndarray or nodes.dtype != PREDICTOR_RECORD_DTYPE or nodes.ndim != 1 or not len(nodes):
        return False
    if any(not _is_array(each, np.uint32, 2) or each.shape[1] != _BITSET_WORDS or not each.flags.c_contiguous for each in bitsets):
        return False
    places = np.flatnonzero(nodes["is_leaf"] == 0)
    inner = nodes[places]
    by_category = inner["bitset_idx"][inner["is_categorical"] != 0]
    after = all(np.all((inner[side] > places) & (inner[side] < len(nodes))) for side in ("left", "right"))
    return bool(after and np.all(inner["feature_idx"] >= 0) and all(np.all(by_category < len(each)) for each in bitsets))


def _boosting_fits(model: Any) -> bool:
    facts = vars(model)
    classes, trees, rounds = facts.get("classes_"), facts.get("n_trees_per_iteration_"), facts.get("_predictors")
    if not (isinstance(classes, np.ndarray) and classes.ndim == 1 and len(classes) >= 2 and isinstance(rounds, list)):
        return False
    return trees == (1 if len(classes) == 2 else len(classes)) and all(
        isinstance(made, list) and len(made) == trees and all(isinstance(each, TreePredictor) for each in made) for made in rounds
    )


def _bins_fit(bins: Any) -> bool:
    """What says which categories are known; numbers of a category are below 256."""
    facts = vars(bins)
    flags, known = facts.get("is_categorical_"), facts.get("bin_thresholds_")
    if not (_is_array(flags, np.uint8, 1) and isinstance(known, list) and len(known) == len(flags)):
        return False
    categories = [known[i] for i in np.flatnonzero(flags)]
    return all(_is_array(each, np.floating, 1) and bool(np.all((each >= 0) & (each < 256))) for each in categories)


def _neighbours_fit(model: Any) -> bool:
    """The nearest rows are searched for one by one; a tree of them is another type, which the user vouches for."""
    facts = vars(model)
    rows, codes, classes, n = (facts.get(name) for name in ("_fit_X", "_y", "classes_", "n_neighbors"))
    if not (_is_array(rows, np.number, 2) and _is_array(codes, np.integer, 1) and isinstance(classes, np.ndarray) and classes.ndim == 1):
        return False
    inside = len(codes) == len(rows) and bool(np.all((codes >= 0) & (codes < len(classes))))
    plain = facts.get("outputs_2d_") is False and facts.get("n_features_in_") == rows.shape[1] and facts.get("n_samples_fit_") == len(rows)
    metric = facts.get("effective_metric_") in _METRICS and set(facts.get("effective_metric_params_", ())) <= {"p"}
    return inside and plain and metric and type(n) is int and 1 <= n <= len(rows)


def _sparse_fits(matrix: Any) -> bool:
    if matrix.format not in ("csr", "csc"):
        return False
    try:
        matrix.check_format(full_check=True)
    except (ValueError, IndexError, TypeError):
        return False
    return True


def _is_array(each: Any, kind: Any, ndim: int) -> bool:
    return type(each) is np.ndarray and np.issubdtype(each.dtype, kind) and each.ndim == ndim
