"""Prints a kernel as one C++ function whose text depends on the kernel's structure only, never on names.

The loops are those of the kernel's schedule (``ir/schedule/schedule.py``); nothing is decided here.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from math import prod

from daceopt.codegen.cpu.hoisting import Hoisted
from daceopt.codegen.cpu.tile_calls import call_of, declarations
from daceopt.codegen.kernel_unit import KernelArgument, KernelSource, home, support_header
from daceopt.codegen.leaf import Accumulator, Leaf, identity, store_text
from daceopt.codegen.names import Names
from daceopt.errors import Unsupported
from daceopt.ir.access.kernel_pattern import draw, with_open_draws
from daceopt.ir.access.references import Reference, resolve_all
from daceopt.ir.graph.graph import Graph
from daceopt.ir.kernel.kernel import Kernel
from daceopt.ir.legality.microkernels import Tile, TileProduct, tiles
from daceopt.ir.legality.schedule_check import check
from daceopt.ir.scalar import types
from daceopt.ir.scalar.dims import Dim, dim
from daceopt.ir.schedule import schedule
from daceopt.ir.schedule.guards import Branches, in_branches, start_of
from daceopt.ir.schedule.local_storage import folded
from daceopt.ir.schedule.schedule import Accumulate, Alloc, Call, Do, Guard, Loop, Partial, Tree

_STACK_BYTES = 1 << 15
_REPORT = "if (bad && !*status) *status = bad;"


def kernel_source(graph: Graph, kernel: Kernel) -> KernelSource:
    """Print ``kernel``, whose arrays are those of ``graph``.

    Raises IllegalSchedule where its schedule is wrong, and ``Unsupported`` where C++ has no form for it.
    """
    if kernel.schedule is not None or kernel.serial:
        check(graph, kernel, schedule.schedule_of(kernel))
    return Emitter(graph, folded(kernel, schedule.schedule_of(kernel))).source()


class Emitter:
    """Writes the loops of a kernel's schedule, with threads of OpenMP and vector loops."""

    def __init__(self, graph: Graph, kernel: Kernel):
        kernel, draws = with_open_draws(kernel)
        self._draws = {str(draw(k)): number for k, number in enumerate(draws)}
        self._kernel, self._tree, self._in_place = kernel, schedule.schedule_of(kernel), dict(graph.in_place)
        if len(kernel.writes()) > 1:  # it may read an element for one result after another one was written over it
            self._in_place |= graph.overwrites
        self._names = Names()
        self._lines: list[str] = []
        self._depth = 1
        self._checks = False
        for loop in schedule.loops(self._tree):
            self._names.add_loop(loop)
        self._bodies = resolve_all(graph, kernel, self._tree)
        for body in self._bodies.values():
            for reference in body.references():
                if not reference.buffer.local:
                    self._names.buffer(reference.buffer)
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
                made = self._accumulator(tree, partial, outer.get(write))
                outer[write] = self._accumulators[id(tree), partial] = self._innermost[write] = made
        for child in schedule.children(tree):
            self._note_accumulators(child, outer)

    def _accumulator(self, node: Accumulate, partial: Partial, outer: Accumulator | None) -> Accumulator:
        target = self._bodies[partial.statement].writes[partial.connector]
        loops = schedule.loops_to(node.body, partial)
        own = types.compute_type(target.buffer.dtype)
        assert target.wcr is not None
        return Accumulator(
            self._names.accumulator(),
            target.wcr,
            schedule.collected(own, target.wcr) if partial.wide else own,
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
        self._top(self._tree)
        body = "\n".join(self._lines)
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

    def _top(self, tree: Tree) -> None:
        """What stands around parallel loops runs in one thread; where there are none, everything does."""
        inside = [loop.kind for loop in schedule.loops(tree)]
        if isinstance(tree, Loop) and tree.kind == "parallel vector":
            self._flat(tree)
        elif not any(kind.startswith("parallel") for kind in inside):
            self._region(tree, None)
        elif isinstance(tree, Loop) and tree.kind.startswith("parallel"):
            self._region(tree, f"omp parallel{self._if_clause(tree)}")
        elif isinstance(tree, Accumulate) and tree.private:
            self._private(tree)
        elif isinstance(tree, Loop):
            self._for(tree)
            self._top(tree.body)
            self._close()
        elif isinstance(tree, Guard):
            self._guard_body(tree, self._top)
        elif isinstance(tree, schedule.Sequence):
            for child in tree.children:
                self._top(child)
        else:
            raise Unsupported(f"kernel {self._kernel.label}: a parallel loop inside of memory that threads would share")

    def _flat(self, loop: Loop) -> None:
        bad = self._bad_clause(loop)
        if bad:
            self._open("{")  # each of a kernel's loops has its own
            self._line("int32_t bad = 0;")
        self._line(f"#pragma omp parallel{self._if_clause(loop)}")
        self._open("{")
        self._before(loop)
        self._line(f"#pragma omp for simd schedule(static) nowait{bad}")
        self._for(loop)
        self._inside(loop.body)
        self._close()
        self._close()
        if bad:
            self._line(_REPORT)
            self._close()

    def _if_clause(self, loop: Loop) -> str:
        return "" if loop.when is None else f" if({self._condition(loop)})"

    def _condition(self, loop: Loop) -> str:
        return self._names.relation_text(loop.when)

    def _private(self, node: Accumulate) -> None:
        """Memory for each thread around the parallel loop, and the sum over the threads, in their order, behind it."""
        band = node.body
        if not isinstance(band, Loop) or band.kind != "parallel":
            raise Unsupported(f"kernel {self._kernel.label}: private accumulators stand around a parallel loop")
        condition = "" if band.when is None else f"{self._condition(band)} ? "
        self._line(f"const int threads = {condition}omp_get_max_threads(){' : 1' if condition else ''};")
        made = [self._accumulators[id(node), p] for p in node.partials]
        for a in made:
            self._line(f"const int64_t {a.name}_stride = ({self._names.size_text(a.size)} + 7) / 8 * 8;")
            self._line(f"dop::Scratch<{a.cpp}> {a.name}_all(threads * {a.name}_stride);")
            self._fill(f"{a.name}_all.data", f"threads * {a.name}_stride", a)
        self._region(band, "omp parallel num_threads(threads)", made)
        for a in made:
            self._combine(a)

    def _combine(self, a: Accumulator) -> None:
        for loop in a.dims:
            self._for(loop)
        total = f"{a.name}_total"
        self._line(f"{a.cpp} {total} = {identity(a.op, a.dtype)};")
        value = f"{a.name}_all.data[t * {a.name}_stride + {a.index(self._names)}]"
        self._line(f"for (int t = 0; t < threads; ++t) {total} = {a.join(total, value)};")
        self._line(self._element_store(a.target, total))
        for _ in a.dims:
            self._close()

    # ---------------------------------------------------------------- one thread

    def _region(self, tree: Tree, pragma: str | None, private: Sequence[Accumulator] = ()) -> None:
        if pragma:
            self._line(f"#pragma {pragma}")
        self._open("{")
        if self._checks:
            self._line("int32_t bad = 0;")
        for a in private:
            thread = f"{a.name}_all.data + omp_get_thread_num() * {a.name}_stride"
            self._line(f"{a.cpp}* __restrict__ const {a.name} = {thread};")
        self._thread_memory(tree)
        if pragma and isinstance(tree, Loop):
            self._share_loops(tree)
        else:
            self._inside(tree)
        if self._checks:
            self._line(_REPORT)
        self._close()

    def _thread_memory(self, tree: Tree) -> None:
        """What is too large for the stack, allocated once for all iterations of the thread."""
        for node, _ in schedule.walk(tree):
            if isinstance(node, Accumulate):
                for a in (self._accumulators[id(node), p] for p in node.partials):
                    if not a.private and a.dims and not _on_stack(a.size, a.dtype):
                        self._scratch(a.name, a.cpp, a.size)
            if isinstance(node, Alloc) and node.scope == "thread":
                name, dtype, size = self._local(node)
                if not _on_stack(size, dtype):
                    self._scratch(name, types.cpp(dtype), size)

    def _scratch(self, name: str, cpp: str, size: Dim) -> None:
        self._line(f"dop::Scratch<{cpp}> {name}_memory({self._names.size_text(size)});")
        self._line(f"{cpp}* __restrict__ const {name} = {name}_memory.data;")

    def _share_loops(self, tree: Loop) -> None:
        """The parallel loops directly inside one another, as one space that the threads share."""
        band, body = schedule.chain(tree)
        count = next((k for k, loop in enumerate(band) if loop.kind != "parallel"), len(band))
        collapse = f" collapse({count})" if count > 1 else ""
        self._line(f"#pragma omp for{collapse} schedule(static) nowait")
        for loop in band[:count]:
            self._for(loop)
        self._inside(schedule.nested(band[count:], body))
        for _ in band[:count]:
            self._close()

    def _inside(self, tree: Tree, collecting: Sequence[Accumulator] = ()) -> None:
        """``collecting``: the accumulators of lanes directly around ``tree``."""
        if isinstance(tree, Do):
            self._run([tree])
        elif isinstance(tree, schedule.Sequence):
            self._sequence(tree)
        elif isinstance(tree, Alloc):
            self._allocate(tree)
        elif isinstance(tree, Accumulate):
            self._collect(tree, collecting)
        elif isinstance(tree, Guard):
            self._guard_body(tree, self._inside)
        elif isinstance(tree, Call):
            self._call(self._tiles[id(tree)])
        else:
            self._loop(tree, collecting)

    def _sequence(self, tree: schedule.Sequence) -> None:
        for run in in_branches(schedule.in_runs(tree.children)):
            if isinstance(run, Branches):
                self._branches(run.guards)
            elif isinstance(run, list):
                self._block(run)
            else:
                self._inside(run)

    def _branches(self, guards: Sequence[Guard]) -> None:
        """Of many, the one that may hold is found by halves."""
        if len(guards) == 1:
            self._guard_body(guards[0], self._inside)
            return
        half = len(guards) // 2
        param, first = start_of(guards[half])
        self._open(f"if ({self._names.loop(param)} < {self._names.size_text(first)}) {{")
        self._branches(guards[:half])
        self._depth -= 1
        self._open("} else {")
        self._branches(guards[half:])
        self._close()

    def _guard_body(self, guard: Guard, print_body: Callable[[Tree], None]) -> None:
        self._open(f"if ({' && '.join(map(self._names.relation_text, guard.condition))}) {{")
        print_body(guard.body)
        self._close()

    def _run(self, run: Sequence[Do]) -> None:
        self._line(*self._leaves[id(run[0])].lines())

    def _block(self, run: Sequence[Do]) -> None:
        """Code without a loop of its own, apart from what stands beside it, which may use the same names."""
        self._open("{")
        self._run(run)
        self._close()

    def _allocate(self, tree: Tree) -> None:
        """Locals that live equally long, in the order of their names: equal kernels may list them in another."""
        found = []
        while isinstance(tree, Alloc):
            found += [self._local(tree)] if tree.scope == "thread" else []
            tree = tree.body
        for name, dtype, size in sorted(found, key=lambda local: int(local[0][1:])):
            if _on_stack(size, dtype):
                self._line(f"alignas(64) {types.cpp(dtype)} {name}[{max(int(size), 1)}];")
        self._inside(tree)

    def _local(self, node: Alloc) -> tuple[str, types.DType, Dim]:
        references = [r for b in self._bodies.values() for r in b.references()]
        buffer = next(r.buffer for r in references if r.buffer.local and r.buffer.array == node.array)
        return self._names.local(buffer), buffer.dtype, dim(prod(self._kernel.locals[node.array][1]))

    def _collect(self, node: Accumulate, collecting: Sequence[Accumulator]) -> None:
        made = [self._accumulators[id(node), p] for p in node.partials]
        for a in made:
            self._start(a)
        self._inside(node.body, [*collecting, *(a for a in made if a.lanes)])
        for a in made:
            self._store(a)

    def _start(self, a: Accumulator) -> None:
        if not a.dims:
            self._line(f"{a.cpp} {a.name} = {identity(a.op, a.dtype)};")
            if a.notes_nan:
                self._line(f"int32_t {a.name}_nan = 0;")
            return
        if _on_stack(a.size, a.dtype):
            self._line(f"alignas(64) {a.cpp} {a.name}[{max(int(a.size), 1)}];")
        self._fill(a.name, self._names.size_text(a.size), a)

    def _store(self, a: Accumulator) -> None:
        for loop in a.dims:
            self._for(loop)
        value = a.total if not a.dims else f"{a.name}[{a.index(self._names)}]"
        self._line(self._element_store(a.target, value) if a.outer is None else a.outer.add(self._names, value))
        for _ in a.dims:
            self._close()

    def _loop(self, loop: Loop, collecting: Sequence[Accumulator]) -> None:
        if loop.kind == "vector":
            self._before(loop)
            clauses = "".join(a.clause for a in collecting)
            self._line(f"#pragma omp simd{clauses}{self._bad_clause(loop)}")
        elif loop.kind == "unroll":
            self._line(f"#pragma GCC unroll {loop.extent if isinstance(loop.extent, int) else 4}")
        elif loop.kind == "serial" and _cuts_vectors(loop):
            self._line("#pragma GCC unroll 1")
        elif loop.kind != "serial":
            raise Unsupported(f"kernel {self._kernel.label}: a {loop.kind} loop inside of another thread's loop")
        self._for(loop)
        if isinstance(loop.body, schedule.Sequence) and all(isinstance(c, Do) for c in loop.body.children):
            self._run(loop.body.children)  # type: ignore[arg-type]
        else:
            self._inside(loop.body)
        self._close()

    def _before(self, loop: Loop) -> None:
        """What all iterations of a vector loop have in common."""
        run = self._hoisted.run_of(loop)
        self._line(*self._hoisted.lines(loop), *(self._leaves[run].before() if run is not None else ()))

    def _call(self, tile: Tile) -> None:
        sizes = ["1" if loop is None else self._extent(loop) for loop in tile.loops]
        collector = self._innermost.get((tile.statement, tile.connector)) if isinstance(tile, TileProduct) else None
        self._line(call_of(self._names, tile, sizes, collector))

    def _bad_clause(self, tree: Tree) -> str:
        leaves = (self._leaves.get(id(run[0])) for run in schedule.runs(tree))
        return " reduction(| : bad)" if any(leaf is not None and leaf.checks_index for leaf in leaves) else ""

    # ---------------------------------------------------------------- text

    def _fill(self, target: str, count: str, a: Accumulator) -> None:
        self._line(f"for (int64_t j = 0; j < {count}; ++j) {target}[j] = {identity(a.op, a.dtype)};")

    def _element_store(self, target: Reference, value: str) -> str:
        dtype = target.buffer.dtype
        code = store_text(f"{types.cpp(types.compute_type(dtype))}({value})", dtype)
        return f"{self._names.element(target)} = {code};"

    def _line(self, *texts: str) -> None:
        self._lines += ["  " * self._depth + text for text in texts]

    def _open(self, text: str) -> None:
        self._line(text)
        self._depth += 1

    def _for(self, loop: Loop) -> None:
        name = self._names.loop(loop.param)
        self._open(f"for (int64_t {name} = 0; {name} < {self._extent(loop)}; ++{name}) {{")

    def _extent(self, loop: Loop) -> str:
        extent = self._names.size_text(loop.extent)
        if loop.rest is None:
            return extent
        return f"dop::minimum<int64_t>({extent}, {self._names.size_text(loop.rest)})"

    def _close(self) -> None:
        self._depth -= 1
        self._line("}")


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
