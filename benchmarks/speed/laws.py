# SPDX-License-Identifier: Apache-2.0
"""Speed of the laws against what people write in NumPy: `python -m benchmarks speed-laws [--rows
N]` prints JSON.

Both sides of a ratio run alternately in one process, on one thread; medians. Baselines are float
formulations, as released elsewhere:

* choice: sort, cumulative sum, argmax; draw: the same, plus one uniform a row;
* randomized response: `Generator.random` and `Generator.integers` over the whole array, and over
  chunks of 32,768 rows.
"""

import statistics
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from benchmarks.common import machine, parser, print_result
from benchmarks.speed.noise import measure
from labeldp.laws import RandomizedResponse, RRWithPrior
from labeldp.laws._response import respond_to_all

EPSILON = 1.0
CHUNK = 1 << 15
Floats = NDArray[np.float64]


class Given:
    """Words drawn beforehand: making them is the noise module's benchmark."""

    def __init__(self, n: int) -> None:
        self.words = np.random.default_rng(1).integers(0, 2**64, n, dtype=np.uint64)

    def __len__(self) -> int:
        return len(self.words)

    def take(self, counter: int, rows: NDArray[np.intp] | None = None) -> NDArray[np.uint64]:
        """The same word for every counter."""
        return self.words if rows is None else self.words[rows]

    def select(self, rows: NDArray[np.intp]) -> "Given":
        """Not needed by a law of one word."""
        raise NotImplementedError


def alternate(
    first: Callable[[], object], second: Callable[[], object], repeats: int
) -> tuple[float, float]:
    """Median seconds of each, run in turn after one warm-up."""
    seconds = measure({"first": first, "second": second}, repeats)
    return statistics.median(seconds["first"]), statistics.median(seconds["second"])


def peaked(n: int, k: int, rng: np.random.Generator) -> Floats:
    """Softmax of 3 N(0, 1)."""
    weights = np.exp(3 * rng.normal(size=(n, k)))
    return np.asarray(weights / weights.sum(axis=1, keepdims=True))


def flat(n: int, k: int, rng: np.random.Generator) -> Floats:
    """|N(0, 1)|, normalised."""
    weights = np.abs(rng.normal(size=(n, k)))
    return np.asarray(weights / weights.sum(axis=1, keepdims=True))


def chosen_by_sort(prior: Floats, epsilon: float) -> tuple[NDArray[np.intp], Floats]:
    """(k, ordered prior) of each row, in chunks that fit the cache."""
    gain = np.exp(epsilon)
    k = np.arange(1, prior.shape[1] + 1)
    ordered = -np.sort(-prior, axis=1)
    return np.argmax(np.cumsum(ordered, axis=1) / (gain + k - 1), axis=1) + 1, ordered


def choice_by_sort(prior: Floats, epsilon: float) -> NDArray[np.bool_]:
    """The candidates as a mask, from sort, cumulative sum and argmax."""
    step = max(1, (1 << 16) // prior.shape[1])
    out = np.empty(prior.shape, dtype=np.bool_)
    for start in range(0, len(prior), step):
        part = prior[start : start + step]
        k, ordered = chosen_by_sort(part, epsilon)
        out[start : start + step] = part >= ordered[np.arange(len(part)), k - 1][:, None]
    return out


def draw_by_sort(
    prior: Floats, labels: NDArray[np.int64], epsilon: float, rng: np.random.Generator
) -> NDArray[np.int64]:
    """RRWithPrior with a stable argsort, floats and a Generator, in chunks."""
    step = max(1, (1 << 16) // prior.shape[1])
    out = np.empty(len(prior), dtype=np.int64)
    for start in range(0, len(prior), step):
        part, y = prior[start : start + step], labels[start : start + step]
        every = np.arange(len(part))
        order = np.argsort(-part, axis=1)
        mass = np.cumsum(np.take_along_axis(part, order, axis=1), axis=1)
        k = np.argmax(mass / (np.exp(epsilon) + np.arange(part.shape[1])), axis=1) + 1
        inside = part[every, y] >= part[every, order[every, k - 1]]
        keep = inside & (rng.random(len(part)) < np.exp(epsilon) / (np.exp(epsilon) + k - 1))
        spot = (rng.random(len(part)) * np.where(inside, np.maximum(k - 1, 1), k)).astype(np.int64)
        rank = (order == y[:, None]).argmax(axis=1)
        out[start : start + step] = np.where(
            keep, y, order[every, spot + (inside & (k > 1) & (spot >= rank))]
        )
    return out


def prior_case(
    make: Callable[[int, int, np.random.Generator], Floats], n: int, k: int, repeats: int
) -> dict[str, object]:
    """Choice and choice-plus-draw, ours against the baseline."""
    rng = np.random.default_rng(0)
    prior, labels, law = make(n, k, rng), rng.integers(0, k, n), RRWithPrior(k, EPSILON)
    words = Given(n)
    ours, theirs = alternate(
        lambda: law.prepare(prior), lambda: choice_by_sort(prior, EPSILON), repeats
    )

    def draw() -> object:
        return law.sample(labels, words, law.prepare(prior))

    ours_draw, theirs_draw = alternate(
        draw, lambda: draw_by_sort(prior, labels, EPSILON, rng), repeats
    )
    return {
        "prior": make.__name__,
        "n_classes": k,
        "rows": n,
        "choice_us_per_row": ours / n * 1e6,
        "sort_us_per_row": theirs / n * 1e6,
        "choice_ratio": theirs / ours,
        "choice_and_draw_ratio": theirs_draw / ours_draw,
    }


def response_by_generator(
    labels: NDArray[np.int32], k: int, rng: np.random.Generator, step: int
) -> NDArray[np.int32]:
    """Randomized response in floats: keep with probability p, else one of the others."""
    keep = np.exp(EPSILON) / (np.exp(EPSILON) + k - 1)
    out = np.empty_like(labels)
    for start in range(0, len(labels), step):
        part = labels[start : start + step]
        other = rng.integers(0, k - 1, len(part), dtype=np.int32)
        other += other >= part
        out[start : start + step] = np.where(rng.random(len(part)) < keep, part, other)
    return out


def response_case(n: int, k: int, repeats: int) -> dict[str, object]:
    """Randomized response given its words (drawing them is the noise module's benchmark), against a
    Generator that draws its own."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, k, n, dtype=np.int32)
    words = rng.integers(0, 2**64, CHUNK, dtype=np.uint64)
    law = RandomizedResponse(k, EPSILON)

    def ours() -> NDArray[np.int32]:
        out = np.empty_like(labels)
        for start in range(0, n, CHUNK):
            part = labels[start : start + CHUNK]
            out[start : start + CHUNK] = respond_to_all(part, words[: len(part)], law.epsilon, k)
        return out

    mine, whole = alternate(ours, lambda: response_by_generator(labels, k, rng, n), repeats)
    mine_again, chunked = alternate(
        ours, lambda: response_by_generator(labels, k, rng, CHUNK), repeats
    )
    rates = {
        "million_rows_per_s": n / mine / 1e6,
        "whole_array_generator": n / whole / 1e6,
        "chunked_generator": n / chunked / 1e6,
    }
    return {
        "n_classes": k,
        "rows": n,
        **rates,
        "ratio_whole": whole / mine,
        "ratio_chunked": chunked / mine_again,
    }


def main(arguments: Sequence[str]) -> None:
    """Run every case, and print one JSON object."""
    options = parser("speed-laws", __doc__)
    options.add_argument(
        "--rows", type=int, default=5_000_000, help="rows of the randomized response case"
    )
    options.add_argument(
        "--cells", type=int, default=20_000_000, help="rows x classes of each prior case"
    )
    options.add_argument("--repeats", type=int, default=5)
    args = options.parse_args(arguments)
    sizes = (10, 100, 1000, 100_000)
    result = {
        "machine": machine(),
        "epsilon": EPSILON,
        "rr_with_prior": [
            prior_case(make, max(20, args.cells // k), k, args.repeats)
            for make in (peaked, flat)
            for k in sizes
        ],
        "randomized_response": [
            response_case(args.rows, k, args.repeats) for k in (2, 10, 1000, 100_000)
        ],
    }
    print_result(result)
