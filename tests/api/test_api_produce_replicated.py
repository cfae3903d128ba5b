"""Produce with acks=all to a replicated partition: the short path waits for the followers, and responds like the long path."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random
from types import SimpleNamespace
from typing import Any, cast

import pytest
from testkit.simulator.loop import SimulatedLoop
from tests.fakes import FakeClock
from tests.replication.replication_samples import make_files

from headrace.api.data.produce import ProduceApi
from headrace.api.data.produce_single import SingleProduce
from headrace.api.table import make_table
from headrace.base.errors import ErrorCode
from headrace.base.ids import NodeId, TopicPartition, Uuid
from headrace.base.metrics import Metrics
from headrace.client.wire.frames import decode_response
from headrace.metadata.image import Image
from headrace.metadata.image import Partition as PartitionState
from headrace.protocol.compiler import codec
from headrace.protocol.headers import request_header
from headrace.protocol.messages.produce import ProduceRequest, ProduceResponse
from headrace.records.builder import build_batch
from headrace.records.record import Record
from headrace.replication.group_commit import GroupCommit
from headrace.replication.partition import FollowerFetch, Partition
from headrace.server.authority import ALLOW_ALL
from headrace.server.context import Peer
from headrace.server.dispatch import Dispatcher
from headrace.server.frames import Deferred
from headrace.server.response_writer import joined
from headrace.storage.log import Log
from headrace.storage.log_config import LogConfig

NOW_MS = 1_700_000_000_000
NODE, OTHER = NodeId(1), 2
STATE = PartitionState((NODE, OTHER), (NODE, OTHER), NODE, 1, 1)
VERSIONS = (9, 12)
PEER = Peer("PLAINTEXT", "127.0.0.1", authority=ALLOW_ALL)


class TwoPartitions:
    """Two partitions in the same state: `aaaa` is produced to on the short path, `bbbb` on the long one."""

    def __init__(self, min_isr: int = 2) -> None:
        self.loop = SimulatedLoop(Random(1))
        self.partitions = {name: self._partition(name, min_isr) for name in ("aaaa", "bbbb")}
        replicas = cast("Any", SimpleNamespace(get=lambda topic, index: self.partitions[topic]))
        clock, metrics = FakeClock(NOW_MS, self.loop), Metrics()
        long_path = ProduceApi(replicas, Image, clock, self.loop)
        self.short_path = SingleProduce(replicas, clock, self.loop, metrics)
        self.dispatcher = Dispatcher(make_table([long_path]), bytes, metrics, self.loop)

    def _partition(self, name: str, min_isr: int) -> Partition:
        topic_partition = TopicPartition(name, 0)
        topic_id = Uuid(name.encode() * 4)
        log, _ = Log.open(
            make_files(), f"/data/{name}-0", topic_partition, LogConfig(), topic_id=topic_id, now_ms=NOW_MS
        )
        partition = Partition(topic_partition, topic_id, NODE, log, 0)
        partition.commit = GroupCommit(log, self.loop, partition.synced, partition.fail)
        partition.configure(min_isr)
        partition.lead(STATE, NOW_MS)
        return partition

    def produce(
        self, name: str, version: int, acks: int, timeout_ms: int = 1000
    ) -> Callable[[], ProduceResponse | None]:
        """Send a batch; return a function that returns the response, or None while there is none."""
        batch = bytes(build_batch([Record(0, NOW_MS, b"k", b"v" * 20)] * 3))
        data = ProduceRequest.TopicProduceData(
            name=name, partition_data=[ProduceRequest.PartitionProduceData(index=0, records=batch)]
        )
        request = ProduceRequest(acks=acks, timeout_ms=timeout_ms, topic_data=[data])
        body = codec(ProduceRequest, version).encode(request)
        frame = memoryview(bytearray(request_header(0, version, 77, "client") + body))
        handle = self.short_path.handle if name == "aaaa" else self.dispatcher.handle
        response = handle(PEER, frame)
        assert response is not None, "the path declined the request"

        def answered() -> ProduceResponse | None:
            parts = response.response if isinstance(response, Deferred) else response
            if parts is None:
                return None
            decoded: ProduceResponse = decode_response(0, version, 77, memoryview(joined(parts))[4:])
            decoded.responses[0].name = ""
            message = decoded.responses[0].partition_responses[0].error_message
            decoded.responses[0].partition_responses[0].error_message = message and message.replace(name, "")
            return decoded

        return answered

    def fetch(self, offset: int) -> None:
        """Let the follower fetch from both partitions, which tells their leader that it has everything below the offset."""
        for partition in self.partitions.values():
            fetch = FollowerFetch(OTHER, 5, offset, 0, -1)
            partition.plan_replica_read(fetch, 1000, min_one=True)
            partition.record_fetch(fetch, NOW_MS)

    def wait(self, seconds: float) -> None:
        self.loop.run_until_complete(asyncio.sleep(seconds))


@pytest.fixture
def two() -> TwoPartitions:
    return TwoPartitions()


def error_of(response: ProduceResponse | None) -> ErrorCode:
    assert response is not None
    return ErrorCode(response.responses[0].partition_responses[0].error_code)


@pytest.mark.parametrize("version", VERSIONS)
def test_the_response_is_sent_in_the_call_that_records_the_fetch_of_the_last_follower(
    two: TwoPartitions, version: int
) -> None:
    short, long = two.produce("aaaa", version, -1), two.produce("bbbb", version, -1)
    assert short() is None and long() is None
    two.fetch(0)
    assert short() is None and long() is None
    two.fetch(3)
    assert error_of(short()) is ErrorCode.NONE
    assert short() == long()
    two.loop.close()


@pytest.mark.parametrize("version", VERSIONS)
def test_acks_of_the_leader_wait_for_nobody(two: TwoPartitions, version: int) -> None:
    short, long = two.produce("aaaa", version, 1), two.produce("bbbb", version, 1)
    assert error_of(short()) is ErrorCode.NONE
    assert short() == long()
    two.loop.close()


@pytest.mark.parametrize("version", VERSIONS)
def test_a_batch_that_is_not_replicated_in_time_is_refused_alike(two: TwoPartitions, version: int) -> None:
    short, long = two.produce("aaaa", version, -1, 50), two.produce("bbbb", version, -1, 50)
    two.wait(0.04)
    assert short() is None and long() is None
    two.wait(0.02)
    assert error_of(short()) is ErrorCode.REQUEST_TIMED_OUT
    assert short() == long()
    two.loop.close()


@pytest.mark.parametrize("version", VERSIONS)
def test_a_batch_whose_leader_changes_before_it_is_replicated_is_refused_alike(
    two: TwoPartitions, version: int
) -> None:
    short, long = two.produce("aaaa", version, -1), two.produce("bbbb", version, -1)
    for partition in two.partitions.values():
        partition.follow(PartitionState((NODE, OTHER), (NODE, OTHER), OTHER, 2, 2))
    assert error_of(short()) is ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
    assert short() == long()
    two.loop.close()


def test_an_abandoned_request_leaves_no_waiter(two: TwoPartitions) -> None:
    two.produce("aaaa", 9, -1)
    waiting = two.partitions["aaaa"]._acks
    assert len(waiting) == 1
    batch = bytes(build_batch([Record(0, NOW_MS, b"k", b"v")]))
    data = ProduceRequest.TopicProduceData(
        name="aaaa", partition_data=[ProduceRequest.PartitionProduceData(index=0, records=batch)]
    )
    body = codec(ProduceRequest, 9).encode(ProduceRequest(acks=-1, timeout_ms=1000, topic_data=[data]))
    deferred = two.short_path.handle(PEER, memoryview(bytearray(request_header(0, 9, 78, "client") + body)))
    assert isinstance(deferred, Deferred) and len(waiting) == 2
    deferred.abandon()
    assert len(waiting) == 1 and deferred.done
    two.loop.close()


def test_too_few_in_sync_replicas_are_left_to_the_long_path() -> None:
    two = TwoPartitions(min_isr=3)
    with pytest.raises(AssertionError, match="declined"):
        two.produce("aaaa", 9, -1)
    assert error_of(two.produce("bbbb", 9, -1)()) is ErrorCode.NOT_ENOUGH_REPLICAS
    assert two.partitions["aaaa"].log.log_end == 0
    two.loop.close()
