"""Options of a node's identity and network: roles, listeners, sockets, connection limits."""

from __future__ import annotations

from headrace.options.node.reasons import ONE_LOOP, PLUGINS
from headrace.options.table import INT_MAX, Kind, Option, OptionTable, unused

# Socket buffers default to the system's choice: Kafka's default would limit the data in flight to 102400 bytes per round trip.
NETWORK_OPTIONS = OptionTable(
    Option(
        "process.roles",
        Kind.LIST,
        None,
        "what this node is: broker, controller or both",
        one_of=("broker", "controller"),
    ),
    Option("node.id", Kind.INT, None, "the number of this node in its cluster", at_least=0),
    Option("broker.id", Kind.INT, -1, "old name of node.id", at_least=-1),
    Option("broker.rack", Kind.STRING, None, "rack of the node, for placement of replicas across racks"),
    Option(
        "listeners",
        Kind.LIST,
        ["PLAINTEXT://:9092"],
        "addresses to listen on, as NAME://host:port; without a host: all interfaces; IPv6 addresses in brackets",
    ),
    Option("advertised.listeners", Kind.LIST, None, "addresses that clients connect to; else those of listeners"),
    Option(
        "listener.security.protocol.map",
        Kind.STRING,
        "SASL_SSL:SASL_SSL,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT",
        "the security protocol of each listener, as NAME:PROTOCOL",
    ),
    Option("controller.listener.names", Kind.LIST, None, "which of the listeners belong to the controller"),
    Option(
        "socket.request.max.bytes",
        Kind.INT,
        104_857_600,
        "the largest request; a connection that announces a larger one is closed",
        at_least=1,
    ),
    Option(
        "socket.send.buffer.bytes",
        Kind.INT,
        -1,
        "SO_SNDBUF of clients' sockets; -1 leaves it to the system",
        at_least=-1,
        never=(0,),
    ),
    Option(
        "socket.receive.buffer.bytes",
        Kind.INT,
        -1,
        "SO_RCVBUF of clients' sockets; -1 leaves it to the system",
        at_least=-1,
        never=(0,),
    ),
    Option("socket.listen.backlog.size", Kind.INT, 50, "connections that may wait to be accepted", at_least=1),
    Option(
        "max.connections",
        Kind.INT,
        INT_MAX,
        "open connections of each listener; further ones are closed at once",
        at_least=0,
    ),
    Option("connections.max.idle.ms", Kind.LONG, 600_000, "idle time after which a connection is closed; -1: never"),
    Option(
        "connection.failed.authentication.delay.ms",
        Kind.INT,
        100,
        "delay of the response to a failed login",
        at_least=0,
    ),
    Option(
        "max.request.partition.size.limit",
        Kind.INT,
        2000,
        "partitions on one page of DescribeTopicPartitions",
        at_least=1,
    ),
    Option("inter.broker.listener.name", Kind.STRING, None, "the listener that other brokers connect to"),
    Option(
        "security.inter.broker.protocol",
        Kind.STRING,
        "PLAINTEXT",
        "instead of inter.broker.listener.name: the first listener with this protocol",
        one_of=("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"),
    ),
    Option("request.timeout.ms", Kind.INT, 30000, "how long a request of this node to another may take", at_least=1),
    Option(
        "socket.connection.setup.timeout.ms",
        Kind.LONG,
        10000,
        "how long a connection to another node may take to open",
        at_least=1,
    ),
    *unused(
        "connections to other nodes have one limit, socket.connection.setup.timeout.ms",
        Option(
            "socket.connection.setup.timeout.max.ms",
            Kind.LONG,
            30000,
            "the upper bound of that time after failures",
        ),
    ),
    *unused(
        "requests to controllers are repeated until request.timeout.ms",
        Option("controller.socket.timeout.ms", Kind.INT, 30000, "how long the controller may take to respond"),
    ),
    *unused(
        ONE_LOOP,
        Option("num.network.threads", Kind.INT, 3, "threads that read and write sockets", at_least=1),
        Option("num.io.threads", Kind.INT, 8, "threads that handle requests", at_least=1),
        Option("background.threads", Kind.INT, 10, "threads for background tasks", at_least=1),
        Option("queued.max.requests", Kind.INT, 500, "requests that may wait for a thread", at_least=1),
        Option("queued.max.request.bytes", Kind.LONG, -1, "the same in bytes; -1: no limit"),
    ),
    *unused(
        "the authorizer loads its ACLs before a listener opens",
        Option("early.start.listeners", Kind.LIST, None, "listeners that open before the authorizer is ready"),
    ),
    *unused(
        "connections are limited by max.connections only",
        Option("max.connections.per.ip", Kind.INT, INT_MAX, "open connections from one address", at_least=0),
        Option("max.connections.per.ip.overrides", Kind.STRING, "", "the same for single addresses, as host:count"),
        Option("max.connection.creation.rate", Kind.INT, INT_MAX, "new connections per second", at_least=0),
    ),
    *unused(
        PLUGINS,
        Option("security.providers", Kind.STRING, None, "security providers of a JVM"),
    ),
)
