"""Collectives on the process groups of torch.distributed, called from generated code without Python."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import dace

from daceopt.codegen.compiler import Flags
from daceopt.ir import types
from daceopt.ir.nodes.collective import AgreementStart, AgreementWait, AllReduceStart, AllReduceWait, Collective
from daceopt.libs.base import Library, Missing, Requirements, register, support
from daceopt.libs.emission import extent, literal
from daceopt.libs.torch_headers import linked_to_torch
from daceopt.store import system

if TYPE_CHECKING:
    from daceopt.ir.graph import Graph
    from daceopt.ir.nodes.library import DenseNode

_REDUCED = {
    dace.float32: "kFloat",
    dace.float64: "kDouble",
    types.HALVES[0]: "kHalf",
    types.HALVES[1]: "kBfloat16",
}
_SHOWN = 3  # parameters that a message names


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
        """Return torch's version."""
        import torch

        return str(torch.__version__)

    def supports(self, node: DenseNode, graph: Graph) -> str | None:
        """Dense arrays of floats; what is on its way belongs to the collective alone."""
        if not isinstance(node, Collective):
            return "for collectives only"
        if not isinstance(node, (AllReduceStart, AllReduceWait)):
            return None
        operands = node.operands(graph)
        x = operands["X"]
        if graph.dtype(x) not in _REDUCED:
            return f"element type {graph.dtype(x)}, expected float32, float64, float16 or bfloat16"
        if not all(graph.is_contiguous(operands[c]) for c in ("X", "Y") if c in operands):
            return f"{x} must be contiguous"
        others = [n for n in graph.all_consumers(x) if not isinstance(n, (AllReduceStart, AllReduceWait))]
        if isinstance(node, AllReduceStart) and (others or graph.is_kept(x) or graph.is_given(x)):
            return f"{x} is read by others, too, while the sum over all ranks takes its place"
        return None

    def emit(self, node: DenseNode, graph: Graph) -> str:
        """One call into ``daceopt/process_group.h``."""
        group, operands = literal(node.group), node.operands(graph)
        if isinstance(node, AgreementStart):
            return f"*Handle = daceopt::agreement_start({group}, INT64_C({node.sequence}));"
        if isinstance(node, AgreementWait):
            return f"daceopt::agreement_wait(*Handle, INT64_C({node.sequence})); *Done = 1;"
        x = operands["X"]
        count, address = extent(graph.size(x)), "const_cast<void*>(static_cast<const void*>(X))"
        if isinstance(node, AllReduceStart):
            kind = f"daceopt::Reduced::{_REDUCED[graph.dtype(x)]}"
            call = f"daceopt::all_reduce_start({group}, {literal(_title(node))}, {address}, {count}, {kind})"
            return f"*Handle = {call};"
        size = f"{count} * {types.itemsize(graph.dtype(x))}"
        copy = f"if (static_cast<const void*>(Y) != {address}) std::memcpy(Y, X, {size});"
        return f"daceopt::all_reduce_wait(*Handle); {copy}"

    def requirements(self, node: DenseNode, graph: Graph) -> Requirements:
        """Our source against torch's headers, linked to the libraries that are in the process already."""
        needs = support(
            "process_group.cpp",
            header="process_group.h",
            flags=linked_to_torch(),
            version=self.version(),
            standard="c++20",
        )
        return Requirements(needs.flags + Flags(headers=("cstring",)), needs.jobs)


def _title(node: AllReduceStart) -> str:
    """What a message calls a reduction."""
    names = list(node.parameters)
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"reduction of the gradients of {', '.join(names[:_SHOWN])}{more}"


register(TorchCollectives())
