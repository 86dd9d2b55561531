"""Constants of one value as literals of the scalar code that reads them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import sympy

from daceopt.ir.graph.graph import Graph
from daceopt.ir.graph.kinds import Node
from daceopt.ir.kernel.kernel import Kernel, Stage
from daceopt.ir.kernel.kernel_node import KernelNode
from daceopt.ir.scalar import scalar, types
from daceopt.ir.scalar.types import DType
from daceopt.passes.transform import NearMiss, Site, Transformation


@dataclass(frozen=True)
class InputToConstant(Transformation):
    """Put the value of a constant whose elements are all equal into the statements that read it.

    before:  c = [0.0, 0.0, 0.0]    for i: y[i] = x[i] + c[i]
    after:   for i: y[i] = x[i] + float32(0.0)

    The value keeps its type, so that nothing is computed otherwise than before; NaN has no literal and stays. Rausch et
    al., DaCeML, section 5.1.
    """

    level: ClassVar[str] = "local"

    def match_at(self, graph: Graph, node: Node) -> Iterable[Site | NearMiss]:
        kernel = _kernel(graph, node)
        if kernel is None:
            return
        literals: dict[str, sympy.Expr] = {}
        for name in dict.fromkeys(a.array for s in kernel.stages for a in s.reads.values()):
            value = graph.constants.get(graph.root(name)[0])
            literal = None if value is None or _is_loaded(kernel, name) else _literal(value, graph.dtype(name))
            if literal is not None:
                literals[name] = literal
        if literals:
            yield Site(graph, (node,), {"literals": literals})

    def apply(self, site: Site) -> None:
        graph, (node,) = site.graph, site.nodes
        kernel = node.kernel
        stages = [_inline(stage, site["literals"]) for stage in kernel.stages]
        graph.remove(node)
        graph.add_kernel(replace(kernel, stages=stages))


def _kernel(graph: Graph, node: Node) -> Kernel | None:
    if not isinstance(node, KernelNode):
        return None
    return node.kernel


def _is_loaded(kernel: Kernel, name: str) -> bool:
    """Is it read at run-time indices, which could lie outside of it?"""
    return any(a.array == name and None in a.index for s in kernel.stages for a in s.reads.values())


def _literal(value: np.ndarray, dtype: DType) -> sympy.Expr | None:
    """The element that all are, as scalar code of its type; None where they differ or nothing says it."""
    if value.size == 0 or types.is_narrow(dtype) or value.dtype.kind not in "fiub":
        return None
    first = value.reshape(-1)[0]
    if not (value == first).all() or (value.dtype.kind == "f" and len({*np.signbit(value).reshape(-1).tolist()}) > 1):
        return None
    if value.dtype.kind == "f" and (not np.isfinite(first) or (first == 0 and np.signbit(first))):
        return None
    if value.dtype.kind == "b":
        return sympy.Integer(bool(first))
    number = first.item()
    exact = sympy.Integer(number) if float(number).is_integer() else sympy.Float(number, 17)
    return scalar.cast(exact, dtype)


def _inline(stage: Stage, literals: dict[str, sympy.Expr]) -> Stage:
    values = {c: literals[a.array] for c, a in stage.reads.items() if a.array in literals}
    if not values:
        return stage
    reads = {c: a for c, a in stage.reads.items() if c not in values}
    assignments = tuple(
        replace(a, expr=a.expr.xreplace({s: values[str(s)] for s in a.expr.free_symbols if str(s) in values}))
        for a in stage.assignments
    )
    return replace(stage, reads=reads, assignments=assignments)
