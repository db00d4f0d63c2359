# SPDX-License-Identifier: Apache-2.0
"""Public hashes: equal for equal public facts in any batch, different for anything else."""

import numpy as np
import pyarrow as pa
import pytest
from scipy import sparse

from labeldp._hash import SetDigest, public_hash, table_digest
from labeldp._rounding import exact, float_down, float_up, sum_up


def test_an_id_hashes_alike_whatever_stands_beside_it():
    long = np.array(["a", "bb", "a much longer id than the others"])
    np.testing.assert_array_equal(public_hash("s", long)[:2], public_hash("s", long[:2]))
    np.testing.assert_array_equal(public_hash("s", long.astype(object)), public_hash("s", long))
    np.testing.assert_array_equal(public_hash("s", np.arange(5, dtype=np.int32)), public_hash("s", np.arange(5)))


def test_different_ids_and_salts_hash_apart():
    ids = np.array(["", "a", "a\x00b", "ab", "ba", "aaaaaaaa", "aaaaaaaab", "é", "e"])
    values = np.concatenate([public_hash(salt, ids) for salt in ("s", "t")])
    assert len(np.unique(values)) == len(values)
    pairs = np.array([["a", "bc"], ["ab", "c"], ["abc", ""], ["", "abc"]])
    assert len(np.unique(public_hash("s", pairs))) == 4
    assert len(np.unique(public_hash("s", np.arange(-500, 500)))) == 1000


def test_a_set_digest_of_pairs_sees_who_belongs_to_whom():
    ids, units, found = np.arange(6), np.array(["a", "a", "b", "b", "c", "c"]), []
    for order, whose in ((np.arange(6), units), (np.arange(6)[::-1], units), (np.arange(6), np.roll(units, 1))):
        digest = SetDigest()
        digest.update(ids[order], whose[order])
        found.append(digest.hexdigest())
    assert found[0] == found[1] != found[2]


def test_a_set_digest_ignores_order_and_batches():
    ids = np.random.default_rng(0).permutation(1000)
    digests = set()
    for batches in (1, 7):
        for order in (ids, ids[::-1]):
            found = SetDigest()
            for batch in np.array_split(order, batches):
                found.update(batch)
            digests.add(found.hexdigest())
    assert len(digests) == 1
    other = SetDigest()
    other.update(ids[1:])
    assert other.hexdigest() not in digests


@pytest.mark.parametrize(
    ("table", "other"),
    [
        (np.eye(3), np.eye(3)[::-1]),
        (np.eye(3), np.eye(3, dtype=np.float32)),
        (np.array([["a", 1]], object), np.array([["a", 2]], object)),
        (sparse.csr_array(np.eye(3)), sparse.csr_array(np.eye(3)[::-1])),
        (pa.table({"a": [1, 2]}), pa.table({"a": [2, 1]})),
        (pa.table({"a": [1, 2]}), pa.table({"b": [1, 2]})),
        (pa.table({"a": ["x", None]}), pa.table({"a": ["x", ""]})),
    ],
)
def test_features_have_a_digest_that_sees_every_value(table, other):
    assert table_digest(table) == table_digest(table.copy() if hasattr(table, "copy") else pa.table(table.to_pydict()))
    assert table_digest(table) != table_digest(other)


def test_slices_and_chunks_do_not_matter_to_the_digest():
    whole = pa.table({"a": list(range(10)), "b": list("abcdefghij")})
    again = pa.concat_tables([whole.slice(0, 3), whole.slice(3)])
    assert table_digest(again) == table_digest(whole)
    assert table_digest(whole.slice(2, 4)) == table_digest(pa.table({"a": [2, 3, 4, 5], "b": list("cdef")}))


def test_budgets_add_as_the_decimals_they_are_written_as():
    assert sum_up([0.1, 0.1, 0.1]) == 0.3
    assert sum_up([]) == 0.0
    assert exact(sum_up([1e-6, 1.0])) >= exact(1e-6) + exact(1.0)


@pytest.mark.parametrize("value", [0.1, 1 / 3, 1e-300, 123456.789])
def test_rounding_is_directed(value):
    third = exact(value) / 3
    assert float_down(third) * 3 <= value * (1 + 1e-15)
    assert exact(float_up(third)) >= third
