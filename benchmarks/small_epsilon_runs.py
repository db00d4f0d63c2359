# SPDX-License-Identifier: Apache-2.0
"""The kept runs of small_epsilon.py: where they are, and what makes two of them the same."""

import os
from pathlib import Path

import kept

RESULTS = Path(os.environ.get("SMALL_EPSILON_RESULTS", Path(__file__).parent / "results" / "small_epsilon.json"))
IDENTITY = ("table", "data", "method", "epsilon", "seed", "rows", "beta", "share", "clusters", "features")
FOUND = {("main", "clusters"), ("beta", "beta")}
"""What is asked for in other tables, and comes out in these."""


def key(run):
    """What makes two cells the same."""
    return tuple(run.get(name) for name in IDENTITY if (run["table"], name) not in FOUND)


def load_runs():
    return kept.load(RESULTS)


def save_runs(runs):
    kept.save(RESULTS, runs)
