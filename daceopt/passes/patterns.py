"""Rewrites as data: a pattern of operators, what must hold, what is in its place.

before:  y = (x * a) * b
after:   y = x * (a * b)

    class ScaleFolding(PatternRule):
        pattern = op("Mul", op("Mul", "x", scalar("a")), scalar("b"))

        def replace(self, m):
            return op("Mul", "x", m["a"] * m["b"])

In a pattern a text captures an array (``"x?"`` one that may be absent), a number is a constant of one element, None an
absent operand, and ``...`` at the end stands for more operands. Two mentions of a name are one array. The operands of
commutative operators match in either order. Results inside a pattern must have no other reader, unless ``shared``.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from daceopt.errors import DaceoptError
from daceopt.ir.graph.graph import Graph
from daceopt.ir.graph.kinds import Node
from daceopt.ir.graph.operator import Operator
from daceopt.passes.pattern_algebra import Polynomial, Product
from daceopt.passes.pattern_matching import Absent, Array, Constant, Either, Match, Op, Pattern, Scalar
from daceopt.passes.pattern_replacement import Value, put
from daceopt.passes.transform import NearMiss, Site, Transformation, sweep

__all__ = [
    *(
        "HERE",
        "Match",
        "Pattern",
        "PatternRule",
        "Then",
        "constant",
        "either",
        "maybe",
        "op",
        "over_root",
        "pattern_rule",
    ),
    *("polynomial", "product", "scalar", "scaled", "square", "then"),
]

HERE = ""  # in a piece after the root: the result so far
_MOST_READINGS = 64  # of one root


# ---------------------------------------------------------------- how patterns are written


def op(types: str, /, *operands: object, **attributes: object) -> Op:
    """An operator: ``op("Mul|Div", "x", 2.0)``, ``op("my.ops::Swish", "x")``, ``op("Softmax", "x", axis=-1)``.

    An attribute may be a function that says whether its value is accepted. As a replacement the operator is added:
    texts are captured names (or arrays of the graph), numbers and NumPy arrays become constants, inner operators get
    arrays of their own.
    """
    domain, _, names = types.rpartition("::")
    rest = bool(operands) and operands[-1] is ...
    return Op(
        tuple(names.split("|")), tuple(map(_as_pattern, operands[: -1 if rest else None])), attributes, domain, rest
    )


def scalar(
    name: str | None = None,
    value: float | None = None,
    accept: Callable[[float], bool] | None = None,
    expected: str = "an accepted one",
    tolerance: float = 1e-6,
) -> Scalar:
    """A constant of one element, captured as a float: any, one equal to ``value``, or one that ``accept`` takes."""
    return Scalar(name, value, accept, expected, tolerance)


def constant(
    name: str | None = None, accept: Callable[[np.ndarray], bool] | None = None, expected: str = "an accepted one"
) -> Constant:
    """An array known at compile time, captured as its value: any, or one that ``accept`` takes."""
    return Constant(name, accept, expected)


def either(*choices: object) -> Either:
    """The first of several patterns that fits."""
    return Either(tuple(map(_as_pattern, choices)))


def maybe(types: str, inner: Pattern | str, *operands: object, name: str | None = None) -> Either:
    """``inner``, or an operator over it that may be in between: ``maybe("Identity|Cast", "x")``."""
    around = op(types, inner, *(operands or (...,)))
    return either(replace(around, name=name), inner)


def product(constant: float | str, *factors: Pattern | str, tolerance: float = 1e-4) -> Product:
    """``factors`` times a constant (a number, or the name that captures it), however the product is spelled."""
    value = Scalar(constant) if isinstance(constant, str) else Scalar(None, constant, tolerance=tolerance)
    return Product(tuple(map(_as_pattern, factors)), value)


def scaled(inner: Pattern | str, factor: str) -> Product:
    """``inner`` times a constant of one element, or divided by one; ``factor`` captures what it is multiplied by."""
    return product(factor, inner)


def polynomial(of: str, coefficients: Mapping[int, float]) -> Polynomial:
    """A polynomial in the captured array ``of``: exponent -> coefficient."""
    return Polynomial(of, tuple(coefficients.items()))


def square(inner: Pattern | str) -> Either:
    """``inner * inner`` (then a captured name, or a pattern that is named) or ``inner ** 2``."""
    again = inner.name if isinstance(inner, Op) and inner.name else inner
    return either(op("Mul", inner, again), op("Pow", inner, 2.0))


def over_root(numerator: Pattern | str, radicand: Pattern | str) -> Either:
    """``numerator / sqrt(radicand)``, however it is spelled."""
    root = op("Sqrt", radicand)
    return either(
        op("Div", numerator, root),
        op("Mul", numerator, either(op("Reciprocal", root), op("Div", 1.0, root))),
        op("Mul", numerator, op("Pow", radicand, -0.5)),
    )


def _as_pattern(operand: object) -> Pattern:
    if isinstance(operand, Pattern):
        return operand
    if isinstance(operand, str):
        return Array(operand.removesuffix("?"), operand.endswith("?"))
    if operand is None:
        return Absent()
    if isinstance(operand, (int, float, np.number)):
        return Scalar(value=float(operand))
    if isinstance(operand, np.ndarray):
        return Value(operand)
    raise DaceoptError(
        f"operand {operand!r} of a pattern: expected a name, a number, None, a pattern, or ... at the end"
    )


# ---------------------------------------------------------------- what follows the root


@dataclass(frozen=True)
class Then:
    """A piece after the root: the only reader of the result so far."""

    pattern: Pattern
    required: str = ""  # why there is no match without it
    replaced: bool = True  # False: it must be there, and stays
    when: Callable[[Match], bool] | None = None

    def after(self, match: Match) -> Match | None:
        """``match`` with this piece, None when it is not there."""
        graph, here = match.graph, str(match.bound[HERE])
        readers = graph.consumers(here)
        alone = len(readers) == 1 and (not self.replaced or not (graph.is_kept(here) or graph.views_of(here)))
        if not alone or not self.pattern.ends_in(readers[0]) or list(graph.inputs_of(readers[0])).count(here) != 1:
            return None
        node = readers[0]
        name = graph.result(node, 0)
        matches = (m for m in self.pattern.find(name, match, "") if self.when is None or self.when(m))
        return next((self._join(m, node, name) for m in matches), None)

    def _join(self, match: Match, node: Operator, name: str) -> Match:
        bound = {**match.bound, HERE: name}
        private = {n: text for n, text in match.private.items() if n is not node}
        if not self.replaced:
            return replace(match, bound=bound, private=private, nodes=tuple(n for n in match.nodes if n is not node))
        return replace(match, bound=bound, private=private, chain=(*match.chain, node), result=name)


def then(piece: str | Pattern, *operands: Any, required: str = "", replaced: bool = True, when: Any = None) -> Then:
    """A piece after the root: ``then("Mul", "gamma")``, ``then("Softmax", ...)``, ``then(scaled(HERE, "s"))``.

    Optional, unless ``required`` says what is missing without it.
    ``when`` looks at the match and says whether the piece belongs to it; with ``replaced=False`` it stays as it is.
    """
    if isinstance(piece, Pattern):
        return Then(piece, required, replaced, when)
    if operands[:1] == (...,):
        return Then(_Reader(op(piece).types), required, replaced, when)
    return Then(op(piece, HERE, *operands), required, replaced, when)


@dataclass(frozen=True)
class _Reader(Pattern):
    """Any operator of one of ``types``, whatever else it reads."""

    types: tuple[str, ...]

    def ends_in(self, node: Node) -> bool:
        return getattr(node, "op_type", None) in self.types and node.domain == ""

    def find(self, name: str | None, match: Match, where: str) -> Iterator[Match]:
        yield match


# ---------------------------------------------------------------- rules


class PatternRule(Transformation):
    """A rewrite as data. Give ``pattern``, and ``replacement`` or a method ``replace``.

    Where the root and most of the operators before it are as the pattern says and one piece is not, the near miss is
    made from the pattern: what was expected, what was found, where.
    """

    level: ClassVar[str] = "coarse"
    pattern: ClassVar[Pattern]
    after: ClassVar[tuple[Then, ...]] = ()
    replacement: ClassVar[Op | str | None] = None
    thing: ClassVar[str] = "the pattern"  # what near misses call all of it

    def why_not(self, m: Match) -> str | None:
        """Why what the pattern found is no site; None when it is one. Must not edit."""
        return None

    def replace(self, m: Match) -> Op | str:
        """What takes the place of the result: an operator, or an array.

        Such an array may be a captured one, or built here with ``Builder(m.graph)``.
        """
        if self.replacement is None:
            raise NotImplementedError(f"{type(self).__name__} has neither a replacement nor a method replace")
        return self.replacement

    def match_at(self, graph: Graph, node: Node) -> Iterable[Site | NearMiss]:
        if not self.pattern.ends_in(node):
            return
        refused = ""
        for reading in self._readings(graph, node, -1):
            match, reason = self._judge(reading)
            if reason is None:
                inner = (n for n in match.nodes if n not in match.chain)
                yield Site(graph, (*match.chain, *inner), {"match": match})
                return
            refused = refused or reason
        reason = refused or self._nearly(graph, node)
        if reason:
            yield NearMiss(node, reason)

    def apply(self, site: Site) -> None:
        graph, m = site.graph, site["match"]
        replacement = self.replace(m)
        sources = [graph.producer(n) for node in m.chain for n in graph.inputs_of(node) if n is not None]
        put(replacement, m)
        sweep(graph, sources)

    def _readings(self, graph: Graph, node: Node, slack: int) -> Iterator[Match]:
        result = graph.outputs_of(node)[0]
        start = Match(graph, slack=slack)
        matches = self.pattern.find(result, start, "the result") if result is not None else iter(())
        for match in itertools.islice(matches, _MOST_READINGS):
            yield replace(match, bound={**match.bound, HERE: result}, chain=(node,), result=str(result))

    def _judge(self, match: Match) -> tuple[Match, str | None]:
        """``match`` with the pieces after the root, and why it is no site, if it is none."""
        for piece in self.after:
            extended = piece.after(match)
            if extended is None and piece.required:
                return match, piece.required
            match = extended or match
        return match, self.why_not(match) or _other_user(match, self.thing) or _other_result(match)

    def _nearly(self, graph: Graph, node: Node) -> str | None:
        """What one piece is in place of what is expected, where most of the pattern is there."""
        inner = self.pattern.size - 1
        if inner < 1:
            return None
        misses = [m for m in self._readings(graph, node, (inner - 1) // 2) if m.missed]
        best = max(misses, key=lambda m: (len(m.nodes), m.pieces), default=None)
        return None if best is None else best.missed


def pattern_rule(pattern: Pattern, **settings: object) -> Callable[[Callable[[Match], Op | str]], type[PatternRule]]:
    """A rule from its pattern and the function that replaces it, whose name and text are the rule's.

    ``settings`` are attributes of the class: ``level``, ``after``, ``thing``, ``why_not=lambda self, m: ...``.
    """

    def decorate(function: Callable[[Match], Op | str]) -> type[PatternRule]:
        name = "".join(word.capitalize() for word in function.__name__.split("_"))
        body = {"__doc__": function.__doc__, "__module__": function.__module__, "pattern": pattern, **settings}
        return type(name, (PatternRule,), {**body, "replace": lambda self, m: function(m)})

    return decorate


def _other_user(match: Match, thing: str) -> str | None:
    """That the result of an operator inside is read by somebody else, too."""
    graph, inside = match.graph, {*match.nodes, *match.chain}
    most = sum(len(graph.def_use.reads(node)) for node in inside)
    for node, text in match.private.items():
        for name in graph.outputs_of(node):
            if name is not None and (graph.is_kept(name) or not inside.issuperset(_readers(graph, name, most))):
                return f"{text or f'{name} inside {thing}'} has another user"
    return None


def _other_result(match: Match) -> str | None:
    """That one of the operators that go has another result, which somebody reads."""
    graph = match.graph
    for node in match.chain:
        for name in graph.outputs_of(node)[1:]:
            if name is not None and (graph.is_kept(name) or graph.all_consumers(name)):
                return f"{name}, another result of {node.op_type}, has a user"
    return None


def _readers(graph: Graph, name: str, most: int) -> list[Node | None]:
    """The readers of ``name``; of more operands than ``most``, which cannot all be inside, none is listed."""
    if len(graph.def_use.readers(name)) > most:
        return [None]
    return graph.all_consumers(name)
