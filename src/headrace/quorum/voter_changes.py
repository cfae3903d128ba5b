"""Changes of the voters on the leader (KIP-853): raft decides, the log gets a record, and the caller waits until it is committed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from headrace.base.errors import ErrorCode, HeadraceError, KafkaError
from headrace.base.waiters import OffsetWaiters
from headrace.client.wire.node_link import Address
from headrace.quorum.controller_addresses import endpoint_for
from headrace.quorum.driver import QuorumDriver
from headrace.raft.membership import DYNAMIC_KRAFT_VERSION
from headrace.raft.voters import ReplicaKey, Voter

UPGRADE_S_MAX = 30.0  # how long an upgrade of kraft.version may take to be committed


class VoterChanges:
    """Adds, removes and updates voters. `own` returns how this node describes itself; `listener` is that of the controllers.

    Every method raises KafkaError if the change is not possible now, REQUEST_TIMED_OUT if it is not committed in time, and
    NOT_LEADER_OR_FOLLOWER if this node does not lead; in the last two cases the change may still happen.
    """

    def __init__(
        self, driver: QuorumDriver, own: Callable[[], Voter], listener: str, loop: asyncio.AbstractEventLoop
    ) -> None:
        self._driver = driver
        self._own = own
        self._listener = listener
        self._loop = loop
        self._committed = OffsetWaiters()
        driver.on_committed(self._committed.advance)
        driver.on_role(self._role_changed)

    def _role_changed(self) -> None:
        if not self._driver.is_leader:
            self._committed.lose(
                KafkaError(
                    ErrorCode.NOT_LEADER_OR_FOLLOWER, "this node lost the leadership before the change was committed"
                )
            )

    async def add(self, voter: Voter, timeout_s: float, *, wait: bool) -> None:
        """Add a voter, after asking it which levels of kraft.version it supports."""
        raft = self._driver.raft
        raft.add_voter(voter, self._driver.now_ms())  # a change that is refused anyway needs no question
        voter = Voter(voter.key, voter.endpoints, *await self._supported_versions(voter, timeout_s))
        if not voter.kraft_version_min <= raft.kraft_version <= voter.kraft_version_max:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST,
                f"node {voter.key.id} supports kraft.version {voter.kraft_version_min}-{voter.kraft_version_max},"
                f" but the cluster has {raft.kraft_version}",
            )
        end = self._driver.change_voters(raft.add_voter(voter, self._driver.now_ms()))
        if wait:
            await self._until_committed(end, timeout_s)

    async def _supported_versions(self, voter: Voter, timeout_s: float) -> tuple[int, int]:
        endpoint = endpoint_for(voter.endpoints, self._listener)
        assert endpoint is not None, "a voter without endpoints"
        try:
            async with asyncio.timeout(timeout_s):
                return await self._driver.peers.supported_kraft_versions(Address(endpoint.host, endpoint.port))
        except (HeadraceError, TimeoutError) as error:
            raise KafkaError(
                ErrorCode.REQUEST_TIMED_OUT,
                f"node {voter.key.id} did not say at {endpoint.host}:{endpoint.port} what it supports: {error or 'no response'}",
            ) from error

    async def remove(self, key: ReplicaKey, timeout_s: float) -> None:
        end = self._driver.change_voters(self._driver.raft.remove_voter(key))
        await self._until_committed(end, timeout_s)

    def update(self, voter: Voter) -> None:
        """Note what a voter says of itself; it repeats that until it sees it in the log."""
        self._driver.change_voters(self._driver.raft.update_voter(voter))

    def check_upgrade(self) -> None:
        """Raise KafkaError unless kraft.version can be upgraded now."""
        self._driver.raft.upgrade_kraft_version(self._own())

    async def upgrade(self) -> None:
        """Upgrade kraft.version to 1: the static voters move into the log."""
        if self._driver.raft.kraft_version < DYNAMIC_KRAFT_VERSION:
            end = self._driver.change_voters(self._driver.raft.upgrade_kraft_version(self._own()))
            await self._until_committed(end, UPGRADE_S_MAX)

    async def _until_committed(self, end_offset: int, timeout_s: float) -> None:
        if self._driver.high_watermark >= end_offset:
            return
        future: asyncio.Future[None] = self._loop.create_future()

        def passed() -> None:
            if not future.done():
                future.set_result(None)

        def lost(reason: Exception) -> None:
            if not future.done():
                future.set_exception(reason)

        waiter = self._committed.add(end_offset, passed, lost)
        try:
            async with asyncio.timeout(timeout_s):
                await future
        except TimeoutError:
            raise KafkaError(
                ErrorCode.REQUEST_TIMED_OUT, "the change of the voters was not committed in time"
            ) from None
        finally:
            self._committed.cancel(waiter)
