"""Derivatives of the suite's models against central differences, both in the float64 interpreter."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import onnx

from daceopt import ops
from daceopt.autodiff import differentiate
from daceopt.capture.onnx.file import load
from daceopt.capture.onnx.importer import import_model, sizing_operands
from daceopt.capture.onnx.specialization import bind
from daceopt.errors import Unsupported
from daceopt.ir.graph.graph import Graph
from daceopt.ir.interpreter.interpret import interpret
from daceopt.ir.scalar import types
from daceopt.ops.core import operator_table
from tests.onnx_suite import retyped
from tests.onnx_suite.bases import CHANCE, Base, bases

Arrays = dict[str, np.ndarray]
_STEP = 1e-4
_TOLERANCE = 1e-5
_MAX_ELEMENTS = 20_000
_FLOATS = (onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE)
_PLACES_ONLY = {"RoiAlign": (1,), "MaxRoiPool": (1,)}
"""Operands by which nobody differentiates: they say where to look."""
# How values are moved away from kinks, some of which lie at whole numbers, and into the domain of a function.
_PLACES = ((1.0, 0.1), (0.9, 0.05), (1.0, 1.3))


class Problem(NamedTuple):
    """A model as a graph of lowered operators, what its float inputs are by name, and values for all inputs."""

    graph: Graph
    wanted: list[str]
    feeds: Arrays


def models(op_type: str) -> list[Base]:
    """The models of an operator that have a float input and a float result; if need be, others made so."""
    if op_type in CHANCE:
        return []
    found = bases().get(op_type, [])
    smooth = [b for b in found if _is_smooth(b)]
    if smooth or not {"float32"} & {types.name_of(t) for t in operator_table.allowed_types(op_type)}:
        return smooth
    made = [retyped.Retyped(f"{retyped.PREFIX}/{b.name}/float32") for b in found]
    return [b for b in (Base(m.name, m.model, m.inputs) for m in made) if _is_smooth(b)]


def _is_smooth(base: Base) -> bool:
    small = all(0 < np.asarray(v).size <= _MAX_ELEMENTS for v in base.inputs if v is not None)
    return small and bool(_float_inputs(base)) and _has_float(base.model.graph.output)


def _has_float(values: Sequence[onnx.ValueInfoProto]) -> bool:
    return any(v.type.tensor_type.elem_type in _FLOATS for v in values)


def _float_inputs(base: Base) -> list[str]:
    fixed = {*sizing_operands(base.node), *(base.node.input[k] for k in _PLACES_ONLY.get(base.node.op_type, ()))}
    given = (v for v in base.model.graph.input if v.name not in fixed)
    return [v.name for v in given if v.type.tensor_type.elem_type in _FLOATS]


def problem(base: Base) -> Problem:
    """The graph with all but the float inputs bound to their values. Raises Unsupported as the importer does."""
    wanted = _float_inputs(base)
    fixed = {
        v.name: np.asarray(value)
        for v, value in zip(base.model.graph.input, base.inputs, strict=True)
        if v.name not in wanted and value is not None
    }
    graph = import_model(bind(load(base.model), fixed, {}, set(fixed)))
    ops.lower_all(graph, keep=ops.has_gradient)
    values = dict(zip((v.name for v in base.model.graph.input), base.inputs))
    given = {n: np.asarray(values[graph.source.names.get(n, n)], np.float64) for n in graph.inputs}
    feeds = {n: np.clip(np.nan_to_num(v), -100, 100) for n, v in given.items()}
    return Problem(graph, list(graph.inputs), feeds)


def check(base: Base) -> int:
    """Compare all directional derivatives; returns how many gradients there were. Raises Unsupported where
    differentiation does, AssertionError where the derivative is wrong.
    """
    made = problem(base)
    results = [n for n in dict.fromkeys(made.graph.outputs) if types.is_float(made.graph.dtype(n))]
    try:
        return _check(base, made, results)
    except Unsupported:
        if len(results) == 1:
            raise
        return _check(base, made, results[:1])  # the others are by-products


def _check(base: Base, made: Problem, results: Sequence[str]) -> int:
    graph = made.graph
    derivative = differentiate(graph, results, made.wanted)
    for each in (derivative.forward, derivative.backward):
        ops.lower_all(each)
    if not any(derivative.grad_inputs.values()):
        return 0
    rng = np.random.default_rng(3)
    for scale, shift in _PLACES:
        feeds = {n: scale * v + shift * rng.uniform(0.5, 1, v.shape) for n, v in made.feeds.items()}
        done = _run(derivative.forward, feeds)
        if all(np.isfinite(done[n]).all() for n in results):
            break
    else:
        raise AssertionError("no finite values were found near those of the suite")
    seeds = {n: rng.standard_normal(done[n].shape) for n in results}
    given = {g: seeds[o] for o, g in derivative.grad_outputs.items()}
    given |= {n: done[n] for n in derivative.saved} | {n: feeds[n] for n in derivative.forward_inputs_needed}
    found = _run(derivative.backward, given)
    plain = graph.copy()
    ops.lower_all(plain)

    def loss(moved: Arrays) -> float:
        values = _run(plain, moved)
        return float(sum((seeds[n] * values[n]).sum() for n in results))

    for name in made.wanted:
        gradient = derivative.grad_inputs[name]
        slope = found[gradient] if gradient is not None else np.zeros_like(feeds[name])
        _check_slope(base.name, name, loss, feeds, slope, rng)
    return sum(g is not None for g in derivative.grad_inputs.values())


def _check_slope(
    where: str, name: str, loss: Callable[[Arrays], float], feeds: Arrays, slope: np.ndarray, rng: np.random.Generator
) -> None:
    """Along random directions. A kink between the points makes the one-sided differences differ: then nearer ones."""
    direction = rng.standard_normal(feeds[name].shape)
    expected = float((slope * direction).sum())
    middle = loss(feeds)
    for step in (_STEP, _STEP / 30, _STEP / 900):
        after, before = (loss({**feeds, name: feeds[name] + s * step * direction}) for s in (1, -1))
        central = (after - before) / (2 * step)
        scale = max(1.0, abs(central), float(np.abs(slope * direction).sum()))
        noise = 1e-15 * max(1.0, abs(middle)) / step * 100
        if abs(central - expected) <= _TOLERANCE * scale + noise:
            return
    raise AssertionError(f"{where}: the slope along {name} is {expected:.8g}, differences say {central:.8g}")


def _run(graph: Graph, feeds: Arrays) -> Arrays:
    with np.errstate(all="ignore"):
        return interpret(graph, {n: feeds[n] for n in graph.inputs}, np.float64)
