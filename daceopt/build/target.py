"""Our DaCe code generator target: in the frame a kernel is a call, its code a translation unit of its own."""

from __future__ import annotations

import re
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import dace
from dace import nodes, registry, subsets
from dace.codegen import codegen
from dace.codegen.codeobject import CodeObject
from dace.codegen.targets.target import TargetCodeGenerator
from dace.config import Config, temporary_config
from dace.memlet import Memlet

from daceopt.build.kernel_source import Argument, KernelSource, kernel_source
from daceopt.build.printer import Printer
from daceopt.errors import Unsupported
from daceopt.ir import types
from daceopt.ir.graph import Dim, Graph
from daceopt.ir.kernel import Kernel

_CLOCK = "std::chrono::steady_clock::now().time_since_epoch() / std::chrono::nanoseconds(1)"
STATUS = "kernel_status"  # int32: kernels set it to 1 when an index is out of range
_UNIT = "KernelUnit"
_config_lock = threading.Lock()


@dataclass(frozen=True)
class GeneratedProgram:
    """A program as C++: ``frame_source`` calls the kernels of ``kernel_sources`` (name -> complete translation unit).

    ``sdfg`` is what the frame was generated from: ``sdfg.arglist()`` gives its parameters, which are the root buffers
    that the graph's nodes use (no views), sizes, and ``STATUS`` where ``uses_status``. ``calls`` has the kernel name of
    each map entry.
    """

    name: str
    frame_source: str
    kernel_sources: dict[str, str]
    sdfg: dace.SDFG
    uses_status: bool = False
    calls: dict[Any, str] = field(default_factory=dict)

    @property
    def arguments(self) -> list[str]:
        """Parameter names of ``__program_<name>`` after the handle, in order."""
        return list(self.sdfg.arglist())


def generate(graph: Graph, ticks: str | None = None) -> GeneratedProgram:
    """Print the kernels of ``graph`` and let DaCe generate the frame, which executes ``graph.nodes()`` in that order.

    Library nodes must be C++ tasklets over whole arrays by now. Raises ``Unsupported`` for any other node. ``ticks``
    names an int64 array of the graph: the frame writes the nanoseconds of a steady clock into it, before the first node
    and after each.
    """
    frame = _Frame(graph, ticks)
    with _configured(), tempfile.TemporaryDirectory(prefix="daceopt-") as folder:
        frame.sdfg.build_folder = folder  # DaCe writes maps of the source there: by default, below the current folder
        objects = codegen.generate_code(frame.sdfg, validate=False)
    kernels = {o.name: o.code for o in objects if o.title == _UNIT}
    source = next(o.code for o in objects if o.title == "Frame")
    return GeneratedProgram(frame.sdfg.name, source, kernels, frame.sdfg, frame.uses_status, frame.calls)


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

    def __init__(self, label: str, inputs: Any, outputs: Any, code: str, sizes: set[str]):
        super().__init__(label, inputs, outputs, code, dace.Language.CPP)
        self._sizes = sizes

    @property
    def free_symbols(self) -> set[str]:
        return self._sizes


class _Frame:
    """Builds the SDFG of the frame: flat buffers, and the nodes of the graph chained in their order."""

    def __init__(self, graph: Graph, ticks: str | None = None):
        self._graph = graph
        self._ticks = ticks
        self.sdfg = dace.SDFG(graph.sdfg.name)
        self._state = self.sdfg.add_state("main", is_start_block=True)
        self._state.set_default_lineinfo(dace.dtypes.DebugInfo(0))  # spares DaCe the inspection of the call stack
        self._symbols = set(graph.sdfg.symbols)
        for name in graph.sdfg.symbols:
            self.sdfg.add_symbol(name, dace.int64)
        self.calls: dict[Any, str] = {}
        self.uses_status = False
        self._last: nodes.Node | None = None
        self._tick(0)
        for k, node in enumerate(graph.nodes(), 1):
            self._chain(self._add(node))
            self._tick(k)

    def _chain(self, call: nodes.Node) -> None:
        if self._last is not None:
            self._state.add_edge(self._last, None, call, None, Memlet())
        self._last = call

    def _tick(self, k: int) -> None:
        """Let the clock be read here in a profiled program."""
        if self._ticks is None:
            return
        self._buffer(self._ticks)
        tasklet = Tasklet("tick", {}, {}, f"{self._ticks}[{k}] = {_CLOCK};", set())
        self._state.add_node(tasklet)
        self._chain(tasklet)

    def _add(self, node: nodes.Node) -> nodes.Node:
        if isinstance(node, nodes.MapEntry):
            return self._kernel(node)
        if isinstance(node, nodes.Tasklet) and node.language == dace.Language.CPP:
            return self._library_call(node)
        raise Unsupported(f"{node} is no kernel and no C++ tasklet: lower operators and implement library nodes first")

    def _buffer(self, name: str) -> None:
        if name in self.sdfg.arrays:
            return
        if name == STATUS:
            self.sdfg.add_array(name, (1,), dace.int32)
            return
        desc = self._graph.desc(name)
        self.sdfg.add_array(name, (desc.total_size,), types.bits(desc.dtype))

    # ---------------------------------------------------------------- kernels

    def _kernel(self, entry: nodes.MapEntry) -> nodes.Node:
        source = kernel_source(self._graph, Kernel.extract(self._graph, entry))
        self.calls[entry] = source.name
        for argument in source.arguments:
            if argument.kind != "symbol":
                self._buffer(argument.array if argument.kind == "pointer" else STATUS)
        self.uses_status |= any(a.kind == "status" for a in source.arguments)
        values = ", ".join(self._value(a) for a in source.arguments)
        call = KernelCall(source, f"{source.name}({values});", self._sizes_in(values))
        self._state.add_node(call)
        return call

    def _value(self, argument: Argument) -> str:
        if argument.kind == "symbol":
            return argument.symbol
        if argument.kind == "status":
            return STATUS
        return argument.array if argument.offset == 0 else f"{argument.array} + {self._size(argument.offset)}"

    @staticmethod
    def _size(size: Dim) -> str:
        return Printer({}, floor_division="int_floor").text(size, dace.int64)

    def _sizes_in(self, code: str) -> set[str]:
        return set(re.findall(r"[A-Za-z_]\w*", code)) & self._symbols

    # ---------------------------------------------------------------- library calls

    def _library_call(self, node: nodes.Tasklet) -> nodes.Node:
        code = node.code.as_string
        tasklet = Tasklet(node.label, dict(node.in_connectors), dict(node.out_connectors), code, self._sizes_in(code))
        self._state.add_node(tasklet)
        for connector, name in self._graph.reads(node).items():
            array, memlet = self._memlet(name)
            self._state.add_edge(self._state.add_access(array), None, tasklet, connector, memlet)
        for connector, name in self._graph.writes(node).items():
            array, memlet = self._memlet(name)
            self._state.add_edge(tasklet, connector, self._state.add_access(array), None, memlet)
        return tasklet

    def _memlet(self, name: str) -> tuple[str, Memlet]:
        """The flat range of ``name`` in its root buffer."""
        root, offset = self._graph.root(name)
        self._buffer(root)
        span = self._graph.desc(name).total_size
        return root, Memlet(data=root, subset=subsets.Range([(offset, offset + span - 1, 1)]))


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
