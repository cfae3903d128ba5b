"""Follows the metadata log on a broker: committed records in, a new image and what changed out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from headrace.base.ids import Uuid
from headrace.metadata.image import Image, Topic
from headrace.metadata.state import ClusterState, replay

K = TypeVar("K")
V = TypeVar("V")


class _Watched(dict[K, V]):
    """A dict that remembers which keys were touched since the last image."""

    def __init__(self) -> None:
        super().__init__()
        self.touched: dict[K, None] = {}

    def __setitem__(self, key: K, value: V) -> None:
        self.touched[key] = None
        super().__setitem__(key, value)

    def __delitem__(self, key: K) -> None:
        self.touched[key] = None
        super().__delitem__(key)


@dataclass(frozen=True, slots=True)
class Changes:
    """What differs between two images. A topic deleted and made again under its name stands in both lists."""

    topics: tuple[str, ...]  # new, or with changed partitions
    deleted_topics: tuple[tuple[str, Uuid], ...]
    brokers: tuple[int, ...]
    configs: tuple[tuple[int, str], ...]


class Publisher(Protocol):
    def publish(self, old: Image, new: Image, changes: Changes) -> None:
        """Called on the event loop, once per image, in order. Long work is started here, not done here."""


class MetadataLoader:
    def __init__(self, publishers: Sequence[Publisher]) -> None:
        self._publishers = publishers
        self._state = ClusterState(_Watched)
        self.image = Image()

    def apply(self, records: Sequence[Any], last_offset: int, epoch: int, *, more: bool = False) -> None:
        """Takes committed records and shows the result to every publisher, in their order; with `more` later, with what follows."""
        for record in records:
            replay(self._state, record)
        if more:
            return
        old, (new, changes) = self.image, self._next_image(last_offset, epoch)
        self.image = new
        for publisher in self._publishers:
            publisher.publish(old, new, changes)

    def _next_image(self, offset: int, epoch: int) -> tuple[Image, Changes]:
        state, old = self._state, self.image
        watched: dict[str, _Watched[Any, Any]] = {
            name: cells for name, cells in vars(state).items() if isinstance(cells, _Watched)
        }
        touched = {name: list(cells.touched) for name, cells in watched.items()}
        for cells in watched.values():
            cells.touched.clear()
        ids = dict.fromkeys([*touched["topic_names"], *(topic_id for topic_id, _ in touched["partitions"])])
        topics, deleted = dict(old.topics), []
        for topic_id in ids:
            name = state.topic_names.get(topic_id)
            if name is None:
                was = old.topic_names.get(topic_id)
                if was is not None:
                    deleted.append((was, topic_id))
                    if state.topic_ids.get(was) is None:
                        topics.pop(was, None)
            else:
                topics[name] = Topic(name, topic_id, tuple(state.partitions_of(topic_id)))
        image = Image(
            offset=offset,
            epoch=epoch,
            brokers=dict(watched["brokers"]) if touched["brokers"] else old.brokers,
            topics=topics if ids else old.topics,
            topic_names=dict(watched["topic_names"]) if touched["topic_names"] else old.topic_names,
            configs=dict(watched["configs"]) if touched["configs"] else old.configs,
            features=dict(watched["features"]) if touched["features"] else old.features,
        )
        names = [name for topic_id in ids if (name := state.topic_names.get(topic_id)) is not None]
        return image, Changes(tuple(names), tuple(deleted), tuple(touched["brokers"]), tuple(touched["configs"]))
