"""The example pipelines, each run by its own test on the SparkSession of our tests."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

pytest.importorskip("pyspark", reason="needs the extra spark")
pytest.importorskip("yaml", reason="needs the extra spark")

from examples.pipelines.clean_and_route.test_clean_and_route import test_orders_are_cleaned_and_routed
from examples.pipelines.deduplicate.test_deduplicate import test_each_payment_is_there_once
from examples.pipelines.join_with_a_table.test_join_with_a_table import test_orders_get_the_names_of_their_customers
from examples.pipelines.sessionise.test_sessionise import test_clicks_become_visits
from examples.pipelines.topic_to_parquet.test_topic_to_parquet import test_readings_become_a_table

__all__ = [
    "test_clicks_become_visits",
    "test_each_payment_is_there_once",
    "test_orders_are_cleaned_and_routed",
    "test_orders_get_the_names_of_their_customers",
    "test_readings_become_a_table",
]

pytestmark = pytest.mark.filterwarnings("ignore")  # PySpark's own code emits warnings


@pytest.fixture(scope="session")
def headrace_spark(spark: SparkSession) -> SparkSession:
    return spark
