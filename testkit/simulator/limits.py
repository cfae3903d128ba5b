"""Makes limits of the product small for a run, so that what happens once in a million requests happens all the time.

Only limits whose value must not affect correctness are listed: how much is cached, read or sent at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from random import Random
from types import ModuleType

from headrace.broker import background
from headrace.broker.membership import observer
from headrace.broker.transactions import producer_ids
from headrace.controller import producer_ids as controller_producer_ids
from headrace.coordinators.transaction import ending, init, partitions
from headrace.quorum import log as quorum_log
from headrace.quorum import snapshots, snapshotter
from headrace.records import validate_batch
from headrace.server import connection, connection_pool, response_writer
from headrace.storage import file_range
from headrace.storage.segments import scan, segment

SMALL_SHARE = 0.4

SMALL: tuple[tuple[ModuleType, str, float], ...] = (
    (background, "HOUSEKEEPING_S", 0.02),
    (observer, "FETCH_BYTES", 200),
    (observer, "RECORDS_AT_ONCE", 1),
    (producer_ids, "PREFETCH_WHEN_LEFT", 1),
    (controller_producer_ids, "BLOCK_SIZE", 2),
    (quorum_log, "READ_SLICE_BYTES", 300),
    (snapshots, "BATCH_BYTES", 200),
    (snapshotter, "WRITE_BYTES", 300),
    (validate_batch, "THREAD_BYTES_MIN", 100),
    (connection, "RESPONSES_WAITING_MAX", 2),
    (connection_pool, "SCRATCH_BYTES", 128),
    (connection, "GATHER_CONNECTIONS_MIN", 2),
    (response_writer, "JOIN_MAX", 100),
    (response_writer, "WRITE_PIECE", 700),
    (file_range, "SEND_FILE_MIN", 100),
    (scan, "HEADER_SCAN_BYTES", 100),
    (scan, "BATCH_SCAN_BYTES", 500),
    (segment, "TAIL_BATCHES_MAX", 4),
)

# These depend on each other and are only changed together.
FEW_EPOCHS: tuple[tuple[ModuleType, str, float], ...] = (
    (init, "EPOCH_LAST", 6),
    (ending, "EPOCH_LAST", 6),
    (ending, "EPOCH_MAX", 7),
    (partitions, "EPOCH_MAX", 7),
)


@contextmanager
def small_limits(random: Random) -> Iterator[list[str]]:
    chosen = [limit for limit in SMALL if random.random() < SMALL_SHARE]
    if random.random() < SMALL_SHARE:
        chosen += FEW_EPOCHS
    before = [getattr(module, name) for module, name, _ in chosen]
    for module, name, value in chosen:
        setattr(module, name, value)
    try:
        yield [name for _, name, _ in chosen]
    finally:
        for (module, name, _), value in zip(chosen, before, strict=True):
            setattr(module, name, value)
