"""A kernel as text, and back: its locals, statements and schedule."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import sympy

from daceopt.errors import GraphTextError, Unsupported
from daceopt.ir.graph.graph import Graph
from daceopt.ir.kernel.kernel import REDUCTIONS, Access, Kernel, Stage
from daceopt.ir.kernel.tasklet import Assignment
from daceopt.ir.scalar import scalar, types
from daceopt.ir.scalar.dims import Dim, Shape, dim
from daceopt.ir.scalar.expression_text import text
from daceopt.ir.scalar.symbols import Parameter, is_parameter
from daceopt.ir.schedule import schedule_text
from daceopt.ir.schedule.schedule import Tree
from daceopt.ir.text.scanner import Lines, Scanner

_INDENT = "  "


# ---------------------------------------------------------------- writing


def lines(kernel: Kernel) -> list[str]:
    """What is after the sign of equality, and the lines below it. Raises Unsupported for what has no text."""
    params = {p for stage in kernel.stages for p in stage.params}
    shared = (str(p) if p in params else f"{p} < {text(kernel.extents[p])}" for p in kernel.outer)
    outer = f" outer {_list(shared)}" if kernel.outer else ""
    kinds = {n: f"{types.name_of(dtype)}[{_list(map(text, shape))}]" for n, (dtype, shape) in kernel.locals.items()}
    locals_ = [f"local {name}: {kind}" for name, kind in kinds.items()]
    locals_ += [line for k, stage in enumerate(kernel.stages) for line in _stage(k, stage, kernel)]
    if kernel.schedule is not None:
        schedule = schedule_text.text(kernel.schedule).splitlines()
        locals_ += ["schedule:", *(_INDENT + line for line in schedule)]
    in_order = [f"serial {_list(map(str, kernel.serial))}"] if kernel.serial else []
    return [f"kernel {kernel.label}{outer}", *in_order, *locals_]


def _list(items: Iterable[str]) -> str:
    return ", ".join(items)


def _stage(k: int, stage: Stage, kernel: Kernel) -> list[str]:
    domain = _list(f"{p} < {text(kernel.extents[p])}" for p in stage.params)
    rows = [f"{c} <- {_access(a)}" for c, a in stage.reads.items()]
    rows += [f"{a.symbol}: {types.name_of(a.dtype)} = {text(a.expr)}" for a in stage.assignments]
    rows += [f"{c} -> {_access(a)}" for c, a in stage.writes.items()]
    return [f"s{k}({domain}):", *(_INDENT + line for line in rows)]


def _access(access: Access) -> str:
    index = _list(":" if e is None else text(e) for e in access.index)
    return f"{access.array}[{index}]" + (f" ({access.wcr})" if access.wcr else "")


# ---------------------------------------------------------------- reading


class KernelReader:
    """Reads one kernel of ``graph`` and adds it; ``size`` makes the symbols of sizes."""

    def __init__(self, graph: Graph, lines: Lines, size: Callable[[str], sympy.Symbol]):
        self._graph, self._lines, self._size = graph, lines, size
        self._locals: dict[str, tuple[types.DType, Shape]] = {}
        self._extents: dict[sympy.Symbol, Dim] = {}

    def read(self, line: Scanner, written: Sequence[str | None], depth: int) -> None:
        """The kernel of which ``line`` says the label and the shared loops; it writes what ``written`` names."""
        label = line.match(r"[A-Za-z0-9_]+", "the label of the kernel")
        outer = self._outer(line) if line.take("outer ") else []
        serial: list[str] = []
        stages: list[Stage] = []
        schedule = None
        while self._lines.depth == depth + 1:
            below = self._lines.next(depth + 1)
            if below.take("local "):
                self._local(below)
            elif below.take("serial "):
                serial = below.names()
            elif below.take("schedule:"):
                schedule = self._schedule(depth + 2)
            else:
                stages.append(self._stage(below, len(stages), depth + 2))
        self._check(line, stages, [*outer, *serial], written)
        shared, in_order = (tuple(map(Parameter, names)) for names in (outer, serial))
        kernel = Kernel(label, self._extents, stages, shared, self._locals, schedule, in_order)
        self._graph.add_kernel(kernel, as_it_is=True)

    def _outer(self, line: Scanner) -> list[str]:
        """The shared loops; one that no statement depends on has its extent here."""
        outer: list[str] = []
        while not outer or line.take(","):
            outer.append(line.name("a loop"))
            if line.take("<"):
                self._extents[Parameter(outer[-1])] = dim(line.expression(line.up_to(","), self._size))
        return outer

    def _check(self, line: Scanner, stages: list[Stage], loops: list[str], written: Sequence[str | None]) -> None:
        if not stages:
            raise line.error("a kernel with statements s0(...), s1(...), ...", "none")
        named = {p for e in self._extents.values() for p in getattr(e, "free_symbols", ()) if is_parameter(p)}
        if unknown := [p for p in (*loops, *sorted(map(str, named))) if Parameter(p) not in self._extents]:
            raise line.error(f"loops of its statements ({_list(map(str, self._extents))})", unknown[0])
        stored = {a.array for s in stages for a in s.writes.values()} - set(self._locals)
        if stored != set(written):
            raise line.error(f"a kernel that writes {sorted(map(str, written))}", f"one that writes {sorted(stored)}")

    def _local(self, line: Scanner) -> None:
        name = line.match(r"[a-z][a-z0-9_]*", "a local array")
        line.expect(":")
        dtype = line.dtype(line.name("an element type"))
        self._locals[name] = dtype, tuple(dim(e) for e in line.expressions(line.inside("[", "]"), self._size))
        line.end()

    def _schedule(self, depth: int) -> Tree | None:
        number, source = self._lines.block(depth)
        try:
            return schedule_text.parse(source, loops=map(str, self._extents))
        except Unsupported as error:
            raise GraphTextError(f"in the schedule that begins in line {number}: {error}") from error

    # ---------------------------------------------------------------- statements

    def _stage(self, line: Scanner, k: int, depth: int) -> Stage:
        line.expect(f"s{k}(")
        params = []
        while not line.take(")"):
            params.append(self._loop(line))
        line.expect(":")
        line.end()
        stage = _StageReader(self._graph, self._locals, [str(p) for p in params], self._size)
        while self._lines.depth == depth:
            stage.read(self._lines.next(depth))
        return Stage(tuple(params), stage.reads, stage.writes, tuple(stage.assignments))

    def _size_or_loop(self, name: str) -> sympy.Symbol:
        """What a partial last tile leaves depends on the loop over the tiles, which may be further down."""
        return self._size(name) if name in self._graph.size_names else Parameter(name)

    def _loop(self, line: Scanner) -> sympy.Symbol:
        param = Parameter(line.name("a loop, or )"))
        line.expect("<")
        extent = dim(line.expression(line.up_to(",", ")"), self._size_or_loop))
        if self._extents.setdefault(param, extent) != extent:
            raise line.error(f"{param} < {self._extents[param]}, as in a statement above", str(extent))
        line.take(",")
        return param


class _StageReader:
    """Collects what a statement reads, computes and writes; names are connectors, assigned ones, loops or sizes."""

    def __init__(self, graph: Graph, locals_: dict[str, Any], params: list[str], size: Callable[[str], sympy.Symbol]):
        self._graph, self._locals, self._params, self._size = graph, locals_, params, size
        self.reads: dict[str, Access] = {}
        self.writes: dict[str, Access] = {}
        self.assignments: list[Assignment] = []
        self._symbols: dict[str, sympy.Symbol] = {}

    def read(self, line: Scanner) -> None:
        name = line.name("a connector or an assigned name")
        if line.take("<-"):
            self.reads[name] = access = self._access(line)
            self._symbols[name] = scalar.symbol(name, types.compute_type(self._dtype(access.array)))
        elif line.take("->"):
            self.writes[name] = self._access(line)
        else:
            line.expect(":")
            dtype = line.dtype(line.name("an element type"))
            line.expect("=")
            expr = line.expression(line.remainder(), self._symbol)
            self._symbols[name] = scalar.symbol(name, dtype)
            self.assignments.append(Assignment(self._symbols[name], expr, dtype))
        line.end()

    def _dtype(self, array: str) -> types.DType:
        return self._locals[array][0] if array in self._locals else self._graph.dtype(array)

    def _access(self, line: Scanner) -> Access:
        array = line.name("an array")
        if array not in self._locals and not self._graph.has(array):
            raise line.error("an array that a line above declares", repr(array))
        index = line.expressions(line.inside("[", "]"), self._place)
        wcr = None
        if line.take("("):
            wcr = line.name("a reduction")
            line.expect(")")
        if wcr is not None and wcr not in REDUCTIONS:
            raise line.error(f"one of {', '.join(REDUCTIONS)}", wcr)
        shape = self._locals[array][1] if array in self._locals else self._graph.shape(array)
        if len(index) != len(shape):
            raise line.error(f"{len(shape)} places in {array}", str(len(index)))
        return Access(array, tuple(None if e is None else dim(e) for e in index), wcr)

    def _place(self, name: str) -> sympy.Symbol:
        return Parameter(name) if name in self._params else self._size(name)

    def _symbol(self, name: str) -> sympy.Symbol:
        return self._symbols[name] if name in self._symbols else self._place(name)
