"""Reads the text of :func:`daceopt.ir.text.render.render` back into a graph.

Text is never evaluated: every line is taken apart word by word, and what is not there as expected is a GraphTextError
with the line. A graph that was read is like any other; a ``HostCall`` in it calls the Python function that it names
when the graph runs, as it does in the graph that was written.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import sympy

from daceopt.errors import DaceoptError, GraphTextError
from daceopt.ir.data.arrays import SEED
from daceopt.ir.graph.graph import Graph
from daceopt.ir.graph.placements import Placement
from daceopt.ir.graph.sub_graphs import SubGraph
from daceopt.ir.scalar.dims import Dim, dim
from daceopt.ir.scalar.symbols import Counter, size
from daceopt.ir.text.kernel_text import KernelReader
from daceopt.ir.text.literal_text import array
from daceopt.ir.text.node_text import NodeReader, WrittenArray
from daceopt.ir.text.render import stem
from daceopt.ir.text.scanner import Lines, Scanner

_FACTS = (
    r"(size|sizes|assume|save|replace|ordered|early|late|group|instance|place|target|reuse|opset|speculative|trips|known)"
    r"\b(?![:=,])"
)


def parse(text: str, large: Mapping[str, np.ndarray] | None = None) -> Graph:
    """The graph that ``text`` says; ``large`` has the arrays of which the text has digests only.

    Library nodes are of the classes that are imported. Raises GraphTextError with the line, what was expected there and
    what was found. The graph is not validated: also one that is wrong can be read.
    """
    lines = Lines(text)
    graph = _Reader(lines, large or {}).graph(0)
    if lines.depth is not None:
        raise lines.next(lines.depth).error("the end of the text, or a line of the graph above")
    return graph


class _Reader:
    """Reads one graph, and those of the bodies in it."""

    def __init__(self, lines: Lines, large: Mapping[str, np.ndarray], counters: frozenset[str] = frozenset()):
        self._lines, self._large, self._counters = lines, large, counters
        self._is_ordered = False
        self._groups: list[SubGraph] = []
        self._placements: dict[str, Placement] = {}
        self._apart: dict[str, bool] = {}

    def graph(self, depth: int) -> Graph:
        """The graph whose first line is at ``depth``."""
        line = self._lines.next(depth)
        line.expect("graph ")
        self._graph = Graph(line.match(r"[A-Za-z_][A-Za-z0-9_]*", "the name of the graph"))
        inputs = list(self._inputs(line, depth))
        while self._lines.depth == depth + 1:
            line = self._lines.next(depth + 1)
            with _tell_line(line):
                self._line(line, depth + 1)
        with _tell_line(self._header_end):
            self._outputs()
            if self._is_ordered:
                self._graph.order = tuple(self._graph.compute())
            self._graph.sub_graphs = self._groups
            self._graph.placements = self._placements
            self._graph.apart = self._apart
        assert inputs == self._graph.inputs
        return self._graph

    # ---------------------------------------------------------------- the header

    def _inputs(self, line: Scanner, depth: int) -> Iterator[str]:
        """Declares the inputs, which may stand on a line each; sizes in their shapes are those of the graph."""
        line.expect("(")
        while not line.take(")"):
            if line.is_empty():
                line = self._lines.next(depth, depth + 1)
                continue
            with _tell_line(line):
                name = self._declaration(line, open_sizes=True)
                self._graph.inputs.append(name)
            yield name
            if not line.at(")"):
                line.expect(",")
        line.expect("->")
        self._header_end, self._named_outputs = line, line.names()
        line.end()

    def _outputs(self) -> None:
        graph = self._graph
        for name in (*self._named_outputs, *graph.saved):
            if not graph.has(name):
                raise GraphTextError(f"line {self._header_end.number}: there is no array {name!r} to return or save")
        for name in self._named_outputs:
            graph.add_output(name)

    # ---------------------------------------------------------------- one line

    def _line(self, line: Scanner, depth: int) -> None:
        if line.matches(_FACTS):
            self._fact(line, line.name())
            line.end()
            return
        written = self._targets(line)
        if line.is_empty():
            return
        line.expect("=")
        if line.at("[") or line.at("<"):
            self._constant(line, written)
        elif line.take("view "):
            self._view(line, written)
        elif line.take("seed"):
            self._seed(line, written)
        else:
            self._node(line, written, depth)
        line.end()

    def _targets(self, line: Scanner) -> list[WrittenArray]:
        """What is before ``=``: arrays, with the connectors that write them where these have names."""
        targets: list[WrittenArray] = []
        while not line.at("=") and not line.is_empty():
            connector = line.name() if line.matches(r"[A-Za-z_][A-Za-z0-9_]*=") else ""
            if connector:
                line.expect("=")
            targets.append(WrittenArray(connector, self._target(line)))
            if not line.at("=") and not line.is_empty():
                line.expect(",")
        return targets

    def _target(self, line: Scanner) -> str | None:
        """An array; its declaration waits where its line says what a view or a constant is."""
        if line.matches(r"_(?![A-Za-z0-9_])"):
            line.expect("_")
            return None
        if not line.matches(r"[a-z][a-z0-9_]*:"):
            return self._known_name(line)
        return self._declaration(line)

    def _known_name(self, line: Scanner) -> str:
        name = line.name("an array")
        if not self._graph.has(name):
            raise line.error("an array that a line above declares", repr(name))
        return name

    # ---------------------------------------------------------------- arrays

    def _declaration(self, line: Scanner, open_sizes: bool = False) -> str:
        """``name: type[shape] in whole at [...] strides [...] as "..." from "..."``; all but type may be missing."""
        name = line.name("an array")
        line.expect(":")
        dtype = line.dtype(line.name("an element type"))
        shape = self._extents(line, open_sizes)
        part = (self._known_name(line), self._starts(line)) if line.take("in ") else None
        strides = self._extents(line, open_sizes) if line.take("strides ") else None
        called = line.string() if line.take("as ") else stem(name)
        origins = []
        if line.take("from "):
            origins.append(line.string())
            while line.at('"'):
                origins.append(line.string())
        graph = self._graph
        if line.matches(r"= view "):
            self._waiting = (shape, dtype)
        else:
            graph.declare(name, shape, dtype, strides)
        if part is not None:
            graph.attach(name, *part)
        if name != SEED:
            graph.source.names[name] = called
        if origins:
            graph.origins[name] = tuple(origins)
        return name

    def _starts(self, line: Scanner) -> tuple[Dim, ...]:
        line.expect("at ")
        return self._extents(line, False)

    def _extents(self, line: Scanner, open_sizes: bool) -> tuple[Dim, ...]:
        symbol = self._symbol if open_sizes else self._size
        return tuple(dim(e) for e in line.expressions(line.inside("[", "]"), symbol))

    def _size(self, name: str) -> sympy.Symbol:
        """A size of the graph; others would be names that nothing defines."""
        if name not in self._graph.size_names:
            raise GraphTextError(f"{name!r} is no size of graph {self._graph.name}")
        return self._symbol(name)

    def _symbol(self, name: str) -> sympy.Symbol:
        return Counter(name) if name in self._counters else size(name)

    def _constant(self, line: Scanner, written: list[WrittenArray]) -> None:
        graph, name = self._graph, self._only(line, written)
        shape = [e for e in graph.shape(name) if isinstance(e, int)]
        if len(shape) != len(graph.shape(name)):
            raise line.error("a constant of known shape", f"{name} of shape {graph.shape(name)}")
        graph.constants[name] = array(line, graph.dtype(name), shape, self._large)

    def _view(self, line: Scanner, written: list[WrittenArray]) -> None:
        name, (shape, dtype) = self._only(line, written), self._waiting
        source = self._known_name(line)
        if self._graph.dtype(source) != dtype:
            raise line.error(f"a view of {source}, with its element type", f"{name} of another one")
        line.expect("strides ")
        strides = self._extents(line, False)
        line.expect("offset ")
        self._graph.declare_view(name, source, shape, strides, dim(line.expression(line.remainder(), self._size)))

    def _seed(self, line: Scanner, written: list[WrittenArray]) -> None:
        if self._only(line, written) != SEED:
            raise line.error(f"the name {SEED}")

    def _only(self, line: Scanner, written: list[WrittenArray]) -> str:
        if len(written) != 1 or written[0].connector or written[0].array is None:
            raise line.error("one array before the sign of equality")
        return written[0].array

    # ---------------------------------------------------------------- facts

    def _fact(self, line: Scanner, kind: str) -> None:
        facts = {
            "size": self._defined_size,
            "sizes": self._sizes,
            "assume": self._assumption,
            "save": self._read_saved,
            "replace": self._read_replaced,
            "ordered": self._read_order,
            "early": lambda line: self._apart.update(dict.fromkeys(line.names(), False)),
            "late": lambda line: self._apart.update(dict.fromkeys(line.names(), True)),
            "group": self._group,
            "instance": self._instance,
            "place": self._placement,
            "target": self._target_of_build,
            "reuse": self._memory,
            "opset": self._opset,
            "speculative": self._speculative,
            "trips": self._trips,
            "known": self._contents,
        }
        facts[kind](line)

    def _sizes(self, line: Scanner) -> None:
        for name in line.names():
            self._declare_size(name)

    def _assumption(self, line: Scanner) -> None:
        self._graph.assumptions.append(line.expression(line.inside_until(">="), self._size))
        line.expect("0")

    def _read_saved(self, line: Scanner) -> None:
        self._graph.saved.extend(line.names())

    def _read_replaced(self, line: Scanner) -> None:
        old = line.name("an input")
        line.expect("by output")
        k = line.integer("the position of an output")
        if old not in self._graph.inputs or not 0 <= k < len(self._named_outputs):
            raise line.error("an input and the position of an output", f"{old} and {k}")
        self._graph.replaced[k] = old

    def _read_order(self, line: Scanner) -> None:
        """Nodes run in the order of their lines, not in any that computes the same."""
        self._is_ordered = True

    def _group(self, line: Scanner) -> None:
        """A sub-graph; its arrays are declared further down."""
        factor = line.integer("a number of instances")
        line.expect("on ")
        clusters, halos = line.integer("a number of clusters"), line.name("what happens to halos")
        line.expect(":")
        axes = {}
        while not line.is_empty():
            name = line.name("an array")
            axes[name] = line.integer("an axis")
            if not line.is_empty():
                line.expect(",")
        self._groups.append(SubGraph(axes, factor, clusters, halos))

    def _instance(self, line: Scanner) -> None:
        if not self._groups:
            raise line.error("a group before its instances")
        names = tuple(line.names())
        self._groups[-1] = replace(self._groups[-1], instances=(*self._groups[-1].instances, names))

    def _placement(self, line: Scanner) -> None:
        """Where an array lives, which is declared further down."""
        name, level = line.name("an array"), line.name("a level")
        line.expect("[")
        binding = []
        while not line.take("]"):
            binding.append(line.integer("a number of cores"))
            line.take(",")
        self._placements[name] = Placement(level, tuple(binding))

    def _target_of_build(self, line: Scanner) -> None:
        self._graph.options = replace(self._graph.options, target=line.string())

    def _memory(self, line: Scanner) -> None:
        line.expect("memory")
        self._graph.options = replace(self._graph.options, reuse_memory=True)

    def _opset(self, line: Scanner) -> None:
        while not line.is_empty():
            domain = line.string()
            self._graph.source.opset[domain] = line.integer("a version")
            if not line.is_empty():
                line.expect(",")

    def _speculative(self, line: Scanner) -> None:
        self._graph.source.speculative = True

    def _trips(self, line: Scanner) -> None:
        name = line.name("a counter")
        self._graph.source.trips[name] = line.integer("a number of iterations")

    def _declare_size(self, name: str) -> None:
        if name not in self._graph.size_names:
            self._graph.size_names[name] = None

    def _defined_size(self, line: Scanner) -> None:
        name = line.name("a size")
        line.expect("of ")
        source = line.name("an input")
        line.expect("axis ")
        self._graph.symbols[name] = (source, line.integer("an axis"))
        self._declare_size(name)

    def _contents(self, line: Scanner) -> None:
        """The array may be declared further down."""
        name = line.name("an array")
        line.expect("=")
        values = line.expressions(line.inside("[", "]"), self._size)
        self._graph.source.shape_values[name] = tuple(dim(v) for v in values)

    # ---------------------------------------------------------------- nodes

    def _node(self, line: Scanner, written: list[WrittenArray], depth: int) -> None:
        if line.take("unreadable "):
            raise line.error("a node that text can say", "one that it cannot: " + line.remainder()[:200])
        if line.take("kernel "):
            KernelReader(self._graph, self._lines, self._size).read(line, [w.array for w in written], depth)
            return
        NodeReader(self._graph, self._size, self._large).read(line, written, self._lines, depth, self._body)

    def _body(self, depth: int, counters: frozenset[str]) -> Graph:
        return _Reader(self._lines, self._large, self._counters | counters).graph(depth)


@contextmanager
def _tell_line(line: Scanner) -> Iterator[None]:
    """What goes wrong inside is told with the line."""
    try:
        yield
    except GraphTextError as error:
        raise error if str(error).startswith("line ") else GraphTextError(f"line {line.number}: {error}") from error
    except (DaceoptError, ValueError, TypeError, KeyError) as error:
        raise GraphTextError(f"line {line.number}: {error}") from error
