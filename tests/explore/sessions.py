"""Sessions on small models, and a transformation with something wrong on demand."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import nn

import daceopt
from daceopt.errors import Unsupported
from daceopt.explore import Session
from daceopt.ir.graph.graph import Graph
from daceopt.ir.text.render import render
from daceopt.passes.transform import NearMiss, Site, Transformation
from tests.transformations.graphs import Net


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.norm, self.down = nn.Linear(8, 16), nn.LayerNorm(16), nn.Linear(16, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(nn.functional.gelu(self.norm(self.up(x))))


class Blocks(nn.Module):
    def __init__(self, count: int = 2) -> None:
        super().__init__()
        self.blocks = nn.Sequential(*(Block() for _ in range(count)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.blocks(x)


def session(count: int = 2, **options: Any) -> Session:
    torch.manual_seed(0)
    return daceopt.explore(Blocks(count), torch.randn(4, 8), **options)


def lowered(count: int = 2, **options: Any) -> Session:
    return session(count, backward=False, **options).apply("lower-operators")


def texts(at: Session) -> list[str]:
    return [render(graph) for graph in at.program.directions()]


def chain(*op_types: str) -> Graph:
    net = Net(x=(2, 3))
    y = net.x
    for op_type in op_types:
        y = net.op(op_type, y)
    return net.done(y)


@dataclass(frozen=True)
class ReluTwice(Transformation):
    """Relu(Relu(x)) = Relu(x), with something wrong on demand."""

    level: ClassVar[str] = "coarse"
    wrong: str = ""
    picky: bool = False

    def match_at(self, graph: Graph, node: Any) -> Any:
        if self.picky:
            yield NearMiss(node, "it is picky")
            return
        if self.wrong == "match raises":
            raise ZeroDivisionError("in match")
        if self.wrong == "match edits":
            graph.add_array("stray", (1,), graph.dtype(graph.inputs[0]))
        if getattr(node, "op_type", "") != "Relu":
            return
        inner = graph.producer(graph.operand(node, 0))
        if self.wrong == "endless" or getattr(inner, "op_type", "") == "Relu":
            yield Site(graph, (node,) if self.wrong == "endless" else (node, inner))

    def apply(self, site: Site) -> None:
        graph, outer = site.graph, site.nodes[0]
        if self.wrong == "endless":
            return
        result, x = graph.result(outer, 0), graph.operand(site.nodes[1], 0)
        graph.remove(outer)
        if self.wrong == "raises":
            raise KeyError("in the middle of an edit")
        if self.wrong == "refuses":
            raise Unsupported("this one is not for me")
        if self.wrong == "ends Python":
            raise SystemExit(3)
        if self.wrong != "invalid":
            graph.add_operator("Neg" if self.wrong == "numbers" else "Relu", [x], [result])
