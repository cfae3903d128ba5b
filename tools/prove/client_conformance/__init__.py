"""One suite for the client (`headrace.client`), played against real Kafka and against a node of ours alike."""
