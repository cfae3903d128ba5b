"""What the active controller knows of brokers from their heartbeats. It is volatile: each new leader starts without it."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class BrokerSessions:
    timeout_ms: int
    last_heartbeat_ms: dict[int, int] = field(default_factory=dict)
    metadata_offsets: dict[int, int] = field(default_factory=dict)  # up to which a broker has applied the metadata log
    # Offset that all active brokers must have passed before a broker in controlled shutdown may stop.
    shutdown_offsets: dict[int, int] = field(default_factory=dict)

    def is_expired(self, broker_id: int, now_ms: int) -> bool:
        """Return whether a broker's session has ended; one that has not sent a heartbeat to this leader has none."""
        last_ms = self.last_heartbeat_ms.get(broker_id)
        return last_ms is None or now_ms - last_ms >= self.timeout_ms

    def forget(self, broker_id: int) -> None:
        for by_broker in (self.last_heartbeat_ms, self.metadata_offsets, self.shutdown_offsets):
            by_broker.pop(broker_id, None)

    def clear(self) -> None:
        for by_broker in (self.last_heartbeat_ms, self.metadata_offsets, self.shutdown_offsets):
            by_broker.clear()
