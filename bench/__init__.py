"""Benchmarks of Headrace and Apache Kafka under the same load, on the same disk, in one interleaved run.

Run with `make bench`; never a timed test.
"""
