"""Constants keep all bits of the type in which they are used; integers are exact and wrap as those of PyTorch."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import sympy
import torch

from daceopt.ir.graph.graph import Graph
from daceopt.ir.interpreter.interpret import interpret
from daceopt.ir.nodes.builder import Builder
from daceopt.ir.scalar import scalar, types
from tests.codegen.cpu.kernels import run

# as a number in an expression, and as a one-element constant of the graph
VALUES = [
    0.1,
    1e300,
    1e-300,
    1e-17,
    math.pi,
    1 / 3,
    2 / 3,
    -math.e,
    5e-324,
    1 + 2.0**-52,
    2.0**53 + 2,
    1.7976931348623157e308,
]
OPERATIONS: dict[str, Callable[[Any, Any], Any]] = {
    "multiply": lambda a, c: a * c,
    "add": lambda a, c: a + c,
    "subtract": lambda a, c: c - a,
    "compare": lambda a, c: scalar.select(scalar.lt(a, c), a, c),
}
_EXACT = {
    "multiply": lambda a, c: a * c,
    "add": lambda a, c: a + c,
    "subtract": lambda a, c: c - a,
    "compare": lambda a, c: np.where(a < c, a, c),
}


def _both(
    graph: Graph, feeds: dict[str, np.ndarray], names: dict[Any, str], folder: Path
) -> list[dict[Any, np.ndarray]]:
    """What the compiled kernels and the interpreter compute for the arrays ``names``."""
    built = run(graph, feeds, folder)
    for name in names.values():
        graph.add_output(name)
    interpreted = interpret(graph, feeds)
    return [{k: found[n] for k, n in names.items()} for found in (built, interpreted)]


def _samples(kind: str) -> np.ndarray:
    rng = np.random.default_rng(8)
    scale = 10.0 ** rng.integers(-12, 12, 64)
    return np.concatenate([rng.standard_normal(64) * scale, [0.0, 1.0, -1.0, 3.0]]).astype(kind)


def assert_same_bits(found: np.ndarray, wanted: np.ndarray, what: Any) -> None:
    np.testing.assert_array_equal(found, wanted, err_msg=str(what))
    assert found.dtype == wanted.dtype, what


@pytest.mark.parametrize("kind", ["float64", "float32"])
def test_constants_are_rounded_to_the_type_of_the_program(kind: str, tmp_path: Path) -> None:
    """In float64 bit for bit as NumPy; in float32 a number is first rounded to float32, as in PyTorch."""
    given, dtype = _samples(kind), types.from_name(kind)
    graph = Graph("constants")
    x = graph.add_input("x", given.shape, dtype)
    b, names = Builder(graph), {}
    for value in VALUES:
        with np.errstate(over="ignore"):
            constant = b.constant(np.asarray(value, kind))
        for name, fn in OPERATIONS.items():
            names[name, value, "number"] = b.elementwise(
                lambda a, fn=fn, c=value: fn(a, sympy.Float(c)), x, dtype=dtype
            )
            names[name, value, "python"] = b.elementwise(lambda a, fn=fn, c=value: fn(a, c), x, dtype=dtype)
            names[name, value, "array"] = b.elementwise(fn, x, constant, dtype=dtype)
    for found in _both(graph, {x: given}, names, tmp_path):
        for (name, value, how), result in found.items():
            with np.errstate(all="ignore"):
                wanted = _EXACT[name](given, np.asarray(value).astype(kind))
            assert_same_bits(result, wanted.astype(kind), (name, value, how))


def test_exact_numbers_are_rounded_once(tmp_path: Path) -> None:
    given = _samples("float64")
    graph = Graph("exact")
    x = graph.add_input("x", given.shape, types.from_name("float64"))
    b = Builder(graph)
    exact = {
        sympy.pi: math.pi,
        sympy.Rational(1, 3): 1 / 3,
        sympy.E: math.e,
        sympy.sqrt(2): math.sqrt(2),
        sympy.Rational(1, 10): 0.1,
    }
    names = {c: str(b.elementwise(lambda a, c=c: a * c, x)) for c in exact}
    for found in _both(graph, {x: given}, names, tmp_path):
        for c, result in found.items():
            assert_same_bits(result, given / c.q if c.is_Rational else given * exact[c], c)


@pytest.mark.parametrize("kind", ["float64", "float32"])
def test_divisors_that_are_whole_numbers_divide(kind: str, tmp_path: Path) -> None:
    """``x / 3`` is rounded once, as in NumPy, not multiplied by a third."""
    given, dtype = _samples(kind), types.from_name(kind)
    graph = Graph("divide")
    x, y = (graph.add_input(n, given.shape, dtype) for n in "xy")
    b = Builder(graph)
    names: dict[Any, str] = {n: b.elementwise(lambda a, n=n: a / n, x) for n in (3, -7, 10, 8, 49)}
    names["product"] = b.elementwise(lambda a, c: -a * c / 3, x, y)
    for found in _both(graph, {x: given, y: given[::-1].copy()}, names, tmp_path):
        for n, result in found.items():
            wanted = -given * given[::-1] / np.asarray(3, kind) if n == "product" else given / np.asarray(n, kind)
            assert_same_bits(result, wanted, n)


def test_functions_of_integers_have_the_precision_of_their_context(tmp_path: Path) -> None:
    """An index times 0.1 in a float64 program."""
    double = types.from_name("float64")
    given = np.arange(1, 40, dtype=np.int64) * 1_000_003
    graph = Graph("indices")
    x = graph.add_input("x", given.shape, types.from_name("int64"))
    y = graph.add_input("y", given.shape, double)
    ones = np.ones(given.shape)
    b = Builder(graph)
    names = {
        "multiply": b.elementwise(lambda i: i * 0.1, x, dtype=double),
        "root": b.elementwise(lambda i: sympy.sqrt(i), x, dtype=double),
        "meets float64": b.elementwise(lambda i, v: v + i * 0.1, x, y),
        "quotient": b.elementwise(lambda i, v: v * (1 / i), x, y),
    }
    wanted = {"multiply": given * 0.1, "root": np.sqrt(given), "meets float64": 1 + given * 0.1, "quotient": 1 / given}
    for found in _both(graph, {x: given, y: ones}, names, tmp_path):
        for name, result in found.items():
            assert_same_bits(result, wanted[name], name)


@pytest.mark.parametrize("kind", ["bfloat16", "float16"])
def test_constants_of_half_programs_are_float32(kind: str, tmp_path: Path) -> None:
    dtype = types.from_name(kind)
    given = np.random.default_rng(8).standard_normal(64).astype(types.to_numpy(dtype))
    graph = Graph("half")
    x = graph.add_input("x", given.shape, dtype)
    b = Builder(graph)
    names = {c: str(b.elementwise(lambda a, c=c: a * c, x, dtype=dtype)) for c in (0.1, math.pi, 1e-3)}
    for found in _both(graph, {x: given}, names, tmp_path):
        for c, result in found.items():
            wanted = (given.astype(np.float32) * np.float32(c)).astype(given.dtype)
            assert_same_bits(result.astype(np.float32), wanted.astype(np.float32), c)


def test_a_constant_keeps_its_own_type(tmp_path: Path) -> None:
    """A whole number of float type makes a quotient of integers a float; two constants alone have a type, too."""
    graph = Graph("types")
    x = graph.add_input("x", (3,), types.from_name("int32"))
    b = Builder(graph)
    two, wide = b.constant(np.asarray(2.0, np.float32)), b.constant(np.asarray(2**40, np.int64))
    one, third = b.constant(np.asarray(1.0)), b.constant(np.asarray(1 / 3))
    given = np.asarray([1, 2, 5], np.int32)
    names = {
        "product": b.elementwise(lambda i, c: i * c, x, two),
        "sum": b.elementwise(lambda i, c: i + c, x, wide),
        "chosen": b.elementwise(lambda i, c, d: scalar.select(scalar.gt(i, 1), c, d), x, one, third),
    }
    wanted = {
        "product": (given * 2.0).astype(np.float32),
        "sum": given + np.int64(2**40),
        "chosen": np.where(given > 1, 1.0, 1 / 3),
    }
    for found in _both(graph, {x: given}, names, tmp_path):
        for name, result in found.items():
            assert_same_bits(result, wanted[name], name)


def test_large_integers_are_exact(tmp_path: Path) -> None:
    constants = [2**53 + 1, 2**62 + 1, -(2**62) - 1, 2**63 - 1, -(2**63), 9007199254740993]
    given = np.asarray([0, 1, -1, 2**53 + 1, -(2**40)], np.int64)
    graph = Graph("large")
    x = graph.add_input("x", given.shape, types.from_name("int64"))
    b = Builder(graph)
    names = {}
    for c in constants:
        array = b.constant(np.asarray(c, np.int64))
        names["add", c] = b.elementwise(lambda a, d: a + d, x, array)
        names["number", c] = b.elementwise(lambda a, c=c: a + c, x)
        names["times", c] = b.elementwise(lambda a, d: a * d, x, array)
        names["full", c] = b.full(
            given.shape, c, types.from_name("int64"), out=b.graph.add_array("f", given.shape, types.from_name("int64"))
        )
    with np.errstate(over="ignore"):
        wanted = {"add": lambda c: given + np.int64(c), "times": lambda c: given * np.int64(c)}
        wanted |= {"number": wanted["add"], "full": lambda c: np.full(given.shape, c, np.int64)}
        for found in _both(graph, {x: given}, names, tmp_path):
            for (name, c), result in found.items():
                assert_same_bits(result, wanted[name](c), (name, c))


_INTEGER_RULES: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "add": (lambda a, b: a + b, lambda a, b: a + b),
    "subtract": (lambda a, b: a - b, lambda a, b: a - b),
    "multiply": (lambda a, b: a * b, lambda a, b: a * b),
    "square compared": (lambda a, b: scalar.select(scalar.lt(a**2, b), 1, 0), lambda a, b: (a * a < b).to(a.dtype)),
    "cube": (lambda a, b: a**3 - b, lambda a, b: a * a * a - b),
    "negative": (lambda a, b: -a * b, lambda a, b: -a * b),
    "absolute": (lambda a, b: sympy.Abs(a) + b, lambda a, b: abs(a) + b),
    "quotient": (scalar.idiv, lambda a, b: torch.div(a, b, rounding_mode="trunc")),
    "remainder": (scalar.pymod, torch.remainder),
    "C remainder": (scalar.fmod, torch.fmod),
}


@pytest.mark.parametrize("kind", ["int8", "uint8", "int16", "int32", "int64"])
def test_integers_wrap_and_divide_as_in_pytorch(kind: str, tmp_path: Path) -> None:
    limits, rng = np.iinfo(kind), np.random.default_rng(2)
    low, high = max(limits.min, -(2**40)), min(limits.max, 2**40)
    left = np.concatenate([rng.integers(low, high, 200), [limits.max, limits.max, 7, 1]]).astype(kind)
    right = np.concatenate([rng.integers(low, high, 200), [limits.max, 3, 5, limits.max]]).astype(kind)
    right[right == 0] = 3
    dtype = types.from_name(kind)
    graph = Graph("integers")
    x, y = (graph.add_input(n, left.shape, dtype) for n in "xy")
    b = Builder(graph)
    names = {name: str(b.elementwise(rule, x, y, dtype=dtype)) for name, (rule, _) in _INTEGER_RULES.items()}
    for found in _both(graph, {x: left, y: right}, names, tmp_path):
        for name, result in found.items():
            wanted = _INTEGER_RULES[name][1](torch.from_numpy(left), torch.from_numpy(right)).numpy()
            assert_same_bits(result, wanted, name)


def test_half_constants_are_exact_arrays(tmp_path: Path) -> None:
    """One-element constants of a type that NumPy lacks."""
    half = types.from_name("bfloat16")
    graph = Graph("half")
    x = graph.add_input("x", (2,), half)
    b = Builder(graph)
    constant = b.constant(np.asarray(0.1, ml_dtypes.bfloat16))
    name = b.elementwise(lambda a, c: a * c, x, constant)
    given = np.asarray([1, 3], ml_dtypes.bfloat16)
    wanted = given.astype(np.float32) * np.float32(ml_dtypes.bfloat16(0.1))
    for found in _both(graph, {x: given}, {0: name}, tmp_path):
        assert_same_bits(found[0], wanted, 0)
