"""Client metrics through a running node: subscriptions, pushes, /metrics, invalid payloads and a real librdkafka."""

from __future__ import annotations

import asyncio
import logging
import struct
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import confluent_kafka
import pytest
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families
from tests.api.admin_client import DELETE, METRICS, SET, Admin

from headrace.api.admin.telemetry import ACCEPTED
from headrace.base.errors import ErrorCode
from headrace.base.ids import ZERO_UUID, Uuid
from headrace.client.wire.connection import Connection
from headrace.protocol.apis import ApiKey
from headrace.protocol.messages.api_versions import ApiVersionsRequest
from headrace.protocol.messages.get_telemetry_subscriptions import (
    GetTelemetrySubscriptionsRequest,
    GetTelemetrySubscriptionsResponse,
)
from headrace.protocol.messages.push_telemetry import PushTelemetryRequest
from headrace.records.compression import Codec, compress
from headrace.testing.cluster import LOOPBACK, EmbeddedNode

PAYLOAD_BYTES_MAX = 50_000
TRIES = 200
GET, PUSH = ApiKey.GET_TELEMETRY_SUBSCRIPTIONS, ApiKey.PUSH_TELEMETRY


@pytest.fixture(scope="module")
def node() -> Iterator[EmbeddedNode]:
    settings = {"headrace.http.listener": f"{LOOPBACK}:0", "telemetry.max.bytes": str(PAYLOAD_BYTES_MAX)}
    with EmbeddedNode(settings) as running:
        yield running


@pytest.fixture
def subscribe(node: EmbeddedNode) -> Iterator[Callable[..., Any]]:
    """Return a function that alters a subscription; all of the test's subscriptions are deleted afterwards."""
    admin = Admin(node.port)
    names: list[str] = []

    def alter(name: str, **configs: Any) -> None:
        names.append(name)
        changes = [(key.replace("_", "."), SET, value) for key, value in configs.items()]
        assert admin.alter(METRICS, name, *changes) == (0, None)

    yield alter
    for name in names:
        assert admin.alter(METRICS, name, *((key, DELETE, None) for key in ("metrics", "match", "interval.ms")))[0] == 0


def metric_families(node: EmbeddedNode) -> dict[str, Metric]:
    with urllib.request.urlopen(f"http://{LOOPBACK}:{node.node.http_port}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    return {family.name: family for family in text_string_to_metric_families(text)}


def value(node: EmbeddedNode, name: str, **labels: Any) -> float:
    family = metric_families(node).get(name)
    found = [] if family is None else [sample for sample in family.samples if sample.name.startswith(name)]
    return next((sample.value for sample in found if labels.items() <= sample.labels.items()), 0)


def field(number: int, inner: bytes) -> bytes:
    length = len(inner)
    assert length < 1 << 14
    return bytes([number << 3 | 2, length & 0x7F | 0x80, length >> 7]) + inner


def gauge(name: bytes, number: float) -> bytes:
    return field(1, name) + field(5, field(1, b"\x21" + struct.pack("<d", number)))


def payload(*metrics: bytes) -> bytes:
    return field(1, field(2, b"".join(field(2, metric) for metric in metrics)))


def run(node: EmbeddedNode, work: Callable[..., Any], client_id: str = "tester") -> Any:
    async def inner() -> Any:
        connection = await Connection.connect(LOOPBACK, node.port, client_id=client_id)
        try:
            return await work(connection)
        finally:
            await connection.close()

    return asyncio.run(inner())


async def push(
    connection: Connection, data: bytes, codec: Codec | int = Codec.NONE, **fields: Any
) -> tuple[ErrorCode, GetTelemetrySubscriptionsResponse]:
    """Subscribe as a new client, then push; return the error of the push and the subscription response."""
    subscription = await connection.request(
        GetTelemetrySubscriptionsRequest(client_instance_id=Uuid(uuid.uuid4().bytes))
    )
    assert subscription.error_code == 0
    given = {
        "client_instance_id": subscription.client_instance_id,
        "subscription_id": subscription.subscription_id,
        **fields,
    }
    answer = await connection.request(PushTelemetryRequest(metrics=data, compression_type=codec, **given))
    return ErrorCode(answer.error_code), subscription


def test_a_matching_client_receives_the_subscribed_metrics_and_interval(
    node: EmbeddedNode, subscribe: Callable[..., Any]
) -> None:
    subscribe("told", metrics="a.,b.", interval_ms="700", match="client_id=tester,client_software_name=headrace")
    subscription = run(node, lambda connection: connection.request(GetTelemetrySubscriptionsRequest()))
    assert subscription.client_instance_id != ZERO_UUID and subscription.error_code == 0
    assert subscription.requested_metrics == ["a.", "b."] and subscription.push_interval_ms == 700
    assert subscription.accepted_compression_types == [4, 3, 1, 2] and subscription.delta_temporality
    assert subscription.telemetry_max_bytes == PAYLOAD_BYTES_MAX
    other = run(node, lambda connection: connection.request(GetTelemetrySubscriptionsRequest()), client_id="other")
    assert other.requested_metrics == [] and other.push_interval_ms == 300_000


@pytest.mark.parametrize("codec", [Codec.NONE, *ACCEPTED])
def test_pushed_metrics_are_exported_and_unrequested_ones_are_dropped(
    node: EmbeddedNode, subscribe: Callable[..., Any], codec: Codec
) -> None:
    subscribe("shown", metrics="wanted.")
    data = compress(codec, payload(gauge(b"wanted.now", 4.5), gauge(b"unwanted.now", 1.0)))
    before = value(node, "headrace_client_telemetry_dropped_points", reason="not_requested")
    pushes = value(node, "headrace_client_telemetry_pushes")
    code, subscription = run(node, lambda connection: push(connection, data, codec))
    assert code == ErrorCode.NONE and subscription.requested_metrics == ["wanted."]
    families = metric_families(node)
    sample = families["client_wanted_now"].samples[-1]
    assert sample.value == 4.5 and sample.labels["client_id"] == "tester"
    assert sample.labels["client_software_name"] == "headrace" and len(sample.labels["client_instance_id"]) == 22
    assert "client_unwanted_now" not in families
    assert value(node, "headrace_client_telemetry_dropped_points", reason="not_requested") == before + 1
    assert value(node, "headrace_client_telemetry_pushes") == pushes + 1
    assert value(node, "kafka_server_client_metrics_instance_count") >= 1


def test_invalid_payloads_are_refused_and_counted_by_error(node: EmbeddedNode, subscribe: Callable[..., Any]) -> None:
    subscribe("bad", metrics="*")
    bomb = compress(Codec.ZSTD, bytes(100 * PAYLOAD_BYTES_MAX))
    for data, codec, expected in (
        (b"\xff\xff", Codec.NONE, ErrorCode.INVALID_RECORD),
        (b"junk", Codec.ZSTD, ErrorCode.INVALID_RECORD),
        (b"junk", Codec.SNAPPY, ErrorCode.INVALID_RECORD),
        (compress(Codec.GZIP, b"\x0a\xff"), Codec.GZIP, ErrorCode.INVALID_RECORD),
        (bomb, Codec.ZSTD, ErrorCode.TELEMETRY_TOO_LARGE),
        (bytes(PAYLOAD_BYTES_MAX + 1), Codec.NONE, ErrorCode.TELEMETRY_TOO_LARGE),
        (b"", 9, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE),
        (b"", Codec.NONE, ErrorCode.NONE),
    ):
        before = value(node, "headrace_client_telemetry_refusals", error=expected.name)
        code, _ = run(node, lambda connection, data=data, codec=codec: push(connection, data, codec))
        assert code == expected
        if expected:
            assert value(node, "headrace_client_telemetry_refusals", error=expected.name) == before + 1


def test_pipelined_pushes_get_their_responses_in_request_order(
    node: EmbeddedNode, subscribe: Callable[..., Any]
) -> None:
    """Check the order although frames are held while payloads are read: a request behind a push waits for it."""
    subscribe("many", metrics="*")
    data = compress(Codec.ZSTD, payload(*[gauge(b"many.%d" % index, 1.0) for index in range(500)]))

    async def work(connection: Connection) -> list[ErrorCode]:
        answers = await asyncio.gather(*(push(connection, data, Codec.ZSTD) for _ in range(20)))
        return [code for code, _ in answers]

    assert run(node, work) == [ErrorCode.NONE] * 20
    assert value(node, "client_many_499") == 1.0


def test_a_connection_closed_during_a_push_does_not_affect_later_pushes(
    node: EmbeddedNode, subscribe: Callable[..., Any]
) -> None:
    subscribe("gone", metrics="*")
    data = payload(*[gauge(b"gone.%d" % index, 1.0) for index in range(500)])

    async def work(connection: Connection) -> None:
        pending = asyncio.ensure_future(push(connection, data))
        await asyncio.sleep(0)
        pending.cancel()

    run(node, work)
    assert run(node, lambda connection: push(connection, data))[0] == ErrorCode.NONE


@pytest.mark.clients
def test_librdkafka_pushes_the_subscribed_metrics(node: EmbeddedNode, subscribe: Callable[..., Any]) -> None:
    subscribe("real", metrics="org.apache.kafka.producer.", interval_ms="100", match="client_id=watched")
    unreadable = value(node, "headrace_client_telemetry_refusals", error="INVALID_RECORD")
    producer = confluent_kafka.Producer({"bootstrap.servers": node.bootstrap, "client.id": "watched"})
    name = "client_org_apache_kafka_producer_node_request_latency_avg"
    for _ in range(TRIES):
        producer.produce("watched", b"x")
        producer.flush(0.1)
        if value(node, name, client_id="watched") > 0:
            break
    else:
        pytest.fail(f"{name} never came")
    samples = [one for one in metric_families(node)[name].samples if one.labels["client_id"] == "watched"]
    assert {one.labels["node_id"] for one in samples} == {"1"}
    assert "rdkafka" in samples[0].labels["client_software_version"]
    assert value(node, "headrace_client_telemetry_refusals", error="INVALID_RECORD") == unreadable


def offered(node: EmbeddedNode) -> set[ApiKey]:
    answer = run(
        node,
        lambda connection: connection.request(
            ApiVersionsRequest(client_software_name="x", client_software_version="1")
        ),
    )
    return {key.api_key for key in answer.api_keys} & {GET, PUSH}


def test_telemetry_apis_are_advertised_only_while_a_subscription_exists(
    node: EmbeddedNode, subscribe: Callable[..., Any]
) -> None:
    assert offered(node) == set()
    subscribe("offered", metrics="org.apache.kafka.producer.")
    assert offered(node) == {GET, PUSH}


@pytest.mark.clients
def test_librdkafka_without_a_subscription_sends_no_telemetry_and_logs_nothing(
    node: EmbeddedNode, caplog: pytest.LogCaptureFixture
) -> None:
    clients = value(node, "kafka_server_client_metrics_instance_count")
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": node.bootstrap, "client.id": "unwatched"}, logger=logging.getLogger("librdkafka")
    )
    producer.produce("watched", b"x")
    assert producer.flush(20) == 0
    producer.poll(0)  # librdkafka delivers its log lines from here
    del producer
    assert value(node, "kafka_server_client_metrics_instance_count") == clients
    assert [record.getMessage() for record in caplog.records if record.name == "librdkafka"] == []
