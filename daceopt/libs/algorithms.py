"""Our own C++ templates behind ``ops.algorithm``: each use is one instantiation, compiled in a unit of its own."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, ClassVar

from daceopt.codegen.compiler import CompileJob, Flags
from daceopt.ir.scalar import types
from daceopt.libs.base import INCLUDE, OwnCode, Requirements, headers_digest, register
from daceopt.libs.emission import extent
from daceopt.ops.core.algorithm import Algorithm

if TYPE_CHECKING:
    from daceopt.ir.graph.graph import Graph
    from daceopt.ir.nodes.library import DenseNode


class Algorithms(OwnCode):
    """Sorting, searching, scanning."""

    name: ClassVar[str] = "algorithms"

    def supports(self, node: DenseNode, graph: Graph) -> str | None:
        """Any algorithm that has a header, over contiguous arrays."""
        if not isinstance(node, Algorithm):
            return "for algorithms only"
        if not (INCLUDE / _header(node)).is_file():
            return f"there is no header {_header(node)}"
        strided = [n for n in node.operands(graph).values() if not graph.is_contiguous(n)]
        return f"{', '.join(sorted(strided))} must be contiguous" if strided else None

    def emit(self, node: DenseNode, graph: Graph) -> str:
        assert isinstance(node, Algorithm)
        pointers = _pointers(node, graph)
        name = _name(node, pointers)
        operands = [c if c in (*node.in_connectors, *node.out_connectors) else "nullptr" for c, _ in pointers]
        parameters = ", ".join(extent(p) for p in node.parameters) or "0"
        return f"{{ const int64_t parameters_[] = {{{parameters}}}; {name}({', '.join([*operands, 'parameters_'])}); }}"

    def requirements(self, node: DenseNode, graph: Graph) -> Requirements:
        """The unit with the instantiation; the frame reports errors through ``daceopt/status.h``."""
        assert isinstance(node, Algorithm)
        pointers = _pointers(node, graph)
        formal = ", ".join([*(f"{ctype} {c}" for c, ctype in pointers), "const int64_t* parameters"])
        actual = ", ".join([*(c for c, _ in pointers), "parameters"])
        prototype = f'extern "C" void {_name(node, pointers)}({formal})'
        source = f'#include "{_header(node)}"\n{prototype} {{ daceopt::{node.function}({actual}); }}\n'
        own = Flags(includes=(str(INCLUDE),), version=headers_digest())
        job = CompileJob(source, "kernel", own, f"daceopt algorithm {node.function}")
        return Requirements(own, (job,), (f"{prototype};",))


def _header(node: Algorithm) -> str:
    return f"daceopt/algorithms/{node.function}.h"


def _pointers(node: Algorithm, graph: Graph) -> list[tuple[str, str]]:
    """(connector, C++ type) in the order of the call."""
    inputs, outputs = node.operands_in_order(graph)
    present = [n for n in (*inputs, *outputs) if n is not None]
    filler = types.cpp(graph.dtype(present[0]))
    ctypes = {n: types.cpp(graph.dtype(n)) for n in present}
    read = [(f"In{k}", f"const {ctypes.get(n, filler) if n else filler}*") for k, n in enumerate(inputs)]
    return [*read, *((f"Out{k}", f"{ctypes.get(n, filler) if n else filler}*") for k, n in enumerate(outputs))]


def _name(node: Algorithm, pointers: list[tuple[str, str]]) -> str:
    digest = hashlib.sha256(" ".join(t for _, t in pointers).encode()).hexdigest()[:12]
    return f"daceopt_{node.function}_{digest}"


register(Algorithms())
