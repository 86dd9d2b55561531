"""A checked, shape-inferred ONNX model becomes an :class:`ir.Graph` of operator nodes, one per ONNX node."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import sympy
from onnx import numpy_helper

from daceopt.errors import NotKnownYet, Unsupported
from daceopt.ir.graph.graph import Graph
from daceopt.ir.graph.operator import Operator
from daceopt.ir.nodes.builder import Builder
from daceopt.ir.scalar import types
from daceopt.ir.scalar.dims import Dim, Shape
from daceopt.ir.scalar.extents import parse
from daceopt.ir.scalar.symbols import size
from daceopt.ir.scalar.types import DType
from daceopt.libs import onnxruntime_call
from daceopt.ops.core import inference, registry, subgraph, values, widening
from daceopt.ops.families import control_flow

logger = logging.getLogger("daceopt.importer")

# Operands whose values decide the shape of a result.
_SIZING: dict[str, tuple[int, ...]] = dict.fromkeys(
    "Expand OneHot Reshape Split Squeeze Tile TopK Unsqueeze Upsample".split(), (1,)
)
_SIZING |= dict.fromkeys("BlackmanWindow ConstantOfShape HammingWindow HannWindow If".split(), (0,))
_SIZING |= dict.fromkeys("AffineGrid CenterCropPad".split(), (1,)) | dict.fromkeys("Col2Im DFT".split(), (1, 2))
_SIZING |= {"Loop": (0, 1), "MaxUnpool": (2,), "MelWeightMatrix": (0, 1), "Pad": (1, 3), "Range": (0, 1, 2)}
_SIZING |= {"Resize": (1, 2, 3), "Slice": (1, 2, 3, 4), "STFT": (1, 2, 3)}
_OPEN_ENDED = frozenset("Compress NonMaxSuppression NonZero Unique".split())

Refused = Callable[[onnx.NodeProto, str], object]


def import_model(
    model: onnx.ModelProto,
    *,
    fallback: bool = False,
    refused: Refused | None = None,
    patient: bool = False,
    target: str = "cpu",
) -> Graph:
    """Import ``model`` for a target; initializers become constants, graph inputs and outputs keep their order.

    With ``fallback``, an operator without a native lowering becomes a host call into ONNX Runtime (one warning names
    it); without it, or when its output shapes are unknown, ``Unsupported`` names the operator and the reason.
    ``refused`` is called with every such node and the reason, in place of the warning. ``patient``: where shapes or
    operands are not known yet, look at the rest of the model, too; ``NotKnownYet`` then lists all that is needed, and
    nothing of it falls back.

    Where sizes stand in the way, the graph may be one for some sizes alone: those that ``Graph.assumptions`` allow.
    """
    importer = _Importer(model, fallback, patient, target)
    try:
        graph = importer.run()
    except NotKnownYet as gap:
        bold = _Importer(model, fallback, patient, target, speculative=True)
        graph_or_gap = _second_try(bold, gap) if gap.sizes and importer.graph.symbols else gap
        if isinstance(graph_or_gap, NotKnownYet):
            importer.report(refused)
            raise graph_or_gap from None
        importer, graph = bold, graph_or_gap
    importer.report(refused)
    logger.info("imported an ONNX model: %d operators, %d inputs", len(graph.operators()), len(graph.inputs))
    return graph


def _second_try(importer: _Importer, gap: NotKnownYet) -> Graph | NotKnownYet:
    """A graph that is for some sizes alone, or what is not known even then."""
    try:
        return importer.run()
    except NotKnownYet as other:
        return other
    except Unsupported:
        return gap


@dataclass
class Survey:
    """What the import of a model, with fallbacks, makes of its values, by name.

    ``refused``: why it cannot have an input, a constant or (by its first output) a node; NotKnownYet where more has to
    be known of the inputs. What reads a refused value is not looked at. ``types``: element type and rank of the others.
    """

    refused: dict[str, Unsupported] = field(default_factory=dict)
    types: dict[str, tuple[int, int]] = field(default_factory=dict)


def survey(model: onnx.ModelProto) -> Survey:
    """Import ``model`` as far as that is possible, past all that is refused."""
    return _Surveyor(model).survey()


class _Importer:
    def __init__(
        self, model: onnx.ModelProto, fallback: bool, patient: bool, target: str = "cpu", speculative: bool = False
    ):
        self.model = model
        self.patient = patient
        self.gaps: list[NotKnownYet] = []
        self.pending: set[str] = set()  # ONNX values whose shape is not known yet
        self.refusals: list[tuple[onnx.NodeProto, str]] = []
        self.fallback = fallback
        self.graph = Graph("program", target)
        self.graph.source.speculative = speculative
        self.graph.source.opset = {o.domain or "": o.version for o in model.opset_import}
        self.types = _value_types(model.graph)
        self.names: dict[str, str] = {}  # ONNX value -> array
        self.symbols: dict[str, Any] = {}  # ONNX dimension name -> symbol, or the extent it turned out to be
        self.shapes: dict[str, tuple[Dim, ...]] = {}  # of values that ONNX's inference knows too little of

    def run(self) -> Graph:
        self._read()
        self._report_gaps()
        for value in self.model.graph.output:
            self._add_output(value.name)
        widening.settle(self.graph)
        self.graph.prune()
        return self.graph

    def _read(self) -> None:
        initializers = {t.name: t for t in self.model.graph.initializer}
        for value in self.model.graph.input:
            if value.name not in initializers:
                self._tolerant(self._add_input, value, [value.name])
        for name in self.graph.inputs:
            self._check_sizes(self.graph.shape(name), f"graph input {self.graph.source.names.get(name, name)!r}")
        for name, tensor in initializers.items():
            self._tolerant(self._add_initializer, tensor, [name])
        for node in self.model.graph.node:
            with self.graph.label_nodes(origins=(node.name,) if node.name else ()):
                self._tolerant(self._add_node, node, node.output)

    def _tolerant(self, add: Callable[[onnx.NodeProto], None], proto: onnx.NodeProto, results: Sequence[str]) -> None:
        """Add a node or an input; a gap in what is known is noted for later if the caller is patient."""
        try:
            add(proto)
        except NotKnownYet as gap:
            if not self.patient:
                raise
            self.gaps.append(gap)
            self.pending.update(name for name in results if name and name not in self.names)

    def _report_gaps(self) -> None:
        if self.gaps:
            needs = [need for gap in self.gaps for need in gap.needs]
            raise NotKnownYet(str(self.gaps[0]), needs, any(gap.sizes for gap in self.gaps))

    def _add_input(self, value: onnx.ValueInfoProto) -> None:
        shape, dtype = self._type(value.name, "graph input", ())
        name = self.graph.add_input(value.name, shape, dtype)
        self.names[value.name] = name
        for axis, extent in enumerate(shape):
            if getattr(extent, "is_Symbol", False):
                self.graph.symbols.setdefault(str(extent), (name, axis))

    def _add_initializer(self, tensor: onnx.TensorProto) -> None:
        self.names[tensor.name] = self._constant(tensor.name, numpy_helper.to_array(tensor))

    def _constant(self, name: str, value: np.ndarray) -> str:
        try:
            return self.graph.add_constant(name, value)
        except (Unsupported, KeyError, TypeError, ValueError) as error:
            kind = "text" if value.dtype.kind in "OSU" else f"of type {value.dtype}"
            raise Unsupported(f"constant {name!r} is {kind}, which has no native form") from error

    def _type(self, name: str, place: str, needs: Sequence[str]) -> tuple[Shape, DType]:
        """Shape and dtype of a value; the shape may follow from the values ``needs``, or from the sizes of inputs."""
        declared = self.types.get(name)
        if declared is not None and declared.WhichOneof("value") not in ("tensor_type", None):
            raise Unsupported(
                f"{place}: {name!r} is no tensor but a {declared.WhichOneof('value').removesuffix('_type')}"
            )
        if declared is not None and declared.tensor_type.elem_type:
            try:
                dtype = types.from_onnx(declared.tensor_type.elem_type)
            except Unsupported as error:
                raise Unsupported(f"{place}: {name!r} has {error}") from None
        if name in self.shapes:
            return self.shapes[name], dtype
        if declared is None or not declared.HasField("tensor_type") or not declared.tensor_type.HasField("shape"):
            message = f"{place}: the shape or type of {name!r} is not known before running"
            raise NotKnownYet(message, [tuple(needs)] if needs else (), sizes=True)
        return tuple(self._dim(d, name, place, needs) for d in declared.tensor_type.shape.dim), dtype

    def _dim(self, proto: onnx.TensorShapeProto.Dimension, name: str, place: str, needs: Sequence[str]) -> Dim:
        if proto.HasField("dim_value"):
            return int(proto.dim_value)
        if not proto.dim_param:
            message = f"{place}: a dimension of {name!r} is not known before running"
            raise NotKnownYet(message, [tuple(needs)] if needs else (), sizes=True)
        return _parse_extent(proto.dim_param, self.symbols)

    def _check_sizes(self, shape: tuple[Dim, ...], label: str, needs: Sequence[str] = ()) -> None:
        used = {str(s) for extent in shape for s in _symbols_of(extent)}
        unknown = [name for name, symbol in self.symbols.items() if str(symbol) in used - set(self.graph.symbols)]
        if unknown:
            raise NotKnownYet(
                f"{label} depends on {unknown[0]!r}, which is the extent of no input's dimension: it is not known "
                "before running. Export the model with fixed sizes, or so that sizes follow from those of the inputs",
                [tuple(needs)] if needs else (),
                sizes=True,
            )

    def _add_node(self, node: onnx.NodeProto) -> None:
        if node.op_type == "Constant" and node.domain in ("", "ai.onnx"):
            self.names[node.output[0]] = self._constant(node.output[0], registry.constant_value(_attributes(node)))
            return
        place = f"operator {node.op_type} ({node.name or 'unnamed'!r})"
        if not self.pending.isdisjoint(_operands(node)):
            self._postpone(node, place)
            return
        operator, inputs, outputs = self._declare(node, place)
        reason = registry.why_unsupported(self.graph, operator)
        if gap := self._gap(node, operator, reason, place):
            raise gap
        if reason is not None:
            self._fall_back(operator, node, inputs, outputs, reason)
        elif subgraph.graphs_of(node):
            registry.expand(self.graph, operator)

    def _declare(self, node: onnx.NodeProto, place: str) -> tuple[Operator, list[str | None], list[str | None]]:
        """The operator as it is in the graph, what it reads, and what it writes."""
        captured = subgraph.captures(node)
        if undefined := [n for n in captured if n not in self.names]:
            raise Unsupported(f"{place}: its graph reads {undefined[0]!r}, which nothing before it defines")
        inputs = self._arrays(_operands(node))
        outputs = [self.graph.add_array(*value) if value else None for value in self._results(node, place)]
        self.names.update((n, array) for n, array in zip(node.output, outputs) if array is not None)
        attributes = _attributes(node) | ({"captures": captured} if captured else {})
        operator = widening.add_operator(self.graph, node.op_type, inputs, outputs, attributes, node.domain)
        operator.source_name = node.name
        return operator, inputs, outputs

    def _arrays(self, names: Iterable[str]) -> list[str | None]:
        return [self.names[n] if n else None for n in names]

    def _gap(self, node: onnx.NodeProto, operator: Operator, reason: str | None, place: str) -> NotKnownYet | None:
        """What must be known of the model's inputs before the operator can be judged; None where it can be."""
        if reason is None:
            clash = inference.unfit(self.graph, operator)
            return NotKnownYet(f"{place}: {clash}", sizes=True) if clash else None
        if not self.patient:
            return None
        if isinstance(reason, values.UnknownValue):
            named = [_operands(node)[k] for k in reason.positions]
            return NotKnownYet(f"{place}: {reason}", [tuple(n for n in named if n)])
        arrays = [*self.graph.inputs_of(operator), *self.graph.outputs_of(operator)]
        with_numbers = self.shapes and self._is_symbolic(arrays)  # for the sizes it may be supported
        return NotKnownYet(f"{place}: {reason}", sizes=True) if with_numbers else None

    def _results(self, node: onnx.NodeProto, place: str) -> list[tuple[str, Shape, DType] | None]:
        """Name, shape and dtype of each output, None for those that are left out."""
        needs = sizing_operands(node)
        self._close_gaps(node)
        try:
            results = [(n, *self._type(n, place, needs)) if n else None for n in node.output]
            for name, shape, _ in filter(None, results):
                self._check_sizes(shape, f"{place}: the shape of {name!r}", needs)
        except NotKnownYet as gap:
            if node.op_type in _OPEN_ENDED:
                raise Unsupported(f"{place}: how long the result of {node.op_type} is depends on the data") from gap
            raise
        return results

    def _close_gaps(self, node: onnx.NodeProto) -> None:
        """Extents that ONNX's inference left open, from shape arithmetic; later uses of their names then follow."""
        open_ended = [n for n in node.output if n and self._is_open(n)]
        if not open_ended or any(n and n not in self.names for n in _operands(node)):
            return
        attributes, inputs = _attributes(node), self._arrays(_operands(node))
        if subgraph.graphs_of(node):
            attributes |= {"captures": subgraph.captures(node)}
            shapes = control_flow.result_shapes(self.graph, node, inputs, attributes)
        else:
            shapes = inference.result_shapes(
                self.graph, node.op_type, inputs, len(node.output), attributes, node.domain
            )
        for name, shape in zip(node.output, shapes):
            if name in open_ended and shape is not None:
                self._close(name, shape)

    def _is_symbolic(self, names: Sequence[str | None]) -> bool:
        return any(not isinstance(e, int) for n in names if n is not None for e in self.graph.shape(n))

    def _is_open(self, name: str) -> bool:
        declared = self.types.get(name)
        if declared is None or not declared.HasField("tensor_type") or not declared.tensor_type.elem_type:
            return False
        tensor = declared.tensor_type
        return not tensor.HasField("shape") or any(self._is_unbound(d) for d in tensor.shape.dim)

    def _is_unbound(self, proto: onnx.TensorShapeProto.Dimension) -> bool:
        if proto.HasField("dim_value"):
            return False
        extent = _parse_extent(proto.dim_param, dict(self.symbols)) if proto.dim_param else None
        return extent is None or any(str(s) not in self.graph.symbols for s in _symbols_of(extent))

    def _close(self, name: str, shape: tuple[Dim, ...]) -> None:
        """Declare ``name`` anew; names in its old shape get their meaning."""
        declared = self.types[name].tensor_type.shape.dim
        for proto, extent in zip(declared, shape):
            if proto.dim_param and self._is_unbound(proto):
                self.symbols[proto.dim_param] = extent
        self.shapes[name] = shape

    def _postpone(self, node: onnx.NodeProto, place: str) -> None:
        """Of a node whose operands have no known shape yet, only the operator can be judged."""
        self.pending.update(n for n in node.output if n)
        if not self.fallback and not registry.is_supported(node.op_type, node.domain):
            raise Unsupported(f"{place} has no native lowering")

    def _fall_back(
        self, operator: Operator, node: onnx.NodeProto, inputs: list[Any], outputs: list[Any], reason: str
    ) -> None:
        if not self.fallback:
            raise Unsupported(f"operator {node.op_type} ({node.name!r}): {reason}")
        self.refusals.append((node, reason))
        self.graph.remove(operator)
        onnxruntime_call.add(self.graph, self.model, node, inputs, outputs)

    def report(self, refused: Refused | None) -> None:
        """Say which nodes fall back, and why."""
        warned: set[str] = set()
        for node, reason in self.refusals:
            if refused is not None:
                refused(node, reason)
            elif node.op_type not in warned:
                warned.add(node.op_type)
                logger.warning("operator %s runs in ONNX Runtime: %s", node.op_type, reason)

    def _add_output(self, name: str) -> None:
        array = self.names[name]
        needs_copy = array in self.graph.outputs or self.graph.producer(array) is None or self.graph.is_view(array)
        self.graph.add_output(Builder(self.graph, "output").copy(array) if needs_copy else array)


class _Surveyor(_Importer):
    """Imports what can be, notes what cannot, and leaves out what reads it."""

    def __init__(self, model: onnx.ModelProto):
        super().__init__(model, fallback=True, patient=True)
        self.findings = Survey()
        self.left_out: set[str] = set()

    def survey(self) -> Survey:
        self._read()
        self.findings.types = {
            name: (types.to_onnx(self.graph.dtype(array)), len(self.graph.shape(array)))
            for name, array in self.names.items()
            if name not in self.left_out
        }
        return self.findings

    def _tolerant(self, add: Callable[[onnx.NodeProto], None], proto: onnx.NodeProto, results: Sequence[str]) -> None:
        named = [name for name in results if name]
        if isinstance(proto, onnx.NodeProto) and not self.left_out.isdisjoint(subgraph.reads(proto)):
            self.left_out.update(named)
            return
        try:
            add(proto)
        except NotKnownYet as gap:
            self.findings.refused[named[0]] = gap
            self.pending.update(name for name in named if name not in self.names)
        except Unsupported as error:
            self.findings.refused[named[0]] = error
            self.left_out.update(named)


def _attributes(node: onnx.NodeProto) -> dict[str, Any]:
    return {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}


def _operands(node: onnx.NodeProto) -> list[str]:
    """What a node reads, what its graphs read from outside included; empty where it is left out."""
    return [*node.input, *subgraph.captures(node)]


def _symbols_of(extent: Dim) -> set[sympy.Symbol]:
    return set() if isinstance(extent, int) else extent.free_symbols


def sizing_operands(node: onnx.NodeProto) -> tuple[str, ...]:
    """The inputs of a node that may decide the shape of what it computes, by their values."""
    if node.domain not in ("", "ai.onnx"):
        return ()
    positions: Sequence[int] = (1,) if node.op_type.startswith("Reduce") else _SIZING.get(node.op_type, ())
    return tuple(node.input[k] for k in positions if k < len(node.input) and node.input[k])


def _value_types(graph: onnx.GraphProto) -> Mapping[str, onnx.TypeProto]:
    values = [*graph.input, *graph.value_info, *graph.output]
    return {v.name: v.type for v in values}


def _parse_extent(text: str, symbols: dict[str, sympy.Symbol]) -> Dim:
    """A dimension name becomes a fresh symbol; the sums and products of names that exporters write are understood."""
    return parse(text, lambda name: symbols.setdefault(name, size(f"s{len(symbols)}")))
