"""Metadata publisher for groups: deletes the committed offsets of deleted topics."""

from __future__ import annotations

from headrace.broker.shard_runner import Coordination
from headrace.coordinators.group.offsets import TopicsDeleted
from headrace.coordinators.group.request import CoordinatorRequest
from headrace.coordinators.group.shard import GroupShard
from headrace.metadata.image import Image
from headrace.metadata.loader import Changes


class GroupMetadataPublisher:
    def __init__(self, groups: Coordination[GroupShard]) -> None:
        self._groups = groups

    def publish(self, old: Image, new: Image, changes: Changes) -> None:
        if changes.deleted_topics:
            topics = [TopicsDeleted.Topic(name, topic_id) for name, topic_id in changes.deleted_topics]
            self._groups.decide_everywhere(CoordinatorRequest(TopicsDeleted(topics=topics), version=0))
