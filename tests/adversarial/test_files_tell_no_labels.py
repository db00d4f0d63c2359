# SPDX-License-Identifier: Apache-2.0
"""Two tables that differ in their raw labels alone, and a noise that looks at no label: every byte
that a command leaves behind is equal.

Entropy and clock are the same in both, so whatever still differed would be the labels. Left out:
the input itself, and the pin, a keyed digest of labels that is destroyed when its run settles.
"""

import hashlib
import re
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
import pytest
from sklearn.linear_model import LinearRegression
from tests.cli.commands import run
from tests.corpus.world import same_entropy

import labeldp
from labeldp.aggregates import FeatureSums, Query
from labeldp.app import stage
from labeldp.custody import _answer as aggregation
from labeldp.custody import _draw as drawing
from labeldp.papers.esfandiari2022 import Peer, PeerToPeer

N = 400
LABELS = np.array(["ill", "well", "unsure"])
FIRST = LABELS[np.arange(N) % 3]
OTHER = {
    "counts": LABELS[np.minimum(np.arange(N) % 7, 2)],
    "one class": np.full(N, "well"),
    "order": np.sort(FIRST),
}


def table(path: Path, labels: np.ndarray) -> Path:
    rng = np.random.default_rng(0)
    columns = {
        "patient": np.arange(N),
        "status": labels,
        "age": rng.normal(size=N),
        "a": rng.random(N),
        "b": rng.random(N),
    }
    pq.write_table(pa.table(columns | {"c": rng.random(N)}), path)
    return path


DECLARED = (
    "--label",
    "status",
    "--classes",
    "ill,well,unsure",
    "--epsilon",
    1,
    "--id",
    "patient",
    "--dataset",
    "d",
)


def release(at: Path) -> None:
    assert (
        run(
            "release", at / "in.pq", *DECLARED, "--ledger", at / "l.db", "--out", at / "out.parquet"
        )[0]
        == 0
    )


def release_with_prior(at: Path) -> None:
    asked = ("--prior", "a,b,c", "--law", "auto", "--ledger", at / "l.db")
    assert run("release", at / "in.pq", *DECLARED, *asked, "--out", at / "out.parquet")[0] == 0


def stages(at: Path) -> None:
    ledger = labeldp.Ledger(at / "l.db")
    spec = labeldp.ReleaseSpec("status", ["ill", "well", "unsure"], 1.0, id="patient", dataset="d")
    plan = stage.plan(at / "plan", spec, (0.6, 0.4), ledger=ledger)
    for number, prior in ((1, None), (2, ["a", "b", "c"])):
        stage.release(plan, at / "in.pq", number, at / f"{number}.parquet", prior=prior)


def train(at: Path) -> None:
    assert (
        run(
            "train",
            at / "in.pq",
            *DECLARED,
            "--ledger",
            at / "l.db",
            "--stages",
            2,
            "--model",
            "linear",
            "--out",
            at / "model",
        )[0]
        == 0
    )
    assert run("predict", at / "model", at / "in.pq", "--out", at / "guess.parquet")[0] == 0


def left_behind(world: Path) -> dict[str, bytes]:
    found = {}
    for path in sorted(world.rglob("*")):
        if path.is_dir() or path.name in ("in.pq", "pin"):
            continue
        if path.suffix != ".skops":
            data = path.read_bytes()
            # the digest of the skops file, whose bytes are not compared
            if path.name == "model.json":
                data = data.replace(
                    hashlib.sha256(path.with_name("model.skops").read_bytes()).hexdigest().encode(),
                    b"",
                )
            found[str(path.relative_to(world))] = data
            continue
        # skops numbers objects by their addresses, and zip files have times
        with zipfile.ZipFile(path) as archive:
            schema = re.sub(rb'"(__id__|file)": ("\d+\.npy"|\d+)', b"", archive.read("schema.json"))
            arrays = sorted(
                archive.read(name) for name in archive.namelist() if name.endswith(".npy")
            )
            found[path.name] = schema + b"".join(arrays)
    return found


def looks_at_no_label(patch: pytest.MonkeyPatch) -> None:
    draw, drawn = drawing.draw, aggregation.drawn
    patch.setattr(drawing, "draw", lambda law, codes, *rest: draw(law, np.zeros_like(codes), *rest))
    patch.setattr(
        aggregation,
        "drawn",
        lambda query, counts, *rest: drawn(query, of_one_class(query, counts), *rest),
    )


def of_one_class(query: Query, counts: np.ndarray) -> np.ndarray:
    """The counts of groups of the same public sizes, as if all their labels were the first class;
    sums become 0."""
    found = np.zeros_like(counts)
    found[:, 0] = 0 if query.of_features else counts.sum(axis=1)
    return found


def differing(
    tmp_path: Path,
    command: Callable[[Path], None],
    write: Callable[[Path, Any], object],
    cases: dict[str, Any],
) -> list[str]:
    """Run a command on each case in a world of its own, in which no noise looks at a label; name
    the files that are not equal in all."""
    world, found = tmp_path / "world", []
    first = next(iter(cases.values()))
    # the first command of a process asks for more entropy
    for name, labels in {"warm up": first, **cases}.items():
        world.mkdir()
        write(world, labels)
        with pytest.MonkeyPatch.context() as patch:
            same_entropy(patch)
            looks_at_no_label(patch)
            command(world)
        found.append(left_behind(world))
        world.rename(tmp_path / name)
    assert len(found[1]) >= 3
    known = found[1]
    return [
        name
        for other in found[2:]
        for name in known.keys() | other.keys()
        if other.get(name) != known.get(name)
    ]


@pytest.mark.parametrize(
    "command", [release, release_with_prior, stages, train], ids=lambda command: command.__name__
)
def test_files_are_equal_where_only_the_raw_labels_differ(
    tmp_path: Path, command: Callable[[Path], None]
) -> None:
    assert (
        differing(
            tmp_path,
            command,
            lambda at, labels: table(at / "in.pq", labels),
            {"first": FIRST, **OTHER},
        )
        == []
    )


# Numbers, several columns, answers about groups
# --------------------------------------------------------------------------------------

DOSES = np.random.default_rng(5).uniform(0, 100, N).round(2)
NUMBERS = {
    "first": DOSES,
    "whole": np.round(DOSES),
    "out of range": 50 * DOSES - 1000,
    "one": np.full(N, 3.0),
    "sorted": np.sort(DOSES),
}
BITS = np.arange(N) // 3 % 2
PAIRS = {
    "first": (BITS, FIRST),
    "one": (BITS * 0, OTHER["one class"]),
    "rare": ((np.arange(N) == 7).astype(int), OTHER["order"]),
}
OF_NUMBERS = (
    "--label",
    "dose",
    "--range",
    "0:100:21",
    "--epsilon",
    1,
    "--id",
    "patient",
    "--dataset",
    "d",
)
OF_PAIRS = (
    "--label",
    "flag,status",
    "--classes",
    "0,1;ill,well,unsure",
    "--epsilon",
    1,
    "--id",
    "patient",
    "--dataset",
    "d",
)


def said(at: Path, *command: object) -> None:
    """Run a command, and keep what it prints beside its files."""
    code, *texts = run(*command, "--ledger", at / "l.db")
    assert code == 0, texts
    (at / f"{command[0]}.txt").write_text("".join(texts))


def write_numbers(at: Path, doses: np.ndarray) -> None:
    columns = {
        "patient": np.arange(N),
        "dose": doses,
        "age": np.random.default_rng(0).normal(size=N),
    }
    # the type of a CSV column is read off its values
    pa_csv.write_csv(pa.table(columns), at / "in.pq")


def write_pairs(at: Path, pair: tuple[np.ndarray, np.ndarray]) -> None:
    columns = {
        "patient": np.arange(N),
        "flag": pair[0],
        "status": pair[1],
        "group": np.arange(N) % 5,
    }
    pq.write_table(pa.table(columns | {"a": np.random.default_rng(0).random(N)}), at / "in.pq")


def release_of_numbers(law: str) -> Callable[[Path], None]:
    def command(at: Path) -> None:
        source = (at / "in.pq").rename(at / "in.csv")
        said(at, "release", source, *OF_NUMBERS, "--law", law, "--out", at / "out.csv")
        source.unlink()

    return command


@pytest.mark.parametrize("law", ["threshold", "unbiased", "rr-on-bins"])
def test_files_of_numbers_are_equal_also_where_they_are_clamped(tmp_path: Path, law: str) -> None:
    assert differing(tmp_path, release_of_numbers(law), write_numbers, NUMBERS) == []


def test_a_model_of_numbers_in_two_stages_is_equal(tmp_path: Path) -> None:
    def command(at: Path) -> None:
        doses = pa_csv.read_csv(at / "in.pq")
        X, y = np.column_stack([doses["age"], np.arange(N) % 7]), doses["dose"].to_numpy()
        prior = labeldp.learn.HistogramPrior()
        facts: dict[str, Any] = {
            "range": (0, 100),
            "points": 11,
            "column": "dose",
            "ledger": at / "l.db",
        }
        for name, more in {
            "two": {"stages": 2},
            "paid": {"prior": prior, "law": "rr-on-bins"},
        }.items():
            labels = labeldp.PrivateLabels(y, dataset=name, **facts)
            model = labeldp.LabelDPRegressor(LinearRegression(), random_state=0, **more)
            model.fit(X, labels)
            (at / name).write_text(
                repr(
                    (
                        model.predict(X).tolist(),
                        model.receipts_,
                        model.estimated_rmse_,
                        model.scale_,
                    )
                )
            )

    assert differing(tmp_path, command, write_numbers, NUMBERS) == []


@pytest.mark.parametrize("split", ["one", "joint", "equal"])
def test_files_of_several_columns_are_equal(tmp_path: Path, split: str) -> None:
    def command(at: Path) -> None:
        said(at, "release", at / "in.pq", *OF_PAIRS, "--split", split, "--out", at / "out.parquet")

    assert differing(tmp_path, command, write_pairs, PAIRS) == []


def test_answers_about_groups_are_equal(tmp_path: Path) -> None:
    def command(at: Path) -> None:
        pair = pq.read_table(at / "in.pq")
        facts: dict[str, Any] = {
            "classes": [0, 1],
            "column": "flag",
            "ids": np.arange(N),
            "ledger": at / "l.db",
        }
        rows = {"group": pair["group"].to_numpy(), "third": np.arange(N) // 7 % 3}
        asked = labeldp.learn.Groupings(rows, by=["group", "third"])
        queries = {
            "marginals": (asked.query(2, 1.0), asked.groups),
            "sums": (FeatureSums(2, 1.0, 2, delta=1e-6), np.column_stack([*rows.values()])),
            "peers": (Peer.of(PeerToPeer(0.2), np.bincount(rows["group"]), 1e-4), rows["group"]),
        }
        for name, (query, groups) in queries.items():
            labels = labeldp.PrivateLabels(pair["flag"].to_numpy(), dataset=name, **facts)
            labeldp.aggregate(labels, query, groups).save(at / f"{name}.parquet")
        more = ("--label", "flag", "--classes", "0,1", "--group", "group")
        said(
            at,
            "aggregate",
            at / "in.pq",
            *more,
            "--epsilon",
            1,
            "--dataset",
            "counts",
            "--out",
            at / "counts.parquet",
        )

    assert differing(tmp_path, command, write_pairs, PAIRS) == []


def test_the_comparison_sees_a_label(tmp_path: Path) -> None:
    """With the true noise the same comparison fails, so equal files are no accident of what is
    compared."""
    world, found = tmp_path / "world", []
    for name, labels in {"first": FIRST, "other": OTHER["counts"]}.items():
        world.mkdir()
        table(world / "in.pq", labels)
        with pytest.MonkeyPatch.context() as patch:
            same_entropy(patch)
            release(world)
        found.append(left_behind(world))
        world.rename(tmp_path / name)
    assert (
        found[0] != found[1]
        and labeldp.read_noisy(tmp_path / "first" / "out.parquet").hard().tolist() != FIRST.tolist()
    )
