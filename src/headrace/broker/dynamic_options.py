"""Broker options that can change at runtime (KIP-226): records of the metadata log that override the node's settings.

A value for one broker overrides the value for all brokers, and both override the settings. Code that must act on a change subscribes;
code that reads `values` each time need not.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from headrace.base.errors import ErrorCode, KafkaError
from headrace.base.ids import NodeId
from headrace.metadata.image import BROKER_CONFIG, NO_CONFIG, Image
from headrace.metadata.layers import LISTENER_PREFIX, BrokerLayers, without_listener
from headrace.metadata.loader import Changes
from headrace.metadata.option_checks import check_value
from headrace.options.node_options import NODE_OPTIONS
from headrace.options.table import Value
from headrace.options.topic_options import BROKER_DEFAULTS, topic_defaults

log = logging.getLogger(__name__)

CLEANER_BUFFER_BYTES_MIN = 1 << 20  # exclusive lower bound for the offset map of one cleaner thread

# Dynamic only per listener, as `listener.name.<listener>.<option>`.
STORES = frozenset(
    {
        "ssl.key.password", "ssl.keystore.certificate.chain", "ssl.keystore.key", "ssl.keystore.location",
        "ssl.keystore.password", "ssl.keystore.type", "ssl.truststore.certificates", "ssl.truststore.location",
        "ssl.truststore.password", "ssl.truststore.type",
    }
)  # fmt: skip
PER_BROKER = STORES | frozenset(
    {
        "cordoned.log.dirs", "listener.security.protocol.map", "listeners", "principal.builder.class",
        "sasl.enabled.mechanisms", "sasl.jaas.config", "sasl.kerberos.kinit.cmd",
        "sasl.kerberos.min.time.before.relogin", "sasl.kerberos.principal.to.local.rules",
        "sasl.kerberos.service.name", "sasl.kerberos.ticket.renew.jitter",
        "sasl.kerberos.ticket.renew.window.factor", "sasl.login.refresh.buffer.seconds",
        "sasl.login.refresh.min.period.seconds", "sasl.login.refresh.window.factor",
        "sasl.login.refresh.window.jitter", "sasl.mechanism.inter.broker.protocol", "ssl.cipher.suites",
        "ssl.client.auth", "ssl.enabled.protocols", "ssl.endpoint.identification.algorithm",
        "ssl.engine.factory.class", "ssl.keymanager.algorithm", "ssl.protocol", "ssl.provider",
        "ssl.secure.random.implementation", "ssl.trustmanager.algorithm",
    }
)  # fmt: skip
THREADS = frozenset(
    {
        "background.threads", "log.cleaner.threads", "num.io.threads", "num.network.threads",
        "num.recovery.threads.per.data.dir", "num.replica.fetchers",
        "remote.log.manager.copier.thread.pool.size", "remote.log.manager.expiration.thread.pool.size",
        "remote.log.manager.follower.thread.pool.size", "remote.log.reader.threads",
    }
)  # fmt: skip
# Topic defaults that Kafka lets change at runtime. The variants in minutes and hours and the flush scheduler's interval are static.
TOPIC_DEFAULTS = frozenset(broker for behind in BROKER_DEFAULTS.values() for broker, _ in behind[:1])
CONNECTIONS = frozenset(
    {"max.connections", "max.connections.per.ip", "max.connections.per.ip.overrides", "max.connection.creation.rate"}
)
PRODUCER_EXPIRY = "producer.id.expiration.ms"
_OTHERS = frozenset(
    {
        "config.providers", "follower.fetch.last.tiered.offset.enable",
        "group.consumer.assignment.interval.ms", "group.coordinator.cached.buffer.max.bytes",
        "group.share.assignment.interval.ms", "group.streams.assignment.interval.ms",
        "log.cleaner.backoff.ms", "log.cleaner.dedupe.buffer.size",
        "log.cleaner.io.buffer.load.factor", "log.cleaner.io.buffer.size", "log.cleaner.io.max.bytes.per.second",
        "metric.reporters", "remote.fetch.max.wait.ms", "remote.list.offsets.request.timeout.ms",
        "remote.log.index.file.cache.total.size.bytes", "remote.log.manager.copy.max.bytes.per.second",
        "remote.log.manager.fetch.max.bytes.per.second",
        "share.coordinator.cached.buffer.max.bytes", "transaction.partition.verification.enable",
    }
)  # fmt: skip
# Options that can only be set dynamically, not in the settings.
RATES = frozenset(
    {
        "follower.replication.throttled.rate", "leader.replication.throttled.rate",
        "replica.alter.log.dirs.io.max.bytes.per.second",
    }
)  # fmt: skip
CLUSTER_WIDE = TOPIC_DEFAULTS | CONNECTIONS | THREADS | RATES | _OTHERS | {PRODUCER_EXPIRY}
DYNAMIC = PER_BROKER | CLUSTER_WIDE
# Options that take effect as soon as they change. All others are only stored, and a warning is logged.
EFFECTIVE = TOPIC_DEFAULTS | {
    PRODUCER_EXPIRY,
    "max.connections",
    "cordoned.log.dirs",
    "replica.alter.log.dirs.io.max.bytes.per.second",
    "log.cleaner.backoff.ms",
    "log.cleaner.dedupe.buffer.size",
    "log.cleaner.io.buffer.load.factor",
    "log.cleaner.io.buffer.size",
    "log.cleaner.io.max.bytes.per.second",
    "log.cleaner.threads",
    "transaction.partition.verification.enable",
}
# Listeners cannot be opened or closed on a running node, so such a change is refused.
FIXED = frozenset({"listeners", "listener.security.protocol.map"})


class DynamicOptions:
    """The options of a broker that are currently in effect.

    `settings` are the node's static values, `explicit` the names that its operator set.
    """

    def __init__(self, settings: Mapping[str, Value], explicit: frozenset[str], node_id: NodeId) -> None:
        self._settings = settings
        self._node_id = node_id
        self._static = {
            name: text
            for name in sorted(explicit & NODE_OPTIONS.keys())
            if (text := NODE_OPTIONS[name].text(settings[name])) is not None
        }
        self._static.setdefault("broker.id", str(node_id))  # an alias of node.id
        self._defaults = {
            name: text
            for name, option in NODE_OPTIONS.items()
            if name not in RATES and (text := option.text(option.default)) is not None
        }
        self._own: Mapping[str, str] = NO_CONFIG
        self._all: Mapping[str, str] = NO_CONFIG
        self._subscribers: list[Callable[[Mapping[str, Value]], None]] = []
        self.values: Mapping[str, Value] = settings  # values currently in effect
        self._topic_defaults = topic_defaults(settings)

    def topic_defaults(self) -> Mapping[str, Value]:
        return self._topic_defaults

    def number(self, name: str) -> int:
        value = self.values[name]
        assert isinstance(value, int), f"{name} is {value!r}"
        return value

    def layers(self) -> BrokerLayers:
        return BrokerLayers(self._own, self._all, self._static, self._defaults)

    def subscribe(self, subscriber: Callable[[Mapping[str, Value]], None]) -> None:
        """Call `subscriber` with all values whenever any may have changed, and right now if anything is set dynamically."""
        self._subscribers.append(subscriber)
        if self._own or self._all:
            subscriber(self.values)

    def publish(self, old: Image, new: Image, changes: Changes) -> None:
        """Take over the dynamic options of a new image. Must run BEFORE publishers that read `values`."""
        me = str(self._node_id)
        if not any(kind == BROKER_CONFIG and name in ("", me) for kind, name in changes.configs):
            return
        before = self.values
        self._own = _usable(new.config(BROKER_CONFIG, me), per_broker=True)
        self._all = _usable(new.config(BROKER_CONFIG, ""), per_broker=False)
        values = dict(self._settings)
        for name, text in {**self._all, **self._own}.items():
            if name in NODE_OPTIONS:
                values[name] = NODE_OPTIONS[name].parse(text)
        self.values = values
        self._topic_defaults = topic_defaults(values)
        for name in sorted(values):
            if values[name] != before.get(name) and name not in EFFECTIVE:
                log.warning("%s was changed; nothing in this version of Headrace depends on it", name)
        for subscriber in self._subscribers:
            subscriber(values)

    # --- validation of client requests

    def check(self, texts: Mapping[str, str], *, per_broker: bool) -> None:
        """Raise KafkaError if the options would be invalid after a change, checking in Kafka's order with its messages.

        `texts` are all dynamic options of this broker, or without `per_broker` of the whole cluster, as they would be.
        """
        _refuse(
            [name for name in texts if name in NODE_OPTIONS and name not in DYNAMIC],
            "Cannot update these configs dynamically",
        )
        _refuse(
            [name for name in texts if name in STORES],
            "These security configs can be dynamically updated only per-listener using the listener prefix",
        )
        values: dict[str, Value] = {}
        for name, text in texts.items():
            option = NODE_OPTIONS.get(_base(name))
            if option is not None:
                try:
                    values[name] = check_value(option, text)
                except KafkaError as error:
                    raise KafkaError(ErrorCode.INVALID_REQUEST, error.message) from error
        if not per_broker:
            _refuse(
                [name for name in texts if _base(name) in PER_BROKER],
                "Cannot update these configs at default cluster level, broker id must be specified",
            )
        for name in FIXED & values.keys():
            if values[name] != self._settings.get(name):
                raise KafkaError(
                    ErrorCode.INVALID_REQUEST, f"{name} cannot be changed while this node runs: set it and start again"
                )
        self._check_threads(values)
        self._check_cordoned(values)
        wrong = cleaner_buffer_problem({**self.values, **values})
        if wrong is not None:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"requirement failed: {wrong}")

    def _check_threads(self, values: Mapping[str, Value]) -> None:
        for name in sorted(THREADS & values.keys()):
            now, requested = self.values[name], values[name]
            assert isinstance(now, int) and isinstance(requested, int)
            if now == requested:
                continue
            why = None
            if requested < now / 2:
                why = f"value should be at least half the current value {now}"
            elif requested > now * 2:
                why = f"value should not be greater than double the current value {now}"
            if why is not None:
                complaint = f"Dynamic thread count update validation failed for {name}={requested}, {why}"
                raise KafkaError(
                    ErrorCode.INVALID_REQUEST,
                    f"Invalid value org.apache.kafka.common.config.ConfigException: {complaint} "
                    "for configuration Invalid dynamic configuration",
                )

    def _check_cordoned(self, values: Mapping[str, Value]) -> None:
        requested = values.get("cordoned.log.dirs")
        if not isinstance(requested, list) or requested == ["*"]:
            return
        dirs = self._settings.get("log.dirs") or self._settings.get("log.dir")
        missing = [path for path in requested if not isinstance(dirs, list) or path not in dirs]
        if missing:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST,
                "requirement failed: All entries in cordoned.log.dirs must be present in log.dirs or log.dir. "
                f"Missing entries : {', '.join(missing)}",
            )


def cleaner_buffer_problem(values: Mapping[str, Value]) -> str | None:
    """Return what is wrong with the buffer that the log cleaner's threads share, or None."""
    threads, size = values["log.cleaner.threads"], values["log.cleaner.dedupe.buffer.size"]
    assert isinstance(threads, int) and isinstance(size, int)
    if size // max(threads, 1) > CLEANER_BUFFER_BYTES_MIN:
        return None
    return (
        f"log.cleaner.dedupe.buffer.size={size} must be more than {CLEANER_BUFFER_BYTES_MIN} bytes (1 MB) for each of "
        f"log.cleaner.threads={threads}"
    )


def _base(name: str) -> str:
    return without_listener(name) if name.startswith(LISTENER_PREFIX) else name


def _refuse(names: list[str], complaint: str) -> None:
    if names:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"{complaint}: [{', '.join(sorted(names))}]")


def _usable(texts: Mapping[str, str], *, per_broker: bool) -> dict[str, str]:
    """Return the options that may be set at this level and log the others: a broker must start whatever the log contains."""
    usable = {}
    for name, text in texts.items():
        option = NODE_OPTIONS.get(_base(name))
        try:
            if option is not None:
                if name in NODE_OPTIONS and name not in DYNAMIC:
                    raise KafkaError(ErrorCode.INVALID_REQUEST, "it cannot be changed dynamically")
                if name in STORES or (not per_broker and _base(name) in PER_BROKER):
                    raise KafkaError(ErrorCode.INVALID_REQUEST, "it cannot be set at this level")
                check_value(option, text)
        except KafkaError as error:
            log.error("the dynamic option %s is not used: %s", name, error.message)
        else:
            usable[name] = text
    return usable
