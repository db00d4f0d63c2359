# SPDX-License-Identifier: Apache-2.0
"""`labeldp train` and `labeldp predict`: what is learned, charged, free, refused before a charge,
and what a model's file may hold."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from tests.cli.commands import SENTINEL, run

from labeldp.ledger._ledger import default_ledger
from labeldp.tables import read_noisy

pytestmark = pytest.mark.usefixtures("same_noise")  # what is learned is judged
N = 1200
PAID = ("--epsilon", 8, "--classes", "no,yes", "--id", "id")
SEVERAL = ("--label", "bought,rating", "--classes", "no,yes;1,2,3", "--id", "id")
NUMBER = ("--label", "income", "--range", "0:100:11", "--id", "id")
PRIVATE = ("bought", "rating", "income")


def shop(n: int = N, seed: int = 0) -> dict[str, Any]:
    """Buys if the colour is red or the price is low, from a day on; ratings and incomes by the
    price; with gaps."""
    rng = np.random.default_rng(seed)
    colour, price = (
        rng.choice(["red", "blue", "grün, hell"], n).tolist(),
        rng.uniform(0, 10, n).round(2),
    )
    day = np.datetime64("2024-01-01") + rng.integers(0, 600, n)
    bought = ["yes" if c == "red" or p < 3 else "no" for c, p in zip(colour, price, strict=True)]
    rows = {
        "id": list(range(n)),
        "who": [f"p{i // 2}" for i in range(n)],
        "colour": colour,
        "price": price.tolist(),
        "day": day.astype(str).tolist(),
        "bought": bought,
        "rating": (1 + (price > 3) + (price > 7)).tolist(),
        "income": (10 * price).round(1).tolist(),
    }
    for i in range(0, n, 17):
        rows["colour"][i] = rows["price"][(i * 7) % n] = None
    return rows


def write(path: Path, columns: dict[str, Any]) -> Path:
    (pq.write_table if path.suffix == ".parquet" else pa.csv.write_csv)(pa.table(columns), path)
    return path


def read(path: Path) -> pa.Table:
    return pq.read_table(path) if path.suffix == ".parquet" else pa.csv.read_csv(path)


def called(*args: object) -> tuple[int, str, str]:
    """A command, its errors in one line without the frame of typer."""
    code, said, err = run(*args)
    return code, said, " ".join(err.replace("│", " ").split())


def train(source: Path, out: Path, *more: object, label: str = "bought") -> tuple[int, str, str]:
    """Train for one column, of a table with several private ones."""
    named, names = () if "--label" in more else ("--label", label), read(source).column_names
    said = " ".join(map(str, (*named, *more)))
    others = [name for name in (*PRIVATE, "who") if name in names and name not in said]
    left = (
        ()
        if not others or "--features" in more or "--exclude" in more
        else ("--exclude", ",".join(others))
    )
    return called("train", source, *named, "--out", out, *more, *left)


def predicted(model: Path, source: Path, *more: object) -> pa.Table:
    out = model.parent / f"of-{model.name}-{source.name}"
    code, _, err = called("predict", model, source, "--out", out, *more)
    assert code == 0, err
    return read(out)


def right(found: list[Any], true: list[Any]) -> float:
    return float(np.mean([str(a) == str(b) for a, b in zip(found, true, strict=True)]))


@pytest.mark.parametrize(
    ("model", "ending"),
    [("auto", "csv"), ("linear", "parquet"), ("lightgbm", "csv"), ("counts", "parquet")],
)
def test_classes_are_learned_charged_once_and_predicted(
    tmp_path: Path, model: str, ending: str
) -> None:
    source, fresh = write(tmp_path / f"in.{ending}", shop()), shop(500, seed=1)
    code, said, err = train(source, tmp_path / "m", *PAID, "--model", model, "--json")
    assert code == 0, err
    facts = json.loads(said)
    assert facts["guarantee"] == {"unit": "row", "epsilon": 8.0, "delta": 0.0}
    kinds = {each["name"]: each["kind"] for each in facts["features"]["columns"]}
    assert kinds == {"colour": "category", "price": "number", "day": "time"}
    assert (
        (facts["clusters"]["number"] > 1)
        if model == "counts"
        else facts["estimated_accuracy"]["value"] > 0.6
    )
    assert sorted(p.name for p in (tmp_path / "m").iterdir()) == ["model.json", "model.skops"]
    rows = write(
        tmp_path / f"new.{'csv' if ending == 'parquet' else 'parquet'}",
        {k: v for k, v in fresh.items() if k not in PRIVATE},
    )
    table = predicted(tmp_path / "m", rows)
    assert table.column_names == ["id", "prediction", "probability_no", "probability_yes"]
    assert right(table["prediction"].to_pylist(), fresh["bought"]) > 0.8
    chances = np.column_stack(
        [table["probability_no"].to_numpy(), table["probability_yes"].to_numpy()]
    )
    np.testing.assert_allclose(chances.sum(axis=1), 1)
    assert table["prediction"].to_pylist() == [("no", "yes")[i] for i in chances.argmax(axis=1)]
    code, said, err = train(source, tmp_path / "again", *PAID, "--model", model)
    assert code == 0 and "Nothing was drawn, nothing was charged." in said, err
    assert default_ledger().spent("in", "bought") == 8.0 and len(default_ledger().runs()) == 1
    assert predicted(tmp_path / "again", rows).equals(table)


@pytest.mark.parametrize(
    ("model", "ending"), [("auto", "csv"), ("linear", "parquet"), ("lightgbm", "csv")]
)
def test_numbers_are_learned_and_predicted_and_are_a_prior(
    tmp_path: Path, model: str, ending: str
) -> None:
    source, truth = write(tmp_path / f"in.{ending}", shop()), np.array(shop(400, seed=1)["income"])
    code, said, err = train(source, tmp_path / "m", *NUMBER, "--epsilon", 6, "--model", model)
    assert code == 0 and "rmse " in said and "r2" in said, err
    table = predicted(
        tmp_path / "m",
        write(tmp_path / f"new.{ending}", shop(400, seed=1)),
        "--quantile",
        ".05,.95",
    )
    assert table.column_names == ["id", "prediction", "quantile_0.05", "quantile_0.95"]
    assert np.sqrt(np.mean((table["prediction"].to_numpy() - truth) ** 2)) < 0.6 * truth.std()
    inside = (table["quantile_0.05"].to_numpy() <= truth) & (
        truth <= table["quantile_0.95"].to_numpy()
    )
    assert inside.mean() > 0.75
    later = (
        "--epsilon",
        1,
        "--dataset",
        "later",
        "--prior",
        f"model:{tmp_path / 'm'}",
        "--out",
        tmp_path / f"later.{ending}",
    )
    code, _, err = called(
        "release", source, *NUMBER[:2], "--range", "0:999:11", "--id", "id", *later
    )
    assert code == 4 and "Declare those that it was trained on (--range LOW:HIGH:POINTS)." in err
    code, _, err = called("release", source, *NUMBER, *later)
    assert code == 0, err
    asked = np.abs(
        np.diff(read_noisy(tmp_path / f"later.{ending}").by_id(np.arange(N)).likelihood(), axis=1)
    ).argmax(axis=1)
    # thresholds are near the model's medians
    assert np.corrcoef(asked, shop()["income"])[0, 1] > 0.7


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_several_columns_are_charged_once_and_have_a_model_each(
    tmp_path: Path, ending: str
) -> None:
    source, fresh = write(tmp_path / f"in.{ending}", shop()), shop(400, seed=1)
    code, said, err = train(source, tmp_path / "m", *SEVERAL, "--epsilon", 6, "--model", "linear")
    assert code == 0 and "for 'bought', 'rating' together, 6-label-DP for each row." in said, err
    assert [line.split("'")[1] for line in said.splitlines() if line.startswith("'")] == [
        "bought",
        "rating",
    ]
    (charged,) = default_ledger().runs()
    assert (
        charged.receipt.columns == ("bought", "rating")
        and default_ledger().spent("in", ["bought", "rating"]) == 6.0
    )
    facts = json.loads((tmp_path / "m" / "model.json").read_text())
    assert [each["classes"] for each in facts["columns"]] == [
        ["no", "yes"],
        [1, 2, 3] if ending == "parquet" else list("123"),
    ]
    rows = write(tmp_path / f"new.{ending}", fresh)
    found, own = predicted(tmp_path / "m", rows), predicted(tmp_path / "m" / "column-2.skops", rows)
    assert right(found["prediction_bought"].to_pylist(), fresh["bought"]) > 0.7
    assert right(found["prediction_rating"].to_pylist(), fresh["rating"]) > 0.6
    assert own.column_names == [
        "id",
        "prediction",
        "probability_1",
        "probability_2",
        "probability_3",
    ]
    assert own["probability_2"].equals(found["probability_rating_2"])
    asked = (
        "--label",
        "rating",
        "--classes",
        "1,2,3",
        "--epsilon",
        1,
        "--id",
        "id",
        "--dataset",
        "later",
        "--out",
        tmp_path / "out.csv",
    )
    other = write(tmp_path / "other.csv", fresh)
    code, _, err = called("release", other, *asked, "--prior", f"model:{tmp_path / 'm'}")
    assert code == 5 and "has a file for each: name it" in err
    assert (
        run("release", other, *asked, "--prior", f"model:{tmp_path / 'm' / 'column-2.skops'}")[0]
        == 0
    )


@pytest.mark.parametrize("law", ["rr", "subset", "auto"])
def test_a_released_table_is_learned_at_no_charge(tmp_path: Path, law: str) -> None:
    rows = {
        name: values for name, values in shop().items() if name not in ("rating", "income", "who")
    }
    source, out, fresh = write(tmp_path / "in.csv", rows), tmp_path / "r.csv", shop(500, seed=1)
    assert run("release", source, "--label", "bought", *PAID, "--law", law, "--out", out)[0] == 0
    code, said, err = train(out, tmp_path / "m", "--model", "linear", "--json")
    assert code == 0, err
    facts = json.loads(said)
    assert facts["trained_on"] == "released table" and [
        each["name"] for each in facts["features"]["columns"]
    ] == ["colour", "price", "day"]
    table = predicted(tmp_path / "m", write(tmp_path / "new.csv", fresh))
    assert table.column_names[0] == "id"  # the release knows the id column; nobody named it again
    assert (
        right(table["prediction"].to_pylist(), fresh["bought"]) > 0.75
        and len(default_ledger().runs()) == 1
    )
    pa.csv.write_csv(read(out).slice(9, 400), some := tmp_path / "some.csv")
    code, said, err = train(some, tmp_path / "some", "--released", out, "--model", "linear")
    assert code == 0 and "a model of 400 rows" in said, err
    for number, (more, message) in enumerate(
        (
            (("--epsilon", 8), "Expected no --epsilon with a released table"),
            (("--stages", 2), "--stages"),
            (("--classes", "yes,no"), "--classes"),
            (("--id", "colour", "--unit", "price"), "--id, --unit"),
            (("--law", "split"), "--law"),
            (("--model", "counts"), "cannot be asked"),
            (("--features", "bought"), "besides label, ids and unit"),
        )
    ):
        code, _, err = train(out, tmp_path / f"{number}", *more)
        assert code == 4 and message in err, (more, err)
    Path(f"{out}.manifest.json").rename(tmp_path / "moved.json")
    code, _, err = train(out, tmp_path / "without")
    assert code == 4 and "manifest" in err
    named = ("--manifest", tmp_path / "moved.json", "--id", "id")
    assert train(out, tmp_path / "named", *named)[0] == 0


@pytest.mark.parametrize("split", ["equal", "one", "joint"])
def test_columns_of_a_joint_release_are_learned_at_no_charge(tmp_path: Path, split: str) -> None:
    source, out = (
        write(tmp_path / "in.csv", {k: v for k, v in shop().items() if k != "who"}),
        tmp_path / "out.csv",
    )
    names = (
        "--label",
        "bought,rating,income",
        "--classes",
        "bought=no,yes;rating=1,2,3",
        "--range",
        "income=0:100:5",
    )
    code, _, err = called(
        "release", source, *names, "--id", "id", "--epsilon", 9, "--split", split, "--out", out
    )
    assert code == 0, err
    code, said, err = train(
        out, tmp_path / "two", "--label", "rating,bought", "--model", "linear", "--exclude", "id"
    )
    assert (
        code == 0
        and "together, 9-label-DP for each row (proven)." in said
        and "nothing was charged" in said
    ), err
    assert "No features, since releases drew them from private columns: income." in said
    code, said, err = train(
        out, tmp_path / "one", "--label", "income", "--model", "linear", "--features", "price"
    )
    assert code == 0 and "rmse" in said, err
    for more, message in (
        (("--label", "bought,income"), "got numbers in 'income'"),
        (("--label", "bought,price"), "did not draw 'price'. Train for one at a time"),
        (
            ("--label", "bought,rating", "--classes", "no,yes;3,2,1"),
            "Expected no --classes",
        ),
    ):
        code, _, err = train(out, tmp_path / "none", *more)
        assert code == 4 and message in err, err


def test_units_ids_and_budgets_hold(tmp_path: Path) -> None:
    source = write(tmp_path / "in.csv", shop(400) | {"barcode": list(range(9, 409))})
    code, said, err = train(
        source,
        tmp_path / "m",
        *PAID,
        "--unit",
        "who",
        "--max-rows-per-unit",
        2,
        "--model",
        "linear",
        "--json",
    )
    assert code == 0 and json.loads(said)["guarantee"]["unit"] == "who", err
    assert "who" not in {each["name"] for each in json.loads(said)["features"]["columns"]}
    assert train(source, tmp_path / "m", *PAID, "--dataset", "new")[0] == 5  # the folder is taken
    code, _, err = train(source, tmp_path / "a", *PAID, "--model", "linear", "--dataset", "rows")
    assert code == 0 and default_ledger().spent("rows", "bought") == 8
    code, _, err = train(
        source, tmp_path / "b", *PAID[:-1], "barcode", "--model", "linear", "--dataset", "rows"
    )
    assert code == 3 and "is spent; got epsilon" in err  # other ids hide no rows
    code, _, err = train(
        source, tmp_path / "c", *PAID[:1], 9, *PAID[2:], "--model", "linear", "--dataset", "rows"
    )
    assert code == 3 and not (tmp_path / "c").exists()
    assert (
        run("ledger", "set-budget", "--dataset", "rows", "--label", "bought", "--budget", 17)[0]
        == 0
    )
    code, said, err = train(
        source, tmp_path / "d", *PAID[:1], 9, *PAID[2:], "--model", "linear", "--dataset", "rows"
    )
    assert code == 0 and "Charged epsilon 9." in said, err
    spent = train(
        source, tmp_path / "e", *NUMBER, "--epsilon", 1, "--model", "linear", "--dataset", "rows"
    )[1]
    assert "'bought', 'income'" in spent
    code, _, err = train(source, tmp_path / "f", *PAID, "--exclude", "rating", "--dataset", "rows")
    assert code == 4 and "got 'income', which the ledger has charged as private" in err


def test_inferred_classes_and_missing_labels_are_said_aloud(tmp_path: Path) -> None:
    rows = shop(300) | {"bought": ["yes", "no", None] * 100}
    source = write(tmp_path / "in.parquet", rows)
    code, said, err = train(
        source, tmp_path / "m", *PAID, "--null-class", "--model", "linear", "--json"
    )
    assert code == 0 and json.loads(said)["classes"] == ["no", "yes", None], err
    assert "probability_" in predicted(tmp_path / "m", source).column_names
    source = write(tmp_path / "whole.csv", shop(300))
    code, said, err = train(
        source, tmp_path / "n", "--classes", "infer", "--epsilon", 2, "--model", "linear"
    )
    assert (
        code == 0 and "except which classes occur" in said and "read off the private labels" in err
    )


def test_many_categories_are_for_a_linear_model(tmp_path: Path) -> None:
    """Even campaigns sell; boosting knows 254 of 300, and of the others only that half of them
    do."""
    rng = np.random.default_rng(0)
    campaign = rng.permutation(np.arange(6000) % 300)
    sold = np.where((campaign % 2 == 0) == (rng.random(6000) < 0.98), "yes", "no")
    source = write(
        tmp_path / "t.parquet",
        {"id": np.arange(6000), "campaign": [f"k{c}" for c in campaign], "bought": sold},
    )
    correct = {}
    for model in ("auto", "boosting"):
        code, _, err = train(source, tmp_path / model, *PAID, "--model", model)
        assert code == 0, err
        p = predicted(tmp_path / model, source)["probability_yes"].to_numpy()
        correct[model] = np.mean((p > 0.5) == (campaign % 2 == 0))
    assert correct["auto"] > 0.97 and correct["boosting"] < 0.95


def test_how_a_column_is_read_follows_from_its_type_or_its_values(tmp_path: Path) -> None:
    """A time is the same number in every type; text of digits in a typed table is a category, and
    lists are left out."""
    n, day = 60, pa.array((np.datetime64("2024-01-01") + np.arange(60)).astype("datetime64[D]"))
    columns = {
        "year": [str(1990 + i % 9) for i in range(n)],
        "day": day,
        "at": day.cast(pa.timestamp("ms")),
        "lasting": [1.5] * n,
    }
    columns |= {
        "flag": [i % 2 == 0 for i in range(n)],
        "late": ["2024-01-01"] * (n - 1) + ["soon"],
        "gone": [None] * n,
    }
    typed = pa.table(
        columns
        | {
            "lasting": pa.array(range(n), pa.duration("s")),
            "bought": ["no", "yes"] * 30,
            "id": range(n),
        }
    )
    pq.write_table(
        typed.append_column("tags", pa.array([[i] for i in range(n)])), tmp_path / "in.parquet"
    )
    asked = (
        "--classes",
        "no,yes",
        "--epsilon",
        4,
        "--model",
        "linear",
        "--exclude",
        "id,gone",
        "--json",
    )
    code, said, err = train(tmp_path / "in.parquet", tmp_path / "m", *asked)
    found = json.loads(said)["features"]
    kinds = {each["name"]: each["kind"] for each in found["columns"]}
    assert code == 0 and found["left_out"] == ["tags"], err
    assert kinds == {
        "year": "category",
        "day": "time",
        "at": "time",
        "lasting": "time",
        "flag": "number",
        "late": "category",
    }
    written = typed.select(["year", "day", "at", "flag", "late", "bought", "id"]).set_column(
        3, "flag", pa.array(np.arange(n) % 2)
    )
    pa.csv.write_csv(written.append_column("gone", pa.array(["NA"] * n)), tmp_path / "in.csv")
    code, said, err = train(tmp_path / "in.csv", tmp_path / "n", *asked, "--dataset", "written")
    kinds |= {"year": "number"}
    assert code == 0 and {
        each["name"]: each["kind"] for each in json.loads(said)["features"]["columns"]
    } == {name: kind for name, kind in kinds.items() if name != "lasting"}, err
    same = predicted(tmp_path / "n", tmp_path / "in.csv")["probability_yes"].to_numpy()
    pq.write_table(
        written.set_column(0, "year", written["year"].cast(pa.int32())), tmp_path / "typed.parquet"
    )
    np.testing.assert_allclose(
        predicted(tmp_path / "n", tmp_path / "typed.parquet")["probability_yes"].to_numpy(), same
    )


def test_predictions_carry_ids_and_need_the_features(tmp_path: Path) -> None:
    source = write(tmp_path / "in.csv", shop(300))
    assert train(source, tmp_path / "m", *PAID, "--model", "linear")[0] == 0
    rows = shop(3) | {"id": ["007", "8", "9"]}
    found = predicted(tmp_path / "m", write(tmp_path / "new.parquet", rows))["id"]
    assert found.to_pylist() == rows["id"]
    cheap = {name: values for name, values in shop(3).items() if name != "price"}
    for columns, message in (
        (cheap, "'price'"),
        (cheap | {"price": ["low"] * 3}, "numbers in column"),
    ):
        wrong = write(tmp_path / "wrong.csv", columns)
        code, _, err = called("predict", tmp_path / "m", wrong, "--out", tmp_path / "none.csv")
        assert code == 4 and message in err and not (tmp_path / "none.csv").exists()


def test_a_models_file_builds_known_types_only_and_predicts_like_the_estimator(
    tmp_path: Path,
) -> None:
    skops = pytest.importorskip("skops.io")
    assert (
        train(write(tmp_path / "in.csv", shop(300)), tmp_path / "m", *PAID, "--model", "linear")[0]
        == 0
    )
    stored = tmp_path / "m" / "model.skops"
    assert all(
        "labeldp" in kind or "sklearn" in kind or "numpy" in kind
        for kind in skops.get_untrusted_types(file=stored)
    )
    stored.write_bytes(b"no zip")
    code, _, err = called(
        "predict", tmp_path / "m", tmp_path / "in.csv", "--out", tmp_path / "p.csv"
    )
    assert code == 4 and "Expected a model in the format of skops" in err
    skops.dump(np.asarray, stored)
    code, _, err = called(
        "predict", tmp_path / "m", tmp_path / "in.csv", "--out", tmp_path / "p.csv"
    )
    assert code == 4 and "numpy.asarray" in err
    code, _, err = called(
        "predict",
        tmp_path / "m",
        tmp_path / "in.csv",
        "--out",
        tmp_path / "p.csv",
        "--trust",
        "numpy.asarray",
    )
    assert code == 4 and "Expected a model that labeldp train wrote" in err
    assert (
        called("predict", tmp_path / "nothing", tmp_path / "in.csv", "--out", tmp_path / "p.csv")[0]
        == 5
    )


def test_lightgbm_stores_trees_and_no_row_of_the_training(tmp_path: Path) -> None:
    """Its own objective holds the likelihood of each row."""
    lightgbm, skops = pytest.importorskip("lightgbm"), pytest.importorskip("skops.io")
    assert (
        train(write(tmp_path / "in.csv", shop()), tmp_path / "m", *PAID, "--model", "lightgbm")[0]
        == 0
    )
    file = tmp_path / "m" / "model.skops"
    kinds = skops.get_untrusted_types(file=file)
    assert "labeldp.learn._boosting._Loss" not in kinds and "lightgbm.basic.Booster" in kinds
    model = skops.load(file, trusted=kinds).model.estimator
    trees, rows = model.estimator_.booster_, np.random.default_rng(0).uniform(0, 10, (50, 3))
    assert isinstance(trees, lightgbm.Booster)
    logits = model.start_[1] - model.start_[0] + model.factor_ * trees.predict(rows, raw_score=True)
    np.testing.assert_allclose(
        model.predict_proba(rows)[:, 1], 1 / (1 + np.exp(-logits)), rtol=1e-6
    )


REFUSED: dict[str, tuple[tuple[object, ...], int, str]] = {
    "no budget": (
        ("--classes", "no,yes"),
        4,
        "Expected a released table, or epsilon for raw labels",
    ),
    "no classes": (("--epsilon", 1), 4, "Expected the classes that a label can have"),
    "an epsilon of 0": (("--epsilon", 0, "--classes", "no,yes"), 2, "0 < epsilon < inf"),
    "an unknown model": (
        (*PAID, "--model", "forest"),
        2,
        "one of auto, boosting, linear, lightgbm, counts",
    ),
    "an unknown law": ((*PAID, "--law", "rrr"), 2, "rr"),
    "no stages": ((*PAID, "--stages", 0), 2, "n_stages"),
    "stages of counts": ((*PAID, "--stages", 2, "--model", "counts"), 2, "asks clusters alone"),
    "a law of counts": (
        (*PAID, "--law", "rr", "--model", "counts"),
        2,
        "no law with model='counts'",
    ),
    "a cap without a unit": ((*PAID, "--max-rows-per-unit", 2), 2, "--unit"),
    "the label as an id": (
        (*PAID[:-1], "bought"),
        2,
        "Expected id to name public columns, got the label column 'bought'",
    ),
    "the label as the unit": (
        (*PAID, "--unit", "bought"),
        2,
        "Expected unit to name public columns, got the label column 'bought'",
    ),
    "the label as a feature": ((*PAID, "--features", "price,bought"), 4, "got 'bought' among them"),
    "an absent feature": ((*PAID, "--features", "absent"), 4, "absent"),
    "no feature": ((*PAID, "--features", "price", "--exclude", "price"), 4, "at least one column"),
    "an undeclared label": (
        (*PAID, "--label", "odd"),
        4,
        "Expected every label of column 'odd' to be one of the",
    ),
    "a missing label": ((*PAID, "--label", "gaps"), 4, "--null-class"),
    "an id called like a prediction": (
        (*PAID[:-1], "prediction"),
        4,
        "got two columns 'prediction'",
    ),
    "a range reversed": (
        ("--label", "income", "--range", "100:0", "--epsilon", 1),
        2,
        "lower end first",
    ),
    "half a range": (("--label", "income", "--range", "100", "--epsilon", 1), 2, "LOW:HIGH"),
    "a range and classes": ((*NUMBER, "--classes", "a,b", "--epsilon", 1), 2, "Leave one out"),
    "counts of numbers": (
        (*NUMBER, "--model", "counts", "--epsilon", 1),
        2,
        "Expected one label column of classes",
    ),
    "a range of text": (
        ("--label", "odd", "--range", "0:1", "--epsilon", 1),
        4,
        "to be a finite number",
    ),
    "a number among several": (
        (
            "--label",
            "bought,income",
            "--classes",
            "no,yes",
            "--range",
            "income=0:9",
            "--epsilon",
            1,
        ),
        2,
        "got numbers in 'income'",
    ),
    "one column twice": (
        ("--label", "bought,bought", "--classes", "no,yes", "--epsilon", 1),
        2,
        "got one twice",
    ),
    "classes of three": (
        (*SEVERAL[:2], "--classes", "a,b;a,b;a,b", "--epsilon", 1),
        2,
        "got 3 lists",
    ),
    "no classes of several": (
        (*SEVERAL[:2], "--epsilon", 1),
        4,
        "Expected the classes that a label can have",
    ),
    "counts of several": (
        (*SEVERAL, "--model", "counts", "--epsilon", 1),
        2,
        "Expected one label column",
    ),
    "columns of one name": (
        ("--label", "a,a_b", "--classes", "b_c,x;c,x", "--epsilon", 1),
        4,
        "got two columns 'probability_a_b_c'",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_is_not_charged(tmp_path: Path, name: str) -> None:
    more, expected, message = REFUSED[name]
    rows = shop(200) | {
        "odd": ["no"] * 199 + [SENTINEL],
        "gaps": ["no", ""] * 100,
        "a": ["b_c", "x"] * 100,
        "a_b": ["c", "x"] * 100,
    }
    code, said, err = train(
        write(tmp_path / "in.csv", rows | {"prediction": range(200)}), tmp_path / "m", *more
    )
    assert code == expected and message in err, said + err
    assert not (tmp_path / "m").exists() and not default_ledger().exists()
