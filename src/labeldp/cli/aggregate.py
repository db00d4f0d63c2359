# SPDX-License-Identifier: Apache-2.0
"""`labeldp aggregate`."""

from pathlib import Path
from typing import Annotated

import typer

from labeldp.cli.frame import Commands, answer, progress_bars, usage
from labeldp.cli.options import (
    Budget,
    Classes,
    ClassesFile,
    Dataset,
    InferClasses,
    Json,
    Label,
    LedgerPath,
    QueryName,
    Redraw,
    classes_of,
    required,
)

app = typer.Typer(cls=Commands)


@app.command()
def aggregate(
    source: Annotated[str, typer.Argument(metavar="IN", help="Parquet or CSV; or a folder or pattern of Parquet files; s3:// too.")],
    label: Label,
    group: Annotated[str, typer.Option(help="Public column that says which group a row is in.")],
    epsilon: Annotated[float, typer.Option(help="Total budget of one row.")],
    out: Annotated[Path, typer.Option(help="New Parquet or CSV file, a row a group.")],
    classes: Classes = None,
    classes_file: ClassesFile = None,
    infer_classes: InferClasses = False,
    query: Annotated[QueryName, typer.Option(help="Noisy counts of every class, or the most frequent class alone.")] = QueryName.histogram,
    mechanism: Annotated[
        str | None,
        typer.Option(help="laplace (default) or gaussian; of a vote auto (default), permute-and-flip, exponential or gaussian."),
    ] = None,
    delta: Annotated[float, typer.Option(help="For gaussian noise; 0 is pure.")] = 0.0,
    dataset: Dataset = None,
    ledger: LedgerPath = None,
    budget: Budget = None,
    redraw: Redraw = False,
    as_json: Json = False,
) -> None:
    """Ask for the labels of groups of rows: a private histogram or vote of each group. Each row is protected by itself."""
    from labeldp.app.aggregate import AggregateSpec
    from labeldp.app.aggregate import aggregate as run
    from labeldp.app.ledger import ledger_at

    listed = required(classes_of(classes, classes_file, infer=infer_classes))
    spec = usage(lambda: AggregateSpec(label, group, listed, epsilon, query.value, mechanism, delta, dataset))
    record = usage(lambda: ledger_at(ledger, budget))
    with progress_bars(as_json) as progress:
        done = run(source, out, spec, record, redraw=redraw, progress=progress)
    receipt, rows = done.answer.receipt, int(done.answer.n_rows.sum())
    what = "Answered before; nothing was drawn, nothing was charged." if done.repeated else f"Charged epsilon {receipt.epsilon:g}."
    text = (
        f"{done.path}: a {query.value} of {label!r} in {done.answer.n_groups:,} groups of {rows:,} rows; {receipt.guarantee}.\n"
        f"{what} Dataset {receipt.dataset!r} in {record.location}."
    )
    facts = {"path": str(done.path), "repeated": done.repeated, "groups": done.answer.n_groups, "rows": rows}
    answer(as_json, facts | {"receipt": receipt.to_dict()}, text)
