"""Reads one line of a graph's text from left to right; what is not there as expected is an error that says where."""

from __future__ import annotations

import itertools
import json
import re
from typing import Any

import numpy as np
import sympy

from daceopt.errors import GraphTextError, Unsupported
from daceopt.ir.scalar import expression_text, types

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SHOWN = 40
_STEP = "  "
_CLOSING = {"[": "]", "(": ")", "{": "}"}


class Lines:
    """The lines of a text from the first to the last; how deep they are, in steps of two blanks."""

    def __init__(self, text: str):
        numbered = [(k, line.rstrip()) for k, line in enumerate(text.split("\n"), 1)]
        self._lines = [(k, line) for k, line in numbered if line]
        self._at = 0

    @property
    def depth(self) -> int | None:
        """That of the next line; None after the last."""
        return None if self._at >= len(self._lines) else _depth(*self._lines[self._at])

    def next(self, *depths: int) -> Scanner:
        """Go past the next line, which must be at one of ``depths``."""
        if self._at >= len(self._lines):
            raise GraphTextError("the text ends where another line was expected")
        number, line = self._lines[self._at]
        if _depth(number, line) not in depths:
            blanks = " or ".join(str(len(_STEP) * d) for d in depths)
            raise GraphTextError(f"line {number}: expected {blanks} blanks at its begin, found {_line_text(line)}")
        self._at += 1
        return Scanner(line.strip(), number)

    def block(self, depth: int) -> tuple[int, str]:
        """Go past all lines from ``depth`` on inwards: the number of the first, and the text, moved to the left."""
        rest = self._lines[self._at :]
        lines = list(itertools.takewhile(lambda line: _depth(*line) >= depth, rest))
        self._at += len(lines)
        return (lines[0][0] if lines else 0), "\n".join(line[len(_STEP) * depth :] for _, line in lines)


def _depth(number: int, line: str) -> int:
    blanks = len(line) - len(line.lstrip(" "))
    if blanks % len(_STEP):
        raise GraphTextError(f"line {number}: expected an even number of blanks at its begin, found {_line_text(line)}")
    return blanks // len(_STEP)


def _line_text(line: str) -> str:
    return repr(line[: 2 * _SHOWN])


class Scanner:
    """A position in line ``number`` (from 1) of a text; blanks between words do not count."""

    def __init__(self, source: str, number: int):
        self._source, self.number = source, number
        self._at = 0
        self._skip()

    def error(self, expected: str, text: str | None = None) -> GraphTextError:
        """What was expected here, and what is there instead."""
        rest = self._source[self._at : self._at + _SHOWN]
        shown = text if text is not None else repr(rest) if rest else "the end of the line"
        return GraphTextError(f"line {self.number}, column {self._at + 1}: expected {expected}, found {shown}")

    def _skip(self) -> None:
        while self._at < len(self._source) and self._source[self._at] == " ":
            self._at += 1

    def _advance(self, count: int) -> str:
        word = self._source[self._at : self._at + count]
        self._at += count
        self._skip()
        return word

    # ---------------------------------------------------------------- words

    def at(self, token: str) -> bool:
        """Is ``token`` here?"""
        return self._source.startswith(token, self._at)

    def matches(self, pattern: str) -> bool:
        """Does the line go on with this regular expression?"""
        return re.compile(pattern).match(self._source, self._at) is not None

    def take(self, token: str) -> bool:
        """Go past ``token`` if it is here."""
        if self.at(token):
            self._advance(len(token))
            return True
        return False

    def expect(self, token: str) -> None:
        """Go past ``token``."""
        if not self.take(token):
            raise self.error(repr(token))

    def match(self, pattern: str, what: str) -> str:
        """What matches the regular expression."""
        match = re.compile(pattern).match(self._source, self._at)
        if not match:
            raise self.error(what)
        return self._advance(len(match[0]))

    def name(self, what: str = "a name") -> str:
        """Letters, digits and underscores."""
        return self.match(_NAME.pattern, what)

    def string(self) -> str:
        """A string in double quotes, as JSON has them."""
        if not self.at('"'):
            raise self.error("a string in double quotes")
        try:
            value, end = json.JSONDecoder().raw_decode(self._source, self._at)
        except ValueError as error:
            raise self.error("a string in double quotes") from error
        self._advance(end - self._at)
        return str(value)

    def integer(self, what: str = "an integer") -> int:
        """Digits, perhaps with a sign."""
        return self.whole(self.match(r"-?[0-9]{1,20}", what))

    def names(self) -> list[str]:
        """Names between commas, perhaps none."""
        names: list[str] = []
        while not self.is_empty():
            names.append(self.name())
            if not self.is_empty():
                self.expect(",")
        return names

    def is_empty(self) -> bool:
        """Is nothing left?"""
        return self._at >= len(self._source)

    def end(self) -> None:
        """Nothing may follow."""
        if not self.is_empty():
            raise self.error("the end of the line")

    # ---------------------------------------------------------------- brackets

    def inside(self, opening: str, closing: str) -> str:
        """The text in a pair of brackets, past which it goes; brackets of all kinds are in pairs inside."""
        if not self.at(opening):
            raise self.error(repr(opening))
        waiting: list[str] = []
        for place in range(self._at, len(self._source)):
            sign = self._source[place]
            if sign in _CLOSING:
                waiting.append(_CLOSING[sign])
            elif waiting and sign == waiting[-1]:
                waiting.pop()
            if not waiting:
                return self._advance(place + 1 - self._at)[1:-1]
        raise self.error(f"{closing!r} after {opening!r}")

    def inside_until(self, closing: str) -> str:
        """The text up to ``closing``, past which it goes; not empty."""
        end = self._source.find(closing, self._at)
        if end <= self._at:
            raise self.error(f"text before {closing!r}")
        return self._advance(end + len(closing) - self._at)[: -len(closing)]

    def up_to(self, *closing: str) -> str:
        """The text up to the first of these signs that is in no bracket; not past it."""
        depth, end = 0, self._at
        while end < len(self._source) and not (depth == 0 and self._source[end] in closing):
            depth += {"(": 1, ")": -1}.get(self._source[end], 0)
            end += 1
        return self._advance(end - self._at)

    def remainder(self) -> str:
        """All that is left."""
        return self._advance(len(self._source) - self._at)

    # ---------------------------------------------------------------- what words mean

    def expression(self, source: str, symbol: expression_text.Symbols) -> sympy.Expr:
        """One expression."""
        return self.expressions(source, symbol, 1)[0]

    def expressions(self, source: str, symbol: expression_text.Symbols, count: int | None = None) -> list[sympy.Expr]:
        """Expressions between commas."""
        try:
            return expression_text.parse_list(source, symbol, count)
        except (GraphTextError, Unsupported) as error:
            raise GraphTextError(f"line {self.number}: {error}") from error

    def dtype(self, name: str) -> types.DType:
        """The element type of this name."""
        try:
            return types.from_name(name)
        except Unsupported as error:
            raise GraphTextError(f"line {self.number}: {error}") from error

    def whole(self, word: str) -> int:
        """The integer that ``word`` says."""
        try:
            return int(word)
        except ValueError as error:
            raise self.error("an integer", repr(word[:_SHOWN])) from error

    def string_of(self, value: object) -> str:
        """``value``, which must be a string."""
        if not isinstance(value, str):
            raise self.error("a string", repr(value)[:_SHOWN])
        return value

    def convert(self, value: object, kind: np.dtype[Any]) -> Any:
        """A number as an element of ``kind``, which must hold it."""
        floating = kind.kind not in "iub" and "int" not in kind.name
        if not isinstance(value, (int, float)) or (isinstance(value, float) and not floating):
            raise self.error(f"a number of type {kind}", repr(value)[:_SHOWN])
        try:
            result = np.array(value).astype(kind)
        except (OverflowError, ValueError) as error:
            raise self.error(f"a number of type {kind}", repr(value)[:_SHOWN]) from error
        if not floating and int(result) != value:
            raise self.error(f"a number of type {kind}", repr(value)[:_SHOWN])
        return result
