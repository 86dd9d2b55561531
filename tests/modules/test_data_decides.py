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
from daceopt.torch_internals.release import number_of
from tests.modules.asserting import DEMANDS, Asserted, Caught, Counting, Demanding, Handled, ReadAsserted, Refused
from tests.numerics import assert_within_rounding
from tests.twins import module


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
    assert 0 < counts[-1] <= 20
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


_READS = [sum, lambda n: 2 if n[0] > 1 else 3, lambda n: float(n[1] > n[0]), lambda n: 2 if n[1] else 3]


@pytest.mark.parametrize("read", _READS)
def test_a_list_of_numbers_that_decides(read):
    """The graph breaks where the list is read, and no call runs in eager for it."""
    forward = module(lambda self, x, k: x.tanh() * read(k.tolist()) + 1)
    net = optimized_module(copy.deepcopy(forward), fallback="silent")
    for numbers in ([1, 2], [3, 0], [5, 9]):
        x, k = torch.randn(3), torch.tensor(numbers)
        torch.testing.assert_close(net(x, k), forward(x, k))
    assert net.daceopt.stats.eager_calls == 0 and all("a number is read" in r for r in net.daceopt.reasons)


def test_whether_a_mask_leaves_anything():
    """The graph breaks at the branch, not where the mask is used."""

    def forward(self, x, k):
        some = x[k > 1].tanh()
        if len(some):
            return some.mean(0)
        return x.sum(0)

    net = optimized_module(module(forward), fallback="silent")
    for numbers in ([1, 2, 2], [0, 0, 1], [2, 3, 4]):
        x, k = torch.randn(3, 2), torch.tensor(numbers)
        torch.testing.assert_close(net(x, k), forward(None, x, k))
    (reason,) = net.daceopt.reasons
    assert "if len(some)" in reason and net.daceopt.stats.eager_calls == 0


def test_assertions_of_numbers_that_are_read():
    """Dynamo forgets those of floats; here each raises what Python does, in its place, and breaks no graph."""
    theirs, ours = ReadAsserted(), optimized_module(ReadAsserted(), fallback="raise")
    for add, longest in ((0.0, 2), (0.0, 3), (9.0, 3), (0.0, 9), (-4.5, 3), (1.0, 1)):
        x, k = torch.linspace(-1, 1, 12).reshape(3, 4) + add, torch.tensor([1, longest, 0])
        if (add == 0.0 and longest < 4) or add == 1.0:
            torch.testing.assert_close(ours(x, k), theirs(x, k))
            continue
        with pytest.raises(AssertionError) as wanted:
            theirs(x, k)
        with pytest.raises(AssertionError) as raised:
            ours(x, k)
        assert str(raised.value) == str(wanted.value)
    assert ours.calls == theirs.calls and not ours.daceopt.reasons and ours.daceopt.stats.eager_calls == 0


def test_an_assertion_that_is_caught():
    theirs, ours = Caught(), optimized_module(Caught(), fallback="silent")
    for add in (0.0, 5.0, 0.0):
        torch.testing.assert_close(ours(torch.ones(3) * add), theirs(torch.ones(3) * add))


def _outcome(net, x):
    """What a call gives or raises."""
    try:
        result = net(x)
    except Exception as error:
        return type(error), str(error)
    if result.requires_grad:
        net.zero_grad()
        result.sum().backward()
    return [result.detach().double(), *[p.grad.double() for p in net.parameters()]]


@pytest.mark.parametrize("demand", DEMANDS)
def test_a_branch_that_only_raises(demand):
    """It is a check in the one program, and raises the user's error with its message."""
    torch.manual_seed(0)
    theirs = Demanding(demand)
    ours = optimized_module(copy.deepcopy(theirs), recipe="cpu", fallback="raise")
    raised = []
    for scale in (1.0, 1000.0, 1.0, 1000.0):
        x = torch.linspace(-1, 1.2, 20).reshape(5, 4) * scale
        mine, wanted = _outcome(ours, x), _outcome(theirs, x)
        raised.append(isinstance(wanted, tuple))
        if raised[-1]:
            assert mine == wanted
        else:
            torch.testing.assert_close(mine, wanted, rtol=1e-5, atol=1e-6)
    assert raised == [False, True] * 2
    assert ours.daceopt.stats.programs == 1 and not ours.daceopt.reasons


@pytest.mark.parametrize("net", [Handled, Counting])
def test_a_branch_whose_error_is_caught_or_follows_a_change(net):
    theirs, ours = net(), optimized_module(net(), recipe="cpu", fallback="silent")
    for scale in (1.0, 100.0, 1.0, 100.0):
        mine, wanted = (_outcome(n, torch.linspace(-1, 1, 6) * scale) for n in (ours, theirs))
        if isinstance(wanted, tuple):
            assert mine == wanted
        else:
            torch.testing.assert_close(mine, wanted)
        torch.testing.assert_close(ours.state_dict(), theirs.state_dict())


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


# what is computed on as many elements as the data say: one graph, where nothing but sizes depends on that


def _neighbours(x, edges):
    edges = edges[:, edges[0] != edges[1]]
    loops = torch.arange(x.shape[0]).expand(2, -1)
    source, target = torch.cat([edges, loops], 1)
    degree = x.new_zeros(x.shape[0]).index_add(0, target, x.new_ones(source.shape[0]))
    return torch.zeros_like(x).index_add_(0, target, x[source] * degree.rsqrt()[source, None])


def _selected(x, edges):
    return x.masked_select(x > 0).exp().sum() + x[x > 0.5].square().sum()


def _twice(x, edges):
    some = x[edges[0] > 1]
    fewer = some[some[:, 0] > 0]
    return fewer * fewer.shape[0] + some.sum(0)


def _written(x, edges):
    out = x * 2
    out[out > 0.3] = out[out > 0.3].exp()
    mask = edges[0] > 1
    out[mask] = x.flip(0)[mask].tanh()
    return out


def _gathered(x, edges):
    out = torch.zeros_like(x)
    for k in range(3):
        (rows,) = torch.where(edges[0] == k)
        out.index_add_(0, rows, (x[rows] * (k + 1)).tanh())
    return out * x


def _repeated(x, edges):
    found = x.repeat_interleave(edges[0], 0)
    return found.exp(), torch.repeat_interleave(x, edges[1], dim=0).sum(0)


def _different(x, edges):
    values, places = torch.unique(edges, return_inverse=True)
    return x[places].sum() + values, values


def _counted(x, edges):
    count = int(edges.max()) + 1
    return x.new_zeros(count, 3).index_add(0, edges[0], x).square(), count


def _scaled(x, edges):
    scale = x.abs().max().item()
    return x / (scale + 1) * 2.5 + scale


def _without_gradients(x, edges):
    with torch.no_grad():
        mask = x.sum(-1) > 0
        weight = x[mask].exp()
    return (x[mask] * weight).sum(0), weight


def _attended(x, edges):
    some = x[edges[0] > 1]
    return torch.softmax(some @ some.T / 2, -1) @ some


def _shared(x, edges):
    """Results that share memory with what is written after a view of them was taken."""
    some = x[edges[0] > 1]
    first = some[:, 0]
    places = first.nonzero()
    some.mul_(2)
    return some, first, places


def _none(x, edges):
    some = x[edges[0] > 1000]
    return some.sum(0), some * 2, F.linear(some, x.new_ones(2, 3)), torch.cat([some, x])


def _dropped(x, edges):
    return x[edges[0] > 2].squeeze(0) * 2


def _split(x, edges):
    """Lengths that a tensor holds, as detectors split what they have found."""
    lengths = torch.stack([(edges[0] > 1).sum(), (edges[0] <= 1).sum()])
    return tuple(part.sum(0) * 2 for part in torch.split(x, lengths.tolist()))


def _begun(x, edges):
    return torch.stack([x[:length].sum() for length in edges[:, :2].tolist()[1]])


DECIDED = [
    *(_neighbours, _selected, _twice, _written, _gathered, _repeated, _different, _counted, _scaled),
    *(_without_gradients, _attended, _shared, _none, _dropped, _split, _begun),
]


class Decided(nn.Module):
    def __init__(self, between) -> None:
        super().__init__()
        self.weight, self.between = nn.Parameter(torch.tensor([0.5, -1.0, 2.0])), between

    def forward(self, x, edges):
        return self.between(x * self.weight, edges)


def _decided(net: nn.Module, x: torch.Tensor, edges: torch.Tensor) -> tuple[list[torch.Tensor], list[object]]:
    x = x.to(net.weight.dtype).clone().requires_grad_()
    results = net(x, edges)
    results = results if isinstance(results, tuple) else (results,)
    tensors = [r for r in results if isinstance(r, torch.Tensor)]
    loss = sum(t.square().sum() for t in tensors if t.requires_grad)
    found = [t.detach() for t in tensors] + list(torch.autograd.grad(loss, [x, net.weight]))
    others = [r for r in results if not isinstance(r, torch.Tensor)]
    return found, [*others, *(t.requires_grad for t in tensors), *(t.shape for t in tensors)]


@pytest.mark.parametrize("between", DECIDED, ids=lambda f: f.__name__.strip("_"))
def test_sizes_that_data_decide(between):
    """One graph, for ten choices of sizes, among them none and one, a program each time at most after the second."""
    torch.manual_seed(0)
    theirs = Decided(between)
    exact, ours, counts = copy.deepcopy(theirs).double(), copy.deepcopy(theirs), []
    optimized_module(ours, fallback="silent" if between is _dropped else "raise")
    for count in (7, 9, 5, 6, 11, 8, 3, 4, 10, 7):
        x, edges = torch.randn(count, 3), torch.randint(0, count, (2, count))
        (a, said), (b, _), (c, theirs_said) = (_decided(net, x, edges) for net in (ours, exact, theirs))
        assert said == theirs_said
        for one in zip(a, b, c):
            assert_within_rounding(*one)
        counts.append(ours.daceopt.stats.programs)
    assert counts[-1] == counts[1] <= 2 * counts[0]
    assert ours.daceopt.stats.eager_calls == ours.daceopt.stats.eager_pieces <= (between is _dropped) * 3


def _added(x, edges):
    return x[edges[0] > 1] + x[edges[1] > 1]


def test_sizes_that_are_one_where_others_are_more():
    """A program adds as many as there are; that one is added to each is seen in the call, which runs in eager."""
    net = optimized_module(Decided(_added), fallback="silent")
    x = torch.randn(6, 3)
    for first in ([2, 2, 2, 0, 0, 0], [2, 0, 0, 0, 0, 0], [2, 2, 2, 2, 0, 0]):
        edges = torch.tensor([first, [2, 2, 2, 0, 0, 0] if first[3] == 0 else [2, 2, 2, 2, 0, 0]])
        torch.testing.assert_close(net(x, edges), _added(x * net.weight, edges))
    if number_of(torch.__version__) < (2, 12):
        pytest.skip("Dynamo breaks the graph at the sum; the results are right")
    assert (net.daceopt.stats.programs, net.daceopt.stats.eager_calls) == (2, 1)
    (reason,) = net.daceopt.reasons
    assert reason.startswith("sizes that the data decide are not as")
    edges = torch.tensor([[2, 2, 2, 0, 0, 0], [2, 2, 0, 0, 0, 0]])
    with pytest.raises(RuntimeError, match="must match the size of tensor b"):
        net(x, edges)


def test_what_is_checked_of_a_number():
    def first(x, edges):
        count = edges.max().item()
        torch._check(count < 5, lambda: "too many")
        return x[:count] * 2

    net, x = optimized_module(Decided(first), fallback="raise"), torch.randn(7, 3)
    for count in (3, 4, 0, 1):
        edges = torch.full((2, 7), count)
        torch.testing.assert_close(net(x, edges), first(x * net.weight, edges))
    with pytest.raises(RuntimeError, match="too many"):
        net(x, torch.full((2, 7), 6))
    assert net.daceopt.stats.eager_calls == 0


def test_what_a_trace_cannot_decide_breaks_the_graph():
    def some(x, edges):
        found = x[edges[0] > 1]
        return F.layer_norm(found, (3,)) + found.std()

    net, x = optimized_module(Decided(some), fallback="silent"), torch.randn(7, 3)
    for seed in range(3):
        torch.manual_seed(seed)
        edges = torch.randint(0, 7, (2, 7))
        torch.testing.assert_close(net(x, edges), some(x * net.weight, edges))
    assert net.daceopt.stats.eager_pieces == 0
    assert all(r.startswith("the size of what nonzero gives depends on") for r in net.daceopt.reasons)


def test_an_argument_is_written_at_places():
    def count(x, edges):
        seen[edges[0][edges[0] != edges[1]]] += 1
        return x * seen.sum()

    seen = torch.zeros(7)
    net, x = optimized_module(Decided(count), fallback="raise"), torch.randn(7, 3)
    edges = torch.tensor([[0, 1, 2, 3, 3, 4, 5], [0, 1, 0, 1, 2, 6, 5]])
    for k in range(1, 4):
        net(x, edges)
        assert seen.tolist() == [0, 0, k, k, k, 0, 0]


def test_gradients_of_gradients():
    torch.manual_seed(0)
    theirs = Decided(_twice)
    ours, found = optimized_module(copy.deepcopy(theirs), fallback="raise"), []
    for net in (ours, theirs):
        torch.manual_seed(1)
        x, edges = torch.randn(7, 3, requires_grad=True), torch.randint(0, 7, (2, 7))
        (grad,) = torch.autograd.grad(net(x, edges).exp().sum(), x, create_graph=True)
        found.append(torch.autograd.grad(grad.square().sum(), [x, net.weight]))
    for a, b in zip(*found):
        torch.testing.assert_close(a, b)


def _dropped_behind_a_branch(x, edges):
    return x[edges[0] > 2].squeeze(0) * 2 if x.sum() > -1e6 else x


def test_an_axis_that_may_be_dropped_behind_a_break():
    """A program for two rows would raise where one is left: nobody repeats what ran before a later piece."""
    net, x = optimized_module(Decided(_dropped_behind_a_branch), fallback="silent"), torch.randn(4, 3)
    for rows in ([0, 3, 3, 4], [0, 0, 0, 4], [3, 0, 3, 0]):
        edges = torch.tensor([rows, rows])
        torch.testing.assert_close(net(x, edges), _dropped(x * net.weight, edges))


@pytest.mark.parametrize("extremum", [lambda y: y.max(), lambda y: torch.min(y, dim=0).values, lambda y: y.max(1)[0]])
def test_an_extremum_of_nothing(extremum):
    """Eager PyTorch raises where the axis is empty, and there alone; a program would have the extremum's identity."""
    net, x = optimized_module(Decided(lambda x, edges: extremum(x[edges[0] > 1])), fallback="silent"), torch.randn(4, 3)
    for first in ([2, 2, 2, 0], [2, 2, 0, 0], [0, 0, 0, 0], [2, 2, 2, 2]):
        edges = torch.tensor([first, first])
        try:
            wanted = extremum((x * net.weight)[edges[0] > 1])
        except (IndexError, RuntimeError) as error:
            with pytest.raises(type(error), match="max|min"):
                net(x, edges)
        else:
            torch.testing.assert_close(net(x, edges), wanted)
    assert net.daceopt.stats.programs == 2  # before the choice, and behind it
