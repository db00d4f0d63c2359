# SPDX-License-Identifier: Apache-2.0
"""Reading ahead gives the same items, passes errors on, and leaves no thread behind."""

import threading
from collections.abc import Iterator

import pytest

from labeldp.tables.engines._local import ahead


def test_same_items_in_order() -> None:
    assert list(ahead(iter(range(100)), depth=3)) == list(range(100))
    assert list(ahead(iter(()))) == []


def test_errors_arrive_after_the_items_before_them() -> None:
    def broken() -> Iterator[int]:
        yield 1
        raise KeyError("stop")

    seen = []
    with pytest.raises(KeyError, match="stop"):
        for item in ahead(broken()):
            seen.append(item)
    assert seen == [1]


def test_a_consumer_that_stops_ends_the_thread() -> None:
    before = threading.active_count()
    made = []

    def endless() -> Iterator[int]:
        while True:
            made.append(len(made))
            yield made[-1]

    items = ahead(endless())
    assert next(items) == 0
    items.close()  # type: ignore[attr-defined]
    assert threading.active_count() == before
    assert len(made) < 5
