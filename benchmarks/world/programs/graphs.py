"""Graphs in plain PyTorch: sums at ends of edges, attention over edges, pooling by scores."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from benchmarks.world.catalogue import program
from benchmarks.world.program import Program
from benchmarks.world.programs.sciences import classify_step, mlp


class _Convolution(nn.Module):
    def __init__(self, before: int, after: int) -> None:
        super().__init__()
        self.linear = nn.Linear(before, after)

    def forward(self, x: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
        source, target = edges
        degree = torch.ones(len(x), dtype=x.dtype).scatter_add_(0, target, torch.ones(len(target), dtype=x.dtype))
        weight = (degree[source] * degree[target]).rsqrt()
        h = self.linear(x)
        return h / degree[:, None] + torch.zeros_like(h).index_add_(0, target, h[source] * weight[:, None])


class _GCN(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = _Convolution(16, 32), _Convolution(32, 4)

    def forward(self, graph: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        x, edges = graph
        return self.second(F.dropout(F.relu(self.first(x, edges)), 0.0, self.training), edges)


def _graph(k: int) -> tuple[torch.Tensor, torch.Tensor]:
    nodes = 40 + 7 * k
    return torch.randn(nodes, 16), torch.randint(0, nodes, (2, 150 + 31 * k))


@program
def graph_convolution(k: int) -> Program:
    """Another number of nodes and edges in each batch."""
    graph = _graph(k)
    return Program(_GCN(), (graph, torch.randint(0, 4, (len(graph[0]),))), classify_step)


class _GAT(nn.Module):
    def __init__(self, heads: int = 4, width: int = 8) -> None:
        super().__init__()
        self.linear, self.heads, self.width = nn.Linear(16, heads * width, bias=False), heads, width
        self.source, self.target = nn.Parameter(torch.randn(heads, width) * 0.1), nn.Parameter(torch.randn(heads, width) * 0.1)  # fmt: skip
        self.score, self.out = nn.Linear(heads * width, 1), nn.Linear(2 * heads * width, 3)

    def forward(self, graph: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        x, (source, target) = graph
        h = self.linear(x).view(-1, self.heads, self.width)
        e = F.leaky_relu((h * self.source).sum(-1)[source] + (h * self.target).sum(-1)[target], 0.2, inplace=True)
        index = target[:, None].expand_as(e)
        top = torch.full((len(x), self.heads), -1e9, dtype=x.dtype).scatter_reduce(0, index, e.detach(), "amax")
        e = torch.exp(e - top[target])
        total = torch.zeros(len(x), self.heads, dtype=x.dtype).scatter_add(0, index, e)
        weight = e / (total[target] + 1e-16)
        h = F.elu(torch.zeros_like(h).index_add(0, target, h[source] * weight[..., None]).flatten(1), inplace=True)
        score = torch.tanh(self.score(h)).squeeze(1)
        keep = score.topk(len(x) // 2)[1]
        kept = h[keep] * score[keep, None]
        return self.out(torch.cat([kept.mean(0), kept.max(0)[0]]))[None]


@program
def graph_attention_pooling(k: int) -> Program:
    """Softmax over the edges of each node, then the best half of the nodes."""
    return Program(_GAT(), (_graph(k), torch.tensor([1])), classify_step)


class _Equivariant(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.edge, self.node, self.place = mlp(33, 32, 32, activation=nn.SiLU), mlp(48, 32, 16, activation=nn.SiLU), nn.Linear(32, 1, bias=False)  # fmt: skip

    def forward(self, h: torch.Tensor, x: torch.Tensor, edges: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        i, j = edges
        between = x[i] - x[j]
        m = F.silu(self.edge(torch.cat([h[i], h[j], between.square().sum(1, keepdim=True)], 1)), inplace=True)
        x = x + torch.zeros_like(x).index_add_(0, i, between * torch.tanh(self.place(m)))
        total = torch.zeros(len(h), 32, dtype=h.dtype).index_add_(0, i, m)
        return h + self.node(torch.cat([h, total], 1)), x


@program
def equivariant_graph(k: int) -> Program:
    """EGNN: messages by distances, places moved along differences."""

    def step(net: nn.Module, h: torch.Tensor, x: torch.Tensor, edges: torch.Tensor) -> object:
        for _ in range(2):
            h, x = net(h, x, edges)
        loss = h.square().mean() + x.square().mean()
        loss.backward()
        return loss

    n = 20 + 3 * k
    return Program(_Equivariant(), (torch.randn(n, 16), torch.randn(n, 3), torch.randint(0, n, (2, 60 + 11 * k))), step)
