"""Options: parsing text into values, error messages that say what is allowed, and Java's properties format."""

from __future__ import annotations

import pytest

from headrace.base.errors import ConfigError
from headrace.options.table import Kind, Option, OptionTable, parse_properties, unused

PORT = Option("port", Kind.INT, 9092, "a port", at_least=1, at_most=65535)
ROLES = Option("roles", Kind.LIST, [], "roles", one_of=("broker", "controller"))


@pytest.mark.parametrize(
    ("option", "text", "value"),
    [
        (PORT, " 80 ", 80),
        (ROLES, "broker, controller,", ["broker", "controller"]),
        (Option("flag", Kind.BOOLEAN, False, ""), "TRUE", True),
        (Option("ratio", Kind.DOUBLE, 0.5, "", at_least=0, at_most=1), "0.25", 0.25),
    ],
)
def test_option_values_round_trip_through_text(option: Option, text: str, value: list[str] | float) -> None:
    assert option.parse(text) == value
    assert option.parse(option.text(value)) == value


@pytest.mark.parametrize(
    ("option", "text", "message_pattern"),
    [
        (PORT, "0", "1 to 65535"),
        (PORT, "many", "1 to 65535"),
        (ROLES, "broker,king", "a list of any of broker, controller"),
        (Option("flag", Kind.BOOLEAN, False, ""), "yes", "true or false"),
        (Option("long", Kind.LONG, 0, ""), str(2**63), "9223372036854775807"),
        (Option("level", Kind.INT, -1, "", at_least=-1, at_most=9, never=(0,)), "0", "from -1 to 9, but not 0"),
        (Option("number", Kind.INT, 0, ""), "1_000", "a number from"),
        (Option("number", Kind.INT, 0, ""), "9" * 5000, "a number from"),
        (Option("ratio", Kind.DOUBLE, 0.5, "", at_least=0), "nan", "a number of at least 0"),
        (Option("ratio", Kind.DOUBLE, 0.5, ""), "1e400", "a number"),
    ],
)
def test_an_invalid_value_is_reported_with_its_option_and_the_allowed_values(
    option: Option, text: str, message_pattern: str
) -> None:
    with pytest.raises(ConfigError, match=message_pattern) as caught:
        option.parse(text)
    assert option.name in str(caught.value)


def test_an_invalid_password_is_not_repeated_in_the_error() -> None:
    with pytest.raises(ConfigError) as caught:
        Option("password", Kind.PASSWORD, None, "", one_of=("x",)).parse("hunter2")
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.5, "0.5"),
        (0.0, "0.0"),
        (1.7976931348623157e308, "1.7976931348623157E308"),
        (1e7, "1.0E7"),
        (-1.5e-4, "-1.5E-4"),
    ],
)
def test_doubles_are_formatted_as_in_java(value: float, text: str) -> None:
    assert Option("ratio", Kind.DOUBLE, 0.5, "").text(value) == text


def test_unused_options_carry_the_reason() -> None:
    assert [(one.name, one.unused) for one in unused("why", PORT, ROLES)] == [("port", "why"), ("roles", "why")]
    assert PORT.unused is None


def test_an_unknown_option_name_suggests_the_nearest_known_one() -> None:
    with pytest.raises(ConfigError, match="did you mean port"):
        OptionTable(PORT).known("prot")


def test_properties_are_parsed_as_in_java() -> None:
    text = "# comment\n! also\n a = 1 \nb:2\nc 3\nlong=one,\\\n   two\nuni=\\u00e4\\n\npath=C\\:\\\\x\nempty=\n"
    assert parse_properties(text, "f") == {
        "a": "1", "b": "2", "c": "3", "long": "one,two", "uni": "ä\n", "path": "C:\\x", "empty": "",
    }  # fmt: skip


def test_a_property_without_a_name_is_refused_with_its_line_number() -> None:
    with pytest.raises(ConfigError, match="f, line 2"):
        parse_properties("a=1\n=2\n", "f")
