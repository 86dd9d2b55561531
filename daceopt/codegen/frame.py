"""The frame of a program: its kernels and library calls one after another, over flat buffers."""

from __future__ import annotations

from collections.abc import Callable

import dace
from dace import nodes

from daceopt.codegen import target
from daceopt.codegen.code_flow import CodeFlow, size_text
from daceopt.codegen.frame_walk import FrameWalk
from daceopt.codegen.kernel_printing import KernelPrinter
from daceopt.codegen.kernel_unit import KernelArgument, KernelSource
from daceopt.codegen.regions import FrameBuffer
from daceopt.ir.control.region import TRIPS, Repeat
from daceopt.ir.graph.graph import Graph
from daceopt.ir.kernel.kernel_node import KernelNode
from daceopt.ir.scalar import checks
from daceopt.ir.scalar.dims import Dim, dim

STATUS = "kernel_status"  # int32: kernels set it to what failed (daceopt/ir/scalar/checks.py)
REPORTS = "kernel_reports"  # the same for kernels that the host does not wait for: in memory of both
SEEN = "kernel_seen_"  # and a number: memory of the host, for an element of a device that control flow reads
STREAM = "kernel_stream"  # the address by which an accelerator knows on what its kernels run


class ProgramFrame(FrameWalk):
    """The code of ``graph.nodes()``, executed in that order.

    ``buffers``: what the code names, which are root arrays of the graph (no views), what regions need beside them, and
    the four above. ``kernels``: each distinct kernel by its name; ``calls``: the kernel's name of each kernel node.
    ``host_reads``: how many times the host waits for its kernels and reads what control flow depends on.

    Library nodes must be C++ tasklets over whole arrays by now. Raises ``Unsupported`` for any other node. ``reports``:
    library calls report errors into ``daceopt/status.h``.
    """

    def __init__(self, graph: Graph, reports: bool = False):
        self._code = CodeFlow()
        super().__init__(graph, self._code)
        self._target = target.get(graph.options.target)
        self._printer = KernelPrinter(self._target.print_kernel)
        self.buffers: dict[str, FrameBuffer] = {}
        self.kernels: dict[str, KernelSource] = {}
        self.calls: dict[nodes.Node, str] = {}
        self.host_reads = 0
        self._tick(0)
        order = graph.nodes()
        changing = [n for n in order if not graph.in_place.keys().isdisjoint(graph.outputs_of(n))]
        for k, node in enumerate(order, 1):
            if node in changing[:1]:
                self._begin_changes(reports)
            self._add(node)
            self._tick(k)

    @property
    def declarations(self) -> list[str]:
        """Prototypes of the kernels."""
        return [kernel.declaration for kernel in self.kernels.values()]

    @property
    def body(self) -> str:
        """The calls: C++ statements over the buffers and the sizes of the graph."""
        return self._code.text()

    def _begin_changes(self, reports: bool) -> None:
        """What has failed by now has changed no input; from here on arguments are written."""
        status = f"{self._buffer(FrameBuffer(STATUS, 1, dace.int32))}[0]"
        failed = f"{status} || daceopt::status.failed || daceopt::status.doubt" if reports else status
        self._code.add(f"if ({failed}) return;\n{status} = {checks.CHANGING};")

    def _tick(self, k: int) -> None:
        """Tell who watches the run that node ``k`` is next."""
        self._code.add(f"if (mark) mark({k});")

    def _stream(self) -> str:
        return self._buffer(FrameBuffer(STREAM, 1, dace.uint8))

    def _buffer(self, buffer: FrameBuffer) -> str:
        self.buffers.setdefault(buffer.name, buffer)
        return buffer.name

    def _pointer(self, buffer: FrameBuffer, offset: Dim) -> str:
        name = self._buffer(buffer)
        return name if offset == 0 else f"{name} + {size_text(offset)}"

    def _kernel(self, node: KernelNode) -> None:
        source = self._printer.source(self._scope.graph, node.kernel)
        self.calls[node] = source.name
        self.kernels.setdefault(source.name, source)
        self._code.add(f"{source.name}({', '.join(map(self._argument, source.arguments))});")

    def _argument(self, argument: KernelArgument) -> str:
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

    def _library_call(self, node: nodes.Tasklet) -> None:
        """The operands under their connectors' names, and the call."""
        graph, types_of = self._scope.graph, {**node.in_connectors, **node.out_connectors}
        if STREAM in node.code.as_string:
            self._stream()
        with self._code.block():
            for connector, name in (*graph.reads(node).items(), *graph.writes(node).items()):
                self._code.add(f"{types_of[connector].ctype} {connector} = {self._pointer(*self._scope.place(name))};")
            self._code.add(node.code.as_string)

    def _value(self, buffer: FrameBuffer, index: str) -> str:
        """The host waits for elements of a device."""
        element = f"{self._buffer(buffer)}[{index}]"
        if not self._target.has_stream:
            return element
        host_copy = self._buffer(FrameBuffer(f"{SEEN}{self.host_reads}", 1, buffer.dtype))
        self.host_reads += 1
        self._code.add(f"daceopt_read({self._stream()}, {host_copy}, &{element}, sizeof(*{host_copy}));")
        return f"{host_copy}[0]"

    def _move(self, name: str, buffer: FrameBuffer, offset: Dim, *, into: bool) -> None:
        graph = self._scope.graph
        mine, theirs = self._pointer(buffer, offset), self._pointer(*self._scope.place(name))
        to, origin = (mine, theirs) if into else (theirs, mine)
        operands = f"{to}, {origin}, {size_text(graph.size(name))} * sizeof(*{buffer.name})"
        if self._target.has_stream:
            self._code.add(f"daceopt_copy({self._stream()}, {operands});")
        else:
            self._code.add(f"__builtin_memcpy({operands});")

    def _check(self, node: Repeat, test: Callable[[], str] | None) -> None:
        counter, limit = str(node.counter), size_text(node.limit or 0)
        more = [test()] if test else []
        if node.trips is None and TRIPS in self._scope.graph.reads(node):
            more.append(f"{counter}_trips > {counter}")
        elif node.trips is not None:
            more.append(f"{size_text(node.trips)} > {counter}")
        goes_on = f" || ({' && '.join(more)})" if more else ""
        text = "another number of iterations than the declared extent of its outputs"
        self._code.add(f'if ({counter} != {limit}{goes_on}) daceopt::fail("{node.label}", "{text}");')
