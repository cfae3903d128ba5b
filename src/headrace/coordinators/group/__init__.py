"""Groups and the offsets they committed. `shard` only routes: offsets, classic groups and consumer groups have rooms of their own."""
