# SPDX-License-Identifier: Apache-2.0
"""`labeldp stage` as a person meets it."""

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.cli.commands import run

from labeldp.ledger._ledger import default_ledger

N = 600


@pytest.fixture
def source(tmp_path: Path) -> Path:
    rng = np.random.default_rng(3)
    labels = np.array(["ill", "well", "unsure"])[rng.integers(0, 3, N)]
    weights = rng.random((3, N)) + 0.1
    pq.write_table(
        pa.table(
            {
                "patient": np.arange(N),
                "status": labels,
                "a": weights[0],
                "b": weights[1],
                "c": weights[2],
            }
        ),
        tmp_path / "in.pq",
    )
    return tmp_path / "in.pq"


def plan(folder: Path, *more: object) -> tuple[int, str, str]:
    facts = (
        "--label",
        "status",
        "--classes",
        "ill,well,unsure",
        "--epsilon",
        "1",
        "--id",
        "patient",
        "--dataset",
        "d",
    )
    return run("stage", "plan", folder, *facts, *(more or ("--parts", "0.6,0.4")))


def release(
    folder: Path, source: Path, stage: int, out: Path, *more: object
) -> tuple[int, str, str]:
    return run("stage", "release", folder, source, "--stage", stage, "--out", out, *more)


def test_two_stages_from_plan_to_end(tmp_path: Path, source: Path) -> None:
    code, said, _ = plan(tmp_path / "plan")
    assert code == 0 and "next: 1" in said
    assert not default_ledger().exists()
    code, said, _ = release(tmp_path / "plan", source, 1, tmp_path / "one.parquet")
    assert code == 0 and "rows of stage 1; all stages together are 1-label-DP for each row" in said
    code, said, _ = run("stage", "status", tmp_path / "plan")
    assert code == 0 and "next: 2" in said and str(tmp_path / "one.parquet") in said
    code, said, _ = release(
        tmp_path / "plan", source, 2, tmp_path / "two.parquet", "--prior", "a,b,c", "--json"
    )
    assert code == 0 and json.loads(said)["receipt"]["epsilon"] == 1.0
    code, said, _ = run("stage", "status", tmp_path / "plan", "--json")
    facts = json.loads(said)
    assert (
        facts["state"] == "settled"
        and facts["next"] is None
        and sum(stage["rows"] for stage in facts["stages"]) == N
    )
    assert default_ledger().spent("d", "status") == 1.0
    code, said, _ = release(
        tmp_path / "plan", source, 2, tmp_path / "two.parquet", "--prior", "a,b,c"
    )
    assert code == 0 and "Already released; nothing was drawn." in said
    manifests = [tmp_path / f"{name}.parquet.manifest.json" for name in ("one", "two")]
    code, said, _ = run("ledger", "verify", *manifests)
    assert (code, said.splitlines()[0]) == (0, "The history is whole.")


def test_verify_sees_a_stage_whose_manifest_names_another_output(
    tmp_path: Path, source: Path
) -> None:
    plan(tmp_path / "plan")
    release(tmp_path / "plan", source, 1, tmp_path / "one.parquet")
    path = tmp_path / "one.parquet.manifest.json"
    assert run("ledger", "verify", path)[0] == 0  # released, though its run has not settled
    facts = json.loads(path.read_text())
    facts["digests"]["output"] = "sha256:" + "0" * 64
    path.write_text(json.dumps(facts))
    code, said, _ = run("ledger", "verify", path)
    assert code == 7 and "stage-1" in said


@pytest.mark.parametrize("command", ["release", "status", "close"])
def test_a_folder_without_a_plan_is_named(tmp_path: Path, source: Path, command: str) -> None:
    more = (source, "--stage", "1", "--out", tmp_path / "o.pq") if command == "release" else ()
    code, _, said = run("stage", command, tmp_path / "nothing", *more)
    assert code == 4 and "nothing" in said and "stage plan" in said


@pytest.mark.parametrize("content", [b'{"format": "labeldp-stages/9"}', b"\xff\xfe{"])
def test_a_damaged_plan_is_refused(tmp_path: Path, content: bytes) -> None:
    plan(tmp_path / "plan")
    (tmp_path / "plan" / "plan.json").write_bytes(content)
    assert run("stage", "status", tmp_path / "plan")[0] == 4


@pytest.mark.parametrize(
    "more",
    [("--parts", "0.6,0.6"), ("--parts", "a,b"), ("--parts", "0.5,0.5", "--law", "nonsense")],
)
def test_what_is_wrong_with_a_plan_is_a_usage_error(tmp_path: Path, more: tuple[str, ...]) -> None:
    code, _, said = plan(tmp_path / "plan", *more)
    assert code == 2 and "Expected" in said and not (tmp_path / "plan").exists()


def test_several_columns_have_no_stages_of_a_table(tmp_path: Path) -> None:
    of = ("--classes", "no,yes", "--epsilon", 1, "--id", "patient", "--dataset", "d")
    asked = ("stage", "plan", tmp_path / "plan", *of, "--parts", "0.6,0.4", "--label")
    code, _, err = run(*asked, "a, b")
    assert code == 2 and "labeldp release --label a,b" in " ".join(err.replace("│", " ").split())
    assert not (tmp_path / "plan").exists()
    code, said, err = run(*asked, r"a\, b", "--json")
    assert code == 0 and json.loads(said)["label"] == "a, b", err


def test_a_plan_never_chooses_the_ledger_the_budget_or_the_key(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Edited by somebody who can write to its folder: it moves no spend elsewhere and runs no
    code."""
    (tmp_path / "evil_hook.py").write_text(
        f"open({str(tmp_path / 'ran')!r}, 'w').close()\ndef key():\n    return bytes(range(32))\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert plan(tmp_path / "plan")[0] == 0
    path = tmp_path / "plan" / "plan.json"
    whole = path.read_text()
    other = str(tmp_path / "elsewhere.db")
    for name, value, told in (
        ("location", other, "--ledger"),
        ("key", "hook:evil_hook:key", "--key"),
        ("budget", 100.0, "set-budget"),
    ):
        facts = json.loads(whole)
        facts["ledger"][name] = value
        path.write_text(json.dumps(facts))
        release_it = (
            "release",
            tmp_path / "plan",
            source,
            "--stage",
            "1",
            "--out",
            tmp_path / "one.parquet",
        )
        # A look at the plan, or its end, draws nothing: only the ledger matters.
        seen, closed = (4, 4) if name == "location" else (0, 5)
        for command, expected in (
            (release_it, 4),
            (("status", tmp_path / "plan"), seen),
            (("close", tmp_path / "plan"), closed),
        ):
            code, _, said = run("stage", *command)
            assert code == expected, (name, command, said)
            assert expected != 4 or told in said
        assert not (tmp_path / "ran").exists()
        assert not (tmp_path / "elsewhere.db").exists()
        assert not default_ledger().exists()
        assert not (tmp_path / "one.parquet").exists()
    path.write_text(whole)
    assert release(tmp_path / "plan", source, 1, tmp_path / "one.parquet")[0] == 0


def test_a_plan_goes_on_after_its_key_has_moved_and_is_looked_at_without_one(
    tmp_path: Path, source: Path
) -> None:
    old, moved, other = (
        f"file:{tmp_path / name}" for name in ("old/a.key", "moved.key", "other.key")
    )
    for place in (old, other):
        assert run("key", place.removeprefix("file:"))[0] == 0
    assert plan(tmp_path / "plan", "--parts", "0.6,0.4", "--key", old)[0] == 0
    code, said, _ = run("stage", "status", tmp_path / "plan")
    assert code == 0 and "next: 1" in said
    assert release(tmp_path / "plan", source, 1, tmp_path / "one.parquet")[0] == 4  # without a key
    assert release(tmp_path / "plan", source, 1, tmp_path / "one.parquet", "--key", old)[0] == 0
    Path(old.removeprefix("file:")).rename(moved.removeprefix("file:"))
    last = (tmp_path / "plan", source, 2, tmp_path / "two.parquet", "--prior", "a,b,c")
    for key, told in (
        ((), "got a ledger without a key source"),
        (("--key", other), "got another release secret"),
    ):
        code, _, said = release(*last, *key)
        assert code == 5 and told in said, said
    assert release(*last, "--key", old)[0] == 5
    code, said, _ = run("stage", "status", tmp_path / "plan")
    assert code == 0 and "next: 2" in said
    assert release(*last, "--key", moved)[0] == 0
    assert default_ledger().spent("d", "status") == 1.0
    Path(moved.removeprefix("file:")).unlink()
    code, said, _ = run("stage", "status", tmp_path / "plan")
    assert code == 0 and "state: settled" in said
    assert "Already released" in release(*last)[1]  # settled, so it is repeated without any key


def test_stages_come_in_order_and_a_closed_plan_has_no_more(tmp_path: Path, source: Path) -> None:
    plan(tmp_path / "plan")
    last = (tmp_path / "plan", source, 2, tmp_path / "two.parquet")
    assert release(*last, "--prior", "a,b,c")[0] == 4  # the first one comes first
    release(tmp_path / "plan", source, 1, tmp_path / "one.parquet")
    code, _, said = release(*last)
    assert code == 4 and "a prior for stage 2" in said
    code, said, _ = run("stage", "close", tmp_path / "plan")
    assert code == 0 and "given up" in said and "state: settled" in said
    assert release(*last, "--prior", "a,b,c")[0] == 5


def test_a_repeated_stage_tells_of_a_new_plan_and_of_its_prior(
    tmp_path: Path, source: Path
) -> None:
    plan(tmp_path / "plan", "--parts", "0.6,0.4", "--law", "rr-with-prior")
    release(tmp_path / "plan", source, 1, tmp_path / "one.parquet")
    last = (tmp_path / "plan", source, 2, tmp_path / "two.parquet", "--prior")
    assert release(*last, "a,b,c")[0] == 0
    code, _, said = release(*last, "a,b,c")
    assert code == 0 and "The prior given now leads to the same draw." in said
    assert "make a new plan with labeldp stage plan" in said and "--redraw" not in said
    code, _, said = release(*last, "c,a,b")
    assert code == 4 and "the prior that stage 2 started with" in said
