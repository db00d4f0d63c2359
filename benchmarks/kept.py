# SPDX-License-Identifier: Apache-2.0
"""Runs of a benchmark as JSON in a file: read whole, and replaced whole, so that a stop in between loses nothing."""

import json


def load(path):
    return json.loads(path.read_text())["runs"] if path.exists() else []


def save(path, runs):
    path.parent.mkdir(exist_ok=True)
    part = path.with_suffix(".part")
    part.write_text(json.dumps({"runs": runs}, indent=1) + "\n")
    part.replace(path)
