"""The schema registry's client: what it caches, what it retries, and which responses it rejects."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.pipelines.registry_stub import RegistryStub

pytest.importorskip("pyspark", reason="needs the extra spark")

from headrace.base.errors import ConfigError
from headrace.pipelines.schemas import registry_client
from headrace.pipelines.schemas.options import RegistrySettings
from headrace.pipelines.schemas.registry_client import RegistryClient, RegistryError, UnknownSchema


@pytest.fixture
def stub() -> Iterator[RegistryStub]:
    with RegistryStub().serving() as found:
        yield found


def client(*urls: str, timeout_s: float = 5.0, now: Callable[..., Any] | None = None, **more: Any) -> RegistryClient:
    settings = RegistrySettings(urls, timeout_s=timeout_s, **more)
    return RegistryClient(settings) if now is None else RegistryClient(settings, now)


def test_a_schema_is_requested_once(stub: RegistryStub) -> None:
    stub.put(3, "int")
    registry = client(stub.url)
    assert registry.by_id(3) is registry.by_id(3)
    assert (registry.by_id(3).kind, registry.by_id(3).text) == ("AVRO", "int")
    assert stub.requested_paths == ["/schemas/ids/3"]


def test_an_unknown_schema_id_is_not_requested_again_for_a_while(stub: RegistryStub) -> None:
    clock = [0.0]
    registry = client(stub.url, now=lambda: clock[0])
    for _ in range(3):
        with pytest.raises(UnknownSchema, match="no schema 5"):
            registry.by_id(5)
    assert len(stub.requested_paths) == 1
    stub.put(5, "int")
    clock[0] = registry_client.UNKNOWN_S + 1
    assert registry.by_id(5).text == "int"


def test_the_number_of_cached_schemas_is_limited(stub: RegistryStub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry_client, "SCHEMAS_MAX", 2)
    registry = client(stub.url)
    for number in range(3):
        stub.put(number, "int")
        registry.by_id(number)
    registry.by_id(2)
    registry.by_id(0)
    assert stub.requested_paths == [f"/schemas/ids/{number}" for number in (0, 1, 2, 0)]


def test_user_name_and_password_are_sent(stub: RegistryStub) -> None:
    stub.put(1, "int")
    stub.user_info = "me:secret"
    assert client(stub.url, user_info="me:secret").by_id(1).text == "int"
    with pytest.raises(RegistryError, match=r"status 401: set schema\.registry\.basic\.auth\.user\.info"):
        client(stub.url, user_info="me:wrong").by_id(1)


def test_failed_requests_are_retried_and_other_addresses_tried(stub: RegistryStub) -> None:
    stub.put(1, "int")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound, but not listening
        dead = f"http://127.0.0.1:{taken.getsockname()[1]}"
        assert client(dead, stub.url).by_id(1).text == "int"
        with pytest.raises(RegistryError, match="gave no response for schema 1"):
            client(dead, timeout_s=0.2).by_id(1)
    stub.failing_statuses = [500, 503, 429]
    assert client(stub.url).by_id(1).text == "int"


def test_a_slow_registry_times_out(stub: RegistryStub) -> None:
    stub.put(1, "int")
    stub.slow_s = 1.0
    with pytest.raises(RegistryError, match="gave no response"):
        client(stub.url, timeout_s=0.1).by_id(1)


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"[]",
        b"\xff",
        b'{"schema": 5}',
        b"{}",
        b'{"schema": "x", "references": [5]}',
        b'{"schema": "x", "references": 5}',
        b"[" * 100_000,
    ],
)
def test_a_malformed_response_raises_registry_error(stub: RegistryStub, answer: bytes) -> None:
    stub.responses["/schemas/ids/1"] = answer
    with pytest.raises(RegistryError, match="response for schema 1"):
        client(stub.url).by_id(1)


def test_oversized_responses_and_redirects_are_refused(stub: RegistryStub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry_client, "ANSWER_BYTES_MAX", 1000)
    stub.put(1, "x" * 1001)
    with pytest.raises(RegistryError, match="longer than 1000 bytes"):
        client(stub.url).by_id(1)
    stub.failing_statuses = [302]
    with pytest.raises(RegistryError, match="status 302"):
        client(stub.url).by_id(1)


def test_references_are_returned_after_their_own_references(
    stub: RegistryStub, monkeypatch: pytest.MonkeyPatch
) -> None:
    stub.put(1, "a", "a")
    stub.put(2, "b", "b/x", references=[("A", "a", 1), ("C", "c", 1)])
    stub.put(3, "c", "c", references=[("A", "a", 1), ("B", "b/x", 1)])
    stub.put(4, "main", "main", kind="json", references=[("B", "b/x", 1)])
    found = client(stub.url).latest("main")
    assert (found.kind, found.text, found.references) == ("JSON", "main", (("A", "a"), ("C", "c"), ("B", "b")))
    with pytest.raises(RegistryError, match="no subject nowhere"):
        client(stub.url).latest("nowhere")
    stub.put(5, "main", references=[("D", "d", 1)])
    with pytest.raises(RegistryError, match="refers to D, but the registry has no version 1 of subject d"):
        client(stub.url).by_id(5)
    monkeypatch.setattr(registry_client, "REFERENCES_MAX", 1)
    with pytest.raises(RegistryError, match="more than 1 others"):
        client(stub.url).latest("main")


def test_a_missing_ca_file_raises_config_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"schema\.registry\.ssl\.ca\.location"):
        client("https://localhost", ca_location=str(tmp_path / "none.pem"))
