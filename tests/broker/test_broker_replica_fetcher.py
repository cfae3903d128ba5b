"""What a replica fetcher requests from its leader while some of its partitions wait for the disk."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from tests.fakes import FakeClock

from headrace.base.ids import NodeId, TopicPartition, Uuid
from headrace.base.promise import Promise
from headrace.broker.channels.broker_channel import SHARED_LANE
from headrace.broker.fetching.followed import FetchOptions, FollowerIdentity
from headrace.broker.fetching.replica_fetcher import SYNCING_WAIT_MS, ReplicaFetcher
from headrace.protocol.messages.fetch import FetchRequest

WAIT_MS = 500


def partition(index: int, sync: asyncio.Future[None] | None) -> Any:
    log = SimpleNamespace(log_end=5, log_start=0, epochs=SimpleNamespace(latest=0))
    return SimpleNamespace(
        topic_id=Uuid(b"t" * 16),
        name=TopicPartition("t", index),
        is_follower=True,
        leader_epoch=0,
        log=log,
        high_watermark=5,
        unsynced=lambda: sync,
    )


class SilentChannel:
    """Keeps requests and never responds."""

    def __init__(self) -> None:
        self.requests: list[FetchRequest] = []

    async def request(self, node_id: int, message: Any, *, lane: str = SHARED_LANE) -> Any:
        self.requests.append(message)
        await asyncio.get_running_loop().create_future()

    def exchange(self, node_id: int, message: Any, *, lane: str) -> Promise[Any]:
        self.requests.append(message)
        return Promise()


async def first_request(*, is_syncing: bool) -> FetchRequest:
    async def checkpoint() -> None:
        return

    channel = SilentChannel()
    identity = FollowerIdentity(NodeId(2), lambda: 1, FakeClock(1), checkpoint)
    fetcher = ReplicaFetcher(1, 0, identity, channel, FetchOptions(wait_ms=WAIT_MS))
    fetcher.add(partition(0, None))
    fetcher.add(partition(1, asyncio.get_running_loop().create_future() if is_syncing else None))
    running = asyncio.create_task(fetcher.run())
    async with asyncio.timeout(10):
        while not channel.requests:
            await asyncio.sleep(0)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    return channel.requests[0]


@pytest.mark.parametrize(
    ("is_syncing", "wait_ms", "partitions"), [(False, WAIT_MS, [0, 1]), (True, SYNCING_WAIT_MS, [0])]
)
def test_a_fetch_without_a_partition_that_is_being_synced_is_not_held_back_for_long(
    is_syncing: bool, wait_ms: int, partitions: list[int]
) -> None:
    """A producer waits for the next fetch of the synced partition, which follows the response to this one."""
    request = asyncio.run(first_request(is_syncing=is_syncing))
    assert request.max_wait_ms == wait_ms
    assert [one.partition for topic in request.topics for one in topic.partitions] == partitions
