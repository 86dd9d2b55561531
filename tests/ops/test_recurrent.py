"""RNN, GRU and LSTM against ONNX Runtime, over all of their attributes."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import dace
import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper

import daceopt
from daceopt import ops
from daceopt.capture.onnx.file import load
from daceopt.capture.onnx.importer import import_model
from daceopt.errors import Unsupported
from daceopt.ir.control.region import Repeat, everything, regions
from daceopt.ir.interpreter.interpret import interpret
from daceopt.ir.nodes.library import Contraction
from daceopt.ir.scalar import types
from tests.numerics import assert_within_rounding

EXAMPLES = int(os.environ.get("DACEOPT_EXAMPLES", "25"))
GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
FUNCTIONS = {"RNN": 1, "GRU": 2, "LSTM": 3}
PARAMETERS = {  # of each activation: alpha, beta
    "Relu": 0, "Tanh": 0, "Sigmoid": 0, "Softsign": 0, "Softplus": 0, "Affine": 2, "LeakyRelu": 1, "ThresholdedRelu": 1,
    "ScaledTanh": 2, "HardSigmoid": 2, "Elu": 1,
}  # fmt: skip
ORDER = ("X", "W", "R", "B", "sequence_lens", "initial_h", "initial_c", "P")
KINDS = {"float32": TensorProto.FLOAT, "bfloat16": TensorProto.BFLOAT16, "int32": TensorProto.INT32}
Operands = dict[str, np.ndarray]


def operands(op_type: str, sizes: tuple[int, int, int, int], directions: int, seed: int) -> Operands:
    """All operands in layout 0; ``sizes``: time steps, batch, input size, hidden size."""
    steps, batch, size, hidden = sizes
    generator = np.random.default_rng(seed)
    gates = GATES[op_type] * hidden
    shapes = {
        "X": (steps, batch, size),
        "W": (directions, gates, size),
        "R": (directions, gates, hidden),
        "B": (directions, 2 * gates),
        "initial_h": (directions, batch, hidden),
    }
    if op_type == "LSTM":
        shapes |= {"initial_c": (directions, batch, hidden), "P": (directions, 3 * hidden)}
    found = {
        n: (generator.standard_normal(s) * (0.5 if n in "WR" else 1)).astype(np.float32) for n, s in shapes.items()
    }
    return found | {"sequence_lens": generator.integers(0, steps + 1, batch).astype(np.int32)}


def recurrent(op_type: str, given: Operands, outputs: list[str], **attributes: Any) -> onnx.ModelProto:
    """A model of one operator; an output called "" is left out."""
    order = [n if n in given else "" for n in ORDER[: 8 if op_type == "LSTM" else 6]]
    node = helper.make_node(op_type, order, outputs, hidden_size=given["R"].shape[2], **attributes)
    steps, batch, _ = given["X"].shape
    state: tuple[int, ...] = (given["W"].shape[0], batch, given["R"].shape[2])
    if attributes.get("layout"):
        steps, batch = batch, steps
        state = (batch, *state[::2])
    y = (batch, steps, *state[1:]) if attributes.get("layout") else (steps, *state)
    numbers = KINDS[given["X"].dtype.name]
    body = helper.make_graph(
        [node],
        "recurrent",
        [helper.make_tensor_value_info(n, KINDS[given[n].dtype.name], given[n].shape) for n in ORDER if n in given],
        [helper.make_tensor_value_info(n, numbers, y if n == "Y" else state) for n in outputs if n],
    )
    return helper.make_model(body, opset_imports=[helper.make_opsetid("", 22)], ir_version=10)


def feeds(given: Operands) -> list[np.ndarray]:
    return [given[n] for n in ORDER if n in given]


def onnx_runtime(proto: onnx.ModelProto, given: Operands) -> list[np.ndarray]:
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, given)


def check(proto: onnx.ModelProto, given: Operands) -> None:
    graph = import_model(load(proto))
    ops.lower_all(graph)
    graph.prune()
    graph.validate()
    named = dict(zip(graph.inputs, feeds(given), strict=True))
    exact, ours = interpret(graph, named, np.float64), interpret(graph, named)
    for name, peer in zip(graph.outputs, onnx_runtime(proto, given), strict=True):
        assert_within_rounding(ours[name], exact[name], peer)
        np.testing.assert_allclose(exact[name], peer, rtol=1e-4, atol=1e-5)


@st.composite
def configurations(draw: Callable[..., Any]) -> tuple[onnx.ModelProto, Operands]:
    op_type = draw(st.sampled_from(sorted(GATES)))
    direction = draw(st.sampled_from(["forward", "reverse", "bidirectional"]))
    directions = 2 if direction == "bidirectional" else 1
    sizes = draw(st.tuples(*[st.integers(1, 5)] * 4))
    every = operands(op_type, sizes, directions, draw(st.integers(0, 1000)))
    left_out = draw(st.sets(st.sampled_from(sorted(set(every) - {"X", "W", "R"}))))
    attributes: dict[str, Any] = {"direction": direction}
    if draw(st.booleans()):
        count = FUNCTIONS[op_type] * directions
        names = draw(st.lists(st.sampled_from(sorted(PARAMETERS)), min_size=count, max_size=count))
        value = st.floats(0.125, 1, width=32)
        attributes["activations"] = names
        for least, which in ((1, "activation_alpha"), (2, "activation_beta")):
            wanted = sum(PARAMETERS[n] >= least for n in names)
            if wanted and draw(st.booleans()):
                attributes[which] = draw(st.lists(value, min_size=wanted, max_size=wanted))
    if draw(st.booleans()):
        attributes["clip"] = draw(st.floats(0.25, 2, width=32))
    flag = {"GRU": "linear_before_reset", "LSTM": "input_forget"}.get(op_type)
    if flag is not None:
        attributes[flag] = draw(st.integers(0, 1))
    names = ["Y", "Y_h", "Y_c"][: 3 if op_type == "LSTM" else 2]
    absent = draw(st.sets(st.sampled_from(names), max_size=len(names) - 1))
    outputs = [n if n not in absent else "" for n in names]
    while not outputs[-1]:
        outputs.pop()
    given = {n: v for n, v in every.items() if n not in left_out}
    return recurrent(op_type, given, outputs, **attributes), given


@settings(max_examples=EXAMPLES)
@given(configurations())
def test_any_configuration(configuration: tuple[onnx.ModelProto, Operands]) -> None:
    check(*configuration)


@pytest.mark.parametrize("op_type", sorted(GATES))
def test_a_sequence_of_no_steps_ends_where_nothing_began(op_type: str) -> None:
    """In zeros; ONNX Runtime leaves the states of some such calls unset."""
    given = {n: v for n, v in operands(op_type, (0, 3, 5, 3), 1, 0).items() if n in ("X", "W", "R")}
    graph = import_model(load(recurrent(op_type, given, ["Y", "Y_h"])))
    ops.lower_all(graph)
    done = interpret(graph, dict(zip(graph.inputs, feeds(given), strict=True)))
    y, last = (done[n] for n in graph.outputs)
    assert y.shape == (0, 1, 3, 3) and last.shape == (1, 3, 3) and not last.any()


@pytest.mark.parametrize("op_type", sorted(GATES))
def test_products_of_bfloat16(op_type: str) -> None:
    """States are rounded once a step; nothing else is."""
    wide = operands(op_type, (6, 3, 5, 4), 2, 3)
    narrow = {n: v if v.dtype == np.int32 else v.astype(types.to_numpy(types.BFLOAT16)) for n, v in wide.items()}
    names = ["Y", "Y_h", "Y_c"][: 3 if op_type == "LSTM" else 2]
    found = []
    for values in (narrow, {n: narrow[n].astype(v.dtype) for n, v in wide.items()}):
        graph = import_model(load(recurrent(op_type, values, names, direction="bidirectional")))
        ops.lower_all(graph)
        products = [(g, n) for g in everything(graph) for n in g.nodes() if isinstance(n, Contraction)]
        assert {g.dtype(n.operands(g)["A"]) for g, n in products} == {
            types.BFLOAT16 if values is narrow else dace.float32
        }
        named = dict(zip(graph.inputs, feeds(values), strict=True))
        done = interpret(graph, named, None if values is narrow else np.float64)
        found.append([np.asarray(done[n], np.float64) for n in graph.outputs])
    for ours, exact in zip(*found, strict=True):
        assert np.abs(ours - exact).max() <= 6 * 2.0**-8 * np.abs(exact).max()


@pytest.mark.parametrize("op_type", sorted(GATES))
def test_compiled_in_both_directions(op_type: str) -> None:
    given = operands(op_type, (4, 3, 5, 6), 2, 1)
    names = ["Y", "Y_h", "Y_c"][: 3 if op_type == "LSTM" else 2]
    proto = recurrent(op_type, given, names, direction="bidirectional")
    results = daceopt.from_onnx(proto, fallback=False)(*feeds(given))
    for ours, peer in zip(results, onnx_runtime(proto, given), strict=True):
        np.testing.assert_allclose(np.asarray(ours), peer, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("op_type", sorted(GATES))
def test_batch_first_is_the_transposed_operator(op_type: str) -> None:
    given = operands(op_type, (4, 3, 5, 6), 2, 2)
    turned = {n: v.swapaxes(0, 1).copy() if n in ("X", "initial_h", "initial_c") else v for n, v in given.items()}
    names = ["Y", "Y_h", "Y_c"][: 3 if op_type == "LSTM" else 2]
    peers = onnx_runtime(recurrent(op_type, given, names, direction="bidirectional"), given)
    graph = import_model(load(recurrent(op_type, turned, names, direction="bidirectional", layout=1)))
    ops.lower_all(graph)
    done = interpret(graph, dict(zip(graph.inputs, feeds(turned), strict=True)))
    for name, peer in zip(graph.outputs, peers, strict=True):
        order = (2, 0, 1, 3) if peer.ndim == 4 else (1, 0, 2)
        np.testing.assert_allclose(done[name], peer.transpose(order), rtol=1e-4, atol=1e-5)


def test_a_step_is_one_product_and_one_kernel() -> None:
    given = {n: v for n, v in operands("LSTM", (4, 3, 5, 6), 1, 3).items() if n in "XWR"}
    graph = import_model(load(recurrent("LSTM", given, ["Y"])))
    ops.lower_all(graph)
    graph.prune()
    (node,) = regions(graph)
    assert isinstance(node, Repeat) and node.trips == 4
    assert [type(n).__name__ for n in node.body.nodes()] == ["Contraction", "KernelNode"]


def test_sizes_known_at_run_time_agree_with_torch() -> None:
    layer = torch.nn.LSTM(5, 6)
    order = [0, 3, 1, 2]  # torch has the gates input, forget, cell, output

    def gates(p: torch.Tensor) -> np.ndarray:
        parts = p.detach().numpy().reshape(4, 6, *p.shape[1:])
        return parts[order].reshape(1, *p.shape)

    w, r = gates(layer.weight_ih_l0), gates(layer.weight_hh_l0)
    b = np.concatenate([gates(layer.bias_ih_l0), gates(layer.bias_hh_l0)], 1)
    node = helper.make_node("LSTM", ["X", "W", "R", "B"], ["Y", "Y_h", "Y_c"], hidden_size=6)
    state = helper.make_tensor_value_info("Y_h", TensorProto.FLOAT, [1, "b", 6])
    last = helper.make_tensor_value_info("Y_c", TensorProto.FLOAT, [1, "b", 6])
    body = helper.make_graph(
        [node],
        "lstm",
        [helper.make_tensor_value_info("X", TensorProto.FLOAT, ["t", "b", 5])],
        [helper.make_tensor_value_info("Y", TensorProto.FLOAT, ["t", 1, "b", 6]), state, last],
        [onnx.numpy_helper.from_array(v, n) for n, v in (("W", w), ("R", r), ("B", b))],
    )
    proto = helper.make_model(body, opset_imports=[helper.make_opsetid("", 22)], ir_version=10)
    compiled = daceopt.from_onnx(proto, fallback=False, verify="numerics")
    for steps, batch in ((3, 2), (7, 1)):
        x = torch.randn(steps, batch, 5)
        y, (h, c) = layer(x)
        for ours, theirs in zip(compiled(x), (y[:, None], h, c), strict=True):
            np.testing.assert_allclose(np.asarray(ours), theirs.detach().numpy(), rtol=1e-4, atol=1e-5)


def test_unknown_activations_are_refused_by_name() -> None:
    given = {n: v for n, v in operands("RNN", (2, 1, 2, 2), 1, 0).items() if n in "XWR"}
    with pytest.raises(Unsupported, match="activation 'Gelu'; expected one of relu, tanh"):
        import_model(load(recurrent("RNN", given, ["Y"], activations=["Gelu"])))
