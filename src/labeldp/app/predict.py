# SPDX-License-Identifier: Apache-2.0
"""`labeldp predict`: a model's folder and rows in, a class and a probability for each class out, in bounded memory."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from labeldp._files import private_file
from labeldp.app.model_store import StoredModel, load_model
from labeldp.app.training_data import open_inputs
from labeldp.errors import InvalidInput, ReleaseError
from labeldp.tables.arrays import ArrayTable, is_arrays
from labeldp.tables.formats import FORMATS
from labeldp.tables.images import ImageInputs, in_folder
from labeldp.tables.parquet import ParquetSource
from labeldp.tables.passes import Progress, silent
from labeldp.tables.publish import publish, workplace
from labeldp.tables.table import Readable, Rows, check_columns

PREDICTION, PROBABILITY = "prediction", "probability_"


@dataclass(frozen=True)
class Predicted:
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
) -> Predicted:
    """Predict every row.

    Parameters
    ----------
    model : str or Path
        A folder that `train` wrote.
    source : str or Path
        Of the kind that the model was trained on: Parquet or CSV, either; or .npz or .npy.
    out : str or Path
        Parquet or CSV. It has a row for each row of `source`, in its order: the id columns of the training, as far as they are there,
        `prediction`, and `probability_CLASS` for each class.
    trust : collection of str
        Types in the model's file to build although labeldp does not know them.
    images : Path, optional
        Folder of the images that a column names; by default that of the table.
    device : str
        For a net; "auto" is the GPU if there is one.
    """
    stored, path, target = load_model(Path(model), trust, device), Path(source), Path(out)
    table = _opened(stored, path)
    check_columns(table, stored.inputs.names)
    if isinstance(stored.inputs, ImageInputs):
        stored = replace(stored, inputs=in_folder(stored.inputs, images or path.parent))
    if FORMATS.get(target.suffix.lower()) is None:
        raise InvalidInput(f"Expected an output that ends in {', '.join(FORMATS)}; got {target.name}.")
    if target.exists():
        raise ReleaseError(f"Expected a new name for the output, got {target}, which exists. Remove it, or choose another name.")
    with workplace(target) as folder:
        rows = _write(_predictions(stored, table, progress), private_file(folder / target.name), table)
        publish(folder / target.name, target)
    return Predicted(target, rows)


def _opened(stored: StoredModel, path: Path) -> Readable:
    if not is_arrays(path):
        return open_inputs(path)
    return ArrayTable(path, stored.inputs.names[0])


def _predictions(stored: StoredModel, table: Readable, progress: Progress) -> Iterator[pa.RecordBatch]:
    ids = [name for name in stored.facts.get("ids", []) if name in table.names]
    classes = pa.array(list(stored.classes))
    start = done = 0
    for batch in table.batches(list(dict.fromkeys([*stored.inputs.names, *ids]))):
        yield _predicted(stored, batch, start, ids, classes)
        start, done = start + len(batch), done + batch.extent
        progress("predict", done, table.extent)


def _predicted(stored: StoredModel, batch: Rows, start: int, ids: list[str], classes: pa.Array) -> pa.RecordBatch:
    chances = stored.predict_proba(stored.inputs.read(batch, start))
    columns = {name: batch.column(name) for name in ids}
    columns[PREDICTION] = classes.take(pa.array(chances.argmax(axis=1)))
    for code, value in enumerate(stored.classes):
        columns[f"{PROBABILITY}{'' if value is None else value}"] = pa.array(chances[:, code])
    return pa.record_batch(columns)


def _write(batches: Iterator[pa.RecordBatch], path: Path, table: Readable) -> int:
    first = next(batches, None)
    if first is None:
        raise InvalidInput(f"Expected rows to predict, got none in {table.path.name}.")
    with _writer(path, first.schema) as writer:
        writer.write_batch(first)
        rows = int(first.num_rows)
        for batch in batches:
            writer.write_batch(batch)
            rows += int(batch.num_rows)
    return rows


def _writer(path: Path, schema: pa.Schema) -> "pq.ParquetWriter | pyarrow.csv.CSVWriter":
    if FORMATS[path.suffix.lower()] is ParquetSource:
        return pq.ParquetWriter(path, schema)
    return pyarrow.csv.CSVWriter(
        path, schema, write_options=pyarrow.csv.WriteOptions(delimiter="\t" if path.suffix.lower() == ".tsv" else ",")
    )
