"""A printed kernel: a translation unit of its own, and what a call of it passes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from daceopt.codegen.include import INCLUDE
from daceopt.ir.scalar import types
from daceopt.ir.scalar.dims import Dim

HEADERS = ("cpu.h", "vector_math.h", "scalar.h")


@dataclass(frozen=True)
class KernelArgument:
    """What a call passes.

    ``kind`` is ``pointer`` (to ``array`` plus ``offset`` elements), ``symbol``, ``draw`` (``value`` is the number by
    which the kernel draws), ``status`` (where an int32 is) or ``stream`` (on which an accelerator runs the kernel).
    """

    kind: str
    array: str = ""
    offset: Dim = 0
    dtype: types.DType | None = None
    written: bool = False
    symbol: str = ""
    value: int = 0

    @property
    def cpp(self) -> str:
        """The C++ parameter type."""
        if self.kind == "pointer":
            return f"{'' if self.written else 'const '}{types.cpp(self.dtype)}*"
        return {"symbol": "int64_t", "draw": "int64_t", "status": "int32_t*", "stream": "void*"}[self.kind]


@dataclass(frozen=True)
class KernelSource:
    """``name`` is ``k_<hash>``; ``text`` is the unit without the support header; ``arguments`` are in call order;
    ``headers`` make up the dialect that it is written in."""

    name: str
    text: str
    arguments: tuple[KernelArgument, ...]
    headers: tuple[str, ...] = HEADERS

    @property
    def declaration(self) -> str:
        """The C++ prototype."""
        return f'extern "C" void {self.name}({", ".join(a.cpp for a in self.arguments)});'

    @property
    def unit(self) -> str:
        """The complete translation unit: it needs no include folder, and its hash covers the support header."""
        return f"{support_header(self.text, self.headers)}\n{self.text}"


def home(array: str, over: Mapping[str, str]) -> str:
    """The array in whose memory it is, where ``over`` says what is written over what."""
    while array in over:
        array = over[array]
    return array


def support_header(code: str, headers: Sequence[str] = HEADERS) -> str:
    """What ``code`` needs: the text of ``headers``, and of ``narrow.h`` where narrow types occur."""
    narrow = any(f"dop::{types.name_of(t)}::" in code for t in types.NARROW)
    return "".join(map(_header, headers)) + (_header("narrow.h") if narrow else "")


@cache
def _header(name: str) -> str:
    return (INCLUDE / "daceopt" / name).read_text()
