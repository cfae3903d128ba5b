"""Parsing YAML into a tree: line numbers, duplicate keys, merges and malicious files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("yaml", reason="needs the extra spark")

from headrace.pipelines.definitions.definition import DefinitionError
from headrace.pipelines.definitions.durations import duration
from headrace.pipelines.definitions.tree import Entries, Items, Text
from headrace.pipelines.definitions.yaml_files import FILE_BYTES_MAX, parse_yaml, read_yaml

PATH = Path("shop.yaml")


def trees(text: str) -> list[Any]:
    """Return the trees without their types: a test knows what its own text holds."""
    return list(parse_yaml(text, PATH))


def problems(text: bytes | str) -> list[str]:
    with pytest.raises(DefinitionError) as refused:
        parse_yaml(text, PATH)
    return str(refused.value).splitlines()


def test_keys_and_block_texts_have_their_line_numbers() -> None:
    (tree,) = trees("name: shop\nsteps:\n  a:\n    sql: |\n      SELECT 1\n  b: {sql: x, keys: [1, two]}\n")
    steps = tree.entries["steps"]
    assert steps.where.line == 2
    sql = steps.node.entries["a"].node.entries["sql"]
    assert (sql.where.line, sql.node.first_line.line, sql.node.value) == (4, 5, "SELECT 1\n")
    b = steps.node.entries["b"].node.entries
    assert (b["sql"].where.line, b["sql"].node.first_line.line) == (6, 6)
    assert [one.value for one in b["keys"].node.items] == ["1", "two"]


def test_each_yaml_document_becomes_a_separate_tree() -> None:
    assert [tree.entries["name"].node.value for tree in trees("name: a\n---\nname: b\n")] == ["a", "b"]


def test_explicit_keys_override_merged_keys() -> None:
    text = "common: &c {value: json, topic: x}\nmore: &m {topic: y, key: k}\na:\n  <<: [*c, *m]\n  value: raw\n"
    (tree,) = trees(text)
    found = tree.entries["a"].node.entries
    assert {key: entry.node.value for key, entry in found.items()} == {"value": "raw", "topic": "x", "key": "k"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "shop.yaml: is empty; a pipeline has name, sources and sinks"),
        ("# nothing\n", "shop.yaml: is empty; a pipeline has name, sources and sinks"),
        ("a: 1\n\nb:\n\tc: 2\n", "shop.yaml:4: is no YAML: while scanning for the next token found character a tab"),
        ("a: [1, 2\nb: 3\n", "shop.yaml:2: is no YAML: while parsing a flow sequence expected ',' or ']'"),
        ("a: 1\nb: 2\na: 3\n", "shop.yaml:3: a stands here a second time; the first is in line 1"),
        ("? [a]\n: 1\n", "shop.yaml:1: a key must be a plain name"),
        ("a:\n  <<: text\n", "shop.yaml:2: << takes a mapping, or a list of them"),
        ("a: *b\n", "shop.yaml:1: is no YAML: found undefined alias 'b'"),
        ("[" * 5000, "shop.yaml: is no pipeline: it is nested too deeply"),
        ("[" * 30 + "]" * 30, "shop.yaml:1: is nested too deeply"),
        ("a: &a [x, *a]\n", "shop.yaml:1: is nested too deeply"),
        (b"a: \xff\n", "shop.yaml: is no YAML: "),
    ],
)
def test_yaml_errors_have_their_line(text: bytes | str, expected: str) -> None:
    (found,) = problems(text)
    assert found.startswith(expected)


def test_exponential_alias_expansion_is_refused() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 10)]
    (found,) = problems("\n".join(lines))
    assert "has more than 20000 parts, aliases written out" in found
    lines = ["a0: &a0 {x: 1}"] + [f"a{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * 10)}]}}" for n in range(1, 10)]
    assert "has more than" in problems("\n".join(lines))[0]


def test_missing_and_oversized_files_are_reported(tmp_path: Path) -> None:
    with pytest.raises(DefinitionError, match="cannot be read: No such file"):
        read_yaml(tmp_path / "none.yaml")
    large = tmp_path / "large.yaml"
    large.write_bytes(b"#" * (FILE_BYTES_MAX + 1))
    with pytest.raises(DefinitionError, match="is longer than"):
        read_yaml(large)


@settings(deadline=None, max_examples=300)
@given(st.one_of(st.binary(max_size=60), st.text(alphabet="ab:-[]{}&*!|>'\"#%@`,? \n\t<0", max_size=60)))
def test_any_text_parses_or_raises_definition_error(text: bytes | str) -> None:
    try:
        for tree in parse_yaml(text, PATH):
            assert isinstance(tree, Entries | Items | Text)
    except DefinitionError as error:
        assert all(problem.where.file == PATH for problem in error.problems)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("10 seconds", "10 seconds"),
        ("1 hour 30 minutes", "1 hour 30 minutes"),
        (" 500ms ", "500 milliseconds"),
        ("10s", "10 seconds"),
        ("2 Min", "2 minutes"),
        ("1h5m", "1 hours 5 minutes"),
        ("0 seconds", "0 seconds"),
        ("ten seconds", None),
        ("10", None),
        ("10 parsecs", None),
        ("-1 second", None),
        ("", None),
    ],
)
def test_durations_are_parsed_or_refused(text: str, expected: str | None) -> None:
    assert duration(text) == expected
