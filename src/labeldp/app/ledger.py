# SPDX-License-Identifier: Apache-2.0
"""`labeldp ledger`: which ledger, what its accounts stand at, and its history for people."""

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from labeldp.errors import InvalidInput, ReleaseError
from labeldp.privacy.ledger import Ledger, default_ledger
from labeldp.receipt import Receipt


def ledger_at(path: Path | None, budget: float | None = None, key: str | None = None) -> Ledger:
    """The ledger in this file, or the user's own; its release secret is where `key` says, else where LABELDP_KEY says."""
    return Ledger(default_ledger().location if path is None else path, budget, key or os.environ.get("LABELDP_KEY") or None)


def accounts(ledger: Ledger, dataset: str | None = None, column: str | None = None) -> list[dict[str, object]]:
    """What each (dataset, column) has spent, may spend, and has left."""
    pairs = sorted({(run.dataset, run.column, run.unit) for run in ledger.runs(dataset, column)})
    return [
        {
            "dataset": name,
            "column": label,
            "unit": unit,
            "spent": ledger.spent(name, label),
            "budget": ledger.budget_of(name, label),
            "remaining": ledger.remaining(name, label),
        }
        for name, label, unit in pairs
    ]


def accounts_text(found: Sequence[Mapping[str, object]]) -> str:
    """The accounts as a table."""
    return table_text(("dataset", "column", "unit", "spent", "budget", "remaining"), found) if found else "Nothing was spent."


def history_text(entries: Iterable[Mapping[str, object]]) -> str:
    """One line an entry."""
    lines = []
    for entry in entries:
        names = ("dataset", "column", "unit", "epsilon", "budget", "run_id", "artefact", "reason")
        said = " ".join(f"{name}={entry[name]}" for name in names if entry.get(name) is not None)
        lines.append(f"{entry.get('at', '')}  {entry.get('kind', '')!s:8} {said}".rstrip())
    return "\n".join(lines) or "No entries."


def receipts_of(manifests: Iterable[Path]) -> list[Receipt]:
    """The receipts that these manifests carry."""
    return [_receipt(path) for path in manifests]


def _receipt(path: Path) -> Receipt:
    try:
        return Receipt.from_dict(json.loads(path.read_text(encoding="utf-8"))["receipt"])
    except OSError as error:
        raise ReleaseError(f"Expected a manifest that can be read, got {path} ({error.strerror}).") from None
    except (ValueError, KeyError, TypeError):
        raise InvalidInput(f"Expected a manifest with a receipt, got something else in {path}.") from None


def table_text(names: Sequence[str], rows: Sequence[Mapping[str, object]]) -> str:
    """Rows as aligned text."""
    cells = [list(names)] + [[_cell(row.get(name)) for name in names] for row in rows]
    widths = [max(len(line[i]) for line in cells) for i in range(len(names))]
    return "\n".join("  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip() for line in cells)


def _cell(value: object) -> str:
    return "-" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)
