"""AlterReplicaLogDirs 1–2: moves replicas to other log directories of this broker."""

from __future__ import annotations

from headrace.api.error_responses import refuse
from headrace.api.permissions import ALTER_CLUSTER
from headrace.base.errors import KafkaError
from headrace.protocol.apis import ApiKey
from headrace.protocol.messages.alter_replica_log_dirs import AlterReplicaLogDirsRequest, AlterReplicaLogDirsResponse
from headrace.replication.dir_moves import DirMoves
from headrace.server.context import RequestContext
from headrace.server.dispatch import Service

Moved = AlterReplicaLogDirsResponse.AlterReplicaLogDirPartitionResult


class AlterReplicaLogDirsApi:
    def __init__(self, moves: DirMoves) -> None:
        self._moves = moves

    def services(self) -> list[Service]:
        return [Service(ApiKey.ALTER_REPLICA_LOG_DIRS, (1, 2), self.handle, ALTER_CLUSTER, refuse)]

    def handle(self, context: RequestContext, request: AlterReplicaLogDirsRequest) -> AlterReplicaLogDirsResponse:
        results: dict[str, list[Moved]] = {}
        for directory in request.dirs:
            for topic in directory.topics:
                for index in topic.partitions:
                    moved = Moved(partition_index=index)
                    try:
                        self._moves.move(topic.name, index, directory.path)
                    except KafkaError as error:
                        moved.error_code = error.code
                    results.setdefault(topic.name, []).append(moved)
        topic_result = AlterReplicaLogDirsResponse.AlterReplicaLogDirTopicResult
        return AlterReplicaLogDirsResponse(
            results=[topic_result(topic_name=name, partitions=moved) for name, moved in results.items()]
        )
