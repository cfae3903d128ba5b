"""Lost and damaged files of the metadata quorum: a node that must not guess refuses to start, the others serve, nothing is lost."""

from __future__ import annotations

import asyncio

import pytest
from tests.cluster.simulated_cluster import METADATA_DIR, T0, SimulatedCluster, simulate

QUORUM_STATE = f"{METADATA_DIR}/quorum-state"
SMALL_SNAPSHOTS = {"metadata.log.max.record.bytes.between.snapshots": "400", "metadata.max.retention.bytes": "500"}


def standby(cluster: SimulatedCluster) -> int:
    """Return a node that does not lead the metadata quorum."""
    return next(node_id for node_id in cluster.machines if node_id != cluster.active_controller())


async def a_cluster_with_records(cluster: SimulatedCluster) -> None:
    await cluster.create()
    await cluster.send(5)


def replace_file(cluster: SimulatedCluster, node_id: int, path: str, contents: bytes) -> None:
    file = cluster.machines[node_id].files.open(path)
    file.truncate(0)
    file.append(contents)
    file.sync()
    file.close()


def cut_log(cluster: SimulatedCluster, node_id: int, share: float = 0.5) -> int:
    """Cut the newest segment of a node's metadata log, and return how many bytes are gone."""
    files = cluster.machines[node_id].files
    file = files.open(cluster.metadata_files(node_id, ".log")[-1])
    before = file.size()
    file.truncate(int(before * share))
    file.sync()
    file.close()
    return before - int(before * share)


# --- quorum-state


@pytest.mark.parametrize(
    "contents",
    [
        b"",
        b"{",
        b"\x00" * 200,
        b'{"leaderId":1,"leaderEpoch":-5,"votedId":1,"data_version":0}',
        b'{"leaderId":1,"leaderEpoch":"many","votedId":1,"data_version":0}',
        b'{"leaderId":1,"leaderEpoch":3,"votedId":1,"data_version":9}',
    ],
)
def test_a_voter_with_a_garbled_quorum_state_refuses_to_start_and_names_the_file(contents: bytes) -> None:
    async def main(cluster: SimulatedCluster) -> None:
        await a_cluster_with_records(cluster)
        node_id = standby(cluster)
        cluster.down(cluster.machines[node_id])
        replace_file(cluster, node_id, QUORUM_STATE, contents)
        cluster.start(node_id)
        reason = await cluster.until_refused(node_id)
        assert QUORUM_STATE in reason and "restore it, or format a new voter" in reason
        await cluster.send(3)

    simulate(main)


def test_a_voter_that_has_lost_its_quorum_state_refuses_to_start_and_rejoins_when_it_is_formatted_anew() -> None:
    async def main(cluster: SimulatedCluster) -> None:
        await a_cluster_with_records(cluster)
        node_id = standby(cluster)
        cluster.down(cluster.machines[node_id])
        cluster.machines[node_id].files.remove(QUORUM_STATE)
        cluster.start(node_id)
        reason = await cluster.until_refused(node_id)
        assert f"{QUORUM_STATE} is missing" in reason and "restore it, or format a new voter" in reason
        await cluster.send(3)
        cluster.format_again(node_id)
        cluster.start(node_id)
        await cluster.until_in_sync()

    simulate(main, seed=2)


# --- disks without metadata


def test_a_voter_with_an_empty_disk_rejoins_by_fetching_and_nothing_is_lost() -> None:
    async def main(cluster: SimulatedCluster) -> None:
        await a_cluster_with_records(cluster)
        for node_id in cluster.machines:
            await cluster.until_in_sync()
            cluster.down(cluster.machines[node_id])
            await cluster.send(3)
            cluster.format_again(node_id)
            cluster.start(node_id)
            await cluster.until_up(node_id)
        await cluster.until_in_sync()
        assert cluster.failures == {}
        ends = {machine.node.controller.driver.log.end_offset for machine in cluster.machines.values()}
        await cluster.until(lambda: len(ends) == 1)

    simulate(main, seed=3)


# --- a log that is cut short


@pytest.mark.parametrize("leads", [False, True])
def test_a_voter_whose_metadata_log_was_cut_short_fetches_the_rest(
    leads: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async def main(cluster: SimulatedCluster) -> None:
        await a_cluster_with_records(cluster)
        node_id = cluster.active_controller() if leads else standby(cluster)
        cluster.down(cluster.machines[node_id])
        await cluster.create("u", replicas=2)
        assert cut_log(cluster, node_id, 0.7) > 0
        cluster.start(node_id)
        await cluster.until_in_sync()
        await cluster.send(3)
        drivers = [machine.node.controller.driver for machine in cluster.machines.values()]
        await cluster.until(lambda: len({driver.log.end_offset for driver in drivers}) == 1)
        assert cluster.image().partition("u", 0) is not None
        assert cluster.failures == {}

    simulate(main, seed=4 + leads)
    assert any("recovery of the metadata log" in line for line in caplog.messages)


def test_metadata_that_is_cut_short_everywhere_deletes_no_partition() -> None:
    """A topic that no voter remembers is gone from the metadata, but its records are kept for the operator."""

    async def main(cluster: SimulatedCluster) -> None:
        await a_cluster_with_records(cluster)
        before = {node_id: cluster.file_size(node_id, cluster.log_files(node_id)[0]) for node_id in cluster.machines}
        for machine in cluster.machines.values():
            cluster.down(machine)
        for node_id in cluster.machines:
            cut_log(cluster, node_id, 0.3)
        cluster.acknowledged.clear()
        cluster.start()
        await cluster.until_up()
        await cluster.until_controller()
        assert cluster.state(T0) is None
        await asyncio.sleep(5.0)
        for node_id in cluster.machines:
            (stray,) = [name for name in cluster.machines[node_id].files.list_dir("/data") if name.endswith("-stray")]
            path = f"/data/{stray}/00000000000000000000.log"
            assert cluster.file_size(node_id, path) == before[node_id] > 0

    simulate(main, seed=6)


# --- snapshots


async def create_topics(cluster: SimulatedCluster, prefix: str, count: int = 8) -> None:
    for number in range(count):
        await cluster.create(f"{prefix}-{number}", replicas=2)


def flip_in_snapshot(cluster: SimulatedCluster, node_id: int) -> str:
    """Flip a bit in the middle of the newest snapshot, and return its path."""
    path = cluster.metadata_files(node_id, ".checkpoint")[-1]
    cluster.machines[node_id].files.flip_bit(path, cluster.file_size(node_id, path) // 2, 2)
    return path


def test_a_node_whose_newest_snapshot_is_damaged_names_it_and_starts_with_what_the_log_has(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main(cluster: SimulatedCluster) -> None:
        await a_cluster_with_records(cluster)
        await create_topics(cluster, "u")
        node_id = standby(cluster)
        await cluster.until(lambda: cluster.metadata_files(node_id, ".checkpoint") != [])
        cluster.down(cluster.machines[node_id])
        damaged = flip_in_snapshot(cluster, node_id)
        cluster.start(node_id)
        await cluster.until_in_sync()
        assert any("ignoring the metadata snapshot" in line and damaged in line for line in caplog.messages)
        assert cluster.failures == {}

    simulate(main, seed=7, options=SMALL_SNAPSHOTS)


def test_a_damaged_snapshot_of_the_leader_is_never_installed_and_a_later_one_is(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main(cluster: SimulatedCluster) -> None:
        await a_cluster_with_records(cluster)
        node_id, leader = standby(cluster), cluster.active_controller()
        cluster.down(cluster.machines[node_id])
        await create_topics(cluster, "u")
        await cluster.until(lambda: cluster.machines[leader].node.controller.driver.log.log.log_start > 0)
        flip_in_snapshot(cluster, leader)
        cluster.format_again(node_id)
        cluster.start(node_id)
        await cluster.until(lambda: any("could not be downloaded" in line for line in caplog.messages))
        assert cluster.metadata_files(node_id, ".checkpoint") == []
        await create_topics(cluster, "v")  # the leader takes another snapshot
        await cluster.until_in_sync()
        assert cluster.failures == {}

    simulate(main, seed=8, options=SMALL_SNAPSHOTS)
