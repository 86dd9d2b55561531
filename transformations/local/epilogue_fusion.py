"""Fold a point-wise kernel into the product or convolution that feeds it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

from daceopt.ir.graph.graph import Graph
from daceopt.ir.graph.kinds import Node
from daceopt.passes.transform import NearMiss, Site, Transformation
from daceopt.transformations.local._epilogues import absorb, extract, reader_of, why_inexact


@dataclass(frozen=True)
class EpilogueFusion(Transformation):
    """Let a library node add the bias and the residual, scale channels, and apply the activation itself.

    before:  y = Convolution(x, w)     for n,c,h,w: z[n,c,h,w] = s[c] * (y[n,c,h,w] - m[c]) + b[c] + r[n,c,h,w]
    after:   for c: v[c] = -m[c]       z = Convolution(x, w, B=v, S=s, T=b, Z=r)

    before:  y = Contraction(A, B)     for i,j: z[i,j] = maximum(y[i,j] + b[j], 0)
    after:   z = Contraction(A, B, Bias=b, activation=relu)

    Only when nothing else reads the product and the kernel is nothing but the epilogue; larger kernels keep it, where
    it costs no pass over memory. A sum of two convolutions, each scaled, is one whose residual is the other. Relus of
    convolutions are left where negative numbers become 0: oneDNN's makes NaN of -inf (see ``relu-absorption``).
    """

    level: ClassVar[str] = "local"

    def match_at(self, graph: Graph, node: Node) -> Iterable[Site | NearMiss]:
        reader = reader_of(graph, node)
        if reader is None:
            return
        epilogue = extract(graph, node, reader)
        reason = epilogue if isinstance(epilogue, str) else why_inexact(node, epilogue)
        if reason is None:
            yield Site(graph, (node, reader), {"epilogue": epilogue})
        else:
            yield NearMiss(node, reason)

    def apply(self, site: Site) -> None:
        node, reader = site.nodes
        absorb(site.graph, node, reader, site["epilogue"])
