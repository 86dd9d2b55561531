"""``x.requires_grad_()`` of what forward computes: nothing comes of it where nobody asks for the gradient of ``x``.

It is passed over while Dynamo traces. Where somebody could tell, since ``x`` leaves the graph, is written into, or is
what makes a result require a gradient, Dynamo begins again, and the graph breaks there.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from daceopt.capture.torch.gradient_scopes import requires_grad, storage
from daceopt.capture.torch.items import Place
from daceopt.capture.torch.writes import written_nodes
from daceopt.torch_internals.dynamo_tracing import ConstantVariable, Translator, restart_tracing

_LEAF = "daceopt_leaf"  # in the meta of a node of Dynamo's: where the value was made to require a gradient

_breaking: set[Place] = set()
"""Places where the graph breaks."""

READ = frozenset({"requires_grad", "is_leaf", "grad", "grad_fn", "register_hook", "retain_grad"})
"""What tells of a tensor that it requires a gradient."""


def is_passed_over(variable: Any, value: Any, tx: Translator) -> bool:
    """Whether the statement that a tensor requires a gradient, ``value`` being True, may be left out; note that."""
    if not (isinstance(value, ConstantVariable) and value.value is True and variable.source is None):
        return False
    place, node = (tx.f_code, tx.instruction_pointer), variable.as_proxy().node
    example = node.meta.get("example_value")
    if place in _breaking or len(tx.output.tracers) != 1 or node.op == "placeholder":
        return False
    if not isinstance(example, torch.Tensor) or example.requires_grad or not example.is_floating_point():
        return False
    node.meta[_LEAF] = place
    return True


def check_read(variable: Any) -> None:
    """Let Dynamo begin again where it asks for what ``READ`` says, and a statement that was left out would decide."""
    node = variable.as_proxy().node
    if not requires_grad(node):
        for leaf in (n for n in node.graph.nodes if _LEAF in n.meta):
            if node in _reachable(leaf):
                _restart(leaf.meta[_LEAF])


def check(graph: fx.Graph) -> None:
    """Let Dynamo begin again where its graph shows that something has been left out."""
    leaves = [n for n in graph.nodes if _LEAF in n.meta]
    changed = {storage(x) for n in graph.nodes for x in written_nodes(n)} if leaves else set()
    results = graph.output_node().all_input_nodes
    for leaf in leaves:
        reached = _reachable(leaf)
        if leaf in results or storage(leaf) in changed or any(r in reached and _has_none(r) for r in results):
            _restart(leaf.meta[_LEAF])


def _reachable(leaf: fx.Node) -> set[fx.Node]:
    reached = {leaf}
    for node in leaf.graph.nodes:
        if not reached.isdisjoint(node.all_input_nodes) and node.target not in ("detach", torch.detach):
            reached.add(node)
    return reached


def _has_none(node: fx.Node) -> bool:
    """Is it a tensor that might require a gradient, and does not?"""
    value = node.meta.get("example_value")
    return not isinstance(value, torch.Tensor) or (value.is_floating_point() and not requires_grad(node))


def _restart(place: Place) -> None:
    _breaking.add(place)
    restart_tracing()
