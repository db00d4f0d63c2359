# SPDX-License-Identifier: Apache-2.0
"""`labeldp train` and `labeldp predict`: gaps, categories, ids; what is charged, what is free, and which files are trusted."""

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sklearn.linear_model import LogisticRegression
from tests.cli.commands import SENTINEL, run

from labeldp.app.model_store import load_model, save_model
from labeldp.errors import InvalidInput
from labeldp.privacy.ledger import default_ledger

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
    return {"id": list(range(n)), "who": [f"p{i // 2}" for i in range(n)], "colour": colour, "price": price, "bought": bought}


def write(path: Path, columns: dict[str, list[Any]]) -> Path:
    if path.suffix == ".parquet":
        pq.write_table(pa.table(columns | {"day": pa.array(columns["id"], pa.date32()), "tags": [[i] for i in columns["id"]]}), path)
    else:
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(columns)
            writer.writerows(zip(*columns.values(), strict=True))
    return path


def train(source: Path, out: Path, *more: object, epsilon: float | None = 8.0) -> tuple[int, str, str]:
    paid = () if epsilon is None else ("--epsilon", epsilon, "--classes", "no,yes")
    return run("train", source, "--label", "bought", "--out", out, *paid, *more)


def accuracy_of(predictions: Path, truth: list[Any]) -> float:
    table = pq.read_table(predictions) if predictions.suffix == ".parquet" else pa.csv.read_csv(predictions)
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


def test_training_again_is_free_and_a_taken_folder_is_refused(tmp_path: Path) -> None:
    source = write(tmp_path / "in.csv", shop(400))
    assert train(source, tmp_path / "a", "--id", "id")[0] == 0
    assert train(source, tmp_path / "a", "--id", "id")[0] == 5
    assert train(source, tmp_path / "b", "--id", "id")[0] == 0
    assert len(default_ledger().runs()) == 1
    assert train(source, tmp_path / "c", "--id", "id", epsilon=9.0)[0] == 3
    assert not (tmp_path / "c").exists()


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
    assert run("predict", tmp_path / "model", write(tmp_path / "new.csv", fresh), "--out", tmp_path / "p.csv")[0] == 0
    assert accuracy_of(tmp_path / "p.csv", fresh["bought"]) > 0.8
    assert len(default_ledger().runs()) == 1


def test_units(tmp_path: Path) -> None:
    source = write(tmp_path / "in.csv", shop(400))
    code, said, _ = train(source, tmp_path / "m", "--unit", "who", "--max-rows-per-unit", 2, "--id", "id", "--stages", 1, "--json")
    assert code == 0
    assert json.loads(said)["guarantee"]["unit"] == "who"
    assert "who" not in {f["name"] for f in json.loads(said)["features"]["columns"]}


def test_errors_have_their_codes(tmp_path: Path) -> None:
    source = write(tmp_path / "in.csv", shop(100) | {"bought": ["yes", SENTINEL] * 50})
    code, _, said = train(source, tmp_path / "m")
    assert code == 4
    assert "row 1 " in said
    assert train(source, tmp_path / "m", epsilon=None)[0] == 4
    assert train(source, tmp_path / "m", epsilon=float("nan"))[0] == 2
    assert train(source, tmp_path / "m", "--stages", 0)[0] == 2
    assert train(tmp_path / "none.csv", tmp_path / "m")[0] == 5
    assert run("predict", tmp_path / "none", source, "--out", tmp_path / "p.csv")[0] == 5
    assert default_ledger().runs() == []
    assert [p.name for p in tmp_path.iterdir()] == ["in.csv"]


def test_prediction_needs_the_training_columns(tmp_path: Path) -> None:
    source = write(tmp_path / "in.csv", shop(400))
    assert train(source, tmp_path / "m", "--id", "id", "--stages", 1)[0] == 0
    fewer = {name: values for name, values in shop(50).items() if name != "price"}
    code, _, said = run("predict", tmp_path / "m", write(tmp_path / "new.csv", fewer), "--out", tmp_path / "p.csv")
    assert code == 4
    assert "'price'" in said
    wrong = shop(50) | {"price": ["cheap"] * 50}
    code, _, said = run("predict", tmp_path / "m", write(tmp_path / "new.csv", wrong), "--out", tmp_path / "p.csv")
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


def test_other_files_are_no_models(tmp_path: Path) -> None:
    facts = {"features": {"columns": [], "left_out": []}, "classes": ["a", "b"], "channel": None}
    save_model(tmp_path / "m", LogisticRegression(), facts)
    (tmp_path / "m" / "model.skops").write_bytes(b"no zip")
    with pytest.raises(InvalidInput, match="skops"):
        load_model(tmp_path / "m")
    (tmp_path / "m" / "model.json").write_text("{}")
    with pytest.raises(InvalidInput, match="model of format"):
        load_model(tmp_path / "m")
