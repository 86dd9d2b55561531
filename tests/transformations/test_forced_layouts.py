"""Any layouts of images build: which a network gets depends on times, which nobody knows before."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import onnx
import onnxruntime
import pytest

from daceopt import from_onnx, recipes
from daceopt.capture.onnx.file import load
from daceopt.capture.onnx.importer import import_model
from daceopt.ir.interpreter.interpret import interpret
from daceopt.libs.convolution_times import Times
from daceopt.transformations.layout import _layout_costs, layout_search
from daceopt.transformations.layout._layout_costs import Reading
from daceopt.transformations.layout._layout_program import Choice
from tests.numerics import assert_within_rounding

Chooser = Callable[[int], int]  # number of an array's layouts -> the one that it gets

_HEAD = '<ir_version: 8, opset_import: ["" : 17]> net '
_FEATURES = """
    a = Conv<pads = [1, 1]>(x, w1)
    b = Relu(a)
    c = Conv<pads = [1, 1]>(b, w2)
    d = Relu(c)
"""
_LAST = "out = Conv<pads = [1, 1]>({}, w2)"
_IMAGE, _WEIGHTS = "float[2, 16, 6] x", {"w1": (32, 16, 3), "w2": (32, 32, 3)}
_CELLS = {"LSTM": 4, "GRU": 3, "RNN": 1}


def _recurrent(kind: str) -> tuple[str, dict[str, tuple[int, ...]]]:
    """Images whose columns are a sequence; its states, and its last state, are images again."""
    gates = _CELLS[kind] * 32
    nodes = f"""{_FEATURES}
        steps = Transpose<perm = [2, 0, 1]>(d)
        y, h = {kind}<hidden_size = 32>(steps, w, r)
        z = Squeeze(y, one)
        states = Transpose<perm = [1, 2, 0]>(z)
        state = Transpose<perm = [1, 2, 0]>(h)
        narrow = Conv(state, w3)
        wide = Conv(states, w3)
        out = Add(narrow, wide)"""
    return nodes, {**_WEIGHTS, "w3": (32, 32, 1), "w": (1, gates, 32), "r": (1, gates, 32)}


_CARRIED = f"""{_FEATURES}
    e, all = Loop(three, on, d) <body = body
        (int64 i, bool go, float[2, 32, 6] s) => (bool on_, float[2, 32, 6] next, float[2, 32, 6] kept)
        {{ on_ = Identity(go) t = Conv<pads = [1, 1]>(s, w2) next = Relu(t) kept = Tanh(t) }}>
    f = ReduceSum<keepdims = 0>(all, zero)
    g = Add(e, f)
    {_LAST.format("g")}
"""
_CHOSEN = f"""{_FEATURES}
    m = ReduceMax<keepdims = 0>(d)
    yes = Greater(m, half)
    e = If(yes) <
        then_branch = then () => (float[2, 32, 6] u) {{ t = Conv<pads = [1, 1]>(d, w2) u = Relu(t) }},
        else_branch = other () => (float[2, 32, 6] v) {{ v = Neg(d) }}>
    {_LAST.format("e")}
"""
NETWORKS = {
    **{kind: _recurrent(kind) for kind in _CELLS},
    "Loop": (_CARRIED, _WEIGHTS),
    "If": (_CHOSEN, _WEIGHTS),
}


def _model(name: str, choice: str) -> onnx.ModelProto:
    """``choice`` is part of it, so that no program of another choice is taken from the cache."""
    nodes, weights = NETWORKS[name]
    model = onnx.parser.parse_model(f"{_HEAD} ({_IMAGE}) => (float[N, M, K] out) {{ {nodes} }}")
    draw = np.random.default_rng(0)
    values = {n: 0.3 * draw.standard_normal(s).astype(np.float32) for n, s in weights.items()}
    values |= {"one": np.array([1]), "zero": np.array([0]), "three": np.array(3), "on": np.array(True)}
    values["half"] = np.array(0.5, np.float32)
    read = {n for node in model.graph.node for n in node.input} | {"w2"}
    model.graph.initializer.extend(onnx.numpy_helper.from_array(v, n) for n, v in values.items() if n in read)
    model.graph.output[0].type.tensor_type.ClearField("shape")
    model.producer_name = choice
    return model


def _uniform(layout: int) -> Chooser:
    return lambda count: layout if layout < count else 0


def _mixed(seed: int) -> Chooser:
    chance = random.Random(seed)
    return lambda count: chance.randrange(count)


CHOICES: dict[str, Callable[[], Chooser]] = {
    "first": lambda: _uniform(0),
    "last": lambda: _uniform(1),
    "blocked": lambda: _uniform(2),
    "mixed": lambda: _mixed(1),
    "mixed again": lambda: _mixed(2),
}


def _force(monkeypatch: pytest.MonkeyPatch, chooser: Chooser) -> None:
    def forced(reading: Reading, own: Choice) -> Choice:
        return {name: chooser(len(costs)) for name, costs in reading.problem.cost.items()}

    monkeypatch.setattr(_layout_costs, "times", lambda *_: Times(1e-3, 1e-3, 1e-3))
    monkeypatch.setattr(layout_search, "_better", forced)


@pytest.mark.share(5)
@pytest.mark.parametrize("choice", CHOICES)
@pytest.mark.parametrize("name", NETWORKS)
def test_each_choice(name: str, choice: str, monkeypatch: pytest.MonkeyPatch) -> None:
    _force(monkeypatch, CHOICES[choice]())
    model, x = _model(name, choice), np.random.default_rng(1).standard_normal((2, 16, 6)).astype(np.float32)
    ours = from_onnx(model, recipe=recipes.get("cpu"), fallback=False)(x)
    graph = import_model(load(model))
    exact = interpret(graph, {graph.inputs[0]: x}, np.float64)[graph.outputs[0]]
    (theirs,) = onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x": x})
    assert_within_rounding(ours, exact, theirs)
