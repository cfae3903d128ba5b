"""Base class of transactional producers: their identity, requests to coordinators, and delayed duplicates of requests.

A ghost is a second copy of a request that arrives long after the first, possibly in the middle of the next transaction, because of the
network or a client's retry (KAFKA-17754). Only transaction version 2 is safe against it, so only its clients have ghosts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from random import Random
from typing import Any

from msgspec import Struct

from headrace.base.errors import RETRIABLE, ErrorCode, KafkaError
from headrace.client.wire.connection import Connection
from headrace.protocol.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from headrace.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from testkit.simulator.clients import BACKOFF_S, LOST, REQUEST_TIMEOUT_S, Client, World, raise_for
from testkit.simulator.groups.offsets import UNEXPECTED

INIT, SEND, OFFSETS, END = "init", "send", "offsets", "end"  # operations in the history

GROUP_KEY, TRANSACTION_KEY = 0, 1  # key types of FindCoordinator
FIND_VERSION = 4
EXPECTING_VERSION_MIN = 3  # first version of InitProducerId with the producer's current id and epoch (KIP-360)
TIMEOUTS_MS = (800, 3_000, 15_000)
GHOST_SHARE, GHOST_S_MAX = 0.15, 2.5
DEATH_SHARE = 0.01
NO_PRODUCER = (-1, -1)

# Another producer has taken over the transactional id.
FENCED = frozenset({ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.INVALID_PRODUCER_ID_MAPPING})
# The coordinator has ended the transaction, or it never began.
SPOILED = frozenset({ErrorCode.INVALID_TXN_STATE, ErrorCode.TRANSACTION_ABORTABLE})


Connect = Callable[[], Awaitable[Connection]]


class Fenced(Exception):
    """The producer was fenced and must initialize again."""


class Spoiled(Exception):
    """The transaction can only be aborted."""


class Died(Exception):
    """The simulated process died and lost all its state."""


class Identity(Struct):
    """State shared by all producers that use one transactional id."""

    transactional_id: str
    group: str
    next_offset: int = 0  # no offset is committed twice

    def take_offset(self) -> int:
        self.next_offset += 1
        return self.next_offset


class TransactionalClient(Client):
    has_ghosts = False

    def __init__(self, name: str, world: World, random: Random, identity: Identity) -> None:
        super().__init__(name, world, random)
        self.identity = identity
        self.producer = NO_PRODUCER  # id and epoch
        self._timeout_ms = self.choose_timeout_ms()
        self._init_version = random.choice((1, 3, 4, 5))
        self._ghosts: list[asyncio.Task[None]] = []
        self.is_certain = True  # an error means that nothing was done, not even by another copy of the request
        self.is_lost = False  # a request of this producer may still arrive

    def unexpected(self, what: str, code: ErrorCode) -> None:
        self.history.note(UNEXPECTED, member=self.name, producer=self.producer, what=what, error=code.name)

    def choose_timeout_ms(self) -> int:
        return self.random.choice(TIMEOUTS_MS)

    def may_die(self) -> None:
        if not self.world.stopping and self.random.random() < DEATH_SHARE:
            raise Died

    async def close(self) -> None:
        if self._ghosts:
            await asyncio.wait(self._ghosts)
        await super().close()

    # --- requests

    async def coordinator(self, key: str, key_type: int) -> Connection:
        request = FindCoordinatorRequest(key_type=key_type, coordinator_keys=[key])
        connection = await self.cluster.any_broker()
        response: FindCoordinatorResponse = await connection.request(
            request, version=FIND_VERSION, timeout_s=REQUEST_TIMEOUT_S
        )
        found = response.coordinators[0]
        raise_for(found.error_code, "FindCoordinator")
        return await self.cluster.broker(found.node_id)

    async def of_transactions(self) -> Connection:
        return await self.coordinator(self.identity.transactional_id, TRANSACTION_KEY)

    async def of_group(self) -> Connection:
        return await self.coordinator(self.identity.group, GROUP_KEY)

    async def attempt(self, connect: Connect, requests: Sequence[Any], version: int) -> list[Any]:
        """Send the requests once and return the responses to the first of them; the others must be sent again."""
        self.may_die()
        try:
            connection = await connect()
        except LOST:
            return []
        except KafkaError as error:
            # FindCoordinator may name a broker that metadata, requested afterwards, no longer lists.
            if error.code not in RETRIABLE and error.code is not ErrorCode.BROKER_NOT_AVAILABLE:
                self.unexpected(f"{type(requests[0]).__name__}, connecting", error.code)
            return []
        partition_responses: list[Any] = []
        try:
            futures = [self._sent(connect, connection, request, version) for request in requests]
            for future in futures:
                response = await asyncio.wait_for(future, REQUEST_TIMEOUT_S)
                partition_responses.append(response)
        except LOST:
            self.is_certain, self.is_lost = False, True
            await connection.close()
        return partition_responses

    def _sent(self, connect: Connect, connection: Connection, request: Any, version: int) -> asyncio.Future[Any]:
        if self.has_ghosts and self.random.random() < GHOST_SHARE:
            self.is_certain = False
            self._ghosts.append(self.world.loop.create_task(self._haunt(connect, request, version)))
        return connection.send(request, version)

    async def _haunt(self, connect: Connect, request: Any, version: int) -> None:
        await self.pause(GHOST_S_MAX)
        try:
            await (await connect()).request(request, version=version, timeout_s=REQUEST_TIMEOUT_S)
        except (*LOST, KafkaError):
            return

    async def send_request(
        self, connect: Connect, request: Any, version: int, code_of: Callable[[Any], ErrorCode]
    ) -> tuple[Any, ErrorCode]:
        """Send the request until the response has no retriable error; return it and its error code."""
        while True:
            for response in await self.attempt(connect, [request], version):
                code = code_of(response)
                if code not in RETRIABLE:
                    return response, code
                # It may have been written nonetheless, by a coordinator that lost its role before it responded.
                self.is_certain = False
            await self.pause(BACKOFF_S)

    def judge(self, what: str, code: ErrorCode) -> None:
        """Raise Fenced or Spoiled if `code` is an error; note it if it is unexpected."""
        if code is ErrorCode.NONE:
            return
        if code in FENCED:
            raise Fenced
        if code not in SPOILED:
            self.unexpected(what, code)
        raise Spoiled

    # --- identity

    async def init(self) -> None:
        """Initialize the producer, half of the time with its current id and epoch; retry without them if refused."""
        expected = NO_PRODUCER
        if self._init_version >= EXPECTING_VERSION_MIN and self.random.random() < 0.5:
            expected = self.producer
        self.producer = NO_PRODUCER
        while self.producer == NO_PRODUCER:
            request = InitProducerIdRequest(
                transactional_id=self.identity.transactional_id,
                transaction_timeout_ms=self._timeout_ms,
                producer_id=expected[0],
                producer_epoch=expected[1],
            )
            call = self.history.invoke(self.name, INIT, transactional_id=self.identity.transactional_id)
            response: InitProducerIdResponse | None = None
            try:
                response, code = await self.send_request(
                    self.of_transactions, request, self._init_version, lambda response: ErrorCode(response.error_code)
                )
            finally:
                if response is None:
                    self.history.info(call)
            if code is ErrorCode.NONE:
                self.producer = (response.producer_id, response.producer_epoch)
                self.history.ok(call, producer=self.producer)
            else:
                self.history.info(call, error=code.name)
                if code not in FENCED or expected == NO_PRODUCER:
                    self.unexpected("InitProducerId", code)
                expected = NO_PRODUCER
