"""The source of format("headrace"): options, planning, and reading in Spark tasks."""
