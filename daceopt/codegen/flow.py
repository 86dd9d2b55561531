"""Appends to an SDFG in the order of execution: code into the open state, control flow between states."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import dace
from dace import nodes
from dace.memlet import Memlet
from dace.properties import CodeBlock
from dace.sdfg.state import BreakBlock, ConditionalBlock, ControlFlowRegion, LoopRegion, SDFGState

_ENDLESS = str(2**63 - 1)


class FrameFlow:
    """The end of a program under construction. Expressions are text as DaCe reads it: Python over symbols, arrays."""

    def __init__(self, sdfg: dace.SDFG):
        self._sdfg, self._graph = sdfg, sdfg
        self._block: Any = None  # the last block of ``_graph``
        self._state: SDFGState | None = None  # that block, while code may still be added to it
        self._last: nodes.Node | None = None
        self._assignments: dict[str, str] = {}  # on the edge to the next block
        self._blocks = 0
        self._open()

    def chain(self, node: nodes.Node) -> None:
        """Add ``node``, to run after everything before it."""
        state = self._state or self._open()
        state.add_node(node)
        if self._last is not None:
            state.add_edge(self._last, None, node, None, Memlet())
        self._last = node

    def fresh(self) -> SDFGState:
        """A state for what the caller adds to it, to run after everything before it."""
        state = self._open()
        self._state = None
        return state

    def assign(self, values: Mapping[str, str]) -> None:
        """Set symbols, from expressions that may read elements of arrays."""
        if self._assignments or self._block is None:
            self._open()
        self._state = None
        self._assignments = dict(values)

    @contextmanager
    def loop(
        self,
        counter: str,
        trips: str | None,
        test: Callable[[], str] | None,
        first: Mapping[str, str],
        descending: bool = False,
    ) -> Iterator[None]:
        """``for counter in range(trips)``, or the same counting down; stops before an iteration for which ``test`` does
        not hold (it is called where code that it needs may be added, once); ``first`` is assigned at the begin of each
        iteration. An ascending ``counter`` is left at the number of iterations made.
        """
        begin, goes_on, step = "0", f"< {trips or _ENDLESS}", "+ 1"
        if descending:
            begin, goes_on, step = f"({trips}) - 1", ">= 0", "- 1"
        region = LoopRegion(
            self._label("loop"),
            f"{counter} {goes_on}",
            counter,
            f"{counter} = {begin}",
            f"{counter} = {counter} {step}",
            sdfg=self._sdfg,
        )
        self._append(region)
        with self._within(region):
            if test is not None:
                self._break_unless(test())
            self.assign(first)
            yield

    @contextmanager
    def branches(self, condition: str) -> Iterator[Callable[[bool], AbstractContextManager[None]]]:
        """Gives ``branch(taken)``, in which the code of either case is added; that for True comes first."""
        block = ConditionalBlock(self._label("if"), self._sdfg, self._graph)
        self._append(block)

        def branch(taken: bool) -> AbstractContextManager[None]:
            region = ControlFlowRegion(self._label("then" if taken else "otherwise"), self._sdfg)
            block.add_branch(CodeBlock(condition) if taken else None, region)
            return self._within(region)

        yield branch

    def _break_unless(self, test: str) -> None:
        guard = ConditionalBlock(self._label("guard"), self._sdfg, self._graph)
        self._append(guard)
        stop = ControlFlowRegion(self._label("stop"), self._sdfg)
        guard.add_branch(CodeBlock(f"not ({test})"), stop)
        stop.add_node(BreakBlock(self._label("break")), is_start_block=True)

    @contextmanager
    def _within(self, region: ControlFlowRegion) -> Iterator[None]:
        outer = self._graph, self._block
        self._graph, self._block, self._state, self._last = region, None, None, None
        yield
        if self._assignments or self._block is None:
            self._open()
        self._graph, self._block = outer
        self._state, self._last = None, None

    def _open(self) -> SDFGState:
        state = SDFGState(self._label("main"), self._sdfg)
        # without it DaCe inspects the whole Python call stack for each access node
        state.set_default_lineinfo(dace.dtypes.DebugInfo(0))
        self._append(state)
        self._state, self._last = state, None
        return state

    def _append(self, block: Any) -> None:
        self._graph.add_node(block, is_start_block=self._block is None)
        if self._block is not None:
            self._graph.add_edge(self._block, block, dace.InterstateEdge(assignments=self._assignments))
        self._block, self._state, self._assignments = block, None, {}

    def _label(self, stem: str) -> str:
        self._blocks += 1
        return f"{stem}_{self._blocks}" if self._blocks > 1 else stem
