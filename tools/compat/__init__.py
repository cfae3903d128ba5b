"""Other people's test suites, run against a real Kafka and against us: what Kafka passes, we pass."""
