"""`headrace dump-log`: same output as Kafka's tool for the same files, and every kind of damage is named."""

from __future__ import annotations

import json
import shutil
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from testkit import kafka_peer as peers
from tests.cli.command_line import CommandLine

from headrace.cli.dump.values import as_json
from headrace.protocol.messages.stored.metadata_security import UserScramCredentialRecord
from headrace.testing.cluster import EmbeddedNode

FIRST = "00000000000000000000"
headrace = CommandLine()


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a stopped node's directory: segments with indexes, idempotent producers, metadata with a snapshot."""
    path = tmp_path_factory.mktemp("data")
    settings = {"log.index.interval.bytes": "1000", "metadata.log.max.record.bytes.between.snapshots": "500"}
    with EmbeddedNode(settings, data_dir=path) as node:
        run = CommandLine(node.bootstrap)
        run("topics", "create", "dumped", "--config", "segment.bytes=1048576")
        for codec in ("none", "zstd"):
            lines = "".join(f"key{number}:{'value' * 20}\n" for number in range(9000))
            run("produce", "dumped", "-k", ":", "-H", "h=1", "-z", codec, stdin=lines)
        run("users", "add", "zoe", "--password", "geheim")
        node.stop()
    return path


def verdicts(*arguments: Any, fails: bool = False) -> list[dict[str, Any]]:
    lines = headrace("dump-log", "--json", *arguments, fails=fails).splitlines()
    return [one for one in map(json.loads, lines) if one["kind"] in ("verdict", "problem")]


def test_files_written_by_a_node_pass_verification(directory: Path) -> None:
    found = verdicts(directory / "dumped-0", directory / "__cluster_metadata-0", "--print-data-log")
    assert all(one["ok"] for one in found)
    by_suffix = {one["file"].rpartition(".")[2]: one for one in found}
    assert by_suffix.keys() >= {"log", "index", "timeindex", "snapshot", "checkpoint"}
    logs = [one for one in found if "dumped-0" in one["file"] and one["file"].endswith(".log")]
    assert sum(one["records"] for one in logs) == 18_000 and len(logs) > 1
    index = next(one for one in found if one["file"].endswith(f"dumped-0/{FIRST}.index"))
    assert index["entries"] > 5 and index["checkedAgainst"] == f"{FIRST}.log"


def test_records_keys_values_and_metadata_are_shown(directory: Path) -> None:
    log = directory / "dumped-0" / f"{FIRST}.log"
    assert "| offset: 0 CreateTime: " in headrace("dump-log", "--deep-iteration", log)
    assert "| offset" not in headrace("dump-log", log)
    shown = headrace("dump-log", "--print-data-log", "--max-bytes", "70000", log)
    assert "headerKeys: [h] key: key0 payload: valuevalue" in shown and "offset: 8999 " not in shown
    metadata = directory / "__cluster_metadata-0" / f"{FIRST}.log"
    shown = headrace("dump-log", "--cluster-metadata-decoder", "--skip-record-metadata", metadata)
    assert '| payload: {"type":"TOPIC_RECORD","version":0,"data":{"name":"dumped","topicId":"' in shown
    assert "USER_SCRAM_CREDENTIAL_RECORD" in shown and '"storedKey":"(hidden)"' in shown
    assert headrace("dump-log", "--verify-only", "--files", f"{log},{metadata}").count("\n") == 4  # names and verdicts
    (checkpoint, *_) = (directory / "__cluster_metadata-0").glob("*.checkpoint")
    assert "SnapshotHeader {" in headrace("dump-log", "--print-data-log", checkpoint)


@pytest.mark.java
def test_the_output_equals_that_of_kafkas_tool(directory: Path) -> None:
    peers.require_kafka()
    log_files = sorted((directory / "dumped-0").glob("*.*index")) + sorted((directory / "dumped-0").glob("*.log"))
    log_files += sorted((directory / "dumped-0").glob("*.snapshot"))
    metadata = [
        *(directory / "__cluster_metadata-0").glob("*.log"),
        *(directory / "__cluster_metadata-0").glob("*.checkpoint"),
    ]
    for files, flag in ((log_files, "--print-data-log"), (metadata, "--cluster-metadata-decoder")):
        theirs = peers.tool("dump-log", flag, "--files", ",".join(map(str, files))).stdout.decode()
        ours = headrace("dump-log", flag, *files)
        assert _comparable_lines(ours) == _comparable_lines(theirs)


def _comparable_lines(text: str) -> list[str]:
    """Return the lines without those that each tool words differently, and without secrets that only Kafka shows."""
    own = ("OK ", "Log starting offset", "Snapshot end offset", "KRaft bootstrap")
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith(own)]
    return [line for line in lines if "USER_SCRAM_CREDENTIAL" not in line and not line.endswith("is empty.")]


def make_damaged_copy(directory: Path, tmp_path: Path, name: str, change: Callable[..., Any]) -> Path:
    shutil.copytree(directory / "dumped-0", tmp_path / "dumped-0")
    path = tmp_path / "dumped-0" / name
    path.write_bytes(bytes(change(bytearray(path.read_bytes()))))
    return path


def overwrite(data: bytearray, at: int, fields: bytearray | bytes) -> bytearray:
    data[at : at + len(fields)] = fields
    return data


@pytest.mark.parametrize(
    ("suffix", "change", "expected_problem"),
    [
        (".log", lambda data: overwrite(data, 100, b"!"), "checksum"),
        (".log", lambda data: data[:-1], "not a complete batch"),
        (".log", lambda data: overwrite(data, 8, b"\xff\xff\xff\xff"), "not a complete batch"),
        (".log", lambda data: overwrite(data, 16, b"\x07"), "magic"),
        (".log", lambda data: overwrite(data, 0, struct.pack(">q", 5000)), "the previous one ended"),
        (".index", lambda data: data[:-1], "not a multiple of the 8 bytes"),
        (".index", lambda data: overwrite(data, 8, data[:8]), "does not follow"),
        (".index", lambda data: overwrite(data, 4, struct.pack(">i", 17)), "no batch begins at position 17"),
        (".index", lambda data: overwrite(data, 0, struct.pack(">i", 3)), "ends with offset"),
        (".timeindex", lambda data: overwrite(data, 0, struct.pack(">q", 5)), "has timestamp"),
        (".timeindex", lambda data: overwrite(data, 8, struct.pack(">i", 2**31 - 1)), "is not in the log"),
        (".txnindex", lambda data: struct.pack(">hqqqq", 0, 1, 2, 3, 4), "no marker of producer 1 at offset 3"),
        (".txnindex", lambda data: struct.pack(">hqqqq", 9, 1, 2, 3, 4), "version 9"),
    ],
)
def test_each_kind_of_damage_is_reported(
    directory: Path, tmp_path: Path, suffix: str, change: Callable[..., Any], expected_problem: str
) -> None:
    if suffix == ".txnindex":
        (directory / "dumped-0" / f"{FIRST}.txnindex").touch()
    path = make_damaged_copy(directory, tmp_path, FIRST + suffix, change)
    problems = verdicts(path, fails=True)
    assert any(expected_problem in one.get("problem", "") for one in problems), problems
    assert problems[-1]["kind"] == "verdict" and not problems[-1]["ok"]


def test_a_corrupt_batch_does_not_hide_later_batches(directory: Path, tmp_path: Path) -> None:
    path = make_damaged_copy(directory, tmp_path, f"{FIRST}.log", lambda data: overwrite(data, 100, b"!"))
    lines = [json.loads(line) for line in headrace("dump-log", "--json", path, fails=True).splitlines()]
    batches = [one for one in lines if one["kind"] == "batch"]
    assert [one["isvalid"] for one in batches[:2]] == [False, True] and len(batches) > 5


def test_producer_snapshots_are_dumped_and_invalid_files_are_reported(directory: Path, tmp_path: Path) -> None:
    snapshot = next(one for one in sorted((directory / "dumped-0").glob("*.snapshot")) if one.stat().st_size > 10)
    assert "producerId: " in headrace("dump-log", snapshot)
    broken = tmp_path / snapshot.name
    broken.write_bytes(snapshot.read_bytes()[:-1] + b"!")
    assert "checksum" in headrace("dump-log", broken, fails=True)
    for wrong in (tmp_path / "odd.txt", tmp_path / "x.index"):
        wrong.write_bytes(b"odd")
        assert "WRONG" in headrace("dump-log", wrong, fails=True)
    assert "name the files" in headrace("dump-log", fails=True)


def test_messages_of_magic_0_and_1_are_dumped_and_checked(tmp_path: Path) -> None:
    def message(magic: int, offset: int, value: bytes) -> bytes:
        body = struct.pack(">bb", magic, 0) + (struct.pack(">q", 1000 + offset) if magic else b"")
        body += struct.pack(">ii", -1, len(value)) + value
        return struct.pack(">qiI", offset, len(body) + 4, zlib.crc32(body)) + body

    log = tmp_path / f"{FIRST}.log"
    log.write_bytes(b"".join(message(offset % 2, offset, b"v%d" % offset) for offset in range(4)))
    shown = headrace("dump-log", "--print-data-log", log)
    assert (
        "offset: 1 position: " in shown
        and "CreateTime: 1001" in shown
        and "magic: 0" in shown
        and "payload: v3" in shown
    )
    log.write_bytes(log.read_bytes()[:-1] + b"!")
    assert "isvalid: false" in headrace("dump-log", log, fails=True)


def test_stored_records_are_rendered_as_kafkas_json_with_secrets_hidden() -> None:
    record = UserScramCredentialRecord(
        name="a", mechanism=1, salt=b"s", stored_key=b"k", server_key=b"k", iterations=4096
    )
    assert as_json(record, 0) == {
        "name": "a", "mechanism": 1, "salt": "(hidden)", "storedKey": "(hidden)", "serverKey": "(hidden)", "iterations": 4096,
    }  # fmt: skip


def test_a_path_without_log_files_is_reported_in_one_line(tmp_path: Path) -> None:
    for missing in (tmp_path / "missing", tmp_path / "missing" / f"{FIRST}.log"):
        assert headrace("dump-log", missing, fails=True) == f"{missing}: no such file or directory"
    assert "has no .log" in headrace("dump-log", tmp_path, fails=True)
    (tmp_path / "orders-0").mkdir()
    assert "orders-0" in headrace("dump-log", tmp_path, fails=True)  # suggests what to dump instead
