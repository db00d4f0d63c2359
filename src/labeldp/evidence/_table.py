# SPDX-License-Identifier: Apache-2.0
"""Noisy labels as an Arrow table: shared facts in the schema's metadata, each row's evidence in a binary column a block, and its proof.

The proof of a row is a public hash of the shared facts, its ids and all of its evidence: rows may be left out, sorted and joined with
other columns, but one that was changed is found.
"""

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from labeldp._hash import digest, public_hash, sortable
from labeldp.errors import InvalidInput
from labeldp.evidence._block import Block, from_arrow, pack, record_type, to_arrow, unpack
from labeldp.laws import Law, law_from_dict
from labeldp.laws._base import Array
from labeldp.receipt import Receipt

METADATA_KEY = b"labeldp"
PROOF = "proof"
FORMAT = 1


Parts = tuple[int, tuple[object, ...], tuple[Block, ...], Array, bool, tuple[Receipt, ...]]
"""Number of rows, classes, blocks, ids, whether the ids were given, and what is behind it: what a NoisyLabels is made of."""


def write(
    ids: Array, explicit_ids: bool, classes: tuple[object, ...], blocks: Sequence[Block], behind: Sequence[Receipt], *, by_hand: bool
) -> pa.Table:
    """Write columns id (or id_0, id_1, ...), evidence_0, evidence_1, ... and proof; a row that a block lacks is null there.

    `by_hand`: it is not as it was drawn; the table says so.
    """
    columns = {name: pa.array(values) for name, values in _id_columns(ids)}
    found = [block_facts(block) for block in blocks]
    facts: dict[str, object] = {"format": FORMAT, "classes": plain(classes), "explicit_ids": explicit_ids, "blocks": found}
    facts |= {"behind": [receipt.to_dict() for receipt in behind]} if behind else {}
    facts |= {"by_hand": True} if by_hand else {}
    facts |= {"ids": list(columns), "repeats": _repeats(ids)}
    pieces = []
    for i, block in enumerate(blocks):
        raw = np.zeros((len(ids), record_type(block.law).itemsize), np.uint8)
        raw[block.rows] = pack(block.law, block.outputs, block.side)
        present = np.zeros(len(ids), bool)
        present[block.rows] = True
        columns[f"evidence_{i}"] = to_arrow(raw, present)
        pieces.append((raw, present))
    columns[PROOF] = pa.array(_proof(facts, ids, pieces))
    return pa.table(columns).replace_schema_metadata({METADATA_KEY: json.dumps(facts)})


def read(table: pa.Table) -> tuple[Parts, bool]:
    """Read what `write` wrote, and whether it was put together by hand."""
    facts = read_facts((table.schema.metadata or {}).get(METADATA_KEY))
    names = [str(name) for name in facts.get("ids", ())]
    wanted = [*names, *(f"evidence_{i}" for i in range(len(facts["blocks"]))), PROOF]
    if not names or not set(wanted) <= set(table.column_names):
        raise InvalidInput(f"Expected a table written by NoisyLabels.to_table, with the columns {', '.join(wanted)}. Write it again.")
    columns = [np.asarray(table[name].to_pylist() if pa.types.is_string(table[name].type) else table[name].to_numpy()) for name in names]
    ids = columns[0] if names == ["id"] else np.column_stack(columns)
    laws = [law_from_dict(found["law"]) for found in facts["blocks"]]
    pieces = [_whole(table[f"evidence_{i}"], record_type(law).itemsize) for i, law in enumerate(laws)]
    good = _proof(facts, ids, pieces) == _numbers(table[PROOF])
    if not good.all():
        raise InvalidInput(
            f"Expected the evidence that was written, got another in row {int(np.argmin(good))}: ids or evidence were changed. Read the "
            "table that NoisyLabels.to_table or save wrote. Labels that another mechanism drew are declared: NoisyLabels.from_labels."
        )
    if not facts["repeats"] and _repeats(ids):
        raise InvalidInput("Expected each row once, as it was written, got one twice: evidence counts once. Drop repeated rows.")
    blocks = tuple(_read_block(law, *piece, found) for law, piece, found in zip(laws, pieces, facts["blocks"], strict=True))
    behind = tuple(Receipt.from_dict(receipt) for receipt in facts.get("behind", ()))
    return (table.num_rows, tuple(facts["classes"]), blocks, ids, bool(facts["explicit_ids"]), behind), bool(facts.get("by_hand"))


def block_facts(block: Block) -> dict[str, object]:
    """Describe what all rows of a block share, as JSON-ready data."""
    return {"law": block.law.to_dict(), "receipt": block.receipt.to_dict(), "stage": block.stage}


def read_facts(raw: bytes | str | None) -> dict[str, Any]:
    """Read the shared facts, checked for a format that this version reads."""
    try:
        facts = json.loads(raw) if raw else {}
    except ValueError:
        facts = {}
    if facts.get("format") != FORMAT:
        raise InvalidInput(f"Expected labeldp evidence of format {FORMAT} in the table's metadata, got {facts.get('format', 'none')}.")
    return dict(facts)


def plain(values: tuple[object, ...]) -> list[object]:
    """Turn class values into JSON-ready Python values."""
    return [value.item() if isinstance(value, np.generic) else value for value in values]


def _id_columns(ids: Array) -> list[tuple[str, Array]]:
    return [("id", ids)] if ids.ndim == 1 else [(f"id_{j}", ids[:, j]) for j in range(ids.shape[1])]


def _read_block(law: Law, raw: NDArray[np.uint8], present: NDArray[np.bool_], facts: dict[str, Any]) -> Block:
    outputs, side = unpack(law, raw[present])
    return Block(law, outputs, side, np.flatnonzero(present), Receipt.from_dict(facts["receipt"]), str(facts["stage"]))


def _whole(column: pa.ChunkedArray, width: int) -> tuple[NDArray[np.uint8], NDArray[np.bool_]]:
    """Read the bytes of all rows, zero where there are none, and where there are some."""
    found, present = from_arrow(column, width)
    raw = np.zeros((len(present), width), np.uint8)
    raw[present] = found
    return raw, present


def _proof(facts: dict[str, Any], ids: Array, pieces: Sequence[tuple[NDArray[np.uint8], NDArray[np.bool_]]]) -> NDArray[np.uint64]:
    """Hash what all rows share, and each row's ids and evidence: (n,) uint64."""
    shared = {name: facts[name] for name in ("classes", "explicit_ids", "blocks", *(["by_hand"] if "by_hand" in facts else []))}
    salt = "proof/" + digest(shared | {"behind": facts.get("behind", [])})
    return public_hash(salt, ids, *(part for raw, present in pieces for part in (present.astype(np.int64), raw)))


def _numbers(column: pa.ChunkedArray) -> NDArray[np.uint64]:
    if not pa.types.is_uint64(column.type) or column.null_count:
        raise InvalidInput(f"Expected a number of 64 bits in every row of column {PROOF!r}, got something else. Write the table again.")
    return np.asarray(column.to_numpy())


def _repeats(ids: Array) -> bool:
    return len(np.unique(sortable(ids), axis=0)) < len(ids)
