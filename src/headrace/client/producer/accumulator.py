"""Records waiting to be sent: a queue of batches for each partition, of which the last is being filled.

Pure: time is an argument, and there is no I/O. A batch may be sent when it is full, has lingered, or a caller is
waiting; a batch that was sent before, when its backoff has ended. Batches leave a queue only from its front and are
put back in sequence order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable

from headrace.base.ids import TopicPartition
from headrace.client.producer.batches import Delivery, Entry, ProducerBatch
from headrace.records.record import Headers


class Accumulator:
    """All unsent and unanswered batches of a producer.

    Every batch is in a queue or with the sender, and in `incomplete` until `complete` is called for it.
    """

    def __init__(self, *, batch_bytes: int, linger_s: float, delivery_s: float) -> None:
        self._batch_bytes = batch_bytes
        self._linger_s = linger_s
        self._delivery_s = delivery_s
        self._queues: dict[TopicPartition, deque[ProducerBatch]] = {}
        self.incomplete: dict[ProducerBatch, None] = {}
        self.last_number = 0
        self.hurry = False  # a caller waits for all batches: a flush, or a record that does not fit into the buffer

    # --- appending

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
        """Append a record; return True if the sender should be woken, because a batch is full or has begun.

        `size` is the result of `record_bytes`.
        """
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
        """Append a complete batch, ready to be sent."""
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

    # --- draining

    def partitions(self) -> list[TopicPartition]:
        """Return the partitions with queued batches."""
        return list(self._queues)

    def queue_lengths(self, topic: str, partitions: int) -> list[int]:
        queues = self._queues
        return [len(queues.get(TopicPartition(topic, index), ())) for index in range(partitions)]

    def has_closed(self, partition: TopicPartition) -> bool:
        """Return whether the next record of the partition begins a new batch."""
        queue = self._queues.get(partition)
        return not queue or queue[-1].is_closed

    def head(self, partition: TopicPartition) -> ProducerBatch | None:
        queue = self._queues.get(partition)
        return queue[0] if queue else None

    def ready_at(self, partition: TopicPartition) -> float:
        """Return when the first batch may be sent as things stand, perhaps in the past; infinity if there is none."""
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
        """Remove and return the first batch of each partition, in this order, as far as one request can hold them.

        Partitions whose first batch is not admitted are skipped.
        """
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
        """Queue a batch to be sent again: before batches that were never sent, and in sequence order."""
        queue = self._queue(batch.partition)
        position = 0
        if batch.has_sequence:
            while position < len(queue) and queue[position].has_sequence and _is_before(queue[position], batch):
                position += 1
        queue.insert(position, batch)

    def replace(self, batch: ProducerBatch, pieces: list[ProducerBatch]) -> None:
        """Replace a batch that is with the sender by its pieces."""
        del self.incomplete[batch]
        for piece in reversed(pieces):
            self.incomplete[piece] = None
            self.put_back(piece)

    def take_expired(self, now: float) -> list[ProducerBatch]:
        """Remove and return the queued batches whose delivery.timeout.ms has expired."""
        return self._take(lambda batch: batch.deadline <= now, self.partitions())

    def take_all(self, topic: str | None = None) -> list[ProducerBatch]:
        """Remove and return all queued batches, or those of a topic."""
        chosen = [partition for partition in self._queues if topic is None or partition.topic == topic]
        return self._take(lambda batch: True, chosen)

    def _take(self, chosen: Callable[[ProducerBatch], bool], partitions: list[TopicPartition]) -> list[ProducerBatch]:
        taken = []
        for partition in partitions:
            queue = self._queues.get(partition)
            while queue and chosen(queue[0]):
                taken.append(self._pop(partition, queue))
        return taken

    def next_deadline(self) -> float:
        return min((queue[0].deadline for queue in self._queues.values()), default=float("inf"))

    def has_up_to(self, number: int) -> bool:
        """Return whether a batch with this number or a lower one is incomplete."""
        return any(batch.number <= number for batch in self.incomplete)

    def complete(self, batch: ProducerBatch) -> None:
        """Remove a batch that got its final response or was given up."""
        del self.incomplete[batch]


def _is_before(one: ProducerBatch, other: ProducerBatch) -> bool:
    """Return whether `one` precedes `other`.

    Sequences wrap to 0 after 2^31 - 1: the later one is less than half of that range ahead.
    """
    if one.identity != other.identity:
        return one.identity < other.identity
    return (other.base_sequence - one.base_sequence) & 0x7FFFFFFF < 0x40000000
