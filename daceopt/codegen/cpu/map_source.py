"""Prints a kernel as a map of DaCe: the loops that nothing orders are its parameters, the rest is a tasklet of C++."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any

import sympy
from dace import subsets

from daceopt.codegen import c_tree
from daceopt.codegen.c_tree import Declare, Expression, If
from daceopt.codegen.cpu.kernel_source import BAD, Emitter
from daceopt.codegen.kernel_unit import KernelArgument
from daceopt.errors import IllegalSchedule
from daceopt.ir.access.boxes import box_of
from daceopt.ir.graph.graph import Graph
from daceopt.ir.kernel.kernel import Kernel
from daceopt.ir.scalar.dims import Dim, dim
from daceopt.ir.schedule import schedule
from daceopt.ir.schedule.local_storage import fold_locals
from daceopt.ir.schedule.schedule import Loop


@dataclass(frozen=True)
class TaskletPointer:
    """A pointer that the tasklet takes: to ``array`` (a buffer) plus ``offset`` elements, where ``subset`` is what one
    iteration of the map accesses; None: perhaps all of it."""

    name: str
    argument: KernelArgument
    subset: subsets.Range | None
    offset: Dim
    written: bool  # is the array? What is read of it then was written by the same tasklet

    @property
    def connector(self) -> str:
        return f"{'Out' if self.written else 'In'}_{self.name}"


@dataclass(frozen=True)
class MapSource:
    """``parameters`` of the map with their extents (none: no map), the code of one iteration, and what it accesses."""

    parameters: dict[str, Dim]
    code: str
    pointers: tuple[TaskletPointer, ...]


def map_source(graph: Graph, kernel: Kernel, moved: Collection[str] = ()) -> MapSource:
    """``kernel`` in serial loops, but for those around everything else whose iterations are independent.

    ``moved``: arrays that stand somewhere in flat buffers, of which there are no boxes. Raises Unsupported where C++
    has no form for it.
    """
    plain = replace(kernel, schedule=None)
    return _MapEmitter(graph, fold_locals(plain, schedule.schedule_of(plain)), moved).map()


class _MapEmitter(Emitter):
    """What is inside of the map, with the map's parameters as loops that are open already."""

    def __init__(self, graph: Graph, kernel: Kernel, moved: Collection[str]):
        super().__init__(graph, kernel)
        self._graph, self._moved = graph, moved
        self._written = {r.buffer.array for body in self._bodies.values() for r in body.writes.values()}
        self._loops, self._body = self._independent()

    def _independent(self) -> tuple[list[Loop], schedule.Tree]:
        """The outermost loops of which threads could share the iterations, and what is inside of them."""
        loops: list[Loop] = []
        body = self._tree
        while isinstance(body, Loop) and body.rest is None and not self._kernel.forwarded_arrays():
            if body.param in self._kernel.serial:
                break
            loops, body = [*loops, body], body.body
        return loops, body

    def map(self) -> MapSource:
        body = (*self._thread_memory(self._body), *self._inside(self._body))
        arguments = [a for a in self._arguments()[0] if a.kind == "pointer"]
        pointers = tuple(self._pointer(a, name) for a, name in zip(arguments, self._names.buffers().values()))
        starts = [Declare(p.argument.cpp, p.name, f"{p.connector}{self._shift(p)}") for p in pointers]
        sizes = self._names.sizes()
        values = [_number(n.capitalize(), str(self._draws.get(symbol, symbol))) for symbol, n in sizes.items()]
        values += [_number(name, name.capitalize()) for name in sizes.values()]
        # DaCe counts in int
        counters = [_number(self._names.loop(p.param), self._counter(p)) for p in self._loops]
        parameters = {self._counter(loop): loop.extent for loop in self._loops}
        if self._checks:
            body = (BAD, *body, _report(self._kernel.label))
        return MapSource(parameters, c_tree.text([*counters, *values, *starts, *body]), pointers)

    def _counter(self, loop: Loop) -> str:
        """The parameter of the map; arrays and sizes have no capitals."""
        return self._names.loop(loop.param).capitalize()

    def _shift(self, pointer: TaskletPointer) -> str:
        """From the element at which DaCe's pointer is to the one from which the code counts."""
        return "" if pointer.offset == 0 else f" + {self._names.size_text(pointer.offset)}"

    def _pointer(self, argument: KernelArgument, name: str) -> TaskletPointer:
        box, written = self._box(argument), argument.array in self._written
        if box is None:
            return TaskletPointer(name, argument, None, argument.offset, written)
        strides = self._graph.strides(argument.array)
        start = sympy.Add(*(i.start * t for i, t in zip(box, strides, strict=True)))
        named = {loop.param: sympy.Symbol(self._counter(loop), integer=True) for loop in self._loops}
        ranges = [(_rename(i.start, named), _rename(i.start + i.bound - 1, named), 1) for i in box]
        return TaskletPointer(
            name, argument, subsets.Range(ranges or [(0, 0, 1)]), dim(argument.offset - start), written
        )

    def _box(self, argument: KernelArgument) -> Any:
        """What one iteration of the map accesses of an array that is no view; None where that is no box."""
        accesses = [a for s in self._kernel.stages for a in (*s.reads.values(), *s.writes.values())]
        here = [a for a in accesses if a.array not in self._kernel.locals]
        same = [a for a in here if self._graph.root(a.array)[0] == argument.array]
        if any(a.array != argument.array for a in same) or not self._loops or argument.array in self._moved:
            return None
        try:
            outer = [loop.param for loop in self._loops]
            return box_of(self._kernel, same, self._graph.shape(argument.array), outer)
        except IllegalSchedule:
            return None


def _number(name: str, value: str) -> Declare:
    return Declare("int64_t", name, value, const=True)


def _report(label: str) -> If:
    """Plain DaCe has no other way to report an error."""
    message = f"{label}: an index is out of range, or a number is refused"
    return If("bad", (Expression(f'fprintf(stderr, "{message}\\n")'), Expression("abort()")))


def _rename(expr: sympy.Expr, names: dict[sympy.Symbol, sympy.Symbol]) -> sympy.Expr:
    return expr.xreplace(names) if isinstance(expr, sympy.Expr) else expr
