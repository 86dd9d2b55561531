"""What all iterations of a loop have of an array of its body, as one array around it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import sympy

from daceopt.ir.control.region_builder import LoopBuilder, free_symbols
from daceopt.ir.scalar.dims import Dim, dim, hint
from daceopt.ir.scalar.symbols import is_counter


@dataclass
class Collected:
    """The stacked outputs of a loop under construction; nothing is stacked twice, nor what is outside already."""

    loop: LoopBuilder
    trips: Dim
    stacked: list[tuple[str, str, int, bool]] = field(default_factory=list)

    def add(self, name: str, whole: str, axis: int, reverse: bool) -> None:
        """Stack an array of the body along ``axis`` of the array ``whole`` around it, from the end if ``reverse``."""
        self.stacked.append((name, whole, axis, reverse))

    def all_of(self, names: Sequence[str]) -> list[str]:
        """Arrays [trips, ...] of arrays of the body, iterations in one order that they share.

        The order, first to last or last to first, is that in which less has to be stacked.
        """
        body = self.loop.graph
        ways_of = {reverse: [self._standing(n, reverse) for n in names] for reverse in (False, True)}
        lacking = {r: sum(hint(body.size(n)) for n, w in zip(names, ways) if w is None) for r, ways in ways_of.items()}
        order = min(ways_of, key=lacking.__getitem__)
        return [self._stack(n, order) if way is None else self._view(n, way) for n, way in zip(names, ways_of[order])]

    def _standing(self, name: str, reverse: bool) -> _Standing | None:
        """Where iteration after iteration ``name`` is in that order."""
        graph, body = self.loop.outer, self.loop.graph
        for array, whole, axis, from_end in self.stacked:
            if self._alike(array, name) and axis == 0 and from_end == reverse:
                return _Standing(whole, 0, graph.strides(whole))
        root, offset = body.root(name)
        connector = self.loop.captured.get(root)
        if connector is None or _moves([*body.shape(name), *body.strides(name)]):
            return None
        move = sympy.expand(offset).coeff(self.loop.counter)
        start = dim(sympy.expand(offset - move * self.loop.counter))
        single = move.is_Integer or move.is_Symbol or move.is_Mul  # of which the sign is known
        if move == 0 or not single or move.could_extract_minus_sign() != reverse or _moves([start, dim(move)]):
            return None
        if reverse:
            start, move = dim(sympy.expand(start + (self.trips - 1) * move)), -move
        return _Standing(self.loop.operand(connector), start, (dim(move), *body.strides(name)))

    def _alike(self, one: str, other: str) -> bool:
        """Are they the same elements of the same memory?"""
        body = self.loop.graph
        first, second = ((body.root(n), body.shape(n), body.strides(n)) for n in (one, other))
        return first == second

    def _view(self, name: str, way: _Standing) -> str:
        shape = (self.trips, *self.loop.graph.shape(name))
        return self.loop.outer.add_view(way.array, "factors", shape, way.strides, way.start)

    def _stack(self, name: str, reverse: bool) -> str:
        body = self.loop.graph
        whole = self.loop.outer.add_array("factors", (self.trips, *body.shape(name)), body.dtype(name))
        self.add(name, whole, 0, reverse)
        return whole


def _moves(extents: Sequence[Dim]) -> bool:
    """Do they change from iteration to iteration?"""
    return any(map(is_counter, free_symbols(extents)))


@dataclass(frozen=True)
class _Standing:
    """A view of an array around the loop."""

    array: str
    start: Dim
    strides: Sequence[Dim]
