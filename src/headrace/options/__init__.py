"""Every option of a node, topic, group and client-metrics subscription: one declaration each, with Kafka's names."""
