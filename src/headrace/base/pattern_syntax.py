"""The syntax of `patterns`: what java.util.regex and RE2 have in common, less what needs memory of the text.

No back-references, no look-around, no possessive quantifiers; `^` and `$` only where nothing can come before or after, be it in a group
or a branch: there they say nothing, because a pattern must match the whole text. `(?i)` may come first.
"""

from __future__ import annotations

from msgspec import Struct

GROUPS_DEEP_MAX = 30
REPEAT_MAX = 1000

Ranges = tuple[tuple[int, int], ...]

_LAST = 0x10FFFF
_DIGIT: Ranges = ((48, 57),)
_WORD: Ranges = ((48, 57), (65, 90), (95, 95), (97, 122))
_SPACE: Ranges = ((9, 13), (32, 32))
_LINE_ENDS: Ranges = ((10, 10), (13, 13), (0x85, 0x85), (0x2028, 0x2029))
_CLASSES = {"d": _DIGIT, "w": _WORD, "s": _SPACE}
_CONTROLS = {"t": 9, "n": 10, "f": 12, "r": 13, "a": 7, "e": 27}
_QUANTIFIERS = {"*": (0, None), "+": (1, None), "?": (0, 1)}
_LETTERS = ((65, 90, 32), (97, 122, -32))  # of ASCII, and how far away the other case is


class BadPattern(ValueError):
    """Says what is wrong with a pattern."""


class UnsupportedPattern(BadPattern):
    """Other engines would take it; says what this one lacks, or which limit it passes."""


class One(Struct, frozen=True):
    """One character out of these."""

    ranges: Ranges


class Sequence(Struct, frozen=True):
    parts: tuple[Node, ...]


class Choice(Struct, frozen=True):
    branches: tuple[Node, ...]


class Repeat(Struct, frozen=True):
    part: Node
    least: int
    most: int | None


Node = One | Sequence | Choice | Repeat


def parse(text: str) -> Node:
    return _Reader(text).whole()


class _Reader:
    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._depth = 0
        self._ignore_case = False
        self._starts = True  # nothing came before this place
        self._ended = False  # a $ did
        self._edges = 0  # ^ and $ so far

    def whole(self) -> Node:
        if self._text.startswith("(?i)"):
            self._ignore_case = True
            self._at = 4
        node = self._choice()
        if self._at < len(self._text):
            raise BadPattern(f"an unmatched ) at {self._at}")
        return node

    def _peek(self) -> str:
        return self._text[self._at : self._at + 1]

    def _skip(self, expected: str) -> bool:
        found = self._text.startswith(expected, self._at)
        if found:
            self._at += len(expected)
        return found

    def _next(self, what: str) -> str:
        character = self._peek()
        if not character:
            raise BadPattern(f"it ends in the middle of {what}")
        self._at += 1
        return character

    def _choice(self) -> Node:
        starts, branches, ended = self._starts, [self._sequence()], self._ended
        while self._skip("|"):
            self._starts, self._ended = starts, False
            branches.append(self._sequence())
            ended |= self._ended
        self._ended = ended
        return branches[0] if len(branches) == 1 else Choice(tuple(branches))

    def _sequence(self) -> Node:
        parts: list[Node] = []
        while (character := self._peek()) and character not in "|)":
            edges = self._edges
            if self._ended:
                raise self._misplaced("$")
            if (character == "^" and self._starts) or character == "$":
                self._at += 1
                self._edges += 1
                self._ended = character == "$"
                continue
            if self._skip(r"\Q"):
                end = self._text.find(r"\E", self._at)
                end = len(self._text) if end < 0 else end
                quoted = self._text[self._at : end]
                parts += [self._literal(one) for one in quoted]
                self._at = min(end + 2, len(self._text))
                if not quoted:
                    continue
            else:
                parts.append(self._atom())
            self._starts = False
            once = parts[-1]
            parts[-1] = self._quantified(once)
            if parts[-1] is not once and self._edges > edges:
                raise self._misplaced("^ or $")
        return Sequence(tuple(parts))

    def _misplaced(self, edge: str) -> UnsupportedPattern:
        return UnsupportedPattern(
            f"{edge} before {self._at}: the whole text is matched, so it belongs at an end of the pattern or nowhere"
        )

    def _atom(self) -> Node:
        at, character = self._at, self._next("nothing")
        if character == "(":
            return self._group()
        if character == "[":
            return One(self._set())
        if character == ".":
            return One(_inverted(_LINE_ENDS))
        if character == "\\":
            return One(self._escape())
        if character == "^":
            raise self._misplaced("^")
        if character in "*+?{":
            raise BadPattern(f"{character} at {at} has nothing to repeat")
        return self._literal(character)

    def _literal(self, character: str) -> One:
        return One(self._folded(((ord(character), ord(character)),)))

    def _folded(self, ranges: Ranges) -> Ranges:
        """With the other case of its ASCII letters, if case makes no difference."""
        if not self._ignore_case:
            return ranges
        return ranges + tuple(
            (max(low, first) + away, min(high, last) + away)
            for low, high in ranges
            for first, last, away in _LETTERS
            if max(low, first) <= min(high, last)
        )

    def _group(self) -> Node:
        if self._skip("?") and not self._skip(":"):
            raise UnsupportedPattern(
                f"(?{self._peek()} is not supported: nothing looks around, and (?i) only comes first"
            )
        self._depth += 1
        if self._depth > GROUPS_DEEP_MAX:
            raise UnsupportedPattern(f"groups more than {GROUPS_DEEP_MAX} deep")
        node = self._choice()
        if not self._skip(")"):
            raise BadPattern("a group is not closed")
        self._depth -= 1
        return node

    def _quantified(self, part: Node) -> Node:
        least: int
        most: int | None
        if self._peek() in _QUANTIFIERS:
            least, most = _QUANTIFIERS[self._next("a quantifier")]
        elif self._skip("{"):
            least, most = self._counts()
        else:
            return part
        self._skip("?")  # lazy or not makes no difference to whether there is a match
        if self._peek() and self._peek() in "*+?{":
            raise UnsupportedPattern(
                f"{self._peek()} at {self._at}: possessive and repeated quantifiers are not supported"
            )
        return Repeat(part, least, most)

    def _counts(self) -> tuple[int, int | None]:
        end = self._text.find("}", self._at)
        low, comma, high = self._text[self._at : end if end >= 0 else self._at].partition(",")
        if not _is_count(low) or (high and not _is_count(high)):
            raise BadPattern(f"no counts at {self._at}: {{n}}, {{n,}} or {{n,m}}, up to {REPEAT_MAX}")
        self._at = end + 1
        least = int(low)
        most = least if not comma else int(high) if high else None
        if most is not None and most < least:
            raise BadPattern(f"{{{low},{high}}} is the wrong way round")
        return least, most

    def _set(self) -> Ranges:
        negated = self._skip("^")
        ranges: list[tuple[int, int]] = []
        while not ranges or self._peek() != "]":
            if self._peek() in ("[", "&"):
                raise UnsupportedPattern(
                    f"{self._peek()} at {self._at}: sets within sets are not supported; write it as \\{self._peek()}"
                )
            low = self._member()
            if (
                len(low) != 1
                or low[0][0] != low[0][1]
                or self._peek() != "-"
                or self._text[self._at + 1 : self._at + 2] == "]"
            ):
                ranges += low
                continue
            self._at += 1
            high = self._member()
            if len(high) != 1 or high[0][0] != high[0][1] or high[0][0] < low[0][0]:
                raise BadPattern(f"a bad range at {self._at}")
            ranges.append((low[0][0], high[0][0]))
        self._at += 1
        folded = self._folded(tuple(ranges))
        return _inverted(folded) if negated else folded

    def _member(self) -> Ranges:
        character = self._next("a set")
        return self._escape() if character == "\\" else ((ord(character), ord(character)),)

    def _escape(self) -> Ranges:
        character = self._next("an escape")
        if character.lower() in _CLASSES:
            ranges = _CLASSES[character.lower()]
            return ranges if character.islower() else _inverted(ranges)
        if character in "xu":
            digits = self._text[self._at : self._at + (2 if character == "x" else 4)]
            self._at += len(digits)
            if len(digits) != (2 if character == "x" else 4) or not all(
                one in "0123456789abcdefABCDEF" for one in digits
            ):
                raise BadPattern(f"no digits after \\{character}")
            return ((int(digits, 16), int(digits, 16)),)
        if character in _CONTROLS:
            return ((_CONTROLS[character], _CONTROLS[character]),)
        if character.isalnum():
            raise UnsupportedPattern(f"\\{character} is not supported")
        return ((ord(character), ord(character)),)


def _is_count(text: str) -> bool:
    return 0 < len(text) <= 4 and text.isascii() and text.isdigit() and int(text) <= REPEAT_MAX


def _inverted(ranges: Ranges) -> Ranges:
    gaps, start = [], 0
    for low, high in sorted(ranges):
        if low > start:
            gaps.append((start, low - 1))
        start = max(start, high + 1)
    if start <= _LAST:
        gaps.append((start, _LAST))
    return tuple(gaps)
