"""Test suites of other projects, run against a real Kafka and against Headrace: we pass what Kafka passes."""
