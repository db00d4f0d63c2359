# SPDX-License-Identifier: Apache-2.0
"""`labeldp predict`: a model's folder and rows in, a class and a probability for each class out, in bounded memory."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa
import pyarrow.csv

from labeldp._files import private_file
from labeldp.app._model_store import StoredModel, load_model
from labeldp.app._training_data import open_inputs
from labeldp.errors import InvalidInput, ReleaseError
from labeldp.inputs._arrays import ArrayTable, is_arrays
from labeldp.inputs._images import ImageInputs, in_folder
from labeldp.tables.engines._local import Progress, silent
from labeldp.tables.formats._open import check_ending, is_parquet, table_writer
from labeldp.tables.formats._table import Readable, check_columns
from labeldp.tables.output._place import Place
from labeldp.tables.output._staging import workplace

PREDICTION, PROBABILITY = "prediction", "probability_"


@dataclass(frozen=True)
class Predictions:
    """Where the predictions are, and of how many rows."""

    path: Path
    rows: int


def predict(
    model: str | Path,
    source: str | Path,
    out: str | Path,
    trust: Collection[str] = (),
    progress: Progress = silent,
    *,
    images: Path | None = None,
    device: str = "auto",
) -> Predictions:
    """Predict every row.

    Parameters
    ----------
    model : str or Path
        A folder that `train` wrote.
    source : str or Path
        Of the kind that the model was trained on: Parquet or CSV, either; or .npz or .npy.
    out : str or Path
        Parquet or CSV. It has a row for each row of `source`, in its order: the id columns of the training, as far as they are there,
        `prediction`, and `probability_CLASS` for each class. Ids keep their type; those of CSV that are whole numbers are so in Parquet.
    trust : collection of str
        Types in the model's file to build although labeldp does not know them.
    images : Path, optional
        Folder of the images that a column names; by default that of the table.
    device : str
        For a net; "auto" is the GPU if there is one.
    """
    stored, path, target = load_model(Path(model), trust, device), Path(source), Path(out)
    table: Readable = ArrayTable(path, stored.inputs.names[0]) if is_arrays(path) else open_inputs(path)
    check_columns(table, stored.inputs.names)
    if isinstance(stored.inputs, ImageInputs):
        stored = replace(stored, inputs=in_folder(stored.inputs, images or path.parent))
    check_ending(target)
    if target.exists():
        raise ReleaseError(f"Expected a new name for the output, got {target}, which exists. Remove it, or choose another name.")
    with workplace(target) as folder:
        kinds = _kinds_of_ids(table, stored.facts.get("ids", []), target)
        rows = _write(_predictions(stored, table, kinds, progress), private_file(folder / target.name), table)
        Place.of(folder / target.name).move(Place.of(target))
    return Predictions(target, rows)


def _predictions(stored: StoredModel, table: Readable, kinds: Mapping[str, pa.DataType], progress: Progress) -> Iterator[pa.RecordBatch]:
    classes = pa.array(list(stored.classes))
    start = done = 0
    for batch in table.batches(list(dict.fromkeys([*stored.inputs.names, *kinds]))):
        chances = stored.predict_proba(stored.inputs.read(batch, start))
        columns = {name: batch.column(name).cast(kind) for name, kind in kinds.items()}
        columns[PREDICTION] = classes.take(pa.array(chances.argmax(axis=1)))
        for code, value in enumerate(stored.classes):
            columns[f"{PROBABILITY}{'' if value is None else value}"] = pa.array(chances[:, code])
        yield pa.record_batch(columns)
        start, done = start + len(batch), done + batch.extent
        progress("predict", done, table.extent)


def _kinds_of_ids(table: Readable, names: Sequence[str], target: Path) -> dict[str, pa.DataType]:
    """The types of ids as they are written: those of the table; whole numbers, where all texts of a column are such."""
    kinds = {name: table.type_of(name) for name in names if name in table.names}
    if not table.text or not is_parquet(target):
        return kinds
    whole = set(kinds)
    for batch in table.batches(list(kinds)) if kinds else ():
        whole -= {name for name in whole if not _are_whole(batch.column(name))}
    return kinds | dict.fromkeys(whole, pa.int64())


def _are_whole(text: pa.Array) -> bool:
    try:
        return bool(text.cast(pa.int64()).cast(text.type).equals(text))
    except pa.ArrowInvalid:
        return False


def _write(batches: Iterator[pa.RecordBatch], path: Path, table: Readable) -> int:
    first = next(batches, None)
    if first is None:
        raise InvalidInput(f"Expected rows to predict, got none in {table.path.name}.")
    with table_writer(path, first.schema) as writer:
        writer.write_batch(first)
        rows = int(first.num_rows)
        for batch in batches:
            writer.write_batch(batch)
            rows += int(batch.num_rows)
    return rows
