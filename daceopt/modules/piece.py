"""One compiled graph of Dynamo as Dynamo calls it: flat arguments in, the flat results of the graph out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from daceopt.errors import SizesError
from daceopt.runtime.arithmetic import evaluate
from daceopt.runtime.binding import Binding, Result, replay, spread
from daceopt.runtime.bridge import Higher, Pair, Present, TensorBoundary, TorchProgram, watch
from daceopt.runtime.result_forms import ResultForm

Make = Callable[[Sequence[Any], Sequence[Any], Mapping[str, int]], Any]


class CompiledPiece:
    """A compiled program with its binding; see :mod:`daceopt.runtime.binding`.

    ``connected``: per argument that requires a gradient the outputs that depend on it; ``dependents``: per result of
    which there are some the outputs that are computed from it.
    """

    def __init__(
        self,
        pair: Pair,
        binding: Binding,
        connected: Mapping[int, frozenset[int]] | None = None,
        higher: Higher | None = None,
        dependents: Mapping[int, frozenset[int]] | None = None,
        present: Present | None = None,
    ) -> None:
        self.pair, self.binding = pair, binding
        self._dependents = dict(dependents or {})
        position = {argument: k for k, (kind, argument) in enumerate(binding.inputs) if kind == "tensor"}
        boundary = TensorBoundary(
            forms=[ResultForm(o.order, o.layout, o.complex) for o in binding.outputs],
            differentiable=frozenset(k for k, o in enumerate(binding.outputs) if o.differentiable),
            complex_inputs=frozenset(binding.complex),
            mutations=[(position[argument], output) for argument, output in binding.mutations],
            connected={position[argument]: outputs for argument, outputs in (connected or {}).items()},
            higher=higher,
            present=present,
        )
        self.program = TorchProgram(pair, len(binding.inputs), boundary)
        self._tensors = [k if kind == "tensor" else None for kind, k in binding.inputs]
        self._sizes = [k for kind, k in binding.inputs if kind == "size"]
        # what autograd has to see being copied; TorchProgram copies the other new values
        self._copies = [(a, k) for a, k in binding.mutations if binding.outputs[k].differentiable]
        self._makers = [_maker(r) for r in binding.results]
        plain = [r.index for r in binding.results if r.kind == "output" and not r.views]
        self._spread = [(k, o.strides) for k, o in enumerate(binding.outputs) if o.strides]
        is_direct = len(plain) == len(binding.results) and not self._copies and not self._spread
        self._direct = plain if is_direct else None

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
        results = self._results(arguments, outputs)
        if self._dependents:
            watch(outputs, [(results[k], of) for k, of in self._dependents.items()])
        return results

    def _results(self, arguments: Sequence[Any], outputs: Sequence[torch.Tensor]) -> list[Any]:
        if self._direct is not None:
            return [outputs[k] for k in self._direct]
        for argument, k in self._copies:
            arguments[argument].copy_(outputs[k])
        sizes = {name: _size(arguments[k], axis) for name, (k, axis) in self.binding.symbols.items()}
        outputs = self._strided(outputs, sizes) if self._spread else outputs
        results: list[Any] = []
        for make, result in zip(self._makers, self.binding.results):
            results.append(results[result.index] if make is None else make(arguments, outputs, sizes))
        return results

    def _strided(self, outputs: Sequence[torch.Tensor], sizes: Mapping[str, int]) -> Sequence[torch.Tensor]:
        found = list(outputs)
        for k, strides in self._spread:
            found[k] = spread(found[k], strides, sizes)
        return found


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
