"""Fast fencing: a broker whose process is gone is fenced at once, instead of when its session ends.

The shell has found that the broker's connection is lost and that its listener refuses connections. The decision trusts this only if the
broker has not been heard of since. Safety does not depend on it: a broker that is fenced by mistake is unfenced by its next heartbeat.
"""

from __future__ import annotations

from msgspec import Struct

from headrace.controller import brokers
from headrace.controller.context import ControllerContext, Tx


class FenceDeadBroker(Struct, frozen=True):
    """A request of the controller's shell to itself; the reply tells whether the broker was fenced."""

    broker_id: int
    broker_epoch: int
    lost_ms: int  # when the last probe of its listener was refused


def fence(context: ControllerContext, request: FenceDeadBroker, now_ms: int, tx: Tx) -> None:
    broker = context.state.brokers.get(request.broker_id)
    heard_ms = context.sessions.last_heartbeat_ms.get(request.broker_id, -1)
    is_dead = (
        broker is not None
        and broker.epoch == request.broker_epoch
        and not broker.fenced
        and heard_ms <= request.lost_ms
    )
    if broker is not None and is_dead:
        brokers.fence(context, broker, tx)
    tx.reply(tx.ticket, is_dead)
