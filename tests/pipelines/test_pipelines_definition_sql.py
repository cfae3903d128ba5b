"""Finding table names in SQL and functions in Python files without Spark and without running the code."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.pipelines.definitions.python.functions import Parameters, Unreadable, functions_of, parameters_of
from headrace.pipelines.definitions.sql_names import scan


@pytest.mark.parametrize(
    ("sql", "names"),
    [
        ("SELECT o.*, c.name FROM orders o JOIN customers c ON o.customer = c.id", "orders customers"),
        ("select window(at, '1 minute') w, count(*) n\nfrom orders group by 1", "orders"),
        ("SELECT * FROM a, b AS x, (SELECT * FROM c) y, d WHERE z IN (SELECT id FROM e) AND f = g", "a b c d e"),
        ("SELECT * FROM (a JOIN (SELECT * FROM b) ON true) x", "a b"),
        ("SELECT 1 FROM a UNION ALL SELECT 2 FROM b ORDER BY x, y", "a b"),
        ("SELECT * FROM a LEFT JOIN b ON f(x, y) = 1, c GROUP BY x, y", "a b c"),
        ("SELECT * FROM a FULL OUTER JOIN b USING (x, y), c", "a b c"),
        ("WITH a AS (SELECT * FROM orders), b(x, y) AS (SELECT 1, 2 FROM a) SELECT * FROM a, b, c", "orders c"),
        ("WITH orders AS (SELECT * FROM orders) SELECT * FROM orders", "orders"),
        ("WITH RECURSIVE t AS (SELECT 1 x UNION ALL SELECT x + 1 FROM t) SELECT * FROM t JOIN o", "o"),
        ("SELECT extract(day FROM at), trim(BOTH ' ' FROM name) FROM orders", "orders"),
        ("SELECT a IS DISTINCT FROM b, c IS NOT DISTINCT FROM d FROM orders", "orders"),
        (
            "SELECT 'FROM x', \"FROM y\", 'it''s FROM z', 'a\\'FROM q' FROM `my orders` -- FROM w\n/* FROM v */",
            "my orders",
        ),
        ("SELECT * FROM range(10), catalog.db.t, parquet.`/x`, orders", "orders"),
        ("SELECT * FROM orders LATERAL VIEW explode(items) t AS item, number", "orders"),
        ("SELECT * FROM orders o, LATERAL explode(o.items), LATERAL (SELECT * FROM c) x", "orders c"),
        ("SELECT * FROM VALUES (1), (2) AS t(a), o", "o"),
        ("FROM orders |> WHERE x > 1 |> SELECT a, b |> JOIN customers USING (a, b)", "orders customers"),
        ("SELECT a FROM STREAM orders UNION ALL SELECT a FROM STREAM(returns)", "orders returns"),
        ("SELECT * FROM Orders JOIN ORDERS o2", "Orders"),
        ("SELECT 1", ""),
        ("", ""),
        (") FROM (((", ""),
    ],
)
def test_scan_finds_the_tables_of_a_query(sql: str, names: str) -> None:
    assert " ".join(scan(sql).names) == names


def test_scan_finds_lines_grouping_and_the_first_word() -> None:
    found = scan("SELECT *\nFROM a\n\nJOIN b GROUP BY x")
    assert [(one.name, one.line) for one in found.references] == [("a", 1), ("b", 3)]
    assert found.groups and found.first_word == "select"
    assert not scan("SELECT 'GROUP BY' FROM a").groups
    assert scan("  -- x\n ((SELECT 1))").first_word == "select"


TEXT = "SELECT FROM JOIN WITH AS ( ) , a `b` 'c' . LATERAL VIEW STREAM VALUES /* */ -- ' \" ` |> GROUP DISTINCT 1 é \\"
WORDS = [*TEXT.split(), "\n"]


@settings(deadline=None, max_examples=300)
@given(st.lists(st.sampled_from(WORDS), max_size=25))
def test_scan_accepts_any_sequence_of_tokens(words: list[str]) -> None:
    found = scan(" ".join(words))
    assert all(one.name for one in found.references if one.name)


def test_functions_of_a_file_are_found_without_running_it(tmp_path: Path) -> None:
    path = tmp_path / "steps.py"
    path.write_text(
        "import os\nfrom x import y as z\nraise SystemExit\n"
        "def one(a): ...\ndef two(a, b=1): ...\ndef many(a, *rest): ...\n@deco\ndef hidden(a): ...\nmade = lambda a: a\n"
        "try:\n    from q import r\nexcept ImportError:\n    def r(a): ...\n"
    )
    found = functions_of(path)
    assert found["one"] == Parameters(("a",)) and str(found["one"]) == "1 input"
    assert found["two"] == Parameters(("a",), 1) and str(found["two"]) == "1 to 2 inputs"
    assert found["many"] == Parameters(("a",), any_number=True) and str(found["many"]) == "at least 1 inputs"
    assert found["hidden"] is found["made"] is found["os"] is found["z"] is found["r"] is None
    assert "y" not in found
    assert found["two"].takes(1) and found["two"].takes(2) and not found["two"].takes(3)
    assert found["many"].takes(5) and not found["many"].takes(0)
    assert parameters_of(lambda a, b=1, *c, d=2: a) == Parameters(("a",), 1, True)


@pytest.mark.parametrize(
    ("data", "words"),
    [(b"def f(:\n", ":1: invalid syntax"), (b"\0", "null bytes"), (None, "cannot be read: No such file")],
)
def test_an_invalid_or_missing_python_file_raises_unreadable(tmp_path: Path, data: bytes | None, words: str) -> None:
    path = tmp_path / "steps.py"
    if data is not None:
        path.write_bytes(data)
    with pytest.raises(Unreadable) as refused:
        functions_of(path)
    assert words in str(refused.value)
