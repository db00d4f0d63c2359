# SPDX-License-Identifier: Apache-2.0
"""`labeldp train --model NET` and `labeldp predict`: tables, arrays, image bytes and image files;
resumed, repeated, refused."""

import functools
import io
import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
import torch
from tests.app.fuzz_models import without_digests
from tests.cli.commands import SENTINEL, run

from labeldp.app._learners import NetOptions
from labeldp.app._model import load_model
from labeldp.deep import TorchClassifier, cross_entropy
from labeldp.deep import _named as named
from labeldp.errors import InvalidInput
from labeldp.ledger._ledger import default_ledger
from labeldp.papers import ghazi2021 as recipes
from labeldp.tables._evidence import read_noisy

Image = pytest.importorskip("PIL.Image")

pytestmark = pytest.mark.usefixtures("same_noise")  # what is learned is judged
N, SIDE = 360, 8
CLASSES = ("bright", "striped", "dark")
FAST = ("--epochs", 6, "--batch-size", 32, "--rate", 0.01, "--device", "cpu")
PAID = ("--epsilon", 8, "--classes", ",".join(CLASSES))


def pictures(n: int = N, seed: int = 0, colour: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """(n, 8, 8) or (n, 8, 8, 3) bytes: bright, striped or dark; and which."""
    rng = np.random.default_rng(seed)
    codes = rng.integers(0, 3, n)
    pixels = rng.integers(0, 60, (n, SIDE, SIDE))
    pixels[codes == 0] += 180
    pixels[codes == 1, :, ::2] += 180
    pixels = np.repeat(pixels[..., None], 3, axis=3) if colour else pixels
    return pixels.astype(np.uint8), codes


def encoded(pixels: np.ndarray, form: str = "PNG", mode: str | None = None) -> bytes:
    stream = io.BytesIO()
    image = Image.fromarray(pixels)
    (image if mode is None else image.convert(mode)).save(stream, form)
    return stream.getvalue()


def text(codes: np.ndarray) -> list[str]:
    return [CLASSES[code] for code in codes]


def accuracy_of(path: Path, codes: np.ndarray) -> float:
    table = pq.read_table(path) if path.suffix == ".parquet" else pa.csv.read_csv(path)
    assert table.num_rows == len(codes)
    total = np.column_stack([table[f"probability_{c}"].to_numpy() for c in CLASSES])
    np.testing.assert_allclose(total.sum(axis=1), 1, rtol=1e-5)
    return float(np.mean(np.array(table["prediction"].to_pylist()) == np.array(text(codes))))


def image_table(path: Path, n: int = N, seed: int = 0, **more: Any) -> np.ndarray:
    """Image bytes in a Parquet file; the true codes."""
    pixels, codes = pictures(n, seed, **more)
    columns = {
        "id": list(range(n)),
        "shot": pa.array([encoded(each) for each in pixels], pa.binary()),
        "what": text(codes),
    }
    pq.write_table(pa.table(columns), path)
    return codes


def files_and_table(folder: Path, n: int = N, seed: int = 0) -> tuple[Path, np.ndarray]:
    """Image files in two folders that say nothing, and a CSV of their names and labels."""
    pixels, codes = pictures(n, seed, colour=True)
    names = [f"{'ab'[i % 2]}{i % 2}/{i}.png" for i in range(n)]
    for name, each in zip(names, pixels, strict=True):
        (folder / "files" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "files" / name).write_bytes(encoded(each))
    pa.csv.write_csv(pa.table({"file": names, "what": text(codes)}), folder / "labels.csv")
    return folder / "labels.csv", codes


def train(
    source: Path, out: Path, *more: object, paid: tuple[object, ...] = PAID, label: str = "what"
) -> tuple[int, str, str]:
    return run("train", source, "--label", label, "--out", out, *paid, *more)


def shop(n: int, seed: int = 0) -> dict[str, list[Any]]:
    """Bright if red, else striped if cheap; with gaps, huge numbers and a constant."""
    rng = np.random.default_rng(seed)
    colour = rng.integers(0, 3, n)
    price = rng.uniform(0, 10, n)
    what = [
        CLASSES[0] if c == 0 else CLASSES[1] if p < 5 else CLASSES[2]
        for c, p in zip(colour, price, strict=True)
    ]
    colours: list[Any] = [("red", "blue", "grün, hell")[c] for c in colour]
    prices: list[Any] = (price * 1e18).tolist()
    for i in range(0, n, 31):
        colours[i] = prices[(i * 7) % n] = None
    return {"id": list(range(n)), "colour": colours, "price": prices, "one": [1] * n, "what": what}


def test_a_table_with_a_perceptron(tmp_path: Path) -> None:
    pq.write_table(pa.table(shop(1200)), tmp_path / "in.parquet")
    fresh = shop(300, 1) | {
        "colour": ["red", "mauve", None] * 100,
        "price": [None, float("inf"), 1e18] * 100,
    }
    pq.write_table(pa.table(fresh), tmp_path / "odd.parquet")
    pq.write_table(pa.table(shop(300, 1)), tmp_path / "new.parquet")
    code, said, _ = train(
        tmp_path / "in.parquet",
        tmp_path / "m",
        "--model",
        "mlp",
        "--id",
        "id",
        *FAST,
        "--epochs",
        15,
        "--json",
    )
    assert code == 0
    facts = json.loads(said)
    assert facts["guarantee"] == {"unit": "row", "epsilon": 8.0, "delta": 0.0}
    # two numbers, of which one has gaps; three colours and "missing"
    assert facts["net"] == {"name": "mlp", "parameters": {"n_features": 7, "n_classes": 3}}
    assert facts["estimated_accuracy"]["high"] > 0.7
    assert sorted(p.name for p in (tmp_path / "m").iterdir()) == [
        "model.json",
        "steps.skops",
        "weights.pt",
    ]
    assert (
        run("predict", tmp_path / "m", tmp_path / "new.parquet", "--out", tmp_path / "p.csv")[0]
        == 0
    )
    codes = np.array([CLASSES.index(c) for c in shop(300, 1)["what"]])
    assert accuracy_of(tmp_path / "p.csv", codes) > 0.8
    assert (
        run("predict", tmp_path / "m", tmp_path / "odd.parquet", "--out", tmp_path / "odd.csv")[0]
        == 0
    )
    assert accuracy_of(tmp_path / "odd.csv", codes) > 0  # finite for values that were never seen
    assert default_ledger().spent("in", "what") == 8.0
    assert (
        train(
            tmp_path / "in.parquet",
            tmp_path / "n",
            "--model",
            "mlp",
            "--id",
            "id",
            *FAST,
            "--epochs",
            1,
        )[0]
        == 0
    )
    assert train(tmp_path / "in.parquet", tmp_path / "o", "--id", "id")[0] == 0  # gradient boosting
    # the same rows: another model and other epochs are free
    assert len(default_ledger().runs()) == 1
    (tmp_path / "m" / "steps.skops").write_bytes((tmp_path / "o" / "model.skops").read_bytes())
    for _ in range(2):  # another one's, and none
        code, _, said = run(
            "predict", tmp_path / "m", tmp_path / "new.parquet", "--out", tmp_path / "q.csv"
        )
        assert (code, "steps.skops as it was written" in said) == (4, True)
        (tmp_path / "m" / "steps.skops").unlink(missing_ok=True)


@pytest.mark.parametrize("name", ["auto", "small-convnet"])
def test_image_bytes_in_parquet(tmp_path: Path, name: str) -> None:
    image_table(tmp_path / "in.parquet")
    codes = image_table(tmp_path / "new.parquet", 60, 1)
    code, said, _ = train(
        tmp_path / "in.parquet",
        tmp_path / "m",
        "--image",
        "shot",
        "--model",
        name,
        "--id",
        "id",
        *FAST,
        "--json",
    )
    assert code == 0
    facts = json.loads(said)
    assert facts["net"] == {
        "name": "small-convnet",
        "parameters": {"n_classes": 3, "in_channels": 1},
    }
    assert facts["recipe"]["epochs"] == 6
    assert (
        run(
            "predict",
            tmp_path / "m",
            tmp_path / "new.parquet",
            "--out",
            tmp_path / "p.parquet",
            "--device",
            "cpu",
        )[0]
        == 0
    )
    assert accuracy_of(tmp_path / "p.parquet", codes) > 0.8
    assert pq.read_table(tmp_path / "p.parquet")["id"].to_pylist() == list(range(60))


def test_image_files_and_a_csv(tmp_path: Path) -> None:
    source, _ = files_and_table(tmp_path)
    fresh, codes = files_and_table(tmp_path / "new", 60, 1)
    where = ("--image", "file", "--images", tmp_path / "files")
    code, said, _ = train(source, tmp_path / "m", *where, *FAST, "--json")
    assert code == 0
    assert json.loads(said)["features"] == {
        "kind": "images",
        "column": "file",
        "image": [3, SIDE, SIDE],
    }
    assert str(tmp_path) not in (tmp_path / "m" / "model.json").read_text()
    files = ("--images", tmp_path / "new" / "files")
    assert run("predict", tmp_path / "m", fresh, *files, "--out", tmp_path / "p.csv")[0] == 0
    assert accuracy_of(tmp_path / "p.csv", codes) > 0.8
    # the table's own folder has none
    code, _, said = run("predict", tmp_path / "m", fresh, "--out", tmp_path / "q.csv")
    assert code == 5
    assert "--images" in said


@pytest.mark.parametrize("layout", ["grey", "first", "last"])
def test_arrays_of_images(tmp_path: Path, layout: str) -> None:
    def saved(path: Path, n: int, seed: int) -> np.ndarray:
        pixels, codes = pictures(n, seed, colour=layout != "grey")
        pixels = np.ascontiguousarray(pixels.transpose(0, 3, 1, 2)) if layout == "first" else pixels
        np.savez(path, X=pixels, what=np.array(text(codes)), key=np.arange(n))
        return codes

    saved(tmp_path / "in.npz", N, 0)
    codes = saved(tmp_path / "new.npz", 60, 1)
    code, said, _ = train(tmp_path / "in.npz", tmp_path / "m", "--id", "key", *FAST, "--json")
    assert code == 0
    assert json.loads(said)["net"]["parameters"]["in_channels"] == (1 if layout == "grey" else 3)
    assert run("predict", tmp_path / "m", tmp_path / "new.npz", "--out", tmp_path / "p.csv")[0] == 0
    assert accuracy_of(tmp_path / "p.csv", codes) > 0.8
    np.save(tmp_path / "new.npy", np.load(tmp_path / "new.npz")["X"])
    assert run("predict", tmp_path / "m", tmp_path / "new.npy", "--out", tmp_path / "q.csv")[0] == 0
    assert accuracy_of(tmp_path / "q.csv", codes) > 0.8
    np.save(tmp_path / "wide.npy", np.zeros((3, SIDE, SIDE + 1), np.uint8))
    code, _, said = run(
        "predict", tmp_path / "m", tmp_path / "wide.npy", "--out", tmp_path / "r.csv"
    )
    assert code == 4
    assert "as in training" in said


@pytest.mark.parametrize(("data", "batch"), [("", 32), (":kmnist", 265)])
def test_a_recipe_by_name_trains_a_net_as_its_paper_does(
    tmp_path: Path, data: str, batch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    pixels, codes = pictures()
    np.savez(tmp_path / "in.npz", X=pixels, what=np.array(text(codes)))
    asked, made = [], TorchClassifier.__init__

    @functools.wraps(made)
    def watched(self: Any, module: Any, **settings: Any) -> None:
        asked.append(settings)
        made(self, module, **settings)

    monkeypatch.setattr(TorchClassifier, "__init__", watched)
    paid = (
        "--recipe",
        f"lp-2st{data}",
        "--epochs",
        2,
        *(() if data else ("--batch-size", 32)),
        "--device",
        "cpu",
    )
    code, said, _ = train(tmp_path / "in.npz", tmp_path / "m", *paid, "--json")
    assert code == 0
    facts = json.loads(said)
    assert facts["paper"] == {"recipe": "lp-2st", "data": data[1:] or None}
    assert facts["recipe"]["stages"] == 2
    published = recipes.lp_2st("kmnist", epsilon=8.0, epochs=2)["recipe"]
    assert (
        [each.alpha for each in asked[0]["recipe"]]
        == [each.alpha for each in published]
        == [4.0, 4.0]
    )
    assert {(each.epochs, each.batch_size, each.loss) for each in asked[0]["recipe"]} == {
        (2, batch, cross_entropy)
    }
    if data:
        assert {(each.rate, each.clip, each.optimizer) for each in asked[0]["recipe"]} == {
            (0.02, math.inf, "sgd")
        }


def test_a_recipe_whose_training_does_not_fit_the_inputs_is_refused_before_the_charge(
    tmp_path: Path,
) -> None:
    pixels, codes = pictures(40)
    np.savez(tmp_path / "in.npz", X=pixels, what=np.array(text(codes)))
    np.savez(tmp_path / "rows.npz", X=pixels.reshape(40, -1) / 255, what=np.array(text(codes)))
    for source, data, said in (
        ("in", "movielens_1m", "rows of numbers for the training of movielens_1m"),
        ("rows", "mnist", "images for"),
    ):
        more = ("--model", "mlp") if source == "rows" else ()
        code, _, err = train(
            tmp_path / f"{source}.npz", tmp_path / "m", "--recipe", f"lp-1st:{data}", *more
        )
        assert code == 4
        assert said in err
    assert not default_ledger().runs()


def test_a_matrix_beside_its_labels(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    codes = rng.integers(0, 3, 900)
    matrix = rng.normal(0, 0.5, (900, 3)) + np.eye(3)[codes] * 3
    matrix[::50, 1] = np.nan
    np.save(tmp_path / "in.npy", matrix)
    np.savez(
        tmp_path / "beside.npz",
        what=np.array(text(codes)),
        who=np.arange(900) // 2,
        key=np.arange(900),
    )
    more = (
        "--labels",
        tmp_path / "beside.npz",
        "--unit",
        "who",
        "--max-rows-per-unit",
        2,
        "--id",
        "key",
    )
    code, said, _ = train(
        tmp_path / "in.npy", tmp_path / "m", "--model", "mlp", *more, *FAST, "--json"
    )
    assert code == 0
    assert json.loads(said)["guarantee"]["unit"] == "who"
    assert run("predict", tmp_path / "m", tmp_path / "in.npy", "--out", tmp_path / "p.csv")[0] == 0
    assert accuracy_of(tmp_path / "p.csv", codes) > 0.8


def test_several_nets_predict_together(tmp_path: Path) -> None:
    """Stored and read as one, of classes and of numbers."""
    pq.write_table(pa.table(shop(1200)), tmp_path / "in.parquet")
    pq.write_table(pa.table(shop(300, 1)), tmp_path / "new.parquet")
    short = ("--model", "mlp", "--nets", 3, "--id", "id", *FAST, "--epochs", 8)
    code, said, _ = train(tmp_path / "in.parquet", tmp_path / "m", *short, "--json")
    assert code == 0
    assert json.loads(said)["net"]["parameters"] == {"n_features": 7, "n_classes": 3, "n_nets": 3}
    assert (
        run("predict", tmp_path / "m", tmp_path / "new.parquet", "--out", tmp_path / "p.csv")[0]
        == 0
    )
    assert (
        accuracy_of(tmp_path / "p.csv", np.array([CLASSES.index(c) for c in shop(300, 1)["what"]]))
        > 0.8
    )
    numbers = (
        "train",
        tmp_path / "in.parquet",
        "--label",
        "one",
        "--range",
        "0:2",
        "--grid",
        5,
        "--epsilon",
        4,
        "--dataset",
        "numbers",
    )
    assert run(*numbers, *short, "--exclude", "what", "--out", tmp_path / "n")[0] == 0
    assert (
        run("predict", tmp_path / "n", tmp_path / "new.parquet", "--out", tmp_path / "q.csv")[0]
        == 0
    )
    assert abs(np.mean(pa.csv.read_csv(tmp_path / "q.csv")["prediction"].to_numpy()) - 1) < 0.5
    assert (
        train(
            tmp_path / "in.parquet", tmp_path / "o", "--model", "mlp", "--nets", 1000, "--id", "id"
        )[0]
        == 2
    )


def test_options_of_a_net_may_be_numbers_of_numpy() -> None:
    """The facts of a model are JSON, and are written after the charge."""
    options = NetOptions(
        epochs=np.int64(2), batch_size=np.int32(8), rate=np.float32(0.5), nets=np.int64(2)
    )
    assert (
        json.dumps([options.epochs, options.batch_size, options.rate, options.nets])
        == "[2, 8, 0.5, 2]"
    )


def test_every_net_is_stored_as_plain_numbers(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for name, net in named.NETS.items():
        image = (3, 32, 32) if net.side else None
        parameters = named.parameters_for(name, 5, image, 7)
        module = named.build(name, parameters).eval()
        raw = named.weights_of(module)
        again = named.restored(name, json.loads(json.dumps(parameters)), raw, "weights.pt")
        X = (
            rng.integers(0, 255, (2, 3, 32, 32)).astype(np.uint8)
            if net.side
            else rng.normal(size=(2, 7)).astype(np.float32)
        )
        np.testing.assert_array_equal(named.probabilities(module, X), named.probabilities(again, X))
        with torch.no_grad():  # the outputs 1 to 3 alone, as of one of several label columns
            inputs = torch.from_numpy(X.astype(np.float32))
            np.testing.assert_allclose(
                named.head_of(module, 1, 3)(inputs), module(inputs)[:, 1:4], rtol=1e-5, atol=1e-5
            )
        with pytest.raises(InvalidInput, match="weights"):
            named.restored(name, parameters | {"n_classes": 6}, raw, "weights.pt")
        with pytest.raises(InvalidInput, match="parameters"):
            named.restored(name, parameters | {"nonsense": 6}, raw, "weights.pt")
        with pytest.raises(InvalidInput, match="n_nets"):
            named.restored(name, parameters | {"n_nets": 10**9}, raw, "weights.pt")


def test_no_code_of_a_models_file_is_run(tmp_path: Path) -> None:
    image_table(tmp_path / "in.parquet", 60)
    assert (
        train(
            tmp_path / "in.parquet",
            tmp_path / "m",
            "--image",
            "shot",
            "--stages",
            1,
            *FAST,
            "--epochs",
            1,
        )[0]
        == 0
    )

    class Harm:
        def __reduce__(self) -> tuple[Any, ...]:
            return (Path.touch, (tmp_path / "harm",))

    torch.save({"harm": Harm()}, without_digests(tmp_path / "m") / "weights.pt")
    with pytest.raises(InvalidInput, match="weights"):
        load_model(tmp_path / "m")
    assert not (tmp_path / "harm").exists()
    facts = json.loads((tmp_path / "m" / "model.json").read_text())
    facts["net"]["name"] = "os.system"
    (tmp_path / "m" / "model.json").write_text(json.dumps(facts))
    with pytest.raises(InvalidInput, match="small-convnet"):
        load_model(tmp_path / "m")
    (tmp_path / "m" / "weights.pt").unlink()
    assert (
        run("predict", tmp_path / "m", tmp_path / "in.parquet", "--out", tmp_path / "p.csv")[0] == 5
    )


def test_a_released_table_of_images_is_free(tmp_path: Path) -> None:
    image_table(tmp_path / "in.parquet")
    codes = image_table(tmp_path / "new.parquet", 60, 1)
    assert (
        run(
            "release",
            tmp_path / "in.parquet",
            "--label",
            "what",
            *PAID,
            "--id",
            "id",
            "--out",
            tmp_path / "r.parquet",
        )[0]
        == 0
    )
    assert train(tmp_path / "r.parquet", tmp_path / "m", "--image", "shot", *FAST)[0] == 4
    code, said, _ = train(
        tmp_path / "r.parquet", tmp_path / "m", "--image", "shot", *FAST, "--json", paid=()
    )
    assert code == 0
    assert json.loads(said)["trained_on"] == "released table"
    assert (
        run("predict", tmp_path / "m", tmp_path / "new.parquet", "--out", tmp_path / "p.csv")[0]
        == 0
    )
    assert accuracy_of(tmp_path / "p.csv", codes) > 0.8
    assert len(default_ledger().runs()) == 1
    assert read_noisy(tmp_path / "r.parquet").privacy.epsilon == 8.0


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_rows_of_a_released_table_find_their_labels_in_any_order(
    tmp_path: Path, ending: str
) -> None:
    """The labels are matched by the ids of the table's own rows: of a shuffled copy, and of a part
    whose labels are in another table."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=600)
    table = pa.table(
        {
            "id": [f"row {i}" for i in range(600)],
            "x": x,
            "what": np.where(x > 0, "bright", "dark").tolist(),
        }
    )

    def read(path: Path) -> pa.Table:
        return pa.csv.read_csv(path) if path.suffix == ".csv" else pq.read_table(path)

    def write(rows: pa.Table, path: Path) -> Path:
        pa.csv.write_csv(rows, path) if path.suffix == ".csv" else pq.write_table(rows, path)
        return path

    source, out = write(table, tmp_path / f"in.{ending}"), tmp_path / f"r.{ending}"
    asked = ("--label", "what", "--epsilon", 4, "--classes", "bright,dark", "--id", "id")
    code, _, told = run("release", source, *asked, "--out", out)
    assert code == 0, told
    facts = out.with_name(f"{out.name}.manifest.json")
    shuffled = write(read(out).take(rng.permutation(600)), tmp_path / f"shuffled.{ending}")
    part = write(read(shuffled).slice(0, 400).drop_columns(["what"]), tmp_path / f"part.{ending}")
    given = {
        "r": (out,),
        "shuffled": (shuffled, "--manifest", facts),
        "part": (part, "--released", out, "--id", "id"),
    }
    for name, (rows, *more) in given.items():
        command = ("--model", "mlp", *FAST, *more)
        code, _, told = run("train", rows, "--label", "what", "--out", tmp_path / name, *command)
        assert code == 0 and "warning" not in told, told
        assert run("predict", tmp_path / name, source, "--out", tmp_path / f"p-{name}.csv")[0] == 0
        found = pa.csv.read_csv(tmp_path / f"p-{name}.csv")["prediction"].to_pylist()
        assert np.mean(np.array(found) == np.array(table["what"].to_pylist())) > 0.9


def test_a_training_that_was_killed_goes_on(tmp_path: Path) -> None:
    """The second attempt finds both stages done: it trains no epoch, draws nothing and writes the
    same weights."""
    image_table(tmp_path / "in.parquet")
    command = (
        "--image",
        "shot",
        "--law",
        "rr-with-prior",
        "--stages",
        2,
        *FAST,
        "--folder",
        tmp_path / "state",
    )
    assert train(tmp_path / "in.parquet", tmp_path / "a", *command)[0] == 0
    kept = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "state").iterdir()}
    assert {"plan.json", "receipt.json", "model-1.pt", "model-2.pt"} <= kept.keys()
    (tmp_path / "state" / "model-2.pt").unlink()  # as if it had been killed in stage 2
    assert train(tmp_path / "in.parquet", tmp_path / "b", *command)[0] == 0
    again = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "state").iterdir()}
    assert {name for name in again if again[name] != kept.get(name)} == {"model-2.pt"}
    first, second = (torch.load(tmp_path / m / "weights.pt", weights_only=True) for m in "ab")
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert len(default_ledger().runs()) == 1
    code, _, said = train(tmp_path / "in.parquet", tmp_path / "c", *command, "--seed", 1)
    assert code == 4
    assert "random_state" in said
    assert (
        train(
            tmp_path / "in.parquet",
            tmp_path / "d",
            "--image",
            "shot",
            "--folder",
            tmp_path / "d" / "state",
        )[0]
        == 4
    )
    assert not (tmp_path / "d").exists()


def test_images_that_do_not_fit_are_named(tmp_path: Path) -> None:
    pixels, codes = pictures(12)
    good = [encoded(each) for each in pixels]
    bad = {
        "8 x 7": encoded(pixels[0][:, :7]),
        "colour": encoded(pixels[0], mode="RGB"),
        "RGBA": encoded(pixels[0], mode="RGBA"),
        "cannot": b"no image",
        "trunc": good[0][:60],
    }
    expected = {
        "8 x 7": "one size",
        "colour": "grey images",
        "RGBA": "transparency",
        "cannot": "can be read",
        "trunc": "can be read",
    }
    for name, data in bad.items():
        table = pa.table(
            {"shot": pa.array([*good[:7], data, *good[8:]], pa.binary()), "what": text(codes)}
        )
        pq.write_table(table, tmp_path / "in.parquet")
        code, _, said = train(tmp_path / "in.parquet", tmp_path / "m", "--image", "shot", *FAST)
        assert code == 4
        assert expected[name] in said
        assert "row 8 (the first is row 1)" in said
    pq.write_table(
        pa.table({"shot": pa.array([None, *good[1:]], pa.binary()), "what": text(codes)}),
        tmp_path / "in.parquet",
    )
    assert "Drop such rows" in train(tmp_path / "in.parquet", tmp_path / "m", "--image", "shot")[2]
    assert default_ledger().runs() == []
    assert [p.name for p in tmp_path.iterdir()] == ["in.parquet"]


@pytest.mark.parametrize(
    "name",
    ["bright/1.png", "x/Bright/1.png", "what=striped/1.png", "x/dark_17.png", "x/bright.png"],
)
def test_names_that_show_the_class_are_refused(tmp_path: Path, name: str) -> None:
    source, codes = files_and_table(tmp_path, 20)
    names = [*(f"{'ab'[i % 2]}{i % 2}/{i}.png" for i in range(19)), name]
    (tmp_path / "files" / name).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / "files" / name).write_bytes((tmp_path / "files" / names[0]).read_bytes())
    pa.csv.write_csv(pa.table({"file": names, "what": text(codes)}), source)
    code, _, said = train(
        source, tmp_path / "m", "--image", "file", "--images", tmp_path / "files", *FAST
    )
    assert code == 4
    assert "say nothing about the labels" in said
    assert "row 20 (the first is row 1)" in said
    assert default_ledger().runs() == []


def test_paths_beside_bytes_that_show_the_class_are_refused(tmp_path: Path) -> None:
    """Neither the path that a struct keeps of an image nor the folders of a table of many files."""
    pixels, codes = pictures(20)
    images = [
        {"bytes": encoded(each), "path": f"x/{what}-1.png"}
        for each, what in zip(pixels, text(codes), strict=True)
    ]
    pq.write_table(pa.table({"shot": images, "what": text(codes)}), tmp_path / "in.parquet")
    for i, name in enumerate(CLASSES):
        (tmp_path / "many" / name).mkdir(parents=True)
        rows = np.flatnonzero(codes == i)
        shots = pa.array([encoded(pixels[row]) for row in rows], pa.binary())
        pq.write_table(
            pa.table({"shot": shots, "what": [name] * len(rows)}),
            tmp_path / "many" / name / "0.parquet",
        )
    for source in (tmp_path / "in.parquet", tmp_path / "many"):
        code, _, said = train(source, tmp_path / "m", "--image", "shot", *FAST)
        assert code == 4
        assert "say nothing about the labels" in said
    assert default_ledger().runs() == []


def test_what_is_asked_for_must_fit(tmp_path: Path) -> None:
    source, _ = files_and_table(tmp_path, 20)
    image_table(tmp_path / "in.parquet", 20)
    np.savez(tmp_path / "rows.npz", X=np.zeros((20, 6)), what=text(pictures(20)[1]))
    images = ("--image", "file", "--images", tmp_path / "files")
    refused: list[tuple[tuple[object, ...], int, str]] = [
        ((source, *images, "--model", "resnet8"), 2, "resnet18"),
        ((source, *images, "--model", "mlp"), 4, "rows of numbers"),
        ((source, *images, "--model", "vgg16"), 4, "32 x 32"),
        ((source, "--model", "resnet18"), 4, "--image"),
        ((source, "--epochs", 3), 2, "--epochs"),
        ((source, *images, "--epochs", 0), 2, "epochs"),
        ((source, *images, "--rate", "nan"), 2, "rate"),
        ((source, *images, "--device", "abacus"), 4, "abacus"),
        ((source, "--images", tmp_path), 4, "--image"),
        ((source, "--image", "fil"), 4, "'file'"),
        ((source, "--image", "what"), 4, "label"),
        ((source, "--image", "file", "--images", tmp_path / "nowhere"), 5, "nowhere"),
        ((source, *images, "--inputs", "X"), 4, ".npz"),
        ((tmp_path / "rows.npz", "--model", "resnet18"), 4, "rows of 6 numbers"),
        ((tmp_path / "files", *images), 4, "--image COLUMN"),
        ((tmp_path / "in.parquet", "--image", "id"), 4, "bytes of images"),
    ]
    for (where, *more), code, said in refused:
        found = train(Path(str(where)), tmp_path / "m", *more)
        assert (found[0], said in found[2]) == (code, True), found
    assert default_ledger().runs() == []
    assert not (tmp_path / "m").exists()


def test_labels_that_are_not_declared_are_not_shown(tmp_path: Path) -> None:
    pixels, codes = pictures(20)
    np.savez(tmp_path / "in.npz", X=pixels, what=np.array([SENTINEL, *text(codes)[1:]]))
    code, _, said = train(tmp_path / "in.npz", tmp_path / "m", *FAST)
    assert code == 4
    assert "some label is not" in said and SENTINEL not in said


WITHOUT = """
import sys

class Without:
    def find_spec(self, name, *_):
        if name.split(".")[0] == {!r}:
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Without())
from labeldp.cli import main
main()
"""


@pytest.mark.parametrize(
    ("missing", "extra"), [("torch", "labeldp[torch]"), ("PIL", "labeldp[images]")]
)
def test_what_is_missing_is_named(tmp_path: Path, missing: str, extra: str) -> None:
    image_table(tmp_path / "in.parquet", 20)
    program = WITHOUT.format(missing)
    given = [
        "train",
        tmp_path / "in.parquet",
        "--label",
        "what",
        "--image",
        "shot",
        "--out",
        tmp_path / "m",
        *PAID,
    ]
    done = subprocess.run(
        [sys.executable, "-c", program, *map(str, given)], capture_output=True, text=True
    )
    assert done.returncode == 6
    assert f"pip install '{extra}'" in done.stderr
    assert not (tmp_path / "m").exists()


def test_a_net_can_be_a_prior(tmp_path: Path) -> None:
    image_table(tmp_path / "in.parquet")
    image_table(tmp_path / "more.parquet", 60, 2)
    assert train(tmp_path / "in.parquet", tmp_path / "m", "--image", "shot", *FAST)[0] == 0
    given = (
        "--label",
        "what",
        "--epsilon",
        1,
        "--classes",
        ",".join(CLASSES),
        "--id",
        "id",
        "--prior-model",
        tmp_path / "m",
    )
    more = ("release", tmp_path / "more.parquet", *given, "--out", tmp_path / "r.parquet")
    code, _, err = run(*more, "--law", "rr-with-prior")
    assert code == 4 and "one candidate in each of 60 rows" in err  # so sure is the net
    assert run(*more, "--law", "auto")[0] == 0
    assert pq.read_table(tmp_path / "r.parquet").num_rows == 60
