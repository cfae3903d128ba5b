"""The pages of the reference: which names they document, in which order and under which headings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Section:
    title: str
    names: Mapping[str, tuple[str, ...]]  # public names by the module to import them from
    text: str = ""
    returned: frozenset[str] = frozenset()  # classes that calls return; readers do not need their constructors

    def entries(self) -> Iterator[tuple[str, str]]:
        """Yield the modules and names of all entries."""
        for module, names in self.names.items():
            for name in names:
                yield module, name


@dataclass(frozen=True)
class Page:
    file: str
    title: str
    text: str
    sections: tuple[Section, ...]

    def names_from(self, module: str) -> frozenset[str]:
        """Return the names that the page documents as imported from a module."""
        return frozenset(name for section in self.sections for name in section.names.get(module, ()))


CLIENT = Page(
    "client.md",
    "Client reference",
    "The classes of `headrace.client`. [The client](../client.md) explains them with examples and lists the errors and limits.",
    (
        Section(
            "Blocking clients",
            {"headrace.client": ("Producer", "Consumer", "Admin")},
            "All blocking clients of a process share one event loop in a background thread.",
        ),
        Section(
            "Clients for asyncio",
            {"headrace.client": ("AsyncProducer", "AsyncConsumer", "AsyncAdmin")},
            "Create and use them inside one event loop.",
        ),
        Section("Topics and offsets", {"headrace.client": ("NewTopic", "TopicPartition", "CommittedOffset")}),
        Section(
            "Errors",
            {
                "headrace.client": ("HeadraceError", "KafkaError", "ConfigError"),
                "headrace.client.wire.connection": ("Disconnected", "NoResponse"),
                "headrace.client.admin.item_errors": ("ItemsFailed",),
                "headrace.client.producer.producer": ("ProducerClosed",),
                "headrace.client.producer.buffer_space": ("BufferFull",),
                "headrace.client.producer.transaction_requests": (
                    "TransactionError",
                    "AbortableTransactionError",
                    "FatalTransactionError",
                    "ProducerFenced",
                    "InvalidTransactionState",
                ),
                "headrace.client.admin.hanging_transactions": ("NotHanging",),
            },
        ),
        Section(
            "Transactions",
            {
                "headrace.client.sync": ("Transaction",),
                "headrace.client.producer.transaction_session": ("TransactionState",),
                "headrace.client.producer.transaction_requests": ("TransactionIdentity",),
            },
            "`Producer.transaction` is a `Transaction`. `AsyncProducer.transaction` has the same methods as coroutines.",
            returned=frozenset({"Transaction"}),
        ),
        Section(
            "Arguments and results of producers and consumers",
            {
                "headrace.client.producer.deliveries": ("Sent", "SentRange"),
                "headrace.client.consumer.decoding": ("ConsumerRecord",),
                "headrace.client.group.membership": ("GroupMetadata",),
                "headrace.client.consumer.list_offsets": ("ListedOffset",),
                "headrace.client.producer.partitioners": ("Partitioner",),
                "headrace.client.sync.consumer": ("Callback",),
            },
            "Callbacks of an `AsyncConsumer` may also be coroutine functions.",
        ),
        Section(
            "Arguments and results of admin clients",
            {
                "headrace.client.admin.admin": ("ClusterInfo", "Broker", "ResourceKind", "OffsetAt"),
                "headrace.client.admin.topics": ("TopicInfo", "PartitionInfo"),
                "headrace.client.admin.topic_changes": ("NewPartitions",),
                "headrace.client.admin.configs": ("OptionInfo",),
                "headrace.client.admin.groups": ("ListedGroup", "GroupInfo", "Member", "Committed"),
                "headrace.client.admin.transactions": (
                    "TransactionFilter",
                    "ListedTransaction",
                    "TransactionInfo",
                    "ActiveProducer",
                ),
                "headrace.security.acls": ("Acl", "AclFilter"),
                "headrace.client.admin.quotas": ("QuotaEntity", "Quotas"),
            },
        ),
    ),
)

TESTING = Page(
    "testing.md",
    "Testing reference",
    "The pytest fixtures and classes of `headrace.testing`. [Testing your own programs](../testing.md) explains them with examples.",
    (
        Section(
            "Fixtures",
            {
                "headrace.testing.plugin": (
                    "headrace_settings",
                    "headrace_node",
                    "headrace_session_node",
                    "headrace_cluster",
                    "headrace_spark",
                )
            },
            "Pytest finds them by itself where Headrace is installed: name one as a parameter of a test.",
        ),
        Section(
            "Nodes in the process of the test",
            {
                "headrace.testing.cluster": ("EmbeddedNode",),
                "headrace.testing.embedded_cluster": ("EmbeddedCluster",),
            },
        ),
        Section(
            "Nodes in processes of their own",
            {
                "headrace.testing.processes": ("NodeProcess", "ProcessFailed", "free_port"),
                "headrace.testing.process_cluster": ("ClusterProcesses",),
            },
        ),
        Section(
            "Tests of pipelines",
            {"headrace.testing.pipelines": ("run_pipeline", "Rows", "Record", "PipelineFailed")},
        ),
    ),
)

PIPELINES = Page(
    "pipelines.md",
    "Pipelines reference",
    "The functions and classes of `headrace.pipelines`; they need `pip install 'headrace[spark]'`. [Pipelines](../pipelines.md) explains"
    ' the keys of sources, steps and sinks, and [Spark](../spark.md) the options of `format("headrace")`.',
    (
        Section("Sessions", {"headrace.pipelines.session": ("make_session", "register")}),
        Section(
            "Defining a pipeline in Python",
            {
                "headrace.pipelines.definitions": ("pipeline",),
                "headrace.pipelines.definitions.python.files": ("Draft",),
            },
            "`pipeline` returns a `Draft`, to which sources, steps and sinks are added. Keyword arguments are the keys of the YAML file.",
            returned=frozenset({"Draft"}),
        ),
        Section(
            "Loading and building",
            {"headrace.pipelines.definitions": ("load", "check", "plan", "build", "Built", "DefinitionError")},
        ),
        Section("Running", {"headrace.pipelines.runner": ("Driver", "QueryStatus", "AlreadyRunning", "SparkLost")}),
        Section(
            "Definitions",
            {
                "headrace.pipelines.definitions": (
                    "Pipeline",
                    "Source",
                    "SourceKind",
                    "BadRecords",
                    "Watermark",
                    "Step",
                    "StepKind",
                    "Sink",
                    "SinkKind",
                    "Trigger",
                    "TriggerKind",
                    "SparkSettings",
                    "Problem",
                    "Place",
                )
            },
            "What `load` returns, whether the file is YAML or Python.",
        ),
    ),
)

PAGES = (CLIENT, TESTING, PIPELINES)
