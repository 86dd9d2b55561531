"""Prints a kernel as one C++ function whose text depends on the kernel's structure only, never on names."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cache
from math import prod
from pathlib import Path

from daceopt.build.leaf import Accumulator, Leaf, identity, stored
from daceopt.build.loops import Group, Nest, plan, same_element
from daceopt.build.names import Names
from daceopt.build.references import Buffer, Param, Reference
from daceopt.ir import types
from daceopt.ir.graph import Dim, Graph, dim
from daceopt.ir.kernel import Kernel

INCLUDE = Path(__file__).parent / "include"
PARALLEL_WORK = 1 << 15  # weighted iterations below which starting threads costs more than it saves
CHUNK = 1024  # elements summed in float32 before they are added to a float64 accumulator
_STACK_BYTES = 1 << 15
_STACK_ACCUMULATORS = 4096


@dataclass(frozen=True)
class Argument:
    """What a call passes.

    ``kind`` is ``pointer`` (to ``array`` plus ``offset`` elements), ``symbol`` or ``status`` (where an int32 stands).
    """

    kind: str
    array: str = ""
    offset: Dim = 0
    dtype: types.DType | None = None
    written: bool = False
    symbol: str = ""

    @property
    def cpp(self) -> str:
        """The C++ parameter type."""
        if self.kind == "symbol":
            return "int64_t"
        if self.kind == "status":
            return "int32_t*"
        return f"{'' if self.written else 'const '}{types.cpp(self.dtype)}*"


@dataclass(frozen=True)
class KernelSource:
    """``name`` is ``k_<hash>``; ``text`` is the unit without the support header; ``arguments`` are in call order."""

    name: str
    text: str
    arguments: tuple[Argument, ...]

    @property
    def declaration(self) -> str:
        """The C++ prototype."""
        return f'extern "C" void {self.name}({", ".join(a.cpp for a in self.arguments)});'

    @property
    def unit(self) -> str:
        """The complete translation unit: it needs no include folder, and its hash covers the support header."""
        return f"{support_header(self.text)}\n{self.text}"


def support_header(code: str) -> str:
    """What ``code`` needs: the text of ``daceopt/kernel.h``, and of ``narrow.h`` where narrow types occur."""
    narrow = any(f"dop::{types.name_of(t)}::" in code for t in types.NARROW)
    return _header("kernel.h") + (_header("narrow.h") if narrow else "")


@cache
def _header(name: str) -> str:
    return (INCLUDE / "daceopt" / name).read_text()


def kernel_source(graph: Graph, kernel: Kernel) -> KernelSource:
    """Print ``kernel``, whose arrays are those of ``graph``; raises ``Unsupported`` where C++ has no form for it."""
    return _Emitter(kernel, plan(graph, kernel)).source()


class _Emitter:
    def __init__(self, kernel: Kernel, nest: Nest):
        self._kernel, self._nest = kernel, nest
        self._names = Names()
        self._lines: list[str] = []
        self._depth = 1
        for p in (*nest.outer, *(p for g in nest.groups for p in g.loops)):
            self._names.loop(p)
        self._note_buffers()
        self._leaves = [self._leaf(k, g) for k, g in enumerate(nest.groups)]
        self._private = [a for leaf in self._leaves for a in leaf.accumulators if a.private]
        self._work = self._total_work()

    # ---------------------------------------------------------------- preparation

    def _note_buffers(self) -> None:
        for body in self._nest.bodies():
            for reference in body.references():
                if not reference.buffer.local:
                    self._names.buffer(reference.buffer)

    def _leaf(self, k: int, group: Group) -> Leaf:
        return Leaf(self._names, self._nest.outer, group, self._nest.extents, self._register_locals(k))

    def _register_locals(self, k: int) -> set[Buffer]:
        """Locals written and read only by group ``k``, always the same element: they need no memory."""
        group = self._nest.groups[k]
        written = {r.buffer: r for b in group.bodies for r in b.writes.values() if r.buffer.local and not r.wcr}
        elsewhere = {
            r.buffer for j, g in enumerate(self._nest.groups) if j != k for b in g.bodies for r in b.references()
        }
        reads = [r for b in group.bodies for r in b.reads.values()]
        return {
            buffer
            for buffer, write in written.items()
            if buffer not in elsewhere and all(same_element(write, r) for r in reads if r.buffer == buffer)
        }

    def _total_work(self) -> Dim:
        outer = prod(self._nest.extents[p] for p in self._nest.outer)
        inner = sum(
            leaf.cost * prod(g.extents.values()) for g, leaf in zip(self._nest.groups, self._leaves, strict=True)
        )
        return dim(outer * inner)

    # ---------------------------------------------------------------- the function

    def source(self) -> KernelSource:
        self._function()
        uses_status = any(leaf.checks_index for leaf in self._leaves)
        body = "\n".join(self._lines)
        arguments, parameters = self._arguments(uses_status)
        text = f"void KERNEL({', '.join(parameters)}) {{\n{body}\n}}\n"
        name = f"k_{hashlib.sha256((support_header(text) + text).encode()).hexdigest()[:16]}"
        return KernelSource(name, f'extern "C" {text.replace("KERNEL", name, 1)}', arguments)

    def _arguments(self, uses_status: bool) -> tuple[tuple[Argument, ...], list[str]]:
        written = {r.buffer for b in self._nest.bodies() for r in b.writes.values()}
        arguments, parameters = [], []
        buffers = self._names.buffers()
        for buffer, name in buffers.items():
            argument = Argument("pointer", buffer.array, buffer.offset, buffer.dtype, buffer in written)
            twins = [b for b in buffers if b.array == buffer.array]
            alone = len(twins) == 1 or not any(b in written for b in twins)
            arguments.append(argument)
            parameters.append(f"{argument.cpp} {'__restrict__ ' if alone else ''}{name}")
        for symbol, name in self._names.sizes().items():
            arguments.append(Argument("symbol", symbol=symbol))
            parameters.append(f"int64_t {name}")
        if uses_status:
            arguments.append(Argument("status"))
            parameters.append("int32_t* status")
        return tuple(arguments), parameters

    def _function(self) -> None:
        outer = self._nest.outer
        if not outer and self._is_flat():
            self._group(
                0, pragma=f"omp parallel for simd schedule(static){self._if_clause()}" if self._may_pay() else None
            )
            return
        parallel = bool(outer) and self._may_pay()
        self._private_memory(parallel)
        if parallel:
            threads = " num_threads(threads)" if self._private else self._if_clause()
            self._line(f"#pragma omp parallel{threads}")
        self._open("{")
        self._thread_memory()
        self._outer_loops(parallel)
        if any(leaf.checks_index for leaf in self._leaves):
            self._line("if (bad && !*status) *status = bad;")
        self._close()
        for a in self._private:
            self._combine(a)

    def _is_flat(self) -> bool:
        (group, *more), (leaf, *_) = self._nest.groups, self._leaves
        return not more and len(group.loops) == 1 and not leaf.accumulators and not leaf.checks_index

    def _may_pay(self) -> bool:
        """Whether threads are worth starting for some size."""
        return not isinstance(self._work, int) or self._work >= PARALLEL_WORK

    def _if_clause(self) -> str:
        return "" if isinstance(self._work, int) else f" if({self._names.size_text(self._work)} >= {PARALLEL_WORK})"

    def _private_memory(self, parallel: bool) -> None:
        if not self._private:
            return
        condition = "1" if not parallel else "omp_get_max_threads()"
        if parallel and not isinstance(self._work, int):
            condition = f"{self._names.size_text(self._work)} >= {PARALLEL_WORK} ? omp_get_max_threads() : 1"
        self._line(f"const int threads = {condition};")
        for a in self._private:
            self._line(f"const int64_t {a.name}_stride = ({self._names.size_text(a.size)} + 7) / 8 * 8;")
            self._line(f"dop::Scratch<{a.cpp}> {a.name}_all(threads * {a.name}_stride);")
            self._fill(f"{a.name}_all.data", f"threads * {a.name}_stride", a)

    def _fill(self, target: str, count: str, a: Accumulator) -> None:
        self._line(f"for (int64_t j = 0; j < {count}; ++j) {target}[j] = {identity(a.op, a.dtype)};")

    def _thread_memory(self) -> None:
        if any(leaf.checks_index for leaf in self._leaves):
            self._line("int32_t bad = 0;")
        for a in self._private:
            thread = f"{a.name}_all.data + omp_get_thread_num() * {a.name}_stride"
            self._line(f"{a.cpp}* __restrict__ const {a.name} = {thread};")
        for a in (a for leaf in self._leaves for a in leaf.accumulators):
            if not a.private and not self._on_stack(a.size, a.dtype):
                self._line(f"dop::Scratch<{a.cpp}> {a.name}_memory({self._names.size_text(a.size)});")
                self._line(f"{a.cpp}* __restrict__ const {a.name} = {a.name}_memory.data;")
        for buffer, name, size in self._array_locals():
            if not self._on_stack(size, buffer.dtype):
                ctype = types.cpp(buffer.dtype)
                self._line(f"dop::Scratch<{ctype}> {name}_memory({self._names.size_text(size)});")
                self._line(f"{ctype}* __restrict__ const {name} = {name}_memory.data;")

    @staticmethod
    def _on_stack(size: Dim, dtype: types.DType) -> bool:
        return isinstance(size, int) and size * types.itemsize(dtype) <= _STACK_BYTES

    def _array_locals(self) -> list[tuple[Buffer, str, Dim]]:
        registers = {b for k in range(len(self._nest.groups)) for b in self._register_locals(k)}
        found = {r.buffer: None for b in self._nest.bodies() for r in b.references() if r.buffer.local}
        sizes = {b: dim(prod(self._kernel.locals[b.array][1])) for b in found if b not in registers}
        return [(b, self._names.local(b), n) for b, n in sizes.items()]

    def _outer_loops(self, parallel: bool) -> None:
        outer = self._nest.outer
        if parallel:
            count, total = 0, 1
            for p in outer:
                count += 1
                extent = self._nest.extents[p]
                total = total * extent if isinstance(extent, int) else total
                if isinstance(extent, int) and total >= 64:
                    break
            collapse = f" collapse({count})" if count > 1 else ""
            self._line(f"#pragma omp for{collapse} schedule(static) nowait")
        for p in outer:
            self._for(p, self._names.size_text(self._nest.extents[p]))
        self._iteration()
        for _ in outer:
            self._close()

    def _iteration(self) -> None:
        for buffer, name, size in self._array_locals():
            if self._on_stack(size, buffer.dtype):
                self._line(f"alignas(64) {types.cpp(buffer.dtype)} {name}[{max(int(size), 1)}];")
        for k in range(len(self._nest.groups)):
            self._group(k)

    # ---------------------------------------------------------------- one group of stages

    def _group(self, k: int, pragma: str | None = "omp simd") -> None:
        group, leaf = self._nest.groups[k], self._leaves[k]
        for a in leaf.accumulators:
            if not a.private:
                self._start(a)
        for p in group.loops[:-1]:
            self._for(p, self._extent(p, group))
        if group.loops:
            self._vector_loop(group, leaf, pragma or "omp simd")
        else:
            self._block(leaf)
        for _ in group.loops[:-1]:
            self._close()
        for a in leaf.accumulators:
            if not a.private:
                self._store(a, group)

    def _block(self, leaf: Leaf) -> None:
        """Code without a loop, apart from that of other groups, which may use the same names."""
        self._open("{")
        self._lines += [f"{'  ' * self._depth}{line}" for line in leaf.lines()]
        self._close()

    def _start(self, a: Accumulator) -> None:
        if not a.dims:
            self._line(f"{a.cpp} {a.name} = {identity(a.op, a.dtype)};")
            return
        if self._on_stack(a.size, a.dtype):
            self._line(f"alignas(64) {a.cpp} {a.name}[{int(a.size)}];")
        self._fill(a.name, self._names.size_text(a.size), a)

    def _store(self, a: Accumulator, group: Group) -> None:
        for p in a.kept_loops:
            self._for(p, self._extent(p, group))
        value = a.name if not a.dims else f"{a.name}[{a.index(self._names)}]"
        self._line(self._stored(a.target, value))
        for _ in a.kept_loops:
            self._close()

    def _vector_loop(self, group: Group, leaf: Leaf, pragma: str) -> None:
        p = group.loops[-1]
        parts = [a for a in leaf.accumulators if a.in_register]
        extent, first = self._extent(p, group), "0"
        chunked = any(a.widened for a in parts) and not (
            isinstance(group.extents[p], int) and group.extents[p] <= CHUNK
        )
        if chunked:
            self._open(f"for (int64_t c = 0; c < {extent}; c += {CHUNK}) {{")
            first, extent = "c", f"dop::minimum<int64_t>(c + {CHUNK}, {extent})"
        for a in parts:
            self._line(f"{a.part_cpp} {a.name}_part = {identity(a.op, a.part_dtype)};")
            if a.notes_nan:
                self._line(f"int32_t {a.name}_nan = 0;")
        self._line(f"#pragma {pragma}{''.join(self._reduction_clause(a) for a in parts)}{self._bad_clause(leaf)}")
        self._for(p, extent, first)
        self._lines += [f"{'  ' * self._depth}{line}" for line in leaf.lines()]
        self._close()
        for a in parts:
            self._line(a.add(self._names, a.part))
        if chunked:
            self._close()

    @staticmethod
    def _reduction_clause(a: Accumulator) -> str:
        operator = {"sum": "+", "prod": "*"}.get(a.op, a.op)
        if types.is_bool(a.part_dtype):
            operator = {"max": "|", "min": "&"}[a.op]
        nan = f" reduction(| : {a.name}_nan)" if a.notes_nan else ""
        return f" reduction({operator} : {a.name}_part){nan}"

    @staticmethod
    def _bad_clause(leaf: Leaf) -> str:
        return " reduction(| : bad)" if leaf.checks_index else ""

    def _combine(self, a: Accumulator) -> None:
        """Add up what the threads have, in their order."""
        for p, extent in a.dims:
            self._for(p, self._names.size_text(extent))
        index = a.index(self._names)
        total = f"{a.name}_total"
        self._line(f"{a.cpp} {total} = {identity(a.op, a.dtype)};")
        value = f"{a.name}_all.data[t * {a.name}_stride + {index}]"
        self._line(f"for (int t = 0; t < threads; ++t) {total} = {a.join(total, value)};")
        self._line(self._stored(a.target, total))
        for _ in a.kept_loops:
            self._close()

    # ---------------------------------------------------------------- text

    def _extent(self, p: Param, group: Group) -> str:
        if p in self._nest.blocks:
            block, size, full = self._nest.blocks[p]
            if not isinstance(full, int) or full % size:
                rest = f"{self._names.size_text(full)} - {size} * {self._names.loop(block)}"
                return f"dop::minimum<int64_t>({size}, {rest})"
        return self._names.size_text(group.extents[p])

    def _stored(self, target: Reference, value: str) -> str:
        dtype = target.buffer.dtype
        code = stored(f"{types.cpp(types.computed(dtype))}({value})", dtype)
        return f"{self._names.element(target)} = {code};"

    def _line(self, text: str) -> None:
        self._lines.append("  " * self._depth + text)

    def _open(self, text: str) -> None:
        self._line(text)
        self._depth += 1

    def _for(self, p: Param, extent: str, first: str = "0") -> None:
        name = self._names.loop(p)
        self._open(f"for (int64_t {name} = {first}; {name} < {extent}; ++{name}) {{")

    def _close(self) -> None:
        self._depth -= 1
        self._line("}")
