# SPDX-License-Identifier: Apache-2.0
"""Reading ahead: an iterator that works in a thread of its own while its consumer works on what came before."""

import queue
import threading
from collections.abc import Iterator
from typing import TypeVar

Item = TypeVar("Item")


class _End:
    """The iterator's end, or what it raised."""

    def __init__(self, error: BaseException | None = None):
        self.error = error


def ahead(source: Iterator[Item], depth: int = 1) -> Iterator[Item]:
    """The same items in the same order; up to `depth` + 1 of them are made before they are asked for.

    It gains where making an item leaves Python's lock, as Arrow's readers do. If the consumer stops, the thread ends too.
    """
    items: queue.Queue[Item | _End] = queue.Queue(depth)
    stop = threading.Event()

    def put(item: Item | _End) -> bool:
        while not stop.is_set():
            try:
                items.put(item, timeout=0.1)
            except queue.Full:
                continue
            return True
        return False

    def work() -> None:
        try:
            for item in source:
                if not put(item):
                    return
            put(_End())
        except BaseException as error:
            put(_End(error))

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        while not isinstance(item := items.get(), _End):
            yield item
        if item.error is not None:
            raise item.error
    finally:
        stop.set()
        thread.join()
