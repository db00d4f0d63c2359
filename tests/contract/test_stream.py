# SPDX-License-Identifier: Apache-2.0
"""The streaming door: two passes over the same input, one charge, and the same outputs whatever the
batches are."""

import contextlib

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
import pytest
from tests.runs import table_pin

import labeldp as ldp
from labeldp._hash import public_hash
from labeldp.custody import _stream as stream
from labeldp.custody._draw import SecondPass
from labeldp.ledger import _rowset as rowset
from labeldp.ledger._ledger import RunRecord
from labeldp.noise._words import Blocks, integers_or_names

BUDGET = 10.0  # of each column

LABELS = np.random.default_rng(0).integers(6, size=5000).astype(np.int32)
IDS = np.random.default_rng(1).permutation(10**6)[:5000]
PRIOR = np.random.default_rng(2).dirichlet(np.ones(6), 5000)


def start(
    ledger, law, batches, labels=LABELS, ids=None, units=None, prior=None, public="", **options
):
    pin = table_pin(law, classes=range(6), dataset="d", column="y", ledger=ledger, **options)
    for rows in np.array_split(np.arange(5000), batches):
        given = {"ids": ids, "units": units, "prior": prior}
        pin.add(
            labels[rows],
            **{name: None if array is None else array[rows] for name, array in given.items()},
        )
    return pin.charge(public)


def finish(run, batches, labels=LABELS, ids=None, units=None, prior=None):
    parts = []
    for rows in np.array_split(np.arange(5000), batches):
        given = {"ids": ids, "units": units, "prior": prior}
        noisy, kept, words = run.draw(
            labels[rows],
            **{name: None if array is None else array[rows] for name, array in given.items()},
        )
        parts.append((noisy, rows[kept], words))
    return parts


def drawn(parts):
    return np.concatenate([noisy.log_likelihood() for noisy, *_ in parts])


@pytest.mark.parametrize(
    "law",
    [ldp.RandomizedResponse(6, 1.0), ldp.SubsetSelection(6, 1.0), ldp.RRWithPrior(6, 1.0)],
    ids=lambda law: law.name,
)
def test_batches_do_not_matter_to_a_picked_up_run(ledger, law):
    prior = PRIOR if law.uses_prior else None
    crashed = start(ledger, law, 7, ids=IDS, prior=prior)
    first = finish(crashed, 7, ids=IDS, prior=prior)
    run = start(ledger, law, 3, ids=IDS, prior=prior)
    assert run.receipt.run_id == crashed.receipt.run_id and len(ledger.runs("d", "y")) == 1
    again = finish(run, 11, ids=IDS, prior=prior)
    run.check_pin()
    run.settle("sha256:0")
    np.testing.assert_array_equal(drawn(again), drawn(first))
    np.testing.assert_array_equal(
        np.concatenate([w for *_, w in again]), np.concatenate([w for *_, w in first])
    )
    settled = start(ledger, law, 2, ids=IDS, prior=prior)
    # which draws nothing
    assert (
        isinstance(settled, RunRecord)
        and settled.artefact == "sha256:0"
        and settled.receipt.repeated
    )
    assert ledger.spent("d", "y") == 1.0


def test_an_input_that_changes_between_the_passes_is_not_published(ledger):
    run = start(ledger, ldp.RandomizedResponse(6, 1.0), 4, ids=IDS)
    changed = LABELS.copy()
    changed[4999] = (changed[4999] + 1) % 6
    finish(run, 4, labels=changed, ids=IDS)
    with pytest.raises(ldp.ReleaseError, match="changed"):
        run.check_pin()


def test_a_prior_that_changes_between_the_passes_is_not_published(ledger):
    run = start(ledger, ldp.RRTopK(6, 1.0, k=2), 4, ids=IDS, prior=PRIOR)
    finish(run, 4, ids=IDS, prior=PRIOR[::-1])
    with pytest.raises(ldp.ReleaseError, match="changed"):
        run.check_pin()


def test_units_that_change_between_the_passes_are_not_published(ledger):
    units = np.arange(5000) // 2
    run = start(ledger, ldp.RandomizedResponse(6, 1.0), 7, ids=IDS, units=units, unit_name="person")
    finish(run, 4, ids=IDS, units=np.roll(units, 1))
    with pytest.raises(ldp.ReleaseError, match="changed"):
        run.check_pin()


@pytest.mark.parametrize("engine", ["one machine", "workers"])
def test_workers_that_read_other_units_come_to_another_sum(ledger, engine):
    units, ids = np.arange(5000) // 2, IDS
    run = start(ledger, ldp.RandomizedResponse(6, 1.0), 7, ids=ids, units=units, unit_name="person")
    for given, same in ((units, True), (np.roll(units, 1), False)):
        second = SecondPass(run.facts, run.secret, run.receipt)
        check = second.draw(LABELS, ids, units=given, check_rows=engine == "workers").check
        sums = (
            second.sums.check(run.receipt.run_id)
            if check is None
            else (5000, *map(int, check.sum(axis=0)))
        )
        with contextlib.nullcontext() if same else pytest.raises(ldp.ReleaseError, match="changed"):
            run.check_pin(sums)


@pytest.mark.parametrize("other", [1 + (1 << 56), -(1 << 62) + 1])
def test_people_whose_ids_differ_at_the_far_end_are_two(ledger, other):
    units = np.where(np.arange(5000) % 2, 1, other)
    run = start(ledger, ldp.RandomizedResponse(6, 1.0), 7, ids=IDS, units=units, unit_name="person")
    assert sum(len(rows) for _, rows, _ in finish(run, 5, ids=IDS)) == 2


def test_capped_rows_in_another_order_in_the_second_pass_are_not_drawn(ledger):
    """The pin knows no order, but who is within the cap is known by position."""
    run = start(
        ledger,
        ldp.RandomizedResponse(6, 1.0),
        7,
        ids=IDS,
        units=np.arange(5000) // 2,
        unit_name="person",
    )
    with pytest.raises(ldp.ReleaseError, match="changed while it was read"):
        finish(run, 7, labels=LABELS[::-1], ids=IDS[::-1])


def test_nothing_is_drawn_before_the_charge(ledger):
    pin = table_pin(
        ldp.RandomizedResponse(6, 1.0), classes=range(6), dataset="d", column="y", ledger=ledger
    )
    pin.add(LABELS)
    assert ledger.runs() == [] and not hasattr(pin, "draw") and not hasattr(pin, "receipt")
    run = pin.charge("columns")
    assert run.draw(LABELS)[0].blocks[0].receipt == run.receipt == ledger.runs()[0].receipt


@pytest.mark.parametrize(
    "ids",
    [
        np.arange(5000),
        np.random.default_rng(4).integers(-(2**62), 2**62, size=5000),
        np.array([f"u{i}" for i in range(5000)]),
    ],
    ids=["dense", "scattered", "text"],
)
@pytest.mark.parametrize("where", [(0, 1), (10, 4999), None])
def test_repeated_ids_are_found_wherever_they_are(ledger, ids, where):
    ids = ids.copy()
    if where is None:
        assert start(ledger, ldp.RandomizedResponse(6, 1.0), 7, ids=ids).receipt
        return
    ids[where[1]] = ids[where[0]]
    with pytest.raises(ldp.InvalidInput, match="different ids"):
        start(ledger, ldp.RandomizedResponse(6, 1.0), 7, ids=ids)
    assert ledger.runs() == []


@pytest.mark.parametrize("columns", ["name", ["ward", "bed"]], ids=["text", "two columns"])
@pytest.mark.parametrize("ending", ["csv", "parquet"])
@pytest.mark.parametrize("repeat", [None, (0, 1), (7, 2999)])
def test_ids_whose_hashes_are_equal_are_compared_themselves(
    ledger, tmp_path, monkeypatch, columns, ending, repeat
):
    """Every hash is one of 512 here, so that a set of them tells nothing."""
    rows = np.arange(3000)
    if repeat is not None:
        rows[repeat[1]] = rows[repeat[0]]
    table = pa.table(
        {
            "name": [f"n{i}" for i in rows],
            "ward": [f"w{i % 50}" for i in rows],
            "bed": rows // 50,
            "y": np.arange(3000) % 6,
        }
    )
    source = tmp_path / f"in.{ending}"
    (pa_csv.write_csv if ending == "csv" else pq.write_table)(table, source)

    def coarse(ids, key):
        found = integers_or_names(ids, key)
        return Blocks(found.tag, found.halves()[0] & np.uint64(511), found.halves()[1])

    monkeypatch.setattr(rowset, "integers_or_names", coarse)
    monkeypatch.setattr(stream, "public_hash", lambda *given: public_hash(*given) & np.uint64(511))
    spec = ldp.ReleaseSpec("y", range(6), 1.0, id=columns, dataset="d")
    if repeat is None:
        assert (
            ldp.release(source, tmp_path / f"out.{ending}", spec, ledger).manifest["rows"] == 3000
        )
        return
    with pytest.raises(ldp.InvalidInput, match=r"row (1|8) .*and row (2|3000) .* have the same"):
        ldp.release(source, tmp_path / f"out.{ending}", spec, ledger)
    assert ledger.runs() == []
