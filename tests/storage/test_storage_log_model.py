"""The log compared with a list of batches: appended, copied, rolled, synced, truncated, closed, torn and reopened."""

from __future__ import annotations

import shutil
from pathlib import Path
from tempfile import mkdtemp

import msgspec
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.storage.storage_samples import NOW_MS, SMALL, append, make_batch, open_log, stored_batches, sync

from headrace.base.errors import ErrorCode, KafkaError
from headrace.records.batch import read_header, stamp
from headrace.records.record import decode_records
from headrace.storage.retention import enforce

PID = 3
timestamps_strategy = st.lists(st.integers(NOW_MS - 50, NOW_MS + 50), min_size=1, max_size=6)


# A leader's log has gaps only if its topic is compacted; otherwise recovery takes a gap for a lost tail.
GAPPY = msgspec.structs.replace(SMALL, cleanup_policy=("compact",))


class LogMachine(RuleBasedStateMachine):
    @initialize()
    def start(self) -> None:
        self.path = Path(mkdtemp(prefix="headrace-log-"))
        self.log, _ = open_log(self.path, GAPPY)
        self.model: list[tuple[int, int, bytes]] = []
        self.epoch = 0
        self.sequence = 0

    def teardown(self) -> None:
        if hasattr(self, "path"):
            self.log.abandon()
            shutil.rmtree(self.path)

    @property
    def end(self) -> int:
        return self.log.log_end

    @rule(timestamps=timestamps_strategy, size=st.integers(0, 300), idempotent=st.booleans())
    def append_as_leader(self, timestamps: list[int], size: int, idempotent: bool) -> None:
        options: dict[str, int] = {}
        if idempotent:
            options = {"producer_id": PID, "producer_epoch": self.epoch, "base_sequence": self.sequence}
        batch = make_batch(timestamps, value=b"v" * size, **options)
        first = self.end
        info = append(self.log, batch, self.epoch)
        assert (info.first_offset, info.last_offset, info.duplicate) == (first, first + len(timestamps) - 1, False)
        self.model.append((info.first_offset, info.last_offset, bytes(batch)))
        if idempotent:
            self.sequence += len(timestamps)
            again = append(self.log, bytearray(batch), self.epoch)
            # Kafka responds to a duplicate with the timestamp of the original, whether a client or the broker set it.
            assert again == info._replace(duplicate=True, log_append_time=max(timestamps))

    @rule(counts=st.lists(st.integers(1, 4), min_size=1, max_size=5), gap=st.integers(0, 3), torn=st.integers(0, 60))
    def append_as_follower(self, counts: list[int], gap: int, torn: int) -> None:
        buffer = bytearray()
        offset = self.end
        for count in counts:
            offset += gap
            batch = make_batch(count)
            stamp(batch, 0, read_header(batch), offset, self.epoch)
            self.model.append((offset, offset + count - 1, bytes(batch)))
            buffer += batch
            offset += count
        info = self.log.append_as_follower(bytes(buffer + make_batch()[:torn]), NOW_MS)
        assert info is not None and info.last_offset == offset - 1

    @rule()
    def new_epoch(self) -> None:
        self.epoch += 1
        self.sequence = 0

    @rule()
    def roll(self) -> None:
        self.log.roll(NOW_MS)

    @rule()
    def sync(self) -> None:
        sync(self.log)
        assert self.log.recovery_point == self.end

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def truncate(self, data: st.DataObject) -> None:
        offset = data.draw(st.integers(self.log.log_start, self.end))
        self.log.truncate_to(offset, NOW_MS)
        self.model = [one for one in self.model if one[1] < offset]
        assert self.end <= offset
        self.adopt_producer_state()

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def advance_log_start(self, data: st.DataObject) -> None:
        self.log.advance_log_start(data.draw(st.integers(0, self.end)))
        self.model = [one for one in self.model if one[1] >= self.log.log_start]

    @rule(bytes_kept=st.integers(0, 4000), high_watermark=st.integers(0, 200))
    def delete_by_size(self, bytes_kept: int, high_watermark: int) -> None:
        self.log.configure(
            msgspec.structs.replace(GAPPY, cleanup_policy=("compact", "delete"), retention_bytes=bytes_kept)
        )
        before = self.log.log_start
        while enforce(self.log, min(high_watermark, self.end), NOW_MS) is not None:
            assert before <= self.log.log_start <= max(high_watermark, before)
        self.log.configure(GAPPY)
        self.model = [one for one in self.model if one[1] >= self.log.log_start]
        for deleted in self.log.deletion_queue.take(NOW_MS + GAPPY.file_delete_delay_ms):
            deleted.remove()

    @rule()
    def reopen_after_a_clean_shutdown(self) -> None:
        start, end = self.log.log_start, self.end
        self.log.close()
        self.log, report = open_log(self.path, GAPPY, recovery_point=end, log_start=start, clean=True)
        assert report.messages() == [] and report.segments_checked == 0
        assert (self.log.log_start, self.end, self.log.recovery_point) == (start, end, end)

    @rule(data=st.data())
    def reopen_after_a_crash(self, data: st.DataObject) -> None:
        self.log.write_pending_indexes() if data.draw(st.booleans()) else None
        self.log.abandon()
        point, start = self.log.recovery_point, self.log.log_start
        active = Path(self.log.segments.active.file.path)
        unsynced = sum(len(one[2]) for one in self.model if one[0] >= max(point, self.log.segments.active.base_offset))
        lost = data.draw(st.integers(0, min(unsynced, active.stat().st_size)), label="bytes lost")
        content = active.read_bytes()
        active.write_bytes(
            content[: len(content) - lost] + data.draw(st.sampled_from([b"", b"\xee" * 100, b"garbage"]))
        )
        while lost > 0:
            lost -= len(self.model.pop()[2])
        self.log, report = open_log(self.path, GAPPY, recovery_point=point, log_start=start, clean=False)
        assert report.segments_checked >= 1
        assert len(report.cuts) <= 1 and report.damage == []
        self.adopt_producer_state()

    def adopt_producer_state(self) -> None:
        """Continue with the log's own producer state, since truncation may have removed the last batches."""
        entry = self.log.producers.entry(PID)
        same_epoch = entry is not None and entry.epoch == self.epoch
        self.sequence = entry.last_sequence + 1 if entry is not None and same_epoch else 0
        if entry is not None and entry.epoch > self.epoch:
            self.epoch = entry.epoch

    @invariant()
    def stored_batches_match_the_model(self) -> None:
        if not hasattr(self, "path"):
            return
        self.log.check()
        assert stored_batches(self.log) == self.model
        start, end = self.log.log_start, self.end
        for offset in {start, *(edge for one in self.model[-8:] for edge in one[:2])}:
            if not start <= offset < end:
                continue
            expected = next((one for one in self.model if one[1] >= offset), None)
            found = self.log.read(offset, 1, min_one=True)
            assert found.range.read() == (expected[2] if expected else b"")
            below = [one[2] for one in self.model if one[1] >= start and one[1] < offset]
            if below:
                read = b"".join(self._read_below(offset))
                assert read == b"".join(below)
        assert self.log.read(end, 100).range.read() == b""
        for outside in (start - 1, end + 1):
            with pytest.raises(KafkaError) as caught:
                self.log.read(outside, 100)
            assert caught.value.code == ErrorCode.OFFSET_OUT_OF_RANGE

    def _read_below(self, upper: int) -> list[bytes]:
        parts: list[bytes] = []
        offset = self.log.log_start
        while data := self.log.read(offset, 1, upper).range.read():
            parts.append(data)
            offset = read_header(data).next_offset
        return parts

    @invariant()
    def timestamp_lookups_match_the_model(self) -> None:
        if not hasattr(self, "path"):
            return
        records = [
            record for one in self.model for record in decode_records(one[2]) if record.offset >= self.log.log_start
        ]
        for timestamp in (NOW_MS - 60, NOW_MS, NOW_MS + 30, NOW_MS + 60):
            expected = next((record for record in records if record.timestamp >= timestamp), None)
            found = self.log.find_by_timestamp(timestamp)
            assert (found and (found.offset, found.timestamp)) == (expected and (expected.offset, expected.timestamp))
        largest = max(records, key=lambda record: record.timestamp, default=None)
        found = self.log.max_timestamp_offset()
        assert (found and (found.offset, found.timestamp)) == (largest and (largest.offset, largest.timestamp))

    @invariant()
    def epochs_end_where_the_next_one_begins(self) -> None:
        if not hasattr(self, "path") or not self.model:
            return
        batches = [(read_header(one[2]).leader_epoch, one[0]) for one in self.model]
        latest = batches[-1][0]
        assert self.log.end_offset_for_epoch(latest) == (latest, self.end)
        for epoch in {epoch for epoch, _ in batches if epoch != latest}:
            following = next(first for other, first in batches if other > epoch)
            assert self.log.end_offset_for_epoch(epoch) == (epoch, following)


TestLogMachine = LogMachine.TestCase
TestLogMachine.settings = settings(
    deadline=None, max_examples=40, stateful_step_count=25, suppress_health_check=[HealthCheck.too_slow]
)


def test_max_timestamp_offset_is_the_first_record_with_the_largest_timestamp(tmp_path: Path) -> None:
    log, _ = open_log(tmp_path)
    assert log.max_timestamp_offset() is None
    for timestamps in ([NOW_MS, NOW_MS + 7, NOW_MS + 7], [NOW_MS + 7], [NOW_MS + 1]):
        append(log, make_batch(timestamps), 4)
    assert log.max_timestamp_offset() == (1, NOW_MS + 7, 4)
    log.roll(NOW_MS)
    append(log, make_batch([NOW_MS + 3]), 4)
    assert log.max_timestamp_offset() == (1, NOW_MS + 7, 4)


def test_reads_of_sealed_segments_use_the_index_on_disk(tmp_path: Path) -> None:
    log, _ = open_log(tmp_path, SMALL)
    for _ in range(60):
        append(log, make_batch(3))
    first = log.segments.first
    assert len(log.segments) > 2 and len(first.offset_index) > 2 and first.offset_index.sealed
    for offset in range(log.log_end):
        header = read_header(log.read(offset, 1).range.read())
        assert header.base_offset <= offset <= header.last_offset
