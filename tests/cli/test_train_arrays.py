# SPDX-License-Identifier: Apache-2.0
"""`labeldp train` and `predict` on NumPy's files, without torch; what is no array of inputs is
refused before anything is charged."""

import json
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pytest
from tests.cli.commands import SENTINEL, run

from labeldp.ledger._ledger import default_ledger

pytestmark = pytest.mark.usefixtures("same_noise")  # what is learned is judged
N = 450


def saved(path: Path, seed: int = 0, **more: np.ndarray) -> np.ndarray:
    """A matrix with gaps, its labels, ids and units; the true labels."""
    rng = np.random.default_rng(seed)
    codes = rng.integers(0, 3, N)
    matrix = rng.normal(0, 0.5, (N, 3)) + np.eye(3)[codes] * 3
    matrix[::40, 1] = np.nan
    np.savez(
        path, **{"X": matrix, "y": codes, "key": np.arange(N), "who": np.arange(N) // 2} | more
    )
    return codes


def train(source: Path, out: Path, *more: object) -> tuple[int, str, str]:
    return run(
        "train", source, "--label", "y", "--out", out, "--epsilon", 8, "--classes", "0,1,2", *more
    )


def test_an_array_of_numbers(tmp_path: Path) -> None:
    saved(tmp_path / "in.npz")
    truth = saved(tmp_path / "new.npz", 1)
    code, said, _ = train(tmp_path / "in.npz", tmp_path / "m", "--id", "key", "--json")
    assert code == 0
    facts = json.loads(said)
    assert facts["features"] == {
        "kind": "array",
        "key": "X",
        "shape": [3],
        "dtype": "float32",
        "channels": "",
    }
    assert facts["classes"] == [0, 1, 2]
    assert sorted(p.name for p in (tmp_path / "m").iterdir()) == ["model.json", "model.skops"]
    assert run("predict", tmp_path / "m", tmp_path / "new.npz", "--out", tmp_path / "p.csv")[0] == 0
    found = pa.csv.read_csv(tmp_path / "p.csv")
    assert found.column_names == [
        "key",
        "prediction",
        "probability_0",
        "probability_1",
        "probability_2",
    ]
    assert np.mean(found["prediction"].to_numpy() == truth) > 0.8
    assert default_ledger().spent("in", "y") == 8.0
    assert train(tmp_path / "in.npz", tmp_path / "again", "--id", "key")[0] == 0
    assert len(default_ledger().runs()) == 1


def test_labels_in_another_file(tmp_path: Path) -> None:
    codes = saved(tmp_path / "in.npz")
    np.save(tmp_path / "X.npy", np.load(tmp_path / "in.npz")["X"].astype(">f4"))
    np.save(tmp_path / "labels.npy", codes[:, None])
    code, said, _ = train(
        tmp_path / "X.npy",
        tmp_path / "m",
        "--labels",
        tmp_path / "labels.npy",
        "--stages",
        1,
        "--json",
    )
    assert code == 0
    assert json.loads(said)["ids"] == []
    np.savez(tmp_path / "other.npz", X=np.zeros((N, 9)), y=codes)  # whose X is not the inputs
    assert (
        train(
            tmp_path / "X.npy", tmp_path / "o", "--labels", tmp_path / "other.npz", "--stages", 1
        )[0]
        == 0
    )
    assert json.loads((tmp_path / "o" / "model.json").read_text())["features"]["shape"] == [3]
    saved(tmp_path / "new.npz", 1)
    np.savez(tmp_path / "named.npz", features=np.load(tmp_path / "new.npz")["X"], y=codes)
    assert (
        train(tmp_path / "named.npz", tmp_path / "n", "--inputs", "features", "--stages", 1)[0] == 0
    )
    assert run("predict", tmp_path / "n", tmp_path / "X.npy", "--out", tmp_path / "p.csv")[0] == 0
    code, _, said = run(
        "predict", tmp_path / "n", tmp_path / "new.npz", "--out", tmp_path / "q.csv"
    )
    assert code == 4
    assert "'features'" in said


def test_arrays_that_do_not_fit(tmp_path: Path) -> None:
    source = tmp_path / "in.npz"
    codes = saved(source)
    wrong: list[tuple[dict[str, np.ndarray], tuple[object, ...], str]] = [
        ({}, ("--inputs", "X1"), "mean 'X'"),
        ({}, ("--label", "why"), "'why'"),
        ({}, ("--inputs", "y"), "as both"),
        ({}, ("--image", "X"), "arrays"),
        ({"y": codes[:-1]}, (), "one value for each"),
        ({"y": np.array(["0"] * (N - 1) + [SENTINEL])}, (), "some label is not"),
        ({"y": codes.astype(complex)}, (), "'y'"),
        ({"X": np.empty((0, 3))}, (), "rows"),
        ({"X": np.zeros(())}, (), "axis of rows"),
        ({"X": np.zeros((N, 5, 5, 5, 1))}, (), "Reshape"),
        ({"X": np.array([["a", "b"]] * N)}, (), "numbers"),
        ({"X": np.array([[{}]] * N)}, (), "plain arrays"),
    ]
    for arrays, more, said in wrong:
        saved(source, **arrays)
        found = train(source, tmp_path / "m", *more)
        assert (found[0], said in found[2]) == (4, True), found
    source.write_bytes(b"PK no archive")
    assert "numpy.savez" in train(source, tmp_path / "m")[2]
    assert train(tmp_path / "none.npz", tmp_path / "m")[0] == 5
    assert default_ledger().runs() == []
    assert not (tmp_path / "m").exists()


def test_a_table_is_not_an_array(tmp_path: Path) -> None:
    saved(tmp_path / "in.npz")
    assert train(tmp_path / "in.npz", tmp_path / "m", "--stages", 1)[0] == 0
    pa.csv.write_csv(pa.table({"X": [1.0]}), tmp_path / "in.csv")
    code, _, said = run("predict", tmp_path / "m", tmp_path / "in.csv", "--out", tmp_path / "p.csv")
    assert code == 4
    assert ".npz" in said
    code, _, said = train(tmp_path / "in.csv", tmp_path / "n", "--labels", tmp_path / "in.npz")
    assert code == 4
    assert "--labels" in said


def test_a_wrong_model_is_corrected_without_torch(tmp_path: Path) -> None:
    saved(tmp_path / "in.npz")
    code, _, said = train(tmp_path / "in.npz", tmp_path / "m", "--model", "wrn-28-10")
    assert code == 2
    assert "wrn-28-4" in said
    code, _, said = train(tmp_path / "in.npz", tmp_path / "m", "--epochs", 3)
    assert code == 4
    assert "--model mlp" in said


@pytest.mark.skipif(
    find_spec("torch") is not None, reason="torch is installed; tests/deep hides it from a process"
)
def test_torch_is_asked_for(tmp_path: Path) -> None:
    saved(tmp_path / "in.npz")
    code, _, said = train(tmp_path / "in.npz", tmp_path / "m", "--model", "mlp")
    assert code == 6
    assert "pip install 'labeldp[torch]'" in said
