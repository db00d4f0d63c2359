# SPDX-License-Identifier: Apache-2.0
"""Public hashes: equal for equal public facts in any batch, different for anything else."""

import math
import pickle

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from labeldp import InvalidInput
from labeldp._hash import SetDigest, public_hash
from labeldp._validate import exact, float_down, float_up, sum_up


def test_different_ids_and_salts_hash_apart():
    ids = np.array(["", "a", "a\x00b", "ab", "ba", "aaaaaaaa", "aaaaaaaab", "é", "e"])
    values = np.concatenate([public_hash(salt, ids) for salt in ("s", "t")])
    assert len(np.unique(values)) == len(values)
    pairs = np.array([["a", "bc"], ["ab", "c"], ["abc", ""], ["", "abc"]])
    assert len(np.unique(public_hash("s", pairs))) == 4
    assert len(np.unique(public_hash("s", np.arange(-500, 500)))) == 1000


TEXTS = ["", "a", "a much longer id than the others", "é漢😀", "12345678", "a" + 15 * "\0" + "b"]


def digest_of(*ids: object) -> str:
    found = SetDigest()
    found.update(*ids)
    return found.hexdigest()


def test_hashes_are_what_they_were():
    """Kept releases are found again by these: they break ties and name sets."""
    words = [
        0xE4C1EA7F6DBE27E5,
        0xC0EA6C7DB285ABC2,
        0x60A7F2C3B7D5EB1F,
        0x716C49BF0CF391C9,
        0xE981E940E712DB7D,
        0xC03647A1BB6C3752,
    ]
    assert public_hash("s", np.array(TEXTS)).tolist() == words
    assert public_hash("s", np.array([0, -1, 2**40])).tolist() == [
        0xE4C1EA7F6DBE27E5,
        0x69BAE1F76130A35E,
        0x4EC50F9675A59233,
    ]
    assert public_hash("s", np.array([["a", "bc"], ["ab", "c"]])).tolist() == [
        0x4FE28CF9C74742BA,
        0xB68DA16DB895ED3A,
    ]
    found = SetDigest()
    found.update(np.array(TEXTS))
    assert found.hexdigest() == "000000000000000676d06c58b1304fbbb656dfa76323866e"
    found.update(np.arange(3), np.array(["x", "y", "z"]))
    assert found.hexdigest() == "00000000000000094bd68157c327541c9aff01e33433ad38"


def arrow_forms(values: list[str]) -> list[object]:
    whole = pa.array(values, pa.string())
    cut = len(values) // 3
    return [
        whole,
        whole.cast(pa.large_string()),
        whole.cast(pa.string_view()),
        whole.cast(pa.binary()),
        whole.dictionary_encode(),
        pa.chunked_array([whole[:cut], whole[cut:]], pa.string()),
        pa.chunked_array(
            [whole[:cut].dictionary_encode(), whole[cut:].dictionary_encode()],
            pa.dictionary(pa.int32(), pa.string()),
        ),
        pa.concat_arrays([pa.array(["before"]), whole, pa.array(["behind"])])[1:-1],
    ]


texts = st.lists(
    st.text(st.characters(exclude_categories=["Cs"]), max_size=100).map(
        lambda text: text.rstrip("\0")
    ),
    min_size=1,
    max_size=30,
)


@given(texts)
def test_arrow_text_hashes_as_the_same_text_in_numpy(values):
    expected = public_hash("s", np.array(values))
    for form in [*arrow_forms(values), np.array(values, object), pa.table({"ids": values})]:
        np.testing.assert_array_equal(public_hash("s", form), expected)


def test_many_rows_hash_as_they_do_alone():
    rng = np.random.default_rng(3)
    for lengths in (np.full(70_000, 36), rng.integers(0, 150, 40_000)):
        ends = np.cumsum(lengths)
        everything = "".join(map(chr, rng.integers(97, 123, ends[-1])))
        values = [everything[end - length : end] for end, length in zip(ends, lengths, strict=True)]
        some = rng.permutation(len(values))[:100]
        for column in (pa.array(values), np.array(values)):
            found = public_hash("s", np.arange(len(values)), column)
            for i in some:
                assert found[i] == public_hash("s", np.array([i]), np.array([values[i]]))[0]


def test_a_record_of_bytes_belongs_to_its_row():
    ids, side = np.arange(6), np.random.default_rng(1).integers(0, 256, (6, 11), dtype=np.uint8)
    changed = side.copy()
    changed[4, 10] ^= 1
    turned = np.roll(side, 1, axis=0)
    wider = np.hstack([side, np.zeros((6, 1), np.uint8)])  # NULs count
    assert digest_of(ids, side) == digest_of(ids[::-1], side[::-1])
    assert (
        len(
            {
                digest_of(ids, other)
                for other in (side, changed, turned, wider, side[:, :8], side[:, :0])
            }
        )
        == 6
    )


def test_parts_of_a_set_add_up_to_the_set():
    ids = pa.array([f"row {i}" for i in range(1000)])
    parts = []
    for part in (ids[:100], ids[100:101], ids[101:101], ids[101:]):
        found = SetDigest()
        found.update(part)
        parts += [pickle.loads(pickle.dumps(found)), SetDigest.from_hexdigest(found.hexdigest())]
    whole, again = SetDigest(), SetDigest()
    for part in parts[::2]:
        whole.merge(part)
    for part in parts[:0:-2]:
        again.merge(part)
    assert whole.hexdigest() == again.hexdigest() == digest_of(ids)
    assert (whole.count, whole.sums.tolist()) == (
        1000,
        SetDigest.words(ids).sum(axis=0, dtype=np.uint64).tolist(),
    )


@pytest.mark.parametrize(
    "ids",
    [(pa.array(["a", None]),), (pa.array([1, None]),), (np.arange(2), np.arange(3)), ()],
    ids=["text", "integers", "lengths", "nothing"],
)
def test_rows_without_a_value_are_not_hashed(ids):
    with pytest.raises(InvalidInput, match="Expected"):
        public_hash("s", *ids)


def test_budgets_add_as_the_decimals_they_are_written_as():
    assert sum_up([0.1, 0.1, 0.1]) == 0.3
    assert sum_up([]) == 0.0
    assert sum_up([1.0, 1e-300]) == math.nextafter(1.0, 2)
    assert sum_up([1.7e308, 1.7e308]) == math.inf
    assert exact(sum_up([1e-6, 1.0])) >= exact(1e-6) + exact(1.0)


@given(st.lists(st.floats(min_value=1e-6, max_value=700), min_size=1, max_size=20))
def test_a_sum_is_the_least_float_that_is_not_below(budgets):
    total, truth = sum_up(budgets), sum(exact(budget) for budget in budgets)
    assert exact(math.nextafter(total, 0)) < truth <= exact(total)


@pytest.mark.parametrize("value", [0.1, 1 / 3, 1e-300, 123456.789])
def test_rounding_is_directed(value):
    third = exact(value) / 3
    assert float_down(third) * 3 <= value * (1 + 1e-15)
    assert exact(float_up(third)) >= third


def test_a_set_of_numbers_is_named_by_the_numbers_alone() -> None:
    """2^64 - 1 has the bits of -1; the hash of ties, which released labels depend on, has always
    taken them for one."""
    small, large, negative = (
        np.array([3, 2**62]),
        np.array([2**64 - 1, 2**63], np.uint64),
        np.array([-1, -(2**63)]),
    )

    def name(*columns: object) -> str:
        made = SetDigest()
        made.update(*columns)
        assert made.sums.tolist() == SetDigest.words(*columns).sum(axis=0, dtype=np.uint64).tolist()
        return made.hexdigest()

    assert name(small) == name(small.astype(np.uint64)) == name(small[::-1])
    assert name(large) != name(negative)
    assert name(small, large) != name(small, negative)
    mixed = SetDigest()
    mixed.update(large)
    mixed.update(small)
    assert mixed.hexdigest() == name(np.concatenate([small.astype(np.uint64), large]))
    assert public_hash("salt", large).tolist() == public_hash("salt", negative).tolist()
