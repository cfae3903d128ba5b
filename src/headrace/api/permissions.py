"""The permissions that APIs declare in their rows of the API table."""

from __future__ import annotations

from headrace.security.resources import Need, Operation, Resource

NOTHING = Need(Resource.NONE, Operation.NONE)
CLUSTER_ACTION = Need(Resource.CLUSTER, Operation.CLUSTER_ACTION)
CLUSTER_ACTION_OR_ALTER = Need(
    Resource.CLUSTER, Operation.CLUSTER_ACTION, per_entity=True
)  # the handler accepts either
DESCRIBE_CLUSTER = Need(Resource.CLUSTER, Operation.DESCRIBE)
DESCRIBE_CLUSTER_IN_HANDLER = Need(Resource.CLUSTER, Operation.DESCRIBE, per_entity=True)
ALTER_CLUSTER = Need(Resource.CLUSTER, Operation.ALTER)
DESCRIBE_CLUSTER_CONFIGS = Need(Resource.CLUSTER, Operation.DESCRIBE_CONFIGS)
# For requests that a broker only forwards: the controller checks the permission.
ALTER_CLUSTER_FORWARDED = Need(Resource.CLUSTER, Operation.ALTER, per_entity=True)
DESCRIBE_CLUSTER_FORWARDED = Need(Resource.CLUSTER, Operation.DESCRIBE, per_entity=True)
IDEMPOTENT_WRITE = Need(Resource.CLUSTER, Operation.IDEMPOTENT_WRITE, per_entity=True)


def on_topics(operation: Operation) -> Need:
    return Need(Resource.TOPIC, operation, per_entity=True)


def on_groups(operation: Operation) -> Need:
    return Need(Resource.GROUP, operation, per_entity=True)


def on_transactional_ids(operation: Operation) -> Need:
    return Need(Resource.TRANSACTIONAL_ID, operation, per_entity=True)
