"""What the layouts of a graph's arrays cost: reorders inside of library calls, and kernels that walk across memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import sympy

from daceopt.cost.kernel_time import KernelTimes
from daceopt.cost.planned_kernel import access_bytes
from daceopt.ir.access.dataflow import walk
from daceopt.ir.data import parts, views
from daceopt.ir.graph.graph import Graph
from daceopt.ir.graph.kinds import Node
from daceopt.ir.kernel.kernel import Access, Kernel, Stage
from daceopt.ir.kernel.kernel_node import KernelNode
from daceopt.ir.nodes import blocked, library
from daceopt.ir.nodes.blocked import CONVOLUTIONS
from daceopt.ir.nodes.quantized import QuantizedConvolution
from daceopt.ir.scalar.dims import Dim, Shape, dim, row_major
from daceopt.libs.convolution_times import times
from daceopt.transformations.layout._layout_program import LayoutProblem, NodeAccesses, Walked
from daceopt.transformations.local._epilogues import Epilogue, extract, reader_of

POOLS = (library.Pool, library.PoolBackward)
LAST, _BLOCKED = "last", "blocked"
_ALONE: tuple[int | None, ...] = (None,)
_TRAINED: tuple[int | None, ...] = (0, 1, 2)  # a forward pass decides for the backward passes, which read what it saved

# in times that an array takes to be walked along its memory, as measured (docs/decisions/037-layout-search.md)
_REORDER = 3.0  # a call that copies an operand into another layout
_CROSSED = 2.5  # more, for an array that a kernel walks across
_MIXED = 0.3  # of that, for an image that is in blocks where others do not
_POOL = 1.0  # more, for a pool of images whose channels are not innermost
_DOUBT = 1.02  # times as long as measured, for layouts that have to win by more than noise
_CHANGE = 1e-3  # more, for another layout than an array has: where both cost the same, it keeps its own


def channels_last_strides(shape: Shape) -> Shape:
    """Strides of (N, C, spatial...) stored as (N, spatial..., C)."""
    _, channels, *spatial = shape
    inner = row_major((*spatial, channels))
    return (dim(inner[0] * spatial[0]) if spatial else channels, 1, *inner[:-1])


class ArrayLayouts(NamedTuple):
    """A buffer in its two layouts: strides of the array, its parts and its views, by name; the second is channels
    last. ``own``: the one that it has."""

    strides: tuple[dict[str, Shape], dict[str, Shape]]
    own: int


def layouts_of(graph: Graph, name: str) -> ArrayLayouts | None:
    """The layouts that a buffer may have; None where it is no image, is given from outside, or a view of it, or a node
    that wants rows, could not follow."""
    shape, strides = graph.shape(name), graph.strides(name)
    if len(shape) < 3 or not graph.is_transient(name):
        return None
    last = channels_last_strides(shape)
    other = row_major(shape) if strides == last else last
    members = parts.within(graph, name)
    users = [*graph.producers(name), *(r for m in members for r in graph.all_consumers(m))]
    if any(getattr(n, "wants_rows", False) for n in users):
        return None
    strides_of: dict[str, Shape] = {}
    try:
        for member in members:
            moved = views.follow(graph, member, graph.strides(member), other)
            strides_of |= {member: other, **{view: layout[0] for view, layout in moved.items()}}
    except ValueError:
        return None
    now = {n: graph.strides(n) for n in strides_of}
    return ArrayLayouts((strides_of, now), 1) if strides == last else ArrayLayouts((now, strides_of), 0)


@dataclass
class Reading:
    """The layouts of all arrays of a graph as a problem: those of each array that may change, which of them may also
    stand in ``blocks``, their third layout, and the ``calls`` of convolutions whose times are known."""

    problem: LayoutProblem
    known: dict[str, ArrayLayouts]
    blocks: frozenset[str]
    calls: dict[Node, NodeAccesses]


def read(graph: Graph, measured: bool = False) -> Reading:
    """Of two layouts; or, with convolutions as measured, of three: arrays that no node writes stay as they are then."""
    roots = dict.fromkeys(graph.root(n)[0] for n in graph.arrays() if len(graph.shape(n)) >= 3)
    if measured:
        roots = {n: None for n in roots if graph.producers(n)}
    layouts_by_root = {name: layouts for name in roots if (layouts := layouts_of(graph, name)) is not None}
    blocks = frozenset(n for n in layouts_by_root if measured and blocked.why_not(graph, n) is None)
    reading = _Reading(graph, layouts_by_root, blocks, measured)
    for node in graph.nodes():
        reading.add(node)
    return Reading(reading.problem, layouts_by_root, blocks, reading.calls)


class _Reading:
    """Collects what each node of the graph wants."""

    def __init__(self, graph: Graph, layouts_by_root: dict[str, ArrayLayouts], blocks: frozenset[str], measured: bool):
        self._graph, self._known, self._blocks, self._times = graph, layouts_by_root, blocks, KernelTimes(graph)
        self._passes = _TRAINED if graph.saved and any(map(graph.producers, graph.saved)) else _ALONE
        self._measured = measured
        self.calls: dict[Node, NodeAccesses] = {}
        self.problem = LayoutProblem(cost={name: self._changing(name) for name in layouts_by_root})

    def _changing(self, name: str) -> tuple[float, ...]:
        """Of an array in each of its layouts, whoever uses it."""
        seconds = self._seconds(name)
        both = (0.0, _CHANGE * (1 - 2 * self._known[name].own) * seconds)
        copied = _REORDER if name in self._blocks and blocked.needs_copy(self._graph, name) else 0.0
        return (*both, (copied + 2 * _CHANGE) * seconds) if name in self._blocks else both

    def add(self, node: Node) -> None:
        if isinstance(node, KernelNode):
            self._add_kernel(node)
        elif isinstance(node, CONVOLUTIONS):
            self._add_convolution(node)
            self._add_epilogue(node)
        elif isinstance(node, QuantizedConvolution):
            self._want((node.operands(self._graph)[c] for c in "XY"), _REORDER, self._is_last)
        elif isinstance(node, POOLS):
            self._want(node.operands(self._graph).values(), _POOL, _has_channels_inside)
        else:
            names = (*self._graph.inputs_of(node), *self._graph.outputs_of(node))
            self._want((n for n in names if n is not None), _REORDER, _has_rows)

    def _add_convolution(self, node: Node) -> None:
        """It copies operands that are not in the layout in which it works: channels last, where nothing is known."""
        images = {c: n for c, n in node.operands(self._graph).items() if c in library.IMAGES}
        stored = node.blocked_connectors(self._graph)
        measured = times(node, self._graph, self._passes) if self._measured else None
        if measured is None:
            self._want((n for c, n in images.items() if c not in stored), _REORDER, self._is_last, in_blocks=False)
            return
        modes = measured._asdict()
        accesses = [
            Walked(self._graph.root(n)[0], self._modes(n, c in stored), _REORDER * len(self._passes) * self._seconds(n))
            for c, n in images.items()
        ]
        self.calls[node] = NodeAccesses(accesses, modes | {_BLOCKED: modes[_BLOCKED] * _DOUBT})
        self.problem.walks.append(self.calls[node])

    def _add_epilogue(self, node: Node) -> None:
        """What a convolution does in registers is no pass over memory, where the result has the layout of the sums."""
        reader = reader_of(self._graph, node) if isinstance(node, library.Convolution) else None
        epilogue = None if reader is None else extract(self._graph, node, reader)
        if not isinstance(epilogue, Epilogue) or (epilogue.activation and self._graph.saved):
            return
        images = [self._graph.writes(node)["Y"], *self._graph.outputs_of(reader)]
        images += [epilogue.residual] if epilogue.residual else []
        seconds = sum(self._seconds(n) for n in images)
        accesses = [Walked(self._graph.root(n)[0], self._modes(n, False), seconds) for n in images]
        self.problem.walks.append(NodeAccesses(accesses))

    def _modes(self, name: str, is_blocked: bool) -> tuple[str, ...]:
        """The layout in which a library takes the image ``name`` as it is, in each layout of its array."""
        root, shape, strides = self._graph.root(name)[0], self._graph.shape(name), self._graph.strides(name)
        if is_blocked:
            return (_BLOCKED,)
        if root not in self._known:
            return (_mode(shape, strides),)
        modes = tuple(_mode(shape, layout.get(name, strides)) for layout in self._known[root].strides)
        if root not in self._blocks:
            return modes
        return (*modes, _BLOCKED if name == root else modes[self._known[root].own])  # views read a copy

    def _want(
        self,
        names: Iterable[str],
        factor: float,
        suits: Callable[[str, Shape], bool],
        in_blocks: bool | None = None,
    ) -> None:
        """A call takes longer for the operands whose strides do not suit it: it copies them, or walks across. What is
        in blocks suits it as ``in_blocks`` says; None: it reads a copy."""
        for name in names:
            root = self._graph.root(name)[0]
            if root not in self._known:
                continue
            suited_by = [suits(name, layout.get(name, ())) for layout in self._known[root].strides]
            if root in self._blocks:
                suited_by.append(suited_by[self._known[root].own] if in_blocks is None else in_blocks)
            seconds = factor * self._seconds(name)
            cost = zip(self.problem.cost[root], suited_by)
            self.problem.cost[root] = tuple(own + (suited_by[0] - suited) * seconds for own, suited in cost)

    def _is_last(self, name: str, strides: Shape) -> bool:
        """A slice of channels is none, although they are innermost: there are gaps between its pixels."""
        return strides == channels_last_strides(self._graph.shape(name))

    def _seconds(self, name: str) -> float:
        """To move all of an array."""
        nbytes = self._times.number(self._graph.size(name)) * self._graph.dtype(name).bytes
        return self._times.machine.seconds(nbytes, 0, threads=self._times.machine.cores)

    # ---------------------------------------------------------------- kernels

    def _add_kernel(self, node: KernelNode) -> None:
        kernel = node.kernel
        for stage in kernel.stages:
            walks = [w for a in _accesses(kernel, stage) if (w := self._walk(kernel, stage, a)) is not None]
            if any(len(set(w.modes)) > 1 for w in walks):
                self.problem.walks.append(NodeAccesses(walks))
            mixed = [
                replace(w, modes=k, seconds=w.seconds * _MIXED) for w, k in zip(walks, map(self._kinds, walks)) if k
            ]
            if len(mixed) > 1:
                self.problem.walks.append(NodeAccesses(mixed))

    def _kinds(self, access: Walked) -> tuple[bool, ...]:
        """Whether an image is in blocks, in each of its layouts; nothing for what is no image of several pixels."""
        root = access.array
        if root in self._blocks and any(n != 1 for n in self._graph.shape(root)[2:]):
            return (False, False, True)
        return ()

    def _walk(self, kernel: Kernel, stage: Stage, access: Access) -> Walked | None:
        graph, root = self._graph, self._graph.root(access.array)[0]
        nbytes = access_bytes(graph, kernel, stage, access, self._times.number)
        strides = graph.strides(access.array)
        both = self._known[root].strides if root in self._known else ()
        steps = [layout.get(access.array, strides) for layout in both] or [strides, strides]
        loops = [_side_by_side(access, s) for s in steps]
        if root in self._blocks:
            lane = blocked.lane(access, kernel, graph.shape(root)) if access.array == root else None
            loops.append(loops[self._known[root].own] if lane is None else lane.inner or lane.outer)
        if None in loops:
            return None
        seconds = _CROSSED * self._times.machine.seconds(nbytes, 0, threads=self._times.machine.cores)
        return Walked(root, tuple(loops), seconds)


def _mode(shape: Shape, strides: Shape) -> str:
    """The layout of an image of these strides; "" where it is none that a library takes."""
    if strides == channels_last_strides(shape):
        return LAST
    return "first" if strides == row_major(shape) else ""


def _has_channels_inside(name: str, strides: Shape) -> bool:
    return len(strides) > 1 and strides[1] == 1


def _has_rows(name: str, strides: Shape) -> bool:
    """Products take contiguous rows or columns, and copy others; of most other nodes nobody knows more."""
    return 1 in strides[-2:]


def _accesses(kernel: Kernel, stage: Stage) -> list[Access]:
    """What is read and written in memory, each once."""
    accesses = [*stage.reads.values(), *stage.writes.values()]
    return [a for k, a in enumerate(accesses) if a.array not in kernel.locals and a not in accesses[:k]]


def _side_by_side(access: Access, strides: Sequence[Dim]) -> sympy.Symbol | None:
    """The loop along which neighbours in memory are accessed; None where none is, or nobody knows."""
    position = walk(access.index, strides).position
    return next((p for p, step in position.terms if step in (1, -1)), None) if position.is_exact else None
