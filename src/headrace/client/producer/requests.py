"""Builds Produce requests and assigns responses to batches: by topic id if the broker supports it, else by name."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from headrace.base.ids import Uuid
from headrace.client.producer.batches import ProducerBatch
from headrace.protocol.messages.produce import ProduceRequest, ProduceResponse

BY_ID_VERSION_MIN = 13
BEFORE_IMPLICIT_ADD_VERSION = 11  # from 12 on, a transactional batch adds its partition to the transaction (KIP-890)
ZSTD_VERSION_MIN = 7


class Prepared(NamedTuple):
    request: ProduceRequest
    version: int
    by_key: dict[tuple[str | Uuid, int], ProducerBatch]


def prepare(
    batches: Sequence[ProducerBatch],
    version: int,
    topic_id: Callable[[str], Uuid],
    *,
    acks: int,
    timeout_ms: int,
    transactional_id: str | None,
) -> Prepared:
    topics: dict[str, ProduceRequest.TopicProduceData] = {}
    by_key: dict[tuple[str | Uuid, int], ProducerBatch] = {}
    for batch in batches:
        name, index = batch.partition
        topic = topics.get(name)
        if topic is None:
            topic = topics[name] = ProduceRequest.TopicProduceData(name=name, partition_data=[])
            if version >= BY_ID_VERSION_MIN:
                topic.topic_id = topic_id(name)
        topic.partition_data.append(ProduceRequest.PartitionProduceData(index=index, records=batch.stamp()))
        by_key[topic.topic_id if version >= BY_ID_VERSION_MIN else name, index] = batch
    request = ProduceRequest(
        transactional_id=transactional_id, acks=acks, timeout_ms=timeout_ms, topic_data=list(topics.values())
    )
    return Prepared(request, version, by_key)


def pair_responses(
    prepared: Prepared, response: ProduceResponse
) -> Iterator[tuple[ProducerBatch, ProduceResponse.PartitionProduceResponse | None]]:
    """Yield each batch once, with its response, or None if the broker leaves it out."""
    waiting = dict(prepared.by_key)
    for topic in response.responses:
        key = topic.topic_id if prepared.version >= BY_ID_VERSION_MIN else topic.name
        for partition_response in topic.partition_responses:
            batch = waiting.pop((key, partition_response.index), None)
            if batch is not None:
                yield batch, partition_response
    for batch in waiting.values():
        yield batch, None


def reason(partition_response: ProduceResponse.PartitionProduceResponse) -> str:
    """Return the broker's error message, if there is one."""
    texts = [
        error.batch_index_error_message for error in partition_response.record_errors if error.batch_index_error_message
    ]
    return partition_response.error_message or (texts[0] if texts else "")
