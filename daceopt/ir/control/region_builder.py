"""How lowerings write control flow: bodies whose inputs are bound on first use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import sympy

from daceopt.errors import Unsupported
from daceopt.ir.control.region import CONDITION, TRIPS, Carried, Conditional, Repeat, Stacked, body_of, counter_for
from daceopt.ir.graph.graph import Graph
from daceopt.ir.nodes.builder import Builder
from daceopt.ir.scalar import types
from daceopt.ir.scalar.dims import Dim, dim
from daceopt.ir.scalar.symbols import is_counter


def free_symbols(extents: Sequence[Dim]) -> set[sympy.Symbol]:
    """The symbols in a shape."""
    return {s for e in extents if not isinstance(e, int) for s in e.free_symbols}


@dataclass
class _Operands:
    """Connectors of a node under construction, one for each array."""

    reads: dict[str, str] = field(default_factory=dict)  # connector -> array

    def connect(self, name: str) -> str:
        for connector, array in self.reads.items():
            if array == name and connector not in (CONDITION, TRIPS):
                return connector
        connector = f"In{len(self.reads)}"
        self.reads[connector] = name
        return connector


class Body:
    """A body under construction; ``b`` builds in it."""

    def __init__(self, outer: Graph, label: str, operands: _Operands, counter: sympy.Symbol | None = None):
        self.outer, self.graph = outer, body_of(outer, label, counter)
        self.b = Builder(self.graph, label)
        self.captured: dict[str, str] = {}
        self._operands = operands
        self._inner: dict[str, str] = {}

    def adopt_graph(self, graph: Graph, captured: Mapping[str, str]) -> None:
        """Go on with ``graph``, made from the body of another region; ``captured``: its inputs -> arrays around."""
        self.graph, self.b = graph, Builder(graph, self.b.label)
        for inner, name in captured.items():
            self.captured[inner] = self._operands.connect(name)

    def bind(self, inner: str, name: str) -> None:
        """Let an array of the body that nothing writes be the array ``name`` around it."""
        self.graph.inputs.append(inner)
        self.captured[inner] = self._operands.connect(name)

    def capture(self, name: str) -> str:
        """The array of the body that stands for ``name`` of the graph around it; constants are constants here too."""
        if name not in self._inner:
            self._inner[name] = self._bind(name)
        return self._inner[name]

    def _bind(self, name: str) -> str:
        outer, body = self.outer, self.graph
        hint = outer.source.names.get(name, name)
        if name in outer.constants:
            return body.add_constant(hint, outer.constants[name])
        strides = outer.strides(name)
        inner = body.add_array(hint, outer.shape(name), outer.dtype(name), strides or None)
        body.inputs.append(inner)
        if name in outer.source.shape_values:
            body.source.shape_values[inner] = outer.source.shape_values[name]
        self.captured[inner] = self._operands.connect(name)
        return inner

    def declare_outputs(self, names: Sequence[str]) -> None:
        """Make ``names`` the outputs; what is no array of its own, or an output already, is copied."""
        for name in self.graph.arrays():
            if any(map(is_counter, free_symbols(self.graph.shape(name)))):
                what = self.graph.source.names.get(name, name)
                raise Unsupported(f"the size of {what!r} changes from iteration to iteration")
        for name in names:
            needs_copy = name in self.graph.outputs or not self.graph.producers(name) or self.graph.is_view(name)
            self.graph.add_output(self.b.copy(name) if needs_copy else name)


class LoopBuilder(Body):
    """Builds a :class:`Repeat` in ``outer``: carried values and captured arrays, then the body, then ``finish``."""

    def __init__(self, outer: Graph, label: str):
        self.counter = counter_for(outer)
        self._own = _Operands()
        super().__init__(outer, label, self._own, self.counter)
        self._label = label
        self._carried: list[tuple[str, str]] = []

    @classmethod
    def adopt(cls, outer: Graph, label: str, node: Repeat, body: Graph) -> LoopBuilder:
        """A builder that goes on with ``body``, made from that of ``node``, a loop of ``outer``.

        It has the counter of that loop and captures what that captures.
        """
        builder, reads = cls(outer, label), outer.reads(node)
        builder.counter = node.counter
        builder.adopt_graph(body, {inner: reads[connector] for inner, connector in node.captures[0].items()})
        return builder

    def operand(self, connector: str) -> str:
        """The array around that a connector of the node will read."""
        return self._own.reads[connector]

    def carry_as(self, inner: str, initial: str) -> None:
        """An input of the body is a carried value that starts as the array ``initial`` of the graph around."""
        self._carried.append((inner, self._own.connect(initial)))

    def carry(self, initial: str) -> str:
        """A value of the last iteration, in the first one the array ``initial`` of the graph around."""
        outer = self.outer
        inner = self.graph.add_input(
            outer.source.names.get(initial, "carried"), outer.shape(initial), outer.dtype(initial)
        )
        self._carried.append((inner, self._own.connect(initial)))
        return inner

    def fix(self, inner: str, value: str) -> None:
        """A carried value that never changes is ``value``, an array of the body, instead."""
        self.graph.replace_uses(inner, value)
        self.graph.inputs.remove(inner)
        self._carried = [c for c in self._carried if c[0] != inner]

    def slice_of(self, name: str, axis: int, position: Dim) -> str:
        """Element ``position`` (in range, an expression of the counter) along ``axis`` of an outer array."""
        inner = self.capture(name)
        shape, strides = self.graph.shape(inner), self.graph.strides(inner)
        rest = [k for k in range(len(shape)) if k != axis]
        offset = dim(position * strides[axis])
        return self.graph.add_view(inner, "step", [shape[k] for k in rest], [strides[k] for k in rest], offset)

    def finish(
        self,
        carried: Sequence[str],
        finals: Sequence[str | None],
        stacked: Sequence[tuple[str, str, int, bool]] = (),
        *,
        trips: Dim | str | None,
        condition: int | None = None,
        descending: bool = False,
        blocks: bool = False,
    ) -> Repeat:
        """Add the node. ``carried``: the body's arrays with the next values; ``finals``: arrays for the last ones;
        ``stacked``: (array of the body, array around, axis, from the end?); ``trips``: the number of iterations, the
        name of an int64 array that holds it, or None. ``blocks``: the body's arrays have the axes along which they are
        stacked, and ``trips`` of them fill the arrays around.
        """
        self._check_carried(carried)
        self.declare_outputs([*carried, *(name for name, *_ in stacked)])
        if isinstance(trips, str):
            self._own.reads[TRIPS] = trips
        limit: Dim = trips if blocks else self._stacked_extent(stacked)
        node = Repeat(
            self._label,
            self.graph,
            self.captured,
            counter=self.counter,
            trips=None if isinstance(trips, str) else trips,
            carried=self._carried_values(finals),
            stacked=self._stacked_arrays(stacked, len(finals), blocks),
            condition=condition,
            limit=limit,
            descending=descending,
        )
        around = enumerate([*finals, *(whole for _, whole, *_ in stacked)])
        self.outer.add_node(node, self._own.reads, {f"Out{k}": name for k, name in around if name is not None})
        return node

    def _carried_values(self, finals: Sequence[str | None]) -> list[Carried]:
        """Their outputs come first."""
        return [
            Carried(inner, connector, None if final is None else f"Out{k}")
            for k, ((inner, connector), final) in enumerate(zip(self._carried, finals, strict=True))
        ]

    def _stacked_arrays(self, stacked: Sequence[tuple[str, str, int, bool]], first: int, blocks: bool) -> list[Stacked]:
        return [
            Stacked(f"Out{first + k}", axis, reverse, self.graph.shape(name)[axis] if blocks else None)
            for k, (name, _, axis, reverse) in enumerate(stacked)
        ]

    def _stacked_extent(self, stacked: Sequence[tuple[str, str, int, bool]]) -> Dim | None:
        """How many iterations have room in what they are stacked into."""
        return self.outer.shape(stacked[0][1])[stacked[0][2]] if stacked else None

    def _check_carried(self, carried: Sequence[str]) -> None:
        """A value and the next one share their memory."""
        for (inner, _), name in zip(self._carried, carried, strict=True):
            if self.graph.dtype(inner) != self.graph.dtype(name):
                expected, actual = (types.name_of(self.graph.dtype(n)) for n in (inner, name))
                raise ValueError(f"{self._label}: the next value of {inner} ({expected}) is {name} ({actual}); cast it")


class ChoiceBuilder:
    """Builds a :class:`Conditional` in ``outer``: fill both ``bodies``, then ``finish``."""

    def __init__(self, outer: Graph, label: str, condition: str):
        self._outer, self._label = outer, label
        self._operands = _Operands({CONDITION: condition})
        self.bodies = tuple(Body(outer, name, self._operands) for name in ("then", "otherwise"))

    def finish(self, outputs: Sequence[str]) -> Conditional:
        """Add the node, which writes the arrays ``outputs``; the bodies have declared theirs."""
        graphs, captures = [x.graph for x in self.bodies], [x.captured for x in self.bodies]
        node = Conditional(self._label, graphs, captures)
        self._outer.add_node(node, self._operands.reads, {f"Out{k}": n for k, n in enumerate(outputs)})
        return node
