# SPDX-License-Identifier: Apache-2.0
"""`labeldp peer`: the exact cost of the clusters, one charge, estimates, and what is refused before
it."""

import json
import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pytest
from scipy.stats import binom
from tests.cli.commands import run

from labeldp.aggregates import Aggregate
from labeldp.ledger._ledger import default_ledger
from labeldp.research.peer import Peer, PeerToPeer, ones_errors, ones_shares

FALSE_ALARM = 1e-6  # of each check; noise is the operating system's
SIZES = {"Aarau": 60, "Bern": 40, "Chur": 20}
N = sum(SIZES.values())
RNG = np.random.default_rng(3)
TOWN = RNG.permutation(np.repeat(list(SIZES), list(SIZES.values())))
SAID = np.where(RNG.random(N) < np.where(TOWN == "Bern", 0.7, 0.2), "yes", "no")


def votes(folder: Path, **replaced: object) -> Path:
    table = pa.table({"user": np.arange(N), "town": TOWN, "said": SAID} | replaced)
    pyarrow.csv.write_csv(table, folder / "votes.csv")
    return folder / "votes.csv"


def command(source: Path, *more: object) -> tuple[object, ...]:
    return (
        "peer",
        source,
        "--label",
        "said",
        "--group",
        "town",
        "--classes",
        "no,yes",
        "--flip",
        0.1,
        *more,
    )


def beyond(n: int, ones: int, errors: float) -> float:
    """The exact probability that the estimate of a cluster is so many of its standard errors
    off."""
    bits = np.convolve(
        binom.pmf(np.arange(ones + 1), ones, 0.9), binom.pmf(np.arange(n - ones + 1), n - ones, 0.1)
    )
    law = bits @ binom.pmf(np.arange(n + 1), n, np.arange(n + 1)[:, None] / n)
    counts = np.stack([n - np.arange(n + 1), np.arange(n + 1)], axis=1)
    off = np.abs(ones_shares(PeerToPeer(0.1), counts) - ones / n)
    return float(law[off >= errors * ones_errors(PeerToPeer(0.1), counts, np.full(n + 1, n))].sum())


def test_the_cost_is_that_of_the_smallest_cluster_and_free_to_ask(tmp_path: Path) -> None:
    source, protocol = votes(tmp_path), PeerToPeer(0.1)
    code, said, _ = run(*command(source, "--dry-run", "--json"))
    facts = json.loads(said)
    assert code == 0
    assert facts == {
        "epsilon": protocol.epsilon(20, 1 / N**2),
        "delta": 1 / N**2,
        "local_epsilon": protocol.local_epsilon,
        "groups": 3,
    }
    assert not default_ledger().runs("votes", "said")
    code, said, _ = run(*command(source, "--dry-run", "--join", 0.5, "--delta", 1e-4))
    assert code == 0
    assert (
        f"Epsilon {Peer.of(PeerToPeer(0.1, 0.5), [20, 40, 60], 1e-4).epsilon!r} towards the learner"
        " at delta 0.0001" in said
    )


def test_one_charge_one_answer_and_estimates(tmp_path: Path) -> None:
    source, out = votes(tmp_path), tmp_path / "found.csv"
    code, said, _ = run(*command(source, "--out", out))
    epsilon = PeerToPeer(0.1).epsilon(20, 1 / N**2)
    assert code == 0
    assert "120 reports of 120 users in 3 clusters" in said
    assert f"Charged epsilon {epsilon!r}." in said
    assert (
        default_ledger().spent("votes", "said"),
        default_ledger().spent_delta("votes", "said"),
    ) == (epsilon, 1 / N**2)
    raw = out.read_bytes()
    code, said, _ = run(*command(source, "--out", out))
    assert (code, out.read_bytes()) == (0, raw)
    assert "Answered before; nothing was drawn, nothing was charged." in said
    found = pyarrow.csv.read_csv(out)
    assert found.column_names == ["group", "n_rows", "count_no", "count_yes", "share_yes", "stderr"]
    assert dict(zip(found["group"].to_pylist(), found["n_rows"].to_pylist(), strict=True)) == SIZES
    for town, share, error in zip(
        *(found[name].to_pylist() for name in ("group", "share_yes", "stderr")), strict=True
    ):
        ones = np.count_nonzero(SAID[town == TOWN] == "yes")
        assert abs(share - ones / SIZES[town]) < 9 * error
        assert beyond(SIZES[town], ones, 9.0) < FALSE_ALARM
    code, _, told = run(*command(source, "--out", tmp_path / "more.csv", "--join", 0.5))
    assert code == 3  # the first charge set the budget
    assert "is spent; got epsilon" in told
    assert not (tmp_path / "more.csv").exists()


def test_parquet_is_read_back_with_its_protocol(tmp_path: Path) -> None:
    source, out = votes(tmp_path), tmp_path / "found.parquet"
    code, said, _ = run(*command(source, "--out", out, "--join", 0.5, "--json"))
    facts, found = json.loads(said), Aggregate.load(out)
    assert code == 0
    assert isinstance(found.query, Peer)
    assert (found.query.flip, found.query.join, found.group_names) == (0.1, 0.5, tuple(SIZES))
    assert facts["reports"] == found.values.sum() < N
    assert found.prior(["Bern"]).shape == (1, 2)


@pytest.mark.parametrize(
    ("more", "code", "message"),
    [
        (["--flip", 0.5], 2, "flip < 1/2"),
        (["--flip", "nan"], 2, "flip"),
        (["--join", 0], 2, "join"),
        (["--delta", 0], 2, "delta"),
        (["--classes", "no,yes,maybe"], 2, "two declared classes"),
        (["--classes", "no,nein"], 4, "every label of column 'said' to be one of the"),
        (["--group", "said"], 2, "public column of groups"),
        (["--group", "village"], 4, "'village'"),
        (["--label", "vote"], 4, "'vote'"),
        (["--dry-run"], 2, "got both"),
    ],
)
def test_bad_input_is_refused_before_the_charge(
    tmp_path: Path, more: list[object], code: int, message: str
) -> None:
    found, said, told = run(*command(votes(tmp_path), "--out", tmp_path / "found.csv", *more))
    assert (found, said) == (code, "")
    assert message in re.sub(r"[\s│]+", " ", told)
    assert not default_ledger().runs("votes", "said")
    assert not (tmp_path / "found.csv").exists()


def test_neither_output_nor_dry_run_and_no_classes(tmp_path: Path) -> None:
    source = votes(tmp_path)
    code, _, told = run(*command(source))
    assert code == 2
    assert "got neither" in told
    code, _, told = run(
        "peer", source, "--label", "said", "--group", "town", "--flip", 0.1, "--dry-run"
    )
    assert code == 2
    assert "--classes no,yes" in re.sub(r"[\s│]+", " ", told)


def test_a_user_without_a_town_and_a_town_that_hides_nobody(tmp_path: Path) -> None:
    code, _, told = run(
        *command(votes(tmp_path, town=pa.array(["", *TOWN[1:]])), "--out", tmp_path / "found.csv")
    )
    assert code == 4
    assert "Expected a group in every row" in told
    alone = votes(tmp_path, town=pa.array(["Zug", *TOWN[1:]]))
    code, said, _ = run(*command(alone, "--dry-run", "--json"))
    assert code == 0
    # one user asks nobody but themselves, so the flip alone hides them
    assert (
        PeerToPeer(0.1).local_epsilon - 1e-3
        < json.loads(said)["epsilon"]
        <= PeerToPeer(0.1).local_epsilon
    )
