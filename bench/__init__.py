"""Headrace and Apache Kafka under the same load on the same disk in one interleaved run; `make bench`, never a timed test."""
