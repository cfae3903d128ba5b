"""DescribeLogDirs 1–5: replicas and free space of each log directory."""

from __future__ import annotations

import asyncio

from headrace.api.permissions import DESCRIBE_CLUSTER
from headrace.base.errors import ErrorCode
from headrace.protocol.apis import ApiKey
from headrace.protocol.messages.describe_log_dirs import DescribeLogDirsRequest, DescribeLogDirsResponse
from headrace.replication.dir_moves import DirMoves
from headrace.replication.directories import Directories
from headrace.replication.replicas import Replicas
from headrace.server.context import RequestContext
from headrace.server.dispatch import Service
from headrace.storage.log_dirs import LogDir

Result = DescribeLogDirsResponse.DescribeLogDirsResult
Described = DescribeLogDirsResponse.DescribeLogDirsPartition
UNKNOWN_BYTES = -1


class DescribeLogDirsApi:
    def __init__(
        self,
        replicas: Replicas,
        directories: Directories,
        moves: DirMoves,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._replicas = replicas
        self._directories = directories
        self._moves = moves
        self._loop = loop

    def services(self) -> list[Service]:
        return [Service(ApiKey.DESCRIBE_LOG_DIRS, (1, 5), self.handle, DESCRIBE_CLUSTER)]

    async def handle(self, context: RequestContext, request: DescribeLogDirsRequest) -> DescribeLogDirsResponse:
        requested = (
            None
            if request.topics is None
            else {(topic.topic, index) for topic in request.topics for index in topic.partitions}
        )
        found: dict[str, dict[str, list[Described]]] = {}
        for partition in self._replicas.all():
            name = partition.name
            if partition.offline is None and (requested is None or tuple(name) in requested):
                behind = max(partition.high_watermark - partition.log.log_end, 0)
                described = Described(
                    partition_index=name.partition, partition_size=partition.log.size, offset_lag=behind
                )
                path = self._replicas.log_dir_of(partition).path
                found.setdefault(path, {}).setdefault(name.topic, []).append(described)
        for name, log_dir, future in self._moves.under_way():
            if requested is None or tuple(name) in requested:
                behind = max(self._replicas.get(*name).log.log_end - future.log_end, 0)
                described = Described(
                    partition_index=name.partition,
                    partition_size=future.size,
                    offset_lag=behind,
                    is_future_key=True,
                )
                found.setdefault(log_dir.path, {}).setdefault(name.topic, []).append(described)
        results = [await self._describe(log_dir, found.get(log_dir.path, {})) for log_dir in self._directories.all()]
        code = ErrorCode.KAFKA_STORAGE_ERROR
        results += [Result(error_code=code, log_dir=path) for path in self._directories.missing]
        return DescribeLogDirsResponse(results=results)

    async def _describe(self, log_dir: LogDir, found: dict[str, list[Described]]) -> Result:
        if log_dir.failure is not None:
            return Result(error_code=ErrorCode.KAFKA_STORAGE_ERROR, log_dir=log_dir.path)
        try:
            total, usable = await self._loop.run_in_executor(None, log_dir.files.space, log_dir.path)
        except OSError:
            total = usable = UNKNOWN_BYTES
        topic = DescribeLogDirsResponse.DescribeLogDirsTopic
        return Result(
            log_dir=log_dir.path,
            topics=[topic(name=name, partitions=partitions) for name, partitions in found.items()],
            total_bytes=total,
            usable_bytes=usable,
            is_cordoned=self._directories.is_cordoned(log_dir),
        )
