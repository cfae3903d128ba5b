"""Produce requests: valid, odd, invalid, to wrong partitions, and of idempotent producers in every state."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

from headrace.protocol.messages.produce import ProduceRequest
from headrace.records.batch import unpack_header
from headrace.records.compression import Codec
from tools.prove.differential.batches import BAD, BROKEN, FIRST_MS, ODD, good_batch
from tools.prove.differential.deviations import DEVIATIONS
from tools.prove.differential.operations import HOUR_MS, UNKNOWN_PLACES, Model, Operation, Place
from tools.prove.differential.wire import Target

Records = bytes | bytearray | None
VERSIONS = range(3, 14)
TOPIC_ID_VERSION_MIN = 13
NO_PARTITION_OFFSET = -1
KEPT_BATCHES = 8  # kept per producer: more than the five that a broker remembers
SEQUENCES = 1 << 31
TIMEOUT_MS = 10_000


def request(
    data: list[tuple[Place, Records]], version: int, acks: int, transactional_id: str | None = None
) -> Callable[[Target], tuple[Any, int]]:
    """Return a builder that copies the bytes for each server, because an encoder may keep a reference."""

    def build(target: Target) -> tuple[Any, int]:
        topics: list[ProduceRequest.TopicProduceData] = []
        for (topic, index), records in data:
            if not topics or topics[-1].name != topic:
                by_id = target.topic_id(topic) if version >= TOPIC_ID_VERSION_MIN else target.topic_id("")
                topics.append(ProduceRequest.TopicProduceData(name=topic, topic_id=by_id))
            copy = None if records is None else bytes(records)
            topics[-1].partition_data.append(ProduceRequest.PartitionProduceData(index=index, records=copy))
        return (
            ProduceRequest(transactional_id=transactional_id, acks=acks, timeout_ms=TIMEOUT_MS, topic_data=topics),
            version,
        )

    return build


class Produces:
    def __init__(self, model: Model) -> None:
        self._model = model
        self._random: Random = model.random
        self._producers = [_Producer(1000 + number, model.place()) for number in range(6)]
        self._next_producer = 2000

    def operation(self) -> Operation:
        kind = self._random.choices(
            (
                self.good,
                self.several,
                self.bad,
                self.odd,
                self.idempotent,
                self.lost,
                self.wrong_request,
                self.deviating,
            ),
            (30, 8, 22, 6, 20, 6, 4, 4),
        )[0]
        return kind()

    def _version(self) -> int:
        return self._random.choice(VERSIONS)

    def _acks(self) -> int:
        return self._random.choice((-1, -1, 1, 1, 1, 0))

    def _operation(self, name: str, data: list[tuple[Place, Records]], **more: Any) -> Operation:
        acks = self._acks()
        return Operation(
            f"produce/{name}",
            request(data, self._version(), acks, **more),
            has_response=acks != 0,
            learn=self._learn(data, acks),
        )

    def _learn(self, data: list[tuple[Place, Records]], acks: int) -> Callable[[Any], None]:
        def learn(response: Any) -> None:
            if acks == 0:
                # The offset is unknown, but what both accepted is at the end; the next response shows the offset.
                return
            counts = {
                place: unpack_header(records).record_count for place, records in data if records and len(records) > 60
            }
            for partition_result in response if isinstance(response, list) else ():
                if partition_result["error"] == 0 and partition_result["partition"] in self._model.ends:
                    self._model.appended(
                        partition_result["partition"],
                        partition_result["base_offset"],
                        counts.get(partition_result["partition"], 1),
                    )

        return learn

    def _good_for(self, place: Place) -> bytearray:
        topic, _ = place
        if topic == "segments":
            return good_batch(self._random, count=self._random.choice((1, 3, 8)), value_bytes_max=60_000)
        if topic == "window":
            shift = self._random.choice((-2 * HOUR_MS, -HOUR_MS // 2, 0, HOUR_MS // 2, 2 * HOUR_MS))
            return good_batch(self._random, base_ms=self._model.now_ms + shift, spread_ms=1000)
        return good_batch(self._random, keys=topic == "compact" and self._random.random() < 0.7)

    def good(self) -> Operation:
        place = self._model.place()
        return self._operation(f"good-{place[0]}", [(place, self._good_for(place))])

    def several(self) -> Operation:
        places = self._random.sample([*self._model.ends, *UNKNOWN_PLACES], self._random.randrange(2, 6))
        bad = BAD[self._random.choice([name for name in BAD if name not in BROKEN])](self._random)
        data = [(place, self._good_for(place)) for place in places]
        if self._random.random() < 0.3:
            data[-1] = (data[-1][0], bad)  # type: ignore[assignment]
        return self._operation("several", list(data))

    def bad(self) -> Operation:
        name = self._random.choice(list(BAD))
        return self._operation(f"bad-{name}", [(self._model.place(), BAD[name](self._random))])

    def odd(self) -> Operation:
        name = self._random.choice(list(ODD))
        return self._operation(f"odd-{name}", [(("plain", self._random.randrange(4)), ODD[name](self._random))])

    def lost(self) -> Operation:
        return self._operation("nowhere", [(self._random.choice(UNKNOWN_PLACES), good_batch(self._random))])

    def wrong_request(self) -> Operation:
        place = self._model.place()
        data: list[tuple[Place, Records]] = [(place, good_batch(self._random, codec=Codec.NONE, keys=True))]
        if self._random.random() < 0.5:
            return self._operation("nothing", [])
        return Operation("produce/acks", request(data, self._version(), self._random.choice((2, -2, 100))))

    def deviating(self) -> Operation:
        name = self._random.choice(list(DEVIATIONS))
        deviation = DEVIATIONS[name]
        data: list[tuple[Place, Records]] = [
            (("deviations", index), records) for index, records in deviation.make(self._random)
        ]
        build = request(data, 12, 1)
        return Operation(f"deviation/{name}", build, deviation=deviation)

    # --- idempotent producers

    def idempotent(self) -> Operation:
        producer = self._random.choice(self._producers)
        action = self._random.choices(
            ("next", "duplicate", "gap", "old-epoch", "new-epoch", "new-epoch-later", "replaced", "overlap"),
            (50, 20, 6, 6, 5, 4, 3, 4),
        )[0]
        if action == "replaced":
            self._producers.remove(producer)
            self._next_producer += 1
            start = self._random.choice((0, 0, 5, SEQUENCES - 3))
            producer = _Producer(self._next_producer, self._model.place(), sequence=start)
            self._producers.append(producer)
        sent = self._random.choice(producer.kept) if action == "duplicate" and producer.kept else None
        if sent is None:
            sent = self._batch_of(producer, action)
        return self._send(producer, action, sent)

    def _batch_of(self, producer: _Producer, action: str) -> bytearray:
        epoch, sequence = producer.epoch, producer.sequence
        if action == "gap":
            sequence = (sequence + self._random.randrange(1, 10)) % SEQUENCES
        elif action == "overlap":
            sequence = max(0, sequence - 1)
        elif action == "old-epoch":
            epoch = max(0, epoch - 1)
        elif action in ("new-epoch", "new-epoch-later"):
            epoch, sequence = epoch + 1, 0 if action == "new-epoch" else 3
        return good_batch(
            self._random,
            keys=True,
            count=self._random.choice((1, 2, 5)),
            producer=(producer.id, epoch, sequence),
            base_ms=self._model.now_ms if producer.place[0] == "window" else FIRST_MS,
            spread_ms=1000,
        )

    def _send(self, producer: _Producer, action: str, batch: bytearray) -> Operation:
        data: list[tuple[Place, Records]] = [(producer.place, batch)]
        known = self._learn(data, 1)

        def learn(response: Any) -> None:
            known(response)
            if isinstance(response, list) and response[0]["error"] == 0:
                producer.accepted(batch)

        acks = self._random.choice((-1, 1))
        return Operation(f"produce/idempotent-{action}", request(data, self._version(), acks), learn=learn)


@dataclass
class _Producer:
    id: int
    place: Place
    epoch: int = 0
    sequence: int = 0
    kept: list[bytearray] = field(default_factory=list)

    def accepted(self, batch: bytearray) -> None:
        header = unpack_header(batch)
        following = (header.base_sequence + header.record_count) % SEQUENCES
        if batch not in self.kept:
            self.epoch, self.sequence = header.producer_epoch, following
            self.kept = [*self.kept, batch][-KEPT_BATCHES:]
