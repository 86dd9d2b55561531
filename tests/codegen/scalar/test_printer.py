"""C++ text of expressions, and the accuracy of every function and algebraic rule over the whole range of float32."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import dace
import numpy as np
import pytest
import sympy

from daceopt.codegen.compiler import CompileJob, compile_objects, link
from daceopt.codegen.cpu.kernel_source import kernel_source
from daceopt.codegen.kernel_unit import support_header
from daceopt.codegen.scalar.printer import Printer, literal
from daceopt.errors import Unsupported
from daceopt.ir.graph.graph import Graph
from daceopt.ir.nodes.builder import Builder
from daceopt.ir.scalar import scalar
from tests.codegen.cpu.kernels import EXPORT

F, D = dace.float32, dace.float64
x, y = scalar.symbol("x", F), scalar.symbol("y", F)
n, c = scalar.symbol("n", dace.int8), scalar.symbol("c", dace.bool_)
KNOWN = {x: F, y: F, n: dace.int8, c: dace.bool_}


@pytest.mark.parametrize(
    ("expr", "text"),
    [
        (x / 3 + 1, "(1.0f + (x / 3.0f))"),
        (0.1 * x - 2 * y, "(((-2.0f) * y) + (0.1f * x))"),
        (y / x**2, "(y / dop::ipow<2>(x))"),
        (1 / sympy.sqrt(x), "(1.0f / dop::sqrt(x))"),
        (x**2.5, "dop::half_power<2>(x)"),
        (x**8, "dop::ipow<8>(x)"),
        (x**31, "dop::power(x, 31.0f)"),
        (x**y, "dop::power(x, y)"),
        (n * 2 + 1, "int8_t(int8_t(1) + int8_t(int8_t(2) * n))"),
        (n / 2, "(0.5f * float(n))"),
        (scalar.select(c, x, 0), "dop::select(c, x, 0.0f)"),
        (scalar.cast(x, D) + y, "(double(y) + double(x))"),
        (x - y, "(x - y)"),
        (sympy.erf(x / sympy.sqrt(2)), "dop::erf((0.70710677f * x))"),
        (scalar.eq(n, 3), "(n == int8_t(3))"),
        (-scalar.infinity() * 1, "(-dop::infinity<float>())"),
        (scalar.isnan(x), "dop::isnan(x)"),
    ],
)
def test_text(expr, text: str) -> None:
    assert Printer(KNOWN).text(expr, scalar.dtype_of(expr, KNOWN)) == text


def test_sizes_are_whole() -> None:
    m, n = (dace.symbolic.symbol(name, dace.int64) for name in "mn")
    assert Printer({}).size(m * n / 4) == "dop::floordiv((m * n), INT64_C(4))"
    assert Printer({}).size(m + 3) == Printer({}).text(m + 3, dace.int64)


def test_literals_are_exact_or_refused() -> None:
    assert literal(sympy.Rational(1, 10), F) == "0.1f"
    assert literal(sympy.Float("1e-8"), F) == "1e-08f"
    assert literal(sympy.Float(0.1), D) == "0.1"
    assert literal(sympy.Integer(-(2**63)), dace.int64) == "(-INT64_C(9223372036854775807) - 1)"
    with pytest.raises(Unsupported, match="does not fit"):
        literal(sympy.Integer(300), dace.uint8)


def _bit_patterns() -> np.ndarray:
    rng = np.random.default_rng(1)
    bits = rng.integers(0, 1 << 32, 1 << 17, dtype=np.uint32).view(np.float32)
    special = [
        0.0,
        -0.0,
        1e-45,
        -1e-45,
        1.1754944e-38,
        3.4028235e38,
        np.inf,
        -np.inf,
        np.nan,
        20,
        20.000002,
        88.73,
        -104,
    ]
    usual = np.linspace(-30, 30, 1 << 16)
    return np.concatenate([bits, np.array(special, np.float32), usual.astype(np.float32)])


_FUNCTIONS = {
    "sigmoid": scalar.sigmoid,
    "softplus": scalar.softplus,
    "tanh_softplus": lambda v: sympy.tanh(scalar.softplus(v)),
    "log_one_plus_exp": lambda v: sympy.tanh(sympy.log(1 + sympy.exp(v))),
    "exp": sympy.exp,
    "log": sympy.log,
    "log1p": scalar.log1p,
    "expm1": scalar.expm1,
    "exp2": scalar.exp2,
    "log2": scalar.log2,
    "log10": scalar.log10,
    "erfc": scalar.erfc,
    "atan2": lambda v: scalar.atan2(v, 2),
    "divide": lambda v: scalar.divide(v, 49),
    "hypot": lambda v: scalar.hypot(v, 3),
    "copysign": lambda v: scalar.copysign(3, v),
    "tanh": sympy.tanh,
    "erf": sympy.erf,
    "sqrt": sympy.sqrt,
    "cube": lambda v: v**3,
    "atan": sympy.atan,
    "asinh": sympy.asinh,
    "maximum": lambda v: scalar.maximum(v, 1),
    "minimum": lambda v: scalar.minimum(1, v),
    "sign": scalar.sign,
    "floor": scalar.floor,
    "round_even": scalar.round_even,
    "isnan": scalar.isnan,
    "isinf": scalar.isinf,
    "absolute": abs,
    "fmod": lambda v: scalar.fmod(v, 0.75),
}


_OF_TWO = {
    "fmod": scalar.fmod,
    "pymod": scalar.pymod,
    "atan2": scalar.atan2,
    "hypot": scalar.hypot,
    "nextafter": scalar.nextafter,
}


def _pairs() -> tuple[np.ndarray, np.ndarray]:
    """Any two bit patterns, numbers of usual sizes, and all pairs of special ones."""
    rng = np.random.default_rng(2)
    bits = rng.integers(0, 1 << 32, (2, 1 << 17), dtype=np.uint32).view(np.float32)
    usual = rng.standard_normal((2, 1 << 15)).astype(np.float32)
    special = np.float32([0, 1e-45, 1e-40, 1.1754944e-38, 0.75, 1, 3, 1e20, 3.4028235e38, np.inf, np.nan])
    special = np.concatenate([special, -special])
    grid = np.stack(np.meshgrid(special, special)).reshape(2, -1)
    first, second = np.concatenate([bits, usual, grid], 1)
    return first.copy(), second.copy()


def _computed(folder: Path, functions: dict[str, Any], *points: np.ndarray) -> dict[str, np.ndarray]:
    """All functions at all points, compiled together."""
    graph = Graph("functions")
    b = Builder(graph)
    operands = [graph.add_input("v", (len(p),), F) for p in points]
    arrays = {name: b.elementwise(function, *operands) for name, function in functions.items()}
    sources = [kernel_source(graph, e.kernel) for e in graph.kernels()]
    texts = dict.fromkeys(s.text for s in sources)  # the two forms of tanh(softplus(x)) are one kernel
    link(compile_objects([CompileJob(EXPORT + "\n".join([support_header(""), *texts]))]), folder / "functions.so")
    library = ctypes.CDLL(str(folder / "functions.so"))
    memory = dict(zip(operands, points, strict=True))
    memory |= {a: np.empty(len(points[0]), graph.dtype(a).type) for a in arrays.values()}
    for source in sources:
        getattr(library, source.name)(*(ctypes.c_void_p(memory[a.array].ctypes.data) for a in source.arguments))
    return {name: memory[array] for name, array in arrays.items()}


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, np.ndarray]:
    return _computed(tmp_path_factory.mktemp("functions"), _FUNCTIONS, _bit_patterns())


@pytest.fixture(scope="module")
def results_of_two(tmp_path_factory: pytest.TempPathFactory) -> dict[str, np.ndarray]:
    return _computed(tmp_path_factory.mktemp("functions_of_two"), _OF_TWO, *_pairs())


@pytest.mark.parametrize("name", list(_FUNCTIONS))
def test_accuracy_over_the_whole_range(name: str, results: dict[str, np.ndarray]) -> None:
    """Within four units in the last place, and NaN and infinities where float64 rounded to float32 has them."""
    points = _bit_patterns()
    found = results[name]
    expr = _FUNCTIONS[name](x)
    if name == "log_one_plus_exp":
        expr = sympy.tanh(scalar.softplus(x))
    exact = scalar.evaluate(expr, {x: points}, D)
    if found.dtype == np.bool_:
        np.testing.assert_array_equal(found, exact)
        return
    _assert_accurate(found, exact, points)


def _assert_accurate(found: np.ndarray, exact: np.ndarray, *points: np.ndarray) -> None:
    with np.errstate(over="ignore"):
        rounded = exact.astype(np.float32)
    np.testing.assert_array_equal(np.isnan(found), np.isnan(rounded))
    np.testing.assert_array_equal(found[np.isinf(rounded)], rounded[np.isinf(rounded)])
    fine = np.isfinite(rounded)
    assert np.isfinite(found[fine]).all()
    info = np.finfo(np.float32)
    unit = np.spacing(np.clip(np.abs(rounded[fine]), info.tiny, info.max / 2)).astype(np.float64)
    error = np.abs(found[fine] - exact[fine]) / unit
    assert error.max() <= 4, f"{error.max()} ulp at {[p[fine][error.argmax()] for p in points]}"


@pytest.mark.parametrize("name", ["atan2", "hypot"])
def test_accuracy_of_two_operands(name: str, results_of_two: dict[str, np.ndarray]) -> None:
    """The same, with the sign of zeros: the angle of (-0, 1) is -0, that of (-0, -1) is -pi."""
    first, second = _pairs()
    exact = scalar.evaluate(_OF_TWO[name](x, y), {x: first, y: second}, D)
    found = results_of_two[name]
    _assert_accurate(found, exact, first, second)
    known = ~np.isnan(exact)
    np.testing.assert_array_equal(np.signbit(found[known]), np.signbit(exact[known]))


@pytest.mark.parametrize("name", ["fmod", "pymod", "nextafter"])
def test_exact_functions_of_two_operands(name: str, results_of_two: dict[str, np.ndarray]) -> None:
    """Remainders are exact for quotients of any size; zeros have the sign of what is divided."""
    first, second = _pairs()
    with np.errstate(all="ignore"):
        rest = np.fmod(first, second)
        floored = np.where((rest != 0) & ((rest < 0) != (second < 0)), rest + second, rest)
        exact = {"fmod": rest, "pymod": floored, "nextafter": np.nextafter(first, second)}[name]
    found = results_of_two[name]
    np.testing.assert_array_equal(found, exact)
    known = ~np.isnan(exact)
    np.testing.assert_array_equal(np.signbit(found[known]), np.signbit(exact[known]))


def test_powers_of_the_base_are_exact(tmp_path: Path) -> None:
    whole = np.arange(-149, 128, dtype=np.float32)
    tens = np.arange(0, 11, dtype=np.float32)  # beyond, powers of ten are rounded
    points = np.concatenate([2.0 ** whole.astype(np.float64), 10.0 ** tens.astype(np.float64), whole]).astype(
        np.float32
    )
    functions = {name: _FUNCTIONS[name] for name in ("log2", "log10", "exp2")}
    found = _computed(tmp_path, functions, points)
    np.testing.assert_array_equal(found["log2"][: len(whole)], whole)
    np.testing.assert_array_equal(found["log10"][len(whole) : -len(whole)], tens)
    np.testing.assert_array_equal(found["exp2"][-len(whole) :], points[: len(whole)])
