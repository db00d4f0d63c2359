# SPDX-License-Identifier: Apache-2.0
"""As in `tests/deep`: these tests need torch, and are left out as a whole where it is missing."""

from pathlib import Path

import pytest
from tests.deep.conftest import TORCH, _fixed_weights, rng

__all__ = ["_fixed_weights", "rng"]
HERE = Path(__file__).parent
collect_ignore_glob = [] if TORCH else ["test_*.py"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.parent == HERE:
            item.add_marker(pytest.mark.deep)
