"""Options of the producer: Kafka's names and defaults, and errors for combinations that conflict."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.base.errors import ConfigError
from headrace.client.producer.options import PRODUCER_OPTIONS, ProducerSettings, producer_settings
from headrace.client.producer.producer import AsyncProducer
from headrace.client.wire.opening import addresses, client_values, open_cluster
from headrace.records.compression import Codec


def settings(**given: Any) -> tuple[ProducerSettings, list[str]]:
    options = {name.replace("_", "."): value for name, value in given.items()}
    warned: list[str] = []
    values = client_values(options, PRODUCER_OPTIONS, warned.append)
    return producer_settings(values, options), warned


def test_defaults_match_kafka() -> None:
    found, warned = settings()
    assert (found.acks, found.idempotent, found.in_flight_max, found.retries) == (-1, True, 5, 2**31 - 1)
    assert (found.delivery_s, found.request_s, found.linger_s, found.block_s) == (120, 30, 0.005, 60)
    assert (found.batch_bytes, found.buffer_bytes, found.request_bytes_max) == (16384, 33554432, 1048576)
    assert (found.codec, found.level, found.transactional_id) == (Codec.NONE, None, None)
    assert (found.retry_backoff, found.reconnect_backoff) == ((0.1, 1.0), (0.05, 1.0))
    assert found.arrow_batch_bytes == 1048576 and not warned


def test_values_may_be_strings_numbers_or_booleans() -> None:
    found, _ = settings(linger_ms="20", acks=1, enable_idempotence=False, batch_size=1000.0)
    assert (found.linger_s, found.acks, found.idempotent, found.batch_bytes) == (0.02, 1, False, 1000)
    assert settings(compression_type="zstd", compression_zstd_level=-7)[0].level == -7
    assert settings(compression_type="gzip")[0].level is None
    assert settings(compression_type="gzip", compression_gzip_level=9)[0].level == 9
    assert settings(compression_type="snappy")[0].level is None
    assert settings(transactional_id=None)[0].transactional_id is None


@pytest.mark.parametrize(
    ("given", "idempotent"),
    [({"acks": "1"}, False), ({"acks": "0"}, False), ({"retries": 0}, False), ({"acks": "-1"}, True)],
)
def test_idempotence_is_disabled_by_default_if_acks_or_retries_rule_it_out(
    given: dict[str, Any], idempotent: bool
) -> None:
    assert settings(**given)[0].idempotent is idempotent


@pytest.mark.parametrize(
    ("given", "expected_text"),
    [
        ({"acks": "2"}, "acks='2'"),
        ({"linger_ms": "soon"}, "linger.ms='soon'"),
        ({"linger_ms": -1}, "linger.ms"),
        ({"linger_ms": [1]}, "linger.ms"),
        ({"batch_size": 1.5}, "batch.size"),
        ({"compression_type": "rar"}, "none, gzip, snappy, lz4, zstd"),
        ({"compression_gzip_level": 0}, "compression.gzip.level"),
        ({"compression_lz4_level": 18}, "compression.lz4.level"),
        ({"compression_zstd_level": 23}, "compression.zstd.level"),
        ({"acks": "1", "enable_idempotence": True}, "idempotence needs acks to be all"),
        ({"retries": 0, "transactional_id": "x"}, "idempotence needs retries"),
        ({"enable_idempotence": False, "transactional_id": "x"}, "transactional.id"),
        ({"max_in_flight_requests_per_connection": 6}, "at most 5"),
        ({"delivery_timeout_ms": 100}, "linger.ms + request.timeout.ms"),
        ({"transaction_two_phase_commit_enable": True}, "transactional.id"),
        (
            {"transaction_two_phase_commit_enable": True, "transactional_id": "x", "transaction_timeout_ms": 5},
            "there is no timeout",
        ),
        ({"ssl_truststore_password": "geheim"}, "openssl"),
        ({"partitioner_class": "my.Own"}, "partitioner.class"),
    ],
)
def test_invalid_options_are_named_in_the_error(given: dict[str, list[int] | float | str], expected_text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        settings(**given)
    assert expected_text in str(caught.value) and "geheim" not in str(caught.value)


def test_typos_and_options_without_effect_produce_warnings() -> None:
    _, warned = settings(linger_mss=5, send_buffer_bytes=1000, send_buffer_byte=None)
    assert any("linger.mss" in line and "did you mean linger.ms?" in line for line in warned)
    assert any("send.buffer.bytes has no effect" in line for line in warned) and len(warned) == 3


@pytest.mark.parametrize("wrong", ["localhost", ":9092", "localhost:", "localhost:x", "a:1,b"])
def test_addresses_without_host_or_port_raise_config_error(wrong: str) -> None:
    with pytest.raises(ConfigError, match=r"bootstrap\.servers"):
        addresses(wrong)


def test_bootstrap_servers_are_parsed_and_required() -> None:
    assert addresses("a:1, [::1]:2") == [("a", 1), ("::1", 2)]
    with pytest.raises(ConfigError, match=r"bootstrap\.servers"):
        AsyncProducer({})
    open_cluster(client_values({"bootstrap.servers": ["a:1", "b:2"]}, PRODUCER_OPTIONS))
