"""One compiled graph of Dynamo as Dynamo calls it: flat arguments in, the flat results of the graph out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from daceopt.capture.torch import effects, guards
from daceopt.capture.torch.connection import connections
from daceopt.capture.torch.functional import functional
from daceopt.capture.torch.traced import Traced
from daceopt.errors import SizesError, Unsupported
from daceopt.runtime import overlap, stages
from daceopt.runtime.arithmetic import evaluate
from daceopt.runtime.binding import Binding, Result, ResultStage, replay, spread
from daceopt.runtime.boundary import FurtherGradients, TensorBoundary
from daceopt.runtime.bridge import TorchProgram
from daceopt.torch_internals import torch_operators

OVERLAP = "an argument that the call changes shares memory with another"

if TYPE_CHECKING:
    from daceopt.programs.compiled import CompiledPair

Make = Callable[[Sequence[Any], Sequence[Any], Mapping[str, int]], Any]


class CompiledPiece:
    """The compiled program of a graph of Dynamo, with its binding; see :mod:`daceopt.runtime.binding`."""

    def __init__(self, traced: Traced, pair: CompiledPair, further: FurtherGradients | None = None) -> None:
        notes = pair.report["notes"]
        if pair.cached:
            guards.install(guards.environment(traced.inputs), notes["guards"])
        self.traced, self.pair = traced, pair
        self.binding = binding = Binding.from_json(notes["binding"])
        self.program = TorchProgram(pair, len(binding.inputs), _boundary(traced, pair, binding, further))
        self._tensors = [k if kind == "tensor" else None for kind, k in binding.inputs]
        self._sizes = [k for kind, k in binding.inputs if kind == "size"]
        # what autograd has to see being copied; TorchProgram copies the other new values
        self._copies = {k: a for a, k in binding.mutations if binding.outputs[k].differentiable}
        self._makers = [_maker(r) for r in binding.results]
        plain = [r.index for r in binding.results if r.kind == "output" and not r.views]
        self._spread = {k: o.strides for k, o in enumerate(binding.outputs) if o.strides}
        is_direct = len(plain) == len(binding.results) and not (self._copies or self._spread)
        self._direct = plain if is_direct else None
        later = {k for stage in binding.stages for k in stage.outputs}
        self._first = [k for k in range(len(binding.outputs)) if k not in later]
        self._effects = effects.lasting(traced.graph.graph)
        written = [k for k, _ in binding.mutations if k < len(traced.inputs)]  # nobody else has an optimizer's state
        self._overlaps = overlap.check(written, traced.is_state)

    def inputs(self, arguments: Sequence[Any]) -> list[torch.Tensor]:
        """The program's inputs in a call. Raises SizesError for numbers below zero where it takes sizes."""
        if not self._sizes:
            return [arguments[k] for k in self._tensors]  # type: ignore[index]
        if any(arguments[k] < 0 for k in self._sizes):
            raise SizesError(f"a program for sizes; got {[arguments[k] for k in self._sizes]}")
        sizes = iter(self._sizes)
        return [
            torch.empty((0, arguments[next(sizes)]), dtype=torch.uint8, device="cpu") if k is None else arguments[k]
            for k in self._tensors
        ]

    def arguments(self, tensors: Sequence[Any]) -> list[Any]:
        """The arguments of the graph in a call whose program was given ``tensors``."""
        traced, inputs = self.traced.inputs, self.binding.inputs
        position = _positions(self.binding)
        if len(position) == len(traced):
            return [tensors[position[k]] for k in range(len(traced))]
        sizes: dict[str, int] = {}
        for (_, k), tensor in zip(inputs, tensors):
            x = traced[k]
            shape = x.shape if isinstance(x, torch.Tensor) else (0, x)  # of the array that is as long
            sizes.update((str(name), size) for name, size in zip(shape, tensor.shape))
        return [
            tensors[position[k]] if k in position else x if isinstance(x, int) else evaluate(str(x), sizes)
            for k, x in enumerate(traced)
        ]

    def __call__(self, *arguments: object) -> Sequence[Any]:
        """What the graph gives, and leaves set. Raises Unsupported for memory that an argument shares with one that the
        call changes, and what the program raises."""
        if self._overlaps is not None and self._overlaps(arguments):
            raise Unsupported(OVERLAP)
        results = self.run(*arguments)
        for effect in self._effects:
            effect()
        return results

    def run(self, *arguments: object) -> Sequence[Any]:
        """The results of the graph on the arguments of its placeholders."""
        outputs = self.program(self.inputs(arguments))
        if self._direct is not None:
            outputs = self._join(list(outputs)) if self.binding.stages else outputs
            return [outputs[k] for k in self._direct]
        call = _Call(self, arguments, list(outputs))
        call.finish(self._first)
        for stage in self.binding.stages:
            call.attach(stage)
        return [call.result(k) for k in range(len(self._makers))]

    def operators(self) -> Counter[str]:
        """How often each ATen operator occurs in the graph."""
        nodes = functional(self.traced.graph, self.traced.inputs).graph.graph.nodes
        called = [n.target for n in nodes if isinstance(n.target, torch_operators.OpOverload)]
        return Counter(str(t).removeprefix("aten.") for t in called)

    def _join(self, outputs: list[torch.Tensor]) -> list[torch.Tensor]:
        """Outputs that are the results themselves, with those of stages joined to what they hold."""
        if not outputs[self.binding.stages[0].outputs[0]].requires_grad:
            return outputs
        with torch.enable_grad():
            for stage in self.binding.stages:
                stages.attach(stage, outputs, [outputs[self._direct[k]] for _, k in stage.held])  # type: ignore[index]
        return outputs


class _Call:
    """The results of one call, which come out of a program's outputs."""

    def __init__(self, piece: CompiledPiece, arguments: Sequence[Any], outputs: list[torch.Tensor]) -> None:
        self._piece, self._arguments, self._outputs = piece, arguments, outputs
        symbols = piece.binding.symbols
        self._sizes = {name: _size(arguments[k], axis) for name, (k, axis) in symbols.items()}
        self._results: dict[int, Any] = {}

    def finish(self, outputs: Iterable[int]) -> None:
        """Give these outputs the strides that they are to have, or copy them into the arguments that they are for."""
        for k in outputs:
            if k in self._piece._spread:
                self._outputs[k] = spread(self._outputs[k], self._piece._spread[k], self._sizes)
            if k in self._piece._copies:
                self._arguments[self._piece._copies[k]].copy_(self._outputs[k])

    def attach(self, stage: ResultStage) -> None:
        """Join a stage's outputs to the results that it holds, where autograd sees them."""
        if self._outputs[stage.outputs[0]].requires_grad:
            with torch.enable_grad():
                held = [self.result(k) if kind == "result" else self._arguments[k] for kind, k in stage.held]
                stages.attach(stage, self._outputs, held)
        self.finish(stage.outputs)

    def result(self, position: int) -> object:
        """A result of the call."""
        if position not in self._results:
            make, result = self._piece._makers[position], self._piece.binding.results[position]
            self._results[position] = (
                self.result(result.index) if make is None else make(self._arguments, self._outputs, self._sizes)
            )
        return self._results[position]


def _boundary(traced: Traced, pair: CompiledPair, binding: Binding, further: FurtherGradients | None) -> TensorBoundary:
    """What PyTorch knows of the program, by positions among its inputs."""
    position = _positions(binding)
    is_seen = any(o.differentiable for o in binding.outputs)
    arguments, outputs = connections(traced, binding, _computed_gradients(pair, binding)) if is_seen else ({}, {})
    return TensorBoundary(
        outputs=binding.outputs,
        complex_inputs=frozenset(binding.complex),
        mutations=[(position[argument], output) for argument, output in binding.mutations],
        unversioned=frozenset(position[k] for k in binding.unversioned if k in position),
        exchanged=frozenset(position[k] for k in binding.exchanged if k in position),
        connected={position[argument]: of for argument, of in arguments.items()},
        later=outputs,
        further=further,
    )


def _positions(binding: Binding) -> dict[int, int]:
    """Argument -> position among the program's inputs, of tensors."""
    return {argument: k for k, (kind, argument) in enumerate(binding.inputs) if kind == "tensor"}


def _computed_gradients(pair: CompiledPair, binding: Binding) -> set[int]:
    """The arguments whose gradients the backward program computes."""
    outputs = () if pair.backward is None else pair.backward.manifest.outputs
    return {binding.inputs[int(t.name.partition(":")[2])][1] for t in outputs}


def _size(argument: Any, axis: int | None) -> int:
    return int(argument if axis is None else argument.shape[axis])


def _maker(result: Result) -> Make | None:
    """How to get a result; None where it is another one."""
    if result.kind == "same":
        return None
    if result.kind == "constant":
        return lambda arguments, outputs, sizes: result.value
    if result.kind == "size":
        return lambda arguments, outputs, sizes: evaluate(result.value, sizes)
    views = replay(result.views)
    if result.kind == "input":
        return lambda arguments, outputs, sizes: views(arguments[result.index], sizes)
    return lambda arguments, outputs, sizes: views(outputs[result.index], sizes)
