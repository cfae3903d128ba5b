"""The sink of format("headrace"): writing in Spark tasks, and exactly-once commits on the driver."""
