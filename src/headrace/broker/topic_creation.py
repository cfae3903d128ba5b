"""Topics that come to be because somebody asked for them (auto.create.topics.enable)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence

from headrace.base.errors import ErrorCode, HeadraceError
from headrace.broker.forwarding import Forwarding
from headrace.metadata.image import Image
from headrace.protocol.messages.create_topics import CreateTopicsRequest, CreateTopicsResponse
from headrace.server.context import Peer

log = logging.getLogger(__name__)

CREATE_VERSION = 7
SEEN_WITHIN_S = 1.0  # how long an answer waits for our own image to show what the controller committed


class TopicCreation:
    def __init__(
        self, forwarding: Forwarding, image: Callable[[], Image], settle: Callable[[], Awaitable[None]]
    ) -> None:
        """`settle` returns when this broker has opened the partitions that its image gives it."""
        self._forwarding = forwarding
        self._image = image
        self._settle = settle
        self._waiting: list[asyncio.Future[None]] = []
        self._internal: asyncio.Future[dict[str, ErrorCode]] | None = None

    def publish(self, old: Image, new: Image, changes: object) -> None:
        """A metadata publisher: whoever waits for a topic looks again."""
        waiting, self._waiting = self._waiting, []
        for future in waiting:
            if not future.done():
                future.set_result(None)

    async def create(self, names: Sequence[str], peer: Peer, client_id: str | None) -> dict[str, ErrorCode]:
        """With the cluster's default counts. Names that exist by now are no error."""
        topics = [
            CreateTopicsRequest.CreatableTopic(name=name, num_partitions=-1, replication_factor=-1) for name in names
        ]
        return await self._create(topics, peer, client_id)

    async def create_internal(self, topic: CreateTopicsRequest.CreatableTopic) -> None:
        """For the node itself; many may ask for it at once, and one request is made."""
        if self._internal is None or self._internal.done():
            self._internal = asyncio.ensure_future(self._create([topic], Peer("", "local"), None))
        for name, code in (await asyncio.shield(self._internal)).items():
            log.warning("%s could not be made: %s", name, code.name)

    async def _create(
        self, topics: list[CreateTopicsRequest.CreatableTopic], peer: Peer, client_id: str | None
    ) -> dict[str, ErrorCode]:
        names = [topic.name for topic in topics]
        request = CreateTopicsRequest(topics=topics)
        try:
            answer: CreateTopicsResponse = await self._forwarding.forward(request, CREATE_VERSION, peer, client_id)
        except (OSError, HeadraceError):
            return dict.fromkeys(names, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        errors = {topic.name: ErrorCode(topic.error_code) for topic in answer.topics}
        made = [name for name, code in errors.items() if code in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS)]
        await self.wait_until(lambda image: all(name in image.topics for name in made))
        return {name: code for name, code in errors.items() if name not in made}

    async def wait_until(self, seen: Callable[[Image], bool]) -> bool:
        """Until our image shows it and our partitions are open, but not long: Kafka promises nothing here, and a client retries."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + SEEN_WITHIN_S
        try:
            while not seen(self._image()):
                future: asyncio.Future[None] = loop.create_future()
                self._waiting.append(future)
                await asyncio.wait_for(future, deadline - loop.time())
            await asyncio.wait_for(self._settle(), deadline - loop.time())
        except TimeoutError:
            pass
        return seen(self._image())
