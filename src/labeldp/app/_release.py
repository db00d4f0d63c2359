# SPDX-License-Identifier: Apache-2.0
"""`labeldp release`: write a table with a private label column, and a manifest beside it.

The order of events makes a kill harmless at any point: check everything; first pass (pin the rows);
charge; second pass (draw) into a private folder beside the output; publish the table's files, then
the manifest; settle. Whatever has a manifest is whole, and the same command run again resumes the
charged run and writes the same table.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from labeldp import _validate
from labeldp.custody._rows import warn_of_cap
from labeldp.custody._stream import HISTOGRAM
from labeldp.errors import InvalidInput
from labeldp.ledger._ledger import Ledger, ledger_of
from labeldp.receipt import Receipt
from labeldp.tables._evidence import require_drawn
from labeldp.tables._place import URI, Place, manifest_place
from labeldp.tables._release import (
    TableRelease,
    all_facts,
    charged_histogram,
    check_raw,
    default_dataset,
    labels_of,
    noisy_names,
    release_table,
)
from labeldp.tables._spec import ReleaseSpec
from labeldp.tables.engines._cluster import check_spec
from labeldp.tables.engines._local import LocalEngine, Progress, silent
from labeldp.tables.formats._parquet import (
    DatasetSource,
    check_apart,
    check_layout,
    given_parts,
    layout_of,
    open_table,
)
from labeldp.tables.formats._table import check_columns


@dataclass(frozen=True)
class Release:
    """The result of a release.

    Attributes
    ----------
    path, manifest_path : Path, or Place if not on this machine
        The table (a file or a folder) and its manifest.
    receipt : Receipt
        The charge.
    repeated : bool
        Whether the same release had settled before, so that nothing was drawn or charged.
    manifest : mapping
        Content of the manifest.
    unchanged : tuple of str
        The columns of the input that passed unchanged: all but the private ones.
    """

    path: Path | Place
    manifest_path: Path | Place
    receipt: Receipt
    repeated: bool
    manifest: Mapping[str, object]
    unchanged: tuple[str, ...] = ()


def release(
    source: Any,
    out: Any,
    spec: ReleaseSpec,
    ledger: Ledger | None = None,
    engine: str = "local",
    *,
    master: str | None = None,
    redraw: bool = False,
    progress: Progress | None = None,
) -> Release:
    """Release a table whose label column is private.

    Parameters
    ----------
    source : str, Path, Place, (file system, path), or a list of these
        A Parquet or CSV file; or a folder, a pattern ("day=*/*.parquet") or a list of Parquet
        files, read in the order of their paths. Addresses like s3://bucket/key are places in an
        object store.
    out : str, Path, Place or (file system, path)
        For one file, a file of the same format; for many, a folder of numbered files. It must not
        exist, unless it is this very release.
    spec : ReleaseSpec
        The private column, epsilon and law.
    ledger : Ledger, or its path, optional
        The ledger that records the charge. Default: the user's own ledger; there is no release
        without one.
    engine : {"local", "spark", "ray"}, default="local"
        This process, in bounded memory; or Spark or Ray, which take Parquet, need `id` and
        `classes` in the spec, and write a folder.
    master : str, optional
        Spark's master or Ray's address; by default the engine runs on this machine.
    redraw : bool, default=False
        Draw again what was released before, for another charge.
    progress : function of (phase, done, total), optional
        Called after each batch.

    Returns
    -------
    Release
        Returned when table and manifest are on disk and the ledger has recorded the settlement.

    Guarantee
    ---------
    `out` is epsilon-label-DP with respect to one row's label, or all labels of one unit; all other
    columns pass unchanged. A column that the ledger has charged as private in this data set, or
    that the manifest or metadata of `source` names as drawn by an earlier release, is refused among
    them, unless it is proven to hold what was drawn; the new manifest lists those of earlier
    releases. The first release of a table cannot know of a second private column: release several
    together (`LabelColumns`), or remove the others first.

    Cost
    ----
    Two passes over the input. The shuffle needs as much disk space as the decoded rows, beside
    `out` or, if that is not on this machine, in the folder of temporary files. Memory per row: one
    or two bits with dense integer ids, 16 bytes with text or scattered ids, 20 bytes with capped
    units.

    See Also
    --------
    labeldp.read_noisy : reads a released table back and proves its labels.
    labeldp.app.stage : releases a table in stages under one charge.
    labeldp.tables.spark.release, labeldp.tables.ray.release : release a DataFrame or a Dataset.
    """
    _validate.one_of(("local", "spark", "ray"), engine=engine)
    record, told = ledger_of(ledger), progress or silent
    if engine != "local":
        return _shown(
            out,
            _release_on_cluster(
                source, out, spec, record, engine, master, redraw=redraw, progress=told
            ),
        )
    if master is not None:
        raise InvalidInput(
            "Expected engine='spark' or 'ray' (--engine) with a master, got the local engine. Name"
            " one, or leave it out."
        )
    given = given_parts(source)
    return _shown(
        out,
        release_table(
            LocalEngine(open_table(source), given, told), Place.of(out), spec, record, redraw=redraw
        ),
    )


def _shown(given: Any, done: TableRelease) -> Release:
    """Make the result: with a path if the user gave a path. Warn of rows over the cap."""
    facts, receipt, place = done.manifest, done.receipt, done.place
    over = int(str(facts.get("rows_over_the_cap") or 0))
    warn_of_cap(over, over + int(str(facts["rows"])), receipt.max_rows_per_unit, receipt.unit)
    if isinstance(given, Place | tuple) or URI.match(str(given)):
        return Release(place, manifest_place(place), receipt, done.repeated, facts, done.unchanged)
    path, beside = Path(given), manifest_place(place).name
    return Release(path, path.with_name(beside), receipt, done.repeated, facts, done.unchanged)


def _release_on_cluster(
    source: Any,
    out: Any,
    spec: ReleaseSpec,
    ledger: Ledger,
    engine: str,
    master: str | None,
    *,
    redraw: bool,
    progress: Progress,
) -> TableRelease:
    """Check everything that this process can check, then start or join the engine, and release."""
    if isinstance(source, list):
        raise InvalidInput(
            f"Expected one file or folder for engine={engine!r}, got a list. Name the folder."
        )
    table = open_table(source)
    if table.text:
        raise InvalidInput(
            f"Expected Parquet for engine={engine!r}, got {table.path.name}. Convert it, or"
            " take the local engine."
        )
    named = replace(spec, dataset=spec.dataset or default_dataset(table))
    check_spec(named, engine.capitalize())
    check_columns(table, spec.columns)
    check_raw(table, spec.labels)
    check_apart(table.path, Place.of(out))
    layout = layout_of(table, given_parts(source))
    for label, classes in zip(spec.labels, spec.lists, strict=True):
        check_layout(layout, label, classes, public=spec.order == "keep")
    place = Place.of(source)
    if engine == "spark":
        from labeldp.tables import spark

        df = spark.read(spark.start(master), place)
        return spark.release_frame(
            df, out, named, ledger, redraw=redraw, progress=progress, files=table
        )
    from labeldp.tables import ray

    if isinstance(table, DatasetSource) and not place.exists():
        raise InvalidInput(
            f"Expected a file or a folder for engine='ray', got the pattern {place}. Name the"
            " folder."
        )
    ray.start(master)
    return ray.release_dataset(
        ray.read(place), out, named, ledger, redraw=redraw, progress=progress, files=table
    )


# A released table
# --------------------------------------------------------------------------------------------------


def inspect(source: Any, manifest: Any = None) -> dict[str, Any]:
    """Read from a table's manifest or metadata what was drawn in it, and compare the table with it.
    No ledger is read.

    Parameters
    ----------
    source : str, Path or Place
        A released table.
    manifest : str or Path, optional
        Its manifest, if that is not beside the table.

    Returns
    -------
    dict
        "rows", "unchanged" (the other columns), and "drawn", a list with an entry for each release
        whose columns are in the table: "columns", "evidence", "law", "classes" or "grid",
        "guarantee", its "receipt", "proven" (False if the table lacks rows of an earlier release,
        so that its facts are only stated), and "histogram": "epsilon", "counts" and "rows" of the
        noisy histogram that it publishes as its prior, if it has one of its own.

    Raises
    ------
    InvalidInput
        Nothing says that the table was released, its manifest was changed, or it holds something
        else than was drawn.

    Notes
    -----
    One pass over the rows. Their digest covers classes, law and receipt, but whoever can write a
    manifest can write another digest; the ledger decides (`labeldp ledger verify`).
    """
    table = open_table(source)
    try:
        found = all_facts(table, manifest)
        drawn = [
            {
                "columns": list(labels_of(each)),
                "guarantee": Receipt.from_dict(each["receipt"]).guarantee,
            }
            | {name: each.get(name) for name in ("evidence", "law", "classes", "grid", "receipt")}
            | {HISTOGRAM: query and {"epsilon": query.epsilon, **each[HISTOGRAM]}}
            for each in found
            for query in (charged_histogram(Receipt.from_dict(each["receipt"])),)
        ]
        rows = require_drawn(table, found)
    except (KeyError, TypeError, AttributeError):
        raise InvalidInput(
            f"Expected a manifest of {table.path.name} as labeldp wrote it, got something else."
            " Restore it."
        ) from None
    if not drawn:
        raise InvalidInput(
            f"Expected a released table, got {table.path.name}, of which no manifest or metadata"
            " says that it was released."
        )
    noisy = noisy_names(found)
    return {
        "rows": rows[0],
        "unchanged": [name for name in table.names if name not in noisy],
        "drawn": [
            each | {"proven": count is not None} for each, count in zip(drawn, rows, strict=True)
        ],
    }


def inspected_text(name: str, facts: Mapping[str, Any]) -> str:
    """Format what `inspect` has found."""
    unchanged = ", ".join(facts["unchanged"]) or "none"
    lines = [f"{name}: {facts['rows']:,} rows; unchanged columns: {unchanged}."]
    for each in facts["drawn"]:
        receipt, asked = Receipt.from_dict(each["receipt"]), each[HISTOGRAM]
        stated = "" if each["proven"] else " (stated, not proven)"
        paid = (
            f", of which epsilon {asked['epsilon']:g} paid for its noisy histogram" if asked else ""
        )
        lines.append(
            f"{', '.join(each['columns'])}: {receipt.guarantee}{stated}{paid}, by law"
            f" {each['law']['law']}; data set {receipt.dataset!r}, run {receipt.run_id}."
        )
    said = "The labels are those that its manifest or metadata say were drawn."
    lines.append(f"{said} `labeldp ledger verify` compares a manifest with the ledger, too.")
    return "\n".join(lines)
