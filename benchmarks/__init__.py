# SPDX-License-Identifier: Apache-2.0
"""Benchmarks: `python -m benchmarks` lists them and `python -m benchmarks NAME` runs one, in the
repository's root."""

BENCHMARKS = {  # name: module, question
    "tabular": (
        "tabular",
        (
            "how accurate is a model on tables and pixels, against what people do today, published"
            " recipes and no privacy?"
        ),
    ),
    "boosting": (
        "boosting",
        (
            "how accurate is boosting on the exact likelihood, and what does a fit cost against a"
            " plain one?"
        ),
    ),
    "rare": (
        "rare",
        (
            "are probabilities of rare classes worth more than the class frequencies alone, and"
            " than what is done by hand?"
        ),
    ),
    "convex": (
        "convex",
        (
            "how good are the papers' convex methods, next to the exact likelihood and to one"
            " release of X'Y?"
        ),
    ),
    "numbers": (
        "numbers",
        (
            "how large are errors of private numbers, against Laplace noise, unbiased bits and"
            " bins, and what do stages add?"
        ),
    ),
    "rare-events": (
        "rare_events",
        (
            "one event in a hundred, 10,000 campaigns: how well do models rank, against hard"
            " randomized response and no privacy?"
        ),
    ),
    "coverage": (
        "coverage",
        (
            "does every 95 % interval of `labeldp.stats` and `labeldp.metrics` cover the truth in"
            " 95 % of releases, with every law?"
        ),
    ),
    "defaults": (
        "defaults",
        (
            "are the classifier's defaults a good choice, judged on noisy held-out rows?"
            " `--stages`: do several stages help?"
        ),
    ),
    "small-epsilon": (
        "small_epsilon.command",
        (
            "how accurate are clusters of public features at epsilon 0.05 to 1? Also figures of two"
            " papers"
        ),
    ),
    "overlapping": (
        "overlapping",
        (
            "are overlapping tables of counts better than counts of one clustering, or noisy"
            " labels, at the same epsilon?"
        ),
    ),
    "several": (
        "several",
        (
            "several label columns at one epsilon: which rule learns best, and does a prior of the"
            " combinations tell more?"
        ),
    ),
    "pate": (
        "pate",
        (
            "do teachers that vote beat counts of clusters and noisy labels at the same epsilon and"
            " delta?"
        ),
    ),
    "small-epsilon-rates": (
        "small_epsilon.features",
        "which rates train features that a net learns without labels? Needs torch",
    ),
    "pretrained": (
        "pretrained",
        (
            "how accurate are features of a net that other data have trained, at epsilon 0.1 to 4?"
            " Needs torch"
        ),
    ),
    "deep": (
        "deep.command",
        (
            "how accurate are nets, stage by stage, against published recipes, DP-SGD and no"
            " privacy? Needs torch"
        ),
    ),
    "deep-choose": (
        "deep.choose",
        "is another recipe of a net better, judged on noisy held-out rows alone? Needs torch",
    ),
    "deep-defaults": (
        "deep.defaults",
        (
            "are the defaults of nets safe, on tables and images, with and without batch"
            " normalisation? Needs torch"
        ),
    ),
    "deep-share": (
        "deep.share",
        (
            "what do neighbours, strong views, selection and private counts add, one at a time? And"
            " the papers' methods by name. Needs torch"
        ),
    ),
    "deep-speed": (
        "deep.speed",
        "what does a training step on likelihoods cost against cross-entropy? Needs torch",
    ),
    "deep-resume": (
        "deep.resume",
        (
            "does killing a fit of a net ever draw a row twice, repeat a stage or change the"
            " outcome? Needs torch"
        ),
    ),
    "gpu": (
        "deep.gpu",
        (
            "how accurate are images at small epsilon from targets that rows share? What needs a"
            " GPU, the most important first"
        ),
    ),
    "faults": (
        "faults",
        (
            "does killing a release, or a worker of it, ever lose a row, draw one twice or leave"
            " anything behind?"
        ),
    ),
    "scale": (
        "scale",
        (
            "how do releases grow with rows, classes and laws, on one machine and on Spark, against"
            " reading and writing alone?"
        ),
    ),
    "speed": (
        "speed.command",
        (
            "how fast are draws, choices of candidates, releases and counts, against NumPy and"
            " pyarrow, in how much memory?"
        ),
    ),
    "speed-noise": (
        "speed.noise",
        "part of `speed`: keyed randomized response against NumPy's generator, AES and a copy",
    ),
    "speed-laws": ("speed.laws", "part of `speed`: the laws against what people write in NumPy"),
    "speed-release": (
        "speed.release",
        "part of `speed`: a release of a Parquet table against reading and writing alone",
    ),
    "speed-aggregates": (
        "speed.aggregates",
        "part of `speed`: private histograms and votes against pyarrow's `group_by`",
    ),
    "speed-ids": (
        "speed.ids",
        (
            "how fast are row ids: their blocks, the digest of their set, their row set, against"
            " AES over the same bytes?"
        ),
    ),
    "tables": ("tables", "the tables of the pages, from the kept runs; `--write` puts them there"),
}
"""Name on the command line: module, and the question that it answers."""
