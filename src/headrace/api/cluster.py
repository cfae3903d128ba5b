"""DescribeCluster 0–2: the cluster's id, its controller and its brokers as this listener's clients reach them."""

from __future__ import annotations

from collections.abc import Callable

from headrace.api.metadata import ALL_CLUSTER_OPERATIONS, NOT_ASKED
from headrace.base.errors import ErrorCode
from headrace.base.ids import NodeId
from headrace.metadata.image import Image
from headrace.protocol.messages.describe_cluster import DescribeClusterRequest, DescribeClusterResponse
from headrace.server.context import RequestContext

BROKERS = 1
CONTROLLERS = 2


class ClusterApi:
    def __init__(self, image: Callable[[], Image], node_id: NodeId, cluster_id: str) -> None:
        self._image = image
        self._node_id = node_id
        self._cluster_id = cluster_id

    def describe(self, context: RequestContext, request: DescribeClusterRequest) -> DescribeClusterResponse:
        if request.endpoint_type != BROKERS:
            code = (
                ErrorCode.MISMATCHED_ENDPOINT_TYPE
                if request.endpoint_type == CONTROLLERS
                else ErrorCode.UNSUPPORTED_ENDPOINT_TYPE
            )
            return DescribeClusterResponse(error_code=code, error_message="ask a broker's listener for brokers")
        image = self._image()
        brokers = [
            DescribeClusterResponse.DescribeClusterBroker(
                broker_id=broker.id, host=endpoint.host, port=endpoint.port, rack=broker.rack, is_fenced=broker.fenced
            )
            for _, broker in sorted(image.brokers.items())
            if (endpoint := broker.endpoint(context.peer.listener)) is not None
            and (not broker.fenced or request.include_fenced_brokers)
        ]
        return DescribeClusterResponse(
            cluster_id=self._cluster_id,
            controller_id=self._node_id,
            brokers=brokers,
            cluster_authorized_operations=(
                ALL_CLUSTER_OPERATIONS if request.include_cluster_authorized_operations else NOT_ASKED
            ),
        )
