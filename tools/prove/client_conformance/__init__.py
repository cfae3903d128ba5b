"""A suite for the client (`headrace.client`), run against real Kafka and against a Headrace node."""
