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
    assert code == 0 and "2 stages, auto then auto" in said and "Nothing was charged" in said
    assert not default_ledger().exists()
    code, said, _ = release(tmp_path / "plan", source, 1, tmp_path / "one.parquet")
    assert code == 0 and "rows of stage 1; all stages together are 1-label-DP for each row" in said
    code, said, _ = run("stage", "status", tmp_path / "plan")
    assert code == 0 and "Next: stage 2." in said and str(tmp_path / "one.parquet") in said
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


def test_a_damaged_plan_is_refused(tmp_path: Path) -> None:
    plan(tmp_path / "plan")
    (tmp_path / "plan" / "plan.json").write_text('{"format": "labeldp-stages/9"}')
    code, _, said = run("stage", "status", tmp_path / "plan")
    assert code == 4 and "Expected a plan of format" in said
    (tmp_path / "plan" / "plan.json").write_bytes(b"\xff\xfe{")
    code, _, said = run("stage", "status", tmp_path / "plan")
    assert code == 4 and "no UTF-8 text" in said


@pytest.mark.parametrize(
    "more",
    [("--parts", "0.6,0.6"), ("--parts", "a,b"), ("--parts", "0.5,0.5", "--law", "nonsense")],
)
def test_what_is_wrong_with_a_plan_is_a_usage_error(tmp_path: Path, more: tuple[str, ...]) -> None:
    code, _, said = plan(tmp_path / "plan", *more)
    assert code == 2 and "Expected" in said and not (tmp_path / "plan").exists()


def test_several_columns_have_no_stages_of_a_table(tmp_path: Path) -> None:
    for more in ((), ("--range", "b=0:1")):
        of = (
            "--label",
            "a, b",
            "--classes",
            "no,yes",
            "--epsilon",
            1,
            "--id",
            "patient",
            "--dataset",
            "d",
            "--parts",
            "0.6,0.4",
        )
        code, _, err = run("stage", "plan", tmp_path / "plan", *of, *more)
        told = " ".join(err.replace("│", " ").split())
        assert (
            code == 2
            and "Expected one label column in a release in stages, got 'a', 'b'" in told
            and "labeldp release --label a,b" in told
        )
        assert not (tmp_path / "plan").exists()
    code, _, err = run("stage", "plan", tmp_path / "plan", *of[2:], "--label", r"a\, b")
    assert (
        code == 0
        and json.loads(next((tmp_path / "plan").glob("*.json")).read_text())["label"] == "a, b"
    ), err


def test_what_goes_wrong_has_one_message(tmp_path: Path, source: Path) -> None:
    plan(tmp_path / "plan")
    code, _, said = release(
        tmp_path / "plan", source, 2, tmp_path / "two.parquet", "--prior", "a,b,c"
    )
    assert code == 4 and "stage 1 to be released before" in said
    release(tmp_path / "plan", source, 1, tmp_path / "one.parquet")
    code, _, said = release(tmp_path / "plan", source, 2, tmp_path / "two.parquet")
    assert code == 4 and "a prior for stage 2" in said
    code, said, _ = run("stage", "close", tmp_path / "plan")
    assert code == 0 and "given up" in said
    code, _, said = release(
        tmp_path / "plan", source, 2, tmp_path / "two.parquet", "--prior", "a,b,c"
    )
    assert code == 5 and "given up" in said


def test_a_model_is_trained_on_a_released_stage_for_free(tmp_path: Path, source: Path) -> None:
    plan(tmp_path / "plan", "--parts", "0.8,0.2", "--law", "split")
    release(tmp_path / "plan", source, 1, tmp_path / "one.parquet")
    code, said, error = run(
        "train",
        tmp_path / "one.parquet",
        "--label",
        "status",
        "--out",
        tmp_path / "model",
        "--id",
        "patient",
        "--json",
    )
    assert code == 0, error
    assert json.loads(said)["guarantee"]["epsilon"] == 1.0
    assert default_ledger().spent("d", "status") == 1.0
    code, _, error = release(
        tmp_path / "plan",
        source,
        2,
        tmp_path / "two.parquet",
        "--prior",
        f"model:{tmp_path / 'model'}",
    )
    assert code == 0, error
    assert (
        default_ledger().spent("d", "status") == 1.0
        and default_ledger().runs()[0].state == "settled"
    )


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


def test_a_plan_with_a_ledger_of_its_own_is_told_so_each_time(tmp_path: Path, source: Path) -> None:
    mine = ("--ledger", tmp_path / "mine.db")
    assert plan(tmp_path / "plan", "--parts", "0.6,0.4", *mine)[0] == 0
    one = tmp_path / "one.parquet"
    assert release(tmp_path / "plan", source, 1, one)[0] == 4
    assert release(tmp_path / "plan", source, 1, one, *mine)[0] == 0
    assert run("stage", "status", tmp_path / "plan", *mine)[0] == 0
    assert (
        release(tmp_path / "plan", source, 2, tmp_path / "two.parquet", "--prior", "a,b,c", *mine)[
            0
        ]
        == 0
    )
    assert not default_ledger().exists()


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
    assert code == 0 and "Next: stage 1." in said
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
    assert code == 0 and "Next: stage 2." in said
    assert release(*last, "--key", moved)[0] == 0
    assert default_ledger().spent("d", "status") == 1.0
    Path(moved.removeprefix("file:")).unlink()
    code, said, _ = run("stage", "status", tmp_path / "plan")
    assert code == 0 and "All rows are released." in said
    assert "Already released" in release(*last)[1]  # settled, so it is repeated without any key


def test_a_plan_is_closed_after_its_key_was_lost(tmp_path: Path, source: Path) -> None:
    key = tmp_path / "a.key"
    assert run("key", key)[0] == 0
    assert plan(tmp_path / "plan", "--parts", "0.6,0.4", "--key", f"file:{key}")[0] == 0
    assert (
        release(tmp_path / "plan", source, 1, tmp_path / "one.parquet", "--key", f"file:{key}")[0]
        == 0
    )
    key.unlink()
    code, said, _ = run("stage", "close", tmp_path / "plan")
    assert (
        code == 0
        and "The plan is closed." in said
        and default_ledger().runs()[0].state == "settled"
    )


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
