"""Operators that return their input as it is, or undo each other."""

from __future__ import annotations

from dataclasses import dataclass

from daceopt.ir.graph.graph import Graph
from daceopt.ir.graph.kinds import Node
from daceopt.ir.graph.operators import constant, int_list, is_op, scalar
from daceopt.ir.scalar import types
from daceopt.passes.patterns import Match, Op, PatternRule, either, op
from daceopt.transformations.coarse.cast_removal import modes

_SAME_SHAPE_IS_IDENTITY = "Identity|Cast|CastLike|Reshape|Expand|Squeeze|Unsqueeze|Flatten"
_ALONE = "Concat|Sum|Max|Min|Mean"
_BY_VALUE = "Dropout|Transpose|Slice|Mul|Div"
_FIRST_DROPOUT_WITH_MODE = 12  # before this version the operator is for inference only


def _does_nothing(m: Match) -> bool:
    graph, node = m.graph, m.node("same")
    if graph.shape(m["x"]) != graph.shape(m["same"]) or graph.dtype(m["x"]) != graph.dtype(m["same"]):
        return False
    if is_op(node, *_ALONE.split("|")):
        return len(graph.inputs_of(node)) == 1
    rules = {"Dropout": _dropout_off, "Transpose": _keeps_order, "Slice": _takes_all, "Mul": _by_one, "Div": _by_one}
    return node.op_type not in rules or rules[node.op_type](graph, node)


def _copies_no_extent(m: Match) -> bool:
    """A zero in a Reshape copies an extent of the direct input."""
    return 0 not in (int_list(m.graph, m.node("reshape"), "shape", 1) or [0])


@dataclass(frozen=True)
class IdentityRemoval(PatternRule):
    """Remove what does nothing, merge transpositions and reshapes of one another, and turn CastLike into Cast.

    before:  a = Dropout(x); b = Transpose(a, [1, 0]); y = Relu(Transpose(b, [1, 0]))
    after:   y = Relu(x)
    """

    pattern = either(
        op(f"{_SAME_SHAPE_IS_IDENTITY}|{_ALONE}|{_BY_VALUE}", "x", ...).named("same").when(_does_nothing),
        op("CastLike", "x", "like").named("cast"),
        op("Transpose", op("Transpose", "x").named("first").shared()).named("transpose"),
        op("Reshape", op("Reshape", "x", ...).shared(), ...).named("reshape").when(_copies_no_extent),
    )

    def why_not(self, m: Match) -> str | None:
        if "same" not in m or m.result not in m.graph.outputs or _can_be_output(m.graph, m["x"]):
            return None
        return f"{m.node('same').op_type} does nothing, but its result {m.result} is a graph output of its own"

    def replace(self, m: Match) -> Op | str:
        if "transpose" in m:
            first, second = _perm(m.graph, m.node("first")), _perm(m.graph, m.node("transpose"))
            return op("Transpose", "x", perm=[first[p] for p in second])
        if "reshape" in m:
            node = m.node("reshape")
            return op("Reshape", "x", *m.graph.inputs_of(node)[1:], **node.attributes)
        if "like" in m:
            return op("Cast", "x", to=types.to_onnx(m.graph.dtype(m.result)), **modes(m, "cast"))
        return "x"


def _can_be_output(graph: Graph, name: str) -> bool:
    return graph.is_transient(name) and not graph.is_view(name) and not graph.is_part(name)


def _dropout_off(graph: Graph, node: Node) -> bool:
    outputs, inputs = graph.outputs_of(node), graph.inputs_of(node)
    if len(outputs) > 1 and outputs[1] is not None and (graph.all_consumers(outputs[1]) or outputs[1] in graph.outputs):
        return False
    if node.since_version < _FIRST_DROPOUT_WITH_MODE:
        return True
    mode = inputs[2] if len(inputs) > 2 else None
    value = constant(graph, mode)
    return mode is None or (value is not None and not value.any())


def _perm(graph: Graph, node: Node) -> list[int]:
    rank = len(graph.shape(graph.operand(node, 0)))
    attribute = node.attribute("perm")
    return list(range(rank))[::-1] if not attribute else [int(p) for p in attribute]


def _keeps_order(graph: Graph, node: Node) -> bool:
    perm = _perm(graph, node)
    return perm == sorted(perm)


def _takes_all(graph: Graph, node: Node) -> bool:
    """Same shape and no step means the whole array."""
    if len(graph.inputs_of(node)) < 5 or graph.inputs_of(node)[4] is None:
        return True
    steps = int_list(graph, node, "steps", 4)
    return steps is not None and all(s == 1 for s in steps)


def _by_one(graph: Graph, node: Node) -> bool:
    return scalar(graph, graph.inputs_of(node)[1]) == 1.0
