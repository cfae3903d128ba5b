"""The short path of the commonest request: Produce 9–13 with one topic, partition and batch, and acks 1 or all.

It reads the frame without decoding the whole message, uses the same checks and the same append as `api.produce`, and packs the
response from a prepared prefix: 8 µs instead of 20, which small producers notice. The batch must be small enough to be checked on
the event loop. For anything unusual (an error, a tag, a conversion, a transaction) it returns None BEFORE it changes anything, and
the request goes to `api.produce`, which handles every case. A test checks that both give the same results.
"""

from __future__ import annotations

import asyncio
from struct import Struct

from crc32c import crc32c

from headrace.base.clock import Clock
from headrace.base.errors import KafkaError
from headrace.base.metrics import Metrics
from headrace.coordinators.partitioning import INTERNAL_TOPICS
from headrace.metadata.image import Image
from headrace.metadata.loader import Changes
from headrace.records.batch import CRC_START, BatchHeader
from headrace.records.compression import Codec
from headrace.records.kernel import inspect_plain_batch, split_single_produce
from headrace.records.validate_batch import read_produced_header
from headrace.replication.partition import DECOMPRESSED_INLINE_MAX, Partition
from headrace.replication.replicas import Replicas
from headrace.server.context import Peer
from headrace.server.dispatch import RequestMetrics
from headrace.server.response_writer import Answer

VERSIONS = (9, 13)
BY_ID_VERSION_MIN = 13
ENTRIES_MAX = 10_000  # prepared response prefixes; when there are more, all are dropped and rebuilt

_INDEX = Struct(">i")
_ANSWER_PREFIX = Struct(">iib")  # size, correlation id, tags
_ANSWER_BODY = Struct(">hqqq")  # error code, base offset, append time, log start
_ONE = 2  # length of a compact array with one element
# No record errors, no message, tags of partition and topic, throttle time, tags of the response.
_TAIL = b"\x01\x00\x00\x00" + bytes(4) + b"\x00"
_ID_BYTES = 16
_CODEC_MAX = int(Codec.ZSTD)
make_header = BatchHeader._make


class _Entry:
    __slots__ = ("head", "partition", "size")

    def __init__(self, partition: Partition, head: bytes) -> None:
        self.partition = partition
        self.head = head
        self.size = 5 + len(head) + _ANSWER_BODY.size + len(_TAIL)


class SingleProduce:
    def __init__(
        self,
        replicas: Replicas,
        clock: Clock,
        loop: asyncio.AbstractEventLoop,
        metrics: Metrics,
    ) -> None:
        self._replicas = replicas
        self._now_ms = clock.now_ms
        self._time = loop.time
        self._counted = {
            version: RequestMetrics(metrics, "Produce", version) for version in range(VERSIONS[0], VERSIONS[1] + 1)
        }
        self._by_name: dict[bytes, _Entry] = {}
        self._by_id: dict[bytes, _Entry] = {}
        self._image = Image()

    def handle(self, peer: Peer, frame: memoryview) -> Answer | None:
        began = self._time()
        parts = split_single_produce(frame)
        if parts is None:
            return None
        version, correlation_id, acks, key, start, end = parts
        try:
            if version < BY_ID_VERSION_MIN:
                entry = self._by_name.get(key) or self._learn_name(key)
            else:
                entry = self._by_id.get(key) or self._learn_id(key)
            partition = entry.partition
            if (
                partition.waits_for_disk
                or partition.compresses
                or not (peer.authority.unrestricted or peer.authority.passes_write(peer, partition.name.topic))
            ):
                return None
            now_ms = self._now_ms()
            batch = frame[start:end]
            inspected = inspect_plain_batch(
                batch, partition.requires_keys, now_ms - partition.before_max_ms, now_ms + partition.after_max_ms
            )
            if (
                end - start > partition.log.config.max_message_bytes
                or partition.leader != partition.node_id
                or (acks == -1 and len(partition.isr) < partition.min_isr)
            ):
                return None
            if inspected is not None:
                header, max_timestamp = make_header(inspected[0]), inspected[1]
                if header.base_offset or crc32c(batch[CRC_START:]) != header.crc:
                    return None
            else:
                compressed = _check_compressed(partition, batch, now_ms)
                if compressed is None:
                    return None
                header, max_timestamp = compressed
            info = partition.append(batch, header, max_timestamp, now_ms)
        except (KafkaError, OSError, LookupError, ValueError):
            return None  # nothing was appended; `api.produce` will report the error
        traffic = partition.traffic
        traffic.produces += 1
        if not info.duplicate:
            traffic.messages_in += header.record_count
            traffic.bytes_in += end - start
        counted = self._counted[version]
        counted.requests.value += 1
        counted.times.observe(self._time() - began)
        return [
            _ANSWER_PREFIX.pack(entry.size, correlation_id, 0)
            + entry.head
            + _ANSWER_BODY.pack(0, info.first_offset, info.log_append_time, partition.log.log_start)
            + _TAIL
        ]

    def publish(self, old: Image, new: Image, changes: Changes) -> None:
        self._image = new
        self._by_name.clear()
        self._by_id.clear()

    def _learn_name(self, key: bytes) -> _Entry:
        """Add the entry of a key with a topic name; raise KafkaError or LookupError if there is none for it."""
        return self._learn(self._by_name, key, key[1:-5].decode())

    def _learn_id(self, key: bytes) -> _Entry:
        topic = self._image.topic_by_id(key[:_ID_BYTES])
        if topic is None:
            raise IndexError
        return self._learn(self._by_id, key, topic.name)

    def _learn(self, entries: dict[bytes, _Entry], key: bytes, topic: str) -> _Entry:
        if topic in INTERNAL_TOPICS:
            raise LookupError  # `api.produce` decides whether the client may write to it
        (index,) = _INDEX.unpack_from(key, len(key) - 4)
        if len(entries) >= ENTRIES_MAX:
            entries.clear()
        # The response names the partition as the request does: an array of one element, then the same bytes.
        entries[key] = entry = _Entry(self._replicas.get(topic, index), bytes([_ONE]) + key)
        return entry


def _check_compressed(partition: Partition, batch: memoryview, now_ms: int) -> tuple[BatchHeader, int] | None:
    """Return header and largest timestamp of a compressed batch, or None if it must not take the short path.

    Raise KafkaError if the batch is invalid, or too large to decompress on the event loop.
    """
    header = read_produced_header(batch)
    if (
        header.size != len(batch)
        or header.base_offset
        or not 0 < header.attributes <= _CODEC_MAX
        or partition.needs_thread(header)
    ):
        return None
    checked = partition.check(batch, header, now_ms, DECOMPRESSED_INLINE_MAX)
    return None if checked.converted is not None else (header, checked.max_timestamp)
