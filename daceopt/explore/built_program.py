"""The programs of a graph pair, called as they are: without autograd, forward then backward."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from daceopt.codegen import build
from daceopt.codegen.assemble import KIND, load_program
from daceopt.errors import BuildError
from daceopt.runtime.invocation import ExecutableEntry
from daceopt.store.cache import default_cache

if TYPE_CHECKING:
    from daceopt.ir.graph import Graph
    from daceopt.ir.program import Program

Role = tuple[str, int]
Times = dict[str, float]
_TICKS = ("ticks", 0)
_SEED = 0


class BuiltProgram:
    """Built programs of one or both directions; ``profiled`` ones read a clock between their nodes."""

    def __init__(self, entries: Sequence[ExecutableEntry]):
        self._entries = entries

    @classmethod
    def of(
        cls, identity: str, parts: Sequence[tuple[Graph, Mapping[str, str]]], profiled: bool = False
    ) -> BuiltProgram:
        """Build ``parts``, graphs with the roles of their arrays, into the cache. Raises BuildError and Unsupported."""
        from daceopt import libs

        names = build.build(identity, parts, libs.implement, profiled=profiled)
        return cls([ExecutableEntry(_load(name)) for name in names])

    @classmethod
    @contextmanager
    def temporary(cls, program: Program, profiled: bool = False) -> Iterator[BuiltProgram]:
        """Build a program under a name that never comes again, and drop it from the cache at the end."""
        from daceopt import libs

        parts = [(graph, program.roles(graph)) for graph in program.directions()]
        names = build.build(f"temporary {uuid.uuid4()}", parts, libs.implement, profiled=profiled)
        try:
            yield cls([ExecutableEntry(_load(name)) for name in names])
        finally:
            for name in names:
                default_cache().discard(KIND, name)

    def executables(self) -> list[Any]:
        """What was built, in order."""
        return [entry.executable for entry in self._entries]

    def run(
        self, inputs: Mapping[int, torch.Tensor], gradients: Mapping[int, torch.Tensor] | None = None
    ) -> dict[Role, torch.Tensor]:
        """One call of each program, the backward on what the forward left; their results by role.

        ``inputs``: contiguous tensors by position in the trace. ``gradients``: those of the outputs by position; ones
        where they are not given.
        """
        return self._run(inputs, gradients or {})[0]

    def times(self, inputs: Mapping[int, torch.Tensor]) -> list[Times]:
        """The seconds of each node in one call, of each program that was built as a profiled one."""
        return self._run(inputs, {})[1]

    def _run(
        self, inputs: Mapping[int, torch.Tensor], gradients: Mapping[int, torch.Tensor]
    ) -> tuple[dict[Role, torch.Tensor], list[Times]]:
        tensors: dict[Role, torch.Tensor] = {("input", k): t for k, t in inputs.items()}
        tensors |= {("grad", k): t for k, t in gradients.items()}
        forward, times = self._entries[0], []
        symbols = tuple(tensors["input", k].shape[axis] for k, axis in forward.symbols)
        allocate = forward.memory(symbols).saved
        saved = None if allocate is None else allocate()
        results: dict[Role, torch.Tensor] = {}
        for entry in self._entries:
            ones = {("grad", k): torch.ones_like(t) for (kind, k), t in results.items() if kind == "output"}
            made = _call(entry, {**ones, **tensors, **results}, saved, symbols)
            times += [_times(entry, made.pop(_TICKS))] if _TICKS in made else []
            results |= made
        return results, times


def _load(name: str) -> Any:
    program = load_program(name)
    if program is None:
        raise BuildError("the cache loses programs as soon as they are written; see `python -m daceopt doctor`")
    return program


def _call(
    entry: ExecutableEntry, tensors: Mapping[Role, torch.Tensor], saved: torch.Tensor | None, symbols: tuple[int, ...]
) -> dict[Role, torch.Tensor]:
    memory = entry.memory(symbols)
    outputs = memory.allocate()
    seed = _SEED if entry.uses_seed else None
    addresses = [tensors[role].data_ptr() for role in entry.inputs]
    entry.invoke(addresses, outputs, saved, seed, symbols, memory.arena)
    results = dict(zip(entry.outputs, outputs))
    written = {entry.outputs[k]: tensors["input", position] for k, position in entry.in_place.items()}
    return {**results, **written}


def _times(entry: ExecutableEntry, ticks: torch.Tensor) -> Times:
    elapsed = ticks.diff().tolist()
    nodes = entry.executable.manifest.kernels
    return {node.writes[0]: t * 1e-9 for node, t in zip(nodes, elapsed, strict=True)}
