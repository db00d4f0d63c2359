# SPDX-License-Identifier: Apache-2.0
"""Exact arithmetic for laws, the same on every machine: bounds, words, sets of classes, and priors
as whole numbers.

* Bounds of e^x and ln x are certified, so that no guarantee rests on a rounded float. Python's
  `decimal` rounds exp and ln correctly (to half a unit in the last place), so one step down or up
  is a strict bound.
* A uniform whole number below k is the high half of a 64-bit word x k. If the low half is below
  2^64 mod k, the word is rejected and the next one taken, so that every number has the same number
  of words (Lemire 2019, "Fast random integer generation in an interval"). An ordered sample is a
  partial Fisher-Yates shuffle: step i swaps class position i with position i + j, j uniform below K
  - i. Attempt t of step i uses word counter first + i + t x steps: nothing depends on a label.
* Sets of classes are packed bits: class c is bit c % 8 of byte c // 8; bits past K are zero. No
  memory is indexed by a class that could be a private label, since other processes can measure
  which lines of the cache are used: `sets_contain` and `single_sets` compare with every byte of the
  row.
* A prior's row is scaled by (2^32 - 1) / its maximum and rounded to whole numbers, in IEEE double.
  The whole numbers stay in float64, where they and their sums (K x 2^32 < 2^53 up to two million
  classes) are exact in any order of addition.
"""

import decimal
import math
from collections.abc import Callable, Iterator
from decimal import Decimal
from fractions import Fraction
from functools import lru_cache
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from labeldp.errors import InvalidInput

Array = NDArray[Any]  # a side array's type is the law's to say: see `Law.layout`
Floats = NDArray[np.float64]
U64 = NDArray[np.uint64]
Bits = NDArray[np.uint8]
"""Packed sets: (n, ceil(K/8)), or (ceil(K/8),) for one."""

# Bounds
# --------------------------------------------------------------------------------------------------

# one uniform word has this many values; every probability of a sampler is a whole number of them
WORD = 1 << 64
# e^700 > 2^1000: no 64-bit sampler can tell a larger epsilon from this one
LARGEST_EXPONENT = 700.0
_DIGITS = 60  # decimals of certified bounds: far more than 64-bit words can use


def _context(rounding: str) -> decimal.Context:
    return decimal.Context(
        prec=_DIGITS, rounding=rounding, Emax=decimal.MAX_EMAX, Emin=decimal.MIN_EMIN, traps=[]
    )


@lru_cache(maxsize=1024)
def exp_floor(epsilon: float) -> Fraction:
    """Compute a lower bound of e^epsilon, right to one part in 10^58 and at least 1. An epsilon
    above 700 counts as 700.

    The smaller of the float's binary and decimal value is taken: ledgers add the decimal, so a
    claim of 0.1 must hold as one tenth.
    """
    # `exp` of a float may round up, and then a law would exceed its claim. Here the correctly
    # rounded value is lowered by one unit in the last of 60 digits, which is a strict bound.
    context = _context(decimal.ROUND_HALF_EVEN)
    claimed = min(float(epsilon), LARGEST_EXPONENT)
    below = context.next_minus(context.exp(min(Decimal(claimed), Decimal(repr(claimed)))))
    return max(Fraction(1), Fraction(below))


def log_ceil(x: Fraction) -> float:
    """Compute the smallest double that is certainly >= ln x, for x > 0."""
    if x == 1:
        return 0.0
    up = _context(decimal.ROUND_CEILING)
    bound = up.next_plus(
        _context(decimal.ROUND_HALF_EVEN).ln(
            up.divide(Decimal(x.numerator), Decimal(x.denominator))
        )
    )
    # float() rounds to nearest. If that was down, the next double is the bound.
    nearest = float(bound)
    return nearest if Decimal(nearest) >= bound else math.nextafter(nearest, math.inf)


def log_ratio(numerator: int, denominator: int) -> float:
    """Compute ln(numerator / denominator) to double precision, also for close numbers."""
    # A small epsilon means close numbers, and the difference of their logarithms would lose most
    # digits.
    if 2 * numerator > denominator and numerator < 2 * denominator:
        return math.log1p((numerator - denominator) / denominator)
    return math.log(numerator) - math.log(denominator)


def log_quotient(
    p: float | NDArray[np.float64], q: NDArray[np.float64], gap: NDArray[np.float64] | None = None
) -> NDArray[np.float64]:
    """Compute ln(p / q) of positive numbers to double precision, also for close ones; `gap` is p -
    q, if known more precisely."""
    off = (p - q if gap is None else gap) / q
    return np.where(np.abs(off) < 0.5, np.log1p(np.clip(off, -0.5, None)), np.log(p) - np.log(q))


def whole_below(x: Fraction) -> int:
    """Round a fraction down."""
    return x.numerator // x.denominator


def whole_above(x: Fraction) -> int:
    """Round a fraction up."""
    return -(-x.numerator // x.denominator)


# Words
# --------------------------------------------------------------------------------------------------


class Words(Protocol):
    """Uniform uint64 words for a chunk of rows: each row has a stream of words, numbered by a
    counter.

    The same counter of the same row always gives the same word. Words of different counters or rows
    are independent.
    """

    def __len__(self) -> int:
        """Return the number of rows of the chunk."""

    def take(self, counter: int, rows: NDArray[np.intp] | None = None) -> NDArray[np.uint64]:
        """Return word number `counter` of every row, or of the rows at these positions:
        (len(rows),) uint64."""

    def select(self, rows: NDArray[np.intp]) -> "Words":
        """Return the streams of the rows at these positions, as a chunk of its own."""


_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)
_MIX = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)  # of SplitMix64
_SHUFFLE_BYTES = 1 << 22  # of positions that are shuffled at a time, which should fit in the cache
# rows shuffled at a time, at least: with many classes, fewer rows would pay the fixed cost of each
# step
_FEWEST = 64


def multiply(words: U64, factor: U64 | np.uint64) -> tuple[U64, U64]:
    """Multiply words by a factor < 2^32, exactly: (high, low) 64-bit halves."""
    # NumPy has no 128-bit product, so the halves of a word are multiplied one by one
    low = (words & _LOW) * factor
    high = (words >> _HALF) * factor + (low >> _HALF)
    return high >> _HALF, words * factor


def equal_cell(words: U64, cells: U64 | np.uint64) -> NDArray[np.int64]:
    """Find the j of k = `cells` equal parts of [0, 2^64) that holds a word: floor(j 2^64 / k) <=
    word < floor((j + 1) 2^64 / k)."""
    high, low = multiply(words, cells)
    carry = low > ~(cells - np.uint64(1))  # floor(((word + 1) k - 1) / 2^64)
    return (high + carry).astype(np.int64)


def unit(words: U64) -> NDArray[np.float64]:
    """Read words as numbers in [0, 1), exactly: multiples of 2^-53."""
    return np.asarray((words >> np.uint64(11)).astype(np.float64) * 2.0**-53)


def shuffle_blocks(n_rows: int, n_classes: int) -> Iterator[NDArray[np.intp]]:
    """Yield the positions of rows that are shuffled together, which bounds memory: 2 or 4 bytes x K
    x rows."""
    step = max(_FEWEST, _SHUFFLE_BYTES // (n_classes * position_type(n_classes).itemsize))
    for start in range(0, n_rows, step):
        yield np.arange(start, min(start + step, n_rows))


def position_type(n_classes: int) -> np.dtype[np.unsignedinteger]:
    """Choose the smallest type that holds a class index."""
    return np.dtype(np.uint16 if n_classes <= 1 << 16 else np.uint32)


def below(words: Words, bound: int, counter: int, stride: int) -> NDArray[np.intp]:
    """Draw a uniform whole number below `bound` for every row, from word numbers counter, counter +
    stride, ..."""
    factor, reject = np.uint64(bound), np.uint64(WORD % bound)
    # Which rows take a further word depends on words alone, so the time of a call reveals no label.
    high, low = multiply(words.take(counter), factor)
    rows = np.flatnonzero(low < reject)
    while len(rows):
        counter += stride
        again, low = multiply(words.take(counter, rows), factor)
        high[rows] = again
        rows = rows[low < reject]
    return high.astype(np.intp)


def ordered_sample(
    words: Words, n_classes: int, steps: int, first: int
) -> NDArray[np.unsignedinteger]:
    """Draw the first `steps` entries of a uniform shuffle of the classes, for every row: (steps,
    n)."""
    n = len(words)
    order = np.empty((n_classes, n), dtype=position_type(n_classes))
    order[:] = np.arange(n_classes, dtype=order.dtype)[:, None]
    flat, columns = order.reshape(-1), np.arange(n)
    for i in range(steps):
        # At the last position only one class is left, so it takes no word.
        spot = (
            below(words, n_classes - i, first + i, steps)
            if i < n_classes - 1
            else np.zeros(n, dtype=np.intp)
        )
        spot += i
        spot *= n
        spot += columns
        drawn = flat[spot]
        flat[spot] = order[i]
        order[i] = drawn
    return order[:steps]


def hashed(rows: NDArray[np.int64], counter: int, seed: int) -> U64:
    """Hash (row, counter, seed) by SplitMix64: public, so it protects nothing."""
    offset = np.uint64(
        (counter * 0xD1B54A32D192ED03 + seed * 0x8CB92BA72F3D8DD7 + 0x9E3779B97F4A7C15) % 2**64
    )
    state = rows.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) + offset
    for _ in range(2):
        state = (state ^ (state >> np.uint64(30))) * np.uint64(_MIX[0])
        state = (state ^ (state >> np.uint64(27))) * np.uint64(_MIX[1])
        state ^= state >> np.uint64(31)
    return state


class PlainWords:
    """Public words of row numbers, for studying a law without a run; implements `Words`."""

    def __init__(self, rows: NDArray[np.int64]) -> None:
        self._rows = rows

    def __len__(self) -> int:
        return len(self._rows)

    def take(self, counter: int, rows: NDArray[np.intp] | None = None) -> U64:
        """Return word number `counter` of every row, or of the rows at these positions."""
        return hashed(self._rows if rows is None else self._rows[rows], counter, 0)

    def select(self, rows: NDArray[np.intp]) -> "PlainWords":
        """Return the streams of the rows at these positions."""
        return PlainWords(self._rows[rows])


# Sets of classes
# --------------------------------------------------------------------------------------------------


_SET_BYTES = 1 << 18  # bytes of packed rows that are processed at a time


def set_bytes(n_classes: int) -> int:
    """Count the bytes of a packed set."""
    return -(-n_classes // 8)


def pack_sets(mask: NDArray[np.bool_]) -> Bits:
    """Pack (n, K) bool to (n, ceil(K/8)) uint8."""
    return np.asarray(np.packbits(mask, axis=1, bitorder="little"))


def pack_columns(mask: NDArray[np.bool_]) -> Bits:
    """Pack (K, n) bool, with classes as rows, to (n, ceil(K/8)) uint8; faster than `pack_sets` for
    few classes."""
    out = np.zeros((mask.shape[1], set_bytes(len(mask))), dtype=np.uint8)
    for c, row in enumerate(mask.view(np.uint8)):
        out[:, c // 8] |= row << np.uint8(c % 8)
    return out


def unpack_sets(packed: Bits, n_classes: int) -> NDArray[np.bool_]:
    """Unpack (n, ceil(K/8)) uint8 to (n, K) bool."""
    bits: Bits = np.unpackbits(
        packed.astype(np.uint8, copy=False), axis=1, count=n_classes, bitorder="little"
    )
    return np.asarray(bits.view(np.bool_))


def full_set(n_classes: int) -> Bits:
    """Make the set of all classes, one packed row."""
    return pack_sets(np.ones((1, n_classes), dtype=np.bool_)).reshape(-1)


def set_sizes(packed: Bits) -> NDArray[np.int64]:
    """Count the classes of each row's set."""
    if packed.shape[1] <= 8:
        return np.bitwise_count(_word(packed)).astype(np.int64)
    return np.asarray(np.bitwise_count(packed).sum(axis=1, dtype=np.int64))


def single_sets(labels: NDArray[np.integer], n_classes: int) -> Bits:
    """Make the sets that hold each label alone: (n, ceil(K/8))."""
    size = set_bytes(n_classes)
    # The label's byte is compared with every byte of the row, so that the same memory is accessed
    # for any label.
    index = labels.astype(np.int32, copy=False)
    bit = np.left_shift(np.uint8(1), (index & 7).astype(np.uint8))
    hit = (index >> 3)[:, None] == np.arange(size, dtype=np.int32)
    return np.asarray(hit.view(np.uint8) * bit[:, None])


def sets_contain(packed: Bits, labels: NDArray[np.integer], n_classes: int) -> NDArray[np.bool_]:
    """Test whether each row's set holds the row's label: (n,) bool. The cost does not depend on the
    label."""
    if packed.shape[1] <= 8:  # one machine word holds the set, and is shifted by the label
        shifted = _word(packed) >> labels.astype(np.uint64)
        return np.asarray((shifted & np.uint64(1)).astype(np.bool_))
    found = np.empty(len(labels), dtype=np.bool_)
    for rows in row_slices(len(labels), packed.shape[1]):
        found[rows] = (single_sets(labels[rows], n_classes) & packed[rows]).any(axis=1)
    return found


def _word(packed: Bits) -> NDArray[np.uint64]:
    """Read at most 8 bytes a row as one machine word: (n,)."""
    word = np.zeros((len(packed), 8), dtype=np.uint8)
    word[:, : packed.shape[1]] = packed
    return np.asarray(word.view("<u8")[:, 0], dtype=np.uint64)


def row_slices(n_rows: int, width: int) -> list[slice]:
    """Divide rows into slices so that a few packed arrays of this width fit in the cache."""
    step = max(1, _SET_BYTES // max(1, width))
    return [slice(start, min(start + step, n_rows)) for start in range(0, n_rows, step)]


def _byte_select() -> NDArray[np.uint8]:
    """Compute the table [byte, j] = position of the j-th set bit of the byte; 8 if it has fewer."""
    table = np.full((256, 9), 8, dtype=np.uint8)
    for byte in range(256):
        positions = [bit for bit in range(8) if byte >> bit & 1]
        table[byte, : len(positions)] = positions
    return table


_SELECT = _byte_select()


def _bytes_passed(ends: NDArray[np.int32], wanted: NDArray[np.int32]) -> NDArray[np.int64]:
    """Count the bytes of each row that end before its wanted bit."""
    # For short rows a loop over columns is faster than a two-dimensional comparison.
    if ends.shape[1] > 8:
        return np.asarray((ends <= wanted[:, None]).sum(axis=1))
    passed = np.zeros(len(ends), dtype=np.int64)
    for column in ends.T:
        passed += column <= wanted
    return passed


def select_members(packed: Bits, *indices: NDArray[np.integer]) -> tuple[NDArray[np.int32], ...]:
    """Find the j-th class, from 0, of each row's set, for each given array of j: (n,) int32;
    arbitrary if the set is smaller."""
    out = tuple(np.empty(len(packed), dtype=np.int32) for _ in indices)
    last = packed.shape[1] - 1
    for rows in row_slices(len(packed), 4 * packed.shape[1]):
        part = packed[rows]
        # The number of members up to the end of each byte gives the byte of the wanted member, and
        # a table gives its bit.
        ends = np.cumsum(np.bitwise_count(part), axis=1, dtype=np.int32)
        every = np.arange(len(part))
        for result, index in zip(out, indices, strict=True):
            wanted = index[rows].astype(np.int32)
            byte = np.minimum(_bytes_passed(ends, wanted), last)
            value = part[every, byte]
            within = wanted - ends[every, byte] + np.bitwise_count(value)
            result[rows] = 8 * byte + _SELECT[value, np.clip(within, 0, 8)]
    return out


# Priors
# --------------------------------------------------------------------------------------------------


TOP = float(2**32 - 1)  # the quantised prior of each row's heaviest class
# doubles of a chunk (2 MiB); half of it with at most 32 classes, which take more passes
_CELLS, _FEW_CELLS = 1 << 18, 1 << 17
# for a maximum below it, 2^-32 of it may be subnormal
_TINY = {np.dtype(np.float32): 2.0**-100, np.dtype(np.float64): 2.0**-900}
_LIFT = 2.0**900
_FOLDED = 16


def as_prior(prior: object, n_classes: int) -> Array:
    """Convert a prior to a numeric (n, K) array, without a copy. `checked_prior` checks its
    values."""
    array = np.asarray(prior)
    if array.ndim != 2 or array.shape[1] != n_classes:
        raise InvalidInput(
            f"Expected a prior of shape (n, {n_classes}), one weight a class; got shape"
            f" {array.shape}."
        )
    if array.dtype.kind not in "fiu":
        raise InvalidInput(
            f"Expected a prior of numbers, got dtype {array.dtype}. Pass float weights of shape (n,"
            f" {n_classes})."
        )
    return array


def checked_prior(prior: Array, weight: Floats | None = None) -> tuple[Array, Floats, Floats]:
    """Check a prior and prepare its quantisation: rint(values x scale) are its whole numbers.

    Parameters
    ----------
    prior : (n, K) numbers
        Finite and >= 0, else InvalidInput. n >= 1.
    weight : (K,) float64, optional
        Factors by which every row is multiplied first.

    Returns
    -------
    values : (n, K) float32 or float64
        The prior itself unless it had to change: a row of zeros becomes ones.
    scale : (n,) float64
        (2^32 - 1) / row maximum.
    columns : (g, n) float64
        Maxima of `values` over g disjoint groups that cover all classes; g is K up to 32 classes,
        else at most 16.
    """
    values = prior if prior.dtype in (np.float32, np.float64) else prior.astype(np.float64)
    if weight is not None:
        values = values * weight
    columns = _fold(values).T.astype(np.float64, order="C")
    top = columns.max(axis=0)
    # Written so that NaN, which fails every comparison, is refused.
    if not (values.min() >= 0 and top.max() < np.inf):
        bad = np.flatnonzero(~((values >= 0) & (values < np.inf)).all(axis=1))[0]
        raise InvalidInput(
            f"Expected a finite prior >= 0 everywhere; row {bad} of this batch is not. Clip it, or"
            " pass uniform weights."
        )
    if not top.min() > _TINY[values.dtype]:
        values = values.astype(np.float64)
        values[top == 0] = 1.0
        # exact, and keeps the scale below from overflowing
        values[(top > 0) & (top <= 1.0 / _LIFT)] *= _LIFT
        return checked_prior(values)
    return values, TOP / top, columns


def _fold(values: Array) -> Array:
    """Compute maxima over at most 16 disjoint groups of classes, by repeated halving: (n, g); up to
    32 classes stay as they are."""
    width = max(_FOLDED, values.shape[1] * (values.shape[1] <= 2 * _FOLDED))
    while values.shape[1] > width:
        rest = values.shape[1] // 2
        half = values.shape[1] - rest
        folded = np.empty((len(values), half), dtype=values.dtype)
        np.maximum(values[:, :rest], values[:, half:], out=folded[:, :rest])
        folded[:, rest:] = values[:, rest:half]
        values = folded
    return values


def quantise(prior: Array) -> Floats:
    """Scale each row to whole numbers 0 .. 2^32 - 1, as float64 (n, K); a row of zeros becomes
    uniform. See `checked_prior`."""
    if len(prior) == 0:
        return np.empty(prior.shape)
    values, scale, _ = checked_prior(prior)
    scaled = np.multiply(values, scale[:, None], dtype=np.float64)
    return np.rint(scaled, out=scaled)


def prior_chunks(n_rows: int, n_classes: int, most: int | None = None) -> Iterator[slice]:
    """Yield slices of at most `most` rows whose (rows, K) doubles fit in the cache."""
    step = max(1, (_FEW_CELLS if n_classes <= 2 * _FOLDED else _CELLS) // n_classes)
    step = step if most is None else min(step, most)
    for start in range(0, n_rows, step):
        yield slice(start, min(start + step, n_rows))


def by_chunks(
    prior: object,
    n_classes: int,
    layout: dict[str, tuple[np.dtype, tuple[int, ...]]],
    decide: Callable[[Array], dict[str, Array]],
) -> dict[str, Array]:
    """Apply `decide` to chunks of the prior and join the side arrays.

    `layout` is the law's: it has the dtype and shape of one row of each side array. Memory: the
    side, and a few chunks of 2 MiB.
    """
    array = as_prior(prior, n_classes)
    # A row that is broadcast (stride 0), such as the uniform prior, is decided once, and its side
    # is broadcast, too.
    if array.strides[0] == 0 and len(array) > 1:
        one = decide(array[:1])
        return {
            name: np.broadcast_to(value[0], (len(array), *value.shape[1:]))
            for name, value in one.items()
        }
    side: dict[str, Array] = {
        name: np.empty((len(array), *shape), dtype)
        for name, (dtype, shape) in layout.items()
        if name != "output"
    }
    for rows in prior_chunks(len(array), n_classes):
        for name, value in decide(array[rows]).items():
            side[name][rows] = value
    return side


def heaviest(weights: Floats, size: NDArray[np.integer], threshold: Floats) -> NDArray[np.bool_]:
    """Mark the first `size` classes of each row by (weight descending, index ascending): (n, K)
    bool.

    `threshold`, (n,), is the weight of the last class that is marked.
    """
    edge = threshold[:, None]
    # The index decides only among classes of the threshold's weight. Few rows have such a tie, and
    # only these are ranked.
    inside = weights >= edge
    excess = inside.sum(axis=1) > size
    if excess.any():
        part, level, wanted = weights[excess], edge[excess], size[excess][:, None]
        above, tied = part > level, part == level
        rank = np.cumsum(tied, axis=1) + above.sum(axis=1, keepdims=True)
        inside[excess] = above | (tied & (rank <= wanted))
    return inside
