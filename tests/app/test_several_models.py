# SPDX-License-Identifier: Apache-2.0
"""The folder of models of several label columns: whole or not at all, and checked before use."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

import labeldp.app._model as models
from labeldp.app._model import load_model, load_models, save_models
from labeldp.errors import InvalidInput, LabelDPError, ReleaseError

NAMES = ["a", "b", "c"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    dice = np.random.default_rng(0)
    X = dice.normal(size=(100, 2))
    fitted = [(LogisticRegression().fit(X, (X @ [1, i] > 0).astype(int)), {}) for i in range(3)]
    columns = [{"label": name, "classes": ["no", "yes"]} for name in NAMES]
    features = {"columns": [{"name": f"x{i}", "kind": "number"} for i in range(2)], "left_out": []}
    save_models(
        tmp_path / "m",
        fitted,
        {"label": "a,b,c", "columns": columns, "features": features, "ids": ["id"], "rows": 100},
    )
    return tmp_path / "m"


def rewrite(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    facts = json.loads(path.read_text())
    change(facts)
    path.write_text(json.dumps(facts))


def without_digests(folder: Path) -> None:
    for path in (folder, *folder.glob("column-*")):
        rewrite(path / "model.json", lambda facts: facts.pop("digests"))


def test_each_column_is_a_model(folder: Path) -> None:
    found = load_models(folder)
    assert [each.facts["label"] for each in found] == NAMES and all(
        each.facts["ids"] == ["id"] for each in found
    )
    assert sorted(path.name for path in folder.iterdir()) == [
        "column-1",
        "column-2",
        "column-3",
        "model.json",
    ]
    X = np.ones((4, 2))
    (own,) = load_models(folder / "column-2")
    np.testing.assert_array_equal(own.predict_proba(X), found[1].predict_proba(X))
    with pytest.raises(InvalidInput, match="Expected the model of one label column"):
        load_model(folder)
    assert not [path for path in folder.parent.iterdir() if path != folder]


def test_a_kill_while_it_is_written_leaves_no_half(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a killed process has left is removed by the next one, also if that has fewer columns."""
    facts = json.loads((folder / "model.json").read_text())
    for name in ("format", "kind", "digests"):  # are written anew
        facts.pop(name)
    fitted = [(each.model.estimator, {}) for each in load_models(folder)]
    out, stale = tmp_path / "new", tmp_path / ".new.labeldp"
    monkeypatch.setattr(models.os, "replace", lambda *_: (_ for _ in ()).throw(OSError("killed")))
    with pytest.raises(OSError, match="killed"):
        save_models(out, fitted, facts)
    assert not out.exists() and not stale.exists()
    monkeypatch.undo()
    shutil.copytree(folder, stale / "model")
    stale.chmod(0o700)
    save_models(out, fitted[:2], facts | {"columns": facts["columns"][:2]})
    assert [each.facts["label"] for each in load_models(out)] == NAMES[:2] and not stale.exists()
    with pytest.raises(ReleaseError, match="Expected a new or empty folder"):
        save_models(out, fitted, facts)


CHANGES: dict[str, Callable[[Path], object]] = {
    "a column's name": lambda m: rewrite(
        m / "model.json", lambda f: f["columns"][0].update(label="z")
    ),
    "a fact of all": lambda m: rewrite(m / "model.json", lambda f: f.update(rows=7)),
    "the order": lambda m: rewrite(m / "model.json", lambda f: f["columns"].reverse()),
    "a column less": lambda m: rewrite(m / "model.json", lambda f: f["columns"].pop()),
    "a digest less": lambda m: rewrite(m / "model.json", lambda f: f["digests"].pop("column-1")),
    "digests of another kind": lambda m: rewrite(m / "model.json", lambda f: f.update(digests=[])),
    "classes of a column": lambda m: rewrite(
        m / "column-2" / "model.json", lambda f: f.update(classes=["yes", "no"])
    ),
    "a model of a column": lambda m: (m / "column-2" / "model.skops").write_bytes(b"x"),
    "models that changed places": lambda m: (
        (m / "column-1").rename(m / "c"),
        (m / "column-2").rename(m / "column-1"),
        (m / "c").rename(m / "column-2"),
    ),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_changed_folder_is_refused(folder: Path, name: str) -> None:
    CHANGES[name](folder)
    with pytest.raises(InvalidInput, match="one that was changed"):
        load_models(folder)


WITHOUT: dict[str, Callable[[Path], object]] = {
    "a column's name": lambda m: rewrite(
        m / "model.json", lambda f: f["columns"][0].update(label="z")
    ),
    "other inputs": lambda m: rewrite(
        m / "model.json", lambda f: f["features"]["columns"].reverse()
    ),
    "inputs of one column": lambda m: rewrite(
        m / "column-3" / "model.json", lambda f: f["features"]["columns"].reverse()
    ),
    "one column": lambda m: rewrite(m / "model.json", lambda f: f.update(columns=f["columns"][:1])),
    "too many columns": lambda m: rewrite(
        m / "model.json", lambda f: f.update(columns=f["columns"] * 9)
    ),
    "no list": lambda m: rewrite(m / "model.json", lambda f: f.update(columns="a,b")),
    "no mappings": lambda m: rewrite(m / "model.json", lambda f: f.update(columns=["a", "b"])),
    "no columns": lambda m: rewrite(m / "model.json", lambda f: f.pop("columns")),
    "one name twice": lambda m: [
        rewrite(m / "model.json", lambda f: f["columns"][1].update(label="a")),
        rewrite(m / "column-2" / "model.json", lambda f: f.update(label="a")),
    ],
    "no label": lambda m: [
        rewrite(m / "model.json", lambda f: f["columns"][1].pop("label")),
        rewrite(m / "column-2" / "model.json", lambda f: f.pop("label")),
    ],
    "no features": lambda m: rewrite(m / "column-2" / "model.json", lambda f: f.pop("features")),
    "a folder less": lambda m: shutil.rmtree(m / "column-2"),
    "models within models": lambda m: shutil.copy(m / "model.json", m / "column-2" / "model.json"),
    "an unknown kind": lambda m: rewrite(m / "model.json", lambda f: f.update(kind="x")),
}


@pytest.mark.parametrize("name", WITHOUT)
def test_a_folder_without_digests_whose_parts_do_not_fit_is_refused(
    folder: Path, name: str
) -> None:
    without_digests(folder)
    assert len(load_models(folder)) == 3
    WITHOUT[name](folder)
    with pytest.raises(LabelDPError, match="Expected"):
        load_models(folder)
