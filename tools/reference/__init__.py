"""The API reference: Markdown files in docs/reference, generated from signatures and docstrings.

The sources are parsed, not imported, so that the tool works where pyspark and pyarrow are not installed.
"""
