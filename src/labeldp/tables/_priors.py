# SPDX-License-Identifier: Apache-2.0
"""Priors that are no columns of the released table: a public table in which weights are looked up,
and a model that is asked once.

A prior is public. It may come from other data, earlier releases or experts, but never from these
raw labels: a prior gets only the columns that it names, and the label is never one of them.

A model's answers can differ in the last bits between batches, machines and runs, and a row that is
drawn under two priors spends twice. So a model is asked once, before the charge. Its answers are
quantised (`labeldp.laws._exact`) and written to files of ids and weights, which all draws of the
run read until the release is published. The files hold no labels.
"""

import hashlib
import io
import json
import warnings
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import cached_property, lru_cache, partial
from pathlib import Path
from typing import Any, ClassVar, Protocol, runtime_checkable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from labeldp import _validate
from labeldp._files import sync
from labeldp._hash import SetDigest, public_hash
from labeldp.aggregates._histogram import histogram_of_all
from labeldp.custody._draw import FirstPass, PassSums, RunFacts
from labeldp.custody._stream import Divide, TableDraw, TablePin, changed_input
from labeldp.errors import InvalidInput, LabelDPError, MissingExtra, ReleaseError, needs_torch
from labeldp.laws import Grid
from labeldp.laws._columns import as_classes
from labeldp.laws._exact import quantise
from labeldp.ledger._ledger import Ledger, RunRecord
from labeldp.ledger._repair import ANSWERS
from labeldp.ledger._run_store import RunStore
from labeldp.protocol._written import is_time, text_of, ticks_of
from labeldp.tables._place import Part, Place, Staging, delete_folder, reading
from labeldp.tables.formats._parquet import ParquetSink, open_table
from labeldp.tables.formats._table import (
    WEIGHTS,
    Columns,
    PartsSink,
    Source,
    as_binary,
    check_columns,
    is_text,
    plain,
    row_ids,
    row_number,
)

Floats = NDArray[np.float64]


@runtime_checkable
class Prior(Protocol):
    """The source of a prior, as a frozen value of a `ReleaseSpec`."""

    @property
    def reads(self) -> tuple[str, ...]:
        """The columns of the released table that it reads, as far as known before it is opened."""

    def to_dict(self) -> dict[str, object]:
        """Return the prior as JSON-ready data."""

    def open(self, classes: Sequence[object]) -> "OpenPrior":
        """Read its files, for classes in the order of their codes."""


def column_names(role: str, names: str | Sequence[str] | None) -> tuple[str, ...] | None:
    """Return the distinct columns that a user names for a role; None for None."""
    if names is None:
        return None
    listed = (names,) if isinstance(names, str) else tuple(names)
    for name in listed:
        column_name(**{role: name})
    if len(set(listed)) < len(listed):
        raise InvalidInput(
            f"Expected distinct columns for {role}, got one twice in {list(listed)}. List each one"
            " once."
        )
    return listed


def column_name(**named: object) -> None:
    """Refuse anything but the name of a column."""
    ((role, value),) = named.items()
    if not isinstance(value, str) or not value:
        raise InvalidInput(f"Expected {role} to be a column's name, got {value!r}. Pass a string.")


def opened(
    prior: Prior, classes: Sequence[object], label: str, names: Sequence[str]
) -> "OpenPrior":
    """Open the prior of a spec.

    Raises
    ------
    InvalidInput
        It reads the label or a column that the table lacks, or it has other classes.
    """
    found = prior.open(classes)
    # The side, which is published, is computed from the prior: a prior that saw the label would
    # reveal it.
    if label in found.columns:
        raise InvalidInput(
            f"Expected a prior that never sees the label, got one that reads column {label!r}. A"
            " prior is public."
        )
    for name in found.columns:
        if name not in names:
            raise InvalidInput(
                "Expected a table with every column that the prior reads, got none named"
                f" {name!r}.{_validate.suggest(name, names)}"
            )
    return found


def weights_of(prior: "OpenPrior", batch: Columns, start: int | None, n_classes: int) -> Floats:
    """Compute and check the prior's weights of a batch: (n, K) float64."""
    # The prior gets its own columns only, because the batch also holds the raw labels.
    rows = pa.record_batch(
        [batch.column(name) for name in prior.columns], names=list(prior.columns)
    )
    weights = np.asarray(prior.weights(rows, start))
    if weights.shape != (len(rows), n_classes) or weights.dtype.kind != "f":
        raise InvalidInput(
            f"Expected the prior to give {n_classes} numbers for each row, one a class, got an"
            f" array of shape {weights.shape} and type {weights.dtype}. Give one that is made for"
            " these classes."
        )
    good = np.asarray(((weights >= 0) & (weights < np.inf)).all(axis=1))
    if not good.all():
        raise InvalidInput(
            f"Expected finite weights >= 0 from the prior, got others for {_which(good, start)}."
            " Mend the prior."
        )
    return weights.astype(np.float64, copy=False)


def _which(good: NDArray[np.bool_], start: int | None) -> str:
    """Describe the first row that is not good; "some row" if rows have no numbers."""
    return row_number(None if start is None else start + int(np.argmin(good)))


def ordered_by_value(names: Sequence[object], classes: Sequence[object]) -> list[int] | None:
    """Return the position of each class among `names`, compared as text; None if the two lists hold
    different values."""
    found = {as_text(name): i for i, name in enumerate(names)}
    wanted = [as_text(value) for value in classes]
    return [found[value] for value in wanted] if sorted(found) == sorted(wanted) else None


def as_text(value: object) -> str:
    """Convert a class value to text: 1 and 1.0 alike, and None to ""."""
    plain = value.item() if hasattr(value, "item") else value
    if isinstance(plain, float) and plain.is_integer():
        plain = int(plain)
    return "" if plain is None else str(plain)


@dataclass(frozen=True)
class OwnHistogram:
    """A prior that a release pays for itself: the noisy histogram of all labels, for every row.

    Parameters
    ----------
    epsilon : float, optional
        Its cost, a part of the release's total. Default: see `labeldp.learn.HistogramPrior`.
    """

    epsilon: float | None = None

    of_all_rows: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.epsilon is not None:
            fix = "It is the cost of the histogram, a part of the total: HistogramPrior(0.1)."
            cost = _validate.positive(epsilon=self.epsilon, fix=fix)
            object.__setattr__(self, "epsilon", cost)  # a float, which JSON can hold, of any number

    def to_dict(self) -> dict[str, object]:
        """Return the prior as JSON-ready data."""
        return {"histogram": {"epsilon": self.epsilon}}

    def divided(self, total: float, n_classes: int) -> Divide:
        """Return the function that divides the total for a number of rows."""
        return lambda n_rows: histogram_of_all(total, n_classes, n_rows, self.epsilon)


# A table that is looked up
# --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PriorTable:
    """A small public table with weights of the classes, looked up by columns that the released
    table also has.

    Parameters
    ----------
    path : str, Path or Place
        Parquet (.parquet, .pq) or CSV (.csv, .tsv).
    key : str or sequence of str
        Columns of integers or text in both tables, unique in this one: for example a cluster id, a
        segment, or the row id.
    columns : sequence of str, optional
        K columns of weights >= 0, in the order of the classes. None (default): all columns but the
        key; matched by name if the names are the class values, else in the order of the table.
    missing : {"error", "uniform"}
        For a row whose key is not in the table: "error" (default) refuses it, "uniform" gives it
        equal weights.
    """

    path: object
    key: str | Sequence[str]
    columns: Sequence[str] | None = None
    missing: str = "error"

    exact: ClassVar[bool] = True

    def __post_init__(self) -> None:
        put = object.__setattr__
        _validate.one_of(("error", "uniform"), missing=self.missing)
        put(self, "key", column_names("key", self.key))
        put(self, "columns", column_names("columns", self.columns))
        if not self.key:
            raise InvalidInput("Expected key=, the columns that both tables have, got none.")
        if not isinstance(self.path, Place):
            put(self, "path", str(self.path))

    @property
    def reads(self) -> tuple[str, ...]:
        """The key columns."""
        return tuple(self.key or ())

    def to_dict(self) -> dict[str, object]:
        """Return the prior as JSON-ready data."""
        return {
            "table": str(self.path),
            "key": list(self.key),
            "columns": None if self.columns is None else list(self.columns),
            "missing": self.missing,
        }

    def open(self, classes: Sequence[object]) -> "OpenTable":
        """Read and check the table."""
        place = Place.of(self.path)
        with reading(place):
            sha256 = place.digest()
        source = open_table(place)
        columns = list(self.columns or (name for name in source.names if name not in self.key))
        if len(columns) != len(classes):
            raise InvalidInput(
                f"Expected one column of weights a class ({len(classes)}) in {place.name}, got"
                f" {len(columns)}. Name them in the order of the classes: columns=[...]."
            )
        order = ordered_by_value(columns, classes) if self.columns is None else None
        columns = columns if order is None else [columns[i] for i in order]
        names = [*self.reads, *columns]
        check_columns(source, names)
        batches = list(source.batches(names))
        if not batches:
            raise InvalidInput(f"Expected rows in the table of priors, got none in {place.name}.")
        rows = pa.record_batch(
            {
                name: pa.concat_arrays([plain(batch.column(name)) for batch in batches])
                for name in names
            }
        )
        weights = weight_columns(rows, columns, f" of {place.name}")
        facts = self.to_dict() | {"table": place.name, "columns": columns, "sha256": sha256}
        keys = [_key(rows.column(name), name, source) for name in self.reads]
        made, places = OpenTable.sorted(self.reads, facts, keys, weights, self.missing)
        # Different keys have equal 64-bit hashes with a probability of about n^2 / 2^65, so equal
        # hashes are taken for equal keys.
        again = places[1:][made.words[1:] == made.words[:-1]]
        if len(again):
            raise InvalidInput(
                f"Expected each key once in {place.name}, got one of"
                f" {_validate.quoted(self.reads)} twice, again in {row_number(int(again.min()))}."
                " Keep one row of each."
            )
        return made


@dataclass(frozen=True, repr=False)
class OpenTable:
    """A `PriorTable` in memory, sorted by the hashes of its keys.

    Attributes
    ----------
    columns : tuple of str
        The columns of the released table that it reads.
    facts : mapping
        Its description with the SHA-256 of its files, JSON-ready.
    exact : bool
        True if equal rows get equal weights, to the last bit, on every machine and in every batch.
    """

    columns: tuple[str, ...]
    facts: Mapping[str, object]
    words: NDArray[np.uint64]
    keys: tuple[pa.Array, ...]
    table: Floats
    missing: str

    exact: ClassVar[bool] = True

    @classmethod
    def sorted(
        cls,
        columns: Sequence[str],
        facts: Mapping[str, object],
        keys: Sequence[pa.Array],
        table: Floats,
        missing: str = "error",
    ) -> "tuple[OpenTable, NDArray[np.intp]]":
        """Sort the rows of a table by the hashes of their keys; return their former places, too."""
        words = public_hash("prior", list(keys))
        order = np.argsort(words, kind="stable")
        taken = tuple(key.take(pa.array(order)) for key in keys)
        return cls(tuple(columns), facts, words[order], taken, table[order], missing), order

    def weights(self, rows: pa.RecordBatch, start: int | None) -> Floats:
        """Look up the key of each row, which has `columns` only: (n, K) float64. `start` is the
        number of the first row, for messages, or None."""
        place, found = self._find(rows) if len(self.columns) > 1 else self._find_distinct(rows)
        if self.missing == "error" and not found.all():
            raise InvalidInput(
                f"Expected a prior for every {_validate.quoted(self.columns)}, got none in"
                f" {self.facts['table']} for {_which(found, start)}. Add it, or give such rows a"
                " uniform prior: missing='uniform'."
            )
        weights = self.table[place]
        weights[~found] = 1.0  # uniform
        return weights

    def _find_distinct(self, rows: pa.RecordBatch) -> tuple[NDArray[np.intp], NDArray[np.bool_]]:
        """Find the rows' places as `_find`, with one look-up for each distinct key: clusters and
        segments repeat."""
        (name,) = self.columns
        coded = plain(rows.column(name)).dictionary_encode(null_encoding="encode")
        place, found = self._find(pa.record_batch([coded.dictionary], names=[name]))
        codes = coded.indices.to_numpy()
        return place[codes], found[codes]

    def _find(self, rows: pa.RecordBatch) -> tuple[NDArray[np.intp], NDArray[np.bool_]]:
        texts = [_text_of(plain(rows.column(name)), name) for name in self.columns]
        present = np.logical_and.reduce(
            [text.is_valid().to_numpy(zero_copy_only=False) for text in texts]
        )
        texts = [pc.fill_null(text, "") for text in texts]
        place = np.searchsorted(self.words, public_hash("prior", texts))
        # Hashes find the place, and the keys themselves decide. A hash above all others is compared
        # with the last key, which differs.
        place = np.minimum(place, len(self.words) - 1)
        for text, key in zip(texts, self.keys, strict=True):
            present = present & pc.equal(text, key.take(pa.array(place))).to_numpy(
                zero_copy_only=False
            )
        return place, present


def _key(column: pa.Array, name: str, source: Source) -> pa.Array:
    text = _text_of(column, name)
    if text.null_count or (source.text and pc.any(pc.equal(text, "")).as_py()):
        raise InvalidInput(
            f"Expected a key in every row of {source.path.name}, got none in some rows of column"
            f" {name!r}. Fill them."
        )
    return text


def _text_of(column: pa.Array, name: str) -> pa.Array:
    """Convert a key column of integers or text to text, so that 7 in one table equals "7" in the
    other."""
    if not (pa.types.is_integer(column.type) or is_text(column.type)):
        raise InvalidInput(
            f"Expected a key of whole numbers or text, got column {name!r} of type {column.type}."
            " Cast it."
        )
    return column.cast(pa.large_string())


def weight_columns(batch: Columns, names: Sequence[str], where: str = "") -> Floats:
    """Read the columns of a prior's weights, one a class: (n, K) float64."""
    weights = _matrix(batch, names, "Each row needs a weight for every class.")
    if not np.all((weights >= 0) & (weights < np.inf)):
        raise InvalidInput(
            f"Expected finite weights >= 0 in the prior's columns {_validate.quoted(names)}{where},"
            " got others. Mend those rows."
        )
    return weights


# A model
# --------------------------------------------------------------------------------------------------

MODEL = "model.skops"
"""The model of one label column in a folder of `labeldp train`."""
SKOPS, EXPORTED = "skops", "torch program"
NUMBERS = "The model takes numbers there."
Predict = Callable[[pa.RecordBatch], Floats]
_KNOWN = frozenset(
    {
        # types that `labeldp train` writes and skops does not trust by itself
        "collections.OrderedDict",
        "functools.partial",
        "labeldp.app._columns.Features",
        "labeldp.app.train.TableModel",
        "labeldp.learn._boosting.HistogramScores",
        "labeldp.learn._boosting.LikelihoodBoosting",
        "labeldp.learn._corrections.Model",
        "labeldp.learn._location.Family",
        "labeldp.learn._location.LocationBoosting",
        "labeldp.learn._location.LocationModel",
        "labeldp.learn._softmax.SoftmaxRegression",
        "lightgbm.basic.Booster",
        "lightgbm.sklearn.LGBMClassifier",
        "lightgbm.sklearn.LGBMRegressor",
        "numpy.dtype",
        "sklearn.ensemble._hist_gradient_boosting.predictor.TreePredictor",
        "sklearn.utils.validation.check_array",
    }
)


def read_model(raw: bytes, name: str, trust: Collection[str] = ()) -> Any:
    """Read a model in the format of skops; `name` is the file's, for messages.

    A model is code, like any pickle: read those of people you trust. skops lists the types in a
    file before it builds anything, and only types that it, labeldp or `trust` knows are built.

    Raises
    ------
    InvalidInput
        It is no such file, or needs types that are not trusted; the message lists these.
    """
    from skops import io as skops

    try:
        unknown = sorted(set(skops.get_untrusted_types(data=raw)) - _KNOWN - set(trust))
        if not unknown:
            return skops.loads(raw, trusted=sorted({*_KNOWN, *trust}))
    except MissingExtra:
        raise
    except Exception:
        raise InvalidInput(
            f"Expected a model in the format of skops, got something else in {name}."
        ) from None
    raise InvalidInput(
        f"Expected a model of known types in {name}, got also {', '.join(unknown)}. If you trust"
        " who made the file, name each of them (trust=)."
    )


def answered(predict: Callable[[], Any], shape: tuple[int, int]) -> Floats:
    """Call a model that a file has made and check the shape of its answer; whatever it raises
    becomes an InvalidInput."""
    try:
        found = np.asarray(predict(), np.float64)
    except LabelDPError:
        raise
    except Exception as error:
        raise InvalidInput(
            f"Expected a model that can predict these rows, got {type(error).__name__} from it. Its"
            " file is damaged, or the rows are of another kind than it was trained on."
        ) from None
    if found.shape != shape:
        raise InvalidInput(
            f"Expected a model that gives {shape[1]} numbers a row, got an answer of shape"
            f" {found.shape}."
        )
    return found


@dataclass(frozen=True)
class PriorModel:
    """A trained model whose predicted probabilities are the prior of each row.

    It predicts once per charge. The predictions are stored until the release is published, and a
    release that resumes after a crash uses them again. The model must not have been trained on
    these labels, except on noisy ones from a release.

    Parameters
    ----------
    path : str or Path
        A folder of `labeldp train`, or its file of one of several label columns (column-2.skops); a
        scikit-learn classifier in the format of skops (.skops); or a program of `torch.export.save`
        (.pt2), with a first dimension of any size. All of them are code, like a pickle: use those
        of people you trust.
    features : sequence of str, optional
        Numeric columns, in the order in which the model takes them. Default: the names that the
        model records.
    probabilities : bool, default=False
        Whether a torch program returns probabilities; otherwise it returns logits.
    trust : sequence of str, default=()
        Types in a skops file that the user trusts, beyond those that skops or labeldp knows.

    See Also
    --------
    labeldp.PriorTable : a prior that is looked up by a key.
    labeldp.ReleaseSpec : takes a prior.
    """

    path: str | Path
    features: Sequence[str] | None = None
    probabilities: bool = False
    trust: Sequence[str] = ()

    def __post_init__(self) -> None:
        put = object.__setattr__
        put(self, "path", str(self.path))
        put(self, "trust", tuple(self.trust))
        put(self, "features", column_names("features", self.features))

    @property
    def reads(self) -> tuple[str, ...]:
        """The feature columns, if they are given."""
        return tuple(self.features or ())

    def to_dict(self) -> dict[str, object]:
        """Return the fields as JSON-ready data."""
        return {"model": self.path} | {
            "features": None if self.features is None else list(self.features),
            "probabilities": self.probabilities,
            "trust": list(self.trust),
        }

    def open(self, classes: Sequence[object]) -> "OpenModel":
        """Read the file, and load the model once to see that it fits."""
        path = Path(self.path)
        file = path / MODEL if path.is_dir() else path
        kinds = {".skops": SKOPS, ".pt2": EXPORTED}
        if file.suffix.lower() not in kinds:
            raise InvalidInput(
                f"Expected a model's folder, or a .skops or .pt2 file, got {path.name}. Export a"
                " torch module to .pt2."
            )
        try:
            raw = file.read_bytes()
        except OSError as error:
            one = (
                " A folder of several label columns has a file for each: name it."
                if path.is_dir()
                else " Check the path."
            )
            raise ReleaseError(
                f"Expected a model's file, got {file} ({error.strerror}).{one}"
            ) from None
        kind = kinds[file.suffix.lower()]
        given = OpenModel(
            kind, file.name, raw, (), as_classes(classes), self.probabilities, tuple(self.trust)
        )
        columns = given.own_columns()
        if (
            self.features is not None
            and given.reads_tables
            and list(self.features) != list(columns)
        ):
            raise InvalidInput(
                f"Expected a model that names its own features, got features={list(self.features)}."
                " Leave them out."
            )
        if not (self.features or columns):
            raise InvalidInput(
                f"Expected the columns that {path.name} takes, got none. Name them in its order:"
                f" features=[...], or --prior model:{self.path},feature=A,feature=B."
            )
        made = replace(given, columns=tuple(self.features or columns))
        _loaded(made)
        return made


@dataclass(frozen=True, repr=False)
class OpenModel:
    """A `PriorModel` in memory, as the bytes of its file, so that workers of a cluster need no
    access to it."""

    kind: str
    name: str
    raw: bytes
    columns: tuple[str, ...]
    classes: tuple[object, ...]
    probabilities: bool
    trust: tuple[str, ...]

    exact: ClassVar[bool] = False

    @property
    def facts(self) -> Mapping[str, object]:
        """The kind of model, with the SHA-256 of its file."""
        return {
            "model": self.kind,
            "features": list(self.columns),
            "sha256": {self.name: hashlib.sha256(self.raw).hexdigest()},
        } | ({"probabilities": self.probabilities} if self.kind == EXPORTED else {})

    def weights(self, rows: pa.RecordBatch, start: int | None) -> Floats:
        """Predict the probabilities of each row's classes."""
        return _loaded(self)(rows)

    def own_columns(self) -> tuple[str, ...]:
        """Return the columns that the model's file records; empty if it records none."""
        if self.kind == EXPORTED:
            return ()
        names = (
            self._model.reads
            if self.reads_tables
            else getattr(self._model, "feature_names_in_", ())
        )
        return tuple(map(str, names))

    @property
    def reads_tables(self) -> bool:
        """Whether the model reads the columns of a table itself: one of `labeldp train`."""
        return self.kind == SKOPS and hasattr(self._model, "reads")

    @property
    def _model(self) -> Any:
        return _built(self.raw, self.name, self.trust)

    def _of_skops(self) -> Predict:
        model, tables = self._model, self.reads_tables
        known = model.classes if tables else getattr(model, "classes_", None)
        if not hasattr(model, "predict_proba") or known is None:
            raise InvalidInput(
                f"Expected a fitted classifier with predict_proba, got {type(model).__name__}."
            )
        order = _order(list(known), self.classes, values_only=tables)
        columns = self.columns

        def predict(rows: pa.RecordBatch) -> Floats:
            X = rows if tables else _matrix(rows, columns, NUMBERS)
            with warnings.catch_warnings():
                warnings.filterwarnings(
                    "ignore", message=".*does not have valid feature names", category=UserWarning
                )
                return answered(lambda: model.predict_proba(X), (len(rows), len(order)))[:, order]

        return predict


OpenPrior = OpenTable | OpenModel
"""A prior whose files are in memory; it pickles, so that workers can use it."""

# One model per process, which loads it once: a release has one prior.
_built = lru_cache(1)(read_model)


@lru_cache(1)
def _loaded(model: OpenModel) -> Predict:
    return _exported(model) if model.kind == EXPORTED else model._of_skops()


def _exported(model: OpenModel) -> Predict:
    """Load a program of `torch.export.save`; its answers are checked, since a user's module may
    return anything."""
    with needs_torch():
        import torch
    try:
        module = torch.export.load(io.BytesIO(model.raw)).module()
    except Exception as error:
        raise InvalidInput(
            f"Expected a program of torch.export.save in {model.name}, got something else"
            f" ({type(error).__name__}). Export it again with this version of torch,"
            f" {torch.__version__}."
        ) from None
    dtype = next(
        (weight.dtype for weight in module.parameters() if weight.is_floating_point()),
        torch.float32,
    )

    def predict(rows: pa.RecordBatch) -> Floats:
        X = torch.from_numpy(_matrix(rows, model.columns, NUMBERS).astype(np.float32)).to(dtype)
        with torch.inference_mode():
            try:
                out = module(X).double()
                return np.asarray(
                    (out if model.probabilities else torch.softmax(out, dim=1)).numpy(), np.float64
                )
            except Exception as error:
                raise InvalidInput(
                    f"Expected the model {model.name} to take {X.shape[1]} features of any number"
                    f" of rows and to give a matrix, got {type(error).__name__}. Check the"
                    " features; export it with a dynamic first dimension."
                ) from None

    return predict


def _matrix(batch: Columns, names: Sequence[str], fix: str) -> Floats:
    """Read columns of numbers: (n, d) float64, NaN where a value is missing."""
    columns = []
    for name in names:
        try:
            columns.append(as_numbers(batch.column(name)).to_numpy(zero_copy_only=False))
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            raise InvalidInput(
                f"Expected numbers in column {name!r}, got something else. {fix}"
            ) from None
    return np.column_stack(columns)


def as_numbers(column: pa.Array) -> pa.Array:
    """Convert a column of numbers, booleans, times, or text of numbers to float64, null if missing;
    else an error of Arrow."""
    column = plain(column)
    if is_text(column.type):
        return text_of(column).cast(pa.float64())
    if is_time(column.type):
        return ticks_of(column)
    column = column.cast(pa.uint8()) if pa.types.is_boolean(column.type) else column
    return column.cast(pa.float64(), safe=False)


def _order(known: Sequence[object], classes: Sequence[object], *, values_only: bool) -> list[int]:
    """Return the position of each declared class among the model's classes; a model of codes 0 to K
    - 1 has the declared order."""
    if isinstance(classes, Grid) and list(known) != list(classes):
        raise InvalidInput(
            f"Expected a model of the declared {classes!r}, got one of other numbers. Declare those"
            " that it was trained on (classes=labeldp.Grid(low, high, points))."
        )
    if len(known) != len(classes):
        raise InvalidInput(
            f"Expected a model of the {len(classes)} declared classes, got one of {len(known)}."
            " Train it on all of them."
        )
    order = ordered_by_value(known, classes)
    if order is not None:
        return order
    codes = [as_text(value) for value in known] == [str(code) for code in range(len(classes))]
    if values_only or not codes:
        raise InvalidInput(
            "Expected a model of the declared classes, got one of other values. Declare the classes"
            " that it was trained on."
        )
    return list(range(len(classes)))


# A model that is asked once
# --------------------------------------------------------------------------------------------------


class AskedOnce:
    """The stored answers of a model prior for one charge: made before it, found again by a resumed
    run, deleted after publication.

    Parameters
    ----------
    pin : TablePin
        After all rows were added.
    ledger : Ledger
    out : Place
        The output; the folder of the answers is beside it.
    """

    # A note in the run's folder names the files, and the digest of the sides that the law derives
    # from them. Before anything is drawn, this digest is fixed for the draw (`TablePin.charge`),
    # and no other side is ever drawn with. So lost files may be made anew, by asking the model
    # again, if no draw has started or if its answers lead to the same sides.

    def __init__(self, pin: TablePin, ledger: Ledger, out: Place):
        self._pin, self._ledger, self._out = pin, ledger, out
        self._run_id = ""
        self._folder: Place | None = None
        self.files: tuple[Place, ...] = ()

    def charge(
        self, ask: "Callable[[AnswersFolder], Answers]", public_digest: str = ""
    ) -> TableDraw | RunRecord:
        """Ask the prior, unless a run to be resumed has its answers, and charge. Afterwards `files`
        are the answers.

        Parameters
        ----------
        ask : function of a folder
            Asks the prior for all rows, and writes its answers into the folder.
        public_digest : str, default=""
            As in `TablePin.charge`.
        """
        secret = self._pin.planned(public_digest)
        # This release was made before, so nothing is asked or drawn.
        if secret is None:
            return self._pin.charge(public_digest)
        self._run_id = secret.run_id
        try:
            # The model is asked again only if no draw can have started with its former answers.
            if not self._found():
                self._pin.check_may_ask(secret, noted=self._store.read(self._note) is not None)
                self._ask(ask)
            run = self._pin.charge(public_digest)
        except BaseException:
            # Without a charge in the ledger nobody would ever find these files.
            if all(
                each.run_id != secret.run_id
                for each in self._ledger.runs(self._pin.facts.dataset, self._pin.facts.columns[0])
            ):
                self.forget()
                with suppress(OSError):
                    self._store.folder.rmdir()
            raise
        if run.receipt.run_id != secret.run_id:
            raise ReleaseError(
                "Expected one process to work on this release, but another one has finished it. Run"
                " the same command again."
            )
        return run

    def forget(self) -> None:
        """Delete the answers, after the release is published."""
        if self._folder is not None:
            with suppress(OSError, ReleaseError):
                delete_folder(self._folder)
                for name in (self._note, ANSWERS):
                    (self._store.folder / name).unlink(missing_ok=True)

    @property
    def _store(self) -> RunStore:
        return RunStore(self._ledger.run_dir(self._run_id))

    @property
    def _note(self) -> str:
        return f"{self._pin.stage_name}.{ANSWERS}"

    def _found(self) -> bool:
        """Find the files of the note, and tell whether they are complete. Other files in the folder
        are of failed attempts."""
        note, said = self._store.read(self._note), self._store.read(ANSWERS)
        if note is None or said is None:
            return False
        facts, beside = json.loads(note), AnswersFolder(self._out, self._run_id).folder
        self._folder = beside if str(beside) == said.decode() else Place.of(said.decode())
        parts = [Part(**part) for part in facts["parts"]]
        self.files = tuple(self._folder.child(part.name) for part in parts)
        # If a file is incomplete, the model is asked again, or the run is refused.
        if any(file.size != part.size for file, part in zip(self.files, parts, strict=True)):
            return False
        self._pin.take_side(SetDigest.from_hexdigest(facts["side"]))
        return True

    def _ask(self, ask: "Callable[[AnswersFolder], Answers]") -> None:
        folder = AnswersFolder(self._out, self._run_id)
        self._folder = folder.folder
        self._store.write(ANSWERS, str(folder.folder).encode())  # for `labeldp ledger repair`
        folder.folder.make_folder(private=True)
        made = ask(folder)
        # If the ids differ from those of the first pass, the weights belong to other rows.
        if (
            made.sums.rows != self._pin.sums.rows
            or made.sums.ids.hexdigest() != self._pin.sums.ids.hexdigest()
        ):
            raise changed_input()
        side = made.sums.side.hexdigest()
        # before the note is replaced, so that the former files could still be restored
        self._pin.check_side(self._run_id, side)
        # The files' entries are on disk before the note that names them.
        if folder.folder.local is not None:
            sync(folder.folder.local)
        self._store.write(
            self._note,
            json.dumps({"side": side, "parts": [asdict(part) for part in made.parts]}).encode(),
        )
        self._pin.take_side(made.sums.side, made.sums.told)
        self.files = tuple(folder.folder.child(part.name) for part in made.parts)


class AnswersFolder(Staging):
    """The folder of stored answers: private and hidden, beside the output. It outlives a killed
    process, since a charged run needs it."""

    @cached_property
    def folder(self) -> Place:
        """The folder."""
        return self.out.beside(f".{self.out.name}.labeldp_prior-{self.run_id[:8]}")


@dataclass(frozen=True)
class Answers:
    """Stored answers of a model prior for a table or a partition: its files, and the sums over ids
    and sides."""

    parts: tuple[Part, ...]
    sums: PassSums

    @classmethod
    def merged(cls, found: Sequence["Answers"]) -> "Answers":
        """Merge the answers of all partitions, in their order."""
        sums = found[0].sums
        for each in found[1:]:
            sums.merge(each.sums)
        return cls(tuple(part for each in found for part in each.parts), sums)


def write_answers(
    rows: Iterable[tuple[Columns, Floats]],
    ids: Sequence[str],
    facts: RunFacts,
    folder: AnswersFolder,
) -> Answers:
    """Write the answers for all rows into files of a folder: the id columns, and the quantised
    weights.

    `rows` has batches from row 0 on, each with its (n, K) weights.
    """
    first, sink = FirstPass(facts, ()), None
    try:
        for batch, weights in rows:
            # Quantised before the side is computed, so that the draw, which reads the files,
            # derives the same side to the last bit.
            whole = quantise(weights)
            # `FirstPass` wants codes; zeros stand for the labels, which this pass does not read.
            first.add(
                np.zeros(len(whole), np.int32),
                row_ids(batch, tuple(ids)),
                first.sums.rows,
                prior=whole,
            )
            raw = np.ascontiguousarray(whole.astype("<u4")).view(np.uint8)
            kept = pa.record_batch(
                {name: plain(batch.column(name)) for name in ids} | {WEIGHTS: as_binary(raw)}
            )
            sink = sink or PartsSink(
                folder,
                partial(
                    ParquetSink,
                    schema=kept.schema,
                    settings={"compression": "snappy", "use_dictionary": []},
                ),
            )
            sink.write(kept)
        if sink is not None:
            sink.close()
        return Answers(() if sink is None else tuple(sink.parts), first.sums)
    finally:
        if sink is not None:
            sink.abort()


def kept_weights(column: pa.Array, n_classes: int) -> NDArray[np.float64]:
    """Decode a column `WEIGHTS`, whose rows are K little-endian 32-bit integers: (n, K) float64."""
    fixed = column.cast(pa.binary()).cast(pa.binary(4 * n_classes))
    raw = np.frombuffer(fixed.buffers()[1], "<u4").reshape(-1, n_classes)
    return raw[fixed.offset : fixed.offset + len(fixed)].astype(np.float64)
