# SPDX-License-Identifier: Apache-2.0
"""Releases in stages: disjoint keyed parts of one table under one charge, each row drawn once,
whatever dies in between."""

import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from tests.runs import table_pin

import labeldp as ldp
from labeldp.app import stage
from labeldp.app._ledger import verify
from labeldp.app._release import Release, release
from labeldp.custody import _draw as worker
from labeldp.custody import _stream as stream
from labeldp.custody._staged import Stage, StageTurn
from labeldp.errors import InvalidInput, LedgerError, ReleaseError
from labeldp.ledger._ledger import Ledger
from labeldp.noise._secrets import create_key_file
from labeldp.tables._evidence import read_noisy
from labeldp.tables._spec import ReleasePlan

N, K = 6000, 12
PRIOR = [f"p{c}" for c in range(K)]


def data(n: int = N, seed: int = 0) -> pa.Table:
    rng = np.random.default_rng(seed)
    weights = rng.dirichlet(np.full(K, 0.1), n) + 0.001  # sharp: the automatic law asks by it
    columns: dict[str, Any] = {
        "id": rng.permutation(10 * n)[:n],
        "who": [f"p{i // 3}" for i in range(n)],
        "y": rng.integers(0, K, n).astype(np.int32),
        "x": rng.standard_normal(n),
    }
    return pa.table(columns | {name: weights[:, c] for c, name in enumerate(PRIOR)})


class Job:
    """A table and a plan for it."""

    def __init__(self, folder: Path, **changes: Any) -> None:
        self.folder = folder
        self.ledger = Ledger(folder / "private" / "ledger.db")
        self.table = data()
        self.source = folder / "in.parquet"
        pq.write_table(self.table, self.source, row_group_size=1000)
        self.plan(**changes)

    def plan(self, name: str = "plan", **changes: Any) -> ReleasePlan:
        self.where = self.folder / name
        more = {name: changes.pop(name) for name in ("first_law",) if name in changes}
        parts, ledger = changes.pop("parts", (0.6, 0.4)), changes.pop("ledger", self.ledger)
        facts: dict[str, Any] = {
            "label": "y",
            "classes": range(K),
            "epsilon": 1.0,
            "id": "id",
            "dataset": "d",
        } | changes
        made = stage.plan(self.where, ldp.ReleaseSpec(**facts), parts, ledger=ledger, **more)
        self.ledger = made.ledger
        return made

    def release(
        self, number: int, out: str | None = None, source: Path | None = None, **options: Any
    ) -> Release:
        given = {"prior": PRIOR if number > 1 else None} | options
        plan = stage.load(self.where, given.pop("ledger", self.ledger))
        return stage.release(
            plan,
            source or self.source,
            number,
            self.folder / (out or f"out-{number}.parquet"),
            **given,
        )

    @property
    def runs(self) -> list[Any]:
        return self.ledger.runs()


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(tmp_path)


def ids(done: Release) -> list[int]:
    found: list[int] = pq.read_table(done.path)["id"].to_pylist()
    return found


def same(one: Any, other: Any) -> bool:
    return bool(pq.read_table(one).equals(pq.read_table(other)))


class Killed(BaseException):
    """What a process that is gone would have done is not done."""


@pytest.fixture
def draws(monkeypatch: pytest.MonkeyPatch) -> Counter[tuple[bytes, bytes]]:
    """How often each row was drawn under each key."""
    counted: Counter[tuple[bytes, bytes]] = Counter()
    real = worker.draw

    def recorded(law: Any, codes: Any, key: Any, blocks: Any, side: Any) -> Any:
        name = bytes(key.material("RowWords"))
        counted.update((name, row.tobytes()) for row in np.asarray(blocks.templates()))
        return real(law, codes, key, blocks, side)

    monkeypatch.setattr(worker, "draw", recorded)
    return counted


def test_parts_are_disjoint_cover_everything_and_cost_one_epsilon(job: Job) -> None:
    first, second = job.release(1), job.release(2)
    assert sorted(ids(first) + ids(second)) == sorted(job.table["id"].to_pylist())
    assert abs(len(ids(first)) - 0.6 * N) < 6 * np.sqrt(0.24 * N)  # false alarm 2e-9
    assert [run.state for run in job.runs] == ["settled"] and job.ledger.spent("d", "y") == 1.0
    assert (
        first.receipt == second.receipt
        and first.manifest["stage"] == "stage-1"
        and second.manifest["stage"] == "stage-2"
    )
    assert not (job.ledger.run_dir(first.receipt.run_id) / "secret").exists()
    assert job.ledger.verify([first.receipt]) == []
    public = job.table.drop_columns(["y"]).sort_by("id")
    both = pa.concat_tables(
        pq.read_table(done.path).select(public.column_names) for done in (first, second)
    ).sort_by("id")
    assert both.equals(public.cast(both.schema))


def test_every_row_is_drawn_once_over_all_stages(
    job: Job, draws: Counter[tuple[bytes, bytes]]
) -> None:
    job.release(1)
    job.release(2)
    job.release(1)
    job.release(2)
    assert set(draws.values()) == {1}
    assert len({row for _, row in draws}) == len(draws) == N
    assert len({key for key, _ in draws}) == 2


def test_stages_read_back_as_one_table_of_noisy_labels_at_one_epsilon(job: Job) -> None:
    noisy = ldp.concat([read_noisy(job.release(number).path) for number in (1, 2)])
    assert len(noisy) == N and noisy.evidenced.all()
    assert (
        noisy.privacy == ldp.PrivacySpent(1.0, 0.0, "row", True, True) and len(noisy.receipts) == 1
    )
    assert {block.stage for block in noisy.blocks} == {"stage-1", "stage-2"}
    truth = dict(zip(job.table["id"].to_pylist(), job.table["y"].to_pylist(), strict=True))
    own = noisy.likelihood()[np.arange(N), [truth[name] for name in noisy.ids.tolist()]]
    # the evidence is about these labels; 0 +- 0.01 if it were about others
    assert own.mean() - noisy.likelihood().mean() > 0.1


@pytest.mark.parametrize(
    ("law", "first"),
    [
        ("split", "subset"),
        ("rr-top-k:2", "rr"),
        ("rr-with-prior", "rr-with-prior"),
        ("auto", "auto"),
    ],
)
def test_each_stage_has_its_law(tmp_path: Path, law: str, first: str) -> None:
    job = Job(tmp_path, law=law)
    assert stage.load(job.where, job.ledger).laws == (first, law)
    laws = [done.manifest["law"]["law"] for done in (job.release(1), job.release(2))]
    assert laws == [first, law.partition(":")[0]]


@pytest.mark.parametrize("how", ["order", "batches", "kept order"])
def test_a_row_keeps_its_part_and_its_label_whatever_the_layout(
    tmp_path: Path, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same run again, from before its first draw, on the same rows in another layout."""
    job = Job(tmp_path, order="keep" if how == "kept order" else "shuffle")
    real = StageTurn.finish
    monkeypatch.setattr(StageTurn, "finish", _kill)
    with pytest.raises(Killed):
        job.release(1)
    monkeypatch.setattr(StageTurn, "finish", real)
    before = pq.read_table(job.folder / "out-1.parquet").sort_by("id")
    other = job.table.take(np.random.default_rng(5).permutation(N)) if how == "order" else job.table
    pq.write_table(other, job.source, row_group_size=37 if how == "batches" else N)
    assert pq.read_table(job.release(1).path).sort_by("id").equals(before)
    assert len(job.runs) == 1
    assert not set(ids(job.release(2))) & set(before["id"].to_pylist())


def _kill(*_: Any, **__: Any) -> Any:
    raise Killed


POINTS: dict[str, tuple[Any, str]] = {
    "before the prior is written": (StageTurn, "begin"),
    "before anything is drawn": (worker.SecondPass, "draw"),
    "before the files are announced": (StageTurn, "announce"),
    "before it is on record": (StageTurn, "finish"),
    "before the run settles": (StageTurn, "settle"),
}


@pytest.mark.parametrize("number", [1, 2])
@pytest.mark.parametrize("point", POINTS)
def test_a_killed_stage_is_finished_with_the_same_labels(
    job: Job,
    monkeypatch: pytest.MonkeyPatch,
    draws: Counter[tuple[bytes, bytes]],
    point: str,
    number: int,
) -> None:
    if number == 2:
        job.release(1)
    if point == "before the run settles" and number == 1:
        pytest.skip("only the last stage settles")
    where, name = POINTS[point]
    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(where, name, _kill)
        job.release(number)
    known = job.folder / f"out-{number}.parquet"
    published = pq.read_table(known) if known.exists() else None
    done = job.release(number)
    assert published is None or pq.read_table(done.path).equals(published)
    if number == 1:
        job.release(2)
    assert [run.state for run in job.runs] == ["settled"] and job.ledger.spent("d", "y") == 1.0
    # again, but under the same keys
    assert len({row for _, row in draws}) == N and len({key for key, _ in draws}) == 2


def test_a_stage_may_be_counted_by_numpy(job: Job) -> None:
    plan = stage.load(job.where, job.ledger)
    made = plan.spec(np.int64(1)).stage
    assert made is not None and type(made.number) is int
    again = type(made)(made.plan, made.number, made.laws, np.full(2, 0.5, np.float32))
    assert {type(share) for share in again.fractions} == {float}
    job.release(np.int64(1))
    assert [run.state for run in job.runs] == ["charged"]


def test_a_prior_swapped_between_crash_and_resume_is_refused(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    job.release(1)
    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(StageTurn, "announce", _kill)
        job.release(2)
    with pytest.raises(InvalidInput, match="the prior that stage 2 started with"):
        job.release(2, prior=PRIOR[::-1])
    done = job.release(2)
    assert not done.repeated and len(ids(job.release(1)) + ids(done)) == N


def test_a_released_stage_is_not_drawn_again(job: Job) -> None:
    first = job.release(1)
    again = job.release(1)
    assert again.repeated and dict(again.manifest) == dict(first.manifest)
    copy = job.release(1, "copy.parquet")
    assert copy.repeated and same(copy.path, first.path)
    with pytest.raises(InvalidInput, match="prior that stage 1 started"):
        job.release(1, prior=PRIOR)
    job.release(2)
    assert job.release(1).repeated and job.release(2).repeated
    for name in ("out-1.parquet", "copy.parquet"):
        (job.folder / name).unlink()
    with pytest.raises(ReleaseError, match="gone or was changed"):
        job.release(1)


def test_one_stage_does_not_overwrite_another(job: Job) -> None:
    job.release(1)
    with pytest.raises(ReleaseError, match="holds something else"):
        job.release(2, "out-1.parquet")
    assert stage.status(stage.load(job.where, job.ledger))["next"] == 2


def test_stages_come_in_order(job: Job) -> None:
    with pytest.raises(InvalidInput, match="stage 1 to be released before stage 2"):
        job.release(2)
    assert job.runs == []
    with pytest.raises(InvalidInput, match="from 1 to 2"):
        job.release(3)
    with pytest.raises(InvalidInput, match="stage"):
        job.release(0)


def _changed(column: str) -> Callable[[pa.Table], pa.Table]:
    def change(table: pa.Table) -> pa.Table:
        values = table[column].to_numpy().copy()
        values[3] = (values[3] + 1) % K if column == "y" else 10**9
        return table.set_column(table.column_names.index(column), column, pa.array(values))

    return change


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (_changed("y"), "some have changed"),
        (_changed("id"), "the same whole table"),
        (lambda table: table.slice(1), "the same whole table"),
    ],
    ids=["a label", "an id", "a row less"],
)
def test_another_table_is_refused(
    job: Job, change: Callable[[pa.Table], pa.Table], said: str
) -> None:
    job.release(1)
    pq.write_table(change(job.table), job.source)
    for number in (1, 2):
        with pytest.raises(InvalidInput, match=said):
            job.release(number)
    assert len(job.runs) == 1 and job.ledger.spent("d", "y") == 1.0


def test_a_new_plan_is_a_new_charge(job: Job) -> None:
    job.release(1)
    job.plan("again")
    with pytest.raises(ldp.BudgetExceeded):
        job.release(1, "other.parquet")
    job.ledger.set_budget("d", "y", 2.0)
    other = job.release(1, "other.parquet")
    assert job.ledger.spent("d", "y") == 2.0
    assert set(ids(other)) != set(pq.read_table(job.folder / "out-1.parquet")["id"].to_pylist())


@pytest.mark.parametrize("cap", [1, 2])
def test_rows_over_the_units_cap_belong_to_no_part(tmp_path: Path, cap: int) -> None:
    job = Job(tmp_path, unit="who", max_rows_per_unit=cap)
    tables = [pq.read_table(job.release(number).path) for number in (1, 2)]
    both = pa.concat_tables(tables)
    assert set(Counter(both["who"].to_pylist()).values()) == {cap} and len(both) == N // 3 * cap
    assert len(set(both["id"].to_pylist())) == len(both)
    noisy = [read_noisy(tmp_path / f"out-{number}.parquet") for number in (1, 2)]
    assert all(block.law.epsilon == 1.0 / cap for each in noisy for block in each.blocks)
    assert ldp.concat(noisy).privacy.epsilon == 1.0 and ldp.concat(noisy).privacy.unit == "who"


def test_closing_gives_the_rest_up_and_destroys_the_secret(job: Job) -> None:
    with pytest.raises(LedgerError, match="Release stage 1"):
        stage.close(stage.load(job.where, job.ledger))
    first = job.release(1)
    assert stage.close(stage.load(job.where, job.ledger)) == stage.close(
        stage.load(job.where, job.ledger)
    )
    assert [run.state for run in job.runs] == ["settled"]
    assert not (job.ledger.run_dir(first.receipt.run_id) / "secret").exists()
    with pytest.raises(LedgerError, match="given up"):
        job.release(2)
    assert job.release(1).repeated
    assert [
        facts["state"] for facts in stage.status(stage.load(job.where, job.ledger))["stages"]
    ] == ["released", "given up"]


def test_a_charge_that_published_nothing_is_abandoned_instead(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(StageTurn, "announce", _kill)
        job.release(1)
    with pytest.raises(LedgerError, match="ledger repair --abandon"):
        stage.close(stage.load(job.where, job.ledger))
    job.ledger.abandon(job.runs[0].run_id, "over")
    with pytest.raises(LedgerError, match="abandoned"):
        job.release(1)


def test_of_two_processes_that_begin_a_plan_one_goes_on(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    job.ledger.set_budget("d", "y", 5.0)
    real = stream.begin

    def meanwhile(*given: Any, **more: Any) -> Any:
        monkeypatch.setattr(stream, "begin", real)
        job.release(1)  # by another process, between what this one has looked at and its charge
        return real(*given, **more)

    monkeypatch.setattr(stream, "begin", meanwhile)
    with pytest.raises(LedgerError, match="another one has charged"):
        job.release(1, "other.parquet")
    assert [run.state for run in job.runs] == ["charged", "abandoned"]
    assert job.release(1).repeated and not job.release(2).repeated


def test_status_tells_what_is_next(job: Job) -> None:
    def states() -> list[Any]:
        facts = stage.status(stage.load(job.where, job.ledger))
        return [facts["next"], facts["state"], *(each["state"] for each in facts["stages"])]

    assert states() == [1, "planned", "next", "waiting"]
    done = job.release(1)
    assert states() == [2, "charged", "released", "next"]
    first, _ = stage.status(stage.load(job.where, job.ledger))["stages"]
    assert (
        first["rows"] == len(ids(done))
        and first["path"] == str(done.path)
        and first["law"] == "auto"
    )
    job.release(2)
    assert states() == [None, "settled", "released", "released"]


@pytest.mark.parametrize(
    "changes",
    [
        {"parts": (0.5, 0.6)},
        {"parts": (1.0, 0.0)},
        {"parts": (1.5, -0.5)},
        {"parts": ()},
        {"parts": (float("nan"), 0.5)},
        {"id": ()},
        {"dataset": ""},
        {"law": "nonsense"},
        {"first_law": "rr-top-k"},
        {"epsilon": -1.0},
        {"max_rows_per_unit": 2},
    ],
    ids=str,
)
def test_bad_plans_are_refused_and_leave_nothing(tmp_path: Path, changes: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        Job(tmp_path, **changes)
    assert not (tmp_path / "plan").exists()


def test_a_plan_needs_a_new_folder(job: Job) -> None:
    with pytest.raises(ReleaseError, match="new folder"):
        job.plan()


def test_a_plan_names_no_password(tmp_path: Path) -> None:
    pytest.importorskip("sqlalchemy")
    with pytest.raises(InvalidInput, match="password"):
        Job(tmp_path, ledger=Ledger("postgresql://me:hunter2@localhost/x"))
    assert not (tmp_path / "plan").exists()


def test_a_later_stage_asks_for_its_prior(job: Job) -> None:
    job.release(1)
    with pytest.raises(InvalidInput, match="a prior for stage 2"):
        job.release(2, prior=None)


def test_of_two_processes_that_publish_a_stage_the_first_one_stands(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their tables differ in a column that is neither id nor label: the same labels in other bytes,
    of which one can be recorded."""
    real, other = StageTurn.finish, job.folder / "other.parquet"
    pq.write_table(job.table.drop_columns("x"), other)

    def meanwhile(*given: Any) -> None:
        monkeypatch.setattr(StageTurn, "finish", real)
        job.release(1, "first.parquet", other)  # by another process, after this one has published
        real(*given)

    monkeypatch.setattr(StageTurn, "finish", meanwhile)
    with pytest.raises(LedgerError, match="another one has published it"):
        job.release(1)
    assert [run.state for run in job.runs] == ["charged"] and job.ledger.spent("d", "y") == 1.0
    assert job.release(1, "first.parquet", other).repeated and not job.release(2).repeated


def test_a_plan_that_is_closed_meanwhile_draws_no_further_stage(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    job.release(1)
    real = stream.begin

    def meanwhile(*given: Any, **more: Any) -> Any:
        # by another process, between what this one has looked at and its turn
        stage.close(stage.load(job.where, job.ledger))
        return real(*given, **more)

    monkeypatch.setattr(stream, "begin", meanwhile)
    with pytest.raises(LedgerError, match="has settled meanwhile"):
        job.release(2)
    assert job.ledger.spent("d", "y") == 1.0 and not (job.folder / "out-2.parquet").exists()


def test_a_law_that_is_not_the_plans_is_refused(job: Job) -> None:
    laws = (ldp.RandomizedResponse(K, 1.0), ldp.SubsetSelection(K, 1.0))
    turn = Stage("0" * 32, 1, laws, (0.6, 0.4))
    account = {"classes": range(K), "dataset": "d", "column": "y", "ledger": job.ledger}
    with pytest.raises(InvalidInput, match="the law that the plan names for stage 1"):
        table_pin(laws[1], stage=turn, **account)
    assert table_pin(laws[0], stage=turn, **account).stage_name == "stage-1" and job.runs == []


@pytest.mark.parametrize("number", [1, 2])
def test_a_plan_whose_runs_folder_is_lost_says_so(job: Job, number: int) -> None:
    run_id = job.release(1).receipt.run_id
    job.ledger.runs_dir.rename(job.folder / "elsewhere")
    with pytest.raises(
        LedgerError,
        match=rf"{run_id}, but it is gone.*epsilon stays spent.*move it back.*make a new plan",
    ):
        job.release(number)
    (job.folder / "elsewhere").rename(job.ledger.runs_dir)
    assert job.release(1).repeated and not job.release(2).repeated


@pytest.mark.parametrize("harm", ["gone", "cut short"])
def test_a_plan_whose_secret_is_lost_draws_no_more(
    job: Job, draws: Counter[tuple[bytes, bytes]], harm: str
) -> None:
    """A secret made anew would draw the rows of the second stage in another part than the first
    left out."""
    secret = job.ledger.run_dir(job.release(1).receipt.run_id) / "secret"
    secret.unlink() if harm == "gone" else secret.write_bytes(secret.read_bytes()[:16])
    drawn = dict(draws)
    with pytest.raises(
        LedgerError, match=r"secret of run \w+ in its folder, but it is gone|32 stored bytes"
    ):
        job.release(2)
    assert (
        draws == drawn
        and job.ledger.spent("d", "y") == 1.0
        and not (job.folder / "out-2.parquet").exists()
    )


def test_a_stage_that_the_ledger_knows_and_the_folder_does_not_is_not_drawn_again(
    job: Job, monkeypatch: pytest.MonkeyPatch, draws: Counter[tuple[bytes, bytes]]
) -> None:
    """As after a backup of the folder was put back: which prior the rows were drawn with is not
    known."""
    folder = job.ledger.run_dir(job.release(1).receipt.run_id)
    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(StageTurn, "finish", _kill)
        job.release(2)
    drawn = dict(draws)
    for note in folder.glob("stage-2.*"):
        note.unlink()
    with pytest.raises(LedgerError, match="the folder was set back"):
        job.release(2)
    assert draws == drawn and job.ledger.spent("d", "y") == 1.0


@dataclass(frozen=True)
class Dice:
    """A prior that is never the same twice, and counts how often it is asked."""

    columns: tuple[str, ...] = ("x",)
    exact: ClassVar[bool] = False
    asked: ClassVar[list[int]] = []

    @property
    def reads(self) -> tuple[str, ...]:
        return self.columns

    @property
    def facts(self) -> dict[str, object]:
        return {"model": "dice"}

    def to_dict(self) -> dict[str, object]:
        return dict(self.facts)

    def open(self, classes: Sequence[object]) -> "Dice":
        return self

    def weights(self, rows: pa.RecordBatch, start: int) -> Any:
        self.asked.append(len(rows))
        return np.random.default_rng().dirichlet(np.full(K, 0.1), len(rows)) + 0.001


def test_a_model_that_never_says_the_same_twice_is_asked_once_a_stage(
    job: Job, monkeypatch: pytest.MonkeyPatch, draws: Counter[tuple[bytes, bytes]]
) -> None:
    Dice.asked.clear()
    job.release(1)
    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(StageTurn, "announce", _kill)
        job.release(2, prior=Dice())
    done = job.release(2, prior=Dice())
    assert not done.repeated and sum(Dice.asked) == N and len({key for key, _ in draws}) == 2
    assert job.release(2, prior=Dice()).repeated
    with pytest.raises(InvalidInput, match="the prior that stage 2 started with"):
        job.release(2)


def test_a_stage_whose_kept_answers_are_lost_is_not_drawn_under_others(
    job: Job, monkeypatch: pytest.MonkeyPatch, draws: Counter[tuple[bytes, bytes]]
) -> None:
    job.release(1)
    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(StageTurn, "announce", _kill)
        job.release(2, prior=Dice())
    for note in job.ledger.run_dir(job.runs[0].run_id).glob("stage-2.prior-answers"):
        note.unlink()
    with pytest.raises(InvalidInput, match="the prior that stage 2 started with"):
        job.release(2, prior=Dice())
    assert len({key for key, _ in draws}) == 2


def test_rows_of_all_stages_count_as_released(tmp_path: Path) -> None:
    """The row set of the one charge is that of all stages."""
    job = Job(tmp_path, epsilon=1.0)
    named = data(20_000).set_column(0, "id", pa.array([f"row-{i}" for i in range(20_000)]))
    pq.write_table(named, job.source)
    job.release(1)
    job.release(2)
    spec = ldp.ReleaseSpec("y", range(K), 1.0, id="id", dataset="d")
    others = named.set_column(0, "id", pa.array([f"other-{i}" for i in range(20_000)]))
    pq.write_table(others, tmp_path / "others.parquet")
    release(tmp_path / "others.parquet", tmp_path / "noisy.parquet", spec, job.ledger)
    assert job.ledger.spent("d", "y") == 1.0
    for number in (1, 2):
        one = pq.read_table(job.folder / f"out-{number}.parquet", columns=["id"])["id"][0].as_py()
        pq.write_table(named.slice(int(one.removeprefix("row-")), 1), tmp_path / "again.parquet")
        with pytest.raises(ldp.BudgetExceeded):
            release(tmp_path / "again.parquet", tmp_path / "again-noisy.parquet", spec, job.ledger)


@pytest.mark.parametrize("end", ["open", "closed"])
def test_rows_that_no_stage_has_published_count_as_drawn(tmp_path: Path, end: str) -> None:
    job = Job(tmp_path)
    named = data(20_000).set_column(0, "id", pa.array([f"row-{i}" for i in range(20_000)]))
    pq.write_table(named, job.source)
    job.release(1)
    if end == "closed":
        stage.close(stage.load(job.where, job.ledger))
    published = pq.read_table(job.folder / "out-1.parquet", columns=["id"])["id"]
    left = named.filter(pc.invert(pc.is_in(named["id"], value_set=published.combine_chunks())))
    others = named.set_column(0, "id", pa.array([f"other-{i}" for i in range(20_000)]))
    spec = ldp.ReleaseSpec("y", range(K), 1.0, id="id", dataset="d")
    pq.write_table(left.slice(0, 1), tmp_path / "left.parquet")
    pq.write_table(others, tmp_path / "others.parquet")
    with pytest.raises(ldp.BudgetExceeded):
        release(tmp_path / "left.parquet", tmp_path / "noisy.parquet", spec, job.ledger)
    release(tmp_path / "others.parquet", tmp_path / "noisy.parquet", spec, job.ledger)


@pytest.mark.parametrize("empty", [1, 2])
@pytest.mark.parametrize("ending", [".csv", ".parquet"])
def test_a_part_without_rows_is_released_as_a_table_without_rows(
    tmp_path: Path, ending: str, empty: int
) -> None:
    source, ledger = tmp_path / f"in{ending}", ldp.Ledger(tmp_path / "ledger.db")
    rows = pa.table({"id": range(4), "y": ["a", "b", "c", "a"]})
    pa.csv.write_csv(rows, source) if ending == ".csv" else pq.write_table(rows, source)
    spec = ldp.ReleaseSpec("y", ["a", "b", "c"], 1.0, id="id", dataset="d")
    # a row falls into the small part once in 2.5e8 runs
    parts = (1e-9, 1 - 1e-9) if empty == 1 else (1 - 1e-9, 1e-9)
    plan = stage.plan(tmp_path / "plan", spec, parts, ledger=ledger)
    done = stage.release(plan, source, 1, tmp_path / f"first{ending}")
    assert done.manifest["rows"] == (0 if empty == 1 else 4)
    prior = {name: [1.0] * 4 for name in ("pa", "pb", "pc")}
    rows = pa.table({**{name: rows[name] for name in rows.column_names}, **prior})
    pa.csv.write_csv(rows, source) if ending == ".csv" else pq.write_table(rows, source)
    done = stage.release(plan, source, 2, tmp_path / f"second{ending}", prior=list(prior))
    assert done.manifest["rows"] == (4 if empty == 1 else 0)
    assert stage.status(plan)["state"] == "settled"


@pytest.mark.parametrize("content", [b'{"format": "labeldp-stages/9"}', b"\xff\xfe{", None])
def test_a_damaged_or_missing_plan_is_refused(job: Job, content: bytes | None) -> None:
    path = job.where / "plan.json"
    path.unlink() if content is None else path.write_bytes(content)
    with pytest.raises(InvalidInput, match=r"plan"):
        stage.load(job.where, job.ledger)


def test_several_columns_have_no_stages_of_a_table(tmp_path: Path) -> None:
    columns = ldp.LabelColumns({"a": ["no", "yes"], "b": ["no", "yes"]})
    spec = ldp.ReleaseSpec(columns.name, columns, 1.0, id="id", dataset="d")
    with pytest.raises(InvalidInput):
        stage.plan(tmp_path / "plan", spec, (0.6, 0.4), ledger=Ledger(tmp_path / "ledger.db"))
    assert not (tmp_path / "plan").exists()


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("location", "elsewhere.db", "ledger="),
        ("key", "env:NOWHERE", "key="),
        ("budget", 100.0, "set-budget"),
    ],
)
def test_a_plan_never_chooses_the_ledger_the_budget_or_the_key(
    job: Job, name: str, value: object, told: str
) -> None:
    """Edited by somebody who can write to its folder, it moves no spend elsewhere."""
    path = job.where / "plan.json"
    whole = path.read_text()
    facts = json.loads(whole)
    facts["ledger"][name] = value
    path.write_text(json.dumps(facts))
    with pytest.raises(InvalidInput, match=told):
        job.release(1)
    if name == "location":  # a look at the plan draws nothing: only the ledger matters
        with pytest.raises(InvalidInput, match=told):
            stage.load(job.where, job.ledger, draws=False)
    else:
        seen = stage.load(job.where, job.ledger, draws=False)
        assert stage.status(seen)["next"] == 1
        with pytest.raises(LedgerError):
            stage.close(seen)
    assert not job.ledger.exists() and not (job.folder / "out-1.parquet").exists()
    path.write_text(whole)
    assert not job.release(1).repeated


def test_a_plan_goes_on_after_its_key_has_moved_and_is_looked_at_without_one(
    tmp_path: Path,
) -> None:
    old, moved, other = (tmp_path / name for name in ("old.key", "moved.key", "other.key"))
    create_key_file(old)
    create_key_file(other)
    place = tmp_path / "private" / "ledger.db"
    bare = Ledger(place)
    job = Job(tmp_path, ledger=Ledger(place, key=old))
    assert stage.status(stage.load(job.where, bare, draws=False))["next"] == 1
    with pytest.raises(InvalidInput, match="key source"):
        job.release(1, ledger=bare)
    job.release(1)
    old.rename(moved)
    for ledger, told in (
        (bare, "got a ledger without a key source"),
        (Ledger(place, key=other), "got another release secret"),
        (Ledger(place, key=old), "No such file"),
    ):
        with pytest.raises(LedgerError, match=told):
            job.release(2, ledger=ledger)
    assert stage.status(stage.load(job.where, bare, draws=False))["next"] == 2
    job.release(2, ledger=Ledger(place, key=moved))
    moved.unlink()
    assert stage.status(stage.load(job.where, bare, draws=False))["state"] == "settled"
    assert job.release(2, ledger=bare).repeated  # settled, so it is repeated without any key


def test_a_repeated_stage_tells_of_a_new_plan_and_of_its_prior(tmp_path: Path) -> None:
    job = Job(tmp_path, law="rr-with-prior")
    job.release(1)
    job.release(2)
    with pytest.warns(ldp.LabelDPWarning) as told:
        assert job.release(2).repeated
    said = " ".join(str(each.message) for each in told)
    assert "The prior given now leads to the same draw." in said
    assert "make a new plan with labeldp.app.stage.plan" in said and "redraw" not in said


def test_verify_sees_a_stage_whose_manifest_names_another_output(job: Job) -> None:
    path = job.release(1).manifest_path
    # released, though its run has not settled
    assert verify(job.ledger, [Path(str(path))]) == []
    facts = json.loads(Path(str(path)).read_text())
    facts["digests"]["output"] = "sha256:" + "0" * 64
    Path(str(path)).write_text(json.dumps(facts))
    assert any("stage-1" in each for each in verify(job.ledger, [Path(str(path))]))


def test_the_status_of_a_plan_tells_what_was_charged(job: Job) -> None:
    job.release(1)
    path = job.where / "plan.json"
    path.write_text(path.read_text().replace('"epsilon": 1.0', '"epsilon": 0.5'))
    facts: Any = stage.status(stage.load(job.where, job.ledger, draws=False))
    assert [facts["epsilon"], *(each["epsilon"] for each in facts["stages"])] == [1.0, 1.0, 1.0]
