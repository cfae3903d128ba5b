"""Consumer groups (KIP-848): members report their subscriptions and partitions, the coordinator assigns partitions."""
