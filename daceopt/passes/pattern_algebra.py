"""Patterns over arithmetic, however it is spelled: products with a constant factor, polynomials."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import isclose

from daceopt.ir.graph.graph import Graph
from daceopt.ir.graph.kinds import Node
from daceopt.ir.graph.operator import Operator
from daceopt.ir.graph.operators import is_op, operator_writing, scalar
from daceopt.passes.pattern_matching import Match, Pattern, Scalar, find_all

Coefficients = dict[int, float]  # exponent -> coefficient
Expansion = tuple[tuple[str, ...], float, tuple[Operator, ...]]  # factors, the product of the constants, operators
_DEEPEST_PRODUCT = 3
_DEEPEST_POLYNOMIAL = 8
TOLERANCE = 1e-4  # models spell their constants with four digits or more


@dataclass(frozen=True)
class Product(Pattern):
    """Multiplications and divisions by constants of one element, in any order: ``factors`` times ``constant``."""

    factors: tuple[Pattern, ...]
    constant: Scalar
    private: bool = True

    def shared(self) -> Product:
        """Its results may have other readers."""
        return replace(self, private=False)

    @property
    def size(self) -> int:  # type: ignore[override]
        return 1 + sum(f.size for f in self.factors)

    def ends_in(self, node: Node) -> bool:
        return is_op(node, "Mul", "Div")

    def find(self, name: str | None, match: Match, where: str) -> Iterator[Match]:
        expansions = expand(match.graph, name, _DEEPEST_PRODUCT)
        fitting = [e for e in expansions if len(e[0]) == len(self.factors)]
        if not fitting:
            yield from match.skipping(f"{name} is no product with a constant ({where})", self.size)
        for arrays, constant, nodes in fitting:
            entered = self._enter(match, nodes)
            for first in self.constant.check(constant, entered, where, "the constant factor"):
                for order in itertools.permutations(arrays):
                    yield from find_all(self.factors, order, first, f"factor {{}} of {name}")

    def _enter(self, match: Match, nodes: tuple[Operator, ...]) -> Match:
        inner = dict.fromkeys(nodes if match.nodes else nodes[1:], "") if self.private else {}
        joined = tuple(dict.fromkeys((*match.nodes, *nodes)))
        return replace(match, nodes=joined, private={**match.private, **inner})


def expand(graph: Graph, name: str | None, depth: int) -> Iterator[Expansion]:
    """Readings of ``name`` as a product, the shallow ones first."""
    node = operator_writing(graph, name, "Mul", "Div") if depth else None
    split_product = _split(graph, node) if node is not None else None
    if node is None or split_product is None:
        return
    arrays, constant = split_product
    choices = [[((a,), 1.0, ()), *expand(graph, a, depth - 1)] for a in arrays]
    for choice in itertools.product(*choices):
        factors = tuple(f for c in choice for f in c[0])
        for _, inner, _ in choice:
            constant = constant * inner
        yield factors, constant, (node, *(n for c in choice for n in c[2]))
        constant = split_product[1]


def _split(graph: Graph, node: Node) -> tuple[tuple[str, ...], float] | None:
    """The arrays that ``node`` multiplies and its constant; None for a quotient of two arrays."""
    a, b = (str(n) for n in graph.inputs_of(node))
    for array, other in ((a, b), (b, a)) if is_op(node, "Mul") else ((a, b),):
        value = scalar(graph, other)
        if value is not None and _keeps_shape(graph, node, array):
            if is_op(node, "Mul"):
                return (array,), value
            return ((array,), 1.0 / value) if value else None
    return ((a, b), 1.0) if is_op(node, "Mul") else None


def _keeps_shape(graph: Graph, node: Node, array: str) -> bool:
    return array not in graph.constants and graph.shape(array) == graph.shape(graph.result(node, 0))


@dataclass(frozen=True)
class Polynomial(Pattern):
    """A polynomial in the array that was captured as ``of``, with these coefficients (exponent -> coefficient)."""

    of: str
    coefficients: tuple[tuple[int, float], ...]

    def find(self, name: str | None, match: Match, where: str) -> Iterator[Match]:
        nodes: dict[Operator, None] = {}
        expected, x = dict(self.coefficients), match.get(self.of)
        coefficients = _polynomial(match.graph, name, x, nodes, 0)
        if coefficients is None or coefficients.keys() != expected.keys():
            yield from match.skipping(f"{name} is not the polynomial in {x} that is expected ({where})")
        elif not all(isclose(coefficients[k], c, rel_tol=TOLERANCE) for k, c in expected.items()):
            yield from match.skipping(f"{name} has coefficients {coefficients} in {x}, expected {expected} ({where})")
        else:
            inner = {**match.private, **dict.fromkeys(nodes, "")}
            yield match.having(nodes=tuple(dict.fromkeys((*match.nodes, *nodes))), private=inner)


def _polynomial(
    graph: Graph, name: str | None, x: str | None, nodes: dict[Operator, None], depth: int
) -> Coefficients | None:
    """``name`` as a polynomial in ``x``, None when it is none; ``nodes`` collects its operators."""
    if name == x:
        return {1: 1.0}
    value = scalar(graph, name)
    if value is not None:
        return {0: value}
    node = operator_writing(graph, name, "Mul", "Div", "Add", "Pow")
    if node is None or depth > _DEEPEST_POLYNOMIAL:
        return None
    nodes[node] = None
    a, b = (_polynomial(graph, n, x, nodes, depth + 1) for n in graph.inputs_of(node))
    return None if a is None or b is None else _combine(node.op_type, a, b)


def _combine(op_type: str, a: Coefficients, b: Coefficients) -> Coefficients | None:
    if op_type == "Add":
        return {k: a.get(k, 0.0) + b.get(k, 0.0) for k in a.keys() | b.keys()}
    if op_type == "Mul":
        return _times(a, b)
    if b.keys() != {0}:
        return None
    if op_type == "Div":
        return {k: c / b[0] for k, c in a.items()} if b[0] else None
    return _power(a, b[0])


def _power(a: Coefficients, exponent: float) -> Coefficients | None:
    if not exponent.is_integer() or not 1 <= exponent <= 3:
        return None
    result = a
    for _ in range(int(exponent) - 1):
        result = _times(result, a)
    return result


def _times(a: Coefficients, b: Coefficients) -> Coefficients:
    result: Coefficients = {}
    for i, c in a.items():
        for j, d in b.items():
            result[i + j] = result.get(i + j, 0.0) + c * d
    return result
