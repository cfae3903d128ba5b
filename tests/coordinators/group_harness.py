"""A group shard with controlled time and topics, on a journal that can commit late, refuse writes and lose the lead."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from tests.fakes import FakeJournal

from headrace.base.ids import Uuid
from headrace.coordinators.group.handler_table import GROUP_HANDLERS
from headrace.coordinators.group.records import GroupRecord, decode_group_record, encode_group_record
from headrace.coordinators.group.request import CoordinatorRequest
from headrace.coordinators.group.settings import GroupSettings
from headrace.coordinators.group.shard import GroupShard
from headrace.metadata.image import GROUP_CONFIG, Image, Partition, Topic
from headrace.protocol.declare import Struct
from headrace.statemachine.runtime import Runtime
from headrace.statemachine.transactional import MarkerRecord


def _write(record: GroupRecord | MarkerRecord) -> tuple[tuple[int, int] | bytes | None, ...] | MarkerRecord:
    """Return key and value, with the producer if it is a transaction's record; return a marker unchanged."""
    if isinstance(record, MarkerRecord):
        return record
    pair = encode_group_record(record)
    return pair if record.producer is None else (*pair, record.producer)


def read(written: Any) -> GroupRecord | MarkerRecord:
    if isinstance(written, MarkerRecord):
        return written
    record = decode_group_record(*written[:2])
    return record if len(written) == 2 else msgspec.structs.replace(record, producer=written[2])


def make_image(
    topics: Mapping[str, tuple[int, int] | int], configs: Mapping[str, dict[str, str]] | None = None, offset: int = 1
) -> Image:
    """Return an image of topics by name, given as a partition count or as (count, number) for another topic id."""
    partition = Partition((1,), (1,), 1, 0, 0)
    known: dict[str, Topic] = {}
    for name, count in topics.items():
        count, number = count if isinstance(count, tuple) else (count, 0)
        topic_id = Uuid(name.encode()[:8].ljust(8, b".") + number.to_bytes(8, "big"))
        known[name] = Topic(name, topic_id, (partition,) * count)
    return Image(
        offset=offset,
        topics=known,
        topic_names={topic.id: name for name, topic in known.items()},
        configs={(GROUP_CONFIG, group): options for group, options in (configs or {}).items()},
        features={"group.version": 1},
    )


class GroupHarness:
    def __init__(self, topics: dict[str, int], **settings: Any) -> None:
        self.settings = GroupSettings(**settings)
        self.now_ms = 1_000_000
        self.image = make_image(topics)
        self.random_source = random.Random(3)
        self.journal = FakeJournal(encode=_write)
        self.lead()

    def lead(self) -> None:
        """Start a new coordinator that loads what is written."""
        self.shard = GroupShard(GROUP_HANDLERS, self.settings, lambda: self.image, self.random_source)
        self.runtime = Runtime(self.shard, self.journal)
        list(self.runtime.load([(0, [read(record) for record in self.journal.written])]))
        self.runtime.lead(self.now_ms)
        self.settle()

    def move(self) -> None:
        """Lose leadership, then take it again with what is committed."""
        self.journal.lose()
        self.journal = FakeJournal(self.journal.written, encode=_write)
        self.lead()

    def settle(self) -> None:
        if not self.journal.late:
            self.journal.commit()

    def submit(self, request: Struct, callback: Callable[..., Any], version: int = 1, **caller: Any) -> None:
        self.runtime.submit(CoordinatorRequest(request, version, **caller), self.now_ms, callback)
        self.settle()

    def execute(self, request: Struct, version: int = 1, **caller: Any) -> Any:
        responses: list[Struct | None] = []
        self.submit(request, lambda response, error: responses.append(error or response), version, **caller)
        [response] = responses
        if isinstance(response, Exception):
            raise response
        return response

    def pass_time(self, ms: int) -> None:
        until = self.now_ms + ms
        while (at := self.runtime.next_timer()) is not None and at <= until:
            self.now_ms = max(self.now_ms, at)
            self.runtime.tick(self.now_ms)
            self.settle()
        self.now_ms = until

    def set_topics(
        self, topics: Mapping[str, tuple[int, int] | int], configs: Mapping[str, dict[str, str]] | None = None
    ) -> None:
        self.image = make_image(topics, configs, self.image.offset + 1)
