"""Followers that request impossible things of a leader: the right error, and neither its high watermark nor its sessions suffer."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from tests.cluster.simulated_cluster import T0, SimulatedCluster, simulate

from headrace.base.errors import ErrorCode
from headrace.base.ids import Uuid
from headrace.client.wire.connection import Connection
from headrace.protocol.messages.fetch import FetchRequest, FetchResponse

RECORDS = 5
UNKNOWN = Uuid(b"x" * 16)
INT_MAX, LONG_MAX = 2**31 - 1, 2**63 - 1
REQUESTS = 300
NUMBERS = (-LONG_MAX - 1, -INT_MAX - 1, -2, -1, 0, 1, RECORDS + 1, INT_MAX, LONG_MAX)
SESSIONS = 1_000  # the default of max.incremental.fetch.session.cache.slots


class HostileFollower:
    """A connection to the leader of a partition, in the name of one of its followers."""

    def __init__(self, cluster: SimulatedCluster, connection: Connection) -> None:
        image, state = cluster.image(), cluster.state()
        assert state is not None
        self.connection = connection
        self.topic_id = image.topics[T0.topic].id
        self.leader_epoch = state.leader_epoch
        self.id = next(replica for replica in state.isr if replica != state.leader)
        self.broker_epoch = image.brokers[self.id].epoch

    async def fetch(self, *partitions: FetchRequest.FetchPartition, **fields: Any) -> FetchResponse:
        request = FetchRequest(
            replica_state=FetchRequest.ReplicaState(replica_id=self.id, replica_epoch=self.broker_epoch),
            topics=[FetchRequest.FetchTopic(topic_id=fields.pop("topic_id", self.topic_id), partitions=[*partitions])],
            **{"max_wait_ms": 0, "session_epoch": -1, "max_bytes": INT_MAX, **fields},
        )
        response: FetchResponse = await self.connection.request(request)
        return response

    async def code_of(self, partition: FetchRequest.FetchPartition, **fields: Any) -> ErrorCode:
        response = await self.fetch(partition, **fields)
        return ErrorCode(response.error_code or response.responses[0].partitions[0].error_code)

    def at(self, offset: int, partition: int = 0, **fields: Any) -> FetchRequest.FetchPartition:
        known = {"current_leader_epoch": self.leader_epoch, "partition_max_bytes": INT_MAX}
        return FetchRequest.FetchPartition(partition=partition, fetch_offset=offset, **{**known, **fields})


async def start(cluster: SimulatedCluster) -> HostileFollower:
    await cluster.create()
    await cluster.send(RECORDS)
    await cluster.until_in_sync()
    return HostileFollower(cluster, await Connection.connect(f"node-{cluster.leader()}", 9092))


async def assert_unharmed(cluster: SimulatedCluster, state: Any) -> None:
    """Check that all replicas are as before, and that new records still reach all of them."""
    for node_id in cluster.machines:
        replica = cluster.replica(node_id)
        assert replica is not None and replica.log.log_end == replica.high_watermark == RECORDS
    assert cluster.state() == state
    await cluster.send(3)
    await cluster.until_in_sync()
    assert cluster.failures == {}


def test_impossible_offsets_and_epochs_of_a_follower_are_refused() -> None:
    async def main(cluster: SimulatedCluster) -> None:
        follower = await start(cluster)
        state = cluster.state()
        for offset in (-LONG_MAX - 1, -2, -1, RECORDS + 1, LONG_MAX):
            assert await follower.code_of(follower.at(offset)) is ErrorCode.OFFSET_OUT_OF_RANGE
        new = await follower.code_of(follower.at(0, current_leader_epoch=INT_MAX))
        assert new is ErrorCode.UNKNOWN_LEADER_EPOCH
        for index in (-1, 1, INT_MAX):
            assert await follower.code_of(follower.at(0, index)) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert await follower.code_of(follower.at(0), topic_id=UNKNOWN) is ErrorCode.UNKNOWN_TOPIC_ID
        await follower.connection.close()
        await assert_unharmed(cluster, state)

    simulate(main, seed=21)


def test_sessions_of_others_and_wrong_session_epochs_are_refused() -> None:
    async def main(cluster: SimulatedCluster) -> None:
        follower = await start(cluster)
        state = cluster.state()
        opened = await follower.fetch(follower.at(RECORDS), session_epoch=0)
        assert opened.session_id > 0
        session = {"session_id": opened.session_id}
        for epoch in (2, INT_MAX, -5):
            refused = await follower.fetch(session_epoch=epoch, **session)
            assert ErrorCode(refused.error_code) is ErrorCode.INVALID_FETCH_SESSION_EPOCH
        unknown = await follower.fetch(session_epoch=1, session_id=opened.session_id ^ 1)
        assert ErrorCode(unknown.error_code) is ErrorCode.FETCH_SESSION_ID_NOT_FOUND
        follower.id += 100
        stolen = await follower.fetch(session_epoch=1, **session)
        assert ErrorCode(stolen.error_code) is ErrorCode.FETCH_SESSION_ID_NOT_FOUND
        follower.id -= 100
        strange = [FetchRequest.ForgottenTopic(topic_id=UNKNOWN, partitions=[-1, INT_MAX, 0, 0])]
        kept = await follower.fetch(session_epoch=1, forgotten_topics_data=strange, **session)
        assert (kept.error_code, kept.responses) == (0, [])
        await follower.connection.close()
        await assert_unharmed(cluster, state)

    simulate(main, seed=22)


@pytest.mark.parametrize("seed", range(31, 35))
def test_random_fetches_of_a_stranger_change_nothing(seed: int) -> None:
    """They come with offsets that exist, too; so the sender is not one of the replicas, or an earlier incarnation of one."""

    async def main(cluster: SimulatedCluster) -> None:
        follower, random = await start(cluster), Random(seed)
        state = cluster.state()
        sessions = [0]
        for _ in range(REQUESTS):
            follower.id, follower.broker_epoch = random.choice([(99, 1), (follower.id, random.randrange(-1, 3))])
            partitions = [
                follower.at(
                    random.choice(NUMBERS),
                    random.choice((0, 0, 0, 1, -1, INT_MAX)),
                    current_leader_epoch=random.choice((-1, follower.leader_epoch, INT_MAX)),
                    log_start_offset=random.choice(NUMBERS),
                    partition_max_bytes=random.choice((-1, 0, 1, INT_MAX)),
                )
                for _ in range(random.randrange(4))
            ]
            response = await follower.fetch(
                *partitions,
                session_id=random.choice(sessions),
                session_epoch=random.choice((-1, 0, 0, 1, 2, INT_MAX)),
                max_wait_ms=random.choice((-1, 0, 5)),
                min_bytes=random.choice((-1, 0, 1, INT_MAX)),
                max_bytes=random.choice((-1, 0, INT_MAX)),
            )
            sessions.append(response.session_id)
            assert all(one.error_code for topic in response.responses for one in topic.partitions)
        await follower.connection.close()
        await assert_unharmed(cluster, state)

    simulate(main, seed)


def test_consumers_that_open_all_sessions_leave_one_for_each_follower() -> None:
    async def main(cluster: SimulatedCluster) -> None:
        hostile = await start(cluster)
        leader = cluster.leader()
        topic = FetchRequest.FetchTopic(topic_id=hostile.topic_id, partitions=[hostile.at(RECORDS)])
        for _ in range(SESSIONS):
            last = await hostile.connection.request(FetchRequest(topics=[topic], max_wait_ms=0, session_epoch=0))
        assert last.session_id == 0
        cluster.down(cluster.machines[hostile.id])
        await cluster.until(lambda: not cluster.is_in_sync())
        cluster.start(hostile.id)
        await cluster.until_up(hostile.id)
        await cluster.until_in_sync()
        assert cluster.leader() == leader
        restarted = HostileFollower(cluster, hostile.connection)
        assert restarted.broker_epoch > hostile.broker_epoch
        opened = await restarted.fetch(restarted.at(RECORDS), session_epoch=0)
        assert opened.session_id > 0
        await hostile.connection.close()
        await cluster.send(3)

    simulate(main, seed=23)
