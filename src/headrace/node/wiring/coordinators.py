"""Builds this broker's group and transaction coordinators and connects them to the partitions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from headrace.broker.channels.broker_channel import BrokerChannel
from headrace.broker.dynamic_options import DynamicOptions
from headrace.broker.metrics.group_lag import GroupLag
from headrace.broker.shard_runner import Coordination, CoordinatorTopic
from headrace.broker.transactions.markers import MarkerSender
from headrace.broker.transactions.verifier import CoordinatorVerifier
from headrace.coordinators.group.handler_table import GROUP_HANDLERS
from headrace.coordinators.group.records import decode_group_record, encode_group_record
from headrace.coordinators.group.settings import group_settings
from headrace.coordinators.group.shard import GroupShard
from headrace.coordinators.group.transactional_commits import end_request
from headrace.coordinators.partitioning import GROUPS_TOPIC, TRANSACTIONS_TOPIC
from headrace.coordinators.transaction.records import decode_transaction_record, encode_transaction_record
from headrace.coordinators.transaction.settings import transaction_settings
from headrace.coordinators.transaction.shard import TransactionShard
from headrace.metadata.image import Image
from headrace.node.context import NodeContext
from headrace.replication.replicas import Replicas

SETTLE_S_MAX = 1.0  # how long a start waits for loading, so that clients of small shards are not refused
TRANSACTION_VERSION = "transaction.version"


class Coordinators:
    """The coordinators of one broker. They communicate with partition leaders by requests, even on the same broker."""

    def __init__(
        self,
        context: NodeContext,
        options: DynamicOptions,
        image: Callable[[], Image],
        replicas: Replicas,
        brokers: BrokerChannel,
    ) -> None:
        settings, clock, loop = context.settings, context.clock, context.loop
        self._options = options
        group_topic = CoordinatorTopic(
            GROUPS_TOPIC,
            lambda: GroupShard(GROUP_HANDLERS, group_settings(settings.values), image, context.random),
            encode_group_record,
            decode_group_record,
            end_request,
        )
        self.groups = Coordination(group_topic, image, clock, loop)
        self._markers = MarkerSender(image, brokers, loop)
        transaction_topic = CoordinatorTopic(
            TRANSACTIONS_TOPIC,
            lambda: TransactionShard(
                transaction_settings(settings.values),
                self._markers.send,
                lambda: image().features.get(TRANSACTION_VERSION, 0),
            ),
            encode_transaction_record,
            decode_transaction_record,
        )
        self.transactions = Coordination(transaction_topic, image, clock, loop)
        self._markers.coordination = self.transactions
        self.verifier = CoordinatorVerifier(image, brokers, loop, self._retry_times_s, self._markers.ended)
        replicas.on_led[GROUPS_TOPIC] = self.groups.elected
        replicas.on_led[TRANSACTIONS_TOPIC] = self.transactions.elected
        GroupLag(self.groups, replicas, clock, context.metrics)

    def _retry_times_s(self) -> tuple[float, float]:
        number = self._options.number
        return (
            number("add.partitions.to.txn.retry.backoff.ms") / 1000,
            number("add.partitions.to.txn.retry.backoff.max.ms") / 1000,
        )

    def is_verifying(self) -> bool:
        return bool(self._options.values["transaction.partition.verification.enable"])

    async def start(self) -> None:
        """Start sending markers and wait for shards to load, at most `SETTLE_S_MAX`; larger shards continue in the background.

        Call this once the metadata is known and the partitions are open.
        """
        self._markers.start()
        settling = [asyncio.ensure_future(one.settle()) for one in (self.groups, self.transactions)]
        await asyncio.wait(settling, timeout=SETTLE_S_MAX)
        for one in settling:
            one.cancel()

    async def stop(self) -> None:
        self.groups.close()
        self.transactions.close()
        await self._markers.stop()

    def kill(self) -> None:
        self.groups.close()
        self.transactions.close()
        self._markers.cancel()
