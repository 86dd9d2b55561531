"""Neighbours in memory that one thread moves at once: which accesses of an unrolled loop are such, and their code."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import sympy

from daceopt.codegen.c_tree import Declare, Expression
from daceopt.codegen.names import Names
from daceopt.ir.access.references import KernelBuffer, Reference, StatementInstance
from daceopt.ir.scalar import types
from daceopt.ir.schedule.schedule import Loop

BYTES = 16
_SIZES = (4, 8, BYTES)


@dataclass(frozen=True)
class Pack:
    """The elements of ``buffer`` that all iterations of the loop access, ``name.at[0]`` to ``name.at[extent - 1]``:
    they are at ``address``, a multiple of their number."""

    name: str
    buffer: KernelBuffer
    address: str
    extent: int
    read: bool
    written: bool

    def before(self, pointer: str) -> Declare:
        """What declares it, loaded if it is read."""
        loaded = f"dop::load_pack<ALIGN, {self.extent}>({pointer} + {self.address})" if self.read else ""
        return Declare(f"dop::Pack<{types.cpp(self.buffer.dtype)}, {self.extent}>", self.name, loaded)

    def behind(self, pointer: str) -> Expression:
        """What stores it."""
        return Expression(f"dop::store_pack<ALIGN>({pointer} + {self.address}, {self.name})")


class Packs:
    """The packs of one unrolled loop over ``bodies``; ``collected``: writes that are no stores, as (statement,
    connector). No array has packs that is accessed otherwise as well: a load before the loop would miss a store in it.
    """

    def __init__(
        self, names: Names, loop: Loop, bodies: Sequence[StatementInstance], collected: set[tuple[int, str]], stem: str
    ):
        self._names, self._loop = names, loop
        self._packs: dict[KernelBuffer, Pack] = {}
        accesses = list(_accesses(bodies, collected))
        for buffer in dict.fromkeys(r.buffer for r, _ in accesses):
            own = [(r, written) for r, written in accesses if r.buffer == buffer]
            others = [r for r, _ in accesses if r.buffer.array == buffer.array and r.buffer != buffer]
            first = own[0][0]
            if others or any((r.steps, r.rest) != (first.steps, first.rest) for r, _ in own):
                continue
            if _is_packed(first, loop):
                address = names.address(_first(first, loop))
                read, written = any(not w for _, w in own), any(w for _, w in own)
                name = f"{stem}_{len(self._packs)}"
                self._packs[buffer] = Pack(name, buffer, address, int(loop.extent), read, written)

    def __iter__(self) -> Iterator[Pack]:
        return iter(self._packs.values())

    def element(self, reference: Reference) -> str | None:
        """The element as a pack has it; None where it is none."""
        pack = self._packs.get(reference.buffer)
        return None if pack is None else f"{pack.name}.at[{self._names.loop(self._loop.param)}]"


def _accesses(bodies: Sequence[StatementInstance], collected: set[tuple[int, str]]) -> Iterator[tuple[Reference, bool]]:
    for body in bodies:
        yield from ((r, False) for r in body.reads.values() if not r.buffer.local)
        for connector, r in body.writes.items():
            if not r.buffer.local and (body.statement, connector) not in collected:
                yield r, True


def _is_packed(reference: Reference, loop: Loop) -> bool:
    """Are the iterations of ``loop`` neighbours, the first of which is at a multiple of their number?"""
    width = loop.extent
    if not isinstance(width, int) or types.itemsize(reference.buffer.dtype) * width not in _SIZES or reference.whole:
        return False
    others = [step for p, step in reference.steps if p != loop.param]
    return reference.step(loop.param) == 1 and all(_is_multiple(n, width) for n in (*others, reference.rest))


def _is_multiple(value: object, width: int) -> bool:
    if isinstance(value, int):
        return value % width == 0
    if isinstance(value, sympy.Add):
        return all(_is_multiple(term, width) for term in value.args)
    return any(isinstance(f, sympy.Integer) and int(f) % width == 0 for f in sympy.Mul.make_args(value))


def _first(reference: Reference, loop: Loop) -> Reference:
    steps = tuple((p, step) for p, step in reference.steps if p != loop.param)
    return Reference(reference.buffer, steps, reference.rest)
