"""Programs with the interface of built ones that compute with PyTorch: they test all that surrounds a program,
without a compiler.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from typing import Any

import torch

from daceopt.build.executable import Sizes
from daceopt.build.manifest import Manifest, Symbol, Tensor
from daceopt.errors import Unsupported

_NO_GRAD = "x"


class FakePair:
    """Forward and backward of a trace; the forward saves the even-numbered inputs in its block, the backward reads
    the others itself.
    """

    def __init__(self, trace: Any, wanted: Sequence[int]) -> None:
        self.forward = _Forward(trace, bool(wanted))
        self.backward = _Backward(self.forward, list(wanted)) if wanted else None
        self.report: dict[str, Any] = {"history": [], "seconds": {}}
        self.cached = False


def compile_trace(
    trace: Any, *, recipe: Any = "auto", wanted: Sequence[int] = (), verify: Any = None, fallback: bool = False
) -> FakePair:
    """Stands for ``pipeline.compile_trace``."""
    for node in trace.program.graph.nodes:
        if "cumsum" in str(node.target):
            raise Unsupported("operator CumSum has no native form")
    return FakePair(trace, wanted)


class _Program:
    constants = ()
    manifest: Manifest

    def __init__(self, trace: Any) -> None:
        self.trace = trace
        self.runs = 0
        self.names = [k for k, s in enumerate(trace.outputs) if s.kind != "constant"]
        self.computed = [k for k, s in enumerate(trace.outputs) if s.kind in ("user", "buffer_mutation")]

    def symbols(self) -> tuple[Symbol, ...]:
        return tuple(Symbol(name, f"input:{i}", axis) for name, (i, axis) in self.trace.symbols.items())

    def input_shapes(self, symbols: tuple[int, ...]) -> list[tuple[int, ...]]:
        values = dict(zip(self.trace.symbols, symbols, strict=True))
        return [tuple(d if isinstance(d, int) else values[d] for d in s.shape) for s in self.trace.inputs]

    def compute(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        found = self.trace.program.graph_module(*tensors)
        return [found[self.names.index(k)] for k in self.computed]

    def output_shapes(self, symbols: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
        with torch.no_grad():
            zeros = [torch.zeros(s, dtype=i.dtype) for s, i in zip(self.input_shapes(symbols), self.trace.inputs)]
            return tuple(tuple(t.shape) for t in self.compute(zeros))

    def saved_bytes(self, symbols: tuple[int, ...]) -> int:
        shapes = self.input_shapes(symbols)
        return sum(_nbytes(s, i.dtype) for s, i in list(zip(shapes, self.trace.inputs))[::2])


class _Forward(_Program):
    def __init__(self, trace: Any, trains: bool) -> None:
        super().__init__(trace)
        self.manifest = Manifest(
            name="forward",
            inputs=tuple(_tensor(f"input:{k}", s) for k, s in enumerate(trace.inputs)),
            outputs=tuple(_tensor(f"output:{k}", trace.outputs[o]) for k, o in enumerate(self.computed)),
            symbols=self.symbols(),
            saves=trains,
        )

    def sizes(self, symbols: tuple[int, ...] = ()) -> Sizes:
        return Sizes(64, self.saved_bytes(symbols) if self.manifest.saves else 0, self.output_shapes(symbols))

    def run(self, pointers: Sequence[int], symbols: tuple[int, ...] = ()) -> None:
        self.runs += 1
        shapes = self.input_shapes(symbols)
        inputs = [_at(p, s, i.dtype) for p, s, i in zip(pointers, shapes, self.trace.inputs)]
        with torch.no_grad():
            results = [t.clone() for t in self.compute(inputs)]
        for p, t in zip(pointers[len(inputs) :], results):
            _at(p, tuple(t.shape), t.dtype).copy_(t)
        address = pointers[-3]
        for t in inputs[::2] if self.manifest.saves else ():
            _at(address, tuple(t.shape), t.dtype).copy_(t)
            address += _nbytes(tuple(t.shape), t.dtype)


class _Backward(_Program):
    def __init__(self, forward: _Forward, wanted: list[int]) -> None:
        super().__init__(forward.trace)
        self.forward = forward
        symbols = tuple(8 for _ in self.trace.symbols)
        tensors = [
            torch.ones(s, dtype=i.dtype, requires_grad=k in wanted)
            for k, (s, i) in enumerate(zip(self.input_shapes(symbols), self.trace.inputs))
        ]
        with torch.enable_grad():
            results = self.compute(tensors)
            sums = [t.sum() if t.is_floating_point() else t for t in results]
        self.grads = [k for k, t in enumerate(results) if t.requires_grad and self._is_user(k)]
        if not self.grads:
            raise Unsupported("no output depends on an input or parameter that requires a gradient")
        found = torch.autograd.grad([sums[k] for k in self.grads], [tensors[k] for k in wanted], allow_unused=True)
        self.wanted = [k for k, g in zip(wanted, found) if g is not None]
        outputs = {k: _tensor(f"grad:{k}", self.trace.outputs[self.computed[k]]) for k in self.grads}
        self.manifest = Manifest(
            name="backward",
            inputs=(*(_tensor(f"input:{k}", s) for k, s in self._odd()), *outputs.values()),
            outputs=tuple(_tensor(f"grad_input:{k}", self.trace.inputs[k]) for k in self.wanted),
            symbols=tuple(s for s in self.symbols()),
            saves=True,
        )

    def _is_user(self, k: int) -> bool:
        return self.trace.outputs[self.computed[k]].kind == "user"

    def _odd(self) -> list[tuple[int, Any]]:
        return list(enumerate(self.trace.inputs))[1::2]

    def sizes(self, symbols: tuple[int, ...] = ()) -> Sizes:
        shapes = self.input_shapes(symbols)
        return Sizes(64, self.saved_bytes(symbols), tuple(shapes[k] for k in self.wanted))

    def run(self, pointers: Sequence[int], symbols: tuple[int, ...] = ()) -> None:
        self.runs += 1
        shapes, specs = self.input_shapes(symbols), self.trace.inputs
        tensors: list[Any] = [None] * len(specs)
        address = pointers[-3]
        for k in range(0, len(specs), 2):
            tensors[k] = _at(address, shapes[k], specs[k].dtype).clone()
            address += _nbytes(shapes[k], specs[k].dtype)
        given = iter(pointers)
        for k, spec in self._odd():
            tensors[k] = _at(next(given), shapes[k], spec.dtype).clone()
        results = [tensors[k].requires_grad_() for k in self.wanted]
        with torch.enable_grad():
            outputs = self.compute(tensors)
        grads = [_at(next(given), tuple(outputs[k].shape), outputs[k].dtype) for k in self.grads]
        found = torch.autograd.grad([outputs[k] for k in self.grads], results, grads, allow_unused=True)
        for g, t in zip(found, results):
            _at(next(given), tuple(t.shape), t.dtype).copy_(g if g is not None else torch.zeros_like(t))


def _tensor(role: str, spec: Any) -> Tensor:
    return Tensor(role, str(spec.dtype).removeprefix("torch."), len(spec.shape))


def _nbytes(shape: tuple[int, ...], dtype: torch.dtype) -> int:
    return -(-math.prod(shape) * dtype.itemsize // 8) * 8


def _at(address: int, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    count = math.prod(shape)
    if not count:
        return torch.empty(shape, dtype=dtype)
    raw = (ctypes.c_char * (count * dtype.itemsize)).from_address(address)
    return torch.frombuffer(raw, dtype=dtype, count=count).view(shape)
