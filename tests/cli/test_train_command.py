# SPDX-License-Identifier: Apache-2.0
"""`labeldp train` and `labeldp predict`: gaps, categories, ids; what is charged, what is free, and
which files are trusted."""

import csv
import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from tests.app.fuzz_models import without_digests
from tests.cli.commands import SENTINEL, run

import labeldp as ldp
from labeldp.app._learners import TabularLearner, as_logistic
from labeldp.app._model import load_model, save_model
from labeldp.app._train import InputsSpec, TrainSpec, predict
from labeldp.app._train import train as run_train
from labeldp.cli._train import clusters_text, features_text, quality_text
from labeldp.errors import InvalidInput, RareCategoriesWarning, ReleaseError
from labeldp.inputs._arrays import ArrayInputs
from labeldp.learn import SoftmaxRegression
from labeldp.ledger._ledger import Ledger, default_ledger

pytestmark = pytest.mark.usefixtures("same_noise")  # what is learned is judged
N = 1200


def shop(n: int = N, seed: int = 0) -> dict[str, list[Any]]:
    """Buys if the colour is red or the price is low; with gaps."""
    rng = np.random.default_rng(seed)
    colour = np.array(["red", "blue", "grün, hell"])[rng.integers(0, 3, n)].tolist()
    price = rng.uniform(0, 10, n).round(2).tolist()
    bought = ["yes" if c == "red" or p < 3 else "no" for c, p in zip(colour, price, strict=True)]
    for i in range(0, n, 17):
        colour[i] = None
        price[(i * 7) % n] = None
    return {
        "id": list(range(n)),
        "who": [f"p{i // 2}" for i in range(n)],
        "colour": colour,
        "price": price,
        "bought": bought,
    }


def write(path: Path, columns: dict[str, list[Any]]) -> Path:
    if path.suffix == ".parquet":
        pq.write_table(
            pa.table(
                columns
                | {
                    "day": pa.array(columns["id"], pa.date32()),
                    "tags": [[i] for i in columns["id"]],
                }
            ),
            path,
        )
    else:
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(columns)
            writer.writerows(zip(*columns.values(), strict=True))
    return path


def train(
    source: Path, out: Path, *more: object, epsilon: float | None = 8.0
) -> tuple[int, str, str]:
    paid = () if epsilon is None else ("--epsilon", epsilon, "--classes", "no,yes")
    return run("train", source, "--label", "bought", "--out", out, *paid, *more)


def accuracy_of(predictions: Path, truth: list[Any]) -> float:
    table = (
        pq.read_table(predictions)
        if predictions.suffix == ".parquet"
        else pa.csv.read_csv(predictions)
    )
    assert table.num_rows == len(truth)
    total = np.column_stack([table[f"probability_{c}"].to_numpy() for c in ("no", "yes")])
    np.testing.assert_allclose(total.sum(axis=1), 1)
    assert table["prediction"].to_pylist() == [("no", "yes")[i] for i in total.argmax(axis=1)]
    return float(np.mean(np.array(table["prediction"].to_pylist()) == np.array(truth)))


@pytest.mark.parametrize(("ending", "predicted"), [("csv", "parquet"), ("parquet", "csv")])
def test_train_and_predict(tmp_path: Path, ending: str, predicted: str) -> None:
    source, fresh = write(tmp_path / f"in.{ending}", shop()), shop(500, seed=1)
    code, said, _ = train(source, tmp_path / "model", "--id", "id", "--json")
    assert code == 0
    facts = json.loads(said)
    assert facts["guarantee"] == {"unit": "row", "epsilon": 8.0, "delta": 0.0}
    features = {f["name"]: f["kind"] for f in facts["features"]["columns"]}
    assert {"colour": "category", "price": "number", "who": "category"}.items() <= features.items()
    assert "id" not in features
    assert ("tags" in facts["features"]["left_out"]) == (ending == "parquet")
    assert sorted(p.name for p in (tmp_path / "model").iterdir()) == ["model.json", "model.skops"]
    target = write(tmp_path / f"new.{ending}", fresh)
    out = tmp_path / f"predictions.{predicted}"
    code, said, _ = run("predict", tmp_path / "model", target, "--out", out, "--json")
    assert (code, json.loads(said)) == (0, {"path": str(out), "rows": 500})
    assert accuracy_of(out, fresh["bought"]) > 0.8
    assert default_ledger().spent("in", "bought") == 8.0


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_dates_in_text_are_times(tmp_path: Path, ending: str) -> None:
    """Sales begin on one day: a number tells, and a category of each day could not tell of days to
    come."""
    day = np.datetime64("2024-01-01") + np.arange(N) % 600
    sold = np.where(day >= np.datetime64("2024-10-01"), "yes", "no")
    rows = {"id": list(range(N)), "day": [str(d) for d in day], "bought": sold.tolist()}
    source = tmp_path / f"in.{ending}"
    if ending == "csv":
        write(source, rows)
    else:
        pq.write_table(pa.table(rows), source)
    code, said, _ = train(source, tmp_path / "m", "--id", "id", "--model", "boosting", "--json")
    assert (code, json.loads(said)["features"]) == (
        0,
        {"columns": [{"name": "day", "kind": "time"}], "left_out": []},
    )
    pq.write_table(
        pa.table({"day": pa.array(day.astype("datetime64[ms]"), pa.timestamp("ms"))}),
        tmp_path / "new.parquet",
    )
    future = write(
        tmp_path / "future.csv", {"id": [1, 2], "day": ["2023-05-01", "2026-01-01T12:00:00"]}
    )
    for name, rows_in in (("a", source), ("b", tmp_path / "new.parquet"), ("c", future)):
        assert (
            run("predict", tmp_path / "m", rows_in, "--out", tmp_path / f"{name}.parquet")[0] == 0
        )
    a, b, c = (pq.read_table(tmp_path / f"{name}.parquet") for name in "abc")
    assert (
        a["probability_yes"].equals(b["probability_yes"])
        and np.mean(np.array(a["prediction"].to_pylist()) == sold) > 0.95
    )
    assert c["prediction"].to_pylist() == ["no", "yes"]
    wrong = write(tmp_path / "wrong.csv", {"day": ["soon"] * 5})
    code, _, said = run("predict", tmp_path / "m", wrong, "--out", tmp_path / "d.csv")
    assert code == 4 and "dates or times in column 'day'" in said


@pytest.mark.parametrize(
    ("ids", "kind"),
    [
        ([0, 7, -12], pa.int64()),
        (["007", "8", "9"], pa.string()),
        (["1", "", "3"], pa.string()),
        ([str(2**64), "1", "2"], pa.string()),
    ],
)
def test_ids_of_predictions_have_the_type_that_they_had(
    tmp_path: Path, ids: list[Any], kind: pa.DataType
) -> None:
    """Whole numbers of a CSV are numbers in Parquet, if all are written as such; text is as it
    was."""
    assert train(write(tmp_path / "in.csv", shop(300)), tmp_path / "m", "--id", "id")[0] == 0
    fresh = {"id": ids, "who": ["a"] * 3, "colour": ["red"] * 3, "price": [1.0] * 3}
    assert (
        run(
            "predict",
            tmp_path / "m",
            write(tmp_path / "new.csv", fresh),
            "--out",
            tmp_path / "p.parquet",
        )[0]
        == 0
    )
    found = pq.read_table(tmp_path / "p.parquet")["id"]
    assert (found.type, found.to_pylist()) == (kind, ids)
    for of_table in (pa.int32(), pa.large_string()):
        table = pa.table(fresh | {"id": pa.array([1, 2, 3], pa.int32()).cast(of_table)})
        pq.write_table(table, tmp_path / "new.parquet")
        assert (
            run(
                "predict",
                tmp_path / "m",
                tmp_path / "new.parquet",
                "--out",
                tmp_path / f"{of_table}.parquet",
            )[0]
            == 0
        )
        assert pq.read_table(tmp_path / f"{of_table}.parquet")["id"].equals(table["id"])
        assert (
            run(
                "predict",
                tmp_path / "m",
                tmp_path / "new.csv",
                "--out",
                tmp_path / f"{of_table}.csv",
            )[0]
            == 0
        )
        with (tmp_path / f"{of_table}.csv").open(newline="", encoding="utf-8") as file:
            assert [row["id"] for row in csv.DictReader(file)] == [str(each) for each in ids]


def test_training_again_is_free_and_a_taken_folder_is_refused(tmp_path: Path) -> None:
    source = write(tmp_path / "in.csv", shop(400))
    assert train(source, tmp_path / "a", "--id", "id")[0] == 0
    assert train(source, tmp_path / "a", "--id", "id")[0] == 5
    assert train(source, tmp_path / "b", "--id", "id")[0] == 0
    assert len(default_ledger().runs()) == 1
    assert train(source, tmp_path / "c", "--id", "id", epsilon=9.0)[0] == 3
    assert not (tmp_path / "c").exists()


@pytest.mark.parametrize("taken", [True, False])
def test_a_place_that_cannot_be_written_is_refused_before_the_charge(
    tmp_path: Path, taken: bool
) -> None:
    ledger, parent = Ledger(tmp_path / "ledger.db"), tmp_path / "parent"
    if taken:
        parent.write_text("a file")
    source = write(tmp_path / "shop.parquet", shop(200))
    with pytest.raises(ReleaseError, match="folder to write model to"):
        run_train(
            source,
            parent / "model",
            TrainSpec("bought", 1.0, ["no", "yes"], id="id", model="linear"),
            ledger,
        )
    assert not ledger.runs()
    assert sorted(each.name for each in tmp_path.iterdir() if each.name != "ledger.db") == [
        "parent"
    ] * taken + ["shop.parquet"]


def test_ids_called_like_predictions_are_refused_before_the_charge(tmp_path: Path) -> None:
    """The prediction took the place of the id without a word."""
    ledger, columns = Ledger(tmp_path / "ledger.db"), shop(200)
    columns["prediction"] = columns.pop("id")
    pq.write_table(pa.table(columns), tmp_path / "shop.parquet")
    with pytest.raises(InvalidInput, match="got 'prediction'"):
        run_train(
            tmp_path / "shop.parquet",
            tmp_path / "model",
            TrainSpec("bought", 1.0, ["no", "yes"], id="prediction"),
            ledger,
        )
    assert not ledger.runs()


def test_one_stage_is_the_default(tmp_path: Path) -> None:
    """As asked for by name; two are another request."""
    rng = np.random.default_rng(0)
    rows = {
        "id": list(range(400)),
        "x": rng.normal(size=400).tolist(),
        "bought": rng.choice(["yes", "no", "later"], 400).tolist(),
    }
    source, drawn = write(tmp_path / "in.csv", rows), []
    for name, stages in (("a", ()), ("b", ("--stages", 1)), ("c", ("--stages", 2))):
        facts = ("--classes", "yes,no,later", "--epsilon", 1, "--budget", 2, "--id", "id", *stages)
        code, said, _ = run(
            "train", source, "--label", "bought", "--out", tmp_path / name, *facts, "--json"
        )
        assert code == 0
        drawn.append(json.loads(said)["receipts"][0]["run_id"])
    assert drawn[0] == drawn[1] != drawn[2] and len(default_ledger().runs()) == 2


@pytest.mark.parametrize("law", ["rr", "subset", "auto"])
def test_training_on_a_released_table_is_free(tmp_path: Path, law: str) -> None:
    source, fresh = write(tmp_path / "in.csv", shop()), shop(500, seed=1)
    released = run(
        "release",
        source,
        "--label",
        "bought",
        "--epsilon",
        "8",
        "--classes",
        "no,yes",
        "--law",
        law,
        "--id",
        "id",
        "--out",
        tmp_path / "r.csv",
    )
    assert released[0] == 0
    assert train(tmp_path / "r.csv", tmp_path / "model", epsilon=8.0)[0] == 4
    code, said, _ = train(tmp_path / "r.csv", tmp_path / "model", "--json", epsilon=None)
    assert code == 0
    facts = json.loads(said)
    assert facts["trained_on"] == "released table"
    assert not {"id", "bought__evidence"} & {f["name"] for f in facts["features"]["columns"]}
    assert (
        run(
            "predict",
            tmp_path / "model",
            write(tmp_path / "new.csv", fresh),
            "--out",
            tmp_path / "p.csv",
        )[0]
        == 0
    )
    # the release knows the id column; nobody named it again
    assert (tmp_path / "p.csv").read_text().startswith('"id","prediction"')
    assert accuracy_of(tmp_path / "p.csv", fresh["bought"]) > 0.8
    assert len(default_ledger().runs()) == 1


def test_another_column_of_ids_hides_no_rows(tmp_path: Path) -> None:
    columns = shop()
    source = write(
        tmp_path / "shop.parquet", columns | {"barcode": [10_000 + i for i in columns["id"]]}
    )
    assert train(source, tmp_path / "one", "--id", "id", "--dataset", "shop")[0] == 0
    code, _, told = train(source, tmp_path / "two", "--id", "barcode", "--dataset", "shop")
    assert code != 0
    assert "is spent; got epsilon" in told
    code, _, told = train(
        source,
        tmp_path / "three",
        "--id",
        "id",
        "--unit",
        "who",
        "--max-rows-per-unit",
        2,
        "--dataset",
        "shop",
    )
    assert code != 0
    assert "Expected unit 'row'" in told


def test_units(tmp_path: Path) -> None:
    source = write(tmp_path / "in.csv", shop(400))
    code, said, _ = train(
        source,
        tmp_path / "m",
        "--unit",
        "who",
        "--max-rows-per-unit",
        2,
        "--id",
        "id",
        "--stages",
        1,
        "--json",
    )
    assert code == 0
    assert json.loads(said)["guarantee"]["unit"] == "who"
    assert "who" not in {f["name"] for f in json.loads(said)["features"]["columns"]}


@pytest.mark.parametrize("suffix", ["csv", "npz"])
@pytest.mark.parametrize("role", ["id", "unit"])
def test_the_label_is_neither_id_nor_unit(tmp_path: Path, suffix: str, role: str) -> None:
    """As a unit it chose which rows were learned from and stood, as a digest, in the ledger; as an
    id a repeat told two equal labels."""
    rows, source = shop(100), tmp_path / f"in.{suffix}"
    if suffix == "npz":
        np.savez(source, X=np.arange(200.0).reshape(100, 2), bought=np.array(rows["bought"]))
    else:
        write(source, rows)
    code, _, said = train(source, tmp_path / "m", f"--{role}", "bought")
    assert (code, "label column 'bought'" in said) == (4, True)
    assert default_ledger().runs() == []


def test_errors_have_their_codes(tmp_path: Path) -> None:
    source = write(tmp_path / "in.csv", shop(100) | {"bought": ["yes", SENTINEL] * 50})
    code, _, said = train(source, tmp_path / "m")
    assert code == 4
    assert "some label is not" in said and "line" not in said
    assert train(source, tmp_path / "m", epsilon=None)[0] == 4
    assert train(source, tmp_path / "m", epsilon=float("nan"))[0] == 2
    assert train(source, tmp_path / "m", "--stages", 0)[0] == 2
    assert train(tmp_path / "none.csv", tmp_path / "m")[0] == 5
    assert run("predict", tmp_path / "none", source, "--out", tmp_path / "p.csv")[0] == 5
    assert default_ledger().runs() == []
    assert [p.name for p in tmp_path.iterdir()] == ["in.csv"]


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_classes_are_declared_or_read_off_aloud(tmp_path: Path, ending: str) -> None:
    source = write(tmp_path / f"in.{ending}", shop(400))
    base = ("train", source, "--label", "bought", "--epsilon", 8, "--stages", 1, "--id", "id")
    code, _, said = run(*base, "--out", tmp_path / "m")
    assert (
        code == 4
        and "--classes no,yes" in said
        and "--infer-classes" in said
        and "classes=" not in said
    )
    code, _, said = run(
        "train", source, "--label", "price", *base[4:], "--infer-classes", "--out", tmp_path / "m"
    )
    assert code == 4 and "publish the labels" in said and "--classes" in said
    assert run(*base, "--infer-classes", "--strict", "--out", tmp_path / "m")[0] == 2
    assert default_ledger().runs() == [] and not (tmp_path / "m").exists()
    exception = "which classes occur"
    for number, model in enumerate(
        (("auto",), ("auto", "--prior", "clusters:5,eps=1"), ("proportions",), ("noise-cluster",))
    ):
        if len(model) + number > 1:  # clusters are of numbers without gaps
            source = write(
                tmp_path / f"{number}.{ending}",
                {"id": shop(400)["id"], "x": list(range(400)), "bought": shop(400)["bought"]},
            )
        code, answer, said = run(
            "train",
            source,
            *base[2:],
            "--infer-classes",
            "--model",
            *model,
            "--out",
            tmp_path / f"m{number}",
        )
        assert code == 0, said
        assert (
            said.count("warning: The classes are read off") == 1
            and "--classes A,B" in said
            and "classes=" not in said
        )
        assert "8-label-DP for each row, except which classes occur." in answer
        facts = json.loads((tmp_path / f"m{number}" / "model.json").read_text())
        assert (
            facts["guarantee"]["except_for"] == exception
            and facts["classes_inferred"] is True
            and facts["classes"] == ["no", "yes"]
        )
        assert [receipt["except_for"] for receipt in facts["receipts"]] == [exception] * len(
            facts["receipts"]
        )
    assert (
        run(
            "release",
            *base[1:6],
            "--infer-classes",
            "--dataset",
            "other",
            "--out",
            tmp_path / f"noisy.{ending}",
        )[0]
        == 0
    )
    code, answer, _ = run(
        "train", tmp_path / f"noisy.{ending}", "--label", "bought", "--out", tmp_path / "free"
    )
    assert code == 0 and "except which classes occur" in answer
    assert (
        json.loads((tmp_path / "free" / "model.json").read_text())["guarantee"]["except_for"]
        == exception
    )


def test_prediction_needs_the_training_columns(tmp_path: Path) -> None:
    source = write(tmp_path / "in.csv", shop(400))
    assert train(source, tmp_path / "m", "--id", "id", "--stages", 1)[0] == 0
    fewer = {name: values for name, values in shop(50).items() if name != "price"}
    code, _, said = run(
        "predict", tmp_path / "m", write(tmp_path / "new.csv", fewer), "--out", tmp_path / "p.csv"
    )
    assert code == 4
    assert "'price'" in said
    wrong = shop(50) | {"price": ["cheap"] * 50}
    code, _, said = run(
        "predict", tmp_path / "m", write(tmp_path / "new.csv", wrong), "--out", tmp_path / "p.csv"
    )
    assert code == 4
    assert not (tmp_path / "p.csv").exists()


def test_unknown_types_are_listed_and_built_only_if_trusted(tmp_path: Path) -> None:
    from sklearn.preprocessing import FunctionTransformer

    facts = {"features": {"columns": [], "left_out": []}, "classes": ["a", "b"], "channel": None}
    save_model(tmp_path / "m", FunctionTransformer(np.asarray), facts)
    with pytest.raises(InvalidInput, match=r"--trust numpy\.asarray") as refused:
        load_model(tmp_path / "m")
    assert "numpy.asarray" in str(refused.value)
    assert load_model(tmp_path / "m", ["numpy.asarray"]).classes == ("a", "b")


@pytest.mark.parametrize(
    "change",
    [
        lambda facts: facts["classes"].reverse(),
        lambda facts: facts["features"]["columns"].reverse(),
        lambda facts: facts["guarantee"].update(epsilon=0.01),
        lambda facts: facts["digests"].update(facts="sha256:0"),
        lambda facts: facts.update(digests="none"),
    ],
    ids=["classes", "columns", "guarantee", "digest", "no digests"],
)
def test_facts_that_were_edited_are_refused(
    tmp_path: Path, change: Callable[[dict[str, Any]], object]
) -> None:
    source = write(tmp_path / "in.csv", shop(300))
    assert train(source, tmp_path / "m")[0] == 0
    stored = tmp_path / "m" / "model.json"
    facts = json.loads(stored.read_text())
    stored.write_text(json.dumps(facts))  # written anew, in another form, they are the same facts
    assert run("predict", tmp_path / "m", source, "--out", tmp_path / "same.csv")[0] == 0
    change(facts)
    stored.write_text(json.dumps(facts))
    code, _, said = run("predict", tmp_path / "m", source, "--out", tmp_path / "p.csv")
    assert code == 4 and "model.json" in said and "was changed" in said
    assert not (tmp_path / "p.csv").exists()


def test_the_model_of_another_training_is_refused(tmp_path: Path) -> None:
    source = write(tmp_path / "in.csv", shop(300))
    for name in ("m", "other"):
        assert train(source, tmp_path / name, "--dataset", name)[0] == 0
    (tmp_path / "m" / "model.skops").write_bytes((tmp_path / "other" / "model.skops").read_bytes())
    code, _, said = run("predict", tmp_path / "m", source, "--out", tmp_path / "p.csv")
    assert code == 4 and "model.skops" in said and "was changed" in said


def test_other_files_are_no_models(tmp_path: Path) -> None:
    facts = {"features": {"columns": [], "left_out": []}, "classes": ["a", "b"], "channel": None}
    save_model(tmp_path / "m", LogisticRegression(), facts)
    (without_digests(tmp_path / "m") / "model.skops").write_bytes(b"no zip")
    with pytest.raises(InvalidInput, match="skops"):
        load_model(tmp_path / "m")
    said = json.loads((tmp_path / "m" / "model.json").read_text())
    for other, message in (
        ({}, "model of format"),
        (said | {"format": 1}, "earlier version .* Train again"),
        (said | {"format": 9}, "else"),
    ):
        (tmp_path / "m" / "model.json").write_text(json.dumps(other))
        with pytest.raises(InvalidInput, match=message):
            load_model(tmp_path / "m")


# Clusters
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "prior", ["clusters", "clusters:20", "clusters:20,eps=0.5", "clusters,eps=0.5"]
)
def test_clusters_are_asked_first_out_of_the_total(tmp_path, prior):
    source = write(tmp_path / "shop.parquet", shop())
    code, _, err = train(source, tmp_path / "model", "--prior", prior, "--id", "id", epsilon=4.0)
    assert (code, err) == (0, "")
    facts = json.loads((tmp_path / "model" / "model.json").read_text(encoding="utf-8"))
    assert facts["guarantee"] == {"unit": "row", "epsilon": 4.0, "delta": 0.0}
    first, second = facts["receipts"]
    assert (first["event"]["event"], second["event"]["event"]) == ("aggregate", "label-draw")
    assert first["epsilon"] == (0.5 if "eps" in prior else 0.8)
    if "20" in prior:
        assert first["event"]["query"]["n_groups"] == 20
    assert default_ledger().spent("shop", "bought") == 4.0
    new = shop(400, seed=1)
    assert (
        run(
            "predict",
            tmp_path / "model",
            write(tmp_path / "new.parquet", new),
            "--out",
            tmp_path / "found.parquet",
        )[0]
        == 0
    )
    assert accuracy_of(tmp_path / "found.parquet", new["bought"]) > 0.8


def test_votes_of_clusters_make_a_model(tmp_path):
    source = write(tmp_path / "shop.parquet", shop())
    code, out, err = train(
        source,
        tmp_path / "model",
        "--model",
        "noise-cluster",
        "--id",
        "id",
        "--exclude",
        "who",
        "--json",
        epsilon=0.5,
    )
    assert (code, err) == (0, "")
    facts = json.loads(out)
    assert facts["guarantee"] == {"unit": "row", "epsilon": 0.5, "delta": 0.0}
    assert facts["clusters"]["mechanism"] == "permute-and-flip"
    assert 0 < facts["clusters"]["failure"] < 0.5
    assert [receipt["event"]["query"]["query"] for receipt in facts["receipts"]] == ["vote"]
    new = shop(400, seed=1)
    assert (
        run(
            "predict",
            tmp_path / "model",
            write(tmp_path / "new.parquet", new),
            "--out",
            tmp_path / "found.parquet",
        )[0]
        == 0
    )
    assert accuracy_of(tmp_path / "found.parquet", new["bought"]) > 0.8
    chances = pq.read_table(tmp_path / "found.parquet")["probability_yes"].to_numpy()
    assert len(np.unique(chances)) > 100  # a vote alone would say 0 or 1


def test_counts_of_clusters_make_a_model(tmp_path):
    source = write(tmp_path / "shop.parquet", shop())
    code, out, err = train(
        source,
        tmp_path / "model",
        "--model",
        "proportions",
        "--id",
        "id",
        "--exclude",
        "who",
        "--json",
        epsilon=0.5,
    )
    assert (code, err) == (0, "")
    facts = json.loads(out)
    assert facts["guarantee"] == {"unit": "row", "epsilon": 0.5, "delta": 0.0}
    # discrete Laplace noise of scale 4
    assert facts["clusters"]["deviation"] == pytest.approx(5.65, abs=0.01)
    assert [receipt["event"]["query"]["query"] for receipt in facts["receipts"]] == ["histogram"]
    new = shop(400, seed=1)
    assert (
        run(
            "predict",
            tmp_path / "model",
            write(tmp_path / "new.parquet", new),
            "--out",
            tmp_path / "found.parquet",
        )[0]
        == 0
    )
    assert accuracy_of(tmp_path / "found.parquet", new["bought"]) > 0.8


@pytest.mark.parametrize("k", [2, 4])
def test_what_is_stored_predicts_what_was_learned(k):
    X = np.random.default_rng(0).normal(size=(200, 3))
    learned = make_pipeline(StandardScaler(), SoftmaxRegression()).fit(X, np.arange(200) % k)
    assert np.allclose(as_logistic(learned).predict_proba(X), learned.predict_proba(X))


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (("--prior", "income,age"), 2, "clusters[:NUMBER][,eps=E]"),
        (("--prior", "clusters:many"), 2, "whole NUMBER"),
        (("--prior", "clusters:0"), 2, "n_clusters"),
        (("--prior", "clusters:3,4"), 2, "clusters[:NUMBER]"),
        (("--prior", "clusters:3,delta=1"), 2, "clusters[:NUMBER]"),
        (("--prior", "clusters,eps=nan"), 2, "epsilon"),
        (("--prior", "clusters,eps=8"), 2, "less than the total"),
        (("--prior", "clusters:5000"), 4, "at most as many clusters as rows"),
        (("--prior", "clusters", "--law", "rr"), 4, "does not read it"),
        (("--prior", "clusters", "--model", "noise-cluster"), 2, "asks clusters alone"),
        (("--law", "rr", "--model", "noise-cluster"), 2, "asks clusters alone"),
        (("--stages", "2", "--model", "noise-cluster"), 2, "asks clusters alone"),
        (("--epochs", "3", "--model", "noise-cluster"), 2, "Choose one"),
        (("--prior", "clusters", "--model", "proportions"), 2, "asks clusters alone"),
    ],
    ids=str,
)
def test_bad_clusters_are_refused_before_a_charge(tmp_path, options, code, message):
    source = write(tmp_path / "shop.parquet", shop())
    found, _, err = train(source, tmp_path / "model", *options)
    assert found == code
    assert message in " ".join(err.replace("│", " ").split())
    assert not default_ledger().runs()
    assert not (tmp_path / "model").exists()


def test_a_released_table_is_not_asked_again(tmp_path):
    source = write(tmp_path / "shop.parquet", shop())
    released = (
        "release",
        source,
        "--label",
        "bought",
        "--epsilon",
        2,
        "--classes",
        "no,yes",
        "--out",
        tmp_path / "out.parquet",
    )
    assert run(*released)[0] == 0
    for more, message in (
        (("--prior", "clusters"), "paid for"),
        (("--model", "noise-cluster"), "cannot be asked"),
        (("--model", "proportions"), "cannot be asked"),
    ):
        code, _, err = train(tmp_path / "out.parquet", tmp_path / "model", *more, epsilon=None)
        assert code in (2, 4)
        assert message in " ".join(err.replace("│", " ").split())


@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_nothing_said_of_a_released_table_is_passed_over(tmp_path: Path, form: str) -> None:
    source, out = write(tmp_path / f"shop.{form}", shop(200)), tmp_path / f"out.{form}"
    released = (
        "release",
        source,
        "--label",
        "bought",
        "--epsilon",
        2,
        "--classes",
        "no,yes",
        "--id",
        "id",
        "--out",
        out,
    )
    assert run(*released)[0] == 0
    for more, message in (
        (("--stages", 2), "got 2 stages"),
        (("--classes", "yes,no"), "another order"),
        (("--classes", "no,yes,later"), "or others"),
        (("--infer-classes",), "read off"),
        (("--id", "who"), "Expected ids as in the release, 'id', got 'who'"),
        (("--unit", "who"), "Expected unit 'row' of the release, got 'who'"),
        (("--law", "subset"), "the law of the release, rr"),
    ):
        code, _, err = train(out, tmp_path / "model", *more, epsilon=None)
        assert (code, message in err) == (4, True), (more, err)
    assert (
        train(
            out,
            tmp_path / "model",
            "--id",
            "id",
            "--classes",
            "no,yes",
            "--exclude",
            "who",
            epsilon=None,
        )[0]
        == 0
    )
    declared = ("--noisy", "--law", "rr", "--stages", 2)
    code, _, err = train(source, tmp_path / "other", *declared)
    assert code == 4 and "Leave them out (--stages)" in err


def test_a_training_that_finishes_a_failed_one_says_that_nothing_more_was_charged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = write(tmp_path / "in.csv", shop(200))

    def fail(*_: object, **__: object) -> None:
        raise InvalidInput("on fire")

    with monkeypatch.context() as patch:
        patch.setattr("labeldp.protocol._estimator.run_stages", fail)
        assert train(source, tmp_path / "a", "--id", "id")[0] == 4
    assert default_ledger().spent("in", "bought") == 8.0
    said = train(source, tmp_path / "a", "--id", "id")[1]
    assert (
        "\nFinished what an earlier call, which was killed or failed, had charged epsilon 8 for;"
        " nothing more was charged." in said
    )
    assert default_ledger().spent("in", "bought") == 8.0


def test_a_training_says_what_it_was_charged(tmp_path: Path) -> None:
    source, where = (
        write(tmp_path / "in.csv", shop(200)),
        f"Dataset 'in' in {default_ledger().location}.",
    )
    assert train(source, tmp_path / "a", "--id", "id")[1].endswith(
        f"\nCharged epsilon 8. {where}\n"
    )
    assert train(source, tmp_path / "b", "--id", "id")[1].endswith(
        f"\nNothing was drawn, nothing was charged. {where}\n"
    )
    code, said, _ = train(
        source, tmp_path / "c", "--id", "id", "--dataset", "asked", "--prior", "clusters:5,eps=0.4"
    )
    # both charges are the training's
    assert code == 0 and "\nCharged epsilon 8. Dataset 'asked'" in said and "In all" not in said
    price = (
        "train",
        source,
        "--label",
        "price",
        "--range",
        "0:10",
        "--epsilon",
        1,
        "--exclude",
        "bought",
        "--id",
        "id",
        "--model",
        "linear",
    )
    write(source, shop(200) | {"price": [number % 10 for number in range(200)]})  # without gaps
    code, said, _ = run(*price, "--dataset", "asked", "--out", tmp_path / "d")
    assert (
        code == 0
        and "In all each row of dataset 'asked' has spent up to epsilon 9, on"
        " columns 'bought', 'price'."
        in said
    )


def test_accuracy_is_said_beside_a_constants_and_never_where_it_cannot_be() -> None:
    def found(value: float, low: float, high: float, tells: bool = True) -> dict[str, float | bool]:
        return {"value": value, "low": low, "high": high, "tells": tells}

    facts = {
        "estimated_accuracy": found(1.2, 0.95, 1.0),
        "baseline_accuracy": found(0.9914, 0.95, 1.0),
        "estimated_log_loss": found(0.0563, 0.03, 0.08),
        "baseline_log_loss": found(0.0562, 0.03, 0.08),
    }
    assert (
        quality_text(facts)
        == " Estimated accuracy 0.950 to 1.000: cannot tell whether it is better than always the"
        " commonest class, 0.991. Estimated log-loss 0.030 to 0.080 (estimate 0.056): cannot"
        " tell whether it is better than the class frequencies alone, 0.056."
    )
    better = facts | {
        "estimated_accuracy": found(1.2, 0.995, 1.0),
        "estimated_log_loss": found(0.0263, 0.02, 0.04),
    }
    assert (
        quality_text(better)
        == " Estimated accuracy 1.000 (0.995 to 1.000); always the commonest class: 0.991."
        " Estimated log-loss 0.026 (0.020 to 0.040); the class frequencies alone: 0.056."
    )
    few = facts | {"estimated_accuracy": found(6.8, 0.0, 1.0, tells=False)}
    assert (
        quality_text(few)
        == " At this epsilon the noisy rows that were held out are too few to tell how accurate"
        " it is."
    )
    reasons = {
        "paper": "; --recipe holds out none",
        "clusters": "; answers about clusters have none",
    }
    for more, why in (({}, ""), *(({name: {"n": 3}}, reason) for name, reason in reasons.items())):
        said = (
            " How accurate it is was not estimated: that takes at least 20 noisy rows that are"
            f" held out{why}."
        )
        assert quality_text(facts | more | {"estimated_accuracy": None}) == said


def test_features_are_listed_up_to_a_dozen() -> None:
    columns = [{"name": f"x{i}", "kind": "number"} for i in range(14)]
    assert features_text({"features": {"columns": columns[:2]}}) == "\nFeatures: x0, x1."
    assert features_text({"features": {"columns": columns}}).endswith(", x11 and 2 more.")
    assert features_text({"features": {"kind": "array", "shape": [3]}}) == ""


def test_clusters_say_how_far_they_can_be_trusted() -> None:
    said = (
        " 1,200 clusters voted; if the first class led by half of a cluster, noise overruled it for"
        " 0.3 % of the rows."
    )
    assert (
        clusters_text({"number": 1200, "mechanism": "permute-and-flip", "failure": 0.00201}) == said
    )
    counts = " It learned from the label counts of 1,200 clusters, each with noise of 5.65 rows."
    assert clusters_text({"number": 1200, "mechanism": "laplace", "deviation": 5.646}) == counts
    assert clusters_text(None) == ""


def shops(path: Path, n: int, seed: int) -> tuple[Path, np.ndarray]:
    """20 columns of categories, a thousand in all, half of which tell; one row in 20 is a sale."""
    rng, world = np.random.default_rng(seed), np.random.default_rng(99)
    columns, score = {}, np.full(n, -3.9)
    for j in range(20):
        effect = world.normal(size=50) * 0.5 * (j < 10)
        found = rng.integers(50, size=n)
        columns[f"c{j}"] = [f"v{each}" for each in found]
        score += effect[found]
    sold = rng.random(n) < 1 / (1 + np.exp(-score))
    pq.write_table(
        pa.table({"row": np.arange(n), **columns, "sold": np.where(sold, "yes", "no")}), path
    )
    return path, sold


def test_many_categories_are_for_a_linear_model(tmp_path: Path) -> None:
    """Guessing has an area of .5, with a standard deviation of .015: some 400 of the 8,000 rows are
    sales."""
    source, _ = shops(tmp_path / "shops.parquet", 20_000, 0)
    fresh, sold = shops(tmp_path / "fresh.parquet", 8_000, 1)
    heard: list[tuple[str, int, int]] = []
    spec = TrainSpec(
        "sold", 3.0, ["no", "yes"], id="row", dataset="shops", inputs=InputsSpec(exclude=["c19"])
    )
    run_train(
        source,
        tmp_path / "m",
        spec,
        Ledger(tmp_path / "l.db"),
        progress=lambda *each: heard.append(each),
    )
    fits = [done for phase, done, total in heard if phase == "train" and done < total]
    assert fits and fits == list(range(1, len(fits) + 1))
    predict(tmp_path / "m", fresh, tmp_path / "p.parquet")
    assert (
        roc_auc_score(sold, pq.read_table(tmp_path / "p.parquet")["probability_yes"].to_numpy())
        > 0.63
    )
    assert isinstance(load_model(tmp_path / "m").model.estimator[-1], LogisticRegression)


def test_linear_weighs_every_category_and_others_say_how_many_they_count_as_one(
    tmp_path: Path,
) -> None:
    """Even campaigns sell; boosting knows 254 of 300, and of the others only that half of them
    do."""
    rng = np.random.default_rng(0)
    campaign = rng.permutation(np.arange(6000) % 300)
    sold = np.where((campaign % 2 == 0) == (rng.random(6000) < 0.98), "yes", "no")
    table = pa.table(
        {"row": np.arange(6000), "campaign": [f"k{c}" for c in campaign], "sold": sold}
    )
    pq.write_table(table, tmp_path / "t.parquet")
    right = {}
    for model in ("linear", "boosting"):
        spec = TrainSpec("sold", 6.0, ["no", "yes"], id="row", dataset="campaigns", model=model)
        with warnings.catch_warnings(record=True) as heard:
            warnings.simplefilter("always")
            run_train(tmp_path / "t.parquet", tmp_path / model, spec, Ledger(tmp_path / "l.db"))
        told = [str(w.message) for w in heard if w.category is RareCategoriesWarning]
        assert told == [] if model == "linear" else "46 of 'campaign'" in told[0]
        predict(tmp_path / model, tmp_path / "t.parquet", tmp_path / f"{model}.parquet")
        p = pq.read_table(tmp_path / f"{model}.parquet")["probability_yes"].to_numpy()
        right[model] = np.mean((p > 0.5) == (campaign % 2 == 0))
    assert right["linear"] > 0.97 and right["boosting"] < 0.95


def test_the_default_estimator_says_how_many_categories_it_counts_as_one() -> None:
    X = np.array([[f"k{i % 300}"] for i in range(900)], object)
    y = np.arange(900) % 2
    frame = pd.DataFrame(
        {"campaign": pd.Series(X[:, 0], dtype="string").mask(np.arange(900) % 90 == 0)}
    )
    for rows in (X, frame):
        with pytest.warns(RareCategoriesWarning, match="300"):
            ldp.LabelDPClassifier(
                epsilon=2.0, classes=[0, 1], noise=ldp.SeededNoise(0), random_state=0
            ).fit(rows, y)


def test_boosting_tells_of_each_fit(tmp_path: Path) -> None:
    source, heard = write(tmp_path / "shop.csv", shop()), []
    spec = TrainSpec(
        "bought",
        4.0,
        ["no", "yes"],
        id="id",
        dataset="shop",
        model="boosting",
        inputs=InputsSpec(exclude=["who"]),
    )
    run_train(
        source,
        tmp_path / "m",
        spec,
        Ledger(tmp_path / "l.db"),
        progress=lambda *each: heard.append(each),
    )
    assert len([phase for phase, *_ in heard if phase == "train"]) > 2


def test_categories_that_arrays_of_text_would_merge_are_refused_before_the_charge(
    tmp_path: Path,
) -> None:
    table = shop(60)
    table["colour"][:2] = ["red", "red\0"]
    code, _, said = train(write(tmp_path / "in.parquet", table), tmp_path / "model", "--id", "id")
    assert code == 4 and "text without NUL at its end in column 'colour'" in said
    assert not default_ledger().exists()


def test_features_are_chosen(tmp_path: Path) -> None:
    source, _ = shops(tmp_path / "shops.parquet", 600, 0)
    options = (
        "train",
        source,
        "--label",
        "sold",
        "--classes",
        "no,yes",
        "--epsilon",
        "2",
        "--id",
        "row",
        "--dataset",
        "s",
    )
    for number, (more, expected) in enumerate(
        [
            (("--features", "c3,c1"), ["c3", "c1"]),
            (("--exclude", "c0"), [f"c{j}" for j in range(1, 20)]),
        ]
    ):
        code, _, told = run(*options, "--out", tmp_path / f"m{number}", *more)
        assert code == 0, told
        assert [each["name"] for each in model_features(tmp_path / f"m{number}")] == expected
    for number, (more, said) in enumerate(
        [
            (("--features", "c3,sold"), "besides label, ids and unit"),
            (("--features", "absent"), "absent"),
            (("--exclude", "absent"), "absent"),
            (("--features", "c1", "--exclude", "c1"), "at least one column"),
        ]
    ):
        code, _, told = run(*options, "--out", tmp_path / f"bad{number}", *more)
        assert code == 4 and said in told


def model_features(folder: Path) -> list[dict[str, object]]:
    return json.loads((folder / "model.json").read_text())["features"]["columns"]


# Stages and correction
# --------------------------------------------------------------------------------------------------

LP_2ST = (
    "--stages",
    2,
    "--stage-sizes",
    ".7,.3",
    "--temperature",
    0.6,
    "--filter",
    "mean",
    "--correction",
    "none",
)


@pytest.mark.parametrize("model", ["linear", "boosting", "mlp"])
def test_the_papers_two_stages_are_options(tmp_path: Path, model: str) -> None:
    if model == "mlp":
        pytest.importorskip("torch")
    columns = shop()
    columns["bought"] = [
        ("later" if i % 5 == 0 else label) for i, label in enumerate(columns["bought"])
    ]
    source, ledger = write(tmp_path / "in.csv", columns), tmp_path / "ledger.db"
    three = (
        "--classes",
        "no,yes,later",
        "--epsilon",
        8,
        "--id",
        "id",
        "--ledger",
        ledger,
        "--model",
        model,
    )
    asked = ("train", source, "--label", "bought", *three, "--law", "rr-with-prior", *LP_2ST)
    code, said, err = run(*asked, "--out", tmp_path / "m", "--json")
    assert code == 0, err
    facts = json.loads(said)
    assert facts["guarantee"]["epsilon"] == 8
    assert [run.epsilon for run in Ledger(ledger).runs()] == [8.0]
    # equal stages: another request, over the budget
    code, _, err = run(*asked[:-8], "--out", tmp_path / "other", "--json")
    assert code == 3 and len(Ledger(ledger).runs()) == 1, err


@pytest.mark.parametrize(
    ("recipe", "model", "law", "shares"),
    [
        ("lp-1st", "boosting", "rr", [1.0]),
        ("lp-2st", "linear", "rr-with-prior", [0.6, 0.4]),
        ("lp-3st", "mlp", "rr-with-prior", [0.6, 0.2, 0.2]),
        ("alibi", "linear", "alibi", [1.0]),
    ],
)
def test_a_recipe_by_name_draws_as_its_paper_does(
    tmp_path: Path, recipe: str, model: str, law: str, shares: list[float]
) -> None:
    if model == "mlp":
        pytest.importorskip("torch")
    columns = shop()
    columns["bought"] = [
        ("later" if i % 5 == 0 else label) for i, label in enumerate(columns["bought"])
    ]
    source, ledger = write(tmp_path / "in.csv", columns), tmp_path / "ledger.db"
    asked = (
        "--classes",
        "no,yes,later",
        "--epsilon",
        8,
        "--id",
        "id",
        "--ledger",
        ledger,
        "--model",
        model,
        "--recipe",
        recipe,
    )
    asked += ("--epochs", 1) if model == "mlp" else ()
    code, said, err = run(
        "train", source, "--label", "bought", *asked, "--out", tmp_path / "m", "--json"
    )
    assert code == 0, err
    facts, (drawn,) = json.loads(said), Ledger(ledger).runs()
    assert facts["paper"] == {"recipe": recipe, "data": None}
    assert facts["guarantee"]["epsilon"] == drawn.epsilon == 8
    assert facts["estimated_accuracy"] is None  # the papers hold out no row
    plan = drawn.event["law"]
    assert (plan["law"]["law"], plan["sizes"], plan["validation_fraction"]) == (law, shares, 0)


def test_boosting_learns_as_it_was_told() -> None:
    """By likelihood with the library's own trees, by EM with few rows; and as the user says,
    whatever their number."""
    inputs = ArrayInputs("X", (2,), "float32")
    for n_rows, asked, expected, leaves in [
        (2000, "auto", "auto", 31),
        (1999, "auto", "em", 15),
        (1999, "none", "none", 15),
        (1999, "likelihood", "likelihood", 31),
    ]:
        learner = TabularLearner("boosting", inputs)
        learner.prepared(np.zeros((n_rows, 2)))
        made = learner.estimator(0, lambda *_: None, correction=asked)
        assert (made.correction, made.estimator.max_leaf_nodes) == (expected, leaves)


@pytest.mark.parametrize(
    ("correction", "loss"),
    [
        ("auto", "likelihood_loss"),
        ("likelihood", "likelihood_loss"),
        ("em", "posterior_loss"),
        ("debias", "debiased_loss"),
        ("none", "cross_entropy"),
    ],
)
def test_a_nets_correction_is_its_loss(correction: str, loss: str) -> None:
    pytest.importorskip("torch")
    from labeldp import deep
    from labeldp.deep._named import loss_for

    assert loss_for(correction) is getattr(deep, loss)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--correction", "guess"), "correction"),
        (("--stage-sizes", ".6,.4"), "Add --stages 2"),
        (("--temperature", 0.5), "Add --stages 2"),
        (("--filter", 1), "Add --stages 2"),
        (
            ("--stages", 2, "--stage-sizes", ".6"),
            "Expected --stage-sizes of one positive number for each of --stages 2, got 0.6.",
        ),
        (("--stages", 2, "--stage-sizes", "a,b"), "separated by commas"),
        (("--stages", 2, "--stage-sizes", "1,0"), "--stage-sizes"),
        (("--stages", 2, "--stage-sizes", "1,nan"), "--stage-sizes"),
        (("--stages", 2, "--temperature", 0), "temperature"),
        (("--stages", 2, "--temperature", "nan"), "temperature"),
        (("--stages", 2, "--filter", 0), "filter"),
        (("--stages", 2, "--filter", "median"), "filter"),
        (("--model", "proportions", "--correction", "none"), "asks clusters alone"),
        (("--recipe", "lp2st"), "one of lp-1st, lp-2st, lp-3st, alibi; got 'lp2st'"),
        (
            ("--recipe", "lp-2st:cifar"),
            "one of mnist, fashion_mnist, kmnist, cifar10, cifar100, movielens_1m; got 'cifar'",
        ),
        (("--recipe", "alibi:mnist"), "alibi without a data set"),
        (
            ("--recipe", "lp-2st", "--stages", 1),
            "--recipe lp-2st to decide law, stages and correction, got --stages, too. Leave it out",
        ),
        (
            ("--recipe", "lp-2st", "--law", "auto", "--correction", "auto"),
            "got --law and --correction, too. Leave them out",
        ),
        (
            ("--recipe", "lp-2st", "--temperature", 1, "--filter", 2, "--stage-sizes", "1"),
            "--stage-sizes and --temperature and --filter",
        ),
        (("--recipe", "lp-1st", "--prior", "clusters"), "got --prior, too"),
        (("--recipe", "lp-1st", "--model", "proportions"), "asks clusters alone"),
        (
            ("--recipe", "lp-1st:mnist", "--model", "boosting"),
            "Expected a net with the training of mnist, got model 'boosting'",
        ),
        (("--recipe", "lp-1st", "--epochs", 3), "Expected a net with --epochs"),
    ],
)
def test_faulty_stages_and_corrections_are_refused_before_the_charge(
    tmp_path: Path, options: tuple[object, ...], said: str
) -> None:
    ledger = tmp_path / "ledger.db"
    code, _, err = train(
        write(tmp_path / "in.csv", shop()),
        tmp_path / "m",
        "--id",
        "id",
        "--ledger",
        ledger,
        *options,
    )
    assert code in (2, 4) and said in " ".join(err.replace("│", " ").split()), err
    assert not ledger.exists() or not Ledger(ledger).runs()


def test_a_column_of_several_is_named_as_in_the_release_and_its_asked_rows_are_counted(
    tmp_path: Path,
) -> None:
    source, out, ledger = tmp_path / "in.csv", tmp_path / "out.csv", ("--ledger", tmp_path / "l.db")
    source.write_text(
        'id,x,"clicked, once",bought\n'
        + "".join(f"{i},{i % 7},{i % 2},{i % 3 // 2}\n" for i in range(600))
    )
    asked = (
        "--label",
        r"clicked\, once,bought",
        "--classes",
        "0,1",
        "--epsilon",
        4,
        "--split",
        "one",
        "--id",
        "id",
        "--dataset",
        "d",
    )
    assert run("release", source, *asked, *ledger, "--out", out)[0] == 0
    n_asked = int(ldp.read_noisy(out, "clicked, once").evidenced.sum())
    assert 0 < n_asked < 600
    for number, name in enumerate((r"clicked\, once", "clicked, once")):
        code, said, wrong = run(
            "train",
            out,
            "--label",
            name,
            "--model",
            "linear",
            *ledger,
            "--out",
            tmp_path / f"model{number}",
        )
        assert (
            code == 0 and f"a model of 600 rows ({n_asked} of them asked about this column)" in said
        ), wrong
        assert run("ledger", "budget", "--dataset", "d", "--label", name, *ledger)[1].strip() == "4"
        assert "clicked, once" in run("ledger", "spent", "--label", name, *ledger)[1]
    code, _, wrong = run("train", out, "--label", "clicked", *ledger, "--out", tmp_path / "model")
    assert code == 4 and "columns: id, x, 'clicked, once', bought, " in " ".join(wrong.split())


def test_strict_refuses_what_is_warned_of_before_the_charge(tmp_path: Path) -> None:
    """As of a release: a repeat, and rows over the cap, are not refused."""
    source = write(tmp_path / "in.csv", shop(200))
    bought = (
        "train",
        source,
        "--label",
        "bought",
        "--classes",
        "no,yes",
        "--id",
        "id",
        "--model",
        "linear",
        "--epsilon",
    )
    people = ",".join(f"p{number}" for number in range(100))
    who = (
        "train",
        source,
        "--label",
        "who",
        "--classes",
        people,
        "--dataset",
        "other",
        "--id",
        "id",
        "--model",
        "linear",
        "--epsilon",
        1,
    )
    cases = {
        "An epsilon of 9": (*bought, 9),
        "have the names of private columns of other data sets": who,
    }
    for number, (told, asked) in enumerate(cases.items()):
        code, _, said = run(*asked, "--strict", "--out", tmp_path / "refused")
        assert (
            code == 4
            and told in said
            and "--strict refuses this; nothing was charged." in said
            and "warning:" not in said
        )
        assert not (tmp_path / "refused").exists() and len(default_ledger().runs()) == number
        code, _, said = run(*asked, "--out", tmp_path / f"{number}")
        assert code == 0 and "warning: " in said and told in said
    code, said, warned = run(*bought, 9, "--strict", "--out", tmp_path / "repeat")
    assert (
        code == 0
        and "nothing was charged" in said
        and "warning: An epsilon of 9" in warned
        and "warning: Run " in warned
    )
    capped = (
        "--unit",
        "who",
        "--id",
        "id",
        "--model",
        "linear",
        "--strict",
        "--ledger",
        tmp_path / "new.db",
    )
    code, said, warned = train(source, tmp_path / "units", *capped, epsilon=1)
    assert code == 0 and "100 rows over the cap" in said and "are over the cap" in warned


def test_repeated_ids_of_labels_that_are_noisy_already_are_refused(tmp_path: Path) -> None:
    rows = shop(60)
    asked = (
        "--label",
        "bought",
        "--noisy",
        "--law",
        "rr",
        "--epsilon",
        2,
        "--classes",
        "no,yes",
        "--id",
        "id",
        "--model",
        "linear",
    )
    source = write(tmp_path / "twice.csv", rows | {"id": [0, *rows["id"][:-1]]})
    code, _, said = run("train", source, *asked, "--out", tmp_path / "m")
    assert (
        code == 4
        and "ids that are all different, got 1 that repeat" in said
        and not (tmp_path / "m").exists()
    )
    assert run("train", write(tmp_path / "once.csv", rows), *asked, "--out", tmp_path / "m")[0] == 0
    assert not default_ledger().exists()
