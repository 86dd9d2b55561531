"""Hypothesis strategies that tests of several rooms share."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any

from hypothesis import strategies as st

from daceopt.ir.graph.graph import Graph
from tests.transformations.lowered import SHAPES, F, RandomGraph, finish

_NUMBER = st.integers(0, 13)


class LargeGraph(RandomGraph):
    """A random graph with windows along an axis, and branches that end nowhere.

    Maps, broadcasts, permutations, reductions, stencils, views, gathers, random numbers, products, several results.
    """

    def makers(self) -> list[Any]:
        return [*super().makers(), self.window, self.stencil]

    def window(self, variant: int, x: str, y: str) -> Iterator[str]:
        """Sums of three neighbours, apart or overlapping."""
        shape = self._shape(x)
        if not shape or not isinstance(shape[-1], int) or shape[-1] < 3:
            return
        step = 1 + variant % 2
        full = (*shape[:-1], (shape[-1] - 3) // step + 1)
        out = self.graph.add_array("window", full, F)
        reads = {"x": (x, lambda *i: (*i[:-2], step * i[-2] + i[-1]))}
        self.b.map((*full, 3), reads, {"out": (out, lambda *i: i[:-1], "sum")}, lambda i, x: x / 3)
        yield out

    def stencil(self, variant: int, x: str, y: str) -> Iterator[str]:
        """Each element and its neighbour."""
        shape = self._shape(x)
        axes = [k for k, n in enumerate(shape) if isinstance(n, int) and n > 1]
        if not axes:
            return
        axis = axes[variant % len(axes)]
        full = tuple(n - 1 if k == axis else n for k, n in enumerate(shape))
        out = self.graph.add_array("stencil", full, F)
        reads = {
            "u": (x, lambda *i: i),
            "v": (x, lambda *i: tuple(p + 1 if k == axis else p for k, p in enumerate(i))),
        }
        self.b.map(full, reads, {"out": (out, lambda *i: i)}, lambda i, u, v: (u + v) / 2)
        yield out

    def _declare_outputs(self, also: int) -> None:
        """The last array, one in the middle, and every other one of those that nothing reads; the rest is dead."""
        unread = [n for n in self.names if not self.graph.all_consumers(n) and not self.graph.views_of(n)]
        chosen = [self.names[-1], self.names[also % len(self.names)], *unread[also % 2 :: 2]]
        for name in dict.fromkeys(chosen):
            finish(self.graph, self.b.copy(name) if name in self.graph.inputs else name)


@st.composite
def graphs(draw: st.DrawFn, least: int = 2, most: int = 60) -> Graph:
    """Graphs of kernels, views and products, of ``least`` to ``most`` steps."""
    step = st.tuples(_NUMBER, _NUMBER, st.integers(0, 5), st.integers(0, 5))
    count = draw(st.integers(least, most))
    steps: Sequence[tuple[int, int, int, int]] = draw(st.lists(step, min_size=count, max_size=count))
    return LargeGraph(draw(st.lists(st.sampled_from(SHAPES), min_size=1, max_size=3)), steps).graph


def graph_of(seed: int, least: int = 2, most: int = 60) -> Graph:
    """The same from a seed."""
    source = random.Random(seed)
    numbers = (14, 14, 6, 6)
    steps = [tuple(map(source.randrange, numbers)) for _ in range(source.randint(least, most))]
    return LargeGraph([source.choice(SHAPES) for _ in range(source.randint(1, 3))], steps).graph
