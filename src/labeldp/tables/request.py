# SPDX-License-Identifier: Apache-2.0
"""A spec as a run: the same facts on every engine, so that they find each other's charges."""

from collections.abc import Sequence

from labeldp.laws import Law
from labeldp.privacy.ledger import Ledger
from labeldp.privacy.row_ids import joined
from labeldp.privacy.stream import StreamRun
from labeldp.tables.spec import ReleaseSpec


def run_of(
    spec: ReleaseSpec, law: Law, classes: Sequence[object], dataset: str, ledger: Ledger, *, redraw: bool, prior: str | None = None
) -> StreamRun:
    """The run that a spec asks for, before anything is read.

    Parameters
    ----------
    spec : ReleaseSpec
    law : Law
    classes : sequence of K values
    dataset : str
        Its name in the ledger.
    ledger : Ledger
    redraw : bool
    prior : str, optional
        What names the prior, where that is not the digest of what it decides.
    """
    return StreamRun(
        law,
        classes=tuple("(null)" if value is None else value for value in classes),
        dataset=dataset,
        column=spec.label,
        ledger=ledger,
        unit_name=spec.unit_name,
        max_rows_per_unit=spec.max_rows_per_unit,
        redraw=redraw,
        id_name=joined(spec.ids),
        overlap="refuse" if spec.overlap == "refuse" else "charge",
        stage=spec.stage,
        prior=prior,
        facts={"classes_inferred": True} if spec.infers_classes else None,
    )
