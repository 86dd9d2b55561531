"""Collectives on the process groups of torch.distributed, called from generated code without Python."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar

import dace

from daceopt import system
from daceopt.codegen.compiler import Flags
from daceopt.ir.graph.kinds import Node
from daceopt.ir.nodes.collective import (
    AgreementStart,
    AgreementWait,
    AllGatherStart,
    AllGatherWait,
    AllReduceStart,
    AllReduceWait,
    Collective,
    CollectiveStart,
    IntoShards,
    OwnShard,
    ReduceScatterStart,
    ReduceScatterWait,
    Unshard,
)
from daceopt.ir.scalar import types
from daceopt.libs.base import Library, Missing, Requirements, register, support
from daceopt.libs.emission import extent, literal
from daceopt.libs.torch_headers import link_to_torch

if TYPE_CHECKING:
    from daceopt.ir.graph.graph import Graph
    from daceopt.ir.nodes.library import DenseNode

_REDUCED = {
    dace.float32: "kFloat",
    dace.float64: "kDouble",
    types.HALVES[0]: "kHalf",
    types.HALVES[1]: "kBfloat16",
}
_SHOWN = 3  # parameters that a message names
_ADDRESS = "const_cast<void*>(static_cast<const void*>(X))"


class TorchCollectives(Library):
    """All backends that torch.distributed has for arrays on the host: gloo, MPI."""

    name: ClassVar[str] = "torch_collectives"

    def available(self) -> Missing | None:
        """Missing where torch was built without torch.distributed, or comes without its headers."""
        import torch.distributed

        folder = system.torch_library_folder()
        header = folder and folder.parent / "include/torch/csrc/distributed/c10d/GroupRegistry.hpp"
        if torch.distributed.is_available() and header and header.is_file():
            return None
        return Missing("torch has no torch.distributed, or not its headers", "install the wheel of torch for Linux")

    def version(self) -> str:
        import torch

        return str(torch.__version__)

    def supports(self, node: DenseNode, graph: Graph) -> str | None:
        """Dense arrays of floats; what is on its way belongs to the collective alone."""
        if not isinstance(node, Collective):
            return "for collectives only"
        if isinstance(node, (AgreementStart, AgreementWait)):
            return None
        operands = node.operands(graph)
        x = operands["X"]
        if graph.dtype(x) not in _REDUCED:
            return f"element type {graph.dtype(x)}, expected float32, float64, float16 or bfloat16"
        dense = [operands[c] for c in ("X", "Y", "Received", "Gathered") if c in operands]
        if isinstance(node, (IntoShards, Unshard)):
            rows = operands["Y" if isinstance(node, IntoShards) else "X"]
            dense.remove(rows)
            if graph.shape(rows)[1] != 1 and graph.strides(rows)[1] != 1:
                return f"the rows of {rows} must be contiguous"
        if not all(graph.is_contiguous(name) for name in dense):
            return f"{x} must be contiguous"
        others = [n for n in graph.all_consumers(x) if not isinstance(n, (AllReduceStart, AllReduceWait))]
        if isinstance(node, AllReduceStart) and (others or graph.is_kept(x) or graph.is_given(x)):
            return f"{x} is read by others, too, while the sum over all ranks takes its place"
        return None

    def emit(self, node: DenseNode, graph: Graph) -> str:
        assert isinstance(node, Collective)
        return _EMITTED[type(node)](node, graph)

    def requirements(self, node: DenseNode, graph: Graph) -> Requirements:
        needs = support(
            "process_group.cpp",
            header="process_group.h",
            flags=link_to_torch(),
            version=self.version(),
            standard="c++20",
        )
        return Requirements(needs.flags + Flags(headers=("cstring",)), needs.jobs)


def _agreement_start(node: AgreementStart, graph: Graph) -> str:
    return f"*Handle = daceopt::agreement_start({literal(node.group)}, INT64_C({node.sequence}));"


def _agreement_wait(node: AgreementWait, graph: Graph) -> str:
    return f"daceopt::agreement_wait(*Handle, INT64_C({node.sequence})); *Done = 1;"


def _all_reduce_start(node: AllReduceStart, graph: Graph) -> str:
    return _start("all_reduce_start", node, graph, _ADDRESS, extent(graph.size(graph.reads(node)["X"])))


def _reduce_scatter_start(node: ReduceScatterStart, graph: Graph) -> str:
    elements = extent(graph.shape(graph.reads(node)["X"])[1])
    return _start("reduce_scatter_start", node, graph, f"{_ADDRESS}, Received", elements)


def _all_gather_start(node: AllGatherStart, graph: Graph) -> str:
    return _start("all_gather_start", node, graph, "X, Gathered", extent(graph.size(graph.reads(node)["X"])))


def _start(function: str, node: CollectiveStart, graph: Graph, arguments: str, elements: str) -> str:
    kind = f"daceopt::Reduced::{_REDUCED[graph.dtype(graph.reads(node)['X'])]}"
    call = f"daceopt::{function}({literal(node.group)}, {literal(_title(node))}, {arguments}, {elements}, {kind})"
    return f"*Handle = {call};"


def _in_place_wait(node: AllReduceWait | AllGatherWait, graph: Graph) -> str:
    x = graph.reads(node)["X"]
    function = "all_reduce_wait" if isinstance(node, AllReduceWait) else "all_gather_wait"
    copy = f"if (static_cast<const void*>(Y) != {_ADDRESS}) std::memcpy(Y, X, {_bytes(graph, x)});"
    return f"daceopt::{function}(*Handle); {copy}"


def _reduce_scatter_wait(node: ReduceScatterWait, graph: Graph) -> str:
    return "daceopt::reduce_scatter_wait(*Handle, Y);"


def _own_shard(node: OwnShard, graph: Graph) -> str:
    x, y = graph.reads(node)["X"], graph.writes(node)["Y"]
    width = types.itemsize(graph.dtype(x))
    sizes = f"{extent(graph.size(x))}, Y, {extent(graph.size(y))}, {width}"
    return f"daceopt::own_shard({literal(node.group)}, X, {sizes});"


def _into_shards(node: IntoShards, graph: Graph) -> str:
    x, y = graph.reads(node)["X"], graph.writes(node)["Y"]
    (world, elements), step = graph.shape(y), _row_step(graph, y)
    sizes = ", ".join(map(extent, (world, step, elements)))
    return f"daceopt::into_shards(X, {extent(graph.size(x))}, Y, {sizes}, {types.itemsize(graph.dtype(x))});"


def _row_step(graph: Graph, rows: str) -> Any:
    """Elements from one row to the next; a single one has no next."""
    return graph.strides(rows)[0] if graph.shape(rows)[0] != 1 else graph.shape(rows)[1]


def _unshard(node: Unshard, graph: Graph) -> str:
    x, y = graph.reads(node)["X"], graph.writes(node)["Y"]
    step, elements = _row_step(graph, x), graph.shape(x)[1]
    sizes = f"{extent(step)}, {extent(elements)}, Y, {extent(graph.size(y))}, {types.itemsize(graph.dtype(x))}"
    return f"daceopt::unshard(X, {sizes});"


def _bytes(graph: Graph, name: str) -> str:
    return f"{extent(graph.size(name))} * {types.itemsize(graph.dtype(name))}"


_EMITTED: dict[type, Callable[[Node, Graph], str]] = {
    AgreementStart: _agreement_start,
    AgreementWait: _agreement_wait,
    AllReduceStart: _all_reduce_start,
    AllReduceWait: _in_place_wait,
    ReduceScatterStart: _reduce_scatter_start,
    ReduceScatterWait: _reduce_scatter_wait,
    AllGatherStart: _all_gather_start,
    AllGatherWait: _in_place_wait,
    IntoShards: _into_shards,
    OwnShard: _own_shard,
    Unshard: _unshard,
}


def _title(node: CollectiveStart) -> str:
    """What a message calls an exchange."""
    names = list(node.parameters)
    if not names:
        return f"{node.title} of the norm of all gradients"
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    what = "values" if isinstance(node, AllGatherStart) else "gradients"
    return f"{node.title} of the {what} of {', '.join(names[:_SHOWN])}{more}"


register(TorchCollectives())
