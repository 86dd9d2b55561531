"""Prints a kernel as one C++ function whose text depends on the kernel's structure only, never on names.

The loops are those of the kernel's schedule (``ir/schedule/schedule.py``); nothing is decided here.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from functools import partial
from math import prod

from daceopt.codegen import c_tree
from daceopt.codegen.accumulator import Accumulator, identity
from daceopt.codegen.c_tree import Assign, Body, Compound, Declare, Expression, For, If, Pragma, Statement, Stored
from daceopt.codegen.cpu.hoisting import Hoisted
from daceopt.codegen.cpu.tile_calls import call_of, declarations
from daceopt.codegen.kernel_unit import KernelArgument, KernelSource, home, support_header
from daceopt.codegen.leaf import Leaf
from daceopt.codegen.names import Names
from daceopt.errors import Unsupported
from daceopt.ir.access.kernel_pattern import draw, with_open_draws
from daceopt.ir.access.references import KernelBuffer, Reference, resolve_all
from daceopt.ir.graph.graph import Graph
from daceopt.ir.kernel.kernel import Kernel
from daceopt.ir.legality.microkernels import Tile, TileProduct, tiles
from daceopt.ir.legality.schedule_check import check
from daceopt.ir.scalar import types
from daceopt.ir.scalar.dims import Dim, dim
from daceopt.ir.schedule import schedule
from daceopt.ir.schedule.guards import Branches, in_branches, start_of
from daceopt.ir.schedule.local_storage import fold_locals
from daceopt.ir.schedule.schedule import Accumulate, Alloc, Call, Do, Guard, Loop, Partial, Tree

_STACK_BYTES = 1 << 15
BAD = Declare("int32_t", "bad", "0")
_REPORT = If("bad && !*status", Assign("*status", "bad"))


def kernel_source(graph: Graph, kernel: Kernel) -> KernelSource:
    """Print ``kernel``, whose arrays are those of ``graph``.

    Raises IllegalSchedule where its schedule is wrong, and ``Unsupported`` where C++ has no form for it.
    """
    if kernel.schedule is not None or kernel.serial:
        check(graph, kernel, schedule.schedule_of(kernel))
    return Emitter(graph, fold_locals(kernel, schedule.schedule_of(kernel))).source()


class Emitter:
    """Writes the loops of a kernel's schedule, with threads of OpenMP and vector loops."""

    def __init__(self, graph: Graph, kernel: Kernel):
        kernel, draws = with_open_draws(kernel)
        self._draws = {str(draw(k)): number for k, number in enumerate(draws)}
        self._kernel, self._tree, self._in_place = kernel, schedule.schedule_of(kernel), dict(graph.in_place)
        if len(kernel.writes()) > 1:  # it may read an element for one result after another one was written over it
            self._in_place |= graph.overwrites
        self._names = Names()
        self._checks = False
        for loop in schedule.loops(self._tree):
            self._names.add_loop(loop)
        self._paths = schedule.paths(self._tree)
        self._bodies = resolve_all(graph, kernel, self._tree)
        self._locals: dict[str, KernelBuffer] = {}
        for body in self._bodies.values():
            for buffer in (reference.buffer for reference in body.references()):
                if buffer.local:
                    self._locals[buffer.array] = buffer
                else:
                    self._names.buffer(buffer)
        self._accumulators: dict[tuple[int, Partial], Accumulator] = {}  # id of the Accumulate node, partial
        self._innermost: dict[tuple[int, str], Accumulator] = {}
        self._note_accumulators(self._tree, {})
        self._scopes = {n.array: n.scope for n, _ in schedule.walk(self._tree) if isinstance(n, Alloc)}
        self._tiles = tiles(kernel, self._tree, self._bodies)
        self._hoisted = Hoisted(self._names, self._tree, self._bodies)
        called = {tile.statement for tile in self._tiles.values()}
        runs = [run for run in schedule.runs(self._tree) if run[0].statement not in called]
        self._leaves = {id(run[0]): self._leaf(run) for run in runs}

    # ---------------------------------------------------------------- preparation

    def _note_accumulators(self, tree: Tree, outer: dict[tuple[int, str], Accumulator]) -> None:
        if isinstance(tree, Accumulate):
            outer = dict(outer)
            for partial in tree.partials:
                write = (partial.statement, partial.connector)
                accumulator = self._accumulator(tree, partial, outer.get(write))
                outer[write] = self._accumulators[id(tree), partial] = self._innermost[write] = accumulator
        for child in schedule.children(tree):
            self._note_accumulators(child, outer)

    def _accumulator(self, node: Accumulate, partial: Partial, outer: Accumulator | None) -> Accumulator:
        target = self._bodies[partial.statement].writes[partial.connector]
        loops = schedule.loops_below(node, self._paths[partial.statement])
        own = types.compute_type(target.buffer.dtype)
        assert target.wcr is not None
        return Accumulator(
            self._names.accumulator(),
            target.wcr,
            schedule.accumulator_type(own, target.wcr) if partial.wide else own,
            tuple(loop for loop in loops if loop.param in target.params()),
            target,
            node.private,
            not partial.wide and _vector_loop(node) is not None,
            outer,
        )

    def _leaf(self, run: Sequence[Do]) -> Leaf:
        registers = {a for a, scope in self._scopes.items() if scope == "register"}
        bodies = [self._hoisted.bodies[do.statement] for do in run]
        inner, unrolled = (loops.get(id(run[0])) for loops in (self._hoisted.inner, self._hoisted.unrolled))
        leaf = Leaf(self._names, bodies, self._innermost, registers, inner=inner, unrolled=unrolled)
        self._checks |= leaf.checks_index or leaf.checks_before
        return leaf

    # ---------------------------------------------------------------- the function

    def source(self) -> KernelSource:
        body = c_tree.text(self._top(self._tree), 1)
        arguments, parameters = self._arguments()
        text = f"void KERNEL({', '.join(parameters)}) {{\n{body}\n}}\n"
        text = declarations(self._tiles.values()) + text
        name = f"k_{hashlib.sha256((support_header(text) + text).encode()).hexdigest()[:16]}"
        return KernelSource(name, text.replace("void KERNEL", f'extern "C" void {name}', 1), arguments)

    def _arguments(self) -> tuple[tuple[KernelArgument, ...], list[str]]:
        buffers, written = self._names.buffers(), {r.buffer for b in self._bodies.values() for r in b.writes.values()}
        arguments, parameters = [], []
        homes = {b: home(b.array, self._in_place) for b in buffers}
        for buffer, name in buffers.items():
            argument = KernelArgument("pointer", buffer.array, buffer.offset, buffer.dtype, buffer in written)
            twins = {b for b in buffers if homes[b] == homes[buffer]}
            alone = len(twins) == 1 or written.isdisjoint(twins)
            arguments.append(argument)
            parameters.append(f"{argument.cpp} {'__restrict__ ' if alone else ''}{name}")
        for symbol, name in self._names.sizes().items():
            kind = "draw" if symbol in self._draws else "symbol"
            arguments.append(KernelArgument(kind, symbol=symbol, value=self._draws.get(symbol, 0)))
            parameters.append(f"int64_t {name}")
        if self._checks:
            arguments.append(KernelArgument("status"))
            parameters.append("int32_t* status")
        return tuple(arguments), parameters

    # ---------------------------------------------------------------- outside of the threads

    def _top(self, tree: Tree) -> Body:
        """What is around parallel loops runs in one thread; where there are none, everything does."""
        inside = [loop.kind for loop in schedule.loops(tree)]
        if isinstance(tree, Loop) and tree.kind == "parallel vector":
            return self._flat(tree)
        if not any(kind.startswith("parallel") for kind in inside):
            return (self._region(tree),)
        if isinstance(tree, Loop) and tree.kind.startswith("parallel"):
            return Pragma(f"omp parallel{self._if_clause(tree)}"), self._region(tree, shared=True)
        if isinstance(tree, Accumulate) and tree.private:
            return self._private(tree)
        if isinstance(tree, Loop):
            return self._nest([tree], lambda: self._top(tree.body))
        if isinstance(tree, Guard):
            return (self._if_of(tree, self._top),)
        if isinstance(tree, schedule.Sequence):
            return tuple(s for child in tree.children for s in self._top(child))
        raise Unsupported(f"kernel {self._kernel.label}: a parallel loop inside of memory that threads would share")

    def _flat(self, loop: Loop) -> Body:
        bad, condition = self._bad_clause(loop), self._if_clause(loop)
        shared = Pragma(f"omp for simd schedule(static) nowait{bad}")
        region = Compound((*self._before(loop), shared, *self._nest([loop], lambda: self._inside(loop.body))))
        parallel = Pragma(f"omp parallel{condition}"), region
        return (Compound((BAD, *parallel, _REPORT)),) if bad else parallel  # each of a kernel's loops has its own

    def _if_clause(self, loop: Loop) -> str:
        return "" if loop.when is None else f" if({self._condition(loop)})"

    def _condition(self, loop: Loop) -> str:
        return self._names.relation_text(loop.when)

    def _private(self, node: Accumulate) -> Body:
        """Memory for each thread around the parallel loop, and the sum over the threads, in their order, behind it."""
        band = node.body
        if not isinstance(band, Loop) or band.kind != "parallel":
            raise Unsupported(f"kernel {self._kernel.label}: private accumulators stand around a parallel loop")
        threads = "omp_get_max_threads()"
        if band.when is not None:
            threads = f"{self._condition(band)} ? {threads} : 1"
        accumulators = [self._accumulators[id(node), p] for p in node.partials]
        memory = [s for a in accumulators for s in self._private_memory(a)]
        region = Pragma("omp parallel num_threads(threads)"), self._region(band, accumulators, shared=True)
        combined = [s for a in accumulators for s in self._combine(a)]
        return Declare("int", "threads", threads, const=True), *memory, *region, *combined

    def _private_memory(self, a: Accumulator) -> Body:
        size = f"({self._names.size_text(a.size)} + 7) / 8 * 8"
        return (
            Declare("int64_t", f"{a.name}_stride", size, const=True),
            Expression(f"dop::Scratch<{a.cpp}> {a.name}_all(threads * {a.name}_stride)"),
            fill(f"{a.name}_all.data", f"threads * {a.name}_stride", a),
        )

    def _combine(self, a: Accumulator) -> Body:
        def total() -> Body:
            name = f"{a.name}_total"
            value = f"{a.name}_all.data[t * {a.name}_stride + {a.index(self._names)}]"
            joined = For("t", "threads", Assign(name, a.join(name, value)), "int")
            return Declare(a.cpp, name, identity(a.op, a.dtype)), joined, self._element_store(a.target, name)

        return self._nest(a.dims, total)

    # ---------------------------------------------------------------- one thread

    def _region(self, tree: Tree, private: Sequence[Accumulator] = (), shared: bool = False) -> Compound:
        """What one thread does; of a ``shared`` loop, its part."""
        threads = [(a, f"{a.name}_all.data + omp_get_thread_num() * {a.name}_stride") for a in private]
        own = [Declare(f"{a.cpp}* __restrict__ const", a.name, thread) for a, thread in threads]
        memory = self._thread_memory(tree)
        body = self._share_loops(tree) if shared and isinstance(tree, Loop) else self._inside(tree)
        bad, report = ((BAD,), (_REPORT,)) if self._checks else ((), ())
        return Compound((*bad, *own, *memory, *body, *report))

    def _thread_memory(self, tree: Tree) -> Body:
        """What is too large for the stack, allocated once for all iterations of the thread."""
        memory: list[Statement] = []
        for node, _ in schedule.walk(tree):
            if isinstance(node, Accumulate):
                for a in (self._accumulators[id(node), p] for p in node.partials):
                    if not a.private and a.dims and not _on_stack(a.size, a.dtype):
                        memory += self._scratch(a.name, a.cpp, a.size)
            if isinstance(node, Alloc) and node.scope == "thread":
                name, dtype, size = self._local(node)
                if not _on_stack(size, dtype):
                    memory += self._scratch(name, types.cpp(dtype), size)
        return tuple(memory)

    def _scratch(self, name: str, cpp: str, size: Dim) -> Body:
        allocated = Expression(f"dop::Scratch<{cpp}> {name}_memory({self._names.size_text(size)})")
        return allocated, Declare(f"{cpp}* __restrict__ const", name, f"{name}_memory.data")

    def _share_loops(self, tree: Loop) -> Body:
        """The parallel loops directly inside one another, as one space that the threads share."""
        band, body = schedule.chain(tree)
        count = next((k for k, loop in enumerate(band) if loop.kind != "parallel"), len(band))
        collapse = f" collapse({count})" if count > 1 else ""
        inner = schedule.nest_loops(band[count:], body)
        loops = self._nest(band[:count], lambda: self._inside(inner))
        return Pragma(f"omp for{collapse} schedule(static) nowait"), *loops

    def _inside(self, tree: Tree, collecting: Sequence[Accumulator] = ()) -> Body:
        """``collecting``: the accumulators of lanes directly around ``tree``."""
        if isinstance(tree, Do):
            return self._run([tree])
        if isinstance(tree, schedule.Sequence):
            return self._sequence(tree)
        if isinstance(tree, Alloc):
            return self._allocate(tree)
        if isinstance(tree, Accumulate):
            return self._collect(tree, collecting)
        if isinstance(tree, Guard):
            return (self._if_of(tree, self._inside),)
        return (self._call(self._tiles[id(tree)]),) if isinstance(tree, Call) else self._loop(tree, collecting)

    def _sequence(self, tree: schedule.Sequence) -> Body:
        return tuple(s for part in in_branches(schedule.in_runs(tree.children)) for s in self._part(part))

    def _part(self, part: Branches | list[Do] | Tree) -> Body:
        """A part of a sequence; code without a loop of its own is apart from what is beside it, which may use the
        same names."""
        if isinstance(part, Branches):
            return (self._branches(part.guards),)
        return (Compound(self._run(part)),) if isinstance(part, list) else self._inside(part)

    def _branches(self, guards: Sequence[Guard]) -> If:
        """Of many, the one that may hold is found by halves."""
        if len(guards) == 1:
            return self._if_of(guards[0], self._inside)
        half = len(guards) // 2
        param, first = start_of(guards[half])
        condition = f"{self._names.loop(param)} < {self._names.size_text(first)}"
        return If(condition, (self._branches(guards[:half]),), (self._branches(guards[half:]),))

    def _if_of(self, guard: Guard, body_of: Callable[[Tree], Body]) -> If:
        return If(" && ".join(map(self._names.relation_text, guard.condition)), body_of(guard.body))

    def _run(self, run: Sequence[Do]) -> Body:
        return tuple(self._leaves[id(run[0])].statements)

    def _allocate(self, tree: Tree) -> Body:
        """Locals that live equally long, in the order of their names: equal kernels may list them in another."""
        own: list[tuple[str, types.DType, Dim]] = []
        while isinstance(tree, Alloc):
            own += [self._local(tree)] if tree.scope == "thread" else []
            tree = tree.body
        arrays = [(n, t, size) for n, t, size in sorted(own, key=lambda local: int(local[0][1:])) if _on_stack(size, t)]
        return *(_stack_array(name, types.cpp(t), size) for name, t, size in arrays), *self._inside(tree)

    def _local(self, node: Alloc) -> tuple[str, types.DType, Dim]:
        buffer = self._locals[node.array]
        return self._names.local(buffer), buffer.dtype, dim(prod(self._kernel.locals[node.array][1]))

    def _collect(self, node: Accumulate, collecting: Sequence[Accumulator]) -> Body:
        accumulators = [self._accumulators[id(node), p] for p in node.partials]
        starts = [s for a in accumulators for s in self._start(a)]
        body = self._inside(node.body, [*collecting, *(a for a in accumulators if a.lanes)])
        return *starts, *body, *(s for a in accumulators for s in self._store(a))

    def _start(self, a: Accumulator) -> Body:
        if not a.dims:
            noted = (Declare("int32_t", f"{a.name}_nan", "0"),) if a.notes_nan else ()
            return Declare(a.cpp, a.name, identity(a.op, a.dtype)), *noted
        array = (_stack_array(a.name, a.cpp, a.size),) if _on_stack(a.size, a.dtype) else ()
        return *array, fill(a.name, self._names.size_text(a.size), a)

    def _store(self, a: Accumulator) -> Body:
        return self._nest(a.dims, lambda: (self._passed_on(a),))

    def _passed_on(self, a: Accumulator) -> Assign:
        """What it has collected, in the accumulator around it or in its array."""
        value = a.total if not a.dims else f"{a.name}[{a.index(self._names)}]"
        return self._element_store(a.target, value) if a.outer is None else a.outer.add(self._names, value)

    def _loop(self, loop: Loop, collecting: Sequence[Accumulator]) -> Body:
        before, pragma = self._pragma(loop, collecting)
        return *before, *pragma, *self._nest([loop], lambda: self._iteration(loop))

    def _iteration(self, loop: Loop) -> Body:
        body = loop.body
        is_run = isinstance(body, schedule.Sequence) and all(isinstance(c, Do) for c in body.children)
        return self._run(schedule.runs(body)[0]) if is_run else self._inside(body)

    def _pragma(self, loop: Loop, collecting: Sequence[Accumulator]) -> tuple[Body, Body]:
        """What is before a loop, and what the compiler is told about it."""
        if loop.kind == "vector":
            before, clauses = self._before(loop), "".join(a.clause for a in collecting)
            return before, (Pragma(f"omp simd{clauses}{self._bad_clause(loop)}"),)
        if loop.kind == "unroll":
            return (), (Pragma(f"GCC unroll {loop.extent if isinstance(loop.extent, int) else 4}"),)
        if loop.kind != "serial":
            raise Unsupported(f"kernel {self._kernel.label}: a {loop.kind} loop inside of another thread's loop")
        return (), ((Pragma("GCC unroll 1"),) if _cuts_vectors(loop) else ())

    def _before(self, loop: Loop) -> Body:
        """What all iterations of a vector loop have in common."""
        run = self._hoisted.run_of(loop)
        return *self._hoisted.statements(loop), *(self._leaves[run].before if run is not None else ())

    def _call(self, tile: Tile) -> Expression:
        sizes = ["1" if loop is None else self._extent(loop) for loop in tile.loops]
        collector = self._innermost.get((tile.statement, tile.connector)) if isinstance(tile, TileProduct) else None
        return call_of(self._names, tile, sizes, collector)

    def _bad_clause(self, tree: Tree) -> str:
        leaves = (self._leaves.get(id(run[0])) for run in schedule.runs(tree))
        return " reduction(| : bad)" if any(leaf is not None and leaf.checks_index for leaf in leaves) else ""

    # ---------------------------------------------------------------- statements

    def _element_store(self, target: Reference, value: str) -> Assign:
        dtype = target.buffer.dtype
        stored = Stored(f"{types.cpp(types.compute_type(dtype))}({value})", dtype)
        return Assign(self._names.element(target), stored)

    def _nest(self, loops: Sequence[Loop], body_of: Callable[[], Body]) -> Body:
        """Loops inside one another, and inside of them what ``body_of`` makes behind them: names are in this order."""
        heads = [self._head(loop) for loop in loops]
        body = body_of()
        for head in reversed(heads):
            body = (head(body),)
        return body

    def _head(self, loop: Loop) -> Callable[[Body], Statement]:
        return partial(For, self._names.loop(loop.param), self._extent(loop))

    def _extent(self, loop: Loop) -> str:
        extent = self._names.size_text(loop.extent)
        if loop.rest is None:
            return extent
        return f"dop::minimum<int64_t>({extent}, {self._names.size_text(loop.rest)})"


def fill(target: str, count: str, a: Accumulator) -> For:
    """Lets an accumulator's array begin as its reduction does."""
    return For("j", count, Assign(f"{target}[j]", identity(a.op, a.dtype)))


def _stack_array(name: str, cpp: str, size: Dim) -> Declare:
    return Declare(f"alignas(64) {cpp}", name, size=str(max(int(size), 1)))


def _vector_loop(node: Accumulate) -> Loop | None:
    """The vector loop that nothing but accumulators separates from ``node``."""
    body: Tree = node
    while isinstance(body, Accumulate):
        body = body.body
    return body if isinstance(body, Loop) and body.kind == "vector" else None


def _on_stack(size: Dim, dtype: types.DType) -> bool:
    return isinstance(size, int) and size * types.itemsize(dtype) <= _STACK_BYTES


def _cuts_vectors(loop: Loop) -> bool:
    """Does a vector loop inside of it end earlier in its last iteration? Of two iterations gcc makes two loops, before
    it makes vectors of them, and then adds the lanes of a sum one after the other."""
    return any(
        inner.kind == "vector" and loop.param in getattr(inner.rest, "free_symbols", ())
        for inner in schedule.loops(loop.body)
    )
