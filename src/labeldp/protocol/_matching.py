# SPDX-License-Identifier: Apache-2.0
"""Match the rows of X and noisy labels: by ids if they are given; otherwise warn where nothing
shows that their orders agree.

This is a file of its own, because a training loop imports it and must not load scikit-learn.
"""

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from labeldp._hash import exact_array
from labeldp.custody._encode import (
    Named,
    column_names,
    index_of,
    is_closed,
    require_public_columns,
    require_same_order,
)
from labeldp.errors import InvalidInput, LabelDPWarning, warn
from labeldp.evidence import NoisyLabels
from labeldp.evidence._noisy import derived, id_keys
from labeldp.receipt import private_names

if TYPE_CHECKING:
    from labeldp.custody._private import PrivateLabels


def row_count(X: Any) -> int:
    """Return the number of rows of an array, a sparse matrix, a data frame or a list; `len` of a
    sparse matrix raises an error."""
    return int(X.shape[0]) if hasattr(X, "shape") else len(X)


def take(X: object, rows: NDArray[np.int64]) -> object:
    """Return these rows of an array, a sparse matrix or a data frame."""
    if hasattr(X, "iloc"):
        return X.iloc[rows]
    return X[rows] if hasattr(X, "__getitem__") and hasattr(X, "shape") else np.asarray(X)[rows]


_LOOKED_AT, _CELLS = 100_000, 1 << 23  # rows, and their probabilities


def spread(n_rows: int, n_classes: int, most: int = _LOOKED_AT) -> NDArray[np.int64]:
    """Choose rows evenly: a sample is enough, and with very many classes the probabilities of all
    rows would not fit into memory."""
    return np.arange(0, n_rows, -(-n_rows // min(most, max(1, _CELLS // n_classes))))


def check_count(n_labels: int, n_rows: int) -> None:
    """Refuse a number of labels other than that of rows, and fewer than two rows."""
    if n_labels != n_rows:
        raise InvalidInput(
            f"Found input variables with inconsistent numbers of samples: X has {n_rows} rows, y"
            f" has {n_labels}."
        )
    if n_rows < 2:
        raise InvalidInput(f"Expected at least 2 rows, got n_samples={n_rows}.")


def positions_of(
    ids: NDArray[Any], n_items: int, noisy: NoisyLabels, *, given: bool
) -> NDArray[np.int64]:
    """Return the position of each noisy row's item, found by id.

    Parameters
    ----------
    ids : (n_items,) or (n_items, columns) array
        Ids of the items, in their order.
    n_items : int
    noisy : NoisyLabels of n rows
    given : bool
        Whether the caller gave the ids; otherwise they are positions.

    Returns
    -------
    (n,) int64

    Raises
    ------
    InvalidInput
        If there is not one id per item, an id repeats, or a noisy row has no item.
    """
    if np.ndim(ids) == 0:
        raise InvalidInput(
            f"Expected ids as a column of {n_items} values, got one {type(ids.item()).__name__}."
            " Pass the column's values."
        )
    if len(ids) != n_items:
        raise InvalidInput(
            f"Expected one id an item, got {len(ids)} ids for {n_items} items. Pass ids in the"
            " order of the dataset."
        )
    if not noisy.explicit_ids:  # they have positions for ids, in what was privatized
        require_same_rows(n_items, noisy)
    names = id_keys(ids, noisy.ids)
    place = {value: position for position, value in enumerate(names)}
    if len(place) != n_items:
        first = next(position for position, value in enumerate(names) if place[value] != position)
        raise InvalidInput(
            f"Expected ids that are all different, got {n_items - len(place)} that repeat, first in"
            f" items {first} and {place[names[first]]} (counted from 0). Name each item by its own."
        )
    found = [place.get(value, -1) for value in id_keys(noisy.ids, ids)]
    if missing := found.count(-1):
        unmatched = noisy.ids[found.index(-1)]
        fix = (
            "Pass the ids that were given to privatize, in the order of the dataset"
            if given or noisy.explicit_ids
            else "Pass ids="
        )
        raise InvalidInput(
            f"Expected an item for every noisy row, but {missing} ids have none, such as"
            f" {unmatched.tolist()!r}. {fix}; of some rows alone take noisy.by_id(ids)."
        )
    return np.asarray(found, np.int64)


def matched_by_id(ids: Any, n_items: int, noisy: Any) -> tuple[NDArray[np.int64], Any]:
    """Find the items that have a noisy or private label; return their positions, ascending, and the
    labels in that order.

    Parameters
    ----------
    ids : (n_items,) or (n_items, columns) array
    n_items : int
    noisy : NoisyLabels or PrivateLabels
    """
    closed = is_closed(noisy)
    # the columns of a mapping have the names that it gives, and those that they carry
    named = Named.of(ids)
    for columns in (ids, named.columns) if named.names else (ids,):
        if closed:
            noisy.require_public(columns, "ids")
        else:
            require_public_beside(noisy, columns, "ids")
    places = positions_of(exact_array(named.table), n_items, noisy, given=True)
    order = np.argsort(places, kind="stable")
    found = noisy.subset(order) if closed else derived(noisy[order], index=None)
    if closed:
        found.rows.index = None  # X's may be another one
    return places[order], found


def require_public_beside(noisy: NoisyLabels, columns: Any, what: str) -> None:
    """Refuse columns that have the name of a private one, as far as the noisy labels know it."""
    require_public_columns(
        column_names(columns), private_names((*noisy.receipts, *noisy.behind)), what
    )


def require_same_rows(n_items: int, noisy: NoisyLabels, name: str = "X") -> None:
    """Refuse numbers of noisy labels and items that differ, since no ids say which belong
    together."""
    if len(noisy) != n_items:
        fix = (
            f"Pass ids= with the ids of {name}'s rows: they are matched."
            if noisy.explicit_ids
            else (
                f"They carry no ids to match by: pass just the rows of {name} that they are of, in"
                " their order (of a Dataset a Subset)."
            )
        )
        raise InvalidInput(
            f"Expected noisy labels of {n_items} rows, as many as {name} has, got {len(noisy)}."
            f" {fix}"
        )


def warn_of_order(noisy: NoisyLabels, *, own: bool) -> None:
    """Warn if the rows of X and the noisy labels may be in different orders and nothing shows which
    belong together.

    Parameters
    ----------
    noisy : NoisyLabels
    own : bool
        Whether X is in the order in which this process privatized the labels.
    """
    drawn = noisy.order == "drawn"
    named = noisy.explicit_ids and not np.array_equal(noisy.ids, np.arange(len(noisy)))
    if (own and noisy.order == "labels") or not (drawn or named):
        return
    first = f", whose first id is {noisy.ids[0].tolist()!r}" if noisy.explicit_ids else ""
    why = (
        "The noisy labels were read from a released table, whose rows are in an order of their own"
        if drawn
        else "The noisy labels carry ids of their own"
    )
    fix = (
        "Pass ids= with the ids of X's rows, and they are matched."
        if noisy.explicit_ids
        else (
            "It has no ids to match by: read X from that very file, and say so by"
            " ids=range(len(X)); or release it with an id column."
        )
    )
    warn(
        LabelDPWarning(
            f"{why}, and nothing says which row of X has which: row i of X is taken for that of"
            f" noisy label i{first}. {fix}"
        )
    )


def same_index(X: Any, labels: "PrivateLabels | NoisyLabels", name: str = "X") -> bool:
    """Tell whether X and labels have one index; refuse a data frame whose index is another one, or
    has another order, than that of the labels."""
    mine, theirs = index_of(X), labels.index
    if mine is None or theirs is None:
        return False
    if theirs.equals(mine):
        return True
    raise InvalidInput(
        f"Expected {name} with the index of the labels, got rows that were sorted, filtered or"
        " joined since, or that have another index. Nothing was charged. Make both from one frame"
        f" (labeldp.split_labels), or pass ids= of {name}'s rows; if row i of {name} is that of"
        f" label i all the same, pass {name}.to_numpy()."
    )


def together(X: Any, noisy: Any, ids: ArrayLike | None, name: str = "X") -> tuple[Any, Any]:
    """Match rows of X and noisy or private labels, both in the order of X; with ids, rows without a
    label are left out.

    Parameters
    ----------
    X : array, sparse matrix or data frame
    noisy : NoisyLabels
    name : str, default="X"
        The argument, for messages.
    ids : (len of X,) or (len of X, columns) array, optional
        Ids of X's rows, to match by. Without them row i gets noisy label i: a named index with the
        ids of `noisy` confirms or refutes this order, and if nothing does, a warning says so.

    Raises
    ------
    InvalidInput
        If ids do not match, numbers of rows differ, or the index shows another order.
    """
    n_rows = X.shape[0]
    if ids is not None:
        require_same_order(index_of(X), name, "ids", *Named.of(ids).columns)
        places, noisy = matched_by_id(ids, n_rows, noisy)
        return (X if np.array_equal(places, np.arange(n_rows)) else take(X, places)), in_order(
            noisy
        )
    if is_closed(noisy):
        check_count(len(noisy), n_rows)
    else:
        require_same_rows(n_rows, noisy, name)
    if same_index(X, noisy, name) or is_closed(noisy):
        return X, in_order(noisy)
    index = getattr(X, "index", None) if hasattr(X, "iloc") else None
    # Only a named index counts: it was made from a column, while a nameless one numbers rows.
    known = None if getattr(index, "name", None) is None else np.asarray(index)
    same = known is not None and noisy.explicit_ids and known.shape == noisy.ids.shape
    if known is None or not same or set(known.tolist()) != set(noisy.ids.tolist()):
        warn_of_order(noisy, own=True)
    elif not np.array_equal(known, noisy.ids):
        raise InvalidInput(
            "Expected the rows of X in the order of the noisy labels, got an index that has their"
            " ids in another order. Pass ids=X.index, and they are matched."
        )
    return X, in_order(noisy)


def in_order(noisy: Any) -> Any:
    """Note that the order of noisy labels is that of what they were matched with; whoever gets them
    need not ask again."""
    known = is_closed(noisy) or noisy.order == "labels"
    return noisy if known else derived(noisy, order="labels")
