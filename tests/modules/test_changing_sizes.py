"""Sizes that vary from call to call: one program for all after the second, in training and in inference."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import nn

from daceopt import optimized_module, pipeline
from daceopt.errors import BuildError
from tests.numerics import assert_within_rounding

pytestmark = pytest.mark.usefixtures("interpreted")


class GraphConvolution(nn.Module):
    """Sums over neighbours, normalized by degrees."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 4)

    def forward(self, x: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
        loops = torch.arange(x.shape[0])
        source, target = torch.cat([edges[0], loops]), torch.cat([edges[1], loops])
        degree = torch.zeros(x.shape[0], dtype=x.dtype).index_add(0, target, torch.ones_like(target, dtype=x.dtype))
        weight = degree.pow(-0.5)[source] * degree.pow(-0.5)[target]
        h = self.linear(x)
        return torch.zeros_like(h).index_add(0, target, h[source] * weight[:, None])


class GraphAttention(nn.Module):
    """A softmax over the edges of each node."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.score = nn.Linear(6, 8), nn.Linear(8, 1)

    def forward(self, x: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
        (source, target), n, h = edges, x.size(0), self.linear(x)
        score = nn.functional.leaky_relu(self.score(h[source] + h[target])[:, 0], 0.2)
        largest = torch.full((n,), float("-inf"), dtype=x.dtype).scatter_reduce(0, target, score, "amax")
        weight = torch.exp(score - largest[target])
        total = x.new_zeros(n).scatter_add(0, target, weight)
        weight = weight / (total[target] + 1e-16)
        return h.new_zeros(n, 8).scatter_add(0, target[:, None].expand(-1, 8), weight[:, None] * h[source])


class Messages(nn.Module):
    """Messages are summed in place and nodes pooled by graph, whose number is a number of Python."""

    def __init__(self) -> None:
        super().__init__()
        self.message, self.update = nn.Linear(12, 6), nn.GRUCell(6, 6)

    def forward(self, x: torch.Tensor, edges: torch.Tensor, graph: torch.Tensor, count: int) -> torch.Tensor:
        pairs = torch.cat([x.index_select(0, edges[0]), x.index_select(0, edges[1])], -1)
        sums = x.new_zeros(x.size(0), 6).index_add_(0, edges[1], torch.relu(self.message(pairs)))
        return x.new_zeros(count, 6).index_add_(0, graph, self.update(sums, x))


class Detector(nn.Module):
    """Boxes of a grid whose size follows from the image, matched with as many boxes as there are."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone = nn.Conv2d(2, 4, 3, padding=1, stride=2)
        self.boxes = nn.Conv2d(4, 8, 1)

    def forward(self, images: torch.Tensor, boxes: torch.Tensor) -> torch.Tensor:
        h = torch.relu(self.backbone(images))
        y, x = torch.meshgrid(torch.arange(h.shape[2]), torch.arange(h.shape[3]), indexing="ij")
        centers = torch.stack([x, y], -1).reshape(-1, 1, 2).expand(-1, 2, -1).reshape(-1, 2).repeat(len(images), 1)
        found = torch.cat([centers, centers], 1) + self.boxes(h).permute(0, 2, 3, 1).reshape(-1, 4)
        low, high = torch.max(found[:, None, :2], boxes[:, :2]), torch.min(found[:, None, 2:], boxes[:, 2:])
        overlap, best = (high - low).clamp(min=0).prod(-1).max(1)
        return nn.functional.smooth_l1_loss(found, boxes[best], reduction="none").sum(1) + overlap


class Tagger(nn.Module):
    def __init__(self, layer: type[nn.RNNBase]) -> None:
        super().__init__()
        self.embedding, self.linear = nn.Embedding(20, 6), nn.Linear(8, 3)
        self.layer = layer(6, 4, bidirectional=True, batch_first=True)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        return self.linear(self.layer(self.embedding(words))[0])


def random(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


def integers(high: int, *shape: int) -> torch.Tensor:
    return torch.randint(0, high, shape, generator=torch.Generator().manual_seed(sum(shape)))


GRAPHS = [(7, 20), (9, 31), (12, 12), (5, 44), (23, 50)]  # nodes and edges
IMAGES = [(8, 3), (12, 5), (14, 2), (10, 7)]  # extent and boxes
BATCHES = [(4, 5), (4, 7), (4, 11), (3, 6)]  # sentences and words; the last batch is smaller

MODELS: dict[str, tuple[Callable[[], nn.Module], list[tuple[object, ...]]]] = {
    "graph convolution": (GraphConvolution, [(random(n, 6), integers(n, 2, e)) for n, e in GRAPHS]),
    "graph attention": (GraphAttention, [(random(n, 6), integers(n, 2, e)) for n, e in GRAPHS]),
    "messages": (Messages, [(random(n, 6), integers(n, 2, e), integers(2, n), 2 + n) for n, e in GRAPHS]),
    "detector": (Detector, [(random(2, 2, n, n + 4), random(k, 4)) for n, k in IMAGES]),
    "LSTM": (lambda: Tagger(nn.LSTM), [(integers(20, *b),) for b in BATCHES]),
    "GRU": (lambda: Tagger(nn.GRU), [(integers(20, *b),) for b in BATCHES]),
    "RNN": (lambda: Tagger(nn.RNN), [(integers(20, *b),) for b in BATCHES]),
}


@pytest.mark.share(2)
@pytest.mark.parametrize("trains", [True, False], ids=["training", "inference"])
@pytest.mark.parametrize(("make", "calls"), MODELS.values(), ids=MODELS)
def test_one_program_for_all_sizes_after_the_second(make, calls, trains):
    model = make()
    ours, double = optimized_module(copy.deepcopy(model), fallback="raise"), copy.deepcopy(model).double()
    with torch.set_grad_enabled(trains):
        results = zip(*([_step(m, call) for call in calls] for m in (ours, double, model)), strict=True)
        for mine, exact, theirs in (values for step in results for values in zip(*step, strict=True)):
            assert_within_rounding(mine, exact, theirs)
    # the batch that is smaller may be a second size that varies
    assert ours.daceopt.stats.programs <= (3 if isinstance(model, Tagger) else 2)


def test_one_kernel_that_checks_indices_in_several_loops(built):
    """Over edges, and over nodes, which are edges to themselves."""
    model = GraphConvolution()
    ours = optimized_module(copy.deepcopy(model), fallback="raise", dynamic=True)
    for nodes in (7, 9):
        x, edges = random(nodes, 6), integers(nodes, 2, 5 + nodes)
        torch.testing.assert_close(ours(x, edges), model(x, edges))
    assert ours.daceopt.stats.programs == 1
    with pytest.raises(IndexError):
        ours(x, edges + 9)


def _step(module: nn.Module, call: tuple[object, ...]) -> list[torch.Tensor]:
    dtype = next(module.parameters()).dtype
    module.zero_grad()
    given = [x.to(dtype) if isinstance(x, torch.Tensor) and x.is_floating_point() else x for x in call]
    out = module(*given)
    if out.requires_grad:
        out.square().sum().backward()
    return [out.detach(), *(p.grad for p in module.parameters() if p.grad is not None)]


def test_why_there_is_a_program_for_each_size_is_said(monkeypatch):
    """Where the program for all sizes cannot be built, say."""
    compile_graph = pipeline.compile_graph

    def fails_for_open_sizes(fingerprint, load, **options):
        def loaded(target):
            found = load(target)
            if found.graph.symbols:
                raise BuildError("the compiler does not take it")
            return found

        return compile_graph(fingerprint, loaded, **options)

    monkeypatch.setattr(pipeline, "compile_graph", fails_for_open_sizes)
    model = optimized_module(nn.Linear(4, 4), recipe="cpu")
    for rows in (3, 4, 5):
        model(torch.ones(rows, 4))
    assert model.daceopt.stats.programs == 3
    assert model.daceopt.stats.choices == ["a program for each size, because the compiler does not take it"]
