"""Gradients told from results: a stage's gradient may read what the stage wrote instead of what it read.

The derivatives of exp, tanh or sigmoid are functions of their results. So are those of functions that pass their
operand or give a number (relu, a clip): where a number comes out, the gradient has to be the same for all operands that
lead to it, and the one that the result would get. Which of both the gradient reads decides what must be stored: the
result is there anyway where a product reads it, and can be computed again from the operand where that is.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace

import sympy

from daceopt.autodiff.partials import needed_assignments
from daceopt.ir.access.dataflow import is_bijective
from daceopt.ir.graph.graph import Graph
from daceopt.ir.kernel.kernel import Access, Stage
from daceopt.ir.kernel.tasklet import Assignment
from daceopt.ir.scalar import functions, types
from daceopt.ir.scalar.affine import same
from daceopt.ir.scalar.dims import Dim
from daceopt.ir.scalar.types import DType

_SELECT = functions.CLASSES["select"]
_COMPARISONS: dict[type, Callable[[sympy.Expr, sympy.Expr], sympy.Expr]] = {
    functions.CLASSES[name]: getattr(operator, name) for name in ("lt", "le", "gt", "ge")
}

_MOST_EXACT = 256  # whole numbers up to this one are exact in each of types.HALVES

Truths = Mapping[sympy.Expr, bool]
Code = tuple[tuple[Assignment, ...], dict[str, Access]]  # scalar code, and what it reads


def tell_from_results(
    graph: Graph,
    stage: Stage,
    reads: Mapping[str, Access],
    extents: Mapping[sympy.Symbol, Dim],
    gradient: Sequence[Assignment],
    results: Collection[sympy.Symbol],
) -> Code:
    """The code that computes ``results``, the last symbols of ``gradient``, behind the stage's own, and what it reads:
    of ``reads``, or of what the stage writes, where fewer arrays of the size of its domain are read then.
    """
    best = _code((*stage.assignments, *gradient), results, reads)
    if any(None in access.index for access in stage.reads.values()):
        return best  # such a stage is not computed again, so its result would have to be stored
    for name, access in stage.writes.items():
        value = next((a for a in stage.assignments if str(a.symbol) == name), None)
        if value is None or not _is_there(graph, stage, access, value, extents):
            continue
        value = replace(value, expr=_uncast(graph, stage, value))
        passes = _passing(value.expr)
        by_result = [a if passes is None else _by_result(a, value, *passes) for a in gradient]
        rest = tuple(a for a in stage.assignments if a.symbol != value.symbol)
        code = _code((*rest, *by_result), results, {**reads, name: Access(access.array, access.index)})
        if _whole(code[1], extents) - {access.array} < _whole(best[1], extents):
            best = code
    return best


def _uncast(graph: Graph, stage: Stage, value: Assignment) -> sympy.Expr:
    """The expression of ``value`` without a cast to the type that all it is made of has anyway."""
    expr, name = value.expr, types.name_of(value.dtype)
    if not isinstance(expr, functions.CLASSES[f"cast_{name}"]):
        return expr
    types_of = {str(a.symbol): a.dtype for a in stage.assignments}
    types_of |= {connector: graph.dtype(access.array) for connector, access in stage.reads.items()}
    same_type = all(types_of.get(str(s)) == value.dtype for s in expr.free_symbols)
    return expr.args[0] if same_type else expr


def _code(chain: Sequence[Assignment], results: Collection[sympy.Symbol], reads: Mapping[str, Access]) -> Code:
    code, used = needed_assignments(chain, results)
    return tuple(code), {c: a for c, a in reads.items() if c in used}


def _whole(reads: Mapping[str, Access], extents: Mapping[sympy.Symbol, Dim]) -> set[str]:
    """The arrays of which each iteration reads an element of its own."""
    counted = {p for p, n in extents.items() if not same(n, 1)}
    return {a.array for a in reads.values() if counted <= a.params()}


def _is_there(
    graph: Graph, stage: Stage, access: Access, value: Assignment, extents: Mapping[sympy.Symbol, Dim]
) -> bool:
    """Does memory hold ``value`` itself, of each iteration?"""
    array, dtype = access.array, graph.dtype(access.array)
    if access.wcr or graph.is_part(array) or not is_bijective(access.index, graph.shape(array), extents):
        return False
    return dtype == value.dtype or (dtype in types.HALVES and _is_unrounded(graph, stage, value.expr, dtype))


def _is_unrounded(graph: Graph, stage: Stage, value: sympy.Expr, dtype: DType) -> bool:
    """Is ``value`` what was read from an array of the narrow ``dtype``, or a number that this has?"""
    passes = _passing(value)
    if passes is None:
        return False
    operand, cases = passes
    source = stage.reads.get(str(operand))
    numbers = [k for _, k in cases if k != operand]
    return (
        source is not None
        and graph.dtype(source.array) == dtype
        and all(k == int(k) and abs(k) <= _MOST_EXACT for k in numbers)
    )


Cases = list[tuple[Truths, sympy.Expr]]


def _passing(value: sympy.Expr) -> tuple[sympy.Expr, Cases] | None:
    """The operand that ``value`` passes on where it is no number, and its cases: what holds, and what comes out."""
    cases = list(_cases(value, {}))
    operands = {leaf for _, leaf in cases if not leaf.is_number}
    return (operands.pop(), cases) if len(cases) > 1 and len(operands) == 1 else None


def _cases(value: sympy.Expr, truths: Truths) -> Iterator[tuple[Truths, sympy.Expr]]:
    if not isinstance(value, _SELECT):
        yield truths, value
        return
    condition, yes, no = value.args
    yield from _cases(yes, {**truths, condition: True})
    yield from _cases(no, {**truths, condition: False})


def _by_result(a: Assignment, value: Assignment, operand: sympy.Expr, cases: Cases) -> Assignment:
    """``a`` with the result in the place of its operand, where that is the same in each case; else ``a``.

    Where the operand is passed on, both are the same number.
    """
    expr = a.expr.xreplace({operand: value.symbol})
    for truths, number in cases:
        if number == operand:
            continue
        by_operand, same_for_result = _fold(a.expr, truths), _fold(expr.xreplace({value.symbol: number}), {})
        if by_operand != same_for_result:
            return a
    return Assignment(a.symbol, expr, a.dtype)


def _fold(expr: sympy.Expr, truths: Truths) -> sympy.Expr:
    """``expr`` where ``truths`` hold: the branches that are taken."""
    if expr.is_Atom:
        return expr
    args = [_fold(arg, truths) for arg in expr.args]
    if isinstance(expr, _SELECT) and (truth := _truth(expr.args[0], truths)) is not None:
        return args[1] if truth else args[2]
    return expr.func(*args)


def _truth(condition: sympy.Expr, truths: Truths) -> bool | None:
    if condition in truths:
        return truths[condition]
    compare = _COMPARISONS.get(type(condition))
    if compare is None or not all(arg.is_number and arg.is_comparable for arg in condition.args):
        return None
    return bool(compare(*condition.args))
