"""Products that share an operand as one product."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import sympy

from daceopt.ir.graph.graph import Graph
from daceopt.ir.graph.kinds import Node
from daceopt.ir.graph.operator import Operator
from daceopt.ir.graph.operators import is_op, operator_writing
from daceopt.ir.scalar import types
from daceopt.ir.scalar.dims import Dim, dim
from daceopt.passes.transform import NearMiss, Site, Transformation, label_of, sweep


@dataclass(frozen=True)
class _Branch:
    """One of the products: its ``nodes``, the last of which writes ``result``; ``rows``: the (columns, inner) array
    whose transpose is the weight, or ``weight`` itself; ``bias`` of one element for each column."""

    nodes: tuple[Operator, ...]
    weight: str
    rows: str | None
    bias: str | None
    result: str

    @classmethod
    def of(cls, graph: Graph, node: Node) -> _Branch | None:
        """The product at ``node``, if its weight is a matrix and nothing scales it."""
        if is_op(node, "Gemm"):
            return cls._of_gemm(graph, node)
        weight, result = graph.operand(node, 1), graph.result(node, 0)
        if len(graph.shape(weight)) != 2:
            return None
        transposition = operator_writing(graph, weight, "Transpose")
        rows = graph.operand(transposition, 0) if transposition is not None else None
        readers = graph.consumers(result)
        add = readers[0] if len(readers) == 1 and is_op(readers[0], "Add") and not graph.is_kept(result) else None
        bias = None if add is None else next((n for n in graph.operands(add) if n != result), None)
        if add is None or bias is None or graph.shape(bias) != graph.shape(result)[-1:]:
            return cls((node,), weight, rows, None, result)
        return cls((node, add), weight, rows, bias, graph.result(add, 0))

    @classmethod
    def _of_gemm(cls, graph: Graph, node: Node) -> _Branch | None:
        _, weight, *rest = graph.inputs_of(node)
        bias, result = (rest or [None])[0], graph.result(node, 0)
        plain = node.attribute("alpha", 1.0) == 1 == node.attribute("beta", 1.0) and not node.attribute("transA", 0)
        if not plain or (bias is not None and graph.shape(bias) != graph.shape(result)[-1:]):
            return None
        rows = str(weight) if node.attribute("transB", 0) else None
        return cls((node,), str(weight), rows, bias, result)

    def operands(self) -> list[str]:
        """The arrays that are put side by side."""
        return [n for n in (self.rows or self.weight, self.bias) if n is not None]

    def kind(self, graph: Graph) -> tuple[Any, ...]:
        """What those that become one product have in common."""
        return self.rows is None, self.bias is None, self.nodes[0].op_type, str(graph.dtype(self.weight))


@dataclass(frozen=True)
class HorizontalProductFusion(Transformation):
    """One product with all weights side by side, where several products read the same array.

    before:  q = MatMul(x, wq) + bq;  k = MatMul(x, wk) + bk;  v = MatMul(x, wv) + bv
    after:   q, k, v = Split(MatMul(x, Concat(wq, wk, wv; axis=1)) + Concat(bq, bk, bv))

    ``x`` is read once; each product is larger. Weights that are constants are put together when compiling. Others are
    copied at every call: ``copied`` is how many bytes of them may be for each byte of ``x`` that is not read again.
    Rausch et al., DaCeML, section 5.1; Ivanov et al., 2021.
    """

    level: ClassVar[str] = "coarse"
    copied: float = 0.0

    def match_at(self, graph: Graph, node: Node) -> Iterable[Site | NearMiss]:
        branches = _branches(graph, node)
        if not branches or branches[0].nodes[0] is not node:
            return
        reason = self._why_not(graph, branches)
        if reason is None:
            yield Site(graph, tuple(n for b in branches for n in b.nodes), {"branches": branches})
        else:
            yield NearMiss(node, reason)

    def _why_not(self, graph: Graph, branches: Sequence[_Branch]) -> str | None:
        others = " and ".join(label_of(b.nodes[0]) for b in branches[1:])
        for branch in branches:
            if graph.is_kept(branch.result):
                return f"{branch.result} is a graph output, which must be an array of its own"
            computed = [n for n in branch.operands() if graph.producers(n)]
            if computed:
                return f"{computed[0]} is computed: it could follow from what it would be put together with"
        moved = [n for b in branches for n in b.operands() if n not in graph.constants]
        x = graph.operand(branches[0].nodes[0], 0)
        copies, saved = 2 * sum(_size(graph, n) for n in moved), (len(branches) - 1) * _size(graph, x)
        if copies and not (isinstance(copies - saved, int) and copies <= self.copied * saved):
            return (
                f"{copies} elements of weights would be copied at each call to read {saved} less of {x} with {others}"
            )
        return None

    def apply(self, site: Site) -> None:
        graph, branches = site.graph, site["branches"]
        node = branches[0].nodes[0]
        x, results = graph.operand(node, 0), [b.result for b in branches]
        sources = [graph.producer(b.weight) for b in branches]
        for n in reversed(site.nodes):
            graph.remove(n)
        sizes = [int(graph.shape(r)[-1]) for r in results]
        whole = (*graph.shape(results[0])[:-1], sum(sizes))
        y = graph.add_array("product", whole, graph.dtype(results[0]))
        self._product(graph, node, x, branches, y)
        parts = graph.add_constant("sizes", np.asarray(sizes, np.int64))
        graph.add_operator("Split", [y, parts], results, {"axis": len(whole) - 1})
        sweep(graph, [s for s in sources if s is not None])

    def _product(self, graph: Graph, node: Node, x: str, branches: Sequence[_Branch], y: str) -> None:
        """The product into ``y``."""
        by_rows = branches[0].rows is not None
        weights = _join(graph, [b.rows or b.weight for b in branches], 0 if by_rows else 1)
        bias = _join(graph, [b.bias for b in branches if b.bias is not None], 0) if branches[0].bias else None
        if is_op(node, "Gemm"):
            operands = [x, weights] if bias is None else [x, weights, bias]
            graph.add_operator("Gemm", operands, [y], {"transB": int(by_rows)})
            return
        if by_rows:
            columns = graph.add_array("weights", graph.shape(weights)[::-1], graph.dtype(weights))
            graph.add_operator("Transpose", [weights], [columns], {"perm": [1, 0]})
            weights = columns
        product = y if bias is None else graph.add_array("product", graph.shape(y), graph.dtype(y))
        graph.add_operator("MatMul", [x, weights], [product])
        if bias is not None:
            graph.add_operator("Add", [product, bias], [y])


def _branches(graph: Graph, node: Node) -> list[_Branch]:
    """The products that can become one with that at ``node``, in order; empty where there is no other."""
    if not is_op(node, "MatMul", "Gemm") or not _is_plain(graph, node):
        return []
    own = _Branch.of(graph, node)
    if own is None:
        return []
    siblings = [n for n in graph.consumers(graph.operand(node, 0)) if is_op(n, "MatMul", "Gemm")]
    if len(siblings) < 2:
        return []
    branches = [own if n is node else _Branch.of(graph, n) for n in siblings if _is_plain(graph, n)]
    x = graph.operand(node, 0)
    same = [b for b in branches if b and b.kind(graph) == own.kind(graph) and graph.operand(b.nodes[0], 0) == x]
    return same if len(same) > 1 else []


def _is_plain(graph: Graph, node: Node) -> bool:
    """A product of floats with two different operands whose extents of columns are known."""
    x, w = graph.operands(node, 2)
    has_numbers = all(isinstance(n, int) for n in graph.shape(w))
    return x != w and has_numbers and len(graph.shape(x)) > 1 and types.is_float(graph.dtype(x))


def _size(graph: Graph, name: str) -> Dim:
    return dim(sympy.Mul(*graph.shape(name)))


def _join(graph: Graph, names: Sequence[str], axis: int) -> str:
    """Arrays side by side along ``axis``; of constants a constant."""
    values = [graph.constants.get(n) for n in names]
    if all(v is not None for v in values):
        return graph.add_constant("weights", np.concatenate([v for v in values if v is not None], axis))
    shape = list(graph.shape(names[0]))
    shape[axis] = sum(int(graph.shape(n)[axis]) for n in names)
    out = graph.add_array("weights", shape, graph.dtype(names[0]))
    graph.add_operator("Concat", list(names), [out], {"axis": axis})
    return out
