"""A kernel's schedule as a schedule tree of isl, and back.

Statement ``k`` is the set ``S<k>[parameters]`` and sizes are isl's parameters. A loop is a band: the function of the
parameters that is the loop's value, which is the index of the statement inverted (``block = floor(i/32)``). A sequence
is a sequence of filters. What isl has no node for are marks, with the lines of ``schedule_text``: the header of each
loop, locals, accumulators, and above all of them how a statement's parameters follow from the loops.

A loop that walks several extents as one, with a size between them (``i = p // n``, ``j = p % n``), is a band of as many
members, because ``n*i + j`` is not affine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from collections.abc import Sequence as Several
from functools import reduce
from typing import Any

import islpy as isl
import sympy

from daceopt.errors import IllegalSchedule, Unsupported
from daceopt.ir.graph.graph import Graph
from daceopt.ir.kernel.kernel import Kernel
from daceopt.ir.polyhedral.instances_isl import Domains, loop_values
from daceopt.ir.scalar.affine_isl import CONTEXT, expression, functions_on, identifier, upper_bounds, within
from daceopt.ir.scalar.dims import Dim
from daceopt.ir.scalar.symbols import Parameter
from daceopt.ir.schedule import conditions, schedule
from daceopt.ir.schedule.schedule import Do, Guard, Loop, Sequence, Tree
from daceopt.ir.schedule.schedule_text import line_of, parse

_SET, _OUT = isl.dim_type.set, isl.dim_type.out
_KIND = isl.schedule_node_type


def to_isl(graph: Graph | None, kernel: Kernel, tree: Tree) -> isl.Schedule:
    """``tree`` as isl's schedule; ``graph``: what it assumes about sizes bounds the schedule's domain.

    Raises IllegalSchedule where ``tree`` does not run each instance of each statement once, with an instance, and
    Unsupported where a loop or a statement's domain is not affine.
    """
    return _Writer(Domains(graph, kernel, schedule.loops(tree)), tree).schedule()


def from_isl(graph: Graph | None, kernel: Kernel, isl_schedule: isl.Schedule) -> Tree:
    """The tree of isl's schedule ``isl_schedule`` over the statements of ``kernel``.

    Where it has marks of :func:`to_isl`, their lines are taken; other bands become serial loops whose extents isl
    knows. Raises Unsupported for nodes that a tree has no form for, and where marks and bands do not agree.
    """
    root = isl_schedule.get_root()
    tree = _Reader(graph, kernel, set(_bands(root))).tree(root)
    if not order(to_isl(graph, kernel, tree)).is_equal(order(isl_schedule)):
        raise Unsupported(f"isl's schedule of {kernel.label} is another one than its marks say: remove the stale ones")
    return tree


def order(isl_schedule: isl.Schedule) -> isl.UnionMap:
    """When each instance runs: a vector, smaller ones first."""
    return isl_schedule.get_map().intersect_domain(isl_schedule.get_domain())


_NOTHING = Do(0, ())


def read_mark(
    node: isl.ScheduleNode, symbol: Callable[[str], sympy.Symbol] | None = None, loops: Iterable[str] = ()
) -> Tree:
    """What a mark says: the node of its line, around nothing; ``loops``: the names of the loops in the schedule."""
    line = str(node.mark_get_id().name)
    return parse(f"{line}\n  {line_of(_NOTHING)}" if line.endswith(":") else line, symbol, loops)


def _bands(node: isl.ScheduleNode) -> Iterator[str]:
    """The names of all bands from ``node`` on."""
    if kind_of(node) == _KIND.band and node.band_get_space().has_tuple_name(_SET):
        yield str(node.band_get_space().get_tuple_name(_SET))
    for k in range(node.n_children()):
        yield from _bands(node.child(k))


def kind_of(node: isl.ScheduleNode) -> Any:
    """``isl.schedule_node_type``, which the stubs of islpy take for a number."""
    return node.get_type()


# ---------------------------------------------------------------- to isl


class _Writer:
    def __init__(self, domains: Domains, tree: Tree):
        self._domains, self._tree = domains, tree
        self._dos = {do.statement: do for do in schedule.dos(tree)}
        self._values: dict[int, list[list[isl.PwAff]]] = {}

    def schedule(self) -> isl.Schedule:
        """The whole schedule."""
        self._check_statements()
        for node, around in schedule.walk(self._tree):
            if isinstance(node, Do):
                self._values[node.statement] = loop_values(self._domains, node, around)
        place = isl.Schedule.from_domain(self._domains.all()).get_root().child(0)
        for k in sorted(self._dos) if any(self._values.values()) else ():
            place = place.insert_mark(identifier(line_of(self._dos[k]))).child(0)
        return self._node(place, self._tree, 0).get_schedule()

    def _check_statements(self) -> None:
        statements = sorted(do.statement for do in schedule.dos(self._tree))
        expected = list(range(len(self._domains.kernel.stages)))
        if statements != expected:
            label = self._domains.kernel.label
            raise IllegalSchedule(f"schedule of {label} has statements {statements}; expected each of {expected} once")

    def _node(self, node: isl.ScheduleNode, tree: Tree, depth: int) -> isl.ScheduleNode:
        """``tree`` in the place of the leaf ``node``; ``depth``: the number of loops around it."""
        if isinstance(tree, Do):
            return node
        if isinstance(tree, Sequence):
            return self._sequence(node, tree, depth)
        if not isinstance(tree, Loop):
            node = node.insert_mark(identifier(line_of(tree)))
            return self._node(node.child(0), tree.body, depth).parent()
        node = node.insert_partial_schedule(self._band(tree, depth)).insert_mark(identifier(line_of(tree)))
        return self._node(node.child(0).child(0), tree.body, depth + 1).parent().parent()

    def _sequence(self, node: isl.ScheduleNode, tree: Sequence, depth: int) -> isl.ScheduleNode:
        parts = [self._instances(child) for child in tree.children]
        node = node.insert_sequence(reduce(isl.UnionSetList.concat, [p.to_list() for p in parts]))
        for k, child in enumerate(tree.children):
            node = self._node(node.child(k).child(0), child, depth).parent().parent()
        return node

    def _instances(self, tree: Tree) -> isl.UnionSet:
        """All that is in ``tree``, whether it is in the domain or not."""
        sets = [self._domains.domain(do.statement) for do in schedule.dos(tree)]
        universes = [isl.UnionSet.from_set(isl.Set.universe(s.get_space())) for s in sets]
        return reduce(isl.UnionSet.union, universes)

    def _band(self, loop: Loop, depth: int) -> isl.MultiUnionPwAff:
        values = [self._values[do.statement][depth] for do in schedule.dos(loop)]
        if len({len(members) for members in values}) > 1:
            raise Unsupported(f"the statements in the loop over {loop.param} take different digits of it")
        space = isl.Space.set_alloc(CONTEXT, 0, len(values[0])).set_tuple_id(_SET, identifier(str(loop.param)))
        members = [reduce(isl.UnionPwAff.union_add, map(isl.UnionPwAff.from_pw_aff, m)) for m in zip(*values)]
        listed = reduce(isl.UnionPwAffList.concat, [m.to_list() for m in members])
        return isl.MultiUnionPwAff.from_union_pw_aff_list(space, listed)


# ---------------------------------------------------------------- from isl


class _Reader:
    def __init__(self, graph: Graph | None, kernel: Kernel, names: set[str]):
        self._kernel, self._names = kernel, names
        domains = Domains(graph, kernel)
        domains.all()  # names the sizes
        self._sizes = domains.sizes
        sizes = {s for e in kernel.extents.values() if isinstance(e, sympy.Expr) for s in e.free_symbols}
        self._symbols = {str(s): s for s in sizes | set(kernel.extents)}
        self._statements: dict[int, Do] = {}

    def tree(self, node: isl.ScheduleNode, around: tuple[Loop, ...] = ()) -> Tree:
        """What is at ``node``; ``around``: the loops outside of it."""
        kind = kind_of(node)
        if kind in (_KIND.domain, _KIND.filter):
            return self.tree(node.child(0), around)
        if kind in (_KIND.sequence, _KIND.set):
            return Sequence(tuple(self.tree(node.child(k), around) for k in range(node.n_children())))
        if kind == _KIND.mark:
            return self._mark(node, around)
        if kind == _KIND.band:
            loops = self._loops(node, around)
            return self._nest(loops, self.tree(node.child(0), (*around, *loops)))
        if kind == _KIND.leaf:
            return self._do(node, around)
        raise Unsupported(f"isl's schedule of {self._kernel.label} has a node of {kind}, which a tree has no form for")

    def _mark(self, node: isl.ScheduleNode, around: tuple[Loop, ...]) -> Tree:
        mark = read_mark(node, self._symbol, self._names)
        if isinstance(mark, Do):
            self._statements[mark.statement] = mark
            return self.tree(node.child(0), around)
        if not isinstance(mark, Loop):
            return schedule.with_children(mark, [self.tree(node.child(0), around)])
        band = node.child(0)
        if kind_of(band) != _KIND.band:
            raise Unsupported(f"the mark {line_of(mark)!r} stands above a {kind_of(band)}; expected a band")
        return schedule.nest_loops([mark], self.tree(band.child(0), (*around, mark)))

    def _nest(self, loops: list[Loop], body: Tree) -> Tree:
        """Guards that no mark has put in their place stand as far outside as they can."""
        if self._statements or not isinstance(body, Guard):
            return schedule.nest_loops(loops, body)
        return schedule.nest_guarded_loops(loops, body.condition, body.body)

    def _symbol(self, name: str) -> sympy.Symbol:
        return self._symbols.setdefault(name, Parameter(name))

    # ------------------------------------------------------------ what no mark says

    def _loops(self, band: isl.ScheduleNode, around: tuple[Loop, ...]) -> list[Loop]:
        """The members of a band as loops inside one another."""
        functions = band.band_get_partial_schedule()
        count = band.band_n_member()
        name = functions.get_tuple_name(_SET) if count == 1 and functions.has_tuple_id(_SET) else None
        prefix = band.get_prefix_schedule_union_map().intersect_domain(band.get_domain())
        loops: list[Loop] = []
        for k in range(count):
            prefix = prefix.flat_range_product(isl.UnionMap.from_union_pw_aff(functions.get_union_pw_aff(k)))
            outside = [loop.param for loop in (*around, *loops)]
            symbol = self._symbol(name or f"c{len(outside)}")
            loops.append(self._loop(prefix.range().as_set(), outside, symbol))
        return loops

    def _loop(self, values: isl.Set, outside: Several[sympy.Symbol], symbol: sympy.Symbol) -> Loop:
        """The loop over the last dimension of ``values``, whose others are the loops around it."""
        axis = len(outside)
        alone = values.project_out(_SET, 0, axis)
        sizes = self._sizes.by_name
        extent = upper_bounds(alone, [symbol], sizes)
        if not extent or not alone.is_subset(isl.Set("{ [x] : x >= 0 }")):
            raise Unsupported(
                f"a band of isl's schedule of {self._kernel.label} begins below 0, or has no end: shift it"
            )
        if numbers := [n for n in extent if isinstance(n, int)]:
            extent, alone = [min(numbers)], isl.Set(f"{{ [x] : 0 <= x < {min(numbers)} }}")
        context = values.project_out(_SET, axis, 1).add_dims(_SET, 1).intersect(alone.insert_dims(_SET, 0, axis))
        rest = upper_bounds(values.gist(context), [*outside, symbol], sizes)
        return Loop(symbol, _least(extent), _NOTHING, rest=_least(rest) if rest else None)

    def _do(self, leaf: isl.ScheduleNode, around: tuple[Loop, ...]) -> Tree:
        if leaf.get_domain().n_set() != 1:
            raise Unsupported(f"a leaf of isl's schedule of {self._kernel.label} has several statements")
        instances = leaf.get_domain().as_set()
        statement = int(instances.get_tuple_name()[1:])
        if statement in self._statements:
            return self._statements[statement]
        prefix = leaf.get_prefix_schedule_union_map().intersect_domain(leaf.get_domain())
        runs = prefix.as_map().reverse()
        do = Do(statement, self._index(runs, [loop.param for loop in around]))
        return schedule.add_guard(self._condition(runs.domain(), around), do)

    def _condition(self, points: isl.Set, around: tuple[Loop, ...]) -> list[sympy.Basic]:
        """What tells the iterations in which a statement runs from the others of the loops around it."""
        params = [loop.param for loop in around]
        space = points.get_space().reset_tuple_id(_SET) if points.has_tuple_id() else points.get_space()
        of, values = functions_on(self._sizes, space, params)
        instances = space.universe_set()
        for loop in around:
            instances = within(
                instances, of, values[loop.param], [b for b in (loop.extent, loop.rest) if b is not None]
            )
        if instances.is_subset(points):
            return []
        pieces = points.gist(instances).coalesce().compute_divs().get_basic_sets()
        if len(pieces) != 1:
            raise Unsupported(f"a statement of {self._kernel.label} runs at {points}, which no one condition says")
        return [self._relation(c, params, points) for c in pieces[0].get_constraints() if not c.is_div_constraint()]

    def _relation(self, constraint: isl.Constraint, params: list[sympy.Symbol], points: isl.Set) -> sympy.Basic:
        expr = sympy.sympify(expression(constraint.get_aff(), params, self._sizes.by_name, points))
        constant, rest = expr.as_coeff_Add()
        below = -sympy.Add(*(t for t in sympy.Add.make_args(rest) if t.could_extract_minus_sign()))
        above = rest + below
        if constraint.is_equality():
            sides = (below, constant) if above == 0 else (above, below - constant)
            return conditions.relation(sides[0], "==", sides[1])
        if constant == -1:
            return conditions.relation(below, "<", above)
        return conditions.relation(below, "<=", above + constant)

    def _index(self, runs: isl.Map, loops: list[sympy.Symbol]) -> tuple[Dim, ...]:
        """The statement's parameters in the values of the loops around it."""
        count, points = runs.dim(_OUT), runs.domain()
        index = []
        for k in range(count):
            alone = runs.project_out(_OUT, k + 1, count - k - 1).project_out(_OUT, 0, k)
            if not alone.is_single_valued():
                raise Unsupported(f"isl's schedule of {self._kernel.label} runs several instances at once")
            pieces = isl.PwMultiAff.from_map(alone).gist(points).coalesce().get_pw_aff(0).get_pieces()
            if len(pieces) != 1:
                raise Unsupported(f"parameter {k} of a statement is {pieces}; expected one function of the loops")
            index.append(sympy.sympify(expression(_whole(pieces[0][1], points), loops, self._sizes.by_name, points)))
        return tuple(index)


def _whole(aff: isl.Aff, points: isl.Set) -> isl.Aff:
    """The same integer at ``points`` as a quotient without a remainder: ``(i - 1)/2`` is ``i // 2`` for odd ``i``."""
    exact, short = aff.floor(), aff.set_constant_val(isl.Val(0)).floor()
    same = isl.PwAff.from_aff(exact).eq_set(isl.PwAff.from_aff(short))
    return short if points.is_subset(same) else exact


def _least(bounds: list[Dim]) -> Dim:
    return bounds[0] if len(bounds) == 1 else sympy.Min(*bounds, evaluate=False)
