# SPDX-License-Identifier: Apache-2.0
"""Tests that need torch: left out as a whole where it is missing, except for the one that says
so."""

from importlib.util import find_spec
from pathlib import Path

import pytest

HERE = Path(__file__).parent
TORCH = find_spec("torch") is not None
collect_ignore = (
    [] if TORCH else [str(path) for path in HERE.glob("test_*.py") if path.name != "test_extra.py"]
)

if TORCH:
    import torch

    torch.set_num_threads(1)  # the nets here are small: more threads only wait for each other


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Every test of this folder but those of the missing extra needs torch."""
    for item in items:
        if item.path.parent == HERE and item.path.name != "test_extra.py":
            item.add_marker(pytest.mark.deep)


@pytest.fixture(autouse=TORCH)
def _fixed_weights():
    """Nets and tensors of a test do not depend on the tests before it. No noise of labels comes
    from torch's seed."""
    torch.manual_seed(0)


@pytest.fixture
def rng():
    """A torch generator with a fixed seed."""
    return torch.Generator().manual_seed(0)
