"""AlterConfigs 0–2 and IncrementalAlterConfigs 0–1 on a broker, which forwards them to the controller.

First it checks what only the broker can: its own options, in the combination that would result (KIP-226). Logger levels are not
forwarded: they change immediately and last until the process ends.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from headrace.api.error_responses import code_of, refuse
from headrace.api.permissions import on_topics
from headrace.base.errors import ErrorCode, HeadraceError, KafkaError
from headrace.base.ids import NodeId
from headrace.broker.channels.forwarding import Forwarding
from headrace.broker.dynamic_options import DynamicOptions
from headrace.broker.loggers import change_level
from headrace.controller.configs import APPEND, DELETE, SET, SUBTRACT
from headrace.metadata.image import (
    BROKER_CONFIG,
    GROUP_CONFIG,
    LOGGER_CONFIG,
    METRICS_CONFIG,
    TOPIC_CONFIG,
    Image,
)
from headrace.options.node_options import NODE_OPTIONS
from headrace.options.table import Kind
from headrace.protocol.apis import ApiKey
from headrace.protocol.messages.alter_configs import AlterConfigsRequest, AlterConfigsResponse
from headrace.protocol.messages.incremental_alter_configs import (
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from headrace.security.resources import Operation, Resource
from headrace.server.context import RequestContext
from headrace.server.dispatch import Service
from headrace.server.frames import EncodedResponse, ReceivedRequest

FORWARDED = frozenset({TOPIC_CONFIG, METRICS_CONFIG, GROUP_CONFIG, BROKER_CONFIG})


class AlterConfigsApi:
    def __init__(
        self, image: Callable[[], Image], options: DynamicOptions, forwarding: Forwarding, node_id: NodeId
    ) -> None:
        self._image = image
        self._options = options
        self._forwarding = forwarding
        self._node_id = node_id

    def services(self) -> list[Service]:
        need = on_topics(Operation.ALTER_CONFIGS)
        return [
            Service(ApiKey.ALTER_CONFIGS, (0, 2), self.replace, need, keeps_frame=True),
            Service(ApiKey.INCREMENTAL_ALTER_CONFIGS, (0, 1), self.incrementally, need, keeps_frame=True),
        ]

    async def incrementally(
        self, context: RequestContext, received: ReceivedRequest[IncrementalAlterConfigsRequest]
    ) -> IncrementalAlterConfigsResponse | EncodedResponse[IncrementalAlterConfigsResponse]:
        outcomes = await self._alter(context, received, self._check_incremental)
        if isinstance(outcomes, EncodedResponse):
            return outcomes
        result = IncrementalAlterConfigsResponse.AlterConfigsResourceResponse
        return IncrementalAlterConfigsResponse(responses=[result(**outcome) for outcome in outcomes])

    async def replace(
        self, context: RequestContext, received: ReceivedRequest[AlterConfigsRequest]
    ) -> AlterConfigsResponse | EncodedResponse[AlterConfigsResponse]:
        outcomes = await self._alter(context, received, self._check_replacing)
        if isinstance(outcomes, EncodedResponse):
            return outcomes
        result = AlterConfigsResponse.AlterConfigsResourceResponse
        return AlterConfigsResponse(responses=[result(**outcome) for outcome in outcomes])

    async def _alter(
        self,
        context: RequestContext,
        received: ReceivedRequest[Any],
        check: Callable[[RequestContext, Any, Any], bool],
    ) -> EncodedResponse[Any] | list[dict[str, Any]]:
        """Return one outcome for each resource, in the order of the request, or the controller's response if it is that."""
        request = received.message
        done = self._check_resources(context, request, check)
        left = [one for index, one in enumerate(request.resources) if index not in done]
        decided: dict[tuple[int, str], tuple[int, str | None]] = {}
        if left:
            forwarded = type(request)(resources=left, validate_only=request.validate_only)
            try:
                if done:
                    response = await self._forwarding.send(
                        forwarded, context.api_version, context.peer, context.client_id
                    )
                else:
                    encoded = await self._forwarding.forward(context, received)
                    response = encoded.decode()
                    if [_key(one) for one in response.responses] == [_key(one) for one in request.resources]:
                        return encoded
            except (OSError, HeadraceError) as error:
                response = refuse(forwarded, code_of(error), str(error))
            decided = {_key(one): (one.error_code, one.error_message) for one in response.responses}
        nothing = (ErrorCode.UNKNOWN_SERVER_ERROR, "the controller did not answer for this resource")
        outcomes = []
        for index, one in enumerate(request.resources):
            key = _key(one)
            code, message = done[index] if index in done else decided.get(key, nothing)
            outcomes.append(
                {"resource_type": key[0], "resource_name": key[1], "error_code": code, "error_message": message}
            )
        return outcomes

    @staticmethod
    def _check_resources(
        context: RequestContext, request: Any, check: Callable[[RequestContext, Any, Any], bool]
    ) -> dict[int, tuple[int, str | None]]:
        """Return the outcomes of the resources that are refused or done here, by their index in the request."""
        times = Counter(_key(one) for one in request.resources)
        done: dict[int, tuple[int, str | None]] = {}
        for index, resource in enumerate(request.resources):
            try:
                if times[_key(resource)] > 1:
                    raise KafkaError(ErrorCode.INVALID_REQUEST, "Each resource must appear at most once.")
                if check(context, request, resource):
                    done[index] = (ErrorCode.NONE, None)
            except KafkaError as error:
                done[index] = (error.code, error.message)
        return done

    def _check_incremental(
        self,
        context: RequestContext,
        request: IncrementalAlterConfigsRequest,
        resource: IncrementalAlterConfigsRequest.AlterConfigsResource,
    ) -> bool:
        """Check a resource, and change logger levels; return True if nothing is left for the controller to do."""
        _check_keys(
            resource, [one.name for one in resource.configs if one.config_operation != DELETE and one.value is None]
        )
        if resource.resource_type == LOGGER_CONFIG:
            self._change_loggers(context, resource, validate_only=request.validate_only)
            return True
        self._check_kind(resource.resource_type, resource.resource_name)
        if resource.resource_type == BROKER_CONFIG:
            texts = dict(self._image().config(BROKER_CONFIG, resource.resource_name))
            for config in resource.configs:
                _apply(texts, config)
            self._check_broker(texts, resource.resource_name)
        return False

    def _check_replacing(
        self, context: RequestContext, request: AlterConfigsRequest, resource: AlterConfigsRequest.AlterConfigsResource
    ) -> bool:
        _check_keys(resource, [one.name for one in resource.configs if one.value is None])
        self._check_kind(resource.resource_type, resource.resource_name)
        if resource.resource_type == BROKER_CONFIG:
            texts = {one.name: one.value for one in resource.configs if one.value is not None}
            self._check_broker(texts, resource.resource_name)
        return False

    def _check_kind(self, kind: int, name: str) -> None:
        if kind not in FORWARDED:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"Unknown resource type {kind}")
        if kind == BROKER_CONFIG and name:
            self._check_id(name, "Unexpected broker id, expected {}, but received {}")

    def _check_id(self, name: str, complaint: str) -> None:
        if not name.lstrip("+-").isdigit() or len(name) > 11:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"Node id must be an integer, but it is: {name}")
        if int(name) != self._node_id:
            raise KafkaError(ErrorCode.INVALID_REQUEST, complaint.format(self._node_id, name))

    def _check_broker(self, texts: Mapping[str, str], name: str) -> None:
        self._options.check(texts, per_broker=bool(name))

    def _change_loggers(
        self,
        context: RequestContext,
        resource: IncrementalAlterConfigsRequest.AlterConfigsResource,
        *,
        validate_only: bool,
    ) -> None:
        if not context.may(Operation.ALTER_CONFIGS, Resource.CLUSTER):
            raise KafkaError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, "Cluster authorization failed.")
        self._check_id(resource.resource_name, "Unexpected node id. Expected {}, but received {}")
        for apply in (False, True):  # check all levels before changing any
            if apply and validate_only:
                return
            for config in resource.configs:
                change_level(config.name, config.config_operation, config.value, apply=apply)


def _key(resource: Any) -> tuple[int, str]:
    return resource.resource_type, resource.resource_name


def _check_keys(resource: Any, missing: list[str]) -> None:
    names = [config.name for config in resource.configs]
    if len(set(names)) != len(names):
        raise KafkaError(ErrorCode.INVALID_REQUEST, "Error due to duplicate config keys")
    if missing:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Null value not supported for : {', '.join(missing)}")


def _apply(texts: dict[str, str], config: IncrementalAlterConfigsRequest.AlterableConfig) -> None:
    name, operation, value = config.name, config.config_operation, config.value or ""
    if operation == SET:
        texts[name] = value
    elif operation == DELETE:
        texts.pop(name, None)
    elif operation in (APPEND, SUBTRACT):
        option = NODE_OPTIONS.get(name)
        if option is None:
            raise KafkaError(ErrorCode.INVALID_CONFIG, f"Unknown config name: {name}")
        if option.kind is not Kind.LIST:
            verb = "append" if operation == APPEND else "subtract"
            raise KafkaError(ErrorCode.INVALID_CONFIG, f"Config value {verb} is not allowed for config key: {name}")
        parts = [part for part in (texts.get(name) or option.text(option.default) or "").split(",") if part]
        for part in value.split(","):
            if operation == APPEND and part not in parts:
                parts.append(part)
            elif operation == SUBTRACT and part in parts:
                parts.remove(part)
        texts[name] = ",".join(parts)
    else:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Unknown operations type {operation}")
