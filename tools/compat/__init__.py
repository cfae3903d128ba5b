"""Test suites of other projects, run against a real Kafka and against Headrace, which passes what Kafka passes."""
