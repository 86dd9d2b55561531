"""A checked, shape-inferred ONNX model becomes an :class:`ir.Graph` of operator nodes, one per ONNX node."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

import dace
import numpy as np
import onnx
from onnx import numpy_helper

from daceopt.errors import Unsupported
from daceopt.ir import types
from daceopt.ir.builder import Builder
from daceopt.ir.graph import Dim, Graph
from daceopt.ops import registry

logger = logging.getLogger("daceopt.importer")


Refused = Callable[[onnx.NodeProto, str], object]


def import_model(model: onnx.ModelProto, *, fallback: bool = False, refused: Refused | None = None) -> Graph:
    """Import ``model``; initializers become constants, graph inputs and outputs keep their order.

    With ``fallback``, an operator without a native lowering becomes a host call into ONNX Runtime (one warning names
    it); without it, or when its output shapes are unknown, ``Unsupported`` names the operator and the reason.
    ``refused`` is called with every such node and the reason, in place of the warning.
    """
    return _Importer(model, fallback, refused).run()


class _Importer:
    def __init__(self, model: onnx.ModelProto, fallback: bool, refused: Refused | None):
        self.model = model
        self.refused = refused or self._warn
        self.fallback = fallback
        self.graph = Graph("program")
        self.graph.opset = {o.domain or "": o.version for o in model.opset_import}
        self.types = _value_types(model.graph)
        self.names: dict[str, str] = {}  # ONNX value -> array
        self.symbols: dict[str, Any] = {}  # ONNX dimension name -> symbol
        self.warned: set[str] = set()

    def run(self) -> Graph:
        initializers = {t.name: t for t in self.model.graph.initializer}
        for value in self.model.graph.input:
            if value.name not in initializers:
                self._add_input(value)
        for name in self.graph.inputs:
            self._check_sizes(self.graph.shape(name), f"graph input {self.graph.source_names.get(name, name)!r}")
        for name, tensor in initializers.items():
            self.names[name] = self._constant(name, numpy_helper.to_array(tensor))
        for node in self.model.graph.node:
            self._add_node(node)
        for value in self.model.graph.output:
            self._add_output(value.name)
        self.graph.prune()
        return self.graph

    def _add_input(self, value: onnx.ValueInfoProto) -> None:
        shape, dtype = self._type(value.name, "graph input")
        name = self.graph.add_input(value.name, shape, dtype)
        self.names[value.name] = name
        for axis, extent in enumerate(shape):
            if getattr(extent, "is_Symbol", False):
                self.graph.symbols.setdefault(str(extent), (name, axis))

    def _constant(self, name: str, value: np.ndarray) -> str:
        try:
            return self.graph.add_constant(name, value)
        except (KeyError, TypeError, ValueError) as error:
            raise Unsupported(f"constant {name!r} has type {value.dtype}, which has no native form") from error

    def _type(self, name: str, where: str) -> tuple[tuple[Dim, ...], Any]:
        found = self.types.get(name)
        if found is None or not found.HasField("tensor_type") or not found.tensor_type.HasField("shape"):
            raise Unsupported(f"{where}: the shape or type of {name!r} is not known before running")
        tensor = found.tensor_type
        try:
            dtype = types.from_onnx(tensor.elem_type)
        except Unsupported as error:
            raise Unsupported(f"{where}: {name!r} has {error}") from None
        return tuple(self._dim(d, name, where) for d in tensor.shape.dim), dtype

    def _dim(self, proto: Any, name: str, where: str) -> Dim:
        if proto.HasField("dim_value"):
            return int(proto.dim_value)
        if not proto.dim_param:
            raise Unsupported(f"{where}: a dimension of {name!r} is not known before running")
        return _parse_extent(proto.dim_param, self.symbols)

    def _check_sizes(self, shape: tuple[Dim, ...], what: str) -> None:
        used = {str(s) for extent in shape if not isinstance(extent, int) for s in extent.free_symbols}
        unknown = [name for name, symbol in self.symbols.items() if str(symbol) in used - set(self.graph.symbols)]
        if unknown:
            raise Unsupported(
                f"{what} depends on {unknown[0]!r}, which is the extent of no input's dimension: it is not known "
                "before running. Export the model with fixed sizes, or so that sizes follow from those of the inputs"
            )

    def _add_node(self, node: onnx.NodeProto) -> None:
        if node.op_type == "Constant" and node.domain in ("", "ai.onnx"):
            value = registry.constant_value({a.name: onnx.helper.get_attribute_value(a) for a in node.attribute})
            self.names[node.output[0]] = self._constant(node.output[0], value)
            return
        where = f"operator {node.op_type} ({node.name or 'unnamed'!r})"
        inputs = [self.names[n] if n else None for n in node.input]
        outputs: list[str | None] = []
        for name in node.output:
            if not name:
                outputs.append(None)
                continue
            shape, dtype = self._type(name, where)
            self._check_sizes(shape, f"{where}: the shape of {name!r}")
            outputs.append(self.graph.add_array(name, shape, dtype))
            self.names[name] = outputs[-1]  # type: ignore[assignment]
        attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
        operator = self.graph.add_operator(node.op_type, inputs, outputs, attributes, node.domain)
        operator.source_name = node.name
        reason = registry.why_unsupported(self.graph, operator)
        if reason is not None:
            self._fall_back(operator, node, inputs, outputs, reason)

    def _fall_back(
        self, operator: Any, node: onnx.NodeProto, inputs: list[Any], outputs: list[Any], reason: str
    ) -> None:
        if not self.fallback:
            raise Unsupported(f"operator {node.op_type} ({node.name!r}): {reason}")
        from daceopt.libs import onnxruntime_call

        self.refused(node, reason)
        self.graph.remove(operator)
        onnxruntime_call.add(self.graph, self.model, node, inputs, outputs)

    def _warn(self, node: onnx.NodeProto, reason: str) -> None:
        if node.op_type not in self.warned:
            self.warned.add(node.op_type)
            logger.warning("operator %s runs in ONNX Runtime: %s", node.op_type, reason)

    def _add_output(self, name: str) -> None:
        array = self.names[name]
        taken = array in self.graph.outputs or self.graph.producer(array) is None or self.graph.is_view(array)
        self.graph.add_output(Builder(self.graph, "output").copy(array) if taken else array)


def _value_types(graph: onnx.GraphProto) -> Mapping[str, onnx.TypeProto]:
    values = [*graph.input, *graph.value_info, *graph.output]
    return {v.name: v.type for v in values}


def _parse_extent(text: str, symbols: dict[str, Any]) -> Dim:
    """A dimension name becomes a fresh symbol; the sums and products of names that exporters write are understood."""
    from daceopt.ir.extents import parse

    return parse(text, lambda name: symbols.setdefault(name, dace.symbolic.symbol(f"s{len(symbols)}", dace.int64)))
