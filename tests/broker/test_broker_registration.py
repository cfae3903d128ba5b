"""A broker's life with controllers that are away, refuse it, or forget it; in virtual time."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
from testkit.simulator.loop import SimulatedLoop

from headrace.base.errors import ErrorCode, KafkaError
from headrace.base.ids import NodeId, Uuid
from headrace.broker.membership.registration import BrokerIdentity, HeartbeatTimes, Registration
from headrace.client.wire.connection import Disconnected
from headrace.protocol.messages.broker_heartbeat import BrokerHeartbeatResponse
from headrace.protocol.messages.broker_registration import BrokerRegistrationRequest, BrokerRegistrationResponse

HEARTBEAT_S, REGISTRATION_S = 2.0, 60.0


class Channel:
    """A channel whose responses a test computes; an exception is raised instead."""

    def __init__(self, respond: Callable[[Any], Any]) -> None:
        self._respond = respond
        self.requests: list[Any] = []

    async def request(self, message: Any) -> Any:
        self.requests.append(message)
        response = self._respond(message)
        if isinstance(response, Exception):
            raise response
        return response


def registration(channel: Channel) -> Registration:
    directories: Any = SimpleNamespace(offline_ids=list, online_ids=lambda: [Uuid(b"d" * 16)], cordoned_ids=list)
    identity = BrokerIdentity(NodeId(1), "cluster", Uuid(b"i" * 16), rack=None, features={})
    times = HeartbeatTimes(HEARTBEAT_S, 30.0, REGISTRATION_S)
    return Registration(channel, identity, times, list, directories, lambda: 5, lambda failure: None)


def run(work: Callable[[SimulatedLoop], Coroutine[Any, Any, None]]) -> None:
    loop = SimulatedLoop(Random(1))
    loop.run_until_complete(work(loop))
    loop.close()


def scripted(*answers: Any) -> Channel:
    """Return a channel that gives these answers in order, and the last one for ever."""
    left = list(answers)
    return Channel(lambda request: left.pop(0) if len(left) > 1 else left[0])


def test_a_starting_broker_waits_for_controllers_and_for_its_previous_session(caplog: pytest.LogCaptureFixture) -> None:
    channel = scripted(
        Disconnected("connection refused at c:9093"),
        BrokerRegistrationResponse(error_code=ErrorCode.DUPLICATE_BROKER_REGISTRATION),
        KafkaError(ErrorCode.NOT_CONTROLLER, "election"),
        BrokerRegistrationResponse(broker_epoch=17),
    )

    async def work(loop: SimulatedLoop) -> None:
        subject = registration(channel)
        await subject.register_at_start(9)
        assert subject.broker_epoch == 17
        assert [request.previous_broker_epoch for request in channel.requests] == [9] * 4

    with caplog.at_level(logging.WARNING):
        run(work)
    (line,) = caplog.messages
    assert "broker 1 is not registered yet" in line and "connection refused at c:9093" in line


@pytest.mark.parametrize(
    ("code", "text"),
    [
        (ErrorCode.INCONSISTENT_CLUSTER_ID, "another cluster than the log.dirs of this broker.*cluster"),
        (ErrorCode.CLUSTER_AUTHORIZATION_FAILED, "super.users"),
        (ErrorCode.UNSUPPORTED_VERSION, "log of the active controller"),
    ],
)
def test_a_refusal_that_waiting_cannot_end_is_raised_at_once(code: ErrorCode, text: str) -> None:
    channel = scripted(BrokerRegistrationResponse(error_code=code))

    async def work(loop: SimulatedLoop) -> None:
        with pytest.raises(KafkaError, match=text) as caught:
            await registration(channel).register_at_start(-1)
        assert caught.value.code is code and len(channel.requests) == 1

    run(work)


def test_a_broker_that_cannot_register_in_time_raises_the_last_reason() -> None:
    channel = scripted(BrokerRegistrationResponse(error_code=ErrorCode.DUPLICATE_BROKER_REGISTRATION))

    async def work(loop: SimulatedLoop) -> None:
        with pytest.raises(KafkaError, match=r"another process with node\.id=1"):
            await registration(channel).register_at_start(-1)
        assert REGISTRATION_S - 1 < loop.time() <= REGISTRATION_S + 1

    run(work)


@pytest.mark.parametrize("code", [ErrorCode.STALE_BROKER_EPOCH, ErrorCode.BROKER_ID_NOT_REGISTERED])
def test_a_broker_that_the_controller_no_longer_knows_registers_again(code: ErrorCode) -> None:
    forgotten = True

    def respond(request: Any) -> Any:
        nonlocal forgotten
        if isinstance(request, BrokerRegistrationRequest):
            forgotten = False
            return BrokerRegistrationResponse(broker_epoch=40)
        return BrokerHeartbeatResponse(error_code=code if forgotten else ErrorCode.NONE, is_fenced=False)

    channel = Channel(respond)

    async def work(loop: SimulatedLoop) -> None:
        subject = registration(channel)
        subject.broker_epoch = 30
        task = loop.create_task(subject.run())
        while subject.fenced:
            await asyncio.sleep(0.1)
        assert subject.broker_epoch == 40 and channel.requests[1].previous_broker_epoch == 30
        task.cancel()

    run(work)


def test_heartbeats_continue_through_a_failover_without_a_new_registration() -> None:
    channel = scripted(
        Disconnected("the leader is gone"),
        BrokerHeartbeatResponse(error_code=ErrorCode.NOT_CONTROLLER),
        BrokerHeartbeatResponse(is_fenced=False),
    )

    async def work(loop: SimulatedLoop) -> None:
        subject = registration(channel)
        task = loop.create_task(subject.run())
        await asyncio.sleep(HEARTBEAT_S * 3.5)
        assert not subject.fenced and len(channel.requests) == 3
        assert not any(isinstance(request, BrokerRegistrationRequest) for request in channel.requests)
        task.cancel()

    run(work)


def test_a_controlled_shutdown_ends_when_the_controller_agrees() -> None:
    channel = scripted(
        BrokerHeartbeatResponse(), BrokerHeartbeatResponse(), BrokerHeartbeatResponse(should_shut_down=True)
    )

    async def work(loop: SimulatedLoop) -> None:
        subject = registration(channel)
        task = loop.create_task(subject.run())
        await subject.leave()
        assert len(channel.requests) == 3
        await asyncio.sleep(2 * HEARTBEAT_S)  # a regular heartbeat must not make the broker active again
        assert len(channel.requests) > 3 and all(request.want_shut_down for request in channel.requests)
        task.cancel()

    run(work)
