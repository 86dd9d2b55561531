"""An ONNX model made more specific: values and sizes of its inputs become part of it, and what follows is folded.

``requirements`` finds the inputs that matter for what is not known before running; ``bind`` is the model for a choice
of them.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import TypeAlias

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper

from daceopt.capture.onnx.declared import without_results
from daceopt.capture.onnx.file import infer
from daceopt.capture.onnx.importer import sizing_operands
from daceopt.errors import ModelFileError, NotKnownYet

logger = logging.getLogger("daceopt.importer")

MAX_ELEMENTS = 64
"""Inputs with more elements are data: a program for each of their values would be compiled in vain."""

_FOLDED_ELEMENTS = 1 << 16
_MAIN = ("", "ai.onnx")
# Inference wants bounds of Range to have no dimension, and a one-sided STFT to have as many frequencies as a full one.
_MISJUDGED = frozenset(["Range", "STFT"])
Sizes: TypeAlias = tuple[int | None, ...]
_INTEGERS = frozenset(getattr(TensorProto, n) for n in "BOOL INT8 INT16 INT32 INT64 UINT8 UINT16 UINT32 UINT64".split())
_FLOATS = frozenset(getattr(TensorProto, n) for n in "FLOAT DOUBLE FLOAT16 BFLOAT16".split())
_RANDOM = frozenset("Bernoulli Multinomial RandomNormal RandomNormalLike RandomUniform RandomUniformLike".split())


@dataclass(frozen=True)
class InputRequirements:
    """What has to be known of a model's inputs: the values of some, and sizes: none, unnamed ones, all."""

    values: frozenset[str] = frozenset()
    sizes: int = 0
    folded: frozenset[str] = frozenset()  # ONNX values inside of the model that are needed as constants

    def __or__(self, other: InputRequirements) -> InputRequirements:
        return InputRequirements(self.values | other.values, max(self.sizes, other.sizes), self.folded | other.folded)

    def fixed_sizes(self, value: onnx.ValueInfoProto, shape: Sequence[int]) -> Sizes | None:
        """Of an input's ``shape``, the extents that have to be known, None for others; None when there are none."""
        tensor = value.type.tensor_type
        if self.sizes == NONE or not self.is_open(value):
            return None
        if self.sizes == ALL or not tensor.HasField("shape"):
            return tuple(shape)
        sizes = tuple(None if d.dim_param or d.HasField("dim_value") else n for d, n in zip(tensor.shape.dim, shape))
        return None if sizes.count(None) == len(sizes) else sizes

    @staticmethod
    def is_open(value: onnx.ValueInfoProto) -> bool:
        """Has this input sizes that only a call tells?"""
        return value.type.HasField("tensor_type") and _static_shape(value.type) is None


NONE, UNNAMED, ALL = range(3)


def requirements(model: onnx.ModelProto, gap: NotKnownYet) -> InputRequirements | None:
    """What of the model's inputs may close the gap that its import found; None when nothing does.

    Inputs count only if they are small by their declaration: integers, truth values, lists of a few floats.
    """
    ancestry = _Ancestry(model.graph)
    open_inputs = [v for v in ancestry.inputs.values() if _static_shape(v.type) is None]
    needs = InputRequirements()
    for need in gap.needs:
        closed = [r for r in map(ancestry.requirements, need) if r is not None]
        if not closed and not (gap.sizes and open_inputs):
            return None
        for each in closed:
            needs |= each
    if not open_inputs:
        return replace(needs, sizes=NONE) if gap.needs else None
    if not all(map(_is_named, open_inputs)):
        return replace(needs, sizes=UNNAMED)
    return replace(needs, sizes=ALL) if gap.sizes and not needs.folded else needs


def name_sizes(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy in which each size of an input that has no name has one of its own; the model itself where all have.

    Shapes inside follow from these names, as far as inference can tell.
    """
    stored = {t.name for t in model.graph.initializer}
    inputs = [v for v in model.graph.input if v.name not in stored]
    if not any(map(_nameless, inputs)):
        return model
    copied = without_results(model)
    names_in_use = {d.dim_param for v in inputs for d in v.type.tensor_type.shape.dim}
    names = (name for k in count() if (name := f"open_{k}") not in names_in_use)
    for value in copied.graph.input:
        for dim in _nameless(value) if value.name not in stored else ():
            dim.dim_param = next(names)
    return _infer(copied)


def _nameless(value: onnx.ValueInfoProto) -> list[onnx.TensorShapeProto.Dimension]:
    dims = value.type.tensor_type.shape.dim if value.type.HasField("tensor_type") else ()
    return [d for d in dims if not d.dim_param and not d.HasField("dim_value")]


def bind(
    model: onnx.ModelProto, values: Mapping[str, np.ndarray], sizes: Mapping[str, Sizes], constant_inputs: Iterable[str]
) -> onnx.ModelProto:
    """A copy of ``model`` in which inputs have these values (they are no inputs any more) and sizes.

    Shapes are inferred again, and operands that decide shapes, and those in ``constant_inputs``, are folded as far as
    they follow from constants. Raises ModelFileError when the values or sizes do not fit the model.
    """
    bound = onnx.ModelProto()
    bound.CopyFrom(model)
    for value in list(bound.graph.input):
        if value.name in values:
            bound.graph.initializer.append(numpy_helper.from_array(values[value.name], value.name))
            bound.graph.input.remove(value)
        elif value.name in sizes:
            _fix(value.type.tensor_type, sizes[value.name])
    bound = _infer(bound)
    constant_inputs = set(constant_inputs)
    while _fold(bound.graph, bound, constant_inputs) | _choose_branches(bound.graph):
        bound = _infer(bound)
    return bound


def _infer(model: onnx.ModelProto) -> onnx.ModelProto:
    try:
        return infer(model, "the model with these inputs")
    except ModelFileError as error:
        if not _MISJUDGED.issuperset(re.findall(r"op_type:(\w+)", str(error))):
            raise
        return onnx.shape_inference.infer_shapes(model, data_prop=True)


def _fix(tensor: onnx.TypeProto.Tensor, sizes: Sizes) -> None:
    if not tensor.HasField("shape"):
        tensor.shape.dim.extend(onnx.TensorShapeProto.Dimension() for _ in sizes)
        tensor.shape.SetInParent()
    for dim, size in zip(tensor.shape.dim, sizes, strict=True):
        if size is not None:
            dim.dim_value = size


def is_small(value: onnx.ValueInfoProto) -> bool:
    """May a program be compiled for each value of this input, as far as its declaration tells?"""
    tensor = value.type.tensor_type
    if tensor.elem_type not in _INTEGERS | _FLOATS:
        return False
    dims = [d.dim_value for d in tensor.shape.dim if d.HasField("dim_value")]
    if int(np.prod(dims, dtype=object)) > MAX_ELEMENTS:
        return False
    return tensor.elem_type in _INTEGERS or (tensor.HasField("shape") and len(tensor.shape.dim) <= 1)


def _is_named(value: onnx.ValueInfoProto) -> bool:
    tensor = value.type.tensor_type
    return tensor.HasField("shape") and all(d.dim_param or d.HasField("dim_value") for d in tensor.shape.dim)


def _static_shape(proto: onnx.TypeProto | None) -> list[int] | None:
    if proto is None or not proto.tensor_type.HasField("shape"):
        return None
    dims = proto.tensor_type.shape.dim
    return [int(d.dim_value) for d in dims] if all(d.HasField("dim_value") for d in dims) else None


# -------------------------------------------------------------------- where a value comes from


class _Ancestry:
    def __init__(self, graph: onnx.GraphProto):
        self.constants = {t.name for t in graph.initializer}
        self.inputs = {v.name: v for v in graph.input if v.name not in self.constants}
        self.producers = {name: node for node in graph.node for name in node.output if name}

    def requirements(self, name: str) -> InputRequirements | None:
        """What decides the value called ``name``; None if that is data, chance or a sequence."""
        values: set[str] = set()
        sizes, stack, visited = NONE, [name], set()
        while stack:
            current = stack.pop()
            if current in visited or current in self.constants:
                continue
            visited.add(current)
            if current in self.inputs:
                if not is_small(self.inputs[current]):
                    return None
                values.add(current)
                continue
            node = self.producers.get(current)
            if node is None or node.op_type in _RANDOM:
                return None
            if node.domain in _MAIN and node.op_type in ("Shape", "Size"):
                sizes = ALL
                continue
            stack.extend(_reads(node))
        return InputRequirements(frozenset(values), sizes, frozenset([name]))


def _reads(node: onnx.NodeProto) -> set[str]:
    """The values that a node reads, those of the outer graph in its bodies included."""
    names = {name for name in node.input if name}
    for attribute in node.attribute:
        for body in [attribute.g, *attribute.graphs] if attribute.g.node or attribute.graphs else []:
            own = {v.name for v in body.input} | {t.name for t in body.initializer}
            own |= {name for inner in body.node for name in inner.output}
            read = {name for inner in body.node for name in _reads(inner)} | {v.name for v in body.output}
            names |= read - own
    return names


# -------------------------------------------------------------------- folding


def _fold(graph: onnx.GraphProto, model: onnx.ModelProto, names: set[str]) -> bool:
    """Replace operands that decide shapes, and ``names`` values, by constants where they follow from constants."""
    constants = {t.name for t in graph.initializer}
    targets = (names | {n for node in graph.node for n in sizing_operands(node)}) - constants
    targets -= {n for node in graph.node if node.op_type == "Constant" for n in node.output}
    leaves, foldable = _foldable(graph, constants)
    targets &= leaves.keys() | {name for node in foldable for name in node.output}
    results = _evaluate(model, leaves, foldable, sorted(targets)) if targets else {}
    if not results:
        return False
    fresh = {name: f"{name}/folded" for name in results}
    for node in graph.node:
        for k, name in enumerate(node.input):
            node.input[k] = fresh.get(name, name)
    graph.initializer.extend(numpy_helper.from_array(value, fresh[name]) for name, value in results.items())
    names.difference_update(results)
    _drop_unread(graph)
    return True


def _choose_branches(graph: onnx.GraphProto) -> bool:
    """Put the branch that is taken in the place of each If whose condition is a constant."""
    constants = {t.name: t for t in graph.initializer}
    nodes: list[onnx.NodeProto] = []
    changed = False
    for node in graph.node:
        condition = constants.get(node.input[0]) if node.op_type == "If" and node.domain in _MAIN else None
        if condition is None:
            nodes.append(node)
            continue
        branch_name = "then_branch" if numpy_helper.to_array(condition).all() else "else_branch"
        branch = next(a.g for a in node.attribute if a.name == branch_name)
        graph.initializer.extend(branch.initializer)
        nodes.extend(branch.node)
        results = zip(branch.output, node.output, strict=True)
        nodes.extend(onnx.helper.make_node("Identity", [v.name], [name]) for v, name in results if name)
        changed = True
    if changed:
        nodes = [_copy(node) for node in nodes]  # what is deleted takes the branches with it
        del graph.node[:]
        graph.node.extend(nodes)
    return changed


def _copy(node: onnx.NodeProto) -> onnx.NodeProto:
    copy = onnx.NodeProto()
    copy.CopyFrom(node)
    return copy


def _foldable(graph: onnx.GraphProto, constants: set[str]) -> tuple[dict[str, np.ndarray], list[onnx.NodeProto]]:
    """Shapes that are known, as values; and the nodes that follow from them and from constants."""
    types = {v.name: v.type for v in (*graph.input, *graph.value_info, *graph.output)}
    types |= {t.name: onnx.helper.make_tensor_type_proto(t.data_type, t.dims) for t in graph.initializer}
    leaves: dict[str, np.ndarray] = {}
    nodes: list[onnx.NodeProto] = []
    constant_names = set(constants)
    for node in graph.node:
        shape = _static_shape(types.get(node.input[0])) if node.op_type in ("Shape", "Size") else None
        if shape is not None and node.domain in _MAIN:
            leaves[node.output[0]] = _shape_value(node, shape)
        elif constant_names.issuperset(_reads(node)) and node.domain in _MAIN and node.op_type not in _RANDOM:
            nodes.append(node)
        else:
            continue
        constant_names.update(node.output)
    return leaves, nodes


def _shape_value(node: onnx.NodeProto, shape: Sequence[int]) -> np.ndarray:
    if node.op_type == "Size":
        return np.asarray(int(np.prod(shape, dtype=object)), np.int64)
    ends = {a.name: a.i for a in node.attribute}
    return np.asarray(shape[slice(ends.get("start", 0), ends.get("end"))], np.int64)


def _evaluate(
    model: onnx.ModelProto, leaves: Mapping[str, np.ndarray], nodes: Sequence[onnx.NodeProto], targets: Sequence[str]
) -> dict[str, np.ndarray]:
    """The values of ``targets``, by ONNX's reference; those that cannot be computed, or are large, are left out."""
    arrays = {}
    for target in targets:
        try:
            value = leaves[target] if target in leaves else _run(model, leaves, nodes, target)
        except Exception as error:  # whatever the reference raises for wrong values; the operand stays unknown then
            logger.debug("%s is not folded: %s", target, error)
            continue
        if isinstance(value, np.ndarray | np.generic) and value.size <= _FOLDED_ELEMENTS:
            arrays[target] = np.asarray(value)
    return arrays


def _run(
    model: onnx.ModelProto, leaves: Mapping[str, np.ndarray], nodes: Sequence[onnx.NodeProto], target: str
) -> np.ndarray:
    from onnx.reference import ReferenceEvaluator

    needed, chosen = {target}, []
    for node in reversed(nodes):
        if needed.intersection(node.output):
            chosen.append(node)
            needed |= _reads(node)
    tensors = [t for t in model.graph.initializer if t.name in needed]
    tensors += [numpy_helper.from_array(value, name) for name, value in leaves.items() if name in needed]
    result = onnx.ValueInfoProto(name=target)
    graph = onnx.helper.make_graph(chosen[::-1], "folded", [], [result], tensors)
    part = onnx.helper.make_model(graph, opset_imports=model.opset_import, ir_version=model.ir_version)
    return ReferenceEvaluator(part).run(None, {})[0]


def _drop_unread(graph: onnx.GraphProto) -> None:
    """Remove nodes and initializers that nothing reads any more."""
    needed = {v.name for v in graph.output}
    nodes = []
    for node in reversed(graph.node):
        if needed.intersection(node.output):
            nodes.append(node)
            needed |= _reads(node)
    del graph.node[:]
    graph.node.extend(reversed(nodes))
    tensors = [t for t in graph.initializer if t.name in needed]
    del graph.initializer[:]
    graph.initializer.extend(tensors)
