"""The invariants of a graph, checked."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from dace.sdfg.validation import InvalidSDFGError

from daceopt.ir import order, parts

if TYPE_CHECKING:
    from daceopt.ir.graph import Graph
    from daceopt.ir.nodes.kernel_node import KernelNode


def validate(graph: Graph) -> None:
    """Raise ``ValueError`` or DaCe's ``InvalidSDFGError`` when an invariant does not hold."""
    for name in graph.arrays():
        _check_writers(graph, name)
    for name in graph.outputs:
        if name not in graph.sdfg.arrays:
            raise ValueError(f"output {name} does not exist")
        if not graph.is_given(graph.root(name)[0]) and not graph.producers(name):
            raise ValueError(f"output {name} is never written")
    order.check(graph, graph.nodes())
    if graph.nodes() != graph._order.copy().of(graph):
        raise ValueError(f"graph {graph.sdfg.name} was edited past its methods: its order is another than it says")
    for node in graph.kernels():
        _check_kernel(graph, node)
    if graph.locals != {name: node for node in graph.kernels() for name in node.kernel.locals}:
        raise ValueError(f"kernels of graph {graph.sdfg.name} have other locals than when they were added")
    with _without_isolated(graph):
        _validate_sdfg(graph)


def _check_writers(graph: Graph, name: str) -> None:
    """Arrays are written once: by a node, or in parts that have each element once."""
    writers, together = graph.state.in_degree(graph.access(name)), len(graph.parts_of(name))
    if (graph.is_given(name) and writers) or writers - together > (not together):
        raise ValueError(f"array {name} is written more than once")
    if graph.is_part(name) and name in (*graph.outputs, *graph.saved):
        raise ValueError(f"array {name} is a part of {graph.part(name).whole}, which is what can be an output or saved")
    if together:
        parts.check(graph, name)


def _check_kernel(graph: Graph, node: KernelNode) -> None:
    """A node reads and writes what its kernel does, each dimension of it."""
    kernel = node.kernel
    for verb, found, known in (
        ("reads", kernel.reads(), graph.inputs_of(node)),
        ("writes", kernel.writes(), graph.outputs_of(node)),
    ):
        if sorted({a.array for a in found}) != list(known):
            raise ValueError(f"kernel {kernel.label} {verb} {sorted({a.array for a in found})}, its node {list(known)}")
        for access in found:
            shape = graph.shape(access.array)
            if len(access.index) != len(shape):
                raise ValueError(f"kernel {kernel.label} {verb} {access.array} of shape {shape} at {access.index}")


@contextmanager
def _without_isolated(graph: Graph) -> Iterator[None]:
    """DaCe refuses access nodes without edges, which unused inputs have."""
    isolated = [a for a in map(graph.access, graph.arrays()) if not graph.state.degree(a)]
    graph.state.remove_nodes_from(isolated)
    try:
        yield
    finally:
        graph.state.add_nodes_from(isolated)


def _validate_sdfg(graph: Graph) -> None:
    graph.sdfg.save = lambda *_, **__: None  # DaCe would leave a file in the current folder
    try:
        graph.sdfg.validate()
    except InvalidSDFGError as error:
        error.path = None  # so that its message speaks of no file
        raise
    finally:
        del graph.sdfg.save
