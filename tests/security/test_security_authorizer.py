"""Kafka's authorizer rules, case by case and compared with a model that scans all ACLs every time."""

from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.base.ids import Uuid
from headrace.security.acls import Acl, Pattern, Permission
from headrace.security.authorizer import StandardAuthorizer
from headrace.security.principals import Principal, parse_super_users
from headrace.security.resources import ALL_OPERATIONS, Operation, Resource

ALICE, BOB = Principal("User", "alice"), Principal("User", "bob")
HOST = "10.0.0.1"


def acl(name, operation=Operation.READ, permission=Permission.ALLOW, principal="User:alice", host="*",
        pattern=Pattern.LITERAL, resource=Resource.TOPIC):  # fmt: skip
    return Acl(resource, name, pattern, principal, host, operation, permission)


def authorizer(*acls, super_users="", allow_if_no_acl=False):
    made = StandardAuthorizer(parse_super_users(super_users), allow_if_no_acl=allow_if_no_acl)
    for number, entry in enumerate(acls):
        made.change(Uuid(number.to_bytes(16, "big")), entry)
    return made


def may(made, operation, name, principal=ALICE, host=HOST, resource=Resource.TOPIC):
    return made.decide(principal, host, operation, resource, name).allowed


def test_without_acls_the_setting_decides_but_only_for_resources_without_acls():
    closed, opened = authorizer(), authorizer(acl("a"), allow_if_no_acl=True)
    assert not may(closed, Operation.READ, "a")
    assert may(opened, Operation.WRITE, "b", BOB)
    assert not may(opened, Operation.READ, "a", BOB)


def test_super_users_may_do_everything_even_what_is_denied():
    made = authorizer(acl("a", permission=Permission.DENY), super_users="User:alice;User:CN=x,O=y")
    assert may(made, Operation.READ, "a")
    assert may(made, Operation.ALTER, "kafka-cluster", Principal("User", "CN=x,O=y"), resource=Resource.CLUSTER)
    assert not may(made, Operation.READ, "a", BOB)


def test_literal_prefixed_and_wildcard_names():
    made = authorizer(acl("exact"), acl("pre", pattern=Pattern.PREFIXED), acl("*", Operation.WRITE))
    assert may(made, Operation.READ, "exact")
    assert not may(made, Operation.READ, "exact2")
    assert may(made, Operation.READ, "pre") and may(made, Operation.READ, "prefix")
    assert not may(made, Operation.READ, "pr")
    assert may(made, Operation.WRITE, "anything")


def test_bypass_by_case_or_by_a_prefix_that_is_a_star():
    made = authorizer(acl("orders"), acl("*", Operation.WRITE, pattern=Pattern.PREFIXED))
    for name in ("Orders", "ORDERS", "orders ", "orders\0", "order"):
        assert not may(made, Operation.READ, name)
    assert not may(made, Operation.READ, "orders", Principal("User", "Alice"))
    assert not may(made, Operation.READ, "orders", Principal("user", "alice"))
    assert not may(made, Operation.WRITE, "orders")
    assert may(made, Operation.WRITE, "*x")


def test_a_name_that_is_a_star_is_nothing_special_to_whoever_asks():
    made = authorizer(acl("orders"))
    assert not may(made, Operation.READ, "*")
    assert not may(made, Operation.READ, "orders", Principal("User", "*"))


def test_deny_beats_allow_wherever_it_stands():
    made = authorizer(
        acl("orders"), acl("ord", pattern=Pattern.PREFIXED, permission=Permission.DENY, principal="User:*"), acl("*")
    )
    assert not may(made, Operation.READ, "orders")
    assert may(made, Operation.READ, "other")


def test_what_allows_implies_and_what_denies_does_not():
    made = authorizer(acl("r"), acl("w", Operation.WRITE), acl("d", Operation.DELETE), acl("a", Operation.ALTER))
    assert all(may(made, Operation.DESCRIBE, name) for name in "rwda")
    assert not may(made, Operation.WRITE, "r")
    configs = authorizer(acl("t", Operation.ALTER_CONFIGS))
    assert may(configs, Operation.DESCRIBE_CONFIGS, "t") and not may(configs, Operation.DESCRIBE, "t")
    denied = authorizer(acl("t", Operation.ALL), acl("t", Operation.READ, Permission.DENY))
    assert may(denied, Operation.DESCRIBE, "t") and not may(denied, Operation.READ, "t")
    assert (
        authorizer(acl("t", Operation.ALL)).operations(ALICE, HOST, Resource.TOPIC, "t")
        == ALL_OPERATIONS[Resource.TOPIC]
    )


def test_hosts_are_addresses_however_they_are_spelled():
    made = authorizer(acl("t", host="10.0.0.1"), acl("s", host="0:0:0:0:0:0:0:1"))
    assert may(made, Operation.READ, "t", host="10.0.0.1")
    assert may(made, Operation.READ, "t", host="::ffff:10.0.0.1")
    assert not may(made, Operation.READ, "t", host="10.0.0.2")
    assert may(made, Operation.READ, "s", host="::1")


def test_resources_of_another_type_are_others():
    made = authorizer(acl("x", resource=Resource.GROUP))
    assert may(made, Operation.READ, "x", resource=Resource.GROUP)
    assert not may(made, Operation.READ, "x")


def test_a_change_is_seen_at_once_and_the_last_of_two_equal_ones_counts():
    made = authorizer()
    one, two = Uuid(bytes(15) + b"\1"), Uuid(bytes(15) + b"\2")
    entry = acl("p", pattern=Pattern.PREFIXED)
    assert not may(made, Operation.READ, "pq")
    made.change(one, entry)
    made.change(two, entry)
    assert entry in made and may(made, Operation.READ, "pq")
    made.change(one, None)
    assert may(made, Operation.READ, "pq")
    made.change(two, None)
    assert entry not in made and not may(made, Operation.READ, "pq")


def test_anything_of_a_type():
    def any_of(*acls, **options):
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


def twin(entries, principal, host, operation, resource, name, allow_if_no_acl):
    about = [
        entry
        for entry in entries
        if entry.resource_type == resource
        and (
            name.startswith(entry.resource_name)
            if entry.pattern_type == Pattern.PREFIXED
            else entry.resource_name in (name, "*")
        )
    ]
    if not about:
        return allow_if_no_acl
    mine = [e for e in about if e.principal in (str(principal), "User:*") and e.host in ("*", host)]
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
def test_the_index_says_what_a_look_at_every_acl_says(entries, removed, name, principal, operation, allow_if_no_acl):
    made = authorizer(*entries, allow_if_no_acl=allow_if_no_acl)
    made.decide(principal, HOST, operation, Resource.TOPIC, name)
    for number in removed:
        made.change(Uuid(number.to_bytes(16, "big")), None)
    left = [entry for number, entry in enumerate(entries) if number not in removed]
    expected = twin(left, principal, HOST, operation, Resource.TOPIC, name, allow_if_no_acl)
    for _ in range(2):  # first by the rules, then from the cache
        assert made.decide(principal, HOST, operation, Resource.TOPIC, name).allowed is expected
