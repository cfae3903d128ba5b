"""A dynamic quorum (KIP-853): controllers join, leave and replace each other while the cluster works."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from random import Random
from typing import Any

from tests.cli.command_line import CommandLine
from tests.node.controllers import CLUSTER_ID, LOOPBACK, Controllers

from headrace.base.errors import ErrorCode
from headrace.base.ids import NodeId, Uuid
from headrace.client.wire.connection import Connection
from headrace.node.configuration.settings import Settings
from headrace.node.new_cluster.formatting import FirstMetadata, format_log_dirs
from headrace.node.new_cluster.initial_voters import standalone
from headrace.node.node import Node
from headrace.protocol.messages.add_raft_voter import AddRaftVoterRequest
from headrace.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from headrace.protocol.messages.remove_raft_voter import RemoveRaftVoterRequest
from headrace.protocol.messages.update_features import UpdateFeaturesRequest
from headrace.protocol.messages.update_raft_voter import UpdateRaftVoterRequest
from headrace.storage.disk import DiskFiles
from headrace.storage.log_dirs import close_log_dirs, open_log_dirs

AUTO_JOIN = {"controller.quorum.auto.join.enable": "true"}


class DynamicControllers(Controllers):
    """Controllers that know the others by controller.quorum.bootstrap.servers; node 1 is the first voter."""

    def settings(self, node_id: int, **options: str) -> Settings:
        bootstrap = ",".join(f"{LOOPBACK}:{port}" for port in self.ports.values())
        dynamic = {"controller.quorum.voters": "", "controller.quorum.bootstrap.servers": bootstrap}
        return super().settings(node_id, **dynamic, **options)

    def format(self, settings: Settings, cluster_id: str = CLUSTER_ID) -> None:
        for path in settings.log_dirs:
            Path(path).mkdir(parents=True, exist_ok=True)
        random = Random(f"{settings.node_id} {len(list(Path(settings.metadata_dir).parent.iterdir()))}")
        voters = standalone(settings, random) if settings.node_id == 1 else None
        log_dirs = open_log_dirs(DiskFiles(), settings.log_dirs)
        format_log_dirs(
            log_dirs, settings.metadata_dir, settings.node_id, cluster_id, 1, random, FirstMetadata(voters=voters)
        )
        close_log_dirs(log_dirs)

    def node(self, node_id: int) -> Node:
        return self.nodes[node_id]

    def raft(self, node_id: int) -> Any:
        controller = self.nodes[node_id].controller
        assert controller is not None
        return controller.driver.raft

    def voters(self) -> list[int]:
        return list(self.raft(self.leader).voters.ids)

    def add_request(self, node_id: int, **fields: Any) -> AddRaftVoterRequest:
        listener = AddRaftVoterRequest.Listener(name="CONTROLLER", host=LOOPBACK, port=self.ports[node_id])
        values: dict[str, Any] = {
            "cluster_id": CLUSTER_ID,
            "timeout_ms": 10_000,
            "voter_id": node_id,
            "voter_directory_id": self.raft(node_id).key.directory if node_id in self.nodes else Uuid(b"d" * 16),
            "listeners": [listener],
        }
        return AddRaftVoterRequest(**(values | fields))

    async def ask(self, request: Any, node_id: int | None = None) -> Any:
        """Send a request to the controller listener of a node, by default the active controller's."""
        connection = await Connection.connect(LOOPBACK, self.ports[node_id or self.leader])
        try:
            return await connection.request(request)
        finally:
            await connection.close()

    async def add(self, node_id: int) -> None:
        """Add a voter as soon as it has caught up."""
        while True:
            response = await self.ask(self.add_request(node_id))
            if response.error_code != ErrorCode.REQUEST_TIMED_OUT:
                assert response.error_code == ErrorCode.NONE, response
                return
            await asyncio.sleep(0.05)

    async def remove(self, node_id: int) -> Any:
        voter = self.raft(self.leader).voters.get(NodeId(node_id))
        return await self.ask(
            RemoveRaftVoterRequest(
                cluster_id=CLUSTER_ID,
                voter_id=node_id,
                voter_directory_id=voter.key.directory if voter else Uuid(b"d" * 16),
            )
        )


def run(work: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        await asyncio.wait_for(work(), 60)

    asyncio.run(bounded())


def test_a_quorum_grows_from_one_controller_to_three_and_survives_the_loss_of_the_first(tmp_path: Path) -> None:
    async def work() -> None:
        quorum = DynamicControllers(tmp_path)
        await quorum.start(1)
        await quorum.write(3)
        await quorum.start(2, 3)  # as observers: no voter counts on them yet
        assert quorum.voters() == [1] and not quorum.raft(2).is_voter
        await quorum.add(2)
        await quorum.add(3)
        assert quorum.voters() == [1, 2, 3]
        await quorum.kill(1)
        assert await quorum.until_leader() in (2, 3)
        await quorum.write(2)
        await quorum.start(1)
        await quorum.until_equal()
        assert quorum.voters() == [1, 2, 3]
        await quorum.stop()

    run(work)


def test_voters_leave_one_by_one_also_the_leader_but_never_the_last(tmp_path: Path) -> None:
    async def work() -> None:
        quorum = DynamicControllers(tmp_path)
        await quorum.start(1)
        await quorum.start(2, 3)
        await quorum.add(2)
        await quorum.add(3)
        leader = quorum.leader
        assert (await quorum.remove(leader)).error_code == ErrorCode.NONE
        await quorum.until(lambda: quorum.leader not in (-1, leader))
        await quorum.write(1)
        assert leader not in quorum.voters()
        other = next(voter for voter in quorum.voters() if voter != quorum.leader)
        assert (await quorum.remove(other)).error_code == ErrorCode.NONE
        last = quorum.leader
        response = await quorum.remove(last)
        assert response.error_code == ErrorCode.INVALID_REQUEST and "last voter" in response.error_message
        assert (await quorum.remove(other)).error_code == ErrorCode.VOTER_NOT_FOUND
        await quorum.stop()

    run(work)


def test_impossible_changes_are_refused_with_kafkas_codes(tmp_path: Path) -> None:
    async def work() -> None:
        quorum = DynamicControllers(tmp_path)
        await quorum.start(1)
        await quorum.start(2)
        wrong: list[tuple[dict[str, Any], ErrorCode]] = [
            ({"cluster_id": "AAAAAAAAQAGAAAAAAAAAAA"}, ErrorCode.INCONSISTENT_CLUSTER_ID),
            ({"voter_id": -1}, ErrorCode.INVALID_REQUEST),
            ({"voter_directory_id": Uuid(bytes(16))}, ErrorCode.INVALID_REQUEST),
            ({"listeners": []}, ErrorCode.INVALID_REQUEST),
            ({"listeners": [AddRaftVoterRequest.Listener(name="OTHER", host="h", port=1)]}, ErrorCode.INVALID_REQUEST),
            ({"voter_id": 1}, ErrorCode.DUPLICATE_VOTER),
            ({"voter_id": 3}, ErrorCode.REQUEST_TIMED_OUT),  # it has never fetched
        ]
        for fields, code in wrong:
            response = await quorum.ask(quorum.add_request(2, **fields))
            assert ErrorCode(response.error_code) is code, (fields, response)
        assert (await quorum.ask(quorum.add_request(2), node_id=2)).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        update = UpdateRaftVoterRequest(cluster_id=CLUSTER_ID, current_leader_epoch=99, voter_id=1)
        assert (await quorum.ask(update)).error_code == ErrorCode.UNKNOWN_LEADER_EPOCH
        assert quorum.voters() == [1]
        await quorum.stop()

    run(work)


def test_controllers_join_by_themselves_and_replace_the_voter_of_a_lost_disk(tmp_path: Path) -> None:
    async def work() -> None:
        quorum = DynamicControllers(tmp_path)
        await quorum.start(1)
        await quorum.start(2, 3, **AUTO_JOIN)
        await quorum.until(lambda: quorum.voters() == [1, 2, 3])
        former = quorum.raft(3).key.directory
        await quorum.kill(3)
        for path in (tmp_path / "node-3").iterdir():
            if path.is_file():
                path.unlink()
        (tmp_path / "node-3").rename(tmp_path / "lost")
        quorum.format(quorum.settings(3))
        await quorum.start(3, **AUTO_JOIN)
        await quorum.until(
            lambda: quorum.raft(3).is_voter and quorum.raft(quorum.leader).voters.get(3).key.directory != former
        )
        assert quorum.voters() == [1, 2, 3]
        await quorum.write(2)
        await quorum.until_equal()
        await quorum.stop()

    run(work)


def test_a_voter_that_moves_to_another_address_says_so_and_is_found_there(tmp_path: Path) -> None:
    async def work() -> None:
        quorum = DynamicControllers(tmp_path)
        await quorum.start(1)
        await quorum.start(2, 3)
        await quorum.add(2)
        await quorum.add(3)
        moved = next(node_id for node_id in (1, 2, 3) if node_id != quorum.leader)
        await quorum.stop(moved)
        quorum.ports[moved] += 1
        await quorum.start(moved)
        await quorum.until(
            lambda: quorum.raft(quorum.leader).voters.get(moved).endpoints[0].port == quorum.ports[moved]
        )
        await quorum.stop()

    run(work)


def test_a_static_quorum_becomes_dynamic_and_can_then_grow(tmp_path: Path) -> None:
    async def work() -> None:
        quorum = Controllers(tmp_path)
        await quorum.start()
        leader = await quorum.until_leader()

        async def ask(request: Any) -> Any:
            connection = await Connection.connect(LOOPBACK, quorum.ports[quorum.leader])
            try:
                return await connection.request(request)
            finally:
                await connection.close()

        update = UpdateFeaturesRequest.FeatureUpdateKey(feature="kraft.version", max_version_level=1, upgrade_type=1)
        while True:
            response = await ask(UpdateFeaturesRequest(timeout_ms=10_000, feature_updates=[update]))
            if response.error_code != ErrorCode.REQUEST_TIMED_OUT:  # the voters have not described themselves yet
                break
            await asyncio.sleep(0.05)
        assert response.error_code == ErrorCode.NONE, response
        versions: ApiVersionsResponse = await ask(
            ApiVersionsRequest(client_software_name="test", client_software_version="1")
        )
        assert [one.max_version_level for one in versions.finalized_features if one.name == "kraft.version"] == [1]
        voters = quorum.nodes[leader].controller.driver.raft.voters
        assert voters.ids == [1, 2, 3] and all(any(voter.key.directory) for voter in voters.voters)
        await quorum.kill(leader)
        other = await quorum.until_leader()
        assert quorum.nodes[other].controller.driver.raft.kraft_version == 1
        await quorum.start(leader)
        await quorum.until_equal()
        await quorum.stop()

    run(work)


def test_the_command_line_adds_a_controller_with_its_own_settings_and_removes_it_by_id(tmp_path: Path) -> None:
    async def work() -> None:
        quorum = DynamicControllers(tmp_path, 2, are_brokers=True)
        await quorum.start(1)
        await quorum.start(2)
        await quorum.until(lambda: quorum.raft(2).has_joined and quorum.end_offset(2) == quorum.end_offset(1))
        own = quorum.settings(2).static_texts()
        flags = [part for name, value in own.items() for part in ("-c", f"{name}={value}")]
        headrace = CommandLine(f"{LOOPBACK}:{quorum.broker_ports[1]}")
        added = await asyncio.to_thread(headrace, "quorum", "add-controller", *flags)
        assert "controller 2" in added and quorum.voters() == [1, 2]
        refused = await asyncio.to_thread(headrace, "quorum", "remove-controller", "-i", "9", fails=True)
        assert "no voter has this id" in refused
        await asyncio.to_thread(headrace, "quorum", "remove-controller", "--controller-id", "2")
        assert quorum.voters() == [1]
        await quorum.stop(2)
        await quorum.stop(1)

    run(work)
