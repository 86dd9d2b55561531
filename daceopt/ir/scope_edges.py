"""The edges of a map scope, from its arrays through its maps to a tasklet and back."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from itertools import pairwise

from dace import nodes
from dace.memlet import Memlet

from daceopt.ir.graph import Graph
from daceopt.ir.memlets import whole


def connect_read(state, source, around, tasklet, conn, memlet) -> None:  # type: ignore[no-untyped-def]
    """From ``source`` to a tasklet; ``around``: the scopes inside of the kernel's own, outermost first."""
    current, out = source, None
    if isinstance(source, nodes.MapEntry):
        out = _port(source, memlet.data)
    for node, _ in around:
        port_in, port_out = f"IN_{memlet.data}", f"OUT_{memlet.data}"
        if port_in not in node.in_connectors:
            node.add_in_connector(port_in)
            node.add_out_connector(port_out)
            state.add_edge(current, out, node, port_in, whole(memlet.data, state.sdfg.arrays[memlet.data]))
        current, out = node, port_out
    state.add_edge(current, out, tasklet, conn, memlet)


def connect_write(state, tasklet, conn, around, sink, memlet) -> None:  # type: ignore[no-untyped-def]
    """From a tasklet to ``sink``."""
    current, out = tasklet, conn
    for _, node in reversed(around):
        node.add_in_connector(f"IN_{memlet.data}")
        node.add_out_connector(f"OUT_{memlet.data}")
        state.add_edge(current, out, node, f"IN_{memlet.data}", memlet)
        current, out = node, f"OUT_{memlet.data}"
        memlet = whole(memlet.data, state.sdfg.arrays[memlet.data], wcr_source(memlet))
    target = None
    if isinstance(sink, nodes.MapExit):
        target = f"IN_{memlet.data}"
        sink.add_in_connector(target)
        sink.add_out_connector(f"OUT_{memlet.data}")
    state.add_edge(current, out, sink, target, memlet)


def is_used(state, node) -> bool:  # type: ignore[no-untyped-def]
    """Has the node an edge?"""
    return bool(state.in_degree(node) or state.out_degree(node))


def _port(entry: nodes.MapEntry, array: str) -> str:
    entry.add_in_connector(f"IN_{array}")
    entry.add_out_connector(f"OUT_{array}")
    return f"OUT_{array}"


def keep_inside(state, entry, exit_, around, tasklet) -> None:  # type: ignore[no-untyped-def]
    """A node without data from its scope's entry still belongs to the scope: an empty edge says so."""
    down = [entry, *(first for first, _ in around), tasklet]
    up = [tasklet, *(last for _, last in reversed(around)), exit_]
    for before, node in pairwise(down):
        if state.in_degree(node) == 0:
            state.add_edge(before, None, node, None, Memlet())
    for node, after in pairwise(up):
        if state.out_degree(node) == 0:
            state.add_edge(node, None, after, None, Memlet())


def connect_outside(
    graph: Graph, entry: nodes.MapEntry, exit_: nodes.MapExit, local: Iterable[nodes.AccessNode]
) -> None:
    """From the arrays of the graph to the scope and back; ``local``: access nodes inside of it, of which some are of
    arrays that the graph has, too."""
    for node in (n for n in local if graph.has(n.data)):
        exit_.add_in_connector(f"IN_{node.data}")
        exit_.add_out_connector(f"OUT_{node.data}")
        graph.state.add_edge(node, None, exit_, f"IN_{node.data}", graph.whole(node.data))
    for conn in entry.in_connectors:
        name = conn[len("IN_") :]
        graph.state.add_edge(graph.access(name), None, entry, conn, graph.whole(name))
    wcr = {e.dst_conn: wcr_source(e.data) for e in graph.state.in_edges(exit_) if e.dst_conn}
    for conn in list(exit_.in_connectors):
        name = conn[len("IN_") :]
        memlet = whole(name, graph.desc(name), wcr[conn])
        graph.state.add_edge(exit_, f"OUT_{name}", graph.access(name), None, memlet)
    for node in local:
        if graph.state.in_degree(node) == 0:
            graph.state.add_edge(entry, None, node, None, Memlet())
        if graph.state.out_degree(node) == 0:
            graph.state.add_edge(node, None, exit_, None, Memlet())


def wcr_source(memlet: Memlet) -> str | None:
    """The reduction of a memlet as Python code."""
    if memlet.wcr is None or isinstance(memlet.wcr, str):
        return memlet.wcr
    return ast.unparse(memlet.wcr)
