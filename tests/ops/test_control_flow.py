"""If, Loop and Scan against ONNX Runtime: interpreted, and compiled with the recipe that users get."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx
import onnxruntime
import pytest

import daceopt
from daceopt import ops
from daceopt.capture.onnx.file import load
from daceopt.capture.onnx.importer import import_model
from daceopt.errors import DaceoptError, RunError, Unsupported
from daceopt.ir.control.region import Conditional, Repeat, everything, regions
from daceopt.ir.graph.graph import Graph
from daceopt.ir.interpreter.interpret import interpret
from daceopt.passes.runner import Runner
from tests.numerics import assert_within_rounding

Feeds = Mapping[str, np.ndarray]
RNG = np.random.default_rng(7)


def model(text: str, opset: int = 18) -> onnx.ModelProto:
    """A model from ONNX's text form, without its header."""
    return onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : {opset}]> agraph {text}')


def floats(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def onnx_runtime(proto: onnx.ModelProto, feeds: Feeds) -> list[np.ndarray]:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return session.run(None, dict(feeds))


def imported(proto: onnx.ModelProto) -> Graph:
    graph = import_model(load(proto))
    graph.validate()
    return graph


def interpreted(graph: Graph, feeds: Feeds, exact: bool = False) -> list[np.ndarray]:
    named = {n: feeds[graph.source.names[n]] for n in graph.inputs}
    done = interpret(graph, named, np.float64 if exact else None)
    return [done[n] for n in graph.outputs]


def check(text: str, feeds: Feeds, *, opset: int = 18, compiled: bool = False) -> Graph:
    """The model's results are those of ONNX Runtime, before and after lowering; returns the lowered graph."""
    proto = model(text, opset)
    peers = onnx_runtime(proto, feeds)
    graph = imported(proto)
    exact = interpreted(graph, feeds, exact=True)
    ops.lower_all(graph)
    graph.prune()
    graph.validate()
    results = interpreted(graph, feeds)
    if compiled:
        found = daceopt.from_onnx(proto, fallback=False, verify="numerics")(*feeds.values())
        results += [np.asarray(v) for v in (found if isinstance(found, (list, tuple)) else [found])]
        exact, peers = exact * 2, peers * 2
    for ours, true, peer in zip(results, exact, peers, strict=True):
        assert ours.shape == peer.shape and ours.dtype == peer.dtype
        assert_within_rounding(ours, true, peer)
    return graph


# -------------------------------------------------------------------- If

CHOICE = """(bool c, float[3] x, float[3] z) => (float[3] y, float[3] w) {
    k = Exp (x)
    y, w = If (c) <
        then_branch = t () => (float[3] a, float[3] b) { a = Add (k, z)  b = Mul (a, a) },
        else_branch = e () => (float[3] a2, float[3] b2) { a2 = Identity (z)  b2 = Identity (z) }>
}"""


@pytest.mark.parametrize("taken", [True, False])
def test_a_choice_at_run_time(taken: bool) -> None:
    graph = check(CHOICE, {"c": np.array(taken), "x": floats(3), "z": floats(3)})
    (node,) = regions(graph)
    assert isinstance(node, Conditional)


def test_a_compiled_choice_goes_both_ways() -> None:
    compiled = daceopt.from_onnx(model(CHOICE), fallback=False, verify="numerics")
    for taken in (True, False, True):
        feeds = {"c": np.array(taken), "x": floats(3), "z": floats(3)}
        for ours, peer in zip(compiled(*feeds.values()), onnx_runtime(model(CHOICE), feeds), strict=True):
            np.testing.assert_allclose(np.asarray(ours), peer, rtol=1e-6)


def test_a_known_condition_leaves_the_nodes_of_one_branch() -> None:
    graph = check(
        CHOICE.replace("{\n    k", "<bool c = {0}> {\n    k", 1).replace("bool c, ", "", 1),
        {"x": floats(3), "z": floats(3)},
    )
    assert not regions(graph)


def test_branches_of_different_shapes_are_refused_with_the_reason() -> None:
    text = """(bool c, float[4] x) => (float[N] y) {
        y = If (c) <then_branch = t () => (float[M] a) { s = Constant <value = int64[1] {0}> ()
                        e = Constant <value = int64[1] {2}> ()  a = Slice (x, s, e) },
                    else_branch = e () => (float[4] b) { b = Identity (x) }> }"""
    with pytest.raises(Unsupported, match="else_branch has shape"):
        imported(model(text))


def test_values_are_captured_through_several_levels() -> None:
    text = """(bool c, bool d, float[2,3] x) => (float[2,3] y) {
        k = Sigmoid (x)
        y = If (c) <
            then_branch = t () => (float[2,3] a) {
                m = Neg (x)
                a = If (d) <then_branch = tt () => (float[2,3] p) { p = Mul (m, k) },
                            else_branch = te () => (float[2,3] q) { q = Sub (k, m) }> },
            else_branch = e () => (float[2,3] b) { b = Identity (k) }> }"""
    for c in (True, False):
        for d in (True, False):
            graph = check(text, {"c": np.array(c), "d": np.array(d), "x": floats(2, 3)})
    assert sum(1 for _ in everything(graph)) == 5


# -------------------------------------------------------------------- Loop

POWERS = """(int64 n, float[2,2] x) => (float[2,2] last, float[4,2,2] all) {
    one = Constant <value = bool {1}> ()
    last, all = Loop (n, one, x) <body = b (int64 i, bool go, float[2,2] v) => (bool go2, float[2,2] w, float[2,2] s) {
        go2 = Identity (go)
        m = MatMul (v, x)
        f = Cast <to = 1> (i)
        w = Add (m, f)
        s = Relu (w) }> }"""


def test_a_for_loop_counts_in_an_array() -> None:
    graph = check(POWERS, {"n": np.array(4), "x": floats(2, 2)})
    (node,) = regions(graph)
    assert isinstance(node, Repeat) and node.condition is None and node.trips is None


def test_a_compiled_loop_counts_in_an_array() -> None:
    feeds = {"n": np.array(4), "x": floats(2, 2)}
    for ours, peer in zip(_powers()(*feeds.values()), onnx_runtime(model(POWERS), feeds), strict=True):
        np.testing.assert_allclose(np.asarray(ours), peer, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("count", [3, 5, 0, -1])
def test_a_loop_of_another_length_than_declared_is_an_error(count: int) -> None:
    with pytest.raises(RunError, match="number of iterations"):
        _powers()(np.array(count), floats(2, 2))
    with pytest.raises(DaceoptError, match="iterations"):
        interpreted(imported(model(POWERS)), {"n": np.array(count), "x": floats(2, 2)})


_compiled: list[object] = []


def _powers() -> object:
    if not _compiled:
        _compiled.append(daceopt.from_onnx(model(POWERS), fallback=False, recipe="none"))
    return _compiled[0]


WHILE = """(float x, float bound) => (float y, int64 count) {
    zero = Constant <value = int64 {0}> ()
    start = Less (x, bound)
    y, count = Loop (, start, x, zero) <body = b (int64 i, bool go, float v, int64 k) =>
            (bool go2, float w, int64 k2) {
        w = Add (v, v)
        one = Constant <value = int64 {1}> ()
        k2 = Add (k, one)
        go2 = Less (w, bound) }> }"""


def test_a_while_loop_stops_by_its_condition() -> None:
    for bound in (100.0, 0.5):
        feeds = {"x": np.array(1.5, np.float32), "bound": np.array(bound, np.float32)}
        check(WHILE, feeds, compiled=bound > 1)


def test_a_loop_of_no_iterations_keeps_its_values() -> None:
    text = """(float[3] x) => (float[3] y, float[0,3] all) {
        n = Constant <value = int64 {0}> ()
        y, all = Loop (n, , x) <body = b (int64 i, bool go, float[3] v) => (bool go2, float[3] w, float[3] s) {
            go2 = Identity (go)  w = Exp (v)  s = Neg (v) }> }"""
    check(text, {"x": floats(3)}, compiled=True)


NESTED = """(float[3] x, float[2,3] t) => (float[3] y, float[2,3] rows) {
    two = Constant <value = int64 {2}> ()
    three = Constant <value = int64 {3}> ()
    yes = Constant <value = bool {1}> ()
    y, rows = Loop (two, yes, x) <body = outer (int64 i, bool go, float[3] v) =>
            (bool go2, float[3] w, float[3] row) {
        go2 = Identity (go)
        row = Gather <axis = 0> (t, i)
        w = Loop (three, yes, v) <body = inner (int64 j, bool g, float[3] a) => (bool g2, float[3] c) {
            g2 = Identity (g)
            k = Add (i, j)
            odd = Equal (k, two)
            c = If (odd) <then_branch = p () => (float[3] q) { q = Add (a, row) },
                          else_branch = r () => (float[3] s) { s = Mul (a, v) }> }> }> }"""


def test_nested_loops_and_a_choice_inside() -> None:
    graph = check(NESTED, {"x": floats(3), "t": floats(2, 3)}, compiled=True)
    assert [type(n).__name__ for part in everything(graph) for n in regions(part)] == [
        "Repeat",
        "Repeat",
        "Conditional",
    ]


_WINDOW = """(float[5] x) => (float[COUNT,2] y) {
    n = Constant <value = int64 {COUNT}> ()
    yes = Constant <value = bool {1}> ()
    y = Loop (n, yes) <body = b (int64 i, bool go) => (bool go2, float[2] w) {
        go2 = Identity (go)
        zero = Constant <value = int64[1] {0}> ()
        two = Constant <value = int64[1] {2}> ()
        s = Unsqueeze (i, zero)
        e = Add (s, two)
        w = Slice (x, s, e) }> }"""


def test_a_window_that_moves_with_the_loop() -> None:
    check(_WINDOW.replace("COUNT", "4"), {"x": floats(5)}, compiled=True)


def test_a_window_that_would_leave_its_array_is_refused() -> None:
    with pytest.raises(Unsupported, match="a scan output has shape"):
        daceopt.from_onnx(model(_WINDOW.replace("COUNT", "5")), fallback=False, recipe="none")(floats(5))


def test_a_value_that_grows_is_refused() -> None:
    text = """(float[2] x) => (float[N] y) {
        n = Constant <value = int64 {3}> ()
        yes = Constant <value = bool {1}> ()
        y = Loop (n, yes, x) <body = b (int64 i, bool go, float[M] v) => (bool go2, float[K] w) {
            go2 = Identity (go)  w = Concat <axis = 0> (v, x) }> }"""
    with pytest.raises(Unsupported):
        imported(model(text))


def test_a_size_that_follows_the_counter_is_refused() -> None:
    text = """(float[5] x) => (float[3] y) {
        n = Constant <value = int64 {3}> ()
        yes = Constant <value = bool {1}> ()
        y = Loop (n, yes) <body = b (int64 i, bool go) => (bool go2, float s) {
            go2 = Identity (go)
            zero = Constant <value = int64[1] {0}> ()
            e = Unsqueeze (i, zero)
            p = Slice (x, zero, e)
            s = ReduceSum <keepdims = 0> (p) }> }"""
    with pytest.raises(Unsupported, match="not known before running|changes from iteration"):
        imported(model(text))


def test_a_body_that_reads_what_does_not_exist_is_refused() -> None:
    proto = model(POWERS)
    proto.graph.node[1].attribute[0].g.node[1].input[1] = "nowhere"
    with pytest.raises(DaceoptError, match="nowhere"):
        imported(proto)


# -------------------------------------------------------------------- Scan


@pytest.mark.parametrize("directions", [(0, 0), (1, 0), (0, 1), (1, 1)])
def test_scanned_axes_and_directions(directions: tuple[int, int]) -> None:
    text = """(float[2] h, float[2,4,3] x, float[4,3] z, float[3,2] m) =>
            (float[2] last, float[2,4] rows, float[4,2,3] all) {
        last, rows, all = Scan <num_scan_inputs = 2, scan_input_axes = [1, 0], scan_input_directions = [IN, 0],
                scan_output_axes = [1, 0], scan_output_directions = [OUT, 0],
                body = b (float[2] s, float[2,3] u, float[3] v) => (float[2] s2, float[2] r, float[2,3] o) {
            p = MatMul (v, m)
            a = Add (s, p)
            s2 = Tanh (a)
            r = Neg (s2)
            o = Mul (u, v) }> (h, x, z) }"""
    text = text.replace("IN", str(directions[0])).replace("OUT", str(directions[1]))
    feeds = {"h": floats(2), "x": floats(2, 4, 3), "z": floats(4, 3), "m": floats(3, 2)}
    check(text, feeds, compiled=directions == (1, 1))


def test_a_scan_of_a_batch() -> None:
    text = """(float[3,2] h, float[3,4,2] x) => (float[3,2] y, float[3,4,2] z) {
        y, z = Scan <num_scan_inputs = 1, body = b (float[2] s, float[2] u) => (float[2] s2, float[2] o) {
            s2 = Add (s, u)  o = Identity (s2) }> (, h, x) }"""
    proto, feeds = model(text, 8), {"h": floats(3, 2), "x": floats(3, 4, 2)}
    graph = import_model(onnx.shape_inference.infer_shapes(proto))
    ops.lower_all(graph)
    graph.validate()
    last, steps = interpreted(graph, feeds)
    np.testing.assert_allclose(steps, feeds["h"][:, None] + np.cumsum(feeds["x"], 1), rtol=1e-6)
    np.testing.assert_allclose(last, steps[:, -1])


def test_a_scan_over_a_size_known_at_run_time() -> None:
    text = """(float[2] h, float[T,2] x) => (float[2] last, float[T,2] all) {
        last, all = Scan <num_scan_inputs = 1, scan_input_directions = [1],
                body = b (float[2] s, float[2] u) => (float[2] s2, float[2] o) {
            s2 = Sub (u, s)  o = Identity (s2) }> (h, x) }"""
    compiled = daceopt.from_onnx(model(text), fallback=False, verify="numerics")
    for steps in (1, 4, 7):
        feeds = {"h": floats(2), "x": floats(steps, 2)}
        for ours, peer in zip(compiled(*feeds.values()), onnx_runtime(model(text), feeds), strict=True):
            np.testing.assert_allclose(np.asarray(ours), peer, rtol=1e-5, atol=1e-6)


# -------------------------------------------------------------------- recipes


def test_the_recipe_reaches_into_bodies() -> None:
    text = """(float[8] h, float[5,8] x) => (float[8] last) {
        last = Scan <num_scan_inputs = 1, body = b (float[8] s, float[8] u) => (float[8] s2) {
            a = Add (s, u)  e = Tanh (a)  f = Mul (e, e)  s2 = Sub (f, s) }> (h, x) }"""
    proto = model(text)
    graph = imported(proto)
    Runner(daceopt.recipes.get("auto"), "numerics").run(graph)
    (node,) = regions(graph)
    assert len(node.bodies[0].kernels()) == 1
    assert all(not part.operators() for part in everything(graph))


def test_what_a_body_no_longer_reads_is_no_longer_computed() -> None:
    text = """(float[4] h, float[3,4] x, float[4] k) => (float[4] last) {
        unused = Exp (k)
        last = Scan <num_scan_inputs = 1, body = b (float[4] s, float[4] u) => (float[4] s2) {
            dead = Add (s, unused)  s2 = Sub (u, s) }> (h, x) }"""
    graph = imported(model(text))
    Runner(daceopt.recipes.get("auto")).run(graph)
    assert len(graph.nodes()) == 1


def test_deeply_nested_loops_are_imported_once_each() -> None:
    depth, inner = 12, "w12 = Add (v12, v12)"
    for k in reversed(range(depth)):
        head = f"b{k} (int64 i{k}, bool g{k}, float[2] v{k + 1}) => (bool h{k}, float[2] w{k + 1})"
        inner = f"w{k} = Loop (n, yes, v{k}) <body = {head} {{ h{k} = Identity (g{k}) {inner} }}>"
    constants = "n = Constant <value = int64 {1}> () yes = Constant <value = bool {1}> ()"
    graph = imported(model(f"(float[2] v0) => (float[2] w0) {{ {constants} {inner} }}"))
    assert sum(1 for _ in everything(graph)) == depth + 1
    x = floats(2)
    np.testing.assert_array_equal(interpreted(graph, {"v0": x})[0], x + x)
