"""DescribeAcls, CreateAcls and DeleteAcls 1–3: described by every node, changed by the controller.

Without an authorizer they are refused.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from headrace.api.error_responses import code_of
from headrace.api.permissions import ALTER_CLUSTER, ALTER_CLUSTER_FORWARDED, DESCRIBE_CLUSTER
from headrace.base.errors import ErrorCode, HeadraceError, KafkaError
from headrace.broker.channels.forwarding import Forwarding
from headrace.broker.topic_creation import TopicCreation
from headrace.controller.acls import acl_of_request, filter_of_request
from headrace.metadata.acls import acl_of
from headrace.protocol.apis import ApiKey
from headrace.protocol.messages.create_acls import CreateAclsRequest, CreateAclsResponse
from headrace.protocol.messages.delete_acls import DeleteAclsRequest, DeleteAclsResponse
from headrace.protocol.messages.describe_acls import DescribeAclsRequest, DescribeAclsResponse
from headrace.protocol.messages.stored.metadata_security import AccessControlEntryRecord
from headrace.security.acls import Acl
from headrace.security.authorizer import StandardAuthorizer
from headrace.server.context import RequestContext
from headrace.server.dispatch import Service
from headrace.server.frames import EncodedResponse, ReceivedRequest

Records = Callable[[], Iterable[AccessControlEntryRecord]]
Decide = Callable[[Any, Callable[[ErrorCode, str], Any]], Awaitable[Any]]
_DISABLED = "No Authorizer is configured."


class AclsApi:
    """ACL requests on a broker, which forwards changes to the controller."""

    def __init__(
        self, records: Records, forwarding: Forwarding, creation: TopicCreation, authorizer: StandardAuthorizer | None
    ) -> None:
        self._records = records
        self._forwarding = forwarding
        self._creation = creation
        self._authorizer = authorizer

    def services(self) -> list[Service]:
        return [
            Service(ApiKey.DESCRIBE_ACLS, (1, 3), self.describe, DESCRIBE_CLUSTER),
            Service(ApiKey.CREATE_ACLS, (1, 3), self.create, ALTER_CLUSTER_FORWARDED, keeps_frame=True),
            Service(ApiKey.DELETE_ACLS, (1, 3), self.delete, ALTER_CLUSTER_FORWARDED, keeps_frame=True),
        ]

    def describe(self, context: RequestContext, request: DescribeAclsRequest) -> DescribeAclsResponse:
        return describe_acls(self._records, self._authorizer, request)

    async def create(
        self, context: RequestContext, received: ReceivedRequest[CreateAclsRequest]
    ) -> CreateAclsResponse | EncodedResponse[CreateAclsResponse]:
        request = received.message
        try:
            response: EncodedResponse[CreateAclsResponse] = await self._forwarding.forward(context, received)
        except (OSError, HeadraceError) as error:
            return refuse_creations(request, code_of(error), str(error))
        if self._authorizer is not None:
            authorizer = self._authorizer
            created = [
                acl_of_request(creation)
                for creation, result in zip(request.creations, response.decode().results, strict=True)
                if result.error_code == ErrorCode.NONE
            ]
            await self._creation.wait_until(lambda image: all(acl in authorizer for acl in created))
        return response

    async def delete(
        self, context: RequestContext, received: ReceivedRequest[DeleteAclsRequest]
    ) -> DeleteAclsResponse | EncodedResponse[DeleteAclsResponse]:
        request = received.message
        try:
            response: EncodedResponse[DeleteAclsResponse] = await self._forwarding.forward(context, received)
        except (OSError, HeadraceError) as error:
            return refuse_filters(request, code_of(error), str(error))
        if self._authorizer is not None:
            authorizer = self._authorizer
            removed = [_matched(acl) for result in response.decode().filter_results for acl in result.matching_acls]
            await self._creation.wait_until(lambda image: not any(acl in authorizer for acl in removed))
        return response


class ControllerAclsApi:
    """ACL requests on a controller, which decides on changes."""

    def __init__(self, records: Records, decide: Decide, authorizer: StandardAuthorizer | None) -> None:
        self._records = records
        self._decide = decide
        self._authorizer = authorizer

    def services(self) -> list[Service]:
        return [
            Service(ApiKey.DESCRIBE_ACLS, (1, 3), self.describe, DESCRIBE_CLUSTER),
            Service(ApiKey.CREATE_ACLS, (1, 3), self.create, ALTER_CLUSTER, refuse_creations),
            Service(ApiKey.DELETE_ACLS, (1, 3), self.delete, ALTER_CLUSTER, refuse_filters),
        ]

    def describe(self, context: RequestContext, request: DescribeAclsRequest) -> DescribeAclsResponse:
        return describe_acls(self._records, self._authorizer, request)

    async def create(self, context: RequestContext, request: CreateAclsRequest) -> Any:
        if self._authorizer is None:
            return refuse_creations(request, ErrorCode.SECURITY_DISABLED, _DISABLED)
        return await self._decide(request, lambda code, text: refuse_creations(request, code, text))

    async def delete(self, context: RequestContext, request: DeleteAclsRequest) -> Any:
        if self._authorizer is None:
            return refuse_filters(request, ErrorCode.SECURITY_DISABLED, _DISABLED)
        return await self._decide(request, lambda code, text: refuse_filters(request, code, text))


def describe_acls(
    records: Records, authorizer: StandardAuthorizer | None, request: DescribeAclsRequest
) -> DescribeAclsResponse:
    if authorizer is None:
        return DescribeAclsResponse(
            error_code=ErrorCode.SECURITY_DISABLED, error_message="No Authorizer is configured on the broker"
        )
    requested = filter_of_request(request)
    try:
        requested.check()
    except KafkaError as error:
        return DescribeAclsResponse(error_code=error.code, error_message=error.message)
    found: dict[tuple[int, str, int], DescribeAclsResponse.DescribeAclsResource] = {}
    for record in records():
        acl = acl_of(record)
        if not requested.matches(acl):
            continue
        key = (acl.resource_type, acl.resource_name, acl.pattern_type)
        resource = found.get(key)
        if resource is None:
            resource = found[key] = DescribeAclsResponse.DescribeAclsResource(
                resource_type=acl.resource_type, resource_name=acl.resource_name, pattern_type=acl.pattern_type
            )
        resource.acls.append(
            DescribeAclsResponse.AclDescription(
                principal=acl.principal, host=acl.host, operation=acl.operation, permission_type=acl.permission
            )
        )
    return DescribeAclsResponse(resources=list(found.values()))


def refuse_creations(request: CreateAclsRequest, code: ErrorCode, text: str) -> CreateAclsResponse:
    result = CreateAclsResponse.AclCreationResult
    return CreateAclsResponse(results=[result(error_code=code, error_message=text) for _ in request.creations])


def refuse_filters(request: DeleteAclsRequest, code: ErrorCode, text: str) -> DeleteAclsResponse:
    result = DeleteAclsResponse.DeleteAclsFilterResult
    return DeleteAclsResponse(filter_results=[result(error_code=code, error_message=text) for _ in request.filters])


def _matched(acl: DeleteAclsResponse.DeleteAclsMatchingAcl) -> Acl:
    return Acl(
        acl.resource_type,
        acl.resource_name,
        acl.pattern_type,
        acl.principal,
        acl.host,
        acl.operation,
        acl.permission_type,
    )
