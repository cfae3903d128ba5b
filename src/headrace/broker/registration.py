"""The broker's life with the controller: register an incarnation, wait for its metadata, ask to be unfenced, heartbeat, leave."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from headrace.base.errors import ErrorCode, HeadraceError, KafkaError
from headrace.base.ids import NodeId, Uuid
from headrace.broker.controller_channel import ControllerChannel
from headrace.metadata.image import Endpoint
from headrace.protocol.messages.broker_heartbeat import BrokerHeartbeatRequest, BrokerHeartbeatResponse
from headrace.protocol.messages.broker_registration import BrokerRegistrationRequest, BrokerRegistrationResponse

log = logging.getLogger(__name__)

RETRY_S = 0.05
CONTROLLED_SHUTDOWN_S_MAX = 30.0


class Registration:
    def __init__(
        self,
        channel: ControllerChannel,
        node_id: NodeId,
        cluster_id: str,
        incarnation_id: Uuid,
        endpoints: Callable[[], Sequence[Endpoint]],
        features: dict[str, tuple[int, int]],
        rack: str | None,
        log_dirs: Sequence[Uuid],
        metadata_offset: Callable[[], int],
        heartbeat_s: float,
    ) -> None:
        self._channel = channel
        self._node_id = node_id
        self._cluster_id = cluster_id
        self._incarnation_id = incarnation_id
        self._endpoints = endpoints
        self._features = features
        self._rack = rack
        self._log_dirs = log_dirs
        self._metadata_offset = metadata_offset
        self._heartbeat_s = heartbeat_s
        self.broker_epoch = -1
        self.fenced = True

    async def register(self, previous_broker_epoch: int) -> None:
        """`previous_broker_epoch` proves that the last stop was clean; -1 says that it was not."""
        answer: BrokerRegistrationResponse = await self._channel.request(
            BrokerRegistrationRequest(
                broker_id=self._node_id,
                cluster_id=self._cluster_id,
                incarnation_id=self._incarnation_id,
                listeners=[
                    BrokerRegistrationRequest.Listener(
                        name=endpoint.name,
                        host=endpoint.host,
                        port=endpoint.port,
                        security_protocol=endpoint.security_protocol,
                    )
                    for endpoint in self._endpoints()
                ],
                features=[
                    BrokerRegistrationRequest.Feature(name=name, min_supported_version=low, max_supported_version=high)
                    for name, (low, high) in sorted(self._features.items())
                ],
                rack=self._rack,
                log_dirs=list(self._log_dirs),
                previous_broker_epoch=previous_broker_epoch,
            )
        )
        if answer.error_code != ErrorCode.NONE:
            raise KafkaError(ErrorCode(answer.error_code), f"the controller refused to register broker {self._node_id}")
        self.broker_epoch = answer.broker_epoch
        self.fenced = True

    async def become_active(self) -> None:
        """Returns when the controller has unfenced this broker."""
        while self.fenced:
            await self._heartbeat()
            if self.fenced:
                await asyncio.sleep(RETRY_S)

    async def run(self) -> None:
        """Heartbeats for ever; a broker that the controller forgot or fenced registers again."""
        while True:
            await asyncio.sleep(self._heartbeat_s)
            try:
                await self._heartbeat()
            except KafkaError as error:
                log.warning("heartbeat refused (%s): registering again", error)
                await self._again()
            except (OSError, HeadraceError) as error:
                log.warning("no heartbeat reached the controller: %s", error)

    async def _again(self) -> None:
        try:
            await self.register(self.broker_epoch)
            await self.become_active()
        except (OSError, HeadraceError) as error:
            log.warning("registering again failed, next try with the next heartbeat: %s", error)

    async def leave(self) -> None:
        """Controlled shutdown: the controller moves leadership away, then lets us go."""
        deadline = asyncio.get_running_loop().time() + CONTROLLED_SHUTDOWN_S_MAX
        while asyncio.get_running_loop().time() < deadline:
            answer = await self._heartbeat(want_shut_down=True)
            if answer.should_shut_down:
                return
            await asyncio.sleep(0)
        log.warning(
            "the controller did not let this broker go within %.0f s; stopping anyway", CONTROLLED_SHUTDOWN_S_MAX
        )

    async def _heartbeat(self, *, want_shut_down: bool = False) -> BrokerHeartbeatResponse:
        answer: BrokerHeartbeatResponse = await self._channel.request(
            BrokerHeartbeatRequest(
                broker_id=self._node_id,
                broker_epoch=self.broker_epoch,
                current_metadata_offset=self._metadata_offset(),
                want_shut_down=want_shut_down,
            )
        )
        if answer.error_code != ErrorCode.NONE:
            raise KafkaError(ErrorCode(answer.error_code), "heartbeat")
        self.fenced = answer.is_fenced
        return answer
