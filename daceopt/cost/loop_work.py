"""What the loops of a scheduled kernel do, in units of which ``rates.py: LOOPS`` has the seconds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from math import prod
from typing import TYPE_CHECKING

import sympy

from daceopt.cost.work import own_operations
from daceopt.ir.kernel.kernel import Access, Kernel, Stage
from daceopt.ir.scalar.dims import Dim, row_major
from daceopt.ir.scalar.functions import idiv, pymod
from daceopt.ir.schedule import schedule
from daceopt.ir.schedule.schedule import Accumulate, Call, Do, Loop, Param, Tree

if TYPE_CHECKING:
    from daceopt.ir.graph.graph import Graph

Number = Callable[[Dim], float]
Units = dict[str, float]
Element = tuple[str, tuple[object, ...]]

# By functions that take longer than what loads and stores: the unit that counts one evaluation in a vector loop.
FUNCTIONS: dict[str, tuple[str, ...]] = {
    "exp": ("exp",),
    "exp_rounded": ("exp",),
    "exp_weight": ("exp",),
    "expm1": ("exp",),
    "sigmoid": ("exp", "division"),
    "tanh": ("tanh",),
    "erf": ("erf",),
    "log": ("log",),
    "log1p": ("log",),
    "softplus": ("exp", "log"),
    "power": ("power",),
    "sqrt": ("division",),
    "sin": ("sine",),
    "cos": ("sine",),
}
_TRANSPOSED = 16  # bytes that the transposition of a float32 takes through registers: in and out twice
_FLOAT = 4
_UNROLLED = 16  # iterations of float32, a line of the caches: a loop of no more has no start, it is a few instructions


def loop_work(graph: Graph, kernel: Kernel, number: Number) -> Units:
    """Unit -> how much of it one run of ``kernel``, as it is scheduled, does on all cores together.

    ``byte``: loaded and stored by vector loops, wherever it lies. ``operation``: on a float32 in a vector. Functions:
    evaluations in vectors. ``strided``: elements that a vector loop reads or writes one by one. ``entry``: starts of
    vector loops; one no longer than a line is unrolled, so the loop around it starts in its place, for which what is
    read of the same place stays in registers. ``lanes``: sums over the lanes of a vector. ``wide``: elements that are
    added to sums in float64, side by side in memory. ``scalar``: accesses, operations and iterations outside of
    vectors. ``multiplication``: multiply-adds of micro-kernels.
    """
    tree = schedule.schedule_of(kernel)
    paths = schedule.paths(tree)
    counted: Units = {}
    for run in schedule.runs(tree):
        values = _Values()
        for do in run:
            _add(counted, _Instance(graph, kernel, do, paths[do.statement], number).work(values))
    return counted


def _add(total: Units, more: Units) -> None:
    for unit, count in more.items():
        total[unit] = total.get(unit, 0.0) + count


class _Instance:
    """One statement at its place in the schedule."""

    def __init__(self, graph: Graph, kernel: Kernel, do: Do, path: Sequence[Tree], number: Number):
        self._graph, self._kernel, self._do, self._path, self._number = graph, kernel, do, path, number
        self._stage: Stage = kernel.stages[do.statement]
        self._loops = [n for n in path if isinstance(n, Loop)]
        self._count = prod(number(loop.extent) for loop in self._loops)

    def work(self, values: _Values) -> Units:
        """``values``: what statements before it in the same iteration have read and computed."""
        if any(isinstance(n, Call) for n in self._path):
            is_copy = self._stage.copy is not None
            return {"byte": _TRANSPOSED * self._count} if is_copy else {"multiplication": self._count}
        vector, functions = self._vector(), values.evaluations(self._stage)
        if vector is None:
            accesses = len(self._stage.reads) + len(self._stage.writes)
            return {"scalar": self._count * (1 + accesses + sum(functions.values()))}
        counts = {unit: n * self._count * self._width() for unit, n in functions.items()}
        if not values.elements:  # the first statement of the loop
            counts["entry"] = self._starts(self._around(vector) or vector)
        for connector, access in (*self._stage.reads.items(), *self._stage.writes.items()):
            element = (access.array, access.index)
            if access.wcr is not None and self._collectors(connector):
                _add(counts, self._sum(connector, access, vector))
            elif element not in values.elements or connector in self._stage.writes:
                values.elements.add(element)
                _add(counts, self._access(access, vector))
        return counts

    def _vector(self) -> Loop | None:
        """The loop that runs in vectors: by its kind, or an innermost one of which the compiler makes one."""
        for loop in reversed(self._loops):
            if "vector" in loop.kind:
                return loop
        if not self._loops or any(a.wcr for a in self._stage.writes.values()):
            return None
        steps = [self._step(a, self._loops[-1].param) for a in (*self._stage.reads.values(), *self._writes())]
        is_plain = all(s in (0, 1) for s in steps) and any(self._step(a, self._loops[-1].param) for a in self._writes())
        return self._loops[-1] if is_plain else None

    def _starts(self, vector: Loop) -> float:
        """How often the vector loop starts."""
        return prod(self._number(loop.extent) for loop in self._loops[: _place(self._loops, vector)])

    def _around(self, vector: Loop) -> Loop | None:
        """The loop that runs in place of ``vector`` where the compiler unrolls that."""
        place = _place(self._loops, vector)
        is_short = isinstance(vector.extent, int | sympy.Integer) and vector.extent * self._width() <= _UNROLLED
        return self._loops[place - 1] if is_short and place else None

    def _writes(self) -> Iterable[Access]:
        return self._stage.writes.values()

    def _itemsize(self, array: str) -> int:
        local = self._kernel.locals.get(array)
        return int(self._graph.dtype(array).bytes if local is None else local[0].bytes)

    def _width(self) -> float:
        return max(1.0, max((self._itemsize(a.array) for a in self._writes()), default=_FLOAT) / _FLOAT)

    def _access(self, access: Access, vector: Loop) -> Units:
        step = self._step(access, vector.param)
        if step == 0 and None not in access.index:
            return {}
        if step == 1:
            return {"byte": self._count * self._itemsize(access.array) / self._repetitions(access, vector)}
        return {"strided": self._count}

    def _repetitions(self, access: Access, vector: Loop) -> float:
        """The iterations for which a register holds what one has loaded."""
        around = self._around(vector)
        is_same = around is not None and None not in access.index and self._step(access, around.param) == 0
        return max(1.0, self._number(around.extent)) if around is not None and is_same else 1.0

    def _step(self, access: Access, p: Param) -> float | None:
        """Elements between neighbours along loop ``p``, by indices that are not read; None where that is unknown."""
        local = self._kernel.locals.get(access.array)
        strides = self._graph.strides(access.array) if local is None else row_major(local[1])
        slopes: dict[sympy.Symbol, float | None] = {}
        for q, value in zip(self._stage.params, self._do.index):
            slopes[q] = _slope(value, {p: 1.0})
        steps = [_slope(e, slopes) for e in access.index]
        if None in steps:
            return None
        return abs(sum(step * self._number(stride) for step, stride in zip(steps, strides) if step))

    # ---------------------------------------------------------------- sums

    def _collectors(self, connector: str) -> list[Accumulate]:
        statement = self._do.statement
        accumulators = [n for n in self._path if isinstance(n, Accumulate)]
        return [n for n in accumulators if schedule.collects(n, statement, connector)]

    def _sum(self, connector: str, access: Access, vector: Loop) -> Units:
        """Sums along a vector end with one of its lanes; side by side they are in memory, in float64 if nothing of
        narrower type collects before; those inside of a vector loop are in registers, and added to others around it."""
        place = _place(self._path, vector)
        collectors = [(c, _place(self._path, c) > place) for c in self._collectors(connector)]
        around = [c for c, is_inside in collectors if not is_inside]
        if not around:
            return {}
        if self._step(access, vector.param) == 0:
            return {"lanes": self._starts(vector)}
        added = self._starts(vector) * self._number(vector.extent)
        (part,) = [p for p in around[-1].partials if (p.statement, p.connector) == (self._do.statement, connector)]
        is_wide = len(around) == 1 and part.wide and access.wcr in ("sum", "prod")
        return {"wide": added} if is_wide else {"byte": 2.0 * _FLOAT * added}


def _place(nodes: Sequence[Tree], node: Tree) -> int:
    return next(k for k, other in enumerate(nodes) if other is node)


def _slope(value: Dim | None, slopes: Mapping[sympy.Symbol, float | None]) -> float | None:
    """By how much ``value`` grows from one iteration to the next, most of the time; None where that is unknown."""
    if isinstance(value, sympy.Symbol):
        return slopes.get(value, 0.0)
    if not isinstance(value, sympy.Expr) or not value.args:
        return 0.0
    below = [_slope(a, slopes) for a in value.args]
    if None in below:
        return None
    grown = [b for b in below if b is not None]
    if not any(grown):
        return 0.0
    if value.is_Add:
        return sum(grown)
    if isinstance(value, pymod):
        return grown[0]
    if isinstance(value, idiv) and value.args[1].is_number:
        return float(int(grown[0]) // int(value.args[1]))
    factor, rest = value.as_coeff_Mul()
    inside = _slope(rest, slopes) if rest != value else None
    return None if inside is None else float(factor) * inside


class _Values:
    """What one iteration has read and computed: a value of another name is not computed again."""

    def __init__(self) -> None:
        self.elements: set[Element] = set()
        self._read: dict[Element, sympy.Symbol] = {}
        self._names: dict[sympy.Expr, sympy.Symbol] = {}
        self._computed: set[sympy.Expr] = set()
        self._exponentials: set[tuple[sympy.Expr, ...]] = set()

    def evaluations(self, stage: Stage) -> Units:
        """Unit -> how often it is needed for what a statement computes and nobody before it."""
        names: dict[sympy.Symbol, sympy.Expr] = {}
        for connector, access in stage.reads.items():
            element = (access.array, access.index)
            names[sympy.Symbol(connector)] = self._read.setdefault(element, sympy.Dummy(access.array))
        counted: Units = {}
        for assignment in stage.assignments:
            value = assignment.expr.xreplace(names)
            plain = sympy.Symbol(assignment.symbol.name)
            name = value if value.is_Symbol else self._names.setdefault(value, sympy.Dummy(plain.name))
            names[assignment.symbol] = names[plain] = name
            _add(counted, self._new(value))
        return counted

    def _new(self, value: sympy.Expr) -> Units:
        counted: Units = {}
        waiting = [value]
        while waiting:
            part = waiting.pop()
            if part.args and not part.is_number and part not in self._computed:
                self._computed.add(part)
                arguments = part.args[0].args if _is_mish(part) else part.args
                units = _of_function(part)
                if "exp" in units and {arguments, tuple(-a for a in arguments)} & self._exponentials:
                    del units["exp"]  # sigmoid(x), softplus(x) and exp(x) are printed with one exponential
                elif "exp" in units:
                    self._exponentials.add(arguments)
                _add(counted, units)
                waiting += arguments
        return counted


def _is_mish(part: sympy.Expr) -> bool:
    """tanh(softplus(x)), which is printed as a quotient of one exponential."""
    return isinstance(part, sympy.tanh) and type(part.args[0]).__name__ == "softplus"


def _of_function(part: sympy.Expr) -> Units:
    name = "sigmoid" if _is_mish(part) else type(part).__name__
    if name in FUNCTIONS:
        return dict.fromkeys(FUNCTIONS[name], 1.0)
    if not part.is_Pow:
        return {"operation": float(own_operations(part))}
    if not (part.exp.is_number and (2 * part.exp).is_Integer):
        return {"power": 1.0}
    roots = float(bool(part.exp.is_negative)) + float(not part.exp.is_Integer)
    return {"division": roots} if roots else {"operation": float(own_operations(part))}
