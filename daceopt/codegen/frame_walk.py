"""The nodes of a graph in the order in which its frame runs them, regions as loops and branches around their bodies."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import NamedTuple, Protocol

import dace
from dace import nodes

from daceopt.codegen.regions import FrameBuffer, Scope, odd, slot
from daceopt.errors import Unsupported
from daceopt.ir.control.region import CONDITION, TRIPS, Conditional, Repeat
from daceopt.ir.graph.graph import Graph
from daceopt.ir.kernel.kernel_node import KernelNode
from daceopt.ir.scalar.dims import Dim, dim


class CountedLoop(NamedTuple):
    """``for counter in range(trips)``, or the same counting down; stops before an iteration for which ``test`` does not
    hold (it is called where code that it needs may be added, once); ``first`` is assigned at the begin of each
    iteration. An ascending ``counter`` is left at the number of iterations made.
    """

    counter: str
    trips: str | None
    test: Callable[[], str] | None
    first: Mapping[str, str]
    descending: bool = False


class FrameFlow(Protocol):
    """The end of a frame under construction. Conditions and values are text over counters, sizes and elements of
    buffers."""

    def size(self, extent: Dim) -> str:
        """An extent, stride or offset as text."""

    def declare(self, counter: str) -> None:
        """Let there be an int64 of this name."""

    def assign(self, values: Mapping[str, str]) -> None:
        """Set what is declared."""

    def loop(self, loop: CountedLoop) -> AbstractContextManager[None]:
        """What is added inside is its body."""

    def branches(self, condition: str) -> AbstractContextManager[Callable[[bool], AbstractContextManager[None]]]:
        """Gives ``branch(taken)``, in which the code of either case is added; that for True comes first."""


class FrameWalk(ABC):
    """Adds each node of a graph to a flow. Library nodes must be C++ tasklets over whole arrays by now; any other node
    raises Unsupported."""

    def __init__(self, graph: Graph, flow: FrameFlow):
        self._scope = Scope(graph)
        self._flow = flow

    @abstractmethod
    def _kernel(self, node: KernelNode) -> None: ...

    @abstractmethod
    def _library_call(self, node: nodes.Tasklet) -> None: ...

    @abstractmethod
    def _move(self, name: str, buffer: FrameBuffer, offset: Dim, *, into: bool) -> None:
        """Copy the row-major array ``name`` into a carried buffer, ``offset`` elements behind its begin, or back."""

    @abstractmethod
    def _check(self, node: Repeat, test: Callable[[], str] | None) -> None:
        """Report a loop whose number of iterations is not the extent of its outputs."""

    @abstractmethod
    def _value(self, buffer: FrameBuffer, index: str) -> str:
        """An element of a buffer as control flow reads it, here and now."""

    def _element(self, name: str) -> str:
        """The only element of an array, as control flow reads it."""
        buffer, offset = self._scope.place(name)
        return self._value(buffer, self._flow.size(offset))

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

    def _conditional(self, node: Conditional) -> None:
        scope = self._scope
        with self._flow.branches(self._element(scope.graph.reads(node)[CONDITION])) as branch:
            for k, body in enumerate(scope.inner[node].scopes):
                with branch(k == 0):
                    self._add_body(body)

    def _add_body(self, body: Scope) -> None:
        with self._inside(body):
            for node in body.graph.nodes():
                self._add(node)

    @contextmanager
    def _inside(self, body: Scope) -> Iterator[None]:
        outer, self._scope = self._scope, body
        yield
        self._scope = outer

    def _repeat(self, node: Repeat) -> None:
        inner, counter, half = self._scope.inner[node], str(node.counter), str(odd(node))
        for name in (counter, half):
            self._flow.declare(name)
        for buffer, carried in zip(inner.carried, node.carried):
            self._move(self._scope.graph.reads(node)[carried.initial], buffer, 0, into=True)
        test = None
        if node.condition is not None:
            flag = inner.carried[node.condition]
            test = partial(self._value, flag, f"({counter} % 2) * {self._flow.size(slot(flag))}")
        trips = self._trips(node)
        iteration = f"({trips}) - 1 - {counter}" if node.descending else counter
        loop = CountedLoop(counter, trips, test, {half: f"({iteration}) % 2"}, node.descending)
        with self._flow.loop(loop):
            self._add_body(inner.scopes[0])
        self._flow.assign({half: f"({iteration}) % 2"})
        for buffer, carried in zip(inner.carried, node.carried):
            if carried.final is not None:
                final = self._scope.graph.writes(node)[carried.final]
                self._move(final, buffer, dim(odd(node) * slot(buffer)), into=False)
        if node.is_checked:
            self._check(node, test)

    def _trips(self, node: Repeat) -> str | None:
        """The number of iterations; None when nothing but the condition ends them."""
        limit = None if node.limit is None else self._flow.size(node.limit)
        if node.trips is not None:
            trips = self._flow.size(node.trips)
            return trips if limit in (None, trips) else f"min({trips}, {limit})"
        operand = self._scope.graph.reads(node).get(TRIPS)
        if operand is None:
            return limit
        count = self._variable(f"{node.counter}_trips", self._element(operand))
        return count if limit is None else self._variable(f"{node.counter}_bound", f"min({count}, {limit})")

    def _variable(self, name: str, value: str) -> str:
        self._flow.declare(name)
        self._flow.assign({name: value})
        return name
