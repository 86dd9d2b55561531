"""The functions that the header of the CPU has itself, over all that their arguments can be."""

from __future__ import annotations

from pathlib import Path

import dace
import numpy as np
import pytest
import sympy

from daceopt.ir.builder import Builder
from daceopt.ir.graph import Graph
from tests.codegen.cpu.kernels import run

_INTEGERS = {np.float32: np.uint32, np.float64: np.uint64}


def _everything(kind: type) -> np.ndarray:
    """Bit patterns at equal distances: both signs, all exponents, infinities, NaN, what is no normal number; and the
    arguments around which the result ends to be a normal number, to be anything but 0, and to be finite."""
    bits, count = np.dtype(_INTEGERS[kind]), 1 << 18
    spread = (np.arange(count, dtype=bits) * bits.type((1 << 8 * bits.itemsize) // count + 1)).view(kind)
    info = np.finfo(kind)
    edges = [np.log(float(info.tiny)), np.log(float(info.smallest_subnormal)), np.log(float(info.max))]
    close = np.concatenate([np.linspace(e - 1.5, e + 1.5, 4096) for e in edges])
    special = [0.0, -0.0, np.inf, -np.inf, np.nan]
    others = np.concatenate([np.linspace(-110, 90, 1 << 16), np.linspace(-1, 1, 1 << 16), close, special])
    return np.concatenate([spread, others.astype(kind)])


@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_exp_is_right_to_about_a_unit(kind: type, tmp_path: Path) -> None:
    """Where the result is no normal number, too; it is zero and infinite where it has to be."""
    data = _everything(kind)
    graph = Graph("exponential")
    x = graph.add_input("x", data.shape, dace.dtypes.typeclass(kind))
    y = Builder(graph).elementwise(sympy.exp, x)
    graph.add_output(y)
    found = run(graph, {x: data}, tmp_path)[y]
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        exact = np.exp(data.astype(np.longdouble))
        rounded = exact.astype(kind)
    ends = ~np.isfinite(rounded) | (rounded == 0)
    np.testing.assert_array_equal(found[ends], rounded[ends])
    unit = np.spacing(np.maximum(np.abs(rounded[~ends]), np.finfo(kind).tiny))
    assert float(np.max(np.abs(found[~ends] - exact[~ends]) / unit)) < 1.1
