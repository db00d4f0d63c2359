# SPDX-License-Identifier: Apache-2.0
"""What makes two clusterings the same request: the features and the settings. Not the groups, which other rounding can move."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labeldp._hash import digest
from labeldp.learn.clusters import Clusters, embedded
from labeldp.learn.features import features_digest
from labeldp.learn.model import take

Order = NDArray[np.intp]

_MANY = 64  # settings in one list: what is longer is data


def clustering_request(X: Any, clusters: Clusters, embedder: Any, settings: Mapping[str, object]) -> Callable[[Order | None], str]:
    """A digest of the request, as a function of the order of the rows; called only where a ledger may know it.

    Parameters
    ----------
    X : (n, ...) features
    clusters : Clusters
    embedder : as it was given
        Settings that say all of it stand for what it gives; of a function, and of a transformer with functions, arrays or objects of the
        user's, or without a fixed random_state, the embedding itself is taken, which must then come out the same, bit by bit, for a
        repeat to be recognised.
    settings : mapping
        The other ones, as JSON-ready data.
    """

    def named(order: Order | None) -> str:
        known = _settings_of(embedder) if _is_table(X) else None
        if known is None:
            rows = {"embedding": features_digest(_ordered(embedded(clusters.embedder, X), order))}
        else:
            rows = {"features": features_digest(_ordered(X, order)), "embedder": known}
        return digest({"clusters": dict(settings), **rows})

    return named


def _ordered(table: Any, order: Order | None) -> Any:
    return table if order is None else take(table, order)


def _is_table(X: Any) -> bool:
    return hasattr(X, "tocsr") or hasattr(X, "iloc") or (isinstance(X, np.ndarray) and X.ndim > 1 and X.dtype.kind in "biuf")


def _settings_of(embedder: Any) -> str | None:
    """An embedder by its settings; None where they do not say all of it."""
    if embedder is None or isinstance(embedder, str):
        return repr(embedder)
    if not hasattr(embedder, "get_params"):
        return None
    settings = embedder.get_params()
    parts = [embedder, *(value for value in settings.values() if hasattr(value, "get_params"))]
    if not all(_name_of(part).startswith("sklearn.") for part in parts):
        return None  # whose settings may be anything, also data
    facts = {name: _plain(value) for name, value in settings.items()}
    free = any(value is None and f"__{name}".endswith("__random_state") for name, value in settings.items())
    return None if free or None in facts.values() else digest({_name_of(embedder): facts})


def _plain(value: object) -> str | None:
    """A setting as text that stands for nothing else; None where there is none: an array is data, and no digest tells of it."""
    if value is None or isinstance(value, bool | int | float | str | np.generic):
        return repr(value)
    if isinstance(value, list | tuple) and len(value) <= _MANY:
        parts = [_plain(each) for each in value]
        return None if None in parts else f"{type(value).__name__}{parts}"
    if isinstance(value, type):
        return _name_of(value)
    return _name_of(value) if hasattr(value, "get_params") else None  # whose own settings are among the others


def _name_of(thing: object) -> str:
    kind = thing if isinstance(thing, type) else type(thing)
    return f"{kind.__module__}.{kind.__qualname__}"
