"""Modules through the recipe ``gpu`` whose operators have no kernels of ours: algorithms, and calls of ATen. As in
``test_cuda.py``, torch's operators work on the host's arrays where there is no device."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from daceopt import optimized_module
from daceopt.capture.torch.calls import Operand
from daceopt.errors import FallbackWarning, RunError, Unsupported
from daceopt.ir.graph.graph import Graph
from daceopt.ir.nodes.library import HostCall
from daceopt.ir.scalar import types
from daceopt.libs import aten_call
from daceopt.libs.base import choose, why_not
from daceopt.runtime import device_graphs
from daceopt.runtime.device_graphs import CallGraphs
from tests.modules.devices import on_device
from tests.numerics import assert_within_rounding
from tests.runtime.recorded import kept
from tests.twins import module

_FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
_F32 = types.from_name("float32")
_Function = Callable[[torch.Tensor], Any]


def _index(x: torch.Tensor, extent: int) -> torch.Tensor:
    return (x.detach() * 3).long().abs() % extent


_SAME_WIDTH = {
    torch.float32: torch.int32,
    torch.float64: torch.int64,
    torch.float16: torch.int16,
    torch.bfloat16: torch.int16,
}

# each of a matrix [m, n]; equal elements are rare, since their order is not promised
_ALGORITHMS: dict[str, _Function] = {
    "cumsum": lambda x: torch.cumsum(x, 0),
    "cumsum of columns": lambda x: torch.cumsum(x.T, -1),
    "cumprod": lambda x: torch.cumprod(x, 1),
    "sort": lambda x: x.sort(-1),
    "stable sort": lambda x: torch.sort(x, dim=0, descending=True, stable=True),
    "topk": lambda x: x.topk(min(3, x.shape[-1]), -1),
    "smallest": lambda x: x.topk(min(2, x.shape[0]), 0, largest=False),
    "kthvalue": lambda x: x.kthvalue(1 + x.shape[-1] // 2, -1),
    "median": lambda x: x.median(0),
    "nanmedian": lambda x: x.nanmedian(-1, keepdim=True),
    "median of all": lambda x: x.median(),
    "cummax": lambda x: x.cummax(0),
    "cummin": lambda x: x.cummin(-1),
    "searchsorted": lambda x: torch.searchsorted(x.detach().contiguous().sort(-1)[0], x.detach().contiguous()) * x,
    "bucketize": lambda x: torch.bucketize(x.detach(), x.detach().flatten().sort()[0], right=True) * x,
    "scatter_add": lambda x: x.new_zeros(9, x.shape[1]).scatter_add(0, _index(x, 9), x),
    "index_reduce": lambda x: x.scatter_reduce(0, _index(x, x.shape[0]), x * 2, "amax"),
    "bits": lambda x: (x * 2).view(_SAME_WIDTH[x.dtype]) % 5 * x,
}
_CALLS: dict[str, _Function] = {
    "inverse": lambda x: torch.linalg.inv(x.T @ x + torch.eye(x.shape[1], dtype=x.dtype, device=x.device)),
    "determinant": lambda x: torch.linalg.det(x.T @ x),
    "turned": lambda x: torch.logcumsumexp(x.flip(0), 0),
    "transform": lambda x: torch.fft.rfft(x, n=8, dim=0).abs(),
    "complex": lambda x: torch.view_as_real(torch.linalg.solve(torch.complex(x.T @ x, x.T @ x), x.T + 1j)),
    "histogram": lambda x: torch.histc(x.detach(), bins=5, min=-2, max=2) * x.sum(),
    "functions": lambda x: torch.special.erfcx(x) + torch.special.i1(x),
    "pairs": lambda x: torch.cdist(x, x + 1, p=1.5),
    "list": lambda x: torch.block_diag(x, x.T, x),
}


def _run(function: _Function, x: torch.Tensor, call: _Function) -> list[torch.Tensor]:
    """Results and gradient of ``function``, computed by ``call``."""
    x = x.detach().clone(memory_format=torch.preserve_format).requires_grad_()
    found = call(x)
    results = [found] if isinstance(found, torch.Tensor) else list(found)
    floats = [r for r in results if r.requires_grad]
    sum((r * r).sum() for r in floats).backward()
    assert x.grad is not None
    return [r.detach() for r in results] + [x.grad]


def _check(function: _Function, x: torch.Tensor, recipe: str) -> None:
    """Results and gradients beside float64 on the host, and eager PyTorch's."""
    torch._dynamo.reset()
    net = optimized_module(module(lambda self, x: function(x)), recipe=recipe, fallback="raise")
    ours, theirs = _run(function, x, net), _run(function, x, function)
    exact_x, same_bits = x.cpu().double(), x.cpu()  # what bits mean depends on the type
    wide = _run(function, same_bits if function is _ALGORITHMS["bits"] else exact_x, function)
    for mine, eager, exact in zip(ours, theirs, wide, strict=True):
        assert (mine.dtype, mine.shape, mine.device) == (eager.dtype, eager.shape, eager.device)
        if not mine.is_floating_point():
            assert torch.equal(mine, eager)
        elif not torch.equal(mine, eager):
            assert_within_rounding(mine.cpu(), exact.cpu(), eager.cpu(), ulps=64)
    assert not net.daceopt.stats.eager_calls


def _distinct(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    """Numbers around 0, exact in every type, none of which comes twice."""
    count = torch.Size(shape).numel()
    return (
        ((torch.randperm(count, generator=torch.Generator().manual_seed(3)) - count // 2) / 32).reshape(shape).to(dtype)
    )


_SHAPES = [(7, 5), (1, 9), (33, 3)]


@pytest.mark.share(8)
@pytest.mark.parametrize("dtype", _FLOATS, ids=str)
@pytest.mark.parametrize("name", _ALGORITHMS)
def test_algorithms(name: str, dtype: torch.dtype, emulated: None) -> None:
    _check(_ALGORITHMS[name], _distinct(dtype, 7, 5), "gpu")


@pytest.mark.filterwarnings("ignore:torch.searchsorted")  # that eager PyTorch copies what is transposed
@pytest.mark.share(12)
@pytest.mark.parametrize("shape", _SHAPES[1:], ids=str)
@pytest.mark.parametrize("name", _ALGORITHMS)
def test_algorithms_of_other_shapes(name: str, shape: tuple[int, int], emulated: None) -> None:
    _check(_ALGORITHMS[name], _distinct(torch.float32, *reversed(shape)).T, "gpu")


@pytest.mark.share(5)
@pytest.mark.parametrize("dtype", (torch.float32, torch.float64), ids=str)
@pytest.mark.parametrize("name", _CALLS)
def test_calls_of_aten(name: str, dtype: torch.dtype, emulated: None) -> None:
    _check(_CALLS[name], _distinct(dtype, 7, 5), "gpu")


@on_device
@pytest.mark.parametrize("shape", _SHAPES, ids=str)
@pytest.mark.parametrize("dtype", _FLOATS, ids=str)
@pytest.mark.parametrize("name", _ALGORITHMS)
def test_algorithms_on_a_device(name: str, dtype: torch.dtype, shape: tuple[int, int]) -> None:
    _check(_ALGORITHMS[name], _distinct(dtype, *reversed(shape)).T.cuda(), "auto")


@on_device
@pytest.mark.parametrize("dtype", (torch.float32, torch.float64), ids=str)
@pytest.mark.parametrize("name", _CALLS)
def test_calls_of_aten_on_a_device(name: str, dtype: torch.dtype) -> None:
    _check(_CALLS[name], _distinct(dtype, 7, 5).cuda(), "auto")


_EMPTY = ("cumsum", "cumprod", "sort", "cummax", "scatter_add")


def _check_integers_and_empty(device: str, recipe: str) -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x.cumsum(0), x.sort(-1)[0], x.cummax(0)[0], x.cumprod(1)

    net = optimized_module(module(lambda self, x: function(x)), recipe=recipe, fallback="raise")
    integers = (torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64)
    cases = [(dtype, (6, 4)) for dtype in integers]
    cases += [(torch.float32, shape) for shape in ((0, 4), (4, 3, 0), (1, 1))]
    for dtype, shape in cases:
        x = torch.arange(torch.Size(shape).numel(), device=device).mul(7).remainder(13).reshape(shape).to(dtype)
        for mine, theirs in zip(net(x), function(x), strict=True):
            assert mine.dtype == theirs.dtype and torch.equal(mine, theirs)


def test_integers_and_empty_tensors(emulated: None) -> None:
    _check_integers_and_empty("cpu", "gpu")


@on_device
def test_integers_and_empty_tensors_on_a_device() -> None:
    _check_integers_and_empty("cuda", "auto")


# ---------------------------------------------------------------- sizes, numbers, random numbers


def _check_sizes(device: str, recipe: str) -> None:
    """What follows from open sizes is no array: nobody reads memory of a device for it."""

    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.fft.rfft(x, n=2 * x.shape[0] + 1, dim=0).abs()

    net = optimized_module(module(lambda self, x: function(x)), recipe=recipe, fallback="raise", dynamic=True)
    for rows in (5, 8, 11):
        x = torch.randn(rows, 3, device=device)
        torch.testing.assert_close(net(x), function(x))
    assert not net.daceopt.stats.eager_calls


def test_sizes_are_arguments_of_the_call(emulated: None) -> None:
    _check_sizes("cpu", "gpu")


@on_device
def test_sizes_are_arguments_of_the_call_on_a_device() -> None:
    _check_sizes("cuda", "auto")


def _check_drawn(device: str, recipe: str) -> None:
    """The default generator is the one that eager PyTorch draws from, once in each call."""

    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.poisson(x.exp()) + x

    net, x = optimized_module(module(lambda self, x: function(x)), recipe=recipe, fallback="raise"), torch.ones(8, 8)
    x = x.to(device)
    net(x)
    for _ in range(6):
        torch.manual_seed(5)
        expected = [function(x), function(x)]
        torch.manual_seed(5)
        assert torch.equal(net(x), expected[0]) and torch.equal(net(x), expected[1])


def test_operators_that_draw_random_numbers(emulated: None) -> None:
    _check_drawn("cpu", "gpu")


@on_device
def test_operators_that_draw_random_numbers_on_a_device() -> None:
    _check_drawn("cuda", "auto")


# ---------------------------------------------------------------- recorded calls


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch, emulated: None) -> Iterator[list[CallGraphs]]:
    made: list[CallGraphs] = []
    monkeypatch.setattr(device_graphs, "graphs_for", kept(made))
    yield made


@pytest.mark.parametrize(
    ("function", "recorded"),
    [
        (lambda x: torch.cumsum(x, 0).sort(-1)[0].tanh(), True),
        (lambda x: torch.special.erfcx(x), True),  # its kernels are the same in each call
        (lambda x: torch.poisson(x.exp()), False),
        (lambda x: torch.linalg.inv(x @ x.T), False),
    ],
    ids=["algorithms", "pointwise", "random", "waiting"],
)
def test_what_may_be_recorded(function: _Function, recorded: bool, graphs: list[CallGraphs]) -> None:
    net = optimized_module(module(lambda self, x: function(x)), recipe="gpu", fallback="raise")
    net(torch.randn(4, 4))
    assert bool(graphs) == recorded


# ---------------------------------------------------------------- errors


def test_an_operator_that_fails(emulated: None) -> None:
    """Its error is that of the call; the next one is as if nothing had been."""
    net = optimized_module(module(lambda self, x: torch.linalg.cholesky(x) * 2), recipe="gpu", fallback="raise")
    right = torch.eye(3)
    with pytest.raises((RunError, torch.linalg.LinAlgError), match="cholesky"):
        net(-right)
    assert torch.equal(net(right), right * 2)


@on_device
def test_an_operator_that_fails_on_a_device() -> None:
    net = optimized_module(module(lambda self, x: torch.linalg.cholesky(x) * 2), fallback="raise")
    right = torch.eye(3, device="cuda")
    with pytest.raises((RunError, torch.linalg.LinAlgError), match="cholesky"):
        net(-right)
    assert torch.equal(net(right), right * 2)


def test_operators_of_users(emulated: None) -> None:
    """Also those that are written in Python, with their derivatives."""

    @torch.library.custom_op("daceopt_tests::cuda_scaled", mutates_args=())
    def scaled(x: torch.Tensor, factors: list[float], name: str) -> torch.Tensor:
        assert name == 'a "name"'
        return x * factors[0] + factors[1]

    @scaled.register_fake
    def _(x: torch.Tensor, factors: list[float], name: str) -> torch.Tensor:
        return torch.empty_like(x)

    scaled.register_autograd(lambda ctx, g: (g * ctx.factor, None, None), setup_context=_keep_factor)

    def function(x: torch.Tensor) -> torch.Tensor:
        return scaled(x, [3.0, float("inf")], 'a "name"').clamp(max=10) + scaled(x, [2.0, 1.0], 'a "name"')

    _check(function, _distinct(torch.float32, 5, 3), "gpu")


def _keep_factor(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.factor = inputs[1][0]


def test_a_device_elsewhere_is_refused() -> None:
    graph = Graph("elsewhere")
    x = graph.add_input("x", (3,), _F32)
    call = torch.ops.aten._to_copy.default
    given = {**{a.name: None for a in call._schema.arguments}, "self": Operand(0), "non_blocking": False}
    (y,) = aten_call.add(graph, call, {**given, "device": torch.device("cpu")}, [x], [((3,), _F32)])
    graph.add_output(str(y))
    graph.options = replace(graph.options, target="cuda")
    (node,) = graph.nodes()
    assert why_not("torch_call", node, graph) == "an argument names the device cpu; arrays are on cuda"


def test_other_calls_of_python_are_refused() -> None:
    graph = Graph("python")
    x, y = graph.add_input("x", (3,), _F32), graph.add_array("y", (3,), _F32)
    call = HostCall(callback="tests.libs.test_host:flip", payload="float32")
    graph.add_node(call, {"In0": x}, {"Out0": y})
    graph.options = replace(graph.options, target="cuda")
    with pytest.raises(Unsupported, match="torch_call: for calls of ATen only"):
        choose(call, graph)


@on_device
def test_what_a_device_does_not_run_is_eager() -> None:
    def grouped(x: torch.Tensor) -> torch.Tensor:
        return functional.relu(x)[x.sum(-1) > 0]

    net, x = optimized_module(nn.Sequential(module(lambda self, x: grouped(x)))), torch.randn(9, 33, device="cuda")
    with pytest.warns(FallbackWarning):
        assert torch.equal(net(x), grouped(x))
