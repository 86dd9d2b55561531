"""How a ``Contraction`` is called: one C++ call with every operand's strides; MKL and plain loops share it."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from typing import TYPE_CHECKING

from daceopt.errors import Unsupported
from daceopt.ir.nodes.builder import Builder
from daceopt.ir.nodes.library import narrow_type, takes_narrow
from daceopt.ir.scalar import types
from daceopt.ir.scalar.dims import Dim
from daceopt.ir.scalar.types import DType
from daceopt.libs.emission import boolean, braces, broadcast_strides, element, extent, number

if TYPE_CHECKING:
    from daceopt.ir.graph.graph import Graph
    from daceopt.ir.nodes.library import Contraction


def why_not(node: Contraction, graph: Graph, dtypes: Sequence[DType], *, prepares: bool = False) -> str | None:
    """Return the reason why an operand's type or shape is not one a product can have; None if all are. ``prepares``:
    the library keeps weights, which may be wider than the other factor."""
    names = node.operands(graph)
    kinds = {graph.dtype(name) for name in names.values()}
    narrow = takes_narrow(node, graph) or (prepares and narrow_type(node, graph) is not None)
    if not (narrow and graph.dtype(names["A"]) in dtypes) and (len(kinds) != 1 or not kinds <= set(dtypes)):
        return f"element types {sorted(map(str, kinds))}, expected one of {sorted(map(str, dtypes))}"
    if any(len(graph.shape(names[c])) < 2 for c in ("A", "B", "Y")):
        return "operands A, B and Y need at least two dimensions"
    a, b = graph.shape(names["A"])[-2:], graph.shape(names["B"])[-2:]
    if graph.shape(names["Y"])[-2:] != (a[0], b[1]) or a[1:] != b[:1]:
        return (
            f"shapes {[graph.shape(names[c]) for c in ('A', 'B', 'Y')]}, expected [..., M, K], [..., K, N], [..., M, N]"
        )
    if not _has_rows(graph, names["Y"]):
        return f"output strides {graph.strides(names['Y'])}: one of the last two must be 1"
    try:
        _operand_strides(node, graph)
    except Unsupported as error:
        return str(error)
    return None


def into_rows(graph: Graph, node: Contraction) -> Contraction:
    """Let a product whose result no library writes as it is write an array in rows, which is copied: whatever laid
    the result out, the program is built. Returns the node that multiplies."""
    reads, (result,) = graph.reads(node), graph.writes(node).values()
    if _has_rows(graph, result):
        return node
    twin, rows = deepcopy(node), graph.add_array(result, graph.shape(result), graph.dtype(result))
    graph.remove(node)
    graph.add_node(twin, reads, {"Y": rows})
    Builder(graph, "rows").copy(rows, out=result)
    return twin


def _has_rows(graph: Graph, name: str) -> bool:
    """Are rows or columns contiguous, as libraries write them?"""
    return 1 in graph.strides(name)[-2:] or 1 in graph.shape(name)[-2:]


def emit(node: Contraction, graph: Graph, function: str, more: str = "") -> str:
    """Return the call of ``function``; narrow factors have an overload of it, in which types are run-time values.

    ``more``: further arguments, after a comma.
    """
    names, strides = node.operands(graph), _operand_strides(node, graph)
    ctype = types.cpp(graph.dtype(names["Y"]))
    shape = graph.shape(names["Y"])
    sizes = ", ".join(extent(v) for v in (*shape[-2:], graph.shape(names["A"])[-1]))
    narrow = takes_narrow(node, graph) or narrow_type(node, graph) is not None
    elements = {c: element(graph.dtype(n)) if narrow else "" for c, n in names.items()}
    operands = ", ".join(
        _matrix(conn, strides.get(conn), len(shape), elements.get(conn, "daceopt::Element::kFloat" if narrow else ""))
        for conn in ("A", "B", "Bias", "C", "Y")
    )
    kind, ctype = ("NarrowProduct", "float") if narrow else (f"Product<{ctype}>", ctype)
    return (
        f"daceopt::{function}(daceopt::{kind}{{{sizes}, {braces(shape[:-2])}, {ctype}({number(node.alpha)}), "
        f"{operands}, {boolean(node.activation == 'relu')}}}{more});"
    )


def element_macro(node: Contraction, graph: Graph) -> str:
    """For which element type a source is compiled: templates for all of them would take a second each."""
    ctype = types.cpp(graph.dtype(node.operands(graph)["Y"]))
    return "DACEOPT_NARROW=1" if takes_narrow(node, graph) else f"DACEOPT_T={ctype}"


def _operand_strides(node: Contraction, graph: Graph) -> dict[str, list[Dim]]:
    """Strides of each operand over [batch..., row, column] of the product."""
    names = node.operands(graph)
    full = graph.shape(names["Y"])
    epilogue = [c for c in ("Bias", "C") if c in names]
    strides: dict[str, list[Dim]] = {c: broadcast_strides(graph, names[c], full) for c in epilogue}
    for conn in ("A", "B"):
        matrix = graph.shape(names[conn])[-2:]
        # Rows and columns keep their strides even where their extent is 1: the call sorts that out.
        batch = broadcast_strides(graph, names[conn], (*full[:-2], *matrix))[:-2]
        strides[conn] = [*batch, *graph.strides(names[conn])[-2:]]
    strides["Y"] = list(graph.strides(names["Y"]))
    return strides


def _matrix(connector: str, strides: Sequence[Dim] | None, rank: int, kind: str) -> str:
    """A Matrix, or with the C++ name of an element type a Place."""
    tail = f", {kind}" if kind else ""
    if strides is None:
        return f"{{nullptr, 0, 0, {braces([0] * (rank - 2))}{tail}}}"
    pointer = f"(void*)({connector})" if kind else connector
    return f"{{{pointer}, {extent(strides[-2])}, {extent(strides[-1])}, {braces(strides[:-2])}{tail}}}"
