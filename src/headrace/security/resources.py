"""What can be protected and what can be done to it, in Kafka's codes; every API of the table declares its need in these words."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum


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


@dataclass(slots=True, frozen=True)
class Need:
    """`per_entity`: asked for each topic, group or id that a request names, and each is answered with its own error."""

    resource: Resource
    operation: Operation
    per_entity: bool = False
