"""How a ``GroupedProduct`` is called: the product of a library for each group, whose sizes are known at run time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import dace

from daceopt.ir.scalar import types
from daceopt.libs.base import Requirements, support
from daceopt.libs.emission import boolean, extent

if TYPE_CHECKING:
    from daceopt.ir.graph.graph import Graph
    from daceopt.ir.nodes.library import GroupedProduct

_NOTHING = "{nullptr, 0, 0, {}}"


def why_not(node: GroupedProduct, graph: Graph) -> str | None:
    """The reason why an operand's type or shape is not one that groups of rows can have; None if all are."""
    names = node.operands(graph)
    kinds = {graph.dtype(names[c]) for c in "ABY"}
    if len(kinds) != 1 or not kinds <= {dace.float32, dace.float64}:
        return f"element types {sorted(map(str, kinds))}, expected float32 or float64 for all"
    if graph.dtype(names["Ends"]) not in (dace.int32, dace.int64):
        return f"Ends has element type {graph.dtype(names['Ends'])}, expected int32 or int64"
    if not graph.is_contiguous(names["Ends"]):
        return f"Ends has strides {graph.strides(names['Ends'])}; expected elements side by side"
    (rows, size), b, y = (graph.shape(names[c]) for c in "ABY")
    groups, columns = graph.shape(names["Ends"]), b[-1]
    own, other = (rows, columns), (*groups, size, columns)
    if (b, y) != ((own, other) if node.inner else (other, own)):
        return f"shapes {b} and {y} of B and Y; expected {own} and {other} in one order or the other"
    if 1 not in graph.strides(names["Y"])[-2:]:
        return f"output strides {graph.strides(names['Y'])}: one of the last two must be 1"
    return None


def emit(node: GroupedProduct, graph: Graph, function: str) -> str:
    """The call, with ``function`` for the product of one group."""
    names = node.operands(graph)
    ctype = types.cpp(graph.dtype(names["Y"]))
    (rows, size), columns = graph.shape(names["A"]), graph.shape(names["B"])[-1]
    outer, inner = (size, rows) if node.inner else (rows, size)
    by_group = names["Y" if node.inner else "B"]
    sizes = ", ".join(extent(n) for n in (outer, columns, inner))
    a, b, y = (_matrix(graph, names[c], c, is_transposed=c == "A" and node.inner) for c in "ABY")
    product = f"daceopt::Product<{ctype}>{{{sizes}, {{}}, {ctype}(1), {a}, {b}, {_NOTHING}, {_NOTHING}, {y}, false}}"
    groups, step = extent(graph.shape(by_group)[0]), extent(graph.strides(by_group)[0])
    multiply, sums = f"daceopt::{function}<{ctype}>", boolean(node.inner)
    return f"daceopt::grouped_product({multiply}, Ends, {groups}, {step}, {sums}, {product});"


def requirements(node: GroupedProduct, graph: Graph, source: str) -> Requirements:
    """The library's products, of this one element type."""
    ctype = types.cpp(graph.dtype(node.operands(graph)["Y"]))
    return support(source, header="grouped_product.h", define=f"DACEOPT_T={ctype}")


def _matrix(graph: Graph, name: str, connector: str, is_transposed: bool) -> str:
    """The first group's, or all rows."""
    steps = graph.strides(name)[-2:]
    row, column = reversed(steps) if is_transposed else steps
    return f"{{{connector}, {extent(row)}, {extent(column)}, {{}}}}"
