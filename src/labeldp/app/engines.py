# SPDX-License-Identifier: Apache-2.0
"""Which engine releases a table: this process, Spark or Ray Data."""

from pathlib import Path
from typing import Any

from labeldp import _validate
from labeldp.app.release import Release, release
from labeldp.privacy.ledger import Ledger
from labeldp.tables.manifest import manifest_path, manifest_place
from labeldp.tables.passes import Progress, silent
from labeldp.tables.place import URI, Place
from labeldp.tables.spec import ReleaseSpec

ENGINES = ("local", "spark", "ray")


def release_with(
    engine: str,
    source: Any,
    out: Any,
    spec: ReleaseSpec,
    ledger: Ledger | None = None,
    *,
    master: str | None = None,
    redraw: bool = False,
    progress: Progress = silent,
) -> Release:
    """`labeldp.release` on an engine, which is started if it is not running.

    Parameters
    ----------
    engine : {"local", "spark", "ray"}
    source, out, spec, ledger, redraw, progress : as in `labeldp.release`
        Spark and Ray read Parquet.
    master : str, optional
        Address of the cluster; None: this machine.
    """
    _validate.one_of(ENGINES, engine=engine)
    if engine == "local":
        return release(source, out, spec, ledger, redraw=redraw, progress=progress)
    if engine == "spark":
        from labeldp.tables import spark

        frame = spark.read(spark.start(master), Place.of(source))
        done = spark.release_frame(frame, out, spec, ledger, redraw=redraw, progress=progress)
    else:
        from labeldp.tables import ray

        ray.start(master)
        done = ray.release_dataset(ray.read(Place.of(source)), out, spec, ledger, redraw=redraw, progress=progress)
    if isinstance(out, str | Path) and not URI.match(str(out)):
        return Release(Path(out), manifest_path(Path(out)), done.receipt, done.repeated, done.manifest)
    return Release(done.place, manifest_place(done.place), done.receipt, done.repeated, done.manifest)
