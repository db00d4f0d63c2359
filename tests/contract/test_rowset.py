# SPDX-License-Identifier: Apache-2.0
"""Row sets: exact, the same whatever the batches, their order, the types of integers and the
processes."""

import hashlib
import itertools
import pickle
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from labeldp.errors import InvalidInput, LedgerError
from labeldp.ledger._rowset import IntegerPile, IntegerSet, NumberSet, RowSet, RowSetBuilder

SECRET = b"\x07" * 32


def words(found: IntegerSet) -> NDArray[np.uint64]:
    members = found.members
    return members if isinstance(members, np.ndarray) else np.asarray(members.to_array(), np.uint64)


def numbers(found: NumberSet) -> list[int]:
    """In order."""
    return [*words(found.negative).view(np.int64).tolist(), *words(found.natural).tolist()]


def rows(builder: RowSetBuilder) -> NumberSet:
    return builder.finish().sets["row"].members


def built(*batches: object, secret: bytes = SECRET) -> RowSetBuilder:
    builder = RowSetBuilder(secret=secret)
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
    expected = np.unique(values).tolist()
    for order in (values, shuffled):
        builder = built(*np.array_split(order, 7))
        found = builder.finish()
        assert numbers(found.sets["row"].members) == expected
        assert builder.repeated is (len(expected) < len(values))
        again = RowSet.from_bytes(found.to_bytes(), str(found.facts()["digest"]))
        assert numbers(again.sets["row"].members) == expected
        assert again.facts() == found.facts()


@pytest.mark.parametrize(("one", "other"), list(itertools.product(shapes(), repeat=2)))
def test_set_algebra(one: str, other: str) -> None:
    a, b = (rows(built(shapes()[name])) for name in (one, other))
    x, y = set(numbers(a)), set(numbers(b))
    assert numbers(a & b) == sorted(x & y)
    assert numbers(a - b) == sorted(x - y)
    assert numbers(a | b) == sorted(x | y)
    assert a.shared(b) == b.shared(a) == len(x & y)


KEPT = {
    "two bitmaps": (
        [5, 1, 2**32 + 3, 2**32 + 4, 2**32 + 9, 7, 9, 11],
        "522a41ecf4bf765d1ef2f59579db6e046f5a15c9b0059d6f38cd0f887981f5e9",
    ),
    "lists": (
        np.arange(0, 70_000, 17),
        "b73ef71693dff1e1ed5a2afa12b4dbec8c462e199c59045310c876dde284576b",
    ),
    "bits": (
        np.flatnonzero(np.arange(200_000) * 2_654_435_761 % 7 < 3),
        "64caa5c412d22bd728b1a91a2855cabf6214c292c9cc49474dc473f6c93eebe0",
    ),
    "runs": (
        np.r_[np.arange(5_000, 90_000), np.arange(2**40, 2**40 + 70_000)],
        "86b880ce3b6282e6d9972537efa4b9e64a9d6aa3835d7653881adb8fe3ff0242",
    ),
}


@pytest.mark.parametrize("name", KEPT)
def test_the_bytes_of_a_set_never_change(name: str) -> None:
    """Ledgers keep their digest; by roaring's portable format, every container in its smallest
    form."""
    values, digest = KEPT[name]
    pile = IntegerPile()
    pile.add(np.array(values, np.uint64)[::-1])
    assert hashlib.sha256(b"".join(pile.result().chunks())).hexdigest() == digest


BIG = st.integers(-(2**63), 2**64 - 1) | st.sampled_from(
    [-1, 0, 2**63 - 1, 2**63, 2**64 - 1, -(2**63)]
)


@given(st.lists(st.sets(BIG), min_size=2, max_size=2))
def test_a_number_is_one_id_in_every_type_and_two_numbers_are_two(ids: list[set[int]]) -> None:
    """2^64 - 1 in an unsigned column has the bits of -1 in a signed one."""
    types = [np.int8, np.int32, np.int64, np.uint8, np.uint32, np.uint64]
    found = []
    for numbers_ in ids:
        builder = RowSetBuilder()
        for number in numbers_:  # each in the first, and again in the last type that can hold it
            fit = [kind for kind in types if np.iinfo(kind).min <= number <= np.iinfo(kind).max]
            for kind in (fit[0], fit[-1]):
                builder.add(np.array([number], kind))
        builder.add(np.empty(0, np.int64))
        found.append(rows(builder))
        assert numbers(found[-1]) == sorted(numbers_)
    assert found[0].shared(found[1]) == len(ids[0] & ids[1])


@pytest.mark.parametrize("kind", ["integers", "scattered", "names"])
def test_merged_in_any_order_and_sent_about_they_are_equal(kind: str) -> None:
    random = np.random.default_rng(2)
    values = random.integers(0, 2**62 if kind == "scattered" else 50_000, 20_000)
    parts = [
        values[i::4] if kind != "names" else pa.array(values[i::4].astype(str)) for i in range(4)
    ]
    found = []
    for order in itertools.permutations(range(4)):
        copies = [pickle.loads(pickle.dumps(built(part))) for part in parts]
        empty = RowSetBuilder(secret=SECRET)
        for i in order:
            empty.merge(copies[i])
        found.append(empty.finish().to_bytes())
    whole = built(*parts).finish()
    assert set(found) == {whole.to_bytes()}
    assert len(whole.sets["row"].members) == len(np.unique(values))


RNG = np.random.default_rng(5)
KINDS = {
    "in order": np.arange(-2500, 2500),
    "with gaps": np.arange(5000) * 50_000,
    "shuffled": RNG.permutation(5000),
    "scattered": RNG.integers(-(2**62), 2**62, 5000),
    "unsigned": RNG.integers(2**63, 2**64, 5000, dtype=np.uint64),
    "text": pa.array([f"u{i}" for i in range(5000)]),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("where", [(0, 1), (10, 4999), (2499, 2500), (1700, 1703), None])
def test_one_repeat_among_many_shows_in_how_many_there_are(
    kind: str, where: tuple[int, int] | None
) -> None:
    order = np.arange(5000)
    if where is not None:
        order[where[1]] = where[0]
    ids = KINDS[kind].take(order)
    # of text, two may have one hash
    expected = False if where is None else None if kind == "text" else True
    for batches in (
        [ids],
        [ids[:2500], ids[2500:]],
        [ids[i : i + 1] for i in range(20)] + [ids[20:]],
    ):
        assert built(*batches).repeated is expected


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
    found = builder.finish().sets["row"]
    assert (found.kind, len(found.members), builder.repeated) == ("names", 3, False)
    assert built(ids, ids).repeated is None  # one hash: another search must look


def test_names_are_one_however_they_are_kept() -> None:
    for forms in (
        [
            pa.array(["7", "8"]),
            np.array(["7", "8"]),
            [b"7", b"8"],
            pa.array(["7", "8"]).dictionary_encode(),
            [("7",), ("8",)],
        ],
        [
            [("a", 1), ("b", 2)],
            np.array([["a", "1"], ["b", "2"]]),
            pa.table({"x": ["a", "b"], "y": pa.array([1, 2], pa.int8())}),
        ],
    ):
        assert len({built(ids).finish().to_bytes() for ids in forms}) == 1


def test_a_million_names_share_exactly_what_they_share() -> None:
    n = 1_000_000
    one, other = (
        pa.array(np.arange(start, start + n)).cast(pa.large_string()) for start in (0, n - 10)
    )
    found = [built(ids).finish() for ids in (one, other)]
    # two hashes agree by chance once in 20 million such tests
    assert found[0].shared(found[1]) == {"row": 10}
    assert len(found[0].to_bytes()) < 8.01 * n


@pytest.mark.parametrize(
    "unlike", [{"id_name": "other"}, {"secret": b"\x08" * 32}, {"ids": np.arange(5)}]
)
def test_sets_of_another_column_key_or_kind_tell_nothing_of_each_other(
    unlike: dict[str, Any],
) -> None:
    one, other = (
        RowSetBuilder("visit", secret=SECRET),
        RowSetBuilder(unlike.get("id_name", "visit"), secret=unlike.get("secret", SECRET)),
    )
    one.add(pa.array(["a", "b"]))
    other.add(unlike.get("ids", pa.array(["a", "b"])))
    assert one.finish().shared(other.finish()) == {"row": None}


def test_units_are_kept_beside_the_rows() -> None:
    builder = RowSetBuilder("visit", "person", secret=SECRET)
    builder.add(np.arange(6), pa.array(list("aabbcc")))
    found = pickle.loads(pickle.dumps(builder)).finish()
    assert {role: (ids.kind, ids.name, len(ids.members)) for role, ids in found.sets.items()} == {
        "row": ("integers", "visit", 6),
        "unit": ("names", "person", 3),
    }
    again = RowSet.from_bytes(found.to_bytes(), str(found.facts()["digest"]))
    assert again.shared(found) == {"row": 6, "unit": 3}
    people = RowSetBuilder(unit_name="person", secret=SECRET)
    people.add(None, pa.array(["c", "d"]))
    assert people.repeated is None
    assert people.finish().shared(found) == {"unit": 1}
    for ids, units in ((np.arange(2), None), (None, None)):
        with pytest.raises(InvalidInput, match="every batch"):
            people.add(ids, units)


def test_nothing_secret_is_shown_and_nothing_mixed_is_taken() -> None:
    builder = built(["a"])
    assert SECRET.hex() not in repr(builder) and "\\x07" not in repr(builder)
    for mixed in ([np.arange(3), ["a"]], [["a"], np.arange(3)]):
        with pytest.raises(InvalidInput, match="one type"):
            built(*mixed)
    with pytest.raises(InvalidInput, match="one type"):
        builder.merge(built(np.arange(3)))
    with pytest.raises(InvalidInput, match="same columns"):
        builder.merge(RowSetBuilder("other"))
    with pytest.raises(InvalidInput, match="nulls"):
        built(pa.array([1, None]))
    with pytest.raises(InvalidInput, match="secret"):
        RowSetBuilder().add(["a"])
    with pytest.raises(InvalidInput, match="some rows"):
        RowSetBuilder().finish()


def test_damaged_bytes_are_refused() -> None:
    found = built(np.arange(1000)).finish()
    digest = str(found.facts()["digest"])
    data = bytearray(found.to_bytes())
    data[-1] ^= 1
    for harmed in (bytes(data), bytes(data[:-1]), b"", b"something else"):
        with pytest.raises(LedgerError, match="Expected"):
            RowSet.from_bytes(harmed, digest)
    older = b'labeldp rows 1\n{"count": 3, "key_id": "", "kind": "integers", "names": ""}\nb'
    for other in (b"something else", older):
        with pytest.raises(LedgerError, match="of this version"):
            RowSet.from_bytes(other, hashlib.sha256(other).hexdigest())
