"""The controller's metrics: counts of brokers and partitions while it leads, and of the elections that it decided."""

from __future__ import annotations

from tests.controller.controller_harness import ControllerHarness

from headrace.controller.metrics import ControllerMetrics
from headrace.protocol.messages.create_topics import CreateTopicsRequest


def read(harness: ControllerHarness, is_active: bool = True) -> dict[str, int]:
    page = b"".join(ControllerMetrics(harness.context, lambda: is_active).expose()).decode()
    samples = [line.split(" ") for line in page.splitlines() if not line.startswith("#")]
    return {name.removeprefix("kafka_controller_"): int(value) for name, value in samples}


def test_brokers_and_partitions_are_counted_while_the_controller_is_active() -> None:
    harness = ControllerHarness((1, 2))
    harness.create(CreateTopicsRequest.CreatableTopic(name="t", num_partitions=4, replication_factor=2))
    harness.create(CreateTopicsRequest.CreatableTopic(name="one", num_partitions=2, replication_factor=1))
    harness.heartbeat(1, want_fence=True)
    counted = read(harness)
    expected = {"activecontroller": 1, "activebroker": 1, "fencedbroker": 1, "globaltopic": 2, "globalpartition": 6}
    assert {name: counted[f"kafkacontroller_{name}count"] for name in expected} == expected
    assert counted["kafkacontroller_offlinepartitionscount"] == 1
    assert counted["kafkacontroller_preferredreplicaimbalancecount"] == 3
    assert not any(value for name, value in read(harness, is_active=False).items() if name.startswith("kafkac"))


def test_elections_are_counted_by_how_safe_they_were_and_only_when_decided() -> None:
    harness = ControllerHarness((1, 2), static={"min.insync.replicas": "2"})
    names = (
        "leaderelectionrateandtimems_count",
        "electionfromeligibleleaderreplicas_total",
        "uncleanleaderelections_total",
    )

    def counts() -> list[int]:
        return [read(harness)[f"controllerstats_{name}"] for name in names]

    by_hand = CreateTopicsRequest.CreatableReplicaAssignment(partition_index=0, broker_ids=[1, 2])
    harness.create(
        CreateTopicsRequest.CreatableTopic(name="t", num_partitions=-1, replication_factor=-1, assignments=[by_hand])
    )
    assert counts() == [0, 0, 0]
    harness.heartbeat(1, want_fence=True)
    assert counts() == [1, 0, 0]
    harness.heartbeat(2, want_fence=True)
    harness.heartbeat(1)
    assert counts() == [2, 1, 0]
    harness.heartbeat(1, want_fence=True)
    for broker in (1, 2):
        harness.restart(broker, clean=False)
    assert counts() == [3, 1, 1]
