# SPDX-License-Identifier: Apache-2.0
"""`labeldp release --engine spark|ray`: a Parquet file or folder, released by a cluster or by all cores of this machine."""

from dataclasses import replace
from typing import Any

from labeldp.errors import InvalidInput
from labeldp.ledger._ledger import Ledger
from labeldp.tables._evidence import check_raw
from labeldp.tables._release import TableRelease
from labeldp.tables._spec import ReleaseSpec
from labeldp.tables.engines._cluster import check_spec
from labeldp.tables.engines._local import Progress
from labeldp.tables.formats._dataset import DatasetSource, check_apart
from labeldp.tables.formats._open import check_layout, given_parts, open_table, table_name
from labeldp.tables.formats._table import check_columns
from labeldp.tables.output._place import Place

NAMES = {"spark": "Spark", "ray": "Ray"}


def release_on_cluster(
    source: Any, out: Any, spec: ReleaseSpec, ledger: Ledger, engine: str, master: str | None, *, redraw: bool, progress: Progress
) -> TableRelease:
    """Check what can be checked here, start or join the engine, and release.

    Parameters
    ----------
    source : str, Path or Place
        A Parquet file, a folder of them, or, with Spark, a pattern; the workers must be able to read it.
    out : str, Path or Place
        A folder.
    spec : ReleaseSpec
        With `id` and `classes`.
    ledger : Ledger
    engine : {"spark", "ray"}
    master : str or None
        Spark's master or Ray's address; None: this machine.
    redraw : bool
    progress : function
    """
    if isinstance(source, list):
        raise InvalidInput(f"Expected one file or folder for engine={str(engine)!r}, got a list. Name the folder.")
    table = open_table(source)
    if table.text:
        raise InvalidInput(f"Expected Parquet for engine={str(engine)!r}, got {table.path.name}. Convert it, or take the local engine.")
    named = replace(spec, dataset=spec.dataset or table_name(table))
    check_spec(named, NAMES[engine])
    check_columns(table, spec.columns)
    check_raw(table, spec.label)
    check_apart(table.path, Place.of(out))
    check_layout(table, given_parts(source), spec.label, spec.classes, public=spec.order == "keep")
    place = Place.of(source)
    if engine == "spark":
        from labeldp.tables import spark

        df = spark.read(spark.start(master), place)
        return spark.release_frame(df, out, named, ledger, redraw=redraw, progress=progress)
    from labeldp.tables import ray

    if isinstance(table, DatasetSource) and not place.exists():
        raise InvalidInput(f"Expected a file or a folder for engine='ray', got the pattern {place}. Name the folder.")
    ray.start(master)
    return ray.release_dataset(ray.read(place), out, named, ledger, redraw=redraw, progress=progress)
