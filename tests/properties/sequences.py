"""Recurrent operators, loops, attention."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st
from onnx import GraphProto, TensorProto, helper

from tests.properties.cases import Case, Draw, array, axis_of, shapes

SIDE = st.integers(1, 4)
_GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
_FUNCTIONS = {"RNN": 1, "GRU": 2, "LSTM": 3}
_PLAIN = ("Relu", "Tanh", "Sigmoid", "Softsign", "Softplus")


@st.composite
def recurrent(draw: Draw) -> Case:
    op, direction = (
        draw(st.sampled_from(sorted(_GATES))),
        draw(st.sampled_from(["forward", "reverse", "bidirectional"])),
    )
    steps, batch, size, hidden = (draw(SIDE) for _ in range(4))
    count, rows = 1 + (direction == "bidirectional"), _GATES[op] * hidden
    inputs: list[np.ndarray | None] = [array(draw, (steps, batch, size), "float32", -1, 1)]
    inputs += [array(draw, (count, rows, n), "float32", -0.5, 0.5) for n in (size, hidden)]
    optional = [(count, 2 * rows), None, (count, batch, hidden)]
    optional += [(count, batch, hidden), (count, 3 * hidden)] if op == "LSTM" else []
    for shape in optional:
        if not draw(st.booleans()):
            inputs.append(None)
        elif shape is None:
            lengths = np.asarray([draw(st.integers(1, steps)) for _ in range(batch)], np.int32)
            inputs.append(lengths)
        else:
            inputs.append(array(draw, shape, "float32", -1, 1))
    attributes: dict[str, Any] = {"direction": direction, "hidden_size": hidden}
    if draw(st.booleans()):
        attributes["activations"] = [draw(st.sampled_from(_PLAIN)) for _ in range(count * _FUNCTIONS[op])]
    if draw(st.booleans()):
        attributes["clip"] = draw(st.sampled_from([0.5, 2.0]))
    flag = {"GRU": "linear_before_reset", "LSTM": "input_forget"}.get(op)
    attributes |= {flag: draw(st.integers(0, 1))} if flag else {}
    return Case(op, inputs, attributes, outputs=3 if op == "LSTM" else 2)


@st.composite
def reverse_sequence(draw: Draw) -> Case:
    batch_axis = draw(st.integers(0, 1))
    x = array(draw, (draw(SIDE), draw(SIDE), *draw(shapes(0, 2))), draw(st.sampled_from(["float32", "int64", "bool"])))
    lengths = [draw(st.integers(1, x.shape[1 - batch_axis])) for _ in range(x.shape[batch_axis])]
    axes = {"batch_axis": batch_axis, "time_axis": 1 - batch_axis}
    return Case("ReverseSequence", [x, np.asarray(lengths, np.int64)], axes)


_STEP = ("Add", "Mul", "Max", "Sub")


@st.composite
def loop(draw: Draw) -> Case:
    """A state, and what it was at each step; the condition may end the loop at once."""
    op, shape, trips = draw(st.sampled_from(_STEP)), draw(shapes(0, 2)), draw(st.integers(0, 4))
    x = array(draw, shape, "float32", -1, 1)

    def body(kind: int) -> GraphProto:
        nodes = [helper.make_node("Identity", ["go"], ["on"]), helper.make_node("Cast", ["k"], ["t"], to=kind)]
        nodes += [helper.make_node(op, ["s", "t"], ["next"]), helper.make_node("Tanh", ["next"], ["seen"])]
        values = [helper.make_tensor_value_info("k", TensorProto.INT64, []), _flag("go")]
        states = [helper.make_tensor_value_info(n, kind, shape) for n in ("s", "next", "seen")]
        return helper.make_graph(nodes, "body", [*values, states[0]], [_flag("on"), *states[1:]])

    go = None if draw(st.booleans()) else np.asarray(trips > 1 or draw(st.booleans()))
    runs = trips if go is None or go else 0
    inputs: list[np.ndarray | None] = [np.asarray(trips), go, x]
    return Case("Loop", inputs, {"body": body}, 2, (0, 1) if go is not None else (0,), declared=(shape, (runs, *shape)))


def _flag(name: str) -> Any:
    return helper.make_tensor_value_info(name, TensorProto.BOOL, [])


@st.composite
def scan(draw: Draw) -> Case:
    """A running combination along any axis of a second input, in any direction."""
    op, shape = draw(st.sampled_from(_STEP)), draw(shapes(0, 2, empty=False))
    steps, axis = draw(SIDE), draw(st.integers(0, len(shape)))
    state = array(draw, shape, "float32", -1, 1)
    sequence = array(draw, (*shape[:axis], steps, *shape[axis:]), "float32", -1, 1)

    def body(kind: int) -> GraphProto:
        nodes = [helper.make_node(op, ["s", "x"], ["next"]), helper.make_node("Tanh", ["next"], ["seen"])]
        s, x, after, seen = (helper.make_tensor_value_info(n, kind, shape) for n in ("s", "x", "next", "seen"))
        return helper.make_graph(nodes, "body", [s, x], [after, seen])

    place = draw(st.integers(0, len(shape)))
    attributes: dict[str, Any] = {"body": body, "num_scan_inputs": 1, "scan_input_axes": [axis]}
    attributes |= {"scan_output_axes": [place], "scan_input_directions": [draw(st.integers(0, 1))]}
    attributes["scan_output_directions"] = [draw(st.integers(0, 1))]
    return Case("Scan", [state, sequence], attributes, 2)


@st.composite
def attention(draw: Draw) -> Case:
    batch, heads, queries, keys, size = (draw(SIDE) for _ in range(5))
    group = draw(st.integers(1, 2))
    q = array(draw, (batch, heads * group, queries, size), "float32", -2, 2)
    k, v = (array(draw, (batch, heads, keys, n), "float32", -2, 2) for n in (size, draw(SIDE)))
    inputs: list[np.ndarray | None] = [q, k, v]
    if draw(st.booleans()):
        shape = draw(st.sampled_from([(queries, keys), (1, 1, queries, keys), (batch, 1, queries, keys)]))
        mask = array(draw, shape, draw(st.sampled_from(["float32", "bool"])))
        if mask.dtype == bool:
            mask[..., 0] = True  # a row that sees nothing has no defined result
        inputs.append(mask)
    attributes: dict[str, Any] = {"is_causal": draw(st.integers(0, 1))}
    if draw(st.booleans()):
        attributes["scale"] = 0.25
    if draw(st.booleans()):
        attributes["softcap"] = 2.0
    return Case("Attention", inputs, attributes, opset=23)


@st.composite
def attention_of_rows(draw: Draw) -> Case:
    """Heads beside each other in the last axis, and keys of earlier calls."""
    batch, heads, queries, keys, past = (draw(SIDE) for _ in range(5))
    size, group = draw(st.integers(1, 3)), draw(st.integers(1, 2))
    q = array(draw, (batch, queries, heads * group * size), "float32", -2, 2)
    k, v = (array(draw, (batch, keys, heads * size), "float32", -2, 2) for _ in range(2))
    attributes = {"q_num_heads": heads * group, "kv_num_heads": heads, "is_causal": draw(st.integers(0, 1))}
    inputs: list[np.ndarray | None] = [q, k, v]
    if not draw(st.booleans()):
        return Case("Attention", inputs, attributes, opset=23)
    inputs += [None, *(array(draw, (batch, heads, past, size), "float32", -2, 2) for _ in range(2))]
    return Case("Attention", inputs, attributes, 3, opset=23)


@st.composite
def rotary_embedding(draw: Draw) -> Case:
    batch, heads, steps, half, most = draw(SIDE), draw(SIDE), draw(SIDE), draw(st.integers(1, 3)), 7
    rows = draw(st.booleans())
    x = array(draw, (batch, steps, heads * half * 2) if rows else (batch, heads, steps, half * 2), "float32")
    attributes = {"interleaved": draw(st.integers(0, 1)), **({"num_heads": heads} if rows else {})}
    placed = draw(st.booleans())
    tables = [array(draw, (most, half) if placed else (batch, steps, half), "float32", -1, 1) for _ in range(2)]
    inputs: list[np.ndarray | None] = [x, *tables]
    if placed:
        inputs.append(array(draw, (batch, steps), "int64", 0, (most - 1) / 5))
    return Case("RotaryEmbedding", inputs, attributes, opset=23)


@st.composite
def tensor_scatter(draw: Draw) -> Case:
    batch, heads, room, size = (draw(SIDE) for _ in range(4))
    count = draw(st.integers(1, room))
    mode = draw(st.sampled_from(["linear", "circular"]))
    cache, update = (array(draw, (batch, heads, n, size), "float32") for n in (room, count))
    last = room - count if mode == "linear" else room - 1
    start = np.asarray([draw(st.integers(0, last)) for _ in range(batch)])
    return Case(
        "TensorScatter", [cache, update, start], {"mode": mode, "axis": draw(st.sampled_from([2, -2]))}, opset=24
    )


@st.composite
def cumulative_product(draw: Draw) -> Case:
    x = array(draw, draw(shapes(1, 3, empty=False)), "float32", 0.5, 1.5)
    attributes = {"exclusive": draw(st.integers(0, 1)), "reverse": draw(st.integers(0, 1))}
    return Case("CumProd", [x, np.asarray(axis_of(draw, x.ndim))], attributes, constants=(1,), opset=26)
