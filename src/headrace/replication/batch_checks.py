"""The leader's rules for produced batches: size, contents, timestamps and the topic's compression type.

`check` handles every batch and raises Kafka's errors. `check_simple` is for the short path of Produce: it accepts the batches that can
be appended as they were sent, and leaves all others to `check`. Neither does I/O; `check` may run in a thread.
"""

from __future__ import annotations

from crc32c import crc32c

from headrace.base.errors import ErrorCode, KafkaError
from headrace.options.table import LONG_MAX
from headrace.records.batch import CODEC_MASK, CRC_START, LENGTH_OVERHEAD_BYTES, BatchHeader
from headrace.records.compression import Codec
from headrace.records.kernel import inspect_plain_batch
from headrace.records.recompress import TARGETS, recompress
from headrace.records.validate_batch import Checked, check_produced_batch, needs_thread, read_produced_header
from headrace.storage.log_config import LogConfig

DECOMPRESSED_BYTES_MAX = 128 * 1024 * 1024  # per batch, against decompression bombs
DECOMPRESSED_INLINE_MAX = 1024 * 1024  # decompressed on the event loop, in about a millisecond; more goes to a thread
AFTER_MAX_MS = LONG_MAX - 10**14  # bound of message.timestamp.after.max.ms, so that now + this fits an int64

_CODEC_MAX = int(Codec.ZSTD)
_make_header = BatchHeader._make


class BatchChecks:
    """The checks of one partition, with the options of its topic."""

    __slots__ = (
        "_codec",
        "_config",
        "after_max_ms",
        "batch_length_max",
        "before_max_ms",
        "compresses",
        "requires_keys",
    )

    def __init__(self, config: LogConfig) -> None:
        self._config = config
        self.batch_length_max = config.max_message_bytes - LENGTH_OVERHEAD_BYTES  # as the header counts
        self.requires_keys = config.is_compacted
        self._codec = TARGETS[config.compression_type]  # None if the producer chooses
        # Whether batches that arrive uncompressed are compressed.
        self.compresses = self._codec is not None and self._codec != Codec.NONE
        self.before_max_ms = config.message_timestamp_before_max_ms
        self.after_max_ms = min(config.message_timestamp_after_max_ms, AFTER_MAX_MS)

    def needs_thread(self, header: BatchHeader) -> bool:
        return needs_thread(header, converts=self.compresses)

    def check(
        self, records: memoryview, header: BatchHeader, now_ms: int, decompressed_max: int = DECOMPRESSED_BYTES_MAX
    ) -> Checked:
        """Check a produced batch and convert it to the topic's compression type.

        `records` is exactly the batch. The checks are in Kafka's order: base offset, size, contents.
        """
        if header.batch_length > self.batch_length_max and header.base_offset == 0:
            raise KafkaError(
                ErrorCode.MESSAGE_TOO_LARGE,
                f"the batch has {header.size} bytes, max.message.bytes is {self._config.max_message_bytes}",
            )
        checked = check_produced_batch(
            records,
            header,
            max_decompressed_bytes=decompressed_max,
            require_keys=self.requires_keys,
            timestamp_min=now_ms - self.before_max_ms,
            timestamp_max=now_ms + self.after_max_ms,
        )
        return checked if self._codec is None else self._convert(checked, header, self._codec)

    def check_simple(self, batch: memoryview, now_ms: int) -> tuple[BatchHeader, int] | None:
        """Return header and largest timestamp of a batch that can be appended as it was sent.

        Return None, or raise KafkaError, if `check` has to decide: the batch is invalid, of a transaction, to be converted, or too
        large for the event loop. A new rule of `check` needs its counterpart here.
        """
        if self.compresses:
            return None
        inspected = inspect_plain_batch(
            batch, self.requires_keys, now_ms - self.before_max_ms, now_ms + self.after_max_ms
        )
        if inspected is None:
            return self._check_simple_compressed(batch, now_ms)
        header = _make_header(inspected[0])
        if header.batch_length > self.batch_length_max or header.base_offset or crc32c(batch[CRC_START:]) != header.crc:
            return None
        return header, inspected[1]

    def _check_simple_compressed(self, batch: memoryview, now_ms: int) -> tuple[BatchHeader, int] | None:
        header = read_produced_header(batch)
        if header.size != len(batch) or not 0 < header.attributes <= _CODEC_MAX or self.needs_thread(header):
            return None
        checked = self.check(batch, header, now_ms, DECOMPRESSED_INLINE_MAX)
        return None if checked.converted is not None else (header, checked.max_timestamp)

    def _convert(self, checked: Checked, header: BatchHeader, codec: Codec) -> Checked:
        if header.attributes & CODEC_MASK == codec:
            return checked
        config = self._config
        levels = {
            Codec.GZIP: config.compression_gzip_level,
            Codec.LZ4: config.compression_lz4_level,
            Codec.ZSTD: config.compression_zstd_level,
        }
        converted = recompress(header, checked.records, codec, levels.get(codec))
        if converted[1].size > config.max_message_bytes:
            raise KafkaError(
                ErrorCode.MESSAGE_TOO_LARGE,
                f"the batch has {converted[1].size} bytes as {config.compression_type}, max.message.bytes is {config.max_message_bytes}",
            )
        return checked._replace(converted=converted)
