"""Sends raft's requests to the other replicas of the quorum.

At most one request of a kind is in flight to each node: an equal one that follows is dropped, a different one replaces it. So a node
that does not respond costs one connection and a few requests, however often raft repeats itself.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from errno import ECONNREFUSED
from functools import partial
from random import Random
from typing import Any, NamedTuple, Protocol

from headrace.base.errors import HeadraceError
from headrace.base.ids import NodeId
from headrace.client.wire.node_link import Address, LinkOptions, NodeLink
from headrace.metadata.state import KRAFT_VERSION
from headrace.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from headrace.protocol.messages.fetch_snapshot import FetchSnapshotResponse
from headrace.quorum.controller_addresses import ControllerAddresses
from headrace.quorum.requests import Sender, decode, decode_snapshot_part, encode, encode_snapshot_fetch
from headrace.quorum.snapshots import SnapshotId
from headrace.raft.messages import EndQuorumEpochRequest, Request, Response
from headrace.raft.voters import VoterSet

LINKS_MAX = 100  # nodes with an open link; raft names no more than the voters and one leader


class Unanswered(NamedTuple):
    """Why a request got no response; `is_refused` says that nothing listens at the receiver's address."""

    reason: str
    is_refused: bool = False


Done = Callable[[Response | Unanswered], None]
_Kind = tuple[NodeId, type[Request]]


class ReplicaState(Protocol):
    """What requests are made of besides raft's messages: the voters, and how far this replica knows the log to be committed."""

    @property
    def voters(self) -> VoterSet: ...

    @property
    def high_watermark(self) -> int: ...


class Peers(Protocol):
    problems: dict[NodeId, str]  # why each node did not respond to its last request, if it did not

    def send(self, to: NodeId, request: Request, state: ReplicaState, done: Done) -> None:
        """Send the request. Call `done` once, never from inside this call; not at all if a newer request replaces it."""

    async def fetch_snapshot(
        self, leader: NodeId, snapshot: SnapshotId, position: int, epoch: int
    ) -> FetchSnapshotResponse.PartitionSnapshot:
        """Return a part of the leader's snapshot. Raise HeadraceError if there is none."""
        ...

    async def supported_kraft_versions(self, address: Address) -> tuple[int, int]:
        """Return the lowest and highest kraft.version of the node at this address. Raise HeadraceError if it does not respond."""
        ...

    async def close(self, wait_s: float) -> None:
        """Wait for announcements under way, but no longer than `wait_s`, then close all connections."""

    def abandon(self) -> None:
        """Close all connections now, as if the process had died."""


class NoPeers:
    """The peers of the only voter of a quorum."""

    def __init__(self) -> None:
        self.problems: dict[NodeId, str] = {}

    def send(self, to: NodeId, request: Request, state: ReplicaState, done: Done) -> None:
        raise AssertionError(f"a quorum of one has no node {to}")

    async def fetch_snapshot(
        self, leader: NodeId, snapshot: SnapshotId, position: int, epoch: int
    ) -> FetchSnapshotResponse.PartitionSnapshot:
        raise AssertionError(f"a quorum of one has no node {leader}")

    async def supported_kraft_versions(self, address: Address) -> tuple[int, int]:
        raise HeadraceError("this controller has no listener, so no other can join it")

    async def close(self, wait_s: float) -> None: ...

    def abandon(self) -> None: ...


class _InFlight(NamedTuple):
    request: Request
    task: asyncio.Task[Response | Unanswered]


class LinkedPeers:
    """Sends requests over links; `options` is called when the first one is opened."""

    def __init__(
        self,
        sender: Sender,
        addresses: ControllerAddresses,
        options: Callable[[], LinkOptions],
        random: Random,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._sender = sender
        self._addresses = addresses
        self._options = options
        self._random = random
        self._loop = loop
        self._links: dict[NodeId, NodeLink] = {}
        self._in_flight: dict[_Kind, _InFlight] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self.problems: dict[NodeId, str] = {}

    def send(self, to: NodeId, request: Request, state: ReplicaState, done: Done) -> None:
        kind = (to, type(request))
        current = self._in_flight.get(kind)
        if current is not None:
            if current.request == request:
                return
            current.task.cancel()
        message = encode(request, to, self._sender, state.voters, state.high_watermark)
        task = self._loop.create_task(self._exchange(to, request, message))
        self._in_flight[kind] = _InFlight(request, task)
        task.add_done_callback(partial(self._ended, kind, done))

    async def _exchange(self, to: NodeId, request: Request, message: Any) -> Response | Unanswered:
        try:
            received = await self._link(to).request(message)
            response = decode(received, request, to)
        except HeadraceError as error:
            self.problems[to] = str(error)
            self._addresses.failed(to)
            return Unanswered(str(error), _is_refused(error))
        self.problems.pop(to, None)
        self._addresses.learn(received)
        return response

    def _ended(self, kind: _Kind, done: Done, task: asyncio.Task[Response | Unanswered]) -> None:
        if (current := self._in_flight.get(kind)) is not None and current.task is task:
            del self._in_flight[kind]
        if not task.cancelled():
            done(task.result())

    def _link(self, to: NodeId) -> NodeLink:
        """Return the link to a node's current address. Raise HeadraceError if that is unknown."""
        address = self._addresses.of(to)
        if address is None:
            raise HeadraceError(f"the address of node {to} is unknown")
        link = self._links.get(to)
        if link is None or link.address != address:
            self._retire(link)
            while len(self._links) >= LINKS_MAX:
                self._retire(self._links.pop(next(iter(self._links))))
            link = self._links[to] = NodeLink(address, self._options(), self._random)
        return link

    def _retire(self, link: NodeLink | None) -> None:
        if link is not None:
            task = self._loop.create_task(link.close())
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)

    async def fetch_snapshot(
        self, leader: NodeId, snapshot: SnapshotId, position: int, epoch: int
    ) -> FetchSnapshotResponse.PartitionSnapshot:
        message = encode_snapshot_fetch(snapshot, position, epoch, self._sender)
        return decode_snapshot_part(await self._link(leader).request(message), leader)

    async def supported_kraft_versions(self, address: Address) -> tuple[int, int]:
        link = NodeLink(address, self._options(), self._random)
        try:
            response: ApiVersionsResponse = await link.request(
                ApiVersionsRequest(client_software_name="headrace", client_software_version="0.1.0")
            )
        finally:
            await link.close()
        return next(
            ((one.min_version, one.max_version) for one in response.supported_features if one.name == KRAFT_VERSION),
            (0, 0),
        )

    async def close(self, wait_s: float) -> None:
        announcements = [one.task for one in self._in_flight.values() if isinstance(one.request, EndQuorumEpochRequest)]
        if announcements and wait_s > 0:
            await asyncio.wait(announcements, timeout=wait_s)
        tasks = [one.task for one in self._in_flight.values()]
        for task in tasks:
            task.cancel()
        for link in self._links.values():
            self._retire(link)
        self._links.clear()
        await asyncio.gather(*tasks, *self._closing, return_exceptions=True)

    def abandon(self) -> None:
        for one in self._in_flight.values():
            one.task.cancel()
        for link in self._links.values():
            link.abort()
        self._links.clear()


def _is_refused(error: HeadraceError) -> bool:
    """Return whether every address of the node has refused the connection."""
    cause = error.__cause__
    if isinstance(cause, ConnectionRefusedError):
        return True
    # asyncio reports a name with several addresses as one OSError with the texts of all failures.
    numbers = re.findall(r"\[Errno (\d+)\]", str(cause)) if isinstance(cause, OSError) else []
    return bool(numbers) and set(numbers) == {str(ECONNREFUSED)}
