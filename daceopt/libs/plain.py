"""Library nodes for plain DaCe: C++ of our own, with all that it includes as text, and no library besides."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from daceopt.errors import Unsupported
from daceopt.libs.base import COLLECTIVES, INCLUDE, implement, prefer

if TYPE_CHECKING:
    from daceopt.codegen.compiler import CompileJob
    from daceopt.ir.graph.graph import Graph

_NATIVE = {
    "Contraction": "native",
    "MicroProduct": "native_product",
    **dict.fromkeys(("Convolution", "ConvolutionBackwardData", "ConvolutionBackwardWeights"), "native_convolution"),
    **dict.fromkeys(("HostCall", *COLLECTIVES), "native"),
}
# DaCe compiles as C++14, for which GCC knows the language of C++17 but not its library
_VALUE = re.compile(r"std::is_(\w+)_v<([^<>]*)>")
_OWN = re.compile(r'^#include "(daceopt/[^"]+)"\s*$')


def own_code() -> AbstractContextManager[None]:
    """Within the block, programs call C++ of our own alone, which any compiler takes for any machine."""
    return prefer(**_NATIVE)


def implement_plain(graph: Graph) -> str:
    """Replace library nodes as ``libs.implement`` does, by what C++ alone can do; returns the text of all that is
    called. Raises Unsupported for nodes that need more: calls of Python, and of other ranks."""
    try:
        with own_code():
            needs = implement(graph)
    except Unsupported as error:
        raise Unsupported(f"plain DaCe cannot run this program: {error}; it calls Python or other processes") from error
    return "\n".join(_lines(needs.flags.headers, needs.jobs))


def _lines(headers: Iterable[str], jobs: Iterable[CompileJob]) -> Iterator[str]:
    inlined: set[str] = set()
    for header in headers:
        if header.startswith("daceopt/"):
            yield from _inline(f'#include "{header}"', inlined)
        else:
            yield f"#include <{header}>"
    for source, macros in _units(jobs).items():
        yield from (f"#define {name} {value}" for name, value in macros.items())
        yield from _inline(_name_namespace(source, len(inlined)), inlined)
        yield from (f"#undef {name}" for name in macros)
        inlined.add(source)


def _units(jobs: Iterable[CompileJob]) -> dict[str, dict[str, str]]:
    """Each source once, with its macros: what is instantiated for one type is a template for all others here."""
    units: dict[str, dict[str, str]] = {}
    for job in jobs:
        macros = units.setdefault(job.source, {})
        for flag in job.flags.compile:
            if flag.startswith("-D"):
                name, _, value = flag[2:].partition("=")
                macros.setdefault(name, value)
    return units


def _name_namespace(source: str, number: int) -> str:
    """A source whose unnamed namespace has a name, so that it may be behind another in one file."""
    name = f"unit_{number}"
    return source.replace("namespace {\n", f"namespace {name} {{\n").replace(
        "}  // namespace\n", f"}}  // namespace {name}\nusing namespace {name};\n"
    )


def _inline(text: str, inlined: set[str]) -> Iterator[str]:
    """``text`` with our own headers in the place of what includes them, each once."""
    for line in text.splitlines():
        own = _OWN.match(line)
        if own is None:
            yield "" if line.startswith("#pragma once") else _VALUE.sub(r"std::is_\1<\2>::value", line)
        elif own[1] not in inlined:
            inlined.add(own[1])
            yield from _inline((INCLUDE / own[1]).read_text(encoding="utf-8"), inlined)
