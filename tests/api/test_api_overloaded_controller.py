"""The error that clients get from a controller whose replies wait for too many commits."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from headrace.api.controller.broker_requests import ControllerApi
from headrace.base.errors import ErrorCode
from headrace.statemachine.journal import NotLeader, Overloaded


class RefusingRuntime:
    def __init__(self, error: Exception) -> None:
        self.error = error

    def submit(self, request: Any, now_ms: int, callback: Any) -> None:
        callback(None, self.error)


def refusal(error: Exception) -> tuple[ErrorCode, str]:
    async def run() -> Any:
        loop, clock = asyncio.get_running_loop(), SimpleNamespace(now_ms=lambda: 0)
        unused: Any = None
        runtime: Any = RefusingRuntime(error)
        api = ControllerApi(lambda: runtime, clock, loop, unused, unused, unused, "")
        return await api.decide(object(), lambda code, text: (code, text))

    result: tuple[ErrorCode, str] = asyncio.run(run())
    return result


def test_an_overloaded_controller_responds_with_a_retriable_error_that_keeps_clients_at_it() -> None:
    assert refusal(Overloaded("9 replies wait")) == (ErrorCode.REQUEST_TIMED_OUT, "9 replies wait")
    assert refusal(NotLeader("elsewhere")) == (ErrorCode.NOT_CONTROLLER, "elsewhere")
