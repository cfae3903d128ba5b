"""Requests to a controller: registration, heartbeats, topics, forwarded requests, producer id blocks.

`quorum_requests` and `admin_requests` have the others, `api.admin` those that are similar on a broker.
"""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import Callable
from typing import Any

from headrace.api.controller.broker_connections import BrokerConnections
from headrace.api.permissions import CLUSTER_ACTION, on_topics
from headrace.api.topics.topic_permissions import hide_options, split_creations, split_deletions
from headrace.base.clock import Clock
from headrace.base.errors import ErrorCode, KafkaError
from headrace.base.ids import NodeId, Uuid
from headrace.broker.channels.forwarding import decode_principal
from headrace.controller.fast_fencing import FenceDeadBroker
from headrace.metadata.image import Broker
from headrace.metadata.state import ClusterState
from headrace.protocol.apis import ApiKey
from headrace.protocol.errors import DecodeError
from headrace.protocol.messages.allocate_producer_ids import AllocateProducerIdsRequest, AllocateProducerIdsResponse
from headrace.protocol.messages.alter_partition import AlterPartitionRequest, AlterPartitionResponse
from headrace.protocol.messages.assign_replicas_to_dirs import AssignReplicasToDirsRequest, AssignReplicasToDirsResponse
from headrace.protocol.messages.broker_heartbeat import BrokerHeartbeatRequest, BrokerHeartbeatResponse
from headrace.protocol.messages.broker_registration import BrokerRegistrationRequest, BrokerRegistrationResponse
from headrace.protocol.messages.controller_registration import (
    ControllerRegistrationRequest,
    ControllerRegistrationResponse,
)
from headrace.protocol.messages.create_topics import CreateTopicsRequest, CreateTopicsResponse
from headrace.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicsResponse
from headrace.protocol.messages.envelope import EnvelopeRequest, EnvelopeResponse
from headrace.security.resources import Operation
from headrace.server.authority import Authority
from headrace.server.context import Peer, RequestContext
from headrace.server.dispatch import Service
from headrace.server.frames import CloseConnection, Deferred, FrameHandler
from headrace.server.response_writer import joined
from headrace.statemachine.journal import NotLeader, Overloaded
from headrace.statemachine.runtime import Runtime

# Requests that a broker forwards for a client. Requests that a node sends on its own behalf are not among them.
FORWARDABLE = frozenset(
    {
        ApiKey.CREATE_TOPICS, ApiKey.DELETE_TOPICS, ApiKey.CREATE_ACLS, ApiKey.DELETE_ACLS, ApiKey.ALTER_CONFIGS,
        ApiKey.CREATE_PARTITIONS, ApiKey.CREATE_DELEGATION_TOKEN, ApiKey.RENEW_DELEGATION_TOKEN,
        ApiKey.EXPIRE_DELEGATION_TOKEN, ApiKey.ELECT_LEADERS, ApiKey.INCREMENTAL_ALTER_CONFIGS,
        ApiKey.ALTER_PARTITION_REASSIGNMENTS, ApiKey.LIST_PARTITION_REASSIGNMENTS, ApiKey.ALTER_CLIENT_QUOTAS,
        ApiKey.ALTER_USER_SCRAM_CREDENTIALS, ApiKey.DESCRIBE_QUORUM, ApiKey.UPDATE_FEATURES, ApiKey.UNREGISTER_BROKER,
        ApiKey.ADD_RAFT_VOTER, ApiKey.REMOVE_RAFT_VOTER,
    }
)  # fmt: skip


class ControllerApi:
    """Handlers of a controller listener.

    `state` is the newest cluster state, to find topics by id. `authority` authorizes clients whose requests arrive in an Envelope.
    `listener` is the one by which brokers reach each other.
    """

    def __init__(
        self,
        runtime: Callable[[], Runtime[Any, Any]],
        clock: Clock,
        loop: asyncio.AbstractEventLoop,
        dispatcher: Callable[[], FrameHandler],
        state: ClusterState,
        authority: Authority,
        listener: str,
    ) -> None:
        self._runtime = runtime
        self._clock = clock
        self._loop = loop
        self._dispatcher = dispatcher
        self._state = state
        self._authority = authority
        self._connections = BrokerConnections(self._find_active, self._fence_dead, listener, clock, loop)

    def stop(self) -> None:
        """Stop watching brokers, before the listeners close their connections."""
        self._connections.stop()

    def probe_brokers(self, own_id: NodeId) -> None:
        """Find dead brokers after this controller has taken over; the broker of its own node may not serve yet."""
        for broker in self._state.brokers.values():
            if broker.id != own_id:
                self._connections.probe(broker.id)

    def _find_active(self, broker_id: int) -> Broker | None:
        broker = self._state.brokers.get(broker_id) if self._runtime().leading else None
        return None if broker is None or broker.fenced else broker

    def _fence_dead(self, request: FenceDeadBroker) -> None:
        self._runtime().submit(request, self._clock.now_ms(), lambda fenced, error: None)

    def services(self) -> list[Service]:
        return [
            Service(ApiKey.CREATE_TOPICS, (2, 7), self.create_topics, on_topics(Operation.CREATE)),
            Service(ApiKey.DELETE_TOPICS, (1, 6), self.delete_topics, on_topics(Operation.DELETE)),
            Service(ApiKey.ENVELOPE, (0, 0), self.envelope, CLUSTER_ACTION),
            Service(ApiKey.BROKER_REGISTRATION, (0, 4), self.register, CLUSTER_ACTION),
            Service(ApiKey.BROKER_HEARTBEAT, (0, 2), self.heartbeat, CLUSTER_ACTION),
            Service(ApiKey.ALLOCATE_PRODUCER_IDS, (0, 0), self.allocate_producer_ids, CLUSTER_ACTION),
            Service(ApiKey.ASSIGN_REPLICAS_TO_DIRS, (0, 0), self.assign_replicas_to_dirs, CLUSTER_ACTION),
            Service(ApiKey.ALTER_PARTITION, (2, 3), self.alter_partition, CLUSTER_ACTION),
            Service(ApiKey.CONTROLLER_REGISTRATION, (0, 0), self.register_controller, CLUSTER_ACTION),
        ]

    async def register(self, context: RequestContext, request: BrokerRegistrationRequest) -> Any:
        return await self._decide_for_broker(request, BrokerRegistrationResponse)

    async def heartbeat(self, context: RequestContext, request: BrokerHeartbeatRequest) -> Any:
        response: BrokerHeartbeatResponse = await self._decide_for_broker(request, BrokerHeartbeatResponse)
        if response.error_code == ErrorCode.NONE:
            self._connections.watch(context.peer, request.broker_id)
        return response

    async def allocate_producer_ids(self, context: RequestContext, request: AllocateProducerIdsRequest) -> Any:
        return await self._decide_for_broker(request, AllocateProducerIdsResponse)

    async def assign_replicas_to_dirs(self, context: RequestContext, request: AssignReplicasToDirsRequest) -> Any:
        return await self._decide_for_broker(request, AssignReplicasToDirsResponse)

    async def alter_partition(self, context: RequestContext, request: AlterPartitionRequest) -> Any:
        return await self._decide_for_broker(request, AlterPartitionResponse)

    async def register_controller(self, context: RequestContext, request: ControllerRegistrationRequest) -> Any:
        return await self.decide(
            request, lambda code, text: ControllerRegistrationResponse(error_code=code, error_message=text)
        )

    async def _decide_for_broker(self, request: Any, response: Any) -> Any:
        return await self.decide(request, lambda code, text: response(error_code=code))

    async def create_topics(self, context: RequestContext, request: CreateTopicsRequest) -> Any:
        result = CreateTopicsResponse.CreatableTopicResult
        request, refused = split_creations(context, request)
        response: CreateTopicsResponse = await self.decide(
            request,
            lambda code, text: CreateTopicsResponse(
                topics=[result(name=topic.name, error_code=code, error_message=text) for topic in request.topics]
            ),
        )
        hide_options(context, response)
        response.topics += refused
        return response

    async def delete_topics(self, context: RequestContext, request: DeleteTopicsRequest) -> Any:
        result = DeleteTopicsResponse.DeletableTopicResult
        request, refused = split_deletions(
            context,
            request,
            lambda topic_id: self._state.topic_names.get(Uuid(topic_id)),
            self._state.topic_ids.__contains__,
        )
        names = [topic.name for topic in request.topics] or request.topic_names
        response: DeleteTopicsResponse = await self.decide(
            request,
            lambda code, text: DeleteTopicsResponse(
                responses=[result(name=name, error_code=code, error_message=text) for name in names]
            ),
        )
        response.responses += refused
        return response

    async def decide(self, request: Any, refuse: Callable[[ErrorCode, str], Any]) -> Any:
        future: asyncio.Future[Any] = self._loop.create_future()

        def reply(response: Any, error: Exception | None) -> None:
            if future.done():
                return
            if error is None:
                future.set_result(response)
            else:
                future.set_exception(error)

        self._runtime().submit(request, self._clock.now_ms(), reply)
        try:
            return await future
        except KafkaError as error:
            return refuse(error.code, error.message)
        except NotLeader as error:
            return refuse(ErrorCode.NOT_CONTROLLER, str(error))
        except Overloaded as error:
            # Admin clients and brokers retry on it at the same controller; after NOT_CONTROLLER they would look for another.
            return refuse(ErrorCode.REQUEST_TIMED_OUT, str(error))
        except OSError as error:
            return refuse(
                ErrorCode.KAFKA_STORAGE_ERROR, f"the metadata log could not be written: {error.strerror or error}"
            )

    # --- forwarded requests

    async def envelope(self, context: RequestContext, request: EnvelopeRequest) -> EnvelopeResponse:
        """Handle the inner request as if its sender had connected to this listener.

        NOT_CONTROLLER in the envelope itself, rather than in the inner response, makes the broker look for the active controller.
        """
        if not self._runtime().leading:
            return EnvelopeResponse(error_code=ErrorCode.NOT_CONTROLLER)
        try:
            principal = decode_principal(request.request_principal or b"")
            address = str(ipaddress.ip_address(request.client_host_address))
            if int.from_bytes(request.request_data[:2], "big") not in FORWARDABLE:
                return EnvelopeResponse(error_code=ErrorCode.INVALID_REQUEST)
            peer = Peer(context.peer.listener, address, principal=principal, authority=self._authority)
            response = self._dispatcher().handle(peer, memoryview(request.request_data))
        except (DecodeError, KafkaError) as error:
            code = error.code if isinstance(error, KafkaError) else ErrorCode.PRINCIPAL_DESERIALIZATION_FAILURE
            return EnvelopeResponse(error_code=code)
        except (CloseConnection, ValueError):
            return EnvelopeResponse(error_code=ErrorCode.INVALID_REQUEST)
        if isinstance(response, Deferred):
            response = await response.wait()
        if response is None:
            return EnvelopeResponse(error_code=ErrorCode.UNKNOWN_SERVER_ERROR)
        return EnvelopeResponse(response_data=joined(response)[4:])
