"""Narrow types in compiled kernels: every bit pattern is read, every value rounded as ml_dtypes does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import sympy

from daceopt.codegen.scalar.printer import Printer
from daceopt.ir.graph.graph import Graph
from daceopt.ir.interpreter.interpret import interpret
from daceopt.ir.kernel.tasklet import Assignment
from daceopt.ir.nodes.builder import Builder
from daceopt.ir.scalar import scalar, types
from daceopt.ops.core import algorithm
from daceopt.transformations.local.map_fusion import MapFusion
from tests.codegen.cpu.kernels import run, sources_of
from tests.numerics import assert_within_rounding
from tests.transformations.lowered import apply, compiled, finish

NAMES = [types.name_of(t) for t in types.NARROW]
FLOAT32 = types.from_name("float32")


def codes(dtype: types.DType) -> np.ndarray:
    """Every value of the type once."""
    width = {"4": 4, "2": 2, "6": 6}.get(types.name_of(dtype).lstrip("uintfloa")[0], 8)
    count = 1 << (16 if types.itemsize(dtype) == 2 else width)
    return np.arange(count, dtype=types.to_numpy(types.bits(dtype))).view(types.to_numpy(dtype))


def samples(dtype: types.DType) -> np.ndarray:
    """Floats of all sizes, the values of the type, what lies halfway between them, and their neighbours."""
    generator = np.random.default_rng(0)
    values = np.unique(codes(dtype)[:: max(1, len(codes(dtype)) // 256)].astype(np.float64))
    values = values[np.isfinite(values)]
    near = np.concatenate([values, (values[1:] + values[:-1]) / 2]).astype(np.float32)
    near = np.concatenate([near, np.nextafter(near, np.float32(np.inf)), np.nextafter(near, np.float32(-np.inf))])
    spread = generator.standard_normal(500) * 10.0 ** generator.integers(-9, 9, 500)
    special = [0.0, -0.0, np.inf, -np.inf, np.nan, 65504, 65519, 65520, 448, 464, 465, 57344, 61440, 1e30]
    return np.concatenate([near, spread, special]).astype(np.float32)


def assert_same(found: np.ndarray, wanted: np.ndarray) -> None:
    """Equal bit for bit, but any NaN equals any other."""
    wrong = ~((found == wanted) & (np.signbit(found) == np.signbit(wanted)) | (np.isnan(found) & np.isnan(wanted)))
    assert not wrong.any(), (found[wrong][:8], wanted[wrong][:8])


@pytest.mark.parametrize("name", NAMES)
def test_every_code_is_read_and_written(name: str, tmp_path: Path) -> None:
    dtype = types.from_name(name)
    given = codes(dtype)
    graph = Graph("read")
    x = graph.add_input("x", given.shape, dtype)
    b = Builder(graph)
    wide, again = b.cast(x, FLOAT32), b.copy(x)
    found = run(graph, {x: given}, tmp_path)
    wanted = given.astype(np.float32)
    assert_same(found[wide], wanted)
    np.testing.assert_array_equal(found[again].view(np.uint8), given.view(np.uint8))  # of NaN, too
    assert_same(interpret_outputs(graph, x, given, wide), wanted)


def interpret_outputs(graph: Graph, x: str, given: np.ndarray, name: str) -> np.ndarray:
    graph = graph.copy()
    graph.add_output(name)
    return interpret(graph, {x: given})[name]


@pytest.mark.share(2)
@pytest.mark.parametrize("source", ["float32", "float64", "int32"])
@pytest.mark.parametrize("name", NAMES)
def test_values_are_rounded_as_ml_dtypes_rounds(name: str, source: str, tmp_path: Path) -> None:
    dtype = types.from_name(name)
    given = samples(dtype)
    if types.is_integer(dtype) or source == "int32":
        given = np.clip(np.nan_to_num(given), -(2.0**30), 2.0**30)
    if source == "float64":
        given = given.astype(np.float64) * (1 + 2.0**-40)
    given = given.astype(source)
    if name == "float8_e8m0fnu":
        given = np.abs(given)
    graph = Graph("round")
    x = graph.add_input("x", given.shape, types.from_name(source))
    b = Builder(graph)
    narrow = b.cast(x, dtype)
    rounded = b.elementwise(lambda v: scalar.cast(v, dtype), x, dtype=FLOAT32)
    found = run(graph, {x: given}, tmp_path)
    wanted = interpret_outputs(graph, x, given, rounded)
    assert_same(found[rounded], wanted)
    assert_same(found[narrow].astype(np.float32), wanted)
    finite = given if name != "float8_e8m0fnu" else wanted  # which ml_dtypes rounds to the nearest, ONNX up
    limit = float(ml_dtypes.finfo(types.to_numpy(dtype)).max) if name.startswith("float8") else np.inf
    if types.is_float(dtype):
        with np.errstate(all="ignore"):
            assert_same(wanted, np.clip(finite, -limit, limit).astype(types.to_numpy(dtype)).astype(np.float32))


@pytest.mark.parametrize("name", ["bfloat16", "float16"])
def test_what_is_stored_is_rounded_by_that_alone(name: str, tmp_path: Path) -> None:
    """Who reads it beside, in the same iteration, gets it rounded."""
    dtype, given = types.from_name(name), samples(types.from_name(name))
    for read in (False, True):
        graph = Graph("store")
        x = graph.add_input("x", given.shape, FLOAT32)
        b = Builder(graph)
        kept = b.elementwise(lambda v: scalar.cast(v * 1.5, dtype), x, dtype=dtype)
        outputs = [kept, b.elementwise(lambda v: v * 3, kept, dtype=FLOAT32)] if read else [kept]
        finish(graph, *outputs)
        apply(MapFusion(), graph)
        (source,) = sources_of(graph)
        assert (f"{name}::round(" in source.text) is read and f"{name}::store(" in source.text
        found = run(graph, {x: given}, tmp_path)
        with np.errstate(all="ignore"):
            wanted = (given * np.float32(1.5)).astype(types.to_numpy(dtype))
            assert_same(found[kept].astype(np.float32), wanted.astype(np.float32))
            if read:
                assert_same(found[outputs[1]], wanted.astype(np.float32) * 3)


@pytest.mark.parametrize("name", ["bfloat16", "float16"])
def test_truth_values_become_ones(name: str, tmp_path: Path) -> None:
    graph = Graph("ones")
    x = graph.add_input("x", (70,), types.from_name("bool"))
    ones = Builder(graph).cast(x, types.from_name(name))
    given = np.arange(70) % 3 == 0
    np.testing.assert_array_equal(run(graph, {x: given}, tmp_path)[ones].astype(np.float32), given.astype(np.float32))


@pytest.mark.parametrize("name", [n for n in NAMES if n.startswith(("float8_e4", "float8_e5"))])
def test_unbounded_casts_overflow(name: str, tmp_path: Path) -> None:
    dtype = types.from_name(name)
    given = samples(dtype)
    graph = Graph("round")
    x = graph.add_input("x", given.shape, FLOAT32)
    rounded = Builder(graph).elementwise(lambda v: scalar.cast(v, dtype, "unbounded"), x, dtype=FLOAT32)
    with np.errstate(all="ignore"):
        wanted = given.astype(types.to_numpy(dtype)).astype(np.float32)
    assert_same(run(graph, {x: given}, tmp_path)[rounded], wanted)


def test_half_types_compute_in_float32(tmp_path: Path) -> None:
    """1 + 2**-9 is no half number: rounded once, after the sum of two of them."""
    half = types.from_name("bfloat16")
    graph = Graph("sum")
    x = graph.add_input("x", (4, 5), half)
    b = Builder(graph)
    out = graph.add_array("total", (4,), half)
    b.reduce("sum", lambda v: v * (1 + 2.0**-9), x, axes=[1], out=out)
    given = np.ones((4, 5), ml_dtypes.bfloat16)
    wanted = np.full(4, 5 * (1 + 2.0**-9)).astype(ml_dtypes.bfloat16)
    np.testing.assert_array_equal(run(graph, {x: given}, tmp_path)[out], wanted)


_SUMS: dict[str, Any] = {"sum": np.sum, "prod": np.prod, "max": np.max, "min": np.min}


@pytest.mark.share(2)
@pytest.mark.parametrize("kind", _SUMS)
@pytest.mark.parametrize("name", ["bfloat16", "float16", "float8_e5m2"])
def test_reductions_collect_wide_and_store_narrow(name: str, kind: str, tmp_path: Path) -> None:
    """700 elements: added up in the type itself, the sum would stand still; both orders of the loops."""
    dtype, rng = types.from_name(name), np.random.default_rng(4)
    values = rng.standard_normal((700, 6)) * 0.02 + (1 if kind == "prod" else 0.3)
    given = values.astype(types.to_numpy(dtype))
    if kind == "prod" and name == "float8_e5m2":
        given[5:] = 1
    graph = Graph("reduce")
    x = graph.add_input("x", given.shape, dtype)
    b = Builder(graph)
    columns = b.reduce(kind, None, x, axes=[0], dtype=dtype)
    whole = b.reduce(kind, None, x, axes=[0, 1], keepdims=True, dtype=dtype)
    found = run(graph, {x: given}, tmp_path)
    for result, axis in ((columns, 0), (whole, (0, 1))):
        assert graph.dtype(result) == dtype
        exact = np.asarray(_SUMS[kind](given.astype(np.float64), axis=axis, keepdims=axis != 0))
        wanted = np.clip(exact, -57344, 57344) if name == "float8_e5m2" else exact
        assert_within_rounding(found[result], wanted, ulps=0.51)
        assert_within_rounding(interpret_outputs(graph, x, given, result), wanted, ulps=0.51)


@pytest.mark.parametrize("name", ["bfloat16", "float16"])
@pytest.mark.parametrize("product", [0, 1])
def test_running_sums_collect_wide(name: str, product: int) -> None:
    dtype = types.from_name(name)
    values = np.random.default_rng(5).standard_normal((700, 2)) * 0.02 + (1 if product else 0.3)
    given = values.astype(types.to_numpy(dtype))
    graph = Graph("cumulate")
    x = graph.add_input("x", given.shape, dtype)
    y = graph.add_array("y", given.shape, dtype)
    algorithm.call(Builder(graph), "cumulate", [x], [y], [1, 700, 2, 0, 0, product])
    graph.add_output(y)
    wanted = (np.cumprod if product else np.cumsum)(given.astype(np.float64), axis=0)
    (built,) = compiled(f"running sums {name} {product}", [graph], given=[{x: given}])
    for found in (built[0], interpret(graph, {x: given})[y]):
        assert found.dtype == given.dtype
        assert_within_rounding(found, wanted, ulps=0.51)


def test_scalar_code_never_has_a_type_of_storage() -> None:
    half = types.from_name("bfloat16")
    x = scalar.symbol("x", half)
    assignment = Assignment(scalar.symbol("y", half), x * 0.1, half)
    assert assignment.dtype == FLOAT32
    printer = Printer({x: half})
    assert printer.text(scalar.idiv(3, 2) * x, half).startswith("(")
    for expr in (x, x * 0.1, sympy.Integer(3), sympy.exp(x), scalar.infinity()):
        assert "uint16" not in printer.text(expr, half)
