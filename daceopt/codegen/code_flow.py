"""Statements of C++, one after another and inside of each other."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager

from daceopt.codegen.frame_walk import CountedLoop
from daceopt.codegen.scalar.printer import Printer
from daceopt.ir.scalar.dims import Dim

_INDENT = "    "


class CodeFlow:
    """The body of a frame; see :class:`daceopt.codegen.frame_walk.FrameFlow`."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._depth = 0
        self._counters: dict[str, None] = {}

    def text(self) -> str:
        """All statements, behind the declarations of what they count."""
        return "\n".join([*(f"int64_t {name} = 0;" for name in self._counters), *self._lines])

    def add(self, code: str) -> None:
        """One or more lines, as they are."""
        self._lines += [f"{_INDENT * self._depth}{line}" if line else line for line in code.splitlines()]

    @contextmanager
    def block(self, head: str = "") -> Iterator[None]:
        """Braces around what is added."""
        self.add(f"{head} {{" if head else "{")
        self._depth += 1
        yield
        self._depth -= 1
        self.add("}")

    def size(self, extent: Dim) -> str:
        """An extent, stride or offset, of type int64_t."""
        return size_text(extent)

    def declare(self, counter: str) -> None:
        """Let there be an int64_t of this name."""
        self._counters[counter] = None

    def assign(self, values: Mapping[str, str]) -> None:
        """Set counters."""
        for name, value in values.items():
            self.add(f"{name} = {value};")

    @contextmanager
    def loop(self, loop: CountedLoop) -> Iterator[None]:
        """See :class:`daceopt.codegen.frame_walk.FrameFlow`."""
        counter, trips, test, first, descending = loop
        ascending = f"{counter} = 0; {f'{counter} < {trips}' if trips else ''}; ++{counter}"
        head = f"{counter} = ({trips}) - 1; {counter} >= 0; --{counter}" if descending else ascending
        with self.block(f"for ({head})"):
            if test is not None:
                self.add(f"if (!({test()})) break;")
            self.assign(first)
            yield

    @contextmanager
    def branches(self, condition: str) -> Iterator[Callable[[bool], AbstractContextManager[None]]]:
        """See :class:`daceopt.codegen.frame_walk.FrameFlow`."""
        yield lambda is_then: self.block(f"if ({condition})" if is_then else "else")


def size_text(size: Dim) -> str:
    """An extent, stride or offset as the frame's code has it."""
    return Printer({}, floor_division="int_floor").size(size)
