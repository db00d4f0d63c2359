# SPDX-License-Identifier: Apache-2.0
"""Machine code and NumPy give the same bytes; without numba there is only NumPy."""

import numpy as np
import pytest

from labeldp.laws import compiled, kernel
from labeldp.laws.exact import WORD

numba = pytest.importorskip("numba", reason="numba is not installed (make test-engines)")
pytestmark = pytest.mark.engines


@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.uint8])
@pytest.mark.parametrize(
    ("epsilon", "n_classes"), [(1.0, 2), (0.001, 2), (2.0, 10), (40.0, 3), (700.0, 5), (1.0, 200), (1e-9, 256), (20.0, 100)]
)
def test_equal_bytes(monkeypatch, epsilon, n_classes, dtype):
    a, b = kernel.cells(epsilon, n_classes)
    edges = [word for cell in range(n_classes + 1) for word in range(a + cell * b - 2, a + cell * b + 3)]
    words = np.array([word for word in [0, 1, WORD - 1, WORD - 2, *edges] if 0 <= word < WORD], np.uint64)
    more = np.random.default_rng(0).integers(0, WORD, 1 << 16, np.uint64, endpoint=False)
    words = np.concatenate([np.repeat(words, 3), more])
    labels = (np.arange(len(words)) % n_classes).astype(dtype)
    monkeypatch.setattr(kernel, "respond_compiled", lambda rows: compiled.compiled())
    fast = kernel.respond_to_all(labels, words, epsilon, n_classes)
    monkeypatch.setattr(kernel, "respond_compiled", lambda rows: None)
    np.testing.assert_array_equal(fast, kernel.respond_to_all(labels, words, epsilon, n_classes))


def test_it_is_used_where_it_pays(monkeypatch):
    monkeypatch.setattr(compiled._Answered, "rows", 0)
    assert compiled.respond_compiled(compiled.PAYS_AFTER - 1) is None
    assert compiled.respond_compiled(1) is None
    assert compiled.respond_compiled(1) is compiled.compiled() is not None
