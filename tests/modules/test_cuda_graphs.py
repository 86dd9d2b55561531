"""Calls of modules for CUDA as graphs. Without a device a graph is its call, started again with the same addresses."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import pytest
import torch
from torch import nn
from torch.nn import functional

from daceopt import optimized_module, training_step
from daceopt.errors import EarlierCallFailed
from daceopt.runtime import block_pool, device_entry, device_graphs
from daceopt.runtime.device_graphs import CallGraphs
from tests.modules.devices import on_device, stepped
from tests.numerics import assert_within_rounding
from tests.runtime.recorded import kept


class Images(nn.Module):
    """Library calls and kernels, statistics that a call updates, weights dropped at random."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.head = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Linear(8, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = functional.relu(self.norm(self.first(x)))
        return self.head(functional.dropout(x, 0.25, self.training).mean((2, 3)))


class Rows(nn.Module):
    """An index that a kernel checks, and what follows it."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.norm, self.head = nn.Embedding(20, 16), nn.LayerNorm(16), nn.Linear(16, 4)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.norm(self.table(ids))).softmax(-1)


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch, emulated: None) -> list[CallGraphs]:
    """Those of all programs, on the host, whose blocks come back as those of a device's allocator do."""
    made: list[CallGraphs] = []
    monkeypatch.setattr(device_graphs, "graphs_for", kept(made))
    monkeypatch.setattr(device_entry, "_allocator", lambda _, *like: block_pool.allocator(*like))
    monkeypatch.setattr(block_pool, "THRESHOLD", 1)
    return made


@pytest.fixture
def device_s_graphs(monkeypatch: pytest.MonkeyPatch, device: None) -> list[CallGraphs]:
    """Those of all programs, on a device."""
    made: list[CallGraphs] = []
    real = device_graphs.graphs_for

    def make(place: torch.device, kernels: int) -> CallGraphs | None:
        found = real(place, kernels)
        made.extend([] if found is None else [found])
        return found

    monkeypatch.setattr(device_graphs, "graphs_for", make)
    return made


def _launched(graphs: list[CallGraphs]) -> int:
    return sum(g.launched for g in graphs)


def _host(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().cpu().clone()  # a copy, to be looked at by numpy, which would keep the block


def _check_steps(device: str, recipe: str, graphs: list[CallGraphs], steps: int) -> None:
    """Losses, gradients and statistics of each step of a loop, beside float64."""
    torch.manual_seed(0)
    plain = Images()
    plain.eval()  # what is dropped is another test's
    plain.norm.train()
    wide, ours = (
        copy.deepcopy(plain).double(),
        optimized_module(copy.deepcopy(plain).to(device), recipe=recipe, fallback="raise"),
    )
    x, seed = torch.empty(4, 3, 9, 9), torch.randn(4, 5)
    given, given_seed = x.to(device), seed.to(device)
    for _ in range(steps):
        x.normal_()
        given.copy_(x)
        for module in (plain, wide, ours):
            module.zero_grad(set_to_none=True)
        single, exact, found = plain(x), wide(x.double()), ours(given)
        for y, dy in ((single, seed), (exact, seed.double()), (found, given_seed)):
            y.backward(dy)
        assert_within_rounding(_host(found), exact.detach(), single.detach(), ulps=64)
        for p, s, w in zip(ours.parameters(), plain.parameters(), wide.parameters(), strict=True):
            assert p.grad is not None and s.grad is not None and w.grad is not None
            assert_within_rounding(_host(p.grad), w.grad, s.grad, ulps=64)
        for b, s, w in zip(ours.buffers(), plain.buffers(), wide.buffers(), strict=True):
            assert_within_rounding(_host(b), w, s, ulps=64)
    assert _launched(graphs) > 0


def test_steps_with_graphs_are_right(graphs: list[CallGraphs]) -> None:
    _check_steps("cpu", "gpu", graphs, 12)


@on_device
def test_steps_with_graphs_on_a_device_are_right(device_s_graphs: list[CallGraphs]) -> None:
    _check_steps("cuda", "auto", device_s_graphs, 60)  # whose blocks come back sooner or later


def test_what_is_dropped_is_drawn_in_each_call(graphs: list[CallGraphs]) -> None:
    _check_dropout("cpu", "gpu", graphs)


@on_device
def test_what_is_dropped_on_a_device_is_drawn_in_each_call(device_s_graphs: list[CallGraphs]) -> None:
    _check_dropout("cuda", "auto", device_s_graphs)


def _check_dropout(device: str, recipe: str, graphs: list[CallGraphs]) -> None:
    torch.manual_seed(0)
    net = optimized_module(Images().to(device).requires_grad_(False), recipe=recipe, fallback="raise")
    x, found = torch.randn(4, 3, 9, 9, device=device), []
    for _ in range(8):
        torch.manual_seed(5)
        first, second = _host(net(x)), _host(net(x))
        assert not torch.equal(first, second)
        found.append((first, second))
    for first, second in found[1:]:
        assert torch.equal(first, found[0][0]) and torch.equal(second, found[0][1])
    assert _launched(graphs) > 0


def test_a_wrong_index_in_a_graph_is_told_by_the_next_call(graphs: list[CallGraphs]) -> None:
    _check_index("cpu", "gpu", graphs)


@on_device
def test_a_wrong_index_in_a_graph_on_a_device_is_told_by_the_next_call(device_s_graphs: list[CallGraphs]) -> None:
    _check_index("cuda", "auto", device_s_graphs)


def _check_index(device: str, recipe: str, graphs: list[CallGraphs]) -> None:
    net = optimized_module(Rows().to(device).eval(), recipe=recipe, fallback="raise")
    ids = torch.tensor([3, 7], device=device)
    with torch.no_grad():
        right = net(ids).clone()
        for _ in range(6):
            assert torch.equal(net(ids), right)
        launched = _launched(graphs)
        assert launched > 0
        ids.fill_(25)
        net(ids)
        assert _launched(graphs) == launched + 1
        if device == "cuda":
            torch.cuda.synchronize()
        ids.copy_(torch.tensor([3, 7]))
        with pytest.raises(EarlierCallFailed, match="an index is out of range"):
            net(ids)
        assert torch.equal(net(ids), right)


@on_device
def test_results_are_the_callers_to_keep(device_s_graphs: list[CallGraphs]) -> None:
    net = optimized_module(Images().cuda().eval(), fallback="raise")
    x = torch.randn(4, 3, 9, 9, device="cuda")
    held = []
    with torch.no_grad():
        for _ in range(8):
            net(x)
        for k in range(6):
            x.fill_(k)
            held.append((k, net(x)))
        for k, found in held:
            with _kernel_by_kernel():
                assert torch.equal(found, net(x.fill_(k)))


@contextmanager
def _kernel_by_kernel() -> Iterator[None]:
    """Calls start no graph, as within a recording of the caller's."""
    was = device_graphs.are_recorded
    device_graphs.are_recorded = lambda: True
    try:
        yield
    finally:
        device_graphs.are_recorded = was


@on_device
def test_streams_have_graphs_of_their_own(device_s_graphs: list[CallGraphs]) -> None:
    """Two streams at once: what one computes is not in the way of the other."""
    net = optimized_module(Images().cuda().eval(), fallback="raise")
    streams = [torch.cuda.Stream() for _ in range(3)]
    xs = [torch.randn(64, 3, 33, 33, device="cuda") for _ in streams]
    torch.cuda.synchronize()
    with torch.no_grad():
        expected = [net(x).clone() for x in xs]
        torch.cuda.synchronize()
        for _ in range(10):
            found = []
            for stream, x in zip(streams, xs):
                with torch.cuda.stream(stream):
                    found.append(net(x))
            torch.cuda.synchronize()
            for mine, right in zip(found, expected):
                torch.testing.assert_close(mine, right)
    assert _launched(device_s_graphs) > 10


@on_device
def test_a_recording_of_the_callers_takes_the_kernels(device_s_graphs: list[CallGraphs]) -> None:
    net = optimized_module(Images().cuda().eval(), fallback="raise")
    x = torch.randn(4, 3, 9, 9, device="cuda")
    stream = torch.cuda.Stream()
    with torch.no_grad():
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(6):
                net(x)
        torch.cuda.synchronize()
        before, graph = _launched(device_s_graphs), torch.cuda.CUDAGraph()
        assert before
        with torch.cuda.graph(graph):
            found = net(x)
        assert _launched(device_s_graphs) == before
        x.normal_()
        graph.replay()
        assert torch.equal(found, net(x))


@on_device
def test_memory_does_not_grow_with_graphs(device_s_graphs: list[CallGraphs]) -> None:
    net = optimized_module(Images().cuda(), fallback="raise")
    x, used = torch.randn(8, 3, 33, 33, device="cuda"), []
    for _ in range(30):
        net.zero_grad(set_to_none=True)
        net(x).sum().backward()
        torch.cuda.synchronize()
        used.append((torch.cuda.memory_allocated(), torch.cuda.memory_reserved()))
    recorded = sum(g.recorded for g in device_s_graphs)  # each holds its seed, and what libraries took for it
    assert recorded and used[-1][0] - used[2][0] <= recorded * 2**21
    assert used[15][1] == used[-1][1]
    assert _launched(device_s_graphs)


@on_device
def test_a_training_step_as_a_graph(device_s_graphs: list[CallGraphs]) -> None:
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(5, 16), nn.LayerNorm(16), nn.Tanh(), nn.Linear(16, 3))
    ours, wide = copy.deepcopy(plain).cuda(), copy.deepcopy(plain).double()
    step = training_step(ours, nn.MSELoss(), torch.optim.SGD(ours.parameters(), 1e-2, momentum=0.9), fallback="raise")
    others = [(m, torch.optim.SGD(m.parameters(), 1e-2, momentum=0.9)) for m in (plain, wide)]
    given, wanted = torch.empty(8, 5, device="cuda"), torch.empty(8, 3, device="cuda")
    for _ in range(10):
        x, target = torch.randn(8, 5), torch.randn(8, 3)
        given.copy_(x), wanted.copy_(target)
        loss, losses = step(given, wanted), stepped(others, x, target)
        assert_within_rounding(loss.detach().cpu(), losses[1], losses[0], ulps=64)
    assert _launched(device_s_graphs) > 0


@on_device
def test_a_switch_of_torch_between_calls_is_heeded(device_s_graphs: list[CallGraphs]) -> None:
    net = optimized_module(nn.Sequential(nn.Linear(512, 512), nn.Softmax(-1), nn.Linear(512, 512)).cuda())
    x = torch.randn(512, 512, device="cuda")
    with torch.no_grad():
        exact = [net(x).clone() for _ in range(6)][-1]
        torch.backends.cuda.matmul.allow_tf32 = True  # the fixture sets it back
        rough = [net(x).clone() for _ in range(6)]
        assert not torch.equal(rough[0], exact) and torch.equal(rough[0], rough[-1])


@on_device
def test_a_recording_that_is_refused_leaves_nothing_behind() -> None:
    """Memory, random numbers and later recordings are as if it had not been."""
    place = torch.device("cuda", torch.cuda.current_device())
    x = torch.ones(8, device=place)
    refused, others = (CallGraphs(place, partial(device_graphs._record, place)) for _ in range(2))
    assert not any(refused.launch("a", lambda _: (x + 1).sum().item(), None) for _ in range(4))
    torch.cuda.synchronize()
    torch.manual_seed(0)
    drawn = torch.randn(1000, device=place)
    torch.manual_seed(0)
    assert torch.equal(torch.randn(1000, device=place), drawn)
    blocks = [torch.full((1 << 20,), float(k), device=place) for k in range(4)]
    assert [float(b.max()) for b in blocks] == [0, 1, 2, 3]
    assert [others.launch("b", lambda _: x.add_(1), None) for _ in range(4)] == [False, False, True, True]
    torch.cuda.synchronize()
    assert torch.equal(x, torch.full_like(x, 3))
