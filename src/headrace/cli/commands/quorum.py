"""`headrace quorum`: the leader, voters and observers of the metadata log, and changes of the voters."""

from __future__ import annotations

import os
import time
from json import dumps
from typing import Annotated, Any

import typer

from headrace.base.errors import ConfigError
from headrace.base.ids import ZERO_UUID, uuid_from_text, uuid_text
from headrace.cli.options import Bootstrap, CommandConfig, Config, Json, SettingFlags, command_group
from headrace.cli.output import check, format_duration, show_json, show_table
from headrace.cli.target import Target, with_cluster
from headrace.client.wire.cluster import Cluster
from headrace.node.configuration.listener_addresses import host_and_port
from headrace.node.configuration.settings import read_settings
from headrace.node.wiring.quorum import own_voter
from headrace.protocol.messages.add_raft_voter import AddRaftVoterRequest, AddRaftVoterResponse
from headrace.protocol.messages.describe_cluster import DescribeClusterRequest, DescribeClusterResponse
from headrace.protocol.messages.describe_quorum import DescribeQuorumRequest, DescribeQuorumResponse
from headrace.protocol.messages.remove_raft_voter import RemoveRaftVoterRequest, RemoveRaftVoterResponse
from headrace.storage.checkpoints import META_PROPERTIES, read_meta_properties
from headrace.storage.disk import DiskFiles

METADATA_TOPIC = "__cluster_metadata"
RESPONSE_S = 5.0  # how much longer than the change itself its response may take

Replica = DescribeQuorumResponse.ReplicaState

app = command_group()


@app.callback()
def _group() -> None:
    """Show the controllers and their replication progress; add and remove voters."""


@app.command()
def describe(
    status: Annotated[bool, typer.Option("--status", help="Show only the state of the quorum.")] = False,
    replication: Annotated[
        bool, typer.Option("--replication", "--re", help="Show only the voters and observers.")
    ] = False,
    json: Json = False,
    bootstrap_server: Bootstrap = None,
    command_config: CommandConfig = None,
) -> None:
    """Show the state of the metadata quorum.

    This is the leader, its epoch, the high watermark, and the progress of each replica of the metadata log.
    """

    async def work(cluster: Cluster) -> tuple[DescribeClusterResponse, DescribeQuorumResponse]:
        return await cluster.request(DescribeClusterRequest()), await cluster.request(_describe_request())

    cluster, response = with_cluster(Target(bootstrap_server, command_config), work)
    check(cluster.error_code, cluster.error_message)
    quorum = _quorum_of(response)
    both = status == replication
    endpoints = {
        node.node_id: [f"{one.name}://{host_and_port(one.host, one.port)}" for one in node.listeners]
        for node in response.nodes
    }
    summary, replicas = _status(cluster.cluster_id, quorum, endpoints), _replication(quorum)
    if json:
        shown: dict[str, Any] = dict(summary) if both or status else {}
        if both or replication:
            shown["replicas"] = replicas
        show_json(shown)
        return
    if both or status:
        for name, value in summary.items():
            if name.endswith("_ms"):
                name, value = name.removesuffix("_ms"), format_duration(value)
            print(f"{name + ':':<26}{dumps(value) if isinstance(value, list) else value}")
    if both or replication:
        show_table(
            ("node", "directory", "log end offset", "lag", "last fetch", "last caught up", "status"),
            [
                tuple(_ago(value) if name.endswith("_timestamp") else value for name, value in replica.items())
                for replica in replicas
            ],
        )


@app.command()
def add_controller(
    config: Config = None,
    flags: SettingFlags = None,
    timeout_ms: Annotated[int, typer.Option(min=1, help="Time in which the change must be committed.")] = 30_000,
    bootstrap_server: Bootstrap = None,
    command_config: CommandConfig = None,
) -> None:
    """Make a running controller a voter.

    Run this on its machine, with its own settings. The controller must have been formatted with --no-initial-controllers and have
    caught up with the leader.
    """
    settings = read_settings(config, flags or [], os.environ)
    path = f"{settings.metadata_dir}/{META_PROPERTIES}"
    meta = read_meta_properties(DiskFiles(), path)
    if not settings.is_controller or meta is None:
        raise ConfigError(f"{path}: no formatted controller is here; give its --config")
    voter = own_voter(settings, meta.directory_id)
    listener = AddRaftVoterRequest.Listener
    request = AddRaftVoterRequest(
        cluster_id=meta.cluster_id,
        timeout_ms=timeout_ms,
        voter_id=voter.key.id,
        voter_directory_id=voter.key.directory,
        listeners=[listener(name=name, host=host, port=port) for name, host, port in voter.endpoints],
    )

    async def work(cluster: Cluster) -> AddRaftVoterResponse:
        broker = await cluster.any_broker()
        response: AddRaftVoterResponse = await broker.request(request, timeout_s=timeout_ms / 1000 + RESPONSE_S)
        return response

    response = with_cluster(Target(bootstrap_server, command_config), work)
    check(response.error_code, response.error_message)
    print(f"controller {voter.key.id} with directory {uuid_text(voter.key.directory)} is a voter now")


@app.command()
def remove_controller(
    controller_id: Annotated[int, typer.Option("--controller-id", "-i", min=0, help="Id of the voter to remove.")],
    controller_directory_id: Annotated[
        str | None,
        typer.Option(
            "--controller-directory-id", "-d", help="Its directory id. Defaults to that of the present voter."
        ),
    ] = None,
    bootstrap_server: Bootstrap = None,
    command_config: CommandConfig = None,
) -> None:
    """Remove a voter from the quorum.

    The controller goes on as an observer until it is stopped.
    """
    try:
        chosen = None if controller_directory_id is None else uuid_from_text(controller_directory_id)
    except ValueError as error:
        raise ConfigError(f"--controller-directory-id: {error}") from error

    async def work(cluster: Cluster) -> RemoveRaftVoterResponse:
        directory = chosen
        if directory is None:
            quorum = _quorum_of(await cluster.request(_describe_request()))
            directory = next(
                (one.replica_directory_id for one in quorum.current_voters if one.replica_id == controller_id), None
            )
            if directory is None:
                raise ConfigError(f"--controller-id {controller_id}: no voter has this id")
        response: RemoveRaftVoterResponse = await cluster.request(
            RemoveRaftVoterRequest(cluster_id=None, voter_id=controller_id, voter_directory_id=directory)
        )
        return response

    response = with_cluster(Target(bootstrap_server, command_config), work)
    check(response.error_code, response.error_message)
    print(f"controller {controller_id} is no voter any more")


def _describe_request() -> DescribeQuorumRequest:
    partition = DescribeQuorumRequest.PartitionData(partition_index=0)
    topic = DescribeQuorumRequest.TopicData(topic_name=METADATA_TOPIC, partitions=[partition])
    return DescribeQuorumRequest(topics=[topic])


def _quorum_of(response: DescribeQuorumResponse) -> DescribeQuorumResponse.PartitionData:
    check(response.error_code, response.error_message)
    quorum = response.topics[0].partitions[0]
    check(quorum.error_code, quorum.error_message)
    return quorum


def _status(
    cluster_id: str, quorum: DescribeQuorumResponse.PartitionData, endpoints: dict[int, list[str]]
) -> dict[str, Any]:
    leader = _leader(quorum)
    others = [one for one in quorum.current_voters if one.replica_id != quorum.leader_id]
    slowest = min(others, key=lambda one: one.log_end_offset, default=None)
    return {
        "cluster_id": cluster_id,
        "leader_id": quorum.leader_id,
        "leader_epoch": quorum.leader_epoch,
        "high_watermark": quorum.high_watermark,
        "max_follower_lag": 0 if slowest is None or leader is None else leader.log_end_offset - slowest.log_end_offset,
        "max_follower_lag_time_ms": 0
        if slowest is None or leader is None
        else max(0, leader.last_caught_up_timestamp - slowest.last_caught_up_timestamp),
        "current_voters": [
            {"id": one.replica_id, "endpoints": endpoints.get(one.replica_id, [])} for one in quorum.current_voters
        ],
        "current_observers": [{"id": one.replica_id} for one in quorum.observers],
    }


def _replication(quorum: DescribeQuorumResponse.PartitionData) -> list[dict[str, Any]]:
    leader = _leader(quorum)
    end = leader.log_end_offset if leader is not None else quorum.high_watermark
    found = []
    for one, role in [
        *((one, "Follower") for one in quorum.current_voters),
        *((one, "Observer") for one in quorum.observers),
    ]:
        found.append(
            {
                "node_id": one.replica_id,
                "directory_id": None if one.replica_directory_id == ZERO_UUID else uuid_text(one.replica_directory_id),
                "log_end_offset": one.log_end_offset,
                "lag": end - one.log_end_offset,
                "last_fetch_timestamp": one.last_fetch_timestamp,
                "last_caught_up_timestamp": one.last_caught_up_timestamp,
                "status": "Leader" if one is leader else role,
            }
        )
    return sorted(found, key=lambda one: one["status"] != "Leader")


def _ago(timestamp_ms: int) -> str | None:
    """Return how long ago it was by this machine's clock, or None if the leader does not know the time."""
    return None if timestamp_ms < 0 else f"{format_duration(max(0, int(time.time() * 1000) - timestamp_ms))} ago"


def _leader(quorum: DescribeQuorumResponse.PartitionData) -> Replica | None:
    return next((one for one in quorum.current_voters if one.replica_id == quorum.leader_id), None)
