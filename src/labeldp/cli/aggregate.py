# SPDX-License-Identifier: Apache-2.0
"""`labeldp aggregate`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from labeldp.cli.frame import Commands, answer, grouped, progress_bars, usage
from labeldp.cli.options import ClassOptions, Dataset, InferClasses, Json, Label, LedgerOptions, QueryName, Redraw, Table

app = typer.Typer(cls=Commands)


@dataclass(frozen=True, kw_only=True)
class AggregateOptions(ClassOptions):
    """What to ask of which columns, and at what cost."""

    label: Label
    group: Annotated[str, typer.Option(help="Public column that says which group a row is in.")]
    epsilon: Annotated[float, typer.Option(help="Total budget of one row.")]
    infer_classes: InferClasses = False
    query: Annotated[QueryName, typer.Option(help="Noisy counts of every class, or the most frequent class alone.")] = QueryName.histogram
    mechanism: Annotated[
        str | None,
        typer.Option(help="laplace (default) or gaussian; of a vote auto (default), permute-and-flip, exponential or gaussian."),
    ] = None
    delta: Annotated[float, typer.Option(help="For gaussian noise; 0 is pure.")] = 0.0
    dataset: Dataset = None

    def spec(self) -> Any:
        """The AggregateSpec."""
        from labeldp.app._aggregate import AggregateSpec

        listed = self.required(infer=self.infer_classes)
        asked = (self.query.value, self.mechanism, self.delta)
        return usage(lambda: AggregateSpec(self.label, self.group, listed, self.epsilon, *asked, self.dataset))


@app.command()
@grouped
def aggregate(
    source: Table,
    out: Annotated[Path, typer.Option(help="New Parquet or CSV file, a row a group.")],
    asked: AggregateOptions,
    ledger: LedgerOptions,
    redraw: Redraw = False,
    as_json: Json = False,
) -> None:
    """Ask for the labels of groups of rows: a private histogram or vote of each group. Each row is protected by itself."""
    from labeldp.app._aggregate import aggregate as run

    spec, record = asked.spec(), ledger.open()
    with progress_bars(as_json) as progress:
        done = run(source, out, spec, record, redraw=redraw, progress=progress)
    receipt, rows = done.answer.receipt, int(done.answer.n_rows.sum())
    what = "Answered before; nothing was drawn, nothing was charged." if done.repeated else f"Charged epsilon {receipt.epsilon:g}."
    text = (
        f"{done.path}: a {spec.query} of {spec.label!r} in {done.answer.n_groups:,} groups of {rows:,} rows; {receipt.guarantee}.\n"
        f"{what} Dataset {receipt.dataset!r} in {record.location}."
    )
    facts = {"path": str(done.path), "repeated": done.repeated, "groups": done.answer.n_groups, "rows": rows}
    answer(as_json, facts | {"receipt": receipt.to_dict()}, text)
