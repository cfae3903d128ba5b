"""Counts the dead letters of a driver's queries by the end offsets of their topics, because workers report nothing to the driver."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from headrace.base.errors import ErrorCode, HeadraceError, KafkaError
from headrace.base.ids import TopicPartition
from headrace.client.consumer.list_offsets import LATEST, list_offsets
from headrace.pipelines.background import background
from headrace.pipelines.definitions.topic_options import source_options
from headrace.pipelines.source.options import Mode, parse_options

if TYPE_CHECKING:
    from headrace.options.table import Value
    from headrace.pipelines.definitions.definition import Pipeline, Sink

COUNT_EVERY_S = 2.0
COUNT_S_MAX = 5.0
LAST_COUNT_S_MAX = 10.0

_LOG = logging.getLogger("headrace.pipelines")


def dead_letter_topics(pipeline: Pipeline, sink: Sink) -> dict[str, str]:
    """Return the topics to which the query of this sink sends dead letters, by source."""
    elsewhere = pipeline.put_aside_elsewhere(sink)
    sources = [pipeline.sources[name] for name in pipeline.upstream(sink.source) if name in pipeline.sources]
    return {
        one.name: one.bad_records.dead_letter
        for one in sources
        if one.bad_records.dead_letter is not None and one.name not in elsewhere
    }


def count_records(pipeline: Pipeline, sink: Sink) -> int:
    """Return the number of records ever written to the dead-letter topics of this sink's query.

    Raise HeadraceError or TimeoutError if the brokers cannot be reached.
    """
    found = 0
    counted: set[str] = set()
    for name, topic in dead_letter_topics(pipeline, sink).items():
        if topic not in counted:
            counted.add(topic)
            source = pipeline.sources[name]
            mode = Mode.STREAM if source.is_stream else Mode.BATCH
            client = parse_options(source_options(pipeline, source), mode).client
            found += background().do(_end_of(client, topic))
    return found


async def _end_of(client: Mapping[str, Value], topic: str) -> int:
    cluster = await background().cluster(client)
    try:
        partitions = [TopicPartition(topic, index) for index in await cluster.partitions(topic)]
        ends = await list_offsets(cluster, dict.fromkeys(partitions, LATEST), timeout_s=COUNT_S_MAX)
    except KafkaError as error:
        if error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            return 0  # the first bad record creates it
        raise
    return sum(one.offset for one in ends.values())


class DeadLetterCounter:
    """Counts repeatedly in a thread, from `start` to `close`. Records that existed before are not counted."""

    def __init__(self, queries: Mapping[str, Callable[[], int]]) -> None:
        """Take a function per query title that counts its dead letters; only for queries with dead-letter topics."""
        self._queries = dict(queries)
        self._before: dict[str, int] = {}
        self._now: dict[str, int] = {}
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="dead letters", daemon=True)

    def start(self) -> None:
        if self._queries:
            self._thread.start()

    def close(self) -> None:
        """Count once more and end the thread."""
        self._closed.set()
        if self._thread.is_alive():
            self._thread.join(LAST_COUNT_S_MAX)

    def of(self, title: str) -> int | None:
        """Return the number of dead letters since the start, or None for a query without dead-letter topics."""
        if title not in self._queries:
            return None
        return max(0, self._now.get(title, 0) - self._before.get(title, 0))

    def _run(self) -> None:
        while not self._closed.is_set():
            self._count()
            self._closed.wait(COUNT_EVERY_S)
        self._count()

    def _count(self) -> None:
        for title, count in self._queries.items():
            try:
                self._now[title] = count()
                self._before.setdefault(title, self._now[title])
            except (HeadraceError, TimeoutError) as error:
                _LOG.debug("the dead letters of %s cannot be counted now: %s", title, error)
