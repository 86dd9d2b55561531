"""A graph as text that says all of it: for golden tests, traces, bug reports and reading; ``text.parse`` reads it.

    graph test(x_1: float32[n, 6]) -> k_3
      size n of x_1 axis 0
      transposed_2: float32[6, n] = view x_1 strides [1, 6] offset 0
      k_3: float32[6, n] from "encoder.norm" = kernel tanh
        s0(i0 < 6, i1 < n):
          in0 <- transposed_2[i0, i1]
          out0: float32 = tanh(in0)
          out0 -> k_3[i0, i1]
        schedule:
          parallel for i0 < 6: ...

Nodes are in the order in which they run, constants and views before their first reader. An array says its type,
``strides`` unless it is row-major, ``as`` its name in the model and ``from`` where it is computed there. ``early`` and
``late`` list the arrays whose kernels are kept apart (``graph.apart``).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any

from dace.sdfg.nodes import LibraryNode

from daceopt.errors import Unsupported
from daceopt.ir.control.region import TRIPS, Region, Repeat, Stacked
from daceopt.ir.data.arrays import SEED
from daceopt.ir.graph.build_options import BuildOptions
from daceopt.ir.graph.graph import Graph
from daceopt.ir.graph.kinds import Node, is_operator
from daceopt.ir.graph.operator import Operator
from daceopt.ir.graph.sub_graphs import SubGraph
from daceopt.ir.kernel.kernel_node import KernelNode
from daceopt.ir.scalar import types
from daceopt.ir.scalar.dims import row_major
from daceopt.ir.scalar.expression_text import text
from daceopt.ir.text import kernel_text
from daceopt.ir.text.literal_text import Large, literal, values

_WIDTH = 120
_INDENT = "  "
_PLAIN = re.compile(r"[A-Z][A-Za-z0-9_]*")  # names of operators that need no quotes


def render(graph: Graph, large: Large | None = None) -> str:
    """The text of ``graph``; equal graphs give equal text.

    Of constants with many elements it has a digest; ``large`` is filled with their values, for :func:`parse`. What has
    no text (C++ of a library, values of unknown types) is named by a line that starts with ``unreadable``.
    """
    return "\n".join(_Lines(graph, {} if large is None else large).all()) + "\n"


def stem(name: str) -> str:
    """What an array is called in its model where the text says nothing else: its name without the number."""
    return re.sub(r"_[0-9]+$", "", name)


def _list(items: Iterable[str]) -> str:
    return ", ".join(items)


class _Lines:
    def __init__(self, graph: Graph, large: Large):
        self._graph, self._large = graph, large
        self._shown: set[str] = set()

    def all(self) -> list[str]:
        lines = self._header()
        body = self._facts()
        for node in self._graph.nodes():
            body += self._sources(n for n in self._graph.inputs_of(node) if n is not None)
            body += self._wholes(n for n in self._graph.outputs_of(node) if n is not None)
            body += self._node(node)
        body += self._sources(self._graph.arrays())
        return [*lines, *(_INDENT + line for line in body)]

    # ---------------------------------------------------------------- what the graph is

    def _header(self) -> list[str]:
        graph = self._graph
        inputs, outputs = [self._declare(n) for n in graph.inputs], _list(graph.outputs)
        line = f"graph {graph.name}({_list(inputs)}) -> {outputs}".rstrip()
        if len(line) <= _WIDTH:
            return [line]
        return [f"graph {graph.name}(", *(f"{_INDENT}{i}," for i in inputs), f") -> {outputs}".rstrip()]

    def _facts(self) -> list[str]:
        graph, source = self._graph, self._graph.source
        lines = [f"size {s} of {name} axis {axis}" for s, (name, axis) in graph.symbols.items()]
        others = sorted(s for s in graph.size_names if s not in graph.symbols)
        lines += [f"sizes {_list(others)}"] if others else []
        lines += [f"assume {text(a)} >= 0" for a in graph.assumptions]
        lines += [f"save {_list(graph.saved)}"] if graph.saved else []
        lines += [f"replace {old} by output {k}" for k, old in sorted(graph.replaced.items())]
        lines += ["ordered"] if graph.is_ordered else []
        for side, word in ((False, "early"), (True, "late")):
            names = [n for n in graph.arrays() if graph.apart.get(n) is side]
            lines += [f"{word} {_list(names)}"] if names else []
        lines += [line for group in graph.sub_graphs for line in _sub_graph(group)]
        lines += [f"place {name} {p.level} [{_list(map(str, p.binding))}]" for name, p in graph.placements.items()]
        lines += [f"target {json.dumps(graph.options.target)}"] if graph.options.target != BuildOptions().target else []
        lines += ["reuse memory"] if graph.options.reuse_memory else []
        lines += [f"opset {_list(f'{json.dumps(d)} {v}' for d, v in source.opset.items())}"] if source.opset else []
        lines += ["speculative"] if source.speculative else []
        lines += [f"trips {counter} {count}" for counter, count in source.trips.items()]
        present = ((n, v) for n, v in source.shape_values.items() if graph.has(n))
        return lines + [f"known {name} = [{_list(map(text, value))}]" for name, value in present]

    # ---------------------------------------------------------------- arrays

    def _type(self, name: str) -> str:
        return f"{types.name_of(self._graph.dtype(name))}[{_list(map(text, self._graph.shape(name)))}]"

    def _declare(self, name: str) -> str:
        """An array where it first occurs."""
        if name in self._shown:
            return name
        self._shown.add(name)
        graph, strides = self._graph, ""
        if graph.is_part(name):
            whole, starts = graph.part(name)
            strides = f" in {whole} at [{_list(map(text, starts))}]"
        elif not graph.is_view(name) and graph.strides(name) != row_major(graph.shape(name)):
            strides = f" strides [{_list(map(text, graph.strides(name)))}]"
        return f"{name}: {self._type(name)}{strides}{self._provenance(name)}"

    def _provenance(self, name: str) -> str:
        graph = self._graph
        called = graph.source.names.get(name, stem(name))
        shown = f" as {json.dumps(called)}" if called != stem(name) else ""
        origins = graph.origins.get(name, ())
        return shown + (f" from {' '.join(map(json.dumps, origins))}" if origins else "")

    def _sources(self, names: Iterable[str]) -> list[str]:
        """Lines for those of ``names`` that no line has shown yet: constants, views, and what nothing writes."""
        graph, lines = self._graph, []
        for name in names:
            if name in self._shown:
                continue
            lines += self._wholes([name])
            if graph.is_view(name):
                source, offset = graph.view_source(name), graph.view_offset(name)
                lines += self._sources([source])
                place = f"strides [{_list(map(text, graph.strides(name)))}] offset {text(offset)}"
                lines.append(f"{self._declare(name)} = view {source} {place}")
            elif name in graph.constants:
                lines.append(f"{self._declare(name)} = {values(graph.constants[name], self._large)}")
            else:
                lines.append(self._declare(name) + (" = seed" if name == SEED else ""))
        return lines

    def _wholes(self, names: Iterable[str]) -> list[str]:
        """Lines for what ``names`` are parts of."""
        return [line for n in names if self._graph.is_part(n) for line in self._sources([self._graph.part(n).whole])]

    # ---------------------------------------------------------------- nodes

    def _node(self, node: Node) -> list[str]:
        graph = self._graph
        if isinstance(node, KernelNode):
            return self._kernel(node)
        if is_operator(node):
            outputs = _list(self._declare(n) if n else "_" for n in graph.outputs_of(node))
            return [f"{outputs} = {self._operator(node)}{_label_text(node, node.op_type)}"]
        operands = _list(f"{c}={n}" for c, n in sorted(graph.reads(node).items()))
        writes = graph.writes(node)
        usual = tuple(writes) == getattr(type(node), "results", None) and len(writes) == 1
        outputs = _list(f"{'' if usual else f'{c}='}{self._declare(n)}" for c, n in sorted(writes.items()))
        if not isinstance(node, LibraryNode):
            code = str(getattr(getattr(node, "code", None), "as_string", ""))
            return [f"{outputs} = unreadable {type(node).__name__}({operands}) {json.dumps(code)}"]
        kind = type(node).__name__
        call = f"library {kind}({operands}{self._values(_properties(node))}){_label_text(node, kind.lower())}"
        inside = self._region(node) if isinstance(node, Region) else []
        return [f"{outputs} = {call}", *(_INDENT + line for line in inside)]

    def _operator(self, node: Operator) -> str:
        name = node.op_type if _PLAIN.fullmatch(node.op_type) else json.dumps(node.op_type)
        domain = f"{json.dumps(node.domain)}." if node.domain else ""
        operands = _list(n or "_" for n in self._graph.inputs_of(node))
        usual = node.version_in(self._graph.source.opset.get(node.domain))
        version = "" if node.since_version == usual else f"@{node.since_version}"
        return f"{domain}{name}{version}({operands}{self._values(node.attributes)})"

    def _values(self, attributes: dict[str, Any]) -> str:
        shown = [f"{_key(k)}={self._literal(v)}" for k, v in sorted(attributes.items()) if v is not None]
        return "; " + _list(shown) if shown else ""

    def _literal(self, value: object) -> str:
        try:
            return literal(value, self._large)
        except Unsupported as error:
            return f"unreadable {json.dumps(str(error))}"

    def _kernel(self, node: KernelNode) -> list[str]:
        graph = self._graph
        outputs = _list(self._declare(n) for n in graph.outputs_of(node) if n is not None)
        try:
            head, *lines = kernel_text.lines(node.kernel)
        except Unsupported as error:
            operands = _list(n for n in graph.inputs_of(node) if n is not None)
            return [f"{outputs} = unreadable kernel({operands}) {json.dumps(str(error))}"]
        return [f"{outputs} = {head}", *(_INDENT + line for line in lines)]

    # ---------------------------------------------------------------- regions

    def _region(self, node: Region) -> list[str]:
        """How often, what is bound to what, and the bodies."""
        lines = _repetition(node) if isinstance(node, Repeat) else []
        for body, captured in zip(node.bodies, node.captures):
            bound = f" with {_list(f'{name} = {connector}' for name, connector in captured.items())}"
            lines.append(f"body{bound if captured else ''}:")
            lines += [_INDENT + line for line in _Lines(body, self._large).all()]
        return lines


def _repetition(node: Repeat) -> list[str]:
    count = "" if node.trips is None else f" < {text(node.trips)}"
    bound = f" < {TRIPS}" if node.trips is None and TRIPS in node.in_connectors else ""
    limit = "" if node.limit is None else f" at most {text(node.limit)}"
    last = "" if node.condition is None else f" while {node.carried[node.condition].input}"
    lines = [f"for {node.counter}{count}{bound}{limit}{' descending' if node.descending else ''}{last}"]
    lines += [f"carry {c.input} from {c.initial}{f' to {c.final}' if c.final else ''}" for c in node.carried]
    lines += [_stacked_text(s) for s in node.stacked]
    return lines + [f"states {name} in {connector}" for name, connector in node.states.items()]


def _sub_graph(group: SubGraph) -> list[str]:
    head = f"group {group.factor} on {group.clusters} {group.halos}: "
    first = head + _list(f"{name} {axis}" for name, axis in group.axes.items())
    return [first, *(f"instance {_list(names)}" for names in group.instances)]


def _stacked_text(stacked: Stacked) -> str:
    by = "" if stacked.extent is None else f" by {text(stacked.extent)}"
    return f"stack {stacked.connector} axis {stacked.axis}{' from the end' if stacked.reverse else ''}{by}"


def _label_text(node: Node | Operator, usual: str) -> str:
    return "" if node.label == usual else f" called {json.dumps(node.label)}"


def _key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name) else json.dumps(name)


def _properties(node: LibraryNode) -> dict[str, Any]:
    """What the class of a library node adds to DaCe's own properties, where it is not the default."""
    own = {p.attr_name: (p, value) for p, value in node.properties() if p.attr_name not in LibraryNode.__properties__}
    return {name: value for name, (p, value) in own.items() if value != p.default}
