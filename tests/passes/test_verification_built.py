"""What was compiled is compared with the graph: wrong code is found, right code passes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dace
import numpy as np
import pytest
import sympy

from daceopt import libs, pipeline, recipes
from daceopt.codegen import target
from daceopt.codegen.bundle import Bundle
from daceopt.errors import VerificationError
from daceopt.ir.control.imported import Gradients, Imported
from daceopt.ir.graph.graph import Graph
from daceopt.ir.nodes.builder import Builder
from daceopt.passes.verification_built import Built, check
from daceopt.programs import derivation

F = dace.float32


@pytest.fixture
def planted(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    """Let printed kernels have one text in place of another."""

    def plant(right: str, wrong: str) -> None:
        original = target.get("cpu").print_kernel

        def changed(*args: Any) -> Any:
            source = original(*args)
            return dataclasses.replace(source, text=source.text.replace(right, wrong))

        found = dataclasses.replace(target.get("cpu"), print_kernel=changed)
        monkeypatch.setitem(target._TARGETS, "cpu", found)

    return plant


def norm(shape: tuple[Any, ...] = (4, 30), dtype: dace.typeclass = F) -> Graph:
    """A row less its mean, through tanh, times a weight; another output is the sum of all."""
    graph = Graph("norm")
    x, w = graph.add_input("x", shape, dtype), graph.add_input("w", (30,), dtype)
    for axis, extent in enumerate(shape):
        if not isinstance(extent, int):
            graph.symbols[str(extent)] = (x, axis)
    b = Builder(graph)
    mean = b.reduce("sum", lambda v: v / 30, x, axes=(1,), keepdims=True)
    y = b.elementwise(lambda v, m, s: sympy.tanh(v - m) * s, x, mean, w)
    graph.add_output(y)
    graph.add_output(b.reduce("sum", lambda v: v * v / 30, y, axes=(0, 1)))
    return graph


def verify(graph: Graph, backward: bool = False, inputs: dict[str, np.ndarray] | None = None) -> None:
    """Compile both directions and check them."""
    everything = Gradients(tuple(range(len(graph.inputs))), tuple(range(len(graph.outputs))))
    graphs = derivation.derive(Imported(graph, everything if backward else None), recipes.get("cpu"))
    bundle, directions = Bundle(), graphs.directions()
    check(*(Built(g, r, bundle.add(g, r, libs.implement)) for g, r in directions), inputs=inputs)


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("dtype", [F, dace.float64, "bfloat16"])
def test_right_programs_pass(dtype: Any, backward: bool) -> None:
    from daceopt.ir.scalar import types

    verify(norm(dtype=types.from_name(dtype) if isinstance(dtype, str) else dtype), backward)


@pytest.mark.parametrize("backward", [False, True])
def test_sizes_known_at_run_time(backward: bool) -> None:
    verify(norm((dace.symbolic.symbol("s0", dace.int64), 30)), backward)


@pytest.mark.parametrize("shape", [(0, 30), (1, 30)])
def test_few_rows(shape: tuple[int, int]) -> None:
    verify(norm(shape), backward=True)


def test_a_wrong_function_is_found(planted: Any) -> None:
    planted("tanhf(", "sinf(")
    with pytest.raises(VerificationError, match=r"output:0 \(kernel_\d+\) is .* at \[\d+, \d+\], the graph says"):
        verify(norm())


def test_a_wrong_gradient_is_found(planted: Any) -> None:
    planted("1.0f - ", "1.5f - ")  # the derivative of tanh
    verify(norm())
    with pytest.raises(VerificationError, match=r"norm_backward: grad_input:\d"):
        verify(norm(), backward=True)


def test_what_is_not_written_is_found(planted: Any) -> None:
    planted("for (int64_t i0 = 0; i0 < 4", "for (int64_t i0 = 0; i0 < 3")
    with pytest.raises(VerificationError, match=r"is nan at \[3, 0\]"):
        verify(norm())


def test_what_is_written_beyond_the_end_is_found(planted: Any) -> None:
    planted("for (int64_t i0 = 0; i0 < 4", "for (int64_t i0 = 0; i0 < 6")
    with pytest.raises(VerificationError, match="wrote outside of output"):
        verify(norm())


def test_what_is_read_beyond_the_end_is_found(planted: Any) -> None:
    planted("p1[i1]", "p1[i1 + 1]")
    with pytest.raises(VerificationError, match=r"output:\d .* is nan at \["):
        verify(norm())


def test_an_input_that_is_written_is_found(planted: Any) -> None:
    planted("    p3[0] = ", "    const_cast<float*>(p1)[29] = 7; p3[0] = ")
    with pytest.raises(VerificationError, match="wrote to input:1"):
        verify(norm())


def test_the_reproducer_has_the_code_and_the_inputs(planted: Any) -> None:
    planted("tanhf(", "sinf(")
    with pytest.raises(VerificationError, match="reproducer in ") as caught:
        verify(norm(), inputs={"x_1": np.arange(120, dtype=np.float32).reshape(4, 30)})
    text = Path(str(caught.value).rpartition("reproducer in ")[2]).read_text()
    assert "sinf(" in text and "output:0" in text and "x_1" in text.partition("INPUTS = {")[2]


def test_the_pipeline_checks_what_it_compiled(planted: Any) -> None:
    planted("tanhf(", "sinf(")
    pipeline.compile_graph("wrong norm", lambda _: Imported(norm()), recipe="cpu", verify="structure")
    with pytest.raises(VerificationError, match="compiled program of graph norm"):
        pipeline.compile_graph("wrong norm", lambda _: Imported(norm()), recipe="cpu", verify="numerics")
