"""Kafka's authorizer rules, case by case and compared with a model that scans all ACLs every time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.base.ids import Uuid
from headrace.security.acls import Acl, Pattern, Permission
from headrace.security.authorizer import StandardAuthorizer
from headrace.security.principals import Principal, parse_super_users
from headrace.security.resources import ALL_OPERATIONS, Operation, Resource

ALICE, BOB = Principal("User", "alice"), Principal("User", "bob")
HOST = "10.0.0.1"


def acl(
    name: str,
    operation: Operation = Operation.READ,
    permission: Permission = Permission.ALLOW,
    principal: str = "User:alice",
    host: str = "*",
    pattern: Pattern = Pattern.LITERAL,
    resource: Resource = Resource.TOPIC,
) -> Acl:
    return Acl(resource, name, pattern, principal, host, operation, permission)


def authorizer(*acls: Acl, super_users: str = "", allow_if_no_acl: bool = False) -> StandardAuthorizer:
    made = StandardAuthorizer(parse_super_users(super_users), allow_if_no_acl=allow_if_no_acl)
    for number, entry in enumerate(acls):
        made.change(Uuid(number.to_bytes(16, "big")), entry)
    return made


def is_allowed(
    made: StandardAuthorizer,
    operation: Operation,
    name: str,
    principal: Principal = ALICE,
    host: str = HOST,
    resource: Resource = Resource.TOPIC,
) -> bool:
    return made.decide(principal, host, operation, resource, name).allowed


def test_allow_if_no_acl_applies_only_to_resources_without_acls() -> None:
    closed, opened = authorizer(), authorizer(acl("a"), allow_if_no_acl=True)
    assert not is_allowed(closed, Operation.READ, "a")
    assert is_allowed(opened, Operation.WRITE, "b", BOB)
    assert not is_allowed(opened, Operation.READ, "a", BOB)


def test_super_users_are_allowed_everything_even_if_an_acl_denies_it() -> None:
    made = authorizer(acl("a", permission=Permission.DENY), super_users="User:alice;User:CN=x,O=y")
    assert is_allowed(made, Operation.READ, "a")
    assert is_allowed(made, Operation.ALTER, "kafka-cluster", Principal("User", "CN=x,O=y"), resource=Resource.CLUSTER)
    assert not is_allowed(made, Operation.READ, "a", BOB)


def test_literal_prefixed_and_wildcard_patterns_match_their_names() -> None:
    made = authorizer(acl("exact"), acl("pre", pattern=Pattern.PREFIXED), acl("*", Operation.WRITE))
    assert is_allowed(made, Operation.READ, "exact")
    assert not is_allowed(made, Operation.READ, "exact2")
    assert is_allowed(made, Operation.READ, "pre") and is_allowed(made, Operation.READ, "prefix")
    assert not is_allowed(made, Operation.READ, "pr")
    assert is_allowed(made, Operation.WRITE, "anything")


def test_case_changes_and_a_star_prefix_do_not_bypass_acls() -> None:
    made = authorizer(acl("orders"), acl("*", Operation.WRITE, pattern=Pattern.PREFIXED))
    for name in ("Orders", "ORDERS", "orders ", "orders\0", "order"):
        assert not is_allowed(made, Operation.READ, name)
    assert not is_allowed(made, Operation.READ, "orders", Principal("User", "Alice"))
    assert not is_allowed(made, Operation.READ, "orders", Principal("user", "alice"))
    assert not is_allowed(made, Operation.WRITE, "orders")
    assert is_allowed(made, Operation.WRITE, "*x")


def test_a_star_in_a_request_is_not_a_wildcard() -> None:
    made = authorizer(acl("orders"))
    assert not is_allowed(made, Operation.READ, "*")
    assert not is_allowed(made, Operation.READ, "orders", Principal("User", "*"))


def test_deny_overrides_allow_whatever_its_pattern() -> None:
    made = authorizer(
        acl("orders"), acl("ord", pattern=Pattern.PREFIXED, permission=Permission.DENY, principal="User:*"), acl("*")
    )
    assert not is_allowed(made, Operation.READ, "orders")
    assert is_allowed(made, Operation.READ, "other")


def test_allow_implies_the_describe_operations_but_deny_does_not() -> None:
    made = authorizer(acl("r"), acl("w", Operation.WRITE), acl("d", Operation.DELETE), acl("a", Operation.ALTER))
    assert all(is_allowed(made, Operation.DESCRIBE, name) for name in "rwda")
    assert not is_allowed(made, Operation.WRITE, "r")
    configs = authorizer(acl("t", Operation.ALTER_CONFIGS))
    assert is_allowed(configs, Operation.DESCRIBE_CONFIGS, "t") and not is_allowed(configs, Operation.DESCRIBE, "t")
    denied = authorizer(acl("t", Operation.ALL), acl("t", Operation.READ, Permission.DENY))
    assert is_allowed(denied, Operation.DESCRIBE, "t") and not is_allowed(denied, Operation.READ, "t")
    assert (
        authorizer(acl("t", Operation.ALL)).operations(ALICE, HOST, Resource.TOPIC, "t")
        == ALL_OPERATIONS[Resource.TOPIC]
    )


def test_equivalent_spellings_of_a_host_address_match() -> None:
    made = authorizer(acl("t", host="10.0.0.1"), acl("s", host="0:0:0:0:0:0:0:1"))
    assert is_allowed(made, Operation.READ, "t", host="10.0.0.1")
    assert is_allowed(made, Operation.READ, "t", host="::ffff:10.0.0.1")
    assert not is_allowed(made, Operation.READ, "t", host="10.0.0.2")
    assert is_allowed(made, Operation.READ, "s", host="::1")


def test_an_acl_applies_only_to_its_resource_type() -> None:
    made = authorizer(acl("x", resource=Resource.GROUP))
    assert is_allowed(made, Operation.READ, "x", resource=Resource.GROUP)
    assert not is_allowed(made, Operation.READ, "x")


def test_changes_apply_at_once_and_equal_acls_count_until_the_last_is_removed() -> None:
    made = authorizer()
    one, two = Uuid(bytes(15) + b"\1"), Uuid(bytes(15) + b"\2")
    entry = acl("p", pattern=Pattern.PREFIXED)
    assert not is_allowed(made, Operation.READ, "pq")
    made.change(one, entry)
    made.change(two, entry)
    assert entry in made and is_allowed(made, Operation.READ, "pq")
    made.change(one, None)
    assert is_allowed(made, Operation.READ, "pq")
    made.change(two, None)
    assert entry not in made and not is_allowed(made, Operation.READ, "pq")


def test_decide_any_allows_an_operation_permitted_on_some_resource() -> None:
    def any_of(*acls: Acl, **options: Any) -> bool:
        return authorizer(*acls, **options).decide_any(ALICE, HOST, Operation.WRITE, Resource.TOPIC).allowed

    write = Operation.WRITE
    assert not any_of()
    assert any_of(super_users="User:alice") and any_of(allow_if_no_acl=True)
    assert any_of(acl("t", write)) and any_of(acl("t", Operation.ALL)) and any_of(acl("*", write))
    assert not any_of(acl("t", Operation.READ))
    assert not any_of(acl("t", write, principal="User:bob"))
    assert not any_of(acl("t", write), acl("t", write, Permission.DENY))
    assert not any_of(acl("t", write), acl("*", write, Permission.DENY))
    assert not any_of(acl("tt", write), acl("t", write, Permission.DENY, pattern=Pattern.PREFIXED))
    assert any_of(
        acl("t", write, pattern=Pattern.PREFIXED), acl("tt", write, Permission.DENY, pattern=Pattern.PREFIXED)
    )


NAMES = st.sampled_from(["", "a", "ab", "abc", "b", "*", "*a", "A"])
ENTRIES = st.builds(
    acl,
    NAMES.filter(bool),
    st.sampled_from([Operation.ALL, Operation.READ, Operation.WRITE, Operation.DESCRIBE, Operation.ALTER_CONFIGS]),
    st.sampled_from(list(Permission)),
    st.sampled_from(["User:alice", "User:bob", "User:*"]),
    st.sampled_from(["*", HOST, "10.0.0.2"]),
    st.sampled_from(list(Pattern)),
    st.sampled_from([Resource.TOPIC, Resource.GROUP]),
)


def decide_by_scan(
    entries: Sequence[Acl],
    principal: Principal,
    host: str,
    operation: Operation,
    resource: Resource,
    name: str,
    allow_if_no_acl: bool,
) -> bool:
    matching = [
        entry
        for entry in entries
        if entry.resource_type == resource
        and (
            name.startswith(entry.resource_name)
            if entry.pattern_type == Pattern.PREFIXED
            else entry.resource_name in (name, "*")
        )
    ]
    if not matching:
        return allow_if_no_acl
    mine = [e for e in matching if e.principal in (str(principal), "User:*") and e.host in ("*", host)]
    if any(e.permission == Permission.DENY and e.operation in (Operation.ALL, operation) for e in mine):
        return False
    implied = {operation, Operation.ALL}
    if operation is Operation.DESCRIBE:
        implied |= {Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER}
    if operation is Operation.DESCRIBE_CONFIGS:
        implied |= {Operation.ALTER_CONFIGS}
    return any(e.permission == Permission.ALLOW and e.operation in implied for e in mine)


@settings(deadline=None, max_examples=300)
@given(
    st.lists(ENTRIES, max_size=8),
    st.sets(st.integers(0, 7)),
    NAMES,
    st.sampled_from([ALICE, BOB]),
    st.sampled_from([Operation.READ, Operation.WRITE, Operation.DESCRIBE, Operation.DESCRIBE_CONFIGS]),
    st.booleans(),
)
def test_the_index_decides_like_a_scan_of_all_acls(
    entries: list[Acl], removed: set[int], name: str, principal: Principal, operation: Operation, allow_if_no_acl: bool
) -> None:
    made = authorizer(*entries, allow_if_no_acl=allow_if_no_acl)
    made.decide(principal, HOST, operation, Resource.TOPIC, name)
    for number in removed:
        made.change(Uuid(number.to_bytes(16, "big")), None)
    left = [entry for number, entry in enumerate(entries) if number not in removed]
    expected = decide_by_scan(left, principal, HOST, operation, Resource.TOPIC, name, allow_if_no_acl)
    for _ in range(2):  # first by the rules, then from the cache
        assert made.decide(principal, HOST, operation, Resource.TOPIC, name).allowed is expected
