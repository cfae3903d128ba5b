"""What producers of transactions share: who they are, how they ask a coordinator, and the requests that come again much later.

A ghost is a request whose first copy was answered long ago, or never: a network, or a client that tried twice, brings it again in the
middle of the next transaction (KAFKA-17754). Only transaction version 2 is proof against it, so only its clients have ghosts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from random import Random
from typing import Any

from msgspec import Struct

from headrace.base.errors import RETRIABLE, ErrorCode, KafkaError
from headrace.client.connection import Connection
from headrace.protocol.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from headrace.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from headrace.testing.simulator.clients import BACKOFF_S, LOST, REQUEST_TIMEOUT_S, Client, World, raise_for
from headrace.testing.simulator.group_offsets import UNEXPECTED

INIT, SEND, OFFSETS, END = "init", "send", "offsets", "end"  # operations in the history

GROUP_KEY, TRANSACTION_KEY = 0, 1  # of FindCoordinator
FIND_VERSION = 4
EXPECTING_VERSION_MIN = 3  # of InitProducerId: the producer says who it was (KIP-360)
TIMEOUTS_MS = (800, 3_000, 15_000)
GHOST_SHARE, GHOST_S_MAX = 0.15, 2.5
DEATH_SHARE = 0.01
NOBODY = (-1, -1)

# Somebody else is the producer now.
FENCED = frozenset({ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.INVALID_PRODUCER_ID_MAPPING})
# The transaction has ended without us, or never began.
SPOILED = frozenset({ErrorCode.INVALID_TXN_STATE, ErrorCode.TRANSACTION_ABORTABLE})


Connect = Callable[[], Awaitable[Connection]]


class Fenced(Exception):
    """It has to begin anew, as another."""


class Spoiled(Exception):
    """It can only be aborted."""


class Died(Exception):
    """And with it all that the process knew."""


class Identity(Struct):
    """What all who use one transactional id have in common."""

    transactional_id: str
    group: str
    next_offset: int = 0  # no offset is committed twice

    def take_offset(self) -> int:
        self.next_offset += 1
        return self.next_offset


class TransactionalClient(Client):
    has_ghosts = False

    def __init__(self, name: str, world: World, chance: Random, identity: Identity) -> None:
        super().__init__(name, world, chance)
        self.identity = identity
        self.producer = NOBODY  # id and epoch
        self._timeout_ms = chance.choice(TIMEOUTS_MS)
        self._init_version = chance.choice((1, 3, 4, 5))
        self._ghosts: list[asyncio.Task[None]] = []
        self.is_certain = True  # a refusal means that nothing was done: no other copy of the request did it
        self.is_lost = False  # something of ours may still be on its way

    def unexpected(self, what: str, code: ErrorCode) -> None:
        self.history.note(UNEXPECTED, member=self.name, producer=self.producer, what=what, error=code.name)

    def may_die(self) -> None:
        if not self.world.stopping and self.chance.random() < DEATH_SHARE:
            raise Died

    async def close(self) -> None:
        if self._ghosts:
            await asyncio.wait(self._ghosts)
        await super().close()

    # --- asking

    async def coordinator(self, key: str, key_type: int) -> Connection:
        request = FindCoordinatorRequest(key_type=key_type, coordinator_keys=[key])
        connection = await self.cluster.any_broker()
        answer: FindCoordinatorResponse = await connection.request(
            request, version=FIND_VERSION, timeout_s=REQUEST_TIMEOUT_S
        )
        found = answer.coordinators[0]
        raise_for(found.error_code, "FindCoordinator")
        return await self.cluster.broker(found.node_id)

    async def of_transactions(self) -> Connection:
        return await self.coordinator(self.identity.transactional_id, TRANSACTION_KEY)

    async def of_group(self) -> Connection:
        return await self.coordinator(self.identity.group, GROUP_KEY)

    async def attempt(self, connect: Connect, requests: Sequence[Any], version: int) -> list[Any]:
        """The answers to the first of them; those without have to be asked again."""
        self.may_die()
        try:
            connection = await connect()
        except LOST:
            return []
        except KafkaError as error:
            if error.code not in RETRIABLE:
                self.unexpected(f"{type(requests[0]).__name__}, connecting", error.code)
            return []
        answers: list[Any] = []
        try:
            futures = [self._sent(connect, connection, request, version) for request in requests]
            for future in futures:
                answer = await asyncio.wait_for(future, REQUEST_TIMEOUT_S)
                answers.append(answer)
        except LOST:
            self.is_certain, self.is_lost = False, True
            await connection.close()
        return answers

    def _sent(self, connect: Connect, connection: Connection, request: Any, version: int) -> asyncio.Future[Any]:
        if self.has_ghosts and self.chance.random() < GHOST_SHARE:
            self.is_certain = False
            self._ghosts.append(self.world.loop.create_task(self._haunt(connect, request, version)))
        return connection.send(request, version)

    async def _haunt(self, connect: Connect, request: Any, version: int) -> None:
        await self.pause(GHOST_S_MAX)
        try:
            await (await connect()).request(request, version=version, timeout_s=REQUEST_TIMEOUT_S)
        except (*LOST, KafkaError):
            return

    async def ask(
        self, connect: Connect, request: Any, version: int, code_of: Callable[[Any], ErrorCode]
    ) -> tuple[Any, ErrorCode]:
        """Again and again, until the answer is one that stays."""
        while True:
            for answer in await self.attempt(connect, [request], version):
                code = code_of(answer)
                if code not in RETRIABLE:
                    return answer, code
                # It may have been written nonetheless: by a coordinator that was none any more when it should have answered.
                self.is_certain = False
            await self.pause(BACKOFF_S)

    def judge(self, what: str, code: ErrorCode) -> None:
        """Raises what a refusal means for the transaction."""
        if code is ErrorCode.NONE:
            return
        if code in FENCED:
            raise Fenced
        if code not in SPOILED:
            self.unexpected(what, code)
        raise Spoiled

    # --- who am I?

    async def init(self) -> None:
        """With a word on who it was if it knows; if that is refused, without."""
        expected = NOBODY
        if self._init_version >= EXPECTING_VERSION_MIN and self.chance.random() < 0.5:
            expected = self.producer
        self.producer = NOBODY
        while self.producer == NOBODY:
            request = InitProducerIdRequest(
                transactional_id=self.identity.transactional_id,
                transaction_timeout_ms=self._timeout_ms,
                producer_id=expected[0],
                producer_epoch=expected[1],
            )
            call = self.history.invoke(self.name, INIT, transactional_id=self.identity.transactional_id)
            answer: InitProducerIdResponse | None = None
            try:
                answer, code = await self.ask(
                    self.of_transactions, request, self._init_version, lambda told: ErrorCode(told.error_code)
                )
            finally:
                if answer is None:
                    self.history.info(call)
            if code is ErrorCode.NONE:
                self.producer = (answer.producer_id, answer.producer_epoch)
                self.history.ok(call, producer=self.producer)
            else:
                self.history.info(call, error=code.name)
                if code not in FENCED or expected == NOBODY:
                    self.unexpected("InitProducerId", code)
                expected = NOBODY
