"""Appends to an SDFG in the order of execution: states, and control flow around them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import dace
from dace.properties import CodeBlock
from dace.sdfg.state import BreakBlock, ConditionalBlock, ControlFlowRegion, LoopRegion, SDFGState
from dace.symbolic import symstr

from daceopt.codegen.frame_walk import CountedLoop
from daceopt.ir.scalar.dims import Dim

_ENDLESS = str(2**63 - 1)


class SdfgFlow:
    """The end of an SDFG under construction; see :class:`daceopt.codegen.frame_walk.FrameFlow`. Text is as DaCe reads
    it: Python over symbols and arrays."""

    def __init__(self, sdfg: dace.SDFG):
        self._sdfg, self._graph = sdfg, sdfg
        self._block: Any = None  # the last block of ``_graph``
        self._assignments: dict[str, str] = {}  # on the edge to the next block
        self._blocks = 0
        self.fresh()

    def size(self, extent: Dim) -> str:
        """An extent, stride or offset."""
        return symstr(extent)

    def declare(self, counter: str) -> None:
        """Let there be a symbol of this name."""
        if counter not in self._sdfg.symbols:
            self._sdfg.add_symbol(counter, dace.int64)

    def fresh(self) -> SDFGState:
        """A state for what the caller adds to it, to run after everything before it."""
        state = SDFGState(self._label("main"), self._sdfg)
        # without it DaCe inspects the whole Python call stack for each access node
        state.set_default_lineinfo(dace.dtypes.DebugInfo(0))
        self._append(state)
        return state

    def assign(self, values: Mapping[str, str]) -> None:
        """Set symbols, from expressions that may read elements of arrays."""
        if self._assignments or self._block is None:
            self.fresh()
        self._assignments = dict(values)

    @contextmanager
    def loop(self, loop: CountedLoop) -> Iterator[None]:
        """See :class:`daceopt.codegen.frame_walk.FrameFlow`."""
        counter, trips, test, first, descending = loop
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
        """See :class:`daceopt.codegen.frame_walk.FrameFlow`."""
        block = ConditionalBlock(self._label("if"), self._sdfg, self._graph)
        self._append(block)

        def branch(is_then: bool) -> AbstractContextManager[None]:
            region = ControlFlowRegion(self._label("then" if is_then else "otherwise"), self._sdfg)
            block.add_branch(CodeBlock(condition) if is_then else None, region)
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
        self._graph, self._block = region, None
        yield
        if self._assignments or self._block is None:
            self.fresh()
        self._graph, self._block = outer

    def _append(self, block: dace.sdfg.state.ControlFlowBlock) -> None:
        self._graph.add_node(block, is_start_block=self._block is None)
        if self._block is not None:
            self._graph.add_edge(self._block, block, dace.InterstateEdge(assignments=self._assignments))
        self._block, self._assignments = block, {}

    def _label(self, stem: str) -> str:
        self._blocks += 1
        return f"{stem}_{self._blocks}" if self._blocks > 1 else stem
