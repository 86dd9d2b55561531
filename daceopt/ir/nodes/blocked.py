"""Images in blocks of channels: (N, C, spatial...) stored as an array (N, C/b, spatial..., b) in rows, b = ``BLOCK``.

No strides say that, so such an array has one dimension more than the image, and what reads and writes it says so:
kernels by their indices, convolutions by the rank of their operands (``nodes.library``).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import dace
import numpy as np
import sympy

from daceopt.ir.graph.graph import Graph
from daceopt.ir.graph.kinds import Node
from daceopt.ir.kernel.kernel import Access, Kernel, Stage
from daceopt.ir.kernel.kernel_node import KernelNode
from daceopt.ir.kernel.tasklet import Assignment
from daceopt.ir.nodes.library import IMAGES, Convolution, ConvolutionBackwardData, ConvolutionBackwardWeights
from daceopt.ir.scalar.dims import Dim, Shape, dim
from daceopt.ir.scalar.scalar import symbol
from daceopt.ir.scalar.symbols import Parameter, param
from daceopt.system import vector_bits

BLOCK = 16 if vector_bits() == 512 else 8
"""Channels that are together: a vector of float32, as oneDNN's kernels for this CPU have them; others it copies."""

CONVOLUTIONS = (Convolution, ConvolutionBackwardData, ConvolutionBackwardWeights)
_RANKS = (3, 4, 5)


def blocked_shape(shape: Sequence[Dim]) -> Shape:
    """That of an image in blocks: ``shape`` is (N, C, spatial...), C a multiple of ``BLOCK``."""
    count, channels, *spatial = shape
    return (count, channels // BLOCK, *spatial, BLOCK)


def image_shape(shape: Sequence[Dim]) -> Shape:
    """The shape of an image that is in blocks as ``shape`` says."""
    count, blocks, *spatial, inside = shape
    return (count, blocks * inside, *spatial)


def shape_of(graph: Graph, node: Node, connector: str) -> Shape:
    """The shape of the image that a convolution reads or writes there, in blocks or not."""
    shape = graph.shape(node.operands(graph)[connector])
    return image_shape(shape) if connector in node.blocked_connectors(graph) else shape


def unpack(value: np.ndarray) -> np.ndarray:
    """The image of which the values are in blocks."""
    return np.moveaxis(value, -1, 2).reshape(image_shape(value.shape))


def pack(value: np.ndarray) -> np.ndarray:
    """The values of an image, in blocks."""
    count, channels, *spatial = value.shape
    return np.moveaxis(value.reshape(count, channels // BLOCK, BLOCK, *spatial), 2, -1)


def why_not(graph: Graph, name: str) -> str | None:
    """Why the array ``name`` cannot be in blocks; readers that cannot follow would get a copy."""
    shape = graph.shape(name)
    if len(shape) not in _RANKS or graph.dtype(name) != dace.float32:
        return f"{name} is no image of float32: {graph.dtype(name)} of shape {shape}"
    if not isinstance(shape[1], int) or shape[1] % BLOCK or not shape[1]:
        return f"{name} has {shape[1]} channels; expected a multiple of {BLOCK}"
    if graph.is_view(name) or graph.is_part(name) or graph.parts_of(name):
        return f"{name} is a view or a part, or consists of parts"
    if graph.is_given(name) or name in graph.outputs:
        return f"{name} has the layout that its user expects"
    writer = graph.producer(name)
    if writer is not None and not follows(graph, writer, name):
        return f"what writes {name} writes no blocks"
    return None


def follows(graph: Graph, node: Node, name: str) -> bool:
    """Can ``node``, which reads or writes the image ``name``, do so in blocks?"""
    if isinstance(node, CONVOLUTIONS):
        own = {c for c, n in node.operands(graph).items() if n == name}
        return own <= IMAGES and len(graph.shape(name)) == node.spatial(graph) + 2
    kernel = _plain(graph, node) if isinstance(node, KernelNode) else None
    return kernel is not None and all(
        lane(a, kernel, graph.shape(name)) is not None for a in kernel_accesses(kernel) if a.array == name
    )


def followers(graph: Graph, name: str) -> list[Node]:
    """The readers of the image ``name`` that can read blocks; those of views cannot."""
    return [node for node in graph.consumers(name) if follows(graph, node, name)]


def needs_copy(graph: Graph, name: str) -> bool:
    """Has the image ``name`` readers that cannot read blocks?"""
    return bool(graph.views_of(name)) or any(not follows(graph, node, name) for node in graph.consumers(name))


class _Lane(NamedTuple):
    """The loop through the channels of an image: one over all of them, or, with ``inner``, over blocks and inside."""

    outer: Parameter
    inner: Parameter | None


def lane(access: Access, kernel: Kernel, shape: Shape) -> _Lane | None:
    """The loop in which ``access`` goes through the channels of an image of ``shape``; None where that is no loop over
    all of them."""
    if len(access.index) != len(shape) or None in access.index:
        return None
    index = access.index[1]
    if isinstance(index, Parameter):
        return _Lane(index, None) if kernel.extents[index] == shape[1] else None
    if not isinstance(index, sympy.Add) or len(index.args) != 2:
        return None
    inner = next((p for p in index.args if isinstance(p, Parameter) and kernel.extents[p] == BLOCK), None)
    outer = None if inner is None else (index - inner) / BLOCK
    return _Lane(outer, inner) if isinstance(outer, Parameter) and kernel.extents[outer] * BLOCK == shape[1] else None


def _plain(graph: Graph, node: KernelNode) -> Kernel | None:
    """The kernel at ``node``, if its loops are not scheduled yet."""
    kernel = node.kernel
    return kernel if kernel.schedule is None and not kernel.is_tiled else None


# -------------------------------------------------------------------- the edit


def block(graph: Graph, names: Collection[str]) -> dict[str, str]:
    """Store the images ``names`` in blocks; returns the new arrays by the old ones. None of them has a reason
    :func:`why_not`, but that it may be an input whose giver stores it so from now on. Readers that cannot follow read a
    copy in the old layout."""
    layouts = {name: _declare(graph, name) for name in names}
    users: dict[Node, None] = {}
    for name, stored in layouts.items():
        writer, readers = graph.producer(name), followers(graph, name)
        users |= dict.fromkeys([*([writer] if writer is not None else ()), *readers])
        if needs_copy(graph, name):
            _leave_copy(graph, name, stored, readers)
    kernels = [_rewrite_kernel(graph, node, layouts) for node in users if isinstance(node, KernelNode)]
    for node in users:
        if not isinstance(node, KernelNode):
            _rewrite_call(graph, node, layouts)
    graph.saved, graph.inputs = ([layouts.get(n, n) for n in names] for names in (graph.saved, graph.inputs))
    for name in layouts:
        graph.drop(name)
    _split_neighbours(graph, kernels)
    return layouts


def _declare(graph: Graph, name: str) -> str:
    """The array that takes the place of ``name``, with all that is known of it."""
    hint, shape = graph.source.names.get(name, name), blocked_shape(graph.shape(name))
    with graph.label_nodes(origins=graph.origins.get(name, ())):
        new = graph.add_array(hint, shape, graph.dtype(name))
    if name in graph.apart:
        graph.apart[new] = graph.apart[name]
    return new


def _leave_copy(graph: Graph, name: str, stored: str, followers: Sequence[Node]) -> None:
    """Let all readers of ``name`` but ``followers`` read a copy of what is ``stored`` in blocks."""
    saved, shape = list(graph.saved), graph.shape(name)
    twin = graph.add_array(name, shape, graph.dtype(name), graph.strides(name))
    graph.replace_uses(name, twin, keep=followers)
    graph.saved = saved
    loops = tuple(param(k) for k in range(len(shape) + 1))
    outer, inner = loops[:-1], loops[-1]
    value, result = (symbol(s, graph.dtype(name)) for s in ("in0", "out0"))
    stage = Stage(
        loops,
        {"in0": Access(stored, loops)},
        {"out0": Access(twin, (outer[0], BLOCK * outer[1] + inner, *outer[2:]))},
        (Assignment(result, value, graph.dtype(name)),),
    )
    graph.add_kernel(Kernel("out_of_blocks", dict(zip(loops, blocked_shape(shape))), [stage]))


def _rewrite_call(graph: Graph, node: Node, stored: dict[str, str]) -> None:
    reads, writes = graph.reads(node), graph.writes(node)
    graph.remove(node)
    reads, writes = ({c: stored.get(n, n) for c, n in side.items()} for side in (reads, writes))
    graph.add_node(node, reads, writes)


def _rewrite_kernel(graph: Graph, node: KernelNode, stored: Mapping[str, str]) -> KernelNode:
    """Let the kernel read and write blocks; returns its new node."""
    kernel = node.kernel
    lane_of = {a: lane(a, kernel, graph.shape(a.array)) for a in kernel_accesses(kernel) if a.array in stored}
    lanes = {a: own for a, own in lane_of.items() if own is not None}
    graph.remove(node)
    return graph.add_kernel(
        _Split(kernel, [own.outer for own in lanes.values() if own.inner is None]).kernel(stored, lanes)
    )


class _Split:
    """A kernel in which loops over channels become one over blocks, where they are, and one inside of them, the
    innermost."""

    def __init__(self, kernel: Kernel, loops: Iterable[Parameter]):
        self._kernel, split = kernel, dict.fromkeys(loops)
        count = len(kernel.extents)
        self._names = {p: param(k) for k, p in enumerate(kernel.extents)}
        self._inside = {p: param(count + k) for k, p in enumerate(split)}
        self._values: dict[sympy.Symbol, sympy.Expr] = dict(self._names)
        self._values |= {p: BLOCK * self._names[p] + inner for p, inner in self._inside.items()}

    def kernel(self, stored: Mapping[str, str], lanes: Mapping[Access, _Lane]) -> Kernel:
        """``stored``: the arrays that have become others, ``lanes`` how they are accessed."""
        kernel = self._kernel
        stages = []
        for stage in kernel.stages:
            reads, writes = (
                {c: self._move(a, stored, lanes) for c, a in side.items()} for side in (stage.reads, stage.writes)
            )
            stages.append(replace(stage.subs(self._values, self._over(stage.params)), reads=reads, writes=writes))
        extents = {self._names[p]: dim(n // BLOCK) if p in self._inside else n for p, n in kernel.extents.items()}
        extents |= dict.fromkeys(self._inside.values(), BLOCK)
        return Kernel(kernel.label, extents, stages, self._over(kernel.outer), kernel.locals)

    def _over(self, params: Sequence[sympy.Symbol]) -> tuple[sympy.Symbol, ...]:
        return (*(self._names[p] for p in params), *(self._inside[p] for p in params if p in self._inside))

    def _move(self, access: Access, stored: Mapping[str, str], lanes: Mapping[Access, _Lane]) -> Access:
        own, new = lanes.get(access), access.subs(self._values)
        if own is None:
            return new
        inner = self._inside[own.outer] if own.inner is None else self._names[own.inner]
        index = (new.index[0], self._names[own.outer], *new.index[2:], inner)
        return replace(new, array=stored[access.array], index=index)


# -------------------------------------------------------------------- kernels beside those that were split


def _split_neighbours(graph: Graph, nodes: Sequence[KernelNode]) -> None:
    """Split the loops of kernels that exchange images with kernels that are split: only equal loops can be fused."""
    waiting = list(nodes)
    while waiting:
        node = waiting.pop()
        kernel = node.kernel
        shared = dict.fromkeys(a.array for a in kernel_accesses(kernel) if _is_split_image(graph, kernel, a))
        for neighbour in dict.fromkeys(n for array in shared for n in _beside(graph, array) if n is not node):
            other = _plain(graph, neighbour)
            own = [] if other is None else _whole_lanes(graph, other, shared)
            if other is not None and own:
                graph.remove(neighbour)
                waiting.append(graph.add_kernel(_Split(other, own).kernel({}, {})))


def _is_split_image(graph: Graph, kernel: Kernel, access: Access) -> bool:
    """Is it an image, no number for each channel, whose channels the kernel walks in blocks?"""
    if access.array in kernel.locals or graph.is_view(access.array):
        return False
    shape = graph.shape(access.array)
    own = lane(access, kernel, shape) if len(shape) in _RANKS and any(n != 1 for n in shape[2:]) else None
    return own is not None and own.inner is not None


def _beside(graph: Graph, array: str) -> list[KernelNode]:
    """The kernels that write and read ``array``, where it is one that writes it."""
    writer = graph.producer(array)
    if not isinstance(writer, KernelNode):
        return []
    return [writer, *(n for n in graph.consumers(array) if isinstance(n, KernelNode))]


def _whole_lanes(graph: Graph, kernel: Kernel, arrays: Collection[str]) -> list[Parameter]:
    """The loops over all channels of ``arrays``."""
    lanes = (lane(a, kernel, graph.shape(a.array)) for a in kernel_accesses(kernel) if a.array in arrays)
    return [own.outer for own in lanes if own is not None and own.inner is None]


def kernel_accesses(kernel: Kernel) -> list[Access]:
    """What the statements read and write."""
    return [a for s in kernel.stages for a in (*s.reads.values(), *s.writes.values())]
