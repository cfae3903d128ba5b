"""The consumer: fetches ahead, decodes and returns records, and keeps its positions."""
