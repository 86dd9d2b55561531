"""Where NaN goes: what is NaN wherever a node reads one, however it computes.

So a few arrays tell whether any of many had a NaN: those that all others lead to.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

import sympy

from daceopt.errors import Unsupported
from daceopt.ir.data.provenance import label_of
from daceopt.ir.graph.graph import Graph
from daceopt.ir.graph.kinds import Node
from daceopt.ir.kernel.kernel import Stage
from daceopt.ir.kernel.kernel_node import KernelNode
from daceopt.ir.nodes.library import Contraction, Convolution, ConvolutionBackwardData, Pool
from daceopt.ir.scalar import scalar, types

_OF_ANY_ARGUMENT = (
    *(sympy.Add, sympy.Mul, sympy.exp, sympy.log, sympy.sin, sympy.cos, sympy.tan, sympy.tanh, sympy.erf),
    *(scalar.sigmoid, scalar.softplus, scalar.log1p, scalar.expm1, scalar.exp2, scalar.log2, scalar.log10, scalar.erfc),
    *(
        scalar.exp_rounded,
        scalar.exp_weight,
        scalar.absolute,
        scalar.floor,
        scalar.ceil,
        scalar.trunc,
        scalar.round_even,
        scalar.apart,
    ),
    *(scalar.divide, scalar.maximum, scalar.minimum, scalar.atan2),
)
"""NaN where an argument is."""
_FALSE = (scalar.lt, scalar.le, scalar.gt, scalar.ge, scalar.eq)
"""Comparisons that are false where an argument is NaN."""


Reached = dict[str, list[str] | None]
"""Array -> those that a NaN in it reaches; None where it has to be looked at itself."""


def watch_points(graph: Graph, names: Iterable[str], reached_from: Reached | None = None) -> list[str]:
    """Arrays of which one has a NaN if any of ``names`` had one where its elements are read: results, and what nodes
    read that may lose it. ``reached_from`` caches the answer for each array, while ``graph`` is not changed."""
    reached_from = {} if reached_from is None else reached_from
    points: dict[str, None] = {}
    waiting, visited = list(names), set[str]()
    while waiting:
        name = waiting.pop()
        if name in visited:
            continue
        visited.add(name)
        if name not in reached_from:
            reached_from[name] = _reach(graph, name)
        reached = reached_from[name]
        if reached is None:
            points[name] = None
        else:
            waiting += reached
    return list(points)


def _reach(graph: Graph, name: str) -> list[str] | None:
    """The arrays that a NaN in ``name`` reaches through each of its readers; None where one may lose it, and where
    ``name`` outlives the program."""
    if graph.is_kept(name):
        return None
    aliases = frozenset(graph.aliases(name))
    try:
        return [result for node in graph.all_consumers(name) for result in nan_results(graph, node, aliases)]
    except Unsupported:
        return None


def nan_results(graph: Graph, node: Node, names: Collection[str]) -> list[str]:
    """What ``node`` writes that has a NaN wherever it reads one of the arrays ``names``. Raises Unsupported where
    something depends on them that need not have one."""
    linear = isinstance(node, (Contraction, Convolution, ConvolutionBackwardData))
    if linear or (isinstance(node, Pool) and len(graph.outputs_of(node)) == 1):
        return [name for name in graph.outputs_of(node) if name is not None]
    if not isinstance(node, KernelNode):
        raise Unsupported(f"{label_of(node)}: nothing is known of what it does with NaN")
    kernel = node.kernel
    if kernel.kept_locals():
        raise Unsupported(f"{label_of(node)} keeps values from one iteration to another")
    dtypes = {name: dtype for name, (dtype, _) in kernel.locals.items()}
    reached = set(names)
    for stage in kernel.stages:
        for array in _of_stage(stage, reached):
            if not types.is_float(dtypes.get(array) or graph.dtype(array)):
                raise Unsupported(f"{label_of(node)} makes {array} of it, whose type has no NaN")
            reached.add(array)
    return [access.array for access in kernel.writes() if access.array in reached]


def _of_stage(stage: Stage, reached: Collection[str]) -> list[str]:
    """The arrays that get a NaN of those that have one; reductions, also the largest and the smallest, keep it."""
    connectors = {c for c, access in stage.reads.items() if access.array in reached}
    if any(None in stage.reads[c].index for c in connectors):
        raise Unsupported("elements are loaded at indices of run time")
    values: dict[sympy.Symbol, sympy.Expr] = {}
    for assignment in stage.assignments:
        values[assignment.symbol] = assignment.expr.xreplace(values)
    results = []
    for symbol, value in values.items():
        sources = [s for s in value.free_symbols if str(s) in connectors]
        if str(symbol) not in stage.writes or not sources:
            continue
        if not all(keeps_nan(value, s) for s in sources):
            raise Unsupported(f"{symbol} = {value} need not be NaN where what it reads is")
        results.append(stage.writes[str(symbol)].array)
    return results


def keeps_nan(expr: sympy.Expr, symbol: sympy.Symbol) -> bool:
    """Is ``expr`` NaN wherever ``symbol`` is?"""
    if expr == symbol:
        return True
    if symbol not in expr.free_symbols:
        return False
    if isinstance(expr, _OF_ANY_ARGUMENT) or _converts_to_float(expr):
        return any(keeps_nan(a, symbol) for a in expr.args)
    if isinstance(expr, sympy.Pow):
        return expr.exp.is_Number and expr.exp != 0 and keeps_nan(expr.base, symbol)
    if isinstance(expr, scalar.checked):
        return keeps_nan(expr.args[1], symbol)
    if isinstance(expr, scalar.select):
        condition, yes, no = expr.args
        chosen = _CHOSEN[_of_condition(condition, symbol)](yes, no)
        return all(keeps_nan(value, symbol) for value in chosen)
    return False


_CHOSEN: Mapping[bool | None, Any] = {
    True: lambda yes, no: [yes],
    False: lambda yes, no: [no],
    None: lambda yes, no: [yes, no],
}


def _of_condition(expr: sympy.Expr, symbol: sympy.Symbol) -> bool | None:
    """What a condition is where ``symbol`` is NaN; None where that depends on more."""
    compares = any(keeps_nan(a, symbol) for a in expr.args)
    if isinstance(expr, _FALSE):
        return False if compares else None
    if isinstance(expr, (scalar.ne, scalar.isnan)):
        return True if compares else None
    if isinstance(expr, scalar.logical_not):
        inner = _of_condition(expr.args[0], symbol)
        return None if inner is None else not inner
    return None


def _converts_to_float(expr: sympy.Expr) -> bool:
    target = scalar.cast_target(expr)
    return target is not None and types.is_float(target)
