"""The inputs of the controller's decisions: the latest state, the volatile sessions, settings, a source of randomness."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from headrace.base.ids import Uuid
from headrace.controller.broker_sessions import BrokerSessions
from headrace.controller.election_counts import ElectionCounts
from headrace.controller.partition_index import PartitionIndex, PartitionKey
from headrace.metadata.image import BROKER_CONFIG, TOPIC_CONFIG, Broker, Partition
from headrace.metadata.layers import BrokerLayers
from headrace.metadata.records import METADATA_VERSION_MAX
from headrace.metadata.state import METADATA_VERSION, ClusterState
from headrace.options.topic_options import TOPIC_OPTIONS
from headrace.protocol.messages.stored.metadata_security import UserScramCredentialRecord
from headrace.security.credentials import ScramCredential, ScramMechanism
from headrace.statemachine.machine import Decision
from headrace.statemachine.undo import Table, UndoLog

if TYPE_CHECKING:
    from random import Random

    from headrace.options.table import Value

Tx = Decision[Any]

ELR_FEATURE = "eligible.leader.replicas.version"


@dataclass(slots=True)
class ControllerContext:
    cluster_id: str
    random: Random
    static: Mapping[str, str] = field(default_factory=dict)  # the options set on this node, as texts
    settings: Mapping[str, Value] = field(default_factory=dict)  # all options of this node, with defaults
    list_options: Mapping[str, str] = field(default_factory=dict)  # broker options that are lists -> their defaults
    supported_features: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    node_id: int = -1
    kraft_version: Callable[[], int] = lambda: 0
    num_partitions: int = 1
    replication_factor: int = 1
    session_timeout_ms: int = 9_000
    undo: UndoLog = field(default_factory=UndoLog)
    state: ClusterState = field(init=False)
    sessions: BrokerSessions = field(init=False)
    index: PartitionIndex = field(default_factory=PartitionIndex)
    elections: ElectionCounts = field(default_factory=ElectionCounts)

    def __post_init__(self) -> None:
        self.state = ClusterState(lambda: Table(self.undo))
        self.sessions = BrokerSessions(self.session_timeout_ms)

    def reset(self) -> None:
        """Drop the state. It is emptied in place, because others hold references to it."""
        for cells in vars(self.state).values():
            assert isinstance(cells, Table)
            cells.clear()
        self.sessions.clear()
        self.index.clear()

    def brokers(self) -> list[tuple[int, Broker]]:
        return self._items(self.state.brokers)

    def partitions(self) -> list[tuple[tuple[Uuid, int], Partition]]:
        return self._items(self.state.partitions)

    def partitions_on(self, broker_id: int) -> list[tuple[PartitionKey, Partition]]:
        """Return the partitions that have a replica on the broker."""
        return self.index.of(broker_id, self.state, can_undo=len(self.undo) > 0)

    def topic_names(self) -> list[str]:
        return [name for name, _ in self._items(self.state.topic_ids)]

    def features(self) -> dict[str, int]:
        return dict(self._items(self.state.features))

    def committed_features(self) -> dict[str, int]:
        assert isinstance(self.state.features, Table)
        return dict(self.state.features.committed_items())

    def committed_scram(self) -> dict[tuple[str, int], UserScramCredentialRecord]:
        assert isinstance(self.state.scram, Table)
        return dict(self.state.scram.committed_items())

    def find_credential(self, mechanism: ScramMechanism, user: str) -> ScramCredential | None:
        assert isinstance(self.state.scram, Table)
        record = self.state.scram.committed((user, mechanism))
        if record is None:
            return None
        return ScramCredential(record.salt, record.stored_key, record.server_key, record.iterations)

    def committed_state(self) -> ClusterState:
        """Return a copy of the committed state; later changes do not affect it."""
        copy = ClusterState(dict)
        for name, cells in vars(self.state).items():
            assert isinstance(cells, Table)
            setattr(copy, name, cells.committed_copy())
        return copy

    @property
    def metadata_version(self) -> int:
        return self.state.features.get(METADATA_VERSION) or METADATA_VERSION_MAX

    @property
    def rebalance_interval_ms(self) -> int | None:
        """Return the interval between rebalances of leaders, or None if there are none."""
        seconds = self.settings.get("leader.imbalance.check.interval.seconds")
        enabled = self.settings.get("auto.leader.rebalance.enable") is True
        return seconds * 1000 if enabled and isinstance(seconds, int) else None

    @property
    def elr_enabled(self) -> bool:
        return (self.state.features.get(ELR_FEATURE) or 0) >= 1

    def layers(self) -> BrokerLayers:
        """Return the broker options that give topics their defaults, as far as this controller knows them."""
        return BrokerLayers(
            self.state.config(BROKER_CONFIG, str(self.node_id)), self.state.config(BROKER_CONFIG, ""), self.static, {}
        )

    def topic_option(self, topic_id: Uuid, option: str) -> str | None:
        name = self.state.topic_names.get(topic_id)
        text = None if name is None else self.state.config(TOPIC_CONFIG, name).get(option)
        return self.layers().topic_default(option).text if text is None else text

    def min_isr(self, topic_id: Uuid) -> int:
        text = self.topic_option(topic_id, "min.insync.replicas")
        assert text is not None
        return int(text)

    def unclean_election(self, topic_id: Uuid) -> bool:
        return (self.topic_option(topic_id, "unclean.leader.election.enable") or "").strip().lower() == "true"

    def default_text(self, resource_type: int, name: str) -> str | None:
        """Return the default of a topic option or of a broker's list option, or None."""
        if resource_type == BROKER_CONFIG:
            return self.list_options.get(name)
        option = TOPIC_OPTIONS.get(name) if resource_type == TOPIC_CONFIG else None
        return None if option is None else option.text(option.default)

    @staticmethod
    def _items(cells: Any) -> list[Any]:
        assert isinstance(cells, Table)
        return cells.items()
