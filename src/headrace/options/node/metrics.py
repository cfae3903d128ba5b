"""Options of metrics, telemetry and config providers."""

from __future__ import annotations

from headrace.options.table import Kind, Option, OptionTable, unused

METRICS_OPTIONS = OptionTable(
    *unused(
        "metrics are at headrace.http.listener, for Prometheus",
        Option(
            "metric.reporters",
            Kind.LIST,
            ["org.apache.kafka.common.metrics.JmxReporter"],
            "classes that metrics are reported to",
        ),
        Option("kafka.metrics.reporters", Kind.LIST, [], "classes that old-style metrics are reported to"),
        Option("kafka.metrics.polling.interval.secs", Kind.INT, 10, "how often those are polled", at_least=1),
        Option("metrics.num.samples", Kind.INT, 2, "samples of a rate", at_least=1),
        Option("metrics.sample.window.ms", Kind.LONG, 30000, "length of such a sample", at_least=1),
        Option(
            "metrics.recording.level",
            Kind.STRING,
            "INFO",
            "how much is measured: INFO, DEBUG or TRACE",
            one_of=("INFO", "DEBUG", "TRACE"),
        ),
    ),
    Option("telemetry.max.bytes", Kind.INT, 1_048_576, "the largest push of a client's metrics", at_least=1),
    Option(
        "config.providers",
        Kind.LIST,
        [],
        "classes that look up values of options",
        refused="values like ${…} are not resolved; use environment variables HEADRACE_… for secrets",
    ),
)
