"""One call of a module compiled on the side: the graphs that Dynamo finds in it, and the reasons of what it leaves.

The call runs on a copy of the module and of its tensors, so the user's module and its random numbers stay as they are.
"""

from __future__ import annotations

import copy
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import torch
from torch import fx, nn

from daceopt.errors import CaptureError
from daceopt.modules import frames
from daceopt.modules.backend import Backend
from daceopt.modules.breaks import Break
from daceopt.modules.dispatch import first_line
from daceopt.modules.options import Options
from daceopt.modules.piece import CompiledPiece
from daceopt.programs.stats import Stats
from daceopt.runtime.seeds import own_random_numbers
from daceopt.torch_internals.pytree import tree_leaves, tree_map

if TYPE_CHECKING:
    from daceopt.capture.torch.traced import Traced


Graph = TypeVar("Graph")


@dataclass
class Observed(Generic[Graph]):
    """``graphs`` in the order in which they were compiled or imported; ``whole``: how many they were for Dynamo, where
    that is counted: one with sizes that only the data decide is several. ``breaks`` and ``refused``: why there is more
    than one, and why parts stay in eager PyTorch; ``choices``: why by this recipe."""

    graphs: list[Graph] = field(default_factory=list)
    whole: int = 0
    breaks: list[Break] = field(default_factory=list)
    refused: list[Break] = field(default_factory=list)
    choices: list[str] = field(default_factory=list)
    error: BaseException | None = None


class Observer(Backend, Generic[Graph]):
    """Keeps what it finds in a call."""

    leaves_small = False

    def __init__(self, options: Options) -> None:
        super().__init__(options, Stats(), self._note_refused)
        self.observed: Observed[Graph] = Observed()

    def _note_refused(self, reason: Break, error: BaseException) -> None:
        self.observed.refused.append(reason)
        self.observed.error = self.observed.error or error

    def call(self, model: nn.Module, args: Sequence[object], kwargs: Mapping[str, object]) -> Observed[Graph]:
        """What a call of a copy of ``model`` on copies of its arguments is. Raises CaptureError where the module cannot
        be copied, and what the call itself raises."""
        twin, arguments, named = twin_of(model, args, kwargs)
        options = self.options
        grad = torch.is_grad_enabled() if options.backward is None else options.backward
        dynamic = options.dynamic if isinstance(options.dynamic, bool) else None
        tensors = [*model.parameters(), *model.buffers(), *tree_leaves((args, kwargs))]
        with own_random_numbers(tensors), torch.inference_mode(False), torch.set_grad_enabled(grad):
            frames.compile_frames(own_forward(twin), self, dynamic=dynamic)(*arguments, **named)
        self.observed.breaks, self.observed.choices = self.new_breaks(), list(self.stats.choices)
        return self.observed


class _Programs(Observer[tuple[CompiledPiece, list[torch.Tensor]]]):
    """Compiles all graphs, and keeps what each is called with first."""

    def _compile(self, graph: fx.GraphModule, inputs: Sequence[object]) -> Callable[..., Any]:
        program = super()._compile(graph, inputs)
        if isinstance(program, CompiledPiece):
            self._keep_inputs(program, inputs)
        return program

    def part(self, traced: Traced) -> Callable[..., Any]:
        program = super().part(traced)
        graph = self.graphs[-1]

        def run(*arguments: object) -> object:
            self._keep_inputs(graph, arguments)
            return program(*arguments)

        return run

    def _keep_inputs(self, graph: CompiledPiece, arguments: Sequence[object]) -> None:
        self.observed.graphs.append((graph, [t.detach().clone() for t in graph.inputs(arguments)]))


def observe(
    model: nn.Module, args: Sequence[object], kwargs: Mapping[str, object], options: Options
) -> Observed[tuple[CompiledPiece, list[torch.Tensor]]]:
    """Compile the graphs of ``model(*args, **kwargs)``: programs, and the tensors that each was called with first.
    Raises CaptureError where the module cannot be copied, and what the call itself raises."""
    return _Programs(options).call(model, args, kwargs)


def own_forward(module: nn.Module) -> Callable[..., Any]:
    """The user's forward of a module, optimized or not, bound to it."""
    own = getattr(module.forward, "daceopt_original", module.forward)
    return own if "forward" in module.__dict__ or isinstance(own, types.MethodType) else types.MethodType(own, module)


def twin_of(model: nn.Module, args: Sequence[object], kwargs: Mapping[str, object]) -> tuple[nn.Module, list[Any], Any]:
    """Copies of a module and of what a call of it is given. Raises CaptureError where the module cannot be copied."""
    try:
        return copy.deepcopy((model, list(args), dict(kwargs)))
    except Exception:
        return _without_graph(model, args, kwargs)


def _without_graph(model: nn.Module, args: Sequence[object], kwargs: Mapping[str, object]) -> tuple[Any, Any, Any]:
    """Copies where deepcopy refuses: arguments that are results of other computations."""

    def leaf(value: object) -> object:
        return value.detach().clone().requires_grad_(value.requires_grad) if isinstance(value, torch.Tensor) else value

    try:
        return copy.deepcopy(model), tree_map(leaf, list(args)), tree_map(leaf, dict(kwargs))
    except Exception as error:
        raise CaptureError(f"{type(model).__name__} cannot be copied: {first_line(error)}") from error
