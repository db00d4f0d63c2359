# SPDX-License-Identifier: Apache-2.0
"""The demo runs as it is, with one seed, and its summary says what the runs say."""

import json
from pathlib import Path

import pytest
from tests.cli.commands import run

from labeldp.app import demo
from labeldp.errors import InvalidInput, ReleaseError


def test_the_demo_writes_what_it_ran(tmp_path: Path) -> None:
    code, printed, _ = run("demo", "--out", tmp_path, "--seeds", 1)
    result = json.loads((tmp_path / "summary.json").read_text())
    assert len(result["runs"]) == result["fits"] == len(demo.TASKS) * (1 + 3 * len(demo.EPSILONS))
    page = (tmp_path / "summary.md").read_text()
    assert code == 0 and page in printed and len(page.splitlines()) < 60  # one page
    assert "percent, of one seed." in page and "±" not in page
    for row in result["rows"]:
        for method in demo.METHODS:
            known = (row["task"], method, None if method == "no privacy" else row["epsilon"])
            (score,) = (
                100 * r["accuracy"]
                for r in result["runs"]
                if (r["task"], r["method"], r["epsilon"]) == known
            )
            assert score == pytest.approx(row[method]["mean"]) and f"{score:.1f}" in page
        # Far above guessing at each budget, and never above 100 %.
        assert 100 / (10 if row["task"] == "digits" else 2) < row["two stages"]["mean"] <= 100
    again = result["runs"][-1]
    assert again["accuracy"] == demo.accuracy(*(again[name] for name in list(again)[:4]))


def test_several_seeds_have_a_spread() -> None:
    row = {"epsilon": 1.0, **{method: {"mean": 80.0, "sd": 1.25} for method in demo.METHODS}}
    assert all("80.0 ± 1.2" in cell for cell in demo._cells(row)[1:])


def test_nothing_runs_without_seeds_or_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo, "accuracy", lambda *_: pytest.fail("it trained"))
    with pytest.raises(InvalidInput, match="seeds"):
        demo.run(tmp_path / "out", seeds=0)
    assert not (tmp_path / "out").exists() and run("demo", "--seeds", 0)[0] == 2
    (tmp_path / ".summary.json.labeldp").write_text("in the way of the work folder")
    with pytest.raises(ReleaseError):
        demo.run(tmp_path)
