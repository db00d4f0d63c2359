# SPDX-License-Identifier: Apache-2.0
"""`labeldp release` and `aggregate`: read private labels of a table; write noisy labels, or answers
about groups."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from labeldp import _validate
from labeldp.cli._common import (
    LAW_NAMES,
    ClassOptions,
    ColumnOptions,
    Commands,
    Dataset,
    Json,
    LedgerOptions,
    Redraw,
    SecretOptions,
    Strict,
    Table,
    account_text,
    answer,
    charge_text,
    engine_of,
    grouped,
    law_of_text,
    prior_of,
    progress_bars,
    spec_of,
    split,
    unescaped,
    usage,
)

app = typer.Typer(cls=Commands)
# names of unchanged columns in a line: a name that is left out may be that of a private column
_SHOWN = 40


# Release
# --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class ReleaseOptions(ColumnOptions):
    """Columns, cost and law of the release."""

    epsilon: Annotated[float, typer.Option(help="Total budget of one row or unit.")]
    law: Annotated[
        str | None,
        typer.Option(
            "--law",
            help=(
                f"{LAW_NAMES}. Default: rr; rr-with-prior with a prior; of a range square-wave;"
                " threshold with a prior or 701 points."
            ),
            callback=law_of_text,
        ),
    ] = None
    split: Annotated[
        str | None,
        typer.Option(
            "--split",
            help=(
                "Of several label columns, how epsilon is divided: one (default: each row is asked"
                " about one column), joint (a set of combinations) or equal (a share each)."
            ),
        ),
    ] = None
    prior: Annotated[
        str | None,
        typer.Option(
            "--prior",
            help=(
                "Public weights of the classes: columns A,B,C; a table:PATH,key=COLUMN; a"
                " model:PATH (folder of labeldp train, .skops, .pt2; then feature=COLUMN and"
                " trust=TYPE, each as often as needed). Or histogram[,eps=E]: a part of epsilon"
                " pays for a noisy histogram of the label column, which is published, too."
            ),
        ),
    ] = None
    order: Annotated[
        Literal["shuffle", "keep"],
        typer.Option(help="keep: you state that order and layout are public."),
    ] = "shuffle"
    dataset: Dataset = None
    overlap: Annotated[
        Literal["charge", "refuse"],
        typer.Option(
            help="refuse: fail if an earlier release of this column covers one of the rows."
        ),
    ] = "charge"
    strict: Strict = False

    def spec(self) -> Any:
        """Make the ReleaseSpec."""
        from labeldp.tables._spec import ReleaseSpec

        names = split(self.label) or []
        classes, law, label = self.values(names), self.law, unescaped(self.label)
        if len(names) > 1:
            law = usage(lambda: classes.law(self.epsilon, self.split or "one", self.law))
            label = classes.name
        elif self.split is not None:
            raise typer.BadParameter(
                "Expected --split with several label columns, got one. Write --label A,B."
            )
        return spec_of(
            ReleaseSpec,
            self,
            label=label,
            classes=classes,
            law=law,
            id=self.id or None,
            prior=usage(lambda: prior_of(self.prior)),
        )


@app.command()
@grouped
def release(
    source: Table,
    out: Annotated[
        str,
        typer.Option(
            help=(
                "Output of the same format (for many files a folder); a manifest is written"
                " beside it."
            )
        ),
    ],
    asked: ReleaseOptions,
    ledger: SecretOptions,
    engine: Annotated[
        str,
        typer.Option(
            "--engine",
            help=(
                "local, spark or ray; with Spark's master or Ray's address after a colon:"
                " spark:spark://host:7077. These take Parquet, need --id and --classes, and write a"
                " folder."
            ),
        ),
    ] = "local",
    redraw: Redraw = False,
    as_json: Json = False,
) -> None:
    """Release a table whose label column is private; every other column passes unchanged."""
    from labeldp.app._ledger import spent_together
    from labeldp.app._release import release as run
    from labeldp.ledger._database import utc_now
    from labeldp.tables._release import charged_histogram, earlier_of, noisy_names

    spec, record, (name, master) = asked.spec(), ledger.open(), engine_of(engine)
    began = utc_now()
    with progress_bars(as_json) as progress:
        done = run(source, out, spec, record, name, master=master, redraw=redraw, progress=progress)
    facts: dict[str, Any] = {
        "path": str(done.path),
        "manifest": str(done.manifest_path),
        "repeated": done.repeated,
        "receipt": done.receipt.to_dict(),
        "unchanged": list(done.unchanged),
        "earlier": done.manifest.get("earlier", []),
        "together": spent_together(record, done.receipt.dataset),
    }
    what = (
        "Already released; nothing was drawn, nothing was charged."
        if done.repeated
        else charge_text(record, [done.receipt], began)
    )
    histogram = charged_histogram(done.receipt)
    what += (
        ""
        if histogram is None
        else f" Of it, {histogram.epsilon:g} is for the histogram in the manifest."
    )
    over = done.manifest.get("rows_over_the_cap")
    left_out = f" {over:,} rows over the cap were left out." if over else ""
    what_is = (
        f"column {spec.label!r} is"
        if len(spec.labels) == 1
        else f"columns {_validate.quoted(spec.labels)} together are"
    )
    told = f"{done.manifest['rows']:,} rows; {what_is} {done.receipt.guarantee}.{left_out}"
    lines = [f"{done.path}: {told}"]
    drawn = noisy_names(earlier_of(done.manifest))
    if raw := [name for name in done.unchanged if name not in drawn]:
        more = f" and {len(raw) - _SHOWN:,} more (--json lists all)" if len(raw) > _SHOWN else ""
        lines.append(f"Unchanged, as they were: {', '.join(raw[:_SHOWN])}{more}.")
    if noisy := _noisy_text(record, done.manifest):
        lines.append(f"Noisy already, by earlier releases: {noisy}.")
    lines.append(f"{what} {account_text(record, [done.receipt])} Manifest: {done.manifest_path}")
    answer(as_json, facts, "\n".join(lines))


def _noisy_text(ledger: Any, manifest: Mapping[str, Any]) -> str:
    """List the noisy columns of earlier releases with their evidence, each with what it cost."""
    from labeldp.receipt import Receipt
    from labeldp.tables._release import earlier_of, labels_of

    listed = []
    for each in earlier_of(manifest):
        names = ", ".join(filter(None, (*labels_of(each), each.get("evidence"))))
        receipt = ledger.looked_up(Receipt.from_dict(each["receipt"]))
        told = f"{names} (epsilon {receipt.epsilon:g} in data set {receipt.dataset!r}"
        listed.append(f"{told})" if receipt.recorded else f"{told}; stated, not proven)")
    return "; ".join(listed)


@app.command()
@grouped
def inspect(
    source: Annotated[
        str, typer.Argument(metavar="IN", help="Table, or folder, that labeldp release wrote.")
    ],
    manifest: Annotated[
        Path | None, typer.Option(help="Its manifest, if IN is a copy of it without the manifest.")
    ] = None,
    as_json: Json = False,
) -> None:
    """What was drawn in a released table: columns, laws and epsilons, by its manifest or metadata,
    with which the table is compared."""
    from labeldp.app._release import inspect as run
    from labeldp.app._release import inspected_text

    found = run(source, manifest)
    answer(as_json, {"path": source} | found, inspected_text(source, found))


# Aggregate
# --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class AggregateOptions(ClassOptions):
    """Query, columns and cost."""

    group: Annotated[str, typer.Option(help="Public column with the group of each row.")]
    epsilon: Annotated[float, typer.Option(help="Total budget of one row.")]
    query: Annotated[
        str,
        typer.Option(
            help="histogram: noisy counts of every class; vote: the most frequent one alone."
        ),
    ] = "histogram"
    mechanism: Annotated[
        str | None,
        typer.Option(
            help=(
                "laplace (default) or gaussian; for a vote auto (default), permute-and-flip,"
                " exponential or gaussian."
            )
        ),
    ] = None
    delta: Annotated[float, typer.Option(help="Delta of gaussian noise; 0 is pure.")] = 0.0
    dataset: Dataset = None

    def spec(self) -> Any:
        """Make the AggregateSpec."""
        from labeldp.app._aggregate import AggregateSpec

        return spec_of(
            AggregateSpec, self, label=unescaped(self.label), classes=usage(self.declared)
        )


@app.command()
@grouped
def aggregate(
    source: Table,
    out: Annotated[Path, typer.Option(help="New Parquet or CSV file with a row for each group.")],
    asked: AggregateOptions,
    ledger: LedgerOptions,
    redraw: Redraw = False,
    as_json: Json = False,
) -> None:
    """Ask for the labels of groups of rows: a private histogram or vote of each group. The unit of
    protection is one row."""
    from labeldp.app._aggregate import aggregate as run

    spec, record = asked.spec(), ledger.open()
    with progress_bars(as_json) as progress:
        done = run(source, out, spec, record, redraw=redraw, progress=progress)
    receipt, rows = done.answer.receipt, int(done.answer.n_rows.sum())
    what = (
        "Answered before; nothing was drawn, nothing was charged."
        if done.repeated
        else f"Charged epsilon {receipt.epsilon:g}."
    )
    text = (
        f"{done.path}: a {spec.query} of {spec.label!r} in {done.answer.n_groups:,} groups of"
        f" {rows:,} rows; {receipt.guarantee}.\n{what} {account_text(record, [receipt])}"
    )
    facts = {
        "path": str(done.path),
        "repeated": done.repeated,
        "groups": done.answer.n_groups,
        "rows": rows,
    }
    answer(as_json, facts | {"receipt": receipt.to_dict()}, text)
