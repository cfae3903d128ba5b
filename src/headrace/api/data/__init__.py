"""Requests that read and write partitions."""
