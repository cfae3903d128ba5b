"""Group coordinator lines: commits, heartbeats, and a large group that forms and loses members."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass

from bench.classic_members import ClassicMember
from bench.consumer_members import ConsumerMember
from bench.contestants import KAFKA, Broker, Contestant
from bench.group_frames import (
    commit_answer,
    commit_error_at,
    commit_frame,
    heartbeat_answer,
    heartbeat_error_at,
    heartbeat_frame,
    wait_for_coordinator,
)
from bench.line import Figure, Measured, Options
from bench.load import Load, Outcome, run_load
from bench.members import SESSION_MS, Channel, Crowd, Member, open_channels
from bench.processes import allow_open_files

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

    def measure(self, contestant: Contestant, topic: str, options: Options) -> Measured:
        assert isinstance(contestant, Broker)
        contestant.open_topic(topic, 1)
        groups = [f"{topic}-{number}" for number in range(CONNECTIONS)]
        try:
            wait_for_coordinator(contestant.wire, groups, topic)
            frames = [[commit_frame(group, topic)] for group in groups]
            answer = commit_answer(topic)
            load = Load(frames, 1, len(frames[0][0]), commit_error_at(topic), len(answer), len(answer))
            return _measured(self.figures, run_load(load, contestant.port, contestant.pid, options.span))
        finally:
            contestant.drop_topic(topic)


@dataclass(frozen=True)
class GroupHeartbeats:
    name: str = "group-heartbeats"
    title: str = "Heartbeat of 50 members of a stable classic group, each on its connection"
    figures: tuple[Figure, ...] = _rates(with_p99=False)
    against: tuple[str, ...] = (KAFKA,)
    alone: bool = False
    warm_rounds: int = 1

    def measure(self, contestant: Contestant, topic: str, options: Options) -> Measured:
        assert isinstance(contestant, Broker)
        contestant.open_topic(topic, CONNECTIONS)
        try:
            wait_for_coordinator(contestant.wire, [topic], topic)
            return _measured(self.figures, asyncio.run(_beat(contestant, topic, options)))
        finally:
            contestant.drop_topic(topic)


async def _beat(contestant: Broker, topic: str, options: Options) -> Outcome:
    channels = await open_channels(contestant.port, CONNECTIONS)
    members = [ClassicMember(channel, topic, topic, CONNECTIONS, LONG_SESSION_MS) for channel in channels]
    crowd = Crowd(members, CONNECTIONS)
    try:
        crowd.begin()
        await crowd.until_stable()
        await crowd.stop()
        frames = [[heartbeat_frame(topic, member.epoch, member.id)] for member in members]
        answer_bytes = len(heartbeat_answer())
        load = Load(frames, 1, len(frames[0][0]), heartbeat_error_at(), answer_bytes, answer_bytes)
        outcome = await asyncio.to_thread(run_load, load, contestant.port, contestant.pid, options.span)
        await crowd.leave()
    finally:
        await crowd.close()
    return outcome


def _measured(figures: tuple[Figure, ...], outcome: Outcome) -> Measured:
    return Measured({figure.key: getattr(outcome, figure.key) for figure in figures}, outcome.as_json())


@dataclass(frozen=True)
class LargeGroup:
    """A large group seen from its members.

    It is stable when all members are in one generation and have their share, and every partition is held by exactly one
    of them.
    """

    name: str
    title: str
    make: Callable[[Channel, str, str, int], Member]
    figures: tuple[Figure, ...] = (
        Figure("stable_s", "first join to stable, s", False, goal=NO_WORSE, digits=2),
        Figure("after_deaths_s", "end of the dead members' sessions to stable, s", False, goal=NO_WORSE, digits=2),
    )
    against: tuple[str, ...] = (KAFKA,)
    alone: bool = False
    warm_rounds: int = 1

    def measure(self, contestant: Contestant, topic: str, options: Options) -> Measured:
        assert isinstance(contestant, Broker)
        allow_open_files(options.group_members + SPARE_FILES)
        contestant.open_topic(topic, options.group_partitions)
        try:
            wait_for_coordinator(contestant.wire, [topic], topic)
            return asyncio.run(self._measure(contestant.port, topic, options))
        finally:
            contestant.drop_topic(topic)

    async def _measure(self, port: int, topic: str, options: Options) -> Measured:
        channels = await open_channels(port, options.group_members)
        members = [self.make(channel, topic, topic, options.group_partitions) for channel in channels]
        crowd = Crowd(members, options.group_partitions)
        try:
            began, cpu = time.monotonic(), time.process_time()
            crowd.begin()
            await crowd.until_stable()
            stable_s, cpu_s = time.monotonic() - began, time.process_time() - cpu
            epoch = members[0].epoch
            await crowd.let_die(options.group_deaths)
            began = time.monotonic()
            await crowd.until_stable(after=epoch)
            after_s = time.monotonic() - began
            await crowd.leave()
        finally:
            await crowd.close()
        return Measured(
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
