"""Edits of a kernel together with its schedule: what takes statements or locals that the kernel does not have.

Each takes a kernel with its loops (``loops_of``) and gives another one with its own loops, which may not be
legal: ``attempt`` decides that.
Halide's ``compute_at`` (Ragan-Kelley et al., PLDI 2013) and Exo's ``stage_mem`` (Ikarashi et al., PLDI 2022) are alike.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Several
from dataclasses import replace

import sympy

from daceopt.errors import IllegalSchedule
from daceopt.ir.access.boxes import Box, Interval, box_of, iterations, place_locals, restrict
from daceopt.ir.graph.graph import Graph
from daceopt.ir.kernel.kernel import Access, Kernel, Stage
from daceopt.ir.kernel.tasklet import Assignment
from daceopt.ir.scalar import scalar, types
from daceopt.ir.scalar.dims import Dim, Shape, dim
from daceopt.ir.scalar.sizes import ALL_SIZES
from daceopt.ir.schedule import schedule
from daceopt.ir.schedule.loop_form import down_to, fresh, in_loops, renumber, with_body
from daceopt.ir.schedule.schedule import Alloc, Do, Loop, Param, Sequence, Tree, nest_loops

# ---------------------------------------------------------------- staging


def stage_reads(graph: Graph, kernel: Kernel, array: str, param: Param | str, scope: str = "thread") -> Kernel:
    """Let what one iteration of a loop reads of ``array`` be in a local, copied there before.

    before:  for b: for t < 8: y[8*b + t] = x[8*b + t] + x[8*b + t + 1]
    after:   for b: local x_2: { for e < 9: x_2[e] = x[8*b + e]    for t < 8: y[8*b + t] = x_2[t] + x_2[t + 1] }

    The loop over ``param`` must be around all statements. Raises IllegalSchedule where what is read is no box.
    """
    kernel, loop = _with_outer_loops(kernel, param)
    tree = kernel.schedule
    readers = [(k, c) for k, s in enumerate(kernel.stages) for c, a in s.reads.items() if a.array == array]
    if not readers or array in kernel.locals or array in kernel.forwarded_arrays():
        raise IllegalSchedule(f"{kernel.label} reads no array {array} that it is given; there is nothing to stage")
    box = box_of(kernel, (kernel.stages[k].reads[c] for k, c in readers), graph.shape(array), kernel.outer)
    kernel, local, places = _with_local(graph, kernel, array, box)
    copied = _copy(graph, kernel, array, Access(array, box.element(places)), Access(local, tuple(places.values())))
    stages = [place_locals(s, {array: box}, {array: local}) for s in kernel.stages]
    tree = renumber(tree, {k: k + 1 for k in range(len(stages))})
    copying = _nest({p: box[d] for d, p in places.items()}, Do(0, copied.params))
    body = schedule.sequence([copying, down_to(tree, loop.param)[1].body])
    return replace(kernel, stages=[copied, *stages], schedule=_around(tree, loop, Alloc(local, scope, body)))


def stage_writes(graph: Graph, kernel: Kernel, array: str, param: Param | str, scope: str = "thread") -> Kernel:
    """Let what one iteration of a loop writes of ``array`` be in a local, copied to the array behind it.

    before:  for b: for t < 8: for k: y[8*b + t] += x[8*b + t, k]
    after:   for b: local y_2: { for t < 8: for k: y_2[t] += x[8*b + t, k]    for e < 8: y[8*b + e] = y_2[e] }

    The loop over ``param`` must be around all statements. Raises IllegalSchedule where an iteration does not write
    each element of a box, where it does not finish one, and where the kernel reads the array, too.
    """
    kernel, loop = _with_outer_loops(kernel, param)
    tree = kernel.schedule
    writers = [(k, c) for k, s in enumerate(kernel.stages) for c, a in s.writes.items() if a.array == array]
    if len(writers) != 1 or array in kernel.locals or array in kernel.forwarded_arrays():
        raise IllegalSchedule(f"{array} is not written by one statement of {kernel.label} and read by others only")
    ((k, connector),) = writers
    stage, access = kernel.stages[k], kernel.stages[k].writes[connector]
    _check_finished(kernel, stage, connector, access)
    box = box_of(kernel, [access], graph.shape(array), kernel.outer)
    box = Box(replace(i, bound=n) for i, n in zip(box, _loop_extents(kernel, access)))
    kernel, local, places = _with_local(graph, kernel, array, box)
    copied = _copy(graph, kernel, array, Access(local, tuple(places.values())), Access(array, box.element(places)))
    stages = list(kernel.stages)
    stages[k] = place_locals(stage, {array: box}, {array: local})
    copying = _nest({p: box[d] for d, p in places.items()}, Do(len(stages), copied.params))
    body = schedule.sequence([loop.body, copying])
    return replace(kernel, stages=[*stages, copied], schedule=_around(tree, loop, Alloc(local, scope, body)))


def _with_outer_loops(kernel: Kernel, param: Param | str) -> tuple[Kernel, Loop]:
    """``kernel`` with the loops down to the one over ``param`` as its outer ones, and that loop in its new tree."""
    kernel = in_loops(kernel, kernel.schedule, down_to(kernel.schedule, param)[0])
    return kernel, down_to(kernel.schedule, param)[1]


def _around(tree: Tree, loop: Loop, body: Tree) -> Tree:
    return with_body(tree, down_to(tree, loop.param)[1], body)


def _nest(loops: Mapping[Param, Interval], do: Do) -> Tree:
    return nest_loops([Loop(p, i.size, do, rest=i.rest) for p, i in loops.items()], do)


def _with_local(graph: Graph, kernel: Kernel, array: str, box: Box) -> tuple[Kernel, str, dict[int, Param]]:
    """``kernel`` with a local that holds ``box`` of ``array``, and a parameter for each dimension of that."""
    local = graph.fresh_name(array)
    dtype = kernel.locals[array][0] if array in kernel.locals else types.compute_type(graph.dtype(array))
    places: dict[int, Param] = {}
    for d in box.open:
        places[d] = fresh(f"{local}_{d}", [*kernel.extents, *places.values()])
    extents = {**kernel.extents, **{p: box[d].bound for d, p in places.items()}}
    return replace(kernel, extents=extents, locals={**kernel.locals, local: (dtype, box.shape)}), local, places


def _copy(graph: Graph, kernel: Kernel, array: str, read: Access, write: Access) -> Stage:
    dtype = types.compute_type(graph.dtype(array))
    value, result = scalar.symbol("value", dtype), scalar.symbol("result", dtype)
    inside = tuple(sorted((read.params() | write.params()) & set(kernel.extents) - set(kernel.outer), key=str))
    params = (*kernel.outer, *inside)
    return Stage(params, {"value": read}, {"result": write}, (Assignment(result, value, dtype),))


def _check_finished(kernel: Kernel, stage: Stage, connector: str, access: Access) -> None:
    """Raise IllegalSchedule unless an iteration of the outer loops writes whole elements, each of a box once."""
    around = next((p for p in stage.reduced_params(connector) if p in kernel.outer), None)
    if around is not None:
        raise IllegalSchedule(f"{access.array} is reduced over {around}, so no iteration of it has a whole element")
    params = [_own(kernel, e) for e in access.index]
    named = [p for own in params for p in own]
    if len(set(named)) < len(named) or any(len(own) > 1 for own in params):
        raise IllegalSchedule(f"one iteration writes {access.array} at {list(access.index)}, which is no box")
    for value, own in zip(access.index, params):
        if any(sympy.sympify(value).coeff(p) != 1 for p in own):
            raise IllegalSchedule(f"one iteration writes {access.array} at {value}, which leaves gaps")


def _own(kernel: Kernel, value: Dim) -> list[sympy.Symbol]:
    return [s for s in sympy.sympify(value).free_symbols if s in kernel.extents and s not in kernel.outer]


def _loop_extents(kernel: Kernel, access: Access) -> Shape:
    """The extents of the loops that write a box, by the box's dimensions."""
    extents = ([kernel.extents[p] for p in _own(kernel, e)] for e in access.index)
    return tuple(own[0] if own else 1 for own in extents)


# ---------------------------------------------------------------- where a value is computed


def compute_at(
    graph: Graph, kernel: Kernel, statements: int | Several[int], param: Param | str, scope: str = "thread"
) -> Kernel:
    """Let one iteration of a loop compute what it reads of the results of other statements, in locals of its own.

    before:  for i < n + 2: a[i] = f(x[i])    for b: for t < 8: y[8*b + t] = a[8*b + t] + a[8*b + t + 2]
    after:   for b: local a_2: { for e < 10: a_2[e] = f(x[8*b + e])    for t < 8: y[8*b + t] = a_2[t] + a_2[t + 2] }

    Where neighbouring iterations read the same elements, each computes them (the halo). ``statements`` that read one
    another's results move together; all others are in the loop over ``param``. Raises IllegalSchedule where a result
    is needed elsewhere, or what is read of it is no box.
    """
    moved = sorted({statements} if isinstance(statements, int) else set(statements))
    for k in moved:
        _check_movable(graph, kernel, k)
        kernel = _with_own_params(kernel, k)
    rest = _without(kernel.schedule, kernel, moved)
    kernel = in_loops(kernel, rest, down_to(rest, param)[0])
    tree, loop = kernel.schedule, down_to(kernel.schedule, param)[1]
    body, allocated = loop.body, []
    for k in reversed(moved):
        kernel, local, nest = _compute_in_loop(graph, kernel, k)
        body = schedule.sequence([nest, body])
        allocated.append(local)
    for local in allocated:
        body = Alloc(local, scope, body)
    return replace(kernel, schedule=with_body(tree, loop, body))


def _check_movable(graph: Graph, kernel: Kernel, k: int) -> None:
    """Raise IllegalSchedule unless statement ``k`` has one result, all of an array that only the kernel reads."""
    stage = kernel.stages[k]
    if len(stage.writes) != 1:
        raise IllegalSchedule(f"s{k} writes {len(stage.writes)} arrays; expected one result to compute elsewhere")
    (access,) = stage.writes.values()
    if access.array not in kernel.locals:
        if graph.all_consumers(access.array) or graph.is_kept(access.array):
            raise IllegalSchedule(f"s{k} writes {access.array}, which is read outside of {kernel.label}")
        shape = graph.shape(access.array)
    else:
        shape = (*(kernel.extents[p] for p in kernel.outer), *kernel.locals[access.array][1])
    if kernel.outer and access.array in kernel.locals:
        raise IllegalSchedule(f"s{k} writes {access.array}, which lives in one iteration of {kernel.outer[0]} already")
    whole = all(e in stage.params and kernel.extents[e] == n for e, n in zip(access.index, shape))
    if not whole or len(set(access.index)) < len(access.index):
        raise IllegalSchedule(f"s{k} writes {access.array} at {list(access.index)}; expected each of its elements once")
    if sum(access.array in {a.array for a in s.writes.values()} for s in kernel.stages) > 1:
        raise IllegalSchedule(f"{access.array} is written by several statements; expected s{k} alone")


def _with_own_params(kernel: Kernel, k: int) -> Kernel:
    """Statement ``k`` with parameters that no other statement has, nor any loop of a schedule."""
    stage, extents = kernel.stages[k], dict(kernel.extents)
    mapping = {}
    for p in stage.params:
        mapping[p] = fresh(f"{p}_s{k}", extents)
        extents[mapping[p]] = kernel.extents[p]
    stages = [s.subs(mapping) if s is stage else s for s in kernel.stages]
    used = {p for s in stages for p in s.params} | set(kernel.outer)
    return replace(kernel, stages=stages, extents={p: n for p, n in extents.items() if p in used})


def _without(tree: Tree, kernel: Kernel, moved: Several[int]) -> Tree:
    """The tree without the statements ``moved``, and without the locals that they write."""
    removed_locals = {a.array for k in moved for a in kernel.stages[k].writes.values()}

    def rest_of(node: Tree) -> Tree | None:
        if isinstance(node, Do):
            return None if node.statement in moved else node
        children = [c for c in map(rest_of, schedule.children(node)) if c is not None]
        if not children:
            return None
        if isinstance(node, Sequence):
            return schedule.sequence(children)
        return (
            children[0] if isinstance(node, Alloc) and node.array in removed_locals else replace(node, body=children[0])
        )

    rest = rest_of(tree)
    if rest is None:
        raise IllegalSchedule(f"all statements of {kernel.label} would be computed elsewhere; expected one that reads")
    return rest


def _compute_in_loop(graph: Graph, kernel: Kernel, k: int) -> tuple[Kernel, str, Tree]:
    """Statement ``k`` for what the others read of it in one iteration of the outer loops: its local and its loops."""
    stage = kernel.stages[k]
    (write,) = stage.writes.values()
    reads = [a for s in kernel.stages for a in s.reads.values() if a.array == write.array]
    if not reads:
        raise IllegalSchedule(f"nothing in the loop reads {write.array}, which s{k} writes")
    extents = tuple(kernel.extents[p] for p in write.index)
    box = box_of(kernel, reads, extents, kernel.outer)
    kernel, local, places = _with_local(graph, kernel, write.array, box)
    names = {write.index[d]: p for d, p in places.items()}
    region = iterations(stage, kernel.extents, {write.array: box})
    ranges = {p: region[p] for p in dict.fromkeys((*write.index, *stage.params))}
    here, loops = restrict(stage, ranges, kernel.outer, lambda p, _: names.get(p, p))
    moved = [here if s is stage else s for s in kernel.stages]
    stages = [place_locals(s, {write.array: box}, {write.array: local}) for s in moved]
    other_extents = {p: n for p, n in kernel.extents.items() if p not in write.index}
    locals_left = {name: kind for name, kind in kernel.locals.items() if name != write.array}
    return (
        replace(kernel, stages=stages, extents=other_extents, locals=locals_left),
        local,
        _nest(loops, Do(k, here.params)),
    )


# ---------------------------------------------------------------- ends of loops


def peel(kernel: Kernel, param: Param | str, first: int = 0, last: int = 0) -> Kernel:
    """Give the first and the last iterations of a loop loops of their own.

    before:  for p < n: f(p)
    after:   for p_first < 2: f(p_first)    for p < n - 3: f(p + 2)    for p_last < 1: f(p_last + n - 1)

    Where the last block of tiles is peeled off, the others are whole. Each part has statements of its own, so a loop
    that is reduced over is refused, and one around locals. Raises IllegalSchedule for these, where the loop itself has
    partial tiles, and where it has less iterations than that.
    """
    kernel = in_loops(kernel, kernel.schedule, _around_locals(kernel, kernel.schedule))
    tree = kernel.schedule
    loop = next((n for n in schedule.loops(tree) if str(n.param) == str(param)), None)
    if loop is None or loop.param in kernel.outer:
        reason = "there is none" if loop is None else "each of its iterations has locals of its own"
        raise IllegalSchedule(f"{kernel.label}: the loop over {param} cannot be peeled: {reason}")
    _check_peelable(kernel, loop)
    inside = {do.statement for do in schedule.dos(loop)}
    elsewhere = {p for k, s in enumerate(kernel.stages) if k not in inside for p in s.params}
    parts = [_Part(loop, *part, kernel.extents, elsewhere) for part in _cut(loop, first, last)]
    stages: list[Stage] = []
    numbers: dict[tuple[int, int], int] = {}
    for k, stage in enumerate(kernel.stages):
        for at, piece in enumerate([part.stage(stage) for part in parts] if k in inside else [stage]):
            numbers[at, k] = len(stages)
            stages.append(piece)
    trees = [part.tree(stages, {k: numbers[at, k] for k in inside}) for at, part in enumerate(parts)]
    others = {k: numbers[0, k] for k in range(len(kernel.stages))}
    written = _replace_loop(tree, loop, schedule.sequence(trees), others)
    extents = {**kernel.extents, **{p: n for part in parts for p, n in part.extents.items()}}
    used = {p for s in stages for p in s.params} | set(kernel.outer)
    used_extents = {p: n for p, n in extents.items() if p in used}
    return Kernel(kernel.label, used_extents, stages, kernel.outer, kernel.locals, written)


def _replace_loop(tree: Tree, old: Loop, new: Tree, numbers: dict[int, int]) -> Tree:
    """``tree`` with ``new`` in the place of ``old``, and other numbers of the statements beside it."""
    if tree is old:
        return new
    if isinstance(tree, Do):
        return replace(tree, statement=numbers[tree.statement])
    below = [_replace_loop(c, old, new, numbers) for c in schedule.children(tree)]
    return schedule.sequence(below) if isinstance(tree, Sequence) else schedule.with_children(tree, below)


def _around_locals(kernel: Kernel, tree: Tree) -> list[Loop]:
    """The loops that walk the kernel's outer parameters, whose iterations have locals of their own."""
    if not kernel.locals or not kernel.outer:
        return []
    do = schedule.dos(tree)[0]
    values = dict(zip(kernel.stages[do.statement].params, do.index))
    named = {s for p in kernel.outer for s in sympy.sympify(values.get(p, 0)).free_symbols}
    loops = [loop for loop in schedule.loops(tree) if loop.param in named]
    return down_to(tree, loops[-1].param)[0] if loops else []


def _check_peelable(kernel: Kernel, loop: Loop) -> None:
    if loop.rest is not None:
        raise IllegalSchedule(f"the loop over {loop.param} has partial tiles; peel the one over the tiles")
    for do in schedule.dos(loop):
        stage = kernel.stages[do.statement]
        reduced = next((c for c in stage.writes if loop.param in stage.reduced_params(c)), None)
        if reduced is not None:
            reason = "whose parts would each begin a sum of their own"
            raise IllegalSchedule(f"s{do.statement}.{reduced} is reduced over {loop.param}, {reason}")


def _cut(loop: Loop, first: int, last: int) -> list[tuple[str, Dim, Dim]]:
    """``(suffix, begin, extent)`` of the parts of a loop, without those of no iteration."""
    n = loop.extent
    if min(first, last) < 0 or first + last < 1 or (isinstance(n, int) and first + last > n):
        raise IllegalSchedule(f"{first} first and {last} last iterations of {loop.param}, which has {n}")
    is_fixed = isinstance(n, int)
    begin = first if is_fixed or not first else dim(sympy.Min(first, n))
    middle = dim(n - first - last) if is_fixed else dim(sympy.Max(n - first - last, 0))
    parts = [("_first", 0, begin), ("", begin, middle), ("_last", dim(begin + middle), dim(n - begin - middle))]
    return [part for part, count in zip(parts, (first, middle, last)) if count != 0]


class _Part:
    """The iterations from ``begin`` on of a loop, ``size`` of them, with parameters of their own."""

    def __init__(
        self,
        loop: Loop,
        suffix: str,
        begin: Dim,
        size: Dim,
        sizes: Mapping[sympy.Symbol, Dim],
        elsewhere: set[sympy.Symbol],
    ):
        self._loop, self._suffix, self._known = loop, suffix, sizes
        self._elsewhere = elsewhere
        own = self._param_of_part(loop.param)
        self.extents: dict[sympy.Symbol, Dim] = {own: size}
        self._names: dict[sympy.Symbol, Param] = {loop.param: own}
        self._values: dict[sympy.Symbol, sympy.Expr] = {loop.param: own + begin}
        self._tree = replace(loop, param=own, extent=size, body=self._below(loop.body, {own: size}))

    def _param_of_part(self, p: Param) -> Param:
        if not self._suffix and p not in self._elsewhere:
            return p
        return fresh(f"{p}{self._suffix or '_middle'}", self._known)

    def _below(self, tree: Tree, around: dict[sympy.Symbol, Dim]) -> Tree:
        if not isinstance(tree, Loop):
            return schedule.with_children(tree, [self._below(c, around) for c in schedule.children(tree)])
        new = self._names.setdefault(tree.param, self._param_of_part(tree.param))
        self._values[tree.param] = new
        rest = None if tree.rest is None else self._partial_rest(tree, around)
        self.extents[new] = tree.extent if rest is None else sympy.Min(tree.extent, rest, evaluate=False)
        body = self._below(tree.body, {**around, new: tree.extent})
        return replace(tree, param=new, rest=rest, body=body)

    def _partial_rest(self, loop: Loop, around: dict[sympy.Symbol, Dim]) -> Dim | None:
        """What a partial tile leaves here; None where all are whole."""
        rest = sympy.expand(sympy.sympify(loop.rest).xreplace(self._values))
        return None if ALL_SIZES.inside(around).is_natural(rest - loop.extent) else dim(rest)

    def stage(self, stage: Stage) -> Stage:
        """The statement for these iterations."""
        return stage.subs(self._values, tuple(self._names.get(p, p) for p in stage.params))

    def tree(self, stages: Several[Stage], numbers: dict[int, int]) -> Tree:
        """Its loops, around statements with other numbers."""
        tree = renumber(self._tree, numbers)
        return schedule.map_tree(
            tree, lambda n: Do(n.statement, stages[n.statement].params) if isinstance(n, Do) else n
        )
