"""Checks beyond those of `history` (corrupt batches, denied topics, missing records, timestamps) and the final read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from headrace.base.errors import ErrorCode, KafkaError
from headrace.base.ids import TopicPartition
from headrace.records.batch import CorruptBatch
from testkit.history import POWER_LOSS, Anomaly, FinalRead, History, Kind, calls_of
from testkit.simulator.clients import LOST, World, read_batches
from testkit.simulator.readers import CORRUPT, MAX_TIMESTAMP, Reader

FINAL_FETCH_BYTES = 4_000
FINAL_TRIES = 20
MOVED = (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH, ErrorCode.UNKNOWN_LEADER_EPOCH)
UNKNOWN = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION.name, ErrorCode.UNKNOWN_TOPIC_ID.name)


class Unreadable(Exception):
    """The final reader could not read everything."""


class FinalReader(Reader):
    """A new client that reads everything at the end."""

    async def read_everything(self) -> FinalRead:
        metadata = await self.until_it_works(lambda: self.cluster.refresh(None))
        found = FinalRead({}, {})
        assert found.topics is not None
        for topic in metadata.topics:
            if topic.is_internal:
                continue
            if topic.error_code != ErrorCode.NONE or topic.name is None:
                raise Unreadable(f"{topic.name}: {ErrorCode(topic.error_code).name}")
            found.topics[topic.name] = topic.topic_id.hex()
            place = topic.name if topic.name == self.place else f"{topic.name}/{topic.topic_id.hex()}"
            self.topic = topic.name
            for partition in topic.partitions:
                index = partition.partition_index
                found.records[(place, index)] = await self._read(TopicPartition(topic.name, index))
        await self.close()
        return found

    async def _read(self, partition: TopicPartition) -> list[tuple[int, str]]:
        end = (await self.until_it_works(lambda: self.list_offset(partition.partition, -1))).offset
        records: list[tuple[int, str]] = []
        position = tries = 0
        while position < end:
            tries += 1
            if tries > FINAL_TRIES + end:
                raise Unreadable(f"{partition}: no progress at {position} of {end}")
            try:
                connection = await self.leader(partition)
                (data,) = await self.fetch(connection, {partition.partition: position}, 0, FINAL_FETCH_BYTES)
                if data.error_code in MOVED:
                    # It moved to another broker, or its log was just replaced by the copy in another directory.
                    await self.refresh()
                    continue
                if data.error_code != ErrorCode.NONE:
                    raise Unreadable(f"{partition} at {position}: {ErrorCode(data.error_code).name}")
                read = read_batches(data.records or b"")  # type: ignore[arg-type]
            except (*LOST, KafkaError):
                continue
            except CorruptBatch as error:
                raise Unreadable(f"{partition} at {position}: {error}") from error
            for offset, value, _ in read:
                if offset >= position:
                    if offset != position:
                        raise Unreadable(f"{partition}: {position} is missing, {offset} follows")
                    records.append((offset, value))
                    position = offset + 1
        return records


def check_responses(history: History, final_read: FinalRead, world: World) -> list[Anomaly]:
    return [
        *_corrupt(history),
        *_denied(history),
        *_nothing_there(history),
        *_times(history, final_read, world),
    ]


def _corrupt(history: History) -> Iterator[Anomaly]:
    for event in history.events:
        if event.kind is Kind.FAIL and event.value.get("error") == CORRUPT:
            yield Anomaly("corrupt batch", f"{event.process}: {event.value['text']}")


def _denied(history: History) -> Iterator[Anomaly]:
    """Yield an anomaly where a topic that was created and not deleted is reported as unknown.

    A node must not respond before it has loaded its metadata.
    """
    created: set[str] = set()
    for event in history.events:
        begun = history.events[event.call]
        if event.operation == "create_topic" and event.kind is Kind.OK:
            created.add(begun.value["topic"])
        elif event.operation == "delete_topic":
            created.discard(begun.value["topic"])
        elif event.value.get("error") in UNKNOWN and begun.value["topic"] in created:
            yield Anomaly("topic denied", f"{event.process}, {event.operation} {begun.value}: {event.value['error']}")


def _nothing_there(history: History) -> Iterator[Anomaly]:
    """Yield an anomaly where no record was found below the log end, unless the power was lost in between."""
    power_losses_at_start: dict[Any, int] = {}
    power_losses = 0
    for event in history.events:
        if event.operation == POWER_LOSS:
            power_losses += 1
        elif event.operation == "latest" and event.kind is Kind.OK:
            power_losses_at_start[event.process] = power_losses
        elif event.operation == "nothing there" and power_losses_at_start.get(event.value["reader"]) == power_losses:
            yield Anomaly("nothing there", str(event.value))


def _times(history: History, final_read: FinalRead, world: World) -> Iterator[Anomaly]:
    """Yield an anomaly for each wrong offset by timestamp; only calls of the last era can be checked."""
    calls, last_era = calls_of(history)
    for call in calls:
        if not call.is_ok or call.begun.operation != "offset_for_time" or call.era != last_era:
            continue
        times = [world.timestamps.get(value, -1) for _, value in final_read.records.get(call.place, [])]
        wanted, offset, found = call["timestamp"], call["offset"], call["found_timestamp"]
        if offset < 0 or offset >= len(times):
            continue  # no record matches, or a loss that the history checker reports
        if times[offset] != found:
            yield Anomaly("wrong time", f"{call.place} offset {offset} has {times[offset]}, the response was {found}")
        elif wanted == MAX_TIMESTAMP:
            if any(time >= found for time in times[:offset]):
                yield Anomaly("wrong time", f"{call.place}: {offset} is not the first with {found}")
        elif found < wanted or any(time >= wanted for time in times[:offset]):
            yield Anomaly("wrong time", f"{call.place}: {offset} with {found} is not the first from {wanted} on")
