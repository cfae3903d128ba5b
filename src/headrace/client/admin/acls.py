"""Describes, creates and deletes a cluster's ACLs."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.base.errors import KafkaError
from headrace.client.admin.item_errors import refusal
from headrace.client.consumer.fetching import known_code
from headrace.client.wire.cluster import Cluster
from headrace.protocol.messages.create_acls import CreateAclsRequest, CreateAclsResponse
from headrace.protocol.messages.delete_acls import DeleteAclsRequest, DeleteAclsResponse
from headrace.protocol.messages.describe_acls import DescribeAclsRequest, DescribeAclsResponse
from headrace.security.acls import ANY, Acl, AclFilter

EVERY_ACL = AclFilter(ANY, None, ANY, None, None, ANY, ANY)


async def describe_acls(cluster: Cluster, acl_filter: AclFilter = EVERY_ACL) -> list[Acl]:
    request = DescribeAclsRequest(
        resource_type_filter=acl_filter.resource_type,
        resource_name_filter=acl_filter.resource_name,
        pattern_type_filter=acl_filter.pattern_type,
        principal_filter=acl_filter.principal,
        host_filter=acl_filter.host,
        operation=acl_filter.operation,
        permission_type=acl_filter.permission,
    )
    response: DescribeAclsResponse = await cluster.request(request)
    if response.error_code:
        raise KafkaError(known_code(response.error_code), response.error_message or "the rules cannot be listed")
    return sorted(
        Acl(
            resource.resource_type,
            resource.resource_name,
            resource.pattern_type,
            acl.principal,
            acl.host,
            acl.operation,
            acl.permission_type,
        )
        for resource in response.resources
        for acl in resource.acls
    )


async def create_acls(cluster: Cluster, rules: Sequence[Acl]) -> dict[Acl, KafkaError | None]:
    request = CreateAclsRequest(
        creations=[
            CreateAclsRequest.AclCreation(
                resource_type=rule.resource_type,
                resource_name=rule.resource_name,
                resource_pattern_type=rule.pattern_type,
                principal=rule.principal,
                host=rule.host,
                operation=rule.operation,
                permission_type=rule.permission,
            )
            for rule in rules
        ]
    )
    response: CreateAclsResponse = await cluster.request(request)
    return {
        rule: refusal(result.error_code, result.error_message, rule)
        for rule, result in zip(rules, response.results, strict=True)
    }


async def delete_acls(cluster: Cluster, filters: Sequence[AclFilter]) -> list[Acl]:
    """Delete the ACLs that match and return them.

    Raise KafkaError for the first that cannot be deleted; others may have been deleted.
    """
    request = DeleteAclsRequest(
        filters=[
            DeleteAclsRequest.DeleteAclsFilter(
                resource_type_filter=one.resource_type,
                resource_name_filter=one.resource_name,
                pattern_type_filter=one.pattern_type,
                principal_filter=one.principal,
                host_filter=one.host,
                operation=one.operation,
                permission_type=one.permission,
            )
            for one in filters
        ]
    )
    response: DeleteAclsResponse = await cluster.request(request)
    gone: set[Acl] = set()
    for result in response.filter_results:
        failures = [refusal(result.error_code, result.error_message, "filter")]
        failures += [refusal(one.error_code, one.error_message, one.resource_name) for one in result.matching_acls]
        for failure in failures:
            if failure is not None:
                raise failure
        gone |= {
            Acl(
                one.resource_type,
                one.resource_name,
                one.pattern_type,
                one.principal,
                one.host,
                one.operation,
                one.permission_type,
            )
            for one in result.matching_acls
        }
    return sorted(gone)
