# SPDX-License-Identifier: Apache-2.0
"""What `labeldp train` reads: a table, a table about images, or arrays; its labels, ids and units, and how its inputs are read."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from labeldp.errors import InvalidInput
from labeldp.privacy.ledger import Ledger
from labeldp.tables.arrays import ArrayTable, is_arrays, learn_array
from labeldp.tables.batch import id_array, row_id_array
from labeldp.tables.dataset import DatasetSource
from labeldp.tables.evidence import Proven, matched, proven, unknown
from labeldp.tables.features import learn_features
from labeldp.tables.formats import open_table
from labeldp.tables.images import NamesOfFiles, learn_images, names_in
from labeldp.tables.inputs import ColumnInputs, Inputs
from labeldp.tables.labels import LabelCodec
from labeldp.tables.passes import Progress
from labeldp.tables.table import EVIDENCE, Readable, Source, check_columns

DEFAULT_INPUTS = "X"


@dataclass(frozen=True)
class InputsSpec:
    """Where the inputs are, unless they are the columns of a table.

    Parameters
    ----------
    image : str, optional
        Column of images: bytes of image files, or names of files.
    images : Path, optional
        Folder of these files; by default that of the table.
    inputs : str, optional
        Name of the array of inputs in an .npz file; "X" by default.
    labels : Path, optional
        Another .npz or .npy file with the labels, ids and units of an array.
    """

    image: str | None = None
    images: Path | None = None
    inputs: str | None = None
    labels: Path | None = None


@dataclass(frozen=True)
class EvidenceSpec:
    """What proves noisy labels, where it is not the table's own manifest or metadata.

    Parameters
    ----------
    manifest : Path, optional
        The release's manifest.
    released : Path, optional
        The released table that the rows are some of: evidence is read there, by their ids.
    declared : bool
        The label column is noisy by a law that the user states.
    ledger : Ledger, or its path, optional
        Receipts, and what was drawn, are looked up there.
    """

    manifest: Path | None = None
    released: Path | None = None
    declared: bool = False
    ledger: Ledger | None = None

    def __post_init__(self) -> None:
        if self.declared and (self.manifest or self.released):
            raise InvalidInput("Expected declared labels without a manifest or released table, got both. What is released is not declared.")

    def read(self, source: Source, label: str) -> Proven | None:
        """The proven noisy labels of a table's rows; None where they are raw or declared."""
        original = source if self.released is None else open_table(self.released)
        found = proven(original, label, self.manifest, self.ledger)
        if found is None and self.released is not None:
            raise unknown(original)
        if found is not None and self.declared:
            raise InvalidInput(f"Expected declared labels of another mechanism, got proven ones in {label!r}. Leave it out (--noisy).")
        if found is not None and self.released is not None:
            return replace(found, noisy=matched(source, found))
        return found


@dataclass(frozen=True)
class Columns:
    """The columns that are no inputs: label, ids and unit; and which others are, all by default."""

    label: str
    ids: tuple[str, ...]
    unit: str | None
    features: Sequence[str] | None = None
    exclude: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for role, names in {"id": self.ids, "unit": (self.unit,)}.items():
            if self.label in names:
                raise InvalidInput(f"Expected {role} to name public columns, got the label column {self.label!r}. Leave it out.")

    @property
    def names(self) -> list[str]:
        """All of them."""
        return [self.label, *self.ids, *([self.unit] if self.unit else [])]


@dataclass(frozen=True)
class TrainingRows:
    """All rows: inputs (n, ...), and raw labels as class codes, ids and units, where these are read."""

    X: NDArray[Any]
    codes: NDArray[np.generic] | None
    ids: NDArray[np.generic] | None
    units: NDArray[np.generic] | None


class TrainingData:
    """A source that was opened and found to have what is asked for.

    Parameters
    ----------
    path : Path
    where : InputsSpec
    columns : Columns
    evidence : EvidenceSpec

    Attributes
    ----------
    table : Readable
    released : Proven or None
        The noisy labels of a released table, proven; None: its labels are raw, or declared.
    """

    def __init__(self, path: Path, where: InputsSpec, columns: Columns, evidence: EvidenceSpec):
        self._path, self._where, self._columns = path, where, columns
        self.table, self.released = _opened(path, where, columns.label, evidence)
        check_columns(self.table, columns.names if self.released is None else columns.names[1:])
        self.images = where.image is not None
        if where.image is not None:
            check_columns(self.table, [where.image])
            if where.image in (columns.label, columns.unit):
                raise InvalidInput(f"Expected a column of images, got {where.image!r}, which is the label or the unit. Name another.")

    def learn_inputs(self) -> Inputs:
        """How the inputs are read, from public columns alone."""
        chosen = self._columns.features is not None or self._columns.exclude
        if chosen and (isinstance(self.table, ArrayTable) or self._where.image is not None):
            raise InvalidInput("Expected --features and --exclude with the columns of a table, got arrays or images. Leave them out.")
        if isinstance(self.table, ArrayTable):
            if self.table.key in self._columns.names:
                raise InvalidInput(f"Expected inputs besides label, ids and unit, got {self.table.key!r} as both. Name them (--inputs).")
            return learn_array(self.table)
        if self._where.image is None:
            return ColumnInputs(learn_features(self.table, self._feature_names()))
        return learn_images(self.table, self._where.image, self._where.images or self._path.parent)

    def _feature_names(self) -> list[str]:
        known: Mapping[str, Any] = {} if self.released is None else self.released.facts
        ids, receipt = known.get("id"), known.get("receipt")
        out = {*self._columns.names, self._columns.label + EVIDENCE, *(ids if isinstance(ids, (list, tuple)) else ())}
        if isinstance(receipt, Mapping):
            out.add(receipt["unit"])
        chosen = self._columns.features
        check_columns(self.table, [*(chosen or ()), *self._columns.exclude])
        if found := sorted(out & set(chosen or ())):
            raise InvalidInput(
                f"Expected features besides label, ids and unit, got {', '.join(found)} among them. Leave it out (--features)."
            )
        return [name for name in (self.table.names if chosen is None else chosen) if name not in out and name not in self._columns.exclude]

    def read(self, inputs: Inputs, codec: LabelCodec, progress: Progress) -> TrainingRows:
        """All rows. Labels of a released table are not read here."""
        parts = _Parts()
        wanted = list(dict.fromkeys([*inputs.names, *(self._columns.names if self.released is None else ())]))
        names = None if self._where.image is None else NamesOfFiles(self._where.image, self._columns.label, codec.classes)
        if names is not None and isinstance(self.table, DatasetSource):
            names.check_layout(self.table.layout)
        done = 0
        for batch in self.table.batches(wanted):
            start = parts.rows
            if names is not None and (found := names_in(batch.column(names.column))) is not None:
                names.check(found, start)
            parts.X.append(inputs.read(batch, start))
            if self.released is None:
                parts.codes.append(codec.encode(batch.column(self._columns.label), start))
                parts.ids.append(row_id_array(batch, self._columns.ids))
                parts.units.append(id_array(batch, self._columns.unit) if self._columns.unit else None)
            parts.rows, done = start + len(batch), done + batch.extent
            progress("read", done, self.table.extent)
        if not parts.rows:
            raise InvalidInput(f"Expected rows, got none in {self._path.name}.")
        return TrainingRows(np.concatenate(parts.X), _joined(parts.codes), _joined(parts.ids), _joined(parts.units))

    @property
    def label_type(self) -> pa.DataType:
        """Of the label column."""
        return self.table.type_of(self._columns.label) if self.released is None else self.released.codec.column_type


class _Parts:
    def __init__(self) -> None:
        self.X: list[NDArray[Any]] = []
        self.codes: list[NDArray[np.generic] | None] = []
        self.ids: list[NDArray[np.generic] | None] = []
        self.units: list[NDArray[np.generic] | None] = []
        self.rows = 0


def _joined(parts: Sequence[NDArray[np.generic] | None]) -> NDArray[np.generic] | None:
    found = [part for part in parts if part is not None]
    return np.concatenate(found) if found else None


def _opened(path: Path, where: InputsSpec, label: str, evidence: EvidenceSpec) -> tuple[Readable, Proven | None]:
    if is_arrays(path):
        if evidence.manifest is not None or evidence.released is not None:
            raise InvalidInput("Expected --manifest and --released with a table, got arrays. Give the released table.")
        if where.image is not None or where.images is not None:
            raise InvalidInput("Expected --image and --images with a table, got arrays. Leave them out, or give a table of images.")
        beside = None if where.labels is None else (_arrays_file(where.labels), label)
        return ArrayTable(path, where.inputs or DEFAULT_INPUTS, beside), None
    if where.inputs is not None or where.labels is not None:
        raise InvalidInput(f"Expected --inputs and --labels with an .npz or .npy file, got {path.name}. A table's labels are a column.")
    if where.images is not None and where.image is None:
        raise InvalidInput("Expected the column of images with their folder, got none. Name it (--image).")
    table = open_inputs(path)
    return table, evidence.read(table, label)


def _arrays_file(path: Path) -> Path:
    if not is_arrays(path):
        raise InvalidInput(f"Expected labels in an .npz or .npy file, got {path.name}. Save them with numpy.save or numpy.savez.")
    return path


def open_inputs(path: Path) -> Source:
    """A table; a folder of images without a table is told what it lacks."""
    if path.is_dir() and not any(path.rglob("*.parquet")) and not any(path.rglob("*.pq")):
        raise InvalidInput(
            f"Expected a table, got the folder {path}. For images, write a CSV with a column of names of files and a column of labels, and "
            f"give that file with --image COLUMN --images {path}. No folder may be named like a class: it would show the label."
        )
    return open_table(path)
