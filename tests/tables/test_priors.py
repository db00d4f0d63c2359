# SPDX-License-Identifier: Apache-2.0
"""Priors that are no columns: tables that are looked up, and models that are asked once for each
charge."""

import pickle
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from skops import io as skops_io
from tests.files import read, write
from tests.prior_models import JITTERY, Jittery, asked
from typer.testing import CliRunner

from labeldp.app._ledger import repair
from labeldp.app._release import release
from labeldp.app.train import Learning, TrainSpec, train
from labeldp.cli import app
from labeldp.custody import _draw as worker
from labeldp.custody import _request as charge
from labeldp.errors import InvalidInput, ReleaseError
from labeldp.ledger._ledger import Ledger
from labeldp.ledger._repair import orphans
from labeldp.ledger._run_store import RunStore
from labeldp.noise._words import SeededNoise
from labeldp.tables._place import Staging
from labeldp.tables._priors import OpenPrior, PriorModel, PriorTable, opened
from labeldp.tables._release import Publication
from labeldp.tables._spec import ReleaseSpec
from labeldp.tables.formats._table import WEIGHTS

N, CLASSES = 3000, ("ash", "birch", "cedar", "sentinel-zz")
K = len(CLASSES)


def data(n: int = N) -> pa.Table:
    rng = np.random.default_rng(5)
    codes = rng.integers(0, K, n)
    return pa.table(
        {
            "id": rng.permutation(n) * 3 + 1,
            "cluster": [f"c{i}" for i in rng.integers(0, 20, n)],
            "y": [CLASSES[c] for c in codes],
            "x": codes + rng.standard_normal(n),
            "z": rng.standard_normal(n),
            "note": [f'a "quoted", {i}' for i in range(n)],
        }
    )


def weights_of_clusters() -> pa.Table:
    rng = np.random.default_rng(6)
    return pa.table(
        {"cluster": [f"c{i}" for i in range(20)]} | {name: rng.random(20) for name in CLASSES}
    )


def spec(prior: Any, **changes: Any) -> ReleaseSpec:
    return ReleaseSpec(
        **({"label": "y", "classes": CLASSES, "epsilon": 1.5, "id": "id", "prior": prior} | changes)
    )


def skops(model: Any, path: Path) -> Path:
    path.write_bytes(skops_io.dumps(model))
    return path


def jittery(folder: Path, **options: Any) -> PriorModel:
    log = folder / "asked.log"
    model = Jittery(str(log), **options).fit(np.zeros((K, 2)), np.array(CLASSES))
    return PriorModel(skops(model, folder / "jittery.skops"), features=["x", "z"], trust=[JITTERY])


# A table
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ending", ["parquet", "csv"])
@pytest.mark.parametrize("law", ["rr-with-prior", "subset", "auto"])
def test_a_table_gives_what_columns_give(tmp_path: Path, ending: str, law: str) -> None:
    """The same weights as columns and as a table: the same draws, by way of one secret."""
    table, clusters = data(), weights_of_clusters()
    weights = pa.table({"cluster": table["cluster"]}).join(clusters, "cluster").sort_by("cluster")
    prior = PriorTable(write(clusters, tmp_path / f"p.{ending}"), "cluster")
    found = opened(prior, CLASSES, "y", table.column_names)
    rows = table.select(["cluster"]).to_batches()[0]
    by_name = {row["cluster"]: [row[c] for c in CLASSES] for row in weights.to_pylist()}
    assert (
        found.weights(rows, 0) == np.array([by_name[c] for c in table["cluster"].to_pylist()])
    ).all()
    for name, values in zip(
        "abcd", np.array([by_name[c] for c in table["cluster"].to_pylist()]).T, strict=True
    ):
        table = table.append_column(name, pa.array(values))
    source, labels = write(table, tmp_path / f"in.{ending}"), []
    for number, given in enumerate((prior, list("abcd"))):
        ledger = Ledger(tmp_path / f"private{number}" / "ledger.db")
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(charge, "new_secret", SeededNoise(1).secret)
            patch.setattr(charge, "new_run_id", lambda: "ab" * 16)
            done = release(source, tmp_path / f"out{number}.{ending}", spec(given, law=law), ledger)
        out = read(done.path)
        labels.append(
            out.sort_by("id")
            .select([name for name in out.column_names if name.startswith("y")])
            .to_pydict()
        )
        assert release(
            source, tmp_path / f"out{number}.{ending}", spec(given, law=law), ledger
        ).repeated
        assert number or done.manifest["prior"]["sha256"] == found.facts["sha256"]
    assert labels[0] == labels[1]


def test_keys_of_text_keep_their_zeros_in_csv(tmp_path: Path) -> None:
    weights = {"a": [0.0, 1.0, 2.0], "b": [3.0, 4.0, 5.0]}
    found = PriorTable(
        write(pa.table({"k": ["01234", "7", "NA"]} | weights), tmp_path / "p.csv"), "k"
    ).open(["a", "b"])
    rows = pa.record_batch({"k": ["NA", "01234", "7"]})
    assert found.weights(rows, 0).tolist() == [[2.0, 5.0], [0.0, 3.0], [1.0, 4.0]]
    assert found.weights(pa.record_batch({"k": pa.array([7])}), 0).tolist() == [[1.0, 4.0]]
    (tmp_path / "q.csv").write_text("k,a,b\n,1,2\n7,1,2\n")
    with pytest.raises(InvalidInput, match="a key in every row"):
        PriorTable(tmp_path / "q.csv", "k").open(["a", "b"])


def test_keys_are_compared_by_value(tmp_path: Path) -> None:
    weights = np.arange(8.0).reshape(4, 2)
    numbers = pa.table({"k": [10, 7, 1, 2], "a": weights[:, 0], "b": weights[:, 1]})
    found = PriorTable(write(numbers, tmp_path / "p.parquet"), "k").open(["a", "b"])
    for column in (
        pa.array([2, 7], pa.int32()),
        pa.array(["2", "7"]),
        pa.array(["2", "7"]).dictionary_encode(),
        pa.array([2, 7], pa.uint64()),
    ):
        assert found.weights(pa.record_batch({"k": column}), 0).tolist() == [[6, 7], [2, 3]]
    both = pa.table({"k": [1, 1], "j": ["u", "v"], "b": [1.0, 2.0], "a": [3.0, 4.0]})
    # weights by the names of the classes
    pair = PriorTable(write(both, tmp_path / "q.parquet"), ["j", "k"]).open(["a", "b"])
    assert pair.weights(pa.record_batch({"j": ["v", "u"], "k": [1, 1]}), 0).tolist() == [
        [4, 2],
        [3, 1],
    ]
    named = PriorTable(tmp_path / "q.parquet", ["j", "k"], columns=["b", "a"]).open(["a", "b"])
    assert named.weights(pa.record_batch({"j": ["v"], "k": [1]}), 0).tolist() == [[2, 4]]
    assert pickle.loads(pickle.dumps(found)).weights(pa.record_batch({"k": [1]}), 0).tolist() == [
        [4, 5]
    ]


def test_a_missing_key_is_refused_or_uniform(tmp_path: Path, ledger: Ledger) -> None:
    table = data()
    path = write(weights_of_clusters().slice(1), tmp_path / "p.parquet")
    row = table["cluster"].to_pylist().index("c0")
    source = write(table, tmp_path / "in.parquet")
    with pytest.raises(InvalidInput, match=rf"'cluster', got none in p.parquet for row {row + 1} "):
        release(source, tmp_path / "out.parquet", spec(PriorTable(path, "cluster")), ledger)
    assert not ledger.runs()
    release(
        source,
        tmp_path / "out.parquet",
        spec(PriorTable(path, "cluster", missing="uniform")),
        ledger,
    )
    found = PriorTable(path, "cluster", missing="uniform").open(CLASSES)
    assert (found.weights(pa.record_batch({"cluster": pa.array(["c0", None])}), 0) == 1).all()


@pytest.mark.parametrize(
    ("table", "options", "message"),
    [
        (
            {"cluster": ["c0", "c0"], "a": [1.0, 1.0], "b": [1.0, 1.0]},
            {},
            r"each key once.*again in row 2 \(the first is row 1\)",
        ),
        ({"cluster": ["c0", "c1"], "a": [1.0, -1.0], "b": [1.0, 1.0]}, {}, "finite weights >= 0"),
        ({"cluster": ["c0", "c1"], "a": [1.0, 1.0]}, {}, "one column of weights a class"),
        ({"cluster": ["c0", None], "a": [1.0, 1.0], "b": [1.0, 1.0]}, {}, "a key in every row"),
        ({"cluster": [0.5, 1.5], "a": [1.0, 1.0], "b": [1.0, 1.0]}, {}, "whole numbers or text"),
        ({"other": ["c0"], "a": [1.0], "b": [1.0]}, {"columns": ["a", "b"]}, "got 'cluster'"),
        ({"cluster": ["c0"], "a": ["x"], "b": [1.0]}, {}, "numbers in column 'a'"),
    ],
)
def test_tables_that_are_no_priors(
    tmp_path: Path, table: dict[str, Any], options: dict[str, Any], message: str
) -> None:
    path = write(pa.table(table), tmp_path / "p.parquet")
    with pytest.raises(InvalidInput, match=message):
        PriorTable(path, "cluster", **options).open(["a", "b"])


def test_files_that_are_no_tables(tmp_path: Path) -> None:
    (tmp_path / "p.parquet").write_bytes(b"nothing")
    (tmp_path / "p.txt").write_bytes(b"nothing")
    for name, kind, message in (
        ("p.parquet", InvalidInput, "something else"),
        ("p.txt", InvalidInput, "Convert"),
        ("q.csv", ReleaseError, "existing"),
    ):
        with pytest.raises(kind, match=message):
            PriorTable(tmp_path / name, "k").open(["a", "b"])
    with pytest.raises(InvalidInput, match="missing"):
        PriorTable(tmp_path / "p.csv", "k", missing="zero")


# A model
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ending", ["parquet", "csv"])
@pytest.mark.parametrize("id_column", ["id", None])
@pytest.mark.parametrize("law", ["rr-with-prior", "auto"])
def test_a_pipeline_is_a_prior(
    tmp_path: Path, ledger: Ledger, ending: str, id_column: str | None, law: str
) -> None:
    table = data()
    public = np.column_stack([table["x"], table["z"]])
    model = make_pipeline(StandardScaler(), LogisticRegression()).fit(
        public, np.array(table["y"].to_pylist())
    )
    prior = PriorModel(skops(model, tmp_path / "m.skops"), features=["x", "z"])
    source = write(table, tmp_path / f"in.{ending}")
    done = release(source, tmp_path / f"out.{ending}", spec(prior, law=law, id=id_column), ledger)
    out = read(done.path)
    names = [name for name in table.column_names if name != "y"]
    assert (
        out.select(names).sort_by("id").to_pydict() == table.select(names).sort_by("id").to_pydict()
    )
    same = np.mean(
        np.array(out.sort_by("id")["y"].to_pylist())
        == np.array(table.sort_by("id")["y"].to_pylist())
    )
    # e^1.5 / (e^1.5 + 3) = 0.60 without a prior; with it 0.69 or more, by 9.9 standard deviations
    assert same > 0.62
    if ending == "parquet":
        assert out.drop_columns(["y__evidence"]).schema.equals(table.schema)
    assert left_behind(tmp_path) == []
    assert release(
        source, tmp_path / f"out.{ending}", spec(prior, law=law, id=id_column), ledger
    ).repeated
    assert ledger.spent("in", "y") == 1.5


def left_behind(folder: Path) -> list[Path]:
    return [path for path in folder.iterdir() if path.name.startswith(".")]


def test_a_folder_of_train_is_a_prior(tmp_path: Path, ledger: Ledger) -> None:
    table = data()
    asked = TrainSpec("y", 8.0, CLASSES, id=["id"], learn=Learning(exclude=["note"]))
    trained = train(write(table, tmp_path / "t.parquet"), tmp_path / "model", asked, ledger)
    prior = PriorModel(trained.path)
    found = prior.open(CLASSES)
    assert "y" not in found.columns and set(found.columns) <= {"cluster", "x", "z"}
    backwards = prior.open(CLASSES[::-1])
    rows = table.select(list(found.columns)).combine_chunks().to_batches()[0]
    assert (found.weights(rows, 0)[:, ::-1] == backwards.weights(rows, 0)).all()
    done = release(
        write(table, tmp_path / "in.parquet"), tmp_path / "out.parquet", spec(prior), ledger
    )
    assert done.manifest["prior"]["model"] == "skops"
    with pytest.raises(InvalidInput, match="declared classes"):
        prior.open(CLASSES[:3])


class Died(Exception):
    """Stands for a kill."""


def dies_at_publication(patch: pytest.MonkeyPatch, keep: Path) -> None:
    """What the attempt has drawn is kept, then it dies."""

    def die(self: Publication, run: Any, staging: Staging, facts: Any, parts: Any) -> None:
        folder = Path(staging.folder.path)
        shutil.copy(folder / parts[0].name, keep)
        raise Died

    patch.setattr(Publication, "publish", die)


@pytest.mark.parametrize("ending", ["parquet", "csv"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"unit": "cluster", "max_rows_per_unit": 40},
        {"law": "auto"},
        {"id": None},
        {"order": "keep"},
    ],
)
def test_a_release_that_died_gives_what_it_would_have_given(
    tmp_path: Path, ledger: Ledger, ending: str, options: dict[str, Any]
) -> None:
    """A model that says something else each time is asked once: every row is drawn with one
    side."""
    source, prior = write(data(), tmp_path / f"in.{ending}"), jittery(tmp_path)
    sides: dict[bytes, set[bytes]] = {}
    drawn = worker.draw

    def watched(law: Any, codes: Any, key: Any, blocks: Any, side: Any) -> Any:
        for name, value in zip(blocks.templates(), worker.packed(side), strict=True):
            sides.setdefault(name.tobytes(), set()).add(value.tobytes())
        return drawn(law, codes, key, blocks, side)

    made = spec(prior, **options)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(worker, "draw", watched)
        with pytest.MonkeyPatch.context() as killing:
            dies_at_publication(killing, tmp_path / "first")
            with pytest.raises(Died):
                release(source, tmp_path / f"out.{ending}", made, ledger)
        assert asked(tmp_path / "asked.log") == N
        assert [run.state for run in ledger.runs()] == ["charged"]
        done = release(source, tmp_path / f"out.{ending}", made, ledger)
    assert done.path.read_bytes() == (tmp_path / "first").read_bytes()
    assert asked(tmp_path / "asked.log") == N
    assert len(sides) == done.manifest["rows"] and all(len(found) == 1 for found in sides.values())
    assert [run.state for run in ledger.runs()] == ["settled"]
    assert left_behind(tmp_path) == []
    # although the model would now say something else
    assert release(source, tmp_path / f"out.{ending}", made, ledger).repeated
    assert asked(tmp_path / "asked.log") == N


def test_rows_in_another_order_pick_up_the_charge(tmp_path: Path, ledger: Ledger) -> None:
    table, prior = data(), jittery(tmp_path)
    source = write(table, tmp_path / "in.parquet")
    with pytest.MonkeyPatch.context() as killing:
        dies_at_publication(killing, tmp_path / "first")
        with pytest.raises(Died):
            release(source, tmp_path / "out.parquet", spec(prior), ledger)
    write(table.sort_by("id"), source)
    done = release(source, tmp_path / "out.parquet", spec(prior), ledger)
    assert pq.read_table(done.path).equals(pq.read_table(tmp_path / "first"))
    assert asked(tmp_path / "asked.log") == N and len(ledger.runs()) == 1


@pytest.mark.parametrize("ending", ["parquet", "csv"])
@pytest.mark.parametrize("ids", [["id", "cluster"], []])
def test_beside_the_output_lie_ids_and_weights_alone(
    tmp_path: Path, ledger: Ledger, ending: str, ids: list[str]
) -> None:
    """No copy of the table, and no label: where the prior says nothing, its files are the same
    whatever the labels are."""
    found = []
    for number, labels in enumerate((data()["y"], data()["y"].take(np.arange(N)[::-1]))):
        table = data().set_column(2, "y", labels)
        source = write(table, tmp_path / f"in{number}.{ending}")
        with pytest.MonkeyPatch.context() as killing:
            dies_at_publication(killing, tmp_path / "first")
            with pytest.raises(Died):
                release(
                    source,
                    tmp_path / f"out{number}.{ending}",
                    spec(jittery(tmp_path, jitter=0.0), id=ids),
                    ledger,
                )
        (folder,) = tmp_path.glob(f".out{number}.{ending}.labeldp_prior-*")
        assert folder.stat().st_mode & 0o777 == 0o700
        (part,) = folder.iterdir()
        kept = pq.read_table(part)
        assert kept.column_names == [*ids, WEIGHTS] and kept.num_rows == N
        weights = np.frombuffer(b"".join(kept[WEIGHTS].to_pylist()), "<u4").reshape(N, K)
        assert (weights.max(axis=1) == 2**32 - 1).all()
        assert b"sentinel-zz" not in part.read_bytes()
        found.append(kept)
    assert found[0].equals(found[1])


def killed_release(tmp_path: Path, ledger: Ledger, prior: PriorModel, where: str) -> Path:
    """A release that died after its charge, before the draw or after it; its folder of answers."""
    source = write(data(), tmp_path / "in.parquet")
    with pytest.MonkeyPatch.context() as killing:
        if where == "drawn":
            dies_at_publication(killing, tmp_path / "first")
        else:
            kept = RunStore.keep
            killing.setattr(
                RunStore,
                "keep",
                lambda self, name, data: (
                    die() if name == "release.side" else kept(self, name, data)
                ),
            )
        with pytest.raises(Died):
            release(source, tmp_path / "out.parquet", spec(prior), ledger)
    assert [run.state for run in ledger.runs()] == ["charged"]
    (folder,) = tmp_path.glob(".out.parquet.labeldp_prior-*")
    return folder


def die() -> bytes:
    raise Died


def test_answers_that_are_not_whole_are_not_replaced_by_others_once_something_was_drawn(
    tmp_path: Path, ledger: Ledger
) -> None:
    prior = jittery(tmp_path)
    folder = killed_release(tmp_path, ledger, prior, "drawn")
    (part,) = folder.iterdir()
    whole = part.read_bytes()
    part.write_bytes(whole[:-1])
    for _ in range(2):
        with pytest.raises(
            ReleaseError, match=f"labeldp ledger repair --abandon {ledger.runs()[0].run_id}"
        ):
            release(tmp_path / "in.parquet", tmp_path / "out.parquet", spec(prior), ledger)
    assert not (tmp_path / "out.parquet").exists()
    part.write_bytes(whole)
    done = release(tmp_path / "in.parquet", tmp_path / "out.parquet", spec(prior), ledger)
    assert done.path.read_bytes() == (tmp_path / "first").read_bytes()
    assert not folder.exists()


def test_answers_that_are_lost_before_the_draw_are_asked_for_again(
    tmp_path: Path, ledger: Ledger
) -> None:
    prior = jittery(tmp_path)
    shutil.rmtree(killed_release(tmp_path, ledger, prior, "charged"))
    done = release(tmp_path / "in.parquet", tmp_path / "out.parquet", spec(prior), ledger)
    assert asked(tmp_path / "asked.log") == 2 * N and done.manifest["rows"] == N
    assert (
        len(ledger.runs()) == 1 and ledger.spent("in", "y") == 1.5 and left_behind(tmp_path) == []
    )


def test_a_model_that_says_the_same_again_makes_lost_answers_anew(
    tmp_path: Path, ledger: Ledger
) -> None:
    prior = jittery(tmp_path, jitter=0.0)
    shutil.rmtree(killed_release(tmp_path, ledger, prior, "drawn"))
    done = release(tmp_path / "in.parquet", tmp_path / "out.parquet", spec(prior), ledger)
    assert done.path.read_bytes() == (tmp_path / "first").read_bytes()
    assert len(ledger.runs()) == 1


@pytest.mark.parametrize(
    "gone", [["release.prior-answers"], ["prior-answers", "release.prior-answers", "release.side"]]
)
def test_a_run_folder_that_does_not_say_what_was_asked_is_refused(
    tmp_path: Path, ledger: Ledger, gone: list[str]
) -> None:
    """It was set back, or is of another version: nobody knows what was drawn with."""
    prior = jittery(tmp_path)
    killed_release(tmp_path, ledger, prior, "drawn")
    for name in gone:
        (ledger.run_dir(ledger.runs()[0].run_id) / name).unlink()
    with pytest.raises(ReleaseError, match="a row is never drawn under two priors"):
        release(tmp_path / "in.parquet", tmp_path / "out.parquet", spec(prior), ledger)
    assert asked(tmp_path / "asked.log") == N


def test_a_set_back_run_whose_files_the_ledger_knows_is_not_asked_again(
    tmp_path: Path, ledger: Ledger
) -> None:
    """The run's folder is as it was before the draw, but the ledger has the files of a draw."""
    prior, announced = jittery(tmp_path), Ledger.intend
    write(data(), tmp_path / "in.parquet")
    with pytest.MonkeyPatch.context() as killing:
        killing.setattr(Ledger, "intend", lambda *args, **more: (announced(*args, **more), die()))
        with pytest.raises(Died):
            release(tmp_path / "in.parquet", tmp_path / "out.parquet", spec(prior), ledger)
    shutil.rmtree(*tmp_path.glob(".out.parquet.labeldp_prior-*"))
    (ledger.run_dir(ledger.runs()[0].run_id) / "release.side").unlink()
    with pytest.raises(ReleaseError, match="a row is never drawn under two priors"):
        release(tmp_path / "in.parquet", tmp_path / "out.parquet", spec(prior), ledger)
    assert asked(tmp_path / "asked.log") == N


def test_two_processes_that_ask_at_once_draw_with_one_prior(tmp_path: Path, ledger: Ledger) -> None:
    """Another process has begun the draw with its own answers while this one asked: the first one
    stands."""
    prior = jittery(tmp_path)
    shutil.rmtree(killed_release(tmp_path, ledger, prior, "charged"))
    store, kept = RunStore(ledger.run_dir(ledger.runs()[0].run_id)), RunStore.keep

    def late(self: RunStore, name: str, side: bytes) -> bytes:
        kept(store, "release.side", b"that of another process")
        return kept(self, name, side)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RunStore, "keep", late)
        with pytest.raises(ReleaseError, match="a row is never drawn under two priors"):
            release(tmp_path / "in.parquet", tmp_path / "out.parquet", spec(prior), ledger)


def test_an_input_that_changes_while_the_model_is_asked_is_refused(
    tmp_path: Path, ledger: Ledger
) -> None:
    source, prior = write(data(), tmp_path / "in.csv"), jittery(tmp_path)

    def progress(phase: str, done: int, total: int) -> None:
        if phase == "check" and done == total:
            write(data().set_column(0, "id", pa.array(np.arange(N))), source)

    with pytest.raises(ReleaseError, match="it changed while it was read"):
        release(source, tmp_path / "out.csv", spec(prior), ledger, progress=progress)
    assert not ledger.runs() and left_behind(tmp_path) == []


def test_repair_removes_the_answers_of_an_abandoned_charge_only(
    tmp_path: Path, ledger: Ledger
) -> None:
    folder = killed_release(tmp_path, ledger, jittery(tmp_path), "drawn")
    repair(ledger, 1e-9, remove=True)
    assert folder.exists()
    ledger.abandon(ledger.runs()[0].run_id, "test")
    repair(ledger, 1e-9, remove=True)
    assert not folder.exists() and not orphans(ledger, minutes=1e-9)


class Curious:
    """A prior that looks for the label in what it is given."""

    exact, reads, columns, facts = False, (), ("x",), {"curious": True}

    def to_dict(self) -> dict[str, object]:
        return {"curious": True}

    def open(self, classes: Any) -> OpenPrior:
        return self

    def weights(self, rows: pa.RecordBatch, start: int | None) -> Any:
        assert isinstance(rows, pa.RecordBatch) and rows.schema.names == ["x"]
        assert "sentinel-zz" not in repr(rows.to_pydict()) and not (
            rows.schema.metadata or rows.schema.field("x").metadata
        )
        return np.ones((len(rows), K))


def test_a_prior_never_gets_the_label(tmp_path: Path, ledger: Ledger) -> None:
    source = write(data(), tmp_path / "in.parquet")
    release(source, tmp_path / "out.parquet", spec(Curious()), ledger)
    model = Jittery().fit(np.zeros((K, 2)), np.array(CLASSES))
    with pytest.raises(InvalidInput, match="got the label column 'y'"):
        spec(PriorModel(tmp_path / "m.skops", features=["x", "y"]))
    with pytest.raises(InvalidInput, match="got the label column 'y'"):
        spec(PriorTable(tmp_path / "p.csv", "y"))
    model.feature_names_in_ = np.array(["x", "y"], object)
    named = PriorModel(skops(model, tmp_path / "m.skops"), trust=[JITTERY])
    with pytest.raises(InvalidInput, match="never sees the label"):
        release(source, tmp_path / "other.parquet", spec(named), ledger)


@pytest.mark.parametrize(
    ("change", "kind", "message"),
    [
        (
            {"fault": "nan"},
            InvalidInput,
            f"finite weights >= 0 from the prior, got others for row {N // 2 + 1} ",
        ),
        ({"fault": "columns"}, InvalidInput, "Expected a model that gives 4 numbers a row"),
        ({"features": ["x", "nowhere"]}, InvalidInput, "none named 'nowhere'"),
        ({"features": ["x", "cluster"]}, InvalidInput, "numbers in column 'cluster'"),
        ({"features": None}, InvalidInput, r"features=\[...\]"),
        ({"trust": ()}, InvalidInput, f"{JITTERY}.*trust="),
        ({"path": "gone.skops"}, ReleaseError, "gone.skops"),
        ({"path": "in.parquet"}, InvalidInput, "Export a torch module to .pt2"),
        ({"path": "broken.skops"}, InvalidInput, "format of skops"),
    ],
)
def test_what_is_wrong_with_a_model_is_said_before_the_charge(
    tmp_path: Path, ledger: Ledger, change: dict[str, Any], kind: type[Exception], message: str
) -> None:
    source = write(data(), tmp_path / "in.parquet")
    (tmp_path / "broken.skops").write_bytes(b"nothing")
    fault = change.pop("fault", "")
    good = jittery(tmp_path, fault=fault)
    path = tmp_path / change.pop("path", "jittery.skops")
    prior = PriorModel(**({"path": path, "features": good.features, "trust": good.trust} | change))
    with pytest.raises(kind, match=message):
        release(source, tmp_path / "out.parquet", spec(prior), ledger)
    assert not ledger.runs() and left_behind(tmp_path) == []


def test_a_model_of_other_classes_is_refused(tmp_path: Path) -> None:
    model = Jittery().fit(np.zeros((3, 2)), np.array(CLASSES[:3]))
    prior = PriorModel(skops(model, tmp_path / "m.skops"), ["x"], trust=[JITTERY])
    with pytest.raises(InvalidInput, match="4 declared classes, got one of 3"):
        prior.open(CLASSES)
    with pytest.raises(InvalidInput, match="one of other values"):
        prior.open(["a", "b", "c"])
    coded = Jittery(jitter=0.0).fit(np.zeros((3, 2)), np.arange(3))
    found = PriorModel(skops(coded, tmp_path / "n.skops"), ["x"], trust=[JITTERY]).open(
        ["a", "b", "c"]
    )
    weights = found.weights(pa.record_batch({"x": [3.0]}), 0)
    assert weights.argmax() == 2 and "b'" not in repr(found)
    assert (
        pickle.loads(pickle.dumps(found)).weights(pa.record_batch({"x": [3.0]}), 0) == weights
    ).all()


# Torch
# --------------------------------------------------------------------------------------------------


@pytest.mark.deep
@pytest.mark.parametrize("form", ["program", "probabilities", "float16"])
def test_torch_modules_are_priors(tmp_path: Path, ledger: Ledger, form: str) -> None:
    torch = pytest.importorskip("torch", reason="needs torch")
    from tests.prior_models import torch_module

    module, table = torch_module().eval(), data()
    whole = (
        torch.nn.Sequential(module, torch.nn.Softmax(dim=1)).eval()
        if form == "probabilities"
        else module
    )
    kind = torch.float16 if form == "float16" else torch.float32
    batch = torch.export.Dim("batch", min=1, max=1 << 20)
    program = torch.export.export(
        whole.to(kind), (torch.zeros(7, 2, dtype=kind),), dynamic_shapes=({0: batch},)
    )
    torch.export.save(program, tmp_path / "m.pt2")
    prior = PriorModel(tmp_path / "m.pt2", ["x", "z"], probabilities=form == "probabilities")
    rows = table.select(["x", "z"]).combine_chunks().to_batches()[0]
    matrix = torch.from_numpy(np.column_stack([table["x"], table["z"]]).astype(np.float32))
    expected = torch.softmax(module(matrix.to(kind)).double(), dim=1).detach().numpy()
    found = prior.open(CLASSES)
    assert np.abs(found.weights(rows, 0) - expected).max() < 1e-5
    assert np.abs(found.weights(rows.slice(0, 1), 0) - expected[:1]).max() < 1e-5
    assert (pickle.loads(pickle.dumps(found)).weights(rows, 0) == found.weights(rows, 0)).all()
    done = release(
        write(table, tmp_path / "in.parquet"), tmp_path / "out.parquet", spec(prior), ledger
    )
    assert (
        release(tmp_path / "in.parquet", tmp_path / "out.parquet", spec(prior), ledger).repeated
        and done.manifest["rows"] == N
    )


@pytest.mark.deep
def test_torch_files_that_are_no_models(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch", reason="needs torch")
    (tmp_path / "m.pt2").write_bytes(b"x")
    with pytest.raises(InvalidInput, match=r"torch\.export\.save"):
        PriorModel(tmp_path / "m.pt2", ["x", "z"]).open(CLASSES)
    batch = torch.export.Dim("batch", min=1, max=1 << 20)
    program = torch.export.export(
        torch.nn.Linear(2, 4), (torch.zeros(7, 2),), dynamic_shapes=({0: batch},)
    )
    torch.export.save(program, tmp_path / "m.pt2")
    with pytest.raises(InvalidInput, match="1 features"):
        PriorModel(tmp_path / "m.pt2", ["x"]).open(CLASSES).weights(
            pa.record_batch({"x": [1.0]}), 0
        )


# The command
# --------------------------------------------------------------------------------------------------


def test_the_command_takes_tables_and_models(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    source = write(data(), tmp_path / "in.parquet")
    write(weights_of_clusters(), tmp_path / "p.csv")
    jittery(tmp_path)
    base = [
        "release",
        str(source),
        "--label",
        "y",
        "--epsilon",
        "1",
        "--classes",
        ",".join(CLASSES),
        "--id",
        "id",
    ]
    base += ["--ledger", str(tmp_path / "private" / "ledger.db"), "--json"]
    Ledger(tmp_path / "private" / "ledger.db").set_budget("in", "y", 2.0)
    table = ["--prior", f"table:{tmp_path / 'p.csv'},key=cluster"]
    model = ["--prior", f"model:{tmp_path / 'jittery.skops'},feature=x,feature=z,trust={JITTERY}"]
    for number, more in enumerate((table, model)):
        found = CliRunner().invoke(
            app, [*base, *more, "--out", str(tmp_path / f"out{number}.parquet")]
        )
        assert found.exit_code == 0, found.output
    for wrong in (
        table[1].split(",")[0],
        f"{table[1]},trust=x",
        "x,z",
        "tabel:p.csv,key=cluster",
        "histogram:1",
        "histogram,eps=1,eps=2",
    ):
        assert (
            CliRunner()
            .invoke(app, [*base, "--prior", wrong, "--out", str(tmp_path / "no.parquet")])
            .exit_code
            == 2
        )
