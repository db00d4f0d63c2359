# SPDX-License-Identifier: Apache-2.0
"""Benchmarks: `python -m benchmarks` lists them and `python -m benchmarks NAME` runs one, in the
repository's root."""

BENCHMARKS = {
    "tabular": (
        "tabular",
        "tables",
        (
            "how accurate is a model on tables and pixels, against what people do today, published"
            " recipes and no privacy?"
        ),
    ),
    "boosting": (
        "boosting",
        "tables",
        (
            "how accurate is boosting on the exact likelihood, and what does a fit cost against a"
            " plain one?"
        ),
    ),
    "rare-classes": (
        "rare_classes",
        "rare_classes",
        (
            "are probabilities of rare classes worth more than the class frequencies alone, and"
            " than what is done by hand?"
        ),
    ),
    "campaigns": (
        "campaigns",
        "rare_classes",
        (
            "one event in a hundred, 10,000 campaigns: how well do models rank, against hard"
            " randomized response and no privacy?"
        ),
    ),
    "numbers": (
        "numbers",
        "numbers",
        (
            "how large are errors of private numbers, against Laplace noise, unbiased bits and"
            " bins, and what do stages add?"
        ),
    ),
    "several": (
        "several",
        "several",
        (
            "several label columns at one epsilon: which rule learns best, and does a prior of the"
            " combinations tell more?"
        ),
    ),
    "convex": (
        "convex",
        "convex",
        (
            "how good are the papers' convex methods, next to the exact likelihood and to one"
            " release of X'Y?"
        ),
    ),
    "small-epsilon": (
        "small_epsilon.command",
        "small_epsilon",
        (
            "how accurate are clusters of public features at epsilon 0.05 to 1? Also figures of two"
            " papers"
        ),
    ),
    "pretrained": (
        "pretrained",
        "small_epsilon",
        (
            "how accurate are features of a net that other data have trained, at epsilon 0.1 to 4?"
            " Needs torch"
        ),
    ),
    "overlapping": (
        "overlapping",
        "small_epsilon",
        (
            "are overlapping tables of counts better than counts of one clustering, or noisy"
            " labels, at the same epsilon?"
        ),
    ),
    "pate": (
        "pate",
        "small_epsilon",
        (
            "do teachers that vote beat counts of clusters and noisy labels at the same epsilon and"
            " delta?"
        ),
    ),
    "deep": (
        "deep.command",
        "nets",
        (
            "how accurate are nets, stage by stage, against published recipes, DP-SGD and no"
            " privacy? Needs torch"
        ),
    ),
    "deep-share": (
        "deep.share",
        "nets",
        (
            "what do neighbours, strong views, selection and private counts add, one at a time? And"
            " the papers' methods by name. Needs torch"
        ),
    ),
    "deep-images": (
        "deep.images",
        "images",
        (
            "how accurate are CIFAR-10 and CIFAR-100 from targets that rows share? Needs torch and"
            " a GPU"
        ),
    ),
    "defaults": (
        "defaults",
        "defaults",
        (
            "are the classifier's defaults a good choice, judged on noisy held-out rows?"
            " `--stages`: do several stages help?"
        ),
    ),
    "deep-untuned": (
        "deep.untuned",
        "defaults",
        (
            "are nets safe as they come, on tables and images, with and without batch"
            " normalisation? Needs torch"
        ),
    ),
    "intervals": (
        "intervals",
        "intervals",
        (
            "does every 95 % interval of `labeldp.stats` and `labeldp.metrics` cover the truth in"
            " 95 % of releases, with every law?"
        ),
    ),
    "speed": (
        "speed.command",
        "speed",
        (
            "how fast are draws, choices of candidates, releases and counts, against NumPy and"
            " pyarrow, in how much memory?"
        ),
    ),
    "speed-noise": (
        "speed.noise",
        "",
        "part of `speed`: keyed randomized response against NumPy's generator, AES and a copy",
    ),
    "speed-laws": (
        "speed.laws",
        "",
        "part of `speed`: the laws against what people write in NumPy",
    ),
    "speed-release": (
        "speed.release",
        "",
        "part of `speed`: a release of a Parquet table against reading and writing alone",
    ),
    "speed-aggregates": (
        "speed.aggregates",
        "",
        "part of `speed`: private histograms and votes against pyarrow's `group_by`",
    ),
    "scale": (
        "scale",
        "speed",
        (
            "how do releases grow with rows, classes and laws, on one machine and on Spark, against"
            " reading and writing alone?"
        ),
    ),
    "deep-step": (
        "deep.step",
        "speed",
        "what does a training step on likelihoods cost against cross-entropy? Needs torch",
    ),
    "faults": (
        "faults",
        "faults",
        (
            "does killing a release, or a worker of it, ever lose a row, draw one twice or leave"
            " anything behind?"
        ),
    ),
    "deep-resume": (
        "deep.resume",
        "faults",
        (
            "does killing a fit of a net ever draw a row twice, repeat a stage or change the"
            " outcome? Needs torch"
        ),
    ),
    "pages": (
        "pages",
        "",
        "the tables of the pages, from the kept runs; `--write` puts them there",
    ),
}
"""Name on the command line: module, page of docs/results that answers it, and the question."""
