"""Operators, library nodes and regions as text are read here; ``ir.text.render`` writes them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import sympy
from dace.sdfg.nodes import LibraryNode

from daceopt.ir.control.region import TRIPS, Carried, Conditional, Region, Repeat, Stacked
from daceopt.ir.graph.graph import Graph
from daceopt.ir.scalar.dims import dim
from daceopt.ir.scalar.symbols import Counter
from daceopt.ir.text import literal_text
from daceopt.ir.text.scanner import Lines, Scanner

# reads the graph at a depth, given the counters of the loops around it
BodyReader = Callable[[int, frozenset[str]], Graph]

_FOR = re.compile(
    r"(?P<counter>\w+)(?: < (?P<trips>.+?))?(?: at most (?P<limit>.+?))?(?P<down> descending)?(?: while (?P<test>\w+))?"
)


class WrittenArray(NamedTuple):
    """An array that a node writes; its connector is empty where operators and kernels have none in the text."""

    connector: str
    array: str | None


class NodeReader:
    """Reads one node of ``graph`` and adds it."""

    def __init__(self, graph: Graph, size: Callable[[str], sympy.Symbol], large: Mapping[str, np.ndarray]):
        self._graph, self._size, self._large = graph, size, large

    def read(
        self,
        line: Scanner,
        written: Sequence[WrittenArray],
        lines: Lines,
        depth: int,
        body: BodyReader,
    ) -> None:
        """What follows the sign of equality, and the lines of a region below; ``body`` reads a graph."""
        if line.take("library "):
            self._library(line, written, lines, depth, body)
        else:
            self._operator(line, [w.array for w in written])

    # ---------------------------------------------------------------- operators

    def _operator(self, line: Scanner, written: list[str | None]) -> None:
        first = line.string() if line.at('"') else line.match(r"[A-Z][A-Za-z0-9_]*", "a node, a view or a constant")
        domain, op_type = "", first
        if line.take("."):
            domain, op_type = first, line.string() if line.at('"') else line.name("the name of an operator")
        version = line.integer("a version") if line.take("@") else None
        line.expect("(")
        operands: list[str | None] = []
        while not line.at(";") and not line.at(")"):
            operands.append(self._operand(line))
            if not line.at(";") and not line.at(")"):
                line.expect(",")
        attributes = dict(self._attributes(line))
        node = self._graph.add_operator(op_type, operands, written, attributes, domain, version)
        node.attributes = attributes  # without the defaults that were not there
        node.label = self._label(line, op_type)

    def _operand(self, line: Scanner) -> str | None:
        name = line.name("an array")
        if name != "_" and not self._graph.has(name):
            raise line.error("an array that a line above declares", repr(name))
        return None if name == "_" else name

    def _attributes(self, line: Scanner) -> Iterator[tuple[str, Any]]:
        """Names and values after a semicolon, up to the bracket that ends the call."""
        if not line.take(";"):
            line.expect(")")
            return
        while True:
            name = line.string() if line.at('"') else line.name("the name of an attribute")
            line.expect("=")
            if line.take("unreadable "):
                raise line.error("a value that text can say", f"one that it cannot: {line.string()[:80]}")
            yield name, literal_text.read(line, self._size, self._large)
            if line.take(")"):
                return
            line.expect(",")

    def _label(self, line: Scanner, usual: str) -> str:
        return line.string() if line.take("called ") else usual

    # ---------------------------------------------------------------- library nodes

    def _library(
        self,
        line: Scanner,
        written: Sequence[WrittenArray],
        lines: Lines,
        depth: int,
        body: BodyReader,
    ) -> None:
        kind = line.name("the class of a library node")
        cls = node_class(kind)
        if cls is None:
            raise line.error("the class of a library node; import the module that defines it", kind)
        line.expect("(")
        reads: dict[str, str] = {}
        while not line.at(";") and not line.at(")"):
            connector = line.name("a connector")
            line.expect("=")
            reads[connector] = self._operand(line) or ""
            if not line.at(";") and not line.at(")"):
                line.expect(",")
        attributes = dict(self._attributes(line))
        label = self._label(line, kind.lower())
        usual: tuple[str, ...] = getattr(cls, "results", ())
        if len(written) == 1 and len(usual) == 1 and not written[0].connector:
            written = [WrittenArray(usual[0], written[0].array)]
        if any(not w.connector or w.array is None for w in written):
            raise line.error("the connectors that write its results, as in Y=y_1: ...", "results without")
        if issubclass(cls, Region):
            node = _RegionReader(line, self._size, lines, depth, body).read(cls, label)
        else:
            node = cls(label)
        for name, value in attributes.items():
            if name not in cls.__properties__ or name in LibraryNode.__properties__:
                raise line.error(f"an attribute of {kind}", name)
            setattr(node, name, value)
        self._graph.add_node(node, reads, {w.connector: str(w.array) for w in written})


def node_class(name: str) -> type[LibraryNode] | None:
    """The class of library nodes of this name, the last that was defined; DaCe's own mean nothing here."""
    match, waiting = None, [LibraryNode]
    while waiting:
        cls = waiting.pop(0)
        waiting += cls.__subclasses__()
        if cls.__name__ == name and not cls.__module__.startswith("dace.") and not hasattr(cls, "op_type"):
            match = cls
    return match


class _RegionReader:
    """Reads how often a region runs, what is bound to what, and the bodies."""

    def __init__(
        self,
        line: Scanner,
        size: Callable[[str], sympy.Symbol],
        lines: Lines,
        depth: int,
        body: BodyReader,
    ):
        self._line, self._size, self._lines, self._depth, self._body = line, size, lines, depth, body
        self._bodies: list[Graph] = []
        self._captures: list[dict[str, str]] = []
        self._loop: dict[str, Any] = {"carried": [], "stacked": []}
        self._states: dict[str, str] = {}

    def read(self, cls: type[LibraryNode], label: str) -> Region:
        test = None
        while self._lines.depth == self._depth + 1:
            line = self._lines.next(self._depth + 1)
            if line.take("for "):
                test = self._for(line)
            elif line.take("carry "):
                self._carry(line)
            elif line.take("stack "):
                self._stack(line)
            elif line.take("states "):
                name = line.name()
                line.expect("in ")
                self._states[name] = line.name("a connector")
            else:
                self._one_body(line)
            line.end()
        return self._repeat(label, test) if issubclass(cls, Repeat) else self._conditional(label)

    def _for(self, line: Scanner) -> str | None:
        shown = line.remainder()
        match = _FOR.fullmatch(shown)
        if match is None:
            raise line.error("a loop such as: for step0 < n at most 8 descending while more_1", repr(shown[:80]))
        trips, limit = match["trips"], match["limit"]
        self._loop |= {"counter": Counter(match["counter"]), "descending": bool(match["down"])}
        self._loop["trips"] = None if trips in (None, TRIPS) else dim(line.expression(trips, self._size))
        self._loop["limit"] = None if limit is None else dim(line.expression(limit, self._size))
        return match["test"]

    def _carry(self, line: Scanner) -> None:
        name = line.name("an input of the body")
        line.expect("from ")
        initial = line.name("a connector")
        self._loop["carried"].append(Carried(name, initial, line.name("a connector") if line.take("to ") else None))

    def _stack(self, line: Scanner) -> None:
        connector = line.name("a connector")
        line.expect("axis ")
        axis, reverse = line.integer("an axis"), line.take("from the end")
        extent = dim(line.expression(line.remainder(), self._size)) if line.take("by ") else None
        self._loop["stacked"].append(Stacked(connector, axis, reverse, extent))

    def _one_body(self, line: Scanner) -> None:
        line.expect("body")
        captured: dict[str, str] = {}
        if line.take("with "):
            while not line.at(":"):
                name = line.name("an input of the body")
                line.expect("=")
                captured[name] = line.name("a connector")
                line.take(",")
        line.expect(":")
        self._captures.append(captured)
        counters = {str(self._loop["counter"])} if "counter" in self._loop else set()
        self._bodies.append(self._body(self._depth + 2, frozenset(counters)))

    def _repeat(self, label: str, test: str | None) -> Repeat:
        if len(self._bodies) != 1 or "counter" not in self._loop:
            raise self._line.error("a loop: a line `for` and one body", f"{len(self._bodies)} bodies")
        names = [c.input for c in self._loop["carried"]]
        if test is not None and test not in names:
            raise self._line.error(f"a loop while one of {names}", f"while {test}")
        condition = None if test is None else names.index(test)
        node = Repeat(label, self._bodies[0], self._captures[0], condition=condition, **self._loop)
        node.states.update(self._states)
        return node

    def _conditional(self, label: str) -> Conditional:
        if len(self._bodies) != 2:
            raise self._line.error("two bodies of a choice", str(len(self._bodies)))
        return Conditional(label, self._bodies, self._captures)
