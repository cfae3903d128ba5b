"""Pipelines and the demo: under kills, on a full disk, and moved to another Spark and another Kafka."""
