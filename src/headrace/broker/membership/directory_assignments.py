"""Reports to the controller the directory of each replica that the metadata lacks (AssignReplicasToDirs, KIP-858)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from headrace.base.errors import ErrorCode, HeadraceError
from headrace.base.ids import NodeId, TopicPartition, Uuid
from headrace.broker.channels.controller_channel import ControllerChannel
from headrace.protocol.messages.assign_replicas_to_dirs import AssignReplicasToDirsRequest, AssignReplicasToDirsResponse
from headrace.replication.replicas import Replicas

log = logging.getLogger(__name__)

REPLICAS_PER_REQUEST_MAX = 2_000
RETRY_S = 0.5


class DirectoryAssignments:
    def __init__(
        self, channel: ControllerChannel, node_id: NodeId, replicas: Replicas, broker_epoch: Callable[[], int]
    ) -> None:
        self._channel = channel
        self._node_id = node_id
        self._replicas = replicas
        self._broker_epoch = broker_epoch
        self._changed = asyncio.Event()
        self._reported: dict[TopicPartition, tuple[Uuid, Uuid]] = {}  # reported, but not yet seen in the metadata log
        replicas.on_unassigned = self._changed.set

    async def run(self) -> None:
        """Report unassigned replicas until cancelled."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            while unreported := self._unreported():
                if not await self._report(unreported):
                    await asyncio.sleep(RETRY_S)

    def _unreported(self) -> dict[TopicPartition, tuple[Uuid, Uuid]]:
        unassigned = self._replicas.unassigned
        self._reported = {
            name: location for name, location in self._reported.items() if unassigned.get(name) == location
        }
        names = [name for name in unassigned if name not in self._reported][:REPLICAS_PER_REQUEST_MAX]
        return {name: unassigned[name] for name in names}

    async def _report(self, locations: dict[TopicPartition, tuple[Uuid, Uuid]]) -> bool:
        request = AssignReplicasToDirsRequest(broker_id=self._node_id, broker_epoch=self._broker_epoch())
        topics: dict[tuple[Uuid, Uuid], AssignReplicasToDirsRequest.TopicData] = {}
        directories: dict[Uuid, AssignReplicasToDirsRequest.DirectoryData] = {}
        for name, (topic_id, directory_id) in locations.items():
            if directory_id not in directories:
                directories[directory_id] = AssignReplicasToDirsRequest.DirectoryData(id=directory_id)
                request.directories.append(directories[directory_id])
            if (directory_id, topic_id) not in topics:
                topic = topics[(directory_id, topic_id)] = AssignReplicasToDirsRequest.TopicData(topic_id=topic_id)
                directories[directory_id].topics.append(topic)
            topics[(directory_id, topic_id)].partitions.append(
                AssignReplicasToDirsRequest.PartitionData(partition_index=name.partition)
            )
        try:
            response: AssignReplicasToDirsResponse = await self._channel.request(request)
        except (OSError, HeadraceError) as error:
            log.warning(
                "the directories of %d replicas could not be reported to the controller: %s; trying again in %.1f s",
                len(locations),
                error,
                RETRY_S,
            )
            return False
        if response.error_code != ErrorCode.NONE:
            log.warning(
                "the controller refused the directories of %d replicas: %s; trying again in %.1f s",
                len(locations),
                ErrorCode(response.error_code).name,
                RETRY_S,
            )
            return False
        # Replicas that the controller refused are deleted or no longer on this broker; the next image will show it.
        self._reported.update(locations)
        return True
