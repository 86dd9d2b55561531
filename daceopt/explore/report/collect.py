"""Fills the tables of a report from a source model and its compiled graphs."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

import sympy

from daceopt.cost.machine import Machine
from daceopt.cost.work import NodeCost, itemsize, resolve, roofline
from daceopt.errors import DaceoptError, Unsupported
from daceopt.explore.report.tables import Edge, KernelRow, OperatorRow, StepRow
from daceopt.ir.control.region import Region, iterations
from daceopt.ir.graph.kinds import Node, is_operator
from daceopt.ir.kernel.kernel import Kernel as Loops
from daceopt.ir.kernel.kernel_node import KernelNode
from daceopt.programs.stats import number

if TYPE_CHECKING:
    import onnx
    import torch

    from daceopt.codegen.shown import Shown
    from daceopt.ir.graph.graph import Graph
    from daceopt.modules.piece import CompiledPiece

_PLAIN = ("Add", "Mul")
Value = TypeVar("Value")


# -------------------------------------------------------------------- operators


def operators(model: onnx.ModelProto, tail: Mapping[str, str] | None = None) -> list[OperatorRow]:
    """One row per operator type and way of support, fallbacks first, then the most frequent.

    ``tail``: reasons of nodes, by their first output, that run in ONNX Runtime after the compiled part.
    """
    reasons, failed = _refusals(model)
    outside = tail or {}
    reasons |= {tuple(n.output): outside[name] for n in model.graph.node for name in n.output if name in outside}
    rows: Counter[tuple[str, str, str]] = Counter()
    for node in model.graph.node:
        if node.op_type != "Constant":
            rows[_support(node, reasons.get(tuple(node.output), ""))] += 1
    counted = [
        OperatorRow(name, count, how, reason or failed * (how == "fallback"))
        for (name, how, reason), count in rows.items()
    ]
    return sorted(counted, key=lambda o: (o.how != "fallback", -o.count, o.name))


def aten_operators(graphs: Iterable[CompiledPiece], refused: Iterable[str] = ()) -> list[OperatorRow]:
    """One row per ATen operator of the graphs that Dynamo found, those that ATen itself runs first, then the most
    frequent; and one for each part that stays in eager PyTorch."""
    rows: Counter[tuple[str, str, str]] = Counter()
    for graph in graphs:
        hosted = graph.pair.report["hosted"]
        for name, count in graph.operators().items():
            rows[name, "host" if name in hosted else "native", hosted.get(name, "")] += count
        rows.update({(name, "host", why): 1 for name, why in hosted.items() if name not in graph.operators()})
    rows.update(("a part of the module", "fallback", reason) for reason in refused)
    counted = [OperatorRow(name, count, how, reason) for (name, how, reason), count in rows.items()]
    return sorted(counted, key=lambda o: (("fallback", "host", "native").index(o.how), -o.count, o.name))


def _refusals(model: onnx.ModelProto) -> tuple[dict[tuple[str, ...], str], str]:
    """Reasons by outputs of the node, and why importing stopped if it did."""
    from daceopt.capture.onnx.importer import import_model

    reasons: dict[tuple[str, ...], str] = {}
    try:
        import_model(model, fallback=True, refused=lambda node, reason: reasons.update({tuple(node.output): reason}))
    except DaceoptError as error:
        return reasons, str(error)
    return reasons, ""


def _support(node: onnx.NodeProto, reason: str) -> tuple[str, str, str]:
    from daceopt.ops.core import registry

    domain = "" if node.domain == "ai.onnx" else node.domain
    name = f"{domain}.{node.op_type}" if domain else node.op_type
    if reason or not registry.is_supported(node.op_type, domain):
        return name, "fallback", reason
    return name, "native" if registry.has_lowering(node.op_type, domain) else "lowered", ""


# -------------------------------------------------------------------- kernels


@dataclass(frozen=True)
class Direction:
    """One program of a pair: its graph, names of the arrays it returns; seconds, schedules and C++ of a node by an
    array that it writes."""

    name: str
    graph: Graph
    names: Mapping[str, str]
    seconds: Mapping[str, float]
    shown: Mapping[str, Shown] = field(default_factory=dict)


def kernels(direction: Direction, sizes: Mapping[str, int], machine: Machine) -> list[KernelRow]:
    """One row per node in the order in which they run."""
    return [_kernel(direction, cost) for cost in roofline(direction.graph, sizes, machine, operators=True)]


def describe(name: str, tensor: torch.Tensor) -> str:
    """``x: float32[4, 8]``."""
    return f"{name}: {str(tensor.dtype).removeprefix('torch.')}[{', '.join(map(str, tensor.shape))}]"


def edges(direction: Direction, sizes: Mapping[str, int], first: int) -> list[Edge]:
    """Which kernel reads what another one writes, once for each array; ``first`` is the place of the first kernel."""
    graph = direction.graph
    place: dict[Any, int] = {node: first + k for k, node in enumerate(graph.nodes())}
    arrows: list[Edge] = []
    for node, at in place.items():
        read = dict.fromkeys(graph.root(n)[0] for n in graph.inputs_of(node) if n is not None)
        arrows += [Edge(place.get(graph.producer(n)), at, _bytes(graph, n, sizes)) for n in read]
    for name in dict.fromkeys(graph.root(n)[0] for n in (*graph.outputs, *graph.saved)):
        source = place.get(graph.producer(name))
        arrows += [] if source is None else [Edge(source, None, _bytes(graph, name, sizes))]
    return arrows


def _bytes(graph: Graph, name: str, sizes: Mapping[str, int]) -> int:
    return resolve(graph.size(name) * graph.dtype(name).bytes, sizes)


def calibrate(machine: Machine, directions: Iterable[Direction], sizes: Mapping[str, int]) -> Machine:
    """The machine, at least as fast as the library calls that ran on it: if they beat it, it was busy when measured."""
    for direction in directions:
        for node in direction.graph.nodes():
            seconds = measured_seconds(direction, node)
            if hasattr(node, "flops") and seconds:
                reached = resolve(node.flops(direction.graph), sizes) / seconds
                machine = machine.raise_to(reached, itemsize(direction.graph, node))
    return machine


def measured_seconds(direction: Direction, node: Node) -> float | None:
    """The seconds of a node, as measured."""
    return _by_result(direction, node, direction.seconds)


def _by_result(direction: Direction, node: Node, values: Mapping[str, Value]) -> Value | None:
    """What is known of a node by the name of an array that it writes."""
    written = [n for n in direction.graph.outputs_of(node) if n is not None]
    return next((values[n] for n in written if n in values), None)


def _kernel(direction: Direction, cost: NodeCost) -> KernelRow:

    graph = direction.graph
    generated = isinstance(cost.node, KernelNode)
    library, why = ("", "") if generated or isinstance(cost.node, Region) else _library(graph, cost.node)
    contents = _loops(cost.node) if generated else _operands(graph, cost.node)
    written = [n for n in graph.outputs_of(cost.node) if n is not None]
    writes = ", ".join(direction.names.get(n) or graph.source.names.get(n, n) for n in written)
    costs = cost.bytes, cost.flops, cost.seconds, measured_seconds(direction, cost.node)
    shown = _by_result(direction, cost.node, direction.shown) or ("", "")
    origin = ", ".join(graph.origins_of(cost.node))
    return KernelRow(direction.name, cost.label, writes, contents, *costs, library, why, *shown, origin)


def _loops(node: KernelNode) -> str:
    """What a kernel computes: reductions and functions, and the loops they stand in."""
    loops: Loops = node.kernel
    reductions = Counter(a.wcr for s in loops.stages for a in s.writes.values() if a.wcr)
    functions = dict.fromkeys(f for s in loops.stages for a in s.assignments for f in _functions(a.expr))
    parts = [f"{count} {kind} reduction{'s' * (count > 1)}" for kind, count in reductions.items()]
    extents = " x ".join(str(loops.bounds(p)[0]) for p in loops.extents) or "1"
    stages = f"{len(loops.stages)} stages over " if len(loops.stages) > 1 else ""
    return "; ".join([stages + extents, *parts, *([" ".join(functions)] if functions else [])])


def _functions(expr: sympy.Expr) -> Iterable[str]:
    from sympy import preorder_traversal

    for part in preorder_traversal(expr):
        if part.args and not part.is_Pow and type(part).__name__ not in _PLAIN:
            yield type(part).__name__
        elif part.is_Pow and part.exp.is_number:
            yield "division" if part.exp.is_Integer and part.exp < 0 else "power" if part.exp.is_Integer else "sqrt"


def _operands(graph: Graph, node: Node) -> str:
    """What a library call works on: connectors with shapes, and what is fused into it."""
    if isinstance(node, Region):
        inside = [str(len(body.nodes())) for body in node.bodies]
        return f"{type(node).__name__}: {iterations(node)} x {' or '.join(inside)} kernels and calls"
    if is_operator(node):
        names = graph.inputs_of(node), graph.outputs_of(node)
        return " -> ".join(", ".join(_shape(graph, n) for n in names if n is not None) for names in names)
    ends = " -> ".join(_shapes(graph, connectors) for connectors in (graph.reads(node), graph.writes(node)))
    fused, slope = getattr(node, "activation", None), getattr(node, "slope", 0)
    fused = f"{fused} of slope {slope:g}" if slope else fused
    ceiling = getattr(node, "ceiling", math.inf)
    fused = f"{fused} up to {ceiling:g}" if fused and ceiling < math.inf else fused
    return f"{type(node).__name__}: {ends}" + (f"; {fused}" if fused else "")


def _shapes(graph: Graph, connectors: Mapping[str, str]) -> str:
    return ", ".join(f"{connector} {_shape(graph, name)}" for connector, name in sorted(connectors.items()))


def _shape(graph: Graph, name: str) -> str:
    return "x".join(str(n) for n in graph.shape(name)) or "scalar"


def _library(graph: Graph, node: Node) -> tuple[str, str]:
    """The library of a node and why it is that one; an operator has none yet."""
    from daceopt import libs

    if is_operator(node):
        return "operator", "not lowered yet"
    reasons = libs.reasons(node, graph)
    chosen = next((name for name, reason in reasons.items() if reason is None), None)
    if chosen is None:
        raise Unsupported(f"no library implements {node.label!r}: {reasons}")
    here = [name for name in reasons if graph.options.target in libs.get(name).targets]
    before = [f"{name}: {reasons[name]}" for name in here[: here.index(chosen)]]
    if before:
        return chosen, "; ".join(before)
    return chosen, "first choice as measured" if len(here) > 1 else "the only one"


# -------------------------------------------------------------------- steps


def steps(history: Iterable[Mapping[str, Any]], sizes: Mapping[str, int]) -> list[StepRow]:
    """One row per step and direction, in the order in which they ran; ``history`` as in a compiled pair's report."""
    return [
        StepRow(
            "backward" if r["graph"].endswith("_backward") else "forward",
            r["name"],
            r["level"],
            r["seconds"],
            len(r["sites"]),
            (r["nodes_before"], r["nodes_after"]),
            (number(r["bytes_before"], sizes), number(r["bytes_after"], sizes)),
        )
        for r in history
    ]
