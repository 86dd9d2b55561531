"""What a call of Dynamo's graph writes into.

No name says it for all (``hardtanh`` with a flag at its end, ``out=``, ``max_norm``): ATen raises the version of a
tensor that it changes. Dynamo runs each call on fake tensors as it traces; what rose there is kept with the node.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import fx

from daceopt.torch_internals import autograd_engine, functorch
from daceopt.torch_internals.pytree import tree_leaves

_BODIES = {torch.ops.higher_order.autograd_function_apply: 2, torch.ops.higher_order.tag_activation_checkpoint: 1}
"""Calls of a graph, their first argument -> where its own arguments begin."""

WRITES = "daceopt_writes"
"""In the meta of a node: positions among the leaves of its arguments -> whether autograd records that they change."""

SEQUENCE = "daceopt_sequence"
"""In the meta of a node that writes: how many functions autograd had noted before."""


def note(call: Callable[[], Any], node: fx.Node) -> object:
    """Run a call of Dynamo's on fake values, and keep with its node what it writes into."""
    before = [(k, _State(t)) for k, leaf in enumerate(_leaves(node)) for t in _tensors(leaf)]
    result = call()
    changed = [(k, state) for k, state in before if state.is_changed()]
    if changed:
        positions = set(_written_positions(node, changed))
        node.meta[WRITES] = {k: state.is_recorded() for k, state in changed if k in positions}
        node.meta[SEQUENCE] = autograd_engine.next_sequence_number()
    return result


def written_nodes(node: fx.Node) -> list[fx.Node]:
    """The nodes into whose values a call writes."""
    return [operand for operand, _ in _writes(node)]


def unrecorded_nodes(node: fx.Node) -> list[fx.Node]:
    """Those of ``written_nodes`` that autograd differentiates as if they had not changed, as in ``torch.no_grad``."""
    return [operand for operand, is_recorded in _writes(node) if not is_recorded]


def _writes(node: fx.Node) -> Iterator[tuple[fx.Node, bool]]:
    if node.target in _BODIES and WRITES not in node.meta:
        node.meta[WRITES] = _by_body(node, _BODIES[node.target])
    if WRITES in node.meta:
        leaves = _leaves(node)
        yield from ((leaves[k], is_recorded) for k, is_recorded in node.meta[WRITES].items())
    elif node.op == "call_function":
        yield from ((operand, True) for operand in _by_schema(node) if isinstance(operand, fx.Node))


def _by_body(node: fx.Node, begin: int) -> dict[int, bool]:
    """What is written by the calls of a graph; in a custom function autograd records what is marked dirty."""
    body: fx.GraphModule = getattr(node.graph.owning_module, str(node.args[0].target))
    changed = {m: r for n in body.graph.nodes for x, r in _writes(n) for m in map(_memory, _tensors(x))}
    results = tree_leaves(body.graph.output_node().args[0])
    dirty = [results[k] for k in node.kwargs.get("dirty_idx") or ()]
    changed.update({m: True for x in dirty for m in map(_memory, _tensors(x))})
    arguments, leaves = (n for n in body.graph.nodes if n.op == "placeholder"), _leaves(node)
    pairs = [(x, m) for x, argument in zip(node.args[begin:], arguments) for m in map(_memory, _tensors(argument))]
    return {leaves.index(x): changed[m] for x, m in pairs if m in changed}


def _by_schema(node: fx.Node) -> list[Any]:
    """What is written by an operator, in a graph that is none of Dynamo's."""
    schema = getattr(node.target, "_schema", None)
    if schema is None or not schema.is_mutable:
        return []
    values = {**{a.name: x for a, x in zip(schema.arguments, node.args)}, **node.kwargs}
    changed = [a.name for a in schema.arguments if a.alias_info is not None and a.alias_info.is_write]
    return tree_leaves([values.get(name) for name in changed])


def _leaves(node: fx.Node) -> list[Any]:
    return tree_leaves((node.args, node.kwargs))


def _tensors(leaf: object) -> list[torch.Tensor]:
    """The tensors of an argument that have versions."""
    values = tree_leaves(leaf.meta.get("example_value")) if isinstance(leaf, fx.Node) else ()
    return [v for v in values if isinstance(v, torch.Tensor) and not v.is_inference()]


class _State:
    """A fake tensor as it was before a call."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor, self._version = tensor, tensor._version
        self._required, self._history = self._of_root()

    def is_changed(self) -> bool:
        """Whether ATen has raised its version."""
        return self.tensor._version != self._version

    def is_recorded(self) -> bool:
        """Whether autograd knows, if it differentiates the tensor at all."""
        return not self._required or self._of_root()[1] is not self._history

    def _of_root(self) -> tuple[bool, Any]:
        """A view's own history is made anew whenever it is read."""
        root = self.tensor._base if self.tensor._is_view() else self.tensor
        assert root is not None
        return root.requires_grad, root.grad_fn


def _written_positions(node: fx.Node, changed: list[tuple[int, _State]]) -> list[int]:
    """One position for each memory: views and detached values share a version. By PyTorch's convention that is ``out``,
    else the first."""
    leaves, out = _leaves(node), tree_leaves(node.kwargs.get("out"))
    positions: dict[Any, int] = {}
    for k, state in sorted(changed, key=lambda pair: leaves[pair[0]] not in out):
        positions.setdefault(_memory(state.tensor), k)
    return list(positions.values())


def _memory(tensor: torch.Tensor) -> int:
    wrapped = functorch.is_wrapped(tensor)
    return id(tensor) if wrapped else int(tensor.untyped_storage()._cdata)
