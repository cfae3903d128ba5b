"""Describes and alters the quotas of users, client ids and IP addresses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from headrace.base.errors import KafkaError
from headrace.client.consumer.fetching import known_code
from headrace.client.wire.cluster import Cluster
from headrace.protocol.messages.alter_client_quotas import AlterClientQuotasRequest, AlterClientQuotasResponse
from headrace.protocol.messages.describe_client_quotas import DescribeClientQuotasRequest, DescribeClientQuotasResponse

EXACT, DEFAULT, ANY = 0, 1, 2

# Names by entity type ("user", "client-id", "ip"); None is the default for all entities without their own quota.
QuotaEntity = Mapping[str, str | None]


class Quotas(NamedTuple):
    """The quotas of one entity."""

    entity: dict[str, str | None]  # as in `QuotaEntity`
    rates: dict[str, float]  # by name: producer_byte_rate (bytes per second), request_percentage …


async def describe_quotas(cluster: Cluster, kinds: Sequence[str] = (), *, strict: bool = False) -> list[Quotas]:
    """Return the quotas of all entities of these types, or of all types.

    `strict` leaves out entities that also have another type.
    """
    components = [
        DescribeClientQuotasRequest.ComponentData(entity_type=kind, match_type=ANY, match=None) for kind in kinds
    ]
    response: DescribeClientQuotasResponse = await cluster.request(
        DescribeClientQuotasRequest(components=components, strict=strict)
    )
    if response.error_code:
        raise KafkaError(known_code(response.error_code), response.error_message or "the quotas cannot be listed")
    return [
        Quotas(
            {part.entity_type: part.entity_name for part in entry.entity},
            {one.key: one.value for one in entry.values},
        )
        for entry in response.entries or []
    ]


async def alter_quotas(
    cluster: Cluster, entity: QuotaEntity, rates: Mapping[str, float | None], *, validate_only: bool = False
) -> None:
    """Change the quotas of an entity; a rate of None removes that quota."""
    request = AlterClientQuotasRequest(
        entries=[
            AlterClientQuotasRequest.EntryData(
                entity=[
                    AlterClientQuotasRequest.EntityData(entity_type=kind, entity_name=name)
                    for kind, name in entity.items()
                ],
                ops=[
                    AlterClientQuotasRequest.OpData(key=key, value=rate or 0.0, remove=rate is None)
                    for key, rate in rates.items()
                ],
            )
        ],
        validate_only=validate_only,
    )
    response: AlterClientQuotasResponse = await cluster.request(request)
    for entry in response.entries:
        if entry.error_code:
            raise KafkaError(known_code(entry.error_code), entry.error_message or f"quotas of {dict(entity)}")
