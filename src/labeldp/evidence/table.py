# SPDX-License-Identifier: Apache-2.0
"""Noisy labels as an Arrow table: shared facts in the schema's metadata, each row's evidence in a binary column a block."""

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from labeldp.errors import InvalidInput
from labeldp.evidence.block import Block
from labeldp.evidence.format import from_arrow, pack, record_type, to_arrow, unpack
from labeldp.laws import law_from_dict
from labeldp.laws.base import Array
from labeldp.receipt import Receipt

METADATA_KEY = b"labeldp"
FORMAT = 1


Parts = tuple[int, tuple[object, ...], tuple[Block, ...], Array, bool, tuple[Receipt, ...]]
"""Number of rows, classes, blocks, ids, whether the ids were given, and what is behind it: what a NoisyLabels is made of."""


def write(ids: Array, explicit_ids: bool, classes: tuple[object, ...], blocks: Sequence[Block], behind: Sequence[Receipt] = ()) -> pa.Table:
    """Columns id (or id_0, id_1, ...) and evidence_0, evidence_1, ...; a row that a block lacks is null there."""
    columns = {name: pa.array(values) for name, values in _id_columns(ids)}
    found = [block_facts(block) for block in blocks]
    facts: dict[str, object] = {"format": FORMAT, "classes": plain(classes), "explicit_ids": explicit_ids, "blocks": found}
    facts |= {"behind": [receipt.to_dict() for receipt in behind]} if behind else {}
    for i, block in enumerate(blocks):
        raw = np.zeros((len(ids), record_type(block.law).itemsize), np.uint8)
        raw[block.rows] = pack(block.law, block.outputs, block.side)
        present = np.zeros(len(ids), bool)
        present[block.rows] = True
        columns[f"evidence_{i}"] = to_arrow(raw, present)
    return pa.table(columns).replace_schema_metadata({METADATA_KEY: json.dumps(facts)})


def read(table: pa.Table) -> Parts:
    """What `write` wrote."""
    facts = read_facts((table.schema.metadata or {}).get(METADATA_KEY))
    names = [name for name in table.column_names if name == "id" or name.startswith("id_")]
    columns = [np.asarray(table[name].to_pylist() if pa.types.is_string(table[name].type) else table[name].to_numpy()) for name in names]
    if not columns:
        raise InvalidInput("Expected a table written by NoisyLabels.to_table, with a column 'id'.")
    ids = columns[0] if names == ["id"] else np.column_stack(columns)
    blocks = tuple(_read_block(table, i, found) for i, found in enumerate(facts["blocks"]))
    behind = tuple(Receipt.from_dict(receipt) for receipt in facts.get("behind", ()))
    return table.num_rows, tuple(facts["classes"]), blocks, ids, bool(facts["explicit_ids"]), behind


def block_facts(block: Block) -> dict[str, object]:
    """What all rows of a block share, as JSON-ready data."""
    return {"law": block.law.to_dict(), "receipt": block.receipt.to_dict(), "stage": block.stage}


def read_facts(raw: bytes | str | None) -> dict[str, Any]:
    """The shared facts, checked for a format that this version reads."""
    try:
        facts = json.loads(raw) if raw else {}
    except ValueError:
        facts = {}
    if facts.get("format") != FORMAT:
        raise InvalidInput(f"Expected labeldp evidence of format {FORMAT} in the table's metadata, got {facts.get('format', 'none')}.")
    return dict(facts)


def plain(values: tuple[object, ...]) -> list[object]:
    """Class values as JSON-ready Python values."""
    return [value.item() if isinstance(value, np.generic) else value for value in values]


def _id_columns(ids: Array) -> list[tuple[str, Array]]:
    return [("id", ids)] if ids.ndim == 1 else [(f"id_{j}", ids[:, j]) for j in range(ids.shape[1])]


def _read_block(table: pa.Table, i: int, facts: dict[str, dict[str, object]]) -> Block:
    law, receipt = law_from_dict(facts["law"]), Receipt.from_dict(facts["receipt"])
    raw, present = from_arrow(table[f"evidence_{i}"], record_type(law).itemsize)
    outputs, side = unpack(law, raw)
    return Block(law, outputs, side, np.flatnonzero(present), receipt, str(facts["stage"]))
