# SPDX-License-Identifier: Apache-2.0
"""Many processes give what one gives: the same batches in shares, the same weights and figures in
each."""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from tests.deep import fabric_processes

import labeldp as ldp
from labeldp.deep import Optimizer, Recipe, predict, train
from labeldp.deep._loop import Placement, share

if find_spec("lightning_fabric") is None:
    pytest.skip("needs lightning-fabric: pip install 'labeldp[fabric]'", allow_module_level=True)

from lightning_fabric import Fabric

PROGRAM = Path(fabric_processes.__file__)
NAMES = ("plain", "again", "clipped", "images", "tabular", "rows")


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    """What two processes of torchrun found."""
    folder = tmp_path_factory.mktemp("two")
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node=2",
        PROGRAM,
        folder,
    ]
    done = subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return [torch.load(folder / f"{rank}.pt") for rank in range(2)]


@pytest.fixture(scope="module")
def one():
    """The same trainings here."""
    return fabric_processes.trainings(7)


def close(a, b, **options):
    assert a.keys() == b.keys()
    for key in a:
        torch.testing.assert_close(a[key], b[key], **options)


@pytest.mark.parametrize("name", ["plain", "again", "clipped", "rows"])
def test_two_processes_learn_what_one_learns(name, one, two):
    close(two[0][name]["weights"], one[name]["weights"], rtol=1e-4, atol=1e-5)
    mine, other = (
        [figure for epoch in found[name]["told"] for figure in epoch if figure is not None]
        for found in (two[0], one)
    )
    assert mine == pytest.approx(other, rel=1e-4)


@pytest.mark.parametrize("name", NAMES)
def test_processes_agree_to_the_bit(name, two):
    """Weights, batch statistics, averages, losses and scores, and the generator that the next stage
    goes on with."""
    first, second = (found[name] for found in two)
    close(first["weights"], second["weights"], rtol=0, atol=0)
    assert first["told"] == second["told"] and torch.equal(first["generator"], second["generator"])


def test_batch_statistics_are_nearly_those_of_one_process(one, two):
    for name in ("images", "tabular"):
        assert two[0][name]["told"][-1] == pytest.approx(one[name]["told"][-1], rel=0.25)


def test_each_process_reads_its_share_of_the_same_batches(one, two):
    asked = [
        [batches for batches in found["rows"]["asked"] if len(batches) > 1] for found in (one, *two)
    ]
    assert asked[0]
    for batches, *shares in zip(*asked, strict=True):
        assert [len(rows) for rows in batches] == [63, 63, 63, 3]
        for whole, mine, other in zip(batches[:3], *(parts[:3] for parts in shares), strict=True):
            assert torch.equal(torch.cat([mine, other]), whole)
        last = [parts[3] for parts in shares]
        # the second time at weight 0
        assert torch.equal(last[0], batches[3]) and torch.equal(last[1], batches[3])


def test_different_labels_in_different_processes_are_refused_in_all(two):
    assert all("same evidence in every process" in found["refused"] for found in two)


@pytest.mark.parametrize("world", [1, 2, 3, 8])
@pytest.mark.parametrize("m", [1, 2, 3, 5, 16, 17])
def test_shares_weigh_as_much_as_their_rows(m, world):
    rows, values = torch.arange(m), torch.rand(m, dtype=torch.float64)
    shares = [share(rows, rank, world) for rank in range(world)]
    assert all(len(mine) >= min(2, m) for mine, _ in shares)
    assert torch.equal(torch.cat([mine for mine, weight in shares if weight]), rows)
    mean = sum(weight * values[mine].mean() for mine, weight in shares) / world
    torch.testing.assert_close(mean, values.mean())


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
def test_one_process_of_fabric_is_the_plain_loop(precision):
    x, form = fabric_processes.problem()
    plain = Recipe(
        2,
        64,
        0.05,
        precision="bf16" if "bf16" in precision else "float32",
        optimizer=Optimizer("sgd", clip=0.5),
    )
    found = []
    for options in ({}, {"fabric": Fabric(accelerator="cpu", devices=1, precision=precision)}):
        net = fabric_processes.plain_net_of(0)
        found.append(
            predict(
                train(net, x, form, plain, generator=torch.Generator().manual_seed(0), **options),
                x,
                precision="float32",
            )
        )
    # Fabric rounds logits at another place
    torch.testing.assert_close(*found, rtol=0, atol=0 if precision == "32-true" else 0.02)


def test_strategies_that_split_the_net_are_refused():
    class Sharded:
        strategy, world_size, device = object(), 2, torch.device("cpu")

    with pytest.raises(ldp.InvalidInput, match="ddp"):
        Placement("cpu", "auto", Sharded())
