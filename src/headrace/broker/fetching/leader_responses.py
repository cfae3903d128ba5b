"""Applies what a leader responds to the logs that follow it: appends, truncations, and reactions to errors.

A log that diverges from its leader's is truncated. A batch that is corrupt is fetched once more; then its partition is reported as
failed and fetched only now and then, because the leader's disk is probably damaged.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from headrace.base.errors import CorruptData, ErrorCode, HeadraceError, KafkaError
from headrace.broker.channels.broker_channel import BrokerChannel
from headrace.broker.fetching.followed import Followed, FollowerIdentity
from headrace.client.consumer.fetching import known_code
from headrace.protocol.messages.fetch import FetchResponse
from headrace.protocol.messages.list_offsets import ListOffsetsRequest, ListOffsetsResponse
from headrace.replication.follower_state import METADATA_DELAY_MS, Reaction, reaction_to
from headrace.replication.partition import EARLIEST, LATEST
from headrace.storage.append import UnexpectedBatch
from headrace.storage.leader_epochs import EpochEnd

log = logging.getLogger(__name__)


class LeaderResponses:
    def __init__(self, source: int, lane: str, identity: FollowerIdentity, channel: BrokerChannel) -> None:
        """Ask the leader, broker `source`, over this lane of the channel for the range of its log."""
        self._source = source
        self._lane = lane
        self._identity = identity
        self._channel = channel

    def apply(self, one: Followed, data: FetchResponse.PartitionData, outside: list[Followed]) -> bool:
        """Apply a response to its partition, and return whether the log was truncated.

        A partition whose fetch offset is outside the leader's log is added to `outside`. Raise KafkaError if the disk refuses.
        """
        partition, state, now_ms = one.partition, one.state, self._identity.clock.now_ms()
        code = known_code(data.error_code)
        if code is not ErrorCode.NONE:
            self._react(one, code, outside, now_ms)
            return False
        if data.diverging_epoch.epoch >= 0 or data.diverging_epoch.end_offset >= 0:
            return self._truncate(one, EpochEnd(data.diverging_epoch.epoch, max(data.diverging_epoch.end_offset, 0)))
        records = data.records
        if records is not None and len(records):
            try:
                assert isinstance(records, bytes | memoryview), "a decoded response has bytes"
                partition.traffic.replication_bytes_in += partition.append_as_follower(records, now_ms)
            except (CorruptData, UnexpectedBatch) as error:
                self._corrupt(one, str(error), now_ms)
                return False
        state.succeeded()
        one.lag = max(data.high_watermark - partition.log.log_end, 0)
        partition.learn_offsets(data.high_watermark, data.log_start_offset, now_ms)
        return False

    def _truncate(self, one: Followed, leader: EpochEnd) -> bool:
        partition, end = one.partition, one.partition.log.log_end
        truncated = partition.truncate_after_divergence(leader, self._identity.clock.now_ms())
        if truncated:
            log.info(
                "%s diverged from its leader %d in epoch %d and was truncated from offset %d to %d",
                partition.name,
                self._source,
                leader.epoch,
                end,
                partition.log.log_end,
            )
        return truncated

    def _react(self, one: Followed, code: ErrorCode, outside: list[Followed], now_ms: int) -> None:
        match reaction_to(code):
            case Reaction.FIND_RANGE:
                outside.append(one)
            case Reaction.AWAIT_METADATA:
                one.state.await_metadata()
            case Reaction.COUNT_CORRUPTION:
                self._corrupt(one, "its leader cannot read it", now_ms)
            case Reaction.RETRY_SOON:
                one.state.delay(now_ms, METADATA_DELAY_MS)
            case Reaction.DELAY:
                one.state.delay(now_ms)

    def _corrupt(self, one: Followed, why: str, now_ms: int) -> None:
        if one.state.corrupt(now_ms):
            log.error(
                "%s cannot be replicated from offset %d on: %s; check the disk of its leader, broker %d",
                one.partition.name,
                one.partition.log.log_end,
                why,
                self._source,
            )

    # --- a fetch offset outside the leader's log

    async def find_range(self, one: Followed, is_followed: Callable[[Followed], bool]) -> bool:
        """Continue within the leader's log, if the partition is still followed then, and return whether this one was truncated."""
        partition = one.partition
        try:
            end = await self._list_offset(one, LATEST)
            start = await self._list_offset(one, EARLIEST)
            if not one.is_current or not is_followed(one):
                return False
            was = partition.log.log_end
            truncated = partition.restart_in_range(start, end, self._identity.clock.now_ms())
        except HeadraceError as error:
            log.info("the offsets of %s on broker %d are not known: %s", partition.name, self._source, error)
            one.state.delay(self._identity.clock.now_ms())
            return False
        log.warning(
            "%s ends at %d, outside its leader's offsets %d to %d; continuing at %d",
            partition.name,
            was,
            start,
            end,
            partition.log.log_end,
        )
        return truncated

    async def _list_offset(self, one: Followed, timestamp: int) -> int:
        topic, index = one.partition.name
        request = ListOffsetsRequest(
            replica_id=self._identity.node_id,
            topics=[
                ListOffsetsRequest.ListOffsetsTopic(
                    name=topic,
                    partitions=[
                        ListOffsetsRequest.ListOffsetsPartition(
                            partition_index=index, current_leader_epoch=one.state.leader_epoch, timestamp=timestamp
                        )
                    ],
                )
            ],
        )
        response: ListOffsetsResponse = await self._channel.request(self._source, request, lane=self._lane)
        for result in response.topics:
            for found in result.partitions:
                code = known_code(found.error_code)
                if code is not ErrorCode.NONE or found.offset < 0:
                    raise KafkaError(code, f"offset {found.offset}")
                return found.offset
        raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, "the response is empty")
