"""Members of a consumer group that act as clients do: report what they own, revoke, rejoin, and lose responses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tests.coordinators.classic_harness import ClassicHarness
from tests.coordinators.group_harness import GroupHarness

from headrace.base.errors import ErrorCode, KafkaError
from headrace.base.ids import Uuid
from headrace.protocol.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from headrace.protocol.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest as Request

REBALANCE_MS = 30_000
REJOIN = (ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.GROUP_ID_NOT_FOUND)


def partitions(owned: set[tuple[Uuid, int]]) -> list[ConsumerGroupHeartbeatRequest.TopicPartitions]:
    topics: dict[Uuid, list[int]] = {}
    for topic, partition in sorted(owned):
        topics.setdefault(topic, []).append(partition)
    return [Request.TopicPartitions(topic_id=topic, partitions=indexes) for topic, indexes in topics.items()]


class Client:
    """A member that owns its last assignment, and still works on revoked partitions until its next heartbeat."""

    def __init__(
        self, harness: ClassicHarness | GroupHarness, name: str, *topics: str, group: str = "g", **more: Any
    ) -> None:
        self.harness, self.group, self.name, self.topics = harness, group, name, list(topics)
        self.more = more  # instance_id, rack_id, server_assignor, subscribed_topic_regex
        self.epoch = 0
        self.owned: set[tuple[Uuid, int]] = set()
        self.working: set[tuple[Uuid, int]] = set()  # owned partitions and those it revokes before its next heartbeat
        self.reported: set[tuple[Uuid, int]] | None = (
            None  # partitions reported by the last heartbeat that got a response
        )
        self.sends_full_next = True  # whether the next heartbeat is a full one, as after a failure
        self.last_response_ms = harness.now_ms
        self.interval_ms: int | None = None

    def request(self, full: bool = False) -> ConsumerGroupHeartbeatRequest:
        full = full or self.epoch == 0 or self.sends_full_next
        self.working = set(self.owned)
        names = self.topics if full and "subscribed_topic_regex" not in self.more else None
        return Request(
            group_id=self.group,
            member_id=self.name,
            member_epoch=self.epoch,
            rebalance_timeout_ms=REBALANCE_MS if full else -1,
            subscribed_topic_names=names,
            topic_partitions=partitions(self.owned) if full or self.owned != self.reported else None,
            **(self.more if full else {key: self.more[key] for key in ("instance_id",) if key in self.more}),
        )

    def beat(self, full: bool = False, **caller: Any) -> bool:
        """Send one heartbeat and apply its response; return whether that changed what the member owns or fenced it."""
        request = self.request(full)
        try:
            response = self.harness.execute(request, client_id=self.name, client_host="/10.0.0.1", **caller)
        except KafkaError as error:
            if error.code not in REJOIN:
                raise
            self.fenced()
            return True
        return self.take(request, response)

    def lose(self) -> None:
        """Send a heartbeat whose response is lost. The member has not heard from the coordinator then, whatever that did."""
        self._submit(self.request())
        self.sends_full_next = True

    def _submit(self, request: ConsumerGroupHeartbeatRequest) -> list[Any]:
        heard: list[Any] = []
        self.harness.submit(
            request,
            lambda response, error: heard.append(error or response),
            client_id=self.name,
            client_host="/10.0.0.1",
        )
        return heard

    def beat_late(self, is_committed: bool) -> None:
        """Send a heartbeat whose response waits for the commit; without the commit, move the coordinator."""
        self.harness.journal.late = True
        request = self.request()
        responses = self._submit(request)
        if responses and isinstance(responses[0], KafkaError):
            self.harness.journal.late = False
            self.fenced()
        elif is_committed:
            self.harness.journal.late = False
            self.harness.journal.commit()
            self.take(request, responses[0])
        else:
            # A response must not depend on records that can still be lost.
            assert not responses or self.harness.journal.committed == len(self.harness.journal.written)
            self.harness.move()
            self.sends_full_next = True

    def fenced(self) -> None:
        self.epoch, self.owned, self.working, self.reported, self.sends_full_next = 0, set(), set(), None, True

    def take(self, request: ConsumerGroupHeartbeatRequest, response: ConsumerGroupHeartbeatResponse) -> bool:
        assert response.error_code == 0
        self.sends_full_next, self.last_response_ms = False, self.harness.now_ms
        if request.topic_partitions is not None:
            self.reported = set(self.owned)
        self.epoch, self.interval_ms = response.member_epoch, response.heartbeat_interval_ms
        if response.assignment is None:
            return False
        before = set(self.owned)
        self.owned = {
            (Uuid(topic.topic_id), partition)
            for topic in response.assignment.topic_partitions
            for partition in topic.partitions
        }
        self.working |= self.owned
        return self.owned != before

    def subscribe(self, *topics: str) -> bool:
        self.topics = list(topics)
        request = Request(
            group_id=self.group,
            member_id=self.name,
            member_epoch=self.epoch,
            subscribed_topic_names=self.topics,
            topic_partitions=partitions(self.owned),
        )
        return self.take(request, self.harness.execute(request, client_id=self.name, client_host="/10.0.0.1"))

    def leave(self, epoch: int = -1) -> None:
        request = Request(
            group_id=self.group, member_id=self.name, member_epoch=epoch, instance_id=self.more.get("instance_id")
        )
        self.harness.execute(request)
        self.fenced()


def settle(harness: GroupHarness, clients: Sequence[Client], rounds: int = 12) -> list[set[tuple[Uuid, int]]]:
    """Run rounds of heartbeats, enough for partitions to stop moving, and return what each client owns."""
    for _ in range(rounds):
        harness.pass_time(1000)
        for client in clients:
            client.beat()
    return [client.owned for client in clients]
