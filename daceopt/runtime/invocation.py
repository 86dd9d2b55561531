"""One built program called on tensors: where its results and its scratch memory come from, and its addresses."""

from __future__ import annotations

import re
from array import array
from collections.abc import Callable, Collection, Mapping, Sequence

import torch

from daceopt.errors import BuildError
from daceopt.runtime import block_pool
from daceopt.runtime.binding import Output
from daceopt.runtime.executable import Executable, ProgramSizes
from daceopt.runtime.kernel_events import kernel_events
from daceopt.torch_internals.profiling import ACTIVE, PROFILERS

Allocator = Callable[..., Callable[[], torch.Tensor]]
"""Of a shape and a type, and of strides where elements are not in rows."""
KNOWN_SIZES = 256
"""Choices of symbols of which an entry remembers what they need."""
_AS_WRITTEN: Mapping[int, Output] = {}


class CallMemory:
    """What a call with one choice of symbols needs: functions that allocate its outputs and its saved block (None
    without one), and the bytes of its arena. ``forms``: of the outputs that are not what the program writes.
    """

    __slots__ = ("_forms", "_is_on_host", "_zeros", "arena", "outputs", "saved")

    def __init__(
        self,
        sizes: ProgramSizes,
        dtypes: Sequence[torch.dtype],
        in_place: Collection[int],
        allocator: Allocator = block_pool.allocator,
        forms: Mapping[int, Output] = _AS_WRITTEN,
    ) -> None:
        arrays = list(zip(sizes.shapes, dtypes))
        self._forms = [forms[k].form(*array) if k in forms else (*array, None) for k, array in enumerate(arrays)]
        self.outputs = [_nothing if k in in_place else allocator(*form) for k, form in enumerate(self._forms)]
        self.saved = allocator((sizes.saved,), torch.uint8) if sizes.saved else None
        self.arena = sizes.arena
        self._is_on_host = allocator is block_pool.allocator
        self._zeros: dict[int, torch.Tensor] = {}  # on the host

    def allocate(self) -> list[torch.Tensor]:
        """Uninitialised outputs in their forms, in the program's order; empty ones for those that are written in
        place."""
        return [make() for make in self.outputs]

    def zero(self, output: int) -> torch.Tensor:
        """A tensor of zeros like that output, to read alone: on the host one for all calls."""
        if not self._is_on_host:
            return self.outputs[output]().zero_()
        if output not in self._zeros:
            self._zeros[output] = block_pool.zeros(*self._forms[output])
        return self._zeros[output]


_NOTHING = torch.empty(0, device="cpu")


def _nothing() -> torch.Tensor:
    return _NOTHING


class ExecutableEntry:
    """One executable, with everything looked up that does not change from call to call.

    Tensors of the program are named by role: ``input:3`` is input 3 of the trace, ``grad:0`` the gradient of its
    output 0, and so on.
    """

    def __init__(self, executable: Executable) -> None:
        manifest = executable.manifest
        self.executable = executable
        self.inputs = [_role(t.name) for t in manifest.inputs]
        self.outputs = [_role(t.name) for t in manifest.outputs]
        # position of an output -> the input over which it is written
        self.in_place = {k: _role(t.in_place)[1] for k, t in enumerate(manifest.outputs) if t.in_place is not None}
        self.dtypes = [torch_dtype(t.dtype) for t in manifest.outputs]
        self.uses_seed = manifest.uses_seed
        self.symbols = [(_role(s.input)[1], s.axis) for s in manifest.symbols]
        self._deciding = [k for k, s in enumerate(manifest.symbols) if s.name not in manifest.numbers]
        self._has_numbers = bool(manifest.numbers)
        self.constants = [c.ctypes.data for c in executable.constants]
        self.allocator: Allocator = block_pool.allocator
        self.forms: Mapping[int, Output] = _AS_WRITTEN  # of outputs, by position
        self._memory: dict[tuple[int, ...], CallMemory] = {}
        self._arenas: list[torch.Tensor] = []  # small ones that no call is using

    def memory(self, symbols: tuple[int, ...]) -> CallMemory:
        """What a call with these symbol values needs."""
        deciding = tuple([symbols[k] for k in self._deciding]) if self._has_numbers else symbols
        memory = self._memory.get(deciding)
        if memory is None:
            if len(self._memory) >= KNOWN_SIZES:
                self._memory.clear()
            sizes = self.executable.sizes(symbols)
            memory = self._memory[deciding] = CallMemory(sizes, self.dtypes, self.in_place, self.allocator, self.forms)
        return memory

    def place(self, tensors: list[torch.Tensor]) -> ExecutableEntry:
        """The entry that runs where ``tensors`` are, the inputs of a call; numbers among them are moved there."""
        return self

    def known_memory(self) -> list[CallMemory]:
        """What calls have needed so far, for the latest choices of symbols."""
        return list(self._memory.values())

    def places(self) -> list[ExecutableEntry]:
        """The entries that have run calls, one for each device."""
        return [self]

    def stream(self) -> tuple[int, ...]:
        """The address on which a call now would run its kernels, where the program takes one: its last pointer."""
        return ()

    def wait(self) -> None:
        """Until what was called has run. Raises EarlierCallFailed where kernels of a device have reported something."""

    def invoke(
        self,
        inputs: Sequence[int],
        outputs: Sequence[torch.Tensor],
        saved: torch.Tensor | None,
        seed: int | None,
        symbols: tuple[int, ...],
        arena_bytes: int,
    ) -> None:
        """Run on the addresses of contiguous inputs; ``outputs`` (and ``saved``, by a forward program) are written.

        Raises RunError.
        """
        arena = self._arena(arena_bytes) if arena_bytes else None
        seeds = array("q", (seed,)) if seed is not None else None
        pointers = [*inputs, *self.constants, *[t.data_ptr() for t in outputs]]
        pointers.append(0 if saved is None else saved.data_ptr())
        pointers.append(0 if arena is None else arena.data_ptr())
        pointers.append(0 if seeds is None else seeds.buffer_info()[0])
        run = self.run_in_events if PROFILERS[ACTIVE] else self.executable.run
        run(pointers, symbols)
        if arena is not None and arena_bytes < block_pool.THRESHOLD:
            self._arenas.append(arena)

    def run_in_events(self, pointers: Sequence[int], symbols: tuple[int, ...]) -> None:
        """The same as ``executable.run``, each kernel as an event of ``torch.profiler``."""
        with kernel_events(self.executable.manifest) as mark:
            self.executable.run(pointers, symbols, mark)

    def _arena(self, nbytes: int) -> torch.Tensor:
        """Scratch memory for one call; the pool keeps the large ones."""
        try:
            arena = self._arenas.pop()  # by one thread alone
        except IndexError:
            return block_pool.allocate((nbytes,), torch.uint8)
        return arena if arena.numel() >= nbytes else block_pool.allocate((nbytes,), torch.uint8)


def torch_dtype(name: str) -> torch.dtype:
    """The type of a tensor with these elements; those below 8 bits are one in a byte."""
    return torch.uint8 if re.fullmatch(r"u?int[24]|float[46]_\w+", name) else getattr(torch, name)


def _role(name: str) -> tuple[str, int]:
    kind, _, number = name.partition(":")
    if not number.isdigit():
        raise BuildError(f"a built program names a tensor {name!r}; expected a role such as 'input:0'")
    return kind, int(number)
