"""Brokers and controllers of a cluster: registrations, sessions, controlled shutdown, preferred leaders, features."""

from __future__ import annotations

from typing import Any

import pytest
from tests.controller.controller_harness import ELR, FEATURES, INCARNATION, ControllerHarness

from headrace.base.errors import ErrorCode, KafkaError
from headrace.base.ids import Uuid
from headrace.controller import leadership
from headrace.protocol.messages.broker_registration import BrokerRegistrationRequest
from headrace.protocol.messages.controller_registration import ControllerRegistrationRequest
from headrace.protocol.messages.create_topics import CreateTopicsRequest
from headrace.protocol.messages.delete_topics import DeleteTopicsRequest
from headrace.protocol.messages.update_features import UpdateFeaturesRequest
from headrace.statemachine.journal import NotLeader

Topic = CreateTopicsRequest.CreatableTopic
OTHER = Uuid(b"o" * 16)


def make_harness(brokers: tuple[int, ...] = (1, 2, 3), partitions: int = 6, **more: Any) -> ControllerHarness:
    harness = ControllerHarness(brokers, **more)
    [created] = harness.create(Topic(name="t", num_partitions=partitions, replication_factor=len(brokers)))
    assert created.error_code == 0
    return harness


def leaders(harness: ControllerHarness) -> set[int]:
    return {partition.leader for _, partition in harness.context.partitions()}


# --- registration


def test_a_repeated_registration_of_the_same_incarnation_keeps_its_epoch_and_state() -> None:
    harness = make_harness()
    epoch = harness.epochs[2]
    before = harness.context.partitions()
    harness.register(2, INCARNATION, active=False)
    assert harness.epochs[2] == epoch and not harness.context.state.brokers[2].fenced
    assert harness.context.partitions() == before


def test_another_incarnation_waits_for_the_session_or_for_a_controlled_shutdown() -> None:
    harness = make_harness()
    with pytest.raises(KafkaError) as caught:
        harness.register(2, OTHER, now_ms=100)
    assert caught.value.code is ErrorCode.DUPLICATE_BROKER_REGISTRATION
    harness.heartbeat(2, want_shut_down=True)
    harness.register(2, OTHER, now_ms=100)
    assert harness.context.state.brokers[2].incarnation_id == OTHER


def test_an_invalid_broker_id_is_refused() -> None:
    with pytest.raises(KafkaError) as caught:
        make_harness().send_request(BrokerRegistrationRequest(broker_id=-1, cluster_id="cluster"))
    assert caught.value.code is ErrorCode.INVALID_REQUEST


# --- controlled shutdown


def test_a_broker_stops_when_all_active_brokers_know_who_leads_in_its_place() -> None:
    harness = make_harness()
    assert 1 in leaders(harness)
    assert not harness.heartbeat(1, want_shut_down=True).should_shut_down
    assert 1 not in leaders(harness)
    assert not harness.heartbeat(1, want_shut_down=True).should_shut_down
    harness.heartbeat(2)
    assert not harness.heartbeat(1, want_shut_down=True).should_shut_down
    harness.heartbeat(3)
    assert harness.heartbeat(1, want_shut_down=True).should_shut_down
    assert harness.context.state.brokers[1].fenced


def test_a_new_active_controller_waits_until_brokers_have_all_of_its_log() -> None:
    harness = make_harness()
    harness.heartbeat(1, want_shut_down=True)
    harness.runtime.resign()
    harness.runtime.lead(0)
    assert not harness.heartbeat(1, want_shut_down=True).should_shut_down
    for broker in (2, 3):
        harness.heartbeat(broker)
    assert harness.heartbeat(1, want_shut_down=True).should_shut_down


@pytest.mark.parametrize("fenced", [True, False])
def test_a_broker_that_is_fenced_or_leads_nothing_may_stop_at_once(fenced: bool) -> None:
    harness = ControllerHarness((1, 2))
    if fenced:
        harness.heartbeat(1, want_fence=True)
    assert harness.heartbeat(1, want_shut_down=True).should_shut_down
    assert harness.context.state.brokers[1].fenced


# --- partitions of a broker


def test_decisions_about_a_broker_consider_exactly_its_partitions() -> None:
    harness = make_harness((1, 2, 3, 4), partitions=8)
    harness.create(Topic(name="one", num_partitions=8, replication_factor=1))
    for broker in (1, 2, 3, 4):
        expected = [key for key, partition in harness.context.partitions() if broker in partition.replicas]
        assert [key for key, _ in harness.context.partitions_on(broker)] == expected
    harness.send_request(DeleteTopicsRequest(topics=[DeleteTopicsRequest.DeleteTopicState(name="t")]))
    assert all(
        broker in partition.replicas for broker in (1, 2) for _, partition in harness.context.partitions_on(broker)
    )


def test_the_partitions_of_a_broker_survive_a_deletion_that_is_undone() -> None:
    harness = make_harness()
    expected = harness.context.partitions_on(1)
    harness.journal.commits_on_append = False
    request = DeleteTopicsRequest(topics=[DeleteTopicsRequest.DeleteTopicState(name="t")])
    failures: list[Any] = []
    harness.runtime.submit(request, 0, lambda answer, error: failures.append(error))
    assert harness.context.partitions_on(1) == []
    harness.journal.lose()
    assert isinstance(failures[0], NotLeader) and harness.context.partitions_on(1) == expected


# --- preferred leaders

REBALANCING = {"auto.leader.rebalance.enable": True, "leader.imbalance.check.interval.seconds": 300}


def catch_up(harness: ControllerHarness) -> None:
    """Put all replicas into the ISR of each partition, as their leaders do when they have caught up."""
    for index in range(6):
        harness.alter_isr("t", sorted(harness.partition("t", index).replicas), index=index)


def test_leadership_returns_to_preferred_replicas_from_time_to_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leadership, "REBALANCED_AT_ONCE", 1)
    harness = make_harness(settings=REBALANCING, session_timeout_ms=10_000_000)
    preferred = {index: harness.partition("t", index).replicas[0] for index in range(6)}
    harness.heartbeat(1, want_fence=True)
    harness.heartbeat(1)
    catch_up(harness)
    assert 1 not in leaders(harness)
    harness.runtime.tick(299_000)
    assert 1 not in leaders(harness)
    for now_ms in range(300_000, 301_000, 100):
        harness.runtime.tick(now_ms)
    assert {index: harness.partition("t", index).leader for index in range(6)} == preferred


def test_leadership_stays_if_the_rebalance_is_disabled_or_the_preferred_replica_is_not_in_sync() -> None:
    for settings in (REBALANCING, {**REBALANCING, "auto.leader.rebalance.enable": False}):
        harness = make_harness(settings=settings, session_timeout_ms=10_000_000)
        harness.heartbeat(1, want_fence=True)
        harness.heartbeat(1)
        if settings is not REBALANCING:
            catch_up(harness)
        harness.runtime.tick(900_000)
        assert 1 not in leaders(harness)


# --- controllers and features


def controller_registration(**more: Any) -> ControllerRegistrationRequest:
    given: dict[str, Any] = {
        "controller_id": 7,
        "incarnation_id": OTHER,
        "listeners": [ControllerRegistrationRequest.Listener(name="CONTROLLER", host="c", port=9093)],
        "features": [
            ControllerRegistrationRequest.Feature(name=name, min_supported_version=low, max_supported_version=high)
            for name, (low, high) in FEATURES.items()
            if name != "group.version"
        ],
    }
    return ControllerRegistrationRequest(**(given | more))


def test_a_controller_is_registered_once_per_change() -> None:
    harness = make_harness()
    assert harness.send_request(controller_registration()).error_code == ErrorCode.NONE
    written = len(harness.journal.written)
    assert harness.context.state.controllers[7].end_points[0].host == "c"
    harness.send_request(controller_registration())
    assert len(harness.journal.written) == written
    harness.send_request(controller_registration(incarnation_id=INCARNATION))
    assert len(harness.journal.written) == written + 1


@pytest.mark.parametrize(
    ("given", "code"),
    [
        ({"controller_id": -1}, ErrorCode.INVALID_REQUEST),
        ({"listeners": []}, ErrorCode.INVALID_REQUEST),
        ({"features": []}, ErrorCode.UNSUPPORTED_VERSION),
    ],
)
def test_an_invalid_controller_is_refused(given: dict[str, Any], code: ErrorCode) -> None:
    with pytest.raises(KafkaError) as caught:
        make_harness().send_request(controller_registration(**given))
    assert caught.value.code is code


def update_feature(harness: ControllerHarness, name: str, level: int) -> None:
    update = UpdateFeaturesRequest.FeatureUpdateKey(feature=name, max_version_level=level, upgrade_type=1)
    harness.send_request(UpdateFeaturesRequest(feature_updates=[update]))


def test_a_level_that_a_controller_or_a_broker_does_not_support_is_refused() -> None:
    harness = make_harness()
    harness.send_request(controller_registration())
    with pytest.raises(KafkaError, match="Controller 7 does not support this feature"):
        update_feature(harness, "group.version", 1)
    harness = make_harness()
    supported = {name: levels for name, levels in FEATURES.items() if name != "group.version"}
    harness.register(
        9,
        features=[
            BrokerRegistrationRequest.Feature(name=name, min_supported_version=low, max_supported_version=high)
            for name, (low, high) in supported.items()
        ],
    )
    with pytest.raises(KafkaError, match="Broker 9 does not support this feature"):
        update_feature(harness, "group.version", 1)


def test_a_broker_that_lacks_a_finalized_level_is_refused() -> None:
    harness = make_harness()
    only = [
        BrokerRegistrationRequest.Feature(name="metadata.version", min_supported_version=7, max_supported_version=30)
    ]
    with pytest.raises(KafkaError, match=ELR) as caught:
        harness.register(9, features=only)
    assert caught.value.code is ErrorCode.UNSUPPORTED_VERSION
