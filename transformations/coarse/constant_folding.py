"""Constant folding, with sizes that are symbolic kept in the graph's table of shape values."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from daceopt.errors import DaceoptError
from daceopt.ir.graph.graph import Graph
from daceopt.ir.graph.kinds import Node
from daceopt.ir.graph.operators import RANDOM
from daceopt.ir.scalar import types
from daceopt.ir.scalar.dims import Dim
from daceopt.ops.core import reference, values
from daceopt.passes.transform import NearMiss, Site, Transformation, sweep

_LIST = 64  # a list of sizes is short; anything longer is data
_LOOKS_AT_SHAPE = {"Reshape": 1, "Expand": 1}  # operator -> position of the operand that only states the output's shape


@dataclass(frozen=True)
class ConstantFolding(Transformation):
    """Compute at compile time what depends on constants and shapes only, unless constants would grow by much.

    ``budget``: the bytes that a result may have more than the constants that go for it.

    before:  s = Shape(x: [2, 3, 4]); t = Gather(s, [2]); y = Reshape(x, Concat([-1], t))
    after:   y = Reshape(x, [-1, 4])
    """

    level: ClassVar[str] = "coarse"
    budget: int = 1 << 18

    def match_at(self, graph: Graph, node: Node) -> Iterable[Site | NearMiss]:
        if getattr(node, "domain", None) != "" or node.op_type in RANDOM:
            return
        outputs = graph.outputs_of(node)
        if node.op_type in _LOOKS_AT_SHAPE:
            yield from self._stated_shape(graph, node)
        value = self._value(graph, node)
        if isinstance(value, str):
            yield NearMiss(node, value)
        elif value is not None and any(n in graph.outputs for n in outputs):
            yield NearMiss(node, f"{node.op_type} of constants is a graph output, which must be computed")
        elif value is not None:
            yield Site(graph, (node,), {"values": value})

    def apply(self, site: Site) -> None:
        graph, node = site.graph, site.nodes[0]
        if "shape" in site.found:
            return self._state_shape(site)
        present = [n for n in graph.outputs_of(node) if n is not None]
        for name, value in zip(present, site["values"], strict=True):
            graph.replace_uses(name, graph.add_constant(graph.source.names.get(name, name), value))
        return sweep(graph, [node])

    def _value(self, graph: Graph, node: Node) -> list[np.ndarray] | str | None:
        """Values of all outputs; None when they are not known, a text when they are but must stay."""
        sizes = _sizes(graph, node)
        output = graph.outputs_of(node)[0]
        if sizes is not None and output is not None:
            if not all(isinstance(v, int) for v in sizes):
                graph.source.shape_values[output] = sizes
                return None
            return [np.asarray(sizes, types.to_numpy(graph.dtype(output))).reshape(_ints(graph, output))]
        inputs = [n for n in graph.inputs_of(node) if n is not None]
        if not inputs or not all(n in graph.constants for n in inputs):
            return self._cast_like(graph, node)
        return self._evaluate(graph, node, inputs)

    def _evaluate(self, graph: Graph, node: Node, inputs: list[str]) -> list[np.ndarray] | str | None:
        outputs = [n for n in graph.outputs_of(node) if n is not None]
        sizes = [graph.size(n) for n in outputs]
        if not all(isinstance(s, int) for s in sizes):
            return None
        grown = sum(n * types.itemsize(graph.dtype(o)) for n, o in zip(sizes, outputs, strict=True))
        if grown > self.budget:
            grown -= sum(graph.constants[n].nbytes for n in dict.fromkeys(inputs) if _goes(graph, n))
        if grown > self.budget:
            return (
                f"{node.op_type} of constants would add {grown} bytes to them, the budget is {self.budget}: "
                "computed at run time"
            )
        try:
            computed = reference.compute(node, [graph.constants.get(n or "") for n in graph.inputs_of(node)])
        except DaceoptError as error:
            return str(error)
        arrays = [v.astype(types.to_numpy(graph.dtype(n))) for n, v in zip(outputs, computed, strict=True)]
        wrong = [n for n, v in zip(outputs, arrays, strict=True) if tuple(v.shape) != graph.shape(n)]
        return f"{node.op_type} of constants has another shape than {wrong[0]} declares" if wrong else arrays

    def _cast_like(self, graph: Graph, node: Node) -> list[np.ndarray] | None:
        """CastLike needs only the type of its second operand."""
        value = graph.constants.get(graph.inputs_of(node)[0] or "") if node.op_type == "CastLike" else None
        return None if value is None else [value.astype(types.to_numpy(graph.dtype(graph.result(node, 0))))]

    def _stated_shape(self, graph: Graph, node: Node) -> Iterable[Site]:
        """The output's shape is known: the operand that computes it at run time can go."""
        operand, output = graph.inputs_of(node)[_LOOKS_AT_SHAPE[node.op_type]], graph.result(node, 0)
        if operand not in graph.constants and all(isinstance(d, int) and d > 0 for d in graph.shape(output)):
            yield Site(graph, (node,), {"shape": graph.shape(output)})

    def _state_shape(self, site: Site) -> None:
        graph, node = site.graph, site.nodes[0]
        inputs, outputs = graph.inputs_of(node), graph.outputs_of(node)
        operand = inputs[_LOOKS_AT_SHAPE[node.op_type]]
        graph.remove(node)
        stated = graph.add_constant("shape", np.asarray(site["shape"], np.int64))
        graph.add_operator(node.op_type, [inputs[0], stated], outputs, node.attributes)
        sweep(graph, [graph.producer(operand)] if operand else [])


def _goes(graph: Graph, name: str) -> bool:
    """Is a constant read by nothing but what is constant as well?"""
    inputs = (n for reader in graph.all_consumers(name) for n in graph.inputs_of(reader))
    return all(n is None or n in graph.constants for n in inputs)


def _sizes(graph: Graph, node: Node) -> tuple[Dim, ...] | None:
    """What ``node`` computes, if that is a short list of integers made from constants and the sizes of arrays."""
    operands = [] if node.op_type in ("Shape", "Size") else graph.inputs_of(node)
    if not all(n is None or _is_list(graph, n) for n in (*operands, *graph.outputs_of(node))):
        return None
    try:
        return values.known_elements(graph, graph.outputs_of(node)[0])
    except IndexError:
        return None  # out of range: evaluation says so


def _is_list(graph: Graph, name: str) -> bool:
    size = graph.size(name)
    return (
        types.is_integer(graph.dtype(name)) and len(graph.shape(name)) <= 1 and isinstance(size, int) and size <= _LIST
    )


def _ints(graph: Graph, name: str) -> tuple[int, ...]:
    return tuple(int(d) for d in graph.shape(name))
