"""What a trace takes for granted of sizes that only the data decide, without a note of its own."""

from __future__ import annotations

import torch
from torch import fx

from daceopt.torch_internals.pytree import tree_leaves
from daceopt.torch_internals.symbolic_shapes import free_unbacked_symbols, statically_known_true


def excluded_sizes(node: fx.Node) -> list[tuple[torch.SymInt, int, str]]:
    """Sizes with what each may not be, and what the call would do that is not in the graph."""
    squeezed = [(size, 1, "drops an axis whose size the data decide") for size in _sizes_squeezed(node)]
    return squeezed + [(size, 0, "compares elements of which there are none") for size in _sizes_compared(node)]


def _operator_name(node: fx.Node) -> str:
    """Of a method or a function."""
    return node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")


def _operand_shape(node: fx.Node) -> torch.Size | None:
    """Of the first operand, if it is a tensor."""
    operand = node.args[0] if node.args else node.kwargs.get("input")
    value = operand.meta.get("example_value") if isinstance(operand, fx.Node) else None
    return value.shape if isinstance(value, torch.Tensor) else None


def _sizes_compared(node: fx.Node) -> list[torch.SymInt]:
    """The sizes that only the data decide of axes along which an extremum is taken, which may not be empty."""
    shape = _operand_shape(node)
    if _operator_name(node) not in ("max", "min") or shape is None:
        return []
    axis = node.args[1] if len(node.args) > 1 else node.kwargs.get("dim", node.kwargs.get("axis"))
    sizes = [] if isinstance(axis, fx.Node) or "other" in node.kwargs else shape if axis is None else [shape[axis]]
    return [s for s in sizes if free_unbacked_symbols(s)]


def _sizes_squeezed(node: fx.Node) -> list[torch.SymInt]:
    """The sizes that only the data decide of axes that are dropped where they are 1, as if they never were."""
    shape = _operand_shape(node)
    if _operator_name(node).strip("_") != "squeeze" or shape is None:
        return []
    named = tuple(value for name, value in node.kwargs.items() if name != "input")
    axes = node.args[1:] or named or (tuple(range(len(shape))),)
    sizes = [shape[axis] for axis in tree_leaves(axes)]
    return [s for s in sizes if free_unbacked_symbols(s) and not statically_known_true(s != 1)]
