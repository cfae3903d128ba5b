"""Topics as tables and streams of Apache Spark, through PySpark. Needs the extra `spark`; nothing else in Headrace imports it."""
