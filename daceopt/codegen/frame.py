"""Our DaCe code generator target: in the frame a kernel is a call, its code a translation unit of its own."""

from __future__ import annotations

import re
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import dace
from dace import nodes, registry
from dace.codegen import codegen
from dace.codegen.codeobject import CodeObject
from dace.codegen.targets.target import TargetCodeGenerator
from dace.config import Config, temporary_config
from dace.symbolic import symstr

from daceopt.codegen import target
from daceopt.codegen.flow import FrameFlow
from daceopt.codegen.kernel_printing import KernelPrinter
from daceopt.codegen.kernel_unit import KernelArgument, KernelSource
from daceopt.codegen.regions import FrameBuffer, Scope, odd, slot
from daceopt.codegen.scalar.printer import Printer
from daceopt.errors import Unsupported
from daceopt.ir.control.region import CONDITION, TRIPS, Conditional, Repeat
from daceopt.ir.graph.graph import Graph
from daceopt.ir.kernel.kernel_node import KernelNode
from daceopt.ir.scalar import checks, types
from daceopt.ir.scalar.dims import Dim, dim

_CLOCK = "std::chrono::steady_clock::now().time_since_epoch() / std::chrono::nanoseconds(1)"
STATUS = "kernel_status"  # int32: kernels set it to what failed (daceopt/ir/scalar/checks.py)
REPORTS = "kernel_reports"  # the same for kernels that the host does not wait for: in memory of both
SEEN = "kernel_seen_"  # and a number: memory of the host, for an element of a device that control flow reads
STREAM = "kernel_stream"  # the address by which an accelerator knows on what its kernels run
_UNIT = "KernelUnit"
_config_lock = threading.Lock()


@dataclass(frozen=True)
class GeneratedProgram:
    """A program as C++: ``frame_source`` calls the kernels of ``kernel_sources`` (name -> complete translation unit).

    ``sdfg`` is what the frame was generated from: ``sdfg.arglist()`` gives its parameters, which are the root buffers
    that the graph's nodes use (no views), sizes, and ``STATUS`` where ``uses_status``. ``calls`` has the kernel name of
    each map entry, ``texts`` each kernel without the header that all share. ``seen``: how many times it waits for its
    kernels and reads what control flow depends on.
    """

    name: str
    frame_source: str
    kernel_sources: dict[str, str]
    sdfg: dace.SDFG
    uses_status: bool = False
    calls: dict[Any, str] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict)
    seen: int = 0

    @property
    def arguments(self) -> list[str]:
        """Parameter names of ``__program_<name>`` after the handle, in order."""
        return list(self.sdfg.arglist())


def generate(graph: Graph, ticks: str | None = None, reports: bool = False) -> GeneratedProgram:
    """Print the kernels of ``graph`` and let DaCe generate the frame, which executes ``graph.nodes()`` in that order.

    Library nodes must be C++ tasklets over whole arrays by now. Raises ``Unsupported`` for any other node. ``ticks``
    names an int64 array of the graph: the frame writes the nanoseconds of a steady clock into it, before the first node
    and after each; where kernels have a stream, of events on it, for which the run waits. ``reports``: library calls
    report errors into ``daceopt/status.h``.
    """
    frame = FrameBuilder(graph, ticks, reports)
    with _configured(), tempfile.TemporaryDirectory(prefix="daceopt-") as folder:
        frame.sdfg.build_folder = folder  # DaCe writes maps of the source there: by default, below the current folder
        objects = codegen.generate_code(frame.sdfg, validate=False)
    kernels = {o.name: o.code for o in objects if o.title == _UNIT}
    source = next(o.code for o in objects if o.title == "Frame")
    made = frame.uses_status, frame.calls, frame.texts, frame.seen
    return GeneratedProgram(frame.sdfg.name, source, kernels, frame.sdfg, *made)


@contextmanager
def _configured() -> Iterator[None]:
    """DaCe's configuration is global: what the frame depends on is set for the moment, in one thread at a time."""
    with _config_lock, temporary_config():
        Config.set("compiler", "cpu", "openmp_sections", value=False)
        Config.set("compiler", "codegen_lineinfo", value=False)
        Config.set("testing", "serialization", value=False)
        yield


class KernelCall(nodes.Tasklet):
    """A kernel in the frame: the call of ``source``."""

    def __init__(self, source: KernelSource, code: str, sizes: set[str]):
        super().__init__(source.name, {}, {}, code, dace.Language.CPP)
        self._source = source
        self._sizes = sizes

    @property
    def source(self) -> KernelSource:
        """The printed kernel."""
        return self._source

    @property
    def free_symbols(self) -> set[str]:
        return self._sizes


class Tasklet(nodes.Tasklet):
    """A C++ tasklet that tells DaCe which sizes its code reads; DaCe looks for them in Python code only.

    Its name is that of its base because DaCe's generators dispatch on class names.
    """

    def __init__(self, label: str, code: str, sizes: set[str]):
        super().__init__(label, {}, {}, code, dace.Language.CPP)
        self._sizes = sizes

    @property
    def free_symbols(self) -> set[str]:
        return self._sizes


class FrameBuilder:
    """Builds the SDFG of the frame: flat buffers, and the nodes of the graph chained in their order.

    Between regions they stand in one state; a region becomes a loop or a conditional block around states of its own.
    """

    def __init__(self, graph: Graph, ticks: str | None = None, reports: bool = False):
        self._scope = Scope(graph)
        self._target = target.get(graph.options.target)
        self._printer = KernelPrinter(self._target.print_kernel)
        self._ticks = ticks
        self.sdfg = dace.SDFG(graph.name)
        self._flow = FrameFlow(self.sdfg)
        self._symbols = set(graph.size_names)
        for name in graph.size_names:
            self.sdfg.add_symbol(name, dace.int64)
        self.calls: dict[Any, str] = {}
        self.texts: dict[str, str] = {}
        self.uses_status = False
        self.seen = 0
        self._tick(0)
        order = graph.nodes()
        changing = [n for n in order if not graph.in_place.keys().isdisjoint(graph.outputs_of(n))]
        for k, node in enumerate(order, 1):
            if node in changing[:1]:
                self._begin_changes(reports)
            self._add(node)
            self._tick(k)
        if ticks is not None and self._target.has_stream:
            self._run(f"daceopt_ticks({self._stream()}, {ticks});", "ticks")

    def _begin_changes(self, reports: bool) -> None:
        """What has failed by now has changed no input; from here on arguments are written."""
        status = f"{self._buffer(FrameBuffer(STATUS, 1, dace.int32))}[0]"
        failed = f"{status} || daceopt::status.failed || daceopt::status.doubt" if reports else status
        self._run(f"if ({failed}) return;\n{status} = {checks.CHANGING};", "changes")
        self.uses_status = True

    def _tick(self, k: int) -> None:
        """Let the clock be read here in a profiled program: that of the device, where the host does not wait for it."""
        if self._ticks is None:
            return
        self._buffer(self._scope.place(self._ticks)[0])
        if self._target.has_stream:
            self._run(f"daceopt_tick({self._stream()}, {k});", "tick")
        else:
            self._run(f"{self._ticks}[{k}] = {_CLOCK};", "tick")

    def _stream(self) -> str:
        return self._buffer(FrameBuffer(STREAM, 1, dace.uint8))

    def _run(self, code: str, label: str) -> None:
        """Chain a piece of C++ over buffers of the frame."""
        self._flow.chain(Tasklet(label, code, self._sizes_in(code)))

    def _add(self, node: nodes.Node) -> None:
        if isinstance(node, KernelNode):
            self._kernel(node)
        elif isinstance(node, nodes.Tasklet) and node.language == dace.Language.CPP:
            self._library_call(node)
        elif isinstance(node, Repeat):
            self._repeat(node)
        elif isinstance(node, Conditional):
            self._conditional(node)
        else:
            raise Unsupported(
                f"{node} is no kernel and no C++ tasklet: lower operators and implement library nodes first"
            )

    def _buffer(self, buffer: FrameBuffer) -> str:
        if buffer.name not in self.sdfg.arrays:
            self.sdfg.add_array(buffer.name, (buffer.elements,), types.bits(buffer.dtype))
        return buffer.name

    # ---------------------------------------------------------------- kernels

    def _kernel(self, entry: KernelNode) -> None:
        graph = self._scope.graph
        source = self._printer.source(graph, entry.kernel)
        self.calls[entry] = source.name
        self.texts[source.name] = source.text
        self.uses_status |= not self._target.has_stream and any(a.kind == "status" for a in source.arguments)
        values = ", ".join(self._value(a) for a in source.arguments)
        self._flow.chain(KernelCall(source, f"{source.name}({values});", self._sizes_in(values)))

    def _value(self, argument: KernelArgument) -> str:
        if argument.kind == "symbol":
            return argument.symbol
        if argument.kind == "draw":
            return str(argument.value)
        if argument.kind == "stream":
            return self._stream()
        if argument.kind == "status":
            return self._buffer(FrameBuffer(REPORTS if self._target.has_stream else STATUS, 1, dace.int32))
        buffer, start = self._scope.place(argument.array)
        return self._pointer(buffer, dim(start + argument.offset))

    def _pointer(self, buffer: FrameBuffer, offset: Dim) -> str:
        name = self._buffer(buffer)
        return name if offset == 0 else f"{name} + {size_text(offset)}"

    def _sizes_in(self, code: str) -> set[str]:
        return set(re.findall(r"[A-Za-z_]\w*", code)) & self._symbols

    # ---------------------------------------------------------------- library calls

    def _library_call(self, node: nodes.Tasklet) -> None:
        """The operands under their connectors' names, and the call. DaCe sees no access nodes: for each one that it
        prints, it would look at all nodes of the state."""
        graph, types_of = self._scope.graph, {**node.in_connectors, **node.out_connectors}
        operands = [*graph.reads(node).items(), *graph.writes(node).items()]
        lines = [f"{types_of[c].ctype} {c} = {self._pointer(*self._scope.place(name))};" for c, name in operands]
        if STREAM in node.code.as_string:
            self._stream()
        self._run("\n".join([*lines, node.code.as_string]), node.label)

    # ---------------------------------------------------------------- regions

    def _conditional(self, node: Conditional) -> None:
        scope = self._scope
        with self._flow.branches(self._element(scope.graph.reads(node)[CONDITION])) as branch:
            for k, body in enumerate(scope.inner[node].scopes):
                with branch(k == 0):
                    self._inside(body)

    def _inside(self, scope: Scope) -> None:
        outer, self._scope = self._scope, scope
        for node in scope.graph.nodes():
            self._add(node)
        self._scope = outer

    def _repeat(self, node: Repeat) -> None:
        inner, counter, half = self._scope.inner[node], str(node.counter), str(odd(node))
        for name in (counter, half):
            self._symbol(name)
        for buffer, carried in zip(inner.carried, node.carried):
            self._move(self._scope.graph.reads(node)[carried.initial], buffer, 0, into=True)
        test = None
        if node.condition is not None:
            flag = inner.carried[node.condition]
            test = partial(self._value_of, flag, f"({counter} % 2) * {symstr(slot(flag))}")
        trips = self._trips(node)
        made = f"({trips}) - 1 - {counter}" if node.descending else counter
        with self._flow.loop(counter, trips, test, {half: f"({made}) % 2"}, node.descending):
            self._inside(inner.scopes[0])
        self._flow.assign({half: f"({made}) % 2"})
        for buffer, carried in zip(inner.carried, node.carried):
            if carried.final is not None:
                final = self._scope.graph.writes(node)[carried.final]
                self._move(final, buffer, dim(odd(node) * slot(buffer)), into=False)
        if node.is_checked:
            self._check(node, test)

    def _element(self, name: str) -> str:
        """The only element of an array, as control flow reads it."""
        buffer, offset = self._scope.place(name)
        return self._value_of(buffer, symstr(offset))

    def _value_of(self, buffer: FrameBuffer, index: str) -> str:
        """An element of a buffer as control flow reads it, here and now: the host waits for those of a device."""
        element = f"{self._buffer(buffer)}[{index}]"
        if not self._target.has_stream:
            return element
        seen = self._buffer(FrameBuffer(f"{SEEN}{self.seen}", 1, buffer.dtype))
        self.seen += 1
        self._run(f"daceopt_read({self._stream()}, {seen}, &{element}, sizeof(*{seen}));", "read")
        return f"{seen}[0]"

    def _symbol(self, name: str) -> None:
        if name not in self._symbols:
            self.sdfg.add_symbol(name, dace.int64)
            self._symbols.add(name)

    def _move(self, name: str, buffer: FrameBuffer, offset: Dim, *, into: bool) -> None:
        """Copy the row-major array ``name`` into a carried buffer, or back."""
        graph = self._scope.graph
        mine, theirs = self._pointer(buffer, offset), self._pointer(*self._scope.place(name))
        target, source = (mine, theirs) if into else (theirs, mine)
        elements = f"{size_text(graph.size(name))} * sizeof(*{buffer.name})"
        copied = f"{target}, {source}, {elements}"
        if self._target.has_stream:
            self._run(f"daceopt_copy({self._stream()}, {copied});", "carry")
        else:
            self._run(f"__builtin_memcpy({copied});", "carry")

    def _trips(self, node: Repeat) -> str | None:
        """The number of iterations as an expression of the frame; None when nothing but the condition ends them."""
        if node.trips is not None:
            bound = f", {symstr(node.limit)}" if node.limit is not None and node.limit != node.trips else ""
            return f"min({symstr(node.trips)}{bound})" if bound else symstr(node.trips)
        given = self._scope.graph.reads(node).get(TRIPS)
        if given is None:
            return None if node.limit is None else symstr(node.limit)
        count = f"{node.counter}_trips"
        self._symbol(count)
        self._flow.assign({count: self._element(given)})
        if node.limit is None:
            return count
        bound = f"{node.counter}_bound"
        self._symbol(bound)
        self._flow.assign({bound: f"min({count}, {symstr(node.limit)})"})
        return bound

    def _check(self, node: Repeat, test: Callable[[], str] | None) -> None:
        """Report a loop whose number of iterations is not the extent of its outputs."""
        counter, limit = str(node.counter), size_text(node.limit or 0)
        more = [test()] if test else []
        if node.trips is None and TRIPS in self._scope.graph.reads(node):
            more.append(f"{counter}_trips > {counter}")
        elif node.trips is not None:
            more.append(f"{size_text(node.trips)} > {counter}")
        goes_on = f" || ({' && '.join(more)})" if more else ""
        text = "another number of iterations than the declared extent of its outputs"
        self._run(f'if ({counter} != {limit}{goes_on}) daceopt::fail("{node.label}", "{text}");', "check")


def size_text(size: Dim) -> str:
    """An extent, stride or offset as the frame's code has it."""
    return Printer({}, floor_division="int_floor").size(size)


# -------------------------------------------------------------------- the target


@registry.autoregister_params(name="cpu_simd")
class KernelTarget(TargetCodeGenerator):
    """Generates ``KernelCall`` nodes: the frame calls, the kernel is a code object of its own."""

    target_name = "cpu"
    title = "Simd kernels"
    language = "cpp"

    def __init__(self, frame: Any, sdfg: dace.SDFG):
        self._sources: dict[str, KernelSource] = {}
        frame.dispatcher.register_node_dispatcher(self, lambda _sdfg, _state, node: isinstance(node, KernelCall))

    def generate_node(
        self, sdfg: Any, cfg: Any, dfg: Any, state_id: int, node: Any, function_stream: Any, callsite_stream: Any
    ) -> None:
        """Write the call; the declaration goes to the frame's global part, once for each distinct kernel."""
        source = node.source
        if source.name not in self._sources:
            self._sources[source.name] = source
            function_stream.write(source.declaration, cfg, state_id)
        callsite_stream.write(node.code.as_string, cfg, state_id)

    def get_generated_codeobjects(self) -> list[CodeObject]:
        """One translation unit for each distinct kernel."""
        return [CodeObject(name, s.unit, "cpp", KernelTarget, _UNIT) for name, s in self._sources.items()]
