"""Convolutions, forward and backward, against torch in float64."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import product
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
import torch.nn.functional as F

from daceopt import libs
from daceopt.ir.graph.graph import Graph
from daceopt.ir.nodes.library import Convolution, ConvolutionBackwardData, ConvolutionBackwardWeights, DenseNode
from daceopt.ir.scalar import types
from daceopt.libs.onednn import flags
from tests.libs.harness import compile_graph, implemented
from tests.libs.together import Program, Steps, together
from tests.numerics import assert_within_rounding

LIBRARIES = [name for name in ("onednn", "aten", "native_convolution") if name in libs.names()]


class Case(NamedTuple):
    x: tuple[int, ...]
    w: tuple[int, ...]
    strides: tuple[int, ...] = ()
    pads: tuple[int, ...] = ()
    dilations: tuple[int, ...] = ()
    group: int = 1

    @property
    def attributes(self) -> dict[str, object]:
        return {"strides": self.strides, "pads": self.pads, "dilations": self.dilations, "group": self.group}


CASES = {
    "1d": Case((2, 3, 11), (4, 3, 3), (2,), (1, 1)),
    "2d": Case((2, 3, 9, 8), (5, 3, 3, 3), pads=(1, 1, 1, 1)),
    "3d": Case((2, 3, 5, 6, 7), (4, 3, 2, 3, 3), (1, 2, 1), (0, 1, 1, 1, 1, 0)),
    "stem": Case((2, 3, 32, 32), (64, 3, 7, 7), (2, 2), (3, 3, 3, 3)),
    "block": Case((2, 64, 8, 8), (64, 64, 3, 3), pads=(1, 1, 1, 1)),
    "1x1": Case((2, 64, 8, 8), (128, 64, 1, 1), (2, 2)),
    "asymmetric": Case((2, 16, 9, 7), (16, 16, 3, 2), (2, 1), (0, 1, 2, 0)),
    "dilated": Case((2, 16, 12, 12), (16, 16, 3, 3), pads=(2, 2, 2, 2), dilations=(2, 2)),
    "grouped": Case((2, 8, 7, 7), (12, 2, 3, 3), pads=(1, 1, 1, 1), group=4),
    "depthwise": Case((2, 32, 9, 9), (32, 1, 3, 3), (2, 2), (1, 1, 1, 1), group=32),
    "wide depthwise": Case((2, 36, 10, 9), (36, 1, 7, 7), pads=(3, 3, 3, 3), group=36),
    "wider than images": Case((3, 32, 4, 4), (32, 1, 7, 11), pads=(3, 5, 3, 5), group=32),
    "long depthwise": Case((2, 20, 5, 33), (20, 1, 2, 11), (1, 2), (1, 0, 0, 4), (2, 3), 20),
    "depthwise 1d": Case((2, 20, 40), (20, 1, 9), (3,), (4, 5), (2,), 20),
    "one channel": Case((2, 1, 6, 6), (1, 1, 3, 3)),
    "one pixel": Case((2, 16, 1, 1), (16, 16, 1, 1)),
}


def make(shape: tuple[int, ...], last: bool, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    torch.manual_seed(sum(shape))
    x = torch.randn(shape, dtype=dtype)
    return x.movedim(1, -1).contiguous().movedim(-1, 1) if last and len(shape) > 2 else x


def reference(case: Case, x: torch.Tensor, w: torch.Tensor, b: torch.Tensor | None) -> torch.Tensor:
    rank = x.dim() - 2
    pads = case.pads or (0,) * 2 * rank
    amounts = [p for d in reversed(range(rank)) for p in (pads[d], pads[d + rank])]
    function = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}[rank]
    return function(F.pad(x, amounts), w, b, case.strides or 1, 0, case.dilations or 1, case.group)


@contextmanager
def announced() -> Iterator[None]:
    """oneDNN prints the name of each kernel that it runs."""
    installed = Path(flags().link[0])
    ctypes.CDLL(str(installed))
    onednn = ctypes.CDLL(installed.name)  # by its name: the copy that programs are bound to, the first in the process
    onednn.dnnl_set_verbose(2)
    try:
        yield
    finally:
        onednn.dnnl_set_verbose(0)
        ctypes.CDLL(None).fflush(None)


def add(graph: Graph, hint: str, tensor: torch.Tensor, *, output: bool = False) -> str:
    dtype = types.from_torch(tensor.dtype)
    name = graph.add_array(hint, tensor.shape, dtype, tensor.stride())
    (graph.outputs if output else graph.inputs).append(name)
    return name


Call = tuple[DenseNode, dict[str, torch.Tensor], dict[str, torch.Tensor]]


def program(
    library: str,
    *calls: Call,
    careless: bool = False,
    context: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> Program:
    """One of (node, inputs, outputs) triples; a tensor that one call writes may be read by a later one."""
    graph, arrays, tensors = Graph("calls"), {}, []

    def array(connector: str, tensor: torch.Tensor, output: bool) -> str:
        if id(tensor) not in arrays:
            arrays[id(tensor)] = add(graph, connector, tensor, output=output)
            tensors.append(tensor)
        return arrays[id(tensor)]

    for node, reads, writes in calls:
        inputs = {c: array(c, t, False) for c, t in reads.items()}
        graph.add_node(node, inputs, {c: array(c, t, True) for c, t in writes.items()})
    with libs.prefer(**{type(node).__name__: library for node, _, _ in calls}):
        return Program(implemented(graph, careless), tensors, context)


def execute(library: str, *calls: Call) -> None:
    """Run one program by itself."""
    program(library, *calls).run()


@pytest.mark.share(4)
@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("last", [False, True], ids=["first", "last"])
@pytest.mark.parametrize("name", CASES)
@together
def test_forward_and_backward(library: str, last: bool, name: str) -> Steps:
    yield from forward_and_backward(library, last, CASES[name])


def forward_and_backward(library: str, last: bool, case: Case) -> Steps:
    x, w, b = make(case.x, last), make(case.w, False), make(case.w[:1], False)
    wide = [t.double().requires_grad_() for t in (x, w, b)]
    single = [t.detach().clone().requires_grad_() for t in (x, w, b)]
    expected, theirs = reference(case, *wide), reference(case, *single)
    y, dy = make(tuple(expected.shape), last), make(tuple(expected.shape), last)
    expected.backward(dy.double())
    theirs.backward(dy)

    dx, dw = torch.full_like(x, 7.0), torch.full_like(w, 7.0)
    yield program(
        library,
        (Convolution(**case.attributes), {"X": x, "W": w, "B": b}, {"Y": y}),
        (ConvolutionBackwardData(**case.attributes), {"dY": dy, "W": w}, {"dX": dx}),
        (ConvolutionBackwardWeights(**case.attributes), {"X": x, "dY": dy}, {"dW": dw}),
    )
    assert_within_rounding(y, expected, theirs)
    assert_within_rounding(dx, wide[0].grad, single[0].grad)
    assert_within_rounding(dw, wide[1].grad, single[1].grad)


@pytest.mark.share(2)
@pytest.mark.skipif("onednn" not in LIBRARIES, reason="oneDNN's wheels are not installed")
@pytest.mark.parametrize("last", [False, True], ids=["first to last", "last to first"])
@pytest.mark.parametrize("name", [*CASES, "patches"])
@together
def test_no_reference_kernel_where_layouts_differ(last: bool, name: str) -> Steps:
    """A patch embedding's weight gradient took 300 times as long as its limit: channels first in, channels last out."""
    case = {**CASES, "patches": Case((2, 3, 32, 32), (24, 3, 16, 16), (16, 16))}[name]
    x, w = make(case.x, last), make(case.w, False)
    wide, single = (tuple(t.to(d).detach().requires_grad_() for t in (x, w)) for d in (torch.float64, torch.float32))
    expected, theirs = (reference(case, *ts, None) for ts in (wide, single))
    y, dy = (make(tuple(expected.shape), not last) for _ in range(2))
    expected.backward(dy.double())
    theirs.backward(dy)
    dx, dw = torch.full_like(x, 7.0), torch.full_like(w, 7.0)
    said = yield program(
        "onednn",
        (Convolution(**case.attributes), {"X": x, "W": w}, {"Y": y}),
        (ConvolutionBackwardData(**case.attributes), {"dY": dy, "W": w}, {"dX": dx}),
        (ConvolutionBackwardWeights(**case.attributes), {"X": x, "dY": dy}, {"dW": dw}),
        context=announced,
    )
    for ours, exact, peer in (
        (y, expected, theirs),
        (dx, wide[0].grad, single[0].grad),
        (dw, wide[1].grad, single[1].grad),
    ):
        assert_within_rounding(ours, exact, peer)
    assert_no_reference_kernels(said, 3)


@pytest.mark.share(4)
@pytest.mark.skipif("onednn" not in LIBRARIES, reason="oneDNN's wheels are not installed")
@pytest.mark.parametrize("layouts", list(product([False, True], repeat=3)))
@pytest.mark.parametrize("name", CASES)
@together
def test_no_reference_kernel_adds_a_residual(name: str, layouts: tuple[bool, ...]) -> Steps:
    """WaveNet's residuals, channels first, made its inference 80 times as slow as eager."""
    case = CASES[name]
    x, w = make(case.x, layouts[0]), make(case.w, False)
    expected, single = reference(case, x.double(), w.double(), None), reference(case, x, w, None)
    z, y = (make(tuple(expected.shape), last) for last in layouts[1:])
    call = (Convolution(**case.attributes), {"X": x, "W": w, "Z": z}, {"Y": y})
    said = yield program("onednn", call, context=announced)
    assert_within_rounding(y, expected + z, single + z)
    assert_no_reference_kernels(said, 1)


def assert_no_reference_kernels(said: str, count: int) -> None:
    """``count`` convolutions said in oneDNN's words which kernels they ran."""
    ran = [line for line in said.splitlines() if ",exec," in line and ",convolution," in line]
    assert len(ran) == count, ran
    assert not [line for line in ran if ",ref" in line], ran


@pytest.mark.share(2)
@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("last", [False, True], ids=["first", "last"])
@pytest.mark.parametrize("name", ["stem", "block", "depthwise", "1d"])
@together
def test_epilogues(library: str, last: bool, name: str) -> Steps:
    yield from epilogues(library, last, CASES[name])


def epilogues(library: str, last: bool, case: Case) -> Steps:
    x, w, b = make(case.x, last), make(case.w, False), make(case.w[:1], False)
    plain = reference(case, x.double(), w.double(), None)
    z, y = make(tuple(plain.shape), last), make(tuple(plain.shape), last)
    kept = z.clone()
    single = reference(case, x, w, None)
    bias = b.reshape(-1, *[1] * (x.dim() - 2))
    cases = (({}, 0), ({"B": b}, bias), ({"Z": z}, z), ({"B": b, "Z": z}, bias + z))
    results = [torch.empty_like(y) for _ in cases]
    relu = library == "aten"
    attributes = {**case.attributes, "activation": "relu" if relu else None}
    calls = [
        (Convolution(**attributes), {"X": x, "W": w, **reads}, {"Y": out})
        for (reads, _), out in zip(cases, results, strict=True)
    ]
    yield program(library, *calls)
    for (_, addend), out in zip(cases, results, strict=True):
        expected, theirs = plain + addend, single + addend
        assert_within_rounding(out, expected.relu() if relu else expected, theirs.relu() if relu else theirs)
    assert torch.equal(z, kept)


# oneDNN has a kernel of its own for each
KERNELS = {name: CASES[name] for name in ("block", "depthwise", "1d", "1x1", "3d", "stem")} | {
    "odd channels": Case((2, 16, 9, 9), (21, 16, 3, 3), (1, 1), (1, 1, 1, 1)),
}


@pytest.mark.share(3)
@pytest.mark.parametrize("library", [*LIBRARIES, "native_convolution"])
@pytest.mark.parametrize("last", [False, True], ids=["first", "last"])
@pytest.mark.parametrize("name", ["block", "depthwise", "odd channels"])
@together
def test_results_are_scaled_and_clamped(library: str, last: bool, name: str) -> Steps:
    """In registers, and, outside of careless runs, exactly."""
    case = KERNELS[name]
    x, w, (b, s, t) = make(case.x, last), make(case.w, False), (make(case.w[:1], False) for _ in range(3))
    per_channel = (-1, *[1] * (x.dim() - 2))

    def expected(dtype: torch.dtype, z: torch.Tensor | None, slope: float, ceiling: float) -> torch.Tensor:
        y = reference(case, x.to(dtype), w.to(dtype), b.to(dtype)) * s.to(dtype).view(per_channel)
        y = y + t.to(dtype).view(per_channel) + (0 if z is None else z.to(dtype))
        return torch.nn.functional.leaky_relu(y, slope).clamp(max=ceiling)

    z = make(tuple(expected(torch.float32, None, 1, torch.inf).shape), last)
    limits = ((1, torch.inf), (0, torch.inf), (0.1, torch.inf), (0, 1.5), (0.1, 0.7))  # a slope of 1: no activation
    ways = list(product((None, z), limits))
    results = [torch.empty_like(z) for _ in ways]
    calls = [
        (
            Convolution(
                **case.attributes,
                activation=None if slope == 1 else "relu",
                slope=slope % 1,
                ceiling=ceiling,
                doubtful=slope == 0,
            ),
            {"X": x, "W": w, "B": b, "S": s, "T": t} | ({} if given is None else {"Z": given}),
            {"Y": out},
        )
        for (given, (slope, ceiling)), out in zip(ways, results, strict=True)
    ]
    yield program(library, *calls)
    for (given, limit), out in zip(ways, results, strict=True):
        assert_within_rounding(out, expected(torch.float64, given, *limit), expected(torch.float32, given, *limit))


@pytest.mark.share(2)
@pytest.mark.skipif("onednn" not in LIBRARIES, reason="oneDNN's wheels are not installed")
@pytest.mark.parametrize("last", [False, True], ids=["first", "last"])
@pytest.mark.parametrize("name", KERNELS)
@together
def test_residuals_where_the_result_will_stand(last: bool, name: str) -> Steps:
    """In registers with channels last, and in memory of their own where no kernel does that."""
    case = KERNELS[name]
    x, w, (s, t) = make(case.x, last), make(case.w, False), (make(case.w[:1], False) for _ in range(2))
    per_channel = (-1, *[1] * (x.dim() - 2))
    plain, single = reference(case, x.double(), w.double(), None), reference(case, x, w, None)
    z = make(tuple(plain.shape), last)
    ways = list(product((False, True), (None, "relu")))
    results = [z.clone() for _ in ways]
    calls = [
        (
            Convolution(**case.attributes, activation=activation, doubtful=activation is not None),
            {"X": x, "W": w, "Z": out.detach()} | ({"S": s, "T": t} if scaled else {}),
            {"Y": out},
        )
        for (scaled, activation), out in zip(ways, results, strict=True)
    ]
    said = yield program("onednn", *calls, careless=True, context=announced)

    def expected(sums: torch.Tensor, scaled: bool, activation: str | None) -> torch.Tensor:
        y = sums * s.to(sums.dtype).view(per_channel) + t.to(sums.dtype).view(per_channel) if scaled else sums
        return (y + z).relu() if activation else y + z

    for way, out in zip(ways, results, strict=True):
        assert_within_rounding(out, expected(plain, *way), expected(single, *way))
    assert_no_reference_kernels(said, len(calls))
    if last and name in ("block", "1x1", "3d", "odd channels"):
        assert len(re.findall(r",exec,.*post-ops:(\S*\+)?sum", said)) == len(calls), said


def image_of_extremes(case: Case) -> torch.Tensor:
    x = make(case.x, False)
    flat = x.reshape(-1)
    some = flat[:: min(97, len(flat) // 6)]
    some.copy_(torch.tensor([torch.inf, torch.nan, -torch.inf, 1e30, -1e30]).repeat(len(some))[: len(some)])
    return x


@pytest.mark.share(2)
@pytest.mark.parametrize("added", [False, True], ids=["", "added"])
@pytest.mark.parametrize("name", KERNELS)
@together
def test_relus_with_a_ceiling_lose_no_nan(name: str, added: bool) -> Steps:
    """Careless ones make one of -inf, in both layouts; all else is as PyTorch has it, also zero's sign."""
    case = KERNELS[name]
    x, w = image_of_extremes(case), make(case.w, False)
    sums = reference(case, x, w, None)
    theirs = torch.nn.functional.relu6(sums)
    clamped = {**case.attributes, "activation": "relu", "ceiling": 6.0, "doubtful": True}
    calls, results = [], []
    for last in (False, True):
        given = make(case.x, last)
        given.copy_(x)
        results.append(make(tuple(theirs.shape), last))
        z = {"Z": torch.zeros_like(results[-1])} if added else {}
        calls.append((Convolution(**clamped), {"X": given, "W": w} | z, {"Y": results[-1]}))
    assert libs.get("onednn").available() is None
    yield program("onednn", *calls, careless=True)
    for y in results:
        assert y[sums == -torch.inf].isnan().all() and (sums == torch.inf).any() and sums.isnan().any()
        assert_within_rounding(y[sums != -torch.inf], theirs.double()[sums != -torch.inf], theirs[sums != -torch.inf])
        assert not y.signbit()[y == 0].any()


@pytest.mark.parametrize("name", KERNELS)
@together
def test_leaky_relus_keep_what_is_no_number(name: str) -> Steps:
    """By oneDNN, in registers: NaN, infinities and signs of zero as PyTorch has them, in both layouts."""
    case = KERNELS[name]
    x, w = image_of_extremes(case), make(case.w, False)
    theirs = torch.nn.functional.leaky_relu(reference(case, x, w, None), 0.01)
    leaky = {**case.attributes, "activation": "relu", "slope": 0.01}
    calls, results = [], []
    for last in (False, True):
        given = make(case.x, last)
        given.copy_(x)
        y, of_zeros = make(tuple(theirs.shape), last), make(tuple(theirs.shape), last)
        zeros = torch.zeros_like(y)
        zeros.copysign_(torch.randn(y.shape))
        calls.append((Convolution(**leaky), {"X": given, "W": w}, {"Y": y}))
        calls.append((Convolution(**leaky), {"X": torch.zeros_like(given), "W": w, "Z": zeros}, {"Y": of_zeros}))
        results.append((y, zeros, of_zeros))
    assert libs.get("onednn").available() is None
    yield program("onednn", *calls)
    for y, zeros, of_zeros in results:
        assert_within_rounding(y, theirs.double(), theirs)
        theirs_of_zeros = torch.nn.functional.leaky_relu(torch.zeros_like(y) + zeros, 0.01)
        assert not of_zeros.any() and torch.equal(of_zeros.signbit(), theirs_of_zeros.signbit())


@pytest.mark.parametrize("library", LIBRARIES)
def test_residual_in_another_layout(library: str) -> None:
    case = CASES["block"]
    x, w = make(case.x, True), make(case.w, False)
    expected, single = reference(case, x.double(), w.double(), None), reference(case, x, w, None)
    z, y = make(tuple(expected.shape), False), make(tuple(expected.shape), True)
    execute(library, (Convolution(**case.attributes), {"X": x, "W": w, "Z": z}, {"Y": y}))
    assert_within_rounding(y, expected + z, single + z)


@pytest.mark.parametrize("library", LIBRARIES)
def test_no_images_give_zero_gradients(library: str) -> None:
    w = make((4, 3, 3, 3), False)
    dw = torch.full_like(w, 7.0)
    reads = {"X": torch.zeros(0, 3, 8, 8), "dY": torch.zeros(0, 4, 6, 6)}
    execute(library, (ConvolutionBackwardWeights(), reads, {"dW": dw}))
    assert not dw.any()


@pytest.mark.parametrize("library", LIBRARIES)
def test_eight_threads(library: str) -> None:
    case = CASES["block"]
    x, w = make(case.x, True), make(case.w, False)
    expected, single = reference(case, x.double(), w.double(), None), reference(case, x, w, None)
    graph = Graph("convolution")
    y = make(tuple(expected.shape), True)
    graph.add_node(
        Convolution(**case.attributes),
        {"X": add(graph, "x", x), "W": add(graph, "w", w)},
        {"Y": add(graph, "y", y, output=True)},
    )
    with libs.prefer(Convolution=library):
        run = compile_graph(graph)
    results = [torch.zeros_like(y) for _ in range(8)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda out: [run(x, w, out) for _ in range(5)], results))
    for out in results:
        assert_within_rounding(out, expected, single)


def test_relu_of_nan_is_nan() -> None:
    """oneDNN's own relu makes it 0, so torch computes what asks for one."""
    x, w = torch.full((1, 1, 3, 3), torch.nan), torch.ones(1, 1, 3, 3)
    y = torch.zeros(1, 1, 1, 1)
    graph = Graph("convolution")
    node = Convolution(activation="relu")
    graph.add_node(node, {"X": add(graph, "x", x), "W": add(graph, "w", w)}, {"Y": add(graph, "y", y, output=True)})
    assert libs.choose(node, graph).name == "aten"
    assert "NaN" in str(libs.reasons(node, graph).get("onednn", "NaN"))
    compile_graph(graph)(x, w, y)
    assert y.isnan().all()


def test_missing_wheels_fall_back_to_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(libs.onednn, "_files", lambda: None)
    missing = libs.get("onednn").available()
    assert missing is not None and "pip install onednn-cpu-gomp" in missing.install
    graph = Graph("convolution")
    tensors = {"X": torch.zeros(1, 1, 3, 3), "W": torch.zeros(1, 1, 3, 3), "Y": torch.zeros(1, 1, 1, 1)}
    names = {c: add(graph, c, t, output=c == "Y") for c, t in tensors.items()}
    node = Convolution()
    graph.add_node(node, {c: names[c] for c in "XW"}, {"Y": names["Y"]})
    assert libs.choose(node, graph).name == "aten"
    assert "pip install" in str(libs.reasons(node, graph)["onednn"])


def test_double_precision_runs_in_torch() -> None:
    case = CASES["asymmetric"]
    x, w, b = make(case.x, False).double(), make(case.w, False).double(), make(case.w[:1], False).double()
    expected = reference(case, x, w, b)
    y = torch.zeros_like(expected)
    execute("aten", (Convolution(**case.attributes), {"X": x, "W": w, "B": b}, {"Y": y}))
    assert_within_rounding(y, expected)
