"""One consumer in a group until SIGTERM: `python -m tools.prove.groups.member CLIENT ASSIGNOR BOOTSTRAP TOPIC GROUP`.

It prints a line of JSON for every event in the format of Kafka's VerifiableConsumer, which is the member for Java.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import time
from collections.abc import Iterable
from typing import Any

SESSION_MS, HEARTBEAT_MS = 6000, 1000
POLL_S = 0.2
BATCH_MAX = 50


def report_event(name: str, **fields: Any) -> None:
    """Print an event as a line of JSON."""
    print(json.dumps({"name": name, **fields}), flush=True)


def report_moved(name: str, partitions: Iterable[Any]) -> None:
    report_event(name, partitions=[{"partition": one.partition} for one in partitions])


def report_consumed(ranges: dict[int, tuple[int, int]]) -> None:
    parts = [{"partition": index, "minOffset": low, "maxOffset": high} for index, (low, high) in ranges.items()]
    report_event("records_consumed", partitions=parts)


def report_committed(ranges: dict[int, tuple[int, int]]) -> None:
    offsets = [{"partition": index, "offset": high + 1} for index, (_, high) in ranges.items()]
    report_event("offsets_committed", success=True, offsets=offsets)


def ranges_of(messages: Iterable[tuple[int, int]]) -> dict[int, tuple[int, int]]:
    """Return the first and last offset of a poll, by partition."""
    found: dict[int, tuple[int, int]] = {}
    for partition, offset in messages:
        low, high = found.get(partition, (offset, offset))
        found[partition] = (min(low, offset), max(high, offset))
    return found


class Ended(BaseException):
    """Raised on SIGTERM."""


def _end(*_: object) -> None:
    raise Ended


def confluent(assignor: str, bootstrap: str, topic: str, group: str) -> None:
    from confluent_kafka import Consumer, KafkaException

    modern = assignor == "consumer"
    settings: dict[str, Any] = {
        "bootstrap.servers": bootstrap,
        "group.id": group,
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        "log_level": 2,
    }
    if modern:
        settings["group.protocol"] = "consumer"
    else:
        settings |= {
            "partition.assignment.strategy": assignor,
            "session.timeout.ms": SESSION_MS,
            "heartbeat.interval.ms": HEARTBEAT_MS,
        }
    consumer = Consumer(settings)
    consumer.subscribe(
        [topic],
        on_assign=lambda _, partitions: report_moved("partitions_assigned", partitions),
        on_revoke=lambda _, partitions: report_moved("partitions_revoked", partitions),
        on_lost=lambda _, partitions: report_moved("partitions_revoked", partitions),
    )
    try:
        while True:
            messages = [one for one in consumer.consume(BATCH_MAX, POLL_S) if one.error() is None]
            if not messages:
                continue
            found = ranges_of(_position(one) for one in messages)
            report_consumed(found)
            try:
                consumer.commit(asynchronous=False)
                report_committed(found)
            except KafkaException as error:
                report_event("offsets_committed", success=False, error=str(error))
    except Ended:
        consumer.close()


def _position(message: Any) -> tuple[int, int]:
    """Return partition and offset of a message of confluent-kafka, which are None only for errors."""
    partition, offset = message.partition(), message.offset()
    assert partition is not None and offset is not None
    return partition, offset


def kafka_python(assignor: str, bootstrap: str, topic: str, group: str) -> None:
    from kafka import ConsumerRebalanceListener, KafkaConsumer
    from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
    from kafka.coordinator.assignors.range import RangePartitionAssignor
    from kafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
    from kafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor
    from kafka.errors import KafkaError

    assignors = {
        "range": RangePartitionAssignor,
        "roundrobin": RoundRobinPartitionAssignor,
        "sticky": StickyPartitionAssignor,
        "cooperative-sticky": CooperativeStickyAssignor,
    }

    class Listener(ConsumerRebalanceListener):  # type: ignore[misc]
        def on_partitions_assigned(self, assigned: Any) -> None:
            report_moved("partitions_assigned", assigned)

        def on_partitions_revoked(self, revoked: Any) -> None:
            report_moved("partitions_revoked", revoked)

    consumer = KafkaConsumer(
        bootstrap_servers=bootstrap,
        group_id=group,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        session_timeout_ms=SESSION_MS,
        heartbeat_interval_ms=HEARTBEAT_MS,
        partition_assignment_strategy=[assignors[assignor]],
    )
    consumer.subscribe([topic], listener=Listener())
    try:
        while True:
            try:
                polled = consumer.poll(timeout_ms=int(POLL_S * 1000), max_records=BATCH_MAX)
            except KafkaError:  # raised by this client while its broker is down
                time.sleep(POLL_S)
                continue
            found = ranges_of((one.partition, one.offset) for some in polled.values() for one in some)
            if not found:
                continue
            report_consumed(found)
            try:
                consumer.commit()
                report_committed(found)
            except KafkaError as error:
                report_event("offsets_committed", success=False, error=str(error))
    except Ended:
        consumer.close()


def aiokafka(assignor: str, bootstrap: str, topic: str, group: str) -> None:
    asyncio.run(_aiokafka(assignor, bootstrap, topic, group))


async def _aiokafka(assignor: str, bootstrap: str, topic: str, group: str) -> None:
    from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener
    from aiokafka.coordinator.assignors.range import RangePartitionAssignor
    from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
    from aiokafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor
    from aiokafka.errors import KafkaError

    assignors = {
        "range": RangePartitionAssignor,
        "roundrobin": RoundRobinPartitionAssignor,
        "sticky": StickyPartitionAssignor,
    }

    class Listener(ConsumerRebalanceListener):  # type: ignore[misc]
        def on_partitions_assigned(self, assigned: Any) -> None:
            report_moved("partitions_assigned", assigned)

        def on_partitions_revoked(self, revoked: Any) -> None:
            report_moved("partitions_revoked", revoked)

    consumer = AIOKafkaConsumer(
        bootstrap_servers=bootstrap,
        group_id=group,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        session_timeout_ms=SESSION_MS,
        heartbeat_interval_ms=HEARTBEAT_MS,
        partition_assignment_strategy=(assignors[assignor],),
    )
    consumer.subscribe([topic], listener=Listener())
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    await consumer.start()
    while not ended.is_set():
        polled = await consumer.getmany(timeout_ms=int(POLL_S * 1000), max_records=BATCH_MAX)
        found = ranges_of((one.partition, one.offset) for some in polled.values() for one in some)
        if not found:
            continue
        report_consumed(found)
        try:
            await consumer.commit()
            report_committed(found)
        except KafkaError as error:
            report_event("offsets_committed", success=False, error=str(error))
    await consumer.stop()


def headrace(assignor: str, bootstrap: str, topic: str, group: str) -> None:
    from headrace.client import Consumer, HeadraceError

    settings: dict[str, object] = {
        "bootstrap.servers": bootstrap,
        "group.id": group,
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        "max.poll.records": BATCH_MAX,
    }
    if assignor == "consumer":
        settings["group.protocol"] = "consumer"
    else:
        settings |= {
            "partition.assignment.strategy": assignor,
            "session.timeout.ms": SESSION_MS,
            "heartbeat.interval.ms": HEARTBEAT_MS,
        }
    consumer = Consumer(settings)
    consumer.subscribe(
        [topic],
        on_assigned=lambda partitions: report_moved("partitions_assigned", partitions),
        on_revoked=lambda partitions: report_moved("partitions_revoked", partitions),
        on_lost=lambda partitions: report_moved("partitions_revoked", partitions),
    )
    try:
        while True:
            found = ranges_of((one.partition, one.offset) for one in consumer.poll(POLL_S))
            if not found:
                continue
            report_consumed(found)
            try:
                consumer.commit()
                report_committed(found)
            except HeadraceError as error:
                report_event("offsets_committed", success=False, error=str(error))
    except Ended:
        consumer.close()


CLIENTS = {"confluent-kafka": confluent, "kafka-python": kafka_python, "aiokafka": aiokafka, "headrace": headrace}


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _end)
    CLIENTS[sys.argv[1]](*sys.argv[2:6])
