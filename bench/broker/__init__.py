"""Lines about the broker: throughput, latency, connections, partitions, start-up and compaction."""
