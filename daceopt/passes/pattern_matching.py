"""Patterns of operators, and how one is found: from an array backwards through the operators that made it.

A pattern is data. ``find`` yields every way in which an array is what the pattern says, each as a ``Match``. A match
that has ``slack`` may skip one piece that is not as expected and go on: what it missed is the text of a near miss.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import isclose
from typing import Any

import numpy as np

from daceopt.ir.graph.graph import Graph
from daceopt.ir.graph.kinds import Node
from daceopt.ir.graph.operator import Operator
from daceopt.ir.graph.operators import scalar
from daceopt.ir.scalar.dims import Shape

COMMUTATIVE = frozenset("Add Mul And Or Xor Max Min Equal Sum Mean BitwiseAnd BitwiseOr BitwiseXor".split())


@dataclass(frozen=True)
class Match:
    """What a pattern found: by name the arrays, the values of constants, and the operators that made them."""

    graph: Graph
    bound: Mapping[str, Any] = field(default_factory=dict)
    captures: Mapping[str, Any] = field(default_factory=dict)
    nodes: tuple[Operator, ...] = ()  # the matched operators, the root first
    # those that nothing else may read -> what they are called
    private: Mapping[Operator, str] = field(default_factory=dict)
    chain: tuple[Operator, ...] = ()  # the root and the operators after it that are replaced with it
    result: str = ""  # the array that the replacement writes
    slack: int = -1  # how many operators a skipped piece may have; negative: nothing may be skipped
    missed: str = ""  # what was expected and found where a piece was skipped
    pieces: int = 0

    def __getitem__(self, name: str) -> Any:
        return self.bound[name]

    def __contains__(self, name: str) -> bool:
        return self.bound.get(name) is not None

    def get(self, name: str, default: object = None) -> Any:
        """What ``name`` captured, or ``default`` where its piece is absent."""
        value = self.bound.get(name)
        return default if value is None else value

    def node(self, name: str) -> Operator:
        """The operator that the pattern calls ``name``."""
        return self.captures[name]

    def shape(self, name: str) -> Shape:
        """The shape of the array that ``name`` captured."""
        return self.graph.shape(self.bound[name])

    def having(self, **changes: Any) -> Match:
        """This match after one more piece of the pattern was found."""
        return replace(self, pieces=self.pieces + 1, **changes)

    def skipping(self, reason: str, operators: int = 0) -> Iterator[Match]:
        """This match without a piece of so many ``operators``, if it may still be one."""
        if not self.missed and operators <= self.slack:
            yield replace(self, missed=reason)

    def binding(self, name: str | None, value: object, where: str) -> Iterator[Match]:
        """This match with ``value`` for ``name``; all mentions of a name must be the same array."""
        if name is None or (name in self.bound and self.bound[name] == value):
            yield self.having()
        elif name in self.bound:
            yield from self.skipping(f"{value} ({where}) is another array: expected the {name} {self.bound[name]}")
        else:
            yield self.having(bound={**self.bound, name: value})


class Pattern:
    """A shape of dataflow that an array may have; see ``daceopt.passes.patterns`` for how to write one."""

    size = 0  # operators that it has at least

    def find(self, name: str | None, match: Match, where: str) -> Iterator[Match]:
        """Every way to read the array ``name``, which is at ``where``, as this pattern."""
        raise NotImplementedError

    def ends_in(self, node: Node) -> bool:
        """May ``node`` be the last operator of this pattern? Cheap: most nodes are refused here."""
        return False


@dataclass(frozen=True)
class Array(Pattern):
    """Any array; with ``optional`` an absent operand, too."""

    name: str
    optional: bool = False

    def find(self, name: str | None, match: Match, where: str) -> Iterator[Match]:
        if name is None and not self.optional:
            yield from match.skipping(f"the {self.name} ({where}) is absent")
        else:
            yield from match.binding(self.name, name, where)


@dataclass(frozen=True)
class Constant(Pattern):
    """An array known at compile time; ``accept`` says which."""

    name: str | None = None
    accept: Callable[[np.ndarray], bool] | None = None
    expected: str = "an accepted one"

    def find(self, name: str | None, match: Match, where: str) -> Iterator[Match]:
        value = match.graph.constants.get(name) if name is not None else None
        if value is None:
            yield from match.skipping(f"{name} is no constant ({where}): its value may change from call to call")
        elif self.accept is not None and not self.accept(value):
            yield from match.skipping(f"the constant {name} is not {self.expected} ({where})")
        else:
            bound = match.bound if self.name is None else {**match.bound, self.name: value}
            yield match.having(bound=bound)


@dataclass(frozen=True)
class Scalar(Pattern):
    """A constant of one element: equal to ``value``, accepted by ``accept``, or any."""

    name: str | None = None
    value: float | None = None
    accept: Callable[[float], bool] | None = None
    expected: str = "an accepted one"
    tolerance: float = 1e-6

    def find(self, name: str | None, match: Match, where: str) -> Iterator[Match]:
        value = scalar(match.graph, name)
        if value is None:
            yield from match.skipping(f"{name} is no constant of one element ({where})")
        else:
            yield from self.check(value, match, where, f"the constant {name}")

    def check(self, value: float, match: Match, where: str, what: str) -> Iterator[Match]:
        """The match when ``value`` is what is expected."""
        # NaN is near to nothing
        if self.value is not None and not abs(value - self.value) <= self.tolerance * abs(self.value):
            yield from match.skipping(f"{what} is {value:g}, expected {self.value:g} ({where})")
        elif self.accept is not None and not self.accept(value):
            yield from match.skipping(f"{what} is {value:g}, expected {self.expected} ({where})")
        else:
            bound = match.bound if self.name is None else {**match.bound, self.name: value}
            yield match.having(bound=bound)


@dataclass(frozen=True)
class Absent(Pattern):
    """An optional operand that is not there."""

    def find(self, name: str | None, match: Match, where: str) -> Iterator[Match]:
        yield from [match] if name is None else match.skipping(f"{name} ({where}) was expected to be absent")


@dataclass(frozen=True)
class Either(Pattern):
    """The first of several patterns that fits."""

    choices: tuple[Pattern, ...]

    @property
    def size(self) -> int:  # type: ignore[override]
        return min(c.size for c in self.choices)

    def find(self, name: str | None, match: Match, where: str) -> Iterator[Match]:
        for choice in self.choices:
            yield from choice.find(name, match, where)

    def ends_in(self, node: Node) -> bool:
        return any(c.ends_in(node) for c in self.choices)


@dataclass(frozen=True)
class Op(Pattern):
    """An operator of one of ``types`` over ``operands``; as a replacement, the operator to add."""

    types: tuple[str, ...]
    operands: tuple[Pattern, ...]
    attributes: Mapping[str, Any]
    domain: str = ""
    open_ended: bool = False  # more operands may follow
    name: str | None = None
    text: str = ""
    private: bool = True
    condition: Callable[[Match], bool] | None = None
    position: int = 0  # of its result

    @property
    def size(self) -> int:  # type: ignore[override]
        return 1 + sum(o.size for o in self.operands)

    def named(self, name: str) -> Op:
        """Capture the operator and its result as ``name``."""
        return replace(self, name=name)

    def called(self, text: str) -> Op:
        """What near misses call its result: ``its mean``."""
        return replace(self, text=text)

    def shared(self) -> Op:
        """Its result may have other readers: it is computed for them, then."""
        return replace(self, private=False)

    def result(self, position: int) -> Op:
        """Another result of the operator than its first."""
        return replace(self, position=position)

    def when(self, condition: Callable[[Match], bool]) -> Op:
        """It is this operator only where ``condition`` holds for what was captured so far."""
        return replace(self, condition=condition)

    def ends_in(self, node: Node) -> bool:
        return getattr(node, "op_type", None) in self.types and node.domain == self.domain

    def find(self, name: str | None, match: Match, where: str) -> Iterator[Match]:
        graph = match.graph
        node = graph.producer(name) if name is not None and not graph.is_view(name) else None
        if node is None or not self.ends_in(node) or list(graph.outputs_of(node)).index(name) != self.position:
            expected = self.text or f"made by {' or '.join(self.types)}"
            actual = f"it is {origin(graph, name)}, expected {' or '.join(self.types)}"
            yield from match.skipping(f"{name} is not {expected} ({where}): {actual}", self.size)
            return
        inputs, here = list(graph.inputs_of(node)), f"operand {{}} of {node.op_type} {name}"
        for first in match.binding(self.name, name, where):
            for entered in self._attributes(node, self._enter(node, first)):
                for operands in self._orders(graph, inputs):
                    matches = find_all(self.operands, operands, entered, here)
                    yield from (m for m in matches if self._holds(m))

    def _holds(self, match: Match) -> bool:
        return self.condition is None or bool(match.missed) or self.condition(match)

    def _enter(self, node: Node, match: Match) -> Match:
        captured = match.captures if self.name is None else {**match.captures, self.name: node}
        private = {**match.private, node: self.text} if self.private and match.nodes else match.private
        return replace(match, nodes=tuple(dict.fromkeys((*match.nodes, node))), captures=captured, private=private)

    def _attributes(self, node: Node, match: Match) -> Iterator[Match]:
        for key, expected in self.attributes.items():
            value = node.attribute(key)
            if not _accepts(expected, value):
                expectation = "which is not accepted" if callable(expected) else f"expected {expected}"
                yield from match.skipping(f"{key} of {node.op_type} is {value}, {expectation}")
                return
        yield match

    def _orders(self, graph: Graph, inputs: list[str | None]) -> list[list[str | None]]:
        """The operands by position, in the orders in which the operator may have them."""
        count = len(self.operands)
        inputs = inputs + [None] * (count - len(inputs))
        if any(n is not None for n in inputs[count:]) and not self.open_ended:
            return []
        straight = inputs[:count]
        swaps = count == 2 and straight[0] != straight[1] and COMMUTATIVE.issuperset(self.types)
        return [o for o in ([straight, straight[::-1]] if swaps else [straight]) if self._keeps_shape(graph, o)]

    def _keeps_shape(self, graph: Graph, operands: list[str | None]) -> bool:
        """No constant of one element is what gives the result its rank."""
        kinds = list(zip(self.operands, operands))
        others = [len(graph.shape(n)) for p, n in kinds if n is not None and not isinstance(p, Scalar)]
        scalars = [len(graph.shape(n)) for p, n in kinds if n is not None and isinstance(p, Scalar)]
        return not others or max(scalars, default=0) <= max(others)


def find_all(
    patterns: Sequence[Pattern], names: Sequence[str | None], match: Match, where: str, at: int = 0
) -> Iterator[Match]:
    """Every way to read ``names`` as ``patterns``, in order; ``where`` has a place for the number of the operand."""
    if at == len(patterns):
        yield match
        return
    for entered in patterns[at].find(names[at], match, where.format(at + 1)):
        yield from find_all(patterns, names, entered, where, at + 1)


def origin(graph: Graph, name: str | None) -> str:
    """What an array is, in a few words."""
    if name is None:
        return "absent"
    if name in graph.constants:
        return "a constant"
    if graph.is_view(name):
        return f"a view of {graph.view_source(name)}"
    node = graph.producer(name)
    return "an input" if node is None else f"made by {getattr(node, 'op_type', type(node).__name__)}"


def _accepts(expected: object, value: object) -> bool:
    """Is the attribute as expected? Floats are what float32 makes of them."""
    if callable(expected):
        return bool(expected(value))
    if isinstance(expected, float) and isinstance(value, (int, float)):
        return isclose(value, expected, rel_tol=1e-6)
    return bool(_plain(value) == _plain(expected))


def _plain(value: object) -> Any:
    return list(value) if isinstance(value, (list, tuple)) else value
