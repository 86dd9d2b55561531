"""Symbols carry their kind: through arithmetic, copies and pickling, and whatever they are called."""

from __future__ import annotations

import copy
import pickle
import re
from pathlib import Path
from typing import Any

import dace
import numpy as np
import pytest
import sympy

from daceopt.ir.interpreter.interpret import interpret
from daceopt.ir.scalar.symbols import Counter, Parameter, is_counter, is_parameter, size
from daceopt.transformations.local.map_fusion import MapFusion
from tests.transformations.lowered import apply, finish, start

ROOT = Path(__file__).parents[3]
MAKERS = {"parameter": Parameter, "counter": Counter, "size": size}


def kind(symbol: Any) -> str:
    return "parameter" if is_parameter(symbol) else "counter" if is_counter(symbol) else "size"


@pytest.mark.parametrize("wanted", MAKERS)
def test_a_kind_survives(wanted: str) -> None:
    s, n = MAKERS[wanted]("k"), size("n")
    for copied in (pickle.loads(pickle.dumps(s)), copy.deepcopy(s), MAKERS[wanted]("k")):
        assert copied == s and hash(copied) == hash(s) and kind(copied) == wanted and copied.dtype == dace.int64
        assert copied.is_integer
    expr = sympy.expand((2 * s + n) * (s - 1)) + sympy.floor(s / 3)
    for form in (expr, pickle.loads(pickle.dumps(expr)), copy.deepcopy(expr), expr.subs(n, 4), expr.diff(n) * s):
        assert [kind(f) for f in form.free_symbols if f.name == "k"] == [wanted]
    assert kind(expr.xreplace({n: s}).free_symbols.pop()) == wanted
    assert sympy.expand(expr - pickle.loads(pickle.dumps(expr))) == 0


def test_kinds_tell_symbols_of_one_name_apart() -> None:
    p, c, n = Parameter("k"), Counter("k"), size("k")
    assert len({p, c, n}) == 3 and p - n != 0 and (p + n).xreplace({p: sympy.Integer(2)}) == n + 2
    assert n == dace.symbolic.symbol("k", dace.int64)  # users write DaCe's symbols


@pytest.mark.parametrize("name", ["i0", "items", "i_f0", "step1", "s0"])
def test_sizes_may_be_called_anything(name: str) -> None:
    """An extent called like a parameter or a counter is an extent."""
    n = size(name if name != "i0" else "i9")
    graph, b, (x,) = start((n, 6))
    total = b.reduce("sum", None, x, axes=[1], keepdims=True)
    row = b.slice(b.reshape(b.elementwise(lambda v, s: v / s, x, total), (n * 6,)), [n], [2 * n], [1], [0])
    graph = finish(graph, b.elementwise(lambda v: v * 2, row))
    graph.symbols[str(n)] = (x, 0)
    values = {x: np.arange(1.0, 31.0, dtype=np.float32).reshape(5, 6)}
    before = interpret(graph, values)
    apply(MapFusion(), graph)
    after = interpret(graph, values)
    assert len(graph.kernels()) < 3
    for name in before:
        np.testing.assert_allclose(after[name], before[name], rtol=1e-6)


@pytest.mark.parametrize("name", ["n", "items"])
def test_reversed_rows_of_a_size(name: str) -> None:
    """A size in an index is no parameter, whatever it is called: fusion failed with a KeyError once."""
    n = size(name)
    graph, b, (x,) = start((n, 6))
    middle, out = (graph.add_array(k, (n, 6), dace.float32) for k in ("middle", "out"))
    back = {"v": (x, lambda i, j: (n - 1 - i, j))}, {"w": (middle, lambda i, j: (n - 1 - i, j))}
    b.map((n, 6), *back, lambda p, v: v + 1)
    b.map((n, 6), {"v": (middle, lambda i, j: (n - 1 - i, j))}, {"w": (out, lambda i, j: (i, j))}, lambda p, v: v * 2)
    graph = finish(graph, out)
    graph.symbols[name] = (x, 0)
    apply(MapFusion(), graph)
    assert len(graph.kernels()) == 1
    values = np.arange(30.0, dtype=np.float32).reshape(5, 6)
    np.testing.assert_allclose(interpret(graph, {x: values})[graph.outputs[0]], (values[::-1] + 1) * 2)


MADE = re.compile(r"symbolic\.symbol\(")
PARSED = re.compile(
    r"(str\(\w*(symbol|param|counter|sym)\w*\)|\b(symbol|param|counter|s|p)\.name)(\.(startswith|endswith)\(|\[)"
    r"|re\.\w+\(\s*r?[\"'](step|i|s)(\\d|\[0-9)"
)


@pytest.mark.parametrize(
    "line", ['str(symbol).startswith("i")', 're.fullmatch(r"step\\d+", str(x))', "p.name[0] == 'i'"]
)
def test_ways_to_read_a_kind_out_of_a_name(line: str) -> None:
    assert PARSED.search(line)


def test_nobody_reads_kinds_out_of_names() -> None:
    """Symbols are made in one place, and no file compares the beginning of a symbol's name."""
    files = [f for room in ("daceopt", "transformations", "recipes") for f in (ROOT / room).rglob("*.py")]
    assert len(files) > 200
    for file in files:
        text = file.read_text(encoding="utf-8")
        assert not PARSED.search(text), f"{file}: {PARSED.search(text)}"
        if file != ROOT / "daceopt" / "ir" / "scalar" / "symbols.py":
            assert not MADE.search(text), f"{file}: make symbols with ir.symbols, so that they have a kind"
