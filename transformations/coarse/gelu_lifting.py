"""GELU from the primitives that exporters emit, in its exact and its tanh form."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import isclose, pi, sqrt
from typing import Any, ClassVar

from daceopt.ir.graph import Graph
from daceopt.transform import NearMiss, Site, Transformation
from daceopt.transformations.coarse._patterns import between, is_op, made_by, scalar, shared, substitute, with_scalar

Polynomial = dict[int, float]  # exponent -> coefficient
_ARGUMENTS: dict[str, tuple[str, Polynomial]] = {
    "Erf": ("none", {1: sqrt(0.5)}),
    "Tanh": ("tanh", {1: sqrt(2 / pi), 3: sqrt(2 / pi) * 0.044715}),
}
_DEEPEST = 8
_TOLERANCE = 1e-4  # models spell the constants with four digits or more


@dataclass(frozen=True)
class GeluLifting(Transformation):
    """One Gelu, whatever the order of the operands and wherever the one half stands.

    before:  y = x * 0.5 * (1 + Erf(x / sqrt(2)))      or  0.5 * x * (1 + Tanh(sqrt(2 / pi) * (x + 0.044715 * x ** 3)))
    after:   y = Gelu(x; approximate=none)             or  Gelu(x; approximate=tanh)
    """

    level: ClassVar[str] = "coarse"

    def match_at(self, graph: Graph, node: Any) -> Iterable[Site | NearMiss]:
        if not is_op(node, "Mul", "Div"):
            return
        factors, constant = _factors(graph, node, 0)
        for x, gate in ((factors[0], factors[1]), (factors[1], factors[0])) if len(factors) == 2 else ():
            function = _one_plus(graph, gate)
            if function is not None:
                yield _site(graph, node, x, function, constant)

    def apply(self, site: Site) -> None:
        substitute(site.graph, site.nodes[0], "Gelu", [site["x"]], approximate=site["approximate"])


def _site(graph: Graph, node: Any, x: str, function: Any, constant: float) -> Site | NearMiss:
    approximate, expected = _ARGUMENTS[function.op_type]
    found = _polynomial(graph, graph.inputs_of(function)[0], x, 0)
    if found is None or found.keys() != expected.keys():
        return NearMiss(node, f"the argument of {function.op_type} is not the polynomial in {x} that GELU has")
    if not all(isclose(found[k], c, rel_tol=_TOLERANCE) for k, c in expected.items()):
        return NearMiss(node, f"the argument of {function.op_type} has coefficients {found}, expected {expected}")
    if not isclose(constant, 0.5, rel_tol=_TOLERANCE):
        return NearMiss(node, f"the constant factor is {constant:g}, expected 0.5")
    inner = between(graph, node, [x])
    used = shared(graph, [o for n in inner if n is not node for o in graph.outputs_of(n)], inner)
    if used is not None:
        return NearMiss(node, f"{used} inside the GELU has another user")
    return Site(graph, (node,), {"x": x, "approximate": approximate})


def _factors(graph: Graph, node: Any, depth: int) -> tuple[list[str], float]:
    """The arrays that ``node`` multiplies, through products above it, and the product of the constants."""
    found = with_scalar(graph, node)
    if found is not None and (is_op(node, "Mul") or scalar(graph, graph.inputs_of(node)[1])):
        arrays, constant = [found[0]], found[1] if is_op(node, "Mul") else 1.0 / found[1]
    elif is_op(node, "Div"):
        return [], 1.0
    else:
        arrays, constant = [str(n) for n in graph.inputs_of(node)], 1.0
    factors: list[str] = []
    for name in arrays:
        above = made_by(graph, name, "Mul", "Div")
        inner, c = _factors(graph, above, depth + 1) if above is not None and depth < 2 else ([], 1.0)
        factors += inner or [name]
        constant *= c if inner else 1.0
    return factors, constant


def _one_plus(graph: Graph, name: str) -> Any | None:
    """The Erf or Tanh in ``1 + f(...)``."""
    node = made_by(graph, name, "Add")
    found = with_scalar(graph, node) if node is not None else None
    if found is None or found[1] != 1.0:
        return None
    return made_by(graph, found[0], *_ARGUMENTS)


def _polynomial(graph: Graph, name: str | None, x: str, depth: int) -> Polynomial | None:
    """``name`` as a polynomial in ``x``; None when it is none."""
    if name == x:
        return {1: 1.0}
    value = scalar(graph, name)
    if value is not None:
        return {0: value}
    node = made_by(graph, name, "Mul", "Div", "Add", "Pow")
    if node is None or depth > _DEEPEST:
        return None
    a, b = (_polynomial(graph, n, x, depth + 1) for n in graph.inputs_of(node))
    return None if a is None or b is None else _combine(node.op_type, a, b)


def _combine(op_type: str, a: Polynomial, b: Polynomial) -> Polynomial | None:
    if op_type == "Add":
        return {k: a.get(k, 0.0) + b.get(k, 0.0) for k in a.keys() | b.keys()}
    if op_type == "Mul":
        return _product(a, b)
    if b.keys() != {0}:
        return None
    if op_type == "Div":
        return {k: c / b[0] for k, c in a.items()} if b[0] else None
    exponent = b[0]
    if not exponent.is_integer() or not 1 <= exponent <= 3:
        return None
    result = a
    for _ in range(int(exponent) - 1):
        result = _product(result, a)
    return result


def _product(a: Polynomial, b: Polynomial) -> Polynomial:
    result: Polynomial = {}
    for i, c in a.items():
        for j, d in b.items():
            result[i + j] = result.get(i + j, 0.0) + c * d
    return result
