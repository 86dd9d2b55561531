"""Memories, pointers and trees: what networks read, write and recur over besides a sequence."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from benchmarks.world.catalogue import program
from benchmarks.world.program import Program
from benchmarks.world.programs.sciences import classify_step, loss_step, mse_step


class _Pointer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.cell = nn.LSTM(2, 32, batch_first=True), nn.LSTMCell(2, 32)
        self.w1, self.w2, self.v = nn.Linear(32, 32), nn.Linear(32, 32), nn.Linear(32, 1)

    def forward(self, x: torch.Tensor, order: torch.Tensor) -> torch.Tensor:
        memory, (h, c) = self.encoder(x)
        h, c = h[0], c[0]
        taken = torch.zeros(x.shape[:2], dtype=torch.bool)
        at, losses = x.new_zeros(len(x), 2), []
        for t in range(order.shape[1]):
            h, c = self.cell(at, (h, c))
            scores = self.v(torch.tanh(self.w1(memory) + self.w2(h)[:, None])).squeeze(-1)
            scores = scores.masked_fill(taken, float("-inf"))
            losses.append(F.cross_entropy(scores, order[:, t]))
            taken = taken.scatter(1, order[:, t : t + 1], True)
            at = x[torch.arange(len(x)), order[:, t]]
        return torch.stack(losses).mean()


@program
def pointer_network(k: int) -> Program:
    """A decoder that points at its input, each place once."""
    n = 6 + k
    return Program(_Pointer(), (torch.rand(4, n, 2), torch.stack([torch.randperm(n) for _ in range(4)])), loss_step)


class _Turing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell, self.heads, self.out = nn.LSTMCell(8 + 8, 32), nn.Linear(32, 8 + 1 + 1 + 8 + 8), nn.Linear(40, 8)
        self.register_buffer("start", torch.randn(16, 8) * 0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch = x.shape[0]
        memory = self.start.expand(batch, -1, -1).clone()
        h = c = x.new_zeros(batch, 32)
        read, outs = x.new_zeros(batch, 8), []
        for t in range(x.shape[1]):
            h, c = self.cell(torch.cat([x[:, t], read], 1), (h, c))
            key, strength, gate, erase, add = self.heads(h).split([8, 1, 1, 8, 8], 1)
            likeness = F.cosine_similarity(memory, key[:, None], dim=-1)
            where = (F.softplus(strength) * likeness).softmax(1) * torch.sigmoid(gate)
            memory = memory * (1 - where[..., None] * torch.sigmoid(erase)[:, None]) + where[..., None] * add[:, None]
            read = (where[..., None] * memory).sum(1)
            outs.append(self.out(torch.cat([h, read], 1)))
        return torch.stack(outs, 1)


@program
def neural_turing_machine(k: int) -> Program:
    """A memory that is addressed by content, erased and written."""
    return Program(_Turing(), (torch.randn(3, 6 + k, 8), torch.randn(3, 6 + k, 8)), mse_step)


class _Tree(nn.Module):
    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.words, self.leaf = nn.Embedding(30, width), nn.Linear(width, 2 * width)
        self.gates, self.out = nn.Linear(2 * width, 5 * width), nn.Linear(width, 3)

    def node(self, tree: object) -> tuple[torch.Tensor, torch.Tensor]:
        if isinstance(tree, int):
            h, c = self.leaf(self.words.weight[tree]).chunk(2)
            return torch.tanh(h), c
        (a, ca), (b, cb) = map(self.node, tree)  # type: ignore[call-overload]
        i, f, g, o, u = self.gates(torch.cat([a, b])).chunk(5)
        c = torch.sigmoid(i) * torch.tanh(u) + torch.sigmoid(f) * ca + torch.sigmoid(g) * cb
        return torch.sigmoid(o) * torch.tanh(c), c

    def forward(self, trees: list[object]) -> torch.Tensor:
        return self.out(torch.stack([self.node(tree)[0] for tree in trees]))


@program
def tree_lstm(k: int) -> Program:
    """Recursion over the trees of sentences, each of another form."""
    trees = [((1, 2), (3, (4, 5))), (6, (7, 8)), (((9, 10), 11), 12 + k)]
    return Program(_Tree(), (trees, torch.tensor([0, 1, 2])), classify_step)


class _Tacotron(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(40, 32)
        self.convs = nn.Sequential(nn.Conv1d(32, 32, 5, padding=2), nn.BatchNorm1d(32), nn.ReLU(inplace=True))
        self.lstm, self.prenet = nn.LSTM(32, 16, bidirectional=True, batch_first=True), nn.Linear(10, 16)
        self.attend, self.location = nn.LSTMCell(48, 32), nn.Conv1d(1, 8, 5, padding=2)
        self.query, self.memory, self.place, self.v = nn.Linear(32, 16), nn.Linear(32, 16), nn.Linear(8, 16), nn.Linear(16, 1)  # fmt: skip
        self.frame, self.stop = nn.Linear(64, 10), nn.Linear(64, 1)

    def forward(self, text: torch.Tensor, mel: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        memory, _ = self.lstm(self.convs(self.embedding(text).transpose(1, 2)).transpose(1, 2))
        keys, batch = self.memory(memory), text.shape[0]
        h = c = memory.new_zeros(batch, 32)
        context, total, frames, stops = h, memory.new_zeros(text.shape), [], []
        for t in range(mel.shape[1]):
            last = mel[:, t - 1] if t else torch.zeros_like(mel[:, 0])
            h, c = self.attend(torch.cat([F.relu(self.prenet(last)), context], 1), (h, c))
            place = self.place(self.location(total[:, None]).transpose(1, 2))
            weights = self.v(torch.tanh(self.query(h)[:, None] + keys + place)).squeeze(-1).softmax(1)
            total = total + weights
            context = torch.bmm(weights[:, None], memory).squeeze(1)
            both = torch.cat([h, context], 1)
            frames.append(self.frame(both))
            stops.append(self.stop(both).squeeze(1))
        return torch.stack(frames, 1), torch.stack(stops, 1)


@program
def tacotron(k: int) -> Program:
    """Speech from text by location-sensitive attention, with a stop signal."""

    def step(net: nn.Module, text: torch.Tensor, mel: torch.Tensor) -> object:
        frames, stops = net(text, mel)
        ends = torch.zeros_like(stops)
        ends[:, -1] = 1
        loss = F.mse_loss(frames, mel) + F.binary_cross_entropy_with_logits(stops, ends)
        loss.backward()
        return loss

    return Program(_Tacotron(), (torch.randint(0, 40, (2, 8 + k)), torch.randn(2, 6, 10)), step)


class _Memory(nn.Module):
    def __init__(self, hops: int = 3) -> None:
        super().__init__()
        self.a, self.c, self.hops = nn.Embedding(40, 24, padding_idx=0), nn.Embedding(40, 24, padding_idx=0), hops
        self.times, self.out = nn.Parameter(torch.randn(12, 24) * 0.1), nn.Linear(24, 40)

    def forward(self, story: torch.Tensor, question: torch.Tensor) -> torch.Tensor:
        u = self.a(question).sum(1)
        m, c = self.a(story).sum(2) + self.times[: story.shape[1]], self.c(story).sum(2)
        for _ in range(self.hops):
            p = torch.einsum("bnd,bd->bn", m, u).softmax(1)
            u = u + torch.einsum("bn,bnd->bd", p, c)
        return self.out(u)


@program
def memory_network(k: int) -> Program:
    """Several hops over the sentences of a story."""

    def step(net: nn.Module, story: torch.Tensor, question: torch.Tensor, answer: torch.Tensor) -> object:
        loss = F.cross_entropy(net(story, question), answer)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 40.0)
        return loss

    inputs = (torch.randint(0, 40, (4, 6 + k, 5)), torch.randint(1, 40, (4, 4)), torch.randint(0, 40, (4,)))
    return Program(_Memory(), inputs, step)
