"""Prints a kernel as CUDA C++: a ``__global__`` function, and ``k_<hash>(stream, ...)`` for the host, which starts it.

The loops are those of the kernel's schedule. A ``grid`` loop is a digit of the block's number, a ``block`` loop one of
the number of the warp (or thread) in its block, a ``warp`` loop the lane; ``hardware.py`` says which. Each thread
executes what is outside of these loops too, but only one of those that do the same stores its result.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from math import prod

from daceopt.codegen import c_tree
from daceopt.codegen.accumulator import Accumulator, identity
from daceopt.codegen.c_tree import Assign, Body, Compound, Declare, Expression, For, If, Pragma, Statement
from daceopt.codegen.cpu.kernel_source import BAD, Emitter, fill
from daceopt.codegen.cuda.packs import Packs
from daceopt.codegen.kernel_unit import KernelArgument, KernelSource, support_header
from daceopt.codegen.leaf import Leaf
from daceopt.errors import Unsupported
from daceopt.ir.access.references import KernelBuffer, Reference
from daceopt.ir.graph.graph import Graph
from daceopt.ir.kernel.kernel import Kernel
from daceopt.ir.legality.hardware import CUDA, Threads, block_loops, copies, is_mapped
from daceopt.ir.legality.schedule_check import check
from daceopt.ir.legality.spread import elements, held_loops
from daceopt.ir.scalar import types
from daceopt.ir.scalar.dims import Dim
from daceopt.ir.schedule import schedule
from daceopt.ir.schedule.guards import in_branches
from daceopt.ir.schedule.schedule import HARDWARE, Accumulate, Alloc, Do, Loop, Partial, Tree

HEADERS = ("cuda.h", "scalar.h", "collectives.h")
_MEET, _MEET_IN_WARP = Expression("__syncthreads()"), Expression("__syncwarp()")
_REPORT = If("bad", Expression("atomicCAS(status, 0, bad)"))


def kernel_source(graph: Graph, kernel: Kernel) -> KernelSource:
    """Print ``kernel``, whose arrays are those of ``graph``.

    Raises IllegalSchedule where its schedule is wrong, and ``Unsupported`` where it is none of an accelerator. A kernel
    without loops runs in one thread.
    """
    tree = schedule.schedule_of(kernel)
    if not is_mapped(tree):
        reason = "no loop of its schedule runs on blocks or lanes; take the recipe gpu, or end with cuda-kernels"
        raise Unsupported(f"kernel {kernel.label}: {reason}")
    check(graph, kernel, tree)
    return _CudaEmitter(graph, kernel).source()


class _CudaEmitter(Emitter):
    def __init__(self, graph: Graph, kernel: Kernel):
        tree = schedule.schedule_of(kernel)
        self._threads = Threads(tree)
        self._elements: dict[str, tuple[Loop, ...]] = {}  # accumulator -> loops over its elements, in all threads
        self._around: list[Tree] = []
        self._packs: dict[int, Packs] = {}  # id of an unrolled loop -> what it moves at once
        self._shares = any(isinstance(n, Alloc) and n.scope == "shared" for n, _ in schedule.walk(tree))
        super().__init__(graph, kernel)

    # ---------------------------------------------------------------- preparation

    def _accumulator(self, node: Accumulate, partial: Partial, outer: Accumulator | None) -> Accumulator:
        accumulator = super()._accumulator(node, partial, outer)
        self._elements[accumulator.name] = accumulator.dims
        dims = tuple(loop for loop in accumulator.dims if loop.kind not in HARDWARE)
        if not isinstance(prod(loop.extent for loop in dims), int):
            raise Unsupported(
                f"kernel {self._kernel.label}: each thread collects an array of {accumulator.size} elements"
            )
        return replace(accumulator, dims=dims, lanes=False)

    def _leaf(self, run: Sequence[Do]) -> Leaf:
        around = self._paths[run[0].statement][:-1]
        guard, packs = self._guard(around), self._packs_of(run, around)
        registers = {a for a, scope in self._scopes.items() if scope == "register"}
        leaf = Leaf(
            self._names,
            [self._bodies[do.statement] for do in run],
            self._innermost,
            registers,
            lambda buffer: "" if self._is_own(buffer) else guard,
            packed=lambda r: self._thread_element(r) or (packs.element(r) if packs else None),
        )
        self._checks |= leaf.checks_index
        return leaf

    def _packs_of(self, run: Sequence[Do], around: Sequence[Tree]) -> Packs | None:
        """What an unrolled loop of nothing but ``run`` moves at once, where each of its threads stores."""
        loop = next((n for n in reversed(around) if isinstance(n, Loop)), None)
        if loop is None or loop.kind != "unroll" or self._guard(around) or not isinstance(loop.extent, int):
            return None
        if loop.rest is not None or [*schedule.dos(loop.body)] != list(run):
            return None
        bodies = [self._bodies[do.statement] for do in run]
        packs = Packs(self._names, loop, bodies, set(self._innermost), f"x{len(self._packs)}")
        self._packs[id(loop)] = packs
        return packs

    def _thread_element(self, reference: Reference) -> str | None:
        """Where a thread has the element of a local that is spread over threads; None for other elements."""
        buffer = reference.buffer
        if not buffer.local or self._scopes.get(buffer.array) != "spread":
            return None
        index = "0"
        for loop in held_loops(self._paths, self._bodies, buffer.array):
            here = self._names.loop(loop.param)
            outer = f"({index})" if " " in index else index
            index = here if index == "0" else f"{outer} * {loop.extent} + {here}"
        return f"{self._names.local(buffer)}[{index}]"

    def _is_own(self, buffer: KernelBuffer) -> bool:
        """Does each thread have one of its own?"""
        return buffer.local and self._scopes.get(buffer.array) != "shared"

    def _guard(self, around: Sequence[Tree]) -> str:
        """Of the threads that do the same inside of the loops ``around``, the first alone stores."""
        terms = ["lane == 0"] if self._threads.is_every_lane(around) else []
        if not self._threads.is_one_group(around):
            steps = [(self._names.loop(n.param), self._threads.place(n).stride) for n in block_loops(around)]
            terms.append(f"group == {' + '.join(f'{i} * {step}' for i, step in steps) or '0'}")
        return " && ".join(terms)

    # ---------------------------------------------------------------- the functions

    def source(self) -> KernelSource:
        """The unit's text: what runs on the device, then what the frame calls."""
        grid, body = _grid(self._tree)
        blocks = " * ".join(self._names.size_text(loop.extent) for loop in grid) or "1"
        report = (_REPORT,) if self._checks else ()
        lines = c_tree.text((*self._numbers(), *self._blocks(grid, body), *report), 1)
        arguments, parameters = self._arguments()
        bounds = f"__launch_bounds__({self._threads.count})"
        template = "template <int ALIGN>\n" if self._packed_arrays() else ""
        device = f"{template}static __global__ void {bounds} KERNEL_device({', '.join(parameters)}) {{\n{lines}\n}}\n"
        text = f"{device}\n{self._launcher(blocks, parameters)}"
        name = f"k_{hashlib.sha256((support_header(text, HEADERS) + text).encode()).hexdigest()[:16]}"
        return KernelSource(name, text.replace("KERNEL", name), (KernelArgument("stream"), *arguments), HEADERS)

    def _launcher(self, blocks: str, parameters: Sequence[str]) -> str:
        names = [p.rsplit(" ", 1)[1] for p in parameters]
        shape = ["stream", f"int64_t({blocks})", str(self._threads.count)]
        signature = ", ".join(["void* stream", *parameters])
        aligned = self._packed_arrays()
        kernels = [f"KERNEL_device<{n}>" for n in (16, 1)] if aligned else ["KERNEL_device"]
        calls = [f"dop::launch({', '.join([*shape, kernel, *names])});" for kernel in kernels]
        if aligned:
            calls = [f"if (dop::aligned({', '.join(aligned)})) {calls[0]}", f"else {calls[1]}"]
        lines = "\n".join(f"  {call}" for call in calls)
        return f'extern "C" void KERNEL({signature}) {{\n{lines}\n}}\n'

    def _packed_arrays(self) -> list[str]:
        """The arrays of which packs are moved."""
        return list(dict.fromkeys(self._names.buffer(p.buffer) for packs in self._packs.values() for p in packs))

    def _numbers(self) -> Body:
        lanes = self._threads.lanes
        number = "[[maybe_unused]] const unsigned"
        group = Declare(number, "group", "threadIdx.x")
        if lanes > 1:
            group = Declare(number, "lane", f"threadIdx.x % {lanes}, group = threadIdx.x / {lanes}")
        return group, *((BAD,) if self._checks else ())

    def _blocks(self, grid: Sequence[Loop], body: Tree) -> Body:
        """The grid's loops as digits of the block's number, the innermost one first, and what one block does."""
        number = "int64_t(blockIdx.x)"
        digits: list[Declare] = []
        for k, loop in reversed(list(enumerate(grid))):
            extent = self._names.size_text(loop.extent)
            digit = number if k == 0 else f"{number} % ({extent})"
            digits.insert(0, Declare("int64_t", self._names.loop(loop.param), digit, const=True))
            number = f"{number} / ({extent})"
        ends = [None if loop.rest is None else self._names.size_text(loop.rest) for loop in grid]
        with self._within(grid):
            inner = self._inside(body)
        for place, end in zip(reversed(digits), reversed(ends), strict=True):
            inner = (place, *(inner if end is None else (If(f"{place.name} < {end}", inner),)))
        return inner

    # ---------------------------------------------------------------- loops

    @contextmanager
    def _within(self, nodes: Sequence[Tree]) -> Iterator[None]:
        self._around += nodes
        yield
        del self._around[len(self._around) - len(nodes) :]

    def _loop(self, loop: Loop, collecting: Sequence[Accumulator]) -> Body:
        moved = [(pack, self._names.buffer(pack.buffer)) for pack in self._packs.get(id(loop), ())]
        before = [pack.before(pointer) for pack, pointer in moved]
        pragma: Body = ()
        if loop.kind in ("vector", "unroll"):
            is_short = isinstance(loop.extent, int) and loop.extent <= 32
            pragma = (Pragma("unroll" if is_short else "unroll 4"),)
        body = *pragma, *self._nest([loop], lambda: self._iteration(loop))
        behind = [pack.behind(pointer) for pack, pointer in moved if pack.written]
        return (Compound((*before, *body, *behind)),) if moved else body

    def _iteration(self, loop: Loop) -> Body:
        with self._within([loop]):
            return *super()._iteration(loop), *(self._meet() if loop.kind not in HARDWARE else ())

    def _head(self, loop: Loop) -> Callable[[Body], Statement]:
        if loop.kind not in HARDWARE:
            return super()._head(loop)
        name = self._names.loop(loop.param)
        return partial(If, f"const int64_t {name} = {self._number(loop)}; {name} < {self._extent(loop)}")

    def _number(self, loop: Loop) -> str:
        """The value of a thread's loop."""
        if loop.kind == "warp":
            return "lane"
        place = self._threads.place(loop)
        within = "group" if place.below is None else f"group % {place.below}"
        return within if place.stride == 1 else f"{within} / {place.stride}"

    def _sequence(self, tree: schedule.Sequence) -> Body:
        parts = in_branches(schedule.in_runs(tree.children))
        return tuple(s for k, part in enumerate(parts) for s in (*(self._meet() if k else ()), *self._part(part)))

    def _meet(self) -> Body:
        """What is in turn outside of a thread is in turn for all threads, which shows in what they share."""
        kinds = [n.kind for n in self._around if isinstance(n, Loop)]
        if not self._shares or "warp" in kinds or (self._threads.lanes == 1 and "block" in kinds):
            return ()
        return (_MEET_IN_WARP if "block" in kinds else _MEET,)

    # ---------------------------------------------------------------- memory

    def _allocate(self, tree: Tree) -> Body:
        own: list[tuple[str, types.DType, Dim, str]] = []
        while isinstance(tree, Alloc):
            if tree.scope != "register":
                name, dtype, size = self._local(tree)
                if tree.scope == "spread":
                    size = elements(held_loops(self._paths, self._bodies, tree.array))
                own.append((name, dtype, size, tree.scope))
            tree = tree.body
        arrays: list[Statement] = []
        for name, dtype, size, scope in sorted(own, key=lambda local: int(local[0][1:])):
            count, cpp = max(int(size), 1), types.cpp(dtype)
            if scope in ("thread", "spread"):
                # where the last tile is partial, compilers do not see that a thread reads what it has written
                start = "{}" if scope == "spread" else ""
                arrays.append(Declare(f"[[maybe_unused]] {cpp}", name, start, size=str(count)))
            else:
                arrays += self._shared(name, cpp, count)
        return *arrays, *self._inside(tree)

    def _shared(self, name: str, cpp: str, count: int) -> Body:
        """One instance for each iteration of the block loops around."""
        loops = block_loops(self._around)
        if not loops:
            return (Declare(f"[[maybe_unused]] __shared__ __align__(16) {cpp}", name, size=str(count)),)
        index = "0"
        for loop in loops:
            index = f"({index} * {loop.extent} + {self._names.loop(loop.param)})"
        instances = f"__shared__ __align__(16) {cpp}"
        return (
            Declare(instances, f"{name}_all", size=str(max(copies(loops) * count, 1))),
            Declare(f"{cpp}* const", name, f"{name}_all + {index} * {count}"),
        )

    # ---------------------------------------------------------------- collecting

    def _start(self, a: Accumulator) -> Body:
        if not a.dims:
            return (Declare(a.cpp, a.name, identity(a.op, a.dtype)),)
        if int(a.size) * types.itemsize(a.dtype) > CUDA.own:
            raise Unsupported(f"kernel {self._kernel.label}: each thread collects {a.size} elements")
        return Declare(a.cpp, a.name, size=str(max(int(a.size), 1))), fill(a.name, str(a.size), a)

    def _collect(self, node: Accumulate, collecting: Sequence[Accumulator]) -> Body:
        accumulators = [self._accumulators[id(node), p] for p in node.partials]
        starts = [s for a in accumulators for s in self._start(a)]
        with self._within([node]):
            body = self._inside(node.body, collecting)
        ends: list[Statement] = []
        for entry, a in zip(node.partials, accumulators, strict=True):
            ends += (*(self._together(node, entry, a) if node.across else ()), *self._store(a))
        return *starts, *body, *ends

    def _together(self, node: Accumulate, partial: Partial, a: Accumulator) -> Body:
        """Every thread that takes part gets the whole, of each element; all have as many, partial tiles or not."""
        reduced = self._reduction_loops(node, partial)

        def whole() -> Body:
            value = a.name if not a.dims else f"{a.name}[{a.index(self._names)}]"
            across = f"dop::across_warp<dop::{a.op.capitalize()}>({value})"
            warp = (Assign(value, across),) if any(loop.kind == "warp" for loop in reduced) else ()
            blocks = [loop for loop in reduced if loop.kind == "block"]
            return *warp, *(self._across_block(a, value, blocks) if blocks else ())

        return self._nest([replace(loop, rest=None) for loop in a.dims], whole)

    def _reduction_loops(self, node: Accumulate, partial: Partial) -> list[Loop]:
        target = self._bodies[partial.statement].writes[partial.connector]
        loops = schedule.loops_below(node, self._paths[partial.statement])
        return [loop for loop in loops if loop.kind in HARDWARE and loop.param not in target.params()]

    def _across_block(self, a: Accumulator, value: str, blocks: Sequence[Loop]) -> Body:
        """Through memory that the block shares: each thread adds up what those that differ in ``blocks`` bring."""
        lanes, shared, at = self._threads.lanes, f"{a.name}_all", f"{a.name}_at"
        steps = [self._threads.place(loop).stride * lanes for loop in blocks]
        own = [f"({self._number(loop)}) * {step}" for loop, step in zip(blocks, steps, strict=True)]
        others = [f"t{k} * {step}" for k, step in enumerate(steps)]
        joined: Body = (Assign(value, a.join(value, f"{shared}[{at} + {' + '.join(others)}]")),)
        for k, loop in reversed(list(enumerate(blocks))):
            joined = (For(f"t{k}", str(loop.extent), joined, "unsigned"),)
        return (
            Declare(f"__shared__ {a.cpp}", shared, size=str(self._threads.count)),
            _MEET,
            Assign(f"{shared}[threadIdx.x]", value),
            _MEET,
            Declare("unsigned", at, f"threadIdx.x - {' - '.join(own)}", const=True),
            Assign(value, identity(a.op, a.dtype)),
            *joined,
        )

    def _store(self, a: Accumulator) -> Body:
        loops = self._elements[a.name]

        def store() -> Body:
            stored = self._passed_on(a)
            guard = "" if a.outer or self._is_own(a.target.buffer) else self._guard(self._around)
            return (If(guard, stored) if guard else stored,)

        with self._within(loops):
            return self._nest(loops, store)


def _grid(tree: Tree) -> tuple[list[Loop], Tree]:
    """The grid's loops, which stand outside of all others, and what one block does."""
    loops = []
    while isinstance(tree, Loop) and tree.kind == "grid":
        loops.append(tree)
        tree = tree.body
    return loops, tree
