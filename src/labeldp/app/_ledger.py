# SPDX-License-Identifier: Apache-2.0
"""`labeldp ledger` and `labeldp key`: balances, history, checks and repairs of a ledger; the
release secret in a file."""

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from labeldp import _validate
from labeldp.custody._stream import RELEASE
from labeldp.errors import InvalidInput, LabelDPError, LedgerError
from labeldp.laws import law_from_dict
from labeldp.ledger._ledger import Ledger, default_ledger
from labeldp.ledger._repair import orphans
from labeldp.ledger._repair import repair as remove_orphans
from labeldp.ledger._run_store import RunStore
from labeldp.noise._secrets import create_key_file, destroy_key_file, key_file_id
from labeldp.receipt import Receipt
from labeldp.tables._evidence import check_drawn
from labeldp.tables._place import Place, delete_folder, manifest_name, release_digest
from labeldp.tables._release import charged_law, holds, is_charged, misstated
from labeldp.tables.formats._parquet import open_table

_NAMES = 20  # number of accounts that a message lists


def ledger_at(path: str | Path | None, key: str | None = None) -> Ledger:
    """Open the ledger in this file or database, or the user's own; its release secret is at `key`,
    or where LABELDP_KEY points."""
    return Ledger(
        default_ledger().location if path is None else path,
        key=key or os.environ.get("LABELDP_KEY") or None,
    )


def existing_ledger(path: str | Path | None) -> Ledger:
    """Open a ledger that must be there, as `verify` does: of a mistyped name no one should read
    that nothing was spent. LedgerError."""
    found = ledger_at(path)
    found.head()
    return found


def accounts(
    ledger: Ledger, dataset: str | None = None, column: str | None = None
) -> list[dict[str, object]]:
    """Report the spent, allowed and remaining epsilon of each (dataset, column), and its spent
    delta."""
    found = {
        (run.receipt.dataset, each, run.receipt.unit)
        for run in ledger.runs(dataset, column)
        for each in run.receipt.columns
        if column in (None, each)
    }
    return [
        {
            "dataset": name,
            "column": label,
            "unit": unit,
            "spent": ledger.spent(name, label),
            "budget": ledger.budget_of(name, label),
            "remaining": ledger.remaining(name, label),
            "delta": ledger.spent_delta(name, label),
        }
        for name, label, unit in sorted(found)
    ]


def spent_together(ledger: Ledger, dataset: str | None = None) -> list[dict[str, Any]]:
    """Report the epsilon of the most used row, or unit, over all columns of each data set (None: of
    all) that are charged by this unit."""
    columns: dict[tuple[str, str], dict[str, None]] = {}
    for run in ledger.runs(dataset):
        columns.setdefault((run.receipt.dataset, run.receipt.unit), {}).update(
            dict.fromkeys(run.receipt.columns)
        )
    return [
        {"dataset": name, "unit": unit, "columns": [*found], "spent": ledger.spent(name, [*found])}
        for (name, unit), found in sorted(columns.items())
    ]


def together_text(told: Mapping[str, Any]) -> str:
    """Write an entry of `spent_together` as a sentence."""
    names = told["columns"]
    more = f" and {len(names) - _NAMES} more" if len(names) > _NAMES else ""
    return (
        f"In all each {told['unit']} of dataset {told['dataset']!r} has spent up to epsilon"
        f" {told['spent']:g}, on column{'s' * (len(names) > 1)}"
        f" {_validate.quoted(names[:_NAMES])}{more}."
    )


def known_names(ledger: Ledger) -> str:
    """List the accounts of a ledger, for somebody who named another one."""
    known = sorted(
        {
            f"dataset {run.receipt.dataset!r}, column {name!r}"
            for run in ledger.runs()
            for name in run.receipt.columns
        }
    )
    return "; ".join([*known[:_NAMES], *(["..."] if len(known) > _NAMES else [])]) or "no charge"


def verify(ledger: Ledger, manifests: Iterable[Path] = ()) -> list[str]:
    """List every inconsistency in a ledger, or between it and manifests, and what is `Unchecked`;
    empty if all is well."""
    read = [_manifest(path) for path in manifests]
    settled = [each for each in read if each.output and each.stage == RELEASE]
    outputs = {each.receipt.run_id: each.output for each in settled}
    found = ledger.verify([each.receipt for each in read], outputs=outputs)
    for each in read:
        found += [*_statement_problems(ledger, each), *_table_problem(ledger, each)]
    return found


def verified_text(manifests: Iterable[Path]) -> str:
    """Describe what was verified, one line per manifest."""
    lines = ["The history is whole."]
    for each in map(_manifest, manifests):
        read = f"{each.table} is what was released, and" if each.output else "No table was read; it"
        lines.append(
            f"{read} agrees with {each.path.name} and the ledger: column {each.receipt.column!r} is"
            f" {each.receipt.guarantee}."
        )
    return "\n".join(lines)


@dataclass(frozen=True)
class _Manifest:
    """A manifest: its facts, its receipt, the digest of its output, and its stage."""

    path: Path
    facts: Mapping[str, Any]
    receipt: Receipt
    output: str
    stage: str

    @property
    def table(self) -> str:
        """The name of the table beside it, or its own if it is not called like one."""
        return self.path.name.removesuffix(manifest_name(""))


def _statement_problems(ledger: Ledger, said: _Manifest) -> Iterator[str]:
    """Compare a manifest's statements with the charge: guarantee, law, the digest of the drawn
    labels; and that of a stage with the files that the ledger announced, since its run settles only
    after the last one."""
    facts, receipt, stage, name = said.facts, said.receipt, said.stage, said.path.name
    run = ledger.run(receipt.run_id)
    charged = receipt if run is None else replace(run.receipt, secure=receipt.secure)
    law = charged_law(charged, stage)
    try:
        same = law is None or "law" not in facts
        same = same or is_charged(law_from_dict(facts["law"]), charged, stage)
    except (LabelDPError, TypeError, ValueError):
        same = False
    if not same:
        yield f"The law in {name} is not the one that was charged."
    if wrong := misstated(facts, charged, law):
        yield f"What {name} says is not what was charged: {', '.join(wrong)} differ."
    drawn = facts.get("digests", {}).get("drawn")
    if run is not None and run.drawn and run.drawn.get(stage) != drawn:
        yield (
            f"What was drawn in run {receipt.run_id} is not what {name} names: its manifest was"
            " changed."
        )
    if stage != RELEASE:
        parts = ledger.parts(receipt.run_id)
        files = [part.sha256 for part in parts if part.name.startswith(f"{stage}/")]
        digest = release_digest(files, single="parts" not in facts) if files else ""
        if f"sha256:{digest}" != said.output:
            yield (
                f"The output of {stage} of run {receipt.run_id} is not the one that was announced:"
                " its manifest names another digest."
            )


def _table_problem(ledger: Ledger, said: _Manifest) -> Iterator[str]:
    """Compare the table beside a manifest with its digest, byte for byte, and check the facts by
    which it is read."""
    name, own = said.table, said.path.name
    whole = bool({"kind", "label", "classes"} & said.facts.keys())
    if not said.output or name == own:
        if whole:
            ending = f"a name that ends in {manifest_name('')}, by which its table is found"
            lacks = ending if said.output else "the digest of its table"
            yield f"The manifest {own} lacks {lacks}: no table was read."
        return
    place = Place.of(said.path).beside(name)
    if not place.exists():
        yield f"The table {name} that {own} is about is not beside it."
    elif not holds(place, said.output, said.facts):
        # The bytes first: only a table that is unchanged is worth reading row by row.
        yield f"The table {name} is not the one that was released: it was changed or replaced."
    elif whole:
        try:
            check_drawn(open_table(place), said.path, ledger)
        except LabelDPError as error:
            yield f"What {own} says of its table does not hold: {error}"
        except (KeyError, TypeError, ValueError):
            yield f"What {own} says of its table lacks facts, or has some of another kind."


def _manifest(path: Path) -> _Manifest:
    try:
        facts = json.loads(path.read_text(encoding="utf-8"))
        receipt = Receipt.from_dict(facts["receipt"])
        return _Manifest(
            path,
            facts,
            receipt,
            str(facts.get("digests", {}).get("output", "")),
            str(facts.get("stage", RELEASE)),
        )
    except (ValueError, KeyError, TypeError, AttributeError):
        raise InvalidInput(
            f"Expected a manifest with a receipt, got something else in {path}."
        ) from None


def repair(ledger: Ledger, minutes: float = 60, remove: bool = False) -> list[dict[str, object]]:
    """List the files that killed processes left, and with `remove` delete them where possible;
    files of charged runs stay."""
    found = orphans(ledger, minutes=minutes)
    gone = remove_orphans(ledger, found, _remove) if remove else []
    return [asdict(orphan) | {"removed": orphan in gone} for orphan in found]


def _remove(where: str) -> None:
    place = Place.of(where)
    delete_folder(place) if place.is_folder() else place.delete()


def create_key(path: Path) -> dict[str, object]:
    """Create a key file and return its public facts."""
    source = create_key_file(path)
    return {
        "path": source.text.removeprefix("file:"),
        "source": source.text,
        "key_id": source.key_id,
    }


def destroy_key(path: Path, ledger: Callable[[], Ledger], force: bool = False) -> dict[str, object]:
    """Overwrite and remove a key file.

    Parameters
    ----------
    path : Path
    ledger : function that returns a Ledger
        The ledger whose charged runs may still need the key. Not called with `force`.
    force : bool, default=False
        Destroy the key even if runs need it; these can then never be finished.
    """
    key_id = key_file_id(path)
    if not force:
        record = ledger()
        if not record.runs():
            raise LedgerError(
                f"Expected the ledger whose runs were charged under {path}, got {record.location},"
                " which knows no run. Name it with --ledger; if the key was never used, say"
                " --force."
            )
        # A run that has settled or been abandoned has no stored half any more, so no key can
        # compute its noise.
        charged = [run.run_id for run in record.runs() if run.state == "charged"]
        needed = [each for each in charged if RunStore(record.run_dir(each)).key_id() == key_id]
        if needed:
            raise LedgerError(
                f"Expected no charged run that needs {path}, got {len(needed)} in"
                f" {record.location}: {', '.join(needed)}. Finish them, by asking for the same"
                " release again, or abandon them with"
                f" `{record.command('repair', '--abandon', 'RUN')}`. With --force the key is"
                " destroyed and they can never be finished."
            )
    destroy_key_file(path)
    return {"path": str(Path(path).expanduser().absolute()), "key_id": key_id, "destroyed": True}
