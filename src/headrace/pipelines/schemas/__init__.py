"""Keys and values that are decoded inside the source: JSON, Avro, Protobuf and text, into columns of Spark's types."""
