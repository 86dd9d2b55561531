"""The programs of a graph pair, called as they are: without autograd, forward then backward."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch

from daceopt.codegen import build
from daceopt.codegen.assemble import KIND, require_program
from daceopt.cost.measure import on_stream
from daceopt.runtime.device_entry import entry_of, place_of
from daceopt.runtime.executable import Executable
from daceopt.store.cache import default_cache

if TYPE_CHECKING:
    from daceopt.ir.control.program import Program
    from daceopt.ir.graph.graph import Graph
    from daceopt.runtime.invocation import ExecutableEntry

Role = tuple[str, int]
Times = dict[str, float]
_TICKS = ("ticks", 0)
_SEED = 0


class BuiltProgram:
    """Built programs of one or both directions; ``profiled`` ones read a clock between their nodes.

    They run where their inputs are, for which they were built: on the host or on a device.
    """

    def __init__(self, entries: Sequence[ExecutableEntry]):
        self._entries = entries

    @classmethod
    def of(
        cls, identity: str, parts: Sequence[tuple[Graph, Mapping[str, str]]], profiled: bool = False
    ) -> BuiltProgram:
        """Build ``parts``, graphs with the roles of their arrays, into the cache. Raises BuildError and Unsupported."""
        from daceopt import libs

        names = build.build(identity, parts, libs.implement, profiled=profiled)
        return cls([entry_of(require_program(name)) for name in names])

    @classmethod
    @contextmanager
    def temporary(cls, program: Program, profiled: bool = False) -> Iterator[BuiltProgram]:
        """Build a program under a name that never comes again, and drop it from the cache at the end."""
        from daceopt import libs

        parts = [(graph, program.roles(graph)) for graph in program.directions()]
        names = build.build(f"temporary {uuid.uuid4()}", parts, libs.implement, profiled=profiled)
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
        return self._run(inputs, gradients or {}, waits=True)[0]

    def runner(self, inputs: Mapping[int, torch.Tensor]) -> Callable[[], object]:
        """What runs each program once, to be measured: on a device it returns the seconds that this takes there."""
        results = self.run(inputs)
        gradients = {k: torch.ones_like(t) for (kind, k), t in results.items() if kind == "output"}

        def call() -> None:
            self._run(inputs, gradients, waits=False)

        device = place_of(self._entries[0].executable.manifest, inputs.values())
        return on_stream(call, ahead=True, device=device) if device.type == "cuda" else call

    def times(self, inputs: Mapping[int, torch.Tensor]) -> list[Times]:
        """The seconds of each node in one call, of each program that was built as a profiled one."""
        return self._run(inputs, {}, waits=True)[1]

    def _run(
        self, inputs: Mapping[int, torch.Tensor], gradients: Mapping[int, torch.Tensor], waits: bool
    ) -> tuple[dict[Role, torch.Tensor], list[Times]]:
        tensors: dict[Role, torch.Tensor] = {("input", k): t for k, t in inputs.items()}
        tensors |= {("grad", k): t for k, t in gradients.items()}
        symbols = tuple(tensors["input", k].shape[axis] for k, axis in self._entries[0].symbols)
        results: dict[Role, torch.Tensor] = {}
        saved, times = None, []
        for k, whole in enumerate(self._entries):
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
            times += [_times(entry, outputs.pop(_TICKS))] if _TICKS in outputs else []
            results |= outputs | written
        return results, times


def _call(
    entry: ExecutableEntry, inputs: Sequence[torch.Tensor], saved: torch.Tensor | None, symbols: tuple[int, ...]
) -> dict[Role, torch.Tensor]:
    memory = entry.memory(symbols)
    outputs = memory.allocate()
    seed = _SEED if entry.uses_seed else None
    entry.invoke([t.data_ptr() for t in inputs], outputs, saved, seed, symbols, memory.arena)
    return dict(zip(entry.outputs, outputs))


def _times(entry: ExecutableEntry, ticks: torch.Tensor) -> Times:
    elapsed = ticks.diff().tolist()
    nodes = entry.executable.manifest.kernels
    return {node.writes[0]: t * 1e-9 for node, t in zip(nodes, elapsed, strict=True)}
