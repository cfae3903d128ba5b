"""A Kafka client built around Arrow: producer, consumer and admin, for asyncio and in blocking form.

Names are imported on first use, so that a broker, which needs only connections, does not load the rest.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headrace.base.errors import ConfigError, HeadraceError, KafkaError
    from headrace.base.ids import TopicPartition
    from headrace.client.admin.admin import AsyncAdmin
    from headrace.client.admin.topic_changes import NewTopic
    from headrace.client.consumer.consumer import AsyncConsumer
    from headrace.client.group.membership import CommittedOffset
    from headrace.client.producer.producer import AsyncProducer
    from headrace.client.sync.admin import Admin
    from headrace.client.sync.consumer import Consumer
    from headrace.client.sync.producer import Producer

_WHERE = {
    "Admin": "headrace.client.sync.admin",
    "AsyncAdmin": "headrace.client.admin.admin",
    "AsyncConsumer": "headrace.client.consumer.consumer",
    "AsyncProducer": "headrace.client.producer.producer",
    "CommittedOffset": "headrace.client.group.membership",
    "ConfigError": "headrace.base.errors",
    "Consumer": "headrace.client.sync.consumer",
    "HeadraceError": "headrace.base.errors",
    "KafkaError": "headrace.base.errors",
    "NewTopic": "headrace.client.admin.topic_changes",
    "Producer": "headrace.client.sync.producer",
    "TopicPartition": "headrace.base.ids",
}

__all__ = [
    "Admin",
    "AsyncAdmin",
    "AsyncConsumer",
    "AsyncProducer",
    "CommittedOffset",
    "ConfigError",
    "Consumer",
    "HeadraceError",
    "KafkaError",
    "NewTopic",
    "Producer",
    "TopicPartition",
]


def __getattr__(name: str) -> Any:
    module = _WHERE.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(module), name)


def __dir__() -> list[str]:
    return sorted(__all__)
