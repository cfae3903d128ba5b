"""Nodes that are not who they claim to be: reused ids, other clusters, older incarnations, and clocks that are far apart."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from testkit.history import History
from testkit.simulator.machine import PORT, Machine
from tests.cluster.simulated_cluster import SimulatedCluster, simulate
from tests.controller.controller_harness import ControllerHarness

from headrace.base.errors import ErrorCode, KafkaError
from headrace.base.ids import Uuid
from headrace.protocol.messages.allocate_producer_ids import AllocateProducerIdsRequest
from headrace.protocol.messages.alter_partition import AlterPartitionRequest
from headrace.protocol.messages.assign_replicas_to_dirs import AssignReplicasToDirsRequest
from headrace.protocol.messages.broker_heartbeat import BrokerHeartbeatRequest
from headrace.protocol.messages.broker_registration import BrokerRegistrationRequest

OTHER_CLUSTER = "AAAAAAAAQAGAAAAAAAAAAg"
TEN_MINUTES_MS = 600_000


def add_broker(cluster: SimulatedCluster, host: str, cluster_id: str, node_id: int = 4) -> Machine:
    """Add a machine whose node is a broker only."""
    voters = ",".join(f"{voter}@node-{voter}:9093" for voter in (1, 2, 3))
    machine = Machine(
        cluster.loop,
        cluster.network,
        Random(host),
        History(),
        {
            "process.roles": "broker",
            "node.id": str(node_id),
            "listeners": f"PLAINTEXT://{host}:{PORT}",
            "controller.listener.names": "CONTROLLER",
            "controller.quorum.voters": voters,
            "initial.broker.registration.timeout.ms": "20000",
        },
        lambda text: None,
        host=host,
    )
    machine.format(cluster_id)
    number = len(cluster.machines) + 1
    cluster.machines[number] = machine
    cluster.start(number)
    return machine


def forget(cluster: SimulatedCluster, machine: Machine) -> None:
    cluster.down(machine)
    cluster.machines = {number: one for number, one in cluster.machines.items() if one is not machine}


def cluster_id_of(cluster: SimulatedCluster) -> str:
    return next(machine.node.cluster_id for machine in cluster.running.values())


def test_a_second_process_with_the_same_node_id_is_refused_while_the_first_lives(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main(cluster: SimulatedCluster) -> None:
        await cluster.create()
        first = add_broker(cluster, "node-4", cluster_id_of(cluster))
        await cluster.until_up()
        incarnation = cluster.image().brokers[4].incarnation_id
        second = add_broker(cluster, "node-5", cluster_id_of(cluster))
        reason = await cluster.until_refused(5)
        assert "DUPLICATE_BROKER_REGISTRATION" in reason and "node.id=4" in reason
        assert cluster.image().brokers[4].incarnation_id == incarnation and not cluster.image().brokers[4].fenced
        await cluster.send(3)
        forget(cluster, second)
        forget(cluster, first)

    simulate(main)
    assert any("another process with node.id=4 has a session" in line for line in caplog.messages)


def test_a_broker_that_was_formatted_for_another_cluster_is_refused_with_the_reason() -> None:
    async def main(cluster: SimulatedCluster) -> None:
        await cluster.create()
        stranger = add_broker(cluster, "node-4", OTHER_CLUSTER)
        reason = await cluster.until_refused(4)
        assert "INCONSISTENT_CLUSTER_ID" in reason
        assert 4 not in cluster.image().brokers
        await cluster.send(3)
        forget(cluster, stranger)

    simulate(main, seed=2)


# --- older incarnations

TOPIC = Uuid(b"t" * 16)
OF_BROKERS: list[Any] = [
    BrokerHeartbeatRequest(),
    AlterPartitionRequest(topics=[AlterPartitionRequest.TopicData(topic_id=TOPIC)]),
    AssignReplicasToDirsRequest(),
    AllocateProducerIdsRequest(),
]


@pytest.mark.parametrize("request_of_broker", OF_BROKERS, ids=lambda one: type(one).__name__)
def test_an_older_incarnation_of_a_broker_may_change_nothing(request_of_broker: Any) -> None:
    harness = ControllerHarness((1, 2))
    old_epoch = harness.epochs[1]
    harness.heartbeat(1, want_shut_down=True)
    harness.restart(1, clean=True)
    before = len(harness.journal.written)
    for epoch, code in [
        (old_epoch, ErrorCode.STALE_BROKER_EPOCH),
        (harness.epochs[1] + 1, ErrorCode.STALE_BROKER_EPOCH),
        (-1, ErrorCode.STALE_BROKER_EPOCH),
        (2**62, ErrorCode.STALE_BROKER_EPOCH),
    ]:
        request_of_broker.broker_id, request_of_broker.broker_epoch = 1, epoch
        with pytest.raises(KafkaError) as caught:
            harness.send_request(request_of_broker)
        assert caught.value.code is code
    for broker_id in (9, -1, 2**31 - 1):
        request_of_broker.broker_id, request_of_broker.broker_epoch = broker_id, 0
        with pytest.raises(KafkaError) as caught:
            harness.send_request(request_of_broker)
        assert caught.value.code in (ErrorCode.BROKER_ID_NOT_REGISTERED, ErrorCode.STALE_BROKER_EPOCH)
    assert len(harness.journal.written) == before


def test_an_older_incarnation_cannot_register_again_while_the_newer_one_has_a_session() -> None:
    harness = ControllerHarness((1,))
    harness.heartbeat(1, want_shut_down=True)
    harness.restart(1, clean=True)
    epoch = harness.epochs[1]
    with pytest.raises(KafkaError) as caught:
        harness.register(1)
    assert caught.value.code is ErrorCode.DUPLICATE_BROKER_REGISTRATION
    with pytest.raises(KafkaError) as caught:
        harness.send_request(BrokerRegistrationRequest(broker_id=2, cluster_id=OTHER_CLUSTER))
    assert caught.value.code is ErrorCode.INCONSISTENT_CLUSTER_ID
    assert harness.context.state.brokers[1].epoch == epoch


# --- clocks


class Skewed(Random):
    """The randomness of a machine, except that its clock is wrong by a fixed time."""

    skew_ms = 0

    def choice(self, options: Any) -> Any:
        return self.skew_ms


@pytest.mark.parametrize("slow", [1, 2, 3])
def test_clocks_that_are_ten_minutes_apart_disturb_neither_replication_nor_elections(slow: int) -> None:
    async def main(cluster: SimulatedCluster) -> None:
        for node_id, machine in cluster.machines.items():
            machine._random = Skewed(node_id)
            machine._random.skew_ms = {slow: -TEN_MINUTES_MS, slow % 3 + 1: TEN_MINUTES_MS}.get(node_id, 0)
            cluster.down(machine)
        cluster.start()
        await cluster.until_up()
        await cluster.create()
        await cluster.send(10)
        leader = cluster.leader()
        cluster.down(cluster.machines[leader])
        await cluster.send(10)
        cluster.start(leader)
        await cluster.until_in_sync()
        epoch = cluster.state().leader_epoch
        began = cluster.loop.now
        await cluster.until(lambda: cluster.loop.now > began + 60)
        assert (cluster.state().leader_epoch, len(cluster.state().isr)) == (epoch, 3)
        assert cluster.failures == {}

    simulate(main, seed=10 + slow, options={"auto.leader.rebalance.enable": "false"})
