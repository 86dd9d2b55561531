"""Where the arrays of a graph and of the bodies inside of it are in one flat program."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import dace
import sympy

from daceopt.ir.control.region import Conditional, Region, Repeat, regions, stacked_offset
from daceopt.ir.data.arrays import SEED
from daceopt.ir.graph.graph import Graph
from daceopt.ir.scalar.dims import Dim, dim
from daceopt.ir.scalar.symbols import Counter
from daceopt.ir.scalar.types import DType

_LINE = 64  # elements; the two copies of a carried value start on cache lines of their own


@dataclass(frozen=True)
class FrameBuffer:
    """A flat array of the frame."""

    name: str
    elements: Dim
    dtype: DType


Place = tuple[FrameBuffer, Dim]  # a buffer and an offset in elements


class Scope:
    """A graph in the frame: its own buffers are called ``prefix + name``, those in ``bound`` are elsewhere.

    Names of graphs have no capitals, so prefixes with one never meet a name of another graph.
    """

    def __init__(self, graph: Graph, prefix: str = "", bound: Mapping[str, Place] | None = None):
        self.graph, self.prefix, self._bound = graph, prefix, dict(bound or {})
        self._bound |= {new: self.place(old) for new, old in graph.in_place.items()}

    def place(self, name: str) -> Place:
        """The buffer in which the array or view ``name`` of the graph is, and where it starts there."""
        root, offset = self.graph.root(name)
        if root in self._bound:
            buffer, start = self._bound[root]
            return buffer, dim(start + offset)
        desc = self.graph.desc(root)
        return FrameBuffer(self.prefix + root, dim(desc.total_size), desc.dtype), offset

    @cached_property
    def inner(self) -> dict[Region, Inner]:
        """What is inside of each region."""
        return {node: _inner(self, node, f"{self.prefix}R{k}_") for k, node in enumerate(regions(self.graph))}


@dataclass(frozen=True)
class Inner:
    """The bodies of a region, and the buffers that the region needs beside them.

    ``carried``: one per carried value, with room for two of them: iteration t reads copy t % 2 and writes the other.
    """

    scopes: tuple[Scope, ...]
    carried: tuple[FrameBuffer, ...] = ()


def odd(node: Repeat) -> sympy.Symbol:
    """The symbol for the counter modulo 2."""
    return Counter(f"{node.counter}_odd")


def slot(buffer: FrameBuffer) -> Dim:
    """Elements from one copy of a carried value to the other."""
    return dim(buffer.elements / sympy.Integer(2))


def _inner(scope: Scope, node: Region, prefix: str) -> Inner:
    if isinstance(node, Repeat):
        return _inner_of_loop(scope, node, prefix)
    assert isinstance(node, Conditional)
    writes = scope.graph.writes(node)
    scopes = []
    for which, body in enumerate(node.bodies):
        bound = _captures(scope, node, which)
        bound |= {name: scope.place(writes[f"Out{k}"]) for k, name in enumerate(body.outputs)}
        scopes.append(Scope(body, f"{prefix}B{which}_", bound))
    return Inner(tuple(scopes))


def _inner_of_loop(scope: Scope, node: Repeat, prefix: str) -> Inner:
    body, writes, bound = node.body, scope.graph.writes(node), _captures(scope, node, 0)
    buffers = []
    for k, c in enumerate(node.carried):
        desc = body.desc(c.input)
        step = _round_up(dim(desc.total_size))
        buffer = FrameBuffer(f"{prefix}C{k}", dim(2 * step), desc.dtype)
        buffers.append(buffer)
        bound[c.input] = buffer, dim(odd(node) * step)
        bound[body.outputs[k]] = buffer, dim((1 - odd(node)) * step)
    for s, name in zip(node.stacked, body.outputs[len(node.carried) :]):
        buffer, start = scope.place(writes[s.connector])
        stride = scope.graph.strides(writes[s.connector])[s.axis]
        bound[name] = buffer, dim(start + stacked_offset(node, s, stride))
    return Inner((Scope(body, f"{prefix}B0_", bound),), tuple(buffers))


def _round_up(elements: Dim) -> Dim:
    if isinstance(elements, int):
        return elements if elements < _LINE else -(-elements // _LINE) * _LINE
    return elements


def _captures(scope: Scope, node: Region, which: int) -> dict[str, Place]:
    reads = scope.graph.reads(node)
    bound = {name: scope.place(reads[connector]) for name, connector in node.captures[which].items()}
    if node.bodies[which].uses_seed:  # which the graph around has from the time when regions are settled
        bound[SEED] = scope.place(SEED) if scope.graph.uses_seed else (FrameBuffer(SEED, 1, dace.int64), 0)
    return bound
