"""Follows the metadata log: fetches it from the controller like any observer of the quorum, and hands it to the loader."""

from __future__ import annotations

import asyncio
import logging

from headrace.base.errors import ErrorCode, HeadraceError
from headrace.base.ids import METADATA_TOPIC_ID, NodeId
from headrace.broker.controller_channel import ControllerChannel
from headrace.metadata.loader import MetadataLoader
from headrace.protocol.messages.fetch import FetchRequest, FetchResponse
from headrace.quorum.log import decode_metadata

log = logging.getLogger(__name__)

FETCH_BYTES = 1 << 20
FETCH_WAIT_MS = 500
RETRY_S = 0.2


class MetadataObserver:
    def __init__(self, channel: ControllerChannel, loader: MetadataLoader, node_id: NodeId, cluster_id: str) -> None:
        self._channel = channel
        self._loader = loader
        self._node_id = node_id
        self._cluster_id = cluster_id
        self._next_offset = 0
        self._epoch = 0
        self._caught_up = False
        self.high_watermark = 0

    async def run(self) -> None:
        """For ever; a controller that does not answer is asked again."""
        while True:
            try:
                await self._fetch()
            except (OSError, HeadraceError) as error:
                log.warning("the metadata log could not be fetched (%s); next try in %.1f s", error, RETRY_S)
                await asyncio.sleep(RETRY_S)

    async def _fetch(self) -> None:
        request = FetchRequest(
            cluster_id=self._cluster_id,
            replica_state=FetchRequest.ReplicaState(replica_id=self._node_id),
            max_wait_ms=FETCH_WAIT_MS,
            min_bytes=1,
            max_bytes=FETCH_BYTES,
            topics=[
                FetchRequest.FetchTopic(
                    topic_id=METADATA_TOPIC_ID,
                    partitions=[
                        FetchRequest.FetchPartition(
                            fetch_offset=self._next_offset,
                            last_fetched_epoch=self._epoch,
                            partition_max_bytes=FETCH_BYTES,
                            high_watermark=self.high_watermark,
                        )
                    ],
                )
            ],
        )
        answer: FetchResponse = await self._channel.request(request)
        code = answer.error_code or answer.responses[0].partitions[0].error_code
        if code != ErrorCode.NONE:
            raise HeadraceError(f"the controller answered {ErrorCode(code).name}")
        data = answer.responses[0].partitions[0]
        self.high_watermark = data.high_watermark
        records = data.records
        assert records is None or isinstance(records, bytes | memoryview)
        for batch in decode_metadata(bytes(records or b"")):
            if batch.last_offset < self._next_offset:
                continue
            assert batch.last_offset < data.high_watermark, "the controller sent what is not committed"
            # A node that starts is shown the present only: in the past a name may have meant another topic, whose directory
            # would then be taken for a leftover.
            self._caught_up = self._caught_up or batch.last_offset + 1 >= data.high_watermark
            self._loader.apply(
                [record for record in batch.records if record is not None],
                batch.last_offset,
                batch.epoch,
                more=not self._caught_up,
            )
            self._next_offset, self._epoch = batch.last_offset + 1, batch.epoch
