# SPDX-License-Identifier: Apache-2.0
"""`labeldp train` and `predict` of a private number: raw, released, as a prior; what is refused
before a charge."""

import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from tests.app.fuzz_models import without_digests
from tests.cli.commands import SENTINEL, run

import labeldp as ldp
from labeldp.app._boosters import BOOSTERS
from labeldp.app._model import load_model
from labeldp.app._train import EvidenceSpec, TrainSpec
from labeldp.app._train import train as run_train
from labeldp.cli._train import quality_text
from labeldp.tables import read_noisy

pytestmark = pytest.mark.usefixtures("same_noise")  # what is learned is judged
N = 700
RANGE = ("--range", "0:100", "--grid", 11)


def people(n: int = N, seed: int = 0) -> dict[str, Any]:
    """Incomes by age and work, within 0 to 100 but for a few; with gaps."""
    random = np.random.default_rng(seed)
    age, work = random.uniform(20, 70, n), random.integers(0, 3, n)
    income = (age - 20 + 15.0 * work + random.normal(0, 4, n)).round(2)
    age[::19] = np.nan
    words = np.array(["none", "some", "much"])[work]
    return {
        "person": np.arange(n),
        "age": pa.array(age, from_pandas=True),
        "work": words,
        "income": income,
    }


def write(path: Path, columns: dict[str, Any]) -> Path:
    (pq.write_table if path.suffix == ".parquet" else pa.csv.write_csv)(pa.table(columns), path)
    return path


def train(source: Path, out: Path, *more: object) -> tuple[int, str, str]:
    return run(
        "train",
        source,
        "--label",
        "income",
        "--out",
        out,
        "--ledger",
        out.parent / "ledger.db",
        *more,
    )


def predicted(model: Path, *more: object) -> pa.Table:
    """Predictions of other rows, without their incomes."""
    rows = people(400, seed=1)
    del rows["income"]
    source, out = (
        write(model.parent / f"fresh-{model.name}.csv", rows),
        model.parent / f"of-{model.name}.parquet",
    )
    code, said, err = run("predict", model, source, "--out", out, *more)
    assert code == 0, said + err
    return pq.read_table(out)


def share_left(table: pa.Table) -> float:
    """The root mean squared error as a share of the constant's."""
    truth = people(400, seed=1)["income"]
    return float(np.sqrt(np.mean((table["prediction"].to_numpy() - truth) ** 2)) / truth.std())


@pytest.mark.parametrize(
    ("ending", "model"),
    [("csv", "auto"), ("parquet", "linear"), ("csv", "lightgbm"), ("parquet", "xgboost")],
)
def test_a_number_is_learned_charged_once_and_predicted(
    tmp_path: Path, ending: str, model: str
) -> None:
    if model in BOOSTERS:
        pytest.importorskip(model)
    source, ledger = write(tmp_path / f"in.{ending}", people()), ldp.Ledger(tmp_path / "ledger.db")
    asked = (*RANGE, "--epsilon", 6, "--id", "person", "--model", model)
    code, said, _ = train(source, tmp_path / "model", *asked)
    assert code == 0 and "Charged epsilon 6." in said
    assert "Estimated RMSE " in said and "; always the mean: " in said and "R^2" in said
    facts = json.loads((tmp_path / "model" / "model.json").read_text())
    assert facts["grid"] == {"low": 0, "high": 100, "points": 11}
    files = {path.name for path in (tmp_path / "model").iterdir()}
    assert files == {
        "model.json",
        *([BOOSTERS[model], "steps.skops"] if model in BOOSTERS else ["model.skops"]),
    }
    assert all(
        facts[name]["high"] > 0 for name in ("estimated_rmse", "estimated_r2", "baseline_rmse")
    )
    table = predicted(tmp_path / "model", "--quantile", ".05,.95")
    assert table.column_names == ["person", "prediction", "quantile_0.05", "quantile_0.95"]
    assert table["prediction"].type == pa.float64() and share_left(table) < 0.6
    inside = (table["quantile_0.05"].to_numpy() <= (truth := people(400, seed=1)["income"])) & (
        truth <= table["quantile_0.95"].to_numpy()
    )
    assert 0.75 < inside.mean() < 1
    code, said, _ = train(source, tmp_path / "again", *asked, "--json")
    assert (
        code == 0
        and json.loads(said)["receipts"][0]["repeated"]
        and ledger.spent("in", "income") == 6
    )
    assert predicted(tmp_path / "again").column("prediction").equals(table.column("prediction"))


@pytest.mark.parametrize(
    ("ending", "model"),
    [
        ("csv", "boosting"),
        ("csv", "lightgbm"),
        ("parquet", "xgboost"),
        pytest.param("parquet", "mlp", marks=pytest.mark.deep),
    ],
)
def test_released_numbers_are_learned_at_no_cost_and_are_a_prior(
    tmp_path: Path, ending: str, model: str
) -> None:
    if model != "boosting":
        pytest.importorskip("torch" if model == "mlp" else model)
    source, released, ledger = (
        write(tmp_path / f"in.{ending}", people()),
        tmp_path / f"out.{ending}",
        tmp_path / "ledger.db",
    )
    paid = ("--label", "income", *RANGE, "--id", "person", "--ledger", ledger)
    assert run("release", source, *paid, "--epsilon", 6, "--law", "rr", "--out", released)[0] == 0
    code, said, err = train(released, tmp_path / "model", "--model", model)
    assert (
        code == 0 and "Nothing was drawn, nothing was charged." in said and "Estimated RMSE" in said
    ), err
    table = predicted(tmp_path / "model", "--quantile", ".5")
    assert (
        share_left(table) < 0.6
        and np.abs(table["quantile_0.5"].to_numpy() - table["prediction"].to_numpy()).max() < 12
    )
    # the model of one release as the prior of the next: thresholds are near its medians
    more = ("--dataset", "later", "--epsilon", 1, "--prior-model", tmp_path / "model")
    wide = ("--label", "income", "--range", "0:999", "--id", "person", "--ledger", ledger)
    code, _, err = run("release", source, *wide, *more, "--out", tmp_path / f"wide.{ending}")
    assert (
        code == 4
        and "Declare the range that it was trained on, with as many points (--range, --grid)."
        in " ".join(err.split())
    )
    code, said, err = run("release", source, *paid, *more, "--out", tmp_path / f"later.{ending}")
    assert code == 0, said + err
    later = read_noisy(tmp_path / f"later.{ending}").by_id(np.arange(N))
    asked = np.abs(np.diff(later.likelihood(), axis=1)).argmax(axis=1)
    assert np.corrcoef(asked, people()["income"])[0, 1] > 0.7


@pytest.mark.parametrize("model", BOOSTERS)
def test_trees_of_which_nothing_is_taken_are_stored_without_their_library(
    tmp_path: Path, model: str
) -> None:
    pytest.importorskip(model)
    source = write(tmp_path / "in.csv", people(200))
    code, said, err = train(
        source, tmp_path / "model", *RANGE, "--epsilon", 0.01, "--id", "person", "--model", model
    )
    assert code == 0, said + err
    assert {path.name for path in (tmp_path / "model").iterdir()} == {"model.json", "model.skops"}
    assert np.ptp(predicted(tmp_path / "model")["prediction"].to_numpy()) == 0


@pytest.mark.parametrize("model", BOOSTERS)
def test_changed_facts_of_boosted_numbers_are_refused(tmp_path: Path, model: str) -> None:
    pytest.importorskip(model)
    source = write(tmp_path / "in.csv", people())
    assert (
        train(
            source, tmp_path / "model", *RANGE, "--epsilon", 6, "--id", "person", "--model", model
        )[0]
        == 0
    )
    path = without_digests(tmp_path / "model") / "model.json"
    facts = json.loads(path.read_text())
    load_model(path.parent)
    (path.parent / "model.skops").write_bytes(b"")  # where a model of scikit-learn would be
    for change in (
        {"library": "scikit-learn"},
        {"library": "catboost"},
        {"start": None},
        {"start": float("inf")},
        {"features": 9},
    ):
        path.write_text(json.dumps(facts | {"boosting": facts["boosting"] | change}))
        with pytest.raises(ldp.InvalidInput, match="damaged or was changed"):
            load_model(path.parent)


def test_a_histogram_of_all_numbers_is_paid_from_the_same_budget(tmp_path: Path) -> None:
    source, ledger = write(tmp_path / "in.csv", people()), ldp.Ledger(tmp_path / "ledger.db")
    asked = (
        *RANGE,
        "--epsilon",
        4,
        "--id",
        "person",
        "--model",
        "linear",
        "--law",
        "unbiased",
        "--prior",
        "histogram,eps=0.5",
    )
    code, said, err = train(source, tmp_path / "model", *asked)
    assert code == 0 and "Charged epsilon 4." in said, said + err
    receipts = json.loads((tmp_path / "model" / "model.json").read_text())["receipts"]
    assert [each["epsilon"] for each in receipts] == [0.5, 3.5] and ledger.spent(
        "in", "income"
    ) == 4
    assert share_left(predicted(tmp_path / "model")) < 0.8
    assert train(source, tmp_path / "again", *asked)[0] == 0 and ledger.spent("in", "income") == 4


def test_a_few_rows_tell_nothing_of_the_errors_and_it_says_so(tmp_path: Path) -> None:
    """Of 60 rows 20 are held out: at epsilon 0.1 the interval of the mean squared error holds
    everything from 0 to the range's square."""
    source = write(tmp_path / "in.csv", people(200))
    code, said, err = train(
        source, tmp_path / "model", *RANGE, "--epsilon", 0.1, "--id", "person", "--model", "linear"
    )
    assert (
        code == 0 and "too few to tell how large its errors are" in said and "RMSE" not in said
    ), said + err


def test_a_plan_of_stages_takes_a_range(tmp_path: Path) -> None:
    ledger = tmp_path / "ledger.db"
    plan = (
        "plan",
        tmp_path / "plan",
        "--label",
        "income",
        "--epsilon",
        1,
        "--id",
        "person",
        "--dataset",
        "d",
        "--parts",
        ".5,.5",
    )
    code, said, err = run("stage", *plan, *RANGE, "--ledger", ledger)
    assert code == 0 and "square-wave then threshold" in said, err
    source = write(tmp_path / "in.csv", people())
    code, said, err = run(
        "stage",
        "release",
        tmp_path / "plan",
        source,
        "--stage",
        1,
        "--out",
        tmp_path / "one.csv",
        "--ledger",
        ledger,
    )
    assert code == 0, err
    assert isinstance(read_noisy(tmp_path / "one.csv").classes, ldp.Grid)


def test_numbers_that_another_mechanism_has_rounded_and_drawn_are_declared(tmp_path: Path) -> None:
    grid, columns = ldp.Grid(0, 100, points=11), people()
    columns["income"] = ldp.privatize(
        columns["income"], ldp.RandomizedResponse(11, 5.0), classes=grid, noise=ldp.SeededNoise(0)
    ).hard()
    source = write(tmp_path / "in.parquet", columns)
    code, said, err = train(
        source,
        tmp_path / "model",
        *RANGE,
        "--noisy",
        "--law",
        "rr",
        "--epsilon",
        5,
        "--model",
        "linear",
    )
    assert code == 0 and "declared, not proven" in said, err
    assert share_left(predicted(tmp_path / "model")) < 0.6


REFUSED: dict[str, tuple[tuple[object, ...], int, str]] = {
    "a range reversed": (("--range", "100:0"), 2, "lower end first"),
    "an infinite range": (("--range", "0:inf"), 2, "finite"),
    "a range of width zero": (("--range", "5:5"), 2, "low < high"),
    "half a range": (("--range", "100"), 2, "LOW:HIGH"),
    "a range of text": (("--range", "a:b"), 2, "LOW:HIGH"),
    "a range and classes": ((*RANGE, "--classes", "a,b"), 2, "Leave one out"),
    "a grid alone": (("--grid", 11), 2, "Add --range"),
    "one point": (("--range", "0:1", "--grid", 1), 2, "points"),
    "a model of classes": ((*RANGE, "--model", "noise-cluster"), 2, "Expected a model of numbers"),
    "clusters": ((*RANGE, "--model", "proportions"), 2, "Expected a model of numbers"),
    "a correction": ((*RANGE, "--correction", "debias"), 2, "--correction with classes only"),
    "a prior of clusters": (
        (*RANGE, "--prior", "clusters"),
        2,
        "--prior clusters with classes only",
    ),
    "a histogram for all": ((*RANGE, "--prior", "histogram,eps=1"), 2, "less than the total"),
    "a histogram of clusters": (
        (*RANGE, "--prior", "histogram,8"),
        2,
        "histogram[,eps=E] with a number E",
    ),
    "a histogram of classes": (("--classes", "a,b", "--prior", "histogram"), 2, "numbers only"),
    "a grid too large for a law": (
        ("--range", "0:100", "--grid", 101, "--law", "unbiased"),
        4,
        "at most 100 points",
    ),
    "a recipe of a paper": ((*RANGE, "--recipe", "lp-1st"), 2, "--recipe with classes only"),
    "a filter": (
        (*RANGE, "--stages", 2, "--filter", 2, "--temperature", 0.5),
        2,
        "--temperature, --filter with classes only",
    ),
    "text": ((*RANGE, "--label", "work"), 4, "to be a finite number"),
    "gaps": ((*RANGE, "--label", "age"), 4, "to be a finite number"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_is_not_charged(tmp_path: Path, name: str) -> None:
    more, expected, message = REFUSED[name]
    columns = people(200)
    columns["work"][7] = SENTINEL
    asked = ("--epsilon", 1, "--id", "person", "--dataset", "d", "--label", "income", *more)
    code, said, err = train(write(tmp_path / "in.csv", columns), tmp_path / "model", *asked)
    assert code == expected and message in " ".join((said + err).replace("│", " ").split()), (
        said + err
    )
    ledger = ldp.Ledger(tmp_path / "ledger.db")
    assert not ledger.runs() and not (tmp_path / "model").exists()


def test_a_column_of_text_is_no_number_in_parquet_either(tmp_path: Path) -> None:
    source = write(tmp_path / "in.parquet", people(200))
    code, _, err = train(
        source, tmp_path / "model", "--label", "work", *RANGE, "--epsilon", 1, "--id", "person"
    )
    assert (
        code == 4
        and "column of numbers with a range" in err
        and not ldp.Ledger(tmp_path / "ledger.db").runs()
    )


def test_a_release_says_its_range_itself(tmp_path: Path) -> None:
    source, released, ledger = (
        write(tmp_path / "in.csv", people()),
        tmp_path / "out.csv",
        tmp_path / "ledger.db",
    )
    run(
        "release",
        source,
        "--label",
        "income",
        *RANGE,
        "--epsilon",
        6,
        "--id",
        "person",
        "--out",
        released,
        "--ledger",
        ledger,
    )
    assert train(released, tmp_path / "same", *RANGE, "--model", "linear")[0] == 0
    for more in (("--range", "0:99", "--grid", 11), ("--range", "0:100"), ("--classes", "a,b")):
        code, _, err = train(released, tmp_path / "other", *more)
        assert code == 4 and "Expected the range of the release, 0 to 100 in 11 points" in err
    for text, expected, message in (
        ("0,.5", 2, "q in (0, 1)"),
        ("x", 2, "numbers separated"),
        (".5,.50", 4, "different quantiles"),
    ):
        code, said, err = run(
            "predict", tmp_path / "same", source, "--out", tmp_path / "p.csv", "--quantile", text
        )
        assert code == expected and message in " ".join((said + err).replace("│", " ").split())
    classes = {"id": np.arange(60), "x": np.arange(60.0), "y": np.arange(60) % 2}
    source, paid = (
        write(tmp_path / "classes.csv", classes),
        (
            "--classes",
            "0,1",
            "--epsilon",
            1,
            "--model",
            "linear",
            "--ledger",
            ledger,
        ),
    )
    run("train", source, "--label", "y", *paid, "--out", tmp_path / "of classes")
    code, _, err = run(
        "predict", tmp_path / "of classes", source, "--out", tmp_path / "p.csv", "--quantile", ".5"
    )
    assert code == 2 and "a model of classes, which have none" in " ".join(
        err.replace("│", " ").split()
    )
    assert not (tmp_path / "p.csv").exists()


def test_changed_facts_of_a_model_of_numbers_are_refused(tmp_path: Path) -> None:
    grid = ldp.Grid(0, 100, points=11)
    columns = people(300)
    columns["income"] = np.array(grid)[np.arange(300) % 11]
    spec = TrainSpec(
        "income",
        3.0,
        grid,
        id="person",
        law="rr",
        model="linear",
        evidence=EvidenceSpec(declared=True),
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run_train(
            write(tmp_path / "in.parquet", columns),
            tmp_path / "model",
            spec,
            ldp.Ledger(tmp_path / "ledger.db"),
        )
    path = tmp_path / "model" / "model.json"
    facts = json.loads(path.read_text())
    assert load_model(path.parent).of_numbers
    for change in (
        {"location": facts["location"] | {"scale": 0.0}},
        {"location": facts["location"] | {"scale": float("inf")}},
        {"location": facts["location"] | {"centre": float("nan")}},
        {"location": facts["location"] | {"cuts": [0.0]}},
        {"location": facts["location"] | {"cuts": facts["location"]["cuts"][::-1]}},
        {"location": facts["location"] | {"share": 2.0}},
        {"location": {}},
        {"location": None},
        {"grid": {"low": 0, "high": 100, "points": 12}},
        {"grid": {"low": 0}},
        {"classes": facts["classes"][1:]},
    ):
        path.write_text(json.dumps(facts | change))
        with pytest.raises(ldp.InvalidInput, match="changed"):
            load_model(path.parent)  # by its digest
        with pytest.raises(ldp.InvalidInput):
            load_model(without_digests(path.parent))


def test_figures_have_as_many_digits_as_they_need() -> None:
    def found(
        value: float | None, low: float | None, high: float, tells: bool = True
    ) -> dict[str, object]:
        return {"value": value, "low": low, "high": high, "tells": tells}

    facts = {
        "estimated_rmse": found(20386.3, 0.0, 71356.9),
        "baseline_rmse": found(38709.6, 0.0, 67226.4),
    }
    text = quality_text(facts | {"estimated_r2": found(0.7, None, 1.0, False)})
    assert (
        "RMSE 20,386 (0 to 71,357); always the mean: 38,710 (0 to 67,226)." in text
        and "too few to tell R^2" in text
    )
    facts = {"estimated_rmse": found(0.81234, 0.7, 0.9), "baseline_rmse": found(1.12, 1.0, 1.25)}
    text = quality_text(facts | {"estimated_r2": found(0.47, 0.4, 0.55)})
    assert (
        "RMSE 0.81 (0.70 to 0.90); always the mean: 1.12 (1.00 to 1.25). Estimated R^2 0.470 (0.400"
        " to 0.550)." in text
    )


def test_an_error_that_was_not_estimated_is_said_to_be_unknown(tmp_path: Path) -> None:
    (tmp_path / "in.csv").write_text("id,x,y\n1,.1,2\n2,.2,3\n")
    asked = ("--label", "y", "--range", "0:10", "--epsilon", 1, "--id", "id", "--model", "linear")
    code, said, wrong = run("train", tmp_path / "in.csv", *asked, "--out", tmp_path / "m")
    assert (
        code == 0
        and "How large its errors are was not estimated: that takes at least 20 noisy rows" in said
    ), wrong


def test_an_error_that_noise_carried_to_zero_is_not_shown_as_perfect() -> None:
    none = {"value": 0.0, "low": 0.0, "high": 33.0, "tells": True}
    facts = {
        "estimated_rmse": none,
        "baseline_rmse": none | {"value": 28.0},
        "estimated_r2": {"tells": False},
    }
    assert "Estimated RMSE at most 33.0; always the mean: 28.0 (0.0 to 33.0)." in quality_text(
        facts
    )
