"""DescribeConfigs 1–4: options of topics and of this broker, each with where it comes from and what it overrides."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from headrace.base.errors import ErrorCode, KafkaError
from headrace.base.ids import NodeId
from headrace.base.options import Kind, Option, Value
from headrace.broker.node_options import NODE_OPTIONS
from headrace.metadata.image import BROKER_CONFIG, TOPIC_CONFIG, Image
from headrace.metadata.topic_options import BROKER_DEFAULTS, TOPIC_OPTIONS, topic_defaults
from headrace.protocol.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResponse
from headrace.server.context import RequestContext

SOURCE_TOPIC, SOURCE_DYNAMIC_BROKER, SOURCE_STATIC, SOURCE_DEFAULT = 1, 2, 4, 5
Result = DescribeConfigsResponse.DescribeConfigsResult
Described = DescribeConfigsResponse.DescribeConfigsResourceResult
Synonym = DescribeConfigsResponse.DescribeConfigsSynonym


class Layer(NamedTuple):
    """One place that gives an option a value; the first of several wins."""

    name: str
    text: str | None
    source: int


class ConfigsApi:
    def __init__(
        self, image: Callable[[], Image], node_id: NodeId, settings: Mapping[str, Value], explicit: frozenset[str]
    ) -> None:
        """`settings` are the node's values, `explicit` the names that its operator set."""
        self._image = image
        self._node_id = node_id
        self._settings = settings
        self._explicit = explicit

    def describe(self, context: RequestContext, request: DescribeConfigsRequest) -> DescribeConfigsResponse:
        return DescribeConfigsResponse(results=[self._resource(request, resource) for resource in request.resources])

    def _resource(
        self, request: DescribeConfigsRequest, resource: DescribeConfigsRequest.DescribeConfigsResource
    ) -> Result:
        result = Result(error_message=None, resource_type=resource.resource_type, resource_name=resource.resource_name)
        wanted = resource.configuration_keys
        try:
            for option, layers in self._options(resource.resource_type, resource.resource_name):
                if wanted is None or option.name in wanted:
                    result.configs.append(self._describe(request, option, layers))
        except KafkaError as error:
            result.error_code, result.error_message = error.code, error.message
        return result

    def _options(self, kind: int, name: str) -> Iterator[tuple[Option, list[Layer]]]:
        if kind == TOPIC_CONFIG:
            if name not in self._image().topics:
                raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"topic {name!r} does not exist")
            own = self._image().config(TOPIC_CONFIG, name)
            return ((option, self._topic_layers(option, own)) for _, option in sorted(TOPIC_OPTIONS.items()))
        if kind == BROKER_CONFIG:
            if name != str(self._node_id):
                raise KafkaError(
                    ErrorCode.INVALID_REQUEST, f"this is broker {self._node_id}, not {name!r}: ask that one"
                )
            return ((option, self._broker_layers(option)) for _, option in sorted(NODE_OPTIONS.items()))
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"options of resource type {kind} are not kept here")

    def _topic_layers(self, option: Option, own: Mapping[str, str]) -> list[Layer]:
        layers = []
        if option.name in own:
            layers.append(Layer(option.name, own[option.name], SOURCE_TOPIC))
        for source, factor in BROKER_DEFAULTS.get(option.name, ()):
            if source in self._explicit and self._settings.get(source) is not None:
                value = (
                    topic_defaults({source: self._settings[source]})[option.name]
                    if factor > 1
                    else self._settings[source]
                )
                layers.append(Layer(source, option.text(value), SOURCE_STATIC))
        layers.append(
            Layer(
                BROKER_DEFAULTS.get(option.name, ((option.name, 1),))[-1][0],
                option.text(option.default),
                SOURCE_DEFAULT,
            )
        )
        return layers

    def _broker_layers(self, option: Option) -> list[Layer]:
        layers = []
        if option.name in self._explicit:
            layers.append(Layer(option.name, option.text(self._settings[option.name]), SOURCE_STATIC))
        if option.default is not None or not layers:
            layers.append(Layer(option.name, option.text(option.default), SOURCE_DEFAULT))
        return layers

    def _describe(self, request: DescribeConfigsRequest, option: Option, layers: list[Layer]) -> Described:
        secret = option.kind is Kind.PASSWORD
        return Described(
            name=option.name,
            value=None if secret else layers[0].text,
            read_only=False,
            config_source=layers[0].source,
            is_sensitive=secret,
            synonyms=[
                Synonym(name=layer.name, value=None if secret else layer.text, source=layer.source) for layer in layers
            ]
            if request.include_synonyms
            else [],
            config_type=option.kind.value,
            documentation=option.meaning if request.include_documentation else None,
        )
