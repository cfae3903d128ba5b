"""DescribeCluster 0–2: the cluster's id, its controller, and its brokers with their endpoints for this listener."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from headrace.api.controller.quorum.describe import Endpoints
from headrace.api.permissions import ALTER_CLUSTER, DESCRIBE_CLUSTER_IN_HANDLER
from headrace.api.topics.metadata import cluster_operations
from headrace.base.errors import ErrorCode
from headrace.base.ids import NodeId
from headrace.metadata.image import Image
from headrace.protocol.apis import ApiKey
from headrace.protocol.messages.describe_cluster import DescribeClusterRequest, DescribeClusterResponse
from headrace.server.context import RequestContext
from headrace.server.dispatch import Service

BROKERS = 1
CONTROLLERS = 2
ENDPOINT_TYPE_VERSION_MIN = 1
_TYPES = {BROKERS: "BROKER", CONTROLLERS: "CONTROLLER"}
_OPTIONS = {BROKERS: "bootstrap.servers", CONTROLLERS: "bootstrap.controllers"}


def _wrong_endpoint(context: RequestContext, requested: int, own: int) -> DescribeClusterResponse:
    """Return the error for a client that requests nodes of a type that its listener does not serve."""
    listener = context.peer.listener
    if requested not in _TYPES:
        code = ErrorCode.UNSUPPORTED_ENDPOINT_TYPE
        text = f"endpoint type {requested} is unknown; known are {BROKERS} (brokers) and {CONTROLLERS} (controllers)"
    else:
        # Version 0 predates MISMATCHED_ENDPOINT_TYPE.
        typed = context.api_version >= ENDPOINT_TYPE_VERSION_MIN
        code = ErrorCode.MISMATCHED_ENDPOINT_TYPE if typed else ErrorCode.INVALID_REQUEST
        text = (
            f"{listener} is a listener of type {_TYPES[own]}, but the request is for type {_TYPES[requested]}:"
            f" use {_OPTIONS[requested]} with the address of such a listener"
        )
    return DescribeClusterResponse(error_code=code, error_message=text)


class ControllerClusterApi:
    """DescribeCluster on a controller listener: lists the controllers, for tools that connect to them (KIP-919)."""

    def __init__(
        self, leader: Callable[[], NodeId], cluster_id: str, controllers: Callable[[], Mapping[NodeId, Endpoints]]
    ) -> None:
        self._leader = leader
        self._cluster_id = cluster_id
        self._controllers = controllers

    def services(self) -> list[Service]:
        return [
            # Stricter than on a broker: a client that can list the controllers can do a lot to them (KIP-919).
            Service(ApiKey.DESCRIBE_CLUSTER, (0, 2), self.describe, ALTER_CLUSTER),
        ]

    def describe(self, context: RequestContext, request: DescribeClusterRequest) -> DescribeClusterResponse:
        if request.endpoint_type != CONTROLLERS:
            return _wrong_endpoint(context, request.endpoint_type, CONTROLLERS)
        node = DescribeClusterResponse.DescribeClusterBroker
        return DescribeClusterResponse(
            endpoint_type=CONTROLLERS,
            error_message=None,
            cluster_id=self._cluster_id,
            controller_id=self._leader(),
            brokers=[
                node(broker_id=node_id, host=endpoint[0], port=endpoint[1], rack=None)
                for node_id, endpoints in self._controllers().items()
                if (endpoint := endpoints.get(context.peer.listener)) is not None
            ],
            cluster_authorized_operations=cluster_operations(context, request.include_cluster_authorized_operations),
        )


class DescribeClusterApi:
    def __init__(self, image: Callable[[], Image], node_id: NodeId, cluster_id: str) -> None:
        self._image = image
        self._node_id = node_id
        self._cluster_id = cluster_id

    def services(self) -> list[Service]:
        return [
            # As in Kafka, every client may list the brokers; the handler checks the permission for the authorized operations.
            Service(ApiKey.DESCRIBE_CLUSTER, (0, 2), self.describe, DESCRIBE_CLUSTER_IN_HANDLER),
        ]

    def describe(self, context: RequestContext, request: DescribeClusterRequest) -> DescribeClusterResponse:
        if request.endpoint_type != BROKERS:
            return _wrong_endpoint(context, request.endpoint_type, BROKERS)
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
            cluster_authorized_operations=cluster_operations(context, request.include_cluster_authorized_operations),
        )
