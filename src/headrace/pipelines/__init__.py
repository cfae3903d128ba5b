"""The Apache Spark source, sink and pipelines of Headrace. Needs the extra `spark`; nothing else in Headrace imports this package."""
