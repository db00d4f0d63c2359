# SPDX-License-Identifier: Apache-2.0
"""`labeldp release`: a table in, the same table with a private label column out, and a manifest beside it.

Order of events: check everything, first pass (pin), charge, second pass (draw) into a private folder beside the output, publish the
table's files, then the manifest, settle. A process killed anywhere leaves nothing with a manifest that is not whole, and the same command
run again picks up the charge and writes the same table.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labeldp import _validate
from labeldp.app._cluster import release_on_cluster
from labeldp.custody._table_rows import warn_of_cap
from labeldp.errors import InvalidInput
from labeldp.ledger._ledger import Ledger, ledger_of
from labeldp.receipt import Receipt
from labeldp.tables._release import TableRelease, release_table
from labeldp.tables._spec import ReleaseSpec
from labeldp.tables.engines._local import LocalEngine, Progress, silent
from labeldp.tables.formats._open import given_parts, open_table
from labeldp.tables.output._manifest import manifest_path, manifest_place
from labeldp.tables.output._place import URI, Place


@dataclass(frozen=True)
class Release:
    """What a release left behind.

    Attributes
    ----------
    path, manifest_path : Path, or Place where it is not on this machine
        The table, a file or a folder, and its manifest.
    receipt : Receipt
        The charge.
    repeated : bool
        True if this very release had settled before: nothing was drawn and nothing was charged.
    manifest : mapping
        The manifest's facts.
    """

    path: Path | Place
    manifest_path: Path | Place
    receipt: Receipt
    repeated: bool
    manifest: Mapping[str, object]


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
        A Parquet or CSV file; or a folder, a pattern ("day=*/*.parquet") or a list of Parquet files, read in the order of their paths.
        Addresses like s3://bucket/key are places in an object store.
    out : str, Path, Place or (file system, path)
        Of one file, a file of the same format; of many, a folder of numbered files. It must not exist, unless it is this very release.
    spec : ReleaseSpec
    ledger : Ledger, or its path, optional
        Where the spend is recorded; the user's own by default, never none.
    engine : {"local", "spark", "ray"}
        This process, in bounded memory; or Spark or Ray, which take Parquet, need `id` and `classes` in the spec, and write a folder.
    master : str, optional
        Spark's master or Ray's address; by default the engine runs on this machine.
    redraw : bool
        Draw again what was released before; charged once more.
    progress : function of (phase, done, total), optional

    Returns
    -------
    Release, when table and manifest are on disk and the ledger says so.

    Guarantee
    ---------
    `out` is epsilon-label-DP with respect to one row's label, or all labels of one unit; all other columns pass unchanged.

    Cost
    ----
    Two passes over the input; the shuffle needs as much room as the decoded rows take, beside `out` or, if that is not on this machine,
    where temporary files go. Memory does not grow with the table, but for a bit or two a row with integer ids that lie close
    together, 16 bytes with text ids or scattered ones, and 20 with capped units.
    """
    _validate.one_of(("local", "spark", "ray"), engine=engine)
    record, told = ledger_of(ledger), progress or silent
    if engine != "local":
        return _shown(out, release_on_cluster(source, out, spec, record, engine, master, redraw=redraw, progress=told))
    if master is not None:
        raise InvalidInput("Expected engine='spark' or 'ray' (--engine) with a master, got the local engine. Name one, or leave it out.")
    given = given_parts(source)
    return _shown(out, release_table(LocalEngine(open_table(source), given, told), Place.of(out), spec, record, redraw=redraw))


def _shown(given: Any, done: TableRelease) -> Release:
    """A path where one was given; rows that were left out are told."""
    facts, receipt, place = done.manifest, done.receipt, done.place
    over = int(str(facts.get("rows_over_the_cap") or 0))
    warn_of_cap(over, over + int(str(facts["rows"])), receipt.max_rows_per_unit, receipt.unit)
    if isinstance(given, Place | tuple) or URI.match(str(given)):
        return Release(place, manifest_place(place), receipt, done.repeated, facts)
    return Release(Path(given), manifest_path(Path(given)), receipt, done.repeated, facts)
