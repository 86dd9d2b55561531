"""An ONNX model cut in two: what is compiled, and the tail that ONNX Runtime runs on its results.

The tail is what import refuses (results whose size only data decides, text, sequences) and all that depends on it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx

from daceopt.capture.onnx.importer import Survey, survey
from daceopt.capture.onnx.specialization import requirements
from daceopt.errors import NotKnownYet
from daceopt.ops.core import subgraph

_SMALL = 64
_MAIN = ("", "ai.onnx")
_LIGHT = frozenset(
    # copies and shapes
    "Cast CastLike Concat Constant ConstantOfShape DepthToSpace Expand EyeLike Flatten Gather GatherElements GatherND "
    "Identity OneHot Pad Range Reshape Scatter ScatterElements ScatterND Shape Size Slice SpaceToDepth Split Squeeze "
    "Tile Transpose Trilu Unsqueeze Where "
    # comparisons and plain arithmetic
    "Abs Add And Ceil Clip Div Equal Floor Greater GreaterOrEqual Less LessOrEqual Max Min Mod Mul Neg Not Or Relu "
    "Round Sign Sub Xor".split()
)


@dataclass(frozen=True)
class Split:
    """Both parts. What the tail reads of the native part is an output of that, and an input of the tail, by its name.

    ``reasons``: for each node of the tail, by its first output, why it is there.
    """

    native: onnx.ModelProto
    tail: onnx.ModelProto
    reasons: Mapping[str, str]

    def operators(self) -> dict[str, str]:
        """The tail's operator types and why each is there."""
        reasons: dict[str, str] = {}
        for node in self.tail.graph.node:
            if _key(node) in self.reasons:
                reasons.setdefault(node.op_type, self.reasons[_key(node)])
        return reasons


def split(model: onnx.ModelProto, hopeless: Callable[[NotKnownYet], bool] | None = None) -> Split | None:
    """Cut a checked, shape-inferred model; None when no tail is needed, or when the rest is not worth compiling.

    It is worth it when it has a node with an operand of more than 64 elements (as far as is known) that does more than
    copy, compare or add: a product, a convolution, a reduction, a loop. ``hopeless``: whether what import lacks stays
    unknown at every call.
    """
    lost = hopeless or (lambda gap: requirements(model, gap) is None)
    surveyed = survey(model)
    refused = {n: str(e) for n, e in surveyed.refused.items() if not isinstance(e, NotKnownYet) or lost(e)}
    reasons = _tail(model.graph, refused)
    return _Cut(model, surveyed, refused, reasons).split() if reasons else None


def _tail(graph: onnx.GraphProto, refused: Mapping[str, str]) -> dict[str, str]:
    """The nodes of the tail, by first output, with their reasons."""
    causes: dict[str, list[str]] = {}  # value of the tail -> operators that are refused and that it depends on
    reasons: dict[str, str] = {}
    for node in graph.node:
        key, results = _key(node), [name for name in node.output if name]
        # a refused operand that no node computes is an input or a constant: the reason is of the node that reads it
        read = subgraph.reads(node)
        own = next((refused[n] for n in (key, *read) if n in refused and n not in causes), None)
        upstream = dict.fromkeys(kind for name in read for kind in causes.get(name, ()))
        if own is None and not upstream:
            continue
        causes |= dict.fromkeys(results, [*upstream] if own is None else [node.op_type])
        reasons[key] = own if own is not None else f"depends on {', '.join(upstream)}"
    return reasons


class _Cut:
    """The two parts of a model, where it is known which nodes are the tail."""

    def __init__(
        self, model: onnx.ModelProto, surveyed: Survey, refused: Mapping[str, str], reasons: Mapping[str, str]
    ):
        graph = model.graph
        self.model, self.survey, self.reasons = model, surveyed, reasons
        self.constants = {t.name: t for t in graph.initializer}
        self.inputs = {v.name: v for v in graph.input if v.name not in self.constants}
        self.types = {v.name: v for v in (*graph.input, *graph.value_info, *graph.output)}
        self.behind = [node for node in graph.node if _key(node) in reasons]
        before = [node for node in graph.node if _key(node) not in reasons]
        late = {name for node in self.behind for name in node.output if name} | set(refused)
        self.late = [v for v in graph.output if v.name in late]
        read = _read_by(self.behind)
        self.copied = [n for n in before if _is_constant(n) and not read.isdisjoint(n.output)]
        fixed = {*self.inputs, *self.constants, *(name for n in self.copied for name in n.output)}
        self.handed = [name for n in before for name in n.output if name in read and name not in fixed]
        early = [v.name for v in graph.output if v.name not in late]
        self.early = list(dict.fromkeys((*early, *self.handed)))
        self.before = _needs(before, self.early)

    def split(self) -> Split | None:
        if not any(map(self._is_work, self.before)):
            return None
        return Split(self._native(), self._behind(), self.reasons)

    def _is_work(self, node: onnx.NodeProto) -> bool:
        if node.domain in _MAIN and node.op_type in _LIGHT:
            return False
        return any(self._size(name) > _SMALL for name in subgraph.reads(node))

    def _size(self, name: str) -> float:
        """Elements of a value; without end where that is not known."""
        if name in self.constants:
            return float(np.prod(self.constants[name].dims))
        tensor = self.types[name].type.tensor_type if name in self.types else onnx.TypeProto.Tensor()
        if not tensor.HasField("shape") or not all(d.HasField("dim_value") for d in tensor.shape.dim):
            return float("inf")
        return float(np.prod([d.dim_value for d in tensor.shape.dim]))

    def _native(self) -> onnx.ModelProto:
        read = _read_by(self.before) | set(self.early)
        written = {name for node in self.before for name in node.output}
        inputs = [v for name, v in self.inputs.items() if name in read]
        shapes = [v for v in self.model.graph.value_info if v.name in written and v.name not in self.early]
        return self._model(self.before, inputs, [self._value(name) for name in self.early], read, shapes)

    def _behind(self) -> onnx.ModelProto:
        read = _read_by(self.behind) | {v.name for v in self.late}
        inputs = [v for name, v in self.inputs.items() if name in read]
        handed = [_with_sizes_open(self._value(name)) for name in self.handed]
        return self._model([*self.copied, *self.behind], [*inputs, *handed], self.late, read)

    def _value(self, name: str) -> onnx.ValueInfoProto:
        """Name and type of a value; what inference does not know of it is what import found out."""
        declared = self.types.get(name)
        if declared is not None and declared.type.tensor_type.elem_type and declared.type.tensor_type.HasField("shape"):
            return declared
        if name not in self.survey.types:  # the import of the native part will say what it lacks
            return declared if declared is not None else onnx.ValueInfoProto(name=name)
        kind, rank = self.survey.types[name]
        return onnx.helper.make_tensor_value_info(name, kind, [None] * rank)

    def _model(
        self,
        nodes: Sequence[onnx.NodeProto],
        inputs: Sequence[onnx.ValueInfoProto],
        outputs: Sequence[onnx.ValueInfoProto],
        read: set[str],
        shapes: Sequence[onnx.ValueInfoProto] = (),
    ) -> onnx.ModelProto:
        constants = [t for name, t in self.constants.items() if name in read]
        model = onnx.ModelProto(ir_version=self.model.ir_version)
        model.opset_import.extend(self.model.opset_import)
        model.functions.extend(self.model.functions)
        name = self.model.graph.name or "part"
        model.graph.CopyFrom(onnx.helper.make_graph(nodes, name, inputs, outputs, constants, value_info=shapes))
        return model


def _key(node: onnx.NodeProto) -> str:
    return next(name for name in node.output if name)


def _is_constant(node: onnx.NodeProto) -> bool:
    return node.op_type == "Constant" and node.domain in _MAIN


def _read_by(nodes: Iterable[onnx.NodeProto]) -> set[str]:
    return {name for node in nodes for name in subgraph.reads(node)}


def _needs(nodes: Sequence[onnx.NodeProto], results: Iterable[str]) -> list[onnx.NodeProto]:
    """Of ``nodes``, in topological order, those on which ``results`` depend."""
    names, needed = set(results), []
    for node in reversed(nodes):
        if not names.isdisjoint(name for name in node.output if name):
            needed.append(node)
            names.update(subgraph.reads(node))
    return needed[::-1]


def _with_sizes_open(value: onnx.ValueInfoProto) -> onnx.ValueInfoProto:
    """Type and rank alone, and the sizes that are numbers: names of sizes mean nothing to the tail."""
    copied = onnx.ValueInfoProto()
    copied.CopyFrom(value)
    for dim in copied.type.tensor_type.shape.dim:
        dim.ClearField("dim_param")
    return copied
