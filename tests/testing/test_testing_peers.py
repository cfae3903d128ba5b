"""The reasons given when real Kafka is not available, and how it is started."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from testkit import kafka_peer as peers


@pytest.fixture(autouse=True)
def clear_availability_cache() -> Iterator[None]:
    peers.available.cache_clear()
    yield
    peers.available.cache_clear()


def test_a_missing_jdk_is_given_as_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert peers.available() == "no JDK: java is not on the path"


def test_a_missing_maven_is_given_as_the_reason(
    monkeypatch: pytest.MonkeyPatch, tmp_path: pytest.TempPathFactory
) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None if name == "mvn" else f"/bin/{name}")
    monkeypatch.setenv("HEADRACE_KAFKA_LIBS", str(tmp_path))
    assert "no Maven" in (peers.available() or "")


def test_missing_kafka_fails_in_ci_and_skips_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match="no JDK"):
        peers.require_kafka()
    monkeypatch.setenv("CI", "")
    with pytest.raises(pytest.skip.Exception, match="no JDK"):
        peers.require_kafka()


def test_the_pom_depends_on_kafka_and_log4j() -> None:
    pom = peers._pom(peers._ARTIFACTS, alone=False)
    assert f"<version>{peers.VERSION}</version>" in pom
    assert "log4j-core" in pom


def test_our_classes_precede_kafkas_on_the_class_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_KAFKA_LIBS", "libs")
    command = peers.java("Copier", "id", classes=Path("ours"))
    assert command[command.index("-cp") + 1 :] == ["ours:libs/*", "Copier", "id"]
    command = peers.java("kafka.Kafka")
    assert command[command.index("-cp") + 1 :] == ["libs/*", "kafka.Kafka"]
