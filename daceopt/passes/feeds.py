"""Values on which graphs are executed for checks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import sympy

    from daceopt.ir.graph.graph import Graph

_SIZES = (3, 2, 1, 7, 16, 50, 128, 300)


def random_inputs(graph: Graph, seed: int = 0) -> dict[str, np.ndarray]:
    """Normal floats and zero-or-one integers for every input; size symbols become small numbers."""
    from daceopt.ir.scalar import types

    generator = np.random.default_rng(seed)
    sizes = _sizes(graph)
    arrays = {}
    for name in graph.inputs:
        shape = [int(d) if isinstance(d, int) else int(d.subs(_by_name(d, sizes))) for d in graph.shape(name)]
        dtype = types.to_numpy(graph.dtype(name))
        if dtype.kind == "f":
            arrays[name] = generator.standard_normal(shape).astype(dtype)
        else:
            arrays[name] = generator.integers(0, 2, shape).astype(dtype)
    return arrays


def _sizes(graph: Graph) -> dict[str, int]:
    """Small numbers for the size symbols, the first found for which the graph's assumptions hold."""
    choices = [{s: first + k * apart for k, s in enumerate(graph.symbols)} for apart in (1, 0) for first in _SIZES]
    fitting = (c for c in choices if all(a.subs(_by_name(a, c)) >= 0 for a in graph.assumptions))
    return next(fitting, choices[0])


def _by_name(expr: sympy.Expr, sizes: dict[str, int]) -> dict[sympy.Symbol, int]:
    return {s: sizes[str(s)] for s in expr.free_symbols}


def needed_inputs(graph: Graph, arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Those of ``arrays`` that an execution of ``graph`` asks for: its inputs, and what says its sizes."""
    from daceopt.ir.data.arrays import SEED

    needed = [*graph.inputs, *(name for name, _ in graph.symbols.values()), SEED]
    return {name: arrays[name] for name in dict.fromkeys(needed) if name in arrays}
