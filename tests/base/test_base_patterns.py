"""Patterns in RE2 syntax: matching of whole texts, RE2's own error messages, and bounds on time and memory."""

from __future__ import annotations

import re
import subprocess
import sys
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.base.patterns import MEMORY_BYTES_MAX, PATTERN_CHARS_MAX, TEXT_CHARS_MAX, BadPattern, Pattern

HOSTILE_S_MAX = 2.0  # a hundred times the slowest case; without bounds they would take years, or all memory
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
def test_patterns_match_the_same_texts_as_pythons_re(expression: str, text: str) -> None:
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
        ("(a|ab)", "ab", "abb"),
        ("[a-]+", "-a-", "b"),
        ("[]a]+", "]a", "b"),
        (r"\x41é", "Aé", "Be"),
        ("", "", "a"),
        (".", "x", "\n"),
        ("(^(x|y)$)|(^abc.*)", "abcd", "xy"),
        ("^a$|(b|c$)", "c", "ac"),
        (r"\D\S\W\s", "a. \t", "1. \t"),
        ("a\0b", "a\0b", "a"),
        (".", "😀", "😀😀"),
        (r"\p{Greek}+", "λόγος", "logos"),
        (r"\pL+\PL", "été1", "ete"),
        ("[[:alpha:]]+", "abc", "ab1"),
        ("(?P<word>a+)(?i:b)", "aaB", "AAb"),
        (r"a\b.*", "a-b", "ab"),
        (r"\Aa\z", "a", "a\n"),
        ("a$", "a", "a\n"),
    ],
)
def test_patterns_match_whole_texts_in_re2_syntax(expression: str, yes: str, no: str) -> None:
    pattern = Pattern(expression)
    assert pattern.matches(yes) and not pattern.matches(no)


@pytest.mark.parametrize(
    ("expression", "reason"),
    [
        ("(", "missing ): ("),
        ("a)", "unexpected ): a)"),
        ("[a", "missing ]: [a"),
        ("[]", "missing ]: []"),
        ("*", "no argument for repetition operator: *"),
        ("a**", "bad repetition operator: **"),
        ("a++", "bad repetition operator: ++"),
        ("a{1}{2}", "bad repetition operator: {1}{2}"),
        ("a{2,1}", "invalid repetition size: {2,1}"),
        ("a{1001}", "invalid repetition size: {1001}"),
        ("\\", "trailing \\"),
        (r"(a)\1", r"invalid escape sequence: \1"),
        (r"\xg1", r"invalid escape sequence: \xg1"),
        (r"a\Z", r"invalid escape sequence: \Z"),
        ("(?=a)", "invalid perl operator: (?="),
        ("(?!a)", "invalid perl operator: (?!"),
        ("(?<=a)", "invalid perl operator: (?<="),
        ("(?<!a)", "invalid perl operator: (?<!"),
        ("(?>a)", "invalid perl operator: (?>"),
        (r"\p{Alpha}", r"invalid character class range: \p{Alpha}"),
        ("[b-a]", "invalid character class range: b-a"),
        ("[é", "missing ]: [é"),
    ],
)
def test_invalid_syntax_is_refused_with_re2s_error_message(expression: str, reason: str) -> None:
    with pytest.raises(BadPattern) as refused:
        Pattern(expression)
    assert str(refused.value) == reason


def test_lone_surrogates_are_refused_in_patterns_and_never_match() -> None:
    for expression in ("\ud800", "a\udfff", "[\ud800-\udfff]"):
        with pytest.raises(BadPattern):
            Pattern(expression)
    assert not Pattern(".*").matches("\ud800")


@pytest.mark.parametrize(
    "expression",
    [
        "a" * (PATTERN_CHARS_MAX + 1),
        "(" * PATTERN_CHARS_MAX,
        "[" * PATTERN_CHARS_MAX,
        "(a{100}){100}",
        "(a{1000}){1000}",
        "(((a{10}){10}){10}){10}",
        "((((){1000}){1000}){1000}){1000}",
        "(?:" * 150 + "a" + "){1000}" * 75,
        r"\pL{1000}",
        r"\pL" * (PATTERN_CHARS_MAX // 3),
        r"(?i)" + r"[\pL\PN]" * 120,
    ],
)
def test_oversized_patterns_are_refused_quickly(expression: str) -> None:
    began = time.thread_time()
    with pytest.raises(BadPattern):
        Pattern(expression)
    assert time.thread_time() - began < HOSTILE_S_MAX


@pytest.mark.parametrize(
    "expression",
    [
        "(a+)+b", "(a|a)*b", "(a|aa)+b", "(.*a){20}b", "(a?){100}a{100}b", "((a*)*)*b", "(a*)*" * 150 + "b", "(a*b*){480}c",
        "(.?a?){480}c", ".*a.{480}b", "(" * 499 + ")" * 499 + "c", "[ab]*a[ab]{20}c", "(a*)" * 240 + "c",
    ],
)  # fmt: skip
def test_patterns_that_make_backtracking_engines_hang_match_in_bounded_time(expression: str) -> None:
    pattern = Pattern(expression)
    began = time.thread_time()
    assert not pattern.matches("a" * TEXT_CHARS_MAX) and not pattern.matches("aabab" * 100 + "-")
    assert time.thread_time() - began < HOSTILE_S_MAX


def test_texts_over_the_length_limit_never_match() -> None:
    assert Pattern(".*").matches("é" * TEXT_CHARS_MAX)
    assert not Pattern(".*").matches("a" * (TEXT_CHARS_MAX + 1))


def test_pattern_size_distinguishes_small_from_large_patterns() -> None:
    assert Pattern("orders.*").size < 32 < Pattern("(a*b*){300}").size < MEMORY_BYTES_MAX


@settings(deadline=None, max_examples=300)
@given(st.text(st.sampled_from("ab(){}[]|*+?^$\\.-,1QEdwsxu:i&pLPé\0"), max_size=30), st.text("ab1é", max_size=20))
def test_arbitrary_expressions_compile_or_raise_bad_pattern(expression: str, text: str) -> None:
    try:
        pattern = Pattern(expression)
    except BadPattern:
        return
    assert pattern.matches(text) in (True, False)


MEMORY_PROGRAM = """
import resource
from headrace.base.patterns import BadPattern, Pattern

def peak(): return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
Pattern("(a*b*){400}c0").matches("ab" * 200)
before = peak()
for number in range(300):
    Pattern(f"(a*b*){{400}}c{number}").matches("aabab" * 100)
    try:
        Pattern(r"\\pL{1000}" + str(number))
    except BadPattern:
        pass
print(peak() - before)
"""


def test_unreferenced_patterns_are_freed() -> None:
    """Check also that RE2 writes nothing to stderr."""
    done = subprocess.run([sys.executable, "-c", MEMORY_PROGRAM], capture_output=True, text=True, check=True)
    assert done.stderr == ""
    assert int(done.stdout) < 40 * MEMORY_BYTES_MAX >> 10  # in KiB, as Linux reports it; 300 were made


def test_importing_the_cli_and_the_node_does_not_import_re2() -> None:
    command = "import sys, headrace.cli.main, headrace.node.node; print('re2' in sys.modules)"
    assert (
        subprocess.run([sys.executable, "-c", command], capture_output=True, text=True, check=True).stdout == "False\n"
    )
