# SPDX-License-Identifier: Apache-2.0
"""A model's folder that somebody changed is refused in words; it never crashes the process and
never reads beyond its arrays."""

import io
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import scipy.sparse as sp
from sklearn.base import clone
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegression, SGDClassifier
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import OneHotEncoder
from sklearn.svm import SVC
from skops import io as skops_io
from tests.app.fuzz_models import archive_of, entries_of, without_digests

from labeldp.app._learners import Encoding
from labeldp.app._model import load_model, save_model
from labeldp.deep._named import as_floats
from labeldp.errors import InvalidInput, LabelDPError
from labeldp.inputs._columns import Column, ColumnInputs

ROOT = Path(__file__).resolve().parents[2]
N = 400


def rows() -> np.ndarray:
    dice = np.random.default_rng(0)
    return np.column_stack(
        [dice.integers(0, 6, N), dice.normal(size=N), dice.normal(size=N)]
    ).astype(np.float64)


def codes() -> np.ndarray:
    X = rows()
    return ((X[:, 0] > 2).astype(int) + (X[:, 1] > 0)).astype(np.int64)


def facts() -> dict[str, Any]:
    columns = [{"name": f"x{i}", "kind": "number"} for i in range(3)]
    return {"classes": ["a", "b", "c"], "features": {"columns": columns, "left_out": []}}


def boosting() -> Any:
    return HistGradientBoostingClassifier(
        max_iter=4, max_leaf_nodes=6, categorical_features=[0], random_state=0
    ).fit(rows(), codes())


def nearest() -> Any:
    return KNeighborsClassifier(1, algorithm="brute").fit(rows().astype(np.float32), codes())


def stored(folder: Path, model: Any) -> Path:
    save_model(folder, model, facts())
    return without_digests(folder)


def change_nodes(folder: Path, change: Callable[[np.ndarray], None]) -> None:
    path = folder / "model.skops"
    entries = entries_of(path.read_bytes())
    for name, data in entries.items():
        array = np.load(io.BytesIO(data)) if name.endswith(".npy") else np.empty(0)
        if array.dtype.names:
            change(array)
            out = io.BytesIO()
            np.save(out, array)
            entries[name] = out.getvalue()
    path.write_bytes(archive_of(entries))


def predict_in_a_process(folder: Path, tmp_path: Path) -> subprocess.CompletedProcess[str]:
    table = pa.table({f"x{i}": column for i, column in enumerate(rows().T)})
    pq.write_table(table, tmp_path / "in.parquet")
    command = [
        sys.executable,
        "-m",
        "labeldp",
        "predict",
        str(folder),
        str(tmp_path / "in.parquet"),
        "--out",
        str(tmp_path / "p.parquet"),
    ]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)


def field(name: str, value: Callable[[np.ndarray], Any]) -> Callable[[np.ndarray], None]:
    def change(nodes: np.ndarray) -> None:
        inner = nodes["is_leaf"] == 0
        nodes[name][inner] = value(nodes)

    return change


@pytest.mark.parametrize(
    "change",
    [
        field("left", lambda nodes: 2**31),
        field("right", len),
        field("left", lambda nodes: 0),  # a walk without an end
        field("feature_idx", lambda nodes: 2**40),
        field("feature_idx", lambda nodes: -(2**40)),
        field("feature_idx", lambda nodes: 3),
        lambda nodes: (
            nodes.__setitem__("is_categorical", 1) or nodes.__setitem__("bitset_idx", 2**31)
        ),
        lambda nodes: nodes["is_leaf"].__setitem__(-1, 0),
    ],
    ids=[
        "left",
        "right",
        "cycle",
        "feature",
        "negative-feature",
        "feature-off-by-one",
        "bitset",
        "last-is-no-leaf",
    ],
)
def test_a_changed_tree_is_refused_and_does_not_crash(
    change: Callable[[np.ndarray], None], tmp_path: Path
) -> None:
    folder = stored(tmp_path / "model", boosting())
    assert predict_in_a_process(folder, tmp_path).returncode == 0
    (tmp_path / "p.parquet").unlink()
    change_nodes(folder, change)
    done = predict_in_a_process(folder, tmp_path)
    assert done.returncode in (2, 3, 4, 5, 6), (done.returncode, done.stderr)
    assert "changed" in done.stderr and "Traceback" not in done.stderr
    assert not (tmp_path / "p.parquet").exists()


def shops() -> pa.Table:
    """A column of texts with gaps, one of numbers with gaps."""
    X = rows()
    texts = [None if i % 9 == 0 else f"k{int(each)}" for i, each in enumerate(X[:, 0])]
    return pa.table({"shop": texts, "sum": pa.array(X[:, 1], mask=X[:, 1] > 1)})


def of_columns(estimator: Any) -> tuple[Any, dict[str, Any]]:
    """A pipeline from columns to classes, as `labeldp train` stores it, and its facts."""
    inputs = ColumnInputs((Column("shop", "category"), Column("sum", "number")))
    encoding, table = Encoding(inputs), inputs.read(shops().to_batches()[0])
    X = (
        encoding.ordinal(table)
        if isinstance(estimator, HistGradientBoostingClassifier)
        else encoding.one_hot(table)
    )
    X = as_floats(X) if isinstance(estimator, KNeighborsClassifier) else X  # centres are dense
    return encoding.pipeline(estimator.fit(X, codes())), facts() | {"features": inputs.to_dict()}


OF_COLUMNS = [
    LogisticRegression(),
    KNeighborsClassifier(1, algorithm="brute"),
    HistGradientBoostingClassifier(max_iter=3, categorical_features=[0]),
]


@pytest.mark.parametrize("estimator", OF_COLUMNS, ids=["linear", "nearest", "boosting"])
def test_damaged_pipelines_of_columns_end_in_an_error_or_a_prediction(
    estimator: Any, tmp_path: Path
) -> None:
    save_model(tmp_path / "model", *of_columns(clone(estimator)))
    pq.write_table(shops().slice(0, 50), tmp_path / "rows.parquet")
    ends = damaged_often(without_digests(tmp_path / "model"), tmp_path / "rows.parquet")
    assert ends["refused"] > 100
    assert ends["predicted"] > 20


@pytest.mark.parametrize("sparse", [True, False])
def test_an_encoder_that_points_outside_is_refused(sparse: bool, tmp_path: Path) -> None:
    """A category whose column is not there: compiled code would read or write beyond the matrix."""
    encoder = OneHotEncoder(sparse_output=sparse).fit(rows()[:, :2].round())
    whole = Pipeline(
        [
            ("encoder", encoder),
            ("model", LogisticRegression().fit(encoder.transform(rows()[:, :2].round()), codes())),
        ]
    )
    assert load_model(stored(tmp_path / "whole", whole)).predict_proba(
        rows()[:, :2].round()
    ).shape == (N, 3)
    encoder._n_features_outs = [1, sum(encoder._n_features_outs) - 1]
    encoder.categories_[1] = np.concatenate([encoder.categories_[1], np.arange(1000.0, 2000.0)])
    changed = load_model(stored(tmp_path / "model", whole))
    with pytest.raises(InvalidInput, match="damaged or was changed"):
        changed.predict_proba(np.column_stack([np.zeros(3), np.full(3, 1999.0)]))


def damaged_often(folder: Path, rows: Path) -> dict[str, int]:
    """How 400 damaged copies end, in a process of their own."""
    command = [sys.executable, "-m", "tests.app.fuzz_models", str(folder), str(rows), "400"]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=600, check=False, cwd=ROOT
    )
    assert done.returncode == 0, (
        done.returncode,
        done.stdout.splitlines()[-1:],
        done.stderr[-4000:],
    )
    found: dict[str, int] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize(
    "make",
    [boosting, nearest, lambda: LogisticRegression().fit(rows(), codes())],
    ids=["boosting", "nearest", "logistic"],
)
def test_damaged_archives_end_in_an_error_or_a_prediction(
    make: Callable[[], Any], tmp_path: Path
) -> None:
    folder = stored(tmp_path / "model", make())
    np.save(tmp_path / "rows.npy", rows()[:50])
    ends = damaged_often(folder, tmp_path / "rows.npy")
    assert ends["refused"] > 100
    assert ends["predicted"] > 20


def test_types_whose_code_trusts_its_arrays_are_asked_for(tmp_path: Path) -> None:
    folder = stored(tmp_path / "model", SVC().fit(rows(), codes()))
    with pytest.raises(InvalidInput, match=r"--trust sklearn\.svm\._classes\.SVC"):
        load_model(folder)
    assert load_model(folder, trust=["sklearn.svm._classes.SVC"]).predict_proba(rows()).shape == (
        N,
        3,
    )


def test_a_sparse_matrix_that_points_outside_is_refused(tmp_path: Path) -> None:
    model = SGDClassifier(loss="log_loss", random_state=0).fit(rows(), codes()).sparsify()
    trust = [f"{type(model.coef_).__module__}.{type(model.coef_).__qualname__}"]
    assert load_model(stored(tmp_path / "whole", model), trust).predict_proba(rows()).shape == (
        N,
        3,
    )
    model.coef_ = sp.csr_matrix(model.coef_)
    model.coef_.indices[:] = 2**30
    with pytest.raises(InvalidInput, match="sparse"):
        load_model(stored(tmp_path / "model", model), trust)


def test_fewer_features_than_the_trees_ask_for(tmp_path: Path) -> None:
    model = boosting()
    model.n_features_in_ = 1
    model._preprocessor = None
    model._is_categorical_remapped = model.is_categorical_ = None
    loaded = load_model(stored(tmp_path / "model", model))
    with pytest.raises(LabelDPError):
        loaded.predict_proba(rows()[:, :1])


def test_an_archive_that_unpacks_without_measure_is_refused(tmp_path: Path) -> None:
    import zipfile

    folder = stored(tmp_path / "model", boosting())
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in entries_of((folder / "model.skops").read_bytes()).items():
            archive.writestr(name, data)
        archive.writestr("bomb.npy", bytes(300 << 20))
    (folder / "model.skops").write_bytes(made.getvalue())
    with pytest.raises(InvalidInput, match="format of skops"):
        load_model(folder)


def test_release_with_a_changed_prior_model_is_refused_before_the_charge(tmp_path: Path) -> None:
    folder = stored(tmp_path / "model", boosting())
    change_nodes(folder, field("left", lambda nodes: 2**31))
    X = rows()
    table = {f"x{i}": X[:, i] for i in range(3)} | {
        "id": np.arange(N),
        "y": np.array(["a", "b", "c"])[codes()],
    }
    pq.write_table(pa.table(table), tmp_path / "in.parquet")
    release = [
        "release",
        str(tmp_path / "in.parquet"),
        "--label",
        "y",
        "--classes",
        "a,b,c",
        "--epsilon",
        "1",
        "--id",
        "id",
        "--dataset",
        "d",
    ]
    more = [
        "--out",
        str(tmp_path / "out.parquet"),
        "--ledger",
        str(tmp_path / "l.db"),
        "--prior-model",
        str(folder),
        "--law",
        "rr-with-prior",
    ]
    done = subprocess.run(
        [sys.executable, "-m", "labeldp", *release, *more],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode > 0, (done.returncode, done.stderr)
    assert "changed" in done.stderr
    assert not (tmp_path / "l.db").exists()
    assert not (tmp_path / "out.parquet").exists()


def test_skops_still_knows_the_types_by_these_names() -> None:
    assert set(skops_io.get_untrusted_types(data=skops_io.dumps(boosting()))) <= {
        "functools.partial",
        "sklearn.ensemble._hist_gradient_boosting.predictor.TreePredictor",
        "sklearn.utils.validation.check_array",
    }


@pytest.mark.deep
def test_a_net_larger_than_its_file_is_refused_before_memory_is_taken(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    from labeldp.deep import _named as named

    parameters = named.parameters_for("mlp", 3, None, 3)
    net = {"name": "mlp", "parameters": parameters}
    save_model(tmp_path / "model", named.build("mlp", parameters), facts() | {"net": net})
    assert load_model(tmp_path / "model").predict_proba(rows().astype(np.float32)).shape == (N, 3)
    said = json.loads((without_digests(tmp_path / "model") / "model.json").read_text())
    size = next(name for name, value in parameters.items() if value == 3 and name != "n_classes")
    said["net"]["parameters"][size] = 10**9
    (tmp_path / "model" / "model.json").write_text(json.dumps(said))
    with pytest.raises(InvalidInput, match="weights of mlp"):
        load_model(tmp_path / "model")
