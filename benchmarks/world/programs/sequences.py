"""Sequences: recurrence, attention without softmax, state spaces, alignment, structure."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import nn

from benchmarks.world.catalogue import program
from benchmarks.world.program import Program
from benchmarks.world.programs.sciences import loss_step, mse_step


class _Tagger(nn.Module):
    def __init__(self, tags: int = 5) -> None:
        super().__init__()
        self.embedding, self.lstm = nn.Embedding(100, 32), nn.LSTM(32, 32, bidirectional=True, batch_first=True)
        self.emission, self.transitions = nn.Linear(64, tags), nn.Parameter(torch.randn(tags, tags) * 0.1)

    def forward(self, words: torch.Tensor, tags: torch.Tensor) -> torch.Tensor:
        scores = self.emission(self.lstm(self.embedding(words))[0])
        alpha = scores[:, 0]
        gold = scores[:, 0].gather(1, tags[:, :1]).squeeze(1)
        for t in range(1, words.shape[1]):
            alpha = torch.logsumexp(alpha[:, :, None] + self.transitions + scores[:, t, None], 1)
            gold = gold + self.transitions[tags[:, t - 1], tags[:, t]] + scores[:, t].gather(1, tags[:, t, None]).squeeze(1)  # fmt: skip
        return (torch.logsumexp(alpha, 1) - gold).mean()


@program
def bilstm_crf(k: int) -> Program:
    """A conditional random field over a bidirectional LSTM; the lengths differ from batch to batch."""
    return Program(_Tagger(), (torch.randint(0, 100, (4, 10 + 3 * k)), torch.randint(0, 5, (4, 10 + 3 * k))), loss_step)


class _Transducer(nn.Module):
    def __init__(self, words: int = 12) -> None:
        super().__init__()
        self.encoder, self.predictor = nn.GRU(8, 24, batch_first=True), nn.GRU(16, 24, batch_first=True)
        self.embedding, self.joint = nn.Embedding(words, 16), nn.Linear(24, words)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        before = F.pad(y, (1, 0))
        h, g = self.encoder(x)[0], self.predictor(self.embedding(before))[0]
        scores = self.joint(torch.tanh(h[:, :, None] + g[:, None])).log_softmax(-1)
        blank = scores[..., 0]
        label = scores[:, :, :-1].gather(3, y[:, None, :, None].expand(-1, x.shape[1], -1, 1)).squeeze(3)
        row = F.pad(label[:, 0].cumsum(1), (1, 0))
        for t in range(1, x.shape[1]):
            stay = row + blank[:, t - 1]
            cells = [stay[:, 0]]
            for u in range(1, y.shape[1] + 1):
                cells.append(torch.logaddexp(stay[:, u], cells[-1] + label[:, t, u - 1]))
            row = torch.stack(cells, 1)
        return -(row[:, -1] + blank[:, -1, -1]).mean()


@program
def rnn_transducer(k: int) -> Program:
    """The loss of a transducer over its lattice of times and labels."""
    return Program(_Transducer(), (torch.randn(3, 6 + k, 8), torch.randint(1, 12, (3, 4))), loss_step)


class _Speech(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv1d(16, 32, 3, 2, 1), nn.BatchNorm1d(32)
        self.lstm, self.out = nn.LSTM(32, 32, num_layers=2), nn.Linear(32, 12)

    def forward(self, x: torch.Tensor, y: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        h = F.hardtanh(self.norm(self.conv(x)), 0, 20, inplace=True).permute(2, 0, 1)
        scores = self.out(self.lstm(h)[0]).log_softmax(-1)
        whole = torch.full((x.shape[0],), scores.shape[0], dtype=torch.long)
        return F.ctc_loss(scores, y, whole, lengths, zero_infinity=True)


@program
def speech_ctc(k: int) -> Program:
    """Connectionist temporal classification over a stack of LSTMs."""
    y = torch.randint(1, 12, (3, 4))
    return Program(_Speech(), (torch.randn(3, 16, 30 + 6 * k), y, torch.tensor([4, 3, 2])), loss_step)


class _Seq2Seq(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.source, self.target = nn.Embedding(50, 24), nn.Embedding(50, 24)
        self.encoder, self.cell = nn.GRU(24, 32, batch_first=True), nn.GRUCell(56, 32)
        self.query, self.key, self.score = nn.Linear(32, 32), nn.Linear(32, 32, bias=False), nn.Linear(32, 1)
        self.out = nn.Linear(64, 50)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        memory, h = self.encoder(self.source(x))
        h, keys, loss = h[0], self.key(memory), 0.0
        for t in range(y.shape[1] - 1):
            weights = self.score(torch.tanh(keys + self.query(h)[:, None])).softmax(1)
            context = (weights * memory).sum(1)
            h = self.cell(torch.cat([self.target(y[:, t]), context], 1), h)
            loss += F.cross_entropy(self.out(torch.cat([h, context], 1)), y[:, t + 1])
        return loss / (y.shape[1] - 1)


@program
def seq2seq_attention(k: int) -> Program:
    """A decoder that attends additively, fed with the true words."""
    return Program(_Seq2Seq(), (torch.randint(0, 50, (4, 9 + k)), torch.randint(0, 50, (4, 7))), loss_step)


class _WaveNet(nn.Module):
    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.embedding, self.layers = nn.Embedding(64, width), nn.ModuleList()
        for d in (1, 2, 4, 8):
            self.layers.append(nn.ModuleList([nn.Conv1d(width, 2 * width, 2, dilation=d), nn.Conv1d(width, 2 * width, 1)]))  # fmt: skip
        self.out = nn.Sequential(nn.ReLU(inplace=True), nn.Conv1d(width, width, 1), nn.ReLU(inplace=True), nn.Conv1d(width, 64, 1))  # fmt: skip

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h, skips = self.embedding(x[:, :-1]).transpose(1, 2), 0
        for dilated, mix in self.layers:
            a, b = dilated(F.pad(h, (dilated.dilation[0], 0))).chunk(2, 1)
            rest, skip = mix(torch.tanh(a) * torch.sigmoid(b)).chunk(2, 1)
            h, skips = h + rest, skips + skip
        return F.cross_entropy(self.out(skips), x[:, 1:])


@program
def wavenet(k: int) -> Program:
    """Gated dilated convolutions over quantized sound."""
    return Program(_WaveNet(), (torch.randint(0, 64, (2, 65 + 16 * k)),), loss_step)


class _Block(nn.Module):
    def __init__(self, before: int, after: int, dilation: int) -> None:
        super().__init__()
        norm = nn.utils.parametrizations.weight_norm
        self.pad = 2 * dilation
        self.first = norm(nn.Conv1d(before, after, 3, padding=self.pad, dilation=dilation))
        self.second = norm(nn.Conv1d(after, after, 3, padding=self.pad, dilation=dilation))
        self.short = nn.Conv1d(before, after, 1) if before != after else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = F.relu(self.first(x)[:, :, : -self.pad].contiguous())
        h = F.relu(self.second(h)[:, :, : -self.pad].contiguous())
        return F.relu(h + (x if self.short is None else self.short(x)))


@program
def temporal_convolutions(k: int) -> Program:
    """Causal convolutions with normalized weights, chopped at their ends."""
    net = nn.Sequential(_Block(4, 16, 1), _Block(16, 16, 2), _Block(16, 16, 4), nn.Conv1d(16, 2, 1))
    return Program(net, (torch.randn(4, 4, 32 + 8 * k), torch.randn(4, 2, 32 + 8 * k)), mse_step)


class _Diagonal(nn.Module):
    """S4D: a convolution whose kernel is a sum of complex exponentials, by Fourier transforms."""

    def __init__(self, width: int = 16, states: int = 8) -> None:
        super().__init__()
        self.log_step = nn.Parameter(torch.rand(width) * 2 - 4)
        self.weight = nn.Parameter(torch.view_as_real(torch.randn(width, states, dtype=torch.cfloat)))
        self.decay = nn.Parameter(torch.log(0.5 * torch.ones(width, states)))
        self.turn = nn.Parameter(math.pi * torch.arange(states).repeat(width, 1).float())
        self.skip, self.mix = nn.Parameter(torch.randn(width)), nn.Conv1d(width, 2 * width, 1)

    def forward(self, u: torch.Tensor) -> torch.Tensor:
        length = u.shape[-1]
        a = torch.complex(-self.decay.exp(), self.turn)
        da = a * self.log_step.exp()[:, None]
        powers = torch.exp(da[..., None] * torch.arange(length, device=u.device))
        c = torch.view_as_complex(self.weight) * (torch.exp(da) - 1) / a
        kernel = 2 * torch.einsum("hn,hnl->hl", c, powers).real
        y = torch.fft.irfft(torch.fft.rfft(u, 2 * length) * torch.fft.rfft(kernel, 2 * length), 2 * length)[
            ..., :length
        ]
        return F.glu(self.mix(F.gelu(y + u * self.skip[:, None])), 1) + u


@program
def state_space_s4d(k: int) -> Program:
    """Diagonal state spaces."""
    net = nn.Sequential(nn.Conv1d(4, 16, 1), _Diagonal(), _Diagonal(), nn.Conv1d(16, 2, 1))
    return Program(net, (torch.randn(4, 4, 64 + 16 * k), torch.randn(4, 2, 64 + 16 * k)), mse_step)


class _Selective(nn.Module):
    def __init__(self, width: int = 16, states: int = 4) -> None:
        super().__init__()
        self.expand, self.conv = nn.Linear(width, 2 * width, bias=False), nn.Conv1d(width, width, 3, padding=2, groups=width)  # fmt: skip
        self.select, self.rate = nn.Linear(width, 2 * states + 1), nn.Linear(1, width)
        self.log_a = nn.Parameter(torch.log(torch.arange(1, states + 1).float()).repeat(width, 1))
        self.out, self.states = nn.Linear(width, width), states

    def forward(self, u: torch.Tensor) -> torch.Tensor:
        x, gate = self.expand(u).chunk(2, -1)
        x = F.silu(self.conv(x.transpose(1, 2))[..., : u.shape[1]].transpose(1, 2))
        b, c, rate = self.select(x).split([self.states, self.states, 1], -1)
        rate = F.softplus(self.rate(rate))
        decay = torch.exp(rate[..., None] * -self.log_a.exp())
        drive = rate[..., None] * b[:, :, None] * x[..., None]
        h, outs = torch.zeros_like(decay[:, 0]), []
        for t in range(u.shape[1]):
            h = decay[:, t] * h + drive[:, t]
            outs.append((h * c[:, t, None]).sum(-1))
        return self.out(torch.stack(outs, 1) * F.silu(gate)) + u


@program
def selective_scan(k: int) -> Program:
    """A Mamba-like scan, step by step."""
    return Program(_Selective(), (torch.randn(3, 16 + 4 * k, 16), torch.randn(3, 16 + 4 * k, 16)), mse_step)


class _Heads(nn.Module):
    def __init__(self, width: int = 32, heads: int = 4) -> None:
        super().__init__()
        self.qkv, self.out, self.heads = nn.Linear(width, 3 * width), nn.Linear(width, width), heads

    def split(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(y.unflatten(-1, (self.heads, -1)).transpose(1, 2) for y in self.qkv(x).chunk(3, -1))

    def join(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(x.transpose(1, 2).flatten(2))


class _Retention(_Heads):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.split(x)
        decay = 1 - torch.exp2(-5 - torch.arange(self.heads, dtype=x.dtype))
        n = torch.arange(x.shape[1])
        mask = torch.where(n[:, None] >= n, decay[:, None, None] ** (n[:, None] - n).clamp(min=0), 0.0)
        return self.join(F.layer_norm((q @ k.transpose(-1, -2) * mask) @ v, (8,))) + x


@program
def retention(k: int) -> Program:
    """RetNet: attention with decays in place of softmax."""
    net = nn.Sequential(_Retention(), nn.LayerNorm(32), _Retention())
    return Program(net, (torch.randn(2, 20 + 4 * k, 32), torch.randn(2, 20 + 4 * k, 32)), mse_step)


class _Linear(_Heads):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.split(x)
        q, k = F.elu(q) + 1, F.elu(k) + 1
        state = torch.cumsum(torch.einsum("bhnd,bhne->bhnde", k, v), 2)
        norm = torch.einsum("bhnd,bhnd->bhn", q, k.cumsum(2)) + 1e-6
        return self.join(torch.einsum("bhnd,bhnde->bhne", q, state) / norm[..., None]) + x


@program
def linear_attention(k: int) -> Program:
    """Attention by feature maps and cumulative sums."""
    net = nn.Sequential(_Linear(), nn.LayerNorm(32), _Linear())
    return Program(net, (torch.randn(2, 20 + 4 * k, 32), torch.randn(2, 20 + 4 * k, 32)), mse_step)


class _Performer(_Heads):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("projection", torch.linalg.qr(torch.randn(8, 8))[0] * math.sqrt(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.split(x)
        q, k = (torch.exp(y @ self.projection.t() - y.square().sum(-1, keepdim=True) / 2 - y.amax().detach()) + 1e-4 for y in (q, k))  # fmt: skip
        scale = 1 / (q @ k.sum(2)[..., None])
        return self.join(q @ (k.transpose(-1, -2) @ v) * scale) + x


@program
def performer(k: int) -> Program:
    """Attention by positive random features."""
    return Program(_Performer(), (torch.randn(2, 20 + 4 * k, 32), torch.randn(2, 20 + 4 * k, 32)), mse_step)


class _Recurrence(nn.Module):
    """Transformer-XL: attention over the segment before, which a buffer keeps."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.kv, self.out = nn.Linear(32, 32), nn.Linear(32, 64), nn.Linear(32, 32)
        self.positions, self.bias = nn.Linear(32, 32, bias=False), nn.Parameter(torch.zeros(4, 8))
        self.register_buffer("memory", torch.zeros(2, 8, 32))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        whole = torch.cat([self.memory, x], 1)
        n, m = x.shape[1], whole.shape[1]
        q = self.q(x).view(2, n, 4, 8)
        k, v = (y.view(2, m, 4, 8) for y in self.kv(whole).chunk(2, -1))
        angles = torch.arange(m - 1, -1, -1, dtype=x.dtype)[:, None] / 10000 ** (torch.arange(16, dtype=x.dtype) / 16)
        r = self.positions(torch.cat([angles.sin(), angles.cos()], 1)).view(m, 4, 8)
        content, place = torch.einsum("bihd,bjhd->bhij", q, k), torch.einsum("bihd,jhd->bhij", q + self.bias, r)
        place = F.pad(place, (1, 0)).view(2, 4, m + 1, n)[:, :, 1:].view_as(content)
        hidden = torch.ones(n, m, dtype=torch.bool).triu(1 + m - n)
        weights = ((content + place) / 8**0.5).masked_fill(hidden, float("-inf")).softmax(-1)
        self.memory = whole[:, -8:].detach()
        return self.out(torch.einsum("bhij,bjhd->bihd", weights, v).reshape(2, n, 32)) + x


@program
def transformer_xl(k: int) -> Program:
    """Relative positions by shifting, and a memory of the segment before."""
    return Program(_Recurrence(), (torch.randn(2, 12 + 2 * k, 32), torch.randn(2, 12 + 2 * k, 32)), mse_step)


class _RWKV(nn.Module):
    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.decay, self.bonus = nn.Parameter(torch.linspace(-2, 1, width)), nn.Parameter(torch.zeros(width))
        self.mix, self.shift = nn.Parameter(torch.rand(3, width)), nn.ZeroPad2d((0, 0, 1, -1))
        self.key, self.value, self.gate, self.out = (nn.Linear(width, width, bias=False) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        before = self.shift(x)
        k, v, r = (f(x * m + before * (1 - m)) for f, m in zip((self.key, self.value, self.gate), self.mix))
        w, outs = -self.decay.exp(), []
        a, b, top = torch.zeros_like(x[:, 0]), torch.zeros_like(x[:, 0]), torch.full_like(x[:, 0], -1e38)
        for t in range(x.shape[1]):
            q = torch.maximum(top, self.bonus + k[:, t])
            e1, e2 = torch.exp(top - q), torch.exp(self.bonus + k[:, t] - q)
            outs.append((e1 * a + e2 * v[:, t]) / (e1 * b + e2))
            q = torch.maximum(top + w, k[:, t])
            e1, e2 = torch.exp(top + w - q), torch.exp(k[:, t] - q)
            a, b, top = e1 * a + e2 * v[:, t], e1 * b + e2, q
        return self.out(torch.sigmoid(r) * torch.stack(outs, 1)) + x


@program
def rwkv(k: int) -> Program:
    """A stable recurrence of weighted means."""
    return Program(_RWKV(), (torch.randn(2, 12 + 2 * k, 32), torch.randn(2, 12 + 2 * k, 32)), mse_step)
