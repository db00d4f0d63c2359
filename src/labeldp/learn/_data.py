# SPDX-License-Identifier: Apache-2.0
"""Check features in the forms that users have, and encode categories as numbers.

No message shows a label, and no warning depends on one.
"""

import contextlib
import math
from collections.abc import Iterator, Sequence
from numbers import Number
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from sklearn.compose import ColumnTransformer
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import FunctionTransformer, OrdinalEncoder
from sklearn.utils import check_array, get_tags
from threadpoolctl import threadpool_limits

from labeldp import _validate
from labeldp._hash import array_digest
from labeldp.errors import InvalidInput, LabelDPError, WrongType
from labeldp.protocol._written import is_time, seconds_of, text_of, written_times

Floats = NDArray[np.float64]
Codes = NDArray[np.int64]
Estimator = Any  # scikit-learn has no types

# histogram gradient boosting takes 255; the last one stands for all rarer ones
MAX_CATEGORIES = 254
# up to which a hundred trees take one thread about a second
_FEW_CELLS, _FEW_ROWS = 1_000_000, 20_000
_NOTHING = ("<NA>", "NaT", "nan")
_TABLES = (
    "shape",
    "iloc",
    "__array__",
    "__array_interface__",
    "__dataframe__",
    "__arrow_c_stream__",
)


def threads_for(X: Any) -> contextlib.AbstractContextManager[object]:
    """Limit fits to a small table to one thread: more threads gain nothing there, and wait for each
    other on a busy machine."""
    small = math.prod(X.shape) < _FEW_CELLS if hasattr(X, "shape") else len(X) < _FEW_ROWS
    return threadpool_limits(1, user_api="openmp") if small else contextlib.nullcontext()


def check_features(X: Any, estimator: Estimator, name: str) -> Any:
    """Check X as the estimator would: data frames and object arrays pass unchanged, numeric arrays
    by the estimator's tags.

    Parameters
    ----------
    X : array, sparse matrix or data frame
    estimator : scikit-learn estimator
    name : str
        The estimator's name in messages.
    """
    if (
        not isinstance(X, Sequence)
        and hasattr(X, "__len__")
        and not any(hasattr(X, name) for name in _TABLES)
    ):
        raise InvalidInput(
            f"Expected X as an array, a sparse matrix or a data frame, got {type(X).__name__}. Pass"
            " its rows as one array; labeldp.deep.TorchClassifier by itself takes Datasets and"
            " DataLoaders."
        )
    _validate.unmasked(X=X)  # scikit-learn takes the mask off
    if hasattr(X, "iloc") or (isinstance(X, np.ndarray) and X.dtype.kind in "OUS" and X.ndim == 2):
        return X
    tags = get_tags(estimator).input_tags
    return check_array(
        X,
        accept_sparse=["csr", "csc"] if tags.sparse else False,
        # A pipeline's tags do not say whether a step fills missing values; if none does, the dry
        # run fails before the charge.
        ensure_all_finite=(
            "allow-nan" if tags.allow_nan or isinstance(estimator, Pipeline) else True
        ),
        allow_nd=takes_images(estimator),
        # torch's types have no kind
        dtype="numeric" if getattr(getattr(X, "dtype", None), "kind", "O") == "O" else None,
        estimator=name,
        input_name="X",
    )


def taking_inputs_of(estimator: Any, tags: Any) -> Any:
    """Return these tags with another estimator's of its inputs: sparse ones, and gaps."""
    inner = get_tags(estimator).input_tags
    tags.input_tags.sparse, tags.input_tags.allow_nan = inner.sparse, inner.allow_nan
    return tags


def takes_images(estimator: Any) -> bool:
    """Return whether an estimator, or a pipeline's first step, takes arrays of three or more
    dimensions, by its tags."""
    if isinstance(estimator, Pipeline):
        return takes_images(estimator.steps[0][1])
    return hasattr(estimator, "__sklearn_tags__") and bool(
        get_tags(estimator).input_tags.three_d_array
    )


def features_digest(X: Any) -> str:
    """Return the SHA-256 of the public columns' values, whatever container holds them; a ledger
    recognises a repeated fit by it."""
    if hasattr(X, "tocsr"):
        rows = X.tocsr(copy=True)
        rows.sort_indices()
        return array_digest(
            {
                "data": rows.data,
                "indices": rows.indices.astype(np.int64),
                "indptr": rows.indptr.astype(np.int64),
            }
        )
    # By column and value, so that a data frame and an array of the same numbers have one digest.
    columns = (
        [X.iloc[:, j].to_numpy() for j in range(X.shape[1])]
        if hasattr(X, "iloc")
        else np.asarray(X).T
    )
    return array_digest({str(j): _plain(column) for j, column in enumerate(columns)})


def _plain(values: NDArray[np.generic]) -> NDArray[np.generic]:
    if values.dtype.kind in "Mm":  # has no buffer
        return values.astype(f"{values.dtype.kind}8[ns]").view(np.int64)
    # bytes of objects are addresses
    return values.astype(np.str_) if values.dtype.kind == "O" else values


def encoder_of(X: Any) -> ColumnTransformer | None:
    """Make a transformer of columns of text or categories, which come first, and of dates and
    times, for gradient boosting; None for none.

    The most frequent categories get codes of their own, and all rarer ones share one. Missing
    values, and categories that are new when predicting, become NaN. Dates and times, also such as
    text, become seconds, as they do on the command line.
    """
    times = time_columns(X)
    columns = [j for j in text_columns(X) if j not in times]
    if not columns and not times:
        return None
    codes = OrdinalEncoder(
        handle_unknown="use_encoded_value",
        unknown_value=np.nan,
        encoded_missing_value=np.nan,
        max_categories=MAX_CATEGORIES,
    )
    text = make_pipeline(FunctionTransformer(_as_text), codes)
    return ColumnTransformer(
        [("text", text, columns), ("times", FunctionTransformer(as_seconds), times)],
        remainder=FunctionTransformer(_as_numbers),
    )


def text_columns(X: Any) -> list[int]:
    """Return the positions of columns that hold categories, or text that is not all numbers."""
    return [
        j
        for j, column in _columns(X)
        if column.dtype.kind in "OUS" and (hasattr(column, "cat") or _is_text(column))
    ]


def time_columns(X: Any) -> list[int]:
    """Return the positions of columns that hold dates or times, or text that is all dates and times
    of ISO 8601."""
    return [
        j
        for j, column in _columns(X)
        if column.dtype.kind in "OUMm"
        and not hasattr(column, "cat")
        and _times_of(column) is not None
    ]


def _columns(X: Any) -> Iterator[tuple[int, Any]]:
    if getattr(X, "ndim", 0) == 2 and not hasattr(X, "tocsr"):
        for j in range(X.shape[1]):
            yield j, X.iloc[:, j] if hasattr(X, "iloc") else X[:, j]


def _times_of(column: Any) -> pa.Array | None:
    """Read a column as times; None if it holds others, or none at all."""
    try:
        read = pa.array(column, from_pandas=True)
        found = read.combine_chunks() if isinstance(read, pa.ChunkedArray) else read
        if not is_time(found.type) and not pa.types.is_null(found.type):
            found = (
                written_times(text_of(found))
                if pa.types.is_string(found.type) or pa.types.is_large_string(found.type)
                else None
            )
    except (pa.ArrowException, TypeError, ValueError):
        return None
    return None if found is None or found.null_count == len(found) else found


def _is_text(column: Any) -> bool:
    """Return whether a column holds text, possibly among numbers, that cannot be read as numbers
    throughout."""
    values = np.asarray(column, object)
    if not all(
        value is None or isinstance(value, (str, Number)) or repr(value) in _NOTHING
        for value in values
    ):
        return False
    try:
        np.asarray(column, np.float64)
    except (TypeError, ValueError):
        return True
    return False


def _as_numbers(X: Any) -> NDArray[np.float64]:
    for name, kind in X.dtypes.items() if hasattr(X, "iloc") else ():
        if kind.kind not in "biufO" or str(kind).startswith(("period", "interval")):
            raise InvalidInput(
                f"Expected columns of numbers, text or categories, got {name!r} of {kind}. Make a"
                " number of it, such as days."
            )
    return np.asarray(
        X.to_numpy(np.float64, na_value=np.nan) if hasattr(X, "iloc") else X, np.float64
    )


def as_seconds(X: Any) -> NDArray[np.float64]:
    """Return dates and times as seconds, missing ones as NaN."""
    found = []
    for j, column in _columns(X):
        times = _times_of(column)
        if times is None and not all(
            value is None or value != value for value in np.asarray(column, object)
        ):
            named = f" {X.columns[j]!r}" if hasattr(X, "iloc") else ""
            raise InvalidInput(
                f"Expected dates or times of ISO 8601 in column{named}, as in the fit, got others."
            )
        found.append(
            np.full(len(X), np.nan)
            if times is None
            else seconds_of(times).to_numpy(zero_copy_only=False)
        )
    return np.column_stack(found)


def _as_text(X: Any) -> NDArray[np.object_]:
    """Return values as text, missing ones as NaN: a column may hold values of several types, which
    cannot be sorted together."""
    values = np.asarray(X, object)
    missing = (
        X.isna().to_numpy()
        if hasattr(X, "isna")
        else np.array([[v is None or v != v for v in row] for row in values], bool)
    )
    text = np.array([[str(v) for v in row] for row in values], object).reshape(values.shape)
    text[missing.reshape(values.shape)] = np.nan
    return text


@contextlib.contextmanager
def explained(*, fitted: bool) -> Iterator[None]:
    """Raise what scikit-learn says against features as errors of this library, with what to do
    about it.

    Parameters
    ----------
    fitted : bool
        Whether features to predict from are meant, else those of a fit, before its charge.
    """
    try:
        yield
    except LabelDPError:
        raise
    except (TypeError, ValueError, RuntimeError) as error:
        what = str(error).strip()
        # names other estimators, and says in many lines what `advice` does in one
        if "natively" in what:
            what = what.split("\n")[0]
        told = what if what.endswith(".") else f"{what}."
        hint = "" if fitted else f" Nothing was charged or drawn.{advice(what)}"
        raise (WrongType if isinstance(error, TypeError) else InvalidInput)(
            f"{told}{hint}"
        ) from error


_ADVICE = {
    ("infinity",): " Replace infinite numbers by finite ones.",
    ("DateTime", "datetime"): (
        " Make numbers of dates, such as days since one of them; estimator=None does it itself."
    ),
    ("could not convert string", "dtype"): (
        " Encode text columns, as OneHotEncoder(handle_unknown='ignore') in a ColumnTransformer"
        " does; estimator=None does it itself."
    ),
    ("NaN", "missing values"): (
        " Fill the gaps, for example with SimpleImputer() as the first step of a pipeline;"
        " estimator=None takes them as they are."
    ),
    ("unknown categor",): (
        " Categories that are rare are new to a part of the rows:"
        " OneHotEncoder(handle_unknown='ignore') takes them."
    ),
}


def advice(what: str) -> str:
    """Say what to do about an error of scikit-learn's on features of a fit; "" if nothing is
    known."""
    for signs, found in _ADVICE.items():
        if any(sign in what for sign in signs):
            return found
    return ""
