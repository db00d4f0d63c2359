# SPDX-License-Identifier: Apache-2.0
"""The calls whose behaviour is kept: each takes a new folder, and gives what is compared beside the
files that it leaves there.

Inputs are made by whole-number arithmetic, and learners are such that the last bits of floats
decide nothing that is drawn.
"""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from tests.corpus.record import array, values

import labeldp as ldp
from labeldp.aggregates import FeatureSums, Histogram, Vote
from labeldp.app import stage
from labeldp.custody import aggregate_best
from labeldp.papers.esfandiari2022 import Peer, PeerToPeer
from labeldp.papers.ghazi2021 import RepeatAndSelect
from labeldp.papers.malek2021 import Alibi

N, K = 60, 3
ROW = np.arange(N)
CODES = (ROW * ROW + ROW // 7) % K
NAMES = np.array(["ill", "well", "unsure"])
IDS = 17 * ROW % 61 - 5
PEOPLE = np.array([f"person {i % 23}" for i in range(N)])
PRIOR = 1 + (ROW[:, None] * np.arange(2, K + 2) % 5) / 8


@dataclass(frozen=True)
class Call:
    """A call, and what it needs: "" nothing, "deep" torch, "spark" or "ray" these engines."""

    make: Callable[[Path], Any]
    needs: str = ""


CALLS: dict[str, Call] = {}


def call(make: Callable[..., Any], needs: str = "", name: str = "") -> Callable[..., Any]:
    """Put a call on the list."""
    CALLS[name or make.__name__] = Call(make, needs)
    return make


def also(name: str, make: Callable[..., Any], **facts: Any) -> None:
    """Put a call with these facts on the list."""
    call(partial(make, **facts), name=name)


def opened(folder: Path, **facts: Any) -> ldp.Ledger:
    """A ledger that has begun, so that ids of runs follow from the runs alone."""
    ledger = ldp.Ledger(folder / "ledger.db", **{"budget": 30.0} | facts)
    ledger.set_budget("another", "label", 1.0)
    return ledger


def private(ledger: ldp.Ledger | None, y: Any = CODES, **facts: Any) -> ldp.PrivateLabels:
    known = {"classes": range(K), "dataset": "d", "column": "label", "ids": IDS, "ledger": ledger}
    return ldp.PrivateLabels(y, **known | facts)


# What is told of answers
# --------------------------------------------------------------------------------------------------


def receipts(*given: Any) -> list[dict[str, Any]]:
    """Without the event, which is in the ledger's charge."""
    return [
        receipt.to_dict() | {"event": receipt.event.get("event"), "repeated": receipt.repeated}
        for receipt in given
    ]


def labels(noisy: ldp.NoisyLabels) -> dict[str, Any]:
    blocks = [
        {
            "law": block.law.to_dict(),
            "stage": block.stage,
            "rows": array(block.rows),
            "outputs": array(block.outputs),
            "side": {name: array(side) for name, side in block.side.items()},
        }
        for block in noisy.blocks
    ]
    facts = {
        "rows": len(noisy),
        "classes": list(noisy.classes),
        "order": noisy.order,
        "ids": values(np.asarray(noisy.ids).tolist()),
    }
    told = {
        "receipts": receipts(*noisy.receipts),
        "left out": int((~noisy.evidenced).sum()),
    }
    return facts | told | {"blocks": blocks, "codes": "".join(map(str, noisy.hard_codes()))}


def answer(found: Any) -> dict[str, Any]:
    facts = {
        "query": found.query.to_dict(),
        "values": found.values.tolist(),
        "n_rows": found.n_rows.tolist(),
        "classes": list(found.classes),
    }
    return facts | {"chosen": found.chosen, "receipts": receipts(found.receipt)}


def table(found: Any) -> dict[str, Any]:
    return {
        "repeated": found.repeated,
        "out": found.path.name,
        "manifest": found.manifest_path.name,
        "receipts": receipts(found.receipt),
    }


# privatize
# --------------------------------------------------------------------------------------------------


def privatized(
    folder: Path, law: ldp.Law, prior: Any = None, stage: str | None = None, **facts: Any
) -> Any:
    raw = private(**{"ledger": opened(folder)} | facts)
    return labels(ldp.privatize(raw, law, prior=prior, stage=stage))


also("privatize_rr", privatized, law=ldp.RandomizedResponse(K, 1.0))
also("privatize_rr_top_k", privatized, law=ldp.RRTopK(K, 1.5, 2), prior=PRIOR)
also("privatize_rr_with_prior", privatized, law=ldp.RRWithPrior(K, 1.0), prior=PRIOR)
also("privatize_subset", privatized, law=ldp.SubsetSelection(K, 0.5))
also("privatize_split", privatized, law=ldp.PriorSplit(K, 2.0), prior=PRIOR)
also("privatize_auto", privatized, law=ldp.AutoLaw(K, 1.0), prior=PRIOR)
also("privatize_cluster_rr", privatized, law=ldp.ClusterRR(K, 1.0), prior=PRIOR)
also("privatize_alibi", privatized, law=Alibi(K, 4.0))
also(
    "privatize_text_ids",
    privatized,
    law=ldp.RandomizedResponse(K, 1.0),
    ids=[f"Zoë-{i}" for i in IDS],
)
also(
    "privatize_ids_of_two_columns",
    privatized,
    law=ldp.RandomizedResponse(K, 1.0),
    ids=np.stack([IDS // 10, IDS]).T,
)
also("privatize_without_ids", privatized, law=ldp.RandomizedResponse(K, 1.0), ids=None)
also(
    "privatize_units",
    privatized,
    law=ldp.RandomizedResponse(K, 1.0),
    unit={"person": PEOPLE},
    max_rows_per_unit=2,
)
also(
    "privatize_units_auto",
    privatized,
    law=ldp.AutoLaw(K, 2.0),
    prior=PRIOR,
    ids={"visit": IDS},
    unit={"patient": IDS // 4},
)
also(
    "privatize_stage_of_a_name",
    privatized,
    law=ldp.RandomizedResponse(K, 1.0),
    stage="first",
    column="status",
)
also(
    "privatize_seeded",
    privatized,
    law=ldp.AutoLaw(K, 1.0),
    ids=None,
    prior=PRIOR,
    dataset=None,
    ledger=None,
    noise=ldp.SeededNoise(7),
)


SEVERAL = ldp.LabelColumns({"ill": [0, 1], "ward": ["a", "b", "c"]})


@call
def privatize_several_columns(folder: Path) -> Any:
    ledger, given = (
        opened(folder),
        {
            "ill": CODES[:20] % 2,
            "ward": np.array(["a", "b", "c"])[CODES[:20]],
        },
    )
    noisy = ldp.privatize(
        private(ledger, given, classes=SEVERAL, column=None, ids=IDS[:20]),
        SEVERAL.law(2.0, "one"),
    )
    ldp.privatize(
        private(ledger, given["ill"], classes=range(2), column="ill", ids=IDS[:20]),
        ldp.RandomizedResponse(2, 1.0),
    )
    spent = {
        "ill": ledger.spent("d", "ill"),
        "ward": ledger.spent("d", "ward"),
        "both": ledger.spent("d", SEVERAL.names),
    }
    laws = [SEVERAL.law(2.0, split).to_dict() for split in ("one", "equal", "joint")]
    return {"ill": labels(noisy["ill"]), "spent": spent, "problems": ledger.verify(), "laws": laws}


@call
def laws_exactly(folder: Path) -> Any:
    """Probabilities as fractions: a unit of 2^-64 would not be seen in a few draws."""
    kinds = (
        ldp.RandomizedResponse,
        ldp.SubsetSelection,
        ldp.RRWithPrior,
        ldp.PriorSplit,
        ldp.AutoLaw,
        ldp.ClusterRR,
    )
    laws = [
        kind(classes, epsilon)
        for kind in kinds
        for classes in (2, 5)
        for epsilon in (0.1, 1.0, 3.0)
    ] + [
        ldp.RRTopK(5, 1.0, 3),
        Alibi(3, 1.0, 16),
    ]
    return {
        str(law): values([str(cell.probability) for cell in law.profile(law.side_row())])
        for law in laws
    }


@call
def privatize_with_a_release_secret(folder: Path) -> Any:
    (folder / "key").touch(0o600)
    (folder / "key").write_text(hashlib.sha256(b"of the corpus").hexdigest() + "\n")
    ledger = opened(folder, key=f"file:{folder / 'key'}")
    return labels(
        ldp.privatize(
            private(ledger),
            ldp.RandomizedResponse(K, 1.0),
        )
    )


# Aggregates
# --------------------------------------------------------------------------------------------------

GROUPS = ROW % 4
QUERIES: dict[str, Any] = {
    "histogram": Histogram(K, 1.0, 4),
    "histogram_gaussian": Histogram(K, 1.0, 4, "gaussian", 1e-6),
    "vote": Vote(K, 1.0, 4),
    "vote_exponential": Vote(K, 1.0, 4, "exponential"),
    "vote_gaussian": Vote(K, 1.0, 4, "gaussian", 1e-6),
}


def asked(folder: Path, query: Any, **facts: Any) -> Any:
    """Asked with ids, asked again, and asked of a table."""
    ledger = opened(folder)
    found = [ldp.aggregate(private(ledger, **facts), query, GROUPS) for _ in range(2)]
    return {
        "found": [answer(each) for each in found],
        "spent": [ledger.spent("d", "label"), ledger.spent_delta("d", "label")],
    }


for name, query in QUERIES.items():
    also(f"aggregate_{name}", asked, query=query)
also(
    "aggregate_units",
    asked,
    query=Histogram(K, 1.0, 4),
    unit={"person": PEOPLE},
    max_rows_per_unit=2,
)


@call
def aggregate_feature_sums(folder: Path) -> Any:
    """Asked with ids, and asked again; with a cap on the rows of a person, too."""
    features = np.stack([ROW % 5, ROW % 3, np.ones(N)], axis=1) / 4
    ledger, query = opened(folder), FeatureSums(K, 1.0, 3, delta=1e-6)
    found = [ldp.aggregate(private(ledger), query, features) for _ in range(2)]
    capped = private(ledger, dataset="other", unit={"person": PEOPLE}, max_rows_per_unit=2)
    found.append(ldp.aggregate(capped, FeatureSums(K, 1.0, 3, delta=1e-6, norm=2.0), features))
    return [answer(each) for each in found]


@call
def aggregate_peers(folder: Path) -> Any:
    query = Peer.of(PeerToPeer(0.1), [15] * 4, delta=1e-2)
    return answer(
        ldp.aggregate(
            private(opened(folder), CODES % 2, classes=range(query.n_classes)),
            query,
            GROUPS,
        )
    )


@call
def aggregate_best_of_many(folder: Path) -> Any:
    ledger = opened(folder)
    tries = [(Histogram(K, 0.5, 4), GROUPS), (Histogram(K, 1.0, 2), ROW % 2)]
    facts = {"tuning": RepeatAndSelect(5), "score_name": "largest"}
    found = [
        aggregate_best(private(ledger), tries, lambda each: float(each.values.max()), **facts)
        for _ in range(2)
    ]
    return {"found": [answer(each) for each in found], "spent": ledger.spent("d", "label")}


# Tables
# --------------------------------------------------------------------------------------------------

COLUMNS = {
    "visit": IDS,
    "person": PEOPLE,
    "bed": ROW % 9,
    "ward": ROW // 9,
    "age": 20 + ROW * 7 % 50,
    "score": ROW / 8,
}
WEIGHTS = {f"p_{name}": PRIOR[:, c] for c, name in enumerate(NAMES)}
ROWS = pa.table(COLUMNS | {"status": NAMES[CODES]} | WEIGHTS)


def given(folder: Path, ending: str = "parquet", rows: pa.Table = ROWS) -> Path:
    """The table in a file, or in a folder of three."""
    path = folder / (f"in.{ending}" if ending else "in")
    if ending == "csv":
        lines = [rows.column_names, *zip(*rows.to_pydict().values(), strict=True)]
        path.write_text(
            "".join(
                ",".join("" if value is None else str(value) for value in line) + "\n"
                for line in lines
            ),
            encoding="utf-8",
        )
    elif ending:
        pq.write_table(rows, path, row_group_size=25)
    else:
        path.mkdir()
        for number in range(3):
            pq.write_table(rows.slice(20 * number, 20), path / f"{number}.parquet")
    return path


def spec(**facts: Any) -> ldp.ReleaseSpec:
    return ldp.ReleaseSpec(
        **{
            "label": "status",
            "classes": NAMES.tolist(),
            "epsilon": 1.0,
            "id": "visit",
            "dataset": "d",
        }
        | facts
    )


def released(folder: Path, ending: str = "parquet", engine: str = "local", **facts: Any) -> Any:
    ledger, source, out = (
        opened(folder),
        given(folder, ending),
        folder / (f"out.{ending}" if ending else "out"),
    )
    # the second one is free
    found = [ldp.release(source, out, spec(**facts), ledger, engine) for _ in range(2)]
    told = {
        "released": [table(each) for each in found],
        "spent": ledger.spent(found[0].receipt.dataset, facts.get("label", "status")),
    }
    return told | {"read": labels(ldp.read_noisy(out))}


also("release_csv", released, ending="csv")
also("release_csv_kept_order", released, ending="csv", order="keep", law="subset")
also("release_parquet", released)
also("release_parquet_alibi", released, law="alibi", epsilon=4.0)
also("release_parquet_prior", released, prior=list(WEIGHTS))
also("release_parquet_prior_auto", released, prior=list(WEIGHTS), law="auto", order="keep")
also(
    "release_parquet_numbers",
    released,
    label="bed",
    classes=ldp.Grid(-3, 60, points=8),
    unit="person",
    max_rows_per_unit=2,
)
also(
    "release_parquet_thresholds",
    released,
    label="bed",
    classes=ldp.Grid(-3, 60, points=8),
    law="threshold",
)
also(
    "release_csv_numbers_rr",
    released,
    ending="csv",
    label="bed",
    classes=ldp.Grid(0, 50, points=4),
    law="rr",
    epsilon=2.0,
)
also("release_parquet_units", released, unit="person", max_rows_per_unit=2, law="split")
also("release_folder", released, ending="")
also("release_folder_units", released, ending="", order="keep", unit="person", max_rows_per_unit=2)


@call
def release_several_columns(folder: Path) -> Any:
    rows = (
        ROWS.slice(0, 20)
        .select(["ward", "bed", "status"])
        .append_column("old", pa.array(np.array(["no", "yes"])[CODES[:20] % 2]))
    )
    pq.write_table(rows, folder / "in.parquet")
    columns = ldp.LabelColumns({"status": NAMES.tolist(), "old": ["no", "yes"]})
    ledger = opened(folder)
    spec = ldp.ReleaseSpec(
        columns.name, columns, 2.0, columns.law(2.0, "joint"), id=("ward", "bed")
    )
    done = table(ldp.release(folder / "in.parquet", folder / "out.parquet", spec, ledger))
    read = ldp.read_noisy(folder / "out.parquet", "old", ledger=ledger)
    return {
        "done": done,
        "spent": [ledger.spent("in", name) for name in columns.names],
        "evidence": read.privacy.evidence,
    }


call(partial(released, ending="", engine="spark"), "spark", "release_spark")
call(
    partial(
        released,
        ending="",
        engine="spark",
        unit="person",
        max_rows_per_unit=2,
        law="subset",
        order="keep",
    ),
    "spark",
    "release_spark_units",
)
call(partial(released, ending="", engine="ray"), "ray", "release_ray")
call(
    partial(
        released,
        ending="",
        engine="ray",
        unit="person",
        max_rows_per_unit=2,
        law="subset",
        order="keep",
    ),
    "ray",
    "release_ray_units",
)


# Stages of a table
# --------------------------------------------------------------------------------------------------


def planned(folder: Path, **facts: Any) -> ldp.Ledger:
    ledger = opened(folder)
    parts, first = facts.pop("parts", (0.6, 0.4)), facts.pop("first_law", None)
    settled = {
        "label": "status",
        "classes": NAMES.tolist(),
        "epsilon": 1.0,
        "id": "visit",
        "dataset": "d",
    }
    stage.plan(
        folder / "plan", ldp.ReleaseSpec(**settled | facts), parts, first_law=first, ledger=ledger
    )
    return ledger


def staged(folder: Path, ending: str = "parquet", engine: str = "local", **facts: Any) -> Any:
    ledger, source, found = planned(folder, **facts), given(folder, ending), []
    for number in (1, 2):
        out = folder / (f"{number}.{ending}" if ending else f"{number}")
        prior = list(WEIGHTS) if number == 2 else None
        found.append(
            table(
                stage.release(
                    stage.load(folder / "plan", ledger),
                    source,
                    number,
                    out,
                    prior=prior,
                    engine=engine,
                )
            )
        )
    return {
        "stages": found,
        "status": stage.status(stage.load(folder / "plan", ledger)),
        "spent": ledger.spent("d", "status"),
    }


also("stages_auto", staged)
also("stages_split_units", staged, law="split", unit="person", max_rows_per_unit=2, order="keep")
also("stages_folder_rr_with_prior", staged, ending="", law="rr-with-prior", first_law="rr")
call(partial(staged, ending="", engine="spark"), "spark", "stages_spark")
call(partial(staged, ending="", engine="ray"), "ray", "stages_ray")
