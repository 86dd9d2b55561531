"""Compute products of float32 from bfloat16 parts, where the caller's precision allows that and it pays."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

import dace
import sympy

from daceopt.ir.graph.graph import Graph
from daceopt.ir.graph.kinds import Node
from daceopt.ir.nodes.builder import Builder
from daceopt.ir.nodes.library import Contraction
from daceopt.ir.scalar import scalar
from daceopt.ir.scalar.types import BFLOAT16
from daceopt.passes.transform import NearMiss, Site, Transformation
from daceopt.system import cpu_features

_UNITS = {"medium": ("avx512_bf16", "amx_bf16"), "high": ("amx_bf16",)}
_PARTS = {"medium": 1, "high": 2}


@dataclass(frozen=True)
class ProductPrecision(Transformation):
    """Split the factors of large products into bfloat16 parts, as ``torch.set_float32_matmul_precision`` allows.

    before:  y = Contraction(a, b)
    after, "medium":  y = Contraction(bfloat16(a), bfloat16(b))
    after, "high":    a0, a1 = bfloat16(a), bfloat16(a - a0); b0, b1 likewise
                      y = a0 @ b0 + (a0 @ b1 + a1 @ b0)

    Sums are float32; the relative error of "high" is about 4e-6 (the product of the second parts is left out), that of
    "medium" 2e-3. With "high", infinite operands give NaN. ``least``: multiplications from which on a product is split;
    ``everywhere``: also on machines without the units for which that was measured to pay: AMX for "high" (2.3 times the
    rate of float32), AMX or AVX-512 BF16 for "medium".

    Henry, Tang and Heinecke, Leveraging the bfloat16 artificial intelligence datatype for higher-precision
    computations, ARITH 2019.
    """

    level: ClassVar[str] = "local"
    changes_precision: ClassVar[bool] = True
    least: int = 2**21
    everywhere: bool = False

    def match_at(self, graph: Graph, node: Node) -> Iterable[Site | NearMiss]:
        precision = graph.source.precision
        if not isinstance(node, Contraction) or precision not in _PARTS:
            return
        reason = self._why_not(graph, node, precision)
        yield Site(graph, (node,), {"parts": _PARTS[precision]}) if reason is None else NearMiss(node, reason)

    def _why_not(self, graph: Graph, node: Contraction, precision: str) -> str | None:
        names = node.operands(graph)
        if any(graph.dtype(n) != dace.float32 for n in names.values()) or node.activation is not None:
            return "a product of other types than float32, or with an activation"
        if not self.everywhere and cpu_features().isdisjoint(_UNITS[precision]):
            return f"{precision} precision is no faster without {' or '.join(_UNITS[precision])}"
        work = sympy.Mul(*graph.shape(names["Y"]), graph.shape(names["A"])[-1])
        if not work.is_Integer or work < self.least:
            return f"{work} multiplications; expected {self.least} or more, known when compiling"
        return None

    def apply(self, site: Site) -> None:
        graph, node = site.graph, site.nodes[0]
        reads, out = graph.reads(node), graph.writes(node)["Y"]
        with graph.label_nodes(node.label, graph.origins_of(node)):
            b = Builder(graph, node.label)
            left, right = (_parts(b, reads[c], site["parts"]) for c in ("A", "B"))
            pairs = [(i, j) for i in range(len(left)) for j in range(len(right)) if i + j < site["parts"]]
            added = {c: n for c, n in reads.items() if c not in ("A", "B")}
            graph.remove(node)
            for i, j in reversed(pairs):  # the small ones first
                last = (i, j) == (0, 0)
                y = out if last else graph.add_array("partial", graph.shape(out), dace.float32, graph.strides(out))
                operands = {"A": left[i], "B": right[j], **added}
                graph.add_node(Contraction(node.label, inputs=list(operands), alpha=node.alpha), operands, {"Y": y})
                added = {"C": y}


def _parts(b: Builder, name: str, count: int) -> list[str]:
    """bfloat16 arrays whose sum is ``name`` but for what ``count`` of them cannot hold; a view of a whole array stays a
    view of its parts."""

    def split(x: sympy.Expr) -> tuple[sympy.Expr, ...]:
        parts: list[sympy.Expr] = []
        for _ in range(count):
            parts.append(scalar.cast(x - sympy.Add(*parts), BFLOAT16))
        return tuple(parts)

    root, offset = b.whole(name)
    parts = b.elementwise(split, root, dtype=[BFLOAT16] * count, label="parts")
    graph = b.graph
    if root == name:
        return list(parts)
    return [graph.add_view(p, b.label, graph.shape(name), graph.strides(name), offset) for p in parts]
