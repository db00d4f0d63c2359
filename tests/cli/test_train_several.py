# SPDX-License-Identifier: Apache-2.0
"""`labeldp train` and `labeldp predict` on several label columns: one charge, a model of each
column, and what is refused before it."""

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from tests.cli.commands import SENTINEL, run

import labeldp as ldp
from labeldp.app._model import load_models
from labeldp.app._train import DRAWN, EvidenceSpec, TrainSpec
from labeldp.errors import InvalidInput

pytestmark = pytest.mark.usefixtures("same_noise")  # what is learned is judged
N = 1500
LABELS = ("--label", "clicked,bought,rating", "--classes", "no,yes;no,yes;1,2,3")
NAMES = ["clicked", "bought", "rating"]


def people(n: int = N, seed: int = 0) -> dict[str, list[Any]]:
    """Clicks by x, buys by z, rates by both; with gaps."""
    rng = np.random.default_rng(seed)
    x, z = rng.normal(size=n), rng.normal(size=n)
    found: dict[str, list[Any]] = {
        "id": list(range(n)),
        "who": [f"p{i // 2}" for i in range(n)],
        "x": x.tolist(),
        "z": z.tolist(),
    }
    found["colour"] = np.array(["red", "blue"])[rng.integers(0, 2, n)].tolist()
    for i in range(0, n, 19):
        found["colour"][i] = None
    found["clicked"] = np.where(x > 0, "yes", "no").tolist()
    found["bought"] = np.where(z > 0, "yes", "no").tolist()
    found["rating"] = (1 + (x + z > -0.7) + (x + z > 0.7)).tolist()
    return found


def write(path: Path, columns: dict[str, list[Any]]) -> Path:
    if path.suffix == ".parquet":
        pq.write_table(pa.table(columns), path)
        return path
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        writer.writerows(zip(*columns.values(), strict=True))
    return path


def ledger_of(folder: Path) -> ldp.Ledger:
    return ldp.Ledger(folder / "l.db")


def train(source: Path, out: Path, *more: object) -> tuple[int, str, str]:
    code, said, err = run("train", source, "--out", out, "--ledger", out.parent / "l.db", *more)
    return code, said, " ".join(err.replace("│", " ").split())


def predictions(model: Path, rows: Path, out: Path) -> pa.Table:
    code, _, err = run("predict", model, rows, "--out", out)
    assert code == 0, err
    return pq.read_table(out) if out.suffix == ".parquet" else pyarrow.csv.read_csv(out)


@pytest.mark.parametrize(
    ("model", "ending"), [("linear", "csv"), ("linear", "parquet"), ("boosting", "csv")]
)
def test_raw_columns_are_charged_once_learned_and_predicted(
    tmp_path: Path, model: str, ending: str
) -> None:
    source = write(tmp_path / f"in.{ending}", people())
    asked = (*LABELS, "--epsilon", 6, "--id", "id", "--dataset", "d", "--model", model)
    code, said, err = train(source, tmp_path / "m", *asked, "--exclude", "who")
    assert code == 0, err
    assert (
        "a model of 1,500 rows for each of the columns 'clicked', 'bought', 'rating', together"
        " 6-label-DP for each row." in said
    )
    assert [
        line.split("'")[1] for line in said.splitlines() if "Estimated accuracy" in line
    ] == NAMES
    assert "Charged epsilon 6." in said
    ledger = ledger_of(tmp_path)
    (charged,) = ledger.runs()
    assert charged.columns == tuple(NAMES) and [ledger.spent("d", name) for name in NAMES] == [
        6.0,
        6.0,
        6.0,
    ]
    assert ledger.spent("d", NAMES) == 6.0

    facts = json.loads((tmp_path / "m" / "model.json").read_text())
    assert (
        facts["guarantee"] == {"unit": "row", "epsilon": 6.0, "delta": 0.0}
        and len(facts["receipts"]) == 1
    )
    assert [each["label"] for each in facts["columns"]] == NAMES and facts["trained_on"] == DRAWN
    assert [each["classes"] for each in facts["columns"]] == [
        ["no", "yes"],
        ["no", "yes"],
        [1, 2, 3] if ending == "parquet" else list("123"),
    ]
    assert all(each["estimated_accuracy"]["value"] > 0.6 for each in facts["columns"])
    assert [each["name"] for each in facts["features"]["columns"]] == ["x", "z", "colour"]

    new = people(400, seed=1)
    rows = write(
        tmp_path / f"new.{ending}", {name: new[name] for name in ("id", "x", "z", "colour")}
    )
    found = predictions(tmp_path / "m", rows, tmp_path / f"p.{ending}")
    assert found.column_names == [
        *("id", "prediction_clicked", "probability_clicked_no", "probability_clicked_yes"),
        *("prediction_bought", "probability_bought_no", "probability_bought_yes"),
        *(
            "prediction_rating",
            "probability_rating_1",
            "probability_rating_2",
            "probability_rating_3",
        ),
    ]
    # commonest classes: 0.5, 0.5, 0.4
    for name, least in zip(NAMES, (0.85, 0.85, 0.65), strict=True):
        own = found[f"prediction_{name}"].to_pylist()
        assert np.mean([str(a) == str(b) for a, b in zip(own, new[name], strict=True)]) > least
        chances = np.column_stack(
            [
                found[c].to_numpy()
                for c in found.column_names
                if c.startswith(f"probability_{name}_")
            ]
        )
        np.testing.assert_allclose(chances.sum(axis=1), 1.0)

    code, said, err = train(source, tmp_path / "again", *asked, "--exclude", "who")
    assert (
        code == 0
        and "Nothing was drawn, nothing was charged." in said
        and "has answered this request" in err
    )
    assert len(ledger.runs()) == 1


def test_a_column_has_a_model_of_its_own(tmp_path: Path) -> None:
    """It predicts what the model of all predicts, and is the prior of a release, for which the
    model of all is refused."""
    source, other = (
        write(tmp_path / "in.csv", people(600)),
        write(tmp_path / "other.csv", people(200, seed=1)),
    )
    assert (
        train(
            source,
            tmp_path / "m",
            *LABELS,
            "--epsilon",
            6,
            "--id",
            "id",
            "--model",
            "linear",
            "--exclude",
            "who",
        )[0]
        == 0
    )
    all_of_them = predictions(tmp_path / "m", other, tmp_path / "p.csv")
    own = predictions(tmp_path / "m" / "column-3", other, tmp_path / "p3.csv")
    assert own.column_names == [
        "id",
        "prediction",
        "probability_1",
        "probability_2",
        "probability_3",
    ]
    assert own["probability_2"].equals(all_of_them["probability_rating_2"])
    code, _, err = run(
        "predict", tmp_path / "m", other, "--out", tmp_path / "q.csv", "--quantile", ".5"
    )
    assert code == 2 and "a model of classes, which have none" in " ".join(
        err.replace("│", " ").split()
    )
    asked = (
        "--label",
        "rating",
        "--classes",
        "1,2,3",
        "--epsilon",
        1,
        "--id",
        "id",
        "--ledger",
        tmp_path / "l2.db",
    )
    code, _, err = run(
        "release", other, *asked, "--prior-model", tmp_path / "m", "--out", tmp_path / "out.csv"
    )
    assert (
        code == 4
        and "Expected the model of one label column" in err
        and "column-1" in err
        and not ldp.Ledger(tmp_path / "l2.db").runs()
    )
    assert (
        run(
            "release",
            other,
            *asked,
            "--prior-model",
            tmp_path / "m" / "column-3",
            "--out",
            tmp_path / "out.csv",
        )[0]
        == 0
    )


def test_it_says_how_many_rows_were_asked_about_each(tmp_path: Path) -> None:
    source = write(tmp_path / "in.csv", people())
    asked = (
        "--label",
        "clicked,bought",
        "--classes",
        "no,yes",
        "--epsilon",
        4,
        "--id",
        "id",
        "--model",
        "linear",
    )
    code, said, err = train(
        source,
        tmp_path / "m",
        *asked,
        "--split",
        "one",
        "--json",
        "--exclude",
        "rating",
    )
    assert code == 0, err
    counts = [each["rows_asked"] for each in json.loads(said)["columns"]]
    # 750 of 1,500 are expected; beyond with a probability below 1e-10
    assert sum(counts) == N and 625 < counts[0] < 875
    code, said, err = train(
        source,
        tmp_path / "shown",
        *asked,
        "--split",
        "one",
        "--exclude",
        "rating",
    )
    assert (
        code == 0
        and f"\n'clicked' ({counts[0]} rows asked):" in said
        and "nothing was charged" in said
    )


@pytest.mark.parametrize(
    "more",
    [
        ("--split", "joint"),
        ("--split", "joint", "--stages", 2),
        ("--stages", 2, "--law", "auto"),
        ("--law", "rr"),
        ("--prior", "clusters:4,eps=1"),
        ("--unit", "who", "--max-rows-per-unit", 2),
        ("--correction", "none"),
        ("--model", "lightgbm"),
    ],
)
def test_what_one_column_has_several_have(tmp_path: Path, more: tuple[object, ...]) -> None:
    source = write(tmp_path / "in.csv", people(600))
    asked = (
        "--label",
        "clicked,bought",
        "--classes",
        "no,yes",
        "--epsilon",
        6,
        "--id",
        "id",
        "--exclude",
        "rating",
    )
    code, said, err = train(
        source, tmp_path / "m", *asked, *(() if "--model" in more else ("--model", "linear")), *more
    )
    assert code == 0 and "together 6-label-DP for each" in said, err
    ledger = ledger_of(tmp_path)
    assert ledger.spent("in", "clicked") == ledger.spent("in", "bought") == 6.0
    found = predictions(tmp_path / "m", source, tmp_path / "p.csv")
    assert {"prediction_clicked", "prediction_bought"} < {*found.column_names}


@pytest.mark.parametrize(
    "more", [(), ("--nets", 2), ("--stages", 2), ("--split", "one"), ("--correction", "em")]
)
def test_a_net_has_a_head_for_each_column(tmp_path: Path, more: tuple[object, ...]) -> None:
    pytest.importorskip("torch")
    source = write(tmp_path / "in.csv", people())
    asked = (*LABELS, "--epsilon", 6, "--id", "id", "--model", "mlp", "--exclude", "who")
    code, said, err = train(source, tmp_path / "m", *asked, *more)
    assert code == 0 and "together 6-label-DP for each row." in said, err
    assert [
        line.split("'")[1] for line in said.splitlines() if "Estimated accuracy" in line
    ] == NAMES
    assert len(ledger_of(tmp_path).runs()) == 1
    new = people(400, seed=1)
    found = predictions(tmp_path / "m", write(tmp_path / "new.csv", new), tmp_path / "p.csv")
    for name, least in zip(NAMES, (0.8, 0.8, 0.6), strict=True):  # commonest classes: 0.5, 0.5, 0.4
        assert (
            np.mean(
                [
                    str(a) == str(b)
                    for a, b in zip(found[f"prediction_{name}"].to_pylist(), new[name], strict=True)
                ]
            )
            > least
        )
    # the prior of a later release, too
    own = predictions(tmp_path / "m" / "column-3", tmp_path / "new.csv", tmp_path / "p3.csv")
    assert own["probability_2"].equals(found["probability_rating_2"])


def test_a_net_learns_some_columns_of_a_release(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    source, out = write(tmp_path / "in.csv", people()), tmp_path / "out.csv"
    assert (
        run(
            "release",
            source,
            *LABELS,
            "--epsilon",
            6,
            "--id",
            "id",
            "--ledger",
            tmp_path / "l.db",
            "--out",
            out,
        )[0]
        == 0
    )
    code, said, err = train(
        out, tmp_path / "m", "--label", "rating,clicked", "--model", "mlp", "--exclude", "who"
    )
    assert (
        code == 0 and "'rating', 'clicked', together 6-label-DP for each row (proven)." in said
    ), err
    new = people(400, seed=1)
    found = predictions(tmp_path / "m", write(tmp_path / "new.csv", new), tmp_path / "p.csv")
    for name, least in (("rating", 0.6), ("clicked", 0.8)):
        assert (
            np.mean(
                [
                    str(a) == str(b)
                    for a, b in zip(found[f"prediction_{name}"].to_pylist(), new[name], strict=True)
                ]
            )
            > least
        )


def test_images_have_several_labels(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    light, dark = np.random.default_rng(0).integers(0, 2, (2, 400))
    images = np.zeros((400, 8, 8), np.uint8)
    images[:, :4] = 200 * light[:, None, None]
    images[:, 4:, ::2] = 200 * dark[:, None, None]
    np.savez(tmp_path / "in.npz", X=images, light=light, dark=dark)
    asked = (
        "--label",
        "light,dark",
        "--classes",
        "0,1",
        "--epsilon",
        8,
        "--model",
        "small-convnet",
        "--epochs",
        8,
    )
    code, _, err = train(tmp_path / "in.npz", tmp_path / "m", *asked)
    assert code == 0, err
    found = predictions(tmp_path / "m", tmp_path / "in.npz", tmp_path / "p.parquet")
    assert (
        np.mean(found["prediction_light"].to_numpy() == light) > 0.8
        and np.mean(found["prediction_dark"].to_numpy() == dark) > 0.8
    )


def test_arrays_have_several_labels(tmp_path: Path) -> None:
    rows = people(600)
    X = np.column_stack([rows["x"], rows["z"]])
    np.savez(
        tmp_path / "in.npz",
        X=X,
        clicked=np.array(rows["clicked"]),
        rating=np.array(rows["rating"]),
        id=np.arange(600),
    )
    np.save(tmp_path / "new.npy", X[:50])
    asked = (
        "--label",
        "clicked,rating",
        "--classes",
        "no,yes;1,2,3",
        "--epsilon",
        6,
        "--id",
        "id",
        "--model",
        "linear",
    )
    code, _, err = train(tmp_path / "in.npz", tmp_path / "m", *asked)
    assert code == 0, err
    found = predictions(tmp_path / "m", tmp_path / "new.npy", tmp_path / "p.parquet")
    assert found["prediction_rating"].type == pa.int64() and found.num_rows == 50


def test_classes_are_given_by_name_or_by_place(tmp_path: Path) -> None:
    source, released = write(tmp_path / "in.csv", people(60)), []
    asked = (
        "--label",
        "clicked,bought,rating",
        "--epsilon",
        6,
        "--id",
        "id",
        "--ledger",
        tmp_path / "l.db",
    )
    for number, classes in enumerate(
        ("no,yes;no,yes;1,2,3", "rating=1,2,3;clicked=no,yes; bought =no,yes")
    ):
        code, _, err = run(
            "release", source, *asked, "--classes", classes, "--out", tmp_path / f"{number}.csv"
        )
        assert code == 0, err
        released.append((tmp_path / f"{number}.csv").read_bytes())
    assert released[0] == released[1] and len(ledger_of(tmp_path).runs()) == 1
    for classes in (
        "rating=1,2,3",
        "rating=1,2,3;rating=no,yes;bought=no,yes",
        "rating=1,2,3;clicked=no,yes;bought=no,yes;bought=a",
    ):
        assert (
            run("release", source, *asked, "--classes", classes, "--out", tmp_path / "no.csv")[0]
            != 0
        )
    with_range = ("--classes", "bought=no,yes;clicked=no,yes", "--range", "rating=1:3", "--grid", 3)
    # the budget is spent
    assert (
        run("release", source, *asked, *with_range, "--redraw", "--out", tmp_path / "range.csv")[0]
        != 0
    )
    assert (
        run(
            "release",
            source,
            *asked[:4],
            *with_range,
            *asked[4:-1],
            tmp_path / "new.db",
            "--out",
            tmp_path / "range.csv",
        )[0]
        == 0
    )


@pytest.mark.parametrize(
    ("split", "ending"), [("equal", "csv"), ("one", "parquet"), ("joint", "csv")]
)
def test_columns_of_a_joint_release_are_learned_at_no_charge(
    tmp_path: Path, split: str, ending: str
) -> None:
    """All of them, or some in any order; the others and the evidence are no features."""
    source, out = write(tmp_path / f"in.{ending}", people()), tmp_path / f"out.{ending}"
    paid = ("--epsilon", 6, "--id", "id", "--split", split, "--ledger", tmp_path / "l.db")
    assert run("release", source, *LABELS, *paid, "--out", out)[0] == 0
    rows = write(tmp_path / f"new.{ending}", people(400, seed=1))
    for number, names in enumerate((NAMES, ["rating", "clicked"])):
        code, said, err = train(
            out,
            tmp_path / f"m{number}",
            "--label",
            ",".join(names),
            "--model",
            "linear",
            "--exclude",
            "who",
        )
        assert code == 0 and "together 6-label-DP for each row (proven)." in said, err
        assert (
            "Nothing was drawn, nothing was charged." in said
            and len(ledger_of(tmp_path).runs()) == 1
        )
        facts = json.loads((tmp_path / f"m{number}" / "model.json").read_text())
        assert [each["label"] for each in facts["columns"]] == names
        assert [each["name"] for each in facts["features"]["columns"]] == ["x", "z", "colour"]
        found, true = (
            predictions(tmp_path / f"m{number}", rows, tmp_path / f"p{number}.{ending}"),
            people(400, seed=1),
        )
        for name in names:
            right = [
                str(a) == str(b)
                for a, b in zip(found[f"prediction_{name}"].to_pylist(), true[name], strict=True)
            ]
            assert np.mean(right) > (0.6 if name == "rating" else 0.8)


def test_some_rows_of_a_release_are_matched_by_id(tmp_path: Path) -> None:
    source, out = write(tmp_path / "in.csv", people(800)), tmp_path / "out.csv"
    run(
        "release",
        source,
        *LABELS,
        "--epsilon",
        6,
        "--id",
        "id",
        "--ledger",
        tmp_path / "l.db",
        "--out",
        out,
    )
    kept = pyarrow.csv.read_csv(out).slice(100, 500)
    pyarrow.csv.write_csv(kept, tmp_path / "some.csv")
    code, said, err = train(
        tmp_path / "some.csv",
        tmp_path / "m",
        "--label",
        "clicked,bought",
        "--released",
        out,
        "--model",
        "linear",
    )
    assert code == 0 and "a model of 500 rows for each" in said, err


def test_a_release_says_its_classes_and_its_rule_itself(tmp_path: Path) -> None:
    source, out = write(tmp_path / "in.csv", people(300)), tmp_path / "out.csv"
    run(
        "release",
        source,
        *LABELS,
        "--epsilon",
        6,
        "--id",
        "id",
        "--ledger",
        tmp_path / "l.db",
        "--out",
        out,
    )
    some = ("--label", "clicked,bought")
    assert train(out, tmp_path / "same", *some, "--classes", "no,yes", "--model", "linear")[0] == 0
    cases: dict[tuple[object, ...], str] = {
        (*some, "--classes", "yes,no"): "Expected the classes of the release",
        (*some, "--classes", "no,yes;no,yes,maybe"): "Expected the classes of the release",
        (*some, "--split", "one"): "Expected --epsilon and --classes with --split,",
        (
            *some,
            "--classes",
            "no,yes",
            "--epsilon",
            6,
            "--split",
            "one",
        ): "Expected no epsilon for a released table",
        (*some, "--law", "rr"): "Expected the law of the release",
        ("--label", "clicked,x"): "did not draw 'x'. Train for one at a time",
        ("--label", "clicked,clicked"): "got one twice",
    }
    for more, message in cases.items():
        code, _, err = train(out, tmp_path / "other", *more)
        assert code in (2, 4) and message in err and not (tmp_path / "other").exists()


def test_columns_that_were_released_apart_are_learned_apart(tmp_path: Path) -> None:
    source, own = (
        write(tmp_path / "in.csv", people(300)),
        (
            "--epsilon",
            2,
            "--id",
            "id",
            "--ledger",
            tmp_path / "l.db",
        ),
    )
    run(
        "release",
        source,
        "--label",
        "clicked",
        "--classes",
        "no,yes",
        *own,
        "--out",
        tmp_path / "one.csv",
    )
    run(
        "release",
        tmp_path / "one.csv",
        "--label",
        "bought",
        "--classes",
        "no,yes",
        *own,
        "--out",
        tmp_path / "two.csv",
    )
    for labels in ("clicked,bought", "bought,clicked"):
        code, _, err = train(tmp_path / "two.csv", tmp_path / "m", "--label", labels)
        assert (
            code == 4
            and "Expected label columns that were released together" in err
            and "one at a time" in err
        )
    # A raw column beside a noisy one is not charged either.
    code, _, err = train(
        tmp_path / "one.csv",
        tmp_path / "m",
        "--label",
        "bought,clicked",
        "--classes",
        "no,yes",
        "--epsilon",
        1,
    )
    assert (
        code == 4
        and "Expected label columns that were released together" in err
        and len(ledger_of(tmp_path).runs()) == 2
    )


def test_numbers_of_a_release_are_learned_by_themselves(tmp_path: Path) -> None:
    source, out = (
        write(tmp_path / "in.csv", people(400) | {"income": (np.arange(400) % 90).tolist()}),
        tmp_path / "out.csv",
    )
    asked = (
        "--label",
        "clicked,income,bought",
        "--classes",
        "no,yes",
        "--range",
        "income=0:90",
        "--grid",
        10,
        "--split",
        "one",
    )
    assert (
        run(
            "release",
            source,
            *asked,
            "--epsilon",
            6,
            "--id",
            "id",
            "--ledger",
            tmp_path / "l.db",
            "--out",
            out,
        )[0]
        == 0
    )
    code, _, err = train(out, tmp_path / "m", "--label", "clicked,income")
    assert (
        code == 4
        and "got numbers in 'income'" in err
        and "labeldp train out.csv --label income --out MODEL" in err
    )
    assert "Release the columns" not in err  # they were
    code, said, err = train(out, tmp_path / "m", "--label", "bought,clicked", "--model", "linear")
    assert code == 0 and "'bought', 'clicked', together 6-label-DP" in said, err
    assert train(out, tmp_path / "n", "--label", "income", "--model", "linear")[0] == 0


TWO = ("--label", "clicked,bought", "--classes", "no,yes")
REFUSED: dict[str, tuple[tuple[object, ...], int, str]] = {
    "one column twice": (
        ("--label", "clicked,bought,clicked", "--classes", "no,yes"),
        2,
        "got one twice",
    ),
    "a missing column": (
        ("--label", "clicked,boght", "--classes", "no,yes"),
        4,
        "got 'boght'. Did you mean 'bought'?",
    ),
    "no classes": (
        ("--label", "clicked,bought"),
        4,
        "Expected classes of 2 columns (clicked, bought), got none.",
    ),
    "classes of three": (
        ("--label", "clicked,bought", "--classes", "no,yes;no,yes;1,2"),
        2,
        "got 3 lists",
    ),
    "one list for all": (
        ("--label", "clicked,rating", "--classes", "no,yes"),
        4,
        "a list each is written --classes",
    ),
    "inferred classes": (
        ("--label", "clicked,bought", "--infer-classes"),
        2,
        "got --infer-classes",
    ),
    "an undeclared label": (
        ("--label", "clicked,odd", "--classes", "no,yes"),
        4,
        "Expected every label of column 'odd' to be one of the",
    ),
    "a missing label": (("--label", "clicked,gaps", "--classes", "no,yes"), 4, "column 'gaps'"),
    "a label as an id": (
        (*TWO, "--id", "bought"),
        4,
        "Expected id to name public columns, got the label column 'bought'",
    ),
    "a label as the unit": (
        (*TWO, "--unit", "bought"),
        4,
        "Expected unit to name public columns, got the label column 'bought'",
    ),
    "a label as a feature": ((*TWO, "--features", "x,bought"), 4, "got 'bought' among them"),
    "a range": (
        ("--label", "clicked,x", "--classes", "no,yes", "--range", "x=-5:5"),
        2,
        "got numbers in 'x'",
    ),
    "a model of clusters": (
        (*TWO, "--model", "proportions"),
        2,
        "got 'proportions', which asks clusters about one. Choose one of auto",
    ),
    "a prior of a net": (
        (*TWO, "--model", "mlp", "--prior", "clusters"),
        2,
        "Expected no --prior with a net of several label columns",
    ),
    "hard labels of a net": (
        (*TWO, "--model", "mlp", "--correction", "none"),
        2,
        "Expected no --correction none with a net",
    ),
    "a recipe": ((*TWO, "--recipe", "lp-1st"), 2, "--recipe with one label column"),
    "a filter": ((*TWO, "--stages", 2, "--filter", 2), 2, "--filter with one label column"),
    "declared labels": ((*TWO, "--noisy", "--law", "rr"), 2, "Train for one at a time"),
    "a rule beside a prior": (
        (*TWO, "--split", "one", "--prior", "clusters"),
        2,
        "without a prior",
    ),
    "a rule of one column": (
        ("--label", "clicked", "--classes", "no,yes", "--split", "one"),
        2,
        "with several label columns, got one",
    ),
    "columns of one name": (
        ("--label", "a,a_b", "--classes", "b_c,x;c,x"),
        4,
        "got two columns 'probability_a_b_c'",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_is_not_charged(tmp_path: Path, name: str) -> None:
    more, expected, message = REFUSED[name]
    rows = people(200)
    rows |= {
        "odd": ["no"] * 199 + [SENTINEL],
        "gaps": ["no", None] * 100,
        "a": ["b_c", "x"] * 100,
        "a_b": ["c", "x"] * 100,
    }
    code, said, err = train(write(tmp_path / "in.csv", rows), tmp_path / "m", "--epsilon", 1, *more)
    assert code == expected and message in err, said + err
    assert not (tmp_path / "m").exists() and (
        not (tmp_path / "l.db").exists() or not ledger_of(tmp_path).runs()
    )


def test_a_budget_that_does_not_suffice_for_one_column_refuses_all(tmp_path: Path) -> None:
    source = write(tmp_path / "in.csv", people(300))
    own = ("--id", "id", "--model", "linear", "--dataset", "d", "--exclude", "clicked,rating")
    assert (
        train(
            source,
            tmp_path / "first",
            "--label",
            "bought",
            "--classes",
            "no,yes",
            "--epsilon",
            2,
            "--budget",
            3,
            *own,
        )[0]
        == 0
    )
    code, said, err = train(source, tmp_path / "m", *TWO, "--epsilon", 2, *own[:-1], "rating")
    assert (
        code == 3
        and "column 'bought'" in err
        and "Nothing was charged" in err
        and not (tmp_path / "m").exists()
    )
    ledger = ledger_of(tmp_path)
    assert ledger.spent("d", "clicked") == 0 and ledger.spent("d", "bought") == 2
    code, said, err = train(source, tmp_path / "m", *TWO, "--epsilon", 1, *own[:-1], "rating")
    assert code == 0 and "has spent up to epsilon 3" in said, err


def test_private_columns_of_the_data_set_are_no_features_of_several_either(tmp_path: Path) -> None:
    source, own = (
        write(tmp_path / "in.csv", people(300)),
        (
            "--epsilon",
            1,
            "--id",
            "id",
            "--model",
            "linear",
            "--budget",
            9,
        ),
    )
    assert (
        train(
            source,
            tmp_path / "first",
            "--label",
            "rating,bought",
            "--classes",
            "1,2,3;no,yes",
            "--exclude",
            "clicked",
            *own,
        )[0]
        == 0
    )
    code, _, err = train(source, tmp_path / "m", *TWO, *own)
    assert (
        code == 4
        and "got 'rating', which the ledger has charged as private" in err
        and len(ledger_of(tmp_path).runs()) == 1
    )


def test_strict_holds_for_several(tmp_path: Path) -> None:
    source = write(tmp_path / "in.csv", people(300))
    own = ("--id", "id", "--model", "linear", "--exclude", "rating")
    code, _, err = train(source, tmp_path / "m", *TWO, "--epsilon", 9, "--strict", *own)
    assert (
        code == 4
        and "--strict refuses this; nothing was charged." in err
        and not ledger_of(tmp_path).runs()
    )
    assert train(source, tmp_path / "m", *TWO, "--epsilon", 2, "--strict", *own)[0] == 0


def test_a_column_whose_name_has_a_comma_is_one_column(tmp_path: Path) -> None:
    rows = people(300)
    source = write(
        tmp_path / "in.csv",
        {
            "id": rows["id"],
            "x": rows["x"],
            "clicked, once": rows["clicked"],
            "bought": rows["bought"],
        },
    )
    paid = ("--classes", "no,yes", "--epsilon", 2, "--id", "id", "--model", "linear", "--budget", 9)
    code, said, err = train(
        source, tmp_path / "one", "--label", "clicked, once", *paid, "--exclude", "bought"
    )
    assert code == 0 and "a model of 300 rows, 2-label-DP" in said, err
    code, said, err = train(source, tmp_path / "two", "--label", r"clicked\, once,bought", *paid)
    assert code == 0 and "the columns 'clicked, once', 'bought', together 2-label-DP" in said, err
    assert [each.facts["label"] for each in load_models(tmp_path / "two")] == [
        "clicked, once",
        "bought",
    ]


def test_a_specification_names_its_columns() -> None:
    columns = ldp.LabelColumns({"a": ["no", "yes"], "b": [1, 2, 3]})
    spec = TrainSpec(columns.names, 1.0, columns)
    assert (
        spec.labels == ("a", "b")
        and spec.name == "a,b" == columns.name
        and TrainSpec(["a"], 1.0, [0, 1]).labels == ("a",)
    )
    for labels, classes in (
        (("b", "a"), columns),
        ("a", columns),
        (("a", "b"), ["no", "yes"]),
        ((), None),
    ):
        with pytest.raises(InvalidInput, match="Expected classes of the label columns"):
            TrainSpec(labels, 1.0, classes)
    with pytest.raises(InvalidInput, match="Train for one at a time"):
        TrainSpec(columns.names, 1.0, columns, law="rr", evidence=EvidenceSpec(declared=True))
