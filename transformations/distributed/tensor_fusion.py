"""Exchange gradients of several parameters together."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, product
from typing import ClassVar, TypeGuard

from daceopt.errors import DaceoptError
from daceopt.ir.graph.graph import Graph
from daceopt.ir.graph.kinds import Node
from daceopt.ir.nodes.builder import Builder
from daceopt.ir.nodes.collective import (
    AllGatherStart,
    AllReduceStart,
    CollectiveStart,
    CollectiveWait,
    ReduceScatterStart,
)
from daceopt.passes.transform import NearMiss, Site, Transformation
from daceopt.transformations.distributed._exchanges import Common, all_gathered, all_reduced, reduce_scattered


@dataclass(frozen=True)
class TensorFusion(Transformation):
    """Let gradients that are reduced be side by side in one buffer, and reduce that.

    before:  a' = wait(start(a)), a    b' = wait(start(b)), b
    after:   a and b are parts of c;   c' = wait(start(c)), c;   a' and b' are views of c'

    Fewer, larger messages use a network better; the first gradient waits for the last of its bucket (Yi et al., DisCo,
    section 2.3). ``buckets``: names of parameters, side by side in this order; the first bucket starts first.
    Parameters of a bucket that the graph does not have are left out; gradients that are in no bucket stay alone.
    Gradients of which each rank gets a part, and parts of parameters that are gathered, are side by side along their
    last axis.
    """

    level: ClassVar[str] = "local"
    sites_are_independent: ClassVar[bool] = True
    buckets: tuple[tuple[str, ...], ...] = ()

    def __post_init__(self) -> None:
        if not isinstance(self.buckets, list | tuple) or any(not isinstance(b, list | tuple) for b in self.buckets):
            raise DaceoptError(f"buckets={self.buckets!r} of tensor-fusion; expected a list of lists of names")
        object.__setattr__(self, "buckets", tuple(tuple(map(str, b)) for b in self.buckets))

    def match(self, graph: Graph) -> Iterator[Site | NearMiss]:
        alone: dict[type, dict[str, CollectiveStart]] = {kind: {} for kind in BY_KIND}
        for node in graph.nodes():
            if is_single(node):
                alone[type(node)][node.parameters[0]] = node
        for (k, bucket), kind in product(enumerate(self.buckets), BY_KIND):
            members = [alone[kind][name] for name in bucket if name in alone[kind]]
            dtypes = {graph.dtype(graph.reads(n)["X"]) for n in members}
            if len(dtypes) > 1:
                yield NearMiss(members[0], f"bucket {k} has gradients of {sorted(map(str, dtypes))}, expected one type")
            elif len(members) > 1 or any(n.position != k for n in members):
                what = "shards" if kind is AllGatherStart else "gradients"
                yield Site(graph, tuple(members), {"position": k, "title": f"bucket {k} of {len(members)} {what}"})

    def apply(self, site: Site) -> None:
        if len(site.nodes) == 1:
            site.nodes[0].position = site["position"]
        else:
            fuse(site.graph, site.nodes, site["position"])


def is_single(node: Node) -> TypeGuard[CollectiveStart]:
    """Is it the start of an exchange of the values of one parameter?"""
    return type(node) in BY_KIND and len(node.parameters) == 1


def fuse(graph: Graph, starts: tuple[CollectiveStart, ...], position: int) -> None:
    """Exchange what ``starts`` exchange as one array, the ``position``-th of its kind to start."""
    waits = [wait_of(graph, n) for n in starts]
    parameters = [name for n in starts for name in n.parameters]
    common = {"group": starts[0].group, "world": starts[0].world}
    origins = tuple(dict.fromkeys(o for n in starts for o in graph.origins_of(n)))
    with graph.label_nodes("exchange", origins):
        whole, offsets = _side_by_side(graph, [graph.reads(n)["X"] for n in starts])
        attributes = {"parameters": parameters, "position": position, **common}
        exchanged = BY_KIND[type(starts[0])](graph, whole, attributes)
        _show(graph, exchanged, [graph.writes(n)["Y"] for n in waits], offsets)
    for node in (*waits, *starts):
        graph.remove(node)


BY_KIND: dict[type, Callable[[Graph, str, Common], str]] = {
    AllReduceStart: all_reduced,
    ReduceScatterStart: reduce_scattered,
    AllGatherStart: all_gathered,
}
"""What makes the exchange of one array, whose result has its last axis."""


def _side_by_side(graph: Graph, arrays: Sequence[str]) -> tuple[str, list[int]]:
    """A new array of which ``arrays`` are parts, one after another along the last axis, and where they begin there."""
    sizes = [int(graph.shape(name)[-1]) for name in arrays]
    rows = graph.shape(arrays[0])[:-1]
    whole = graph.add_array("bucket", (*rows, sum(sizes)), graph.dtype(arrays[0]))
    offsets = list(accumulate(sizes[:-1], initial=0))
    for name, offset in zip(arrays, offsets, strict=True):
        graph.attach(name, whole, (*(0 for _ in rows), offset))
    return whole, offsets


def _show(graph: Graph, whole: str, old: Sequence[str], offsets: Sequence[int]) -> None:
    """Let views of ``whole`` stand for what was exchanged alone before."""
    b, strides = Builder(graph, "exchange"), graph.strides(whole)
    for name, offset in zip(old, offsets, strict=True):
        view = graph.add_view(whole, "average", graph.shape(name), strides, offset)
        graph.replace_uses(name, b.copy(view) if name in graph.outputs else view)


def wait_of(graph: Graph, start: CollectiveStart) -> CollectiveWait:
    """Who waits for ``start``."""
    readers = graph.consumers(graph.writes(start)["Handle"])
    return next(n for n in readers if isinstance(n, CollectiveWait))
