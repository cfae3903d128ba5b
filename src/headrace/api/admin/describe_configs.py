"""DescribeConfigs 1–4 and ListConfigResources 0–1.

They return the options of topics, this broker, its loggers, groups and client-metrics subscriptions, each with the source of its
value and the values that it overrides.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from headrace.api.permissions import DESCRIBE_CLUSTER_CONFIGS, on_topics
from headrace.base.errors import ErrorCode, KafkaError
from headrace.base.ids import NodeId
from headrace.broker.dynamic_options import DYNAMIC, DynamicOptions
from headrace.broker.loggers import loggers
from headrace.controller.topics import check_name
from headrace.metadata.image import (
    BROKER_CONFIG,
    GROUP_CONFIG,
    LOGGER_CONFIG,
    METRICS_CONFIG,
    TOPIC_CONFIG,
    Image,
)
from headrace.metadata.layers import LISTENER_PREFIX, Layer, Source, without_listener
from headrace.metadata.option_checks import check_value
from headrace.options.node_options import NODE_OPTIONS
from headrace.options.resource_options import CLIENT_METRICS_OPTIONS, GROUP_OPTIONS, group_default_name
from headrace.options.table import Kind, Option, Value
from headrace.options.topic_options import INTERNAL_TOPIC_OPTIONS, TOPIC_OPTIONS
from headrace.protocol.apis import ApiKey
from headrace.protocol.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResponse
from headrace.protocol.messages.list_config_resources import ListConfigResourcesRequest, ListConfigResourcesResponse
from headrace.security.resources import Operation, Resource
from headrace.server.context import RequestContext
from headrace.server.dispatch import Service

RESOURCES = (GROUP_CONFIG, METRICS_CONFIG, LOGGER_CONFIG, BROKER_CONFIG, TOPIC_CONFIG)
UNKNOWN_TYPE = 0
# Options that are internal to Kafka or not in its list: described only if they are set.
SHOWN_IF_SET = frozenset(
    {
        "allow.everyone.if.no.acl.found", "controller.performance.always.log.threshold.ms",
        "controller.performance.sample.period.ms", "follower.replication.throttled.rate",
        "group.consumer.regex.refresh.interval.ms", "group.share.initialize.retry.interval.ms",
        "group.share.persister.class.name", "internal.metadata.delete.delay.millis",
        "internal.metadata.log.segment.bytes", "internal.metadata.max.batch.size.in.bytes",
        "leader.replication.throttled.rate", "log.initial.task.delay.ms", "producer.id.expiration.check.interval.ms",
        "remote.log.index.file.cache.ttl.ms", "remote.log.manager.task.retry.backoff.max.ms",
        "remote.log.manager.task.retry.backoff.ms", "remote.log.manager.task.retry.jitter",
        "remote.log.metadata.topic.min.isr", "remote.log.metadata.topic.num.partitions",
        "remote.log.metadata.topic.replication.factor", "remote.log.metadata.topic.retention.ms",
        "replica.alter.log.dirs.io.max.bytes.per.second", "server.max.startup.time.ms",
        "share.coordinator.cold.partition.snapshot.interval.ms", "share.coordinator.state.topic.prune.interval.ms",
        "super.users", "unclean.leader.election.interval.ms", "unstable.api.versions.enable",
        "unstable.feature.versions.enable",
    }
)  # fmt: skip

Result = DescribeConfigsResponse.DescribeConfigsResult
Described = DescribeConfigsResponse.DescribeConfigsResourceResult
Synonym = DescribeConfigsResponse.DescribeConfigsSynonym
Listed = ListConfigResourcesResponse.ConfigResource


class Entry(NamedTuple):
    """One option with its current value; the first layer, if there is one, is the source of the value."""

    name: str
    option: Option | None  # None: its type is unknown
    text: str | None
    layers: list[Layer]
    read_only: bool = False
    source: Source = Source.DEFAULT  # the source if there are no layers


class DescribeConfigsApi:
    def __init__(self, image: Callable[[], Image], options: DynamicOptions, node_id: NodeId) -> None:
        self._image = image
        self._options = options
        self._node_id = node_id

    def services(self) -> list[Service]:
        return [
            Service(ApiKey.DESCRIBE_CONFIGS, (1, 4), self.describe, on_topics(Operation.DESCRIBE_CONFIGS)),
            Service(ApiKey.LIST_CONFIG_RESOURCES, (0, 1), self.list_resources, DESCRIBE_CLUSTER_CONFIGS),
        ]

    def list_resources(
        self, context: RequestContext, request: ListConfigResourcesRequest
    ) -> ListConfigResourcesResponse:
        requested = [METRICS_CONFIG] if context.api_version == 0 else request.resource_types or RESOURCES
        if not set(requested) <= set(RESOURCES):
            return ListConfigResourcesResponse(error_code=ErrorCode.UNSUPPORTED_VERSION)
        return ListConfigResourcesResponse(
            config_resources=[
                Listed(resource_name=name, resource_type=kind)
                for kind in RESOURCES
                if kind in requested
                for name in self._names(kind)
            ]
        )

    def _names(self, kind: int) -> list[str]:
        image = self._image()
        if kind == TOPIC_CONFIG:
            return list(image.topics)
        if kind in (BROKER_CONFIG, LOGGER_CONFIG):
            return [str(broker.id) for broker in image.live_brokers()]
        return [name for resource, name in image.configs if resource == kind]

    def describe(self, context: RequestContext, request: DescribeConfigsRequest) -> DescribeConfigsResponse:
        if not all(resource.resource_type in RESOURCES for resource in request.resources):
            # As in Kafka, one unknown type refuses all resources.
            code, text = ErrorCode.INVALID_REQUEST, "The request names a resource of an unknown type."
            return DescribeConfigsResponse(
                results=[
                    Result(
                        error_code=code,
                        error_message=text,
                        resource_type=one.resource_type,
                        resource_name=one.resource_name,
                    )
                    for one in request.resources
                ]
            )
        return DescribeConfigsResponse(
            results=[self._resource(context, request, resource) for resource in request.resources]
        )

    def _resource(
        self,
        context: RequestContext,
        request: DescribeConfigsRequest,
        resource: DescribeConfigsRequest.DescribeConfigsResource,
    ) -> Result:
        kind, name = resource.resource_type, resource.resource_name
        result = Result(resource_type=kind, resource_name=name)
        requested = frozenset(resource.configuration_keys or ())
        try:
            _check_permission(context, kind, name)
            for entry in self._entries(kind, name):
                if not requested or entry.name in requested:
                    result.configs.append(_describe(request, entry))
        except KafkaError as error:
            result.error_code, result.error_message = error.code, error.message
        return result

    def _entries(self, kind: int, name: str) -> Iterator[Entry]:
        if kind == TOPIC_CONFIG:
            check_name(name)
            if name not in self._image().topics:
                raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            return self._topic(self._image().config(TOPIC_CONFIG, name))
        if kind == BROKER_CONFIG:
            if not name:
                return self._all_brokers()
            self._check_id(name, "Unexpected broker id, expected {} or empty string, but received {}")
            return self._broker()
        if kind == LOGGER_CONFIG:
            if not name:
                raise KafkaError(ErrorCode.INVALID_REQUEST, "Broker id must not be empty")
            self._check_id(name, "Unexpected broker id, expected {} but received {}")
            return (Entry(logger, None, level, [], source=Source.LOGGER) for logger, level in loggers().items())
        if not name:
            what = "Client metrics subscription" if kind == METRICS_CONFIG else "Group"
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"{what} name must not be empty")
        own = self._image().config(kind, name)
        return self._client_metrics(own) if kind == METRICS_CONFIG else self._group(own)

    def _check_id(self, name: str, complaint: str) -> None:
        if not name.lstrip("+-").isdigit() or len(name) > 11:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"Broker id must be an integer, but it is: {name}")
        if int(name) != self._node_id:
            raise KafkaError(ErrorCode.INVALID_REQUEST, complaint.format(self._node_id, name))

    def _topic(self, own: Mapping[str, str]) -> Iterator[Entry]:
        layers, defaults = self._options.layers(), self._options.topic_defaults()
        for name, option in sorted(TOPIC_OPTIONS.items()):
            behind = layers.of_topic(name)
            if name in own:
                text = _normal(option, own[name])
                yield Entry(name, option, text, [Layer(name, text, Source.TOPIC), *behind])
            elif name not in INTERNAL_TOPIC_OPTIONS:
                yield Entry(name, option, option.text(defaults[name]), behind)

    def _broker(self) -> Iterator[Entry]:
        layers = self._options.layers()
        given = {*layers.static, *layers.dynamic_default, *layers.dynamic}
        for name in sorted({name for name in NODE_OPTIONS if name not in SHOWN_IF_SET} | given):
            option = _option(name)
            found = layers.of(name)
            text = found[0].text if found else None
            if name in NODE_OPTIONS and name != "broker.id":
                text = NODE_OPTIONS[name].text(self._options.values[name])
            yield Entry(name, option, text, found, read_only=name not in DYNAMIC)

    def _all_brokers(self) -> Iterator[Entry]:
        layers = self._options.layers()
        for name, text in layers.dynamic_default.items():
            found = [layer for layer in layers.of(name) if layer.source is Source.DYNAMIC_DEFAULT]
            yield Entry(name, _option(name), text, found, read_only=name not in DYNAMIC)

    def _client_metrics(self, own: Mapping[str, str]) -> Iterator[Entry]:
        for name, option in CLIENT_METRICS_OPTIONS.items():
            text = own.get(name, option.text(option.default))
            yield Entry(name, option, text, [Layer(name, text, Source.CLIENT_METRICS)] if name in own else [])

    def _group(self, own: Mapping[str, str]) -> Iterator[Entry]:
        layers = self._options.layers()
        for name, option in GROUP_OPTIONS.items():
            behind = group_default_name(name)
            found = [Layer(name, option.text(option.default), Source.DEFAULT)] if behind is None else layers.of(behind)
            value: Value = option.default if behind is None else self._options.values.get(behind, option.default)
            text = option.text(value)
            if name in own:
                text = _normal(option, own[name])
                found = [Layer(name, text, Source.GROUP), *found]
            yield Entry(name, option, text, found)


def _check_permission(context: RequestContext, kind: int, name: str) -> None:
    if kind == TOPIC_CONFIG:
        if not context.may(Operation.DESCRIBE_CONFIGS, Resource.TOPIC, name):
            raise KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED, "Topic authorization failed.")
    elif kind == GROUP_CONFIG:
        if not context.may(Operation.DESCRIBE_CONFIGS, Resource.GROUP, name):
            raise KafkaError(ErrorCode.GROUP_AUTHORIZATION_FAILED, "Group authorization failed.")
    elif not context.may(Operation.DESCRIBE_CONFIGS, Resource.CLUSTER):
        raise KafkaError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, "Cluster authorization failed.")


def _option(name: str) -> Option | None:
    return NODE_OPTIONS.get(without_listener(name) if name.startswith(LISTENER_PREFIX) else name)


def _normal(option: Option, text: str) -> str | None:
    """Return the value in Kafka's normal form, or unchanged if it is not valid."""
    try:
        return option.text(check_value(option, text))
    except KafkaError:
        return text


def _describe(request: DescribeConfigsRequest, entry: Entry) -> Described:
    option = entry.option
    # A value of unknown type may be a secret.
    secret = entry.source is not Source.LOGGER and (option is None or option.kind is Kind.PASSWORD)
    return Described(
        name=entry.name,
        value=None if secret else entry.text,
        read_only=entry.read_only,
        config_source=entry.layers[0].source if entry.layers else entry.source,
        is_sensitive=secret,
        synonyms=[
            Synonym(name=layer.name, value=None if secret else layer.text, source=layer.source)
            for layer in entry.layers
        ]
        if request.include_synonyms
        else [],
        config_type=UNKNOWN_TYPE if option is None else option.kind.value,
        documentation=option.meaning if option is not None and request.include_documentation else None,
    )
