"""Sum gradients of several parameters over all ranks together."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import dace

from daceopt.errors import DaceoptError
from daceopt.ir import parts
from daceopt.ir.builder import Builder
from daceopt.ir.graph import Graph
from daceopt.ir.nodes.collective import AllReduceStart, AllReduceWait
from daceopt.passes.transform import NearMiss, Site, Transformation


@dataclass(frozen=True)
class TensorFusion(Transformation):
    """Let gradients that are reduced stand side by side in one buffer, and reduce that.

    before:  a' = wait(start(a)), a    b' = wait(start(b)), b
    after:   a and b are parts of c;   c' = wait(start(c)), c;   a' and b' are views of c'

    Fewer, larger messages use a network better; the first gradient waits for the last of its bucket (Yi et al., DisCo,
    section 2.3). ``buckets``: names of parameters, side by side in this order; the first bucket starts first.
    Parameters of a bucket that the graph does not have are left out; gradients that are in no bucket stay alone.
    """

    level: ClassVar[str] = "local"
    sites_are_independent: ClassVar[bool] = True
    buckets: tuple[tuple[str, ...], ...] = ()

    def __post_init__(self) -> None:
        if not isinstance(self.buckets, list | tuple) or any(not isinstance(b, list | tuple) for b in self.buckets):
            raise DaceoptError(f"buckets={self.buckets!r} of tensor-fusion; expected a list of lists of names")
        object.__setattr__(self, "buckets", tuple(tuple(map(str, b)) for b in self.buckets))

    def match(self, graph: Graph) -> Iterator[Site | NearMiss]:
        alone = {n.parameters[0]: n for n in graph.nodes() if is_single(n)}
        for k, bucket in enumerate(self.buckets):
            members = [alone[name] for name in bucket if name in alone]
            found = {graph.dtype(graph.reads(n)["X"]) for n in members}
            if len(found) > 1:
                yield NearMiss(members[0], f"bucket {k} has gradients of {sorted(map(str, found))}, expected one type")
            elif len(members) > 1 or any(n.position != k for n in members):
                title = f"bucket {k} of {len(members)} gradients"
                yield Site(graph, tuple(members), {"position": k, "title": title})

    def apply(self, site: Site) -> None:
        if len(site.nodes) == 1:
            site.nodes[0].position = site["position"]
        else:
            fuse(site.graph, site.nodes, site["position"])


def is_single(node: Any) -> bool:
    """Is it the start of a reduction of one gradient?"""
    return isinstance(node, AllReduceStart) and len(node.parameters) == 1


def fuse(graph: Graph, starts: tuple[AllReduceStart, ...], position: int) -> None:
    """Reduce what ``starts`` reduce as one array, the ``position``-th to start."""
    own = [graph.reads(n)["X"] for n in starts]
    waits = [wait_of(graph, n) for n in starts]
    averages = [graph.writes(n)["Y"] for n in waits]
    common = {"group": starts[0].group, "world": starts[0].world}
    parameters = [name for n in starts for name in n.parameters]
    dtype, total = graph.dtype(own[0]), sum(int(graph.size(n)) for n in own)
    origins = tuple(dict.fromkeys(o for n in starts for o in graph.origins_of(n)))
    with graph.made_for("exchange", origins):
        b = Builder(graph, "exchange")
        whole, handle = graph.add_array("bucket", (total,), dtype), graph.add_array("handle", (), dace.int64)
        offset, offsets = 0, []
        for name in own:
            parts.attach(graph, name, whole, (offset,))
            offsets.append(offset)
            offset += int(graph.size(name))
        b.library(AllReduceStart, {"X": whole}, {"Handle": handle}, parameters=parameters, position=position, **common)
        average = graph.add_array("average", (total,), dtype)
        b.library(AllReduceWait, {"Handle": handle, "X": whole}, {"Y": average}, **common)
        for old, start in zip(averages, offsets):
            view = graph.add_view(average, "average", graph.shape(old), (1,), start)
            graph.replace_uses(old, b.copy(view) if old in graph.outputs else view)
    for node in (*waits, *starts):
        graph.remove(node)


def wait_of(graph: Graph, start: AllReduceStart) -> AllReduceWait:
    """Who waits for ``start``."""
    readers = graph.consumers(graph.writes(start)["Handle"])
    return next(n for n in readers if isinstance(n, AllReduceWait))
