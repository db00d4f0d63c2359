# SPDX-License-Identifier: Apache-2.0
"""`labeldp ledger` and `labeldp key`: balances, history, checks and repairs of a ledger; the
release secret in a file."""

import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from labeldp import _validate
from labeldp.custody._stream import RELEASE
from labeldp.errors import InvalidInput, LabelDPError, LedgerError, ReleaseError
from labeldp.laws import law_from_dict
from labeldp.ledger._ledger import Ledger, default_ledger
from labeldp.ledger._repair import orphans
from labeldp.ledger._repair import repair as remove_orphans
from labeldp.ledger._run_store import RunStore
from labeldp.noise._secrets import create_key_file, destroy_key_file, key_file_id
from labeldp.receipt import Receipt, columns_of
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


def adopted_text(found: Sequence[Mapping[str, object]], ledger: Ledger) -> str:
    """Format the adopted runs as a table."""
    if not found:
        return "Nothing to adopt: the ledger knows every run that has results beside it."
    told = [
        dict(each) | {"rows": "every row" if each["rows"] is None else each["rows"]}
        for each in found
    ]
    table = table_text(("run_id", "dataset", "column", "unit", "epsilon", "state", "rows"), told)
    return f"{table}\nThese are counted again. Look at the budgets: {ledger.command('spent')}."


def accounts(
    ledger: Ledger, dataset: str | None = None, column: str | None = None
) -> list[dict[str, object]]:
    """Report the spent, allowed and remaining epsilon of each (dataset, column), and its spent
    delta."""
    found = {
        (run.dataset, each, run.unit)
        for run in ledger.runs(dataset, column)
        for each in run.columns
    }
    pairs = sorted(pair for pair in found if column in (None, pair[1]))
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
        for name, label, unit in pairs
    ]


def spent_together(ledger: Ledger, dataset: str | None = None) -> list[dict[str, Any]]:
    """Report the epsilon of the most used row, or unit, over all columns of each data set (None: of
    all) that are charged by this unit."""
    columns: dict[tuple[str, str], list[str]] = {}
    for run in ledger.runs(dataset):
        columns.setdefault((run.dataset, run.unit), []).extend(run.columns)
    distinct = {account: list(dict.fromkeys(names)) for account, names in sorted(columns.items())}
    return [
        {"dataset": name, "unit": unit, "columns": listed, "spent": ledger.spent(name, listed)}
        for (name, unit), listed in distinct.items()
    ]


def together_text(told: Mapping[str, Any]) -> str:
    """Write an entry of `spent_together` as a sentence."""
    names, spent = told["columns"], f"epsilon {told['spent']:g}"
    more = f" and {len(names) - _NAMES} more" if len(names) > _NAMES else ""
    on = f"column{'s' * (len(names) > 1)} {_validate.quoted(names[:_NAMES])}{more}"
    return (
        f"In all each {told['unit']} of dataset {told['dataset']!r} has spent up to {spent}, on"
        f" {on}."
    )


def accounts_text(
    found: Sequence[Mapping[str, object]],
    together: Sequence[Mapping[str, Any]],
    ledger: Ledger,
    dataset: str | None,
    column: str | None,
) -> str:
    """Format the accounts as a table, and what was spent on several columns together; if there is
    none, name the accounts that exist."""
    if found:
        table = table_text(
            ("dataset", "column", "unit", "spent", "budget", "remaining", "delta"), found
        )
        told = [together_text(each) for each in together if len(each["columns"]) > 1]
        return "\n".join([table, *told, f"Ledger: {ledger.location}"])
    return f"Nothing was spent{other_names(ledger, dataset, column)}."


def other_names(ledger: Ledger, dataset: str | None, column: str | None) -> str:
    """Name the accounts that a ledger has, if it has no charge under the given names: the end of a
    sentence, or "" without names."""
    named = [
        f"{what} {name!r}"
        for what, name in (("dataset", dataset), ("column", column))
        if name is not None
    ]
    if not named:
        return ""
    known = sorted(
        {f"{run.dataset!r}, column {column!r}" for run in ledger.runs() for column in run.columns}
    )
    listed = "; ".join([*known[:_NAMES], *(["..."] if len(known) > _NAMES else [])])
    return (
        f" on {', '.join(named)}. The ledger {ledger.location} knows"
        f" {f'dataset {listed}' if known else 'no charge'}"
    )


def history_text(entries: Iterable[Mapping[str, object]]) -> str:
    """Format the history, one line an entry."""
    lines = []
    for entry in entries:
        names = ("dataset", "column", "unit", "epsilon", "budget", "run_id", "artefact", "reason")
        said = " ".join(f"{name}={entry[name]}" for name in names if entry.get(name) is not None)
        lines.append(
            f"{entry.get('at', '')}  {entry.get('kind', '')!s:8} {said}{_together(entry)}".rstrip()
        )
    return "\n".join(lines) or "No entries."


def _together(entry: Mapping[str, Any]) -> str:
    """Say which columns a charge was made on, if they are several: the end of its line."""
    columns = (
        columns_of(str(entry["column"]), entry["event"]) if entry.get("kind") == "charge" else ()
    )
    return f" (one charge on {', '.join(columns)})" if len(columns) > 1 else ""


def verify(ledger: Ledger, manifests: Iterable[Path] = ()) -> list[str]:
    """List every inconsistency in a ledger, or between it and manifests, and what is `Unchecked`;
    empty if all is well."""
    read = [_manifest(path) for path in manifests]
    receipts = [each.receipt for each in read]
    outputs = {
        each.receipt.run_id: each.output for each in read if each.output and each.stage == RELEASE
    }
    found = ledger.verify(receipts, outputs=outputs)
    found += [
        problem
        for each in read
        if each.stage != RELEASE
        for problem in _stage_problem(ledger, each)
    ]
    return found + [
        problem
        for each in read
        for problem in (*_statement_problems(ledger, each), *_table_problem(ledger, each))
    ]


def verified_text(manifests: Iterable[Path]) -> str:
    """Describe what was verified, one line per manifest."""
    lines = []
    for each in map(_manifest, manifests):
        table = (
            f"{each.path.name.removesuffix(manifest_name(''))} is what was released, and agrees"
            if each.output
            else "No table was read; what is said agrees"
        )
        lines.append(
            f"{table} with {each.path.name} and the ledger: column {each.receipt.column!r} is"
            f" {each.receipt.guarantee}."
        )
    return "\n".join(["The history is whole.", *lines])


@dataclass(frozen=True)
class _Manifest:
    """A manifest: its receipt, the digest of its output, its stage, whether it is in parts, and all
    its facts."""

    path: Path
    receipt: Receipt
    output: str
    stage: str
    in_parts: bool
    facts: Mapping[str, Any]


def _statement_problems(ledger: Ledger, said: _Manifest) -> list[str]:
    """Compare a manifest's statements with the charge: guarantee, law, and the digest of the drawn
    labels."""
    found, facts, receipt = [], said.facts, said.receipt
    run = ledger.run(receipt.run_id)
    law = charged_law(receipt if run is None else run.receipt, said.stage)
    if (
        "law" in facts
        and law is not None
        and not _is_charged(facts["law"], receipt if run is None else run.receipt, said.stage)
    ):
        found.append(f"The law in {said.path.name} is not the one that was charged.")
    wrong = misstated(
        facts, receipt if run is None else replace(run.receipt, secure=receipt.secure), law
    )
    found += (
        [f"What {said.path.name} says is not what was charged: {', '.join(wrong)} differ."]
        if wrong
        else []
    )
    drawn = facts.get("digests", {}).get("drawn")
    if run is not None and run.drawn and run.drawn.get(said.stage) != drawn:
        found.append(
            f"What was drawn in run {receipt.run_id} is not what {said.path.name} names: its"
            " manifest was changed."
        )
    return found


def _is_charged(facts: Mapping[str, object], receipt: Receipt, stage: str) -> bool:
    """Tell whether these facts are a law that was charged."""
    try:
        return is_charged(law_from_dict(facts), receipt, stage)
    except (LabelDPError, TypeError, ValueError):
        return False


def _table_problem(ledger: Ledger, said: _Manifest) -> list[str]:
    """Compare the table beside a manifest with its digest, byte for byte, and check the facts by
    which it is read."""
    name, whole = (
        said.path.name.removesuffix(manifest_name("")),
        {"kind", "label", "classes"} & said.facts.keys(),
    )
    if not said.output or name == said.path.name:
        lacks = (
            "the digest of its table"
            if not said.output
            else f"a name that ends in {manifest_name('')}, by which its table is found"
        )
        return [f"The manifest {said.path.name} lacks {lacks}: no table was read."] if whole else []
    place = Place.of(said.path).beside(name)
    if not place.exists():
        return [f"The table {name} that {said.path.name} is about is not beside it."]
    if not holds(place, said.output, said.facts):
        # The bytes first: only a table that is unchanged is worth reading row by row.
        return [f"The table {name} is not the one that was released: it was changed or replaced."]
    try:
        check_drawn(open_table(place), said.path, ledger) if whole else None
    except (LabelDPError, KeyError, TypeError, ValueError) as error:
        why = (
            str(error)
            if isinstance(error, LabelDPError)
            else "facts are missing, or of another kind."
        )
        return [f"What {said.path.name} says of its table does not hold: {why}"]
    return []


def _stage_problem(ledger: Ledger, said: _Manifest) -> list[str]:
    """Compare a stage's output with the files that the ledger announced: its run settles only after
    the last stage, so it has no digest yet."""
    run_id = said.receipt.run_id
    files = [part.sha256 for part in ledger.parts(run_id) if part.name.startswith(f"{said.stage}/")]
    if files and f"sha256:{release_digest(files, single=not said.in_parts)}" == said.output:
        return []
    return [
        (
            f"The output of {said.stage} of run {run_id} is not the one that was announced: its"
            " manifest names another digest."
        )
    ]


def _manifest(path: Path) -> _Manifest:
    try:
        facts = json.loads(path.read_text(encoding="utf-8"))
        output = str(facts.get("digests", {}).get("output", ""))
        return _Manifest(
            path,
            Receipt.from_dict(facts["receipt"]),
            output,
            str(facts.get("stage", RELEASE)),
            "parts" in facts,
            facts,
        )
    except OSError as error:
        raise ReleaseError(
            f"Expected a manifest that can be read, got {path} ({error.strerror})."
        ) from None
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


def repair_text(found: Sequence[Mapping[str, object]]) -> str:
    """Format the findings, one line each, and say what to do."""
    if not found:
        return "Nothing to repair."
    lines = [
        f"{'removed' if each['removed'] else 'left':8} {each['kind']!s:8} {each['place']} "
        f" ({each['why']})"
        for each in found
    ]
    return "\n".join(
        lines
        if any(each["removed"] for each in found)
        else [*lines, "Nothing was removed; --yes removes these."]
    )


def table_text(names: Sequence[str], rows: Sequence[Mapping[str, object]]) -> str:
    """Format rows as aligned text."""
    cells = [list(names)] + [[_cell(row.get(name)) for name in names] for row in rows]
    widths = [max(len(line[i]) for line in cells) for i in range(len(names))]
    return "\n".join(
        "  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip()
        for line in cells
    )


def _cell(value: object) -> str:
    if isinstance(value, float):
        return f"{value:,.0f}" if 1000 <= abs(value) < 1e15 else f"{value:.4g}"
    return "-" if value is None else str(value)


def create_key(path: Path) -> dict[str, object]:
    """Create a key file and return its public facts."""
    source = create_key_file(path)
    return {
        "path": source.text.removeprefix("file:"),
        "source": source.text,
        "key_id": source.key_id,
    }


def _runs_that_need(ledger: Ledger, key_id: str) -> list[str]:
    """List the charged runs, neither settled nor abandoned, whose draws need this release
    secret."""
    # A run that has settled or been abandoned has no stored half any more, so no key can compute
    # its noise.
    charged = [run.run_id for run in ledger.runs() if run.state == "charged"]
    return [run_id for run_id in charged if RunStore(ledger.run_dir(run_id)).key_id() == key_id]


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
        _check_unneeded(path, ledger(), key_id)
    destroy_key_file(path)
    return {"path": str(Path(path).expanduser().absolute()), "key_id": key_id, "destroyed": True}


def _check_unneeded(path: Path, ledger: Ledger, key_id: str) -> None:
    if not ledger.runs():
        raise LedgerError(
            f"Expected the ledger whose runs were charged under {path}, got {ledger.location},"
            " which knows no run. Name it with --ledger; if the key was never used, say --force."
        )
    needed = _runs_that_need(ledger, key_id)
    if needed:
        raise LedgerError(
            f"Expected no charged run that needs {path}, got {len(needed)} in {ledger.location}:"
            f" {', '.join(needed)}. Finish them, by asking for the same release again, or abandon"
            f" them with `{ledger.command('repair', '--abandon', 'RUN')}`. With --force the key is"
            " destroyed and they can never be finished."
        )
