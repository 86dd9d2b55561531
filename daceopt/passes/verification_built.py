"""The last check of ``verify="numerics"``: what was compiled runs on the inputs of the recipe's checks, and its results
are compared with those of the interpreter for the very graphs that were built.

The backward program is fed what the compiled forward left, and so is its reference: where a gradient hangs on a
comparison, both decide on the same numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from math import prod

import ml_dtypes
import numpy as np

from daceopt.codegen import memory_plan, trial
from daceopt.errors import EarlierCallFailed, RunError, VerificationError
from daceopt.ir.graph.graph import Graph
from daceopt.ir.interpreter.buffers import Memory, as_strided
from daceopt.ir.interpreter.interpret import interpret
from daceopt.ir.scalar import types
from daceopt.passes import reproducer
from daceopt.passes.feeds import random_inputs
from daceopt.passes.rounding import disturbed_errors, relative_error, within_rounding
from daceopt.runtime.device_precision import exact
from daceopt.runtime.executable import Executable

Arrays = dict[str, np.ndarray]
_THREADS = 4
_NARROW_ULPS = 2.0  # of a result that is rounded once more when it is stored


@dataclass(frozen=True)
class Built:
    """A graph with the roles of its arrays at the boundary, and the program that it became."""

    graph: Graph
    roles: Mapping[str, str]
    program: Executable


@dataclass(frozen=True)
class Difference:
    """What a program does that its graph does not say."""

    built: Built
    message: str


def check(forward: Built, *backward: Built, inputs: Mapping[str, np.ndarray] | None = None) -> None:
    """Raise VerificationError, with a reproducer, when a result is not what the graph says, within rounding.

    ``backward``: the program of the gradients, if there is one. ``inputs``: array name -> values, random where absent,
    as for the recipe.
    """
    difference = compare(forward, *backward, inputs=inputs)
    if difference is None:
        return
    feeds = {**random_inputs(forward.graph), **(inputs or {})}
    parts = [(built.graph, built.roles) for built in (forward, *backward)]
    name, source = difference.built.graph.name, difference.built.program.source()
    file = reproducer.of_programs(name, difference.message, parts, feeds, source)
    raise VerificationError(f"{difference.message}; reproducer in {file}")


def compare(forward: Built, *backward: Built, inputs: Mapping[str, np.ndarray] | None = None) -> Difference | None:
    """The first result that is not what the graph says, or None; arguments as for :func:`check`."""
    try:
        _compare_all(forward, backward, inputs)
    except _Differs as error:
        return Difference(error.built, f"the compiled program of graph {error.built.graph.name}: {error}")
    return None


class _Differs(Exception):
    def __init__(self, built: Built, what: str):
        super().__init__(what)
        self.built = built


def _compare_all(forward: Built, backward: Sequence[Built], inputs: Mapping[str, np.ndarray] | None) -> None:
    feeds = {**random_inputs(forward.graph), **(inputs or {})}
    inputs_of = {role: feeds[name] for name, role in forward.roles.items() if name in feeds}
    first = _run(forward, inputs_of)
    saved = _unpack(forward.graph, feeds, first.saved)
    _compare(forward, feeds, first.outputs, saved)
    for built in backward:
        inputs_of |= {r: a for r, a in first.outputs.items() if r not in inputs_of} | _gradients(built, first.outputs)
        names = {name: inputs_of[role] for name, role in built.roles.items() if role in inputs_of}
        names |= dict(zip(built.graph.saved, saved.values(), strict=True))
        _compare(built, names, _run(built, inputs_of, first.saved).outputs, {})


def _run(built: Built, arrays: Arrays, saved: np.ndarray | None = None) -> trial.Trial:
    libraries = exact() if built.program.manifest.has_stream else nullcontext()  # TF32 is a setting of calls
    try:
        with _several_threads(), libraries:
            return trial.run(built.program, arrays, saved)
    except (RunError, EarlierCallFailed) as error:
        raise _Differs(built, str(error)) from error


@contextmanager
def _several_threads() -> Iterator[None]:
    """Threads that race for memory are seen where there are several, whatever this process is set to."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(max(before, _THREADS))
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _gradients(backward: Built, outputs: Arrays) -> Arrays:
    """Random gradients of the forward's outputs, by role."""
    generator = np.random.default_rng(1)
    roles = sorted(role for role in backward.roles.values() if role.startswith("grad:"))
    like = {role: outputs[role.replace("grad", "output", 1)] for role in roles}
    return {role: generator.standard_normal(a.shape).astype(a.dtype) for role, a in like.items()}


def _unpack(graph: Graph, feeds: Arrays, block: np.ndarray | None) -> Arrays:
    """The arrays that a forward program left in its saved block, by name."""
    if block is None:
        return {}
    sizes, offsets = Memory(graph, feeds, False), memory_plan.saved_offsets(graph, graph.saved)[0]
    result = {}
    for name, offset in offsets.items():
        dtype, shape = types.to_numpy(graph.dtype(name)), [sizes.number(n) for n in graph.shape(name)]
        start, span = sizes.number(offset), sizes.number(graph.desc(name).total_size) * dtype.itemsize
        flat = block[start : start + span].view(dtype)
        strides = [sizes.number(n) for n in graph.strides(name)]
        result[name] = as_strided(flat, shape, strides).copy() if prod(shape) else np.empty(shape, dtype)
    return result


def _compare(built: Built, feeds: Arrays, outputs: Arrays, saved: Arrays) -> None:
    """Hold each output, and each saved array, against the interpreter in float64 and in the graph's own types."""
    exact, peer = _interpret(built.graph, feeds, np.float64), _interpret(built.graph, feeds, None)
    results = {name: outputs[built.roles[name]] for name in built.graph.outputs} | saved
    for name, ours in results.items():
        if not _is_explained(ours, exact[name], peer[name]) and not _is_disturbed(
            built.graph, feeds, name, ours, exact
        ):
            raise _Differs(built, _difference(built.roles.get(name, "saved"), name, ours, exact[name], peer[name]))


def _interpret(graph: Graph, feeds: Arrays, dtype: type | None) -> Arrays:
    import daceopt.ops  # noqa: F401  (registers how library nodes and operators are interpreted)

    return interpret(graph, feeds, dtype)


def _is_explained(ours: np.ndarray, exact: np.ndarray, peer: np.ndarray) -> bool:
    """Does rounding explain the result? One that is the interpreter's own in the same types is right, too: where
    values decide something, both decide alike."""
    floating = types.is_float(types.from_numpy(ours.dtype))
    error, theirs, apart = relative_error(ours, exact), relative_error(peer, exact), relative_error(ours, peer)
    narrow = _NARROW_ULPS * float(ml_dtypes.finfo(ours.dtype).eps) if floating and ours.dtype.itemsize < 4 else 0.0
    return (
        min(error, apart) <= narrow or within_rounding(error, theirs, floating) or within_rounding(apart, 0, floating)
    )


def _is_disturbed(graph: Graph, feeds: Arrays, name: str, ours: np.ndarray, exact: Arrays) -> bool:
    """Do other roundings of the graph explain the result, where terms cancel?"""
    if not types.is_float(types.from_numpy(ours.dtype)):
        return False
    named = {n: exact[n] for n in [*graph.outputs, *graph.saved]}
    return within_rounding(relative_error(ours, exact[name]), disturbed_errors(graph, feeds, named)[name])


def _difference(role: str, name: str, ours: np.ndarray, exact: np.ndarray, peer: np.ndarray) -> str:
    where = f"{role} ({name})"
    if ours.shape != exact.shape:
        return f"{where} has shape {ours.shape}, the graph says {exact.shape}"
    index = _worst(ours, exact)
    error, theirs = relative_error(ours, exact), relative_error(peer, exact)
    return (
        f"{where} is {ours[index]} at {list(index)}, the graph says {exact[index]} in float64 and {peer[index]} in its "
        f"own types; relative error {error:.3e}, that of the graph {theirs:.3e}"
    )


def _worst(ours: np.ndarray, exact: np.ndarray) -> tuple[int, ...]:
    """Where the two differ most; a NaN or an infinity in one of them comes first."""
    with np.errstate(invalid="ignore", over="ignore"):
        apart = np.abs(ours.astype(np.float64) - exact.astype(np.float64))
    same = (ours == exact) | (np.isnan(ours.astype(np.float64)) & np.isnan(exact.astype(np.float64)))
    apart = np.where(same, 0.0, np.nan_to_num(apart, nan=np.inf))
    return tuple(int(k) for k in np.unravel_index(int(apart.argmax()), apart.shape))
