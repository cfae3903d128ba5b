"""Registers this controller with the active one (KIP-919), so that the cluster knows its endpoints and feature levels."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping

from headrace.base.errors import ErrorCode, HeadraceError
from headrace.base.ids import new_uuid
from headrace.broker.channels.controller_channel import ControllerChannel
from headrace.node.configuration.listener_addresses import SECURITY_PROTOCOLS
from headrace.node.context import NodeContext
from headrace.node.new_cluster.feature_levels import SUPPORTED_FEATURES
from headrace.protocol.messages.controller_registration import (
    ControllerRegistrationRequest,
    ControllerRegistrationResponse,
)

log = logging.getLogger(__name__)

RETRY_S = 5.0

Endpoints = Mapping[str, tuple[str, int]]  # listener -> host and port


class ControllerRegistration:
    """Registers a controller once per start; `endpoints` returns the addresses of its listeners."""

    def __init__(self, node: NodeContext, channel: ControllerChannel, endpoints: Callable[[], Endpoints]) -> None:
        self._node = node
        self._channel = channel
        self._endpoints = endpoints
        self._incarnation_id = new_uuid(node.random)

    async def run(self) -> None:
        """Return when the active controller has registered this one, or cannot; retry after a failure."""
        node_id = self._node.settings.node_id
        while True:
            try:
                response: ControllerRegistrationResponse = await self._channel.request(self._request())
            except (OSError, HeadraceError) as error:
                reason = str(error)
            else:
                code = ErrorCode(response.error_code)
                if code is ErrorCode.NONE:
                    log.info("controller %d is registered", node_id)
                    return
                reason = f"{code.name}: {response.error_message}"
                if code is ErrorCode.UNSUPPORTED_VERSION:
                    log.info("controller %d is not registered: %s", node_id, reason)
                    return
            log.warning("controller %d could not be registered (%s); trying again in %.0f s", node_id, reason, RETRY_S)
            await asyncio.sleep(RETRY_S)

    def _request(self) -> ControllerRegistrationRequest:
        protocols = self._node.settings.protocols
        return ControllerRegistrationRequest(
            controller_id=self._node.settings.node_id,
            incarnation_id=self._incarnation_id,
            listeners=[
                ControllerRegistrationRequest.Listener(
                    name=name, host=host, port=port, security_protocol=SECURITY_PROTOCOLS[protocols[name]]
                )
                for name, (host, port) in self._endpoints().items()
            ],
            features=[
                ControllerRegistrationRequest.Feature(name=name, min_supported_version=low, max_supported_version=high)
                for name, (low, high) in SUPPORTED_FEATURES.items()
            ],
        )
