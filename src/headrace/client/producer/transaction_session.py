r"""The transactions of one producer, one after another: what is allowed when, and the requests this takes.

                    init              begin                     commit, abort
    UNINITIALIZED ---------> READY ------------> OPEN ----------------------------> READY
                               ^                  | \  prepare
                               |                  |  `--------> PREPARED ---> (commit, abort)
                               `----- abort ----- FAILED        any ---------> FENCED (nothing but close)

A failed batch makes its transaction FAILED: the rest of it is not sent, and it can only be aborted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping
from enum import Enum
from typing import Protocol, TypeVar

from headrace.base.errors import ErrorCode, HeadraceError, KafkaError
from headrace.base.ids import TopicPartition
from headrace.client.group.membership import CommittedOffset, GroupMetadata
from headrace.client.producer.batches import ProducerBatch, ProducerIdentity
from headrace.client.producer.options import ProducerSettings
from headrace.client.producer.sequences import Sequences
from headrace.client.producer.transaction_requests import (
    AbortableTransactionError,
    FatalTransactionError,
    TransactionError,
    TransactionIdentity,
    add_offsets,
    add_partitions,
    commit_offsets,
    end_transaction,
    init_producer_id,
)
from headrace.client.tasks import end_tasks
from headrace.client.wire.cluster import Cluster
from headrace.client.wire.coordinator_lookup import TRANSACTION, CoordinatorConnection
from headrace.protocol.messages.init_producer_id import InitProducerIdRequest

T = TypeVar("T")

# Errors from a partition's leader. A rejected epoch is not among them: the coordinator has bumped it, perhaps on a
# timeout, and only the coordinator can say whether another producer has the transactional id now.
_FATAL_FOR_BATCHES = (
    ErrorCode.PRODUCER_FENCED,
    ErrorCode.INVALID_PRODUCER_ID_MAPPING,
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
)


class TransactionState(Enum):
    """The states of a producer's transactions. Calls that a state does not allow raise KafkaError."""

    UNINITIALIZED = "uninitialized"  # before `init`
    READY = "ready"  # no transaction is open: only `begin` is allowed
    OPEN = "open"  # the only state in which records and offsets are accepted
    PREPARED = "prepared"  # all records are written: only commit and abort are allowed
    COMMITTING = "committing"  # not confirmed by the coordinator: only another commit can determine the outcome
    ABORTING = "aborting"  # not confirmed by the coordinator: only another abort is allowed
    FAILED = "failed"  # a part of the transaction failed: only abort is allowed
    FENCED = "fenced"  # a fatal error: the producer can only be closed


S = TransactionState
ALLOWED: dict[str, frozenset[TransactionState]] = {
    "init": frozenset({S.UNINITIALIZED}),
    "begin": frozenset({S.READY}),
    "send": frozenset({S.OPEN}),
    "prepare": frozenset({S.OPEN}),
    "commit": frozenset({S.OPEN, S.PREPARED, S.COMMITTING}),
    "abort": frozenset({S.OPEN, S.PREPARED, S.FAILED, S.ABORTING}),
}


class Outbox(Protocol):
    """The rest of the producer, as its transactions see it."""

    def wake(self) -> None: ...

    async def flush(self) -> None: ...

    async def give_up_all(self, error: Exception) -> None:
        """Give up what is not on the wire, and wait until the rest is answered."""
        ...


class TransactionSession:
    """The transactions of a producer, one after another; `outbox` must be set before any call."""

    outbox: Outbox

    def __init__(self, settings: ProducerSettings, cluster: Cluster, sequences: Sequences) -> None:
        assert settings.transactional_id is not None
        self.transactional_id = settings.transactional_id
        self.state = S.UNINITIALIZED
        self.is_implicit = False
        self.error: KafkaError | None = None
        self._settings = settings
        self._cluster = cluster
        self._sequences = sequences
        self._coordinator = CoordinatorConnection(cluster, self.transactional_id, TRANSACTION)
        self._added: set[TopicPartition] = set()
        self._to_add: set[TopicPartition] = set()
        self._adding: asyncio.Task[None] | None = None
        self._prepared: TransactionIdentity | None = None
        self._has_begun = False  # a broker knows of the transaction, so it has to be ended
        self._needs_epoch = False  # sequences are in doubt, and ending the transaction does not bump the epoch

    @property
    def identity(self) -> TransactionIdentity:
        """Return the identity with which any process can end this transaction."""
        return TransactionIdentity(self.transactional_id, *self._sequences.identity)

    # --- for the application

    async def init(self, *, keep_prepared: bool = False) -> TransactionIdentity | None:
        """Fence the previous producer of the transactional id and abort its open transaction.

        With `keep_prepared` (two-phase commit), a prepared transaction is kept and returned, to be ended with
        `complete`.
        """
        self._check("init")
        if keep_prepared and not self._settings.two_phase:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "keep_prepared needs transaction.two.phase.commit.enable")
        response = await self._initialize(keep_prepared=keep_prepared)
        self.state = S.READY
        if keep_prepared and response[0] >= 0:
            self.state, self._has_begun = S.PREPARED, True
            self._prepared = TransactionIdentity(self.transactional_id, *response)
            return self._prepared
        return None

    async def _initialize(self, *, keep_prepared: bool = False, bump: bool = False) -> ProducerIdentity:
        """Get a producer id and epoch; return the identity of a transaction prepared before, -1 if there is none."""
        request = InitProducerIdRequest(
            transactional_id=self.transactional_id,
            transaction_timeout_ms=self._settings.transaction_timeout_ms,
            enable2_pc=self._settings.two_phase,
            keep_prepared_txn=keep_prepared,
        )
        if bump:
            request.producer_id, request.producer_epoch = self._sequences.identity
        response, self.is_implicit = await self._request(
            init_producer_id(self._coordinator, request, timeout_s=self._settings.block_s)
        )
        self._sequences.start(ProducerIdentity(response.producer_id, response.producer_epoch))
        self._needs_epoch = False
        return ProducerIdentity(response.ongoing_txn_producer_id, response.ongoing_txn_producer_epoch)

    async def begin(self) -> None:
        """Begin a transaction, without contacting a broker.

        Raise KafkaError if the producer is not initialized or is fenced, or if its last transaction is not ended yet.
        """
        self._check("begin")
        self.state = S.OPEN
        self._forget()

    def _forget(self) -> None:
        self._added.clear()
        self._to_add.clear()
        self._has_begun = False
        self.error = None

    async def send_offsets(self, offsets: Mapping[TopicPartition, CommittedOffset], group: GroupMetadata) -> None:
        """Add a group's offsets to the transaction; they are committed only if the transaction is."""
        self._check("send")
        if not offsets:
            return
        timeout_s = self._settings.block_s
        if not self.is_implicit:
            await self._request(add_offsets(self._coordinator, self.identity, group.group_id, timeout_s=timeout_s))
        self._has_begun = True
        await self._request(
            commit_offsets(self._cluster, self.identity, offsets, group, implicit=self.is_implicit, timeout_s=timeout_s)
        )

    async def prepare(self) -> TransactionIdentity:
        """Flush all records and close the transaction to more; any process with the returned identity may end it."""
        self._check("prepare")
        await self.outbox.flush()
        self._check("prepare")  # a batch may have failed
        self.state, self._prepared = S.PREPARED, self.identity
        return self.identity

    async def complete(self, prepared: TransactionIdentity) -> None:
        """Commit the prepared transaction that `init` returned if it is `prepared`, else abort it."""
        if prepared == self._prepared:
            await self.commit()
        else:
            await self.abort()

    async def commit(self) -> None:
        """Commit the transaction: all of it becomes visible, or nothing.

        After a timeout, only `commit` may be called again.
        """
        self._check("commit")
        if self.state is S.OPEN:
            await self.outbox.flush()
            self._check("commit")
        self.state = S.COMMITTING
        await self._end(commit=True)

    async def abort(self) -> None:
        """Abort the transaction: consumers with read_committed never see its records.

        Deliveries of records that are not sent yet fail. After a timeout, only `abort` may be called again.
        """
        self._check("abort")
        self.state = S.ABORTING
        await self.close()
        if self.error is None:
            self.error = AbortableTransactionError(ErrorCode.TRANSACTION_ABORTABLE, "the transaction was aborted")
        await self.outbox.give_up_all(self.error)
        await self._end(commit=False)

    async def _end(self, *, commit: bool) -> None:
        if self._has_begun:
            after = await self._request(
                end_transaction(
                    self._cluster,
                    self.identity,
                    commit=commit,
                    timeout_s=self._settings.block_s,
                    implicit=self.is_implicit,
                    coordinator=self._coordinator,
                )
            )
            if self.is_implicit:
                self._sequences.start(ProducerIdentity(after.producer_id, after.producer_epoch))
                self._needs_epoch = False
        if self._needs_epoch:
            await self._initialize(bump=True)
        self._forget()
        self.state = S.READY

    def _check(self, act: str) -> None:
        if self.state in ALLOWED[act]:
            return
        if self.state is S.FENCED:
            assert self.error is not None
            raise self.error
        if self.state is S.FAILED and self.error is not None:
            message = f"the transaction must be aborted, because of {self.error}"
            raise AbortableTransactionError(self.error.code, message) from self.error
        raise KafkaError(
            ErrorCode.INVALID_TXN_STATE, f"{act}: the transaction of {self.transactional_id} is {self.state.value}"
        )

    async def _request(self, requests: Awaitable[T]) -> T:
        try:
            return await requests
        except TransactionError as error:
            self.batch_failed(error)
            raise

    # --- for the sender

    def check_send(self) -> None:
        self._check("send")

    def admits(self, batch: ProducerBatch) -> bool:
        """Return whether the batch may be sent: its partition is in the transaction, or is added by the write."""
        if self.error is not None or self.state in (S.ABORTING, S.READY):
            return False
        if self.is_implicit:
            self._has_begun = True
            return True
        if batch.partition in self._added:
            return True
        self._to_add.add(batch.partition)
        if self._adding is None:
            self._adding = asyncio.get_running_loop().create_task(self._add())
        return False

    async def _add(self) -> None:
        try:
            while self._to_add:
                some, self._to_add = self._to_add, set()
                await add_partitions(self._coordinator, self.identity, some, timeout_s=self._settings.block_s)
                self._has_begun = True
                self._added |= some
                self.outbox.wake()
        except KafkaError as error:
            self._has_begun = True  # some of them may have been added
            self.batch_failed(error)
        except HeadraceError as error:
            self._has_begun = True
            self.batch_failed(AbortableTransactionError(ErrorCode.NETWORK_EXCEPTION, str(error)))
        finally:
            self._adding = None
            self.outbox.wake()

    def batch_failed(self, error: KafkaError, *, in_doubt: bool = False) -> None:
        """Record the failure of a batch, or of anything else in the transaction.

        `in_doubt` means that a broker may or may not have accepted the batch's sequence.
        """
        self._needs_epoch |= in_doubt and not self.is_implicit
        if self.state is S.FENCED:
            return
        if isinstance(error, FatalTransactionError) or error.code in _FATAL_FOR_BATCHES:
            self.state, self.error = S.FENCED, error
        elif self.state in (S.OPEN, S.PREPARED, S.COMMITTING):
            self.state, self.error = S.FAILED, error
        self.outbox.wake()

    async def close(self) -> None:
        """End the background task that adds partitions."""
        if self._adding is not None:
            await end_tasks([self._adding])
