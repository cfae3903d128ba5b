"""DescribeClientQuotas 0–1: quotas in the metadata log by user, client id or address. They are not enforced yet."""

from __future__ import annotations

from collections.abc import Callable

from headrace.api.permissions import DESCRIBE_CLUSTER_CONFIGS
from headrace.base.errors import ErrorCode, KafkaError
from headrace.metadata.image import Image, QuotaEntity
from headrace.protocol.apis import ApiKey
from headrace.protocol.messages.describe_client_quotas import DescribeClientQuotasRequest, DescribeClientQuotasResponse
from headrace.server.context import RequestContext
from headrace.server.dispatch import Service

USER, CLIENT_ID, IP = "user", "client-id", "ip"
EXACT, DEFAULT, ANY = range(3)

Response = DescribeClientQuotasResponse
Filter = dict[str, DescribeClientQuotasRequest.ComponentData]


class DescribeClientQuotasApi:
    def __init__(self, image: Callable[[], Image]) -> None:
        self._image = image

    def services(self) -> list[Service]:
        return [Service(ApiKey.DESCRIBE_CLIENT_QUOTAS, (0, 1), self.describe, DESCRIBE_CLUSTER_CONFIGS)]

    def describe(self, context: RequestContext, request: DescribeClientQuotasRequest) -> DescribeClientQuotasResponse:
        try:
            requested = _check(request)
        except KafkaError as error:
            return Response(error_code=error.code, error_message=error.message, entries=None)
        return Response(
            entries=[
                Response.EntryData(
                    entity=[Response.EntityData(entity_type=kind, entity_name=name) for kind, name in entity],
                    values=[Response.ValueData(key=key, value=value) for key, value in quotas.items()],
                )
                for entity, quotas in self._image().client_quotas.items()
                if _matches(requested, entity, strict=request.strict)
            ],
        )


def _check(request: DescribeClientQuotasRequest) -> Filter:
    requested: Filter = {}
    for component in request.components:
        kind = component.entity_type
        if not kind:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "Invalid empty entity type.")
        if kind in requested:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST, f"Entity type {kind} cannot appear more than once in the filter."
            )
        if kind not in (USER, CLIENT_ID, IP):
            raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, f"Unsupported entity type {kind}")
        requested[kind] = component
        if component.match_type == EXACT and component.match is None:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST, "Request specified MATCH_TYPE_EXACT, but set match string to null."
            )
        for match_type, name in ((DEFAULT, "DEFAULT"), (ANY, "SPECIFIED")):
            if component.match_type == match_type and component.match is not None:
                raise KafkaError(
                    ErrorCode.INVALID_REQUEST,
                    f"Request specified MATCH_TYPE_{name}, but also specified a match string.",
                )
        if component.match_type not in (EXACT, DEFAULT, ANY):
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"Unknown match type {component.match_type}")
    if IP in requested and len(requested) > 1:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            "Invalid entity filter component combination. IP filter component should not be used with user or "
            "clientId filter component.",
        )
    return requested


def _matches(requested: Filter, entity: QuotaEntity, *, strict: bool) -> bool:
    parts = dict(entity)
    if strict and len(parts) != len(requested):
        return False
    for kind, component in requested.items():
        if kind not in parts:
            return False
        name = parts[kind]
        if component.match_type == EXACT and name != component.match:
            return False
        if component.match_type == DEFAULT and name is not None:
            return False
    return True
