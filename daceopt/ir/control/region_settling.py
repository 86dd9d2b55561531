"""What happens to regions before code is generated for them: their bodies fit the memory of what they are bound to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sympy

from daceopt.errors import Unsupported
from daceopt.ir.control.region import Region, Repeat, everything, operand, regions
from daceopt.ir.data.arrays import SEED
from daceopt.ir.edits.attempt import commit
from daceopt.ir.edits.schedule_edits import bind
from daceopt.ir.graph.graph import Graph
from daceopt.ir.kernel.kernel_node import KernelNode
from daceopt.ir.legality.hardware import LIMITS, TargetLimits
from daceopt.ir.nodes.builder import Builder
from daceopt.ir.scalar.dims import Dim, row_major
from daceopt.ir.schedule import schedule


def settle(graph: Graph) -> None:
    """Make bodies fit the memory of what they are bound to: constants move out, layouts become those of the operands.

    Raises Unsupported for what a loop cannot hold.
    """
    before = {body: set(body.kernels()) for body in everything(graph)}
    _settle(graph)
    limits = LIMITS.get(graph.options.target)
    if limits is not None:
        for body, kernels in before.items():
            _bind_copies(body, [node for node in body.kernels() if node not in kernels], limits)


def _settle(graph: Graph) -> None:
    constants: dict[tuple[Any, ...], str] = {}
    for node in regions(graph):
        for which, body in enumerate(node.bodies):
            _settle(body)
            _move_constants(graph, node, which, constants)
            _share_seed(graph, node, body)
            _lay_out_captures(graph, node, which)
        if isinstance(node, Repeat):
            _lay_out_loop(graph, node)
        else:
            _lay_out_outputs(node.bodies, [graph.strides(graph.writes(node)[f"Out{k}"]) for k in _places(node)])


def _bind_copies(graph: Graph, copies: Sequence[KernelNode], limits: TargetLimits) -> None:
    """Copies that were made here, behind all steps, run on an accelerator as what it can run: blocks and threads."""
    for node in copies:
        tree = schedule.schedule_of(node.kernel)
        loops = schedule.loops(tree)
        if not loops:
            continue
        tree = bind(tree, loops[0].param, "grid")
        inner = loops[-1]
        if len(loops) > 1 and isinstance(inner.extent, int) and inner.extent <= limits.threads:
            tree = bind(tree, inner.param, "block")
        commit(graph, node, tree)


def _places(node: Region) -> range:
    return range(len(node.bodies[0].outputs))


def _move_constants(graph: Graph, node: Region, which: int, names: dict[tuple[Any, ...], str]) -> None:
    """The program binds the constants of the outermost graph; ``known`` has those that moved already, by memory."""
    body = node.bodies[which]
    for name in [n for n in body.constants if body.is_read(n)]:
        value = body.constants.pop(name)
        key = (value.__array_interface__["data"][0], value.shape, value.dtype)
        if key not in names:
            names[key] = graph.add_constant(body.source.names.get(name, name), value)
        body.inputs.append(name)
        node.captures[which][name] = operand(graph, node, names[key])


def _share_seed(graph: Graph, node: Region, body: Graph) -> None:
    if not body.uses_seed:
        return
    if isinstance(node, Repeat) and not all(node.counter in _symbols_drawn(body, kernel) for kernel in _random(body)):
        raise Unsupported(f"{node.label}: random numbers in a loop would be the same in every iteration")
    graph.seed()


def _random(body: Graph) -> list[KernelNode]:
    """The kernels that draw random numbers."""
    return [n for n in body.kernels() if SEED in body.inputs_of(n)]


def _symbols_drawn(body: Graph, node: KernelNode) -> set[sympy.Symbol]:
    """What the kernel's scalar code names: numbers are drawn by the element that it computes, of all iterations."""
    stages = node.kernel.stages
    return {s for stage in stages for a in stage.assignments for s in a.expr.free_symbols}


def _lay_out_captures(graph: Graph, node: Region, which: int) -> None:
    """Inputs of a body follow the layout of their operands; where views of them cannot, they read a copy."""
    body, copies = node.bodies[which], {}
    for name, connector in node.captures[which].items():
        source = graph.reads(node)[connector]
        if body.strides(name) == graph.strides(source):
            continue
        try:
            body.set_strides(name, graph.strides(source))
        except ValueError:
            if source not in copies:
                twin = graph.add_array(source, graph.shape(source), graph.dtype(source), body.strides(name))
                copies[source] = Builder(graph, "layout").copy(source, out=twin)
            node.captures[which][name] = operand(graph, node, copies[source])


def _lay_out_loop(graph: Graph, node: Repeat) -> None:
    """Carried values are row-major everywhere; slices of stacked outputs are laid out as they are there."""
    body, writes = node.body, graph.writes(node)
    layouts = [row_major(body.shape(c.input)) for c in node.carried]
    for c, strides in zip(node.carried, layouts):
        body.set_strides(c.input, strides)
        source = graph.reads(node)[c.initial]
        if not graph.is_contiguous(source):
            _rebind(graph, node, c.initial, Builder(graph, "carried").copy(source))
        if c.final is not None and not graph.is_contiguous(writes[c.final]):
            _write_beside(graph, node, c.final)
    for s in node.stacked:
        strides = graph.strides(writes[s.connector])
        layouts.append(strides if s.extent is not None else strides[: s.axis] + strides[s.axis + 1 :])
    _lay_out_outputs([body], layouts)


def _rebind(graph: Graph, node: Region, connector: str, name: str) -> None:
    """Let ``connector`` read the array ``name``."""
    graph.drop_read(node, connector)
    graph.read(node, connector, name)


def _write_beside(graph: Graph, node: Region, connector: str) -> None:
    """Let ``connector`` write an array in rows, of which the one that it wrote becomes a copy."""
    name = graph.writes(node)[connector]
    graph.drop_write(node, connector)
    rows = graph.add_array(name, graph.shape(name), graph.dtype(name))
    graph.write(node, connector, rows)
    Builder(graph, "carried").copy(rows, out=name)


def _lay_out_outputs(bodies: Sequence[Graph], layouts: Sequence[tuple[Dim, ...]]) -> None:
    for body in bodies:
        for k, strides in enumerate(layouts):
            name = body.outputs[k]
            if body.strides(name) == strides:
                continue
            try:
                body.set_strides(name, strides)
            except ValueError:
                twin = body.add_array(name, body.shape(name), body.dtype(name), strides)
                Builder(body, "layout").copy(name, out=twin)
                body.outputs[k] = twin
