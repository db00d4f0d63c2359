# SPDX-License-Identifier: Apache-2.0
"""Secrets from a seed, so that a model is judged the same every time; of a script: `python
tests/entropy.py SCRIPT ARGUMENT...`."""

import os
import runpy
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np


def seeded() -> Callable[[int], bytes]:
    """What stands in for `os.urandom`; LABELDP_TEST_SEED names another seed."""
    return np.random.default_rng(int(os.environ.get("LABELDP_TEST_SEED", "0"))).bytes


if __name__ == "__main__":
    os.urandom = seeded()
    del sys.argv[0]
    sys.path[0] = str(Path(sys.argv[0]).parent)
    runpy.run_path(sys.argv[0], run_name="__main__")
