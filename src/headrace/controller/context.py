"""What every decision of the controller can see: the newest state, the volatile sessions, its settings, and injected chance."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from headrace.base.ids import Uuid
from headrace.metadata.image import BROKER_CONFIG, TOPIC_CONFIG, Broker, Partition
from headrace.metadata.state import ClusterState
from headrace.statemachine.machine import Decision
from headrace.statemachine.undo import Table, UndoLog

if TYPE_CHECKING:
    from random import Random

    from headrace.base.options import Value

Tx = Decision[Any]


@dataclass(slots=True)
class ControllerContext:
    cluster_id: str
    chance: Random
    defaults: Callable[[], Mapping[str, Value]]  # topic options as the controller's own settings give them
    num_partitions: int = 1
    replication_factor: int = 1
    session_timeout_ms: int = 9_000
    undo: UndoLog = field(default_factory=UndoLog)
    state: ClusterState = field(init=False)
    last_heard_ms: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.state = ClusterState(lambda: Table(self.undo))

    def brokers(self) -> list[tuple[int, Broker]]:
        return self._items(self.state.brokers)

    def partitions(self) -> list[tuple[tuple[Uuid, int], Partition]]:
        return self._items(self.state.partitions)

    def topic_names(self) -> list[str]:
        return [name for name, _ in self._items(self.state.topic_ids)]

    def features(self) -> dict[str, int]:
        return dict(self._items(self.state.features))

    def committed_features(self) -> dict[str, int]:
        assert isinstance(self.state.features, Table)
        return dict(self.state.features.committed_items())

    def min_isr(self, topic_id: Uuid) -> int:
        name = self.state.topic_names.get(topic_id)
        text = None if name is None else self.state.config(TOPIC_CONFIG, name).get("min.insync.replicas")
        if text is None:
            text = self.state.config(BROKER_CONFIG, "").get("min.insync.replicas")
        value = self.defaults()["min.insync.replicas"] if text is None else int(text)
        assert isinstance(value, int)
        return value

    @staticmethod
    def _items(cells: Any) -> list[Any]:
        assert isinstance(cells, Table)
        return cells.items()
