"""Authorization of topic creation and deletion on the controller, by a permission on the cluster or on each topic.

A topic that the client may not describe is refused with the same error whether it exists or not.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from headrace.base.errors import ErrorCode
from headrace.base.ids import METADATA_TOPIC, ZERO_UUID
from headrace.protocol.messages.create_topics import CreateTopicsRequest, CreateTopicsResponse
from headrace.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicsResponse
from headrace.security.resources import Operation, Resource
from headrace.server.context import RequestContext

Created = CreateTopicsResponse.CreatableTopicResult
Deleted = DeleteTopicsResponse.DeletableTopicResult
REFUSED = "Authorization failed."
UNKNOWN_COUNT = -1


def split_creations(context: RequestContext, request: CreateTopicsRequest) -> tuple[CreateTopicsRequest, list[Created]]:
    """Return the request without the topics that the client may not create, and the results for those.

    Duplicates and the metadata topic stay in the request: the controller refuses them anyway.
    """
    if context.may(Operation.CREATE, Resource.CLUSTER, quietly=True):
        return request, []
    times = Counter(topic.name for topic in request.topics)
    once = [name for name, count in times.items() if count == 1 and name != METADATA_TOPIC]
    permitted = context.permitted(Operation.CREATE, Resource.TOPIC, once)
    left, refused = [], []
    for topic in request.topics:
        if times[topic.name] > 1 or topic.name == METADATA_TOPIC or topic.name in permitted:
            left.append(topic)
        else:
            code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
            refused.append(Created(name=topic.name, error_code=code, error_message=REFUSED))
    request = CreateTopicsRequest(topics=left, timeout_ms=request.timeout_ms, validate_only=request.validate_only)
    return request, refused


def hide_options(context: RequestContext, response: CreateTopicsResponse) -> None:
    """Remove options and partition counts of created topics whose options the client may not describe."""
    if context.peer.authority.unrestricted:
        return
    for topic in response.topics:
        if topic.error_code == ErrorCode.NONE and not context.may(
            Operation.DESCRIBE_CONFIGS, Resource.TOPIC, topic.name, quietly=True
        ):
            topic.topic_config_error_code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
            topic.num_partitions = topic.replication_factor = UNKNOWN_COUNT
            topic.configs = []


def split_deletions(
    context: RequestContext,
    request: DeleteTopicsRequest,
    name_of: Callable[[bytes], str | None],
    exists: Callable[[str], bool],
) -> tuple[DeleteTopicsRequest, list[Deleted]]:
    if context.may(Operation.DELETE, Resource.CLUSTER, quietly=True):
        return request, []
    requested = request.topics or [DeleteTopicsRequest.DeleteTopicState(name=name) for name in request.topic_names]
    left, refused = [], []
    for topic in requested:
        by_id = topic.name is None
        name = name_of(topic.topic_id) if by_id else topic.name
        if name is None or context.may(Operation.DELETE, Resource.TOPIC, name):
            left.append(topic)
            continue
        seen = context.may(Operation.DESCRIBE, Resource.TOPIC, name, quietly=True)
        if seen and not exists(name):
            left.append(topic)
            continue
        refused.append(
            Deleted(
                name=name if seen or not by_id else None,
                topic_id=topic.topic_id if by_id else ZERO_UUID,
                error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED,
                error_message="Topic authorization failed.",
            )
        )
    return DeleteTopicsRequest(topics=left, timeout_ms=request.timeout_ms), refused
