"""Parameters that an update must not leave out: earlier micro-batches collected gradients of them, and the graph of the
last one has none (another head of the model, a layer that was frozen since)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import fx

from daceopt.capture.torch.traced import Traced


def with_waiting(traced: Traced, arguments: Sequence[object], parameters: Sequence[torch.Tensor]) -> Traced:
    """``traced`` with these ``parameters``, those behind its ``arguments`` that are none of them."""
    places = {id(x): k for k, x in enumerate(arguments)}
    added = [p for p in parameters if id(p) not in places]
    places |= {id(p): len(arguments) + k for k, p in enumerate(added)}
    mode = next(x.fake_mode for x in traced.inputs if isinstance(x, torch.Tensor))
    with mode:
        fakes = [torch.empty_strided(p.shape, p.stride(), dtype=p.dtype, device=p.device) for p in added]
    count = len(added)
    return replace(
        traced,
        graph=_with_placeholders(traced.graph, fakes),
        inputs=(*traced.inputs, *fakes),
        names=(*traced.names, *(f"waiting_{k}" for k in range(count))),
        requires_grad=(*traced.requires_grad, *[False] * count),
        changed=(*traced.changed, *[False] * count),
        is_state=(*traced.is_state, *[True] * count),
        waiting=tuple(places[id(p)] for p in parameters),
    )


def _with_placeholders(graph: fx.GraphModule, values: Sequence[torch.Tensor]) -> fx.GraphModule:
    """A copy of the graph that takes more arguments, which nothing reads."""
    own = fx.Graph()
    own.output(own.graph_copy(graph.graph, {}))
    last = next((n for n in reversed(own.nodes) if n.op == "placeholder"), own._root)
    for k, value in enumerate(values):
        with own.inserting_after(last):
            last = own.placeholder(f"waiting_{k}")
        last.meta = {"example_value": value}
    return fx.GraphModule(graph, own)
