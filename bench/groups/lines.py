"""Group coordinator lines: commits, heartbeats, and a large group that forms and loses members."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass

from bench.groups.classic_member import ClassicMember
from bench.groups.consumer_member import ConsumerMember
from bench.groups.frames import (
    commit_error_at,
    commit_frame,
    commit_response,
    heartbeat_error_at,
    heartbeat_frame,
    heartbeat_response,
    wait_for_coordinator,
)
from bench.groups.members import SESSION_MS, AsyncConnection, Group, Member, open_connections
from bench.line import Figure, Measurement, Options
from bench.load.generator import Load, Outcome, run_load, target_of
from bench.systems.processes import allow_open_files
from bench.systems.servers import KAFKA, Broker, System

CONNECTIONS = 50
LONG_SESSION_MS = 600_000  # session timeout while the load sends heartbeats in place of the members
SPARE_FILES = 500
NO_WORSE = 1.0


def _rates(*, with_p99: bool) -> tuple[Figure, ...]:
    p99 = (Figure("p99_us", "p99 µs", False, goal=NO_WORSE),) if with_p99 else ()
    return (
        Figure("requests_per_s", "requests/s", True, goal=NO_WORSE),
        *p99,
        Figure("cpu_us_per_request", "CPU µs/request", False, digits=1),
    )


@dataclass(frozen=True)
class GroupCommits:
    name: str = "group-commits"
    title: str = "OffsetCommit of one offset, 50 connections, each a group"
    figures: tuple[Figure, ...] = _rates(with_p99=True)
    against: tuple[str, ...] = (KAFKA,)
    alone: bool = False
    warm_rounds: int = 1

    def measure(self, system: System, topic: str, options: Options) -> Measurement:
        assert isinstance(system, Broker)
        system.create_topic(topic, 1)
        groups = [f"{topic}-{number}" for number in range(CONNECTIONS)]
        try:
            wait_for_coordinator(system.connection, groups, topic)
            frames = [[commit_frame(group, topic)] for group in groups]
            response_bytes = len(commit_response(topic))
            load = Load(frames, 1, len(frames[0][0]), commit_error_at(topic), response_bytes, response_bytes)
            return _measurement(self.figures, run_load(load, target_of(system), options.span))
        finally:
            system.delete_topic(topic)


@dataclass(frozen=True)
class GroupHeartbeats:
    name: str = "group-heartbeats"
    title: str = "Heartbeat of 50 members of a stable classic group, each on its connection"
    figures: tuple[Figure, ...] = _rates(with_p99=False)
    against: tuple[str, ...] = (KAFKA,)
    alone: bool = False
    warm_rounds: int = 1

    def measure(self, system: System, topic: str, options: Options) -> Measurement:
        assert isinstance(system, Broker)
        system.create_topic(topic, CONNECTIONS)
        try:
            wait_for_coordinator(system.connection, [topic], topic)
            return _measurement(self.figures, asyncio.run(_run_heartbeats(system, topic, options)))
        finally:
            system.delete_topic(topic)


async def _run_heartbeats(system: Broker, topic: str, options: Options) -> Outcome:
    connections = await open_connections(system.port, CONNECTIONS)
    members = [ClassicMember(connection, topic, topic, CONNECTIONS, LONG_SESSION_MS) for connection in connections]
    group = Group(members, CONNECTIONS)
    try:
        group.start()
        await group.wait_until_stable()
        await group.stop()
        frames = [[heartbeat_frame(topic, member.epoch, member.id)] for member in members]
        response_bytes = len(heartbeat_response())
        load = Load(frames, 1, len(frames[0][0]), heartbeat_error_at(), response_bytes, response_bytes)
        outcome = await asyncio.to_thread(run_load, load, target_of(system), options.span)
        await group.leave()
    finally:
        await group.close()
    return outcome


def _measurement(figures: tuple[Figure, ...], outcome: Outcome) -> Measurement:
    return Measurement({figure.key: getattr(outcome, figure.key) for figure in figures}, outcome.as_json())


@dataclass(frozen=True)
class LargeGroup:
    """A large group seen from its members.

    It is stable when all members are in one generation and have their share, and every partition is assigned to exactly
    one of them.
    """

    name: str
    title: str
    make_member: Callable[[AsyncConnection, str, str, int], Member]
    figures: tuple[Figure, ...] = (
        Figure("stable_s", "first join to stable, s", False, goal=NO_WORSE, digits=2),
        Figure("after_deaths_s", "end of the dead members' sessions to stable, s", False, goal=NO_WORSE, digits=2),
    )
    against: tuple[str, ...] = (KAFKA,)
    alone: bool = False
    warm_rounds: int = 1

    def measure(self, system: System, topic: str, options: Options) -> Measurement:
        assert isinstance(system, Broker)
        allow_open_files(options.group_members + SPARE_FILES)
        system.create_topic(topic, options.group_partitions)
        try:
            wait_for_coordinator(system.connection, [topic], topic)
            return asyncio.run(self._measure(system.port, topic, options))
        finally:
            system.delete_topic(topic)

    async def _measure(self, port: int, topic: str, options: Options) -> Measurement:
        connections = await open_connections(port, options.group_members)
        members = [self.make_member(connection, topic, topic, options.group_partitions) for connection in connections]
        group = Group(members, options.group_partitions)
        try:
            began, cpu = time.monotonic(), time.process_time()
            group.start()
            await group.wait_until_stable()
            stable_s, cpu_s = time.monotonic() - began, time.process_time() - cpu
            epoch = members[0].epoch
            await group.crash(options.group_deaths)
            began = time.monotonic()
            await group.wait_until_stable(after=epoch)
            after_s = time.monotonic() - began
            await group.leave()
        finally:
            await group.close()
        return Measurement(
            {"stable_s": stable_s, "after_deaths_s": max(0.0, after_s - SESSION_MS / 1000)},
            {
                "client_cpu_s": cpu_s,
                "session_ms": SESSION_MS,
                "epoch": epoch,
                "members": options.group_members,
                "deaths": options.group_deaths,
            },
        )


CLASSIC_GROUP = LargeGroup(
    "group-200", "200 members of a classic group over 500 partitions, then 10 of them die", ClassicMember
)
CONSUMER_GROUP = LargeGroup(
    "group-200-consumer", "200 members of a consumer group over 500 partitions, then 10 of them die", ConsumerMember
)
