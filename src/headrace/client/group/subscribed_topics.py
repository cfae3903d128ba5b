"""Watches the topics of a subscription for changes in metadata; in classic groups this is up to the members.

Every member resolves its own pattern; the leader also watches the partition counts and racks of all topics of the
group.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from headrace.base.errors import ErrorCode, HeadraceError, KafkaError
from headrace.base.ids import TopicPartition
from headrace.base.patterns import BadPattern, Pattern
from headrace.client.group.assignors import Layout
from headrace.client.group.membership import Subscription
from headrace.client.group.settings import GroupSettings
from headrace.client.wire.cluster import Cluster
from headrace.protocol.messages.metadata import MetadataResponse

MISSING_TOPIC_S = 1.0  # seconds between checks for a missing topic
_REFUSED = (ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.INVALID_TOPIC_EXCEPTION)

logger = logging.getLogger(__name__)


class SubscribedTopics:
    def __init__(self, cluster: Cluster, settings: GroupSettings, changed: Callable[[str], None]) -> None:
        """Create without a subscription; `changed` is called with the reason why the group must rebalance."""
        self._cluster = cluster
        self._settings = settings
        self._changed = changed
        self._subscription = Subscription()
        self._pattern: Pattern | None = None
        self._joined_with: frozenset[str] | None = None
        self._assigned_from: tuple[frozenset[str], Layout] | None = None

    def subscribe(self, subscription: Subscription) -> None:
        """Set the subscription. Raise KafkaError INVALID_REGULAR_EXPRESSION if the pattern is invalid."""
        try:
            self._pattern = None if subscription.pattern is None else Pattern(subscription.pattern)
        except BadPattern as error:
            what = f"{subscription.pattern!r}: {error}"
            raise KafkaError(ErrorCode.INVALID_REGULAR_EXPRESSION, what) from None
        self._subscription = subscription
        self._joined_with = None

    def wants(self, topic: str) -> bool:
        return self._pattern.matches(topic) if self._pattern is not None else topic in self._subscription.topics

    async def names(self) -> frozenset[str]:
        """Return the topics the member joins with, and remember them to notice changes."""
        subscription = self._subscription
        found = await self._matching()
        if subscription is self._subscription:
            self._joined_with = found
        return found

    async def _matching(self) -> frozenset[str]:
        if self._pattern is None:
            return self._subscription.topics
        pattern, response = self._pattern, await self._cluster.refresh(None)
        return frozenset(
            topic.name
            for topic in response.topics
            if topic.name is not None
            and topic.error_code == ErrorCode.NONE
            and not (topic.is_internal and self._settings.exclude_internal)
            and pattern.matches(topic.name)
        )

    async def layout_to_assign(self, topics: frozenset[str]) -> Layout:
        """Return the layout of all topics of the group, for its leader, and remember it to notice changes."""
        layout = await self._layout(topics)
        self._assigned_from = topics, layout
        return layout

    def not_leading(self) -> None:
        self._assigned_from = None

    async def _layout(self, topics: frozenset[str]) -> Layout:
        create = self._settings.create_topics and self._pattern is None
        response = await self._cluster.refresh(sorted(topics), create=create)
        for topic in response.topics:
            code = ErrorCode(topic.error_code)
            if code in _REFUSED and topic.name in self._subscription.topics:
                raise KafkaError(code, f"topic {topic.name}")
        return layout_of(response)

    async def watch(self) -> None:
        """Look for changes forever; run this in a separate task."""
        looked = asyncio.get_running_loop().time()
        while True:
            await asyncio.sleep(MISSING_TOPIC_S)
            now = asyncio.get_running_loop().time()
            if not self._is_something_missing and now < looked + self._settings.metadata_max_age_s:
                continue
            looked = now
            try:
                await self._look()
            except HeadraceError as error:
                logger.debug("group %s: metadata could not be refreshed: %s", self._settings.group_id, error)

    @property
    def _is_something_missing(self) -> bool:
        if self._assigned_from is None:
            return False
        topics, layout = self._assigned_from
        return not topics <= layout.counts.keys()

    async def _look(self) -> None:
        joined_with, assigned_from = self._joined_with, self._assigned_from
        if self._pattern is not None and joined_with is not None:
            found = await self._matching()
            if joined_with is self._joined_with and found != joined_with:
                self._changed("the subscription matches other topics than before")
        if assigned_from is not None:
            layout = await self._layout(assigned_from[0])
            if assigned_from is self._assigned_from and layout != assigned_from[1]:
                self._changed("topics have changed since the last assignment")


def layout_of(response: MetadataResponse) -> Layout:
    racks = {broker.node_id: broker.rack for broker in response.brokers}
    counts: dict[str, int] = {}
    partition_racks: dict[TopicPartition, frozenset[str]] = {}
    for topic in response.topics:
        if topic.name is None or topic.error_code != ErrorCode.NONE or not topic.partitions:
            continue
        counts[topic.name] = len(topic.partitions)
        for partition in topic.partitions:
            where = frozenset(rack for node in partition.replica_nodes if (rack := racks.get(node)) is not None)
            if where:
                partition_racks[TopicPartition(topic.name, partition.partition_index)] = where
    return Layout(counts, partition_racks)
