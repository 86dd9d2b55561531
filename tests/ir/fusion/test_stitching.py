"""Kernels side by side: how each is cut into blocks, what the one loop looks like, and what it computes."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import dace
import numpy as np
import pytest
import sympy

from daceopt import recipes
from daceopt.codegen.cpu.kernel_source import kernel_source
from daceopt.ir.fusion.stitching import cut, side_by_side
from daceopt.ir.graph.graph import Graph
from daceopt.ir.interpreter.interpret import interpret
from daceopt.ir.nodes.builder import Builder
from daceopt.ir.schedule import schedule_text
from daceopt.ir.schedule.local_storage import fold_locals
from daceopt.passes.runner import Runner
from tests.transformations.lowered import compiled, size_symbol


def softmax(b: Builder, x: str) -> str:
    largest = b.reduce("max", None, x, axes=(1,), keepdims=True)
    powers = b.elementwise(lambda v, w: sympy.exp(v - w), x, largest)
    return str(b.elementwise(lambda v, w: v / w, powers, b.reduce("sum", None, powers, axes=(1,), keepdims=True)))


def doubled(b: Builder, x: str) -> str:
    return str(b.elementwise(lambda v: v * 2, x))


def total(b: Builder, x: str) -> str:
    return str(b.reduce("sum", None, x, axes=range(len(b.graph.shape(x)))))


def rows(b: Builder, x: str) -> str:
    return str(b.reduce("sum", None, x, axes=(1,)))


def columns(b: Builder, x: str) -> str:
    return str(b.reduce("sum", None, x, axes=(0,)))


def turned(b: Builder, x: str) -> str:
    return str(b.copy(b.transpose(x, (1, 0))))


def scheduled(*made: tuple[Any, tuple[Any, ...]]) -> Graph:
    """A kernel for each function on an input of its own."""
    graph = Graph("test")
    for build, shape in made:
        x = graph.add_input("x", shape, dace.float32)
        for axis, extent in enumerate(shape):
            if not isinstance(extent, int):
                graph.symbols.setdefault(str(extent), (x, axis))
        graph.add_output(build(Builder(graph), x))
    Runner(recipes.get("cpu"), "structure").run(graph, levels=("local", "hardware"))
    assert len(graph.nodes()) == len(made)
    return graph


def stitch(graph: Graph, *pieces: int) -> str:
    """Put all kernels of ``graph`` into one; returns its schedule."""
    entries = graph.kernels()
    kernels = [e.kernel for e in entries]
    kernel = side_by_side(graph, kernels, [cut(k, n) for k, n in zip(kernels, pieces)])
    for entry in entries:
        graph.remove(entry)
    made = graph.add_kernel(kernel, as_it_is=True)
    graph.validate()
    return "\n" + schedule_text.text(made.tree).rstrip()


def test_blocks_of_all_branches_in_one_loop() -> None:
    """What is reduced as a whole is one block; tiles of rows end where the rows do."""
    graph = scheduled((doubled, (400,)), (total, (500,)), (rows, (7, 300)))
    assert (
        re.sub(r"kernel_\d+", "kernel", stitch(graph, 4, 7, 3))
        == """
parallel for t < 8:
  if t < 4:
    vector for i0 < 112, 400 - 112*t:
      s0(i0 + 112*t)
  if t == 4:
    accumulate s1.out0:
      for i1_chunk < 2:
        accumulate own s1.out0:
          vector for i1 < 256, 500 - 256*i1_chunk:
            s1(i1 + 256*i1_chunk)
  if 5 <= t < 8:
    for i2 < 3, 22 - 3*t:
      local kernel_acc in thread:
        accumulate s2.out0:
          for i3_chunk < 2:
            accumulate own s2.out0:
              vector for i3 < 256, 300 - 256*i3_chunk:
                s2(i2 + 3*t - 15, i3 + 256*i3_chunk)
        s3(i2 + 3*t - 15)"""
    )


def test_a_branch_over_an_open_size_has_as_many_blocks_as_that_says() -> None:
    graph = scheduled((doubled, (size_symbol(), 33)), (doubled, (100,)))
    text = stitch(graph, 3, 2)
    assert "parallel for t < floor(" in text or "parallel for t < 2 + " in text or "+ 2:" in text, text
    check(graph, "open")


CASES = [
    (doubled, (3001,)),
    (softmax, (9, 70)),
    (total, (5000,)),
    (columns, (40, 24)),
    (turned, (33, 65)),
    (rows, (1, 9)),
]


@pytest.mark.parametrize("pieces", [1, 2, 5, 1000])
def test_all_classes_of_kernels(pieces: int) -> None:
    """Interpreted in the order of the schedule and compiled: as the kernels one after the other."""
    graph = scheduled(*CASES, (doubled, (0,)), (doubled, (1,)))
    stitch(graph, *[pieces] * 8)
    check(graph, f"classes{pieces}")


def check(graph: Graph, identity: str) -> None:
    """Against NumPy in float64."""
    rng = np.random.default_rng(3)
    given = {n: rng.standard_normal([e if isinstance(e, int) else 3 for e in graph.shape(n)]) for n in graph.inputs}
    given = {n: v.astype(np.float32) for n, v in given.items()}
    exact = interpret(graph, given, np.float64)
    alone = graph.copy()
    for node in alone.kernels():
        node.kernel = replace(node.kernel, schedule=None)
    plain = interpret(alone, given, np.float64)
    (built,) = compiled(f"side-by-side-{identity}", [graph], given=[given])
    for name, found in zip(graph.outputs, built, strict=True):
        np.testing.assert_allclose(exact[name], plain[name], rtol=1e-12, atol=1e-12)
        scale = np.abs(plain[name]).max(initial=1.0)
        np.testing.assert_allclose(found, plain[name], rtol=0, atol=64 * np.finfo(np.float32).eps * scale)


def test_locals_take_what_one_iteration_needs() -> None:
    """A row of the softmax each, and not all of its rows, though the whole has no loop that all stages share."""
    graph = scheduled((softmax, (64, 100)), (doubled, (5000,)))
    stitch(graph, 4, 4)
    (entry,) = graph.kernels()
    kernel = entry.kernel
    assert sorted(shape for _, shape in kernel.locals.values()) == [(64, 1), (64, 1), (64, 100)]
    small = fold_locals(kernel, kernel.schedule)
    assert sorted(shape for _, shape in small.locals.values()) == [(1,), (1,), (100,)]
    assert "[100];" in kernel_source(graph, kernel).text and "[6400];" not in kernel_source(graph, kernel).text


def test_a_local_that_lives_longer_keeps_its_dimensions() -> None:
    graph = scheduled((softmax, (64, 100)))
    (entry,) = graph.kernels()
    kernel = entry.kernel
    assert fold_locals(kernel, kernel.schedule) is kernel
