"""Shows a run: redrawn in place on a terminal, or else as lines of text."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Protocol, TextIO

from rich.console import Console
from rich.live import Live

from headrace.demo.display.view import State, draw, duration, line

LINE_EVERY_S = 5.0


class Screen(Protocol):
    def show(self, state: State) -> None: ...

    def write(self, text: str) -> None: ...

    def close(self) -> None:
        """End the display; later text is printed below it."""
        ...


class Terminal:
    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(highlight=False)
        self._size = self._console.size
        self._live = self._begin()

    def _begin(self) -> Live:
        live = Live(console=self._console, auto_refresh=False)
        live.start()
        return live

    def show(self, state: State) -> None:
        if self._console.size != self._size:
            self._start_over()
        self._live.update(draw(state), refresh=True)

    def _start_over(self) -> None:
        """Clear the screen: a resized terminal rewraps its lines, so the start of the last frame is unknown."""
        self._size = self._console.size
        self._live.stop()
        self._console.clear()
        self._live = self._begin()

    def write(self, text: str) -> None:
        self._console.print(text, markup=False)

    def close(self) -> None:
        self._live.stop()


class Lines:
    def __init__(self, out: TextIO | None = None) -> None:
        self._out = out or sys.stdout
        self._said_at = -LINE_EVERY_S
        self._stage = ""
        self._notices = 0

    def show(self, state: State) -> None:
        for text in state.notices[self._notices :]:
            self._print(f"{duration(state.elapsed_s)} {text}")
        self._notices = len(state.notices)
        if state.stage != self._stage or state.elapsed_s - self._said_at >= LINE_EVERY_S:
            self._stage, self._said_at = state.stage, state.elapsed_s
            self._print(line(state))

    def write(self, text: str) -> None:
        self._print(text)

    def close(self) -> None:
        pass

    def _print(self, text: str) -> None:
        print(text, file=self._out, flush=True)


def screen(plain: bool) -> Screen:
    make: Callable[[], Screen] = Lines if plain or not sys.stdout.isatty() else Terminal
    return make()
