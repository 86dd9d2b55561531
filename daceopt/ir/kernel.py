"""The editable form of a top-level map scope: iteration parameters, stages and their accesses.

``Kernel.extract`` reads it from the SDFG and ``Kernel.emit`` writes it back, so that transformations rewrite loops and
accesses instead of performing surgery on scopes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import dace
import sympy
from dace import nodes, subsets
from dace.memlet import Memlet

from daceopt.errors import Unsupported
from daceopt.ir import types
from daceopt.ir.graph import Dim, Graph, Shape, dim
from daceopt.ir.memlets import volume
from daceopt.ir.scope_edges import connect_outside, connect_read, connect_write, is_used, keep_inside, wcr_source
from daceopt.ir.symbols import Parameter, as_parameters, param
from daceopt.ir.tasklet import Assignment, SymbolicTasklet

WCR = {
    "sum": "lambda a, b: a + b",
    "prod": "lambda a, b: a * b",
    "max": "lambda a, b: max(a, b)",
    "min": "lambda a, b: min(a, b)",
}
_WCR_NAMES = {source: name for name, source in WCR.items()}
_IN_ORDER = dace.ScheduleType.Sequential  # of the maps over a kernel's serial parameters


_ONCE = Parameter("i_once")  # the loop of a scope without loops


@dataclass(frozen=True)
class Access:
    """One element (per iteration) of ``array``; ``index`` has an expression per dimension, None for the whole
    dimension."""

    array: str
    index: tuple[sympy.Expr | int | None, ...]
    wcr: str | None = None

    def subs(self, mapping: dict[Any, Any]) -> Access:
        return replace(self, index=tuple(_subs(e, mapping) for e in self.index))

    def params(self) -> set[sympy.Symbol]:
        """Symbols that the index depends on."""
        return {s for e in self.index if isinstance(e, sympy.Expr) for s in e.free_symbols}


def _subs(expr: Any, mapping: dict[Any, Any]) -> Any:
    if not isinstance(expr, sympy.Expr):
        return expr
    if expr.is_Symbol:
        return mapping.get(expr, expr)
    hits = {s: mapping[s] for s in expr.free_symbols if s in mapping}
    return dim(expr.xreplace(hits)) if hits else expr


@dataclass
class Stage:
    """One tasklet over the iteration domain ``params``."""

    params: tuple[sympy.Symbol, ...]
    reads: dict[str, Access]
    writes: dict[str, Access]
    assignments: tuple[Assignment, ...]

    def reduced(self, connector: str) -> tuple[sympy.Symbol, ...]:
        """The parameters that the write ``connector`` reduces over."""
        access = self.writes[connector]
        return tuple(p for p in self.params if p not in access.params()) if access.wcr else ()

    def arrays(self) -> set[str]:
        """All that it reads and writes."""
        return {a.array for a in (*self.reads.values(), *self.writes.values())}

    def subs(self, mapping: dict[Any, Any], params: tuple[sympy.Symbol, ...] | None = None) -> Stage:
        """Replace parameters in the domain, accesses and scalar code; ``params`` gives the new domain if it is not one
        to one."""
        new = params if params is not None else tuple(mapping.get(p, p) for p in self.params)
        return Stage(
            new,
            {c: a.subs(mapping) for c, a in self.reads.items()},
            {c: a.subs(mapping) for c, a in self.writes.items()},
            tuple(_subs_assignment(a, mapping) for a in self.assignments),
        )


def _subs_assignment(assignment: Assignment, mapping: dict[Any, Any]) -> Assignment:
    expr = _subs(assignment.expr, mapping)
    return (
        assignment if expr is assignment.expr else Assignment(assignment.symbol, sympy.sympify(expr), assignment.dtype)
    )


def _are(known: list[Stage], stages: list[Stage]) -> bool:
    return len(known) == len(stages) and all(a is b for a, b in zip(known, stages))


@dataclass
class Kernel:
    """A map scope; see docs/architecture.md for the meaning of each field."""

    label: str
    extents: dict[sympy.Symbol, Dim]
    stages: list[Stage]
    outer: tuple[sympy.Symbol, ...] = ()
    locals: dict[str, tuple[dace.typeclass, Shape]] = field(default_factory=dict)
    schedule: Any = None  # an ir.schedule.Tree over the stages; None: no step has scheduled it
    serial: tuple[sympy.Symbol, ...] = ()  # loops in order around the stages that name them, in which locals are kept
    _kept: tuple[list[Stage], frozenset[str]] | None = field(default=None, init=False, repr=False, compare=False)

    @staticmethod
    def param(k: int) -> sympy.Symbol:
        return param(k)

    def bounds(self, p: sympy.Symbol) -> tuple[Dim, Dim | None]:
        """The largest extent of ``p``, and what a partial last tile leaves of it, which names other parameters."""
        extent = self.extents[p]
        if not getattr(extent, "free_symbols", set()) & self.extents.keys():
            return extent, None
        whole = [e for e in sympy.Min.make_args(extent) if not e.free_symbols & self.extents.keys()]
        rest = [e for e in sympy.Min.make_args(extent) if e not in whole]
        if len(whole) != 1 or not isinstance(extent, sympy.Min):
            raise Unsupported(f"the extent of {p} is {extent}; expected min(a size, what is left of one)")
        return dim(whole[0]), dim(sympy.Min(*rest, evaluate=False) if len(rest) > 1 else rest[0])

    def named_apart(self, graph: Graph) -> Kernel:
        """The same with names for its locals that no array of ``graph`` has."""
        return self.over({old: graph.fresh_name(old) for old in self.locals})

    def over(self, names: Mapping[str, str]) -> Kernel:
        """The same over other arrays, or locals: each is called what ``names`` says."""

        def renamed(accesses: dict[str, Access]) -> dict[str, Access]:
            return {c: replace(a, array=names.get(a.array, a.array)) for c, a in accesses.items()}

        stages = [replace(s, reads=renamed(s.reads), writes=renamed(s.writes)) for s in self.stages]
        return replace(self, stages=stages, locals={names.get(old, old): kind for old, kind in self.locals.items()})

    @property
    def is_tiled(self) -> bool:
        """Has it loops that run in order, or tiles that may be partial? Only its schedule says more then: statements
        are no longer independent loops over rectangles."""
        return bool(self.serial) or any(self.bounds(p)[1] is not None for p in self.extents)

    def most(self, params: Iterable[sympy.Symbol]) -> Any:
        """Iterations over ``params`` together, partial tiles counted as whole ones."""
        return sympy.Mul(*(self.bounds(p)[0] for p in params))

    def kept(self) -> frozenset[str]:
        """Locals with a value that lives on from one iteration of a serial loop to the next, or into or out of it:
        written by several stages, read before they are written, or by stages inside and outside of such a loop."""
        if self._kept is None or not _are(self._kept[0], self.stages):
            self._kept = list(self.stages), frozenset(self._find_kept())
        return self._kept[1]

    def _find_kept(self) -> Iterator[str]:
        reads = [{a.array for a in s.reads.values()} for s in self.stages]
        writes = [{a.array for a in s.writes.values()} for s in self.stages]
        for name in self.locals:
            users = [k for k in range(len(self.stages)) if name in reads[k] or name in writes[k]]
            places = {tuple(p for p in self.serial if p in self.stages[k].params) for k in users}
            reads_first = bool(users) and name in reads[users[0]]
            if len(places) > 1 or reads_first or sum(name in writes[k] for k in users) > 1:
                yield name

    def iteration(self, local: str) -> tuple[sympy.Symbol, ...]:
        """The parameters of which each iteration has a local of its own."""
        return self.outer if local in self.kept() else (*self.outer, *self.serial)

    def forwarded(self) -> frozenset[str]:
        """Arrays of the graph that one stage writes and a later one reads."""
        written = {a.array for s in self.stages for a in s.writes.values()}
        return frozenset(
            a.array for s in self.stages for a in s.reads.values() if a.array in written - set(self.locals)
        )

    def reads(self) -> list[Access]:
        """Accesses that read arrays of the graph which others write (no locals)."""
        own = {*self.locals, *self.forwarded()}
        return [a for s in self.stages for a in s.reads.values() if a.array not in own]

    def writes(self) -> list[Access]:
        return [a for s in self.stages for a in s.writes.values() if a.array not in self.locals]

    # ---------------------------------------------------------------- from the SDFG

    @classmethod
    def extract(cls, graph: Graph, entry: nodes.MapEntry) -> Kernel:
        """Read the scope of ``entry``. Raises Unsupported for tasklets that are not symbolic."""
        known = graph.extracted.get(entry)
        if known is None:
            known = graph.extracted[entry] = cls._read(graph, entry)
        own = (dict(known.extents), list(known.stages), known.outer, dict(known.locals))
        return cls(known.label, *own, graph.schedules.get(entry), known.serial)

    @classmethod
    def _read(cls, graph: Graph, entry: nodes.MapEntry) -> Kernel:
        members = graph.scope_nodes(entry)
        tasklets = [n for n in members if isinstance(n, nodes.Tasklet)]
        chains = {t: _enclosing(graph, t, entry) for t in tasklets}
        extents: dict[sympy.Symbol, Dim] = {}
        stages = []
        serial: dict[sympy.Symbol, None] = {}
        for tasklet in _stage_order(graph, tasklets, entry):
            renaming = {}
            params: list[Parameter] = []
            for map_ in chains[tasklet]:
                if map_.schedule == _IN_ORDER:
                    serial |= dict.fromkeys(map(Parameter, map_.params))
                for name, (begin, end, step) in zip(map_.params, map_.range.ranges):
                    symbol = Parameter(name)
                    if step != 1:
                        raise Unsupported(f"map {map_.label} has step {step}; expected 1: normalise the map first")
                    extents[symbol] = dim(end - begin + 1)
                    if begin != 0:
                        renaming[symbol] = symbol + begin
                    params.append(symbol)
            stage = _read_stage(graph, tasklet, tuple(params))
            stages.append(stage.subs(renaming, stage.params) if renaming else stage)
        local = {n.data: n for n in members if isinstance(n, nodes.AccessNode) and not graph.has(n.data)}
        many = len(stages) > 1 or bool(local)
        outer = tuple(p for p in map(Parameter, entry.map.params) if many and p != _ONCE)
        sizes = {n: (graph.dtype(n), graph.shape(n)) for n in local}
        return cls(entry.map.label, extents, stages, outer, sizes, serial=tuple(serial))

    # ---------------------------------------------------------------- to the SDFG

    def emit(self, graph: Graph, as_it_is: bool = False) -> nodes.MapEntry:
        """Add the scope to ``graph`` (its arrays exist already, locals are declared here); returns its entry.

        Loops of one iteration vanish, unless it is added ``as_it_is``.
        """
        return (self if as_it_is else self._without_unit_loops())._emit(graph)

    def _without_unit_loops(self) -> Kernel:
        """Loops of one iteration vanish, so that equal iteration spaces look equal."""
        unit: dict[Any, Any] = {p: sympy.Integer(0) for p, n in self.extents.items() if n == 1 and p not in self.serial}
        if not unit:
            return self
        extents = {p: dim(_subs(n, unit)) for p, n in self.extents.items() if p not in unit}
        stages = [s.subs(unit, tuple(p for p in s.params if p not in unit)) for s in self.stages]
        outer = tuple(p for p in self.outer if p not in unit)
        return Kernel(self.label, extents, stages, outer, dict(self.locals), serial=self.serial)

    def _emit(self, graph: Graph) -> nodes.MapEntry:
        outer = self.outer if len(self.stages) > 1 or self.locals else self.stages[0].params
        entry, exit_ = self._add_map(graph, self.label, outer)
        for array in dict.fromkeys(a.array for a in self.writes()):
            graph._check_unwritten(array)
        local = {name: self._add_local(graph, name) for name in self.locals}
        local |= {name: graph.state.add_access(name) for name in sorted(self.forwarded())}
        versions = list(local.values())
        for k, stage in enumerate(self.stages):
            self._emit_stage(graph, k, stage, outer, entry, exit_, local)
            versions += [node for node in local.values() if node not in versions]
        graph.add_scope(entry, exit_)
        if self.schedule is not None:
            graph.schedules[entry] = self.schedule
        connect_outside(graph, entry, exit_, versions)
        return entry

    def _add_map(
        self, graph: Graph, label: str, params: Iterable[sympy.Symbol], schedule: Any = dace.ScheduleType.Default
    ) -> tuple[nodes.MapEntry, nodes.MapExit]:
        params = tuple(params)
        names = [str(p) for p in params] or [str(_ONCE)]
        ranges = [(0, self.extents[p] - 1, 1) for p in params] or [(0, 0, 1)]
        map_ = nodes.Map(label, names, subsets.Range(ranges), schedule)
        pair = nodes.MapEntry(map_), nodes.MapExit(map_)
        for node in pair:
            graph.state.add_node(node)
        return pair

    def _add_local(self, graph: Graph, name: str) -> nodes.AccessNode:
        dtype, shape = self.locals[name]
        if name in graph.sdfg.arrays:
            raise ValueError(f"local array {name} exists at the top level")
        graph.sdfg.add_array(name, shape or (1,), dtype, transient=True, storage=dace.StorageType.Register)
        return graph.state.add_access(name)

    def _emit_stage(self, graph, k, stage, outer, entry, exit_, local) -> None:  # type: ignore[no-untyped-def]
        state = graph.state
        inner = tuple(p for p in stage.params if p not in outer and p not in self.serial)
        tasklet = self._tasklet(graph, k, stage)
        state.add_node(tasklet)
        around = [
            self._add_map(graph, f"{self.label}_{k}_{p}", (p,), _IN_ORDER) for p in self.serial if p in stage.params
        ]
        around += [self._add_map(graph, f"{self.label}_{k}", inner)] if inner else []
        for conn, access in stage.reads.items():
            memlet = self._memlet(graph, access)
            source = local.get(access.array, entry)
            connect_read(state, source, around, tasklet, conn, memlet)
        for conn, access in stage.writes.items():
            memlet = self._memlet(graph, access)
            if access.array in local and is_used(state, local[access.array]):
                local[access.array] = state.add_access(access.array)  # its value from here on
            connect_write(state, tasklet, conn, around, local.get(access.array, exit_), memlet)
        keep_inside(state, entry, exit_, around, tasklet)

    def _tasklet(self, graph: Graph, k: int, stage: Stage) -> SymbolicTasklet:
        inputs = {}
        for conn, access in stage.reads.items():
            dtype = self.locals[access.array][0] if access.array in self.locals else graph.dtype(access.array)
            dtype = types.computed(dtype)
            inputs[conn] = dace.pointer(dtype) if None in access.index else dtype
        tasklet = SymbolicTasklet(f"{self.label}_{k}", inputs, stage.assignments, list(stage.writes))
        tasklet.stage_index = k
        # a whole dimension of extent 1 looks like one element in a memlet
        tasklet.whole_dimensions = {c: {d for d, e in enumerate(a.index) if e is None} for c, a in stage.reads.items()}
        return tasklet

    def _memlet(self, graph: Graph, access: Access) -> Memlet:
        shape = self.locals[access.array][1] if access.array in self.locals else graph.desc(access.array).shape
        index = access.index or (0,)
        ranges = [(0, n - 1, 1) if e is None else (e, e, 1) for e, n in zip(index, shape or (1,))]
        read = volume(n for e, n in zip(index, shape or (1,)) if e is None)
        wcr = WCR[access.wcr] if access.wcr else None
        return Memlet(data=access.array, subset=subsets.Range(ranges), volume=read, wcr=wcr)


# -------------------------------------------------------------------- reading


def _enclosing(graph: Graph, node: nodes.Node, top: nodes.MapEntry) -> list[nodes.Map]:
    """Maps around ``node`` inside the scope of ``top``, outermost first."""
    for edge in graph.state.in_edges(node):
        source = edge.src
        if source is top:
            return [top.map]
        if isinstance(source, nodes.MapEntry):
            return [*_enclosing(graph, source, top), source.map]
    for edge in graph.state.in_edges(node):
        if isinstance(edge.src, nodes.AccessNode):
            return [top.map]
    return [top.map]


def _stage_order(graph: Graph, tasklets: list[nodes.Tasklet], entry: nodes.MapEntry) -> list[nodes.Tasklet]:
    return sorted(tasklets, key=lambda t: getattr(t, "stage_index", 0))


def _read_stage(graph: Graph, tasklet: nodes.Tasklet, params: tuple[Parameter, ...]) -> Stage:
    if not isinstance(tasklet, SymbolicTasklet):
        raise Unsupported(f"tasklet {tasklet.label} has no symbolic form; expected a SymbolicTasklet")
    whole = getattr(tasklet, "whole_dimensions", {})
    edges = [e for e in graph.state.in_edges(tasklet) if e.dst_conn]
    reads = {e.dst_conn: _access(graph, e.data, params, whole.get(e.dst_conn)) for e in edges}
    writes = {e.src_conn: _access(graph, e.data, params) for e in graph.state.out_edges(tasklet) if e.src_conn}
    return Stage(tuple(p for p in params if p != _ONCE), reads, writes, tuple(tasklet.assignments))


def _access(
    graph: Graph, memlet: Memlet, params: tuple[Parameter, ...], whole_dimensions: set[int] | None = None
) -> Access:
    name = memlet.data
    source = wcr_source(memlet)
    wcr = None if source is None else _WCR_NAMES[source]
    if name in graph.scalars:
        return Access(name, (), wcr)
    index = []
    for axis, (begin, end, _) in enumerate(memlet.subset.ranges):
        whole = axis in whole_dimensions if whole_dimensions is not None else begin != end and begin == 0
        if begin != end and not whole:
            raise Unsupported(f"memlet {memlet} is neither one element nor a whole dimension")
        index.append(None if whole else dim(as_parameters(begin, params)))
    return Access(name, tuple(index), wcr)
