"""`headrace quorum describe`: the leader, and the progress of voters and observers of the metadata log."""

from __future__ import annotations

import time
from json import dumps
from typing import Annotated, Any

import typer

from headrace.base.ids import ZERO_UUID, uuid_text
from headrace.cli.options import Bootstrap, CommandConfig, Json, command_group
from headrace.cli.output import check, format_duration, show_json, show_table
from headrace.cli.target import Target, with_cluster
from headrace.client.wire.cluster import Cluster
from headrace.node.listener_addresses import host_and_port
from headrace.protocol.messages.describe_cluster import DescribeClusterRequest, DescribeClusterResponse
from headrace.protocol.messages.describe_quorum import DescribeQuorumRequest, DescribeQuorumResponse

METADATA_TOPIC = "__cluster_metadata"

Replica = DescribeQuorumResponse.ReplicaState

app = command_group()


@app.callback()
def _group() -> None:
    """Show the controllers and their replication progress."""


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
        request = DescribeQuorumRequest(
            topics=[
                DescribeQuorumRequest.TopicData(
                    topic_name=METADATA_TOPIC, partitions=[DescribeQuorumRequest.PartitionData(partition_index=0)]
                )
            ]
        )
        return await cluster.request(DescribeClusterRequest()), await cluster.request(request)

    cluster, response = with_cluster(Target(bootstrap_server, command_config), work)
    check(cluster.error_code, cluster.error_message)
    check(response.error_code, response.error_message)
    quorum = response.topics[0].partitions[0]
    check(quorum.error_code, quorum.error_message)
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
