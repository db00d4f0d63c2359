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
from labeldp.inputs import Inputs
from labeldp.inputs._arrays import ArrayTable, is_arrays, learn_array
from labeldp.inputs._columns import learn_columns
from labeldp.inputs._images import NamesOfFiles, learn_images
from labeldp.ledger._ledger import Ledger
from labeldp.tables._evidence import ProvenLabels, matched, proven, unknown
from labeldp.tables.engines._batch import id_array, row_id_array
from labeldp.tables.engines._local import Progress
from labeldp.tables.formats._dataset import DatasetSource
from labeldp.tables.formats._labels import LabelCodec
from labeldp.tables.formats._open import open_table
from labeldp.tables.formats._table import EVIDENCE, Source, check_columns

DEFAULT_INPUTS = "X"


@dataclass(frozen=True)
class InputsSpec:
    """Where the inputs are: by default all columns of a table but label, ids and unit.

    Parameters
    ----------
    features, exclude : sequence of str
        Columns of a table to learn from; and columns to leave out.
    image : str, optional
        Column of images: bytes of image files, or names of files.
    images : Path, optional
        Folder of these files; by default that of the table.
    array : str, optional
        Name of the array of inputs in an .npz file; "X" by default.
    labels : Path, optional
        Another .npz or .npy file with the labels, ids and units of an array.
    """

    features: Sequence[str] | None = None
    exclude: Sequence[str] = ()
    image: str | None = None
    images: Path | None = None
    array: str | None = None
    labels: Path | None = None

    def open(self, path: Path, label: str) -> Source | ArrayTable:
        """The table, or the arrays with those of the other file."""
        if is_arrays(path):
            self._refuse("a table", "arrays", image=self.image, images=self.images, features=self.features, exclude=self.exclude or None)
            if self.labels is not None and not is_arrays(self.labels):
                raise InvalidInput(
                    f"Expected labels in an .npz or .npy file, got {self.labels.name}. Save them with numpy.save or numpy.savez."
                )
            return ArrayTable(path, self.array or DEFAULT_INPUTS, None if self.labels is None else (self.labels, label))
        self._refuse("an .npz or .npy file", path.name, inputs=self.array, labels=self.labels)
        if self.image is None and self.images is not None:
            raise InvalidInput("Expected the column of images with their folder, got none. Name it (--image).")
        if self.image is not None:
            self._refuse("the columns of a table", "images", features=self.features, exclude=self.exclude or None)
        return open_inputs(path)

    @staticmethod
    def _refuse(what: str, got: str, **options: object) -> None:
        if given := [f"--{name}" for name, value in options.items() if value is not None]:
            raise InvalidInput(f"Expected {' and '.join(given)} with {what}, got {got}. Leave {'it' if len(given) == 1 else 'them'} out.")


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
    """

    manifest: Path | None = None
    released: Path | None = None
    declared: bool = False

    def __post_init__(self) -> None:
        if self.declared and (self.manifest or self.released):
            raise InvalidInput("Expected declared labels without a manifest or released table, got both. What is released is not declared.")

    def read(self, source: Source, label: str, ledger: Ledger) -> ProvenLabels | None:
        """The proven noisy labels of a table's rows, compared with the ledger's; None where they are raw or declared."""
        original = source if self.released is None else open_table(self.released)
        found = proven(original, label, self.manifest, ledger)
        if found is None and self.released is not None:
            raise unknown(original)
        if found is not None and self.declared:
            raise InvalidInput(f"Expected declared labels of another mechanism, got proven ones in {label!r}. Leave it out (--noisy).")
        if found is not None and self.released is not None:
            return replace(found, noisy=matched(source, found))
        return found


@dataclass(frozen=True)
class Columns:
    """The columns that are no inputs: label, ids and unit."""

    label: str
    ids: tuple[str, ...]
    unit: str | None

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
    """All n rows: inputs, and raw labels as class codes, ids and units, where these are read."""

    X: Any
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
    ledger : Ledger

    Attributes
    ----------
    table : Source or ArrayTable
    released : ProvenLabels or None
        The noisy labels of a released table, proven; None: its labels are raw, or declared.
    """

    def __init__(self, path: Path, where: InputsSpec, columns: Columns, evidence: EvidenceSpec, ledger: Ledger):
        self._path, self._where, self._columns = path, where, columns
        self.table = where.open(path, columns.label)
        if isinstance(self.table, ArrayTable):
            self.released = None
            if evidence.manifest is not None or evidence.released is not None:
                raise InvalidInput("Expected --manifest and --released with a table, got arrays. Give the released table.")
        else:
            self.released = evidence.read(self.table, columns.label, ledger)
        check_columns(self.table, columns.names if self.released is None else columns.names[1:])
        if where.image is not None:
            check_columns(self.table, [where.image])
            if where.image in (columns.label, columns.unit):
                raise InvalidInput(f"Expected a column of images, got {where.image!r}, which is the label or the unit. Name another.")

    def learn_inputs(self) -> Inputs:
        """How the inputs are read, from public columns alone."""
        if isinstance(self.table, ArrayTable):
            if self.table.key in self._columns.names:
                raise InvalidInput(f"Expected inputs besides label, ids and unit, got {self.table.key!r} as both. Name them (--inputs).")
            return learn_array(self.table)
        if self._where.image is None:
            return learn_columns(self.table, self._feature_names())
        return learn_images(self.table, self._where.image, self._where.images or self._path.parent)

    def _feature_names(self) -> list[str]:
        """All columns or the chosen ones; never label, ids, unit, nor what the release says of them."""
        known: Mapping[str, Any] = {} if self.released is None else self.released.facts
        ids, receipt = known.get("id"), known.get("receipt")
        out = {*self._columns.names, self._columns.label + EVIDENCE, *(ids if isinstance(ids, (list, tuple)) else ())}
        if isinstance(receipt, Mapping):
            out.add(receipt["unit"])
        chosen, exclude = self._where.features, self._where.exclude
        check_columns(self.table, [*(chosen or ()), *exclude])
        if found := sorted(out & set(chosen or ())):
            raise InvalidInput(
                f"Expected features besides label, ids and unit, got {', '.join(found)} among them. Leave it out (--features)."
            )
        return [name for name in (self.table.names if chosen is None else chosen) if name not in out and name not in exclude]

    def read(self, inputs: Inputs, codec: LabelCodec, progress: Progress) -> TrainingRows:
        """All rows. Labels of a released table are not read here."""
        X: list[Any] = []
        beside: list[tuple[NDArray[np.generic] | None, ...]] = []  # codes, ids and units
        label, raw = self._columns.label, self.released is None
        names = self._names_of_files(codec)
        rows = done = 0
        for batch in self.table.batches(list(dict.fromkeys([*inputs.names, *(self._columns.names if raw else ())]))):
            if names is not None:
                names.check(batch.column(names.column), rows)
            X.append(inputs.read(batch, rows))
            if raw:
                units = id_array(batch, self._columns.unit) if self._columns.unit else None
                beside.append((codec.encode(batch.column(label), rows), row_id_array(batch, self._columns.ids), units))
            rows, done = rows + len(batch), done + batch.extent
            progress("read", done, self.table.extent)
        if not rows:
            raise InvalidInput(f"Expected rows, got none in {self._path.name}.")
        codes, ids, units = map(_joined, zip(*beside, strict=True)) if raw else (None, None, None)
        return TrainingRows(_joined(X), codes, ids, units)

    def _names_of_files(self, codec: LabelCodec) -> NamesOfFiles | None:
        """What refuses names of image files that show the label."""
        if self._where.image is None:
            return None
        names = NamesOfFiles(self._where.image, self._columns.label, codec.classes)
        if isinstance(self.table, DatasetSource):
            names.check_layout(self.table.layout)
        return names

    @property
    def label_type(self) -> pa.DataType:
        """Of the label column."""
        return self.table.type_of(self._columns.label) if self.released is None else self.released.codec.column_type


def _joined(parts: Sequence[Any]) -> Any:
    """The rows of all batches; None where there is nothing of them."""
    if parts[0] is None:
        return None
    return pa.concat_tables(parts) if isinstance(parts[0], pa.Table) else np.concatenate(parts)


def open_inputs(path: Path) -> Source:
    """A table; a folder of images without a table is told what it lacks."""
    if path.is_dir() and not any(path.rglob("*.parquet")) and not any(path.rglob("*.pq")):
        raise InvalidInput(
            f"Expected a table, got the folder {path}. For images, write a CSV with a column of names of files and a column of labels, and "
            f"give that file with --image COLUMN --images {path}. No folder may be named like a class: it would show the label."
        )
    return open_table(path)
