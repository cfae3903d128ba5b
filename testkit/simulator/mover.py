"""A simulated operator that moves replicas between log directories while everything else continues."""

from __future__ import annotations

from random import Random

from headrace.base.errors import KafkaError
from headrace.protocol.messages.alter_replica_log_dirs import AlterReplicaLogDirsRequest
from testkit.simulator.clients import LOST, Client, World

PACE_S = 0.5


class Mover(Client):
    def __init__(self, name: str, world: World, random: Random, topic: str, partitions: int, paths: list[str]) -> None:
        super().__init__(name, world, random)
        self._topic = topic
        self._partitions = partitions
        self._paths = paths

    async def run(self) -> None:
        while not self.world.stopping:
            wanted = AlterReplicaLogDirsRequest.AlterReplicaLogDirTopic(
                name=self._topic, partitions=[self.random.randrange(self._partitions)]
            )
            request = AlterReplicaLogDirsRequest(
                dirs=[
                    AlterReplicaLogDirsRequest.AlterReplicaLogDir(path=self.random.choice(self._paths), topics=[wanted])
                ]
            )
            try:
                await self.cluster.request(request)  # no record may be lost, whether it is refused or not
            except (*LOST, KafkaError):
                pass
            await self.pause(PACE_S)
        await self.close()
