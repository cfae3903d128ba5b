"""Client metrics on a broker: subscriptions, push intervals, Kafka's errors, and the expiry of idle clients."""

import random

import pytest

from headrace.base.errors import ErrorCode, KafkaError
from headrace.base.ids import METADATA_TOPIC_ID, ZERO_UUID, Uuid, uuid_text
from headrace.broker import client_telemetry
from headrace.broker.client_telemetry import EXPIRY_MS_MIN, Client, ClientTelemetry
from headrace.metadata.image import METRICS_CONFIG
from headrace.metadata.loader import MetadataLoader
from headrace.observe.client_series import ClientSeries
from headrace.observe.otlp import Kind, Point
from headrace.protocol.messages.push_telemetry import PushTelemetryRequest
from headrace.protocol.messages.stored.metadata_cluster import ConfigRecord

ONE, TWO = Uuid(bytes(range(16))), Uuid(bytes(range(1, 17)))
JAVA = Client("orders-1", "apache-kafka-java", "4.3.1", "10.0.0.7", 5000)


class Stage:
    def __init__(self):
        self.series = ClientSeries()
        self.telemetry = ClientTelemetry(self.series, 100, random.Random(7))
        self.loader = MetadataLoader([self.telemetry])
        self.offset = 0
        self.now_ms = 1000.0

    def set(self, subscription, **configs):
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

    def get(self, instance_id=ONE, client=JAVA):
        return self.telemetry.subscribe(instance_id, client, self.now_ms)

    def push(self, instance_id=ONE, subscription_id=None, client=JAVA, **fields):
        if subscription_id is None:
            subscription_id = self.telemetry._instances[instance_id].subscription_id
        request = PushTelemetryRequest(client_instance_id=instance_id, subscription_id=subscription_id, **fields)
        return self.telemetry.admit(request, client, self.now_ms)

    def later(self, ms):
        self.now_ms += ms


@pytest.fixture
def stage():
    return Stage()


def code(call, *arguments, **fields):
    try:
        call(*arguments, **fields)
    except KafkaError as error:
        return error.code
    return ErrorCode.NONE


def test_without_subscriptions_a_client_comes_every_five_minutes_and_pushes_nothing(stage):
    instance = stage.get(ZERO_UUID)
    assert instance.metrics == () and instance.interval_ms == 300_000 and not instance.wants("anything")
    assert instance.id not in (ZERO_UUID, ONE) and stage.telemetry.knows(instance.id)
    assert stage.get(ZERO_UUID).id != instance.id


def test_subscription_ids_are_those_of_kafka(stage):
    """Compare with the ids that Kafka 4.3.1 returned."""
    assert stage.get(TWO).subscription_id == -725132338
    stage.set("m", metrics="a.b", interval_ms="400")
    assert stage.get(ONE).subscription_id == 434810358
    assert stage.get(METADATA_TOPIC_ID).subscription_id == 434810359
    stage.set("m", metrics="*", interval_ms="300")
    assert stage.get(ONE).subscription_id == 2062659244


def test_all_that_match_count_together(stage):
    stage.set("a", metrics="x., y.", interval_ms="5000")
    stage.set("b", metrics="z.,x.", interval_ms="700", match="client_software_name=apache-.*,client_id=orders-[0-9]")
    stage.set("c", metrics="*", interval_ms="100", match="client_id=payments")
    stage.set("d", metrics="w.", match="client_software_version=3.*")
    instance = stage.get()
    assert instance.metrics == ("x.", "y.", "z.") and instance.interval_ms == 700
    assert instance.wants("y.a") and not instance.wants("w.a")
    everything = stage.get(TWO, Client("payments", "librdkafka", "2.5", "10.0.0.7", 1))
    assert everything.metrics == ("*",) and everything.interval_ms == 100 and everything.wants("w.a")
    stage.set("c", metrics=None, interval_ms=None, match=None)
    assert stage.get(TWO, Client("payments", "librdkafka", "2.5", "10.0.0.7", 1)).metrics == ("x.", "y.")


@pytest.mark.parametrize(
    ("match", "client", "yes"),
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
def test_selectors(stage, match, client, yes):
    stage.set("m", metrics="a.", match=match)
    assert stage.get(client=client).metrics == (("a.",) if yes else ())


def test_who_comes_too_early_is_throttled(stage):
    stage.set("m", metrics="a.", interval_ms="1000")
    stage.get()
    assert code(stage.get) == ErrorCode.THROTTLING_QUOTA_EXCEEDED
    stage.push()  # the first push after a subscription response may arrive at any time
    assert code(stage.push) == ErrorCode.THROTTLING_QUOTA_EXCEEDED
    stage.later(999)
    assert code(stage.push) == code(stage.get) == ErrorCode.THROTTLING_QUOTA_EXCEEDED
    stage.later(1)
    stage.push()
    stage.later(1000)
    stage.get()


def test_after_a_change_a_client_asks_again_at_once(stage):
    stage.set("m", metrics="a.", interval_ms="1000")
    old = stage.get().subscription_id
    stage.set("m", metrics="b.")
    assert code(stage.push, subscription_id=old) == ErrorCode.UNKNOWN_SUBSCRIPTION_ID
    new = stage.get()
    assert new.subscription_id != old and new.metrics == ("b.",)
    assert code(stage.push) == ErrorCode.THROTTLING_QUOTA_EXCEEDED  # as in Kafka, the refused push counts
    stage.later(1000)
    stage.push()


def test_pushes_that_are_refused(stage):
    stage.set("m", metrics="a.", interval_ms="1000")
    for reserved in (ZERO_UUID, METADATA_TOPIC_ID):
        assert code(stage.push, reserved, 0) == ErrorCode.INVALID_REQUEST
    stage.get()
    for codec in (-1, 5):
        assert code(stage.push, compression_type=codec) == ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
        stage.get()
        stage.later(1000)
    assert code(stage.push, metrics=b"x" * 101) == ErrorCode.TELEMETRY_TOO_LARGE
    assert code(stage.get) == ErrorCode.THROTTLING_QUOTA_EXCEEDED
    stage.later(1000)
    assert code(stage.push, metrics=b"x" * 100, compression_type=4) == ErrorCode.NONE


def test_the_last_push_may_come_early_and_is_the_last(stage):
    stage.set("m", metrics="a.", interval_ms="1000")
    stage.get()
    stage.push()
    stage.push(terminating=True)
    assert code(stage.push, terminating=True) == ErrorCode.INVALID_REQUEST
    assert code(stage.push) == ErrorCode.INVALID_REQUEST


def test_a_push_to_a_broker_that_was_not_asked_is_known_by_its_subscription(stage):
    """Push to another broker: brokers compute the same ids, so a client may switch between them."""
    stage.set("m", metrics="a.")
    assert code(stage.push, subscription_id=1) == ErrorCode.UNKNOWN_SUBSCRIPTION_ID
    other = Stage()
    other.set("m", metrics="a.")
    other.push(subscription_id=stage.get().subscription_id)


def test_another_connection_is_a_new_beginning(stage):
    stage.set("m", metrics="a.")
    stage.get()
    assert code(stage.get) == ErrorCode.THROTTLING_QUOTA_EXCEEDED
    stage.get(client=Client("orders-1", "apache-kafka-java", "4.3.1", "10.0.0.7", 5001))
    assert len(stage.telemetry) == 1


def show(stage, instance_id=ONE):
    return stage.series.take(uuid_text(instance_id), {}, Point("a", Kind.GAUGE, False, False, (), 1.0), stage.now_ms)


def test_who_is_silent_is_forgotten_with_its_series(stage):
    stage.set("m", metrics="a.", interval_ms="1000", match="client_id=orders-1")
    stage.get(ONE)
    stage.get(TWO, Client("slow", "s", "v", "10.0.0.8", 1))
    for instance_id in (ONE, TWO):
        show(stage, instance_id)
    stage.later(EXPIRY_MS_MIN - 1)
    stage.telemetry.sweep(stage.now_ms)
    assert len(stage.telemetry) == 2
    stage.later(client_telemetry.SWEEP_MS)
    stage.telemetry.sweep(stage.now_ms)
    assert len(stage.telemetry) == 1 and len(stage.series) == 1 and not stage.telemetry.knows(ONE)
    stage.later(3 * 300_000)
    stage.get(ONE)
    assert len(stage.telemetry) == 1 and len(stage.series) == 0


def test_the_least_recently_used_makes_room(stage, monkeypatch):
    monkeypatch.setattr(client_telemetry, "INSTANCES_MAX", 3)
    ids = [Uuid(bytes([index]) * 16) for index in range(1, 5)]
    for instance_id in ids[:3]:
        stage.get(instance_id)
        show(stage, instance_id)
    assert code(stage.push, ids[0], 0) == ErrorCode.UNKNOWN_SUBSCRIPTION_ID  # a refused push counts as use
    stage.get(ids[3])
    assert [stage.telemetry.knows(one) for one in ids] == [True, False, True, True] and len(stage.series) == 2


def test_a_subscription_that_cannot_be_read_is_told_of_and_left_out(stage, caplog):
    stage.set("good", metrics="a.")
    for configs in ({"match": r"client_id=(a)\1"}, {"interval_ms": "soon"}, {"metrics": "a,,b"}):
        stage.set("bad", metrics="b.")
        stage.set("bad", **configs)
        assert stage.get(ZERO_UUID).metrics == ("a.",)
        stage.set("bad", **dict.fromkeys(configs, None))
        assert "the client-metrics subscription bad is not used" in caplog.text
        caplog.clear()
