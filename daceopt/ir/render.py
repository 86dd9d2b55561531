"""A graph as short, stable text: for golden tests, traces, bug reports and reading."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from dace import nodes

from daceopt.errors import Unsupported
from daceopt.ir import types
from daceopt.ir.graph import Graph
from daceopt.ir.kernel import Access, Kernel, Stage
from daceopt.ir.region import TRIPS, Region, Repeat

_FEW = 8  # constants up to this many elements are shown whole


def render(graph: Graph) -> str:
    """One line per node in topological order, with views before their first use; equal graphs give equal text."""
    return "\n".join([_signature(graph), *_Lines(graph).all()]) + "\n"


def _signature(graph: Graph) -> str:
    inputs = ", ".join(f"{n}: {_type(graph, n)}" for n in graph.inputs)
    return f"({inputs}) -> {', '.join(graph.outputs)}"


def _type(graph: Graph, name: str) -> str:
    return f"{types.name_of(graph.dtype(name))}[{_list(graph.shape(name))}]"


def _list(items: Iterable[Any]) -> str:
    return ", ".join(str(i) for i in items)


class _Lines:
    def __init__(self, graph: Graph):
        self._graph = graph
        self._shown: set[str] = set()

    def all(self) -> list[str]:
        lines: list[str] = []
        for node in self._graph.nodes():
            lines += self._sources(n for n in self._graph.inputs_of(node) if n is not None)
            lines += self._node(node)
        return ["  " + line for line in lines]

    def _sources(self, names: Iterable[str]) -> list[str]:
        """Lines for the constants and views among ``names`` that were not shown yet."""
        lines: list[str] = []
        for name in names:
            if name in self._shown:
                continue
            self._shown.add(name)
            if name in self._graph.constants:
                lines.append(f"{name}: {_type(self._graph, name)} = {_constant(self._graph.constants[name])}")
            elif self._graph.is_view(name):
                lines += self._sources([self._graph.view_source(name)])
                lines.append(self._view(name))
        return lines

    def _view(self, name: str) -> str:
        graph = self._graph
        place = f"strides [{_list(graph.strides(name))}] offset {graph.view_offset(name)}"
        return f"{name}: {_type(graph, name)} = view {graph.view_source(name)} {place}"

    def _node(self, node: Any) -> list[str]:
        graph = self._graph
        outputs = ", ".join(f"{n}: {_type(graph, n)}" if n else "_" for n in graph.outputs_of(node))
        if isinstance(node, nodes.MapEntry):
            return [f"{outputs} = kernel {node.map.label}", *_kernel(graph, node)]
        if hasattr(node, "op_type"):
            operands = ", ".join(n or "_" for n in graph.inputs_of(node))
            return [f"{outputs} = {node.op_type}({operands}{_attributes(node.attributes)})"]
        operands = ", ".join(f"{c}={n}" for c, n in sorted(graph.reads(node).items()))
        inside = _region(node) if isinstance(node, Region) else []
        return [f"{outputs} = {type(node).__name__}({operands})", *inside]


def _region(node: Region) -> list[str]:
    """How often, what is bound to what, and the bodies."""
    lines: list[str] = []
    if isinstance(node, Repeat):
        last = "" if node.condition is None else f" while {node.carried[node.condition].input}"
        count = node.trips if node.trips is not None else TRIPS if TRIPS in node.in_connectors else "any number"
        lines.append(f"  for {node.counter} < {count}{last}")
        lines += [f"  carry {c.input} from {c.initial} to {c.final or '_'}" for c in node.carried]
        lines += [f"  stack {s.connector} axis {s.axis}{' from the end' if s.reverse else ''}" for s in node.stacked]
    for body, captured in zip(node.bodies, node.captures):
        lines += (
            [f"  bind {_list(f'{name} = {connector}' for name, connector in captured.items())}"] if captured else []
        )
        lines += ["  " + line for line in render(body).splitlines()]
    return lines


def _constant(value: np.ndarray) -> str:
    if value.size <= _FEW:
        return str(value.tolist())
    return f"<{value.size} values>"


def _attributes(attributes: dict[str, Any]) -> str:
    shown = [f"{k}={_attribute(v)}" for k, v in sorted(attributes.items()) if v is not None]
    return "; " + ", ".join(shown) if shown else ""


def _attribute(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return _constant(value)
    if isinstance(value, float):
        return f"{value:.9g}"
    return str(value) if isinstance(value, (int, list)) else repr(value)[:40]


def _kernel(graph: Graph, entry: nodes.MapEntry) -> list[str]:
    try:
        kernel = Kernel.extract(graph, entry)
    except Unsupported as error:
        return [f"  ({error})"]
    extents = _list(f"{p} < {e}" for p, e in kernel.extents.items())
    outer = f" outer {_list(kernel.outer)}" if kernel.outer else ""
    serial = f" serial {_list(kernel.serial)}" if kernel.serial else ""
    return [f"  for {extents or 'one element'}{outer}{serial}", *(line for s in kernel.stages for line in _stage(s))]


def _stage(stage: Stage) -> list[str]:
    lines = [f"  {c} <- {_access(a)}" for c, a in stage.reads.items()]
    lines += [f"  {a.symbol} = {a.expr}" for a in stage.assignments]
    return lines + [f"  {c} -> {_access(a)}" for c, a in stage.writes.items()]


def _access(access: Access) -> str:
    index = _list(":" if e is None else e for e in access.index)
    return f"{access.array}[{index}]" + (f" ({access.wcr})" if access.wcr else "")
