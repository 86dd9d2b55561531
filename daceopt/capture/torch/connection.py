"""Which arguments and results of a graph autograd connects with which of its results.

Where no gradient is computed, that of a connected argument is zero, and any other has none at all.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from functools import cache, cached_property
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import fx

from daceopt.capture.torch.gradient_scopes import is_wrapped, requires_grad, storage, without_gradients
from daceopt.capture.torch.operand_gradients import OperandGradients
from daceopt.capture.torch.writes import unrecorded_nodes, written_nodes
from daceopt.runtime.binding import Binding
from daceopt.torch_internals.fake_tensors import FakeTensor

if TYPE_CHECKING:
    from daceopt.capture.torch.traced import Traced

Operands = Callable[[fx.Node], Sequence[fx.Node]]


class Connections(NamedTuple):
    """Per argument that requires a gradient, and per output that is not written in place, the outputs that depend on
    it."""

    arguments: dict[int, frozenset[int]]
    outputs: dict[int, frozenset[int]]


def connections(traced: Traced, binding: Binding, computed: Collection[int] = ()) -> Connections:
    """What autograd connects.

    ``computed``: arguments whose gradients the program computes, which therefore depend on some output. Of which one,
    and whether the others depend on any, PyTorch's formulas say: the target of a loss and the operand that only gives
    ``type_as`` its type have no gradient.
    """
    rough = _connections(traced, binding, _operands).arguments
    if all(not outputs or (k in computed and len(outputs) == 1) for k, outputs in rough.items()):
        return Connections(rough, {})  # no two outputs depend on the same
    gradients = OperandGradients()
    exact, later = _connections(traced, binding, lambda node: gradients.with_gradient(node, _operands(node)))
    return Connections({k: of if k in computed and not exact[k] else exact[k] for k, of in rough.items()}, later)


def _connections(traced: Traced, binding: Binding, operands: Operands) -> Connections:
    graph, flow = traced.graph.graph, _Flow(traced.graph.graph)
    arguments = [n for n in graph.nodes if n.op == "placeholder"]
    reached: dict[int, set[fx.Node]] = {}
    at: dict[fx.Node, int] = {}  # outputs whose values never change
    for result, bound, flag in zip(graph.output_node().args[0], binding.results, traced.results, strict=True):
        if flag and bound.kind == "output":
            reached.setdefault(bound.index, set()).update(flow.sources(result, operands))
            if not flow.is_written(result):
                at[result] = bound.index
    for argument, output in binding.mutations:
        reached.setdefault(output, set()).update(flow.sources(arguments[argument], operands))

    def dependent(node: fx.Node) -> frozenset[int]:
        return frozenset(output for output, sources in reached.items() if node in sources)

    outputs: dict[int, frozenset[int]] = {}
    for node, k in at.items():
        outputs[k] = outputs.get(k, frozenset()) | dependent(node) - {k}
    return Connections({k: dependent(n) for k, n in enumerate(arguments) if traced.requires_grad[k]}, outputs)


def differentiable(graph: fx.Graph, nodes: Sequence[object], arguments: set[fx.Node]) -> tuple[bool, ...]:
    """Whether the values of these nodes require a gradient at the end; ``arguments``: arguments that require one.

    PyTorch's shape rules say that also of some results of regions without gradients (of ``pad``).
    """
    flagged = [isinstance(n, fx.Node) and requires_grad(n) for n in nodes]
    flow = _Flow(graph)
    if not flow.stopped:
        return tuple(flagged)
    return tuple(
        f and any(n in arguments or _begins(n, flow.stopped) for n in flow.sources(x, _operands))
        for f, x in zip(flagged, nodes)
    )


def _begins(node: fx.Node, region: set[fx.Node]) -> bool:
    """Whether a value requires a gradient although no operand does, or as a view in a region without gradients."""
    if node.op == "placeholder":
        return False
    values = _tensors(node.meta.get("example_value"))
    if node in region:
        return any(v._is_view() for v in values)
    return any(v.is_leaf and v.requires_grad for v in values) and not any(map(carries, node.all_input_nodes))


class _Flow:
    """Who writes what in a graph, and when: looked at once for all of its results."""

    def __init__(self, graph: fx.Graph):
        self._graph, self.stopped = graph, without_gradients(graph)
        self._position = {node: k for k, node in enumerate(graph.nodes)}
        self._connects = cache(_connects)

    @cached_property
    def _writes(self) -> dict[int | None, list[fx.Node]]:
        """The nodes that write in place and that autograd records, by the memory that they write."""
        writes: dict[int | None, list[fx.Node]] = {}
        for node in self._graph.nodes:
            for operand in set(written_nodes(node)) - set(unrecorded_nodes(node)):
                writes.setdefault(storage(operand), []).append(node)
        return writes

    def is_written(self, node: fx.Node) -> bool:
        """Whether something is written into its memory in place."""
        return bool(self._writes.get(storage(node)))

    def sources(self, result: fx.Node, operands: Operands) -> set[fx.Node]:
        """All nodes on which ``result`` depends differentiably: a write counts for what is read after it. ``operands``
        gives those of a node that have a gradient."""
        position = self._position
        # node, and whether it has a gradient -> the last time when its value is read
        read: dict[tuple[fx.Node, bool], int] = {}
        waiting = [(result, True, len(position))]
        while waiting:
            node, has_gradient, when = waiting.pop()
            if read.get((node, has_gradient), -1) >= when or not carries(node):
                continue
            read[node, has_gradient] = when
            writes = self._writes.get(storage(node), ())
            if node not in self.stopped and (not writes or self._connects(node)):  # what was written counts anyway
                waiting.extend((x, has, position[node]) for x, has in _gradients(node, has_gradient, operands))
            for write in writes:
                if position[node] < position[write] < when:  # it may have no value of its own
                    waiting.extend((x, has_gradient, position[write]) for x in write.all_input_nodes)
        return {node for node, has_gradient in read if has_gradient}


def _connects(node: fx.Node) -> bool:
    """Whether a call itself gives what requires a gradient, before anything is written into it (unlike zeros_like)."""
    value = node.meta.get("example_value")
    if node.op not in ("call_function", "call_method") or not isinstance(value, FakeTensor) or written_nodes(node):
        return True
    with value.fake_mode, torch.enable_grad():
        args, kwargs = fx.map_arg((node.args, node.kwargs), _fresh)
        function = node.target if callable(node.target) else getattr(args[0], node.target)
        result = function(*args[isinstance(node.target, str) :], **kwargs)
    return any(t.requires_grad for t in _tensors(result))


def _fresh(node: fx.Node) -> object:
    """The value of a node as a tensor of its own."""
    value = node.meta.get("example_value")
    if not isinstance(value, torch.Tensor):
        return value
    tensor = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device)
    return tensor.requires_grad_(value.requires_grad)


def _operands(node: fx.Node) -> Sequence[fx.Node]:
    """Its inputs, without those for which a custom autograd.Function returns no gradient."""
    if node.target is not torch.ops.higher_order.autograd_function_apply:
        return node.all_input_nodes
    graph = node.graph.owning_module
    assert graph is not None
    backward = getattr(graph, str(node.args[1].target))
    grads = backward.graph.output_node().args[0]
    grads = grads if isinstance(grads, (list, tuple)) else [grads]
    return [x for x, g in zip(node.args[2:], grads) if isinstance(x, fx.Node) and g is not None]


def _gradients(node: fx.Node, has_gradient: bool, operands: Operands) -> Iterator[tuple[fx.Node, bool]]:
    """The operands that autograd reaches from a node, and whether these have a gradient where the node has one, or has
    none: a custom autograd.Function is given zeros for one that is absent, any other node passes nothing on."""
    is_custom = node.target is torch.ops.higher_order.autograd_function_apply
    present = operands(node)
    yield from ((x, has_gradient or is_custom) for x in present)
    if is_custom:
        yield from ((x, False) for x in node.args[2:] if isinstance(x, fx.Node) and x not in present)


def carries(node: fx.Node) -> bool:
    """Whether it requires a gradient; in a graph of ATen's, which does not say, whether it could."""
    if "example_value" in node.meta:
        return any(v.requires_grad or is_wrapped(v) for v in _tensors(node.meta["example_value"]))
    name = str(node.target)
    stops = "detach" in name or "stop_gradient" in name
    return not stops and any(v.is_floating_point() or v.is_complex() for v in _tensors(node.meta.get("val")))


def _tensors(value: object) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    return [t for v in value for t in _tensors(v)] if isinstance(value, (list, tuple)) else []
