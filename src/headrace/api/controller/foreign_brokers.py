"""Refuses broker requests from other nodes: until brokers replicate, only this node may act as a broker.

A registration would make the controller place replicas on a broker that copies nothing. A heartbeat with the node's own id and epoch,
which can be read from the metadata log, would fence the node or shut it down.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from headrace.base.errors import ErrorCode
from headrace.protocol.apis import ApiKey
from headrace.server.context import RequestContext

log = logging.getLogger(__name__)

LOGGED_AGAIN_S = 60.0  # log interval for one broker, which retries several times a second
LOGGED_MAX = 1_000  # pairs of address and broker id that are remembered as logged


class ForeignBrokers:
    def __init__(self, node_id: int, now_s: Callable[[], float]) -> None:
        self._node_id = node_id
        self._now_s = now_s
        self._logged_s: dict[tuple[str, int], float] = {}

    def refusal(self, context: RequestContext, broker_id: int) -> ErrorCode | None:
        """Return the error for a broker's request, or None if this node sent it itself."""
        if context.peer.authority.is_own_node:
            return None
        own = broker_id == self._node_id
        if context.api_key == ApiKey.BROKER_REGISTRATION:
            code = ErrorCode.DUPLICATE_BROKER_REGISTRATION if own else ErrorCode.INVALID_REGISTRATION
        else:
            code = ErrorCode.CLUSTER_AUTHORIZATION_FAILED if own else ErrorCode.BROKER_ID_NOT_REGISTERED
        self._log(context, broker_id, code)
        return code

    def _log(self, context: RequestContext, broker_id: int, code: ErrorCode) -> None:
        now_s, key = self._now_s(), (context.peer.address, broker_id)
        logged_s = self._logged_s.get(key)
        if logged_s is not None and now_s - logged_s < LOGGED_AGAIN_S:
            return
        if len(self._logged_s) >= LOGGED_MAX:
            self._logged_s.clear()
        self._logged_s[key] = now_s
        log.warning(
            "%s of broker %d from %s (%s) on %s refused with %s: this version runs one node, %d, and only that node may"
            " act as a broker; its further requests are not logged for %.0f s",
            ApiKey(context.api_key).name,
            broker_id,
            context.peer.address,
            context.peer.principal,
            context.peer.listener,
            code.name,
            self._node_id,
            LOGGED_AGAIN_S,
        )
