"""Prints the kernels of a program, those that are alike but for names and places of arrays once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from daceopt.codegen.kernel_unit import KernelArgument, KernelSource, home
from daceopt.ir.access.kernel_pattern import KernelPattern, draw, pattern
from daceopt.ir.graph.graph import Graph
from daceopt.ir.kernel.kernel import Kernel
from daceopt.ir.scalar.dims import dim


class KernelPrinter:
    """``print_kernel(graph, kernel)`` for kernels of programs whose memory is planned.

    It must depend on nothing but the kernel's label, its pattern and its schedule, and on which of its arrays are in
    the same memory: layers of a network repeat, and so do their kernels.
    """

    def __init__(self, print_kernel: Callable[[Graph, Kernel], KernelSource]):
        self._print = print_kernel
        self._known: dict[Any, tuple[KernelSource, KernelPattern]] = {}

    def source(self, graph: Graph, kernel: Kernel) -> KernelSource:
        """The printed kernel, whose arguments are arrays of ``graph``. Raises what ``print_kernel`` raises."""
        like = pattern(graph, kernel)
        tree = None if kernel.schedule is None else like.number(kernel.schedule)
        key = kernel.label, like.form, tree, _homes(graph, like.names)
        if key not in self._known:
            self._known[key] = self._print(graph, kernel), like
        source, first = self._known[key]
        moves = zip(first.names, like.names, first.starts, like.starts, strict=True)
        places = {old: (new, dim(end - start)) for old, new, start, end in moves}
        draws = {str(draw(k)): number for k, number in enumerate(like.draws)}

        def here(a: KernelArgument) -> KernelArgument:
            array, distance = places.get(a.array, (a.array, 0))
            return replace(a, array=array, offset=dim(a.offset + distance), value=draws.get(a.symbol, a.value))

        return replace(source, arguments=tuple(map(here, source.arguments)))


def _homes(graph: Graph, names: tuple[str, ...]) -> tuple[tuple[int, ...], ...]:
    """Which of these arrays are written over one another: with the same number, in two ways of looking at it."""
    return _classes(names, graph.in_place), _classes(names, {**graph.in_place, **graph.overwrites})


def _classes(names: tuple[str, ...], over: Mapping[str, str]) -> tuple[int, ...]:
    numbers: dict[str, int] = {}
    return tuple(numbers.setdefault(home(name, over), len(numbers)) for name in names)
