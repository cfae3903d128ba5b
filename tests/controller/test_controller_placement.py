"""Placement of replicas: over racks, over brokers, and on inactive brokers only if it cannot be avoided."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.controller.controller_harness import ControllerHarness

from headrace.base.errors import ErrorCode, KafkaError
from headrace.controller.placement import Candidate, assign_replicas
from headrace.protocol.messages.create_partitions import CreatePartitionsRequest
from headrace.protocol.messages.create_topics import CreateTopicsRequest

Topic = CreateTopicsRequest.CreatableTopic


def candidates(**racks: list[int]) -> list[Candidate]:
    return [Candidate(broker, rack) for rack, brokers in racks.items() for broker in brokers]


@pytest.mark.parametrize("seed", range(20))
def test_leaders_are_spread_evenly_and_no_replica_repeats(seed: int) -> None:
    placed = assign_replicas(12, 3, [Candidate(broker) for broker in (1, 2, 3, 4)], random.Random(seed))
    assert all(len(set(replicas)) == 3 for replicas in placed)
    assert set(Counter(replicas[0] for replicas in placed).values()) == {3}


@pytest.mark.parametrize("seed", range(20))
def test_each_partition_has_replicas_in_as_many_racks_as_possible(seed: int) -> None:
    brokers = candidates(a=[1, 2], b=[3, 4], c=[5, 6])
    rack = {broker.id: broker.rack for broker in brokers}
    for factor in (1, 2, 3, 4, 6):
        placed = assign_replicas(12, factor, brokers, random.Random(seed))
        for replicas in placed:
            assert len(set(replicas)) == factor
            assert len({rack[broker] for broker in replicas}) == min(factor, 3)
        assert set(Counter(replicas[0] for replicas in placed).values()) == {2}
        assert set(Counter(broker for replicas in placed for broker in replicas).values()) == {12 * factor // 6}


def test_successors_of_a_failed_leader_are_different_brokers() -> None:
    placed = assign_replicas(60, 3, [Candidate(broker) for broker in range(6)], random.Random(3))
    assert len({replicas[1] for replicas in placed if replicas[0] == 0}) > 2


def test_inactive_brokers_are_used_last_and_never_lead() -> None:
    brokers = [Candidate(1), Candidate(2), Candidate(3, None, False)]
    assert all(3 not in replicas for replicas in assign_replicas(10, 2, brokers, random.Random(1)))
    for replicas in assign_replicas(10, 3, brokers, random.Random(1)):
        assert replicas[0] != 3 and replicas[2] == 3
    with pytest.raises(KafkaError, match="currently fenced") as caught:
        assign_replicas(1, 1, [Candidate(3, None, False)], random.Random(1))
    assert caught.value.code is ErrorCode.INVALID_REPLICATION_FACTOR


@given(
    brokers=st.lists(
        st.builds(Candidate, st.integers(0, 20), st.sampled_from([None, "a", "b", "c"]), st.booleans()),
        min_size=1,
        max_size=9,
        unique_by=lambda one: one.id,
    ),
    partitions=st.integers(1, 20),
    factor=st.integers(-1, 10),
    seed=st.integers(0, 99),
)
def test_every_placement_is_valid_or_refused(brokers: list[Candidate], partitions: int, factor: int, seed: int) -> None:
    active = {broker.id for broker in brokers if broker.is_active}
    if not active or not 1 <= factor <= len(brokers):
        with pytest.raises(KafkaError):
            assign_replicas(partitions, factor, brokers, random.Random(seed))
        return
    placed = assign_replicas(partitions, factor, brokers, random.Random(seed))
    assert len(placed) == partitions
    for replicas in placed:
        assert len(set(replicas)) == factor and set(replicas) <= {broker.id for broker in brokers}
        assert replicas[0] in active


def test_a_topic_may_have_replicas_on_fenced_brokers_which_are_not_in_sync() -> None:
    harness = ControllerHarness((1, 2, 3))
    harness.heartbeat(3, want_fence=True)
    [result] = harness.create(Topic(name="a", num_partitions=2, replication_factor=3))
    assert result.error_code == 0
    for index in (0, 1):
        partition = harness.partition("a", index)
        assert set(partition.replicas) == {1, 2, 3} and set(partition.isr) == {1, 2} and partition.leader in (1, 2)
    assignment = CreatePartitionsRequest.CreatePartitionsAssignment(broker_ids=[3, 2, 1])
    topic = CreatePartitionsRequest.CreatePartitionsTopic(name="a", count=3, assignments=[assignment])
    [result] = harness.send_request(CreatePartitionsRequest(topics=[topic])).results
    added = harness.partition("a", 2)
    assert result.error_code == 0 and (added.replicas, added.isr, added.leader) == ((3, 2, 1), (2, 1), 2)
    by_hand = CreateTopicsRequest.CreatableReplicaAssignment(partition_index=0, broker_ids=[3])
    [result] = harness.create(Topic(name="b", num_partitions=-1, replication_factor=-1, assignments=[by_hand]))
    assert result.error_code == ErrorCode.INVALID_REPLICA_ASSIGNMENT


def test_racks_of_registered_brokers_count() -> None:
    harness = ControllerHarness(())
    for broker, rack in ((1, "x"), (2, "x"), (3, "y")):
        harness.register(broker, rack=rack)
    harness.create(Topic(name="a", num_partitions=8, replication_factor=2))
    assert all(3 in partition.replicas for _, partition in harness.context.partitions())
