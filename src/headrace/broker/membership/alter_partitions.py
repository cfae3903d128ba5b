"""Sends proposed changes of ISRs to the controller (AlterPartition), all that are due in one request, until they are decided."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection

from headrace.base.clock import Clock
from headrace.base.errors import ErrorCode, HeadraceError
from headrace.base.ids import NodeId, TopicPartition, Uuid
from headrace.base.metrics import Metrics
from headrace.broker.channels.controller_channel import ControllerChannel
from headrace.client.consumer.fetching import known_code
from headrace.metadata.image import RECOVERED, Image
from headrace.protocol.messages.alter_partition import AlterPartitionRequest, AlterPartitionResponse
from headrace.replication.isr import Accepted, Proposal
from headrace.replication.local_replica import LAG_MS_MAX, LocalReplica, ReplicationPort

log = logging.getLogger(__name__)

PARTITIONS_PER_REQUEST_MAX = 2_000
RETRY_S = 0.05
RETRY_S_MAX = 1.0

_Batch = dict[tuple[Uuid, int], tuple[LocalReplica, Proposal]]


class AlterPartitions(ReplicationPort):
    def __init__(
        self,
        channel: ControllerChannel,
        node_id: NodeId,
        broker_epoch: Callable[[], int],
        image: Callable[[], Image],
        clock: Clock,
        loop: asyncio.AbstractEventLoop,
        metrics: Metrics,
        lag_ms_max: int = LAG_MS_MAX,
    ) -> None:
        self.lag_ms_max = lag_ms_max
        self._channel = channel
        self._node_id = node_id
        self._broker_epoch = broker_epoch
        self._image = image
        self._clock = clock
        self._loop = loop
        self._due: dict[TopicPartition, tuple[LocalReplica, Proposal]] = {}
        self._task: asyncio.Task[None] | None = None
        self._closed = False
        self._failures = metrics.counter(
            "kafka_server_replicamanager_failedisrupdates_total", "Changes of in-sync replicas that were not accepted."
        )

    # --- the port of a partition

    def eligible_epoch(self, broker_id: int) -> int | None:
        broker = self._image().brokers.get(broker_id)
        if broker is None or broker.fenced or broker.in_controlled_shutdown:
            return None
        return broker.epoch

    def live_brokers(self) -> Collection[int]:
        return {broker.id for broker in self._image().live_brokers()}

    def propose(self, partition: LocalReplica, proposal: Proposal) -> None:
        """Send a proposal; a later one for the same partition replaces it."""
        log.info(
            "%s: proposing the in-sync replicas %s instead of %s", partition.name, proposal.broker_ids, partition.isr
        )
        self._due[partition.name] = (partition, proposal)
        if self._task is None and not self._closed:
            self._task = self._loop.create_task(self._send_all())

    # --- sending

    async def _send_all(self) -> None:
        pause_s = RETRY_S
        try:
            while self._due:
                await asyncio.sleep(0)  # what is proposed in the same turn of the loop goes into the same request
                if await self._send():
                    pause_s = RETRY_S
                else:
                    await asyncio.sleep(pause_s)
                    pause_s = min(2 * pause_s, RETRY_S_MAX)
        finally:
            self._task = None

    async def _send(self) -> bool:
        """Send what is due, and return whether all of it is decided."""
        names = list(self._due)[:PARTITIONS_PER_REQUEST_MAX]
        taken = [self._due.pop(name) for name in names]
        batch: _Batch = {
            (partition.topic_id, partition.name.partition): (partition, proposal)
            for partition, proposal in taken
            if partition.pending_isr is proposal  # metadata may have ended it
        }
        if not batch:
            return True
        try:
            response: AlterPartitionResponse = await self._channel.request(self._request(batch))
            whole = known_code(response.error_code)
        except (OSError, HeadraceError) as error:
            log.warning(
                "the in-sync replicas of %d partitions could not be changed: %s; trying again", len(batch), error
            )
            return self._refuse_all(batch, ErrorCode.NETWORK_EXCEPTION)
        if whole is not ErrorCode.NONE:
            log.warning("the controller refused to change in-sync replicas: %s; trying again", whole.name)
            return self._refuse_all(batch, whole)
        results = {
            (topic.topic_id, result.partition_index): result for topic in response.topics for result in topic.partitions
        }
        missing = AlterPartitionResponse.PartitionData(error_code=ErrorCode.UNKNOWN_SERVER_ERROR)
        decided = True
        for key, (partition, proposal) in batch.items():
            decided = self._decide(partition, proposal, results.get(key, missing)) and decided
        return decided

    def _request(self, batch: _Batch) -> AlterPartitionRequest:
        topics: dict[Uuid, AlterPartitionRequest.TopicData] = {}
        for (topic_id, index), (_, proposal) in batch.items():
            topic = topics.setdefault(topic_id, AlterPartitionRequest.TopicData(topic_id=topic_id, partitions=[]))
            topic.partitions.append(
                AlterPartitionRequest.PartitionData(
                    partition_index=index,
                    leader_epoch=proposal.leader_epoch,
                    new_isr_with_epochs=[
                        AlterPartitionRequest.BrokerState(broker_id=one.broker_id, broker_epoch=one.broker_epoch)
                        for one in proposal.members
                    ],
                    leader_recovery_state=RECOVERED,
                    partition_epoch=proposal.partition_epoch,
                )
            )
        return AlterPartitionRequest(
            broker_id=self._node_id, broker_epoch=self._broker_epoch(), topics=list(topics.values())
        )

    def _decide(
        self, partition: LocalReplica, proposal: Proposal, result: AlterPartitionResponse.PartitionData
    ) -> bool:
        code = known_code(result.error_code)
        if code is not ErrorCode.NONE:
            return self._refuse(partition, proposal, code)
        recovering = result.leader_recovery_state != RECOVERED
        state = Accepted(tuple(result.isr), result.leader_epoch, result.partition_epoch, recovering)
        partition.isr_accepted(proposal, state, self._clock.now_ms())
        return True

    def _refuse(self, partition: LocalReplica, proposal: Proposal, code: ErrorCode) -> bool:
        """Report an error to the partition, and return whether the proposal is decided or must be sent again."""
        self._failures.value += 1
        if not partition.isr_refused(proposal, code, self._clock.now_ms()):
            return True
        self._due.setdefault(partition.name, (partition, proposal))
        return False

    def _refuse_all(self, batch: _Batch, code: ErrorCode) -> bool:
        decided = [self._refuse(partition, proposal, code) for partition, proposal in batch.values()]
        return all(decided)

    def cancel(self) -> None:
        self._closed = True
        if self._task is not None:
            self._task.cancel()

    async def stop(self) -> None:
        task = self._task
        self.cancel()
        if task is not None:
            await asyncio.gather(task, return_exceptions=True)
