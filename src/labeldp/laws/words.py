# SPDX-License-Identifier: Apache-2.0
"""Exact arithmetic on uniform 64-bit words."""

import numpy as np
from numpy.typing import NDArray

U64 = NDArray[np.uint64]
_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)


def multiply(words: U64, factor: U64 | np.uint64) -> tuple[U64, U64]:
    """words x factor as (high, low) 64-bit halves; factor < 2^32."""
    low = (words & _LOW) * factor
    high = (words >> _HALF) * factor + (low >> _HALF)
    return high >> _HALF, words * factor


def equal_cell(words: U64, cells: U64 | np.uint64) -> NDArray[np.int64]:
    """Which of `cells` equal parts of [0, 2^64) a word falls in: j where floor(j 2^64 / k) <= word < floor((j + 1) 2^64 / k)."""
    high, low = multiply(words, cells)
    carry = low > ~(cells - np.uint64(1))  # floor(((word + 1) k - 1) / 2^64)
    return (high + carry).astype(np.int64)
