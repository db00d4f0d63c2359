# SPDX-License-Identifier: Apache-2.0
"""The ids that earlier releases of a column published: what tells whether text ids of a new table were released before."""

import json
from collections.abc import Iterator

from labeldp.errors import LabelDPError
from labeldp.privacy.custody import RunStore
from labeldp.privacy.ledger import Ledger, RunRecord
from labeldp.privacy.ledger_rows import IdsOf
from labeldp.privacy.worker import Ids
from labeldp.tables.batch import id_column, row_ids
from labeldp.tables.formats import open_table
from labeldp.tables.publication import MANIFEST, OUTPUT
from labeldp.tables.table import Source


def published_ids(ledger: Ledger) -> IdsOf:
    """A function of a run: the ids (or units) in its output, batch by batch, or None where that is gone or is no table."""

    def ids_of(run: RunRecord) -> Iterator[Ids] | None:
        store = RunStore(ledger.run_dir(run.run_id))
        place, text = store.read(OUTPUT), store.read(MANIFEST)
        if place is None or text is None or run.state != "settled":
            return None
        names = tuple(json.loads(text).get("id") or ())
        try:
            table = open_table(place.decode())
        except LabelDPError:
            return None
        wanted = names if run.unit == "row" else (run.unit,)
        return _ids(table, wanted, of_rows=run.unit == "row") if wanted and set(wanted) <= set(table.names) else None

    return ids_of


def _ids(table: Source, names: tuple[str, ...], *, of_rows: bool) -> Iterator[Ids]:
    for batch in table.batches(list(names)):
        found = row_ids(batch, names) if of_rows else id_column(batch, names[0])
        if found is not None:
            yield found
