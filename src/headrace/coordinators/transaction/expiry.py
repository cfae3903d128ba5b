"""Aborts transactions that exceed their timeout, and removes transactional ids that have not been used for long.

A sweep examines a few transactional ids per turn. Each timed-out transaction is aborted in a separate decision: one that cannot be
written delays no other and is retried by the runtime.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING

from headrace.coordinators.transaction.ending import fence
from headrace.coordinators.transaction.fencing import EpochCause
from headrace.coordinators.transaction.records import TransactionRecord
from headrace.coordinators.transaction.state import Transaction
from headrace.coordinators.transaction.states import RESTING, State

if TYPE_CHECKING:
    from headrace.coordinators.transaction.shard import TransactionShard, Tx

TIMEOUT_SWEEP = "timeout-sweep"
TIMED_OUT = "timed-out"
EXPIRY_SWEEP = "expiry-sweep"
EXAMINED_PER_TURN = 200  # transactional ids per turn
ID_CHARS_PER_TURN_MAX = 32_768  # approximate length of all ids examined per turn; bounds the batch that is written


def begin_sweeps(shard: TransactionShard, now_ms: int, tx: Tx) -> None:
    _arm_timeouts(shard, now_ms, tx)
    _arm_expiries(shard, now_ms, tx)


def _arm_timeouts(shard: TransactionShard, now_ms: int, tx: Tx) -> None:
    interval_ms = shard.settings.transaction_abort_timed_out_transaction_cleanup_interval_ms
    tx.arm((TIMEOUT_SWEEP,), now_ms + interval_ms)


def _arm_expiries(shard: TransactionShard, now_ms: int, tx: Tx) -> None:
    interval_ms = shard.settings.transaction_remove_expired_transaction_cleanup_interval_ms
    tx.arm((EXPIRY_SWEEP,), now_ms + interval_ms)


def on_timeout_sweep(shard: TransactionShard, timer: tuple[str], now_ms: int, tx: Tx) -> None:
    """Arm a timer for each timed-out transaction of this turn.

    The position of the sweep is not durable: if it is lost, the sweep starts over.
    """
    tables = shard.tables
    if tables.timeouts is None:
        tables.timeouts = iter(tables.ongoing.keys())
    names = list(islice(tables.timeouts, EXAMINED_PER_TURN))
    if len(names) < EXAMINED_PER_TURN:
        tables.timeouts = None
        _arm_timeouts(shard, now_ms, tx)
    else:
        tx.arm((TIMEOUT_SWEEP,), now_ms + 1)
    for name in names:
        if _is_timed_out(tables.all.get(name), now_ms):
            tx.arm((TIMED_OUT, name), now_ms)


def on_timed_out(shard: TransactionShard, timer: tuple[str, str], now_ms: int, tx: Tx) -> None:
    name = timer[1]
    old = shard.tables.all.get(name)
    if old is not None and _is_timed_out(old, now_ms):
        fence(shard, name, old, EpochCause.TIMEOUT, now_ms, tx)


def _is_timed_out(transaction: Transaction | None, now_ms: int) -> bool:
    return (
        transaction is not None
        and transaction.state is State.ONGOING
        and not transaction.is_two_phase
        and transaction.started_ms + transaction.timeout_ms < now_ms
    )


def on_expiry_sweep(shard: TransactionShard, timer: tuple[str], now_ms: int, tx: Tx) -> None:
    """Remove the expired transactional ids of this turn.

    A failed turn is not retried: the next sweep finds what it left behind.
    """
    tables = shard.tables
    if tables.expiries is None:
        tables.expiries = iter(tables.all.keys())
    names = list(_some(tables.expiries))
    if names:
        tx.arm((EXPIRY_SWEEP,), now_ms + 1)
    else:
        tables.expiries = None
        _arm_expiries(shard, now_ms, tx)
    latest_ms = now_ms - shard.settings.transactional_id_expiration_ms
    for name in names:
        found = tables.all.get(name)
        if found is not None and found.state in RESTING and found.updated_ms <= latest_ms:
            tx.emit(TransactionRecord(name, None))


def _some(names: Iterator[str]) -> Iterator[str]:
    chars = 0
    for name in islice(names, EXAMINED_PER_TURN):
        yield name
        chars += len(name)
        if chars >= ID_CHARS_PER_TURN_MAX:
            return
