"""Accesses as linear functions of the loop parameters: the form in which loops are merged, split and ordered."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any, TypeAlias

import sympy

from daceopt.errors import Unsupported
from daceopt.ir import types
from daceopt.ir.graph import Dim, Graph, dim, row_major
from daceopt.ir.kernel import Access, Kernel

Param: TypeAlias = sympy.Symbol
_MOST_POINTS = 1 << 14  # of a write whose elements are told apart one by one


@dataclass(frozen=True)
class Buffer:
    """Memory that a kernel is given (an array of the graph from ``offset`` on) or that lives inside it (``local``)."""

    array: str
    offset: Dim
    dtype: types.DType
    local: bool = False


@dataclass(frozen=True)
class Reference:
    """The element ``sum(steps[p] * p) + rest`` of ``buffer``; ``rest`` is not linear in the parameters it names.

    ``whole`` has (extent, stride) of the dimensions left open for ``load``; ``wcr`` is the reduction of a write.
    """

    buffer: Buffer
    steps: tuple[tuple[Param, Dim], ...]
    rest: Dim = 0
    whole: tuple[tuple[Dim, Dim], ...] = ()
    wcr: str | None = None

    def step(self, p: Param) -> Dim | None:
        """Elements between neighbours along ``p``; None where the element does not depend on ``p``."""
        return next((s for q, s in self.steps if q == p), None)

    def params(self) -> set[Param]:
        """All parameters that the element depends on."""
        return {p for p, _ in self.steps} | getattr(self.rest, "free_symbols", set())

    def merge(self, p: Param, q: Param) -> Reference:
        """``p`` outside of ``q`` became one loop, called ``q``."""
        return self._replaced(tuple((r, s) for r, s in self.steps if r != p))

    def split(self, p: Param, block: Param, size: int) -> Reference:
        """``p`` became ``size * block + p``."""
        step = self.step(p)
        rest = self.rest
        if isinstance(rest, sympy.Expr):
            rest = dim(rest.xreplace({p: size * block + p}))
        extra = () if step is None else ((block, dim(step * size)),)
        return Reference(self.buffer, self.steps + extra, rest, self.whole, self.wcr)

    def drop(self, params: Iterable[Param]) -> Reference:
        """Parameters that are always 0 are left out."""
        gone = set(params)
        rest = self.rest
        if isinstance(rest, sympy.Expr):
            rest = dim(rest.xreplace(dict.fromkeys(gone, sympy.S.Zero)))
        steps = tuple((p, s) for p, s in self.steps if p not in gone)
        return Reference(self.buffer, steps, rest, self.whole, self.wcr)

    def _replaced(self, steps: tuple[tuple[Param, Dim], ...]) -> Reference:
        return Reference(self.buffer, steps, self.rest, self.whole, self.wcr)


def resolve(graph: Graph, kernel: Kernel, access: Access, params: frozenset[Param]) -> Reference:
    """The reference of ``access``: views are followed to their memory, constants go into the buffer's offset."""
    if access.array in kernel.locals:
        dtype, shape = kernel.locals[access.array]
        strides: tuple[Dim, ...] = row_major(shape)
        array, start = access.array, 0
    else:
        array, start = graph.root(access.array)
        dtype, shape, strides = graph.dtype(access.array), graph.shape(access.array), graph.strides(access.array)
    steps: dict[Param, Dim] = {}
    rest: Dim = 0
    whole = []
    for index, extent, stride in zip(access.index, shape, strides, strict=False):
        if index is None:
            whole.append((extent, stride))
            continue
        linear, constant, opaque = _affine(index, params)
        for p, factor in linear.items():
            steps[p] = dim(steps.get(p, 0) + factor * stride)
        start, rest = dim(start + constant * stride), dim(rest + opaque * stride)
    local = access.array in kernel.locals
    if local and start != 0:
        rest, start = dim(rest + start), 0
    return Reference(Buffer(array, start, dtype, local), tuple(steps.items()), rest, tuple(whole), access.wcr)


def _affine(index: Any, params: frozenset[Param]) -> tuple[dict[Param, Dim], Dim, Dim]:
    """(factor of each parameter, part without parameters, part that is not linear in them)."""
    index = dim(index)
    if isinstance(index, int):
        return {}, index, 0
    if index in params:
        return {index: 1}, 0, 0
    linear: dict[Param, Dim] = {}
    constant: Dim = 0
    opaque: Dim = 0
    for term in sympy.Add.make_args(sympy.expand(index)):
        found = term.free_symbols & params
        if not found:
            constant = dim(constant + term)
            continue
        p = next(iter(found))
        factor = dim(term / p)
        if len(found) == 1 and not getattr(factor, "free_symbols", set()) & params:
            linear[p] = dim(linear.get(p, 0) + factor)
        else:
            opaque = dim(opaque + term)
    return linear, constant, opaque


def check_writes(references: Mapping[str, Reference], extents: Mapping[Param, Dim], label: str) -> None:
    """Raise ``Unsupported`` for a write of a whole dimension, which has no meaning, and for one that reaches an element
    from several iterations, unless it reduces over a parameter that it does not depend on.
    """
    for connector, reference in references.items():
        if reference.whole:
            raise Unsupported(f"kernel {label}: write {connector} of {reference.buffer.array} leaves a dimension open")
        if _overlaps(reference, extents):
            raise Unsupported(
                f"kernel {label}: write {connector} reaches elements of {reference.buffer.array} from several "
                f"iterations (steps {[s for _, s in reference.steps]}); add them with IndexAdd, or reduce what is read"
            )


def _overlaps(reference: Reference, extents: Mapping[Param, Dim]) -> bool:
    """Do two iterations surely meet? Strides that are sizes are those of an array, whose elements stand apart."""
    walked = [(abs(s), extents[p]) for p, s in reference.steps if isinstance(s, int) and isinstance(extents[p], int)]
    if len(walked) < len(reference.steps) or reference.rest != 0:
        return False
    loops = sorted((s, int(n)) for s, n in walked if n != 1)
    reach, nested = 0, True  # nested: each step leads beyond all that the smaller ones reach
    for step, extent in loops:
        nested &= step > reach
        reach += step * (extent - 1)
    count = prod(n for _, n in loops)
    if nested or count == 0:
        return False
    return count > reach + 1 or (count <= _MOST_POINTS and len(_points(loops)) < count)


def _points(loops: Iterable[tuple[int, int]]) -> set[int]:
    points = {0}
    for step, extent in loops:
        points = {p + step * k for p in points for k in range(extent)}
    return points
