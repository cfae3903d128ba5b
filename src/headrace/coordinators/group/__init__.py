"""Groups and their committed offsets. `shard` routes to the handlers of offsets, classic groups and consumer groups."""
