"""Compiled programs as PyTorch sees them: an autograd function for a training pair, a plain call for inference.

A training call saves what its backward reads through ``save_for_backward``, so PyTorch's own rules hold for it:
version counters, freed graphs, checkpointing and saved-tensor hooks.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Sequence
from typing import Any, Protocol

import torch

from daceopt.errors import BuildError
from daceopt.runtime import memory
from daceopt.runtime.random import draw_seed


class Pair(Protocol):
    """What the bridge needs of a compiled pair: see ``pipeline.CompiledPair``."""

    forward: Any
    backward: Any


class Entry:
    """One executable, with everything looked up that does not change from call to call.

    Tensors of the program are named by role: ``input:3`` is input 3 of the trace, ``grad:0`` the gradient of its
    output 0, and so on.
    """

    def __init__(self, executable: Any) -> None:
        manifest = executable.manifest
        self.executable = executable
        self.inputs = [_role(t.name) for t in manifest.inputs]
        self.outputs = [_role(t.name) for t in manifest.outputs]
        self.dtypes = [torch_dtype(t.dtype) for t in manifest.outputs]
        self.uses_seed = manifest.uses_seed
        self.symbols = [(_role(s.input)[1], s.axis) for s in manifest.symbols]
        self.constants = [c.ctypes.data for c in executable.constants]

    def allocate(self, shapes: Sequence[tuple[int, ...]]) -> list[torch.Tensor]:
        """Uninitialised outputs, in the program's order."""
        return [memory.allocate(s, d) for s, d in zip(shapes, self.dtypes)]

    def invoke(
        self,
        inputs: Sequence[torch.Tensor],
        outputs: Sequence[torch.Tensor],
        saved: torch.Tensor | None,
        seed: int | None,
        symbols: tuple[int, ...],
        arena_bytes: int,
    ) -> None:
        """Run on contiguous tensors; ``outputs`` (and ``saved``, by a forward program) are written. Raises RunError."""
        arena = memory.allocate((arena_bytes,), torch.uint8) if arena_bytes else None
        seeds = array("q", (seed,)) if seed is not None else None
        pointers = [t.data_ptr() for t in inputs]
        pointers += self.constants
        pointers += [t.data_ptr() for t in outputs]
        pointers.append(0 if saved is None else saved.data_ptr())
        pointers.append(0 if arena is None else arena.data_ptr())
        pointers.append(0 if seeds is None else seeds.buffer_info()[0])
        self.executable.run(pointers, symbols)


def torch_dtype(name: str) -> torch.dtype:
    """The type of a tensor with these elements; those below 8 bits stand one in a byte."""
    return torch.uint8 if re.fullmatch(r"u?int[24]|float[46]_\w+", name) else getattr(torch, name)


class Program:
    """A compiled pair bound to PyTorch: call it with the trace's inputs, get the graph's outputs.

    ``mutations`` maps a graph output to the input (a buffer) that it is copied into. Outputs of a call are new tensors.
    """

    def __init__(self, pair: Pair, input_count: int, mutations: dict[int, int] | None = None) -> None:
        self.pair = pair
        self.forward = Entry(pair.forward)
        self.backward = None if pair.backward is None else Entry(pair.backward)
        self.input_count = input_count
        self.mutations = list((mutations or {}).items())
        self._reads = [k for _, k in self.forward.inputs]
        self._order = _complete([k for _, k in self.forward.outputs])
        self._saves = bool(pair.forward.manifest.saves)
        roles = [] if self.backward is None else self.backward.inputs
        self.kept_inputs = [k for kind, k in roles if kind == "input"]
        self.kept_outputs = [k for kind, k in roles if kind == "output"]
        self.grads = [k for kind, k in roles if kind == "grad"]
        self.grad_dtypes = [self.forward.dtypes[self._order.index(k)] for k in self.grads]
        # Where each input of the backward program stands in the list of kept inputs, kept outputs and gradients.
        found = [("input", k) for k in self.kept_inputs] + [("output", k) for k in self.kept_outputs]
        found += [("grad", k) for k in self.grads]
        self._gather = [found.index(role) for role in roles]
        self._volatile = {i for _, i in self.mutations}.intersection(self.kept_inputs)

    def __call__(self, tensors: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        """Outputs of the graph, buffers already updated; differentiable when the pair has a backward program."""
        if self.backward is not None:
            return _Compiled.apply(self, *tensors)
        with torch.no_grad():
            return self.run(tensors).outputs

    def run(self, tensors: Sequence[torch.Tensor]) -> _Call:
        """Run the forward program and update the buffers; the caller has switched gradients off."""
        dense = [t if t.is_contiguous() else _dense(t) for t in tensors]
        entry = self.forward
        symbols = tuple([dense[k].shape[axis] for k, axis in entry.symbols])
        sizes = entry.executable.sizes(symbols)
        outputs = entry.allocate(sizes.shapes)
        saved = memory.allocate((sizes.saved,), torch.uint8) if self._saves and sizes.saved else None
        seed = draw_seed() if entry.uses_seed or (self.backward is not None and self.backward.uses_seed) else None
        entry.invoke([dense[k] for k in self._reads], outputs, saved, seed, symbols, sizes.arena)
        ordered = _in_order(outputs, self._order)
        if self.mutations:
            for k in self._volatile:
                dense[k] = dense[k].clone()
            torch._foreach_copy_([tensors[i] for _, i in self.mutations], [ordered[k] for k, _ in self.mutations])
        return _Call(dense, ordered, saved, seed, symbols)

    def gradients(
        self,
        kept: list[torch.Tensor],
        saved: torch.Tensor | None,
        seed: int | None,
        symbols: tuple[int, ...],
        wanted: Sequence[bool],
    ) -> list[torch.Tensor | None]:
        """Run the backward program on kept inputs, kept outputs and gradients; one result or None per trace input."""
        entry = self.backward
        assert entry is not None
        sizes = entry.executable.sizes(symbols)
        outputs = entry.allocate(sizes.shapes)
        dense = [t if t.is_contiguous() else _dense(t) for t in kept]
        entry.invoke([dense[k] for k in self._gather], outputs, saved, seed, symbols, sizes.arena)
        result: list[torch.Tensor | None] = [None] * self.input_count
        for (_, k), gradient in zip(entry.outputs, outputs):
            if wanted[k]:
                result[k] = gradient
        return result


class _Call:
    """What one forward call leaves for its backward."""

    __slots__ = ("inputs", "outputs", "saved", "seed", "symbols")

    def __init__(
        self,
        inputs: list[torch.Tensor],
        outputs: list[torch.Tensor],
        saved: torch.Tensor | None,
        seed: int | None,
        symbols: tuple[int, ...],
    ) -> None:
        self.inputs, self.outputs, self.saved, self.seed, self.symbols = inputs, outputs, saved, seed, symbols


class _Compiled(torch.autograd.Function):
    """The node that a training call leaves in PyTorch's graph."""

    @staticmethod
    def forward(ctx: Any, program: Program, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        call = program.run(tensors)
        kept = [call.inputs[k] for k in program.kept_inputs]
        kept += [call.outputs[k] for k in program.kept_outputs]
        if call.saved is not None:
            kept.append(call.saved)
        ctx.save_for_backward(*kept)
        ctx.program, ctx.seed, ctx.symbols, ctx.has_block = program, call.seed, call.symbols, call.saved is not None
        ctx.shapes = [call.outputs[k].shape for k in program.grads]
        ctx.set_materialize_grads(False)
        if len(program.grads) < len(call.outputs):
            ctx.mark_non_differentiable(*[t for k, t in enumerate(call.outputs) if k not in program.grads])
        return tuple(call.outputs)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *grads: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        program: Program = ctx.program
        tensors = list(ctx.saved_tensors)
        saved = tensors.pop() if ctx.has_block else None
        for k, shape, dtype in zip(program.grads, ctx.shapes, program.grad_dtypes):
            grad = grads[k]
            tensors.append(torch.zeros(shape, dtype=dtype) if grad is None else grad)
        found = program.gradients(tensors, saved, ctx.seed, ctx.symbols, ctx.needs_input_grad[1:])
        return (None, *found)


def _role(name: str) -> tuple[str, int]:
    kind, _, number = name.partition(":")
    if not number.isdigit():
        raise BuildError(f"a built program names a tensor {name!r}; expected a role such as 'input:0'")
    return kind, int(number)


def _complete(order: list[int]) -> list[int]:
    if sorted(order) != list(range(len(order))):
        raise BuildError(f"a built program writes the outputs {order}; expected each of {list(range(len(order)))} once")
    return order


def _in_order(outputs: list[torch.Tensor], order: list[int]) -> list[torch.Tensor]:
    """The program's outputs in the order of the graph's."""
    if order == list(range(len(order))):
        return outputs
    return [outputs[order.index(k)] for k in range(len(order))]


def _dense(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.resolve_neg().resolve_conj().contiguous()
