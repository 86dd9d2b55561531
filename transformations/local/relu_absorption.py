"""Put relus into the convolutions before them, where a NaN at the end tells that one of them went wrong."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import dace
import sympy

from daceopt.ir.control.region import Region
from daceopt.ir.graph.graph import Graph
from daceopt.ir.graph.kinds import Node
from daceopt.ir.nodes.collective import Collective
from daceopt.ir.nodes.library import Convolution, HostCall, NanWatch
from daceopt.ir.scalar.dims import hint
from daceopt.libs import native, onednn
from daceopt.passes.transform import NearMiss, Site, Transformation
from daceopt.transformations.local._epilogues import Epilogue, absorb, extract, reader_of
from daceopt.transformations.local._nan_flow import Reached, watch_points


class _Candidate(NamedTuple):
    node: Convolution
    reader: Node
    epilogue: Epilogue
    watched: tuple[str, ...]  # what would have to be looked at
    saved: int  # bytes


@dataclass(frozen=True)
class ReluAbsorption(Transformation):
    """Let convolutions apply the relu behind them, and look for NaN where all of them lead to.

    before:  y = Convolution(x, w, B=b)      for n,c,h,w: z[n,c,h,w] = maximum(y[n,c,h,w], 0)      p = Contraction(z, v)
    after:   z = Convolution(x, w, B=b, activation=relu, doubtful)     p = Contraction(z, v)      NanWatch(p)

    The relu that oneDNN applies in registers keeps NaN and makes one of -inf. So without a NaN at the end, in what all
    nodes from there on keep it to (``_nan_flow.py``), there was no -inf either; with one, the program runs again with
    relus of their own, and has the NaN that PyTorch has, or none. Only where the last arrays are smaller than what is
    saved; not in programs that write over their arguments or exchange with others, which do not run twice.
    """

    level: ClassVar[str] = "local"
    sites_are_independent: ClassVar[bool] = True

    def match(self, graph: Graph) -> Iterator[Site | NearMiss]:
        candidates = list(_candidates(graph))
        once = _why_once(graph) if candidates else None
        if once is not None:
            yield NearMiss(candidates[0].node, once)
            return
        watched = {graph.reads(n)["X"] for n in graph.nodes() if isinstance(n, NanWatch)}
        remaining = sorted(candidates, key=lambda c: -c.saved)
        for candidate in (*remaining, *remaining):  # the second time, what the first ones watch costs nothing
            new = [name for name in candidate.watched if name not in watched]
            if candidate not in remaining or sum(_bytes(graph, name) for name in new) >= candidate.saved:
                continue
            remaining.remove(candidate)
            watched.update(new)
            yield Site(graph, (candidate.node, candidate.reader), {"epilogue": candidate.epilogue, "watch": new})
        for candidate in remaining:
            yield NearMiss(candidate.node, f"looking for NaN in {', '.join(candidate.watched)} costs more")

    def apply(self, site: Site) -> None:
        graph, (node, reader) = site.graph, site.nodes
        absorb(graph, node, reader, site["epilogue"], doubtful=True)
        for name in site["watch"]:
            flag = graph.add_array(f"{name}_has_nan", (1,), dace.int32)
            graph.add_node(NanWatch(f"{name}_watch"), {"X": name}, {"Seen": flag})


def _candidates(graph: Graph) -> Iterator[_Candidate]:
    """Convolutions by oneDNN with a relu that is all that reads them, whose NaN can be watched."""
    readers: set[Node] = set()
    reached_from: Reached = {}
    for node in graph.nodes():
        reader = reader_of(graph, node) if isinstance(node, Convolution) and onednn.is_chosen(graph, node) else None
        if reader is None or reader in readers:  # a sum of two convolutions is one's
            continue
        epilogue = extract(graph, node, reader)
        if isinstance(epilogue, str) or not epilogue.activation or epilogue.slope:
            continue
        out = graph.result(reader, 0)
        watched = tuple(watch_points(graph, [out], reached_from))
        if not any(native.why_not_watched(graph, name) for name in (out, *watched)):
            readers.add(reader)
            yield _Candidate(node, reader, epilogue, watched, 2 * _bytes(graph, out))


def _why_once(graph: Graph) -> str | None:
    """Why the program cannot run a second time."""
    if graph.replaced or graph.in_place:
        return "the program writes over its arguments, so that it cannot run again"
    for node in graph.nodes():
        if isinstance(node, (Region, HostCall, Collective)):
            return f"{node.label} may do more than compute, so that it is not run again"
    return None


def _bytes(graph: Graph, name: str) -> int:
    return hint(sympy.sympify(graph.size(name))) * graph.dtype(name).bytes
