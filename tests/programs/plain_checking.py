"""Graphs as plain DaCe runs them, in a process of its own, beside the interpreter in float64."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

import daceopt.ops  # noqa: F401  (how nodes are executed)
from daceopt.ir.graph.graph import Graph
from daceopt.ir.interpreter.interpret import interpret
from daceopt.ir.scalar import types
from daceopt.passes.feeds import random_inputs
from daceopt.passes.rounding import disturbed_errors, relative_error, within_rounding
from daceopt.programs.plain import plain

_SCRIPT = Path(__file__).with_name("plain_run.py")


def check(folder: Path, graphs: Mapping[str, Graph], feeds: Mapping[str, Mapping[str, Any]] | None = None) -> None:
    """All outputs and saved arrays of each graph, run by plain DaCe, are those of the graph, within rounding."""
    given = {name: {**random_inputs(graph), **(feeds or {}).get(name, {})} for name, graph in graphs.items()}
    for name, graph in graphs.items():
        _write(folder / name, graph, given[name])
    run(folder)
    for name, graph in graphs.items():
        found = dict(np.load(folder / f"{name}-out.npz"))
        exact, peer = interpret(graph, given[name], np.float64), interpret(graph, given[name])
        for array in (*graph.outputs, *graph.saved):
            ours = _own(found[array], graph, array, exact[array].shape)
            narrow = types.is_narrow(graph.dtype(array))
            error, theirs = relative_error(ours, exact[array]), relative_error(peer[array], exact[array])
            if within_rounding(error, theirs) or (narrow and error < 2.0**-7):
                continue
            other = disturbed_errors(graph, given[name], {array: exact[array]})[array]
            assert within_rounding(error, other), (
                f"{name}: {array} has error {error}; rounding explains {theirs}, {other}"
            )


def run(folder: Path) -> None:
    """Run what stands in ``folder``."""
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"} | {
        "DACE_compiler_allow_view_arguments": "1"
    }
    command = [sys.executable, str(_SCRIPT), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, f"{done.stdout[-2000:]}{done.stderr[-6000:]}"


def _write(path: Path, graph: Graph, feeds: Mapping[str, Any]) -> None:
    made = plain(graph)
    made.sdfg.validate()
    made.sdfg.save(str(path.with_suffix(".sdfg")))
    sizes = {s: np.int64(np.shape(feeds[name])[axis]) for s, (name, axis) in graph.symbols.items() if name in feeds}
    arrays = {n: v for n, v in {**feeds, **made.constants}.items() if n in made.sdfg.arrays}
    for name, desc in made.sdfg.arrays.items():
        if not desc.transient and name not in arrays:
            arrays[name] = np.zeros([_number(d, sizes) for d in desc.shape], desc.dtype.type)
    values = {n: _laid_out(np.asarray(v), made.sdfg.arrays[n], sizes) for n, v in arrays.items()}
    np.savez(path.with_suffix(".npz"), **values, **{k: v for k, v in sizes.items() if k not in values})


def _number(extent: Any, sizes: Mapping[str, Any]) -> int:
    if isinstance(extent, int):
        return extent
    return int(extent.subs({s: int(sizes[str(s)]) for s in extent.free_symbols}))


def _laid_out(value: np.ndarray, desc: Any, sizes: Mapping[str, Any]) -> np.ndarray:
    """The array as it stands in memory, flat where that is not row-major."""
    shape = [_number(d, sizes) for d in desc.shape]
    strides = [_number(s, sizes) for s in desc.strides]
    raw = value.reshape(shape).view(desc.dtype.type) if value.dtype.kind == "V" else value.reshape(shape)
    flat = np.zeros(_number(desc.total_size, sizes), desc.dtype.type)
    np.lib.stride_tricks.as_strided(flat, shape, [s * flat.itemsize for s in strides])[...] = raw
    return flat.reshape(shape) if flat.size == int(np.prod(shape)) else flat


def _own(found: np.ndarray, graph: Graph, name: str, shape: tuple[int, ...]) -> np.ndarray:
    sizes = {str(s): n for s, n in zip(graph.shape(name), shape) if not isinstance(s, int)}
    strides = [_number(s, sizes) for s in graph.strides(name)]
    flat = found.reshape(-1).view(types.to_numpy(graph.dtype(name)))
    return np.lib.stride_tricks.as_strided(
        flat.view(f"u{flat.itemsize}"), shape, [s * flat.itemsize for s in strides]
    ).view(flat.dtype)
