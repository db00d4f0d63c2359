# SPDX-License-Identifier: Apache-2.0
"""The ids that earlier releases of a column published: what tells whether text ids of a new table were released before."""

import json
from collections.abc import Iterator
from itertools import chain

from labeldp.errors import LabelDPError
from labeldp.privacy.custody import RunStore
from labeldp.privacy.ledger import Ledger, RunRecord
from labeldp.privacy.ledger_rows import IdsOf
from labeldp.privacy.staged import stages_of
from labeldp.privacy.stream import RELEASE
from labeldp.privacy.worker import Ids
from labeldp.tables.batch import id_column, row_ids
from labeldp.tables.formats import open_table
from labeldp.tables.place import Place
from labeldp.tables.publication import MANIFEST, OUTPUT, kept_name
from labeldp.tables.table import Source


def published_ids(ledger: Ledger) -> IdsOf:
    """A function of a run: the ids (or units) in its output, batch by batch, or None where that is gone or is no table.

    Of a run in stages, in the outputs of all of them: one that is missing may have been drawn. An output whose files are not the ones
    that the ledger announced says nothing.
    """

    def ids_of(run: RunRecord) -> Iterator[Ids] | None:
        if run.state != "settled":
            return None
        found = [_published(ledger, run, stage) for stage in stages_of(run) or (RELEASE,)]
        if any(ids is None for ids in found):
            return None
        return chain.from_iterable(ids for ids in found if ids is not None)

    return ids_of


def _published(ledger: Ledger, run: RunRecord, stage: str) -> Iterator[Ids] | None:
    store = RunStore(ledger.run_dir(run.run_id))
    said, text = store.read(kept_name(OUTPUT, stage)), store.read(kept_name(MANIFEST, stage))
    if said is None or text is None:
        return None
    names = tuple(json.loads(text).get("id") or ())
    try:
        place = Place.of(said.decode())
        if not _is_whole(place, ledger, run.run_id, stage):
            return None
        table = open_table(place)
    except (LabelDPError, OSError):
        return None
    wanted = names if run.unit == "row" else (run.unit,)
    return _ids(table, wanted, of_rows=run.unit == "row") if wanted and set(wanted) <= set(table.names) else None


def _is_whole(place: Place, ledger: Ledger, run_id: str, stage: str) -> bool:
    """What lies at the place are the files that the ledger announced, byte for byte."""
    start = "" if stage == RELEASE else f"{stage}/"
    announced = sorted((part.name.removeprefix(start), part.sha256) for part in ledger.parts(run_id) if part.name.startswith(start))
    files = [("/".join(file.below(place)), file) for file in place.files()] if place.is_folder() else [(place.name, place)]
    if sorted(name for name, _ in files) != [name for name, _ in announced]:
        return False
    return sorted((name, file.digest()) for name, file in files) == announced


def _ids(table: Source, names: tuple[str, ...], *, of_rows: bool) -> Iterator[Ids]:
    for batch in table.batches(list(names)):
        found = row_ids(batch, names) if of_rows else id_column(batch, names[0])
        if found is not None:
            yield found
