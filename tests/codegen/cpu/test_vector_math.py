"""The functions that the header of the CPU has itself, over all that their arguments can be."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dace
import numpy as np
import pytest
import sympy

from daceopt.ir.graph.graph import Graph
from daceopt.ir.nodes.builder import Builder
from daceopt.ir.scalar import scalar
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


ONE: dict[
    str, tuple[Callable[..., Any], Callable[..., Any], float]
] = {  # the exact function, and units that it may be off
    "exp2": (scalar.exp2, np.exp2, 1.8),
    "log2": (scalar.log2, np.log2, 2.0),
    "log10": (scalar.log10, np.log10, 2.0),
    "erfc": (scalar.erfc, np.vectorize(math.erfc, otypes=[np.float64]), 4.0),
}
TWO: dict[str, tuple[Callable[..., Any], Callable[..., Any], float]] = {
    "atan2": (scalar.atan2, np.arctan2, 2.5),
    "hypot": (scalar.hypot, np.hypot, 2.5),
    "nextafter": (scalar.nextafter, np.nextafter, 0.0),
    "fmod": (scalar.fmod, np.fmod, 0.0),
}


def _compared(
    fn: Callable[..., Any], exact: Callable[..., Any], data: list[np.ndarray], units: float, to: Path
) -> None:
    """``fn`` beside ``exact`` of wider numbers: the same signs, zeros and infinities, and at most ``units`` off."""
    kind = data[0].dtype
    graph = Graph("function")
    names = [graph.add_input("x", d.shape, dace.dtypes.typeclass(kind.type)) for d in data]
    y = Builder(graph).elementwise(fn, *names)
    graph.add_output(y)
    found = run(graph, dict(zip(names, data, strict=True)), to)[y]
    with np.errstate(all="ignore"):
        wide = exact(*data if units == 0 else (d.astype(np.longdouble) for d in data))
        rounded = wide.astype(kind)
    ends = ~np.isfinite(rounded) | (wide == 0)  # others that round to 0 may be the smallest number
    np.testing.assert_array_equal(found[ends], rounded[ends])
    signed = ends & ~np.isnan(rounded)
    np.testing.assert_array_equal(np.signbit(found[signed]), np.signbit(rounded[signed]))
    unit = np.spacing(np.clip(np.abs(rounded[~ends]), np.finfo(kind).tiny, np.finfo(kind).max / 2))
    assert float(np.max(np.abs(found[~ends] - wide[~ends]) / unit)) <= units


@pytest.mark.parametrize("kind", [np.float32, np.float64])
@pytest.mark.parametrize("name", ONE)
def test_functions_of_one(name: str, kind: type, tmp_path: Path) -> None:
    fn, exact, units = ONE[name]
    with np.errstate(over="ignore"):
        powers = np.concatenate([np.exp2(np.arange(-1074.0, 1024)), 10.0 ** np.arange(-300, 300)]).astype(kind)
    data = np.concatenate([_everything(kind), np.arange(-1080, 1030, 0.5).astype(kind)])
    _compared(fn, exact, [np.concatenate([data, powers])], units, tmp_path)


@pytest.mark.parametrize("kind", [np.float32, np.float64])
@pytest.mark.parametrize("name", TWO)
def test_functions_of_two(name: str, kind: type, tmp_path: Path) -> None:
    fn, exact, units = TWO[name]
    wild, near = _everything(kind), np.random.default_rng(0).normal(size=(2, 1 << 14)).astype(kind)
    ends = np.array([0, 1, np.inf, np.finfo(kind).tiny, np.finfo(kind).smallest_subnormal, np.finfo(kind).max], kind)
    corners = np.meshgrid(*[np.concatenate([ends, -ends, np.array([np.nan], kind)])] * 2)
    second = np.random.default_rng(1).permutation(wild)
    pairs = [(wild, second), near, (near[0], near[0]), (near[0] * kind(1e6), near[1]), [c.ravel() for c in corners]]
    _compared(fn, exact, [np.concatenate([p[k] for p in pairs]) for k in range(2)], units, tmp_path)


def test_exponentials_for_bfloat16(tmp_path: Path) -> None:
    """Off by less than 2^-18; 0 instead of what is no normal number, infinite from 2^127.5 on."""
    data = np.concatenate([np.linspace(-87.3, 88.7, 1 << 18).astype(np.float32), _everything(np.float32)])
    graph = Graph("exponential")
    x = graph.add_input("x", data.shape, dace.float32)
    y = Builder(graph).elementwise(scalar.exp_rounded, x)
    graph.add_output(y)
    found = run(graph, {x: data}, tmp_path)[y]
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        exact = np.exp(data.astype(np.float64))
    normal = (exact >= np.finfo(np.float32).tiny) & (exact < 2.0**127.5)
    error = np.abs(found[normal] / exact[normal] - 1)
    assert float(error.max()) < 2.0**-18
    small = exact < np.finfo(np.float32).tiny
    assert float(found[small].max()) <= 2.0**-126 and not found[exact < 2.0**-127].any()
    np.testing.assert_array_equal(found[exact > 2.0**128], np.inf)
    np.testing.assert_array_equal(np.isnan(found), np.isnan(data))


def test_exponentials_for_weights(tmp_path: Path) -> None:
    """Bit for bit those of exp from 2^-100 to 2^127.5, 0 below; never a subnormal number."""
    data = np.concatenate([np.linspace(-105, 89, 1 << 18).astype(np.float32), _everything(np.float32)])
    graph = Graph("exponential")
    x = graph.add_input("x", data.shape, dace.float32)
    b = Builder(graph)
    names = [b.elementwise(fn, x) for fn in (scalar.exp_weight, sympy.exp)]
    for name in names:
        graph.add_output(name)
    results = run(graph, {x: data}, tmp_path)
    weights, exact = (results[name] for name in names)
    same = (exact >= 2.0**-99) & (exact < 2.0**127) | np.isnan(data)
    np.testing.assert_array_equal(weights[same], exact[same])
    assert not weights[exact < 2.0**-101].any()
    assert not weights[weights < 2.0**-101].any()
    np.testing.assert_array_equal(weights[np.isposinf(exact)], np.inf)
