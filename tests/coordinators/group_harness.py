"""A group shard with controlled time and topics, on a journal that can commit late, refuse writes and lose the lead."""

import random

import msgspec

from headrace.base.ids import Uuid
from headrace.coordinators.group.handler_table import GROUP_HANDLERS
from headrace.coordinators.group.records import decode_group_record, encode_group_record
from headrace.coordinators.group.request import CoordinatorRequest
from headrace.coordinators.group.settings import GroupSettings
from headrace.coordinators.group.shard import GroupShard
from headrace.metadata.image import GROUP_CONFIG, Image, Partition, Topic
from headrace.statemachine.journal import NotLeader
from headrace.statemachine.runtime import Runtime
from headrace.statemachine.transactional import MarkerRecord


def _write(record):
    """Return key and value, with the producer if it is a transaction's record; return a marker unchanged."""
    if isinstance(record, MarkerRecord):
        return record
    pair = encode_group_record(record)
    return pair if record.producer is None else (*pair, record.producer)


def read(written):
    if isinstance(written, MarkerRecord):
        return written
    record = decode_group_record(*written[:2])
    return record if len(written) == 2 else msgspec.structs.replace(record, producer=written[2])


class Journal:
    """A journal that keeps encoded records, as a log does."""

    def __init__(self, written=()):
        self.written = list(written)
        self.committed = len(self.written)
        self.late = False
        self.refusal = None
        self.lost = False
        self._committed_callbacks, self._lost_callbacks = [], []

    def next_offset(self):
        if self.lost:
            raise NotLeader("somebody else leads")
        return len(self.written)

    def append(self, records):
        if self.refusal is not None:
            raise self.refusal
        self.written += [_write(record) for record in records]
        return len(self.written) - 1

    def committed_offset(self):
        return self.committed - 1

    def on_committed(self, callback):
        self._committed_callbacks.append(callback)

    def on_lost(self, callback):
        self._lost_callbacks.append(callback)

    def commit(self):
        if not self.lost and self.committed < len(self.written):
            self.committed = len(self.written)
            for callback in self._committed_callbacks:
                callback(self.committed - 1)

    def lose(self):
        self.lost = True
        del self.written[self.committed :]
        for callback in self._lost_callbacks:
            callback()


def make_image(topics, configs=None, offset=1):
    """Return an image of topics by name, given as a partition count or as (count, number) for another topic id."""
    partition = Partition((1,), (1,), 1, 0, 0)
    known = {}
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
    def __init__(self, topics, **settings):
        self.settings = GroupSettings(**settings)
        self.now_ms = 1_000_000
        self.image = make_image(topics)
        self.random_source = random.Random(3)
        self.journal = Journal()
        self.lead()

    def lead(self):
        """Start a new coordinator that loads what is written."""
        self.shard = GroupShard(GROUP_HANDLERS, self.settings, lambda: self.image, self.random_source)
        self.runtime = Runtime(self.shard, self.journal)
        list(self.runtime.load([(0, [read(record) for record in self.journal.written])]))
        self.runtime.lead(self.now_ms)
        self.settle()

    def move(self):
        """Lose leadership, then take it again with what is committed."""
        self.journal.lose()
        self.journal = Journal(self.journal.written)
        self.lead()

    def settle(self):
        if not self.journal.late:
            self.journal.commit()

    def submit(self, request, callback, version=1, **caller):
        self.runtime.submit(CoordinatorRequest(request, version, **caller), self.now_ms, callback)
        self.settle()

    def execute(self, request, version=1, **caller):
        responses = []
        self.submit(request, lambda response, error: responses.append(error or response), version, **caller)
        [response] = responses
        if isinstance(response, Exception):
            raise response
        return response

    def pass_time(self, ms):
        until = self.now_ms + ms
        while (at := self.runtime.next_timer()) is not None and at <= until:
            self.now_ms = max(self.now_ms, at)
            self.runtime.tick(self.now_ms)
            self.settle()
        self.now_ms = until

    def set_topics(self, topics, configs=None):
        self.image = make_image(topics, configs, self.image.offset + 1)
