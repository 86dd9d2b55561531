"""Arrays and the nodes that read and write them, without order: what can be asked about uses and definitions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from dace import nodes

from daceopt.ir.data import view_boxes
from daceopt.ir.data.arrays import Arrays, Descriptor
from daceopt.ir.data.parts import within
from daceopt.ir.data.provenance import Origins, join_origins
from daceopt.ir.graph.def_use import DefUse
from daceopt.ir.graph.kinds import Node
from daceopt.ir.graph.operands import Operands, all_required, require
from daceopt.ir.kernel.kernel_node import KernelNode
from daceopt.ir.scalar.dims import dim, row_major


def _in_order(positions: Sequence[str] | None, by_connector: Mapping[str, str]) -> Iterable[str | None]:
    """Operators number their operands; other nodes have them sorted and unique."""
    return sorted(set(by_connector.values())) if positions is None else map(by_connector.get, positions)


class DataflowGraph(Arrays):
    """Arrays, and the nodes that read and write them: who, and what.

    ``ir.graph.graph.Graph`` adds edits, the order in which nodes run, and what steps decide.
    """

    def __init__(self, name: str):
        super().__init__(name)
        self.def_use = DefUse()  # is edited by the methods of Graph only
        self.locals: dict[str, KernelNode] = {}  # arrays inside of kernels, whose names no others have

    def origins_of(self, node: Node) -> Origins:
        """Where in the model the results of ``node`` come from."""
        return join_origins(self.origins.get(name, ()) for name in self.outputs_of(node) if name is not None)

    def compute(self) -> list[Node]:
        """The same nodes in the order in which they were added."""
        return list(self.def_use)

    def _check_free(self, name: str) -> None:
        """Raise ValueError where an array, or a local of a kernel, is called ``name``."""
        super()._check_free(name)
        if name in self.locals:
            raise ValueError(f"there is a local {name} of kernel {self.locals[name].label} already")

    def is_free(self, name: str) -> bool:
        """Is neither an array nor a local of a kernel called ``name``?"""
        return not self.has(name) and name not in self.locals

    def desc(self, name: str) -> Descriptor:
        """What an array, or a local of a kernel, is. KeyError for a name that neither has."""
        descriptor = self._descriptors.get(name)
        return descriptor if descriptor is not None else self._local(name)

    def _local(self, name: str) -> Descriptor:
        dtype, shape = self.locals[name].kernel.locals[name]
        return Descriptor(tuple(map(dim, shape)), row_major(shape), dtype)

    def _check_unwritten(self, name: str) -> None:
        if not self.has(name):
            raise ValueError(f"there is no array {name} to write")
        if name in self._views or self.is_written(name):
            raise ValueError(f"{name} is written twice or is a view; arrays are written once (SSA)")

    def is_written(self, name: str) -> bool:
        """Does a node write ``name`` itself, or a part of it?"""
        return self.def_use.writer(name) is not None or bool(self._parts_of.get(name))

    def is_read(self, name: str) -> bool:
        """Does a node read ``name`` itself, or is there a view of it, or what it is a part of?"""
        return bool(self.def_use.readers(name) or self._views_of.get(name)) or name in self._parts

    def producer(self, name: str) -> Node | None:
        """The node that writes ``name``, or what it is a view of; None for inputs and constants, and for an array that
        nodes write in parts (see :meth:`producers`)."""
        return self.def_use.writer(self.written_array(name))

    def sources(self, name: str) -> list[str]:
        """The arrays, each written by one node or given, whose elements ``name`` shows: one, or parts of one."""
        whole = self.written_array(name)
        if not self._parts or not self.parts_of(whole):
            return [whole]
        if self.is_view(name):
            return view_boxes.sources(self, name)
        return [m for m in within(self, whole) if not self.parts_of(m)]

    def producers(self, name: str) -> list[Node]:
        """The nodes that write ``name``, what it is a view of, or a part of that; none for inputs and constants."""
        return [node for node in map(self.producer, self.sources(name)) if node is not None]

    def consumers(self, name: str) -> list[Node]:
        """Compute nodes that read ``name`` itself, each once."""
        return list(dict.fromkeys(node for node, _ in self.def_use.readers(name)))

    def all_consumers(self, name: str) -> list[Node]:
        """Compute nodes that read ``name``, any view of it, or what it is a part of."""
        return list(dict.fromkeys(c for alias in self.aliases(name) for c in self.consumers(alias)))

    def inputs_of(self, node: Node) -> Operands:
        """Arrays read: by position for operators (None = absent), sorted and unique for everything else."""
        positions = getattr(node, "input_connectors", None)
        return Operands(_in_order(positions, self.def_use.reads(node)), node, "input")

    def outputs_of(self, node: Node) -> Operands:
        """Arrays written, in the same form as :meth:`inputs_of`."""
        positions = getattr(node, "output_connectors", None)
        return Operands(_in_order(positions, self.def_use.writes(node)), node, "output")

    def operand(self, node: Node, position: int) -> str:
        """The array that ``node`` reads at ``position``. Raises Unsupported, with the node, where it is absent."""
        return require(self.inputs_of(node), position)

    def operands(self, node: Node, count: int | None = None) -> list[str]:
        """The first ``count`` arrays that ``node`` reads, or all of them; raises as :meth:`operand` does."""
        return all_required(self.inputs_of(node), count)

    def result(self, node: Node, position: int) -> str:
        """The array that ``node`` writes at ``position``; raises as :meth:`operand` does."""
        return require(self.outputs_of(node), position)

    def reads(self, node: nodes.CodeNode) -> dict[str, str]:
        """Connector -> array for a library node or tasklet."""
        return dict(self.def_use.reads(node))

    def writes(self, node: nodes.CodeNode) -> dict[str, str]:
        return dict(self.def_use.writes(node))

    def is_kept(self, name: str) -> bool:
        """Does ``name``, a view of it, or what it is a part of outlive the program: as an output, or saved for the
        backward pass?"""
        return any(alias in self.outputs or alias in self.saved for alias in self.aliases(name))

    def __contains__(self, node: object) -> bool:
        return node in self.def_use

    def is_used(self, name: str) -> bool:
        """Does a node read ``name`` or what shows its elements, or does it outlive the program?"""
        return self.is_kept(name) or any(self.consumers(alias) for alias in self.aliases(name))
