"""Canonical names of a kernel's loops, buffers, sizes and values, and the text of sizes and elements in them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import sympy

from daceopt.codegen.scalar.printer import Printer
from daceopt.ir.access.references import KernelBuffer, Param, Reference
from daceopt.ir.scalar import scalar, types
from daceopt.ir.scalar.dims import Dim, dim
from daceopt.ir.scalar.sizes import ALL_SIZES
from daceopt.ir.schedule.schedule import Loop


class Names:
    """Names in order of first use: loops ``i0``, pointers ``p0``, locals ``l0``, sizes ``n0``, steps ``s0``, values
    ``v0``..."""

    def __init__(self) -> None:
        self._loops: dict[Param, sympy.Symbol] = {}
        self._extents: dict[sympy.Symbol, Dim | None] = {}  # of loops, by their canonical symbols
        self._sizes: dict[str, sympy.Symbol] = {}
        self._buffers: dict[KernelBuffer, str] = {}
        self._locals: dict[KernelBuffer, str] = {}
        self._values = 0
        self._accumulators = 0
        self._steps = 0
        self._printer = Printer({})

    def loop(self, p: Param) -> str:
        return str(self._loops.setdefault(p, _index(f"i{len(self._loops)}")))

    def add_loop(self, loop: Loop) -> None:
        """Name a loop. Of several with one parameter, side by side, the longest counts, where it is known which."""
        self.loop(loop.param)
        symbol = self._loops[loop.param]
        self._extents[symbol] = _longer(self._extents.setdefault(symbol, loop.extent), loop.extent)

    def is_inside(self, index: sympy.Expr, extent: Dim) -> bool:
        """Is an integer, in canonical names, 0 or more and below ``extent`` in all iterations of all loops?"""
        extents = {s: self._extents.get(s) for s in index.free_symbols}
        loops = {s: n for s, n in extents.items() if n is not None}
        if len(loops) < len(extents) or not index.is_polynomial():
            return False
        sizes = ALL_SIZES.inside(loops)
        return sizes.is_natural(index) and sizes.is_natural(extent - 1 - index)

    def buffer(self, buffer: KernelBuffer) -> str:
        return self._buffers.setdefault(buffer, f"p{len(self._buffers)}")

    def local(self, buffer: KernelBuffer) -> str:
        return self._locals.setdefault(buffer, f"l{len(self._locals)}")

    def buffers(self) -> dict[KernelBuffer, str]:
        return self._buffers

    def sizes(self) -> dict[str, str]:
        """Size symbols of the graph that the text uses -> their names in it."""
        return {s: str(n) for s, n in self._sizes.items()}

    def value(self, dtype: types.DType) -> sympy.Symbol:
        """A new value symbol of ``dtype``."""
        self._values += 1
        return scalar.symbol(f"v{self._values - 1}", dtype)

    def accumulator(self) -> str:
        self._accumulators += 1
        return f"a{self._accumulators - 1}"

    def step(self) -> str:
        self._steps += 1
        return f"s{self._steps - 1}"

    def canonical(self, symbols: Iterable[sympy.Symbol]) -> dict[sympy.Symbol, sympy.Symbol]:
        """Loop parameters and sizes -> their canonical symbols."""
        return {s: self._canonical(s) for s in sorted(symbols, key=str)}

    def _canonical(self, s: sympy.Symbol) -> sympy.Symbol:
        if s in self._loops:
            return self._loops[s]
        return self._sizes.setdefault(str(s), _index(f"n{len(self._sizes)}"))

    def size_text(self, size: Dim) -> str:
        """An extent, stride or offset as an int64 expression."""
        if isinstance(size, int):
            return str(size)
        return self._printer.size(size.xreplace(self.canonical(size.free_symbols)))

    def relation_text(self, relation: sympy.Basic) -> str:
        """A relation of int64 expressions."""
        return f"{self.size_text(dim(relation.lhs))} {relation.rel_op} {self.size_text(dim(relation.rhs))}"

    def element(self, reference: Reference, steps: Mapping[Param, str] | None = None) -> str:
        """``p0[128 * i0 + i1]``; ``steps``: what is written for the distance of neighbours along some loops."""
        buffer = reference.buffer
        name = self.local(buffer) if buffer.local else self.buffer(buffer)
        return f"{name}[{self.address(reference, steps)}]"

    def address(self, reference: Reference, steps: Mapping[Param, str] | None = None) -> str:
        """The element's position in its buffer."""
        hoisted = steps or {}
        order = list(self._loops)
        ordered = sorted(reference.steps, key=lambda item: order.index(item[0]))
        terms = [self._term(p, step, hoisted.get(p)) for p, step in ordered if step != 0]
        if reference.rest != 0:
            terms.append(self.size_text(reference.rest))
        return " + ".join(terms) or "0"

    def _term(self, p: Param, step: Dim, hoisted: str | None) -> str:
        return self.loop(p) if step == 1 else f"{hoisted or self.size_text(step)} * {self.loop(p)}"


def _longer(first: Dim | None, second: Dim) -> Dim | None:
    """The larger of two extents, if it is known which."""
    if first is None or ALL_SIZES.is_natural(first - second):
        return first
    return second if ALL_SIZES.is_natural(second - first) else None


def _index(name: str) -> sympy.Symbol:
    return sympy.Symbol(name, integer=True)
