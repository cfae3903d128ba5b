"""Partition counts for a producer: requested once per topic, waiting up to max.block.ms."""

from __future__ import annotations

import asyncio
from random import Random

from headrace.base.errors import ErrorCode, HeadraceError, KafkaError
from headrace.client.producer.options import ProducerSettings
from headrace.client.producer.outcomes import error_code
from headrace.client.retry import DeadlineExceeded, Retry, RetryPolicy
from headrace.client.wire.cluster import Cluster


class TopicCounts:
    """Looks up partition counts; `topics` holds all topics found so far."""

    def __init__(self, cluster: Cluster, settings: ProducerSettings, random: Random) -> None:
        self._cluster = cluster
        self._settings = settings
        self._random = random
        self._lookups: dict[str, asyncio.Lock] = {}
        self.topics: set[str] = set()

    async def count(self, topic: str) -> int:
        if topic not in self.topics:
            async with self._lookups.setdefault(topic, asyncio.Lock()):  # one request serves all waiting callers
                if topic not in self.topics:
                    await self._find(topic)
                    self.topics.add(topic)
            self._lookups.pop(topic, None)
        return await self._cluster.partition_count(topic, create=True)

    async def _find(self, topic: str) -> None:
        """Wait until the topic exists; its leaders may be elected later."""

        async def attempt() -> None:
            response = await self._cluster.refresh([topic], create=True)
            code = error_code(response.topics[0].error_code)
            if code is not ErrorCode.NONE:
                raise KafkaError(code, f"topic {topic}")

        policy = RetryPolicy(self._settings.retry_backoff, exceptions=(HeadraceError,))
        try:
            await Retry(policy, self._settings.block_s, random=self._random).run(attempt, cut_off=True)
        except HeadraceError as error:
            if isinstance(error, KafkaError) and not error.retriable:
                raise
            failure = error.__cause__ if isinstance(error, DeadlineExceeded) and error.__cause__ else error
            raise KafkaError(
                ErrorCode.REQUEST_TIMED_OUT,
                f"topic {topic} is not known after {self._settings.block_s:g} s (max.block.ms): {failure}",
            ) from failure
