"""Moves of replicas to another directory of their broker (KIP-113): a log is copied while it is in use, then exchanged.

The copy is `<topic>-<partition>.<unique>-future` in the target directory. When it is nearly complete it is synced, and the new
directory is recorded in the metadata log. The rest is copied in the turn of the event loop that gives the copy the log's name.
Only then is the old log removed: if a crash leaves both, the metadata log decides. A move that is interrupted by a stop is
not resumed: the copy is removed, and the replica stays where it was.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from random import Random
from typing import TypeVar

from msgspec import Struct

from headrace.base.clock import Clock
from headrace.base.errors import CorruptData, ErrorCode, HeadraceError, KafkaError
from headrace.base.ids import TopicPartition, new_uuid
from headrace.replication.directories import Directories
from headrace.replication.partition import Partition
from headrace.replication.replicas import Replicas
from headrace.storage.files import is_transient
from headrace.storage.log import Log
from headrace.storage.log_dirs import LogDir
from headrace.storage.names import FUTURE_DIR_SUFFIX, marked_dir_name

log = logging.getLogger(__name__)

T = TypeVar("T")

COPY_BYTES = 256 << 10  # bytes copied per turn of the event loop
REST_BYTES = 64 << 10  # bytes that may be left for the turn that exchanges the logs
ANNOUNCED_POLL_S = 0.01
ROUNDS_MAX = 50  # rounds after which more may be left, because producers are faster than the copy


class Superseded(HeadraceError):
    """The partition was deleted or is to move elsewhere, or the target already exists."""


class _Move(Struct):
    log_dir: LogDir
    generation: int  # generation of the log that is copied; a follower's truncation ends the move
    task: asyncio.Task[None] | None = None
    future: Log | None = None


class DirMoves:
    def __init__(
        self,
        replicas: Replicas,
        directories: Directories,
        clock: Clock,
        random: Random,
        loop: asyncio.AbstractEventLoop,
        bytes_per_second: Callable[[], int],
    ) -> None:
        self._replicas = replicas
        self._directories = directories
        self._clock = clock
        self._random = random
        self._loop = loop
        self._bytes_per_second = bytes_per_second
        self._moves: dict[TopicPartition, _Move] = {}
        self._finishing: dict[TopicPartition, asyncio.Task[None]] = {}
        self._leftovers = [
            (log_dir, f"{log_dir.path}/{name}")
            for log_dir in directories.online()
            for name in log_dir.files.list_dir(log_dir.path)
            if name.endswith(FUTURE_DIR_SUFFIX)
        ]

    def move(self, topic: str, index: int, path: str) -> None:
        """Start to move a replica to the directory `path`.

        Raise KafkaError as Kafka does: LOG_DIR_NOT_FOUND, KAFKA_STORAGE_ERROR, INVALID_REPLICA_ASSIGNMENT if the directory is
        cordoned, or the error for a replica that does not exist.
        """
        if path in self._directories.missing:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, self._directories.missing[path])
        log_dir = next((one for one in self._directories.all() if one.path == path), None)
        if log_dir is None:
            raise KafkaError(ErrorCode.LOG_DIR_NOT_FOUND, f"{path} is not in log.dirs")
        if log_dir.failure is not None:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, log_dir.failure)
        if self._directories.is_cordoned(log_dir):
            raise KafkaError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"{path} is cordoned: it accepts no new partitions")
        partition = self._replicas.get(topic, index)
        if partition.offline is not None:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, partition.offline)
        under_way = self._moves.get(partition.name)
        if under_way is not None:
            if under_way.log_dir is log_dir:
                return
            self._give_up(partition.name)
        if self._replicas.log_dir_of(partition) is not log_dir:
            move = self._moves[partition.name] = _Move(log_dir, partition.log.generation)
            move.task = self._loop.create_task(self._run(partition, move))

    def under_way(self) -> list[tuple[TopicPartition, LogDir, Log]]:
        return [(name, move.log_dir, move.future) for name, move in self._moves.items() if move.future is not None]

    def clean_up(self) -> None:
        """Remove the copies that an earlier run did not finish."""
        for log_dir, path in self._leftovers:
            log.warning(
                "%s is the copy of a move that was interrupted; removing it, the replica stays in its directory", path
            )
            self._loop.run_in_executor(None, log_dir.files.remove, path)
        self._leftovers = []

    def cancel(self) -> None:
        for task in [*self._tasks(), *self._finishing.values()]:
            task.cancel()

    async def stop(self) -> None:
        """Cancel the moves that are still copying; finish those whose logs have been exchanged."""
        for task in self._tasks():
            task.cancel()
        await asyncio.gather(*self._tasks(), return_exceptions=True)
        await asyncio.gather(*self._finishing.values(), return_exceptions=True)

    def _tasks(self) -> list[asyncio.Task[None]]:
        return [move.task for move in self._moves.values() if move.task is not None]

    def _give_up(self, name: TopicPartition) -> None:
        move = self._moves.pop(name)
        if move.task is not None:
            move.task.cancel()

    async def _run(self, partition: Partition, move: _Move) -> None:
        path = f"{move.log_dir.path}/{marked_dir_name(partition.name, new_uuid(self._random).hex(), FUTURE_DIR_SUFFIX)}"
        opening = partial(
            Log.open,
            move.log_dir.files,
            path,
            partition.name,
            partition.log.config,
            topic_id=partition.topic_id,
            log_start=partition.log.log_start,
            now_ms=self._clock.now_ms(),
        )
        try:
            await self._until_free(partition, move)
            future, _ = await self._in_thread(opening)
            move.future = future
            await self._copy(partition, move, future)
            await self._announce(partition, move)
            await self._copy(partition, move, future)
            old = self._exchange(partition, move, future)
        except OSError as error:
            log.error(
                "%s could not be moved to %s: %s; it stays in its directory", partition.name, move.log_dir.path, error
            )
            if not is_transient(error):
                self._replicas.fail_directory(move.log_dir, error)
        except (HeadraceError, CorruptData, ValueError) as error:
            log.error("%s was not moved to %s: %s; it stays in its directory", partition.name, move.log_dir.path, error)
        else:
            log.info("%s was moved to %s", partition.name, move.log_dir.path)
            self._finishing[partition.name] = self._loop.create_task(self._finish(partition, old))
            return
        finally:
            if self._moves.get(partition.name) is move:
                del self._moves[partition.name]
            if move.future is not None and partition.log is not move.future:
                move.future.abandon()
                self._replicas.cancel_move(partition)
        if move.log_dir.failure is None:
            await self._in_thread(partial(move.log_dir.files.remove, path))

    async def _until_free(self, partition: Partition, move: _Move) -> None:
        """Wait for an earlier move of the partition to finish. Raise Superseded if the target directory exists."""
        finishing = self._finishing.get(partition.name)
        if finishing is not None:
            await asyncio.shield(finishing)
        path = move.log_dir.partition_path(partition.name)
        if move.log_dir.files.exists(path):
            raise Superseded(f"{path} already exists and does not belong to this move; remove it first")

    async def _copy(self, partition: Partition, move: _Move, future: Log) -> None:
        """Copy until little is missing, all of the copy is on disk and no sync of the old log is running."""
        for _ in range(ROUNDS_MAX):
            while future.log_end < partition.log.log_end:
                size = await self._copy_some(partition, future, COPY_BYTES)
                self._check(partition, move)
                await asyncio.sleep(size / max(self._bytes_per_second(), 1))
            plan = future.pending_sync()
            if plan is not None:
                await self._in_thread(plan.run)
                future.synced(plan)
            self._check(partition, move)
            assert partition.commit is not None
            if partition.commit.under_way is not None:
                await asyncio.shield(partition.commit.under_way)
            elif _missing_bytes(partition.log, future) <= REST_BYTES:
                return
        while partition.commit is not None and (under_way := partition.commit.under_way) is not None:
            await asyncio.shield(under_way)

    async def _announce(self, partition: Partition, move: _Move) -> None:
        """Record the new directory in the metadata log and wait until that is committed.

        Do nothing in a cluster that is too old to record directories.
        """
        name, meta = partition.name, move.log_dir.meta
        assert meta is not None, "only formatted directories are opened"
        if self._replicas.assigned_directory(name) is None:
            return
        self._replicas.moving.add(name)
        self._replicas.unassigned[name] = (partition.topic_id, meta.directory_id)
        self._replicas.on_unassigned()
        while self._replicas.assigned_directory(name) != meta.directory_id:
            await asyncio.sleep(ANNOUNCED_POLL_S)
            self._check(partition, move)
        self._replicas.unassigned.pop(name, None)

    async def _copy_some(self, partition: Partition, future: Log, max_bytes: int) -> int:
        if future.log_end < partition.log.log_start:  # retention has overtaken the copy
            future.truncate_fully_and_start_at(partition.log.log_start, self._clock.now_ms())
        data = await self._in_thread(partition.log.read(future.log_end, max_bytes).range.read)
        future.append_as_follower(data, self._clock.now_ms())
        return len(data)

    def _check(self, partition: Partition, move: _Move) -> None:
        if partition.offline is not None:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, partition.offline)
        if partition not in self._replicas.all() or self._moves.get(partition.name) is not move:
            raise Superseded(f"{partition.name} was deleted, or is to be moved to another directory")
        if partition.log.generation != move.generation:
            raise Superseded(f"{partition.name} was truncated, so the copy may have records that it no longer has")

    def _exchange(self, partition: Partition, move: _Move, future: Log) -> Log:
        """Copy the rest and exchange the logs in one turn, so that no append comes in between; return the old log."""
        self._check(partition, move)
        old, now_ms = partition.log, self._clock.now_ms()
        while future.log_end < old.log_end:
            future.append_as_follower(old.read(future.log_end, COPY_BYTES).range.read(), now_ms)
        future.advance_log_start(old.log_start)
        future.cleaned_to = old.cleaned_to
        if old.epochs.latest > future.epochs.latest:
            future.assign_epoch(old.epochs.latest, old.log_end)
        behind = partition.waits_for_disk or future.recovery_point < old.recovery_point
        if behind and (plan := future.pending_sync()) is not None:
            plan.run()  # what was on disk must stay on disk
            future.synced(plan)
        # The copy gets its name BEFORE the old log is removed: a crash may leave two replicas, but never none.
        path = move.log_dir.partition_path(partition.name)
        future.files.rename(future.directory, path)
        future.set_directory(path)
        # Until `_finish` has synced the new name, a power failure brings the old log back.
        future.recovery_point = max(future.log_start, min(future.recovery_point, old.recovery_point))
        self._replicas.moving.discard(partition.name)
        self._replicas.exchange_log(partition, future, move.log_dir)
        return old

    async def _finish(self, partition: Partition, old: Log) -> None:
        assert partition.commit is not None
        try:
            await asyncio.shield(partition.commit.sync())
            if partition.offline is not None:
                return  # the state of the new disk is unknown: keep the old log
            path = await self._in_thread(partial(old.delete_directory, new_uuid(self._random).hex()))
            await self._in_thread(partial(old.files.remove, path))
        except OSError as error:
            log.error(
                "%s is no longer needed and could not be removed: %s; remove it after the next stop",
                old.directory,
                error,
            )
        finally:
            del self._finishing[partition.name]

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await self._loop.run_in_executor(None, work)


def _missing_bytes(log: Log, future: Log) -> int:
    if future.log_end >= log.log_end:
        return 0
    segment = log.segments.floor(future.log_end)
    batch = None if segment is None else segment.locate(future.log_end)
    if segment is None or batch is None or segment is not log.segments.active:
        return REST_BYTES + 1
    return segment.size - batch.position
