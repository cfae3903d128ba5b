"""Records that wait to be sent: for each partition a queue of batches, of which the last is being filled.

Pure: time comes in, nobody is asked. A batch may go when it is full, has lingered, or somebody is in a hurry; one that was sent before
may go when its pause is over. Batches leave a queue from its front only and come back in the order of their sequences.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable

from headrace.base.ids import TopicPartition
from headrace.client.batches import Delivery, Entry, ProducerBatch
from headrace.records.record import Headers


class Accumulator:
    """Every batch is in a queue or with the sender, and in `incomplete` until `complete` is called for it."""

    def __init__(self, *, batch_bytes: int, linger_s: float, delivery_s: float) -> None:
        self._batch_bytes = batch_bytes
        self._linger_s = linger_s
        self._delivery_s = delivery_s
        self._queues: dict[TopicPartition, deque[ProducerBatch]] = {}
        self.incomplete: dict[ProducerBatch, None] = {}
        self.last_number = 0
        self.hurry = False  # somebody waits for all that is here: a flush, or a record for which there is no room

    # --- in

    def append(
        self,
        partition: TopicPartition,
        timestamp_ms: int,
        key: bytes | None,
        value: bytes | None,
        headers: Headers,
        delivery: Delivery,
        *,
        size: int,
        now: float,
    ) -> bool:
        """`size` is what `record_bytes` says. True if the sender should look: a batch is full, or one has begun."""
        queue = self._queue(partition)
        batch = queue[-1] if queue else None
        begun = batch is None or batch.is_closed or batch.attempts > 0 or batch.size + size > self._batch_bytes
        if begun:
            if batch is not None:
                batch.is_closed = True
            batch = self._begin(queue, partition, now)
        assert batch is not None
        batch.append(timestamp_ms, key, value, headers, delivery)
        batch.reserved += size
        if batch.size >= self._batch_bytes:
            batch.is_closed = True
        return begun or batch.is_closed

    def append_encoded(
        self,
        partition: TopicPartition,
        encoded: bytearray,
        entry: Entry,
        *,
        plain_bytes: int,
        reserved: int,
        now: float,
    ) -> None:
        """A whole batch, ready to go."""
        queue = self._queue(partition)
        if queue:
            queue[-1].is_closed = True
        batch = self._begin(queue, partition, now)
        batch.put_encoded(encoded, entry.records, plain_bytes, [entry])
        batch.reserved = reserved

    def _queue(self, partition: TopicPartition) -> deque[ProducerBatch]:
        queue = self._queues.get(partition)
        if queue is None:
            queue = self._queues[partition] = deque()
        return queue

    def _begin(self, queue: deque[ProducerBatch], partition: TopicPartition, now: float) -> ProducerBatch:
        batch = ProducerBatch(partition, now, now + self._delivery_s)
        batch.number = self.last_number = self.last_number + 1
        queue.append(batch)
        self.incomplete[batch] = None
        return batch

    # --- out

    def partitions(self) -> list[TopicPartition]:
        """Those for which something waits."""
        return list(self._queues)

    def queue_lengths(self, topic: str, partitions: int) -> list[int]:
        queues = self._queues
        return [len(queues.get(TopicPartition(topic, index), ())) for index in range(partitions)]

    def has_closed(self, partition: TopicPartition) -> bool:
        """Whether its last batch is full: the next record begins another one."""
        queue = self._queues.get(partition)
        return not queue or queue[-1].is_closed

    def head(self, partition: TopicPartition) -> ProducerBatch | None:
        queue = self._queues.get(partition)
        return queue[0] if queue else None

    def ready_at(self, partition: TopicPartition) -> float:
        """When the first batch may go, as things stand; it may lie in the past. Never, if there is none."""
        queue = self._queues.get(partition)
        if not queue:
            return float("inf")
        batch = queue[0]
        if batch.attempts:
            return batch.retry_at
        if batch.is_closed or len(queue) > 1 or self.hurry:
            return batch.created_at
        return batch.created_at + self._linger_s

    def drain(
        self,
        partitions: Iterable[TopicPartition],
        *,
        bytes_max: int,
        admits: Callable[[ProducerBatch], bool],
    ) -> list[ProducerBatch]:
        """The first batch of each, in this order, as far as one request holds them; those whose batch is not admitted are passed over."""
        drained: list[ProducerBatch] = []
        size = 0
        for partition in partitions:
            queue = self._queues.get(partition)
            if not queue or not admits(queue[0]):
                continue
            batch = queue[0]
            if drained and size + batch.size > bytes_max:
                break
            size += batch.size
            drained.append(self._pop(partition, queue))
        return drained

    def _pop(self, partition: TopicPartition, queue: deque[ProducerBatch]) -> ProducerBatch:
        batch = queue.popleft()
        batch.is_closed = True
        if not queue:
            del self._queues[partition]
        return batch

    def put_back(self, batch: ProducerBatch) -> None:
        """To be sent again: before all that was never sent, and in the order of the sequences."""
        queue = self._queue(batch.partition)
        position = 0
        if batch.has_sequence:
            while position < len(queue) and queue[position].has_sequence and _is_before(queue[position], batch):
                position += 1
        queue.insert(position, batch)

    def replace(self, batch: ProducerBatch, pieces: list[ProducerBatch]) -> None:
        """Of a batch that is with the sender."""
        del self.incomplete[batch]
        for piece in reversed(pieces):
            self.incomplete[piece] = None
            self.put_back(piece)

    def take_expired(self, now: float) -> list[ProducerBatch]:
        """Those in queues whose delivery.timeout.ms is over."""
        return self._take(lambda batch: batch.deadline <= now, self.partitions())

    def take_all(self, topic: str | None = None) -> list[ProducerBatch]:
        """All that are in queues, or those of a topic."""
        wanted = [partition for partition in self._queues if topic is None or partition.topic == topic]
        return self._take(lambda batch: True, wanted)

    def _take(self, wanted: Callable[[ProducerBatch], bool], partitions: list[TopicPartition]) -> list[ProducerBatch]:
        taken = []
        for partition in partitions:
            queue = self._queues.get(partition)
            while queue and wanted(queue[0]):
                taken.append(self._pop(partition, queue))
        return taken

    def next_deadline(self) -> float:
        return min((queue[0].deadline for queue in self._queues.values()), default=float("inf"))

    def has_up_to(self, number: int) -> bool:
        """Whether any that was begun as this one or before is not complete."""
        return any(batch.number <= number for batch in self.incomplete)

    def complete(self, batch: ProducerBatch) -> None:
        """It was answered for good, or given up."""
        del self.incomplete[batch]


def _is_before(one: ProducerBatch, other: ProducerBatch) -> bool:
    """Sequences start again at 0 after 2^31 - 1: whichever is less than half of that ahead is the later one."""
    if one.identity != other.identity:
        return one.identity < other.identity
    return (other.base_sequence - one.base_sequence) & 0x7FFFFFFF < 0x40000000
