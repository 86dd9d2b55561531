"""Graphs of kernels for the tests: built at random or by hand, executed before and after a transformation."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import prod
from typing import Any

import dace
import numpy as np
import sympy
import torch

from daceopt import ops as _ops  # noqa: F401  (says how library nodes are interpreted)
from daceopt.ir.data.arrays import SEED
from daceopt.ir.graph.graph import Graph
from daceopt.ir.interpreter.interpret import interpret
from daceopt.ir.kernel.kernel import Kernel
from daceopt.ir.nodes.builder import Builder
from daceopt.ir.scalar import scalar
from daceopt.passes.transform import Outcome, Transformation
from daceopt.transformations.hardware.loop_fusion import LoopFusion
from daceopt.transformations.hardware.micro_kernel_call import MicroKernelCall
from daceopt.transformations.hardware.vectorization import Vectorization
from tests.numerics import assert_within_rounding

F = dace.float32
ULPS = 256.0  # of float64: a fused kernel may add in another order
BATCH = 3  # the value of every size symbol
SPECIAL = (np.nan, np.inf, -np.inf, -0.0)
Arrays = dict[str, np.ndarray]


def start(*shapes: tuple[Any, ...], dtype: Any = F) -> tuple[Graph, Builder, list[str]]:
    """A graph, its builder, and the names of inputs of these shapes (``n`` may be the size symbol of axis 0)."""
    graph = Graph("test")
    names = [graph.add_input("x", s, dtype) for s in shapes]
    for name in names:
        for axis, extent in enumerate(graph.shape(name)):
            if not isinstance(extent, int):
                graph.symbols.setdefault(str(extent), (name, axis))
    return graph, Builder(graph, "k"), names


def schedule_tiles(graph: Graph) -> list[str]:
    """Schedule kernels with serial loops or tiles of their own as recipes do, but for threads; the sites."""
    return [site for step in (MicroKernelCall(), LoopFusion(), Vectorization()) for site in step.run(graph).sites]


def size_symbol() -> Any:
    return dace.symbolic.symbol("n", dace.int64)


def finish(graph: Graph, *outputs: str) -> Graph:
    """Declare the outputs; views are copied."""
    for name in outputs:
        graph.add_output(Builder(graph, "out").copy(name) if graph.is_view(name) else name)
    return graph


def feeds(graph: Graph, special: bool = False) -> Arrays:
    """Random inputs; ``special`` puts NaN, infinities and -0 into every float array."""
    rng = np.random.default_rng(5)
    found: Arrays = {SEED: np.array([1234])} if graph.uses_seed else {}
    for name in graph.inputs:
        value = rng.standard_normal([n if isinstance(n, int) else BATCH for n in graph.shape(name)]).astype(np.float32)
        if special:
            flat = value.reshape(-1)
            flat[: len(SPECIAL)] = SPECIAL[: flat.size]
        found[name] = value
    return found


def values(graph: Graph, special: bool = False, dtype: Any = np.float64) -> list[np.ndarray]:
    """The outputs, in order."""
    with np.errstate(all="ignore"):
        done = interpret(graph, feeds(graph, special), dtype=dtype)
    return [done[name] for name in graph.outputs]


def assert_same(before: Graph, after: Graph, special: bool = False) -> None:
    """Both compute the same in float64."""
    for ours, theirs in zip(values(after, special), values(before, special), strict=True):
        assert_within_rounding(ours, theirs, ulps=ULPS)


def apply(transformation: Transformation, graph: Graph, special: bool = False) -> Outcome:
    """Run on ``graph``; it stays valid and computes the same."""
    before = graph.copy()
    outcome = transformation.run(graph)
    graph.validate()
    assert_same(before, graph, special)
    return outcome


def kernels(graph: Graph) -> list[Kernel]:
    return [k.kernel for k in graph.kernels()]


def misses(outcome: Outcome) -> str:
    """All near misses of a run that may not have applied anywhere."""
    assert outcome.sites == []
    return "\n".join(outcome.near_misses)


# ---------------------------------------------------------------- random graphs

N = size_symbol()
SHAPES = [(4, 6), (6,), (4, 1), (2, 3, 4), (1, 6), (2, 2, 6), (N, 6), (N, 1), ()]
UNARY: list[Callable[[Any], Any]] = [
    lambda v: v + 1,
    lambda v: scalar.maximum(v, 0),
    sympy.tanh,
    lambda v: scalar.select(scalar.le(v, 0), 0, v),
]
BINARY: list[Callable[[Any, Any], Any]] = [
    lambda u, v: u + v,
    lambda u, v: u - 2 * v,
    scalar.maximum,
    lambda u, v: u * sympy.tanh(v),
]


class RandomGraph:
    """Interprets tuples of four numbers as builder calls: a kind, a variant, and two operands."""

    def __init__(self, shapes: Sequence[tuple[Any, ...]], steps: Sequence[tuple[int, int, int, int]]):
        self.graph, self.b, self.names = start(*shapes)
        makers = self.makers()
        for kind, variant, left, right in steps:
            x, y = self.names[-1 - left % len(self.names)], self.names[-1 - right % len(self.names)]
            made = list(makers[kind % len(makers)](variant, x, y))
            self.names += [n for n in made if self._small(n)]
        self._declare_outputs(steps[0][2])

    def makers(self) -> list[Any]:
        """What a step may be, by its kind."""
        return [
            *(self.unary, self.binary, self.binary, self.reduce, self.transpose, self.reshape, self.slice),
            *(self.expand, self.pair, self.gather, self.noise, self.matmul),
        ]

    def _declare_outputs(self, also: int) -> None:
        """The last array, one in the middle, and everything that nothing reads."""
        unread = [n for n in self.names if not self.graph.all_consumers(n) and not self.graph.views_of(n)]
        chosen = [self.names[-1], self.names[also % len(self.names)], *unread]
        taken = [*self.graph.inputs]
        for name in dict.fromkeys(chosen):
            finish(self.graph, self.b.copy(name) if name in taken else name)

    def _small(self, name: str) -> bool:
        return prod(n if isinstance(n, int) else BATCH for n in self._shape(name)) <= 2000

    def _shape(self, name: str) -> tuple[Any, ...]:
        return self.graph.shape(name)

    def unary(self, variant: int, x: str, y: str) -> Iterator[str]:
        yield self.b.elementwise(UNARY[variant % len(UNARY)], x)

    def binary(self, variant: int, x: str, y: str) -> Iterator[str]:
        try:
            yield self.b.elementwise(BINARY[variant % len(BINARY)], x, y)
        except ValueError:  # shapes that do not broadcast
            return

    def pair(self, variant: int, x: str, y: str) -> Iterator[str]:
        yield from self.b.elementwise(lambda v: (sympy.tanh(v), v * 2), x)

    def reduce(self, variant: int, x: str, y: str) -> Iterator[str]:
        rank = len(self._shape(x))
        axes = [k for k in range(rank) if variant >> k & 1] or [rank - 1]
        if rank:
            yield self.b.reduce(("sum", "max")[variant % 2], None, x, axes=axes, keepdims=variant % 3 != 0)

    def transpose(self, variant: int, x: str, y: str) -> Iterator[str]:
        rank = len(self._shape(x))
        if rank > 1:
            order = [(k + 1 + variant) % rank for k in range(rank)]
            yield self.b.transpose(x, order[::-1] if variant % 2 else order)

    def reshape(self, variant: int, x: str, y: str) -> Iterator[str]:
        shape = self._shape(x)
        if not all(isinstance(n, int) for n in shape):
            if len(shape) == 2 and shape[1] == 6:
                yield self.b.reshape(x, [(6 * shape[0],), (shape[0], 2, 3), (shape[0], 1, 6)][variant % 3])
            return
        size = prod(shape)
        choices = [(size,), (1, size), *((n, size // n) for n in (2, 3, 4) if size % n == 0)]
        choices += [(2, size // 4, 2)] if size % 4 == 0 else []
        yield self.b.reshape(x, choices[variant % len(choices)])

    def slice(self, variant: int, x: str, y: str) -> Iterator[str]:
        shape = self._shape(x)
        axes = [k for k, n in enumerate(shape) if isinstance(n, int) and n > 1]
        if not axes:
            return
        axis = axes[variant % len(axes)]
        length = shape[axis]
        half = length // 2
        bounds = [(0, half, 1), (length - half, length, 1), (0, length, 2), (length - 1, -1, -1), (0, 1, 1)]
        begin, end, step = bounds[variant % len(bounds)]
        yield self.b.slice(x, [begin], [end], [step], [axis])

    def expand(self, variant: int, x: str, y: str) -> Iterator[str]:
        try:
            yield self.b.expand(x, [(4, 6), (2, 4, 6), (2, 3, 4), (5, *self._shape(x))][variant % 4])
        except ValueError:
            return

    def gather(self, variant: int, x: str, y: str) -> Iterator[str]:
        """Rows of ``x`` in an order that only the run knows."""
        shape = self._shape(x)
        if not shape or not all(isinstance(n, int) for n in shape):
            return
        rows = self.graph.add_constant("rows", np.arange(shape[0])[:: -1 if variant % 2 else 1] // 2)
        out = self.graph.add_array("gathered", shape, F)
        whole = lambda *i: tuple(None for _ in shape)  # noqa: E731
        reads = {"a": (x, whole), "r": (rows, lambda *i: (i[0],)), "v": (x, lambda *i: i)}
        reads = reads if variant % 3 else {k: v for k, v in reads.items() if k != "v"}
        self.b.map(
            shape,
            reads,
            {"out": (out, lambda *i: i)},
            lambda i, a, r, v=0: scalar.load(a, r, *i[1:]) + v,
        )
        yield out

    def noise(self, variant: int, x: str, y: str) -> Iterator[str]:
        """Random numbers by element, as dropout has them."""
        shape, seed = self._shape(x), self.graph.seed()
        out = self.graph.add_array("noise", shape, F)
        strides = [prod(shape[k + 1 :]) for k in range(len(shape))]

        def draw(i: Any, v: Any, seed: Any) -> Any:
            element = sum((p * s for p, s in zip(i, strides)), sympy.Integer(0))
            return v + scalar.cast(scalar.uniform(seed, variant, element), F)

        self.b.map(shape, {"v": (x, lambda *i: i), "seed": (seed, lambda *i: (0,))}, {"out": (out, lambda *i: i)}, draw)
        yield out

    def matmul(self, variant: int, x: str, y: str) -> Iterator[str]:
        a, b = self._shape(x), self._shape(y)
        if len(a) > 1 and len(b) > 1 and a[-1] == b[-2]:
            try:
                yield self.b.matmul(x, y)
            except ValueError:
                return


# ---------------------------------------------------------------- compiled


def compiled(
    identity: str, graphs: Sequence[Graph], special: bool = False, given: Sequence[Arrays] | None = None
) -> list[list[np.ndarray]]:
    """The outputs of every graph, built in one go and run, on the arrays ``given`` for each or on random ones."""
    from daceopt import libs
    from daceopt.codegen import build
    from daceopt.codegen.assemble import load_program

    parts = [(g, _roles(g)) for g in graphs]
    results = []
    arrays = given or [feeds(graph, special) for graph in graphs]
    for graph, own, name in zip(graphs, arrays, build.build(identity, parts, libs.implement), strict=True):
        executable = load_program(name)
        assert executable is not None
        results.append(_run(executable, own, graph))
    return results


def _roles(graph: Graph) -> dict[str, str]:
    roles = {n: f"input:{k}" for k, n in enumerate(graph.inputs)}
    return roles | {n: f"output:{k}" for k, n in enumerate(graph.outputs)}


def _run(executable: Any, arrays: Arrays, graph: Graph) -> list[np.ndarray]:
    symbols = tuple(BATCH for _ in executable.manifest.symbols)
    sizes = executable.sizes(symbols)
    kinds = [t.dtype for t in executable.manifest.outputs]
    outputs = [np.zeros(shape, kind) for shape, kind in zip(sizes.shapes, kinds, strict=True)]
    blocks = [torch.empty(max(n, 1), dtype=torch.uint8) for n in (sizes.saved, sizes.arena)]
    seed = arrays.get(SEED, np.zeros(1, np.int64))
    buffers = [*(arrays[n] for n in graph.inputs), *executable.constants, *outputs]
    addresses = [a.ctypes.data for a in buffers] + [b.data_ptr() for b in blocks] + [seed.ctypes.data]
    executable.run(addresses, symbols)
    return outputs
