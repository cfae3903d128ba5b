"""The eager selector polls before it blocks, but only while events arrive at once."""

from __future__ import annotations

import os
import socket

import pytest

from headrace.server import eager_selector
from headrace.server.eager_selector import EagerSelector


def test_ready_sockets_are_reported_with_and_without_polling(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    monkeypatch.setattr(eager_selector, "LOOK_S", 10.0)
    selector = EagerSelector()
    left, right = socket.socketpair()
    selector.register(left, 1)
    right.send(b".")
    for _ in range(3):  # the first wait makes it eager, the others poll
        assert [key.fileobj for key, _ in selector.select(1)] == [left]
        assert selector._eager
    left.recv(1)
    assert selector.select(0.001) == [] and selector.select(0) == [] and selector.select(-1) == []
    for one in (selector, left, right):
        one.close()


def test_polling_stops_after_a_long_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    monkeypatch.setattr(eager_selector, "LOOK_S", 1e-9)
    selector = EagerSelector()
    selector._eager = True
    assert selector.select(0.001) == [] and not selector._eager
    selector.close()


def test_a_machine_with_one_processor_never_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 1)
    selector = EagerSelector()
    left, right = socket.socketpair()
    selector.register(left, 1)
    right.send(b".")
    assert selector.select(1) and not selector._eager
    for one in (selector, left, right):
        one.close()
