"""Client metrics (KIP-714): which subscriptions match a client instance, when it may get and push, and when it expires.

The rules are those of Kafka's brokers, with one difference. In Kafka an instance ends with its connection; here a request over another
connection replaces the instance, and otherwise its series stay until it expires, so that the next scrape still sees a short-lived client.
"""

from __future__ import annotations

import ipaddress
import logging
from collections import OrderedDict
from math import inf
from random import Random

from crc32c import crc32c
from msgspec import Struct

from headrace.base.errors import ErrorCode, KafkaError
from headrace.base.ids import METADATA_TOPIC_ID, ZERO_UUID, Uuid, new_uuid, uuid_text
from headrace.metadata.image import METRICS_CONFIG, Image
from headrace.metadata.loader import Changes
from headrace.metadata.subscriptions import ALL_METRICS, Subscription, read_subscription
from headrace.observe.client_series import ClientSeries
from headrace.options.resource_options import CLIENT_METRICS_OPTIONS
from headrace.protocol.messages.push_telemetry import PushTelemetryRequest
from headrace.records.compression import Codec

log = logging.getLogger(__name__)

INSTANCES_MAX = 16_384  # above this, the least recently used is removed
EXPIRY_MS_MIN = 60_000
EXPIRY_INTERVALS = 3
SWEEP_MS = 5_000
FORGOTTEN_LINES_MAX = 4_000  # lines of /metrics removed in one iteration of the event loop
# After these errors a client has to get its subscriptions again before the interval is over.
_RESUBSCRIBE = frozenset({ErrorCode.UNKNOWN_SUBSCRIPTION_ID, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE})
_RESERVED = frozenset({ZERO_UUID, METADATA_TOPIC_ID})


class Client(Struct, frozen=True):
    """The sender of a request, as described by the request and its connection."""

    client_id: str | None
    software_name: str
    software_version: str
    address: str
    port: int

    def selectors(self, instance_id: Uuid) -> dict[str, tuple[str, ...]]:
        return {
            "client_instance_id": (uuid_text(instance_id),),
            "client_id": () if self.client_id is None else (self.client_id,),
            "client_software_name": (self.software_name,),
            "client_software_version": (self.software_version,),
            "client_source_address": _address_spellings(self.address),
            "client_source_port": (str(self.port),),
        }

    def labels(self) -> dict[str, str]:
        return {
            "client_id": self.client_id or "",
            "client_software_name": self.software_name,
            "client_software_version": self.software_version,
        }


class Instance(Struct):
    id: Uuid
    client: Client
    metrics: tuple[str, ...]  # prefixes of the subscribed metric names, or ALL_METRICS
    interval_ms: int
    subscription_id: int
    version: int  # version of the subscriptions that the instance was made from
    last_get_ms: float = -inf
    last_push_ms: float = -inf
    is_terminating: bool = False
    last_error: ErrorCode = ErrorCode.NONE
    expires_ms: float = inf

    @property
    def name(self) -> str:
        return uuid_text(self.id)

    @property
    def retention_ms(self) -> int:
        """Return how long the instance is kept after its last request."""
        return max(EXPIRY_MS_MIN, EXPIRY_INTERVALS * self.interval_ms)

    def wants(self, metric: str) -> bool:
        return self.metrics == (ALL_METRICS,) or metric.startswith(self.metrics)

    def may_get(self, now_ms: float) -> bool:
        if now_ms - max(self.last_get_ms, self.last_push_ms) < self.interval_ms:
            return self.last_error in _RESUBSCRIBE
        self.last_get_ms = now_ms
        return True

    def may_push(self, now_ms: float) -> bool:
        """Return whether a push is allowed now, and if so record it.

        The first push after getting the subscriptions is always allowed, because clients randomize their first interval.
        """
        if self.last_get_ms <= self.last_push_ms and now_ms - self.last_push_ms < self.interval_ms:
            return False
        self.last_push_ms = now_ms
        return True


class ClientTelemetry:
    def __init__(self, series: ClientSeries, payload_bytes_max: int, random: Random) -> None:
        self._series = series
        self.payload_bytes_max = payload_bytes_max
        self._random = random
        self._subscriptions: dict[str, Subscription] = {}
        self._version = 0
        self._instances: OrderedDict[Uuid, Instance] = OrderedDict()  # least recently used first
        self._swept_ms = -inf

    def __len__(self) -> int:
        return len(self._instances)

    @property
    def has_subscriptions(self) -> bool:
        """Return whether there is any subscription, so that clients should be offered the telemetry APIs."""
        return bool(self._subscriptions)

    def knows(self, instance_id: Uuid) -> bool:
        return instance_id in self._instances

    def publish(self, old: Image, new: Image, changes: Changes) -> None:
        for kind, name in changes.configs:
            if kind != METRICS_CONFIG:
                continue
            self._version += 1
            self._subscriptions.pop(name, None)
            configs = new.config(METRICS_CONFIG, name)
            try:
                if configs:
                    self._subscriptions[name] = read_subscription(configs)
            except KafkaError as error:  # written by another program or an earlier version
                log.error("the client-metrics subscription %s is not used: %s", name, error.message)

    def subscribe(self, instance_id: Uuid, client: Client, now_ms: float) -> Instance:
        """Return the instance that a GetTelemetrySubscriptions request is about. Raise KafkaError if it comes too early."""
        self.sweep(now_ms)
        is_new = instance_id == ZERO_UUID
        while instance_id == ZERO_UUID or (is_new and instance_id in self._instances):
            instance_id = new_uuid(self._random)
        instance = self._instance(instance_id, client, now_ms)
        if not instance.may_get(now_ms):
            raise _too_early(instance)
        instance.last_error = ErrorCode.NONE
        return instance

    def admit(self, request: PushTelemetryRequest, client: Client, now_ms: float) -> Instance:
        """Check a PushTelemetry request without its payload and return its instance. Raise KafkaError if it is refused."""
        instance_id = Uuid(request.client_instance_id)
        if instance_id in _RESERVED:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"{uuid_text(instance_id)} is no client instance id")
        instance = self._instance(instance_id, client, now_ms)
        try:
            self._check(request, instance, now_ms)
        except KafkaError as error:
            instance.last_error = error.code
            raise
        finally:
            instance.is_terminating = request.terminating
        instance.last_error = ErrorCode.NONE
        return instance

    def _check(self, request: PushTelemetryRequest, instance: Instance, now_ms: float) -> None:
        if instance.is_terminating:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST, f"client instance {instance.name} has announced its termination"
            )
        if not instance.may_push(now_ms) and not request.terminating:
            raise _too_early(instance)
        if request.subscription_id != instance.subscription_id:
            raise KafkaError(ErrorCode.UNKNOWN_SUBSCRIPTION_ID, f"client instance {instance.name} has another by now")
        if not Codec.NONE <= request.compression_type <= Codec.ZSTD:
            raise KafkaError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"there is no codec {request.compression_type}")
        if len(request.metrics) > self.payload_bytes_max:
            raise KafkaError(
                ErrorCode.TELEMETRY_TOO_LARGE,
                f"{len(request.metrics)} bytes of metrics; telemetry.max.bytes is {self.payload_bytes_max}",
            )

    def sweep(self, now_ms: float) -> None:
        """Remove expired instances, at most every `SWEEP_MS`.

        Called on demand, by requests and scrapes: nothing observes an expired instance before then.
        """
        if now_ms - self._swept_ms < SWEEP_MS:
            return
        lines = len(self._series)
        for instance in [one for one in self._instances.values() if one.expires_ms <= now_ms]:
            self._forget(instance.id)
            if lines - len(self._series) >= FORGOTTEN_LINES_MAX:
                return  # the next call removes the rest
        self._swept_ms = now_ms

    def _forget(self, instance_id: Uuid) -> None:
        self._series.forget(self._instances.pop(instance_id).name)

    def _instance(self, instance_id: Uuid, client: Client, now_ms: float) -> Instance:
        instance = self._instances.get(instance_id)
        if (
            instance is None
            or instance.version < self._version
            or (instance.client.address, instance.client.port) != (client.address, client.port)
        ):
            instance = self._instances[instance_id] = self._make(instance_id, client)
        self._instances.move_to_end(instance_id)
        instance.expires_ms = now_ms + instance.retention_ms
        if len(self._instances) > INSTANCES_MAX:
            self._forget(next(iter(self._instances)))
        return instance

    def _make(self, instance_id: Uuid, client: Client) -> Instance:
        selectors = client.selectors(instance_id)
        requested: set[str] = set()
        interval_ms = CLIENT_METRICS_OPTIONS["interval.ms"].default
        assert isinstance(interval_ms, int)
        for subscription in self._subscriptions.values():
            if subscription.includes(selectors):
                requested.update(subscription.metrics)
                interval_ms = min(interval_ms, subscription.interval_ms)
        metrics = (ALL_METRICS,) if ALL_METRICS in requested else tuple(sorted(requested))
        return Instance(
            instance_id,
            client,
            metrics,
            interval_ms,
            _subscription_id(metrics, interval_ms, instance_id),
            self._version,
        )


def _too_early(instance: Instance) -> KafkaError:
    return KafkaError(
        ErrorCode.THROTTLING_QUOTA_EXCEEDED,
        f"client instance {instance.name} sends requests more often than every {instance.interval_ms} ms",
    )


def _subscription_id(metrics: tuple[str, ...], interval_ms: int, instance_id: Uuid) -> int:
    """Return the subscription id as Kafka computes it, so that a client can move from one broker to another.

    It combines a checksum of Java's string form of the set with Java's hash of the id. Names are sorted; Java's set order is unspecified.
    """
    checksum = crc32c(f"[{', '.join(metrics)}]{interval_ms}".encode())
    words = [int.from_bytes(instance_id[at : at + 4], "big") for at in range(0, 16, 4)]
    for word in words:
        checksum ^= word
    return int.from_bytes(checksum.to_bytes(4, "big"), "big", signed=True)


def _address_spellings(address: str) -> tuple[str, ...]:
    """Return the address as Python and as Java write it; Java writes all eight groups of an IPv6 address."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return (address,)
    if isinstance(parsed, ipaddress.IPv4Address):
        return (str(parsed),)
    if parsed.ipv4_mapped is not None:
        return (str(parsed.ipv4_mapped),)
    groups = (parsed.packed[at : at + 2].hex() for at in range(0, 16, 2))
    scope = "" if parsed.scope_id is None else f"%{parsed.scope_id}"
    return (str(parsed), ":".join(f"{int(group, 16):x}" for group in groups) + scope)
