"""The verdict on the race of transactions: Headrace must pass at once, Kafka in one of its attempts."""

from __future__ import annotations

import pytest
from tools.prove.transactions.racing import Attempt, judge_race

PASSED = Attempt(12.3)
INVALID_STATE = Attempt(3.0, "confluent-2: KafkaError{code=INVALID_TXN_STATE,val=48}")
DIFFERENT = Attempt(9.0, "read_committed misses 3 committed records")


def test_the_outcome_on_both_servers_is_reported_by_client() -> None:
    figure = judge_race({"java": PASSED, "confluent": PASSED}, {"java": [PASSED], "confluent": [PASSED]})
    assert figure == (
        "Headrace: java passed in 12 s; Headrace: confluent passed in 12 s; "
        "Kafka: java passed in attempt 1; Kafka: confluent passed in attempt 1"
    )


def test_failed_attempts_of_kafka_are_reported_verbatim_and_do_not_fail_the_check() -> None:
    figure = judge_race({"confluent": PASSED}, {"confluent": [INVALID_STATE, DIFFERENT, PASSED]})
    assert figure.endswith(
        f"Kafka: confluent failed in attempt 1 with {INVALID_STATE.failure}, "
        f"failed in attempt 2 with {DIFFERENT.failure}, passed in attempt 3"
    )


@pytest.mark.parametrize("failed", [INVALID_STATE, DIFFERENT])
def test_a_failure_of_headrace_fails_the_check_whatever_kafka_does(failed: Attempt) -> None:
    for kafka in ([PASSED], [INVALID_STATE, PASSED], [INVALID_STATE, INVALID_STATE, INVALID_STATE]):
        with pytest.raises(AssertionError, match=r"^Headrace failed with java: ") as raised:
            judge_race({"java": failed, "confluent": PASSED}, {"java": kafka, "confluent": [PASSED]})
        assert str(failed.failure) in str(raised.value)


def test_a_client_with_which_kafka_never_passes_fails_the_check() -> None:
    with pytest.raises(AssertionError, match="the script is doubtful: Kafka passed none of 3 attempts with confluent"):
        judge_race(
            {"java": PASSED, "confluent": PASSED},
            {"java": [PASSED], "confluent": [INVALID_STATE, DIFFERENT, INVALID_STATE]},
        )
