"""A program that copies a topic exactly once until SIGTERM.

`python -m tools.prove.transactions.copier CLIENT ID BOOTSTRAP SOURCE TARGET GROUP SEED`

Each batch and its offsets are written in one transaction; some are aborted at random and repeated. A line of JSON is
printed for each. Exit code 1 means that the client failed, as a fenced one must; another may replace it. `Copier.java`
does the same with Java's client.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from random import Random
from typing import Any

from tools.prove.transactions.reading import RECONNECT

BATCH_MAX = 20
POLL_S = 0.2
ABORT_PROBABILITY = 0.2
CALL_S_MAX = 30.0
SESSION_MS, HEARTBEAT_MS = 2000, 300
TRANSACTION_TIMEOUT_MS = 10_000
COPY = "copy of "


def report_event(name: str, records: int) -> None:
    """Print the end of a transaction as a line of JSON."""
    os.write(1, (json.dumps({"name": name, "records": records}) + "\n").encode())  # unbuffered and in one write


class StopSignal:
    """Records whether SIGTERM was received."""

    def __init__(self) -> None:
        self.is_received = False
        signal.signal(signal.SIGTERM, self._receive)

    def _receive(self, *_: object) -> None:
        self.is_received = True


def confluent(identity: str, bootstrap: str, source: str, target: str, group: str, random: Random) -> None:
    from confluent_kafka import Consumer, Producer

    stop = StopSignal()
    transactional = {"transactional.id": identity, "transaction.timeout.ms": TRANSACTION_TIMEOUT_MS}
    producer = Producer({"bootstrap.servers": bootstrap, **transactional, **RECONNECT})
    producer.init_transactions(CALL_S_MAX)
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "isolation.level": "read_committed",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "session.timeout.ms": SESSION_MS,
            "heartbeat.interval.ms": HEARTBEAT_MS,
            **RECONNECT,
        }
    )
    # The metadata of the generation in which the records were fetched: this client has none once it learns that it was
    # removed from the group, although it may still return older records.
    member: list[Any] = []

    def assigned(*_: object) -> None:
        member[:] = [consumer.consumer_group_metadata()]

    consumer.subscribe([source], on_assign=assigned)
    while not stop.is_received:
        messages = [one for one in consumer.consume(BATCH_MAX, POLL_S) if one.error() is None]
        if messages:
            committed = _confluent_transaction(producer, consumer, messages, target, member[0], random)
            report_event("committed" if committed else "aborted", len(messages))
    consumer.close()


def _confluent_transaction(
    producer: Any, consumer: Any, messages: list[Any], target: str, member: Any, random: Random
) -> bool:
    """Copy the messages in one transaction and return whether it was committed."""
    from confluent_kafka import TopicPartition

    first: dict[tuple[str, int], int] = {}
    after: dict[tuple[str, int], int] = {}
    producer.begin_transaction()
    for one in messages:
        place = one.topic(), one.partition()
        first.setdefault(place, one.offset())
        after[place] = one.offset() + 1
        producer.produce(target, COPY + one.value().decode(), partition=one.partition())
    aborts = random.random() < ABORT_PROBABILITY
    if aborts and random.random() < 0.5:
        producer.flush(CALL_S_MAX)  # puts aborted records into the log rather than only into the client
    if not aborts or random.random() < 0.5:
        positions = [TopicPartition(*place, offset) for place, offset in after.items()]
        producer.send_offsets_to_transaction(positions, member, CALL_S_MAX)
    if not aborts:
        producer.commit_transaction(CALL_S_MAX)
        return True
    producer.abort_transaction(CALL_S_MAX)
    for place, offset in first.items():
        consumer.seek(TopicPartition(*place, offset))
    return False


def aiokafka(identity: str, bootstrap: str, source: str, target: str, group: str, random: Random) -> None:
    asyncio.run(_aiokafka(identity, bootstrap, source, target, group, random))


async def _aiokafka(identity: str, bootstrap: str, source: str, target: str, group: str, random: Random) -> None:
    from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

    stop = StopSignal()
    producer = AIOKafkaProducer(
        bootstrap_servers=bootstrap, transactional_id=identity, transaction_timeout_ms=TRANSACTION_TIMEOUT_MS
    )
    await producer.start()
    consumer = AIOKafkaConsumer(
        bootstrap_servers=bootstrap,
        group_id=group,
        isolation_level="read_committed",
        auto_offset_reset="earliest",
        enable_auto_commit=False,
    )
    await consumer.start()
    # This client does not send the generation of its offsets to the coordinator and is assigned partitions in the
    # background. So it assigns itself all of them, and only its transactional id fences others.
    indexes = await producer.partitions_for(source)
    consumer.assign([TopicPartition(source, index) for index in indexes])
    while not stop.is_received:
        batches = await consumer.getmany(timeout_ms=int(POLL_S * 1000), max_records=BATCH_MAX)
        if not batches:
            continue
        await producer.begin_transaction()
        sent = [
            await producer.send(target, COPY.encode() + one.value, partition=one.partition)
            for batch in batches.values()
            for one in batch
        ]
        aborts = random.random() < ABORT_PROBABILITY
        if aborts and random.random() < 0.5:
            await asyncio.gather(*sent)
        if not aborts or random.random() < 0.5:
            after = {place: batch[-1].offset + 1 for place, batch in batches.items()}
            await producer.send_offsets_to_transaction(after, group)
        if aborts:
            await producer.abort_transaction()
            for place, batch in batches.items():
                consumer.seek(place, batch[0].offset)
        else:
            await producer.commit_transaction()
        await asyncio.gather(*sent, return_exceptions=True)
        report_event("aborted" if aborts else "committed", len(sent))
    await consumer.stop()
    await producer.stop()


CLIENTS = {"confluent-kafka": confluent, "aiokafka": aiokafka}


if __name__ == "__main__":
    try:
        CLIENTS[sys.argv[1]](*sys.argv[2:7], Random(sys.argv[7]))  # type: ignore[arg-type, call-arg]
    except Exception as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
        os._exit(1)  # immediately, without the clean-up of the client
