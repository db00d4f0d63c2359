# SPDX-License-Identifier: Apache-2.0
"""Ids that must not meet, ids that must be refused, keys that must not show, and streams that must
not repeat."""

import copy
import itertools
import json
import pickle
import subprocess
import sys
import traceback

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from sklearn.base import BaseEstimator, clone

from labeldp.errors import InvalidInput
from labeldp.noise import _words as noise

SECRET = noise.SeededNoise(1).secret()
IDS_KEY = noise.derive_key(SECRET, purpose="ids", facts={})
DRAW_KEY = noise.derive_key(SECRET, purpose="draw", facts=dict.fromkeys(noise.DRAW_FACTS))


def blocks(ids: object) -> list[bytes]:
    made = noise.id_blocks(ids, IDS_KEY)
    assert len(made) == len(made.templates())
    return [row.tobytes() for row in made.templates()]


# Ids
# --------------------------------------------------------------------------------------------------

DIFFERENT = [
    [1, 0, -1, 2**63 - 1, -(2**63)],
    [2**63, 2**64 - 1, 2**63 + 1],
    [
        "1",
        "",
        "a",
        "a\0",
        "a\0\0",
        "\0a",
        "A",
        "\u00e9",
        "e\u0301",
        "exactly 16 bytes",
        "exactly 16 bytes\x80",
        "x" * 1000,
        "x" * 999 + "y",
    ],
    [b"1", b"", b"a", b"a\0", b"\x80", b"exactly 16 bytes"],
    [("a", "bc"), ("ab", "c"), ("abc", ""), ("", "abc")],
    [("a", "b", "c"), ("a", "bc", ""), ("ab", "", "c")],
    [("a", 1)],
    [("a", "1")],
    [("a", b"1")],
    [("abc",)],
    [(1, 2)],
    [(2, 1)],
    [("1",)],
]


def test_different_ids_never_share_a_block() -> None:
    made = list(itertools.chain.from_iterable(blocks(ids) for ids in DIFFERENT))
    made += [row.tobytes() for row in noise.row_blocks(3).templates()]
    assert len(set(made)) == len(made) == 3 + sum(len(ids) for ids in DIFFERENT)


@given(
    hnp.arrays(
        hnp.integer_dtypes(endianness="<") | hnp.unsigned_integer_dtypes(endianness="<"),
        st.integers(0, 20),
    )
)
def test_a_number_is_one_id_in_every_integer_type(ids: np.ndarray) -> None:
    assert blocks(ids) == blocks(ids.tolist())


@pytest.mark.parametrize(
    "ids",
    [
        [1.0],
        np.array([1.0, 2.0]),
        [float("nan")],
        [None],
        ["a", None],
        pa.array([1, None]),
        np.array([None, "a"], object),
        [True],
        [1, True],
        np.array([True]),
        [1, "a"],
        [2**64],
        [-(2**63) - 1],
        [-1, 2**63],
        [[1, 2], [3]],
        [("a", "b"), ("c",)],
        [()],
        [("a", 1.0)],
        [("a", None)],
        ["\ud800"],
        np.array(["2026-01-01"], "M8[D]"),
        [np.array(["a"]), np.array([1, 2])],
        5,
        None,
    ],
    ids=lambda value: repr(value).split(" at 0x")[0],
)
def test_what_is_no_id_is_refused_without_repeating_it(ids: object) -> None:
    with pytest.raises(InvalidInput, match="Expected"):
        noise.id_blocks(ids, IDS_KEY)


def test_message_of_a_mixed_column_shows_no_value() -> None:
    ids: list[object] = ["SENT" + "INEL", 1]
    with pytest.raises(InvalidInput) as caught:
        noise.id_blocks(ids, IDS_KEY)
    assert "SENTINEL" not in "".join(traceback.format_exception(caught.value))


def test_repeats_are_found() -> None:
    assert noise.id_blocks([5, 3, 4, 3, 5], IDS_KEY).first_repeat() == 3
    assert noise.id_blocks(["b", "a", "b"], IDS_KEY).first_repeat() == 2
    assert noise.id_blocks(np.array([2**63 - 1, -1]), IDS_KEY).first_repeat() is None
    assert noise.row_blocks(5).first_repeat() is None


@given(
    st.sampled_from(
        [
            noise.row_blocks(70, 2**55 - 30),
            noise.id_blocks(list(range(-35, 35)), IDS_KEY),
            noise.id_blocks(list("abcdefg" * 10), IDS_KEY),
        ]
    ),
    st.data(),
)
def test_slices_of_blocks_are_blocks_of_slices(made: noise.Blocks, data: st.DataObject) -> None:
    index = data.draw(
        st.slices(70) | hnp.arrays(np.intp, 5, elements=st.integers(0, 69)) | hnp.arrays(bool, 70)
    )
    np.testing.assert_array_equal(made[index].templates(), made.templates()[index])
    assert len(made[index]) == len(made.templates()[index])


@pytest.mark.parametrize(("n", "start"), [(-1, 0), (1, -1), (2, 2**63 - 1)])
def test_row_numbers_out_of_range(n: int, start: int) -> None:
    with pytest.raises(InvalidInput, match="2\\^63"):
        noise.row_blocks(n, start)


# Words
# --------------------------------------------------------------------------------------------------


@given(
    st.lists(
        st.tuples(
            st.integers(0, 600) | st.integers(0, 2**25 - 1),
            st.none() | hnp.arrays(np.intp, 3, elements=st.integers(0, 9)),
        ),
        max_size=20,
    )
)
def test_a_word_does_not_depend_on_what_was_asked_before(queries) -> None:
    made, part = noise.RowWords(DRAW_KEY, noise.row_blocks(10)), np.array([7, 2, 2])
    chosen = made.select(part)
    assert len(chosen) == 3
    for counter, rows in queries:
        expected = noise.RowWords(DRAW_KEY, noise.row_blocks(10)).take(counter)
        np.testing.assert_array_equal(
            made.take(counter, rows), expected if rows is None else expected[rows]
        )
        np.testing.assert_array_equal(chosen.take(counter), expected[part])


def test_writing_on_words_changes_no_stream() -> None:
    words, fresh = (
        noise.RowWords(DRAW_KEY, noise.row_blocks(5)),
        noise.RowWords(DRAW_KEY, noise.row_blocks(5)),
    )
    for counter, rows in (
        (0, None),
        (0, np.array([1])),
        (1, None),
        (2, np.array([3])),
        (2, np.array([3])),
    ):
        words.take(counter, rows)[:] = 0
        np.testing.assert_array_equal(words.take(counter, rows), fresh.take(counter, rows))


@pytest.mark.parametrize("counter", [-1, 2**25, 2**70])
def test_counter_out_of_range(counter: int) -> None:
    with pytest.raises(InvalidInput, match="counter"):
        noise.RowWords(DRAW_KEY, noise.row_blocks(1)).take(counter)


# Keys
# --------------------------------------------------------------------------------------------------


def shown(material: bytes) -> list[str]:
    return [material.hex(), repr(material), str(list(material)), material.decode("latin-1")]


def test_key_bytes_never_show() -> None:
    key = noise.derive_key(SECRET, purpose="order", facts={})
    material = key.material("RowWords")
    texts = [
        repr(key),
        str(key),
        f"{key}",
        json.dumps({"key": repr(key)}),
        repr(noise.RowWords(key, noise.row_blocks(1))),
        repr([key]),
    ]
    for broken in (
        lambda: noise.Pin(key),
        lambda: noise.id_blocks([1], key),
        lambda: pickle.dumps(key),
        lambda: json.dumps(key),
        lambda: key + 1,
    ):
        with pytest.raises((InvalidInput, TypeError)) as caught:
            broken()
        texts += [str(caught.value), *traceback.format_exception(caught.value)]
    for text in texts:
        assert not any(secret in text for secret in shown(material) + shown(SECRET))


@pytest.mark.parametrize("how", [pickle.dumps, copy.copy, copy.deepcopy])
def test_keys_are_not_copied(how) -> None:
    with pytest.raises(TypeError, match="never pickled"):
        how(DRAW_KEY)


def test_a_pin_that_was_pickled_adds_no_rows() -> None:
    """Workers send sums back without the key: what they sent can be merged, and no row can be added
    to it under another key."""
    blocks, codes = noise.row_blocks(3), np.arange(3, dtype=np.int32)
    pin, whole = (noise.Pin(noise.derive_key(SECRET, purpose="pin", facts={})) for _ in range(2))
    pin.update(blocks[:2], codes[:2])
    sent = pickle.loads(pickle.dumps(pin))
    with pytest.raises(InvalidInput, match="one that was pickled"):
        sent.update(blocks[2:], codes[2:])
    rest = noise.Pin(noise.derive_key(SECRET, purpose="pin", facts={}))
    rest.update(noise.row_blocks(1, 2), codes[2:])
    rest.merge(sent)
    whole.update(blocks, codes)
    assert rest.hexdigest() == whole.hexdigest() and sent.count == 2


def test_a_key_serves_its_purpose_only() -> None:
    rows = noise.row_blocks(2)
    keys = {
        purpose: noise.derive_key(SECRET, purpose=purpose, facts=dict.fromkeys(noise.DRAW_FACTS))
        for purpose in ("draw", "ids", "partition", "pin")
    }
    uses = {
        "draw": lambda key: noise.RowWords(key, rows),
        "ids": lambda key: noise.id_blocks(["a"], key),
        "partition": lambda key: noise.partition(key, rows, [1.0]),
        "pin": noise.Pin,
    }
    for (purpose, key), (use, call) in itertools.product(keys.items(), uses.items()):
        if purpose == use:
            call(key)
        else:
            with pytest.raises(InvalidInput, match=use):
                call(key)


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        ({"x": float("nan")}, "Expected"),
        ({"x": float("inf")}, "Expected"),
        ({"é": 1}, "Expected"),
        ({1: 1}, "Expected"),
        ({"float64": "00"}, "Expected"),
        ({"x": {"float64": 1}}, "Expected"),
        ({"x": object()}, "Expected"),
        ({"x": b"1"}, "Expected"),
        ({"x": "\ud800"}, "Expected"),
        ({"format": 2}, "other than"),
        ({"purpose": "ids"}, "other than"),
    ],
    ids=lambda value: repr(value).split(" at 0x")[0],
)
def test_facts_without_canonical_form_or_under_the_name_of_format_or_purpose_are_refused(
    facts: dict[str, object], message: str
) -> None:
    with pytest.raises(InvalidInput, match=message):
        noise.derive_key(SECRET, purpose="order", facts=facts)


@pytest.mark.parametrize(
    "secret",
    [b"", b"short", "0" * 32, bytearray(32), None],
    ids=lambda value: repr(value).split(" at 0x")[0],
)
def test_secret_of_another_size_is_refused_and_not_shown(secret: object) -> None:
    with pytest.raises(InvalidInput, match="32 bytes") as caught:
        noise.derive_key(secret, purpose="order", facts={})
    assert "short" not in str(caught.value)


FACT_PAIRS = [
    (1, 1.0),
    (1, True),
    (0, None),
    ("1", 1),
    (1.0, "1.0"),
    ([], {}),
    ([1, 2], [12]),
    (0.0, -0.0),
    ("", None),
    (2**70, 2**70 + 1),
]


@pytest.mark.parametrize("pair", FACT_PAIRS, ids=lambda value: repr(value).split(" at 0x")[0])
def test_facts_of_other_types_are_other_facts(pair: tuple[object, object]) -> None:
    one, two = (
        noise.derive_key(SECRET, purpose="order", facts={"x": value}).material("RowWords")
        for value in pair
    )
    assert one != two


# Seeds and processes
# --------------------------------------------------------------------------------------------------

FRESH = """
from labeldp.noise import _words as noise
secret, run_id = noise.new_secret(), noise.new_run_id()
key = noise.derive_key(secret, purpose="order", facts={"run_id": run_id})
print(secret.hex(), run_id, *noise.RowWords(key, noise.row_blocks(50)).take(0))
"""


def test_processes_have_secrets_of_their_own() -> None:
    seen = [
        subprocess.run(
            [sys.executable, "-c", FRESH], check=True, capture_output=True, text=True
        ).stdout.split()
        for _ in range(2)
    ]
    assert not set(seen[0]) & set(seen[1])
    assert len(bytes.fromhex(seen[0][0])) == 32
    assert len(seen[0][1]) == 32


def test_global_seeds_do_not_touch_noise() -> None:
    drawn = []
    for _ in range(2):
        np.random.seed(0)
        drawn.append((noise.new_secret(), noise.new_run_id()))
    assert drawn[0][0] != drawn[1][0]
    assert drawn[0][1] != drawn[1][1]


class Estimator(BaseEstimator):
    def __init__(self, noise=None):
        self.noise = noise


def test_seeded_noise_is_a_value(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.urandom", lambda n: pytest.fail("entropy was mixed with a seed"))
    seeded = noise.SeededNoise(3)
    assert (
        clone(Estimator(seeded)).noise
        == seeded
        == eval(repr(seeded), {"SeededNoise": noise.SeededNoise})
        == pickle.loads(pickle.dumps(seeded))
    )
    assert seeded.secret() == noise.SeededNoise(3).secret() != noise.SeededNoise(4).secret()
    assert (
        seeded.run_id({"a": 1}) == noise.SeededNoise(3).run_id({"a": 1}) != seeded.run_id({"a": 2})
    )
    assert seeded.run_id({"a": 1}, 1) != seeded.run_id({"a": 1})
    with pytest.raises(AttributeError):
        seeded.seed = 4


@pytest.mark.parametrize("seed", [-1, 1.5, None, "0", True])
def test_seed_is_a_whole_number(seed: object) -> None:
    with pytest.raises(InvalidInput, match="seed"):
        noise.SeededNoise(seed)


# Partition, pin, public hash
# --------------------------------------------------------------------------------------------------

PARTITION = noise.derive_key(SECRET, purpose="partition", facts={})


def test_a_row_keeps_its_part_in_any_order() -> None:
    ids = np.random.default_rng(0).permutation(100_000)
    parts = noise.partition(PARTITION, noise.id_blocks(ids, IDS_KEY), [0.6, 0.4])
    again = noise.partition(PARTITION, noise.id_blocks(np.sort(ids), IDS_KEY), [0.6, 0.4])
    np.testing.assert_array_equal(parts[np.argsort(ids)], again)


def pinned(ids: np.ndarray, codes: np.ndarray, facts: dict[str, object] | None = None) -> str:
    pin = noise.Pin(noise.derive_key(SECRET, purpose="pin", facts=facts or {}))
    half = len(ids) // 2
    pin.update(noise.id_blocks(ids[:half], IDS_KEY), codes[:half])
    pin.update(noise.id_blocks(ids[half:], IDS_KEY), codes[half:])
    return pin.hexdigest()


def test_pin_sees_any_change_and_no_reordering() -> None:
    rng = np.random.default_rng(0)
    ids, codes = rng.permutation(70_000), rng.integers(3, size=70_000)
    digest, order = pinned(ids, codes), rng.permutation(70_000)
    assert pinned(ids[order], codes[order]) == digest
    changed = codes.copy()
    changed[[5, 9]] = changed[[9, 5]] if changed[5] != changed[9] else (changed[5] + 1) % 3
    others = [
        pinned(ids, changed),
        pinned(ids[1:], codes[1:]),
        pinned(ids, codes, {"run_id": "x"}),
        pinned(ids + 1, codes),
    ]
    assert len({digest, *others}) == 5


def test_pin_wants_a_code_for_each_row() -> None:
    with pytest.raises(InvalidInput, match="2 rows"):
        noise.Pin(noise.derive_key(SECRET, purpose="pin", facts={})).update(
            noise.row_blocks(2), np.zeros(3, int)
        )


@pytest.mark.parametrize(
    "made",
    [
        noise.row_blocks(70_000, 5),
        noise.row_blocks(40_000, 2**55 - 20_000),
        noise.id_blocks(np.r_[np.arange(40_000), -np.arange(1, 40_000)], IDS_KEY),
        noise.id_blocks(np.arange(40_000, dtype=np.uint64) + np.uint64(2**63), IDS_KEY),
        noise.id_blocks([f"row {i}" for i in range(33_000)], IDS_KEY),
        noise.row_blocks(0),
    ],
    ids=lambda value: repr(value).split(" at 0x")[0],
)
def test_words_in_chunks_are_the_words(made: noise.Blocks) -> None:
    """Space is used again from chunk to chunk; nothing of one chunk may show in the next, nor one
    counter in another."""
    whole, seen = noise.RowWords(DRAW_KEY, made), np.zeros(len(made), bool)
    for rows, words in noise.word_chunks(DRAW_KEY, made):
        part = np.arange(0, len(words), 7)
        first, some, later = words.take(0), words.take(3, part), words.take(2)
        np.testing.assert_array_equal(first, whole.take(0)[rows])
        np.testing.assert_array_equal(some, whole.take(3)[rows][part])
        np.testing.assert_array_equal(later, whole.take(2)[rows])
        np.testing.assert_array_equal(words.take(1), whole.take(1)[rows])
        seen[rows] = True
    assert seen.all()
    np.testing.assert_array_equal(noise.one_word(DRAW_KEY, made), whole.take(0))
