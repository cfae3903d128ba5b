"""The workaround for CPython 3.11's miscounted depth of syntax trees."""

from __future__ import annotations

import ast
import gc
import threading
from pathlib import Path

SOURCE = Path(__file__).read_text() * 3
ROUNDS = 10


class _ParsesWhenCollected:
    def __init__(self) -> None:
        self.cycle = self  # only the garbage collector frees it

    def __del__(self) -> None:
        ast.parse("f(g(h(1)))")


def test_garbage_collection_in_other_threads_does_not_break_a_parse() -> None:
    errors: list[SystemError] = []

    def parse() -> None:
        for _ in range(ROUNDS):
            _ParsesWhenCollected()
            try:
                ast.parse(SOURCE)
            except SystemError as error:
                errors.append(error)

    threshold = gc.get_threshold()
    gc.set_threshold(10)
    try:
        threads = [threading.Thread(target=parse) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        gc.set_threshold(*threshold)
    assert not errors
