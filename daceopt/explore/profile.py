"""Times of single kernels, from programs that read a clock between their nodes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

from daceopt.codegen.assemble import load_program
from daceopt.errors import BuildError
from daceopt.runtime.invocation import ExecutableEntry
from daceopt.store.cache import key

if TYPE_CHECKING:
    from daceopt.programs.compiled import CompiledPair

Role = tuple[str, int]
Times = dict[str, float]
_TICKS = ("ticks", 0)
_SEED = 0


def profile(pair: CompiledPair, inputs: Mapping[int, torch.Tensor], runs: int = 7) -> list[Times]:
    """The shortest seconds of every node over ``runs`` calls: of the forward, then of the backward program if any.

    ``inputs``: contiguous tensors by position in the trace; gradients of the outputs are ones. A node is named by the
    first array that it writes. The programs are built on the first profile of a pair. Raises BuildError, Unsupported
    and what a run raises.
    """
    entries = _build(pair)
    best: list[Times] = [{} for _ in entries]
    for _ in range(runs):
        for times, known in zip(_run(entries, inputs), best):
            known.update({name: min(t, known.get(name, t)) for name, t in times.items()})
    return best


def _build(pair: CompiledPair) -> list[ExecutableEntry]:
    from daceopt import libs
    from daceopt.codegen import build

    identity = key("profile", *pair.report["programs"])
    names = build.build(identity, pair.graphs.directions(), libs.implement, profiled=True)
    return [ExecutableEntry(_load(name)) for name in names]


def _load(name: str) -> Any:
    program = load_program(name)
    if program is None:
        raise BuildError("the cache loses programs as soon as they are written; see `python -m daceopt doctor`")
    return program


def _run(entries: list[ExecutableEntry], inputs: Mapping[int, torch.Tensor]) -> list[Times]:
    """One call of each program, the backward on what the forward left."""
    tensors: dict[Role, torch.Tensor] = {("input", k): t for k, t in inputs.items()}
    forward, found = entries[0], []
    symbols = tuple(tensors["input", k].shape[axis] for k, axis in forward.symbols)
    allocate = forward.memory(symbols).saved
    saved = None if allocate is None else allocate()
    for entry in entries:
        results = _call(entry, tensors, saved, symbols)
        found.append(_times(entry, results.pop(_TICKS)))
        tensors |= results
        tensors |= {("grad", k): torch.ones_like(t) for (kind, k), t in results.items() if kind == "output"}
    return found


def _call(
    entry: ExecutableEntry, tensors: Mapping[Role, torch.Tensor], saved: torch.Tensor | None, symbols: tuple[int, ...]
) -> dict[Role, torch.Tensor]:
    memory = entry.memory(symbols)
    outputs = memory.allocate()
    seed = _SEED if entry.uses_seed else None
    addresses = [tensors[role].data_ptr() for role in entry.inputs]
    entry.invoke(addresses, outputs, saved, seed, symbols, memory.arena)
    return dict(zip(entry.outputs, outputs))


def _times(entry: ExecutableEntry, ticks: torch.Tensor) -> Times:
    elapsed = ticks.diff().tolist()
    nodes = entry.executable.manifest.kernels
    return {node.writes[0]: t * 1e-9 for node, t in zip(nodes, elapsed, strict=True)}
