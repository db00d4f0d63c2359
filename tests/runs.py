# SPDX-License-Identifier: Apache-2.0
"""Runs over labels in memory, and charges, with their facts by name."""

from collections.abc import Sequence
from typing import Any

from labeldp.custody import _run as door
from labeldp.custody._private import PrivateLabels
from labeldp.custody._request import Account
from labeldp.custody._run import Run
from labeldp.custody._stream import TablePin
from labeldp.laws import Law
from labeldp.ledger._ledger import Ledger, Spending
from labeldp.receipt import Receipt


def open_run(
    labels: Any,
    *,
    classes: Sequence[object],
    epsilon: float,
    laws: dict[str, object],
    **facts: Any,
) -> Run:
    """`labeldp.custody._run.open_run`; further facts are the labels', or digests."""
    digests = {name: facts.pop(name) for name in ("prior_digest", "resumes") if name in facts}
    public = facts.pop("public_digest", "")
    closed = PrivateLabels(labels, classes=classes, **{"column": "label"} | facts)
    return door.open_run(
        closed, epsilon=epsilon, laws=laws, public_digest=lambda: public, **digests
    )


def charge(ledger: Ledger, **facts: Any) -> Receipt:
    """`Ledger.charge`; what is not its own is the spending's."""
    own = {name: facts.pop(name) for name in ("rows", "overlap", "total", "known") if name in facts}
    return ledger.charge(Spending(**facts), **own)


def table_pin(law: Law, *, classes: Sequence[object], **facts: Any) -> TablePin:
    """`TablePin`; what is not its own is the account's."""
    own = {
        name: facts.pop(name)
        for name in ("unit_name", "id_name", "stage", "prior", "facts")
        if name in facts
    }
    return TablePin(law, classes, Account(**facts), **own)


def manifest_path(out: Any) -> Any:
    """The path of an output's manifest."""
    return out.with_name(f"{out.name}.manifest.json")
