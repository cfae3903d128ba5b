"""The shop's topics on a real node: filled, closed, continued, and never duplicated."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from headrace.base.ids import TopicPartition
from headrace.client import Consumer, Producer
from headrace.demo.shop import events
from headrace.demo.shop.generator import EVENTS_AT_ONCE_MAX, Generator, Pace, generate
from headrace.demo.shop.layout import CLICK_PARTITIONS, EVENT_PARTITIONS, Layout
from headrace.demo.shop.requests import CUSTOMERS_PARTITION, Misplaced, Shop
from headrace.demo.shop.topics import CLICKS
from headrace.testing.cluster import EmbeddedNode


@pytest.fixture
def shop(headrace_node: EmbeddedNode) -> Iterator[Shop]:
    with Shop(headrace_node.bootstrap) as shop:
        shop.prepare()
        yield shop


def run(node: EmbeddedNode, count: int) -> int:
    return generate(node.bootstrap, rate=0, events=count, stop=threading.Event())


def values(
    node: EmbeddedNode,
    partitions: Sequence[TopicPartition],
) -> dict[TopicPartition, list[bytes]]:
    found: dict[TopicPartition, list[Any]] = {partition: [] for partition in partitions}
    with Consumer({"bootstrap.servers": node.bootstrap, "auto.offset.reset": "earliest"}) as consumer:
        ends = consumer.end_offsets(partitions)
        consumer.assign(partitions)
        while any(len(found[partition]) < end for partition, end in ends.items()):
            for record in consumer.poll(1.0):
                found[TopicPartition(record.topic, record.partition)].append(record.value)
    return found


def expected(layout: Layout, count: int) -> dict[TopicPartition, list[bytes]]:
    return {
        partition: [layout.record(partition, offset).value for offset in range(end)]
        for partition, end in layout.ends(count).items()
    }


def test_preparing_the_shop_twice_changes_nothing(headrace_node: EmbeddedNode, shop: Shop) -> None:
    shop.prepare()
    assert shop.ends([CUSTOMERS_PARTITION]) == {CUSTOMERS_PARTITION: events.CUSTOMERS}
    (found,) = values(headrace_node, [CUSTOMERS_PARTITION]).values()
    assert found == [events.customer(number).value for number in range(events.CUSTOMERS)]
    assert shop.layout().closings == ()


def test_a_generator_resumes_where_the_topics_end(headrace_node: EmbeddedNode, shop: Shop) -> None:
    assert run(headrace_node, 1_003) == 1_003
    assert run(headrace_node, 1_003) == 1_003
    assert run(headrace_node, 4_000) == 4_000
    assert run(headrace_node, 10) == 4_000
    assert values(headrace_node, EVENT_PARTITIONS) == expected(Layout([]), 4_000)


def test_a_generator_completes_partitions_that_a_kill_left_uneven(headrace_node: EmbeddedNode, shop: Shop) -> None:
    layout = Layout([])
    some = dict(zip(EVENT_PARTITIONS, (30, 7, 2, 4), strict=True))
    with Producer({"bootstrap.servers": headrace_node.bootstrap}) as producer:
        for partition, count in some.items():
            for offset in range(count):
                producer.send(partition.topic, layout.record(partition, offset).value, partition=partition.partition)
    assert run(headrace_node, 500) == 500
    assert values(headrace_node, EVENT_PARTITIONS) == expected(layout, 500)


def test_a_day_is_closed_once_and_another_can_follow(headrace_node: EmbeddedNode, shop: Shop) -> None:
    run(headrace_node, 200)
    assert shop.close_day(200).closings == (200,)
    assert shop.close_day(200).closings == (200,)
    run(headrace_node, 300)
    shop.close_day(300)
    layout = shop.layout()
    assert layout.closings == (200, 300)
    assert values(headrace_node, EVENT_PARTITIONS) == expected(layout, 300)


def test_missing_bells_of_a_decided_closing_are_written_by_the_next_generator(
    headrace_node: EmbeddedNode, shop: Shop
) -> None:
    run(headrace_node, 50)
    with Producer({"bootstrap.servers": headrace_node.bootstrap}) as producer:
        producer.send("shop-closings", b'{"events":50}', partition=0).result()
    assert len(shop.layout().missing_bells(shop.ends())) == len(CLICK_PARTITIONS)
    run(headrace_node, 80)
    assert values(headrace_node, EVENT_PARTITIONS) == expected(Layout([50]), 80)


def test_records_of_another_writer_are_detected(headrace_node: EmbeddedNode, shop: Shop) -> None:
    with Producer({"bootstrap.servers": headrace_node.bootstrap}) as producer:
        generator = Generator(producer, Layout([]), shop.ends())
        generator.send(20)
        producer.send(CLICKS, b"mine", partition=0).result()
        with pytest.raises(Misplaced, match="does another program write to shop-clicks"):
            generator.send(20)


def test_a_generator_stops_when_its_stop_event_is_set(headrace_node: EmbeddedNode, shop: Shop) -> None:
    stop = threading.Event()
    stop.set()
    assert generate(headrace_node.bootstrap, rate=1, events=None, stop=stop) == 0


def test_the_pace_limits_the_events_per_second() -> None:
    pace = Pace(100.0, now=0.0)
    assert pace.due(0.0) == 0 and pace.due(0.1) == 10
    pace.sent(10)
    assert pace.due(0.1) == 0
    assert pace.wait_s(0.1) == pytest.approx(0.1)


def test_the_pace_catches_up_on_at_most_five_seconds() -> None:
    pace = Pace(100.0, now=0.0)
    assert pace.due(60.0) == 500


def test_an_unlimited_pace_sends_the_maximum_at_once_without_waiting() -> None:
    pace = Pace(0, now=0.0)
    assert pace.due(0.0) == EVENTS_AT_ONCE_MAX and pace.wait_s(0.0) == 0.0


def test_a_slow_pace_sends_one_event_at_a_time() -> None:
    pace = Pace(0.5, now=0.0)
    assert pace.wait_s(0.0) == 2.0 and pace.due(2.0) == 1
