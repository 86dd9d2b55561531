"""A module in eval mode as one graph: what it is called on are the inputs, its state is constant, its results new."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import fx, nn

from daceopt.capture.quiet import quiet
from daceopt.capture.torch.fingerprint import describe as kind
from daceopt.capture.torch.fingerprint import fingerprint, surroundings
from daceopt.capture.torch.traced import Traced
from daceopt.errors import CaptureError, Unsupported
from daceopt.modules import frames
from daceopt.modules.backend import Backend
from daceopt.modules.breaks import reason_of
from daceopt.modules.description import describe
from daceopt.modules.observe import own_forward
from daceopt.modules.options import Options
from daceopt.passes.rounding import outputs
from daceopt.pipeline import compile_graph
from daceopt.programs.compiled import CompiledPair
from daceopt.programs.stats import Stats
from daceopt.runtime.binding import Binding
from daceopt.runtime.bridge import TorchProgram
from daceopt.runtime.places import DEVICES
from daceopt.runtime.tensors import to_numpy
from daceopt.store.cache import key
from daceopt.torch_internals.pytree import keystr, tree_flatten_with_path, tree_leaves, tree_map_only

if TYPE_CHECKING:
    from daceopt.ir.control.imported import Imported


@dataclass(frozen=True)
class Frozen:
    """``module`` on the arguments ``args`` and ``kwargs`` as the graph ``traced``. ``arguments``: of the graph in that
    call; ``inputs``: the names of those that were given; ``order``: which of the graph's results is each of the call's.
    """

    traced: Traced
    arguments: Sequence[Any]
    inputs: Mapping[int, str]
    order: Sequence[int]
    module: nn.Module
    args: Sequence[Any]
    kwargs: Mapping[str, Any]

    @property
    def feeds(self) -> list[np.ndarray]:
        """The call's own."""
        return [_numpy(self.arguments[k]) for k in self.inputs]

    def eager(self) -> list[np.ndarray]:
        """What PyTorch computes."""
        return _run(self.module, self.args, self.kwargs)

    def exact(self) -> list[np.ndarray]:
        """What it computes in float64; the interpreter, where the module insists on another type."""
        args, kwargs = tree_map_only(torch.Tensor, _widen, (self.args, dict(self.kwargs)))
        try:
            return _run(copy.deepcopy(self.module).double(), args, kwargs)
        except (RuntimeError, TypeError):
            graph = self.load().graph
            return outputs(graph, dict(zip(graph.inputs, self.feeds, strict=True)), exact=True)

    def load(self, target: str = "cpu") -> Imported:
        """Import the graph for a target and bind the state. Raises Unsupported with the reason."""
        from daceopt.capture.torch.importing import load

        imported = load(self.traced, target)
        binding = Binding.from_json(imported.notes["binding"])
        _check_plain(binding)
        graph = imported.graph
        for name, (_, k) in zip(list(graph.inputs), binding.inputs, strict=True):
            if k not in self.inputs:
                graph.bind(name, _array(self.arguments[k], graph.dtype(name)))
        graph.outputs[:] = [graph.outputs[binding.results[k].index] for k in self.order]
        return imported

    def compile(self, recipe: Any, verify: str | None = None) -> FrozenProgram:
        """The compiled program. Raises Unsupported with the reason."""
        state = [key(_bytes(x)) for k, x in enumerate(self.arguments) if k not in self.inputs]
        kinds = [kind(x) for x in self.traced.inputs]
        parts = ["frozen", kinds, state, list(self.inputs), self.order, surroundings(DEVICES)]
        identity = fingerprint(self.traced.graph, parts)
        return FrozenProgram(self, compile_graph(identity, self.load, recipe=recipe, verify=verify))


class FrozenProgram:
    """A compiled frozen module: arrays in, arrays out."""

    def __init__(self, frozen: Frozen, pair: CompiledPair) -> None:
        self.frozen, self.pair = frozen, pair
        self.input_names = list(frozen.inputs.values())
        self.output_names = [f"output_{k}" for k in range(len(frozen.order))]
        self._program = TorchProgram(pair, len(self.input_names))

    def __call__(self, *arrays: np.ndarray) -> list[np.ndarray]:
        tensors = [torch.from_numpy(a) for a in arrays]
        return [_numpy(t) for t in self._program(tensors)]


class _SecondRun(Exception):
    """A call runs more than one graph, or one more than once."""


class _Recorder(Backend):
    """Keeps the graphs of a call, their arguments and their results, which are zeros: nobody reads their numbers unless
    the call goes on in Python, and then it is no single graph."""

    def __init__(self) -> None:
        super().__init__(Options(), Stats(), lambda reason, error: None)
        self.captures: list[tuple[Traced, list[Any]]] = []
        self.results: Sequence[Any] = ()
        self.runs = 0

    def __call__(self, graph: fx.GraphModule, inputs: Sequence[object], **_: object) -> Callable[..., Any]:
        self.captures.append((describe(graph, inputs), list(inputs)))
        zeros = _zeros(graph)

        def run(*arguments: object) -> object:
            self.runs += 1
            if self.runs > 1:  # what Python has decided since then was decided by zeros
                raise _SecondRun
            self.results = graph.forward(*arguments) if zeros is None else zeros
            return self.results

        return run

    @property
    def has_all(self) -> bool:
        """Is the call one graph that ran once?"""
        return len(self.captures) == self.runs == 1


def _zeros(graph: fx.GraphModule) -> list[torch.Tensor] | None:
    """Stand-ins of a graph's results; None where it must run to know their shapes, or they are no new tensors."""
    (results,) = next(n for n in reversed(graph.graph.nodes) if n.op == "output").args
    values = [x.meta.get("example_value") if isinstance(x, fx.Node) else None for x in results]
    if not all(isinstance(v, torch.Tensor) and all(isinstance(n, int) for n in v.shape) for v in values):
        return None
    return [torch.zeros(v.shape, dtype=v.dtype) for v in values if v is not None]


def freeze(title: str, module: nn.Module, args: Sequence[object], kwargs: Mapping[str, object]) -> Frozen:
    """The graph of ``module(*args, **kwargs)`` in eval mode, of a copy. Raises CaptureError with the reason."""
    module, args, kwargs = copy.deepcopy((module.eval(), list(args), dict(kwargs)))
    traced, arguments, results, expected = _record(title, module, args, kwargs)
    names = _names(own_forward(module), args, kwargs)
    inputs = {k: names[id(x)] for k, x in enumerate(arguments) if id(x) in names}
    order = [next(k for k, r in enumerate(results) if r is t) for t in expected]
    return Frozen(traced, arguments, inputs, order, module, args, kwargs)


def _forward(module: nn.Module) -> Callable[..., list[torch.Tensor]]:
    """What gives the tensors of a module's results: new ones, row by row in memory."""

    def forward(*args: object, **kwargs: object) -> list[torch.Tensor]:
        leaves = tree_leaves(own_forward(module)(*args, **kwargs))
        return [t.clone(memory_format=torch.contiguous_format) for t in leaves if isinstance(t, torch.Tensor)]

    return forward


def _run(module: nn.Module, args: Sequence[object], kwargs: Mapping[str, object]) -> list[np.ndarray]:
    with torch.no_grad():
        return [_numpy(t) for t in _forward(module)(*args, **kwargs)]


def _record(
    title: str, module: nn.Module, args: Sequence[object], kwargs: Mapping[str, object]
) -> tuple[Traced, list[Any], Sequence[Any], list[torch.Tensor]]:
    """The only graph of a call, its arguments, its results, and those of the call."""
    backend, expected = _Recorder(), []
    try:
        with torch.no_grad(), quiet():
            expected = frames.compile_frames(_forward(module), backend, dynamic=False)(*args, **kwargs)
    except Exception as error:
        if not backend.runs or backend.has_all:
            raise CaptureError(f"{title}: the call fails: {reason_of(error)}") from error
    if not backend.has_all:
        count = f"{len(backend.captures)} or more" if backend.captures else "none"
        why = "; ".join(b.text for b in backend.new_breaks()) or "nothing of it can be compiled"
        raise CaptureError(f"{title} is no single graph ({count} found): {why}")
    ((traced, arguments),) = backend.captures
    return traced, arguments, backend.results, expected


def _names(function: Callable[..., Any], args: Sequence[object], kwargs: Mapping[str, object]) -> dict[int, str]:
    """What the parts of a call's arguments are called, by their ids: ``x``, ``pair[0]``, ``batch['mask']``."""
    signature = inspect.signature(function)
    arguments = dict(signature.bind(*args, **kwargs).arguments)
    for parameter in signature.parameters.values():
        if parameter.kind is parameter.VAR_KEYWORD:
            arguments.update(arguments.pop(parameter.name, {}))
    named, _ = tree_flatten_with_path(arguments)
    return {id(leaf): path[0].key + keystr(path[1:]) for path, leaf in named}


def _check_plain(binding: Binding) -> None:
    """Raise Unsupported for what arrays alone cannot say: changes of state, complex numbers, results of other kinds."""
    if binding.mutations:
        raise Unsupported("the call changes its arguments or its state in eval mode; expected results only")
    if binding.complex or any(o.complex for o in binding.outputs):
        raise Unsupported("there are complex numbers among the arguments or results; expected real ones")
    if any(r.kind != "output" or r.views for r in binding.results):
        raise Unsupported("a result is a view or no array; expected arrays")


def _widen(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.double() if tensor.is_floating_point() else tensor


def _numpy(tensor: torch.Tensor) -> np.ndarray:
    """An array of the tensor's numbers, in a type that NumPy has."""
    if tensor.dtype is torch.bfloat16:
        raise Unsupported("NumPy has no bfloat16: expected other types of arguments and results")
    return tensor.detach().contiguous().numpy()


def _array(tensor: torch.Tensor, dtype: object) -> np.ndarray:
    from daceopt.ir.scalar import types

    return to_numpy(tensor.detach().contiguous(), types.to_numpy(dtype))


def _bytes(value: object) -> bytes:
    if not isinstance(value, torch.Tensor):
        return repr(value).encode()
    return value.detach().contiguous().flatten().view(torch.uint8).numpy().tobytes()
