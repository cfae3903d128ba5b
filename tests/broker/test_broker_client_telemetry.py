"""Client metrics on a broker: subscriptions, push intervals, Kafka's errors, and the expiry of idle clients."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from headrace.base.errors import ErrorCode, KafkaError
from headrace.base.ids import METADATA_TOPIC_ID, ZERO_UUID, Uuid, uuid_text
from headrace.broker import client_telemetry
from headrace.broker.client_telemetry import EXPIRY_MS_MIN, Client, ClientTelemetry, Instance
from headrace.metadata.image import METRICS_CONFIG
from headrace.metadata.loader import MetadataLoader
from headrace.observe.client_series import ClientSeries
from headrace.observe.otlp import Kind, Point
from headrace.protocol.messages.push_telemetry import PushTelemetryRequest
from headrace.protocol.messages.stored.metadata_cluster import ConfigRecord

ONE, TWO = Uuid(bytes(range(16))), Uuid(bytes(range(1, 17)))
JAVA = Client("orders-1", "apache-kafka-java", "4.3.1", "10.0.0.7", 5000)


class TelemetryHarness:
    def __init__(self) -> None:
        self.series = ClientSeries()
        self.telemetry = ClientTelemetry(self.series, 100, random.Random(7))
        self.loader = MetadataLoader([self.telemetry])
        self.offset = 0
        self.now_ms = 1000.0

    def set(self, subscription: str, **configs: Any) -> None:
        self.offset += 1
        self.loader.apply(
            [
                ConfigRecord(
                    resource_type=METRICS_CONFIG, resource_name=subscription, name=name.replace("_", "."), value=value
                )
                for name, value in configs.items()
            ],
            self.offset,
            1,
        )

    def get(self, instance_id: Uuid = ONE, client: Client = JAVA) -> Instance:
        return self.telemetry.subscribe(instance_id, client, self.now_ms)

    def push(
        self, instance_id: Uuid = ONE, subscription_id: int | None = None, client: Client = JAVA, **fields: Any
    ) -> Instance:
        if subscription_id is None:
            subscription_id = self.telemetry._instances[instance_id].subscription_id
        request = PushTelemetryRequest(client_instance_id=instance_id, subscription_id=subscription_id, **fields)
        return self.telemetry.admit(request, client, self.now_ms)

    def advance_clock(self, ms: int) -> None:
        self.now_ms += ms


@pytest.fixture
def harness() -> TelemetryHarness:
    return TelemetryHarness()


def code(call: Callable[..., Any], *arguments: Any, **fields: Any) -> ErrorCode:
    try:
        call(*arguments, **fields)
    except KafkaError as error:
        return error.code
    return ErrorCode.NONE


def test_a_client_without_subscriptions_gets_no_metrics_and_a_five_minute_interval(harness: TelemetryHarness) -> None:
    instance = harness.get(ZERO_UUID)
    assert instance.metrics == () and instance.interval_ms == 300_000 and not instance.wants("anything")
    assert instance.id not in (ZERO_UUID, ONE) and harness.telemetry.knows(instance.id)
    assert harness.get(ZERO_UUID).id != instance.id


def test_subscription_ids_equal_those_of_kafka(harness: TelemetryHarness) -> None:
    """Compare with the ids that Kafka 4.3.1 returned."""
    assert harness.get(TWO).subscription_id == -725132338
    harness.set("m", metrics="a.b", interval_ms="400")
    assert harness.get(ONE).subscription_id == 434810358
    assert harness.get(METADATA_TOPIC_ID).subscription_id == 434810359
    harness.set("m", metrics="*", interval_ms="300")
    assert harness.get(ONE).subscription_id == 2062659244


def test_all_matching_subscriptions_of_a_client_are_merged(harness: TelemetryHarness) -> None:
    harness.set("a", metrics="x., y.", interval_ms="5000")
    harness.set("b", metrics="z.,x.", interval_ms="700", match="client_software_name=apache-.*,client_id=orders-[0-9]")
    harness.set("c", metrics="*", interval_ms="100", match="client_id=payments")
    harness.set("d", metrics="w.", match="client_software_version=3.*")
    instance = harness.get()
    assert instance.metrics == ("x.", "y.", "z.") and instance.interval_ms == 700
    assert instance.wants("y.a") and not instance.wants("w.a")
    everything = harness.get(TWO, Client("payments", "librdkafka", "2.5", "10.0.0.7", 1))
    assert everything.metrics == ("*",) and everything.interval_ms == 100 and everything.wants("w.a")
    harness.set("c", metrics=None, interval_ms=None, match=None)
    assert harness.get(TWO, Client("payments", "librdkafka", "2.5", "10.0.0.7", 1)).metrics == ("x.", "y.")


@pytest.mark.parametrize(
    ("match", "client", "is_match"),
    [
        ("client_instance_id=" + uuid_text(ONE), JAVA, True),
        ("client_instance_id=x", JAVA, False),
        ("client_source_address=10\\.0\\..*", JAVA, True),
        ("client_source_port=5000", JAVA, True),
        ("client_source_port=500", JAVA, False),
        ("client_software_version=4\\.3\\.[0-9]+", JAVA, True),
        ("client_id=.*", Client(None, "unknown", "unknown", "local", 0), False),
        ("client_id=.*", Client("x" * 600, "unknown", "unknown", "local", 0), False),
        ("client_source_address=::1", Client("c", "s", "v", "::1", 1), True),
        ("client_source_address=0:0:0:0:0:0:0:1", Client("c", "s", "v", "::1", 1), True),
        ("client_source_address=10.0.0.1", Client("c", "s", "v", "::ffff:10.0.0.1", 1), True),
        ("client_source_address=fe80.*", Client("c", "s", "v", "fe80::1%eth0", 1), True),
        ("client_source_address=local", Client("c", "s", "v", "local", 1), True),
    ],
)
def test_a_subscription_applies_only_to_clients_selected_by_its_match(
    harness: TelemetryHarness, match: str, client: Client, is_match: bool
) -> None:
    harness.set("m", metrics="a.", match=match)
    assert harness.get(client=client).metrics == (("a.",) if is_match else ())


def test_requests_before_the_push_interval_has_passed_are_throttled(harness: TelemetryHarness) -> None:
    harness.set("m", metrics="a.", interval_ms="1000")
    harness.get()
    assert code(harness.get) == ErrorCode.THROTTLING_QUOTA_EXCEEDED
    harness.push()  # the first push after a subscription response may arrive at any time
    assert code(harness.push) == ErrorCode.THROTTLING_QUOTA_EXCEEDED
    harness.advance_clock(999)
    assert code(harness.push) == code(harness.get) == ErrorCode.THROTTLING_QUOTA_EXCEEDED
    harness.advance_clock(1)
    harness.push()
    harness.advance_clock(1000)
    harness.get()


def test_a_client_may_resubscribe_immediately_after_a_subscription_change(harness: TelemetryHarness) -> None:
    harness.set("m", metrics="a.", interval_ms="1000")
    old = harness.get().subscription_id
    harness.set("m", metrics="b.")
    assert code(harness.push, subscription_id=old) == ErrorCode.UNKNOWN_SUBSCRIPTION_ID
    new = harness.get()
    assert new.subscription_id != old and new.metrics == ("b.",)
    assert code(harness.push) == ErrorCode.THROTTLING_QUOTA_EXCEEDED  # as in Kafka, the refused push counts
    harness.advance_clock(1000)
    harness.push()


def test_pushes_with_reserved_ids_unknown_codecs_or_large_payloads_are_refused(harness: TelemetryHarness) -> None:
    harness.set("m", metrics="a.", interval_ms="1000")
    for reserved in (ZERO_UUID, METADATA_TOPIC_ID):
        assert code(harness.push, reserved, 0) == ErrorCode.INVALID_REQUEST
    harness.get()
    for codec in (-1, 5):
        assert code(harness.push, compression_type=codec) == ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
        harness.get()
        harness.advance_clock(1000)
    assert code(harness.push, metrics=b"x" * 101) == ErrorCode.TELEMETRY_TOO_LARGE
    assert code(harness.get) == ErrorCode.THROTTLING_QUOTA_EXCEEDED
    harness.advance_clock(1000)
    assert code(harness.push, metrics=b"x" * 100, compression_type=4) == ErrorCode.NONE


def test_a_terminating_push_may_come_early_and_no_push_may_follow_it(harness: TelemetryHarness) -> None:
    harness.set("m", metrics="a.", interval_ms="1000")
    harness.get()
    harness.push()
    harness.push(terminating=True)
    assert code(harness.push, terminating=True) == ErrorCode.INVALID_REQUEST
    assert code(harness.push) == ErrorCode.INVALID_REQUEST


def test_a_push_is_accepted_by_a_broker_that_did_not_serve_the_subscription(harness: TelemetryHarness) -> None:
    """Push to another broker: brokers compute the same ids, so a client may switch between them."""
    harness.set("m", metrics="a.")
    assert code(harness.push, subscription_id=1) == ErrorCode.UNKNOWN_SUBSCRIPTION_ID
    other = TelemetryHarness()
    other.set("m", metrics="a.")
    other.push(subscription_id=harness.get().subscription_id)


def test_a_new_connection_of_a_client_is_not_throttled(harness: TelemetryHarness) -> None:
    harness.set("m", metrics="a.")
    harness.get()
    assert code(harness.get) == ErrorCode.THROTTLING_QUOTA_EXCEEDED
    harness.get(client=Client("orders-1", "apache-kafka-java", "4.3.1", "10.0.0.7", 5001))
    assert len(harness.telemetry) == 1


def take_point(harness: TelemetryHarness, instance_id: Uuid = ONE) -> Any:
    return harness.series.take(
        uuid_text(instance_id), {}, Point("a", Kind.GAUGE, False, False, (), 1.0), harness.now_ms
    )


def test_idle_clients_expire_together_with_their_series(harness: TelemetryHarness) -> None:
    harness.set("m", metrics="a.", interval_ms="1000", match="client_id=orders-1")
    harness.get(ONE)
    harness.get(TWO, Client("slow", "s", "v", "10.0.0.8", 1))
    for instance_id in (ONE, TWO):
        take_point(harness, instance_id)
    harness.advance_clock(EXPIRY_MS_MIN - 1)
    harness.telemetry.sweep(harness.now_ms)
    assert len(harness.telemetry) == 2
    harness.advance_clock(client_telemetry.SWEEP_MS)
    harness.telemetry.sweep(harness.now_ms)
    assert len(harness.telemetry) == 1 and len(harness.series) == 1 and not harness.telemetry.knows(ONE)
    harness.advance_clock(3 * 300_000)
    harness.get(ONE)
    assert len(harness.telemetry) == 1 and len(harness.series) == 0


def test_the_least_recently_used_client_is_evicted_at_the_limit(
    harness: TelemetryHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_telemetry, "INSTANCES_MAX", 3)
    ids = [Uuid(bytes([index]) * 16) for index in range(1, 5)]
    for instance_id in ids[:3]:
        harness.get(instance_id)
        take_point(harness, instance_id)
    assert code(harness.push, ids[0], 0) == ErrorCode.UNKNOWN_SUBSCRIPTION_ID  # a refused push counts as use
    harness.get(ids[3])
    assert [harness.telemetry.knows(one) for one in ids] == [True, False, True, True] and len(harness.series) == 2


def test_an_invalid_subscription_is_logged_and_ignored(
    harness: TelemetryHarness, caplog: pytest.LogCaptureFixture
) -> None:
    harness.set("good", metrics="a.")
    for configs in ({"match": r"client_id=(a)\1"}, {"interval_ms": "soon"}, {"metrics": "a,,b"}):
        harness.set("bad", metrics="b.")
        harness.set("bad", **configs)
        assert harness.get(ZERO_UUID).metrics == ("a.",)
        harness.set("bad", **dict.fromkeys(configs, None))
        assert "the client-metrics subscription bad is not used" in caplog.text
        caplog.clear()
