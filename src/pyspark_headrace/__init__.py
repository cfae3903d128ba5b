"""Spark imports every package named pyspark_… and registers its DefaultSource, so format("headrace") works without any code."""

from headrace.pipelines.data_source import HeadraceDataSource as DefaultSource

__all__ = ["DefaultSource"]
