"""Lines that compare Headrace's client with confluent-kafka."""
