"""Followers of a running cluster: corrupt batches, full disks, deletions, moves, restarts, and consumers that read from them."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable, Coroutine
from typing import Any

from msgspec.structs import replace
from tests.replication.replicated_cluster import NODES, TOPIC_ID, ReplicatedBroker, ReplicatedCluster, batches

from headrace.base.errors import ErrorCode
from headrace.base.metrics import Metrics
from headrace.broker.fetching.followed import Followed
from headrace.client.wire.frames import encode_request
from headrace.metadata.image import Endpoint
from headrace.protocol.messages.delete_records import DeleteRecordsRequest
from headrace.protocol.messages.fetch import FetchRequest, FetchResponse
from headrace.server.authority import ALLOW_ALL
from headrace.server.context import Peer
from headrace.server.frames import Deferred


def run(seed: int, main: Callable[[ReplicatedCluster], Coroutine[Any, Any, None]], **config: str) -> None:
    cluster = ReplicatedCluster(seed, {name.replace("_", "."): value for name, value in config.items()})

    async def started() -> None:
        cluster.start()
        await cluster.until(cluster.is_in_sync)
        await main(cluster)

    try:
        cluster.loop.run_until_complete(started())
        assert cluster.loop.unhandled() == []
    finally:
        cluster.loop.close()


def a_follower(cluster: ReplicatedCluster) -> ReplicatedBroker:
    return next(one for one in cluster.brokers.values() if one is not cluster.leader)


def followed(broker: ReplicatedBroker) -> Followed:
    (one,) = broker.fetchers.followed()
    return one


async def fetch(broker: ReplicatedBroker, offset: int = 0, **fields: Any) -> FetchResponse:
    partition = FetchRequest.FetchPartition(fetch_offset=offset, partition_max_bytes=1 << 20)
    topic = FetchRequest.FetchTopic(topic_id=TOPIC_ID, partitions=[partition])
    return await broker.handle(FetchRequest(max_wait_ms=0, topics=[topic], **fields))


def test_a_corrupt_batch_fails_its_partition_until_the_leader_sends_a_valid_one() -> None:
    async def main(cluster: ReplicatedCluster) -> None:
        leader, follower = cluster.leader, a_follower(cluster)
        cluster.cut.add(frozenset((leader.node_id, follower.node_id)))
        await cluster.produce(leader.node_id, timeout_ms=5000)
        (path,) = [path for path, _ in leader.files.walk() if path.endswith(".log")]
        leader.files.flip_bit(path, 70, 0)
        cluster.heal()
        await cluster.until(lambda: followed(follower).state.is_failed)
        assert follower.partition.log.log_end == 0
        leader.files.flip_bit(path, 70, 0)
        await cluster.until(cluster.is_in_sync)
        assert not followed(follower).state.is_failed

    run(1, main)


def test_a_full_disk_delays_a_follower_without_stopping_it() -> None:
    async def main(cluster: ReplicatedCluster) -> None:
        follower = a_follower(cluster)
        follower.files.fault = lambda operation, path: (
            OSError(errno.ENOSPC, "full", path) if operation == "append" else None
        )
        assert (await cluster.produce(cluster.leader.node_id, timeout_ms=5000))[0] is ErrorCode.NONE
        assert follower.node_id not in cluster.controller.partition.isr and follower.partition.offline is None
        follower.files.fault = None
        await cluster.until(cluster.is_in_sync)

    run(2, main)


def test_deleted_records_are_gone_on_all_replicas_when_the_response_is_sent() -> None:
    async def main(cluster: ReplicatedCluster) -> None:
        for _ in range(5):
            await cluster.produce(cluster.leader.node_id)
        requested = DeleteRecordsRequest.DeleteRecordsPartition(partition_index=0, offset=4)
        topics = [DeleteRecordsRequest.DeleteRecordsTopic(name="t", partitions=[requested])]
        response = await cluster.leader.handle(DeleteRecordsRequest(topics=topics, timeout_ms=5000))
        result = response.topics[0].partitions[0]
        assert (result.error_code, result.low_watermark) == (ErrorCode.NONE, 4)
        assert [broker.partition.log.log_start for broker in cluster.brokers.values()] == [4, 4, 4]

    run(3, main)


def test_a_deletion_times_out_if_a_live_replica_does_not_follow() -> None:
    async def main(cluster: ReplicatedCluster) -> None:
        await cluster.produce(cluster.leader.node_id)
        cluster.cut.add(frozenset((cluster.leader.node_id, a_follower(cluster).node_id)))
        requested = DeleteRecordsRequest.DeleteRecordsPartition(partition_index=0, offset=1)
        topics = [DeleteRecordsRequest.DeleteRecordsTopic(name="t", partitions=[requested])]
        response = await cluster.leader.handle(DeleteRecordsRequest(topics=topics, timeout_ms=200))
        assert response.topics[0].partitions[0].error_code == ErrorCode.REQUEST_TIMED_OUT

    run(4, main)


def test_a_deletion_does_not_wait_for_a_broker_that_is_fenced() -> None:
    async def main(cluster: ReplicatedCluster) -> None:
        await cluster.produce(cluster.leader.node_id)
        gone = a_follower(cluster).node_id
        cluster.cut.add(frozenset((cluster.leader.node_id, gone)))
        requested = DeleteRecordsRequest.DeleteRecordsPartition(partition_index=0, offset=1)
        topics = [DeleteRecordsRequest.DeleteRecordsTopic(name="t", partitions=[requested])]
        deleting = asyncio.ensure_future(cluster.leader.handle(DeleteRecordsRequest(topics=topics, timeout_ms=60_000)))
        await asyncio.sleep(0.2)
        assert not deleting.done()
        cluster.controller.fence(gone)
        response = await deleting
        assert response.topics[0].partitions[0].error_code == ErrorCode.NONE

    run(16, main)


def test_a_follower_joins_the_isr_as_soon_as_it_is_unfenced() -> None:
    async def main(cluster: ReplicatedCluster) -> None:
        follower = a_follower(cluster).node_id
        cluster.controller.fence(follower)
        await asyncio.sleep(0.5)
        assert follower not in cluster.controller.partition.isr
        cluster.controller.register_again(follower)
        began = cluster.loop.time()
        await cluster.until(lambda: follower in cluster.controller.partition.isr)
        assert cluster.loop.time() - began < 0.08  # without waiting for its parked fetch

    run(17, main)


def test_a_follower_below_the_leaders_log_start_begins_there() -> None:
    async def main(cluster: ReplicatedCluster) -> None:
        leader, follower = cluster.leader, a_follower(cluster)
        cluster.crash(follower.node_id)
        for _ in range(6):
            await cluster.produce(leader.node_id, timeout_ms=5000)
        leader.partition.delete_records(5, leader.clock.now_ms())  # possibly within a batch
        cluster.start()
        await cluster.until(cluster.is_in_sync)
        again = cluster.brokers[follower.node_id].partition
        assert again.log.log_start == 5
        end = leader.partition.log.log_end
        assert batches(again, 5, end) == batches(leader.partition, 5, end)

    run(5, main)


def test_a_replica_that_has_moved_away_is_deleted() -> None:
    async def main(cluster: ReplicatedCluster) -> None:
        gone = a_follower(cluster)
        stay = tuple(node for node in NODES if node != gone.node_id)
        await cluster.produce(cluster.leader.node_id)
        controller = cluster.controller
        controller.partition = replace(controller.partition, replicas=stay, directories=())
        controller.change(stay, controller.partition.leader)
        controller.append()
        await cluster.until(lambda: gone.partition is None)
        assert not gone.fetchers.followed() and not gone.files.exists("/data/t-0")
        assert (await cluster.produce(cluster.leader.node_id))[0] is ErrorCode.NONE

    run(6, main)


def test_a_change_of_the_partitions_keeps_the_fetch_session() -> None:
    async def main(cluster: ReplicatedCluster) -> None:
        follower = a_follower(cluster)
        ((fetcher, _),) = follower.fetchers._fetchers.values()
        await cluster.until(lambda: fetcher._session._id != 0)
        session = fetcher._session._id
        followed(follower).state.delay(follower.clock.now_ms())  # leaves the session for a while
        await cluster.produce(cluster.leader.node_id)
        await cluster.until(cluster.is_in_sync)
        assert fetcher._session._id == session

    run(7, main)


def test_a_lost_fetch_session_is_replaced() -> None:
    async def main(cluster: ReplicatedCluster) -> None:
        follower = a_follower(cluster)
        ((fetcher, _),) = follower.fetchers._fetchers.values()
        fetcher._session._id += 1
        await cluster.produce(cluster.leader.node_id)
        await cluster.until(cluster.is_in_sync)

    run(8, main)


def test_consumers_read_from_a_follower_up_to_its_high_watermark() -> None:
    async def main(cluster: ReplicatedCluster) -> None:
        await cluster.produce(cluster.leader.node_id)
        await cluster.until(cluster.is_in_sync)
        follower = a_follower(cluster)
        data = (await fetch(follower)).responses[0].partitions[0]
        end = follower.partition.high_watermark
        assert (data.error_code, data.high_watermark, len(data.records) > 0) == (ErrorCode.NONE, end, True)
        beyond = (await fetch(follower, end + 1)).responses[0].partitions[0]
        assert beyond.error_code == ErrorCode.OFFSET_OUT_OF_RANGE

    run(9, main)


def test_a_leader_with_a_replica_selector_sends_consumers_to_their_rack() -> None:
    async def main(cluster: ReplicatedCluster) -> None:
        await cluster.produce(cluster.leader.node_id)
        await cluster.until(cluster.is_in_sync)
        leader, follower = cluster.leader, a_follower(cluster)
        for node, broker in cluster.controller.brokers.items():
            cluster.controller.brokers[node] = replace(broker, rack=f"rack {node}")
        cluster.controller.append()
        await cluster.until(lambda: leader.image.brokers[leader.node_id].rack is not None)
        leader.fetch.selects_by_rack = True
        sent = (await fetch(leader, rack_id=f"rack {follower.node_id}")).responses[0].partitions[0]
        assert (sent.preferred_read_replica, len(sent.records)) == (follower.node_id, 0)
        for rack in ("", f"rack {leader.node_id}", "elsewhere"):
            served = (await fetch(leader, rack_id=rack)).responses[0].partitions[0]
            assert served.preferred_read_replica == -1 and len(served.records)

    run(10, main)


def test_a_producer_at_a_follower_learns_the_leader_and_its_address() -> None:
    async def main(cluster: ReplicatedCluster) -> None:
        leader, follower = cluster.leader, a_follower(cluster)
        endpoint = Endpoint("BROKER", "leader.example", 9092, 0)
        known = cluster.controller.brokers[leader.node_id]
        cluster.controller.brokers[leader.node_id] = replace(known, endpoints=(endpoint,))
        cluster.controller.append()
        await cluster.until(lambda: follower.image.brokers[leader.node_id].endpoints != ())
        response = await follower.handle(cluster.produce_request(acks=1))
        hint = response.responses[0].partition_responses[0].current_leader
        assert (hint.leader_id, hint.leader_epoch) == (leader.node_id, leader.partition.leader_epoch)
        assert [(one.node_id, one.host, one.port) for one in response.node_endpoints] == [
            (leader.node_id, "leader.example", 9092)
        ]

    run(11, main)


def test_only_assigned_replicas_of_the_current_incarnation_may_fetch_as_followers() -> None:
    async def main(cluster: ReplicatedCluster) -> None:
        def state(replica: int, epoch: int) -> FetchRequest.ReplicaState:
            return FetchRequest.ReplicaState(replica_id=replica, replica_epoch=epoch)

        leader, follower = cluster.leader, a_follower(cluster)
        await cluster.produce(leader.node_id)  # acknowledged only when the follower has fetched
        stranger = (await fetch(leader, replica_state=state(9, 1))).responses[0].partitions[0]
        assert stranger.error_code == ErrorCode.UNKNOWN_LEADER_EPOCH
        stale = (await fetch(leader, replica_state=state(follower.node_id, follower.epoch - 1))).responses[0].partitions
        assert stale[0].error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        elsewhere = (await fetch(follower, replica_state=state(leader.node_id, leader.epoch))).responses[0].partitions
        assert elsewhere[0].error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER

    run(12, main)


def test_a_parked_fetch_of_a_follower_does_not_make_it_look_alive() -> None:
    """A follower is caught up at the time of its request, not of the response."""

    async def main(cluster: ReplicatedCluster) -> None:
        leader, follower = cluster.leader, a_follower(cluster)
        progress = leader.partition.followers.get(follower.node_id)
        cluster.cut.add(frozenset((leader.node_id, follower.node_id)))
        await asyncio.sleep(0.3)  # the last fetch before the cut has been answered
        before = progress.caught_up_ms
        await cluster.produce(leader.node_id, acks=1)
        await asyncio.sleep(0.05)
        assert progress.caught_up_ms == before

    run(13, main)


def test_the_lag_of_each_followed_partition_is_exported() -> None:
    async def main(cluster: ReplicatedCluster) -> None:
        leader, follower = cluster.leader, a_follower(cluster)
        await cluster.produce(leader.node_id)
        await cluster.until(cluster.is_in_sync)
        metrics = Metrics()
        follower.fetchers.export(metrics)
        followed(follower).lag = 7
        text = b"".join(part for section in metrics.texts for part in section()).decode()
        thread = f"ReplicaFetcherThread-0-{leader.node_id}"
        assert f'consumerlag{{clientid="{thread}",topic="t",partition="0"}} 7' in text
        gauges = {family.name: gauge() for family in metrics for gauge in family.members.values() if callable(gauge)}
        assert gauges["kafka_server_replicafetchermanager_maxlag"] == 7
        assert gauges["kafka_server_replicafetchermanager_failedpartitionscount"] == 0
        assert gauges["kafka_server_replicafetchermanager_minfetchrate"] > 0
        assert follower.partition.traffic.replication_bytes_in > 0 < leader.partition.traffic.replication_bytes_out
        assert leader.partition.traffic.bytes_out == 0

    run(14, main)


def test_with_flush_messages_acknowledged_records_are_on_the_disks_of_all_in_sync_replicas() -> None:
    async def main(cluster: ReplicatedCluster) -> None:
        for _ in range(10):
            code, offset = await cluster.produce(cluster.leader.node_id, timeout_ms=5000)
            assert code is ErrorCode.NONE
            in_sync = [cluster.brokers[node].partition for node in cluster.leader.partition.isr]
            assert all(partition.log.recovery_point > offset for partition in in_sync)

    run(15, main, flush_messages="1")


def test_a_produce_request_whose_connection_is_lost_does_not_keep_its_frame_until_the_followers_have_it() -> None:
    async def main(cluster: ReplicatedCluster) -> None:
        leader = cluster.leader
        for other in NODES:
            if other != leader.node_id:
                cluster.cut.add(frozenset((leader.node_id, other)))
        request = cluster.produce_request(acks=-1, timeout_ms=600_000)
        frame = bytearray(b"".join(encode_request(request, 13, 5, "client"))[4:])
        waiting = leader.dispatcher.handle(Peer("BROKER", "127.0.0.1", authority=ALLOW_ALL), memoryview(frame))
        assert isinstance(waiting, Deferred) and not waiting.done
        waiting.abandon()
        await asyncio.sleep(0)
        frame.clear()  # raises BufferError if something still refers to its bytes
        cluster.heal()
        await cluster.until(cluster.is_in_sync)

    run(10, main)
