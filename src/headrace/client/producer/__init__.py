"""The producer: accumulates records in batches and sends them to partition leaders, with idempotence and transactions."""
