"""Kafka's command-line tools on Kafka and on Headrace, whose output must be equal."""
