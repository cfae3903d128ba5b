"""A source's requests to brokers: which partitions exist, where they begin and end, how large they are, and whether records have arrived.

Transient errors are retried until kafka.default.api.timeout.ms; an address that has never responded is given up sooner.
"""

from __future__ import annotations

import asyncio
import socket
from collections import defaultdict
from collections.abc import Awaitable, Callable, Container, Iterable, Mapping
from typing import Any, TypeVar

from headrace.base.errors import RETRIABLE, ErrorCode, HeadraceError, KafkaError
from headrace.base.ids import ZERO_UUID, TopicPartition, uuid_text
from headrace.base.patterns import Pattern
from headrace.client.consumer.fetching import FetchSettings, FetchTarget, fetch_from
from headrace.client.consumer.list_offsets import EARLIEST, LATEST, NO_OFFSET, list_offsets
from headrace.client.consumer.options import ISOLATION
from headrace.client.retry import UNREACHABLE, Backoff, Retry, RetryPolicy
from headrace.client.wire.cluster import Cluster
from headrace.pipelines.background import background
from headrace.pipelines.failures import SourceError
from headrace.pipelines.source.bounds import Bound, BoundKind
from headrace.pipelines.source.options import SourceOptions, Topics
from headrace.pipelines.source.planning import Layout, Offsets
from headrace.protocol.messages.describe_log_dirs import DescribeLogDirsRequest, DescribeLogDirsResponse
from headrace.protocol.messages.metadata import MetadataResponse

T = TypeVar("T")

FIRST_CONTACT_S_MAX = 5.0  # long enough for a broker that is starting, short enough to report a wrong address soon
STALE_S_MAX = 2.0  # a new leader may briefly not know the old one's high watermark, or a broker not all topics
GONE = frozenset({ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.INVALID_TOPIC_EXCEPTION})
_POLICY = RetryPolicy(codes=RETRIABLE - GONE, exceptions=(SourceError,))


class Stale(HeadraceError):
    """Metadata or offsets that may be outdated: request them again before believing them."""


STALE_POLICY = RetryPolicy(Backoff(0.1, 0.1), codes=frozenset(), exceptions=(Stale,))


class Brokers:
    """Broker requests of the driver, which makes them one at a time."""

    def __init__(self, cluster: Cluster, options: SourceOptions) -> None:
        self._cluster = cluster
        self._topics = options.topics
        self._pattern = None if options.topics.pattern is None else Pattern(options.topics.pattern)
        self.isolation = ISOLATION[str(options.client["isolation.level"])]
        timeout_ms = options.client["default.api.timeout.ms"]
        assert isinstance(timeout_ms, int)
        self._timeout_s = timeout_ms / 1000
        self._was_reached = False

    @classmethod
    async def open(cls, options: SourceOptions) -> Brokers:
        return cls(await background().cluster(options.client), options)

    async def layout(self) -> Layout:
        """Return the subscribed partitions that exist; missing topics are left out."""
        return await self._retry(self._layout)

    async def named_layout(self, but: Container[str] = ()) -> Layout:
        """Return the layout; raise SourceError if a topic or partition requested by name is missing, except for topics in `but`."""

        async def attempt() -> Layout:
            layout = await self.layout()
            absent = _missing(self._topics, layout, but)
            if absent:
                raise Stale(f"there is no {', no '.join(absent)}")
            return layout

        try:
            return await Retry(STALE_POLICY, STALE_S_MAX).run(attempt)
        except Stale as error:
            raise SourceError(str(error)) from None

    async def earliest(self, partitions: Iterable[TopicPartition]) -> Offsets:
        return await self._listed(dict.fromkeys(partitions, EARLIEST))

    async def latest(self, partitions: Iterable[TopicPartition]) -> Offsets:
        return await self._listed(dict.fromkeys(partitions, LATEST))

    async def since(self, partitions: Iterable[TopicPartition], timestamp_ms: int) -> Offsets:
        """Return the offset of each partition's first record at or after the timestamp, or its end if there is none."""
        return await self._by_time(dict.fromkeys(partitions, timestamp_ms), None)

    async def resolve(self, bound: Bound, layout: Layout) -> Offsets:
        """Return the bound as offsets; raise SourceError if it does not match the partitions that exist."""
        if bound.kind is BoundKind.EARLIEST:
            return await self.earliest(layout.partitions)
        if bound.kind is BoundKind.LATEST:
            return await self.latest(layout.partitions)
        if bound.kind is BoundKind.TIMESTAMP:
            times = dict.fromkeys(layout.partitions, bound.timestamp)
            return await self._by_time(times, None if bound.latest_if_none else bound)
        _check_all_named(bound, layout)
        if bound.kind is BoundKind.TIMESTAMPS:
            return await self._by_time(bound.values, None if bound.latest_if_none else bound)
        named = {one: offset for one, offset in bound.values.items() if offset >= 0}
        return named | await self._listed({one: word for one, word in bound.values.items() if word < 0})

    async def record_sizes(self, ends: Mapping[TopicPartition, int]) -> dict[TopicPartition, float]:
        """Return the mean size on disk, in bytes, of the records of each partition."""
        begins = await self.earliest(ends)
        sizes = await self._retry(lambda: self._log_sizes(ends))
        return {one: sizes[one] / max(1, ends[one] - begins[one]) for one in sizes}

    async def wait_for_more(self, positions: Mapping[TopicPartition, int], wait_ms: int) -> None:
        """Return when any partition has data at its position or after `wait_ms`; the brokers do the waiting (long polling)."""
        settings = FetchSettings(max_wait_ms=wait_ms, max_bytes=1, partition_max_bytes=1, isolation=self.isolation)
        by_leader: dict[int, list[FetchTarget]] = defaultdict(list)
        for partition, offset in positions.items():
            leader = self._cluster.known_leader(partition)
            if leader is not None:
                by_leader[leader].append(FetchTarget(partition, offset))
        waits = [
            asyncio.ensure_future(fetch_from(self._cluster, leader, targets, settings))
            for leader, targets in by_leader.items()
        ]
        pause = asyncio.ensure_future(asyncio.sleep(wait_ms / 1000))
        waiting: set[asyncio.Future[Any]] = {pause, *waits}
        try:
            while pause in waiting:
                done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                for one in done - {pause}:
                    # Errors are ignored here: the next request that is not a long poll reports them better.
                    if one.exception() is None and any(len(response.data) for response in one.result()):
                        return
        finally:
            for left in waiting:
                left.cancel()

    async def _layout(self) -> Layout:
        found = await self._metadata()
        there = {topic.name: topic for topic in found if topic.name is not None and _is_there(topic)}
        partitions = frozenset(_partitions(self._topics, there))
        names = {partition.topic for partition in partitions}
        ids = {name: uuid_text(there[name].topic_id) for name in names if there[name].topic_id != ZERO_UUID}
        return Layout(partitions, ids)

    async def _metadata(self) -> list[MetadataResponse.MetadataResponseTopic]:
        if self._pattern is None:
            names = self._topics.names or [topic for topic, _ in self._topics.assigned]
            return (await self._cluster.refresh(names)).topics
        return [
            topic
            for topic in (await self._cluster.refresh(None)).topics
            if topic.name is not None and not topic.is_internal and self._pattern.matches(topic.name)
        ]

    async def _listed(self, times: Mapping[TopicPartition, int]) -> Offsets:
        if not times:
            return {}
        found = await self._retry(lambda: list_offsets(self._cluster, times, isolation=self.isolation))
        return {partition: listed.offset for partition, listed in found.items()}

    async def _by_time(self, times: Mapping[TopicPartition, int], strict: Bound | None) -> Offsets:
        found = await self._listed(times)
        none = sorted(partition for partition, offset in found.items() if offset == NO_OFFSET)
        if none and strict is not None:
            raise SourceError(
                f"{strict.option}: {none[0]} has no record at or after {times[none[0]]} ms"
                " (startingOffsetsByTimestampStrategy=latest begins at its end then)"
            )
        return found | await self.latest(none)

    async def _log_sizes(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        requested: dict[int, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
        for partition in partitions:
            requested[await self._cluster.leader_id(partition)][partition.topic].append(partition.partition)
        sizes: dict[TopicPartition, int] = {}
        for leader, topics in requested.items():
            request = DescribeLogDirsRequest(
                topics=[
                    DescribeLogDirsRequest.DescribableLogDirTopic(topic=topic, partitions=some)
                    for topic, some in topics.items()
                ]
            )
            response: DescribeLogDirsResponse = await (await self._cluster.broker(leader)).request(request)
            for folder in response.results:
                for topic in folder.topics:
                    for one in topic.partitions:
                        if not one.is_future_key:
                            sizes[TopicPartition(topic.name, one.partition_index)] = one.partition_size
        return sizes

    async def _retry(self, attempt: Callable[[], Awaitable[T]]) -> T:
        retry = Retry(_POLICY, self._timeout_s)
        first_contact = Retry(_POLICY, min(self._timeout_s, FIRST_CONTACT_S_MAX))
        while True:
            try:
                response = await attempt()
                self._was_reached = True
                return response
            except UNREACHABLE as error:
                failure = SourceError(f"kafka.bootstrap.servers: {error}")
                failure.__cause__ = error
                if isinstance(error.__cause__, socket.gaierror):
                    raise failure from error
                await (retry if self._was_reached else first_contact).pause(failure)
            except KafkaError as error:
                await retry.pause(error)


def _is_there(topic: MetadataResponse.MetadataResponseTopic) -> bool:
    code = ErrorCode(topic.error_code)
    if code in GONE:
        return False
    if code is not ErrorCode.NONE:
        raise KafkaError(code, f"topic {topic.name}")
    return True


def _partitions(
    topics: Topics, there: Mapping[str, MetadataResponse.MetadataResponseTopic]
) -> Iterable[TopicPartition]:
    if not topics.assigned:
        for name, topic in there.items():
            yield from (TopicPartition(name, partition.partition_index) for partition in topic.partitions)
    for name, indexes in topics.assigned:
        known = {partition.partition_index for partition in there[name].partitions} if name in there else set()
        yield from (TopicPartition(name, index) for index in indexes if index in known)


def _missing(topics: Topics, layout: Layout, but: Container[str]) -> list[str]:
    """Describe the topics and partitions requested by name that do not exist, except for topics in `but`."""
    there = layout.topics
    lost = [f"topic {name}" for name in topics.names if name not in there and name not in but]
    for name, indexes in topics.assigned:
        if name not in but:
            lost += [str(one) for index in indexes if (one := TopicPartition(name, index)) not in layout.partitions]
    return lost


def _check_all_named(bound: Bound, layout: Layout) -> None:
    unnamed, odd = layout.partitions - bound.values.keys(), bound.values.keys() - layout.partitions
    if unnamed or odd:
        wrong = [f"it does not name {', '.join(map(str, sorted(unnamed)))}"] if unnamed else []
        wrong += [f"there is no {', '.join(map(str, sorted(odd)))}"] if odd else []
        raise SourceError(f"{bound.option} must name all partitions that are read and no others: {'; '.join(wrong)}")
