"""Operators that return their input as it is, or undo each other."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from daceopt.ir import types
from daceopt.ir.graph import Graph
from daceopt.ir.operators import constant, int_list, is_op, made_by, scalar
from daceopt.transform import NearMiss, Site, Transformation, sweep

_SAME_SHAPE_IS_IDENTITY = ("Reshape", "Expand", "Squeeze", "Unsqueeze", "Flatten")
_ALONE = ("Concat", "Sum", "Max", "Min", "Mean")
_FIRST_DROPOUT_WITH_MODE = 12  # before this version the operator is for inference only


@dataclass(frozen=True)
class IdentityRemoval(Transformation):
    """Remove what does nothing, merge transpositions and reshapes of one another, and turn CastLike into Cast.

    before:  a = Dropout(x); b = Transpose(a, [1, 0]); y = Relu(Transpose(b, [1, 0]))
    after:   y = Relu(x)
    """

    level: ClassVar[str] = "coarse"

    def match_at(self, graph: Graph, node: Any) -> Iterable[Site | NearMiss]:
        if getattr(node, "domain", None) != "":
            return
        if _does_nothing(graph, node):
            source, output = str(graph.inputs_of(node)[0]), str(graph.outputs_of(node)[0])
            if not _can_stand_for(graph, source, output):
                yield NearMiss(
                    node, f"{node.op_type} does nothing, but its result {output} is a graph output of its own"
                )
            else:
                yield Site(graph, (node,), {"source": source})
        elif is_op(node, "CastLike"):
            yield Site(graph, (node,), {"op_type": "Cast"})
        elif is_op(node, "Transpose", "Reshape"):
            yield from _merged(graph, node)

    def apply(self, site: Site) -> None:
        graph, node = site.graph, site.nodes[0]
        if "op_type" not in site.found:
            graph.replace_uses(str(graph.outputs_of(node)[0]), site["source"])
            graph.remove(node)
        elif site["op_type"] == "Cast":
            target = types.to_onnx(graph.dtype(str(graph.outputs_of(node)[0])))
            _substitute(graph, node, "Cast", [graph.inputs_of(node)[0]], to=target)
        else:
            operands = [site["source"], *graph.inputs_of(node)[1:]]
            _substitute(graph, node, site["op_type"], operands, **{**node.attributes, **site["attributes"]})


def _can_stand_for(graph: Graph, source: str, output: str) -> bool:
    if output not in graph.outputs:
        return True
    return graph.desc(source).transient and not graph.is_view(source)


def _does_nothing(graph: Graph, node: Any) -> bool:
    inputs, output = graph.inputs_of(node), graph.outputs_of(node)[0]
    if not inputs or inputs[0] is None or output is None:
        return False
    same = graph.shape(inputs[0]) == graph.shape(output) and graph.dtype(inputs[0]) == graph.dtype(output)
    if not same:
        return False
    if is_op(node, "Identity", "Cast", "CastLike", *_SAME_SHAPE_IS_IDENTITY):
        return True
    if is_op(node, *_ALONE):
        return len(inputs) == 1
    rule = {
        "Dropout": _dropout_off,
        "Transpose": _keeps_order,
        "Slice": _takes_all,
        "Mul": _by_one,
        "Div": _by_one,
    }.get(node.op_type)
    return rule is not None and rule(graph, node)


def _dropout_off(graph: Graph, node: Any) -> bool:
    outputs, inputs = graph.outputs_of(node), graph.inputs_of(node)
    if len(outputs) > 1 and outputs[1] is not None and (graph.all_consumers(outputs[1]) or outputs[1] in graph.outputs):
        return False
    if node.since_version < _FIRST_DROPOUT_WITH_MODE:
        return True
    mode = inputs[2] if len(inputs) > 2 else None
    value = constant(graph, mode)
    return mode is None or (value is not None and not value.any())


def _perm(graph: Graph, node: Any) -> list[int]:
    rank = len(graph.shape(str(graph.inputs_of(node)[0])))
    given = node.attribute("perm")
    return list(range(rank))[::-1] if not given else [int(p) for p in given]


def _keeps_order(graph: Graph, node: Any) -> bool:
    perm = _perm(graph, node)
    return perm == sorted(perm)


def _takes_all(graph: Graph, node: Any) -> bool:
    """Same shape and no step means the whole array."""
    if len(graph.inputs_of(node)) < 5 or graph.inputs_of(node)[4] is None:
        return True
    steps = int_list(graph, node, "steps", 4)
    return steps is not None and all(s == 1 for s in steps)


def _by_one(graph: Graph, node: Any) -> bool:
    return scalar(graph, graph.inputs_of(node)[1]) == 1.0


def _merged(graph: Graph, node: Any) -> Iterable[Site]:
    """Transpose of Transpose is one; Reshape of Reshape reads the first one's input."""
    inner = made_by(graph, graph.inputs_of(node)[0], node.op_type)
    if inner is None:
        return
    source = graph.inputs_of(inner)[0]
    attributes: dict[str, Any] = {}
    if is_op(node, "Transpose"):
        first = _perm(graph, inner)
        attributes["perm"] = [first[p] for p in _perm(graph, node)]
    elif 0 in (int_list(graph, node, "shape", 1) or [0]):
        return  # a zero copies an extent of the direct input
    yield Site(graph, (node, inner), {"source": source, "op_type": node.op_type, "attributes": attributes})


def _substitute(graph: Graph, node: Any, op_type: str, inputs: Sequence[str | None], **attributes: Any) -> None:
    """Let a new operator write what ``node`` wrote, and remove ``node`` and what only it needed."""
    output = graph.outputs_of(node)[0]
    sources = [graph.producer(n) for n in graph.inputs_of(node) if n is not None]
    graph.remove(node)
    graph.add_operator(op_type, inputs, [output], attributes)
    sweep(graph, sources)
