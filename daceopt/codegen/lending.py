"""Memory that a program gets from its caller and does not need all the time: results before they are written, saved
arrays before they are written (forward) or after they were read for the last time (backward). Intermediates stand
there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from daceopt.codegen.offsets import Room, Span
from daceopt.ir.graph.graph import Graph
from daceopt.ir.graph.kinds import Node
from daceopt.ir.scalar.dims import Dim
from daceopt.ir.scalar.types import itemsize

SAVED_BLOCK = ""
_LINE = 64
_MOST = 32  # results: the largest tell how much memory a program takes, and each costs time in planning
_ALWAYS = 1 << 40


@dataclass(frozen=True)
class Lender:
    """``name``: the result, or ``SAVED_BLOCK``, whose memory ``room`` is."""

    name: str
    room: Room


@dataclass(frozen=True)
class Loan:
    """Where a buffer is that is not in the arena: ``offset`` bytes behind the start of ``owner``."""

    owner: str
    offset: Dim


def lenders(
    graph: Graph, places: dict[str, Dim], sizes: dict[str, Dim], order: Sequence[Node] | None = None
) -> list[Lender]:
    """The memory that nodes may use in ``order`` while its owner does not: of sizes that are known.

    ``places`` and ``sizes``: offset and bytes of each saved array. Results that are where inputs do lend nothing.
    """
    order = graph.nodes() if order is None else order
    result = []
    if places and all(isinstance(n, int) for n in (*places.values(), *sizes.values())):
        times = lifetimes(graph, list(places), order)
        held = tuple((Span(int(sizes[n]), *times[n]), int(at)) for n, at in places.items())
        result.append(Lender(SAVED_BLOCK, Room(sum(span.bytes for span, _ in held), held)))
    replacing = {graph.outputs[k] for k in graph.replaced if k < len(graph.outputs)}
    results = [n for n in dict.fromkeys(graph.outputs) if n not in replacing and n not in places]
    first, _ = _uses(graph, order)
    rooms = {n: size for n in results if (size := _idle_bytes(graph, n)) >= _LINE and n in first}
    for name in sorted(rooms, key=lambda n: -rooms[n])[:_MOST]:
        held = ((Span(rooms[name], first[name], _ALWAYS), 0),)
        result.append(Lender(name, Room(rooms[name], held)))
    return result


def lifetimes(graph: Graph, saved: Sequence[str], order: Sequence[Node]) -> dict[str, tuple[int, int]]:
    """Positions in ``order`` from which and up to which each saved array is needed: of those that the forward writes
    from then on, of those that the backward gets up to the last that reads them."""
    first, last = _uses(graph, order)
    results = {alias for name in graph.outputs for alias in graph.aliases(name)}
    return {n: (first[n], _ALWAYS) if n in first else (-1, _ALWAYS if n in results else last.get(n, -1)) for n in saved}


def _uses(graph: Graph, order: Sequence[Node]) -> tuple[dict[str, int], dict[str, int]]:
    """Buffer -> the position of the first node that writes it, and of the last that uses it."""
    first: dict[str, int] = {}
    last: dict[str, int] = {}
    for position, node in enumerate(order):
        for name in (n for n in graph.outputs_of(node) if n is not None):
            first.setdefault(graph.root(name)[0], position)
        for name in (n for n in (*graph.inputs_of(node), *graph.outputs_of(node)) if n is not None):
            last[graph.root(name)[0]] = position
    return first, last


def _idle_bytes(graph: Graph, name: str) -> int:
    """Whole cache lines of a result that is an array of its own, 0 of another."""
    if graph.root(name)[0] != name or graph.is_given(name) or graph.parts_of(name):
        return 0
    size = graph.size(name)
    return int(size) * itemsize(graph.dtype(name)) // _LINE * _LINE if isinstance(size, int) else 0
