# SPDX-License-Identifier: Apache-2.0
"""The manifest beside a released table: what was released, at what cost, and how to read it. Public facts only."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labeldp.custody._draw import law_per_row
from labeldp.custody._staged import stage_name
from labeldp.errors import InvalidInput
from labeldp.evidence._noisy import FORMAT, plain
from labeldp.laws import Law, law_from_dict
from labeldp.receipt import Receipt
from labeldp.tables._spec import ReleaseSpec
from labeldp.tables.engines._batch import evidence_bytes
from labeldp.tables.formats._digest import drawn_in_all
from labeldp.tables.formats._table import EVIDENCE
from labeldp.tables.output._place import Place
from labeldp.tables.output._staging import Part, manifest_name, part_name, release_digest


def manifest_path(out: Path) -> Path:
    """OUT.manifest.json."""
    return out.with_name(manifest_name(out.name))


def manifest_place(out: Place) -> Place:
    """OUT.manifest.json."""
    return out.beside(manifest_name(out.name))


@dataclass(frozen=True)
class ReleaseFacts:
    """What a release is made of, for its manifest."""

    spec: ReleaseSpec
    dataset: str
    classes: tuple[object, ...]
    law: Law
    receipt: Receipt
    prior: Mapping[str, object] | None = None


def shared_facts(made: ReleaseFacts) -> dict[str, object]:
    """What all rows share and a reader of the table needs."""
    return {
        "format": FORMAT,
        "kind": "release",
        "label": made.spec.label,
        "classes": plain(made.classes),
        "evidence": made.spec.label + EVIDENCE if evidence_bytes(made.law) else None,
        "id": list(made.spec.ids) or None,
        "law": made.law.to_dict(),
        "receipt": made.receipt.to_dict(),
        "stage": made.spec.stage_name,
    }


def guarantee(receipt: Receipt, law: Law) -> dict[str, object]:
    """What a receipt and a row's law promise, the unit first."""
    return {
        "unit": receipt.unit,
        "max_rows_per_unit": receipt.max_rows_per_unit,
        "epsilon": receipt.epsilon,
        "delta": receipt.delta,
        "epsilon_per_row": law.epsilon,
    } | ({"except_for": receipt.except_for} if receipt.except_for else {})


@dataclass(frozen=True)
class OutputFacts:
    """What the second pass wrote.

    Attributes
    ----------
    parts : tuple of Part
        The files, in order.
    dropped : int
        Rows left out by the cap or as other parts'.
    public_digest : str or None
        Of the public columns, where it was taken.
    """

    parts: tuple[Part, ...]
    dropped: int
    public_digest: str | None = None

    def digest(self, *, many: bool) -> str:
        """SHA-256 of the file, or of the list of files; hexadecimal."""
        return release_digest([part.sha256 for part in self.parts], single=not many)


def manifest(made: ReleaseFacts, written: OutputFacts, *, many: bool) -> dict[str, object]:
    """The manifest as JSON-ready data, the unit first. `many`: files in a folder, even if there is one."""
    spec, receipt = made.spec, made.receipt
    facts = shared_facts(made) | {
        "dataset": made.dataset,
        "dataset_from": "given" if spec.dataset else "name of the input file" if not many else "name of the input folder",
        "classes_inferred": spec.infers_classes,
        "order": "keyed permutation" if spec.order == "shuffle" else "kept: stated to be public",
        "prior": (list(spec.prior_columns) or None) if made.prior is None else dict(made.prior),
        "rows": sum(part.rows for part in written.parts),
        **_left_out(spec, written),
        "digests": {
            "output": f"sha256:{written.digest(many=many)}",
            "drawn": drawn_in_all(part.drawn for part in written.parts),
            "public_columns": None if written.public_digest is None else f"sha256:{written.public_digest}",
        },
    }
    if many:
        named = [(part_name(number), part) for number, part in enumerate(written.parts)]
        facts["parts"] = [{"name": name, "rows": part.rows, "sha256": part.sha256} for name, part in named]
    if not receipt.secure:
        return {"insecure": True} | facts
    return {"guarantee": guarantee(receipt, made.law), "insecure": False} | facts


def _left_out(spec: ReleaseSpec, written: OutputFacts) -> dict[str, object]:
    """Rows that are not in the table, and why."""
    if spec.stage is None:
        return {"rows_over_the_cap": written.dropped}
    return {"stages": {"number": spec.stage.number} | spec.stage.facts(), "rows_of_other_stages_or_over_the_cap": written.dropped}


def to_json(facts: Mapping[str, object], *, indent: int | None = 2) -> str:
    """JSON text; numbers that JSON lacks are refused."""
    return json.dumps(facts, indent=indent, allow_nan=False, ensure_ascii=False)


def charged_law(receipt: Receipt, stage: str) -> Law | None:
    """The law of one row in a stage of what a receipt was charged for; None where the receipt does not say."""
    drawn = receipt.event.get("law")
    if not isinstance(drawn, Mapping):
        return None
    stages = drawn.get("stages")
    named: Any = {stage_name(i + 1): each["law"] for i, each in enumerate(stages)} if stages else {drawn.get("stage"): drawn.get("law")}
    facts = named.get(stage)
    return None if facts is None else law_per_row(law_from_dict(facts), receipt.max_rows_per_unit)


def read_manifest(out: Path | Place, *, named: bool = False) -> dict[str, object] | None:
    """The manifest beside a table, or (`named`) at this very place; None if there is none.

    Raises
    ------
    InvalidInput
        It is there but is not a manifest of this format.
    """
    path = Place.of(out) if named else manifest_place(Place.of(out))
    try:
        facts = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValueError):
        facts = None
    if not isinstance(facts, dict) or facts.get("format") != FORMAT or facts.get("kind") != "release":
        raise InvalidInput(
            f"Expected a manifest of format {FORMAT}, got something else in {path.name}. Restore it from where the table came from."
        )
    return facts


def run_id_of(facts: Mapping[str, object], stage: str) -> str:
    """The run that made the table in this stage; "" if none did."""
    receipt = facts.get("receipt")
    return str(receipt["run_id"]) if isinstance(receipt, Mapping) and "run_id" in receipt and facts.get("stage") == stage else ""
