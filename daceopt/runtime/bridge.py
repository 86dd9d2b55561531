"""Compiled programs as PyTorch sees them: an autograd function for a training pair, a plain call for inference.

A training call saves what its backward reads through ``save_for_backward``, so PyTorch's own rules hold for it:
version counters, freed graphs, checkpointing and saved-tensor hooks.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch._C._dynamo.eval_frame import _FrameAction, _FrameExecStrategy, set_code_exec_strategy

from daceopt.errors import BuildError, Unsupported
from daceopt.runtime import batched, block_pool
from daceopt.runtime.seeds import draw_seed


class Pair(Protocol):
    """What the bridge needs of a compiled pair: see ``compiled.CompiledPair``."""

    forward: Any
    backward: Any


class ExecutableEntry:
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
        return [block_pool.allocate(s, d) for s, d in zip(shapes, self.dtypes)]

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
        arena = block_pool.allocate((arena_bytes,), torch.uint8) if arena_bytes else None
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


Higher = Callable[
    [Sequence[torch.Tensor], Sequence["torch.Tensor | None"], Sequence[bool]], "list[torch.Tensor | None]"
]


@dataclass(frozen=True)
class TensorBoundary:
    """What PyTorch knows of a program's inputs and outputs beyond their arrays.

    ``orders``: per output its axes from the outermost in memory (None: row-major). ``differentiable``: outputs that
    autograd sees (None: those with a gradient). ``mutations``: (input, output) pairs, new values of inputs; those whose
    output is differentiable are left to the caller. ``connected``: per input that requires a gradient the outputs that
    depend on it (None: not known).
    ``complex_inputs`` and ``complex_outputs`` are complex tensors, whose arrays have both parts along one more axis.
    ``higher``: gradients as differentiable functions of inputs and gradients.
    """

    orders: Sequence[Sequence[int]] | None = None
    differentiable: frozenset[int] | None = None
    mutations: Sequence[tuple[int, int]] = ()
    connected: Mapping[int, frozenset[int]] | None = None
    complex_inputs: frozenset[int] = frozenset()
    complex_outputs: frozenset[int] = frozenset()
    higher: Higher | None = None


class TorchProgram:
    """A compiled pair bound to PyTorch: call it with the program's inputs, get its outputs, which are new tensors."""

    def __init__(self, pair: Pair, input_count: int, boundary: TensorBoundary | None = None) -> None:
        self.pair, self.boundary = pair, boundary or TensorBoundary()
        self.forward = ExecutableEntry(pair.forward)
        self.backward = None if pair.backward is None else ExecutableEntry(pair.backward)
        self.input_count = input_count
        self._reads = [k for _, k in self.forward.inputs]
        self._order = _complete([k for _, k in self.forward.outputs])
        self._saves = bool(pair.forward.manifest.saves)
        roles = [] if self.backward is None else self.backward.inputs
        self.kept_inputs = [k for kind, k in roles if kind == "input"]
        self.kept_outputs = [k for kind, k in roles if kind == "output"]
        self.grads = [k for kind, k in roles if kind == "grad"]
        self.grad_dtypes = [self._dtype(k) for k in self.grads]
        # Where each input of the backward program stands in the list of kept inputs, kept outputs and gradients.
        found = [("input", k) for k in self.kept_inputs] + [("output", k) for k in self.kept_outputs]
        found += [("grad", k) for k in self.grads]
        self._gather = [found.index(role) for role in roles]
        self._bind(self.boundary)

    def _dtype(self, output: int) -> torch.dtype:
        found = self.forward.dtypes[self._order.index(output)]
        return found.to_complex() if output in self.boundary.complex_outputs else found

    def _bind(self, boundary: TensorBoundary) -> None:
        seen = frozenset(self.grads) if boundary.differentiable is None else boundary.differentiable
        self.trains = bool(seen) and (self.backward is not None or boundary.differentiable is not None)
        self.constants = [k for k in range(len(self._order)) if k not in seen]
        self.mutations = [(i, k) for i, k in boundary.mutations if k not in seen]
        self._volatile = {i for i, _ in boundary.mutations}.intersection(self.kept_inputs)
        orders = boundary.orders or [()] * len(self._order)
        # the permutation of each output whose axes do not stand in memory as they are counted, and its inverse
        self.orders = {k: tuple(o) for k, o in enumerate(orders) if list(o) != list(range(len(o)))}
        self._logical = [(k, _inverse(o)) for k, o in self.orders.items()]

    def __call__(self, tensors: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        """Outputs of the graph, inputs already updated; differentiable when the pair has a backward program."""
        if self.trains:
            if torch.is_grad_enabled():
                return _Compiled.apply(self, *tensors)
            if not torch.is_inference_mode_enabled():
                with torch.enable_grad():  # as a region of the model has it, whatever is around the call
                    return _Compiled.apply(self, *tensors)
        if not torch.is_grad_enabled():
            return self.run(tensors).outputs
        with torch.no_grad():
            return self.run(tensors).outputs

    def run(self, tensors: Sequence[torch.Tensor]) -> _Call:
        """Run the forward program and update changed inputs; the caller has switched gradients off."""
        dense = [t if t.is_contiguous() and not t.is_neg() else _dense(t) for t in tensors]
        for k in self.boundary.complex_inputs:
            dense[k] = dense[k].resolve_conj()
        entry = self.forward
        symbols = tuple([dense[k].shape[axis] for k, axis in entry.symbols])
        sizes = entry.executable.sizes(symbols)
        outputs = entry.allocate(sizes.shapes)
        saved = block_pool.allocate((sizes.saved,), torch.uint8) if self._saves and sizes.saved else None
        seed = draw_seed() if entry.uses_seed or (self.backward is not None and self.backward.uses_seed) else None
        entry.invoke([dense[k] for k in self._reads], outputs, saved, seed, symbols, sizes.arena)
        ordered = _in_order(outputs, self._order)
        for k in self.boundary.complex_outputs:
            ordered[k] = torch.view_as_complex(ordered[k])
        for k, permutation in self._logical:
            ordered[k] = ordered[k].permute(permutation)
        for k in self._volatile:
            dense[k] = dense[k].clone()
        if self.mutations:
            torch._foreach_copy_([tensors[i] for i, _ in self.mutations], [ordered[k] for _, k in self.mutations])
        return _Call(dense, ordered, saved, seed, symbols)

    def gradients(
        self,
        kept: list[torch.Tensor],
        saved: torch.Tensor | None,
        seed: int | None,
        symbols: tuple[int, ...],
        wanted: Sequence[bool],
    ) -> list[torch.Tensor | None]:
        """Run the backward program on kept inputs, kept outputs and gradients; one result or None per input."""
        entry = self.backward
        assert entry is not None
        sizes = entry.executable.sizes(symbols)
        outputs = entry.allocate(sizes.shapes)
        dense = [t if t.is_contiguous() and not (t.is_neg() or t.is_conj()) else _dense(t) for t in kept]
        entry.invoke([dense[k] for k in self._gather], outputs, saved, seed, symbols, sizes.arena)
        result: list[torch.Tensor | None] = [None] * self.input_count
        for (_, k), gradient in zip(entry.outputs, outputs):
            if wanted[k]:
                result[k] = torch.view_as_complex(gradient) if k in self.boundary.complex_inputs else gradient
        return result

    def in_memory_order(self, output: int, tensor: torch.Tensor) -> torch.Tensor:
        """A tensor like that output, its axes as they stand in memory."""
        order = self.orders.get(output)
        return tensor if order is None else tensor.permute(order)


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
    def forward(ctx: Any, program: TorchProgram, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        call = program.run(tensors)
        kept = [call.inputs[k] for k in program.kept_inputs]
        kept += [call.outputs[k] for k in program.kept_outputs]
        if call.saved is not None:
            kept.append(call.saved)
        ctx.save_for_backward(*kept)
        ctx.program, ctx.seed, ctx.symbols, ctx.has_block = program, call.seed, call.symbols, call.saved is not None
        ctx.shapes = [call.outputs[k].shape for k in program.grads]
        ctx.operands = tensors
        ctx.versions = [0 if t.is_inference() else t._version for t in tensors]
        ctx.set_materialize_grads(False)
        if program.constants:
            ctx.mark_non_differentiable(*[call.outputs[k] for k in program.constants])
        return tuple(call.outputs)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        return (None, *_backward(ctx, grads))


def _backward(ctx: Any, grads: Sequence[torch.Tensor | None]) -> list[torch.Tensor | None]:
    if batched.is_batched(grads):
        return batched.each(lambda one: _backward(ctx, one), grads)
    program: TorchProgram = ctx.program
    wanted = ctx.needs_input_grad[1:]
    if torch.is_grad_enabled():
        found = _differentiable_gradients(ctx, grads, wanted)
    else:
        found = [None] * program.input_count
        if program.backward is not None and any(g is not None for g in grads):
            found = _gradients(ctx, program, grads, wanted)
        if _has_spread(program, grads, found):
            exact = _differentiable_gradients(ctx, grads, wanted)
            found = [None if g is None else g.detach() for g in exact]
    _settle_absent(program.boundary.connected, ctx.operands, grads, wanted, found)
    return found


# A backward that some forward calls is no code for Dynamo to look at, nor is what it calls in its turn.
_SKIP = _FrameExecStrategy(_FrameAction.SKIP, _FrameAction.SKIP)
set_code_exec_strategy(_Compiled.backward.__code__, _SKIP)


def _gradients(
    ctx: Any, program: TorchProgram, grads: Sequence[torch.Tensor | None], wanted: Sequence[bool]
) -> list[torch.Tensor | None]:
    tensors = list(ctx.saved_tensors)
    saved = tensors.pop() if ctx.has_block else None
    if program.orders:
        first = len(program.kept_inputs)
        for at, k in enumerate(program.kept_outputs, first):
            tensors[at] = program.in_memory_order(k, tensors[at])
    for k, shape, dtype in zip(program.grads, ctx.shapes, program.grad_dtypes):
        grad = grads[k]
        tensors.append(
            program.in_memory_order(k, torch.zeros(shape, dtype=dtype, device="cpu") if grad is None else grad)
        )
    return program.gradients(tensors, saved, ctx.seed, ctx.symbols, wanted)


def _differentiable_gradients(
    ctx: Any, grads: Sequence[torch.Tensor | None], wanted: Sequence[bool]
) -> list[torch.Tensor | None]:
    """The gradients where PyTorch records what computes them (``create_graph=True``)."""
    higher = ctx.program.boundary.higher
    if higher is None:
        raise Unsupported("a gradient of a gradient: this program has a first derivative only")
    for k, (tensor, version) in enumerate(zip(ctx.operands, ctx.versions)):
        if wanted[k] and tensor._version != version:
            raise RuntimeError(
                "one of the variables needed for gradient computation has been modified by an inplace operation: input "
                f"{k} of a compiled program is at version {tensor._version}; expected version {version}"
            )
    return higher(ctx.operands, grads, wanted)


def _has_spread(
    program: TorchProgram, grads: Sequence[torch.Tensor | None], found: Sequence[torch.Tensor | None]
) -> bool:
    """Whether the zero that stands for an absent gradient met an infinite derivative, and can be done without."""
    if program.boundary.higher is None or all(grads[k] is not None for k in program.grads):
        return False
    present = [g for g in found if g is not None]
    if not present or not torch.stack([g.sum() for g in present]).isnan().any():  # a sum reads once and writes nothing
        return False
    return any(bool(torch.isnan(g).any()) for g in present)


def _settle_absent(
    connected: Mapping[int, frozenset[int]] | None,
    operands: Sequence[torch.Tensor],
    grads: Sequence[torch.Tensor | None],
    wanted: Sequence[bool],
    found: list[torch.Tensor | None],
) -> None:
    """As in PyTorch: zero where the results with a gradient depend on an input, None where they do not."""
    given = {k for k, g in enumerate(grads) if g is not None}
    for k, outputs in (connected or {}).items():
        if not wanted[k] or given.isdisjoint(outputs):
            found[k] = None
        elif found[k] is None:
            found[k] = torch.zeros_like(operands[k])


def _role(name: str) -> tuple[str, int]:
    kind, _, number = name.partition(":")
    if not number.isdigit():
        raise BuildError(f"a built program names a tensor {name!r}; expected a role such as 'input:0'")
    return kind, int(number)


def _complete(order: list[int]) -> list[int]:
    if sorted(order) != list(range(len(order))):
        raise BuildError(f"a built program writes the outputs {order}; expected each of {list(range(len(order)))} once")
    return order


def _inverse(order: Sequence[int]) -> tuple[int, ...]:
    return tuple(sorted(range(len(order)), key=order.__getitem__))


def _in_order(outputs: list[torch.Tensor], order: list[int]) -> list[torch.Tensor]:
    """The program's outputs in the order of the graph's."""
    if order == list(range(len(order))):
        return outputs
    return [outputs[order.index(k)] for k in range(len(order))]


def _dense(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.resolve_neg().resolve_conj().contiguous()
