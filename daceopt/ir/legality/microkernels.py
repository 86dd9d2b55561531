"""What a ``Call`` in a schedule may stand for: loops over a tile whose work a library, or a function of the support
headers, does in one call.

The loops below a call are its meaning, as an instruction's are in Exo (Ikarashi et al., PLDI 2022): whoever takes the
call away has the same kernel.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NoReturn, TypeAlias

import dace
import sympy

from daceopt.errors import IllegalSchedule
from daceopt.ir.access.references import Reference, StatementInstance
from daceopt.ir.kernel.kernel import Kernel
from daceopt.ir.scalar import types
from daceopt.ir.scalar.affine import same
from daceopt.ir.scalar.dims import Dim
from daceopt.ir.scalar.types import DType
from daceopt.ir.schedule.schedule import Accumulate, Call, Do, Loop, Tree, chain, walk

PRODUCT, TRANSPOSITION = "product", "transposition"
FACTORS = (dace.float32, dace.float64, types.BFLOAT16)  # their types


@dataclass(frozen=True)
class MicroProduct:
    """What a ``Call`` of the micro-kernel ``product`` needs; the kernel around it has the statement that calls.

    ``dtype``: of the factors; bfloat16 is summed up in float32.
    """

    label: str
    dtype: DType


@dataclass(frozen=True)
class TileProduct:
    """``C[m, n] (+)= sum_k A[m, k] * B[k, n]`` for one statement; a loop that is None has one iteration.

    ``a``, ``b`` and ``c`` are the references of the statement. Neighbours in a row of each are side by side; where
    ``b`` is ``turned``, which factors of bfloat16 may be, those in a column of it do.
    """

    statement: int
    connector: str
    m: Loop | None
    n: Loop | None
    k: Loop | None
    a: Reference
    b: Reference
    c: Reference
    turned: bool = False

    @property
    def loops(self) -> tuple[Loop | None, ...]:
        return self.m, self.n, self.k

    @property
    def dtype(self) -> types.DType:
        """Of the factors."""
        return self.a.buffer.dtype

    def leading(self, operand: Reference) -> Dim:
        """Elements from one row of a tile, or column of a turned one, to the next."""
        of_b = (self.n, self.k) if self.turned else (self.k, self.n)
        rows, columns = of_b if operand is self.b else (self.m, self.k if operand is self.a else self.n)
        if rows is not None:
            return operand.step(rows.param) or 0
        return 1 if columns is None else columns.extent


@dataclass(frozen=True)
class TileTransposition:
    """``target[m, n] = source[n, m]``, of rows with unit stride in both."""

    statement: int
    m: Loop
    n: Loop
    source: Reference
    target: Reference

    @property
    def loops(self) -> tuple[Loop, ...]:
        return self.m, self.n


Tile: TypeAlias = TileProduct | TileTransposition


def calls(tree: Tree) -> list[Call]:
    """The calls in a schedule."""
    return [node for node, _ in walk(tree) if isinstance(node, Call)]


def tiles(kernel: Kernel, tree: Tree, bodies: Mapping[int, StatementInstance]) -> dict[int, Tile]:
    """Each call in ``tree``, by the ``id`` of its node. Raises IllegalSchedule for loops that are no such work."""
    tiles_of_calls = {}
    for node, around in walk(tree):
        if isinstance(node, Call):
            tiles_of_calls[id(node)] = _Reader(kernel, bodies, node, around).tile()
    return tiles_of_calls


class _Reader:
    def __init__(self, kernel: Kernel, bodies: Mapping[int, StatementInstance], call: Call, around: tuple[Tree, ...]):
        self._kernel, self._bodies, self._call, self._around = kernel, bodies, call, around

    def _refuse(self, reason: str) -> NoReturn:
        raise IllegalSchedule(f"schedule of {self._kernel.label}: call {self._call.microkernel}: {reason}")

    def tile(self) -> Tile:
        if self._call.microkernel not in (PRODUCT, TRANSPOSITION):
            self._refuse(f"there is no such micro-kernel; expected {PRODUCT} or {TRANSPOSITION}")
        loops, do = chain(self._call.body)
        if not isinstance(do, Do):
            self._refuse("it stands around more than the loops of one statement")
        odd = next((loop for loop in loops if loop.kind != "serial"), None)
        if odd is not None:
            self._refuse(f"{odd.param} is a {odd.kind} loop; a micro-kernel has its own order")
        if self._call.microkernel == TRANSPOSITION:
            return self._transposition(do, loops)
        self._check_statement(do)
        body = self._bodies[do.statement]
        (connector, c), (one, other) = next(iter(body.writes.items())), body.reads.values()
        return self._operands(do.statement, connector, loops, (one, other), c)

    def _transposition(self, do: Do, loops: list[Loop]) -> TileTransposition:
        body = self._bodies[do.statement]
        if len(loops) != 2 or not is_copy(self._kernel, body):
            self._refuse(f"s{do.statement} does not copy the elements of a tile")
        (source,), (target,) = body.reads.values(), body.writes.values()
        for m, n in (loops, loops[::-1]):
            if self._fits(source, m) and self._fits(target, n) and source.step(n.param) and target.step(m.param):
                self._check_rests((source, target), [m, n])
                return TileTransposition(do.statement, m, n, source, target)
        return self._refuse(f"{loops[0].param} and {loops[1].param} do not walk one array each with unit stride")

    def _check_statement(self, do: Do) -> None:
        """One product of two elements, summed up."""
        stage, name = self._kernel.stages[do.statement], f"s{do.statement}"
        if len(stage.writes) != 1 or next(iter(stage.writes.values())).wcr != "sum":
            self._refuse(f"{name} does not sum into one array")
        if len(stage.assignments) != 1 or len(stage.reads) != 2:
            self._refuse(f"{name} is not the product of two elements")
        expr = stage.assignments[0].expr
        if not isinstance(expr, sympy.Mul) or {str(f) for f in expr.args} != set(stage.reads) or len(expr.args) != 2:
            self._refuse(f"{name} sums {expr}; expected the product of {' and '.join(stage.reads)}")
        body = self._bodies[do.statement]
        factors = {r.buffer.dtype for r in body.reads.values()}
        sums = {r.buffer.dtype for r in body.writes.values()} | {a.dtype for a in body.assignments}
        if len(factors) != 1 or not factors <= set(FACTORS) or sums != {types.compute_type(f) for f in factors}:
            kinds = ", ".join(sorted(map(str, factors | sums)))
            self._refuse(f"{name} has elements of {kinds}; expected one floating type, or bfloat16 summed in float32")
        wide = [
            n
            for n in self._around
            if isinstance(n, Accumulate)
            for p in n.partials
            if p.wide and p.statement == do.statement
        ]
        if wide:
            self._refuse(f"{name} collects in a wider type than its own")

    def _operands(
        self, statement: int, connector: str, loops: list[Loop], reads: tuple[Reference, Reference], c: Reference
    ) -> TileProduct:
        for transposed in (False, True) if reads[0].buffer.dtype == types.BFLOAT16 else (False,):
            for a, b in (reads, reads[::-1]):
                m, n, k = (self._only(loops, pair, c, a, b) for pair in ((c, a), (c, b), (a, b)))
                along = [loop for loop in (m, n, k) if loop is not None]
                fits = self._fits(a, k) and self._fits(b, k if transposed else n) and self._fits(c, n)
                if len(along) == len(loops) and fits:
                    self._check_rests((a, b, c), along)
                    return TileProduct(statement, connector, m, n, k, a, b, c, transposed)
        names = ", ".join(str(loop.param) for loop in loops)
        return self._refuse(f"the loops over {names} are not rows, columns and sum of a product with unit strides")

    @staticmethod
    def _only(loops: list[Loop], pair: tuple[Reference, ...], *operands: Reference) -> Loop | None:
        """The one loop that walks through the operands ``kept`` and no other."""
        fitting = [p for p in loops if {id(r) for r in operands if r.step(p.param)} == {id(r) for r in pair}]
        return fitting[0] if len(fitting) == 1 else None

    @staticmethod
    def _fits(operand: Reference, columns: Loop | None) -> bool:
        return columns is None or same(operand.step(columns.param), 1)

    def _check_rests(self, operands: tuple[Reference, ...], loops: list[Loop]) -> None:
        inside: set[sympy.Symbol] = {loop.param for loop in loops}
        for operand in operands:
            if operand.whole or inside & getattr(operand.rest, "free_symbols", set()):
                self._refuse(f"{operand.buffer.array} is not walked evenly")
        for loop in loops:
            if loop.rest is not None and inside & loop.rest.free_symbols:  # type: ignore[union-attr]
                self._refuse(f"the extent of {loop.param} changes inside of the tile")


def is_copy(kernel: Kernel, body: StatementInstance) -> bool:
    """Is what a statement of ``kernel`` writes, without a change, what it reads?"""
    kinds = {reference.buffer.dtype for reference in body.references()}
    return kernel.stages[body.statement].copy is not None and len(kinds) == 1
