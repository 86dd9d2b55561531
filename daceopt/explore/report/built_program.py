"""The programs of a graph pair, called as they are: without autograd, forward then backward."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING

import torch

from daceopt.codegen import build
from daceopt.codegen.assemble import KIND, require_program
from daceopt.cost.measure import on_stream
from daceopt.runtime.device_entry import entry_of, place_of
from daceopt.runtime.executable import Executable, TimedExecutable
from daceopt.store.cache import default_cache

if TYPE_CHECKING:
    from daceopt.ir.control.program import Program
    from daceopt.programs.compiled import CompiledPair
    from daceopt.runtime.invocation import ExecutableEntry

Role = tuple[str, int]
Times = dict[str, float]
_SEED = 0


class BuiltProgram:
    """Built programs of one or both directions.

    They run where their inputs are, for which they were built: on the host or on a device.
    """

    def __init__(self, entries: Sequence[ExecutableEntry]):
        self._entries = entries

    @classmethod
    def of(cls, pair: CompiledPair) -> BuiltProgram:
        """Both directions of a compiled program, or the one that it has."""
        return cls([entry_of(program) for program in (pair.forward, pair.backward) if program is not None])

    @classmethod
    @contextmanager
    def temporary(cls, program: Program) -> Iterator[BuiltProgram]:
        """Build a program under a name that never comes again, and drop it from the cache at the end."""
        from daceopt import libs

        parts = [(graph, program.roles(graph)) for graph in program.directions()]
        names = build.build(f"temporary {uuid.uuid4()}", parts, libs.implement)
        try:
            yield cls([entry_of(require_program(name)) for name in names])
        finally:
            for name in names:
                default_cache().discard(KIND, name)

    def executables(self) -> list[Executable]:
        """What was built, in order."""
        return [entry.executable for entry in self._entries]

    def run(
        self, inputs: Mapping[int, torch.Tensor], gradients: Mapping[int, torch.Tensor] | None = None
    ) -> dict[Role, torch.Tensor]:
        """One call of each program, the backward on what the forward left; their results by role, once they are there.

        ``inputs``: contiguous tensors by position in the trace. ``gradients``: those of the outputs by position; ones
        where they are not given. Raises what a run raises, and EarlierCallFailed for what a device has reported.
        """
        return self._run(self._entries, inputs, gradients or {}, waits=True)

    def runner(self, inputs: Mapping[int, torch.Tensor]) -> Callable[[], object]:
        """What runs each program once, to be measured: on a device it returns the seconds that this takes there."""
        results = self.run(inputs)
        gradients = {k: torch.ones_like(t) for (kind, k), t in results.items() if kind == "output"}

        def call() -> None:
            self._run(self._entries, inputs, gradients, waits=False)

        device = place_of(self._entries[0].executable.manifest, inputs.values())
        return on_stream(call, ahead=True, device=device) if device.type == "cuda" else call

    def times(self, inputs: Mapping[int, torch.Tensor]) -> list[Times]:
        """The seconds of each node in one call of each program, by the first array that it writes."""
        self._run([entry for entry, _ in self._timed], inputs, {}, waits=True)
        return [dict(zip((k.writes[0] for k in e.manifest.kernels), e.seconds, strict=True)) for _, e in self._timed]

    @cached_property
    def _timed(self) -> list[tuple[ExecutableEntry, TimedExecutable]]:
        timed = [TimedExecutable(entry.executable) for entry in self._entries]
        return [(entry_of(executable), executable) for executable in timed]

    def _run(
        self,
        entries: Sequence[ExecutableEntry],
        inputs: Mapping[int, torch.Tensor],
        gradients: Mapping[int, torch.Tensor],
        waits: bool,
    ) -> dict[Role, torch.Tensor]:
        tensors: dict[Role, torch.Tensor] = {("input", k): t for k, t in inputs.items()}
        tensors |= {("grad", k): t for k, t in gradients.items()}
        symbols = tuple(tensors["input", k].shape[axis] for k, axis in entries[0].symbols)
        results: dict[Role, torch.Tensor] = {}
        saved = None
        for k, whole in enumerate(entries):
            ones = {("grad", k): torch.ones_like(t) for (kind, k), t in results.items() if kind == "output"}
            arrays = {**ones, **tensors, **results}
            operands = [arrays[role] for role in whole.inputs]
            entry = whole.place(operands)
            if k == 0 and (allocate := entry.memory(symbols).saved) is not None:
                saved = allocate()
            outputs = _call(entry, operands, saved, symbols)
            if waits:
                entry.wait()
            written = {entry.outputs[o]: tensors["input", at] for o, at in entry.in_place.items()}
            results |= outputs | written
        return results


def _call(
    entry: ExecutableEntry, inputs: Sequence[torch.Tensor], saved: torch.Tensor | None, symbols: tuple[int, ...]
) -> dict[Role, torch.Tensor]:
    memory = entry.memory(symbols)
    outputs = memory.allocate()
    seed = _SEED if entry.uses_seed else None
    entry.invoke([t.data_ptr() for t in inputs], outputs, saved, seed, symbols, memory.arena)
    return dict(zip(entry.outputs, outputs))
