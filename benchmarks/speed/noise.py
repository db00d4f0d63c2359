# SPDX-License-Identifier: Apache-2.0
"""Speed of keyed, exact randomized response against NumPy's generator with floats, and against two
floors. One thread.

    python -m benchmarks speed-noise [--labels 50000000] [--repeats 5]

Every round runs every method once, in turn, so that the load of the machine falls on all of them;
medians of the rounds and of the ratios within a round. The float formulation is what people write
today: it is neither keyed, nor exact, nor repeatable row by row.
"""

import statistics
import time
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from benchmarks.common import machine, parser, print_result
from labeldp.custody._draw import draw
from labeldp.laws import RandomizedResponse
from labeldp.noise import _words as noise
from labeldp.noise._words import CHUNK, encrypt, encryptor, space_for

N_CLASSES, EPSILON = 1000, 2.0
Labels = NDArray[np.int32]


def keyed(labels: Labels, blocks: noise.Blocks, key: noise.Key, law: RandomizedResponse) -> Labels:
    """labeldp: blocks of the rows, AES, exact cells."""
    return np.asarray(draw(law, labels, key, blocks, {}))


def generator_float(labels: Labels, generator: np.random.Generator, keep: float) -> Labels:
    """Keep with probability e^eps / (e^eps + K - 1), else one of the other K - 1 classes: whole
    arrays."""
    other = generator.integers(0, N_CLASSES - 1, size=len(labels), dtype=np.int32)
    other += other >= labels
    return np.where(generator.random(len(labels)) < keep, labels, other)


def generator_chunked(labels: Labels, generator: np.random.Generator, keep: float) -> Labels:
    """The same in cache-sized chunks."""
    out = np.empty_like(labels)
    for start in range(0, len(labels), CHUNK):
        out[start : start + CHUNK] = generator_float(labels[start : start + CHUNK], generator, keep)
    return out


def aes_floor(n: int, key: noise.Key) -> None:
    """AES of one block a row that lies ready in the cache, and nothing else."""
    context, templates, space = (
        encryptor(key.material("RowWords")),
        noise.row_blocks(CHUNK).templates(),
        space_for(CHUNK),
    )
    for _ in range(0, n, CHUNK):
        encrypt(context, templates, space)


def words_only(blocks: noise.Blocks, key: noise.Key) -> None:
    """Blocks and AES: the first word of every row."""
    for _, words in noise.word_chunks(key, blocks):
        words.take(0)


def measure(
    methods: dict[str, Callable[[], object]],
    repeats: int,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, list[float]]:
    """Seconds of each method in each round, by the given clock, after one round that is not
    counted."""
    seconds: dict[str, list[float]] = {name: [] for name in methods}
    for _ in range(repeats + 1):
        for name, method in methods.items():
            start = clock()
            method()
            seconds[name].append(clock() - start)
    return {name: values[1:] for name, values in seconds.items()}


def run(n: int, repeats: int) -> dict[str, object]:
    """The result as JSON data."""
    labels = np.random.default_rng(0).integers(0, N_CLASSES, n, dtype=np.int32)
    ids = np.random.default_rng(1).permutation(n)
    facts = dict.fromkeys(noise.DRAW_FACTS)
    key = noise.derive_key(noise.SeededNoise(0).secret(), purpose="draw", facts=facts)
    by_id = noise.id_blocks(
        ids, noise.derive_key(noise.SeededNoise(0).secret(), purpose="ids", facts={})
    )
    law, by_row = RandomizedResponse(N_CLASSES, EPSILON), noise.row_blocks(n)
    keep = float(np.exp(EPSILON) / (np.exp(EPSILON) + N_CLASSES - 1))
    generator, out = np.random.default_rng(2), np.empty_like(labels)
    seconds = measure(
        {
            "labeldp by row id": lambda: keyed(labels, by_id, key, law),
            "labeldp by row number": lambda: keyed(labels, by_row, key, law),
            "generator, float, whole array": lambda: generator_float(labels, generator, keep),
            "generator, float, chunked": lambda: generator_chunked(labels, generator, keep),
            "blocks and AES": lambda: words_only(by_id, key),
            "AES floor": lambda: aes_floor(n, key),
            "copy floor": lambda: np.copyto(out, labels),
        },
        repeats,
    )
    ours = seconds["labeldp by row id"]
    return {
        "what": (
            f"randomized response, {n} int32 labels, K = {N_CLASSES}, epsilon = {EPSILON}, one"
            " thread"
        ),
        "machine": machine(),
        "rounds": repeats,
        "million labels a second, median": {
            name: round(n / 1e6 / statistics.median(values), 1) for name, values in seconds.items()
        },
        "labeldp by row id, times as fast as, median of rounds": {
            name: round(statistics.median(b / a for a, b in zip(ours, values, strict=True)), 3)
            for name, values in seconds.items()
        },
        "targets": {"generator, float, whole array": 1.3, "generator, float, chunked": 1.0},
        "seconds": {
            name: [round(value, 4) for value in values] for name, values in seconds.items()
        },
    }


def main(arguments: Sequence[str]) -> None:
    """Measure, and print one JSON object."""
    options = parser("speed-noise", __doc__)
    options.add_argument("--labels", type=int, default=50_000_000)
    options.add_argument("--repeats", type=int, default=5)
    args = options.parse_args(arguments)
    print_result(run(args.labels, args.repeats))
