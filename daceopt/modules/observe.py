"""One call of a module compiled on the side: the graphs that Dynamo finds in it, and the reasons of what it leaves.

The call runs on a copy of the module and of its tensors, so the user's module and its random numbers stay as they are.
"""

from __future__ import annotations

import copy
import types
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import fx, nn

from daceopt.errors import CaptureError
from daceopt.modules import frames
from daceopt.modules.backend import Backend, CompiledGraph
from daceopt.modules.breaks import Break
from daceopt.modules.dispatch import first_line
from daceopt.modules.options import Options
from daceopt.programs.stats import Stats
from daceopt.runtime.seeds import own_random_numbers
from daceopt.torch_internals.pytree import tree_leaves, tree_map

if TYPE_CHECKING:
    from daceopt.capture.torch.traced import Traced


@dataclass
class Observed:
    """``graphs`` with the tensors that each was called with first, in the order in which they were compiled; ``breaks``
    and ``refused``: why there is more than one, and why parts stay in eager PyTorch; ``choices``: why by this
    recipe."""

    graphs: list[tuple[CompiledGraph, list[torch.Tensor]]] = field(default_factory=list)
    breaks: list[Break] = field(default_factory=list)
    refused: list[Break] = field(default_factory=list)
    choices: list[str] = field(default_factory=list)
    error: BaseException | None = None


class _Observer(Backend):
    """Keeps what graphs are called with; all of them are compiled."""

    leaves_small = False

    def __init__(self, options: Options, observed: Observed) -> None:
        super().__init__(options, Stats(), self._leave)
        self.found = observed

    def _leave(self, reason: Break, error: BaseException) -> None:
        self.found.refused.append(reason)
        self.found.error = self.found.error or error

    def _compile(self, graph: fx.GraphModule, inputs: Sequence[Any]) -> Any:
        program = super()._compile(graph, inputs)
        if isinstance(program, CompiledGraph):
            tensors = [t.detach().clone() for t in program.piece.inputs(inputs)]
            self.found.graphs.append((program, tensors))
        return program

    def part(self, traced: Traced) -> Any:
        program = super().part(traced)
        graph = self.graphs[-1]

        def run(*arguments: Any) -> Any:
            tensors = [t.detach().clone() for t in graph.piece.inputs(arguments)]
            self.found.graphs.append((graph, tensors))
            return program(*arguments)

        return run


def observe(model: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any], options: Options) -> Observed:
    """Compile the graphs of ``model(*args, **kwargs)``. Raises CaptureError where the module cannot be copied, and
    what the call itself raises."""
    observed = Observed()
    backend = _Observer(options, observed)
    call_twin(model, args, kwargs, options, backend)
    observed.breaks = backend.new_breaks()
    observed.choices = list(backend.stats.choices)
    return observed


def call_twin(
    model: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any], options: Options, backend: Backend
) -> None:
    """Call a copy of ``model`` on copies of its arguments under Dynamo with ``backend``."""
    try:
        twin, arguments, named = copy.deepcopy((model, list(args), dict(kwargs)))
    except Exception:
        twin, arguments, named = _without_graph(model, args, kwargs)
    own = own_forward(twin)
    grad = torch.is_grad_enabled() if options.backward is None else options.backward
    dynamic = options.dynamic if isinstance(options.dynamic, bool) else None
    tensors = [*model.parameters(), *model.buffers(), *tree_leaves((args, kwargs))]
    with own_random_numbers(tensors), torch.inference_mode(False), torch.set_grad_enabled(grad):
        frames.compile_frames(own, backend, dynamic=dynamic)(*arguments, **named)


def own_forward(module: nn.Module) -> Any:
    """The user's forward of a module, optimized or not, bound to it."""
    own = getattr(module.forward, "daceopt_original", module.forward)
    return own if "forward" in module.__dict__ or isinstance(own, types.MethodType) else types.MethodType(own, module)


def _without_graph(model: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, Any, Any]:
    """Copies where deepcopy refuses: arguments that are results of other computations."""

    def leaf(value: Any) -> Any:
        return value.detach().clone().requires_grad_(value.requires_grad) if isinstance(value, torch.Tensor) else value

    try:
        return copy.deepcopy(model), tree_map(leaf, list(args)), tree_map(leaf, dict(kwargs))
    except Exception as error:
        raise CaptureError(f"{type(model).__name__} cannot be copied: {first_line(error)}") from error
