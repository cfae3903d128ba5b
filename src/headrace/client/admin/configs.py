"""Describes and alters options of topics, brokers, loggers, groups and client metrics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from headrace.base.errors import ErrorCode, KafkaError
from headrace.client.wire.cluster import Cluster
from headrace.client.wire.connection import Connection
from headrace.protocol.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResponse
from headrace.protocol.messages.incremental_alter_configs import (
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from headrace.protocol.messages.list_config_resources import ListConfigResourcesRequest, ListConfigResourcesResponse

TOPIC, BROKER, LOGGER, CLIENT_METRICS, GROUP = 2, 4, 8, 16, 32
SET, DELETE = 0, 1
RESOURCES_AT_ONCE = 200
TYPES_VERSION_MIN = 1  # version of ListConfigResources; older ones list client metrics only
SOURCES = {
    1: "topic", 2: "broker", 3: "all brokers", 4: "settings", 5: "default", 6: "logger", 7: "client metrics", 8: "group",
}  # fmt: skip


class OptionInfo(NamedTuple):
    """An option of a resource, with its current value."""

    name: str
    value: str | None  # None if it is secret or not set
    source: int  # Kafka's code of what set the value: 1 topic, 2 broker, 3 all brokers, 4 file, 5 default …
    read_only: bool
    secret: bool
    # Name, value and source of every setting of the option, by precedence; empty if they were not requested.
    synonyms: list[tuple[str, str | None, int]]


async def describe_configs(
    cluster: Cluster, resources: Sequence[tuple[int, str]], *, synonyms: bool = False
) -> list[list[OptionInfo]]:
    """Return the options of the resources, in their order. Raise KafkaError for the first that cannot be described."""
    described: list[list[OptionInfo]] = []
    for at in range(0, len(resources), RESOURCES_AT_ONCE):
        described += await _describe(cluster, resources[at : at + RESOURCES_AT_ONCE], synonyms)
    return described


async def _describe(cluster: Cluster, resources: Sequence[tuple[int, str]], synonyms: bool) -> list[list[OptionInfo]]:
    found: dict[tuple[int, str], list[OptionInfo]] = {}
    for connection, some in await _by_connection(cluster, resources):
        request = DescribeConfigsRequest(
            resources=[
                DescribeConfigsRequest.DescribeConfigsResource(
                    resource_type=kind, resource_name=name, configuration_keys=None
                )
                for kind, name in some
            ],
            include_synonyms=synonyms,
        )
        response: DescribeConfigsResponse = await connection.request(request)
        for result in response.results:
            if result.error_code != ErrorCode.NONE:
                raise KafkaError(ErrorCode(result.error_code), result.error_message or result.resource_name)
            found[(result.resource_type, result.resource_name)] = [
                OptionInfo(
                    one.name,
                    one.value,
                    one.config_source,
                    one.read_only,
                    one.is_sensitive,
                    [(other.name, other.value, other.source) for other in one.synonyms],
                )
                for one in result.configs
            ]
    return [found[resource] for resource in resources]


async def alter_configs(
    cluster: Cluster, resource: tuple[int, str], add: Mapping[str, str], delete: Sequence[str], *, validate_only: bool
) -> None:
    kind, name = resource
    operation = IncrementalAlterConfigsRequest.AlterableConfig
    request = IncrementalAlterConfigsRequest(
        resources=[
            IncrementalAlterConfigsRequest.AlterConfigsResource(
                resource_type=kind,
                resource_name=name,
                configs=[
                    *(operation(name=one, config_operation=SET, value=value) for one, value in add.items()),
                    *(operation(name=one, config_operation=DELETE, value=None) for one in delete),
                ],
            )
        ],
        validate_only=validate_only,
    )
    [(connection, _)] = await _by_connection(cluster, [resource])
    response: IncrementalAlterConfigsResponse = await connection.request(request)
    for result in response.responses:
        if result.error_code != ErrorCode.NONE:
            raise KafkaError(ErrorCode(result.error_code), result.error_message or name)


async def list_resources(cluster: Cluster, kind: int) -> list[str]:
    """Return the names of client metrics subscriptions, or of groups that have options."""
    version = (await cluster.any_broker()).version_for(ListConfigResourcesRequest)
    request = ListConfigResourcesRequest(resource_types=[kind] if version >= TYPES_VERSION_MIN else [])
    response: ListConfigResourcesResponse = await cluster.request(request)
    if response.error_code != ErrorCode.NONE:
        raise KafkaError(ErrorCode(response.error_code), "the resources cannot be listed")
    return sorted(one.resource_name for one in response.config_resources if one.resource_type == kind)


async def _by_connection(
    cluster: Cluster, resources: Sequence[tuple[int, str]]
) -> list[tuple[Connection, list[tuple[int, str]]]]:
    """Group the resources by connection; options of a single broker are requested from that broker."""
    anywhere = [resource for resource in resources if not _is_about_a_broker(resource)]
    found = [(await cluster.any_broker(), anywhere)] if anywhere else []
    for resource in resources:
        if _is_about_a_broker(resource):
            if not resource[1].isdigit():
                raise KafkaError(ErrorCode.INVALID_REQUEST, f"a broker's name is its number, not {resource[1]!r}")
            found.append((await cluster.broker(int(resource[1])), [resource]))
    return found


def _is_about_a_broker(resource: tuple[int, str]) -> bool:
    return resource[0] == LOGGER or (resource[0] == BROKER and resource[1] != "")
