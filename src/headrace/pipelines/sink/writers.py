"""Writers of format("headrace"), called by Spark in tasks (`write`) and in a separate process on the driver (`commit`, `abort`).

A writer is pickled and sent to the tasks; for a stream, a new writer does the commit. Only messages pass from tasks to the commit.
"""

from __future__ import annotations

import logging
import os
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from headrace.base.errors import ConfigError, HeadraceError
from headrace.pipelines.background import background
from headrace.pipelines.failures import HIDE_TRACEBACK
from headrace.pipelines.sink.commands import Batch, Driver, SinkError, TaskTransaction
from headrace.pipelines.sink.executor import abort_batch, commit_batch, commit_nameless
from headrace.pipelines.sink.options import SinkOptions, parse_sink_options
from headrace.pipelines.sink.rows import check_schema
from headrace.pipelines.sink.task_writer import RUN_CHARS, Task, driver_id, write_task
from headrace.pipelines.worker_memory import put_aside

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

QUERY_ID = "sql.streaming.queryId"  # local properties that Spark sets for the tasks of a stream
BATCH_ID = "streaming.sql.batchId"
RUN_ID = "spark.jobGroup.id"

_LOG = logging.getLogger("headrace.spark")


@dataclass(frozen=True)
class TaskMessage(WriterCommitMessage):
    sink: str | None
    run: str
    rows: int
    transaction: tuple[Any, ...] | None  # a TaskTransaction


@contextmanager
def _plain_errors() -> Iterator[None]:
    """Report Headrace's errors without a traceback, which Spark would multiply in its own stack traces."""
    try:
        yield
    except HeadraceError:
        os.environ[HIDE_TRACEBACK] = "1"
        raise


def make_writer(schema: StructType, options: Mapping[str, str], overwrite: bool) -> DataSourceArrowWriter:
    with _plain_errors():
        if overwrite:
            raise ConfigError("a topic cannot be overwritten: mode append adds to it")
        return BatchWriter(_checked(schema, options))


def make_stream_writer(schema: StructType, options: Mapping[str, str], overwrite: bool) -> DataSourceStreamArrowWriter:
    """Return the writer of a stream.

    Spark sets `overwrite` for output mode complete, in which each batch has all rows; they are appended like any others.
    """
    with _plain_errors():
        parsed = _checked(schema, options)
        if parsed.write_id is not None:
            raise ConfigError("writeId is for batch writes: a stream has the id of its query")
        return StreamWriter(parsed)


def _checked(schema: StructType, options: Mapping[str, str]) -> SinkOptions:
    put_aside()
    parsed = parse_sink_options(options)
    check_schema(schema, parsed.topic)
    return parsed


class BatchWriter(DataSourceArrowWriter):
    def __init__(self, options: SinkOptions) -> None:
        self._options = options
        self._run = uuid.uuid4().hex[:RUN_CHARS]

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        with _plain_errors():
            context = _context()
            task = Task(
                self._options.write_id,
                self._run,
                self._options.write_version,
                context.partitionId(),
                context.attemptNumber(),
                context.taskAttemptId(),
            )
            return _write(iterator, self._options, task)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        with _plain_errors():
            if not self._options.exactly_once:
                return
            batch = _batch(self._options, self._name, self._run, self._options.write_version, _present(messages))
            if self._options.write_id is None:
                background().do(commit_nameless(self._options, self._run, batch))
            elif not background().do(commit_batch(self._options, self._options.write_id, batch)):
                _LOG.warning(
                    "writeId=%s, writeVersion=%d was already written; skipping these rows", self._name, batch.number
                )

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        with _plain_errors():
            if self._options.exactly_once:
                may_be_decided = None not in messages and self._options.write_id is not None
                batch = _batch(self._options, self._name, self._run, self._options.write_version, _present(messages))
                background().do(abort_batch(self._options, self._name, batch, may_be_decided=may_be_decided))

    @property
    def _name(self) -> str:
        return self._options.write_id or self._run


class StreamWriter(DataSourceStreamArrowWriter):
    def __init__(self, options: SinkOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        with _plain_errors():
            context = _context()
            query, run, batch = (context.getLocalProperty(name) for name in (QUERY_ID, RUN_ID, BATCH_ID))
            if query is None or run is None or batch is None:
                raise SinkError(f"Spark does not say which query this is ({QUERY_ID}, {RUN_ID}, {BATCH_ID})")
            task = Task(
                query,
                run[:RUN_CHARS],
                int(batch),
                context.partitionId(),
                context.attemptNumber(),
                context.taskAttemptId(),
            )
            return _write(iterator, self._options, task)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        with _plain_errors():
            present = _present(messages)
            if not self._options.exactly_once or not present:
                return
            sink, run = _one_sink(present)
            batch = _batch(self._options, sink, run, batchId, present)
            if not background().do(commit_batch(self._options, sink, batch)):
                _LOG.warning("batch %d of query %s was already written; skipping these rows", batchId, sink)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        with _plain_errors():
            present = _present(messages)
            if not self._options.exactly_once or not present:
                return
            sink, run = _one_sink(present)
            batch = _batch(self._options, sink, run, batchId, present, check=False)
            background().do(abort_batch(self._options, sink, batch, may_be_decided=None not in messages))


def _context() -> TaskContext:
    context = TaskContext.get()
    if context is None:
        raise SinkError("this is not a task of Spark")
    return context


def _write(iterator: Iterator[pa.RecordBatch], options: SinkOptions, task: Task) -> TaskMessage:
    put_aside()
    written = write_task(iterator, options, task)
    transaction = None if written.transaction is None else tuple(written.transaction)
    return TaskMessage(task.sink, task.run, written.rows, transaction)


def _present(messages: Sequence[WriterCommitMessage | None]) -> list[TaskMessage]:
    return [message for message in messages if isinstance(message, TaskMessage)]


def _one_sink(messages: Sequence[TaskMessage]) -> tuple[str, str]:
    sinks = {(message.sink or "", message.run) for message in messages}
    if len(sinks) != 1:
        raise SinkError(f"tasks of several runs wrote for one batch: {sorted(sinks)}")
    return sinks.pop()


def _batch(
    options: SinkOptions, sink: str, run: str, number: int, messages: Sequence[TaskMessage], *, check: bool = True
) -> Batch:
    transactions = tuple(TaskTransaction(*one.transaction) for one in messages if one.transaction is not None)
    driver = None
    if options.single and transactions:
        if check and len(transactions) > 1:
            raise SinkError(f"writers=1, but {len(transactions)} tasks had rows: coalesce(1) comes before the write")
        driver = Driver(transactions[-1].producer_id, transactions[-1].producer_epoch)
    return Batch(number, run, transactions, driver, f"{driver_id(options.prefix, sink)}.")
