"""One call of a module captured on the side, as the graphs that a recipe would get; nothing is compiled."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import fx, nn

from daceopt.codegen import target
from daceopt.errors import SizesError
from daceopt.modules.observe import Observed, Observer
from daceopt.modules.options import Options
from daceopt.runtime.binding import Binding

if TYPE_CHECKING:
    from daceopt.capture.torch.traced import Traced
    from daceopt.ir.control.imported import Imported


@dataclass(frozen=True)
class CapturedGraph:
    """A graph of a call: what is imported, the tensors of its inputs in order, what the model calls them, and which are
    its own parameters and buffers."""

    imported: Imported
    tensors: Sequence[torch.Tensor]
    names: Sequence[str]
    state: frozenset[int]


class _Capturing(Observer[CapturedGraph]):
    """Imports graphs for a target and lets PyTorch run them."""

    def __init__(self, options: Options, target_name: str | None) -> None:
        super().__init__(options)
        self._target = target_name

    def add(self, traced: Traced, inputs: Sequence[object]) -> Callable[..., Any]:
        self._keep_graph(traced, self._import(traced), inputs)
        self.observed.whole += 1
        return self.eager(traced.graph.forward)

    def _in_parts(self, graph: fx.GraphModule, inputs: Sequence[object]) -> Callable[..., Any]:
        function = super()._in_parts(graph, inputs)
        self.observed.whole += 1
        return function

    def part(self, traced: Traced) -> Callable[..., Any]:
        imported = self._import(traced)

        def run(*arguments: object) -> object:
            self._keep_graph(traced, imported, arguments)
            return traced.graph.forward(*arguments)

        return run

    def _import(self, traced: Traced) -> Imported:
        from daceopt.capture.torch.importing import load

        return load(traced, self._target or target.on(traced.device).name)

    def _keep_graph(self, traced: Traced, imported: Imported, arguments: Sequence[object]) -> None:
        binding = Binding.from_json(imported.notes["binding"])
        tensors = [_tensor(kind, arguments[k]) for kind, k in binding.inputs]
        names = [traced.names[k] for _, k in binding.inputs]
        state = frozenset(at for at, (_, k) in enumerate(binding.inputs) if traced.is_state[k])
        self.observed.graphs.append(CapturedGraph(imported, tensors, names, state))


def capture_graphs(
    model: nn.Module,
    args: Sequence[object],
    kwargs: Mapping[str, object],
    options: Options,
    target_name: str | None = None,
) -> Observed[CapturedGraph]:
    """The graphs of ``model(*args, **kwargs)``, imported for a target, by default that of their device; model and
    arguments stay as they are. Raises CaptureError where the module cannot be copied, and what the call itself
    raises."""
    return _Capturing(options, target_name).call(model, args, kwargs)


def _tensor(kind: str, value: Any) -> torch.Tensor:
    """A copy of an input as programs take it; a size is an array that is as long. Raises SizesError below zero."""
    if kind != "tensor" and value < 0:
        raise SizesError(f"a program for sizes; got {value}")
    if kind != "tensor":
        return torch.empty((0, int(value)), dtype=torch.uint8)
    real = torch.view_as_real(value.detach()) if value.is_complex() else value.detach()
    return real.clone(memory_format=torch.contiguous_format)
