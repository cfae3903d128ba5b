"""Data directories: kill -9, compaction, retention, dump-log, and Headrace and Kafka taking turns."""
