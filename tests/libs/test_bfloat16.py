"""Products and convolutions of bfloat16 factors: numbers against float64, and which kernels of oneDNN run."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from daceopt import libs
from daceopt.errors import Unsupported
from daceopt.ir.graph.graph import Graph
from daceopt.ir.nodes.library import Contraction, Convolution, ConvolutionBackwardData, ConvolutionBackwardWeights
from daceopt.ir.scalar import types
from daceopt.libs.onednn import OneDnn
from daceopt.system import cpu_features
from tests.libs.harness import compile_graph
from tests.libs.test_convolution import CASES, announced, execute, make, reference
from tests.numerics import assert_within_rounding

NARROW = torch.bfloat16
LIBRARIES = ["onednn_narrow_product", "mkl", "native"]
HAS_ONEDNN = OneDnn().available() is None
needs_units = pytest.mark.skipif("avx512_bf16" not in cpu_features() or not HAS_ONEDNN, reason="no units, or no oneDNN")


def normal(*shape: int, dtype: torch.dtype = NARROW) -> torch.Tensor:
    torch.manual_seed(sum(shape))
    return torch.randn(shape).to(dtype)


def operands(name: str) -> dict[str, torch.Tensor]:
    """What a product takes, by connector."""
    a, b = normal(33, 65), normal(65, 17)
    wide = torch.float32
    return {
        "plain": {"A": a, "B": b},
        "bias": {"A": a, "B": b, "Bias": normal(17)},
        "wide bias": {"A": a, "B": b, "Bias": normal(17, dtype=wide), "C": normal(33, 17)},
        "transposed": {"A": normal(65, 33).t(), "B": normal(17, 65).t(), "C": normal(33, 17, dtype=wide)},
        "strided": {"A": normal(33, 130)[:, ::2], "B": normal(65, 34)[:, ::2]},
        "batches": {"A": normal(3, 4, 33, 65), "B": normal(3, 4, 65, 17)},
        "shared": {"A": normal(3, 4, 33, 65), "B": b, "Bias": normal(17)},
        "broadcast": {"A": normal(4, 1, 33, 65), "B": normal(1, 3, 65, 17)},
        "column bias": {"A": normal(4, 33, 65), "B": normal(4, 65, 17), "Bias": normal(4, 33, 1)},
        "one row": {"A": normal(1, 65), "B": b},
        "one column": {"A": a, "B": normal(65, 1)},
        "no depth": {"A": normal(2, 5, 0), "B": normal(2, 0, 3), "Bias": normal(3)},
        "no rows": {"A": normal(0, 65), "B": b},
    }[name]


def product(library: str, given: dict[str, torch.Tensor], out: torch.Tensor, **attributes: Any) -> None:
    graph, tensors, reads = Graph("product"), [], {}
    for connector, tensor in given.items():
        extent = 1 + sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride())) if tensor.numel() else 1
        dtype = types.from_torch(tensor.dtype)
        root = graph.add_input(connector.lower(), (extent,), dtype)
        reads[connector] = graph.add_view(root, "operand", tensor.shape, [max(1, s) for s in tensor.stride()])
        tensors.append(tensor)
    result = graph.add_array("y", out.shape, types.from_torch(out.dtype), out.stride())
    graph.add_node(Contraction(inputs=list(reads), **attributes), reads, {"Y": result})
    graph.add_output(result)
    with libs.prefer(Contraction=library):
        compile_graph(graph)(*tensors, out)


def expected(given: dict[str, torch.Tensor], dtype: torch.dtype, alpha: float, relu: bool) -> torch.Tensor:
    a, b, *added = (given[c].to(dtype) for c in ("A", "B", "Bias", "C") if c in given)
    y = alpha * (a @ b)
    for x in added:
        y = y + x
    return y.relu() if relu else y


CASES_OF_PRODUCTS = "plain bias transposed strided batches shared broadcast one_row one_column no_depth no_rows".split()


@pytest.mark.share(4)
@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("out", [NARROW, torch.float32], ids=["narrow", "wide"])
@pytest.mark.parametrize("name", [*CASES_OF_PRODUCTS, "wide_bias", "column_bias"])
def test_product(library: str, out: torch.dtype, name: str) -> None:
    if libs.get(library).available() is not None:
        pytest.skip(str(libs.get(library).available()))
    given = operands(name.replace("_", " "))
    for alpha, relu, turned in ((1.0, False, False), (-0.5, name == "bias", name in ("plain", "bias", "batches"))):
        exact = expected(given, torch.float64, alpha, relu)
        y = torch.full(exact.mT.shape if turned else exact.shape, 7.0, dtype=out)
        y = y.mT if turned else y
        product(library, given, y, alpha=alpha, activation="relu" if relu else None)
        # sums are float32, and the result is rounded once
        assert_within_rounding(y, exact, expected(given, torch.float32, alpha, relu).to(out), factor=2, ulps=2)


@pytest.mark.skipif(not HAS_ONEDNN, reason="oneDNN's wheels are not installed")
@pytest.mark.parametrize("name", CASES_OF_PRODUCTS)
def test_wide_weights_that_are_kept(name: str) -> None:
    """They are rounded as a cast rounds them; also where the result stands by columns."""
    given = operands(name.replace("_", " "))
    wide = torch.empty_strided(given["B"].shape, given["B"].stride()).normal_()
    rounded = {**given, "B": wide.to(NARROW)}
    for alpha, relu, turned in ((1.0, False, False), (-0.5, name == "bias", name in ("plain", "bias", "batches"))):
        exact = expected(rounded, torch.float64, alpha, relu)
        y = torch.full(exact.mT.shape if turned else exact.shape, 7.0, dtype=NARROW)
        y = y.mT if turned else y
        activation = "relu" if relu else None
        product("onednn_narrow_product", {**given, "B": wide}, y, alpha=alpha, activation=activation, packed=True)
        assert_within_rounding(y, exact, expected(rounded, torch.float32, alpha, relu).to(NARROW), factor=2, ulps=2)


def test_infinite_and_unknown_numbers_pass() -> None:
    a, b = normal(8, 32), normal(32, 16)
    a[0, 0], a[1, 1], b[2, 3] = torch.inf, torch.nan, -torch.inf
    for library in LIBRARIES:
        if libs.get(library).available() is None:
            y = torch.empty(8, 16, dtype=NARROW)
            product(library, {"A": a, "B": b}, y)
            assert_within_rounding(y, a.double() @ b.double(), (a.float() @ b.float()).to(NARROW))


def test_mixed_factors_are_refused() -> None:
    y = torch.empty(33, 17)
    with pytest.raises(Unsupported, match="element types"):
        product("onednn_narrow_product", {"A": normal(33, 65), "B": normal(65, 17, dtype=torch.float32)}, y)


@needs_units
@pytest.mark.parametrize("name", CASES_OF_PRODUCTS[:7])
def test_products_run_in_the_units(name: str, capfd: pytest.CaptureFixture[str]) -> None:
    given = operands(name)
    with announced():
        product("onednn_narrow_product", given, torch.empty(expected(given, torch.float32, 1, False).shape).to(NARROW))
    ran = [line for line in capfd.readouterr().out.splitlines() if ",exec," in line]
    assert len(ran) == 1 and re.search(r",matmul,brg\w*:avx\w*(bf16|amx)", ran[0]), ran


def passes(name: str, last: bool, wide_gradients: bool) -> list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    """(ours, exact, PyTorch's) of all three passes."""
    case = CASES[name]
    x, w, b = (make(s, last and k == 0).to(NARROW) for k, s in enumerate((case.x, case.w, case.w[:1])))
    exact, theirs = ([t.to(d).detach().requires_grad_() for t in (x, w, b)] for d in (torch.float64, torch.float32))
    expected, peer = reference(case, *exact), reference(case, *theirs)
    dy = make(tuple(expected.shape), last).to(NARROW)
    y, dx = torch.full_like(dy, 7.0), torch.full_like(x, 7.0)
    kind = torch.float32 if wide_gradients else NARROW
    dw = torch.full_like(w, 7.0, dtype=kind)
    expected.backward(dy.double())
    peer.backward(dy.float())
    execute(
        "onednn" if HAS_ONEDNN else "aten",
        (Convolution(**case.attributes, inputs=["X", "W", "B"]), {"X": x, "W": w, "B": b}, {"Y": y}),
        (ConvolutionBackwardData(**case.attributes), {"dY": dy, "W": w}, {"dX": dx}),
        (ConvolutionBackwardWeights(**case.attributes, outputs=["dW"]), {"X": x, "dY": dy}, {"dW": dw}),
    )
    found = [(y, expected, peer)]
    return found + [(g, e.grad, t.grad) for g, e, t in zip((dx, dw), exact, theirs)]


@pytest.mark.parametrize("name", CASES)
def test_convolution(name: str, capfd: pytest.CaptureFixture[str]) -> None:
    for last in (False, True):
        if HAS_ONEDNN:
            with announced():
                found = passes(name, last, wide_gradients=last)
        else:
            found = passes(name, last, wide_gradients=last)
        for ours, exact, theirs in found:
            assert_within_rounding(ours, exact, theirs.to(ours.dtype), factor=2, ulps=2)
    ran = [line for line in capfd.readouterr().out.splitlines() if ",exec," in line and ",convolution," in line]
    case = CASES[name]
    # where oneDNN has no kernel of its own for depthwise weight gradients, ours computes them
    least = 4 if case.group == case.w[0] else 6
    assert least <= len(ran) <= 6 if HAS_ONEDNN else not ran
    assert not [line for line in ran if ",ref" in line]


@pytest.mark.skipif(not HAS_ONEDNN, reason="oneDNN's wheels are not installed")
@pytest.mark.parametrize("name", CASES)
def test_convolutions_with_wide_weights_that_are_kept(name: str) -> None:
    case = CASES[name]
    x, w, b = (make(s, k == 0) for k, s in enumerate((case.x, case.w, case.w[:1])))
    x, b = x.to(NARROW), b.to(NARROW)
    exact, theirs = ([t.to(NARROW).to(d) for t in (x, w, b)] for d in (torch.float64, torch.float32))
    for part in (exact, theirs):
        part[0].requires_grad_()
    expected, peer = reference(case, *exact), reference(case, *theirs)
    dy = make(tuple(expected.shape), True).to(NARROW)
    y, dx = torch.full_like(dy, 7.0), torch.full_like(x, 7.0)
    expected.backward(dy.double())
    peer.backward(dy.float())
    attributes = {**case.attributes, "packed": True}
    execute(
        "onednn",
        (Convolution(**attributes, inputs=["X", "W", "B"]), {"X": x, "W": w, "B": b}, {"Y": y}),
        (ConvolutionBackwardData(**attributes), {"dY": dy, "W": w}, {"dX": dx}),
    )
    assert_within_rounding(y, expected, peer.to(NARROW), factor=2, ulps=2)
    assert_within_rounding(dx, exact[0].grad, theirs[0].grad.to(NARROW), factor=2, ulps=2)


@needs_units
def test_weights_with_large_windows_are_copied_in_two_steps() -> None:
    """7x7 and more: by way of channels innermost, beside which oneDNN's own copy takes six times as long."""
    x, w = make((1, 32, 12, 12), True).to(NARROW), make((64, 32, 7, 7), False).to(NARROW)
    y = torch.empty(1, 64, 6, 6, dtype=NARROW).contiguous(memory_format=torch.channels_last)
    with announced():
        execute("onednn", (Convolution(inputs=["X", "W"]), {"X": x, "W": w}, {"Y": y}))
    exact, theirs = (torch.nn.functional.conv2d(x.to(d), w.to(d)) for d in (torch.float64, torch.float32))
    assert_within_rounding(y, exact, theirs.to(NARROW), factor=2, ulps=2)


@pytest.mark.skipif(not HAS_ONEDNN, reason="oneDNN's wheels are not installed")
@pytest.mark.share(2)
@pytest.mark.parametrize("isa", ["AVX512_CORE", "AVX2"])
def test_machines_without_units(isa: str) -> None:
    """oneDNN is told that it is on an older CPU."""
    script = (
        "import tests.libs.test_bfloat16 as t\n"
        "for name in ('block', 'depthwise', '1d'):\n"
        "    for ours, exact, theirs in t.passes(name, True, False):\n"
        "        t.assert_within_rounding(ours, exact, theirs.to(ours.dtype), factor=2, ulps=2)\n"
        "t.test_product('onednn_narrow_product', t.NARROW, 'wide_bias')\n"
        "t.test_wide_weights_that_are_kept('transposed')\n"
        "t.test_convolutions_with_wide_weights_that_are_kept('block')\n"
    )
    root = Path(__file__).parents[2]
    ran = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "ONEDNN_MAX_CPU_ISA": isa, "PYTHONPATH": f"{root}:{os.environ.get('PYTHONPATH', '')}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr[-2000:]
