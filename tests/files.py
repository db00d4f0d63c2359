# SPDX-License-Identifier: Apache-2.0
"""Tables in files and folders, by the ending of their names."""

from pathlib import Path

import pyarrow as pa
import pyarrow.csv as pc_csv
import pyarrow.parquet as pq


def write(table: pa.Table, path: Path, *, parts: int = 4) -> Path:
    """A file, or a folder of Parquet files where the name has no ending."""
    if path.suffix == ".csv":
        pc_csv.write_csv(table, path)
    elif path.suffix:
        pq.write_table(table, path, row_group_size=50_000)
    else:
        path.mkdir(exist_ok=True, parents=True)
        step = -(-len(table) // parts)
        for part in range(parts):
            rows = table.slice(part * step, step)
            pq.write_table(rows, path / f"part-{part}.parquet", row_group_size=50_000)
    return path


def read(path: Path) -> pa.Table:
    """Every row, of a folder in the order of its files' names."""
    return pc_csv.read_csv(path) if path.suffix == ".csv" else pq.read_table(path)
