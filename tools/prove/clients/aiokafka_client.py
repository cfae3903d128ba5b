"""aiokafka: asyncio, pure Python with a compiled record codec."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from tools.prove.clients.samples import Sample, Seen, WriteOptions, full_samples

WAIT_S_MAX = 30.0


class AiokafkaClient:
    name = "aiokafka"

    def missing(self, codec: str) -> str | None:
        try:
            from aiokafka import codec as codecs
        except ImportError:
            return "aiokafka is not installed"
        if codec != "none" and not getattr(codecs, f"has_{codec}")():
            return f"aiokafka has no {codec} library here"
        return None

    def samples(self) -> Sequence[Sample]:
        return full_samples(bare=False)

    def write(self, bootstrap: str, topic: str, samples: Sequence[Sample], options: WriteOptions) -> None:
        asyncio.run(asyncio.wait_for(self._write(bootstrap, topic, samples, options), WAIT_S_MAX))

    async def _write(self, bootstrap: str, topic: str, samples: Sequence[Sample], options: WriteOptions) -> None:
        from aiokafka import AIOKafkaProducer

        producer = AIOKafkaProducer(
            bootstrap_servers=bootstrap,
            acks="all" if options.acks == "all" else int(options.acks),
            enable_idempotence=options.idempotent,
            compression_type=None if options.codec == "none" else options.codec,
            linger_ms=20,
        )
        await producer.start()
        try:
            sent = [
                await producer.send(
                    topic,
                    sample.value,
                    sample.key,
                    partition=0,
                    timestamp_ms=sample.timestamp,
                    headers=list(sample.headers),
                )
                for sample in samples
            ]
            await asyncio.gather(*sent)
        finally:
            await producer.stop()

    def read(self, bootstrap: str, topic: str, offset: int, count: int) -> list[Seen]:
        return asyncio.run(asyncio.wait_for(self._read(bootstrap, topic, offset, count), WAIT_S_MAX))

    async def _read(self, bootstrap: str, topic: str, offset: int, count: int) -> list[Seen]:
        from aiokafka import TopicPartition

        seen: list[Seen] = []
        consumer = self._consumer(bootstrap)
        await consumer.start()
        try:
            partition = TopicPartition(topic, 0)
            consumer.assign([partition])
            consumer.seek(partition, offset)
            while len(seen) < count:
                message = await consumer.getone()
                headers = tuple((name, value) for name, value in message.headers)
                seen.append(Seen(message.offset, message.timestamp, message.key, message.value, headers))
        finally:
            await consumer.stop()
        return seen

    def offset_for_time(self, bootstrap: str, topic: str, timestamp: int) -> int:
        return asyncio.run(asyncio.wait_for(self._offset_for_time(bootstrap, topic, timestamp), WAIT_S_MAX))

    async def _offset_for_time(self, bootstrap: str, topic: str, timestamp: int) -> int:
        from aiokafka import TopicPartition

        consumer = self._consumer(bootstrap)
        await consumer.start()
        try:
            partition = TopicPartition(topic, 0)
            found = (await consumer.offsets_for_times({partition: timestamp}))[partition]
            return -1 if found is None else int(found.offset)
        finally:
            await consumer.stop()

    def _consumer(self, bootstrap: str) -> Any:
        from aiokafka import AIOKafkaConsumer

        return AIOKafkaConsumer(
            bootstrap_servers=bootstrap,
            group_id=None,
            enable_auto_commit=False,
            auto_offset_reset="none",
            check_crcs=True,
        )
