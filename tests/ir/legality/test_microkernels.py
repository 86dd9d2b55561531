"""Calls of micro-kernels: what they may stand for, in which memory they collect, and that partial tiles are whole."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import dace
import ml_dtypes
import numpy as np
import pytest
import torch

from daceopt import libs
from daceopt.errors import IllegalSchedule
from daceopt.ir.edits import schedule_edits as edits
from daceopt.ir.edits.attempt import commit
from daceopt.ir.edits.loops import loops_of
from daceopt.ir.graph.graph import Graph
from daceopt.ir.interpreter.interpret import interpret
from daceopt.ir.legality.microkernels import TRANSPOSITION, calls
from daceopt.ir.nodes.builder import Builder
from daceopt.ir.scalar import types
from daceopt.ir.schedule.schedule import Loop, Tree, chain, loops, map_tree, nest_loops
from daceopt.ir.schedule.schedule_text import parse, text
from tests.codegen.cpu import kernels
from tests.ir.isl_checking import assert_agrees
from tests.ir.tiled_products import SIZE, Made, tiled_product
from tests.numerics import assert_within_rounding

INNER = ("i2", "i3", "i4")


def called(made: Made) -> Tree:
    tree = loops_of(*made).tree
    there = {str(loop.param) for loop in loops(tree)}  # an extent of 1 has no loop
    return edits.call(tree, 0, [p for p in INNER if p in there])


def in_steps(made: Made, size: int = 8) -> Tree:
    """The sum in steps, outside of the calls."""

    def change(node: Tree) -> Tree:
        found, body = chain(node)
        if [str(p.param) for p in found] != ["i2", "i3", "i4_block", "i4"]:
            return node
        return nest_loops([found[2], found[0], found[1], found[3]], body)

    tree = map_tree(edits.split(loops_of(*made).tree, "i4", size), change)
    return edits.call(tree, 0, INNER)


def _feeds(graph: Graph, rows: int = 77) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    shapes = {n: [e if isinstance(e, int) else rows for e in graph.shape(n)] for n in graph.inputs}
    kind = np.float64 if graph.dtype(graph.inputs[0]) == dace.float64 else np.float32
    return {n: rng.standard_normal(shape).astype(kind) for n, shape in shapes.items()}


MADE: dict[str, Callable[[], Made]] = {
    "partial tiles": tiled_product,
    "whole tiles": lambda: tiled_product(64, 32, 16),
    "one row": lambda: tiled_product(33, 33, 1),
    "a size": lambda: tiled_product(SIZE, 50, 33),
    "double": lambda: tiled_product(40, 50, 33, dtype=dace.float64),
}


@pytest.mark.parametrize("tree", [called, in_steps], ids=["at once", "in steps"])
@pytest.mark.parametrize("name", MADE)
@pytest.mark.parametrize("library", ["torch_product", "native_product"])
def test_calls_compute_what_their_loops_say(name: str, tree: Any, library: str, tmp_path: Path) -> None:
    made = graph, entry = MADE[name]()
    if library == "torch_product" and (name == "double" or libs.get(library).available() is not None):
        pytest.skip("the library has no such micro-kernel")
    if name == "one row" and tree is in_steps:
        pytest.skip("nothing to split")
    commit(graph, entry, tree(made))
    feeds = _feeds(graph)
    a, b = (v.astype(np.longdouble) for v in feeds.values())  # what is itself in double needs a finer reference
    exact = np.tanh(a @ b).astype(np.float64)
    (found,) = interpret(graph, feeds, dtype=np.float64).values()
    np.testing.assert_allclose(found, exact, rtol=1e-10, atol=1e-14)
    sizes = {"n": 77} if graph.symbols else {}
    with libs.prefer(MicroProduct=library):
        built = kernels.run(graph, feeds, tmp_path, sizes)[graph.outputs[0]]
    theirs = np.tanh((a.astype(built.dtype) @ b.astype(built.dtype)).astype(built.dtype))
    assert_within_rounding(built, exact, theirs)


def test_isl_reads_calls() -> None:
    for tree in (called, in_steps):
        made = graph, entry = tiled_product()
        commit(graph, entry, tree(made))
        assert_agrees(graph, entry.kernel)


def test_a_call_inside_of_steps_adds_to_an_accumulator() -> None:
    made = graph, entry = tiled_product(64, 64, 20)
    placed = commit(graph, entry, in_steps(made)).tree
    assert (
        text(placed)
        == """\
for i0 < 2:
  for i1 < 2:
    local tile in thread:
      accumulate own s0.o:
        for i4_block < 3:
          call product:
            for i2 < 32:
              for i3 < 32:
                for i4 < 8, 20 - 8*i4_block:
                  s0(i0, i1, i2, i3, i4 + 8*i4_block)
      for i2 < 32:
        for i3 < 32:
          s1(i0, i1, i2, i3)
"""
    )
    assert parse(text(placed)) == placed
    assert len(calls(placed)) == 1


@pytest.mark.parametrize("dtype", [dace.bool_, dace.int8, types.BFLOAT16, dace.float32, dace.int64])
@pytest.mark.parametrize(
    ("shape", "edge"), [((100, 70), 16), ((100, 70), 60), ((8, 8), 16), ((3, 9), 16), ((64, 1), 16), ((SIZE, 33), 16)]
)
def test_tiles_are_turned_round(shape: Any, edge: int, dtype: Any, tmp_path: Path) -> None:
    graph = Graph("test")
    if SIZE in shape:
        graph.symbols = {"n": ("x", 0)}
    b, x = Builder(graph), graph.add_input("x", shape, dtype)
    graph.add_output(b.copy(b.transpose(x, (1, 0))))
    (entry,) = graph.kernels()
    tree = loops_of(graph, entry).tree
    names = [str(loop.param) for loop in loops(tree)]
    for name in names:
        tree = edits.split(tree, name, edge)
    if len(names) == 2:
        tree = edits.call(edits.reorder(tree, [*(f"{n}_block" for n in names), *names]), 0, names, TRANSPOSITION)
    commit(graph, entry, tree)
    data = np.random.default_rng(1).integers(
        0, 2 if dtype == dace.bool_ else 100, [77 if n is SIZE else n for n in shape]
    )
    data = data.astype(types.to_numpy(dtype))
    built = kernels.run(graph, {x: data}, tmp_path, {"n": 77} if graph.symbols else {})[graph.outputs[0]]
    np.testing.assert_array_equal(built, data.T)
    if dtype == dace.float32:
        np.testing.assert_array_equal(next(iter(interpret(graph, {x: data}).values())), data.T)


def test_what_is_no_transposition() -> None:
    graph = Graph("test")
    b, x = Builder(graph), graph.add_input("x", (40, 50), dace.float32)
    graph.add_output(b.copy(x))
    (entry,) = graph.kernels()
    with pytest.raises(IllegalSchedule, match="i0 and i1 do not walk one array each with unit stride"):
        commit(graph, entry, edits.call(loops_of(graph, entry).tree, 0, ["i0", "i1"], TRANSPOSITION))
    with pytest.raises(IllegalSchedule, match="expected product or transposition"):
        commit(graph, entry, edits.call(loops_of(graph, entry).tree, 0, ["i0", "i1"], "other"))


# ---------------------------------------------------------------- what is refused


def test_the_order_of_the_loops_does_not_matter(tmp_path: Path) -> None:
    made = graph, entry = tiled_product()
    tree = map_tree(loops_of(*made).tree, _swapped)
    commit(graph, entry, edits.call(tree, 0, INNER))
    feeds = _feeds(graph)
    a, b = feeds.values()
    built = kernels.run(graph, feeds, tmp_path)[graph.outputs[0]]
    assert_within_rounding(built, np.tanh(a.astype(float) @ b.astype(float)), np.tanh(a @ b))


def _swapped(node: Tree) -> Tree:
    found, body = chain(node)
    return nest_loops(found[::-1], body) if [str(p.param) for p in found] == list(INNER) else node


def _kind(made: Made, kind: str) -> Tree:
    tree = called(made)
    return map_tree(tree, lambda n: Loop(n.param, n.extent, n.body, kind) if _is_sum(n) else n)


def _is_sum(node: Tree) -> bool:
    return isinstance(node, Loop) and str(node.param) == "i4"


def _renamed(made: Made) -> Tree:
    return edits.call(loops_of(*made).tree, 0, INNER, "sum")


REFUSED: dict[str, tuple[Callable[[Made], Tree], str]] = {
    "point-wise": (lambda made: edits.call(loops_of(*made).tree, 1, ("i2", "i3")), "s1 does not sum into one array"),
    "a vector loop": (lambda made: _kind(made, "vector"), "i4 is a vector loop; a micro-kernel has its own order"),
    "an unknown one": (_renamed, "there is no such micro-kernel; expected product"),
    "other loops": (
        lambda made: edits.call(loops_of(*made).tree, 0, ("i2", "i4")),
        "the innermost loops around s0 are not those over i2, i4",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_no_micro_kernel_does_is_refused(name: str) -> None:
    edit, reason = REFUSED[name]
    made = graph, entry = tiled_product()
    with pytest.raises(IllegalSchedule, match=reason):
        commit(graph, entry, edit(made))
    assert entry.tree is None


def _matrix_product(
    turned: bool, dtype: Any = dace.float32, fn: Any = lambda u, v: u * v, shape: Any = (8, 5, 6), out: Any = None
) -> Made:
    graph, (m, n, k) = Graph("plain"), shape
    a, b = graph.add_input("a", (m, k), dtype), graph.add_input("b", (n, k) if turned else (k, n), dtype)
    y = graph.add_array("y", (m, n), dtype if out is None else out)
    reads = {
        "u": (a, lambda i, j, k: (i, k)),
        "v": (b, (lambda i, j, k: (j, k)) if turned else (lambda i, j, k: (k, j))),
    }
    Builder(graph).map(shape, reads, {"out": (y, lambda i, j, k: (i, j), "sum")}, lambda i, u, v: fn(u, v))
    graph.add_output(y)
    return graph, graph.kernels()[0]


@pytest.mark.parametrize(
    ("made", "reason"),
    [
        (lambda: _matrix_product(True), "not rows, columns and sum of a product with unit strides"),
        (lambda: _matrix_product(False, dace.int32), "elements of int; expected one floating type"),
        (lambda: _matrix_product(False, types.BFLOAT16), "bfloat16, float; expected .* summed in float32"),
        (lambda: _matrix_product(False, fn=lambda u, v: u + v), r"sums u \+ v; expected the product of u and v"),
        (lambda: _matrix_product(False, fn=lambda u, v: 2 * u * v), "expected the product of u and v"),
    ],
    ids=["turned", "integers", "narrow sum", "sum of sums", "scaled"],
)
def test_statements_that_are_no_products_are_refused(made: Callable[[], Made], reason: str) -> None:
    graph, entry = made()
    tree = loops_of(graph, entry).tree
    with pytest.raises(IllegalSchedule, match=reason):
        commit(graph, entry, edits.call(tree, 0, ("i0", "i1", "i2")))


def test_a_plain_product_may_be_one_call(tmp_path: Path) -> None:
    graph, entry = _matrix_product(False)
    commit(graph, entry, edits.call(loops_of(graph, entry).tree, 0, ("i0", "i1", "i2")))
    feeds = _feeds(graph)
    a, b = feeds.values()
    built = kernels.run(graph, feeds, tmp_path)[graph.outputs[0]]
    assert_within_rounding(built, a.astype(float) @ b.astype(float), a @ b)


@pytest.mark.share(3)
@pytest.mark.parametrize("shape", [(8, 5, 6), (1, 1, 2), (70, 130, 33), (33, 64, 64), (16, 100, 71)])
@pytest.mark.parametrize("turned", [False, True], ids=["rows", "turned"])
@pytest.mark.parametrize("library", ["torch_product", "native_product"])
def test_bfloat16_is_summed_in_float32(library: str, turned: bool, shape: Any, tmp_path: Path) -> None:
    if libs.get(library).available() is not None:
        pytest.skip("the library has no such micro-kernel")
    graph, entry = _matrix_product(turned, types.BFLOAT16, shape=shape, out=dace.float32)
    there = [p for p in ("i0", "i1", "i2") if p in {str(loop.param) for loop in loops(loops_of(graph, entry).tree)}]
    commit(graph, entry, edits.call(loops_of(graph, entry).tree, 0, there))
    rng = np.random.default_rng(0)
    feeds = {n: rng.standard_normal(graph.shape(n)).astype(ml_dtypes.bfloat16) for n in graph.inputs}
    a, b = (v.astype(np.float64) for v in feeds.values())
    exact = a @ (b.T if turned else b)
    np.testing.assert_allclose(
        interpret(graph, feeds, dtype=np.float64)[graph.outputs[0]], exact, rtol=1e-12, atol=1e-14
    )
    assert_within_rounding(interpret(graph, feeds)[graph.outputs[0]], exact)
    with libs.prefer(MicroProduct=library):
        assert_within_rounding(kernels.run(graph, feeds, tmp_path)[graph.outputs[0]], exact)


@pytest.mark.filterwarnings("ignore:TF32")
def test_a_narrow_product_does_without_torchs_onednn(tmp_path: Path) -> None:
    """Torch's micro-kernel reads packed panels as rows while its oneDNN is switched off."""
    graph, entry = _matrix_product(True, types.BFLOAT16, shape=(20, 70, 40), out=dace.float32)
    commit(graph, entry, edits.call(loops_of(graph, entry).tree, 0, ("i0", "i1", "i2")))
    rng = np.random.default_rng(0)
    feeds = {n: rng.standard_normal(graph.shape(n)).astype(ml_dtypes.bfloat16) for n in graph.inputs}
    a, b = (v.astype(np.float64) for v in feeds.values())
    for enabled in (True, False, True):
        with torch.backends.mkldnn.flags(enabled=enabled):
            assert_within_rounding(kernels.run(graph, feeds, tmp_path)[graph.outputs[0]], a @ b.T)
