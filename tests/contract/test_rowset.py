# SPDX-License-Identifier: Apache-2.0
"""Row sets: exact for integers, never a false negative for names, the same whatever the batches, order and processes."""

import itertools
import pickle

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from labeldp.errors import InvalidInput, LedgerError
from labeldp.privacy.rowset import RowSet, RowSetBuilder, name_hashes
from labeldp.privacy.rowset_filter import FALSE_POSITIVES, NameFilter
from labeldp.privacy.rowset_integers import IntegerPile, IntegerSet, ordered, portable

SECRET = b"\x07" * 32


def numbers(found: IntegerSet) -> NDArray[np.uint64]:
    members = found.members
    return members if isinstance(members, np.ndarray) else np.asarray(members.to_array(), np.uint64)


def built(*batches: object, **facts: object) -> RowSetBuilder:
    builder = RowSetBuilder(secret=SECRET, **facts)
    for batch in batches:
        builder.add(batch)
    return builder


def shapes() -> dict[str, NDArray[np.int64]]:
    random = np.random.default_rng(0)
    return {
        "empty": np.empty(0, np.int64),
        "one": np.array([5]),
        "range": np.arange(-70_000, 200_000),
        "every third": np.arange(0, 600_000, 3),
        "a few in each page": np.arange(0, 10**9, 12_345),
        "scattered": random.integers(-(2**63), 2**63 - 1, 50_000),
        "dense and scattered": np.r_[np.arange(100_000), random.integers(0, 2**62, 30_000)],
        "repeats": np.r_[np.arange(1000), np.arange(500)],
        "edges": np.array([-(2**63), 2**63 - 1, 0, -1, 65_535, 65_536, 2**32 - 1, 2**32]),
        "full page": np.arange(65_536),
        "4096 and 4097": np.r_[np.arange(4096) * 16, 65_536 + np.arange(4097) * 15],
    }


@pytest.mark.parametrize("name", shapes())
def test_integers_are_exact(name: str) -> None:
    values = shapes()[name]
    shuffled = np.random.default_rng(1).permutation(values)
    expected = np.unique(ordered(values))
    for order in (values, shuffled):
        builder = built(*np.array_split(order, 7), integers=True)
        rows = builder.finish()
        assert np.array_equal(numbers(rows.integers), expected)
        assert (builder.count, rows.count) == (len(values), len(expected))
        assert builder.repeated is (len(expected) < len(values))
        again = RowSet.from_bytes(rows.to_bytes(), str(rows.facts()["digest"]))
        assert np.array_equal(numbers(again.integers), expected)
        assert again.facts() == rows.facts()


@pytest.mark.parametrize(("one", "other"), list(itertools.product(shapes(), repeat=2)))
def test_set_algebra(one: str, other: str) -> None:
    a, b = (built(shapes()[name], integers=True).finish().integers for name in (one, other))
    x, y = numbers(a), numbers(b)
    both, alone = np.intersect1d(x, y, assume_unique=True), np.setdiff1d(x, y, assume_unique=True)
    assert np.array_equal(numbers(a & b), both)
    assert np.array_equal(numbers(a - b), alone)
    assert np.array_equal(numbers(a | b), np.sort(np.r_[alone, y]))
    assert a.shared(b) == b.shared(a) == len(both)


@given(st.sets(st.integers(0, 2**64 - 1) | st.integers(2**32 - 70_000, 2**32 + 70_000), min_size=1))
def test_the_portable_format_is_what_roaring_reads(values: set[int]) -> None:
    from pyroaring import BitMap64

    array = np.array(sorted(values), np.uint64)
    assert set(BitMap64.deserialize(portable(array))) == values


def test_signed_integers_keep_their_order() -> None:
    values = np.array([-(2**63), -5, -1, 0, 1, 2**63 - 1])
    assert (np.diff(ordered(values).astype(object)) > 0).all()
    assert np.array_equal(ordered(values.astype(np.int8)[2:5]), ordered(values[2:5]))
    assert np.array_equal(ordered(np.array([3], np.uint8)), ordered(np.array([3])))


@pytest.mark.parametrize("kind", ["integers", "scattered", "names"])
def test_merged_in_any_order_and_sent_about_they_are_equal(kind: str) -> None:
    random = np.random.default_rng(2)
    values = random.integers(0, 2**62 if kind == "scattered" else 50_000, 20_000)
    parts = [values[i::4] if kind != "names" else pa.array(values[i::4].astype(str)) for i in range(4)]
    found = []
    for order in itertools.permutations(range(4)):
        copies = [pickle.loads(pickle.dumps(built(part))) for part in parts]
        empty = RowSetBuilder(secret=SECRET)
        for i in order:
            empty.merge(copies[i])
        assert empty.count == len(values)
        found.append(empty.finish().to_bytes())
    whole = built(*parts).finish()
    assert set(found) == {whole.to_bytes()}
    assert whole.count == len(np.unique(values))


def test_a_builder_goes_on_after_it_was_finished() -> None:
    builder = built(np.arange(10), np.array([2**61]))
    assert builder.finish().count == 11
    builder.add(np.arange(5, 20))
    assert builder.finish().count == 21
    assert builder.repeated is True


@pytest.mark.parametrize(
    "ids",
    [
        pa.array(["a", "b", "c"]),
        pa.chunked_array([["a"], ["b", "c"]]),
        np.array(["a", "b", "c"]),
        ["a", "b", "c"],
        [b"a", b"b", b"c"],
        [("a", 1), ("a", 2), ("b", 1)],
        np.array([[1, 2], [3, 4], [1, 3]]),
        pa.table({"x": [1, 1, 2], "y": ["a", "b", "a"]}),
    ],
    ids=lambda ids: type(ids).__name__,
)
def test_names_of_every_form(ids: object) -> None:
    builder = built(ids)
    rows = builder.finish()
    assert (rows.kind, rows.count, builder.repeated) == ("names", 3, None)
    assert rows.filter.has(name_hashes(ids, SECRET)).all()


@pytest.mark.parametrize("ids", [pa.array([1, 2, 3]), pa.chunked_array([[1], [2, 3]]), np.arange(3, dtype=np.uint16), [1, 2, 3]])
def test_integers_of_every_form(ids: object) -> None:
    assert built(ids).finish().kind == "integers"
    names = built(ids, integers=False).finish()
    assert (names.kind, names.count) == ("names", 3)


def test_no_false_negatives_and_few_false_positives() -> None:
    random = np.random.default_rng(3)
    for n in (1, 100, 200_000):
        inside = random.integers(0, 2**64, n, np.uint64)
        made = NameFilter.from_bytes(NameFilter.of(inside).to_bytes())
        assert made.has(inside).all()
        if n > 100:
            outside = random.integers(0, 2**64, 400_000, np.uint64)
            assert made.has(outside).mean() < FALSE_POSITIVES
    assert len(NameFilter.of(inside).to_bytes()) <= 2 * n


def test_candidates_are_the_names_that_may_be_in_an_earlier_run() -> None:
    earlier = built(pa.array([f"name {i}" for i in range(5000)])).finish()
    builder = built(earlier={"first": earlier.filter})
    twin = pickle.loads(pickle.dumps(builder))
    builder.add(pa.array([f"name {i}" for i in range(4990, 6000)]))
    twin.add(pa.array([f"name {i}" for i in range(6000, 9000)]))
    for one, other in ((builder, twin), (twin, builder)):
        empty = built(earlier={"first": earlier.filter})
        empty.merge(one)
        empty.merge(other)
        candidates = empty.finish().candidates["first"]
        assert candidates is not None
        assert set(name_hashes(pa.array([f"name {i}" for i in range(4990, 5000)]), SECRET)) <= set(candidates)
        assert len(candidates) < 10 + 4000 * FALSE_POSITIVES * 3


def test_nothing_secret_is_shown_and_nothing_mixed_is_taken() -> None:
    builder = built(["a"])
    assert SECRET.hex() not in repr(builder) and "\\x07" not in repr(builder)
    with pytest.raises(InvalidInput, match="integer ids"):
        built(np.arange(3), ["a"])
    with pytest.raises(InvalidInput, match="same kind"):
        builder.merge(built(np.arange(3)))
    with pytest.raises(InvalidInput, match="missing"):
        built(pa.array([1, None]))
    with pytest.raises(InvalidInput, match="secret"):
        RowSetBuilder().add(["a"])
    with pytest.raises(InvalidInput, match="filter"):
        _ = builder.finish().integers
    with pytest.raises(InvalidInput, match="integer"):
        _ = built(np.arange(3)).finish().filter


def test_the_same_names_under_two_secrets_have_nothing_in_common() -> None:
    names = pa.array([str(i) for i in range(10_000)])
    assert not np.isin(name_hashes(names, SECRET), name_hashes(names, b"\x08" * 32)).any()


def test_damaged_bytes_are_refused() -> None:
    rows = built(np.arange(1000)).finish()
    digest = str(rows.facts()["digest"])
    data = bytearray(rows.to_bytes())
    data[-1] ^= 1
    for harmed in (bytes(data), bytes(data[:-1]), b"", b"something else"):
        with pytest.raises(LedgerError, match="Expected"):
            RowSet.from_bytes(harmed, digest)
    with pytest.raises(LedgerError, match="Expected"):
        RowSet.from_bytes(b"something else")


def test_a_dense_range_needs_next_to_no_memory() -> None:
    pile = IntegerPile()
    for start in range(0, 50_000_000, 1 << 16):
        pile.add(np.arange(start, start + (1 << 16), dtype=np.uint64))
    assert len(pile.result()) == pile.count
    assert len(pile.result().to_bytes()) < 50_000


def test_many_names_go_to_a_file_and_come_back(monkeypatch):
    monkeypatch.setattr("labeldp.privacy.rowset_names.HELD", 1000)
    ids = np.array([f"name {i}" for i in range(25_500)])
    spilled, held = RowSetBuilder(False, secret=SECRET, spill=True), RowSetBuilder(False, secret=SECRET)
    for part in np.array_split(ids, 17):
        spilled.add(part)
        held.add(part)
    assert sum(map(len, spilled._hashes._held)) < 2500
    copied = pickle.loads(pickle.dumps(spilled))
    merged = RowSetBuilder(False, secret=SECRET, spill=True)
    merged.merge(copied)
    expected = held.finish().to_bytes()
    assert spilled.finish().to_bytes() == copied.finish().to_bytes() == merged.finish().to_bytes() == expected
