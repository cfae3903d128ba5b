"""Finds the tables that a query reads and the words in it: enough to draw the graph and to find a typo before Spark starts.

This is not a parser. The query is split into words; a table name follows FROM, JOIN or a comma in a FROM list; each pair of parentheses
is a separate scope. Names that the query itself defines (WITH), table functions and names with dots (catalog tables) are not references.
Mistakes of this scan are harmless: Spark's own analysis, when the pipeline is built, is authoritative.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

_TOKEN = re.compile(
    r"""(?P<space>\s+|--[^\n]*|/\*.*?(?:\*/|\Z))
      | (?P<string>'(?:[^'\\]|\\.|'')*(?:'|\Z)|"(?:[^"\\]|\\.)*(?:"|\Z))
      | (?P<quoted>`(?:[^`]|``)*(?:`|\Z))
      | (?P<word>[^\W\d]\w*)
      | (?P<number>\d\w*)
      | (?P<pipe>\|>)
      | (?P<other>.)""",
    re.VERBOSE | re.DOTALL,
)
# Words that end the list of tables after FROM. (ON and USING do not: a comma after them continues the list.)
_ENDS_FROM = frozenset(
    ["where", "group", "having", "order", "limit", "window", "select", "union", "intersect", "except", "minus", "sort"]
)
_NO_TABLE = frozenset(("select", "values", "with", "from", "lateral", "table"))
QUERIES = ("select", "with", "from", "values", "table")  # first words of a query


@dataclass(frozen=True)
class Reference:
    name: str
    line: int  # line within the query, from 0


@dataclass(frozen=True)
class SqlNames:
    references: tuple[Reference, ...]
    words: frozenset[str]  # in lower case, without quoted text
    first_word: str

    @property
    def groups(self) -> bool:
        return "group" in self.words

    @property
    def names(self) -> tuple[str, ...]:
        """Return each name once, ignoring case, as Spark does."""
        return tuple({one.name.lower(): one.name for one in reversed(self.references)}.values())[::-1]


@dataclass(frozen=True)
class _Token:
    kind: str
    text: str
    line: int

    @property
    def word(self) -> str:
        return self.text.lower() if self.kind == "word" else ""

    @property
    def is_name(self) -> bool:
        return self.kind in ("word", "quoted")


@dataclass
class _Scope:
    """The text between two parentheses."""

    in_from: bool = False
    expects: bool = False  # whether a table comes next
    has_select: bool = False
    in_with: bool = False
    names_next: bool = False  # whether a name of WITH comes next
    pending: str = ""  # the name of WITH whose query is being read, in which it still has its previous meaning
    defined: set[str] = field(default_factory=set)

    def define(self) -> None:
        self.defined.add(self.pending)


def _tokens(sql: str) -> Iterator[_Token]:
    line = 0
    for found in _TOKEN.finditer(sql):
        text = found[0]
        if found.lastgroup != "space":
            yield _Token(str(found.lastgroup), text, line)
        line += text.count("\n")


def scan(sql: str) -> SqlNames:
    tokens = [*_tokens(sql), _Token("end", "", 0)]
    scopes = [_Scope()]
    references: list[Reference] = []
    at = 0
    while tokens[at].kind != "end":
        token, scope = tokens[at], scopes[-1]
        before = tokens[at - 1] if at else None
        if token.text == "(":
            scopes.append(_Scope(expects=scope.expects and tokens[at + 1].word not in _NO_TABLE, in_from=scope.expects))
            scope.expects = False
        elif token.text == ")":
            if len(scopes) > 1:
                scopes.pop()
        elif scope.names_next and token.is_name and token.word != "recursive":
            scope.pending = _plain(token).lower()
            scope.names_next = False
            if before is not None and before.word == "recursive":
                scope.define()
        elif scope.expects and token.is_name and token.word not in _NO_TABLE:
            at = _take(tokens, at, scopes, references)
        else:
            _follow(token, before, tokens[at + 1], scope, is_outermost=len(scopes) == 1)
        at += 1
    first = next((token.word for token in tokens if token.text != "("), "")
    return SqlNames(tuple(references), frozenset(token.word for token in tokens), first)


def _take(tokens: list[_Token], at: int, scopes: list[_Scope], references: list[Reference]) -> int:
    """Take the table name that begins at a token; return the index of its last token."""
    first, end = tokens[at], at
    if first.word == "stream" and (tokens[at + 1].is_name or tokens[at + 1].text == "("):
        return at  # FROM STREAM orders: the name follows
    while tokens[end + 1].text == "." and tokens[end + 2].is_name:
        end += 2
    scopes[-1].expects = False
    is_function = tokens[end + 1].text == "("
    is_defined = any(_plain(first).lower() in scope.defined for scope in scopes)
    if end == at and not is_function and not is_defined:
        references.append(Reference(_plain(first), first.line))
    return end


def _follow(token: _Token, before: _Token | None, after: _Token, scope: _Scope, *, is_outermost: bool) -> None:
    word = token.word
    if word == "from":
        # Ignore the FROM of EXTRACT(day FROM x), TRIM(…) and the like, and of IS DISTINCT FROM.
        is_clause = scope.has_select or scope.in_with or is_outermost or before is None or before.text in ("(", "|>")
        if is_clause and (before is None or before.word != "distinct"):
            scope.in_from = scope.expects = True
            scope.in_with = False
            scope.define()
    elif word == "join":
        scope.in_from = scope.expects = True
    elif word == "lateral" and after.word == "view":
        scope.in_from = scope.expects = False
    elif word == "with":
        scope.in_with = scope.names_next = True
    elif token.text == ",":
        scope.define()
        scope.names_next = scope.in_with
        scope.expects = scope.in_from and not scope.in_with
    elif word in _ENDS_FROM or token.kind == "pipe":
        scope.in_from = scope.expects = scope.in_with = False
        scope.define()
        scope.has_select |= word == "select"
    elif word == "values":
        scope.expects = False


def _plain(token: _Token) -> str:
    return token.text.strip("`").replace("``", "`") if token.kind == "quoted" else token.text
