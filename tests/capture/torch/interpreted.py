"""Programs that the interpreter runs instead of compiled code: fast to make, so that rules can be tried in hundreds."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from daceopt import libs, pipeline
from daceopt.codegen import build
from daceopt.ir.data.arrays import SEED
from daceopt.ir.graph.graph import Graph
from daceopt.ir.interpreter.interpret import interpret
from daceopt.ir.scalar import types
from daceopt.programs.compiled import CompiledPair, report
from daceopt.runtime.executable import ProgramSizes

_saved: dict[int, dict[str, np.ndarray]] = {}  # address of a saved block -> what a forward left there


def compile_interpreted(fingerprint: str, load: Callable[[], Any], through: Any = "none", **_: Any) -> Any:
    """Stands in for ``pipeline.compile_graph``: both directions interpreted, after the recipe ``through``."""
    source = pipeline.source_of(load, through)
    source.graphs = graphs = source.derive()
    forward, *backward = [Interpreted(g, roles, graphs.forward.saved) for g, roles in graphs.directions()]
    made = report(graphs, [])
    return CompiledPair(made, forward, backward[0] if backward else None, source)  # type: ignore[arg-type]


def compile_printed(fingerprint: str, load: Callable[[], Any], **_: Any) -> Any:
    """As ``compile_interpreted``; both directions are printed as C++ too, which may refuse what can be interpreted."""
    for k, (graph, roles) in enumerate(pipeline.source_of(load, "none").derive().directions()):
        build.GeneratedProgram(graph, roles, libs.implement, k)
    return compile_interpreted(fingerprint, load)


class Interpreted:
    """One direction; looks like a built program to the bridge."""

    def __init__(self, graph: Graph, roles: dict[str, str], saved: Sequence[str]) -> None:
        self.graph, self.roles, self.saved = graph, roles, list(saved)
        self.inputs = [n for n in graph.inputs if n in roles]
        self.constants: tuple[np.ndarray, ...] = ()
        self.symbols = list(graph.symbols)
        self.sources = SimpleNamespace(whole=lambda: str(id(self)))  # code of its own: it is none of another's
        self.manifest = SimpleNamespace(
            inputs=[self._tensor(n) for n in self.inputs],
            outputs=[self._tensor(n) for n in graph.outputs],
            symbols=[SimpleNamespace(name=s, input=roles[a], axis=k) for s, (a, k) in graph.symbols.items()],
            uses_seed=graph.uses_seed,
            saves=bool(saved),
            consumes=False,
            assumptions=(),
            numbers=(),
            has_stream=False,
        )
        graph.symbols = {}  # their values come with each call, also where the program does not read the input

    def _tensor(self, name: str) -> Any:
        return SimpleNamespace(
            name=self.roles[name],
            dtype=types.name_of(self.graph.dtype(name)),
            rank=len(self.graph.shape(name)),
            in_place=None,
        )

    def sizes(self, symbols: tuple[int, ...] = ()) -> ProgramSizes:
        shapes = tuple(self._shape(n, symbols) for n in self.graph.outputs)
        return ProgramSizes(0, 8 if self.saved else 0, shapes)

    def _shape(self, name: str, symbols: tuple[int, ...]) -> tuple[int, ...]:
        values = dict(zip(self.symbols, symbols))
        shape = self.graph.shape(name)
        return tuple(
            e if isinstance(e, int) else int(e.subs({s: values[str(s)] for s in e.free_symbols})) for e in shape
        )

    def run(self, pointers: Sequence[int], symbols: tuple[int, ...] = ()) -> None:
        given = list(pointers)
        values = {n: self._array(n, given.pop(0), symbols).copy() for n in self.inputs}
        results = {n: self._array(n, given.pop(0), symbols) for n in self.graph.outputs}
        block, _, seed = given
        missing = [n for n in self.graph.inputs if n not in values]
        if missing:
            left = list(_saved[block].values())
            values |= {n: left[self.graph.saved.index(n)] for n in missing if n in self.graph.saved}
        if seed:
            values[SEED] = np.ctypeslib.as_array((ctypes.c_int64 * 1).from_address(seed)).copy()
        found = interpret(self.graph, values, sizes=dict(zip(self.symbols, symbols)))
        for name, array in results.items():
            array[...] = found[name].reshape(array.shape)
        if self.graph.saved and not missing:
            _saved[block] = {n: found[n] for n in self.graph.saved}

    def _array(self, name: str, address: int, symbols: tuple[int, ...]) -> np.ndarray:
        dtype, shape = types.to_numpy(self.graph.dtype(name)), self._shape(name, symbols)
        size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        if not size:
            return np.empty(shape, dtype)
        raw = (ctypes.c_byte * size).from_address(address)
        return np.frombuffer(raw, dtype).reshape(shape)
