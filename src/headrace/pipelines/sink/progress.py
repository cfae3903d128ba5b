"""The progress of sinks: which batches are decided.

Progress is kept in a compacted topic with one partition for all sinks, which is read to its end before anything is decided. The key
`{sink}` holds the latest decision, `{sink}/finished` the token of the last one carried out. Decisions are written in transactions.
Reading only stable records would mean waiting for the open transactions of other sinks, so all records are read, including the markers:
once a driver has taken over its sink, none of the sink's own transactions is open.
"""

from __future__ import annotations

import json
from collections import defaultdict
from typing import Any
from weakref import WeakKeyDictionary

from headrace.base.errors import ErrorCode, KafkaError
from headrace.base.ids import TopicPartition, Uuid
from headrace.client.consumer.fetching import READ_COMMITTED, TRANSIENT, FetchSettings, FetchTarget, fetch_from
from headrace.client.consumer.list_offsets import EARLIEST, LATEST, list_offset
from headrace.client.retry import UNREACHABLE, Retry, RetryPolicy
from headrace.client.wire.cluster import Cluster
from headrace.pipelines.sink.commands import BatchNotDecided, Decision, Progress, SinkError, TaskTransaction
from headrace.protocol.messages.create_topics import CreateTopicsRequest, CreateTopicsResponse
from headrace.records.batch import Buffer, check_crc, iterate_batches
from headrace.records.columns import keys_and_values
from headrace.records.control import parse_control_batch, parse_marker

FETCH_BYTES = 8 << 20
FETCH_WAIT_MS = 100
READ_S_MAX = 60.0
CREATE_S_MAX = 30.0
FINISHED = "/finished"
_POLICY = RetryPolicy(codes=TRANSIENT | {ErrorCode.OFFSET_OUT_OF_RANGE})
# Only inactive segments are compacted, and a driver reads the whole topic when it starts; so segments are small.
TOPIC_CONFIGS = {
    "cleanup.policy": "compact",
    "segment.bytes": "16777216",
    "min.cleanable.dirty.ratio": "0.1",
    "max.message.bytes": "8388608",
}


# --- record values


def decision_value(decision: Decision) -> bytes:
    prefix = decision.prefix
    found = {
        "version": 1,
        "batch": decision.batch,
        "run": decision.run,
        "decision": decision.token,
        "rows": decision.rows,
        "decidedMs": decision.decided_ms,
        "closed": decision.closed,
        "prefix": prefix,
        "transactions": [[one.transactional_id.removeprefix(prefix), *one[1:]] for one in decision.transactions],
    }
    return json.dumps(found, separators=(",", ":")).encode()


def read_decision(value: bytes) -> Decision:
    """Parse a decision; raise SinkError if it is not understood, because continuing would ignore it."""
    try:
        found: dict[str, Any] = json.loads(value)
        if found["version"] != 1:
            raise ValueError(f"it is of version {found['version']}")
        transactions = tuple(
            TaskTransaction(found["prefix"] + one[0], *(int(number) for number in one[1:]))
            for one in found["transactions"]
        )
        return Decision(
            batch=int(found["batch"]),
            run=str(found["run"]),
            token=str(found["decision"]),
            transactions=transactions,
            rows=int(found["rows"]),
            decided_ms=int(found["decidedMs"]),
            closed=tuple(map(str, found["closed"])),
            prefix=str(found["prefix"]),
        )
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise SinkError(f"the progress of this sink cannot be read: {error!r} in {value[:200]!r}") from error


def finished_value(decision: Decision) -> bytes:
    return json.dumps({"batch": decision.batch, "decision": decision.token}, separators=(",", ":")).encode()


def _read_finished(value: bytes) -> str | None:
    try:
        return str(json.loads(value)["decision"])
    except (ValueError, KeyError, TypeError):
        return None  # the decision is then finished once more


class ProgressFold:
    """The latest value of each key after the records read so far; values written in a transaction count from its commit marker on."""

    def __init__(self) -> None:
        self._values: dict[bytes, bytes | None] = {}
        # Values of open transactions with their offsets, by producer id and key.
        self._open: defaultdict[int, dict[bytes, tuple[int, bytes | None]]] = defaultdict(dict)

    def feed(self, data: Buffer, position: int) -> int:
        """Apply whole batches, the first of which may begin before `position`; return the position after them."""
        view = memoryview(data)
        for start, header in iterate_batches(view):
            if header.last_offset < position:
                continue
            batch = view[start : start + header.size]
            if header.is_control:
                check_crc(batch, 0, header)
                marker = parse_marker(parse_control_batch(batch)[0])
                if marker is not None:
                    ended = self._open.pop(header.producer_id, {})
                    if marker.commit:
                        self._values.update((key, value) for key, (_, value) in ended.items())
            else:
                found = {key: value for key, value in keys_and_values(batch, header) if key is not None}
                if header.is_transactional:
                    self._open[header.producer_id] |= {key: (header.base_offset, found[key]) for key in found}
                else:
                    self._values |= found
            position = header.last_offset + 1
        return position

    def is_in_doubt(self, sink: str) -> bool:
        """Return whether a decision of the sink was read without its marker."""
        return any(sink.encode() in some for some in self._open.values())

    def progress(self, sink: str, stable_offset: int = 0) -> Progress:
        """Return the sink's progress; raise BatchNotDecided if a transaction of the sink is still open.

        A value without a marker below the last stable offset was committed, because compaction removes aborted records before their
        marker. Above the last stable offset, its transaction is open.
        """
        key = sink.encode()
        value = self._values.get(key)
        for some in self._open.values():
            if key in some:
                offset, value = some[key]
                if offset >= stable_offset:
                    raise BatchNotDecided(
                        f"another driver of {sink} is just about to decide something; it has a minute for that"
                    )
        mark = self._values.get((sink + FINISHED).encode())
        return Progress(None if value is None else read_decision(value), None if mark is None else _read_finished(mark))


# --- the topic


class ProgressLog:
    """The progress topic. Remembers its position, because a driver process outlives a batch."""

    def __init__(self, cluster: Cluster, topic: str) -> None:
        self._cluster = cluster
        self.partition = TopicPartition(topic, 0)
        self._topic_id: Uuid | None = None
        self._fold = ProgressFold()
        self._position: int | None = None

    async def read(self, sink: str) -> Progress:
        retry = Retry(_POLICY, READ_S_MAX)
        end: int | None = None
        while True:
            try:
                self._start_over_if_recreated()
                if end is None:
                    end = await list_offset(self._cluster, self.partition, LATEST)
                if self._position is None:
                    self._position = await list_offset(self._cluster, self.partition, EARLIEST)
                if self._position >= end:
                    return await self._progress(sink)
                await self._fetch()
                retry.reset()
            except (*UNREACHABLE, KafkaError) as error:
                if isinstance(error, KafkaError) and error.code is ErrorCode.OFFSET_OUT_OF_RANGE:
                    self._position, self._fold, end = None, ProgressFold(), None
                self._cluster.forget_leader(self.partition)
                await retry.pause(error)
            else:
                if retry.left_s == 0:
                    raise SinkError(
                        f"{self.partition} was read only up to offset {self._position} of {end} in {READ_S_MAX:g} s"
                    )

    async def _progress(self, sink: str) -> Progress:
        if not self._fold.is_in_doubt(sink):
            return self._fold.progress(sink)
        stable_offset = await list_offset(self._cluster, self.partition, LATEST, isolation=READ_COMMITTED)
        return self._fold.progress(sink, stable_offset)

    def _start_over_if_recreated(self) -> None:
        now = self._cluster.topic_id(self.partition.topic)
        if now != self._topic_id:
            self._topic_id, self._position, self._fold = now, None, ProgressFold()

    async def _fetch(self) -> None:
        assert self._position is not None
        leader = await self._cluster.leader_id(self.partition)
        settings = FetchSettings(max_wait_ms=FETCH_WAIT_MS, max_bytes=FETCH_BYTES, partition_max_bytes=FETCH_BYTES)
        for fetched in await fetch_from(self._cluster, leader, [FetchTarget(self.partition, self._position)], settings):
            if fetched.error is not ErrorCode.NONE:
                raise KafkaError(fetched.error, f"{self.partition} at offset {self._position}")
            self._position = self._fold.feed(fetched.data, self._position)

    async def make(self, replication: int) -> None:
        """Create the topic if it does not exist."""
        topic = self.partition.topic
        try:
            await self._cluster.partitions(topic)
            return
        except KafkaError as error:
            if error.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                raise
        replication = min(replication, len(await self._cluster.brokers()))
        configs = TOPIC_CONFIGS | ({"min.insync.replicas": "2"} if replication > 2 else {})
        request = CreateTopicsRequest(
            topics=[
                CreateTopicsRequest.CreatableTopic(
                    name=topic,
                    num_partitions=1,
                    replication_factor=replication,
                    configs=[
                        CreateTopicsRequest.CreatableTopicConfig(name=name, value=value)
                        for name, value in configs.items()
                    ],
                )
            ],
            timeout_ms=int(CREATE_S_MAX * 1000),
        )
        response: CreateTopicsResponse = await self._cluster.request(request)
        code = ErrorCode(response.topics[0].error_code)
        if code not in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS):
            raise KafkaError(code, response.topics[0].error_message or f"topic {topic} could not be made")
        await self._wait_until_created()

    async def _wait_until_created(self) -> None:
        policy = RetryPolicy(exceptions=())
        await Retry(policy, CREATE_S_MAX).run(lambda: self._cluster.partitions(self.partition.topic))


_logs: WeakKeyDictionary[Cluster, dict[str, ProgressLog]] = WeakKeyDictionary()


def progress_log(cluster: Cluster, topic: str) -> ProgressLog:
    """Return this process's log for the cluster and topic."""
    logs = _logs.setdefault(cluster, {})
    if topic not in logs:
        logs[topic] = ProgressLog(cluster, topic)
    return logs[topic]
