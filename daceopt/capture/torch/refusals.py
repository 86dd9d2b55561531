"""Calls that eager PyTorch refuses because of element types, where its shape rules and our programs would go on: the
difference of a bool, the variance of integers, labels of another type. And calls whose results have another element
type than these rules say.

Each such call of a graph is tried on one number: ATen says in its kernels what it lacks, and nowhere else.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from types import BuiltinFunctionType, FunctionType

import torch
from torch import fx

from daceopt.capture.torch.lines import line_of, note_line
from daceopt.errors import Unsupported
from daceopt.torch_internals import torch_operators
from daceopt.torch_internals.pytree import tree_leaves, tree_map

_OF_TYPES = re.compile(
    "not implemented for '|dtype|scalar type|can't be cast|converted to type|bool (tensor|input)|floating point"
    "|of type |Integers to negative|deterministic implementation"
)

_PYTHON = frozenset("torch torch.functional torch.nn.functional torch._tensor".split())  # modules
_OTHERS = frozenset(
    "truediv floordiv mod and or xor lshift rshift fill std var std_mean var_mean argmax argmin index_add "
    "cross_entropy one_hot hardswish glu smooth_l1_loss huber_loss".split()
)  # beside point-wise operators


def check(graph: fx.GraphModule, inputs: Sequence[object]) -> None:
    """Raise Unsupported, with ATen's own words, for a graph of Dynamo of which eager PyTorch refuses a call."""
    if torch.is_autocast_enabled("cpu") or not all(map(_is_on_host, inputs)):
        return
    nodes = [n for n in graph.graph.nodes if n.op in ("call_function", "call_method")]
    if any("autocast" in getattr(n.target, "__name__", "") for n in nodes):
        return  # the types in which calls compute are not those of their operands
    tried = [n for n in nodes if _is_tried(n.target) and _may_be_refused(n)]
    if not tried:
        return
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        for node in tried:
            try:
                _try(node)
            except Unsupported as error:
                note_line(error, line_of(node))
                raise


def _try(node: fx.Node) -> None:
    try:
        args, kwargs = fx.map_arg((node.args, node.kwargs), _one)
        call = getattr(args[0], node.target) if isinstance(node.target, str) else node.target
        outcome = call(*(args[1:] if isinstance(node.target, str) else args), **kwargs)
    except (RuntimeError, TypeError) as error:  # NotImplementedError is a RuntimeError
        if _OF_TYPES.search(str(error)):
            raise Unsupported(f"eager PyTorch refuses {node.name}: {error}") from None
        return
    except Exception:  # of a size, or an index, that does not fit one number
        return
    for ours, theirs in zip(_dtypes(node.meta.get("example_value")), _dtypes(outcome)):
        if ours != theirs:
            raise Unsupported(f"eager PyTorch computes {node.name} in {theirs}; its shape rules say {ours}")


def _one(node: fx.Node) -> object:
    """The value of a node with one number in each tensor, and 1 for each size."""
    return tree_map(_shrunk, node.meta.get("example_value"))


def _shrunk(value: object) -> object:
    if isinstance(value, torch.Tensor):
        return torch.ones((1,) * value.ndim, dtype=value.dtype, device="cpu")
    if isinstance(value, torch.SymFloat):  # its own value would become an assumption
        return 1.0
    return 1 if isinstance(value, (torch.SymInt, torch.SymBool)) else value


def _is_on_host(value: object) -> bool:
    return not isinstance(value, torch.Tensor) or value.device.type == "cpu"


def _is_tried(target: object) -> bool:
    """Calls whose kernels check what they get: others may read beyond one number."""
    module = "" if isinstance(target, (str, BuiltinFunctionType)) else getattr(target, "__module__", "")
    name = (target if isinstance(target, str) else getattr(target, "__name__", "")).strip("_")
    if module and (module not in _PYTHON or not isinstance(target, FunctionType)):
        return False
    return any(name in _OTHERS or _is_pointwise(name) for name in (name, name.removeprefix("i")))


@cache
def _is_pointwise(name: str) -> bool:
    packet = getattr(torch.ops.aten, name, None)
    overloads = packet.overloads() if isinstance(packet, torch_operators.OpOverloadPacket) else ()
    return any(torch.Tag.pointwise in getattr(packet, o).tags for o in overloads)


def _may_be_refused(node: fx.Node) -> bool:
    """Calls on numbers of one floating type are not, but where only deterministic ones are allowed."""
    values = [x.meta.get("example_value") for x in node.all_input_nodes]
    leaves = [*tree_leaves([node.args, node.kwargs]), *tree_leaves(values)]
    results = _dtypes(node.meta.get("example_value"))
    if not results or any(v is None for v in values) or any(isinstance(g, torch.Generator) for g in leaves):
        return False
    types = {d for x in node.all_input_nodes for d in _dtypes(x.meta.get("example_value"))}
    mixed = len(types) > 1 or any(not d.is_floating_point for d in types) or any(isinstance(a, bool) for a in node.args)
    return mixed or torch.are_deterministic_algorithms_enabled()


def _dtypes(value: object) -> list[torch.dtype]:
    return [t.dtype for t in tree_leaves(value) if isinstance(t, torch.Tensor)]
