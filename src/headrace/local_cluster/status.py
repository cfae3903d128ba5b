"""The state of a local cluster: its processes, and what its brokers say about leaders and replicas."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from headrace.base.errors import HeadraceError
from headrace.client.admin.topics import PartitionInfo, describe_topics
from headrace.client.wire.opening import addresses, client_values, open_cluster
from headrace.client.wire.options import CLIENT_OPTIONS
from headrace.local_cluster.control import LocalCluster
from headrace.local_cluster.layout import NodePlan, bootstrap_servers
from headrace.local_cluster.node_process import NodeState
from headrace.protocol.messages.describe_quorum import DescribeQuorumRequest, DescribeQuorumResponse

ANSWER_S_MAX = 5.0
METADATA_TOPIC = "__cluster_metadata"
NO_LEADER = -1


class NodeStatus(NamedTuple):
    """One node. What only the brokers know is None if none of them answers."""

    plan: NodePlan
    state: NodeState
    pid: int | None
    memory_bytes: int | None
    cpu_s: float | None
    is_quorum_leader: bool | None
    leaders: int | None  # partitions that it leads
    in_sync: int | None  # partitions of which it is an in-sync replica
    out_of_sync: int | None  # partitions of which it is a replica that is not in sync


class ClusterStatus(NamedTuple):
    nodes: list[NodeStatus]
    partitions: int | None
    under_replicated: int | None
    without_leader: int | None
    problem: str  # why the brokers' part is missing; empty if it is not


class Replication(NamedTuple):
    """The brokers' part of the status."""

    quorum_leader: int
    partitions: Sequence[PartitionInfo]


def read_status(cluster: LocalCluster) -> ClusterStatus:
    """Return the status of all nodes; the brokers have ANSWER_S_MAX to answer."""
    states = {node.plan.id: node.state() for node in cluster.nodes}
    serving = [plan for plan in cluster.layout.brokers if states[plan.id] is NodeState.RUNNING]
    found: Replication | None = None
    problem = "" if serving else "no broker runs"
    if serving:
        try:
            found = asyncio.run(_ask(bootstrap_servers(serving)))
        except TimeoutError:
            problem = (
                f"the brokers did not answer within {ANSWER_S_MAX:.0f} s; is a majority of the controllers running?"
            )
        except (HeadraceError, OSError) as error:
            problem = str(error)
    return make_status(cluster, states, found, problem)


def make_status(
    cluster: LocalCluster, states: dict[int, NodeState], found: Replication | None, problem: str
) -> ClusterStatus:
    """Combine what is known of the processes with what the brokers answered."""
    partitions = [] if found is None else found.partitions
    leaders = Counter(one.leader for one in partitions)
    replicas = Counter(broker for one in partitions for broker in one.replicas)
    in_sync = Counter(broker for one in partitions for broker in one.isr)
    nodes = []
    for node in cluster.nodes:
        plan, process, usage = node.plan, node.process(), node.usage()
        knows = found is not None and plan.is_broker
        nodes.append(
            NodeStatus(
                plan,
                states[plan.id],
                None if process is None else process.pid,
                None if usage is None else usage.memory_bytes,
                None if usage is None else usage.cpu_s,
                None if found is None else found.quorum_leader == plan.id,
                leaders[plan.id] if knows else None,
                in_sync[plan.id] if knows else None,
                replicas[plan.id] - in_sync[plan.id] if knows else None,
            )
        )
    if found is None:
        return ClusterStatus(nodes, None, None, None, problem)
    under_replicated = sum(len(one.isr) < len(one.replicas) for one in partitions)
    return ClusterStatus(nodes, len(partitions), under_replicated, leaders[NO_LEADER], problem)


async def _ask(bootstrap: str) -> Replication:
    request = DescribeQuorumRequest(
        topics=[
            DescribeQuorumRequest.TopicData(
                topic_name=METADATA_TOPIC, partitions=[DescribeQuorumRequest.PartitionData(partition_index=0)]
            )
        ]
    )
    async with asyncio.timeout(ANSWER_S_MAX):
        async with open_cluster(
            client_values({}, CLIENT_OPTIONS), addresses(bootstrap, "bootstrap.servers")
        ) as cluster:
            topics = await describe_topics(cluster, None)
            response: DescribeQuorumResponse = await cluster.request(request)
    described = [partition for topic in response.topics for partition in topic.partitions]
    leader = described[0].leader_id if described and not described[0].error_code else NO_LEADER
    return Replication(leader, [partition for topic in topics for partition in topic.partitions])
