"""Folding of constants and shapes, identities, common subexpressions and dead code."""

from __future__ import annotations

from typing import Any

import dace
import numpy as np
import pytest

from daceopt.ir.interpreter.interpret import interpret
from daceopt.ir.scalar import types
from daceopt.ir.text.render import render
from daceopt.passes.transform import Transformation
from daceopt.transformations.coarse.cast_removal import CastRemoval
from daceopt.transformations.coarse.common_subexpressions import CommonSubexpressions
from daceopt.transformations.coarse.constant_folding import ConstantFolding
from daceopt.transformations.coarse.dead_code_elimination import DeadCodeElimination
from daceopt.transformations.coarse.identity_removal import IdentityRemoval
from tests.transformations.graphs import Net, check, near_misses, op_types

INT = dace.int64


def transposed_by_sizes(net: Net, x: str, static: tuple[Any, ...]) -> str:
    """Reshape(x, [-1, size of the last dimension]) as exporters write it."""
    sizes = net.op("Shape", x, shape=(3,), dtype=INT)
    last = net.op("Gather", sizes, net.const([-1], np.int64), shape=(1,), dtype=INT)
    target = net.op("Concat", net.const([-1], np.int64), last, shape=(2,), dtype=INT, axis=0)
    return net.op("Reshape", x, target, shape=static)


def test_constants_fold_through_a_chain() -> None:
    net = Net(x=(2, 5))
    c = net.op("Sqrt", net.op("Div", net.const(1.0), net.op("Sqrt", net.const(64.0))))
    graph = net.done(net.op("Mul", net.x, c))
    check(ConstantFolding(), graph, ["Mul"], sites=3)
    assert render(graph).splitlines()[2].endswith(" = [0.3535533845424652]")


def test_static_shapes_fold() -> None:
    net = Net(x=(2, 3, 4))
    graph = net.done(transposed_by_sizes(net, net.x, (6, 4)))
    outcome = ConstantFolding().run(graph)
    graph.validate()
    assert outcome.sites and op_types(graph) == ["Reshape"]


def test_symbolic_shapes_are_kept_in_the_table() -> None:
    batch = dace.symbolic.symbol("s0", dace.int64)
    net = Net(x=(batch, 3, 4))
    net.graph.symbols["s0"] = (net.x, 0)
    sizes = net.op("Shape", net.x, shape=(3,), dtype=INT)
    start = net.op("Slice", sizes, net.const([0], np.int64), net.const([2], np.int64), shape=(2,), dtype=INT)
    product = net.op("Mul", start, net.const([3, 1], np.int64), shape=(2,), dtype=INT)
    graph = net.done(net.op("Expand", net.op("Neg", net.x, shape=(batch, 3, 4)), product, shape=(batch, 3, 4)))
    ConstantFolding().run(graph)
    assert graph.source.shape_values[product] == (3 * batch, 3)


def test_cast_like_of_a_constant() -> None:
    net = Net(x=(2,))
    c = net.op("CastLike", net.const(8, np.int64), net.x, shape=(), dtype=dace.float32)
    check(ConstantFolding(), net.done(net.op("Mul", net.x, c)), ["Mul"])


def test_large_results_stay() -> None:
    net = Net(x=(300, 300))
    big = net.op("Expand", net.const(1.0), net.const([300, 300], np.int64), shape=(300, 300))
    graph = net.done(net.op("Mul", net.x, big))
    assert "would add 359980 bytes to them, the budget is 262144" in near_misses(ConstantFolding(), graph)
    check(ConstantFolding(budget=360_000), graph, ["Mul"])


def test_a_constant_that_others_read_is_no_room_for_another() -> None:
    """A transposition of weights is a view when running: as a constant it would be the weights once more."""
    net = Net(x=(2, 300))
    weights = net.const(np.ones((300, 300)))
    turned = net.op("Transpose", weights, shape=(300, 300), perm=[1, 0])
    first, second = (net.op("MatMul", net.x, w, shape=(2, 300)) for w in (weights, turned))
    assert "would add 360000 bytes" in near_misses(ConstantFolding(), net.done(net.op("Add", first, second)))


def test_a_constant_that_only_constants_follow_from_goes() -> None:
    net = Net(x=(2, 300))
    weights = net.const(np.ones((300, 300)))
    first, second = (net.op(o, weights) for o in ("Neg", "Exp"))
    y = net.op("MatMul", net.op("MatMul", net.x, first, shape=(2, 300)), second, shape=(2, 300))
    check(ConstantFolding(), net.done(y), ["MatMul", "MatMul"], sites=2)


def test_results_no_larger_than_what_goes_for_them_fold() -> None:
    net = Net(x=(2, 300))
    turned = net.op("Transpose", net.const(np.ones((300, 300))), shape=(300, 300), perm=[1, 0])
    check(ConstantFolding(budget=0), net.done(net.op("MatMul", net.x, turned, shape=(2, 300))), ["MatMul"])


def test_random_operators_do_not_fold() -> None:
    net = Net(x=(2, 2))
    noise = net.op("RandomNormalLike", net.const(np.zeros((2, 2))), shape=(2, 2))
    assert ConstantFolding().run(net.done(net.op("Add", net.x, noise))).sites == []


@pytest.mark.parametrize(
    ("op_type", "operands", "attributes"),
    [
        ("Identity", [], {}),
        ("Cast", [], {"to": 1}),
        ("Dropout", [], {}),
        ("Reshape", [([2, -1], np.int64)], {}),
        ("Expand", [([2, 1], np.int64)], {}),
        ("Transpose", [], {"perm": [0, 1]}),
        ("Concat", [], {"axis": 0}),
        ("Slice", [([0], np.int64), ([9], np.int64)], {}),
        ("Mul", [(1.0, np.float32)], {}),
    ],
)
def test_identities(op_type: str, operands: list[Any], attributes: dict[str, Any]) -> None:
    net = Net(x=(2, 5))
    y = net.op(op_type, net.x, *(net.const(*o) for o in operands), shape=(2, 5), **attributes)
    check(IdentityRemoval(), net.done(net.op("Relu", y)), ["Relu"])


@pytest.mark.parametrize("transformation", [IdentityRemoval(), CastRemoval()])
def test_a_conversion_keeps_how_it_rounds_and_overflows(transformation: Transformation) -> None:
    """A CastLike becomes a Cast, two Casts become one: what lies beyond the type of 8 bits is NaN as before."""
    net = Net(opset=25, x=(2, 5))
    eight = types.from_name("float8_e4m3fn")
    like = net.graph.add_input("like", (1,), eight)
    wide = net.op("Cast", net.x, dtype=dace.float64, to=types.to_onnx(dace.float64))
    merged = isinstance(transformation, CastRemoval)
    operands, to = ((wide,), {"to": types.to_onnx(eight)}) if merged else ((net.x, like), {})
    y = net.op("Cast" if merged else "CastLike", *operands, shape=(2, 5), dtype=eight, saturate=0, **to)
    graph = net.done(y) if merged else net.done(y, wide)
    before = graph.copy()
    assert len(transformation.run(graph).sites) == 1
    given = {net.x: np.full((2, 5), 1e6, np.float32), like: np.zeros(1, types.to_numpy(eight))}
    for made in (before, graph):
        assert np.isnan(interpret(made, given)[y].astype(np.float32)).all()


def test_what_only_looks_like_an_identity() -> None:
    net = Net(x=(2, 5))
    last, first, axis, step = (net.const([v], np.int64) for v in (-1, -9, 1, -1))
    flipped = net.op("Slice", net.x, last, first, axis, step, shape=(2, 5))
    dropped = net.op("Dropout", flipped, net.const(0.5), net.const(True, np.bool_), shape=(2, 5))
    graph = net.done(net.op("Relu", dropped))
    assert IdentityRemoval().run(graph).sites == []


def test_identity_between_input_and_output_stays() -> None:
    net = Net(x=(2, 5))
    assert "is a graph output of its own" in near_misses(IdentityRemoval(), net.done(net.op("Identity", net.x)))


def test_transposes_merge_and_vanish() -> None:
    net = Net(x=(2, 3, 4))
    a = net.op("Transpose", net.x, shape=(3, 4, 2), perm=[1, 2, 0])
    b = net.op("Transpose", a, shape=(2, 3, 4), perm=[2, 0, 1])
    check(IdentityRemoval(), net.done(net.op("Relu", b)), ["Relu"], sites=2)


def test_common_subexpressions() -> None:
    net = Net(x=(2, 5))
    a = net.op("Mul", net.op("Exp", net.x), net.const(2.0))
    b = net.op("Mul", net.op("Exp", net.x), net.const(2.0))
    check(CommonSubexpressions(), net.done(net.op("Add", a, b)), ["Exp", "Mul", "Add"], sites=2)


def test_different_attributes_are_different() -> None:
    net = Net(x=(2, 5))
    y = net.op("Add", net.op("Softmax", net.x, axis=0), net.op("Softmax", net.x, axis=1))
    assert CommonSubexpressions().run(net.done(y)).sites == []


def test_random_operators_are_not_common() -> None:
    net = Net(x=(2, 5))
    y = net.op("Add", net.op("RandomNormalLike", net.x), net.op("RandomNormalLike", net.x))
    assert "draws random numbers" in near_misses(CommonSubexpressions(), net.done(y))


def test_equal_outputs_stay_two_arrays() -> None:
    net = Net(x=(2, 5))
    graph = net.done(net.op("Exp", net.x), net.op("Exp", net.x))
    assert "is a graph output" in near_misses(CommonSubexpressions(), graph)


def test_dead_code() -> None:
    net = Net(x=(2, 5))
    net.op("Neg", net.op("Exp", net.x))
    graph = net.done(net.op("Relu", net.x))
    check(DeadCodeElimination(), graph, ["Relu"])
    assert len(graph.arrays()) == 2
