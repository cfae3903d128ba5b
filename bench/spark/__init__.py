"""Lines that compare Headrace's Spark data source with Spark's own Kafka connector."""
