"""Prints a kernel as CUDA C++: a ``__global__`` function, and ``k_<hash>(stream, ...)`` for the host, which starts it.

The loops are those of the kernel's schedule. A ``grid`` loop is a digit of the block's number, a ``block`` loop one of
the number of the warp (or thread) in its block, a ``warp`` loop the lane; ``hardware.py`` says which. Each thread
executes what stands outside of these loops too, but only one of those that do the same stores its result.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from math import prod

from daceopt.codegen.cpu.kernel_source import Emitter
from daceopt.codegen.cuda.packs import Packs
from daceopt.codegen.kernel_unit import KernelArgument, KernelSource, support_header
from daceopt.codegen.leaf import Accumulator, Leaf, identity
from daceopt.errors import Unsupported
from daceopt.ir.access.references import KernelBuffer, Reference
from daceopt.ir.graph.graph import Graph
from daceopt.ir.kernel.kernel import Kernel
from daceopt.ir.legality.hardware import CUDA, Threads, block_loops, copies, is_mapped
from daceopt.ir.legality.schedule_check import check
from daceopt.ir.legality.spread import elements, held
from daceopt.ir.scalar import types
from daceopt.ir.schedule import schedule
from daceopt.ir.schedule.guards import Branches, in_branches
from daceopt.ir.schedule.schedule import HARDWARE, Accumulate, Alloc, Do, Loop, Partial, Tree

HEADERS = ("cuda.h", "scalar.h", "collectives.h")
_MEET, _MEET_IN_WARP = "__syncthreads();", "__syncwarp();"


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
        made = super()._accumulator(node, partial, outer)
        self._elements[made.name] = made.dims
        dims = tuple(loop for loop in made.dims if loop.kind not in HARDWARE)
        if not isinstance(prod(loop.extent for loop in dims), int):
            raise Unsupported(f"kernel {self._kernel.label}: each thread collects an array of {made.size} elements")
        return replace(made, dims=dims, lanes=False)

    def _leaf(self, run: Sequence[Do]) -> Leaf:
        around = next(a for n, a in schedule.walk(self._tree) if n is run[0])
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
        made = Packs(self._names, loop, bodies, set(self._innermost), f"x{len(self._packs)}")
        self._packs[id(loop)] = made
        return made

    def _thread_element(self, reference: Reference) -> str | None:
        """Where a thread has the element of a local that is spread over threads; None for other elements."""
        buffer = reference.buffer
        if not buffer.local or self._scopes.get(buffer.array) != "spread":
            return None
        index = "0"
        for loop in held(self._tree, self._bodies, buffer.array):
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
        return f"if ({' && '.join(terms)}) " if terms else ""

    # ---------------------------------------------------------------- the functions

    def source(self) -> KernelSource:
        """The unit's text: what runs on the device, then what the frame calls."""
        grid, body = _grid(self._tree)
        blocks = " * ".join(self._names.size_text(loop.extent) for loop in grid) or "1"
        self._numbers()
        self._blocks(grid)
        with self._within(grid):
            self._inside(body)
        for _ in (g for g in grid if g.rest is not None):
            self._close()
        if self._checks:
            self._line("if (bad) atomicCAS(status, 0, bad);")
        arguments, parameters = self._arguments()
        lines = "\n".join(self._lines)
        bounds = f"__launch_bounds__({self._threads.count})"
        template = "template <int ALIGN>\n" if self._packed_arrays() else ""
        device = f"{template}static __global__ void {bounds} KERNEL_device({', '.join(parameters)}) {{\n{lines}\n}}\n"
        text = f"{device}\n{self._launcher(blocks, parameters)}"
        name = f"k_{hashlib.sha256((support_header(text, HEADERS) + text).encode()).hexdigest()[:16]}"
        return KernelSource(name, text.replace("KERNEL", name), (KernelArgument("stream"), *arguments), HEADERS)

    def _launcher(self, blocks: str, parameters: Sequence[str]) -> str:
        names = [p.rsplit(" ", 1)[1] for p in parameters]
        shape = ["stream", f"int64_t({blocks})", str(self._threads.count)]
        taken = ", ".join(["void* stream", *parameters])
        aligned = self._packed_arrays()
        made = [f"KERNEL_device<{n}>" for n in (16, 1)] if aligned else ["KERNEL_device"]
        calls = [f"dop::launch({', '.join([*shape, kernel, *names])});" for kernel in made]
        if aligned:
            calls = [f"if (dop::aligned({', '.join(aligned)})) {calls[0]}", f"else {calls[1]}"]
        lines = "\n".join(f"  {call}" for call in calls)
        return f'extern "C" void KERNEL({taken}) {{\n{lines}\n}}\n'

    def _packed_arrays(self) -> list[str]:
        """The arrays of which packs are moved."""
        return list(dict.fromkeys(self._names.buffer(p.buffer) for packs in self._packs.values() for p in packs))

    def _numbers(self) -> None:
        lanes = self._threads.lanes
        if lanes > 1:
            self._line(f"[[maybe_unused]] const unsigned lane = threadIdx.x % {lanes}, group = threadIdx.x / {lanes};")
        else:
            self._line("[[maybe_unused]] const unsigned group = threadIdx.x;")
        if self._checks:
            self._line("int32_t bad = 0;")

    def _blocks(self, grid: Sequence[Loop]) -> None:
        """The grid's loops as digits of the block's number, the innermost one first."""
        left = "int64_t(blockIdx.x)"
        found: list[tuple[Loop, str]] = []
        for k, loop in reversed(list(enumerate(grid))):
            extent = self._names.size_text(loop.extent)
            found.append((loop, left if k == 0 else f"{left} % ({extent})"))
            left = f"{left} / ({extent})"
        for loop, value in reversed(found):
            name = self._names.loop(loop.param)
            self._line(f"const int64_t {name} = {value};")
            if loop.rest is not None:
                self._open(f"if ({name} < {self._names.size_text(loop.rest)}) {{")

    # ---------------------------------------------------------------- loops

    @contextmanager
    def _within(self, nodes: Sequence[Tree]) -> Iterator[None]:
        self._around += nodes
        yield
        del self._around[len(self._around) - len(nodes) :]

    def _loop(self, loop: Loop, collecting: Sequence[Accumulator]) -> None:
        packs = list(self._packs.get(id(loop), ()))
        if packs:
            self._open("{")
        for pack in packs:
            self._line(pack.before(self._names.buffer(pack.buffer)))
        if loop.kind in ("vector", "unroll"):
            self._line("#pragma unroll" if isinstance(loop.extent, int) and loop.extent <= 32 else "#pragma unroll 4")
        self._for(loop)
        with self._within([loop]):
            if isinstance(loop.body, schedule.Sequence) and all(isinstance(c, Do) for c in loop.body.children):
                self._run(loop.body.children)  # type: ignore[arg-type]
            else:
                self._inside(loop.body)
            if loop.kind not in HARDWARE:
                self._meet()
        self._close()
        for pack in packs:
            if pack.written:
                self._line(pack.behind(self._names.buffer(pack.buffer)))
        if packs:
            self._close()

    def _for(self, loop: Loop) -> None:
        if loop.kind not in HARDWARE:
            super()._for(loop)
            return
        name, extent = self._names.loop(loop.param), self._names.size_text(loop.extent)
        if loop.rest is not None:
            extent = f"dop::minimum<int64_t>({extent}, {self._names.size_text(loop.rest)})"
        self._open(f"if (const int64_t {name} = {self._number(loop)}; {name} < {extent}) {{")

    def _number(self, loop: Loop) -> str:
        """The value of a thread's loop."""
        if loop.kind == "warp":
            return "lane"
        place = self._threads.place(loop)
        within = "group" if place.below is None else f"group % {place.below}"
        return within if place.stride == 1 else f"{within} / {place.stride}"

    def _sequence(self, tree: schedule.Sequence) -> None:
        for k, run in enumerate(in_branches(schedule.in_runs(tree.children))):
            if k:
                self._meet()
            if isinstance(run, Branches):
                self._branches(run.guards)
            elif isinstance(run, list):
                self._block(run)
            else:
                self._inside(run)

    def _meet(self) -> None:
        """What stands in turn outside of a thread is in turn for all threads, which shows in what they share."""
        kinds = [n.kind for n in self._around if isinstance(n, Loop)]
        if not self._shares or "warp" in kinds or (self._threads.lanes == 1 and "block" in kinds):
            return
        self._line(_MEET_IN_WARP if "block" in kinds else _MEET)

    # ---------------------------------------------------------------- memory

    def _allocate(self, tree: Tree) -> None:
        found = []
        while isinstance(tree, Alloc):
            if tree.scope != "register":
                name, dtype, size = self._local(tree)
                if tree.scope == "spread":
                    size = elements(held(self._tree, self._bodies, tree.array))
                found.append((name, dtype, size, tree.scope))
            tree = tree.body
        for name, dtype, size, scope in sorted(found, key=lambda local: int(local[0][1:])):
            count, cpp = max(int(size), 1), types.cpp(dtype)
            if scope in ("thread", "spread"):
                # where the last tile is partial, compilers do not see that a thread reads what it has written
                start = " = {}" if scope == "spread" else ""
                self._line(f"[[maybe_unused]] {cpp} {name}[{count}]{start};")
            else:
                self._allocate_shared(name, cpp, count)
        self._inside(tree)

    def _allocate_shared(self, name: str, cpp: str, count: int) -> None:
        """One instance for each iteration of the block loops around."""
        loops = block_loops(self._around)
        if not loops:
            self._line(f"[[maybe_unused]] __shared__ __align__(16) {cpp} {name}[{count}];")
            return
        index = "0"
        for loop in loops:
            index = f"({index} * {loop.extent} + {self._names.loop(loop.param)})"
        self._line(f"__shared__ __align__(16) {cpp} {name}_all[{max(copies(loops) * count, 1)}];")
        self._line(f"{cpp}* const {name} = {name}_all + {index} * {count};")

    # ---------------------------------------------------------------- collecting

    def _start(self, a: Accumulator) -> None:
        start = identity(a.op, a.dtype)
        if not a.dims:
            self._line(f"{a.cpp} {a.name} = {start};")
            return
        if int(a.size) * types.itemsize(a.dtype) > CUDA.own:
            raise Unsupported(f"kernel {self._kernel.label}: each thread collects {a.size} elements")
        self._line(f"{a.cpp} {a.name}[{max(int(a.size), 1)}];")
        self._fill(a.name, str(a.size), a)

    def _collect(self, node: Accumulate, collecting: Sequence[Accumulator]) -> None:
        made = [self._accumulators[id(node), p] for p in node.partials]
        for a in made:
            self._start(a)
        with self._within([node]):
            self._inside(node.body, collecting)
        for partial, a in zip(node.partials, made, strict=True):
            if node.across:
                self._together(node, partial, a)
            self._store(a)

    def _together(self, node: Accumulate, partial: Partial, a: Accumulator) -> None:
        """Every thread that takes part gets the whole, of each element; all have as many, partial tiles or not."""
        reduced = self._reduction_loops(node, partial)
        for loop in a.dims:
            self._for(replace(loop, rest=None))
        value = a.name if not a.dims else f"{a.name}[{a.index(self._names)}]"
        if any(loop.kind == "warp" for loop in reduced):
            self._line(f"{value} = dop::across_warp<dop::{a.op.capitalize()}>({value});")
        blocks = [loop for loop in reduced if loop.kind == "block"]
        if blocks:
            self._across_block(a, value, blocks)
        for _ in a.dims:
            self._close()

    def _reduction_loops(self, node: Accumulate, partial: Partial) -> list[Loop]:
        target = self._bodies[partial.statement].writes[partial.connector]
        loops = schedule.loops_to(node.body, partial)
        return [loop for loop in loops if loop.kind in HARDWARE and loop.param not in target.params()]

    def _across_block(self, a: Accumulator, value: str, blocks: Sequence[Loop]) -> None:
        """Through memory that the block shares: each thread adds up what those that differ in ``blocks`` bring."""
        lanes, shared = self._threads.lanes, f"{a.name}_all"
        self._line(f"__shared__ {a.cpp} {shared}[{self._threads.count}];")
        self._line(_MEET)
        self._line(f"{shared}[threadIdx.x] = {value};")
        self._line(_MEET)
        steps = [self._threads.place(loop).stride * lanes for loop in blocks]
        own = [f"({self._number(loop)}) * {step}" for loop, step in zip(blocks, steps, strict=True)]
        others = [f"t{k} * {step}" for k, step in enumerate(steps)]
        self._line(f"const unsigned {a.name}_at = threadIdx.x - {' - '.join(own)};")
        self._line(f"{value} = {identity(a.op, a.dtype)};")
        for k, loop in enumerate(blocks):
            self._open(f"for (unsigned t{k} = 0; t{k} < {loop.extent}; ++t{k}) {{")
        other = f"{shared}[{a.name}_at + {' + '.join(others)}]"
        self._line(f"{value} = {a.join(value, other)};")
        for _ in blocks:
            self._close()

    def _store(self, a: Accumulator) -> None:
        loops = self._elements[a.name]
        with self._within(loops):
            for loop in loops:
                self._for(loop)
            value = a.name if not a.dims else f"{a.name}[{a.index(self._names)}]"
            guard = "" if self._is_own(a.target.buffer) else self._guard(self._around)
            self._line(a.outer.add(self._names, value) if a.outer else guard + self._element_store(a.target, value))
            for _ in loops:
                self._close()


def _grid(tree: Tree) -> tuple[list[Loop], Tree]:
    """The grid's loops, which stand outside of all others, and what one block does."""
    loops = []
    while isinstance(tree, Loop) and tree.kind == "grid":
        loops.append(tree)
        tree = tree.body
    return loops, tree
