"""Gradients through loops, against PyTorch: recurrent operators, Scan and Loop."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import dace
import numpy as np
import onnx
import pytest
import sympy
import torch

from daceopt.autodiff import differentiate
from daceopt.capture.onnx.importer import import_model
from daceopt.errors import Unsupported
from daceopt.ir.control.region import Repeat, regions
from daceopt.ir.control.region_builder import ChoiceBuilder, LoopBuilder
from daceopt.ir.nodes.builder import Builder
from daceopt.ir.nodes.library import Contraction
from daceopt.ir.scalar import scalar
from tests.autodiff.checking import check

STEPS, BATCH, SIZE, HIDDEN = 4, 3, 2, 5
STATE = (1, BATCH, HIDDEN)


def shapes(gates: int) -> list[tuple[int, ...]]:
    """X, W, R, B, initial_h."""
    rows = gates * HIDDEN
    return [(STEPS, BATCH, SIZE), (1, rows, SIZE), (1, rows, HIDDEN), (1, 2 * rows), STATE]


def operator(op_type: str, **attributes: Any) -> Callable[..., Any]:
    def build(b: Builder, x: str, w: str, r: str, bias: str, h: str, *rest: str) -> tuple[str, ...]:
        outputs = [b.graph.add_array("y", (STEPS, *STATE), dace.float64), b.graph.add_array("h", STATE, dace.float64)]
        outputs += [b.graph.add_array("c", STATE, dace.float64)] if op_type == "LSTM" else []
        attributes["hidden_size"] = HIDDEN
        b.graph.add_operator(op_type, [x, w, r, bias, None, h, *rest], outputs, attributes)
        return tuple(outputs)

    return build


def unroll(cell: Callable[..., Any], x: Any, states: list[Any], reverse: bool = False) -> tuple[Any, ...]:
    """Y and the last states; ``cell(x[t], *states)`` gives the next ones."""
    steps = []
    states = [s[0] for s in states]
    for t in reversed(range(STEPS)) if reverse else range(STEPS):
        states = list(cell(x[t], *states))
        steps.append(states[0])
    return torch.stack(steps[::-1] if reverse else steps)[:, None], *(s[None] for s in states)


@pytest.mark.parametrize("reverse", [False, True])
def test_lstm_with_peepholes(reverse: bool) -> None:
    def reference(x: Any, w: Any, r: Any, b: Any, h: Any, c: Any, p: Any) -> tuple[Any, ...]:
        bias, (pi, po, pf) = b[0, : 4 * HIDDEN] + b[0, 4 * HIDDEN :], p[0].split(HIDDEN)

        def cell(x: Any, h: Any, c: Any) -> tuple[Any, ...]:
            i, o, f, n = (x @ w[0].T + h @ r[0].T + bias).split(HIDDEN, -1)
            new = torch.sigmoid(f + pf * c) * c + torch.sigmoid(i + pi * c) * torch.tanh(n)
            return torch.sigmoid(o + po * new) * torch.tanh(new), new

        return unroll(cell, x, [h, c], reverse)

    direction = "reverse" if reverse else "forward"
    check(operator("LSTM", direction=direction), reference, *shapes(4), STATE, (1, 3 * HIDDEN))


@pytest.mark.parametrize("before", [0, 1])
def test_gru(before: int) -> None:
    def reference(x: Any, w: Any, r: Any, b: Any, h: Any) -> tuple[Any, ...]:
        wb, rb = b[0].split(3 * HIDDEN)

        def cell(x: Any, h: Any) -> tuple[Any, ...]:
            z, s, n = (x @ w[0].T + wb).split(HIDDEN, -1)
            rz, rs, rn = r[0].split(HIDDEN)
            bz, bs, bn = rb.split(HIDDEN)
            z, s = torch.sigmoid(z + h @ rz.T + bz), torch.sigmoid(s + h @ rs.T + bs)
            n = torch.tanh(n + (s * (h @ rn.T + bn) if before else (s * h) @ rn.T + bn))
            return ((1 - z) * n + z * h,)

        return unroll(cell, x, [h])

    check(operator("GRU", linear_before_reset=before), reference, *shapes(3))


def test_rnn_with_lengths() -> None:
    lengths = np.array([4, 1, 2])

    def build(b: Builder, x: str, w: str, r: str, bias: str, h: str, n: str) -> tuple[str, ...]:
        y, last = b.graph.add_array("y", (STEPS, *STATE), dace.float64), b.graph.add_array("h", STATE, dace.float64)
        count = b.cast(n, dace.int32)
        b.graph.add_operator("RNN", [x, w, r, bias, count, h], [y, last], {"hidden_size": HIDDEN})
        return y, last

    def reference(x: Any, w: Any, r: Any, b: Any, h: Any, n: Any) -> tuple[Any, ...]:
        bias, state, steps = b[0, :HIDDEN] + b[0, HIDDEN:], h[0], []
        for t in range(STEPS):
            running = (t < n)[:, None]
            state = torch.where(running, torch.tanh(x[t] @ w[0].T + state @ r[0].T + bias), state)
            steps.append(torch.where(running, state, 0.0))
        return torch.stack(steps)[:, None], state[None]

    rng = np.random.default_rng(3)
    check(build, reference, values=[rng.standard_normal(s) for s in shapes(1)], integers=[lengths])


VIEWS: dict[str, Callable[[Builder, str], str]] = {
    "itself": lambda b, w: w,
    "transposed": lambda b, w: b.transpose(w, [1, 0]),
    "a part": lambda b, w: b.slice(w, [0], [HIDDEN], axes=[0]),
    "one row for all": lambda b, w: b.expand(b.slice(w, [1], [2], axes=[0]), (HIDDEN, HIDDEN)),
}


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize(("rows", "left"), [(2, False), (9, False), (HIDDEN, True)])
def test_a_factor_that_all_iterations_share(view: str, rows: int, left: bool) -> None:
    """Products of few rows are one behind the loop, of many they are summed; no product is computed again."""
    is_square = view in ("itself", "transposed")

    def build(b: Builder, h: str, w: str) -> str:
        loop = LoopBuilder(b.graph, "loop")
        state = loop.carry(h)
        factor = VIEWS[view](loop.b, loop.capture(w))
        product = loop.b.matmul(factor, state) if left else loop.b.matmul(state, factor)
        final = b.graph.add_array("final", (rows, HIDDEN), dace.float64)
        loop.finish([loop.b.elementwise(sympy.tanh, product)], [final], trips=STEPS)
        return final

    def reference(h: Any, w: Any) -> Any:
        factor = {"itself": w, "transposed": w.T, "a part": w[:HIDDEN]}.get(view)
        factor = w[1:2].expand(HIDDEN, HIDDEN) if factor is None else factor
        for _ in range(STEPS):
            h = torch.tanh(factor @ h if left else h @ factor)
        return h

    weights = (HIDDEN if is_square else HIDDEN + 1, HIDDEN)
    rng = np.random.default_rng(1)
    values = [rng.standard_normal((rows, HIDDEN)), 0.4 * rng.standard_normal(weights)]
    for derivative in check(build, reference, values=values):
        (loop,) = regions(derivative.backward)
        inside = sum(isinstance(n, Contraction) for n in loop.body.nodes())
        behind = sum(isinstance(n, Contraction) for n in derivative.backward.nodes())
        assert (inside, behind) == ((1, 1) if is_square and rows == 2 else (2, 0))


def test_a_stack_from_the_end_and_an_array_that_every_iteration_reads() -> None:
    def build(b: Builder, h: str, x: str, k: str) -> tuple[str, ...]:
        loop = LoopBuilder(b.graph, "loop")
        state, row, every = loop.carry(h), loop.slice_of(x, 1, 3 - loop.counter), loop.capture(k)
        new = loop.b.elementwise(lambda s, r, e: s * r + e, state, row, every)
        twice = loop.b.elementwise(lambda v: v * v, new)
        last, rows = b.graph.add_array("last", (3,), dace.float64), b.graph.add_array("rows", (3, 4), dace.float64)
        loop.finish([new], [last], [(twice, rows, 1, True)], trips=4)
        return last, rows

    def reference(h: Any, x: Any, k: Any) -> tuple[Any, ...]:
        rows: list[Any] = [None] * 4
        for t in range(4):
            h = h * x[:, 3 - t] + k
            rows[3 - t] = h * h
        return h, torch.stack(rows, 1)

    check(build, reference, (3,), (3, 4), (3,))


def test_nested_loops() -> None:
    def build(b: Builder, h: str, x: str) -> str:
        outer = LoopBuilder(b.graph, "outer")
        state, row = outer.carry(h), outer.slice_of(x, 0, outer.counter)
        inner = LoopBuilder(outer.graph, "inner")
        new = inner.b.elementwise(lambda s, r: s * r, inner.carry(state), inner.capture(row))
        after = outer.graph.add_array("after", (2,), dace.float64)
        inner.finish([new], [after], trips=3)
        last = b.graph.add_array("last", (2,), dace.float64)
        outer.finish([after], [last], trips=2)
        return last

    check(build, lambda h, x: h * (x[0] * x[1]) ** 3, (2,), (2, 2))


@pytest.mark.parametrize("taken", [True, False])
def test_a_choice_has_the_gradient_of_its_branch(taken: bool) -> None:
    def build(b: Builder, x: str, y: str, n: str) -> str:
        condition = b.elementwise(lambda v: scalar.gt(v, 0), n, dtype=dace.bool_)
        choice = ChoiceBuilder(b.graph, "choice", condition)
        then, otherwise = choice.bodies
        then.declare_outputs([then.b.elementwise(lambda p, q: p * q * q, then.capture(x), then.capture(y))])
        otherwise.declare_outputs([otherwise.b.elementwise(lambda p: p * p, otherwise.capture(x))])
        out = b.graph.add_array("out", (3,), dace.float64)
        choice.finish([out])
        return out

    rng = np.random.default_rng(5)
    values = [rng.standard_normal(3) for _ in range(2)]
    check(build, lambda x, y, n: x * y * y if taken else x * x + 0 * y, values=values, integers=[np.array(int(taken))])


def test_the_backward_loop_reads_slices_and_sums_weights() -> None:
    (derivative, _) = check(operator("RNN"), _rnn, *shapes(1))
    (node,) = regions(derivative.backward)
    assert isinstance(node, Repeat) and node.descending
    assert len(node.stacked) == 1 and len(node.carried) == 2  # the projection; the state and R


@pytest.mark.parametrize("reverse", [False, True])
def test_factors_of_weight_gradients_are_stacked_once(reverse: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of few rows; what the loop leaves for slices anyway, or reads of the forward loop, stands there already."""
    for name, value in {"BATCH": 2, "HIDDEN": 12, "STATE": (1, 2, 12)}.items():
        monkeypatch.setitem(globals(), name, value)

    def reference(x: Any, w: Any, r: Any, b: Any, h: Any, c: Any) -> tuple[Any, ...]:
        bias = b[0, : 4 * HIDDEN] + b[0, 4 * HIDDEN :]

        def cell(x: Any, h: Any, c: Any) -> tuple[Any, ...]:
            i, o, f, g = (x @ w[0].T + h @ r[0].T + bias).split(HIDDEN, -1)
            c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
            return torch.sigmoid(o) * torch.tanh(c), c

        return unroll(cell, x, [h, c], reverse)

    build = operator("LSTM", direction="reverse" if reverse else "forward")
    (derivative, _) = check(build, reference, *shapes(4), STATE)
    (node,) = regions(derivative.backward)
    assert isinstance(node, Repeat) and len(node.carried) == 2
    # the gradient of the projection; where its order is not that of the states, these or that once more
    assert len(node.stacked) == (2 if reverse else 1)


def _rnn(x: Any, w: Any, r: Any, b: Any, h: Any) -> tuple[Any, ...]:
    bias = b[0, :HIDDEN] + b[0, HIDDEN:]
    return unroll(lambda x, h: (torch.tanh(x @ w[0].T + h @ r[0].T + bias),), x, [h])


def test_a_loop_of_unknown_length_has_no_gradient() -> None:
    text = """<ir_version: 8, opset_import: ["" : 18]> agraph (int64 n, float[2] x) => (float[2] y) {
        y = Loop (n, , x) <body = b (int64 i, bool go, float[2] v) => (bool go2, float[2] w) {
            go2 = Identity (go)  w = Mul (v, v) }> }"""
    graph = import_model(onnx.shape_inference.infer_shapes(onnx.parser.parse_model(text)))
    with pytest.raises(Unsupported, match="loop has no gradient: its number of iterations"):
        differentiate(graph, graph.outputs, graph.inputs[1:])
