"""Creates topics on demand: those that clients request (auto.create.topics.enable) and the coordinators' internal topics."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence

from headrace.base.errors import ErrorCode, HeadraceError
from headrace.broker.channels.controller_channel import ControllerChannel
from headrace.broker.channels.forwarding import Forwarding
from headrace.metadata.image import Image
from headrace.protocol.messages.create_topics import CreateTopicsRequest, CreateTopicsResponse
from headrace.server.context import Peer

log = logging.getLogger(__name__)

CREATE_VERSION = 7
_EXISTS = (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS)
SEEN_WITHIN_S = 5.0  # how long a response waits for this broker's image to include what the controller committed


class TopicCreation:
    """Creates topics and waits until this broker can serve them.

    `settle` returns when this broker has opened the partitions that its image assigns to it. `internal_topics` maps names to topics as the
    coordinators need them, no matter which client causes their creation.
    """

    def __init__(
        self,
        channel: ControllerChannel,
        forwarding: Forwarding,
        image: Callable[[], Image],
        settle: Callable[[], Awaitable[None]],
        internal_topics: Mapping[str, CreateTopicsRequest.CreatableTopic],
    ) -> None:
        self._channel = channel
        self._forwarding = forwarding
        self._image = image
        self._settle = settle
        self._internal_topics = internal_topics
        self._waiting: list[asyncio.Future[None]] = []
        self._creating: dict[str, asyncio.Task[None]] = {}  # pending requests for internal topics, by name

    def publish(self, old: Image, new: Image, changes: object) -> None:
        """Wake the waiters of `wait_until` so that they check the new image."""
        waiting, self._waiting = self._waiting, []
        for future in waiting:
            if not future.done():
                future.set_result(None)

    async def create(self, names: Sequence[str], peer: Peer, client_id: str | None) -> dict[str, ErrorCode]:
        """Create topics on behalf of a client, with the cluster's default counts, and return the errors by name.

        Topics that already exist are not an error.
        """
        topics = [
            self._internal_topics.get(name)
            or CreateTopicsRequest.CreatableTopic(name=name, num_partitions=-1, replication_factor=-1)
            for name in names
        ]
        request = CreateTopicsRequest(topics=topics)
        try:
            response: CreateTopicsResponse = await self._forwarding.send(request, CREATE_VERSION, peer, client_id)
        except (OSError, HeadraceError):
            return dict.fromkeys(names, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        errors = {topic.name: ErrorCode(topic.error_code) for topic in response.topics}
        created = [name for name, code in errors.items() if code in _EXISTS]
        await self.wait_until(lambda image: all(name in image.topics for name in created))
        return {name: code for name, code in errors.items() if name not in created}

    async def create_internal(self, name: str) -> None:
        """Create a coordinator's topic; concurrent calls for the same topic share one request.

        The broker sends the request as itself, so that a client that needs a coordinator needs no permission to create topics.
        """
        task = self._creating.get(name)
        if task is None:
            task = self._creating[name] = asyncio.create_task(self._create_internal(self._internal_topics[name]))
            task.add_done_callback(lambda _: self._creating.pop(name, None))
        await asyncio.shield(task)

    async def _create_internal(self, topic: CreateTopicsRequest.CreatableTopic) -> None:
        try:
            response: CreateTopicsResponse = await self._channel.request(CreateTopicsRequest(topics=[topic]))
        except (OSError, HeadraceError) as error:
            log.warning(
                "internal topic %s was not created: %s; the next request that needs it tries again", topic.name, error
            )
            return
        result = response.topics[0]
        code = ErrorCode(result.error_code)
        if code not in _EXISTS:
            log.warning("internal topic %s was not created: %s %s", topic.name, code.name, result.error_message or "")
            return
        await self.wait_until(lambda image: topic.name in image.topics)

    async def wait_until(self, seen: Callable[[Image], bool]) -> bool:
        """Wait until `seen` is true of the image and this broker's partitions are open; return whether `seen` is true.

        The wait is limited to `SEEN_WITHIN_S`: Kafka guarantees nothing here, and clients retry.
        """
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
