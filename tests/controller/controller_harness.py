"""A controller on a journal that commits at once, with brokers that can be registered: for tests of its decisions."""

import random

from headrace.base.ids import Uuid
from headrace.controller.context import ControllerContext
from headrace.controller.controller import Controller
from headrace.metadata.state import replay
from headrace.protocol.messages.broker_heartbeat import BrokerHeartbeatRequest
from headrace.protocol.messages.broker_registration import BrokerRegistrationRequest
from headrace.protocol.messages.create_topics import CreateTopicsRequest
from headrace.protocol.messages.stored.metadata_cluster import FeatureLevelRecord
from headrace.statemachine.runtime import Runtime

ELR = "eligible.leader.replicas.version"
FEATURES = {ELR: (0, 1), "metadata.version": (7, 30), "group.version": (0, 1)}


class InstantJournal:
    """A journal that commits at once."""

    def __init__(self):
        self.records = []
        self.tell = None

    def next_offset(self):
        return len(self.records)

    def append(self, records):
        self.records += records
        self.tell(len(self.records) - 1)
        return len(self.records) - 1

    def committed_offset(self):
        return len(self.records) - 1

    def read(self, start):
        yield start, self.records[start:]

    def on_committed(self, tell):
        self.tell = tell

    def on_lost(self, tell):
        pass


class ControllerHarness:
    def __init__(self, brokers=(1,), elr=True, **settings):
        self.context = ControllerContext(
            "cluster", random.Random(5), node_id=1, supported_features=FEATURES, **settings
        )
        replay(self.context.state, FeatureLevelRecord(name="metadata.version", feature_level=30))
        if elr:
            replay(self.context.state, FeatureLevelRecord(name=ELR, feature_level=1))
        self.journal = InstantJournal()
        self.runtime = Runtime(Controller(self.context, []), self.journal)
        self.runtime.lead(0)
        self.epochs = {}
        for broker in brokers:
            self.register(broker)

    def send_request(self, request, now_ms=0):
        answers = []
        self.runtime.submit(request, now_ms, lambda answer, error: answers.append(error or answer))
        [answer] = answers
        if isinstance(answer, Exception):
            raise answer
        return answer

    def register(self, broker, incarnation=b"a" * 16, now_ms=0, active=True):
        answer = self.send_request(
            BrokerRegistrationRequest(
                broker_id=broker,
                cluster_id="cluster",
                incarnation_id=incarnation,
                log_dirs=[Uuid(b"d" * 16)],
                features=[
                    BrokerRegistrationRequest.Feature(name=name, min_supported_version=low, max_supported_version=high)
                    for name, (low, high) in FEATURES.items()
                ],
            ),
            now_ms,
        )
        self.epochs[broker] = answer.broker_epoch
        if active:
            assert not self.heartbeat(broker, now_ms).is_fenced

    def heartbeat(self, broker, now_ms=0, **heartbeat_fields):
        return self.send_request(
            BrokerHeartbeatRequest(
                broker_id=broker,
                broker_epoch=self.epochs[broker],
                current_metadata_offset=len(self.journal.records),
                **heartbeat_fields,
            ),
            now_ms,
        )

    def create(self, *topics, **more):
        return self.send_request(CreateTopicsRequest(topics=list(topics), **more)).topics

    def partition(self, topic, index=0):
        return self.context.state.partitions[(self.context.state.topic_ids[topic], index)]
