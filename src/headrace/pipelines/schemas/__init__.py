"""Decodes keys and values inside the source: JSON, Avro, Protobuf and text, into columns of Spark's types."""
