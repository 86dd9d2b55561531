"""Operators over narrow types: operands are widened around an operator that computes, its results rounded back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from daceopt.ir.graph.graph import Graph
from daceopt.ir.graph.operands import require
from daceopt.ir.scalar import types
from daceopt.ops.core import registry
from daceopt.ops.core.registry import Operator

_OURS = "rounds_what_was_widened"  # our own attribute of a Cast
# which of their forms take factors as they are: the attribute FACTORS_WERE says of which type, as in ONNX, they were
_MULTIPLY = {("", "Attention"), ("daceopt", "DropoutAttention")}
FACTORS_WERE = "factors_were"
MASK_WAS = "mask_was"  # of which type, where it was of a narrow one, too
# what moves data between operators that compute goes on with the wide values that it is given
_MOVES = frozenset(
    "Concat Expand Flatten Gather GatherElements GatherND Identity Pad Reshape Slice Split Squeeze Tile Transpose "
    "Unsqueeze Where".split()
)
# whose results are among the elements of their operands, up to the sign, too
_SELECTS = _MOVES.union("Abs Clip Max MaxPool Min Neg ReduceMax ReduceMin Relu ScatterElements ScatterND TopK".split())


def add_operator(
    graph: Graph,
    op_type: str,
    inputs: Sequence[str | None],
    outputs: Sequence[str | None],
    attributes: dict[str, Any],
    domain: str = "",
) -> Operator:
    """Add an operator as ``Graph.add_operator`` does; narrow operands of one that computes pass through Casts.

    Half types thus compute in float32. What one such operator hands to the next is not rounded on the way, as in ONNX
    Runtime on CPUs without half arithmetic; a Cast that the model itself has is.
    """
    if op_type == "Cast" and not domain:
        return _add_cast(graph, require(inputs, 0), require(outputs, 0), attributes)
    if not _is_widened(graph, op_type, domain, inputs, outputs):
        return graph.add_operator(op_type, inputs, outputs, attributes, domain)
    if (domain, op_type) in _MULTIPLY:
        attributes = attributes | _factors(graph, inputs)
    wide_in = [_widen(graph, n) for n in inputs]
    wide_out = [_like(graph, n) for n in outputs]
    operator = graph.add_operator(op_type, wide_in, wide_out, attributes, domain)
    for wide, name in zip(wide_out, outputs):
        if wide is not None and wide != name:
            graph.add_operator("Cast", [wide], [name], {"to": types.to_onnx(graph.dtype(str(name))), _OURS: 1})
    return operator


def _factors(graph: Graph, inputs: Sequence[str | None]) -> dict[str, Any]:
    """What queries, keys and values were, where they were of one narrow type, and the mask."""
    dtypes = {graph.dtype(n) for n in inputs[:3] if n is not None}
    if len(dtypes) != 1 or not dtypes <= set(types.HALVES):
        return {}
    were = {FACTORS_WERE: types.to_onnx(dtypes.pop())}
    mask = next((graph.dtype(n) for n in inputs[3:4] if n is not None), None)
    return were if mask is None or not types.is_narrow(mask) else were | {MASK_WAS: types.to_onnx(mask)}


def settle(graph: Graph) -> None:
    """Let all that reads a value of ours read it rounded where anything does: otherwise it is not the same to two
    readers, and no element equal to a maximum that was found in another way.

    For a graph that is complete and not pruned yet. What moves or selects values that are read rounded does so with
    rounded ones.
    """
    casts = [n for n in graph.operators() if n.attribute(_OURS)]
    waiting = [n for n in casts if _is_read(graph, graph.result(n, 0))]
    settled = dict.fromkeys(waiting)
    while waiting:
        source = require(graph.inputs_of(waiting.pop()), 0)
        mover = graph.producer(source)
        moved = graph.inputs_of(mover) if getattr(mover, "op_type", "") in _SELECTS else []
        roundings = [n for wide in (source, *moved) if wide for n in _roundings(graph, wide) if n not in settled]
        settled.update(dict.fromkeys(roundings))
        waiting += roundings
    for wide in dict.fromkeys(graph.operand(n, 0) for n in settled):
        _round(graph, wide)


def _is_read(graph: Graph, name: str) -> bool:
    return name in graph.outputs or bool(graph.consumers(name) or graph.views_of(name))


def _roundings(graph: Graph, wide: str) -> list[Operator]:
    return [n for n in graph.consumers(wide) if isinstance(n, Operator) and n.attribute(_OURS)]


def _round(graph: Graph, wide: str) -> None:
    """Let all that reads ``wide`` read what our Casts of it give."""
    casts = _roundings(graph, wide)
    for cast in casts:
        del cast.attributes[_OURS]
    if len(graph.consumers(wide)) == len(casts):
        return
    again = graph.add_array("wide", graph.shape(wide), graph.dtype(wide))
    graph.replace_uses(wide, again, keep=casts)
    narrow = require(graph.outputs_of(casts[0]), 0)
    graph.add_operator("Cast", [narrow], [again], {"to": types.to_onnx(graph.dtype(again))})


def _add_cast(graph: Graph, source: str, target: str, attributes: dict[str, Any]) -> Operator:
    """A Cast of the model: it reads what was not rounded yet, and rounds, unless it is to the type that it reads."""
    wide = _unround(graph, source)
    if wide is not None and graph.dtype(source) == graph.dtype(target):
        attributes = {**attributes, _OURS: 1}
    return graph.add_operator("Cast", [wide or source], [target], attributes)


def _is_widened(
    graph: Graph, op_type: str, domain: str, inputs: Sequence[str | None], outputs: Sequence[str | None]
) -> bool:
    accepted = set(registry.accepted_types(op_type, domain, graph.options.factors))
    narrow = {graph.dtype(n) for n in (*inputs, *outputs) if n is not None and types.is_narrow(graph.dtype(n))}
    if not narrow <= accepted:
        main = next((graph.dtype(n) for n in (*inputs, *outputs) if n is not None), None)
        return main in accepted or types.compute_type(main) in accepted  # else it is refused as what it is
    return op_type in _MOVES and not domain and any(n is not None and _unround(graph, n) for n in inputs)


def _widen(graph: Graph, name: str | None) -> str | None:
    if name is None or not types.is_narrow(graph.dtype(name)):
        return name
    unrounded = _unround(graph, name)
    if unrounded is not None:
        return unrounded
    wide = _like(graph, name)
    graph.add_operator("Cast", [name], [wide], {"to": types.to_onnx(graph.dtype(str(wide)))})
    return wide


def _unround(graph: Graph, name: str) -> str | None:
    """What ``name`` was before we rounded it; None where it is no such array, or a view of one."""
    if graph.is_view(name):
        return None
    producer = graph.producer(name)
    ours = isinstance(producer, Operator) and producer.attribute(_OURS)
    return graph.inputs_of(producer)[0] if ours else None


def _like(graph: Graph, name: str | None) -> str | None:
    """An array like ``name`` of the type in which it is computed; ``name`` itself where that is its own."""
    if name is None or not types.is_narrow(graph.dtype(name)):
        return name
    return graph.add_array("wide", graph.shape(name), types.compute_type(graph.dtype(name)))
