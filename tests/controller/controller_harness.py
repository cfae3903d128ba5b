"""A controller on a journal that commits at once, with brokers that can be registered: for tests of its decisions."""

from __future__ import annotations

import random
from typing import Any

from tests.fakes import FakeJournal

from headrace.base.ids import Uuid
from headrace.controller.context import ControllerContext
from headrace.controller.controller import Controller
from headrace.metadata.image import Partition
from headrace.metadata.state import replay
from headrace.protocol.declare import Struct
from headrace.protocol.messages.alter_partition import AlterPartitionRequest, AlterPartitionResponse
from headrace.protocol.messages.broker_heartbeat import BrokerHeartbeatRequest, BrokerHeartbeatResponse
from headrace.protocol.messages.broker_registration import BrokerRegistrationRequest
from headrace.protocol.messages.create_topics import CreateTopicsRequest, CreateTopicsResponse
from headrace.protocol.messages.stored.metadata_cluster import FeatureLevelRecord
from headrace.statemachine.runtime import Runtime

INCARNATION = Uuid(b"a" * 16)
ELR = "eligible.leader.replicas.version"
FEATURES = {ELR: (0, 1), "metadata.version": (7, 30), "group.version": (0, 1)}


class ControllerHarness:
    def __init__(self, brokers: tuple[int, ...] = (1,), elr: bool = True, **settings: Any) -> None:
        self.context = ControllerContext(
            "cluster", random.Random(5), node_id=1, supported_features=FEATURES, **settings
        )
        replay(self.context.state, FeatureLevelRecord(name="metadata.version", feature_level=30))
        if elr:
            replay(self.context.state, FeatureLevelRecord(name=ELR, feature_level=1))
        self.journal: FakeJournal[Struct] = FakeJournal(commits_on_append=True)
        self.runtime = Runtime(Controller(self.context, []), self.journal)
        self.runtime.lead(0)
        self.epochs: dict[int, int] = {}
        for broker in brokers:
            self.register(broker)

    def send_request(self, request: Struct, now_ms: int = 0) -> Any:
        answers: list[Any] = []
        self.runtime.submit(request, now_ms, lambda answer, error: answers.append(error or answer))
        [answer] = answers
        if isinstance(answer, Exception):
            raise answer
        return answer

    def register(
        self,
        broker: int,
        incarnation: Uuid = INCARNATION,
        now_ms: int = 0,
        active: bool = True,
        **registration_fields: Any,
    ) -> None:
        answer = self.send_request(
            BrokerRegistrationRequest(
                **{
                    "broker_id": broker,
                    "cluster_id": "cluster",
                    "incarnation_id": incarnation,
                    "log_dirs": [Uuid(b"d" * 16)],
                    "features": [
                        BrokerRegistrationRequest.Feature(
                            name=name, min_supported_version=low, max_supported_version=high
                        )
                        for name, (low, high) in FEATURES.items()
                    ],
                    **registration_fields,
                }
            ),
            now_ms,
        )
        self.epochs[broker] = answer.broker_epoch
        if active:
            assert not self.heartbeat(broker, now_ms).is_fenced

    def heartbeat(self, broker: int, now_ms: int = 0, **heartbeat_fields: Any) -> BrokerHeartbeatResponse:
        return self.send_request(
            BrokerHeartbeatRequest(
                broker_id=broker,
                broker_epoch=self.epochs[broker],
                current_metadata_offset=len(self.journal.written),
                **heartbeat_fields,
            ),
            now_ms,
        )

    def restart(self, broker: int, *, clean: bool, now_ms: int = 0) -> None:
        """Register a new incarnation after a shutdown, and make it active."""
        epoch = self.epochs[broker]
        incarnation = Uuid(epoch.to_bytes(16, "big"))
        self.register(broker, incarnation, now_ms, previous_broker_epoch=epoch if clean else -1)

    def alter_isr(
        self, topic: str, isr: list[int], *, index: int = 0, leader: int | None = None, **partition_fields: Any
    ) -> AlterPartitionResponse.PartitionData:
        """Propose in-sync replicas as the leader does, with its current epochs unless others are given."""
        old = self.partition(topic, index)
        leader = old.leader if leader is None else leader
        state = AlterPartitionRequest.BrokerState
        known: dict[str, Any] = {
            "leader_epoch": old.leader_epoch,
            "partition_epoch": old.partition_epoch,
            "new_isr_with_epochs": [state(broker_id=one, broker_epoch=self.epochs.get(one, 0)) for one in isr],
        }
        partition = AlterPartitionRequest.PartitionData(partition_index=index, **(known | partition_fields))
        response = self.send_request(
            AlterPartitionRequest(
                broker_id=leader,
                broker_epoch=self.epochs[leader],
                topics=[
                    AlterPartitionRequest.TopicData(
                        topic_id=self.context.state.topic_ids[topic], partitions=[partition]
                    )
                ],
            )
        )
        result: AlterPartitionResponse.PartitionData = response.topics[0].partitions[0]
        return result

    def create(
        self, *topics: CreateTopicsRequest.CreatableTopic, **more: Any
    ) -> list[CreateTopicsResponse.CreatableTopicResult]:
        return self.send_request(CreateTopicsRequest(topics=list(topics), **more)).topics

    def partition(self, topic: str, index: int = 0) -> Partition:
        return self.context.state.partitions[(self.context.state.topic_ids[topic], index)]
