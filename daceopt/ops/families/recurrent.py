"""RNN, GRU and LSTM: one product for the inputs of all time steps, then a loop over the recurrent part.

Of bfloat16, products are of bfloat16 with sums of float32, in which gates and the memory of cells stay; the hidden
state is rounded from step to step, as by oneDNN and so by PyTorch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import dace
import sympy

from daceopt.ir.control.region_builder import LoopBuilder
from daceopt.ir.graph.graph import Graph
from daceopt.ir.graph.operands import all_required, require
from daceopt.ir.nodes.builder import Builder
from daceopt.ir.nodes.library import Contraction
from daceopt.ir.scalar import scalar, types
from daceopt.ir.scalar.dims import Dim, dim
from daceopt.ir.scalar.types import DType
from daceopt.ops.core import values
from daceopt.ops.core.registry import FLOATS, Names, Operator, lowering, supports
from daceopt.ops.families.recurrent_activations import (
    ACTIVATIONS,
    DEFAULT,
    DIRECTIONS,
    Function,
    activation_names,
    functions,
)

_MEMORY = 6  # position of the cells' initial memory among an LSTM's operands
_PROJECTION = 8  # position of an operand that ONNX's LSTM does not have: (directions, width, hidden)
_GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}


@dataclass
class _Layer:
    """One direction of a recurrent operator: the arrays around the loop and where its axes are.

    ``time`` and ``direction`` are axes of Y; a state has the shape of Y without time.
    """

    b: Builder
    node: Operator
    inputs: Names
    which: int
    reverse: bool
    functions: list[Function]

    @property
    def graph(self) -> Graph:
        return self.b.graph

    @property
    def dtype(self) -> DType:
        """Of the operands and the hidden state."""
        return self.graph.dtype(require(self.inputs, 0))

    @property
    def computed(self) -> DType:
        """Of gates and of the cells' memory."""
        return types.compute_type(self.dtype)

    @property
    def batch_first(self) -> bool:
        return bool(self.node.attribute("layout", 0))

    @property
    def gates(self) -> int:
        return _GATES[self.node.op_type]

    @property
    def order(self) -> Sequence[int]:
        """Where the parameters have each gate: an attribute of ours, for those that are kept in another order."""
        return list(self.node.attribute("gate_order") or range(self.gates))

    @property
    def projection_of_states(self) -> str | None:
        """[width, hidden] of an LSTM whose hidden state is a product (Sak et al., 2014): an operand of ours."""
        return self.parameter(_PROJECTION)

    @property
    def hidden(self) -> Dim:
        """Elements of a gate."""
        projected = values.at(self.inputs, _PROJECTION)
        return self.width if projected is None else self.graph.shape(projected)[-1]

    @property
    def width(self) -> Dim:
        """Elements of the hidden state."""
        return self.graph.shape(require(self.inputs, 2))[-1]

    @property
    def x(self) -> str:
        """The input as [time, batch, size]."""
        x = require(self.inputs, 0)
        return self.b.transpose(x, [1, 0, 2]) if self.batch_first else x

    @property
    def steps(self) -> Dim:
        return self.graph.shape(require(self.inputs, 0))[1 if self.batch_first else 0]

    @property
    def batch(self) -> Dim:
        return self.graph.shape(require(self.inputs, 0))[0 if self.batch_first else 1]

    @property
    def direction(self) -> int:
        """The axis of a state that counts directions."""
        return 1 if self.batch_first else 0

    def state_shape(self, position: int) -> list[Dim]:
        width = self.hidden if position == _MEMORY else self.width
        return [self.batch, 1, width] if self.batch_first else [1, self.batch, width]

    def parameter(self, position: int, start: Any = 0, count: Any = None) -> str | None:
        """Rows ``start`` to ``start + count`` of this direction's part of an input; None when it is absent."""
        name = values.at(self.inputs, position)
        if name is None:
            return None
        extent = self.graph.shape(name)[1]
        own = self.b.slice(
            name, [self.which, start], [self.which + 1, extent if count is None else dim(start + count)], axes=[0, 1]
        )
        return self.b.squeeze(own, [0])

    def initial(self, position: int) -> str:
        """The state before the first step, zero when none is given, and for sequences of no steps."""
        name, lengths = values.at(self.inputs, position), values.at(self.inputs, 4)
        dtype = self.computed if position == _MEMORY else self.dtype
        if name is None or self.steps == 0:
            return self.b.full(self.state_shape(position), 0, dtype)
        own = self.b.slice(name, [self.which], [self.which + 1], axes=[self.direction])
        own = own if self.graph.dtype(own) == dtype else self.b.cast(own, dtype)
        if lengths is None:
            return own
        count = self.b.reshape(lengths, self.per_sequence)

        def begin(h: sympy.Expr, n: sympy.Expr) -> sympy.Expr:
            return scalar.select(scalar.gt(n, 0), h, 0)

        return self.b.elementwise(begin, own, count, dtype=dtype, label="initial")

    def like(self, name: str, dtype: DType) -> str:
        """The array ``name`` where it has this type, else one of its shape that does."""
        graph = self.graph
        return name if graph.dtype(name) == dtype else graph.add_array("wide", graph.shape(name), dtype)

    @property
    def per_sequence(self) -> tuple[Dim, ...]:
        """The shape in which one number per sequence broadcasts to a state."""
        return (self.batch, 1, 1) if self.batch_first else (1, self.batch, 1)

    def bias(self, recurrent_gates: int) -> str | None:
        """The input's bias plus the recurrent one of the first ``recurrent_gates`` gates in it."""
        size, split = dim(self.gates * self.hidden), dim(recurrent_gates * self.hidden)
        if values.at(self.inputs, 3) is None:
            return None
        both = self.graph.add_array("bias", (size,), self.computed)
        mine, theirs = str(self.parameter(3, 0, size)), str(self.parameter(3, size, size))

        def total(i: tuple[sympy.Symbol, ...], w: sympy.Expr, r: sympy.Expr) -> sympy.Expr:
            return w + (r if split == size else scalar.select(scalar.lt(i[0], split), r, 0))

        reads = {"w": (mine, lambda *i: i), "r": (theirs, lambda *i: i)}
        self.b.map((size,), reads, {"out": (both, lambda *i: i)}, total, label="bias")
        return both

    def projection(self, recurrent_gates: int) -> str:
        """[time, batch, gates * hidden]: the products of all time steps with the input's weights, biased."""
        b, graph = self.b, self.graph
        steps, batch, size = graph.shape(self.x)
        rows, columns = dim(steps * batch), dim(self.gates * self.hidden)
        operands = {"A": b.reshape(self.x, (rows, size)), "B": b.transpose(str(self.parameter(1)), [1, 0])}
        bias = self.bias(recurrent_gates)
        if bias is not None:
            operands["Bias"] = bias
        y = graph.add_array("projection", (rows, columns), self.computed)
        b.library(Contraction, operands, {"Y": y})
        return b.reshape(y, (steps, batch, columns))


class _Step:
    """The body of a layer's loop."""

    def __init__(self, layer: _Layer, recurrent_gates: int):
        self.layer = layer
        self.loop = LoopBuilder(layer.graph, layer.node.op_type.lower())
        self.b = self.loop.b
        t = self.loop.counter
        self.time = layer.steps - 1 - t if layer.reverse else t
        self.projected = self.loop.slice_of(layer.projection(recurrent_gates), 0, self.time)

    def carry(self, position: int) -> str:
        return self.loop.carry(self.layer.initial(position))

    def matrix(self, state: str) -> str:
        """A state as [batch, hidden]."""
        return self.b.squeeze(state, [self.layer.direction])

    def state(self, matrix: str) -> str:
        """[batch, hidden] in the shape of a state."""
        return self.b.unsqueeze(matrix, [self.layer.direction])

    def row(self, position: int, start: object, count: object) -> str | None:
        """A vector of parameters, for all rows of a batch."""
        name = self.layer.parameter(position, start, count)
        return None if name is None else self.loop.capture(name)

    def recurrent(self, state: str, first: int, count: int, plus: str | None) -> str:
        """``state @ R.T (+ plus)`` for ``count`` gates from number ``first`` as R has them: [batch, count * hidden]."""
        size = self.layer.hidden
        weights = self.loop.capture(str(self.layer.parameter(2, first * size, count * size)))
        operands = {"A": self.matrix(state), "B": self.b.transpose(weights, [1, 0])}
        if plus is not None:
            operands["C"] = plus
        y = self.b.graph.add_array("gates", (self.layer.batch, dim(count * size)), self.layer.computed)
        self.b.library(Contraction, operands, {"Y": y})
        return y

    def gate(self, gates: str, k: int) -> str:
        """Gate number ``k`` of [batch, gates * hidden], as a state."""
        return self.state(self.columns(gates, self.layer.order[k], 1))

    def columns(self, gates: str, first: int, count: int) -> str:
        """``count`` gates as the parameters have them, from number ``first``, as a matrix."""
        size = self.layer.hidden
        return self.b.slice(gates, [first * size], [(first + count) * size], axes=[1])

    def finish(
        self, cell: Callable[..., tuple[sympy.Expr, ...]], states: list[str], operands: list[str | None], outputs: Names
    ) -> None:
        """``cell(*states, *operands)`` gives the next states, the hidden one first; None operands stay None.

        ``outputs``: Y, then the last states. Past the end of a sequence states stay, and Y is zero.
        """
        layer = self.layer
        dtypes = [self.b.graph.dtype(state) for state in states]
        present = [n for n in operands if n is not None]
        lengths = values.at(layer.inputs, 4)
        mask = [] if lengths is None else [self.b.reshape(self.loop.capture(lengths), layer.per_sequence)]

        def step(*symbols: sympy.Expr) -> tuple[sympy.Expr, ...]:
            old, rest = symbols[: len(states)], iter(symbols[len(states) :])
            values = [None if n is None else next(rest) for n in operands]
            new = cell(*old, *values)
            if not mask:
                return (*new, *new[: 1 if outputs[0] else 0])
            running = scalar.lt(self.time, scalar.cast(next(rest), dace.int64))
            selected = [scalar.select(running, n, o) for n, o in zip(new, old)]
            return (*selected, *([scalar.select(running, new[0], 0)] if outputs[0] else []))

        dtypes += dtypes[:1] if outputs[0] else []
        results = self.b.elementwise(step, *states, *present, *mask, dtype=dtypes, label=layer.node.op_type.lower())
        stacked = []
        if outputs[0]:
            stacked = [(results[-1], outputs[0], 1 if layer.batch_first else 0, layer.reverse)]
        self._close(results[: len(states)], outputs[1:], stacked)

    def project(
        self, cell: Callable[..., tuple[sympy.Expr, ...]], c: str, operands: list[str | None], outputs: Names
    ) -> None:
        """``finish`` for an LSTM whose hidden state is a product of what the cell gives."""
        layer = self.layer
        present = [n for n in operands if n is not None]

        def step(old: sympy.Expr, *symbols: sympy.Expr) -> tuple[sympy.Expr, ...]:
            rest = iter(symbols)
            return cell(0, old, *(None if n is None else next(rest) for n in operands))

        out, new = self.b.elementwise(step, c, *present, dtype=[layer.dtype, layer.computed], label="lstm")
        weights = self.b.transpose(self.loop.capture(str(layer.projection_of_states)), [1, 0])
        h = self.b.graph.add_array("projected", (layer.batch, layer.width), layer.dtype)
        self.b.library(Contraction, {"A": self.matrix(out), "B": weights}, {"Y": h})
        state = self.state(h)
        stacked = [(state, outputs[0], 1 if layer.batch_first else 0, layer.reverse)] if outputs[0] else []
        self._close([state, new], outputs[1:], stacked)

    def _close(self, states: Sequence[str], finals: Names, stacked: Sequence[tuple[str, str, int, bool]]) -> None:
        """End the loop; the last memory is rounded to what its output has."""
        layer, body = self.layer, self.b.graph
        wide = [None if n is None else layer.like(n, body.dtype(s)) for n, s in zip(finals, states, strict=True)]
        self.loop.finish(states, wide, stacked, trips=layer.steps)
        for last, out in zip(wide, finals, strict=True):
            if last is not None and last != out:
                layer.b.cast(last, layer.graph.dtype(str(out)), out=out)


def _rnn(layer: _Layer, outputs: Names) -> None:
    """H' = f(X W + H R + b)."""
    step = _Step(layer, 1)
    h = step.carry(5)
    gates = step.recurrent(h, 0, 1, step.projected)
    (f,) = layer.functions
    step.finish(lambda h, a: (f(a),), [h], [step.gate(gates, 0)], outputs)


def _lstm(layer: _Layer, outputs: Names) -> None:
    """Gates in the order input, output, forget, cell; peepholes look at the cell from input, output, forget."""
    step, size = _Step(layer, 4), layer.hidden
    h, c = step.carry(5), step.carry(6)
    gates = step.recurrent(h, 0, 4, step.projected)
    peepholes = [step.row(7, k * size, size) for k in range(3)]
    f, g, last = layer.functions
    coupled = bool(layer.node.attribute("input_forget", 0))

    def cell(
        h: sympy.Expr,
        c: sympy.Expr,
        i: sympy.Expr,
        o: sympy.Expr,
        forget: sympy.Expr,
        new: sympy.Expr,
        *p: sympy.Expr,
    ) -> tuple[sympy.Expr, ...]:
        pi, po, pf = (0 if v is None else v for v in p)
        opened = f(i + pi * c)
        retained = 1 - opened if coupled else f(forget + pf * c)
        state = retained * c + opened * g(new)
        return f(o + po * state) * last(state), state

    operands = [*(step.gate(gates, k) for k in range(4)), *peepholes]
    if layer.projection_of_states is None:
        step.finish(cell, [h, c], operands, outputs)
    else:
        step.project(cell, c, operands, outputs)


def _gru(layer: _Layer, outputs: Names) -> None:
    """Gates in the order update, reset, hidden. The reset gate scales the state, or (``linear_before_reset``) its
    product with the weights."""
    size, before = layer.hidden, bool(layer.node.attribute("linear_before_reset", 0))
    step = _Step(layer, 2 if before else 3)
    h = step.carry(5)
    f, g = layer.functions
    if before:
        own = step.recurrent(h, 0, 3, None)
        bias = step.row(3, 5 * size, size)

        def linear(
            h: sympy.Expr,
            z: sympy.Expr,
            r: sympy.Expr,
            n: sympy.Expr,
            hz: sympy.Expr,
            hr: sympy.Expr,
            hn: sympy.Expr,
            b: sympy.Expr | None,
        ) -> tuple[sympy.Expr, ...]:
            update, reset = f(z + hz), f(r + hr)
            return ((1 - update) * g(n + reset * (hn + (0 if b is None else b))) + update * h,)

        operands = [step.gate(gates, k) for gates in (step.projected, own) for k in range(3)]
        step.finish(linear, [h], [*operands, bias], outputs)
        return
    gates = step.recurrent(h, 0, 2, step.columns(step.projected, 0, 2))
    scaled = step.b.elementwise(lambda h, r: h * f(r), h, step.gate(gates, 1), dtype=layer.dtype, label="reset")
    hidden = step.recurrent(scaled, 2, 1, step.columns(step.projected, 2, 1))

    def cell(h: sympy.Expr, z: sympy.Expr, n: sympy.Expr) -> tuple[sympy.Expr, ...]:
        update = f(z)
        return ((1 - update) * g(n) + update * h,)

    step.finish(cell, [h], [step.gate(gates, 0), step.state(hidden)], outputs)


_CELLS = {"RNN": _rnn, "GRU": _gru, "LSTM": _lstm}


@lowering("RNN", "GRU", "LSTM", types=FLOATS, factors=True)
def recurrent(b: Builder, node: Operator, inputs: Names, outputs: Names) -> None:
    """One loop per direction; two directions are joined afterwards."""
    results: Names = [*outputs, *[None] * (3 - len(outputs))][: 3 if node.op_type == "LSTM" else 2]
    directions = DIRECTIONS[node.attribute("direction")]
    own, each = functions(node), len(DEFAULT[node.op_type])
    parts: list[Names] = []
    for which, reverse in enumerate(directions):
        layer = _Layer(b, node, inputs, which, reverse, own[which * each :][:each])
        parts.append(results if len(directions) == 1 else [_half(b.graph, layer, n) for n in results])
        _CELLS[node.op_type](layer, parts[-1])
    if len(directions) > 1:
        for k, out in enumerate(results):
            if out is not None:
                axis = len(b.graph.shape(out)) - (2 if node.attribute("layout", 0) else 3)
                b.graph.add_operator("Concat", [p[k] for p in parts], [out], {"axis": axis})


def _half(graph: Graph, layer: _Layer, name: str | None) -> str | None:
    """An array like the output ``name``, for one direction."""
    if name is None:
        return None
    shape = list(graph.shape(name))
    shape[len(shape) - (2 if layer.batch_first else 3)] = 1
    return graph.add_array("direction", shape, graph.dtype(name))


@supports("RNN", "GRU", "LSTM")
def why_not_recurrent(graph: Graph, node: Operator) -> str | None:
    inputs = graph.inputs_of(node)
    if node.attribute("direction") not in DIRECTIONS:
        return f"direction {node.attribute('direction')!r}; expected one of {', '.join(DIRECTIONS)}"
    names, count = list(node.attribute("activations") or ()), len(activation_names(node))
    if names and len(names) < count:
        return f"{len(names)} activations; expected {count}"
    unknown = [n for n in activation_names(node) if n.lower() not in ACTIVATIONS]
    if unknown:
        return f"activation {unknown[0]!r}; expected one of {', '.join(ACTIVATIONS)}"
    clip = node.attribute("clip")
    if clip is not None and not clip > 0:
        return f"clip {clip}; expected a positive bound"
    order = node.attribute("gate_order")
    if order is not None and not _is_order(node, list(order)):
        return f"gate_order {list(order)}: no permutation of gates, or one that takes the hidden gate from the end"
    return _why_misshapen(graph, node, inputs)


def _is_order(node: Operator, order: list[int]) -> bool:
    """May the parameters have their gates in this order? A GRU has the hidden one last, whose bias stands apart."""
    is_last = node.op_type != "GRU" or order[-1:] == [2]
    return sorted(order) == list(range(_GATES[node.op_type])) and is_last


def _why_misshapen(graph: Graph, node: Operator, inputs: Names) -> str | None:
    """The loop addresses parameters by these shapes, so they are checked and not believed."""
    directions, gates = len(DIRECTIONS[node.attribute("direction")]), _GATES[node.op_type]
    if any(len(graph.shape(n)) != 3 for n in all_required(inputs, 3)):
        return "X, W and R must have three dimensions"
    if values.at(inputs, _PROJECTION) is not None and (node.op_type != "LSTM" or values.at(inputs, 4) is not None):
        return "projected states of an operator other than LSTM, or of sequences with lengths of their own"
    steps, batch, size = graph.shape(require(inputs, 0))
    if node.attribute("layout", 0):
        steps, batch = batch, steps
    projected, width = values.at(inputs, _PROJECTION), graph.shape(require(inputs, 2))[2]
    hidden = width if projected is None else graph.shape(projected)[-1]
    state, memory = (
        (batch, directions, n) if node.attribute("layout", 0) else (directions, batch, n) for n in (width, hidden)
    )
    expected = [
        None, (directions, gates * hidden, size), (directions, gates * hidden, width),
        (directions, 2 * gates * hidden), (batch,), state, memory, (directions, 3 * hidden),
        (directions, width, hidden),
    ]  # fmt: skip
    for name, conn, shape in zip(inputs, node.input_connectors, expected):
        if name is not None and shape is not None and graph.shape(name) != tuple(dim(e) for e in shape):
            return f"{conn} has shape {graph.shape(name)}, expected {shape}"
    shapes = {"Y": _y_shape(node, steps, state), "Y_c": memory}
    for name, conn in zip(graph.outputs_of(node), node.output_connectors):
        shape = shapes.get(conn, state)
        if name is not None and graph.shape(name) != tuple(shape):
            return f"{conn} has shape {graph.shape(name)}, expected {tuple(shape)}"
    return None


def _y_shape(node: Operator, steps: Dim, state: Sequence[Dim]) -> tuple[Dim, ...]:
    return (state[0], steps, *state[1:]) if node.attribute("layout", 0) else (steps, *state)
