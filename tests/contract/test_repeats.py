# SPDX-License-Identifier: Apache-2.0
"""Every repeated id is found, whatever its kind and wherever it comes again; none is invented; nothing is left on disk."""

import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from labeldp.privacy import repeats
from labeldp.privacy.blocks import TEXT, Blocks
from labeldp.privacy.noise import derive_key, id_blocks, new_secret
from labeldp.privacy.repeats import RepeatFinder

KEY = derive_key(new_secret(), purpose="ids", facts={})
RNG = np.random.default_rng(5)


def found(*batches: object) -> bool:
    finder = RepeatFinder()
    for batch in batches:
        finder.add_blocks(batch if isinstance(batch, Blocks) else id_blocks(batch, KEY))
    return finder.any()


@pytest.fixture
def small(monkeypatch):
    """Everything of a few thousand ids is done as with thousands of millions: written out, and searched in parts."""
    monkeypatch.setattr(repeats, "BUFFERED", 1000)
    monkeypatch.setattr(repeats, "SEARCHED", 7)
    monkeypatch.setattr(repeats, "_CHUNK", 300)


KINDS = {
    "in order": np.arange(-2500, 2500),
    "with gaps": np.arange(5000) * 50_000,
    "shuffled": RNG.permutation(5000),
    "scattered": RNG.integers(-(2**62), 2**62, 5000),
    "unsigned": RNG.integers(2**63, 2**64, 5000, dtype=np.uint64),
    "text": np.array([f"u{i}" for i in range(5000)]),
}


@pytest.mark.parametrize("ids", KINDS.values(), ids=KINDS.keys())
@pytest.mark.parametrize("where", [(0, 1), (10, 4999), (2499, 2500), (1700, 1703), None])
def test_one_repeat_among_many_is_found(small, ids, where):
    again = ids.copy()
    if where is not None:
        again[where[1]] = again[where[0]]
    assert found(again) is found(again[:2500], again[2500:]) is (where is not None)


@pytest.mark.parametrize("ids", KINDS.values(), ids=KINDS.keys())
def test_a_batch_that_comes_again_is_found(small, ids):
    assert found(ids[:4000], ids[3999:])
    assert not found(ids[:4000], ids[4000:])


@pytest.mark.parametrize("page", [-1, 0, 3])
def test_integers_in_a_row_are_flagged_on_every_page_they_reach(page):
    row = np.arange(65_000, 200_000) + page * 65_536
    for value in (row[0], row[600], row[70_000], row[-1]):
        assert found(row, np.array([value, value + 10**7])) and found(np.array([value, value + 10**7]), row)
    assert not found(row, np.array([row[0] - 1, row[-1] + 1, row[-1] + 3]))
    assert not found(np.array([row[0] - 1, row[-1] + 1, row[-1] + 3]), row)


def test_a_repeat_that_was_told_once_is_not_forgotten():
    finder = RepeatFinder()
    assert finder.add_blocks(id_blocks(np.r_[np.arange(200_000), 7], KEY))
    assert finder.add_blocks(id_blocks(np.arange(10**6, 10**6 + 5), KEY))
    assert finder.any()


def test_integers_that_turn_out_to_be_scattered_meet_those_that_were_not(small):
    scattered = RNG.integers(-(2**62), 2**62, 3000)
    assert found(np.arange(100), scattered, np.array([55]))
    assert found(np.array([55]), scattered, np.arange(100))
    assert not found(np.arange(100), scattered, np.array([100]))
    assert found(np.arange(-100, 100), np.array([2**63, 2**64 - 1], np.uint64), np.array([-100]))
    assert not found(np.arange(-100, 100), np.array([2**63, 2**64 - 1], np.uint64), np.array([-101]))  # -1 is not 2^64 - 1


def test_ids_of_two_kinds_are_all_searched_for_repeats():
    assert found(np.arange(5), ["a", "b"], np.array([3]))
    assert found(["a", "b"], np.arange(5), ["b"])
    assert not found(["3", "4"], np.arange(5), [b"3", b"4"], [("3",), ("4",)])


@pytest.mark.parametrize("differs", ["low", "high"])
def test_ids_that_agree_in_part_are_not_repeats(small, differs):
    low, high = RNG.integers(0, 2**64, 4000, dtype=np.uint64), RNG.integers(0, 2**32, 4000, dtype=np.uint32)
    other = (low + np.uint64(1), high) if differs == "low" else (low, high + np.uint32(1))
    assert not found(Blocks(TEXT, low, high), Blocks(TEXT, *other))
    assert found(Blocks(TEXT, low, high), Blocks(TEXT, low[:1], high[:1]))


@given(st.lists(st.lists(st.integers(-3, 3) | st.integers(-(2**63), 2**63 - 1) | st.integers(65530, 65540), max_size=8), max_size=6))
def test_integers_are_searched_as_a_set_would(batches):
    ids = [value for batch in batches for value in batch]
    assert found(*(np.array(batch, np.int64) for batch in batches)) is (len(set(ids)) < len(ids))


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs Linux")
@pytest.mark.parametrize("extra", [[], [0]])
def test_scattered_ids_wait_on_disk_and_leave_nothing_behind(tmp_path, monkeypatch, extra):
    monkeypatch.setattr(repeats, "BUFFERED", 10_000)
    ids = RNG.integers(-(2**62), 2**62, size=80_000)
    finder = RepeatFinder(tmp_path)
    for batch in [*np.split(ids, 4), ids[extra]]:
        finder.add_blocks(id_blocks(batch, KEY))
    assert on_disk(tmp_path) >= 12 * 60_000
    assert finder.any() is bool(extra)
    assert on_disk(tmp_path) == 0 and not list(tmp_path.iterdir())


def on_disk(folder: Path) -> int:
    """Bytes in the files of this folder that the process has open, also those without a name."""
    sizes = []
    for name in os.listdir("/proc/self/fd"):
        try:
            if os.readlink(f"/proc/self/fd/{name}").startswith(str(folder)):
                sizes.append(os.fstat(int(name)).st_size)
        except OSError:  # the listing itself
            continue
    return sum(sizes)
