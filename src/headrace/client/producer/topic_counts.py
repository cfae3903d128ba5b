"""Partition counts for a producer: requested once per topic, waiting up to max.block.ms."""

from __future__ import annotations

import asyncio
from random import Random

from headrace.base.errors import RETRIABLE, ErrorCode, HeadraceError, KafkaError
from headrace.client.background_tasks import pause_s
from headrace.client.producer.options import ProducerSettings
from headrace.client.producer.outcomes import error_code
from headrace.client.wire.cluster import Cluster


class TopicCounts:
    """Looks up partition counts; `topics` holds all topics found so far."""

    def __init__(self, cluster: Cluster, settings: ProducerSettings, random: Random) -> None:
        self._cluster = cluster
        self._settings = settings
        self._random = random
        self._asking: dict[str, asyncio.Lock] = {}
        self.topics: set[str] = set()

    async def count(self, topic: str) -> int:
        if topic not in self.topics:
            async with self._asking.setdefault(topic, asyncio.Lock()):  # one request serves all waiting callers
                if topic not in self.topics:
                    await self._find(topic)
                    self.topics.add(topic)
            self._asking.pop(topic, None)
        return await self._cluster.partition_count(topic, create=True)

    async def _find(self, topic: str) -> None:
        """Wait until the topic exists; its leaders may be elected later."""
        now = asyncio.get_running_loop().time
        deadline = now() + self._settings.block_s
        failures = 0
        failure: Exception | None = None
        while True:
            try:
                async with asyncio.timeout_at(deadline):
                    response = await self._cluster.refresh([topic], create=True)
                code = error_code(response.topics[0].error_code)
                if code is ErrorCode.NONE:
                    return
                failure = KafkaError(code, f"topic {topic}")
                if code not in RETRIABLE:
                    raise failure
            except HeadraceError as error:
                if isinstance(error, KafkaError) and not error.retriable:
                    raise
                failure = error
            except TimeoutError as error:
                failure = failure or error
            failures += 1
            pause = pause_s(self._settings.retry_backoff_s, failures, self._random)
            if now() + pause >= deadline:
                raise KafkaError(
                    ErrorCode.REQUEST_TIMED_OUT,
                    f"topic {topic} is not known after {self._settings.block_s:g} s (max.block.ms): {failure}",
                ) from failure
            await asyncio.sleep(pause)
