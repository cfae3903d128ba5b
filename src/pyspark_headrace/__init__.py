"""Spark imports whatever is named pyspark_… and registers its DefaultSource: so format("headrace") works without a line of code."""

from headrace.pipelines.data_source import HeadraceDataSource as DefaultSource

__all__ = ["DefaultSource"]
