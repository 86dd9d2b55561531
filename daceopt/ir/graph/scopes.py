"""Where arrays live, as ``graph.scope``: a view on the schedules, in which the locals of kernels have their places."""

from __future__ import annotations

from collections.abc import Callable, Iterator, MutableMapping
from typing import Any, NoReturn

from daceopt.errors import IllegalSchedule
from daceopt.ir.graph.dataflow_graph import DataflowGraph
from daceopt.ir.kernel.kernel_node import KernelNode
from daceopt.ir.schedule.schedule import Alloc, walk

GLOBAL = "global"  # arrays of the graph
_UNSCHEDULED = "thread"  # where the default schedule puts locals

_PUT: dict[str, Callable[[Any, KernelNode, str, str], None]] = {}


def puts(function: Callable[[Any, KernelNode, str, str], None]) -> Callable[[Any, KernelNode, str, str], None]:
    """Register what changes the place of a local, ``function(graph, kernel, array, scope)``.

    It checks schedules, and so is above graphs.
    """
    _PUT["locals"] = function
    return function


class Scopes(MutableMapping[str, str]):
    """Array -> ``global`` for arrays of the graph; ``register``, ``thread``, ``shared`` or ``spread`` for locals of its
    kernels.

    A local's place is that in its kernel's schedule. Setting one raises IllegalSchedule, and changes nothing, with the
    size, the limit or the dependence that forbids it; KeyError for arrays that there are not.
    """

    def __init__(self, graph: DataflowGraph):
        self._graph = graph

    def __getitem__(self, array: str) -> str:
        if self._graph.has(array):
            return GLOBAL
        tree = self._kernel(array).kernel.schedule
        scopes = (n.scope for n, _ in walk(tree) if isinstance(n, Alloc) and n.array == array) if tree else iter(())
        return next(scopes, _UNSCHEDULED)

    def __setitem__(self, array: str, scope: str) -> None:
        if self._graph.has(array) and scope != GLOBAL:
            reason = (
                "an array of the graph, which lives in global memory; stage it in a local (ir/edits/kernel_edits.py)"
            )
            raise IllegalSchedule(f"{array} in {scope}: it is {reason}")
        if not self._graph.has(array):
            _PUT["locals"](self._graph, self._kernel(array), array, scope)

    def __delitem__(self, array: str) -> NoReturn:
        raise TypeError(f"{array} always lives somewhere; set its scope instead")

    def __iter__(self) -> Iterator[str]:
        yield from self._graph.arrays()
        yield from self._graph.locals

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __repr__(self) -> str:
        return f"Scopes({dict(self)})"

    def _kernel(self, array: str) -> KernelNode:
        node = self._graph.locals.get(array)
        if node is None:
            raise KeyError(f"there is no array {array}, neither in the graph nor in a kernel of it")
        return node
