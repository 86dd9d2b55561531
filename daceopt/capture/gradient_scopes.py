"""Keeps ``torch.no_grad`` regions: functionalisation inlines them, so what leaves one is detached first."""

from __future__ import annotations

import copy
import operator

import torch
from torch.export import ExportedProgram
from torch.fx import GraphModule, Node

from daceopt.errors import CaptureError

_SCOPE = torch.ops.higher_order.wrap_with_set_grad_enabled


def detach_no_grad_regions(program: ExportedProgram) -> None:
    """Insert ``aten.detach`` on every value that leaves a region without gradients. Edits ``program`` in place.

    before:  y = getitem(wrap_with_set_grad_enabled(False, region, x), 0)
    after:   y = detach(getitem(wrap_with_set_grad_enabled(False, region, x), 0))
    """
    graph = program.graph
    renamed: dict[str, str] = {}
    for node in list(graph.nodes):
        if node.target is not _SCOPE or node.args[0]:
            continue
        _refuse_nested(program.graph_module, node)
        for value in [user for user in node.users if user.target is operator.getitem]:
            renamed[value.name] = _detach(value).name
    for spec in program.graph_signature.output_specs:
        name = getattr(spec.arg, "name", None)
        if name in renamed:
            spec.arg.name = renamed[name]
    program.graph_module.recompile()


def _detach(value: Node) -> Node:
    users = list(value.users)
    with value.graph.inserting_after(value):
        detached = value.graph.call_function(torch.ops.aten.detach.default, (value,))
    detached.meta = copy.copy(value.meta)
    for user in users:
        user.replace_input_with(value, detached)
    return detached


def _refuse_nested(owner: GraphModule, scope: Node) -> None:
    """``enable_grad`` inside ``no_grad`` would need a region of its own: refuse rather than lose a gradient."""
    body = scope.args[1]
    assert isinstance(body, Node)
    region = getattr(owner, str(body.target))
    if any(n.target is _SCOPE and n.args[0] for n in region.graph.nodes):
        raise CaptureError("torch.enable_grad inside torch.no_grad is not supported; leave the no_grad region first")
