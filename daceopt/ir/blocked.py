"""Images in blocks of channels: (N, C, spatial...) stored as an array (N, C/16, spatial..., 16) in rows.

No strides say that, so such an array has one dimension more than the image, and what reads and writes it says so:
kernels by their indices, convolutions by the rank of their operands (``nodes.library``).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import dace
import numpy as np
import sympy

from daceopt.errors import Unsupported
from daceopt.ir.dims import Shape, dim
from daceopt.ir.graph import Graph
from daceopt.ir.kernel import Access, Kernel, Stage
from daceopt.ir.nodes.kinds import MapEntry, Node
from daceopt.ir.nodes.library import IMAGES, Convolution, ConvolutionBackwardData, ConvolutionBackwardWeights
from daceopt.ir.scalar import symbol
from daceopt.ir.symbols import Parameter, is_parameter, param
from daceopt.ir.tasklet import Assignment

BLOCK = 16  # channels that stand together: a vector of float32
CONVOLUTIONS = (Convolution, ConvolutionBackwardData, ConvolutionBackwardWeights)
_RANKS = (3, 4, 5)


def blocked_shape(shape: Sequence[Any]) -> Shape:
    """That of an image in blocks: ``shape`` is (N, C, spatial...), C a multiple of 16."""
    count, channels, *spatial = shape
    return (count, channels // BLOCK, *spatial, BLOCK)


def image_shape(shape: Sequence[Any]) -> Shape:
    """The shape of an image that stands in blocks as ``shape`` says."""
    count, blocks, *spatial, inside = shape
    return (count, blocks * inside, *spatial)


def shape_of(graph: Graph, node: Any, connector: str) -> Shape:
    """The shape of the image that a convolution reads or writes there, in blocks or not."""
    shape = graph.shape(node.operands(graph)[connector])
    return image_shape(shape) if connector in node.blocked(graph) else shape


def unpacked(value: np.ndarray) -> np.ndarray:
    """The image of which the values stand in blocks."""
    return np.moveaxis(value, -1, 2).reshape(image_shape(value.shape))


def packed(value: np.ndarray) -> np.ndarray:
    """The values of an image, in blocks."""
    count, channels, *spatial = value.shape
    return np.moveaxis(value.reshape(count, channels // BLOCK, BLOCK, *spatial), 2, -1)


def why_not(graph: Graph, name: str) -> str | None:
    """Why the array ``name`` cannot stand in blocks; readers that cannot follow would get a copy."""
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
    kernel = _plain(graph, node) if isinstance(node, MapEntry) else None
    return kernel is not None and all(
        lane(a, kernel, graph.shape(name)) is not None for s in kernel.stages for a in _accesses(s) if a.array == name
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
    if is_parameter(index):
        return _Lane(index, None) if kernel.extents[index] == shape[1] else None
    if not isinstance(index, sympy.Add) or len(index.args) != 2:
        return None
    inner = next((p for p in index.args if is_parameter(p) and kernel.extents[p] == BLOCK), None)
    outer = None if inner is None else (index - inner) / BLOCK
    return _Lane(outer, inner) if is_parameter(outer) and kernel.extents[outer] * BLOCK == shape[1] else None


def _plain(graph: Graph, entry: MapEntry) -> Kernel | None:
    """The kernel at ``entry``, if its loops are not scheduled yet."""
    try:
        kernel = Kernel.extract(graph, entry)
    except Unsupported:
        return None
    return kernel if kernel.schedule is None and not kernel.is_tiled else None


def _accesses(stage: Stage) -> list[Access]:
    return [*stage.reads.values(), *stage.writes.values()]


# -------------------------------------------------------------------- the edit


def block(graph: Graph, names: Collection[str]) -> dict[str, str]:
    """Store the images ``names`` in blocks; returns the new arrays by the old ones. None of them has a reason
    :func:`why_not`, but that it may be an input whose giver stores it so from now on. Readers that cannot follow read a
    copy in the old layout."""
    found = {name: _declared(graph, name) for name in names}
    users: dict[Node, None] = {}
    for name, stored in found.items():
        writer, readers = graph.producer(name), followers(graph, name)
        users |= dict.fromkeys([*([writer] if writer is not None else ()), *readers])
        if needs_copy(graph, name):
            _leave_copy(graph, name, stored, readers)
    for node in users:
        if isinstance(node, MapEntry):
            _rewrite_kernel(graph, node, found)
        else:
            _rewrite_call(graph, node, found)
    graph.saved, graph.inputs = ([found.get(n, n) for n in names] for names in (graph.saved, graph.inputs))
    for name in found:
        graph.drop(name)
    return found


def _declared(graph: Graph, name: str) -> str:
    with graph.made_for(origins=graph.origins.get(name, ())):
        given = graph.is_given(name)
        return graph.add_array(name, blocked_shape(graph.shape(name)), graph.dtype(name), transient=not given)


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
    Kernel("out_of_blocks", dict(zip(loops, blocked_shape(shape))), [stage]).emit(graph)


def _rewrite_call(graph: Graph, node: Any, stored: dict[str, str]) -> None:
    reads, writes = graph.reads(node), graph.writes(node)
    graph.remove(node)
    reads, writes = ({c: stored.get(n, n) for c, n in side.items()} for side in (reads, writes))
    graph.add_node(node, reads, writes)


def _rewrite_kernel(graph: Graph, entry: MapEntry, stored: dict[str, str]) -> None:
    """The loop over channels becomes one over blocks, where it was, and one inside of them, the innermost."""
    kernel = Kernel.extract(graph, entry)
    lanes = {
        a: lane(a, kernel, graph.shape(a.array)) for s in kernel.stages for a in _accesses(s) if a.array in stored
    }
    split = dict.fromkeys(own.outer for own in lanes.values() if own is not None and own.inner is None)
    order = [*kernel.extents, *(Parameter(f"{p}_inside") for p in split)]
    names = {p: param(k) for k, p in enumerate(order)}
    inside = {p: names[Parameter(f"{p}_inside")] for p in split}
    values: dict[Any, Any] = {p: BLOCK * names[p] + inside[p] if p in split else names[p] for p in kernel.extents}

    def moved(access: Access) -> Access:
        own, new = lanes.get(access), access.subs(values)
        if own is None:
            return new
        inner = inside[own.outer] if own.inner is None else names[own.inner]
        return replace(new, array=stored[access.array], index=(new.index[0], names[own.outer], *new.index[2:], inner))

    def over(params: Sequence[Any]) -> tuple[Any, ...]:
        return (*(names[p] for p in params), *(inside[p] for p in params if p in split))

    stages = []
    for stage in kernel.stages:
        new = stage.subs(values, over(stage.params))
        reads = {c: moved(a) for c, a in stage.reads.items()}
        writes = {c: moved(a) for c, a in stage.writes.items()}
        stages.append(replace(new, reads=reads, writes=writes))
    extents = {names[p]: dim(n // BLOCK) if p in split else n for p, n in kernel.extents.items()}
    extents |= dict.fromkeys(inside.values(), BLOCK)
    graph.remove(entry)
    Kernel(kernel.label, extents, stages, over(kernel.outer), dict(kernel.locals)).emit(graph)
