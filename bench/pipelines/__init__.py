"""Lines about the demo's pipeline: throughput, latency, time to the first result, and memory."""
