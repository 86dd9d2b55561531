"""Masks of a graph of Dynamo as the places where they hold, which the call finds once: what is left is a gather.

``x[mask]``, ``masked_select`` and ``repeat_interleave`` give what only the data decide the size of. Of the places alone
that is so; the values are taken, and differentiated, by a program that knows how many there are.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from daceopt.capture.torch.gradient_scopes import storage
from daceopt.capture.torch.writes import written_nodes
from daceopt.torch_internals.pytree import SequenceKey
from daceopt.torch_internals.symbolic_shapes import CallMethodKey, free_unbacked_symbols

BINDINGS = "unbacked_bindings"
"""In the meta of Dynamo's nodes: symbols of sizes that the call decides -> where in its result each is read."""


def as_places(graph: fx.GraphModule) -> fx.GraphModule:
    """The graph with its masks as places. ``graph`` stays as it is."""
    own = fx.Graph()
    own.output(own.graph_copy(graph.graph, {}))
    changed = {storage(x) for n in own.nodes for x in written_nodes(n)}
    rewriter = _Rewriter(own, changed)
    for node in list(own.nodes):
        rewriter.rewrite(node)
    return fx.GraphModule(graph, own)


class _Rewriter:
    def __init__(self, graph: fx.Graph, changed: set[int | None]) -> None:
        self._graph, self._changed = graph, changed
        self._places: dict[Any, list[fx.Node]] = {}  # by what computes the mask

    def rewrite(self, node: fx.Node) -> None:
        """Let what takes the values where a mask holds take them at places; all other calls stay."""
        name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
        rule = _RULES.get(name)
        if rule is not None and not node.kwargs.keys() - {"dim", "mask", "repeats"}:
            rule(self, node)

    def index(self, node: fx.Node) -> None:
        base, key = node.args[:2]
        keys = key if isinstance(key, tuple) else (key,)
        masks = [k for k in keys if _is_mask(k)]
        if len(masks) != 1 or not isinstance(_value(base), torch.Tensor):
            return
        if not self._is_known(masks[0]) and _count(node) is None:
            return  # as of a write where a mask holds: how many places there are is in no result
        places = self._of(masks[0], node)
        node.args = (base, tuple(x for k in keys for x in (places if k is masks[0] else [k])), *node.args[2:])

    def select(self, node: fx.Node) -> None:
        x, mask = _arguments(node, "mask")
        if _is_mask(mask) and _shape(x) == _shape(mask) and (self._is_known(mask) or _count(node) is not None):
            node.op, node.target, node.kwargs = "call_function", operator.getitem, {}
            node.args = (x, tuple(self._of(mask, node)))

    def repeat(self, node: fx.Node) -> None:
        x, repeats, dim = (*_arguments(node, "repeats"), _argument(node, 2, "dim"))
        if not isinstance(_value(repeats), torch.Tensor) or not isinstance(dim, int) or _count(node) is None:
            return
        if len(_shape(repeats)) != 1 or _shape(repeats)[0] != _shape(x)[dim]:
            return
        places = self._decide(node, torch.repeat_interleave, (repeats,), lambda n: _lengths(n, 1)[0])
        node.op, node.target, node.args, node.kwargs = "call_function", torch.index_select, (x, dim, places), {}

    def _of(self, mask: fx.Node, node: fx.Node) -> list[fx.Node]:
        """The places where a mask holds, one node for each of its axes, before the call ``node``."""
        key = self._key(mask)
        elements = self._places.get(key)
        if elements is None:
            elements = self._elements(
                self._decide(node, _nonzero, (mask,), lambda n: tuple(_lengths(n, len(_shape(mask))))), node
            )
        elif BINDINGS in node.meta:
            first = elements[0].args[0]
            assert isinstance(first, fx.Node)
            first.meta[BINDINGS].update(_symbols_at(node, (SequenceKey(0),)))
            node.meta.pop(BINDINGS)
        if key is not None:
            self._places[key] = elements
        return elements

    def _elements(self, places: fx.Node, node: fx.Node) -> list[fx.Node]:
        with self._graph.inserting_before(node):
            nodes = [self._graph.call_function(operator.getitem, (places, k)) for k in range(len(_value(places)))]
        for element, value in zip(nodes, _value(places)):
            element.meta = {**_context(node), "example_value": value}
        return nodes

    def _is_known(self, mask: fx.Node) -> bool:
        return self._key(mask) in self._places

    def _key(self, mask: fx.Node) -> Any:
        """The same for masks that are computed from the same; None for one that is written into."""
        if any(storage(x) in self._changed for x in (mask, *mask.all_input_nodes)):
            return None
        return (mask.target, mask.args) if mask.target in COMPARISONS and not mask.kwargs else mask

    def _decide(self, node: fx.Node, target: object, args: object, values: Callable[[fx.Node], Any]) -> fx.Node:
        """A call before ``node`` that finds the places in its stead."""
        with self._graph.inserting_before(node):
            call = self._graph.call_function(target, args)
        value = values(node)
        path = (SequenceKey(0),) if isinstance(value, tuple) else ()
        call.meta = {**_context(node), "example_value": value, BINDINGS: _symbols_at(node, path)}
        node.meta.pop(BINDINGS, None)
        return call


_RULES: dict[str, Callable[[_Rewriter, fx.Node], None]] = {
    "getitem": _Rewriter.index,
    "setitem": _Rewriter.index,
    "masked_select": _Rewriter.select,
    "repeat_interleave": _Rewriter.repeat,
}


COMPARISONS = (operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge)


def _nonzero(mask: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return torch.nonzero(mask, as_tuple=True)


def _symbols_at(node: fx.Node, path: tuple[object, ...]) -> dict[Any, Any]:
    """The symbols of the sizes that a call decided, read of places in its stead."""
    return dict.fromkeys(node.meta.get(BINDINGS, ()), (*path, CallMethodKey("size"), SequenceKey(0)))


def _count(node: fx.Node) -> torch.SymInt | None:
    """How many places the call ``node`` has decided, as an extent of its result; None where that is not one of them."""
    shape = getattr(_value(node), "shape", ())
    symbols = node.meta.get(BINDINGS) or {s for d in shape for s in free_unbacked_symbols(d)}
    sizes = {str(d): d for d in shape if isinstance(d, torch.SymInt) and d.node.expr in symbols}
    return next(iter(sizes.values())) if len(sizes) == len(symbols) == 1 else None


def _lengths(node: fx.Node, count: int) -> list[torch.Tensor]:
    """Fake places, as many as the call ``node`` has decided."""
    value, size = node.meta["example_value"], _count(node)
    assert size is not None
    with value.fake_mode:
        return [torch.empty((size,), dtype=torch.int64, device=value.device) for _ in range(count)]


def _context(node: fx.Node) -> dict[str, Any]:
    return {k: v for k, v in node.meta.items() if k in ("nn_module_stack", "stack_trace", "source_fn_stack")}


def _arguments(node: fx.Node, name: str) -> tuple[Any, Any]:
    return node.args[0], _argument(node, 1, name)


def _argument(node: fx.Node, position: int, name: str) -> fx.Node:
    return node.args[position] if len(node.args) > position else node.kwargs.get(name)


def _shape(node: fx.Node) -> list[str]:
    return [str(size) for size in _value(node).shape]


def _is_mask(value: object) -> bool:
    example = _value(value)
    return isinstance(example, torch.Tensor) and example.dtype is torch.bool and example.ndim > 0


def _value(node: object) -> torch.Tensor:
    return node.meta.get("example_value") if isinstance(node, fx.Node) else node
