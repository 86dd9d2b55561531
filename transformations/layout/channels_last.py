"""Give image-like intermediates the channels-last layout that convolution libraries run fastest in."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from dace import nodes

from daceopt.ir import parts
from daceopt.ir.graph import Graph, Shape, dim, row_major
from daceopt.ir.nodes import library
from daceopt.passes.transform import NearMiss, Site, Transformation

_SEEDS = (library.Convolution, library.ConvolutionBackwardData, library.Pool, library.PoolBackward)


def channels_last_strides(shape: Shape) -> Shape:
    """Strides of (N, C, spatial...) stored as (N, spatial..., C)."""
    _, channels, *spatial = shape
    inner = row_major((*spatial, channels))
    return (dim(inner[0] * spatial[0]) if spatial else channels, 1, *inner[:-1])


@dataclass(frozen=True)
class ChannelsLast(Transformation):
    """Store the results of convolutions, and what is computed from them point by point, with channels innermost.

    before:  y: (N, C, H, W) strides (CHW, HW, W, 1) = Convolution(x, w)
    after:   y: (N, C, H, W) strides (HWC, 1, WC, C) = Convolution(x, w)

    Only strides change: shapes, indices and the graph's own inputs and outputs stay. Kernels follow the strides.
    """

    level: ClassVar[str] = "layout"

    def match(self, graph: Graph) -> Iterator[Site | NearMiss]:
        last: set[str] = {n for n in graph.arrays() if self._is_last(graph, n)}
        for node in graph.nodes():
            if not isinstance(node, (*_SEEDS, nodes.MapEntry)):
                continue
            inputs = [graph.root(n)[0] for n in graph.inputs_of(node) if n is not None]
            if not isinstance(node, _SEEDS) and not any(n in last for n in inputs):
                continue
            written = dict.fromkeys(graph.root(n)[0] for n in graph.outputs_of(node) if n is not None)
            outputs = [n for n in written if self._may_change(graph, n)]
            last.update(outputs)
            found = {n: channels_last_strides(graph.shape(n)) for n in outputs}
            found = {n: s for n, s in found.items() if s != graph.strides(n)}
            if found:
                yield Site(graph, (node,), found)

    def apply(self, site: Site) -> None:
        for name, strides in site.found.items():
            site.graph.set_strides(name, strides)

    @staticmethod
    def _may_change(graph: Graph, name: str) -> bool:
        members = parts.within(graph, name)
        if len(graph.shape(name)) < 3 or not graph.desc(name).transient or any(map(graph.views_of, members)):
            return False
        users = [*graph.producers(name), *(reader for m in members for reader in graph.consumers(m))]
        return not any(getattr(n, "wants_rows", False) for n in users)

    @staticmethod
    def _is_last(graph: Graph, name: str) -> bool:
        shape = graph.shape(name)
        return len(shape) >= 3 and shape[1] != 1 and graph.strides(name) == channels_last_strides(shape)
