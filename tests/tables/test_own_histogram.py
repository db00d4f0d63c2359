# SPDX-License-Identifier: Apache-2.0
"""Releases whose prior is a noisy histogram of their own column: one charge pays for both, whatever
happens between the two."""

import contextlib
import json
import os
import pickle
import shutil
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.cli.commands import run
from tests.files import write
from tests.runs import manifest_path

import labeldp as ldp
from labeldp.app import stage
from labeldp.app._ledger import verify
from labeldp.custody import _stream
from labeldp.custody._stream import HISTOGRAM, TableDraw
from labeldp.errors import BudgetExceeded, InvalidInput, LedgerError
from labeldp.laws import law_from_dict
from labeldp.learn import ClusterPrior, HistogramPrior
from labeldp.ledger._ledger import Ledger
from labeldp.ledger._run_store import RunStore
from labeldp.papers.regression import RROnBins
from labeldp.tables import read_histogram, read_noisy
from labeldp.tables._spec import ReleaseSpec
from labeldp.tables.engines._cluster import check_spec

N = 1500
GRID = ldp.Grid(0, 100, points=11)
WORDS = ["ash", "birch", "cedar", "dogwood"]


class Killed(BaseException):
    """Stands for kill -9: nothing catches it on the way."""


def data(seed: int = 0) -> pa.Table:
    rng = np.random.default_rng(seed)
    income = rng.normal(40, 15, N).round(2)
    names = rng.choice(WORDS, N, p=[0.6, 0.3, 0.08, 0.02])
    return pa.table(
        {
            "id": rng.permutation(N) * 3,
            "person": np.arange(N) // 2,
            "x": rng.random(N),
            "income": income,
            "tree": names,
        }
    )


def spec(**more: Any) -> ReleaseSpec:
    numbers = more.get("label", "income") == "income"
    given = (
        {"label": "income", "classes": GRID, "law": "rr-on-bins"} if numbers else {"classes": WORDS}
    )
    return ReleaseSpec(
        **(
            {"epsilon": 2.0, "id": "id", "dataset": "d", "prior": HistogramPrior(0.5)}
            | given
            | more
        )
    )


def kept(ledger: Ledger) -> dict[str, Any] | None:
    """Read the histogram in the folder of the only run."""
    (record,) = ledger.runs()
    text = RunStore(ledger.run_dir(record.run_id)).read(HISTOGRAM)
    return None if text is None else json.loads(text)


@pytest.mark.parametrize("ending", ["parquet", "csv"])
@pytest.mark.parametrize(
    ("label", "law"),
    [("income", "rr-on-bins"), ("income", "threshold"), ("tree", None), ("tree", "split")],
)
def test_one_charge_pays_for_histogram_and_labels(
    tmp_path: Path, ledger: Ledger, ending: str, label: str, law: str | None
) -> None:
    """The counts are within 45 noise scales of 2 / 0.5 (probability of another one: 11 e^-45); both
    are proven, on one bill."""
    source, out = write(data(), tmp_path / f"in.{ending}"), tmp_path / f"out.{ending}"
    asked = spec(label=label, law=law)
    done = ldp.release(source, out, asked, ledger)
    assert done.receipt.epsilon == ledger.spent("d", label) == 2.0 and len(ledger.runs()) == 1
    due = {
        "unit": "row",
        "max_rows_per_unit": 1,
        "epsilon": 2.0,
        "delta": 0.0,
        "epsilon_per_row": 1.5,
        "epsilon_of_histogram": 0.5,
    }
    assert done.manifest["guarantee"] == due and done.manifest["prior"] == {
        "histogram": {"epsilon": 0.5}
    }
    for known in (None, ledger):
        histogram, noisy = read_histogram(out, ledger=known), read_noisy(out, ledger=known)
        assert (
            noisy.privacy.epsilon == histogram.privacy.epsilon == 2.0
            and noisy.privacy.evidence == "proven"
        )
        assert ldp.receipt.spent_together([*noisy.receipts, histogram.receipt]).epsilon == 2.0
    values = data()[label].to_numpy()
    truth = (
        np.bincount(np.rint(np.clip(values, 0, 100) / 10).astype(int), minlength=11)
        if label == "income"
        else [(values == word).sum() for word in WORDS]
    )
    assert np.abs(
        histogram.values[0] - truth
    ).max() < 45 * 2 / 0.5 and histogram.n_rows.tolist() == [N]
    # A later reader knows the law that was drawn with, exactly.
    (block,) = noisy.blocks
    assert (
        block.law == law_from_dict(json.loads(manifest_path(out).read_text())["law"])
        and block.law.epsilon == 1.5
    )
    if law == "rr-on-bins":
        shares = histogram.prior([0])[0]
        assert block.law == RROnBins(11, 1.5, prior=tuple(shares.tolist()))
    assert verify(ledger, [manifest_path(out)]) == []
    again = ldp.release(source, tmp_path / f"again.{ending}", asked, ledger)
    assert (
        again.repeated
        and (tmp_path / f"again.{ending}").read_bytes() == out.read_bytes()
        and ledger.spent("d", label) == 2.0
    )


@pytest.mark.filterwarnings("ignore:An epsilon of")
@pytest.mark.parametrize("cap", [1, 2])
def test_the_histogram_counts_the_rows_that_are_drawn(
    tmp_path: Path, ledger: Ledger, cap: int
) -> None:
    """At so large an epsilon noise is 0 but with probability 4 e^-24: histogram and labels are of
    the same rows of each person."""
    table = data()
    out = tmp_path / "out.parquet"
    asked = spec(
        label="tree",
        epsilon=200.0,
        prior=HistogramPrior(100.0),
        unit="person",
        max_rows_per_unit=cap,
    )
    ldp.release(write(table, tmp_path / "in.parquet"), out, asked, ledger)
    rows = dict(zip(table["id"].to_pylist(), table["tree"].to_pylist(), strict=True))
    drawn = [rows[name] for name in pq.read_table(out)["id"].to_pylist()]
    assert len(drawn) == cap * N // 2
    assert read_histogram(out).values.tolist() == [[drawn.count(word) for word in WORDS]]
    assert pq.read_table(out)["tree"].to_pylist() == drawn


@pytest.mark.filterwarnings("ignore:The classes are read off")
def test_rows_without_ids_and_classes_that_are_read_off(tmp_path: Path, ledger: Ledger) -> None:
    source, out, asked = (
        write(data(), tmp_path / "in.csv"),
        tmp_path / "out.csv",
        spec(label="tree", id=None, classes="infer", prior=HistogramPrior()),
    )
    assert ldp.release(source, out, asked, ledger).receipt.except_for
    assert read_histogram(out, ledger=ledger).query.epsilon == 0.103  # sqrt(4 * 4 / 1500)
    assert ldp.release(source, tmp_path / "again.csv", asked, ledger).repeated


# Killed
# --------------------------------------------------------------------------------------------------


def before_the_histogram_is_kept(patch: pytest.MonkeyPatch) -> None:
    keep = RunStore.keep
    patch.setattr(
        RunStore,
        "keep",
        lambda self, name, text: _die() if name == HISTOGRAM else keep(self, name, text),
    )


def after_it_is_kept(patch: pytest.MonkeyPatch) -> None:
    keep = RunStore.keep
    patch.setattr(
        RunStore,
        "keep",
        lambda self, name, text: (keep(self, name, text), name == HISTOGRAM and _die())[0],
    )


def before_publishing(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(TableDraw, "announce", _die)


def before_settling(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(TableDraw, "settle", _die)


def _die(*_: object) -> Any:
    raise Killed


MOMENTS = [before_the_histogram_is_kept, after_it_is_kept, before_publishing, before_settling]


@pytest.mark.parametrize("label", ["income", "tree"])
@pytest.mark.parametrize("dies", MOMENTS)
def test_a_killed_release_goes_on_with_the_histogram_that_it_has(
    tmp_path: Path, ledger: Ledger, dies: Any, label: str
) -> None:
    source, out = write(data(), tmp_path / "in.parquet"), tmp_path / "out.parquet"
    with pytest.MonkeyPatch.context() as patch, pytest.raises(Killed):
        dies(patch)
        ldp.release(source, out, spec(label=label), ledger)
    first, bytes_then = kept(ledger), out.read_bytes() if out.exists() else None
    assert (first is None) == (dies is before_the_histogram_is_kept) and ledger.spent(
        "d", label
    ) == 2.0
    done = ldp.release(source, out, spec(label=label), ledger)
    assert not done.repeated and len(ledger.runs()) == 1 and ledger.spent("d", label) == 2.0
    assert first in (None, kept(ledger)) and bytes_then in (None, out.read_bytes())
    assert (bytes_then is not None) == (dies is before_settling)
    assert read_histogram(out, ledger=ledger).values[0].tolist() == (kept(ledger) or {})["counts"]


def test_a_histogram_that_was_never_kept_leaves_no_trace(tmp_path: Path, ledger: Ledger) -> None:
    """Two noisy histograms of the same labels would tell more than the one charge says."""
    source, out = write(data(), tmp_path / "in.parquet"), tmp_path / "out.parquet"
    link = os.link
    with pytest.MonkeyPatch.context() as patch, pytest.raises(Killed):
        patch.setattr(
            os,
            "link",
            lambda made, path: _die() if Path(path).name == HISTOGRAM else link(made, path),
        )
        ldp.release(source, out, spec(), ledger)
    folder = ledger.run_dir(ledger.runs()[0].run_id)
    assert kept(ledger) is None and [path for path in folder.iterdir() if HISTOGRAM in path.name]
    ldp.release(source, out, spec(), ledger)
    assert [path.name for path in folder.iterdir() if HISTOGRAM in path.name] == [HISTOGRAM]


def test_corrected_labels_are_never_counted_under_the_first_charge(
    tmp_path: Path, ledger: Ledger
) -> None:
    source, out = write(data(), tmp_path / "in.parquet"), tmp_path / "out.parquet"
    with pytest.MonkeyPatch.context() as patch, pytest.raises(Killed):
        before_the_histogram_is_kept(patch)
        ldp.release(source, out, spec(), ledger)
    table = data()
    write(table.set_column(3, "income", pa.array(table["income"].to_numpy() + 10)), source)
    with pytest.raises(BudgetExceeded):
        ldp.release(source, out, spec(), ledger)
    assert kept(ledger) is None
    ldp.release(write(data(), source), out, spec(), ledger)
    assert ledger.spent("d", "income") == 2.0


@pytest.mark.parametrize("other_dies", [True, False])
def test_two_processes_in_one_run_draw_with_one_histogram(
    tmp_path: Path, ledger: Ledger, other_dies: bool
) -> None:
    """While one process holds its histogram in memory, another one resumes the run and stores its
    own; then it dies, or settles."""
    source, one, other = (
        write(data(), tmp_path / "in.parquet"),
        tmp_path / "one.parquet",
        tmp_path / "other.parquet",
    )
    drawn, unseen = _stream.drawn_answer, list[Any]()

    def overtaken(*facts: Any) -> Any:
        mine = drawn(*facts)
        if not unseen:
            unseen.append(mine.values[0].tolist())
            with pytest.MonkeyPatch.context() as patch, contextlib.suppress(Killed):
                after_it_is_kept(patch) if other_dies else None
                ldp.release(source, other, spec(), ledger)
        return mine

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_stream, "drawn_answer", overtaken)
        with (
            contextlib.nullcontext()
            if other_dies
            else pytest.raises(LedgerError, match="settled already")
        ):
            ldp.release(source, one, spec(), ledger)
    ldp.release(source, one, spec(), ledger)
    counts = read_histogram(one, ledger=ledger).values[0].tolist()
    assert (
        counts == (kept(ledger) or {})["counts"]
        and counts != unseen[0]
        and ledger.spent("d", "income") == 2.0
    )
    assert other_dies or one.read_bytes() == other.read_bytes()


def test_a_folder_that_was_set_back_draws_no_second_histogram(
    tmp_path: Path, ledger: Ledger
) -> None:
    source, out = write(data(), tmp_path / "in.parquet"), tmp_path / "out.parquet"
    with pytest.MonkeyPatch.context() as patch, pytest.raises(Killed):
        before_the_histogram_is_kept(patch)
        ldp.release(source, out, spec(), ledger)
    shutil.copytree(ledger.runs_dir, tmp_path / "backup")
    with pytest.MonkeyPatch.context() as patch, pytest.raises(Killed):
        before_settling(patch)
        ldp.release(source, out, spec(), ledger)
    shutil.rmtree(ledger.runs_dir)
    shutil.copytree(tmp_path / "backup", ledger.runs_dir)
    with pytest.raises(LedgerError, match="Expected the histogram of run"):
        ldp.release(source, tmp_path / "again.parquet", spec(), ledger)
    assert kept(ledger) is None


# What cannot be divided, and what noise can do
# --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cost", [0, 0.0, -0.5, 2.0, 2.5, float("nan"), float("inf")])
def test_a_cost_that_leaves_nothing_is_refused(cost: float) -> None:
    with pytest.raises(InvalidInput, match=r"0 < epsilon < inf|less than the total"):
        spec(prior=HistogramPrior(cost))


@pytest.mark.parametrize("cost", [np.float32(0.5), Fraction(1, 2), np.int64(1)])
def test_a_cost_of_any_type_of_number_is_a_float(tmp_path: Path, ledger: Ledger, cost: Any) -> None:
    done = ldp.release(
        write(data(), tmp_path / "in.parquet"),
        tmp_path / "out.parquet",
        spec(prior=HistogramPrior(cost)),
        ledger,
    )
    assert (
        done.manifest["prior"] == {"histogram": {"epsilon": float(cost)}}
        and ledger.runs()[0].state == "settled"
    )


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"law": "rr"}, "draws each row's question"),
        ({"label": "tree", "law": "rr-with-prior"}, "draws each row's question"),
        ({"label": "tree", "law": "rr-top-k:2"}, "draws each row's question"),
        ({"label": "tree", "law": "subset"}, "draws each row's question"),
        ({"label": "tree", "prior": ClusterPrior()}, "one of clusters"),
        (
            {"label": "a,b", "classes": ldp.LabelColumns({"a": [0, 1], "b": [0, 1]}), "law": None},
            "several label columns",
        ),
    ],
)
def test_what_a_histogram_is_no_prior_of(more: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        spec(**more)


def test_clusters_and_stages_have_none(tmp_path: Path, ledger: Ledger) -> None:
    for name in ("Spark", "Ray"):
        with pytest.raises(InvalidInput, match="Take the local engine"):
            check_spec(spec(), name)
    stage.plan(tmp_path / "plan", spec(prior=None, law="threshold"), (0.5, 0.5), ledger=ledger)
    plan = stage.load(tmp_path / "plan", ledger)
    with pytest.raises(InvalidInput, match="prior of a stage"):
        plan.spec(2, HistogramPrior(0.1))


@pytest.mark.parametrize(
    ("epsilon", "cost"), [(5e-324, None), (1e-19, None), (1e-6, 5e-7), (1.0, 1e-300), (1e6, 9e5)]
)
def test_an_epsilon_that_nothing_can_keep_costs_nothing(
    tmp_path: Path, ledger: Ledger, epsilon: float, cost: float | None
) -> None:
    source = write(data(), tmp_path / "in.parquet")
    with pytest.raises(InvalidInput):
        ldp.release(
            source,
            tmp_path / "out.parquet",
            spec(law="threshold", epsilon=epsilon, prior=HistogramPrior(cost)),
            ledger,
        )
    assert not ledger.runs() and not (tmp_path / "out.parquet").exists()


@pytest.mark.filterwarnings("ignore:An epsilon of")
@pytest.mark.parametrize(("epsilon", "cost"), [(4e-6, 2e-6), (1400.0, 700.0), (1e300, None)])
@pytest.mark.parametrize("label", ["income", "tree"])
def test_tiny_and_huge_epsilons_are_charged_whole(
    tmp_path: Path, ledger: Ledger, label: str, epsilon: float, cost: float | None
) -> None:
    out = tmp_path / "out.parquet"
    ldp.release(
        write(data(), tmp_path / "in.parquet"),
        out,
        spec(label=label, epsilon=epsilon, prior=HistogramPrior(cost)),
        ledger,
    )
    assert ledger.spent("d", label) == epsilon and read_histogram(
        out, ledger=ledger
    ).n_rows.tolist() == [N]


@pytest.mark.parametrize(
    "counts", [[0] * 11, [-9] * 11, [N, *[0] * 10], [10**12] * 11, [0] * 10 + [-(10**15)]]
)
@pytest.mark.parametrize("law", ["rr-on-bins", "unbiased", "threshold"])
def test_any_noisy_histogram_makes_a_law(
    tmp_path: Path, ledger: Ledger, counts: list[int], law: str
) -> None:
    drawn, out = _stream.drawn_answer, tmp_path / "out.parquet"

    def forced(*facts: Any) -> Any:
        answer = drawn(*facts)
        answer.values[0] = counts
        return answer

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_stream, "drawn_answer", forced)
        ldp.release(
            write(data(), tmp_path / "in.parquet"),
            out,
            spec(law=law, prior=HistogramPrior(0.01)),
            ledger,
        )
    assert read_histogram(out, ledger=ledger).values[0].tolist() == counts
    assert len(read_noisy(out, ledger=ledger).likelihood()) == N


def test_labels_that_are_all_alike_still_get_an_answer(tmp_path: Path, ledger: Ledger) -> None:
    """The histogram is so sure that a constant were the best number: the law stays that of a flat
    prior, which was checked before."""
    table, out = data(), tmp_path / "out.parquet"
    table = table.set_column(3, "income", pa.array(np.zeros(N)))
    asked = spec(
        classes=ldp.Grid(0, 1, points=2),
        epsilon=1.0,
        law=RROnBins(2, 1.0, loss="absolute"),
        prior=HistogramPrior(0.5),
    )
    ldp.release(write(table, tmp_path / "in.parquet"), out, asked, ledger)
    (block,) = read_noisy(out, ledger=ledger).blocks
    assert block.law == RROnBins(2, 0.5, loss="absolute")


def test_one_class_is_refused_or_free_of_faults(tmp_path: Path, ledger: Ledger) -> None:
    table = data().set_column(4, "tree", pa.array(["ash"] * N))
    with pytest.raises(InvalidInput):
        ldp.release(
            write(table, tmp_path / "in.parquet"),
            tmp_path / "out.parquet",
            spec(label="tree", classes=["ash"]),
            ledger,
        )
    assert not ledger.runs()


# What survives
# --------------------------------------------------------------------------------------------------


def test_an_edited_histogram_is_refused(tmp_path: Path, ledger: Ledger) -> None:
    out = tmp_path / "out.csv"
    ldp.release(write(data(), tmp_path / "in.csv"), out, spec(), ledger)
    place = manifest_path(out)
    said = json.loads(place.read_text())
    one_more = [said[HISTOGRAM]["counts"][0] + 1, *said[HISTOGRAM]["counts"][1:]]
    for changed in ({"counts": one_more}, {"rows": N - 1}, {"counts": [0] * 11}, None):
        facts = said | {HISTOGRAM: None if changed is None else said[HISTOGRAM] | changed}
        if changed is None:
            del facts[HISTOGRAM]
        place.write_text(json.dumps(facts))
        for read in (read_histogram, read_noisy):
            with pytest.raises(InvalidInput):
                read(out)
        assert verify(ledger, [place])
    for asked in (
        {"query": "histogram", "n": 1},
        {"query": "vote", "n_classes": 4, "epsilon": 0.5, "n_groups": 1},
        {"query": "mean"},
    ):
        facts = json.loads(json.dumps(said))
        facts["receipt"]["event"]["law"][HISTOGRAM] = asked
        place.write_text(json.dumps(facts))
        for read in (read_histogram, read_noisy):
            with pytest.raises(InvalidInput):
                read(out)
    place.write_text(json.dumps(said))
    assert read_histogram(out, ledger=ledger).values[0].tolist() == said[HISTOGRAM][
        "counts"
    ] and not verify(ledger, [place])


def test_the_file_itself_and_a_later_release_carry_it(tmp_path: Path, ledger: Ledger) -> None:
    first, second = tmp_path / "first.parquet", tmp_path / "second.parquet"
    ldp.release(write(data(), tmp_path / "in.parquet"), first, spec(), ledger)
    counts = read_histogram(first).values.tolist()
    ldp.release(first, second, spec(label="tree", prior=HistogramPrior(0.2)), ledger)
    for label, cost in (("income", 0.5), ("tree", 0.2)):
        assert read_histogram(second, label, ledger=ledger).query.epsilon == cost
        assert read_noisy(second, label, ledger=ledger).privacy.epsilon == 2.0
    assert read_histogram(second, "income").values.tolist() == counts
    manifest_path(first).unlink()
    assert read_histogram(first, ledger=ledger).values.tolist() == counts
    plain = tmp_path / "plain.parquet"
    ldp.release(
        write(data(), tmp_path / "in.parquet"),
        plain,
        spec(dataset="e", prior=None),
        Ledger(tmp_path / "plain.db"),
    )
    with pytest.raises(InvalidInput, match="Expected a release with a histogram"):
        read_histogram(plain)


def test_raw_counts_are_neither_shown_nor_pickled(tmp_path: Path, ledger: Ledger) -> None:
    counts = _stream._LabelCounts(4)
    counts.add(np.array([3, 3, 1], np.int32), all_count=True)
    assert "[" not in repr(counts) and "3" not in str(vars(counts)["_counts"]).replace("(1, 4)", "")
    with pytest.raises(TypeError):
        pickle.dumps(counts)


@pytest.mark.parametrize(
    ("option", "cost"),
    [("histogram", 0.171), ("histogram,eps=0.25", 0.25), ("histogram, eps=0.25", 0.25)],
)
def test_the_command_line_asks_for_it(tmp_path: Path, option: str, cost: float) -> None:
    source, out = write(data(), tmp_path / "in.csv"), tmp_path / "out.csv"
    asked = [
        "--label",
        "income",
        "--range",
        "0:100:11",
        "--law",
        "rr-on-bins",
        "--epsilon",
        1,
        "--id",
        "id",
    ]
    code, said, told = run("release", source, *asked, "--prior", option, "--out", out)
    assert code == 0, told
    assert (
        "1-label-DP for each row" in said
        and f"Charged epsilon 1. Of it, {cost} is for the histogram" in " ".join(said.split())
    )
    assert read_histogram(out).query.epsilon == cost
    for wrong in (
        "histogram,eps=nan",
        "histogram,eps=0",
        "histogram,eps=1",
        "histogram,eps=x",
        "histogram,eps=0.1,eps=0.2",
    ):
        code, _, told = run(
            "release",
            source,
            *asked,
            "--prior",
            wrong,
            "--out",
            tmp_path / "no.csv",
            "--dataset",
            "other",
        )
        assert code == 2 and "Expected" in told, told
