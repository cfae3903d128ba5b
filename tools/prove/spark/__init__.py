"""Spark over Headrace and over real Kafka: the same rows as with Spark's own connector, a cluster that loses workers, exactly once."""
