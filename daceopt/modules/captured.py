"""One call of a module captured on the side, as the graphs that a recipe would get; nothing is compiled."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import fx, nn

from daceopt.codegen import target
from daceopt.errors import SizesError
from daceopt.modules.backend import Backend
from daceopt.modules.breaks import Break
from daceopt.modules.eager_piece import EagerPiece
from daceopt.modules.observe import call_twin
from daceopt.modules.options import Options
from daceopt.programs.stats import Stats
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


@dataclass
class Captured:
    """The graphs of a call in order; ``breaks`` and ``refused``: why there are several, and what stays in eager.
    ``whole``: how many they were for Dynamo; one with sizes that only the data decide is several."""

    graphs: list[CapturedGraph] = field(default_factory=list)
    whole: int = 0
    breaks: list[Break] = field(default_factory=list)
    refused: list[Break] = field(default_factory=list)


class _Capturing(Backend):
    """Imports graphs and lets PyTorch run them."""

    def __init__(self, options: Options, captured: Captured) -> None:
        super().__init__(options, Stats(), lambda reason, error: captured.refused.append(reason))
        self._found = captured

    def add(self, traced: Traced, inputs: Sequence[Any]) -> EagerPiece:
        self._add(traced, _import(traced), inputs)
        self._found.whole += 1
        return EagerPiece(self.stats, traced.graph.forward)

    def _in_parts(self, graph: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        function = super()._in_parts(graph, inputs)
        self._found.whole += 1
        return function

    def part(self, traced: Traced) -> Callable[..., Any]:
        imported = _import(traced)

        def run(*arguments: Any) -> Any:
            self._add(traced, imported, arguments)
            return traced.graph.forward(*arguments)

        return run

    def _add(self, traced: Traced, imported: Imported, arguments: Sequence[Any]) -> None:
        binding = Binding.from_json(imported.notes["binding"])
        tensors = [_tensor(kind, arguments[k]) for kind, k in binding.inputs]
        names = [traced.names[k] for _, k in binding.inputs]
        state = frozenset(at for at, (_, k) in enumerate(binding.inputs) if traced.is_state[k])
        self._found.graphs.append(CapturedGraph(imported, tensors, names, state))


def _import(traced: Traced) -> Imported:
    from daceopt.capture.torch.importing import load

    return load(traced, target.on(traced.device).name)


def capture_graphs(model: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any], options: Options) -> Captured:
    """The graphs of ``model(*args, **kwargs)``; model and arguments stay as they are. Raises CaptureError where the
    module cannot be copied, and what the call itself raises."""
    captured = Captured()
    backend = _Capturing(options, captured)
    call_twin(model, args, kwargs, options, backend)
    captured.breaks = backend.new_breaks()
    return captured


def _tensor(kind: str, value: Any) -> torch.Tensor:
    """A copy of an input as programs take it; a size is an array that is as long. Raises SizesError below zero."""
    if kind != "tensor" and value < 0:
        raise SizesError(f"a program for sizes; got {value}")
    if kind != "tensor":
        return torch.empty((0, int(value)), dtype=torch.uint8)
    real = torch.view_as_real(value.detach()) if value.is_complex() else value.detach()
    return real.clone(memory_format=torch.contiguous_format)
