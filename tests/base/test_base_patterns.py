"""Patterns that never backtrack: what they match is what Python's engine matches, what they cannot do is refused, and time is bounded."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.base.pattern_syntax import GROUPS_DEEP_MAX, BadPattern
from headrace.base.patterns import PATTERN_CHARS_MAX, POSITIONS_MAX, TEXT_CHARS_MAX, Pattern

ATOMS = st.sampled_from(["a", "b", ".", "[ab]", "[^a]", r"\d", r"\.", "1", "[a-c]", r"[\w.]", "(?:)"])
EXPRESSIONS = st.recursive(
    ATOMS,
    lambda inner: st.one_of(
        st.tuples(inner, inner).map("".join),
        st.tuples(inner, inner).map(lambda two: f"({two[0]}|{two[1]})"),
        st.tuples(inner, st.sampled_from(["*", "+", "?", "{2}", "{1,3}", "{0,1}", "{1,}", "*?"])).map(
            lambda two: f"(?:{two[0]}){two[1]}"
        ),
    ),
    max_leaves=8,
)


@settings(deadline=None, max_examples=300)
@given(EXPRESSIONS, st.text("ab1.-", max_size=8))
def test_it_matches_what_python_matches(expression, text):
    for prefix in ("", "(?i)"):
        expected = re.fullmatch(prefix + expression, text.upper() if prefix else text) is not None
        assert Pattern(prefix + expression).matches(text.upper() if prefix else text) is expected


@pytest.mark.parametrize(
    ("expression", "yes", "no"),
    [
        ("^apache-kafka-java$", "apache-kafka-java", "apache-kafka-jav"),
        ("11.1.*", "11.1.7", "11"),
        (r"\Q10.0.0.\E\d+", "10.0.0.17", "10x0.0.17"),
        (r"\Qa+\E", "a+", "aa"),
        ("(?i)[^b-d]x", "aX", "CX"),
        ("(a|b|)c", "c", "ab"),
        ("[a-]+", "-a-", "b"),
        ("[]a]+", "]a", "b"),
        (r"\x41é", "Aé", "Be"),
        ("", "", "a"),
        (".", "x", "\n"),
        ("(^(x|y)$)|(^abc.*)", "abcd", "xy"),
        ("^a$|(b|c$)", "c", "ac"),
        (r"\D\S\W\s", "a. \t", "1. \t"),
    ],
)
def test_examples(expression, yes, no):
    pattern = Pattern(expression)
    assert pattern.matches(yes) and not pattern.matches(no)


@pytest.mark.parametrize(
    "expression",
    [
        "(", ")", "a)", "(a", "[", "[a", "[]", "*", "a**", "a++", "a{", "a{1", "a{2,1}", "a{9999}", "a{x}", "\\", r"(a)\1", r"\b",
        "(?=a)", "(?<=a)", "(?<name>a)", "a^", "$a", "(^a)*", "(a$)b", "b(^a)", "(a$)+", r"\p{Alpha}",
        r"\xg1", r"\u12", "[b-a]", "[a&&b]", "a{1}{2}",
    ],
)  # fmt: skip
def test_what_is_not_supported_is_refused(expression):
    with pytest.raises(BadPattern):
        Pattern(expression)


def test_limits():
    for expression in (
        "a" * (PATTERN_CHARS_MAX + 1),
        "a{1000}",
        "(a{100}){100}",
        "a" * POSITIONS_MAX + "b",
        "(" * (GROUPS_DEEP_MAX + 1) + ")" * (GROUPS_DEEP_MAX + 1),
        "((((){1000}){1000}){1000}){1000}",
    ):
        with pytest.raises(BadPattern):
            Pattern(expression)
    assert not Pattern(".*").matches("a" * (TEXT_CHARS_MAX + 1))


def test_what_makes_others_backtrack_for_ever():
    """Each of them would take years."""
    for expression in ("(a+)+b", "(a|a)*b", "(a|aa)+b", "(.*a){20}b", "(a?){100}a{100}b", "((a*)*)*b"):
        assert not Pattern(expression).matches("a" * TEXT_CHARS_MAX)


@settings(deadline=None, max_examples=300)
@given(st.text(st.sampled_from("ab(){}[]|*+?^$\\.-,1QEdwsxu:i&"), max_size=30), st.text("ab1", max_size=20))
def test_any_pattern_is_a_pattern_or_refused(expression, text):
    try:
        pattern = Pattern(expression)
    except BadPattern:
        return
    assert pattern.matches(text) in (True, False)
