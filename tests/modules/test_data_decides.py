"""Modules in which numbers decide what is computed: loops and choices stay in Python, all else is compiled."""

from __future__ import annotations

import copy
import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from daceopt import optimized_module
from daceopt.errors import FallbackWarning
from tests.modules.asserting import Asserted, Refused
from tests.numerics import assert_within_rounding


@pytest.fixture(autouse=True)
def _programs(interpreted):
    pass


def _mlp(width: int = 8) -> nn.Sequential:
    return nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))


class Experts(nn.Module):
    """Each token is computed by the expert that has the highest score."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.gate = nn.LayerNorm(8), nn.Linear(8, 4)
        self.experts = nn.ModuleList(_mlp() for _ in range(4))

    def forward(self, x):
        x = self.norm(x)
        weight, index = torch.softmax(self.gate(x), -1).max(-1)
        out = torch.zeros_like(x)
        for e, expert in enumerate(self.experts):
            out[index == e] = expert(x[index == e])
        return out * weight[:, None]


class BestTwo(Experts):
    """Each token is computed by two experts; one that has no token is passed over."""

    def forward(self, x):
        weight, index = torch.softmax(self.gate(x), -1).topk(2, -1)
        out = torch.zeros_like(x)
        for e, expert in enumerate(self.experts):
            rows, slot = torch.where(index == e)
            if rows.numel() == 0:
                continue
            out.index_add_(0, rows, expert(x[rows]) * weight[rows, slot, None])
        return out + x


class Layers(nn.Module):
    """Mixtures of experts in a loop over layers."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Experts() for _ in range(2))

    def forward(self, x):
        for layer in self.layers:
            x = x + layer(x)
        return x.tanh()


class FixedPoint(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell, self.head = nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, x):
        z, error, n = torch.zeros_like(x), 1.0, 0
        while error > 1e-2 and n < 20:
            new = torch.tanh(0.5 * self.cell(z) + x)
            error, z, n = (new - z).abs().max(), new, n + 1
        return self.head(z)


class EarlyExit(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(_mlp() for _ in range(4))
        self.heads = nn.ModuleList(nn.Linear(8, 3) for _ in range(4))

    def forward(self, x):
        for block, head in zip(self.blocks, self.heads):
            x = block(x)
            y = head(x)
            if torch.softmax(y, -1).max(-1).values.mean() > 0.46:
                return y
        return y * 2


class Solver(nn.Module):
    """An adaptive solver (of order 2, with an error of order 1)."""

    def __init__(self) -> None:
        super().__init__()
        self.field = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 8))

    def step(self, y, h):
        slope = self.field(y)
        after = self.field(y + h * slope)
        return y + 0.5 * h * (slope + after), 0.5 * h * (after - slope).abs().max()

    def forward(self, y):
        t, h = y.new_zeros(()), y.new_full((), 0.4)
        while t < 1:
            h = torch.minimum(h, 1 - t)
            new, error = self.step(y, h)
            if error < 0.05:
                t, y = t + h, new
            h = h * (0.9 * (0.05 / (error.detach() + 1e-9)).sqrt()).clamp(0.3, 2)
        return y


class Suppression(nn.Module):
    """Of intervals that overlap the best remains."""

    def __init__(self) -> None:
        super().__init__()
        self.net = _mlp()

    def forward(self, x):
        found = self.net(x)
        low, high = found[:, 0], found[:, 0] + found[:, 1].exp()
        order, keep = found[:, 2].argsort(descending=True), []
        while order.numel() > 0:
            best, rest = order[:1], order[1:]
            keep.append(best)
            both = torch.minimum(high[best], high[rest]) - torch.maximum(low[best], low[rest])
            order = rest[both < 0.5]
        return found[torch.cat(keep)]


class Masked(nn.Module):
    """A masked autoencoder: what is visible is encoded, what is hidden predicted."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.encoder, self.head = nn.Linear(8, 8), _mlp(), nn.Linear(8, 8)
        self.token = nn.Parameter(torch.linspace(-1, 1, 8))

    def forward(self, x):
        mask = x[..., 0] > x[..., 0].median()
        visible = self.encoder(self.embed(x)[~mask])
        whole = self.token.expand(x.shape).clone()
        whole[~mask] = visible
        return (self.head(whole)[mask] - x[mask]).square().sum(-1)


class Doubtful(nn.Module):
    """Errors that are caught in the middle: what was computed before them stays, in variables and lists."""

    def __init__(self) -> None:
        super().__init__()
        self.body = _mlp()

    def check(self, x):
        if x.abs().mean() > 0.8:
            raise ArithmeticError

    def forward(self, x):
        kept, rows = [], []
        for row in x[:2]:
            rows.append(row)
        for _ in range(3):
            try:
                x = 1.5 * x
                kept.append(x)
                self.check(x)
                x = self.body(x)
            except ArithmeticError:
                x = x.tanh()
        return x + torch.stack(kept).sum(0) + torch.stack(rows).mean(0)


class Restarted(nn.Module):
    """A graph break before the loop that has one: the rest of forward is a function of Dynamo's."""

    def __init__(self) -> None:
        super().__init__()
        self.body = _mlp()

    def forward(self, x):
        x = self.body(x)
        if x.sum() > 0:
            x = -x
        for _ in range(3):
            x = self.body(x)
            if x.abs().max() < 0.1:
                break
        return x


MODULES = [Experts, BestTwo, Layers, FixedPoint, EarlyExit, Solver, Suppression, Masked, Doubtful, Restarted]


def _step(net: nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    x = x.clone().requires_grad_()
    net.zero_grad()
    y = net(x)
    y.square().sum().backward()
    none = torch.zeros(())
    return [y.detach(), x.grad, *(none if p.grad is None else p.grad.clone() for p in net.parameters())]


@pytest.mark.parametrize("kind", MODULES, ids=lambda kind: kind.__name__)
def test_results_and_gradients(kind):
    """Eager PyTorch's, for data that decide otherwise each time; programs do not grow with calls."""
    torch.manual_seed(0)
    theirs = kind()
    exact, ours, counts = copy.deepcopy(theirs).double(), copy.deepcopy(theirs), []
    optimized_module(ours, fallback="silent")
    for k in range(6):
        x = torch.randn(10, 8) * (1 + k % 3)
        found = zip(_step(ours, x), _step(exact, x.double()), _step(theirs, x))
        for a, b, c in found:
            assert_within_rounding(a, b, c)
        counts.append(ours.daceopt.stats.programs)
    assert 0 < counts[-1] <= 16
    assert ours.daceopt.stats.eager_calls <= 1


def test_experts_share_programs():
    net = optimized_module(Experts(), fallback="silent")
    for _ in range(3):
        net(torch.randn(16, 8)).sum().backward()
    assert net.daceopt.stats.programs <= 8  # not one for each of four experts


def test_the_reason_is_told_once():
    net = optimized_module(FixedPoint(), fallback="warn")
    with pytest.warns(FallbackWarning, match="where its graph breaks"):
        net(torch.randn(4, 8))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        net(torch.randn(4, 8))


@pytest.mark.parametrize("training", [True, False])
def test_an_assertion(training, built):
    """One program, which raises in the same place what Python raises: before an index is out of range, say."""
    torch.manual_seed(0)
    theirs = Asserted().train(training)
    ours = optimized_module(copy.deepcopy(theirs), fallback="raise")
    x, k = torch.randn(6, 4), torch.arange(6) % 5
    for _ in range(2):
        for net in (theirs, ours):
            net(x, k).sum().backward()
    bad = torch.full_like(x, torch.nan), k
    for arguments in (bad, (x, k + 3), (torch.full_like(x, torch.inf), k + 3)):
        seen = []
        for net in (theirs, ours):
            with pytest.raises(AssertionError) as raised:
                net(*arguments)
            seen.append(raised.value.args)
        assert seen[0] == seen[1]
    for a, b in zip(ours.state_dict().values(), theirs.state_dict().values()):
        torch.testing.assert_close(a, b, equal_nan=True)
    assert ours.daceopt.stats.programs == 1 and not ours.daceopt.reasons


def test_an_assertion_where_a_graph_is_refused():
    net = optimized_module(Refused(), fallback="silent")
    net(torch.ones(3, 2))
    with pytest.raises(AssertionError, match="below"):
        net(-torch.ones(3, 2))


def test_a_loop_of_numbers_stays_in_its_program():
    class Net(nn.Module):
        def forward(self, x):
            for k in range(3):
                x = F.relu(x) + k
            return x

    net = optimized_module(Net(), fallback="raise")
    net(torch.randn(3))
    assert net.daceopt.stats.programs == 1


def test_an_index_that_changes():
    """Of a number in a tensor: three programs, not one for each number."""

    class Schedule(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.body = nn.Parameter(torch.linspace(1, 2, 20)), nn.Linear(4, 4)

        def forward(self, x, t):
            return torch.tanh(self.body(x)) * self.table[t]

    net, x = Schedule(), torch.randn(2, 4)
    theirs = copy.deepcopy(net)
    optimized_module(net, fallback="silent")
    for k in range(8):
        found, expected = net(x, torch.tensor(k - 3)), theirs(x, torch.tensor(k - 3))
        torch.testing.assert_close(found, expected)
        ours = torch.autograd.grad(found.sum(), list(net.parameters()))
        for a, b in zip(ours, torch.autograd.grad(expected.sum(), list(theirs.parameters()))):
            torch.testing.assert_close(a, b)
    assert net.daceopt.stats.programs <= 5 and net.daceopt.stats.eager_calls == 0
    strict = optimized_module(copy.deepcopy(theirs), fallback="raise")
    for k in range(4):
        torch.testing.assert_close(strict(x, torch.tensor(k)), theirs(x, torch.tensor(k)))


@pytest.mark.parametrize("fallback", ["silent", "raise"])
def test_an_index_chooses_a_row(fallback):
    """A program that was compiled for one row is not that of another."""

    class Row(nn.Module):
        def forward(self, table, at):
            return table[at] * 2

    net, table = optimized_module(Row(), fallback=fallback), torch.arange(10.0).view(5, 2)
    for k in (0, 1, 3, 2, 1, 0):
        torch.testing.assert_close(net(table, torch.tensor(k)), table[k] * 2, rtol=0, atol=0)
