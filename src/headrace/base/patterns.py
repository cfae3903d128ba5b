"""Regular expressions that take time linear in the text, for patterns that come over the wire: nothing backtracks.

A pattern becomes the automaton of Glushkov: one position per character that it names; sets of positions are integers, and steps are
remembered. `pattern_syntax` says what can be written.
"""

from __future__ import annotations

from headrace.base.pattern_syntax import Choice, Node, One, Ranges, Repeat, UnsupportedPattern, parse

PATTERN_CHARS_MAX = 1000
POSITIONS_MAX = 300  # what a pattern may grow to when its repetitions are written out
PARTS_MAX = 3000  # … and its groups, which may be empty
TEXT_CHARS_MAX = 512  # a longer text matches nothing
STEPS_REMEMBERED_MAX = 4096


class Pattern:
    """Compiled; raises BadPattern, or UnsupportedPattern."""

    def __init__(self, text: str) -> None:
        if len(text) > PATTERN_CHARS_MAX:
            raise UnsupportedPattern(f"a pattern of {len(text)} characters; {PATTERN_CHARS_MAX} are allowed")
        self.text = text
        self._parts = 0
        self._classes: list[Ranges] = []
        self._follow: list[int] = []  # by position: those that may come next
        self._nullable, self._first, self._last = self._build(parse(text))
        self._accepting: dict[str, int] = {}  # by character: positions that take it
        self._steps: dict[tuple[int, str], int] = {}

    def matches(self, text: str) -> bool:
        """The whole of it."""
        if len(text) > TEXT_CHARS_MAX:
            return False
        if not text:
            return self._nullable
        reached = self._first & self._takes(text[0])
        for character in text[1:]:
            if not reached:
                return False
            reached = self._step(reached, character)
        return bool(reached & self._last)

    def _step(self, reached: int, character: str) -> int:
        key = (reached, character)
        known = self._steps.get(key)
        if known is None:
            following, rest = 0, reached
            while rest:
                lowest = rest & -rest
                following |= self._follow[lowest.bit_length() - 1]
                rest ^= lowest
            known = following & self._takes(character)
            if len(self._steps) >= STEPS_REMEMBERED_MAX:
                self._steps.clear()
            self._steps[key] = known
        return known

    def _takes(self, character: str) -> int:
        positions = self._accepting.get(character)
        if positions is None:
            code, positions = ord(character), 0
            for index, ranges in enumerate(self._classes):
                if any(low <= code <= high for low, high in ranges):
                    positions |= 1 << index
            if len(self._accepting) >= STEPS_REMEMBERED_MAX:
                self._accepting.clear()
            self._accepting[character] = positions
        return positions

    # --- construction: each part gives (may be empty, first positions, last positions)

    def _build(self, node: Node) -> tuple[bool, int, int]:
        self._parts += 1
        if self._parts > PARTS_MAX or (isinstance(node, One) and len(self._classes) == POSITIONS_MAX):
            raise UnsupportedPattern(
                f"with its repetitions written out it has more than {POSITIONS_MAX} characters or {PARTS_MAX} parts"
            )
        if isinstance(node, One):
            self._classes.append(node.ranges)
            self._follow.append(0)
            position = 1 << len(self._classes) - 1
            return False, position, position
        if isinstance(node, Choice):
            built = [self._build(branch) for branch in node.branches]
            nullable, first, last = False, 0, 0
            for branch in built:
                nullable, first, last = nullable or branch[0], first | branch[1], last | branch[2]
            return nullable, first, last
        if isinstance(node, Repeat):
            return self._build_repeat(node)
        whole = (True, 0, 0)
        for part in node.parts:
            whole = self._join(whole, self._build(part))
        return whole

    def _build_repeat(self, node: Repeat) -> tuple[bool, int, int]:
        whole = (True, 0, 0)
        for _ in range(node.least if node.most is not None else max(node.least - 1, 0)):
            whole = self._join(whole, self._build(node.part))
        if node.most is None:
            nullable, first, last = self._build(node.part)
            self._link(last, first)
            return self._join(whole, (nullable or node.least == 0, first, last))
        for _ in range(node.most - node.least):
            _, first, last = self._build(node.part)
            whole = self._join(whole, (True, first, last))
        return whole

    def _join(self, left: tuple[bool, int, int], right: tuple[bool, int, int]) -> tuple[bool, int, int]:
        self._link(left[2], right[1])
        return (
            left[0] and right[0],
            left[1] | right[1] if left[0] else left[1],
            left[2] | right[2] if right[0] else right[2],
        )

    def _link(self, last: int, first: int) -> None:
        while last:
            lowest = last & -last
            self._follow[lowest.bit_length() - 1] |= first
            last ^= lowest
