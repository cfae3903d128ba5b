"""Metrics of a broker for /metrics."""
