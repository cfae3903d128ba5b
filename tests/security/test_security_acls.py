"""ACL bindings and filters: which bindings are valid, and what a filter matches."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.base.errors import ErrorCode, KafkaError
from headrace.security.acls import ANY, Acl, AclFilter, Pattern, Permission, check_acl
from headrace.security.resources import Operation, Resource

GOOD = Acl(Resource.TOPIC, "orders", Pattern.LITERAL, "User:alice", "*", Operation.READ, Permission.ALLOW)
ALL = AclFilter(ANY, None, 1, None, None, ANY, ANY)


def test_valid_acls_pass_the_check() -> None:
    check_acl(GOOD)
    check_acl(GOOD._replace(resource_type=Resource.CLUSTER, resource_name="kafka-cluster"))


@pytest.mark.parametrize(
    "change",
    [
        {"resource_type": 0},
        {"resource_type": ANY},
        {"resource_type": 99},
        {"resource_name": ""},
        {"resource_type": Resource.CLUSTER},
        {"pattern_type": 1},
        {"pattern_type": 2},
        {"operation": ANY},
        {"operation": 0},
        {"permission": ANY},
        {"permission": 0},
        {"principal": "alice"},
        {"principal": "User:"},
        {"host": ""},
    ],
)
def test_an_invalid_acl_is_refused_with_invalid_request(change: dict[str, Any]) -> None:
    with pytest.raises(KafkaError) as error:
        check_acl(GOOD._replace(**change))
    assert error.value.code is ErrorCode.INVALID_REQUEST


def test_a_filter_without_conditions_matches_every_acl() -> None:
    ALL.check()
    assert ALL.matches(GOOD)
    assert ALL.matches(GOOD._replace(pattern_type=Pattern.PREFIXED, permission=Permission.DENY))


@pytest.mark.parametrize(
    ("condition", "found"),
    [
        ({"resource_type": Resource.TOPIC}, True),
        ({"resource_type": Resource.GROUP}, False),
        ({"resource_name": "orders"}, True),
        ({"resource_name": "Orders"}, False),
        ({"resource_name": "orders", "pattern_type": Pattern.PREFIXED}, False),
        ({"principal": "User:alice"}, True),
        ({"principal": "User:Alice"}, False),
        ({"host": "*"}, True),
        ({"host": "127.0.0.1"}, False),
        ({"operation": Operation.READ}, True),
        ({"operation": Operation.WRITE}, False),
        ({"permission": Permission.DENY}, False),
    ],
)
def test_each_filter_field_restricts_the_match(condition: dict[str, Any], found: bool) -> None:
    assert ALL._replace(**condition).matches(GOOD) is found


def test_a_match_filter_finds_every_acl_that_applies_to_a_name() -> None:
    wanted = ALL._replace(resource_name="orders", pattern_type=2)
    wanted.check()
    applies = [
        GOOD,
        GOOD._replace(resource_name="*"),
        GOOD._replace(resource_name="ord", pattern_type=Pattern.PREFIXED),
        GOOD._replace(resource_name="orders", pattern_type=Pattern.PREFIXED),
    ]
    others = [
        GOOD._replace(resource_name="ord"),
        GOOD._replace(resource_name="*", pattern_type=Pattern.PREFIXED),
        GOOD._replace(resource_name="orders2", pattern_type=Pattern.PREFIXED),
    ]
    assert all(wanted.matches(acl) for acl in applies)
    assert not any(wanted.matches(acl) for acl in others)


@pytest.mark.parametrize("change", [{"pattern_type": 0}, {"pattern_type": 9}, {"operation": 0}, {"resource_type": 50}])
def test_a_filter_with_unknown_codes_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(KafkaError):
        ALL._replace(**change).check()
