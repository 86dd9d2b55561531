"""One compiled graph of Dynamo as Dynamo calls it: flat arguments in, the flat results of the graph out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch

from daceopt.errors import SizesError
from daceopt.runtime import stages
from daceopt.runtime.arithmetic import evaluate
from daceopt.runtime.binding import Binding, Result, ResultStage, replay, spread
from daceopt.runtime.boundary import Apart, Higher, Present, TensorBoundary
from daceopt.runtime.bridge import Pair, TorchProgram
from daceopt.runtime.result_forms import ResultForm

Make = Callable[[Sequence[Any], Sequence[Any], Mapping[str, int]], Any]


class CompiledPiece:
    """A compiled program with its binding; see :mod:`daceopt.runtime.binding`.

    ``connected``: per argument that requires a gradient the outputs that depend on it. ``higher``, ``present`` and
    ``apart``: see ``TensorBoundary``.
    """

    def __init__(
        self,
        pair: Pair,
        binding: Binding,
        connected: Mapping[int, frozenset[int]] | None = None,
        higher: Higher | None = None,
        present: Present | None = None,
        apart: Apart | None = None,
    ) -> None:
        self.pair, self.binding = pair, binding
        position = {argument: k for k, (kind, argument) in enumerate(binding.inputs) if kind == "tensor"}
        boundary = TensorBoundary(
            forms=[ResultForm(o.order, o.layout, o.complex) for o in binding.outputs],
            differentiable=frozenset(k for k, o in enumerate(binding.outputs) if o.differentiable),
            complex_inputs=frozenset(binding.complex),
            mutations=[(position[argument], output) for argument, output in binding.mutations],
            unversioned=frozenset(position[k] for k in binding.unversioned if k in position),
            exchanged=frozenset(position[k] for k in binding.exchanged if k in position),
            connected={position[argument]: outputs for argument, outputs in (connected or {}).items()},
            higher=higher,
            present=present,
            apart=apart,
        )
        self.program = TorchProgram(pair, len(binding.inputs), boundary)
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

    def __call__(self, *arguments: Any) -> Sequence[Any]:
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

    def result(self, position: int) -> Any:
        """A result of the call."""
        if position not in self._results:
            make, result = self._piece._makers[position], self._piece.binding.results[position]
            self._results[position] = (
                self.result(result.index) if make is None else make(self._arguments, self._outputs, self._sizes)
            )
        return self._results[position]


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
