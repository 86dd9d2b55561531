"""Gradient rules of algorithms and of statistics: each variant against differences in float64, and compiled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import cycle
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from daceopt import libs, ops, recipes
from daceopt.autodiff import differentiate
from daceopt.codegen import trial
from daceopt.codegen.bundle import Bundle
from daceopt.ir.control.imported import Gradients, Imported
from daceopt.ir.graph.graph import Graph
from daceopt.ir.interpreter.interpret import interpret
from daceopt.programs import derivation
from tests.numerics import assert_within_rounding
from tests.ops.single import single

STEP = 1e-5
TYPES = (np.float32, np.float64)  # what is narrower is widened around them
RNG = np.random.default_rng(5)


class Case(NamedTuple):
    """An operator, its inputs (of the type in question where they are float64), how many outputs of which shapes, the
    inputs that have gradients, and attributes."""

    op_type: str
    inputs: Sequence[np.ndarray]
    shapes: Sequence[tuple[int, ...]]
    wanted: Sequence[int]
    opset: int = 26
    constants: Sequence[int] = ()
    attributes: Mapping[str, Any] = MappingProxyType({})


IMAGE = RNG.standard_normal((2, 3, 6, 7))
BOXES = np.array([[0.0, 0.5, 5.0, 4.5], [1.5, 1.0, 4.0, 5.0], [-3.0, -2.0, 2.0, 1.0]])
IMAGES = np.array([0, 1, 1])
POOLED = np.array([[0.0, 0, 0, 5, 4], [1, 2, 1, 4, 5], [1, 5, 5, 9, 9], [0, 20, 20, 30, 30]])  # the last has empty bins
FACTORS = np.array([[0.5, 2.0, -1.5, 1.0, 3.0], [0.5, 0.0, 2.0, -1.0, 4.0], [0.0, 2.0, 0.0, 1.0, 3.0]])
CHANNELS = [RNG.standard_normal(3), RNG.standard_normal(3), RNG.standard_normal(3), RNG.uniform(1, 2, 3)]
SMALL = RNG.standard_normal((2, 3, 2, 2))
_ALIGNED = {"output_height": 2, "output_width": 3}
_LARGEST = {"mode": "max"}

CASES = {
    "Det": Case("Det", [RNG.standard_normal((2, 2, 4, 4))], [(2, 2)], [0]),
    "Det of rank 2": Case("Det", [RNG.standard_normal((3, 3))], [()], [0]),
    "Det of 1 x 1": Case("Det", [RNG.standard_normal((5, 1, 1))], [(5,)], [0]),
    "Det of none": Case("Det", [np.zeros((0, 3, 3))], [(0,)], [0]),
    "RoiAlign avg": Case("RoiAlign", [IMAGE, BOXES, IMAGES], [(3, 3, 2, 3)], [0], attributes=_ALIGNED),
    "RoiAlign max": Case("RoiAlign", [IMAGE, BOXES, IMAGES], [(3, 3, 2, 3)], [0], attributes={**_ALIGNED, **_LARGEST}),
    "RoiAlign sampled": Case(
        "RoiAlign", [IMAGE, BOXES, IMAGES], [(3, 3, 2, 3)], [0],
        attributes={**_ALIGNED, "sampling_ratio": 2, "spatial_scale": 0.5},
    ),
    "RoiAlign whole pixels": Case("RoiAlign", [IMAGE, BOXES, IMAGES], [(3, 3, 2, 3)], [0], 10, attributes=_ALIGNED),
    "MaxRoiPool": Case("MaxRoiPool", [IMAGE, POOLED], [(4, 3, 2, 2)], [0], attributes={"pooled_shape": [2, 2]}),
    "MaxRoiPool scaled": Case(
        "MaxRoiPool", [IMAGE, POOLED], [(4, 3, 1, 3)], [0], attributes={"pooled_shape": [1, 3], "spatial_scale": 0.5}
    ),
    **{
        f"CumProd {exclusive}{reverse}": Case(
            "CumProd", [FACTORS, np.array(1)], [(3, 5)], [0],
            constants=[1], attributes={"exclusive": exclusive, "reverse": reverse},
        )
        for exclusive in (0, 1) for reverse in (0, 1)
    },
    "LayerNormalization": Case(
        "LayerNormalization", [SMALL, np.ones((2, 2)), np.zeros((2, 2))],
        [(2, 3, 2, 2), (2, 3, 1, 1), (2, 3, 1, 1)], [0, 1, 2], 17, attributes={"axis": 2},
    ),
    "RMSNormalization": Case(
        "RMSNormalization", [SMALL, RNG.standard_normal((2, 2))], [(2, 3, 2, 2)], [0, 1], 23, attributes={"axis": 2},
    ),
    "InstanceNormalization": Case(
        "InstanceNormalization", [SMALL, *CHANNELS[:2]], [(2, 3, 2, 2)], [0, 1, 2], attributes={"epsilon": 0.01},
    ),
    **{
        f"GroupNormalization {opset}, {groups} groups of {SIX.shape[1:]}": Case(
            "GroupNormalization", [SIX, *RNG.standard_normal((2, 6 if opset == 21 else groups))], [SIX.shape],
            [0, 1, 2], opset, attributes={"num_groups": groups, "epsilon": 0.01},
        )
        for SIX in (RNG.standard_normal((2, 6, 3, 2)), RNG.standard_normal((3, 6)))
        for groups in (1, 2, 6) for opset in (18, 21)
    },
    "BatchNormalization": Case(
        "BatchNormalization", [SMALL, *CHANNELS], [(2, 3, 2, 2), (3,), (3,)], [0, 1, 2, 3, 4], 15,
        attributes={"training_mode": 1, "momentum": 0.75, "epsilon": 0.01},
    ),
    "BatchNormalization saved": Case(
        "BatchNormalization", [SMALL, *CHANNELS], [(2, 3, 2, 2), (3,), (3,), (3,), (3,)], [0, 1, 2, 3, 4], 9,
        attributes={"momentum": 0.75, "epsilon": 0.01},
    ),
}  # fmt: skip


def _graph(case: Case, dtype: Any) -> tuple[Graph, dict[str, np.ndarray]]:
    inputs = [v.astype(dtype) if v.dtype == np.float64 else v for v in case.inputs]
    like = [np.zeros(shape, dtype) for shape in case.shapes]
    return single(case.op_type, inputs, len(like), case.constants, case.opset, like=like, **case.attributes)


def _gradients(
    graph: Graph, feeds: dict[str, np.ndarray], seeds: Sequence[np.ndarray], wanted: Sequence[str], dtype: Any
):
    """By interpretation: of each wanted input, None where there is none."""
    graph = graph.copy()
    ops.lower_all(graph, keep=ops.has_gradient)
    derivative = differentiate(graph, graph.outputs, wanted)
    for part in (derivative.forward, derivative.backward):
        ops.lower_all(part)
    done = interpret(derivative.forward, feeds, dtype)
    given = {g: seeds[graph.outputs.index(n)] for n, g in derivative.grad_outputs.items()}
    given |= {n: done[n] for n in derivative.saved} | {n: feeds[n] for n in derivative.forward_inputs_needed}
    found = interpret(derivative.backward, given, dtype)
    return [None if (g := derivative.grad_inputs[n]) is None else found[g] for n in wanted]


def _seeds(case: Case, dtype: Any) -> list[np.ndarray]:
    return [np.random.default_rng(9).standard_normal(shape).astype(dtype) for shape in case.shapes]


@pytest.mark.parametrize("name", CASES)
def test_differences_in_float64(name: str) -> None:
    case = CASES[name]
    graph, feeds = _graph(case, np.float64)
    seeds = _seeds(case, np.float64)
    wanted = [graph.inputs[k] for k in case.wanted]
    plain = graph.copy()
    ops.lower_all(plain)

    def loss(values: dict[str, np.ndarray]) -> float:
        done = interpret(plain, values)
        return sum(float((s * done[n]).sum()) for s, n in zip(seeds, plain.outputs))

    for n, found in zip(wanted, _gradients(graph, feeds, seeds, wanted, None)):
        expected = np.zeros_like(feeds[n])
        for index in np.ndindex(*feeds[n].shape):
            step = np.zeros_like(feeds[n])
            step[index] = STEP
            expected[index] = (loss({**feeds, n: feeds[n] + step}) - loss({**feeds, n: feeds[n] - step})) / (2 * STEP)
        np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-7)


def test_compiled() -> None:
    """In the types by turns; all programs are in one library."""
    bundle, programs = Bundle(), []
    for (name, case), dtype in zip(CASES.items(), cycle(TYPES)):
        graph, feeds = _graph(case, dtype)
        gradients = Gradients(tuple(case.wanted), tuple(range(len(case.shapes))))
        made = derivation.derive(Imported(graph.copy(), gradients), recipes.get("cpu"))
        parts = [bundle.add(g, roles, libs.implement) for g, roles in made.directions()]
        programs.append((name, case, dtype, graph, feeds, parts))
    for name, case, dtype, graph, feeds, (forward, backward) in programs:
        seeds = _seeds(case, dtype)
        given = {f"input:{k}": feeds[n] for k, n in enumerate(graph.inputs)}
        first = trial.run(forward, given)
        given |= first.outputs | {f"grad:{k}": s for k, s in enumerate(seeds)}
        found = trial.run(backward, given, first.saved).outputs
        wanted = [graph.inputs[k] for k in case.wanted]
        exact, peer = (_gradients(graph, feeds, seeds, wanted, t) for t in (np.float64, None))
        for k, reference, theirs in zip(case.wanted, exact, peer):
            ours = found[f"grad_input:{k}"]
            assert ours.dtype == dtype, name
            assert_within_rounding(ours, reference, theirs)


SINGULAR = np.array([[[1.0, 2], [2, 4]], [[0, 0], [0, 0]], [[1, 1], [0, 0]], [[0, 1], [1, 0]]])


def test_a_determinant_of_zero_has_no_slope_as_in_pytorch() -> None:
    case = Case("Det", [SINGULAR], [(4,)], [0])
    graph, feeds = _graph(case, np.float64)
    x = torch.tensor(SINGULAR, requires_grad=True)
    torch.linalg.det(x).sum().backward()
    (found,) = _gradients(graph, feeds, [np.ones(4)], graph.inputs, None)
    np.testing.assert_array_equal(found, x.grad)


def test_zeros_among_factors_are_as_in_pytorch() -> None:
    graph, feeds = _graph(CASES["CumProd 00"], np.float64)
    x = torch.tensor(FACTORS, requires_grad=True)
    seeds = _seeds(CASES["CumProd 00"], np.float64)
    torch.cumprod(x, 1).backward(torch.tensor(seeds[0]))
    (found,) = _gradients(graph, feeds, seeds, graph.inputs, None)
    assert x.grad is not None
    assert_within_rounding(found, x.grad, x.grad)


def test_where_regions_are_has_no_gradient() -> None:
    """As in torchvision, whose regions are constants to a derivative."""
    graph, feeds = _graph(CASES["RoiAlign avg"], np.float64)
    (found,) = _gradients(graph, feeds, _seeds(CASES["RoiAlign avg"], np.float64), [graph.inputs[1]], None)
    assert found is None


def test_every_differentiable_operator_has_a_gradient() -> None:
    """Those without: what is piecewise constant, what only chance or sizes decide, and what PyTorch has none for."""
    constant = {"ArgMax", "ArgMin", "Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual", "IsInf", "IsNaN"}
    places = {"NonZero", "NonMaxSuppression", "Unique", "Shape", "Size", "BitCast", "QuantizeLinear"}
    values = {"Constant", "ConstantOfShape", "EyeLike", "Range"}
    chance = {f"Random{kind}{like}" for kind in ("Normal", "Uniform") for like in ("", "Like")}
    chance |= {"Bernoulli", "Multinomial"}
    without = {
        row.op_type
        for row in ops.coverage()
        if row.how in ("native", "lowered") and not row.gradient and any("float" in str(t) for t in row.types)
    }
    # second ones are captured as products and softmaxes
    derivatives = {"TiledAttentionGradient", "FusedAttentionGradient"}
    assert without <= constant | places | values | chance | derivatives | {"QLinearMatMul"}
