"""GetTelemetrySubscriptions 0 and PushTelemetry 0 (KIP-714): clients get a subscription and push their metrics.

Payloads are decompressed and read one at a time, in slices: a flood of them uses the memory of one and does not block the loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from headrace.api.permissions import NOTHING
from headrace.base.errors import ErrorCode, KafkaError
from headrace.base.ids import Uuid
from headrace.base.metrics import Metrics
from headrace.broker.client_telemetry import Client, ClientTelemetry, Instance
from headrace.observe.client_series import ClientSeries
from headrace.observe.otlp import BadMetrics, Kind, read_points
from headrace.protocol.apis import ApiKey
from headrace.protocol.messages.get_telemetry_subscriptions import (
    GetTelemetrySubscriptionsRequest,
    GetTelemetrySubscriptionsResponse,
)
from headrace.protocol.messages.push_telemetry import PushTelemetryRequest, PushTelemetryResponse
from headrace.records.batch import Buffer, CorruptBatch
from headrace.records.compression import Codec, TooLarge, decompress
from headrace.server.context import RequestContext
from headrace.server.dispatch import HoldFrame, Service

# In Kafka's order of preference: clients use the first that they support.
ACCEPTED = [Codec.ZSTD, Codec.LZ4, Codec.GZIP, Codec.SNAPPY]
UNKNOWN_SOFTWARE = "unknown"  # Kafka's value for clients that did not send it
CLIENT_ID_CHARS_MAX = 512  # longer ones are truncated
SLICE_S = 0.002  # time after which reading a payload yields to the event loop


class TelemetryApi:
    def __init__(
        self, telemetry: ClientTelemetry, series: ClientSeries, metrics: Metrics, loop: asyncio.AbstractEventLoop
    ) -> None:
        self._telemetry = telemetry
        self._series = series
        self._metrics = metrics
        self._loop = loop
        self._reading = asyncio.Lock()
        self._pushes = metrics.counter(
            "headrace_client_telemetry_pushes_total", "Pushes of clients' metrics that were taken."
        )
        metrics.gauge(
            "kafka_server_client_metrics_instance_count",
            "Clients that requested a subscription or pushed metrics.",
            lambda: float(len(telemetry)),
        )
        metrics.gauge(
            "headrace_client_telemetry_series", "Lines of clients' metrics on this page.", lambda: float(len(series))
        )
        metrics.texts.append(self._expose)

    def services(self) -> list[Service]:
        def is_listed() -> bool:
            # Without a subscription, librdkafka would send these requests to every broker and log that there is none.
            return self._telemetry.has_subscriptions

        return [
            # As in Kafka, every client that may connect may push its metrics.
            Service(ApiKey.GET_TELEMETRY_SUBSCRIPTIONS, (0, 0), self.get_subscriptions, NOTHING, is_listed=is_listed),
            Service(ApiKey.PUSH_TELEMETRY, (0, 0), self.push, NOTHING, is_listed=is_listed),
        ]

    def get_subscriptions(
        self, context: RequestContext, request: GetTelemetrySubscriptionsRequest
    ) -> GetTelemetrySubscriptionsResponse:
        try:
            instance = self._telemetry.subscribe(Uuid(request.client_instance_id), _client(context), self._now_ms())
        except KafkaError as error:
            self._count_refusal(error.code)
            return GetTelemetrySubscriptionsResponse(error_code=error.code)
        return GetTelemetrySubscriptionsResponse(
            client_instance_id=instance.id,
            subscription_id=instance.subscription_id,
            accepted_compression_types=list(ACCEPTED),
            push_interval_ms=instance.interval_ms,
            telemetry_max_bytes=self._telemetry.payload_bytes_max,
            delta_temporality=True,
            requested_metrics=list(instance.metrics),
        )

    def push(self, context: RequestContext, request: PushTelemetryRequest) -> PushTelemetryResponse | HoldFrame:
        try:
            instance = self._telemetry.admit(request, _client(context), self._now_ms())
        except KafkaError as error:
            self._count_refusal(error.code)
            return PushTelemetryResponse(error_code=error.code)
        if not request.metrics:
            self._pushes.value += 1
            return PushTelemetryResponse()
        return HoldFrame(self._receive(instance, request))

    async def _receive(self, instance: Instance, request: PushTelemetryRequest) -> PushTelemetryResponse:
        async with self._reading:
            try:
                await self._take(instance, await self._unfold(request))
            except TooLarge:
                code = ErrorCode.TELEMETRY_TOO_LARGE
            except (CorruptBatch, BadMetrics):
                code = ErrorCode.INVALID_RECORD
            else:
                self._pushes.value += 1
                return PushTelemetryResponse()
            finally:
                if not self._telemetry.knows(instance.id):  # evicted in the meantime by newer clients
                    self._series.forget(instance.name)
        instance.last_error = code
        self._count_refusal(code)
        return PushTelemetryResponse(error_code=code)

    async def _unfold(self, request: PushTelemetryRequest) -> Buffer:
        """Decompress the payload in a thread: a few bytes may expand to telemetry.max.bytes."""
        if request.compression_type == Codec.NONE:
            return request.metrics
        limit = self._telemetry.payload_bytes_max
        return await self._loop.run_in_executor(None, decompress, request.compression_type, request.metrics, limit)

    async def _take(self, instance: Instance, data: Buffer) -> None:
        labels = instance.client.labels()
        now_ms = self._now_ms()
        slice_end = self._loop.time() + SLICE_S
        for point in read_points(data):
            if point is not None:
                if point.kind is Kind.OTHER:
                    dropped: str | None = "unknown_kind"
                elif not instance.wants(point.name):
                    dropped = "not_requested"
                else:
                    dropped = self._series.take(instance.name, labels, point, now_ms)
                if dropped is not None:
                    self._count_dropped(dropped)
            if self._loop.time() > slice_end:
                await asyncio.sleep(0)
                slice_end = self._loop.time() + SLICE_S
        self._series.forget(instance.name, before_ms=now_ms - instance.retention_ms)

    def _expose(self) -> Iterator[bytes]:
        self._telemetry.sweep(self._now_ms())
        return self._series.expose()

    def _now_ms(self) -> float:
        return self._loop.time() * 1000

    def _count_refusal(self, code: ErrorCode) -> None:
        self._metrics.counter(
            "headrace_client_telemetry_refusals_total",
            "Requests of KIP-714 that were refused; INVALID_RECORD: a payload that is not OTLP metrics.",
            error=code.name,
        ).value += 1

    def _count_dropped(self, reason: str) -> None:
        self._metrics.counter(
            "headrace_client_telemetry_dropped_points_total",
            "Points of clients' metrics that are not shown.",
            reason=reason,
        ).value += 1


def _client(context: RequestContext) -> Client:
    name, _, version = context.peer.client_software.partition(" ")
    return Client(
        None if context.client_id is None else context.client_id[:CLIENT_ID_CHARS_MAX],
        name or UNKNOWN_SOFTWARE,
        version or UNKNOWN_SOFTWARE,
        context.peer.address,
        context.peer.source_port,
    )
