"""Resource types and operations with Kafka's codes; every API declares the permission it needs with them."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum

from msgspec import Struct

CLUSTER_NAME = "kafka-cluster"  # the one resource of type CLUSTER


class Resource(IntEnum):
    NONE = 0
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7


class Operation(IntEnum):
    NONE = 0
    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12
    CREATE_TOKENS = 13
    DESCRIBE_TOKENS = 14
    TWO_PHASE_COMMIT = 15


class Need(Struct, frozen=True):
    """The permission that an API needs.

    It is checked once for the whole request; with `per_entity` the handler checks it instead, usually for each topic, group or id
    in the request, each with its own error.
    """

    resource: Resource
    operation: Operation
    per_entity: bool = False


# The operations on each type of resource. In Kafka's bit fields of authorized operations, an operation's code is its bit number.
OPERATIONS: Mapping[Resource, tuple[Operation, ...]] = {
    Resource.TOPIC: (
        Operation.READ, Operation.WRITE, Operation.CREATE, Operation.DELETE, Operation.ALTER, Operation.DESCRIBE,
        Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS,
    ),
    Resource.GROUP: (
        Operation.READ, Operation.DELETE, Operation.DESCRIBE, Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS,
    ),
    Resource.CLUSTER: (
        Operation.CREATE, Operation.ALTER, Operation.DESCRIBE, Operation.CLUSTER_ACTION, Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS, Operation.IDEMPOTENT_WRITE,
    ),
    Resource.TRANSACTIONAL_ID: (Operation.WRITE, Operation.DESCRIBE, Operation.TWO_PHASE_COMMIT),
    Resource.DELEGATION_TOKEN: (Operation.DESCRIBE,),
    Resource.USER: (Operation.CREATE_TOKENS, Operation.DESCRIBE_TOKENS),
}  # fmt: skip


def bit_field(operations: tuple[Operation, ...]) -> int:
    field = 0
    for operation in operations:
        field |= 1 << operation
    return field


ALL_OPERATIONS: Mapping[Resource, int] = {
    resource: bit_field(operations) for resource, operations in OPERATIONS.items()
}
