"""/metrics, /health and invalid requests over a real socket."""

from __future__ import annotations

import json
import socket
import urllib.error
import urllib.request
from collections.abc import Iterator
from http.client import HTTPResponse

import pytest
from prometheus_client.parser import text_string_to_metric_families

from headrace.testing.cluster import EmbeddedNode


@pytest.fixture(scope="module")
def node() -> Iterator[EmbeddedNode]:
    with EmbeddedNode({"headrace.http.listener": "127.0.0.1:0"}) as node:
        yield node


def get(node: EmbeddedNode, path: str) -> HTTPResponse:
    return urllib.request.urlopen(f"http://127.0.0.1:{node.node.http_port}{path}", timeout=10)


def test_health_reports_the_node_id_and_its_state(node: EmbeddedNode) -> None:
    with get(node, "/health") as response:
        health = json.load(response)
    assert health["ok"] is True and health["node"] == 1 and health["offline_partitions"] == []


def test_metrics_are_in_the_prometheus_text_format(node: EmbeddedNode) -> None:
    with get(node, "/metrics") as response:
        families = {family.name: family for family in text_string_to_metric_families(response.read().decode())}
    assert families["kafka_server_replicamanager_partitioncount"].samples[0].value == 0
    lag = families["headrace_loop_lag_seconds"]
    assert lag.type == "histogram" and any(sample.labels.get("le") == "+Inf" for sample in lag.samples)
    assert {"PLAINTEXT"} == {
        sample.labels["listener"] for sample in families["kafka_server_socket_server_metrics_connection_count"].samples
    }


def test_unknown_paths_get_404_and_other_methods_405(node: EmbeddedNode) -> None:
    for path, method, code in (("/", "GET", 404), ("/metrics", "POST", 405)):
        request = urllib.request.Request(f"http://127.0.0.1:{node.node.http_port}{path}", method=method)
        with pytest.raises(urllib.error.HTTPError) as caught:
            urllib.request.urlopen(request, timeout=10)
        assert caught.value.code == code
        caught.value.close()


def test_garbage_and_oversized_request_heads_are_rejected(node: EmbeddedNode) -> None:
    for garbage in (b"\x00\xff" * 10 + b"\r\n\r\n", b"GET /" + b"x" * 100_000):
        with socket.create_connection(("127.0.0.1", node.node.http_port), timeout=10) as client:
            try:
                client.sendall(garbage)
                assert b"200 OK" not in client.recv(1000)
            except ConnectionError:
                pass
    with get(node, "/health") as response:
        assert response.status == 200
