"""A kernel as a node of a graph."""

from __future__ import annotations

from typing import Any, ClassVar

import dace.library
from dace.sdfg.graph import generate_element_id
from dace.sdfg.nodes import LibraryNode

from daceopt.ir.kernel.kernel import Kernel
from daceopt.ir.kernel.map_scope import ExpandKernel


@dace.library.node
class KernelNode(LibraryNode):
    """Loops over statements, which it holds as a value: ``kernel``. An edit of the kernel exchanges that.

    Connectors In0, In1, ... read whole arrays and Out0, Out1, ... write them. DaCe expands it into a map scope;
    programs are printed from the kernel itself.
    """

    implementations: ClassVar[dict[str, type]] = {"map scope": ExpandKernel}
    default_implementation: ClassVar[str | None] = "map scope"

    def __init__(self, kernel: Kernel) -> None:
        super().__init__(kernel.label)
        self._kernel = kernel
        self.loops: Any = None  # what ``edits.loops`` has asked of this kernel

    @property
    def kernel(self) -> Kernel:
        """What it computes, and how; never changed in place."""
        return self._kernel

    @kernel.setter
    def kernel(self, kernel: Kernel) -> None:
        self._kernel, self.label, self.loops = kernel, kernel.label, None

    @property
    def tree(self) -> Any:
        """The schedule of its kernel, an ``schedule.Tree``; None where no step has scheduled its loops. (DaCe's
        ``schedule`` of a node says on which device it runs.)"""
        return self._kernel.schedule

    def __deepcopy__(self, memo: dict[int, Any]) -> KernelNode:
        twin = KernelNode(self._kernel)
        memo[id(self)] = twin
        twin.label = self.label
        twin.in_connectors, twin.out_connectors = dict(self.in_connectors), dict(self.out_connectors)
        twin._guid = generate_element_id(twin)
        return twin
