"""From graphs to built programs: memory plan, generated code, entry unit, manifest; the two directions compile
together."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from math import prod

import dace
import numpy as np
import sympy

from daceopt.codegen import ahead, frame, in_place, memory_plan, region_bounds, target
from daceopt.codegen.assemble import build_program, program_key
from daceopt.codegen.code_flow import size_text
from daceopt.codegen.compiler import CompileJob, Flags, Requirements, compile_objects
from daceopt.codegen.entry import BufferAddress, ProgramSource
from daceopt.codegen.frame import ProgramFrame
from daceopt.codegen.kernel_joining import join
from daceopt.codegen.lending import SAVED_BLOCK
from daceopt.errors import BuildError, Unsupported
from daceopt.ir.control import region, region_settling
from daceopt.ir.data.arrays import SEED
from daceopt.ir.data.provenance import innermost
from daceopt.ir.graph import order
from daceopt.ir.graph.graph import Graph
from daceopt.ir.kernel.kernel_node import KernelNode
from daceopt.ir.scalar import types
from daceopt.ir.scalar.dims import dim
from daceopt.ir.schedule import schedule, schedule_text
from daceopt.runtime.manifest import Assumption, KernelInfo, Manifest, SavedArray, Symbol, Tensor
from daceopt.runtime.sources import Sources

logger = logging.getLogger("daceopt.build")
Roles = Mapping[str, str]  # array -> what it is at the boundary ("input:0", "output:1", ...)


def build(
    identity: str,
    parts: Sequence[tuple[Graph, Roles]],
    implement: Callable[[Graph], Requirements],
) -> list[str]:
    """Build one program per graph and store it; returns their keys for ``assemble.load_program``.

    ``implement`` replaces the library nodes of a copy of each graph by C++ calls. The sources of all programs compile
    in one go, equal kernels once. Raises BuildError and Unsupported.
    """
    generated: list[GeneratedProgram] = []
    for k, (graph, roles) in enumerate(parts):
        generated.append(GeneratedProgram(graph, roles, implement, k))
        if k < len(parts) - 1:
            ahead.start(generated[-1].jobs)  # while the next one is printed
    compile_objects([job for program in generated for job in program.jobs])
    names = []
    for k, program in enumerate(generated):
        name = program_key(identity, k)
        build_program(name, program.manifest, program.jobs, program.constants, sources=program.sources)
        names.append(name)
        logger.info("built %s: %d kernels and calls", program.manifest.name, len(program.manifest.kernels))
        for info in program.manifest.kernels:
            logger.debug("  %s -> %s", info.label, ", ".join(info.writes))
    return names


class GeneratedProgram:
    """A graph as sources, manifest and constants, before compilation."""

    def __init__(
        self,
        graph: Graph,
        roles: Roles,
        implement: Callable[[Graph], Requirements],
        position: int,
        suffix: str = "",
    ):
        self.suffix = suffix
        self.graph = graph.copy()
        self.graph.name = f"{graph.name}_{position}"
        self.roles = dict(roles)
        region_bounds.check(self.graph)
        region_settling.settle(self.graph)
        failing = in_place.fallible(self.graph) if self.graph.replaced else set()
        if self.graph.replaced:
            self.graph.order = in_place.order_of(self.graph)
        needs = implement(self.graph)
        order.check(self.graph, self.graph.nodes())
        self.target = target.get(graph.options.target)
        self.plan = memory_plan.as_built(self.graph)
        self.graph.overwrites = self.plan.over
        if not self.target.has_stream:  # its kernels may still run when the host looks whether one has failed
            self.graph.in_place = in_place.decide(self.graph, failing)
        self.frame = ProgramFrame(self.graph, reports=bool(needs.flags.includes))
        self.inputs = [n for n in self.graph.inputs if n in roles]
        self.bound = [n for n in self.graph.constants if n in self.frame.buffers]
        self.manifest = self._manifest(needs)
        self.source = self._source(needs)
        self.jobs = self._jobs(needs)
        self.constants = {f"constant:{k}": self._constant_bits(n) for k, n in enumerate(self.bound)}
        self.sources = self._sources()

    def _constant_bits(self, name: str) -> np.ndarray:
        """NumPy's files know no narrow types: their bits are stored."""
        value = self.graph.constants[name]
        return value.view(types.to_numpy(types.bits(self.graph.dtype(name))))

    def _manifest(self, needs: Requirements) -> Manifest:
        graph = self.graph
        return Manifest(
            name=self.graph.name,
            inputs=tuple(self._tensor(n, self.roles[n]) for n in self.inputs),
            constants=tuple(self._tensor(n, f"constant:{k}") for k, n in enumerate(self.bound)),
            outputs=tuple(self._output(n) for n in graph.outputs),
            symbols=tuple(Symbol(s, self._symbol_role(*where), where[1]) for s, where in graph.symbols.items()),
            uses_seed=graph.uses_seed,
            saves=bool(graph.saved),
            consumes=any(loan.owner == SAVED_BLOCK for loan in self.plan.lent.values()) and not _writes_saved(graph),
            kernels=tuple(map(self._kernel_info, graph.nodes())),
            assumptions=tuple(self._assumptions()),
            has_stream=self.target.has_stream,
            repeats=needs.repeats and not self.frame.host_reads,
            saved=tuple(self._saved_arrays()) if _writes_saved(graph) else (),
            numbers=tuple(self._numbers()),
        )

    def _kernel_info(self, node: dace.nodes.Node) -> KernelInfo:
        writes = tuple(filter(None, self.graph.outputs_of(node)))
        origin = innermost(self.graph.origins_of(node))
        return KernelInfo(str(node.label), writes, origin, getattr(node, "called_library", ""))

    def _saved_arrays(self) -> Iterator[SavedArray]:
        for name, offset in self.plan.saved.items():
            desc = self.graph.desc(name)
            is_dense = dim(desc.total_size - prod(self.graph.shape(name))) == 0
            shape = self.graph.shape(name) if is_dense else (desc.total_size,)
            dtype = types.name_of(self.graph.dtype(name))
            yield SavedArray(dtype, tuple(map(str, shape)), str(offset))

    def _assumptions(self) -> Iterator[Assumption]:
        """Of the graph and of all bodies in it, each once; those about counters of loops are proved (region_bounds).

        Raises Unsupported where one is about anything else than sizes of inputs.
        """
        parts = list(region.everything(self.graph))
        counters = {str(n.counter) for part in parts for n in region.regions(part) if isinstance(n, region.Repeat)}
        for expression in dict.fromkeys(e for part in parts for e in part.assumptions):
            names = {str(s) for s in expression.free_symbols}
            if not names.isdisjoint(counters):
                continue
            if unknown := names - self.graph.symbols.keys():
                raise Unsupported(f"a part of an array is inside of it only where {expression} >= 0, for {unknown}")
            polynomial = sympy.Poly(expression, *expression.free_symbols)
            terms = (
                (int(factor), tuple(str(s) for s, n in zip(polynomial.gens, powers) for _ in range(n)))
                for powers, factor in polynomial.terms()
            )
            yield Assumption(tuple(terms))

    def _numbers(self) -> Iterator[str]:
        """Symbols on which neither the memory of a call depends nor whether the program is for it."""
        extents = [e for name in self.graph.outputs for e in self.graph.shape(name)]
        sizes = [dim(e) for e in (self.plan.arena_bytes, self.plan.saved_bytes, *extents)]
        deciding = {str(s) for size in sizes for s in getattr(size, "free_symbols", ())}
        deciding |= {name for a in self._assumptions() for _, names in a.terms for name in names}
        return (name for name in self.graph.symbols if name not in deciding)

    def _symbol_role(self, array: str, axis: int) -> str:
        if array not in self.roles:
            raise BuildError(
                f"size symbol of axis {axis} of {array} cannot be read: the program does not take that input"
            )
        return self.roles[array]

    def _tensor(self, name: str, role: str) -> Tensor:
        return Tensor(
            role, types.to_numpy(self.graph.dtype(name)).name, len(self.graph.shape(name)), self.target.device
        )

    def _output(self, name: str) -> Tensor:
        old = self.graph.in_place.get(name)
        return replace(self._tensor(name, self.roles[name]), in_place=None if old is None else self.roles[old])

    def _jobs(self, needs: Requirements) -> list[CompileJob]:
        own_flags = Flags(link=self.target.toolchain.link())
        printed = self.frame.kernels.values()
        kernels = [CompileJob(k.unit, "kernel", own_flags, k.name, self.target.name) for k in printed]
        if self.target.has_stream:
            kernels.append(CompileJob(self.target.support, "kernel", own_flags, "support", self.target.name))
        if not self.suffix:  # a bundle joins those of all its programs
            kernels = join(kernels, self.target.toolchain.unit)
        around = Flags(headers=("daceopt/device_calls.h",)) if self.target.has_stream else Flags()
        calls = CompileJob(self.source.text(), "frame", needs.flags + around, self.graph.name)
        return [*kernels, calls, *needs.jobs]

    def _sources(self) -> Sources:
        """What people read: the loops and calls of each node, and the frame."""
        units, nodes, schedules = {k.name: k.text for k in self.frame.kernels.values()}, [], []
        for k, node in enumerate(self.graph.nodes()):
            schedules.append("\n".join(_schedule(part, n) for part, n in self._loops_of(node)))
            if isinstance(node, dace.nodes.Tasklet):
                units[f"call_{k}"] = node.code.as_string
                nodes.append([f"call_{k}"])
            else:
                nodes.append(list(dict.fromkeys(self.frame.calls[n] for _, n in self._loops_of(node))))
        return Sources(self.source.frame, units, nodes, schedules)

    def _loops_of(self, node: dace.nodes.Node) -> Iterator[tuple[Graph, KernelNode]]:
        """A loop nest, or those in the bodies of a region, each with its graph."""
        if node in self.frame.calls:
            yield self.graph, node
        for body in getattr(node, "bodies", ()):
            for part in region.everything(body):
                yield from ((part, n) for n in part.nodes() if n in self.frame.calls)

    def _source(self, needs: Requirements) -> ProgramSource:
        buffers = self.frame.buffers.values()
        return ProgramSource(
            self.manifest,
            self.frame.body,
            {b.name: (types.bits(b.dtype).ctype, self._address(b.name)) for b in buffers},
            "\n".join([*self.frame.declarations, *needs.declarations]),
            arena=size_text(self.plan.arena_bytes),
            saved=size_text(self.plan.saved_bytes),
            shapes=tuple(tuple(map(size_text, self.graph.shape(n))) for n in self.graph.outputs),
            status_header=bool(needs.flags.includes),
            suffix=self.suffix,
        )

    def _address(self, name: str) -> BufferAddress:
        """Where a buffer of the frame is."""
        graph = self.graph
        if name in _OF_A_CALL:
            return BufferAddress(_OF_A_CALL[name])
        if name.startswith(frame.SEEN):
            return BufferAddress("seen", int(name.removeprefix(frame.SEEN)))
        if name in self.plan.saved:
            return BufferAddress("saved", offset=size_text(self.plan.saved[name]))
        for source, names in (("output", graph.outputs), ("constant", self.bound), ("input", self.inputs)):
            if name in names:
                return BufferAddress(source, names.index(name))
        if name in self.plan.arena:
            return BufferAddress("arena", offset=size_text(self.plan.arena[name]))
        if name in self.plan.lent:
            owner, offset = self.plan.lent[name].owner, size_text(self.plan.lent[name].offset)
            if owner == SAVED_BLOCK:
                return BufferAddress("saved", offset=offset)
            return BufferAddress("lent", graph.outputs.index(owner), offset)
        raise BuildError(f"{graph.name}: the frame reads {name!r}, which is no input, output, constant or intermediate")


_OF_A_CALL = {
    frame.STATUS: "status",
    frame.REPORTS: "reports",
    SEED: "seed",
    frame.STREAM: "stream",
}  # buffer -> source


def _schedule(graph: Graph, node: KernelNode) -> str:
    """How the loops of a kernel run; why there is no text for them, rather than no program."""
    try:
        return schedule_text.text(schedule.schedule_of(node.kernel))
    except Unsupported as error:
        return f"# {error}\n"


def _writes_saved(graph: Graph) -> bool:
    """Is this the program that leaves the saved block, rather than the one that gets it?"""
    return any(graph.producers(name) for name in graph.saved)
