# SPDX-License-Identifier: Apache-2.0
"""Reading a released table back as noisy labels: what training on it needs, free of charge."""

import base64
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from labeldp.errors import InvalidInput
from labeldp.evidence import Block, NoisyLabels
from labeldp.evidence import format as evidence_format
from labeldp.evidence.table import FORMAT
from labeldp.laws import Law, law_from_dict
from labeldp.receipt import Receipt
from labeldp.tables.batch import row_id_array
from labeldp.tables.dataset import DatasetSource
from labeldp.tables.formats import open_table
from labeldp.tables.labels import LabelCodec
from labeldp.tables.manifest import manifest_place, read_manifest
from labeldp.tables.parquet import ParquetSource, read_facts
from labeldp.tables.place import Place
from labeldp.tables.table import EVIDENCE, Batch, Source, check_columns


def released_facts(path: Path | Place) -> Mapping[str, object] | None:
    """What a released table says of itself, in its manifest or its Parquet metadata; None: the table is not a release.

    Raises
    ------
    InvalidInput
        The table has an evidence column, but the facts to read it are gone.
    """
    place = Place.of(path)
    source = open_table(place)
    facts = read_manifest(place) or _embedded(source)
    if facts is None and any(name.endswith(EVIDENCE) for name in source.names):
        raise InvalidInput(
            f"Expected the manifest of a released table, got none: {manifest_place(place).name}. Put it beside {place.name} again."
        )
    return facts


def check_raw(table: Source, label: str) -> None:
    """Refuse a table whose labels are noisy already, as its manifest or its own metadata says."""
    facts = {} if label + EVIDENCE in table.names else read_manifest(table.path) or _embedded(table) or {}
    if label + EVIDENCE in table.names or facts.get("label") == label:
        raise InvalidInput(f"Expected a table with raw labels, got one whose column {label!r} was released already. Name its original.")


def _embedded(source: Source) -> dict[str, object] | None:
    file = source.first if isinstance(source, DatasetSource) else source
    raw = read_facts(file.path) if isinstance(file, ParquetSource) else None
    facts = None if raw is None else json.loads(raw)
    return facts if isinstance(facts, dict) and facts.get("kind") == "release" and facts.get("format") == FORMAT else None


def read_noisy(path: Any, label: str | None = None) -> NoisyLabels:
    """The noisy labels of a released table.

    Parameters
    ----------
    path : str, Path, Place or (file system, path)
        A Parquet or CSV file, or a folder of Parquet files, that `labeldp release` wrote, with its manifest beside it (Parquet carries
        the facts itself).
    label : str, optional
        The released column; that of the manifest if None.

    Returns
    -------
    NoisyLabels of n rows, in the file's order.

    Raises
    ------
    InvalidInput
        The table is not a release, is one of another column, or its evidence is damaged.
    """
    where = Place.of(path)
    facts = released_facts(where)
    if facts is None:
        raise InvalidInput(f"Expected a released table, got {where.name} without manifest or metadata of labeldp. Release it first.")
    if label is not None and facts["label"] != label:
        raise InvalidInput(f"Expected the released column {facts['label']!r}, got {label!r}. The other columns are public.")
    source = open_table(where)
    column, evidence, ids = str(facts["label"]), facts.get("evidence"), _names(facts.get("id"))
    wanted = [column, *([str(evidence)] if evidence else []), *ids]
    check_columns(source, wanted)
    law = law_from_dict(facts["law"])  # type: ignore[arg-type]
    codec = LabelCodec(tuple(facts["classes"]), column, source.type_of(column))  # type: ignore[arg-type]
    parts, names, start = [], [], 0
    for batch in source.batches(wanted):
        parts.append(_outputs(law, codec, batch.column(column), None if not evidence else batch.column(str(evidence)), start))
        names.append(_names_of(batch, ids, start))
        start += len(batch)
    return _noisy(law, parts, names, facts, explicit_ids=bool(ids))


def _names(value: object) -> list[str]:
    return [str(name) for name in value] if isinstance(value, Sequence) and not isinstance(value, str) else []


def _names_of(batch: Batch, ids: list[str], start: int) -> NDArray[np.generic]:
    found = row_id_array(batch, tuple(ids))
    return np.arange(start, start + len(batch)) if found is None else found


def _outputs(
    law: Law, codec: LabelCodec, labels: pa.Array, evidence: pa.Array | None, start: int
) -> tuple[NDArray[np.generic], dict[str, NDArray[np.generic]]]:
    if evidence is None:
        return codec.encode(labels, start), {}
    width = evidence_format.record_type(law).itemsize
    raw = evidence if not (pa.types.is_string(evidence.type) or pa.types.is_large_string(evidence.type)) else _from_base64(evidence)
    bytes_, present = evidence_format.from_arrow(raw, width)
    if not present.all():
        raise InvalidInput(
            f"Expected evidence in every row of a released table, got none in row {start + int(np.argmin(present))}. The file is damaged."
        )
    return evidence_format.unpack(law, bytes_)


def _from_base64(texts: pa.Array) -> pa.Array:
    try:
        return pa.array([base64.b64decode(t + "=" * (-len(t) % 4), altchars=b"-_", validate=True) for t in texts.to_pylist()], pa.binary())
    except (ValueError, TypeError):
        raise InvalidInput("Expected evidence in base64url, got something else. The column was changed after the release.") from None


def _noisy(
    law: Law,
    parts: list[tuple[NDArray[np.generic], dict[str, NDArray[np.generic]]]],
    names: list[NDArray[np.generic]],
    facts: Mapping[str, object],
    *,
    explicit_ids: bool,
) -> NoisyLabels:
    if not parts:
        raise InvalidInput("Expected rows in the released table, got none.")
    outputs = np.concatenate([part[0] for part in parts])
    side = {name: np.concatenate([part[1][name] for part in parts]) for name in parts[0][1]}
    receipt = Receipt.from_dict(facts["receipt"])  # type: ignore[arg-type]
    block = Block(law, outputs, side, np.arange(len(outputs)), receipt, str(facts["stage"]))
    return NoisyLabels(len(outputs), tuple(facts["classes"]), (block,), np.concatenate(names), explicit_ids)  # type: ignore[arg-type]
