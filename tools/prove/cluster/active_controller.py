"""Which node leads the metadata quorum, as any node of the cluster reports it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from headrace.base.ids import METADATA_TOPIC
from headrace.client.wire.cluster import Cluster
from headrace.protocol.messages.describe_quorum import DescribeQuorumRequest


def active_controller(addresses: Sequence[tuple[str, int]]) -> int:
    """Return the id of the node that leads the metadata quorum."""

    async def describe() -> int:
        async with Cluster(list(addresses)) as client:
            topic = DescribeQuorumRequest.TopicData(
                topic_name=METADATA_TOPIC, partitions=[DescribeQuorumRequest.PartitionData()]
            )
            response = await client.request(DescribeQuorumRequest(topics=[topic]))
            return int(response.topics[0].partitions[0].leader_id)

    return asyncio.run(describe())
