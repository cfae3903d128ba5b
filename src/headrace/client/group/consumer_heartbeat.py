"""Heartbeats of a consumer group's member (KIP-848). Pure: each carries only what has changed since the last one.

A heartbeat carries everything when the member joins, and when the last one may not have arrived.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

from headrace.base.ids import TopicPartition, Uuid
from headrace.client.group.membership import Subscription
from headrace.client.group.settings import GroupSettings
from headrace.protocol.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)

JOINING, LEAVING, LEAVING_TO_RETURN = 0, -1, -2  # member epochs
REGEX_VERSION_MIN = 1

Owned = Mapping[TopicPartition, Uuid]  # topic ids by partition, because another topic may have the same name
PartitionsById = dict[Uuid, list[int]]


class Heartbeats:
    def __init__(self, settings: GroupSettings) -> None:
        self._settings = settings
        self._sent_subscription: Subscription | None = None
        self._sent_owned: PartitionsById | None = None

    def forget(self) -> None:
        """Make the next heartbeat carry everything."""
        self._sent_subscription = self._sent_owned = None

    def next(
        self, member_id: str, epoch: int, subscription: Subscription, owned: Owned
    ) -> ConsumerGroupHeartbeatRequest:
        if epoch == JOINING:
            self.forget()
        request = ConsumerGroupHeartbeatRequest(
            group_id=self._settings.group_id,
            member_id=member_id,
            member_epoch=epoch,
            instance_id=self._settings.instance_id,
        )
        sent = self._sent_subscription
        if sent is None:
            request.rack_id = self._settings.rack
            request.rebalance_timeout_ms = self._settings.max_poll_interval_ms
            request.server_assignor = self._settings.remote_assignor
        if sent is None or sent.topics != subscription.topics:
            request.subscribed_topic_names = sorted(subscription.topics)
        if sent is None or sent.pattern != subscription.pattern:
            request.subscribed_topic_regex = subscription.pattern if sent is None else subscription.pattern or ""
        self._sent_subscription = subscription
        owning = by_id(owned)
        if owning != self._sent_owned:
            request.topic_partitions = [
                ConsumerGroupHeartbeatRequest.TopicPartitions(topic_id=topic, partitions=some)
                for topic, some in owning.items()
            ]
            self._sent_owned = owning
        return request

    def last(self, member_id: str, epoch: int) -> ConsumerGroupHeartbeatRequest:
        self.forget()
        return ConsumerGroupHeartbeatRequest(
            group_id=self._settings.group_id,
            member_id=member_id,
            member_epoch=epoch,
            instance_id=self._settings.instance_id,
        )


def by_id(owned: Owned) -> PartitionsById:
    found: PartitionsById = defaultdict(list)
    for (_, partition), topic_id in sorted(owned.items()):
        found[topic_id].append(partition)
    return dict(found)


def given(topics: Iterable[ConsumerGroupHeartbeatResponse.TopicPartitions]) -> frozenset[tuple[Uuid, int]]:
    return frozenset((topic.topic_id, partition) for topic in topics for partition in topic.partitions)
