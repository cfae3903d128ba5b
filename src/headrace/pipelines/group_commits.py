"""Commits the offsets of streams to consumer groups after each batch, including the last, so that tools can show the lag.

Spark reports the position of each source of a query to a listener; the brokers and the group are in the options of the query's plan.
"""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import wait
from typing import TYPE_CHECKING, Any

from headrace.base.errors import RETRIABLE, ConfigError, ErrorCode, HeadraceError, KafkaError
from headrace.client.admin.groups import commit_offsets
from headrace.client.retry import Retry, RetryPolicy
from headrace.pipelines.background import background
from headrace.pipelines.data_source import NAME
from headrace.pipelines.listening import ProgressListener
from headrace.pipelines.source.offsets import StreamOffset, read_offset
from headrace.pipelines.source.options import Mode, SourceOptions, parse_options

if TYPE_CHECKING:
    from concurrent.futures import Future

    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.listener import (
        QueryIdleEvent,
        QueryStartedEvent,
        QueryTerminatedEvent,
    )

COMMIT_S_MAX = 10.0
FLUSH_S_MAX = 10.0
QUERY_NAME_SHOWN_MAX = 100  # characters of a query's name in the id of its group
QUERY_ID_SHOWN = 8  # characters of a query's id in the id of its group, behind its name

_POLICY = RetryPolicy(codes=RETRIABLE - {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION})

_LOG = logging.getLogger("headrace.spark")


class Source:
    """One Headrace source in one run of a query."""

    def __init__(self, group_id: str, options: SourceOptions) -> None:
        self.group_id = group_id
        self.options = options
        self.committed: StreamOffset | None = None


def group_of(options: SourceOptions, query_id: str, query_name: str | None) -> str:
    """Return `kafka.group.id`, or else a group id for this query, which contains the query's name if it has one.

    A pipeline's query is named `<pipeline>.<sink>`; the first characters of the query id distinguish queries with different checkpoints.
    """
    if options.group_id:
        return options.group_id
    if query_name:
        return f"{options.group_id_prefix}-{query_name[:QUERY_NAME_SHOWN_MAX]}-{query_id[:QUERY_ID_SHOWN]}"
    return f"{options.group_id_prefix}-{query_id}"


class GroupCommits(ProgressListener):
    """Commits in the background, at most one commit at a time per source; offsets that a later batch has superseded are skipped."""

    def __init__(self, spark: SparkSession) -> None:
        super().__init__(spark)
        self.is_ended_at_exit = False
        # Keyed by run id, because a restarted query may start before the listener learns that its last run has ended. Sources are in the
        # order in which Spark reports progress; None stands for a source of another format.
        self._sources: dict[str, list[Source | None]] = {}
        self._lock = threading.Lock()
        self._next: dict[Source, StreamOffset] = {}
        self._under_way: dict[Source, Future[None]] = {}

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        try:
            self._sources[str(event.runId)] = self._find(event)
        except Exception as error:  # a listener must not raise
            _LOG.warning("the offsets of query %s will not be committed to a group: %s", event.id, error)

    def on_query_progress(self, progress: Any) -> None:
        sources = self._sources.get(progress.runId().toString(), ())
        for source, one in zip(sources, progress.sources(), strict=False):
            offset = None if source is None else _read(one.endOffset())
            if source is not None and offset is not None:
                self._commit(source, offset)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        pass

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        self.flush()
        self._sources.pop(str(event.runId), None)

    def flush(self) -> None:
        """Wait until all reported offsets are committed, for at most FLUSH_S_MAX seconds."""
        with self._lock:
            under_way = list(self._under_way.values())
        wait(under_way, FLUSH_S_MAX)

    def _find(self, event: QueryStartedEvent) -> list[Source | None]:
        session: Any = self._session
        plan = session._jsparkSession.streams().get(str(event.id)).streamingQuery().analyzedPlan()
        found: list[Source | None] = []
        for given in _options_of_sources(plan):
            options = None if given is None else parse_options(given, Mode.STREAM)
            found.append(None if options is None else Source(group_of(options, str(event.id), event.name), options))
        return found

    def _commit(self, source: Source, offset: StreamOffset) -> None:
        with self._lock:
            self._next[source] = offset
            if source not in self._under_way:
                self._under_way[source] = background().start(self._commit_all(source))

    async def _commit_all(self, source: Source) -> None:
        while True:
            with self._lock:
                offset = self._next.pop(source, None)
                if offset is None or offset == source.committed:
                    del self._under_way[source]
                    return
            try:
                async with asyncio.timeout(COMMIT_S_MAX):
                    await _commit(source, offset)
                source.committed = offset
            except (HeadraceError, TimeoutError) as error:
                _LOG.warning("the offsets of group %s could not be committed: %s", source.group_id, error or "timeout")


async def _commit(source: Source, offset: StreamOffset) -> None:
    """Commit the offset, retrying until it succeeds or is refused; the caller sets the time limit."""
    cluster = await background().cluster(source.options.client)

    async def attempt() -> None:
        codes = await commit_offsets(cluster, source.group_id, offset.offsets)
        for partition, code in sorted(codes.items()):
            if code is not ErrorCode.NONE:
                raise KafkaError(code, str(partition))

    if offset.offsets:
        await Retry(_POLICY).run(attempt)


def _read(text: str | None) -> StreamOffset | None:
    try:
        return read_offset(json.loads(text or "null"))
    except (ValueError, ConfigError):
        return None  # Spark has not reported an offset yet


def _options_of_sources(plan: Any) -> Iterator[Mapping[str, str] | None]:
    """Yield the options of a plan's streaming sources, or None for a source of another format.

    The order is the one in which Spark reports them: that of the plan's leaves, each once.
    """
    leaves = plan.collectLeaves()
    seen: list[Any] = []
    for index in range(leaves.size()):
        leaf = leaves.apply(index)
        if not leaf.isStreaming() or any(leaf.equals(one) for one in seen):
            continue
        seen.append(leaf)
        is_ours = leaf.getClass().getSimpleName() == "StreamingRelationV2" and leaf.sourceName().lower() == NAME
        yield dict(leaf.extraOptions().asCaseSensitiveMap()) if is_ours else None


_ATTRIBUTE = "_headrace_group_commits"


def commit_groups(spark: SparkSession) -> GroupCommits:
    """Start committing the offsets of a session's queries; repeated calls have no effect. `make_session` calls this."""
    found = getattr(spark, _ATTRIBUTE, None)
    if isinstance(found, GroupCommits):
        return found
    commits = GroupCommits(spark)
    spark.streams.addListener(commits)
    setattr(spark, _ATTRIBUTE, commits)
    return commits
