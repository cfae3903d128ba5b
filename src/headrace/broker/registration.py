"""A broker's registration: register an incarnation, wait to be unfenced, send heartbeats, request a controlled shutdown."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress

from headrace.base.errors import ErrorCode, HeadraceError, KafkaError
from headrace.base.ids import NodeId, Uuid
from headrace.broker.controller_channel import ControllerChannel
from headrace.metadata.image import Endpoint
from headrace.protocol.messages.broker_heartbeat import BrokerHeartbeatRequest, BrokerHeartbeatResponse
from headrace.protocol.messages.broker_registration import BrokerRegistrationRequest, BrokerRegistrationResponse
from headrace.replication.directories import Directories, StorageFailed

log = logging.getLogger(__name__)

RETRY_S = 0.05
CONTROLLED_SHUTDOWN_S_MAX = 30.0


class Registration:
    """Registers this broker and sends its heartbeats.

    `give_up` is called if a failed directory could not be reported to the controller for `failure_timeout_s`.
    """

    def __init__(
        self,
        channel: ControllerChannel,
        node_id: NodeId,
        cluster_id: str,
        incarnation_id: Uuid,
        endpoints: Callable[[], Sequence[Endpoint]],
        features: dict[str, tuple[int, int]],
        rack: str | None,
        directories: Directories,
        metadata_offset: Callable[[], int],
        heartbeat_s: float,
        failure_timeout_s: float,
        give_up: Callable[[StorageFailed], None],
    ) -> None:
        self._channel = channel
        self._node_id = node_id
        self._cluster_id = cluster_id
        self._incarnation_id = incarnation_id
        self._endpoints = endpoints
        self._features = features
        self._rack = rack
        self._directories = directories
        self._metadata_offset = metadata_offset
        self._heartbeat_s = heartbeat_s
        self._failure_timeout_s = failure_timeout_s
        self._give_up = give_up
        self._told_offline: set[Uuid] = set()
        self._untold_since_s: float | None = None
        self._urgent = asyncio.Event()
        self.broker_epoch = -1
        self.fenced = True

    async def register(self, previous_broker_epoch: int) -> None:
        """Register with the controller and store the broker epoch. Raise KafkaError if the controller refuses.

        `previous_broker_epoch` proves that the last shutdown was clean; -1 means that it was not.
        """
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
                log_dirs=self._directories.online_ids(),
                previous_broker_epoch=previous_broker_epoch,
            )
        )
        if answer.error_code != ErrorCode.NONE:
            raise KafkaError(ErrorCode(answer.error_code), f"the controller refused to register broker {self._node_id}")
        self.broker_epoch = answer.broker_epoch
        self.fenced = True

    async def become_active(self) -> None:
        """Send heartbeats until the controller has unfenced this broker."""
        while self.fenced:
            await self._heartbeat()
            if self.fenced:
                await asyncio.sleep(RETRY_S)

    async def run(self) -> None:
        """Send heartbeats until cancelled, and register again whenever the controller refuses one."""
        while True:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._urgent.wait(), self._heartbeat_s)
            self._urgent.clear()
            try:
                await self._heartbeat()
            except KafkaError as error:
                log.warning("heartbeat refused (%s): registering again", error)
                await self._again()
            except (OSError, HeadraceError) as error:
                log.warning("no heartbeat reached the controller: %s", error)
            self._check_told()

    def _check_told(self) -> None:
        """Give up if a failed directory has been unreported for longer than the failure timeout.

        Until the controller knows of the failure, it elects no other leader for the partitions in that directory.
        """
        now_s = asyncio.get_running_loop().time()
        if self._told_offline.issuperset(self._directories.offline_ids()):
            self._untold_since_s = None
        elif self._untold_since_s is None:
            self._untold_since_s = now_s
        elif now_s - self._untold_since_s > self._failure_timeout_s:
            self._give_up(
                StorageFailed(
                    f"a directory has failed, and the controller could not be told for {self._failure_timeout_s:.0f} s"
                )
            )

    def hurry(self) -> None:
        """Send the next heartbeat now, because there is something to report."""
        self._urgent.set()

    async def _again(self) -> None:
        try:
            await self.register(self.broker_epoch)
            await self.become_active()
        except (OSError, HeadraceError) as error:
            log.warning("registering again failed, next try with the next heartbeat: %s", error)

    async def leave(self) -> None:
        """Request a controlled shutdown and wait until the controller has moved leadership away.

        Return after `CONTROLLED_SHUTDOWN_S_MAX` even if the controller has not agreed.
        """
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
        offline = self._directories.offline_ids()
        answer: BrokerHeartbeatResponse = await self._channel.request(
            BrokerHeartbeatRequest(
                broker_id=self._node_id,
                broker_epoch=self.broker_epoch,
                current_metadata_offset=self._metadata_offset(),
                want_shut_down=want_shut_down,
                offline_log_dirs=offline,
                cordoned_log_dirs=self._directories.cordoned_ids(),
            )
        )
        if answer.error_code != ErrorCode.NONE:
            raise KafkaError(ErrorCode(answer.error_code), "heartbeat")
        self.fenced = answer.is_fenced
        self._told_offline.update(offline)
        return answer
