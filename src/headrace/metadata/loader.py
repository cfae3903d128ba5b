"""Follows the metadata log on a broker: turns committed records or a snapshot into a new image and its changes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, TypeVar

from msgspec import Struct

from headrace.base.ids import TopicPartition, Uuid
from headrace.metadata.image import Image, QuotaEntity, Topic
from headrace.metadata.state import ClusterState, replay
from headrace.metadata.transactions import TransactionBuffer

K = TypeVar("K")
V = TypeVar("V")

# Cells that an image contains unchanged; topics are assembled from several.
_PUBLISHED_CELLS = ("brokers", "topic_names", "configs", "features", "controllers", "client_quotas", "acls", "scram")


class _Watched(dict[K, V]):
    """A dict that records which keys were set or deleted since the last image."""

    def __init__(self) -> None:
        super().__init__()
        self.touched: dict[K, None] = {}

    def __setitem__(self, key: K, value: V) -> None:
        self.touched[key] = None
        super().__setitem__(key, value)

    def __delitem__(self, key: K) -> None:
        self.touched[key] = None
        super().__delitem__(key)


class Changes(Struct, frozen=True):
    """The differences between two images. A topic that was deleted and recreated is in both lists."""

    topics: tuple[str, ...]  # new topics and topics with changed partitions
    deleted_topics: tuple[tuple[str, Uuid], ...]
    brokers: tuple[int, ...]
    configs: tuple[tuple[int, str], ...]
    partitions: tuple[TopicPartition, ...] = ()  # new and changed partitions of those topics
    features: tuple[str, ...] = ()
    client_quotas: tuple[QuotaEntity, ...] = ()
    acls: tuple[Uuid, ...] = ()
    scram: tuple[tuple[str, int], ...] = ()


class Publisher(Protocol):
    def publish(self, old: Image, new: Image, changes: Changes) -> None:
        """Handle a new image: called on the event loop, once per image, in order. Start long work, don't do it here."""


class MetadataLoader:
    def __init__(self, publishers: Sequence[Publisher]) -> None:
        self._publishers = publishers
        self._state = ClusterState(_Watched)
        self._transaction = TransactionBuffer()
        self.image = Image()

    def apply(self, records: Sequence[Any], last_offset: int, epoch: int, *, more: bool = False) -> None:
        """Apply committed records and pass the new image to every publisher, in their order.

        With `more`, or inside a metadata transaction, the image is published later, together with what follows.
        """
        for record in records:
            for counted in self._transaction.admit(record):
                replay(self._state, counted)
        if more or self._transaction.is_open:
            return
        touched = {name: list(cells.touched) for name, cells in self._cells().items()}
        self._publish(self._next_image(touched, last_offset, epoch), touched)

    @staticmethod
    def empty_state() -> ClusterState:
        """Return an empty state, to be filled from a snapshot in slices and then adopted."""
        return ClusterState(_Watched)

    def adopt(self, state: ClusterState, last_offset: int, epoch: int, *, more: bool = False) -> None:
        """Replace the state with that of a snapshot and publish the differences; with `more`, publish them later."""
        old, self._state, self._transaction = self._state, state, TransactionBuffer()
        before = {name: cells for name, cells in vars(old).items() if isinstance(cells, _Watched)}
        touched = {name: _different(before[name], cells) for name, cells in self._cells().items()}
        for name, cells in self._cells().items():
            cells.touched = dict.fromkeys([*before[name].touched, *touched[name]])
        if more:
            return
        touched = {name: list(cells.touched) for name, cells in self._cells().items()}
        self._publish(self._next_image(touched, last_offset, epoch), touched)

    def _cells(self) -> dict[str, _Watched[Any, Any]]:
        return {name: cells for name, cells in vars(self._state).items() if isinstance(cells, _Watched)}

    def _publish(self, new: Image, touched: Mapping[str, Sequence[Any]]) -> None:
        for cells in self._cells().values():
            cells.touched.clear()
        old, self.image = self.image, new
        ids = _topic_ids(touched)
        changes = Changes(
            topics=tuple(name for topic_id in ids if (name := new.topic_names.get(topic_id)) is not None),
            deleted_topics=tuple(
                (name, topic_id)
                for topic_id in ids
                if topic_id not in new.topic_names and (name := old.topic_names.get(topic_id)) is not None
            ),
            brokers=tuple(touched["brokers"]),
            configs=tuple(touched["configs"]),
            partitions=tuple(
                TopicPartition(name, index)
                for topic_id, index in touched["partitions"]
                if (name := new.topic_names.get(topic_id)) is not None
            ),
            features=tuple(touched["features"]),
            client_quotas=tuple(touched["client_quotas"]),
            acls=tuple(touched["acls"]),
            scram=tuple(touched["scram"]),
        )
        for publisher in self._publishers:
            publisher.publish(old, new, changes)

    def _next_image(self, touched: Mapping[str, Sequence[Any]], offset: int, epoch: int) -> Image:
        old = self.image
        unchanged: dict[str, Any] = {
            name: dict(cells) if touched[name] else getattr(old, name)
            for name, cells in self._cells().items()
            if name in _PUBLISHED_CELLS
        }
        return Image(offset=offset, epoch=epoch, topics=self._topics(_topic_ids(touched)), **unchanged)

    def _topics(self, ids: Sequence[Uuid]) -> Mapping[str, Topic]:
        """Return all topics, with those of these ids taken from the state and the others from the last image."""
        state, old = self._state, self.image
        if not ids:
            return old.topics
        topics = dict(old.topics)
        for topic_id in ids:
            name = state.topic_names.get(topic_id)
            if name is not None:
                topics[name] = Topic(name, topic_id, tuple(state.partitions_of(topic_id)))
            else:
                was = old.topic_names.get(topic_id)
                if was is not None and state.topic_ids.get(was) is None:
                    topics.pop(was, None)
        return topics


def _topic_ids(touched: Mapping[str, Sequence[Any]]) -> list[Uuid]:
    return list(dict.fromkeys([*touched["topic_names"], *(topic_id for topic_id, _ in touched["partitions"])]))


def _different(before: Mapping[Any, Any], after: Mapping[Any, Any]) -> list[Any]:
    absent = object()
    return [key for key in {**before, **after} if before.get(key, absent) != after.get(key, absent)]
