"""C++ text of expressions, and the accuracy of every function and algebraic rule over the whole range of float32."""

from __future__ import annotations

import ctypes
from pathlib import Path

import dace
import numpy as np
import pytest
import sympy

from daceopt.codegen.compiler import CompileJob, compile_objects, link
from daceopt.codegen.cpu.kernel_source import kernel_source
from daceopt.codegen.kernel_unit import support_header
from daceopt.codegen.scalar.printer import Printer, literal
from daceopt.errors import Unsupported
from daceopt.ir import scalar
from daceopt.ir.builder import Builder
from daceopt.ir.graph import Graph
from daceopt.ir.kernel import Kernel
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
        (x**2.5, "(dop::ipow<2>(x) * dop::sqrt(x))"),
        (x**8, "dop::ipow<8>(x)"),
        (x**31, "dop::power(x, 31.0f)"),
        (x**y, "dop::power(x, y)"),
        (n * 2 + 1, "int8_t(int8_t(1) + int8_t(int8_t(2) * n))"),
        (n / 2, "(0.5f * float(n))"),
        (scalar.select(c, x, 0), "dop::select(c, x, 0.0f)"),
        (scalar.cast(x, D) + y, "(double(y) + double(x))"),
        (x - y, "(x - y)"),
        (sympy.erf(x / sympy.sqrt(2)), "erff((0.70710677f * x))"),
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


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, np.ndarray]:
    """All functions at all points, compiled together."""
    points = _bit_patterns()
    graph = Graph("functions")
    b = Builder(graph)
    v = graph.add_input("v", (len(points),), F)
    arrays = {name: b.elementwise(function, v) for name, function in _FUNCTIONS.items()}
    sources = [kernel_source(graph, Kernel.extract(graph, e)) for e in graph.kernels()]
    target: Path = tmp_path_factory.mktemp("functions") / "functions.so"
    texts = dict.fromkeys(s.text for s in sources)  # the two forms of tanh(softplus(x)) are one kernel
    link(compile_objects([CompileJob(EXPORT + "\n".join([support_header(""), *texts]))]), target)
    library = ctypes.CDLL(str(target))
    memory = {v: points} | {a: np.empty(len(points), graph.dtype(a).type) for a in arrays.values()}
    for source in sources:
        getattr(library, source.name)(*(ctypes.c_void_p(memory[a.array].ctypes.data) for a in source.arguments))
    return {name: memory[array] for name, array in arrays.items()}


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
    with np.errstate(over="ignore"):
        rounded = exact.astype(np.float32)
    np.testing.assert_array_equal(np.isnan(found), np.isnan(rounded))
    np.testing.assert_array_equal(found[np.isinf(rounded)], rounded[np.isinf(rounded)])
    fine = np.isfinite(rounded)
    assert np.isfinite(found[fine]).all()
    info = np.finfo(np.float32)
    unit = np.spacing(np.clip(np.abs(rounded[fine]), info.tiny, info.max / 2)).astype(np.float64)
    error = np.abs(found[fine] - exact[fine]) / unit
    assert error.max() <= 4, f"{error.max()} ulp at {points[fine][error.argmax()]!r}"
