"""Small tests for bugs that simulator seeds have found."""

from __future__ import annotations

import asyncio
from random import Random

import pytest
from testkit.history import History
from testkit.simulator.disk import SimulatedFiles
from testkit.simulator.loop import SimulatedLoop
from testkit.simulator.machine import HOST, PORT, Machine
from testkit.simulator.network import Network

from headrace.base.ids import TopicPartition, Uuid
from headrace.node.broker_role import BrokerRole
from headrace.node.controller_role import ControllerRole
from headrace.quorum.driver import QuorumFailed
from headrace.records.batch import read_header
from headrace.records.builder import BatchBuilder
from headrace.records.control import TransactionMarker, build_marker
from headrace.storage.log import Log
from headrace.storage.log_config import LogConfig
from headrace.storage.partition_metadata import PARTITION_METADATA

PARTITION = TopicPartition("t", 0)
DIRECTORY = "/data/t-0"
TOPIC_ID = Uuid(b"i" * 16)


def open_log(files: SimulatedFiles, **options: bool) -> Log:
    config = LogConfig(segment_bytes=200)
    return Log.open(files, DIRECTORY, PARTITION, config, topic_id=TOPIC_ID, now_ms=1, **options)[0]


def log_with_batches(files: SimulatedFiles, batches: int) -> Log:
    log = open_log(files)
    for _ in range(batches):
        builder = BatchBuilder()
        builder.append(1, None, b"value")
        batch = builder.build()
        log.append_as_leader(batch, read_header(batch), 0, 1)
    return log


def test_recovery_removes_the_segments_after_one_truncated_at_a_batch_end() -> None:
    files = SimulatedFiles(Random(0))
    log = log_with_batches(files, 8)
    first, second = list(log.segments)[:2]
    assert second.base_offset == 2
    files.process_crash()
    files.open(first.file.path).truncate(first.size // 2)
    log = open_log(files)
    assert (log.log_end, len(log.segments)) == (1, 1)


def test_a_torn_partition_metadata_file_does_not_lose_the_log() -> None:
    files = SimulatedFiles(Random(0))
    log_with_batches(files, 2)
    files.process_crash()
    files.open(f"{DIRECTORY}/{PARTITION_METADATA}").truncate(7)
    log = open_log(files)
    assert (log.log_end, log.topic_id) == (2, TOPIC_ID)


def test_a_clean_shutdown_syncs_records_written_before_a_process_crash() -> None:
    for seed in range(20):
        files = SimulatedFiles(Random(seed))
        files.make_dirs("/data")
        files.sync_dir("/")
        log_with_batches(files, 5)
        files.process_crash()
        open_log(files).close()
        files.power_loss()
        log = open_log(files, clean=True)
        assert (log.log_end, log.topic_id) == (5, TOPIC_ID)


def transactional(log: Log) -> None:
    builder = BatchBuilder()
    builder.append(1, None, b"value")
    batch = builder.build(producer_id=7, producer_epoch=0, base_sequence=0, transactional=True)
    log.append_as_leader(batch, read_header(batch), 0, 1)


def abort(log: Log) -> None:
    marker = build_marker(
        TransactionMarker(commit=False, coordinator_epoch=0), producer_id=7, producer_epoch=1, timestamp=1
    )
    log.append_as_leader(marker, read_header(marker), 0, 1)


def test_a_clean_shutdown_syncs_the_aborted_transaction_index() -> None:
    """Reopen the log as after a clean end, which does not rebuild their index."""
    for seed in range(20):
        files = SimulatedFiles(Random(seed))
        files.make_dirs("/data")
        files.sync_dir("/")
        log = open_log(files)
        transactional(log)
        abort(log)
        log.close()
        files.power_loss()
        log = open_log(files, clean=True)
        assert [found.first_offset for found in log.aborted_transactions(0, log.log_end)] == [0]


def test_an_abort_marker_that_does_not_fit_on_the_disk_leaves_the_log_unchanged() -> None:
    """Check that a retried marker ends the transaction: otherwise readers would see aborted records."""
    for free_bytes in range(0, 150, 5):
        files = SimulatedFiles(Random(0))
        log = open_log(files)
        transactional(log)
        files.capacity = files.used() + free_bytes
        try:
            abort(log)
        except OSError:
            log.check()
            assert (log.log_end, log.last_stable_offset(log.log_end), log.aborted_transactions(0, 9)) == (1, 0, [])
            files.capacity = None
            abort(log)
        assert (log.log_end, log.last_stable_offset(log.log_end)) == (2, 2)
        assert [found.first_offset for found in log.aborted_transactions(0, log.log_end)] == [0]


def test_connections_are_refused_until_the_node_is_ready() -> None:
    loop = SimulatedLoop(Random(0))
    network = Network(loop, Random(1))
    machine = Machine(loop, network, Random(2), History(), {}, lambda text: None)
    seen: list[bool] = []

    async def main() -> None:
        supervisor = loop.create_task(machine.supervise())
        while not seen or not seen[-1]:
            try:
                await loop.create_connection(asyncio.Protocol, HOST, PORT)
            except ConnectionRefusedError:
                seen.append(False)
                assert machine.node is None
            else:
                seen.append(True)
        await machine.until_up()
        assert machine.node is not None and machine.node.health()["ok"]
        supervisor.cancel()

    loop.run_until_complete(main())
    loop.close()
    assert seen.count(False) > 1 and machine.failures == []


def test_startup_fails_when_the_controller_fails_during_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that it does not wait for metadata that will never arrive."""
    loop = SimulatedLoop(Random(0))
    machine = Machine(loop, Network(loop, Random(1)), Random(2), History(), {}, lambda text: None)
    start = ControllerRole.start

    async def start_and_fail(self: ControllerRole) -> None:
        await start(self)
        self.driver.failed.set_exception(QuorumFailed("its disk has failed"))

    async def wait_forever(self: BrokerRole, previous_epoch: int) -> None:
        await asyncio.get_running_loop().create_future()

    monkeypatch.setattr(ControllerRole, "start", start_and_fail)
    monkeypatch.setattr(BrokerRole, "start", wait_forever)

    async def main() -> None:
        await machine.supervise()

    loop.run_until_complete(main())
    loop.close()
    assert len(machine.failures) == 3 and all("QuorumFailed" in text for text in machine.failures)
