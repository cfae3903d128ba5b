"""Spark on Headrace and on real Kafka: the same rows as its own connector, a cluster that loses workers, exactly once."""
