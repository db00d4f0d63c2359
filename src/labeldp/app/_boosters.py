# SPDX-License-Identifier: Apache-2.0
"""Boosted trees as files that run no code: LightGBM's text and XGBoost's JSON, cut to what
predicts, and checked before they are used.

The compiled code of both libraries trusts the numbers in their files: a child that does not exist
would be read from beyond an array. So a file is parsed here, every number is checked, and the
library gets a text that is written again from the checked numbers alone.
"""

import json
import math
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labeldp.errors import InvalidInput, MissingExtra
from labeldp.learn._boosting import (
    HistogramScores,
    LikelihoodBoosting,
    probabilities_of,
    starting_scores,
)
from labeldp.learn._location import LocationBoosting

SCIKIT_LEARN, LIGHTGBM, XGBOOST = "scikit-learn", "lightgbm", "xgboost"
BOOSTERS = {LIGHTGBM: "booster.txt", XGBOOST: "booster.json"}
"""The file of each library's booster."""
_CODES = 1 << 16  # category codes in a file are below
_INT, _FLOAT = re.compile(r"-?\d{1,10}"), re.compile(r"-?(\d+\.?\d*([eE][-+]?\d+)?|inf)")


def require_library(name: str) -> None:
    """Raise MissingExtra, with what to install, if this library is missing."""
    if find_spec(name) is None:
        how = (
            "pip install 'labeldp[boost]'"
            if name == LIGHTGBM
            else "pip install xgboost, or --model lightgbm"
        )
        raise MissingExtra(f"Expected {name} for this model, which is not installed. {how}")


@dataclass(frozen=True, eq=False)
class BoostedModel:
    """Scores of boosted trees as a model of class codes.

    Attributes
    ----------
    scores : function of (n, d) floats and (n,) or (n, K) starting scores -> raw scores of the same
    shape
    start : (K,) array
        Logits of the class frequencies, from which the trees start.
    n_features : int
    factor : float > 0
        By which the trees' own scores are multiplied.
    """

    scores: Callable[[NDArray[np.floating[Any]], NDArray[np.float64]], NDArray[np.floating[Any]]]
    start: NDArray[np.float64]
    n_features: int
    factor: float = 1.0

    @property
    def classes_(self) -> NDArray[np.int64]:
        """The codes 0..K-1."""
        return np.arange(len(self.start))

    def predict_proba(self, X: Any) -> NDArray[np.float64]:
        """Predict probabilities of the class codes: (n, K)."""
        rows = _rows_of(X, self.n_features)
        start = starting_scores(self.start, len(rows))
        return probabilities_of(start + self.factor * self.scores(rows, np.zeros_like(start)))


@dataclass(frozen=True, eq=False)
class BoostedLocations:
    """Scores of boosted trees as a regressor of locations, from which the trees start.

    Attributes
    ----------
    scores : function of (n, d) floats and (n,) starting scores -> raw scores of the same shape
    start : float
    n_features : int
    """

    scores: Callable[[NDArray[np.floating[Any]], NDArray[np.float64]], NDArray[np.floating[Any]]]
    start: float
    n_features: int

    def predict(self, X: Any) -> NDArray[np.float64]:
        """Predict locations: (n,) float64."""
        rows = _rows_of(X, self.n_features)
        return self.start + np.asarray(self.scores(rows, np.zeros(len(rows))), np.float64)


def _rows_of(X: Any, n_features: int) -> NDArray[np.float64]:
    rows = np.asarray(X, np.float64)
    if rows.ndim != 2 or rows.shape[1] != n_features:
        raise InvalidInput(
            f"Expected {n_features} columns, as the trees were trained on, got shape {rows.shape}."
        )
    return rows


# Writing
# --------------------------------------------------------------------------------------------------


def facts_of(model: LikelihoodBoosting | LocationBoosting, n_features: int) -> dict[str, object]:
    """Give the facts that a reader needs beside the booster's file."""
    if isinstance(model, LocationBoosting):
        library = LIGHTGBM if _is_lightgbm(model.pieces_[0]) else XGBOOST
        return {"library": library, "start": float(model.start_), "features": n_features}
    library = (
        SCIKIT_LEARN
        if isinstance(model.estimator_, HistogramScores)
        else LIGHTGBM
        if _is_lightgbm(model.estimator_)
        else XGBOOST
    )
    return {
        "library": library,
        "start": [float(each) for each in model.start_],
        "factor": model.factor_,
        "features": n_features,
    }


def _is_lightgbm(fitted: Any) -> bool:
    return LIGHTGBM in sys.modules and hasattr(fitted, "booster_")


def booster_of(fitted: Any) -> bytes:
    """Write the trees of a fitted classifier, or of the pieces of a `LocationBoosting`, in their
    library's own format."""
    if isinstance(fitted, LocationBoosting):
        parts = [
            (piece, fitted.share_ * weight)
            for piece, weight in zip(fitted.pieces_, fitted.weights_, strict=True)
        ]
        return (_lightgbm_sum if _is_lightgbm(fitted.pieces_[0]) else _xgboost_sum)(parts).encode()
    if _is_lightgbm(fitted):
        return _lightgbm_text(
            *_lightgbm_parts(
                fitted.booster_.model_to_string(num_iteration=fitted.best_iteration_ or None)
            )
        ).encode()
    booster = fitted.get_booster()
    best = getattr(fitted, "best_iteration", None)
    return _xgboost_text(*_xgboost_parts(booster if best is None else booster[: best + 1])).encode()


# Reading
# --------------------------------------------------------------------------------------------------


def booster_from(raw: bytes, facts: Mapping[str, Any], name: str) -> BoostedModel:
    """Read what `booster_of` wrote; `name` is the file's, for messages.

    Raises
    ------
    InvalidInput
        If the file is another one, or its trees point to nodes, features or categories that do not
        exist.
    MissingExtra
        If the library is not installed.
    """
    start = start_of(facts)
    scores = _scores_from(raw, facts, name, 1 if len(start) == 2 else len(start))
    return BoostedModel(scores, start, int(facts["features"]), factor_of(facts))


def locations_from(raw: bytes, facts: Mapping[str, Any], name: str) -> BoostedLocations:
    """Read what `booster_of` wrote of a `LocationBoosting`; see `booster_from`."""
    start = float(facts["start"])
    if not math.isfinite(start):
        raise ValueError("start")
    return BoostedLocations(_scores_from(raw, facts, name, 1), start, int(facts["features"]))


def _scores_from(raw: bytes, facts: Mapping[str, Any], name: str, groups: int) -> Any:
    library = facts["library"]
    read = _read_lightgbm if library == LIGHTGBM else _read_xgboost
    try:
        return read(raw.decode(), int(facts["features"]), groups)
    except (MissingExtra, MemoryError):
        raise
    except Exception:
        raise InvalidInput(
            f"Expected trees of {library} as labeldp writes them in {name}, got others. The file is"
            " damaged or was changed."
        ) from None


def start_of(facts: Mapping[str, Any]) -> NDArray[np.float64]:
    """Read the starting logits."""
    start = np.array([float(each) for each in facts["start"]])
    if len(start) < 2 or not np.isfinite(start).all():
        raise ValueError("start")
    return start


def factor_of(facts: Mapping[str, Any]) -> float:
    """Read the factor of the trees' scores; models of earlier versions have none."""
    factor = float(facts.get("factor", 1.0))
    if not 0 < factor < math.inf:
        raise ValueError("factor")
    return factor


def _require(fits: object) -> None:
    if not fits:
        raise ValueError("trees")


# LightGBM
# --------------------------------------------------------------------------------------------------

_HEAD = ("num_class", "num_tree_per_iteration", "max_feature_idx")
_NODES = {
    "split_feature": _INT,
    "threshold": _FLOAT,
    "decision_type": _INT,
    "left_child": _INT,
    "right_child": _INT,
}
_KINDS = {
    "num_leaves": _INT,
    "num_cat": _INT,
    **_NODES,
    "leaf_value": _FLOAT,
    "cat_boundaries": _INT,
    "cat_threshold": _INT,
}
Tree = dict[str, list[str]]


def _lightgbm_parts(text: str) -> tuple[dict[str, int], list[Tree]]:
    """Parse the numbers that predict: the head's, and each tree's."""
    head, *blocks = text.split("end of trees")[0].split("Tree=")
    facts = _pairs(head)
    return {name: int(facts[name]) for name in _HEAD}, [
        {name: values.split() for name, values in _pairs(block).items() if name in _KINDS}
        for block in blocks
    ]


def _pairs(text: str) -> dict[str, str]:
    return dict(line.split("=", 1) for line in text.splitlines() if "=" in line)


def _lightgbm_text(head: Mapping[str, int], trees: Sequence[Tree]) -> str:
    """Write a model text from numbers alone."""
    d = head["max_feature_idx"] + 1
    blocks = []
    for number, tree in enumerate(trees):
        lines = [f"{name}={' '.join(tree[name])}" for name in _KINDS if name in tree]
        blocks.append(
            "\n".join([f"Tree={number}", *lines, "is_linear=0", "shrinkage=1", "", ""]) + "\n"
        )
    sizes = " ".join(str(len(block)) for block in blocks)
    names, ranges = " ".join(f"Column_{i}" for i in range(d)), " ".join(["none"] * d)
    said = [
        *(f"{name}={value}" for name, value in head.items()),
        "label_index=0",
        f"feature_names={names}",
        f"feature_infos={ranges}",
    ]
    return (
        "\n".join(["tree", "version=v4", *said, f"tree_sizes={sizes}", "", ""])
        + "".join(blocks)
        + "end of trees\n"
    )


def _lightgbm_sum(parts: Iterable[tuple[Any, float]]) -> str:
    """Write pieces, each times a factor, as one model."""
    trees: list[Tree] = []
    for piece, factor in parts:
        head, found = _lightgbm_parts(piece.booster_.model_to_string())
        trees += [
            tree | {"leaf_value": [repr(factor * float(value)) for value in tree["leaf_value"]]}
            for tree in found
        ]
    return _lightgbm_text(head, trees)


def _read_lightgbm(text: str, n_features: int, groups: int) -> Any:
    head, trees = _lightgbm_parts(text)
    _require(
        head
        == {
            "num_class": groups,
            "num_tree_per_iteration": groups,
            "max_feature_idx": n_features - 1,
        }
    )
    _require(trees and len(trees) % groups == 0)
    for tree in trees:
        _check_lightgbm(tree, n_features)
    _require(text == _lightgbm_text(head, trees))  # nothing else is in it
    require_library(LIGHTGBM)
    import lightgbm

    booster = lightgbm.Booster(model_str=text)
    _require(booster.num_trees() == len(trees) and booster.num_feature() == n_features)
    return lambda X, start: booster.predict(X, raw_score=True) + start


def _check_lightgbm(tree: Tree, n_features: int) -> None:
    """Check that children come after their parents, and that features, leaves and categories
    exist."""
    _require(all(_KINDS[name].fullmatch(each) for name, values in tree.items() for each in values))
    (leaves,), (cats,) = map(_ints, (tree["num_leaves"], tree["num_cat"]))
    _require(1 <= leaves == len(tree["leaf_value"]) and cats >= 0)
    nodes = leaves - 1
    feature, kind, left, right = (
        _ints(tree.get(name, []))
        for name in ("split_feature", "decision_type", "left_child", "right_child")
    )
    thresholds = [float(each) for each in tree.get("threshold", [])]
    _require(all(len(each) == nodes for each in (feature, kind, left, right, thresholds)))
    _require(
        all(0 <= each < n_features for each in feature) and all(0 <= each < 16 for each in kind)
    )
    for children in (left, right):
        _require(
            all(
                parent < child < nodes or -leaves <= child < 0
                for parent, child in enumerate(children)
            )
        )
    by_category = [thresholds[node] for node in range(nodes) if kind[node] & 1]
    _require(all(each == int(each) and 0 <= each < cats for each in by_category))
    bounds, words = _ints(tree.get("cat_boundaries", [])), _ints(tree.get("cat_threshold", []))
    _require(
        bounds == sorted(bounds)
        and len(bounds) == (cats + 1 if cats else 0)
        and all(0 <= word < 1 << 32 for word in words)
    )
    _require(not cats or (bounds[0] == 0 and bounds[-1] == len(words)))


def _ints(values: Sequence[str]) -> list[int]:
    return [int(each) for each in values]


# XGBoost
# --------------------------------------------------------------------------------------------------

_REALS = ("base_weights", "loss_changes", "split_conditions", "sum_hessian")
_LISTS = (
    *_REALS,
    "default_left",
    "left_children",
    "parents",
    "right_children",
    "split_indices",
    "split_type",
)
_CATEGORIES = ("categories", "categories_nodes", "categories_segments", "categories_sizes")
_ROOT = 2**31 - 1  # parent of a root


def _xgboost_parts(booster: Any) -> tuple[dict[str, Any], list[str] | None]:
    """Give a booster's JSON, and the types of its features."""
    kinds = booster.feature_types
    return json.loads(bytes(booster.save_raw("json"))), None if kinds is None else list(kinds)


def _xgboost_sum(parts: Iterable[tuple[Any, float]]) -> str:
    """Write pieces, each times a factor, as one model."""
    trees: list[dict[str, Any]] = []
    for piece, factor in parts:
        found, kinds = _xgboost_parts(piece.get_booster())
        model = found["learner"]["gradient_booster"]["model"]
        for tree in model["trees"]:  # a leaf's value is where an inner node's threshold is
            values = zip(tree["split_conditions"], tree["left_children"], strict=True)
            tree["split_conditions"] = [
                value if left >= 0 else factor * value for value, left in values
            ]
            tree["base_weights"] = [factor * value for value in tree["base_weights"]]
        trees += model["trees"]
    model["trees"], model["tree_info"] = trees, [0] * len(trees)
    return _xgboost_text(found, kinds)


def _xgboost_text(found: Mapping[str, Any], kinds: Sequence[str] | None) -> str:
    """Write a model from its numbers alone: trees, their classes and the features' types."""
    learner = found["learner"]
    model, facts = learner["gradient_booster"]["model"], learner["learner_model_param"]
    trees = []
    for number, tree in enumerate(model["trees"]):
        count = str(len(tree["left_children"]))
        sizes = {
            "num_deleted": "0",
            "num_feature": facts["num_feature"],
            "num_nodes": count,
            "size_leaf_vector": "1",
        }
        trees.append(
            {name: tree[name] for name in (*_LISTS, *_CATEGORIES)}
            | {"id": number, "tree_param": sizes}
        )
    rounds = list(range(0, len(trees) + 1, max(1, int(facts["num_class"]))))
    made = {
        "cats": {"enc": [], "feature_segments": [], "sorted_idx": []},
        "gbtree_model_param": {"num_parallel_tree": "1", "num_trees": str(len(trees))},
        "iteration_indptr": rounds,
        "tree_info": list(model["tree_info"]),
        "trees": trees,
    }
    numbers = {"base_score": "5E-1", "boost_from_average": "0", "num_target": "1"}
    numbers |= {name: str(int(facts[name])) for name in ("num_class", "num_feature")}
    told = {
        "attributes": {},
        "feature_names": [],
        "feature_types": list(kinds or []),
        "gradient_booster": {"model": made, "name": "gbtree"},
        "learner_model_param": numbers,
        "objective": {"name": "reg:squarederror", "reg_loss_param": {"scale_pos_weight": "1"}},
    }
    return json.dumps(
        {"learner": told, "version": found["version"]}, separators=(",", ":"), sort_keys=True
    )


def _read_xgboost(text: str, n_features: int, groups: int) -> Any:
    found = json.loads(text)
    learner = found["learner"]
    facts, model, kinds = (
        learner["learner_model_param"],
        learner["gradient_booster"]["model"],
        learner["feature_types"],
    )
    _require(
        facts["num_feature"] == str(n_features)
        and facts["num_class"] == str(0 if groups == 1 else groups)
    )
    _require(kinds == [] or (len(kinds) == n_features and set(kinds) <= {"c", "q"}))
    _require(
        len(found["version"]) == 3
        and all(type(each) is int and 0 <= each < 1000 for each in found["version"])
    )
    trees, info = model["trees"], model["tree_info"]
    _require(
        trees
        and len(trees) % groups == 0
        and info == [number % groups for number in range(len(trees))]
    )
    for tree in trees:
        _check_xgboost(tree, n_features)
    _require(text == _xgboost_text(found, kinds))  # nothing else is in it
    require_library(XGBOOST)
    import xgboost

    booster = xgboost.Booster()
    booster.load_model(bytearray(text.encode()))
    types = kinds or None

    def scores(X: Any, start: Any) -> Any:
        return booster.predict(
            xgboost.DMatrix(X, base_margin=start, feature_types=types, enable_categorical=True),
            output_margin=True,
        )

    return scores


def _check_xgboost(tree: Mapping[str, Any], n_features: int) -> None:
    """Check that children come after their parents, and that features and categories exist."""
    columns = [tree[name] for name in (*_LISTS, *_CATEGORIES)]
    _require(
        all(
            type(each) is list and all(type(value) in (int, float) for value in each)
            for each in columns
        )
    )
    n = len(tree["left_children"])
    _require(n and all(len(tree[name]) == n for name in _LISTS))
    _require(
        all(
            type(value) is int
            for name in (*_LISTS[len(_REALS) :], *_CATEGORIES)
            for value in tree[name]
        )
    )
    _require(all(math.isfinite(value) for name in _REALS for value in tree[name]))
    parents = [_ROOT] * n
    for node, (left, right) in enumerate(
        zip(tree["left_children"], tree["right_children"], strict=True)
    ):
        _require((left == right == -1) or (node < left < n and node < right < n and left != right))
        for child in (left, right):
            if child >= 0:
                _require(parents[child] == _ROOT)
                parents[child] = node
    _require(tree["parents"] == parents and parents.count(_ROOT) == 1)
    _require(all(0 <= each < n_features for each in tree["split_indices"]))
    _require(all(each in (0, 1) for name in ("default_left", "split_type") for each in tree[name]))
    nodes, segments, sizes = (tree[f"categories_{name}"] for name in ("nodes", "segments", "sizes"))
    _require(
        nodes == [node for node, kind in enumerate(tree["split_type"]) if kind]
        and len(nodes) == len(segments) == len(sizes)
    )
    _require(
        all(each >= 1 for each in sizes)
        and segments == [sum(sizes[:place]) for place in range(len(sizes))]
    )
    _require(
        len(tree["categories"]) == sum(sizes)
        and all(0 <= each < _CODES for each in tree["categories"])
    )
