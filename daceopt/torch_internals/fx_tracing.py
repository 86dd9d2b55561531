"""Graphs of ``torch.fx`` that PyTorch traces by running operators, and the numbers in them."""

from __future__ import annotations

from torch import fx

from daceopt.torch_internals.release import private_names

with private_names():
    from torch.fx._lazy_graph_module import _LazyGraphModule
    from torch.fx.experimental.proxy_tensor import make_fx as make_fx
    from torch.fx.experimental.sym_node import SymNode as SymNode


def compile_forward(graph: fx.GraphModule) -> None:
    """Write the Python code of a graph, if that waits for its first call: an error in that call would be printed."""
    _LazyGraphModule.force_recompile(graph)
