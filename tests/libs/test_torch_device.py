"""The library for devices, on arrays of the host: the same calls, through the same dispatcher, as a device gets."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import dace
import numpy as np
import pytest
import torch
from torch.nn import functional

from daceopt import libs
from daceopt.ir.graph import build_options
from daceopt.ir.graph.graph import Graph
from daceopt.ir.nodes.library import Contraction, Convolution, IndexAdd
from daceopt.ir.scalar import types
from daceopt.ir.scalar.symbols import size
from daceopt.libs.torch_arrays import has_negative_strides
from daceopt.libs.torch_device import TorchDevice
from tests.libs import test_contraction as products
from tests.libs import test_convolution as convolutions
from tests.libs.harness import compile_graph
from tests.libs.test_convolution import Case
from tests.libs.together import Steps, alone, together
from tests.numerics import assert_within_rounding

NAME = "torch_device"
random, check = products.random, products.check
TORCH_VIEWS = [name for name in products.VIEWS if name != "flipped"]  # torch has no negative strides


@pytest.fixture(autouse=True)
def on_the_host(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(TorchDevice, "targets", ("cpu",))
    monkeypatch.setitem(build_options.FACTORS, "cpu", build_options.FACTORS["cuda"])
    with libs.prefer(Contraction=NAME, IndexAdd=NAME):
        yield


@pytest.mark.share(3)
@pytest.mark.parametrize("view_b", TORCH_VIEWS)
@pytest.mark.parametrize("view_a", TORCH_VIEWS)
def test_strides(view_a: str, view_b: str) -> None:
    check(NAME, products.VIEWS[view_a](random(2, 5, 7)), products.VIEWS[view_b](random(2, 7, 6)))


@pytest.mark.parametrize(
    ("shape_a", "shape_b"),
    [
        ((5, 7), (7, 6)),
        ((3, 5, 7), (7, 6)),
        ((2, 1, 5, 7), (3, 7, 6)),
        ((4, 1, 7), (4, 7, 1)),
        ((1, 1, 1), (1, 1)),
        ((0, 7), (7, 6)),
        ((5, 0), (0, 6)),
        ((3, 5, 0), (3, 0, 6)),
    ],
)
def test_shapes(shape_a: tuple[int, ...], shape_b: tuple[int, ...]) -> None:
    products.test_shapes(NAME, shape_a, shape_b)


@pytest.mark.share(2)
@pytest.mark.parametrize("activation", [None, "relu"])
@pytest.mark.parametrize("bias_shape", [(6,), (5, 1), (3, 1, 6), (2, 1, 5, 1), (1,)])
def test_bias_and_residual(bias_shape: tuple[int, ...], activation: str | None) -> None:
    products.test_bias_and_residual(NAME, bias_shape, activation)


@pytest.mark.parametrize("activation", [None, "relu"])
def test_epilogues_of_a_single_product(activation: str | None) -> None:
    """The forms that cuBLASLt computes with the product, and those that it does not."""
    a, b = random(5, 7), random(7, 6)
    check(NAME, a, b, bias=random(6), activation=activation)
    check(NAME, a, b, bias=random(5, 1), alpha=0.5, activation=activation)
    check(NAME, a, b, residual=random(5, 6), activation=activation)
    check(NAME, a, b, bias=random(6), residual=random(5, 6), alpha=2.0, activation=activation)


def test_a_result_may_be_transposed_or_padded() -> None:
    products.test_result_may_be_transposed_or_padded(NAME)


HALVES = (torch.float16, torch.bfloat16)


def _array(graph: Graph, name: str, tensor: torch.Tensor) -> str:
    """An array that stands as ``tensor`` does."""
    return graph.add_array(name, tensor.shape, types.from_torch(tensor.dtype), tensor.stride())


def _multiplied(y: torch.Tensor, operands: dict[str, torch.Tensor], **attributes: object) -> None:
    graph = Graph("narrow")
    reads = {connector: _array(graph, connector.lower(), t) for connector, t in operands.items()}
    out = graph.add_array("y", y.shape, types.from_torch(y.dtype), y.stride())
    graph.add_node(Contraction(inputs=list(reads), **attributes), reads, {"Y": out})
    graph.add_output(out)
    compile_graph(graph)(*operands.values(), y)


def _assert_rounded_once(y: torch.Tensor, exact: torch.Tensor) -> None:
    """Half a step of the result's type, of an exact sum or of what float32 makes of it; infinite beyond its range."""
    kind = torch.finfo(y.dtype)
    step = 2.0 ** torch.floor(torch.log2(exact.abs().clamp(min=kind.smallest_normal))) * kind.eps
    near = (y.double() - exact).abs() <= 0.51 * step + 1e-5 * exact.abs().clamp(min=1).mean()
    beyond = (exact.abs() >= kind.max) & (y == torch.sign(exact) * torch.inf)
    assert (near | beyond).all()


@pytest.mark.share(2)
@pytest.mark.parametrize("kind", HALVES)
@pytest.mark.parametrize("wide", ["", "added", "result", "added and result"])
def test_narrow_products_are_rounded_once(wide: str, kind: torch.dtype) -> None:
    torch.manual_seed(0)
    added, result = (torch.float32 if part in wide else kind for part in ("added", "result"))
    a, b = (torch.randn(shape).to(kind) for shape in ((40, 64), (64, 24)))
    bias, c, y = torch.randn(24).to(added), torch.randn(40, 24).to(added), torch.zeros(40, 24, dtype=result)
    _multiplied(y, {"A": a, "B": b, "Bias": bias, "C": c})
    exact = a.double() @ b.double() + bias.double() + c.double()
    if result is torch.float32:
        assert_within_rounding(y, exact, a.float() @ b.float() + bias.float() + c.float())
    else:
        _assert_rounded_once(y, exact)


class _Operands(NamedTuple):
    """Shapes of factors, of what is added, and how all of it stands in memory."""

    a: tuple[int, ...]
    b: tuple[int, ...]
    bias: tuple[int, ...] | None = None
    residual: bool = False
    stands: str = "in rows"


_OPERANDS = {
    "single": _Operands((5, 7), (7, 6), (6,)),
    "a column of numbers": _Operands((5, 7), (7, 6), (5, 1)),
    "transposed": _Operands((5, 7), (7, 6), (6,), stands="transposed"),
    "every other": _Operands((5, 7), (7, 6), (6,), True, stands="every other"),
    "padded": _Operands((3, 5, 7), (3, 7, 6), (6,), stands="padded"),
    "batch": _Operands((3, 5, 7), (3, 7, 6), None, True),
    "broadcast": _Operands((2, 1, 5, 7), (3, 7, 6), (3, 1, 6), True),
    "one right factor": _Operands((3, 5, 7), (7, 6), (6,), stands="transposed"),
    "one right factor, numbers of a batch": _Operands((3, 5, 7), (1, 7, 6), (3, 1, 1), True),
    "one right factor, two batches": _Operands((2, 3, 5, 7), (7, 6), (1, 1, 6), stands="padded"),
    "rows that do not stand as one": _Operands((3, 5, 7), (7, 6), (6,), stands="every other batch"),
    "one left factor": _Operands((5, 7), (3, 7, 6), (6,)),
    "vectors": _Operands((4, 1, 7), (4, 7, 1)),
    "no rows": _Operands((0, 7), (7, 6), (6,)),
    "no columns": _Operands((3, 5, 7), (3, 7, 0), None),
    "no products": _Operands((5, 0), (0, 6), (6,)),
    "no products, a residual": _Operands((5, 0), (0, 6), None, True),
    "no products in a batch": _Operands((3, 5, 0), (3, 0, 6), (6,), True),
    "nothing": _Operands((0, 0), (0, 0)),
}


def _standing(tensor: torch.Tensor, how: str) -> torch.Tensor:
    if how == "transposed" and tensor.dim() > 1:
        return tensor.mT.contiguous().mT
    if how == "every other":
        return torch.stack([tensor, tensor + 1], -1)[..., 0]
    if how == "every other batch" and tensor.dim() > 2:
        return tensor.transpose(0, 1).contiguous().transpose(0, 1)
    if how == "padded":
        return functional.pad(tensor, (0, 3))[..., : tensor.shape[-1]]
    return tensor


@pytest.mark.share(6)
@pytest.mark.parametrize("activation", [None, "relu"])
@pytest.mark.parametrize("wide", ["", "added", "result"])
@pytest.mark.parametrize("kind", HALVES)
@pytest.mark.parametrize("name", _OPERANDS)
def test_narrow_operands_of_any_shape(name: str, kind: torch.dtype, wide: str, activation: str | None) -> None:
    torch.manual_seed(1)
    case = _OPERANDS[name]
    added, result = (torch.float32 if part == wide else kind for part in ("added", "result"))
    given = {"A": torch.randn(case.a).to(kind), "B": torch.randn(case.b).to(kind)}
    product = 1.5 * (given["A"].double() @ given["B"].double())
    given |= {"Bias": torch.randn(case.bias).to(added)} if case.bias is not None else {}
    given |= {"C": torch.randn(product.shape).to(added)} if case.residual else {}
    exact = product + given.get("Bias", torch.zeros(())).double() + given.get("C", torch.zeros(())).double()
    given = {c: _standing(t, case.stands if c in "AB" else "in rows") for c, t in given.items()}
    y = torch.full(exact.shape, 7.0, dtype=result)
    y = _standing(y, case.stands) if case.stands in ("transposed", "every other batch") else y
    _multiplied(y, given, alpha=1.5, activation=activation)
    _assert_rounded_once(y, exact.relu() if activation else exact)


def test_float16_overflows_as_in_pytorch() -> None:
    """Infinities and what is too small for float16; sums are float32, and may be larger than their results."""
    a = torch.tensor([[300.0, 300.0], [-300.0, -300.0], [60000.0, -60000.0], [3e-4, 0.0]]).half()
    b = torch.tensor([[300.0, 1.0, 1e-5], [300.0, 1.0, 1e-5]]).half()
    y = torch.zeros(4, 3, dtype=torch.half)
    _multiplied(y, {"A": a, "B": b})
    assert y.isinf().any() and torch.equal(y, a @ b)
    wide = torch.zeros(4, 3)
    _multiplied(wide, {"A": a, "B": b})
    assert_within_rounding(wide, a.double() @ b.double(), a.float() @ b.float())


@pytest.mark.share(2)
@pytest.mark.parametrize("kind", HALVES)
@pytest.mark.parametrize("wide", ["", "Y", "B Z"])
def test_narrow_convolutions(wide: str, kind: torch.dtype) -> None:
    torch.manual_seed(2)
    tensors = {
        "X": torch.randn(2, 8, 9, 7),
        "W": torch.randn(6, 8, 3, 3),
        "B": torch.randn(6),
        "Z": torch.randn(2, 6, 7, 5),
    }
    tensors = {c: t if c in wide else t.to(kind) for c, t in tensors.items()}
    x, w, b, z = tensors.values()
    y = torch.zeros(z.shape, dtype=torch.float32 if "Y" in wide else kind)
    graph = Graph("narrow")
    reads = {c: _array(graph, c.lower(), t) for c, t in tensors.items()}
    out = graph.add_array("y", y.shape, types.from_torch(y.dtype))
    graph.add_node(Convolution(inputs=list(reads)), reads, {"Y": out})
    graph.add_output(out)
    with libs.prefer(Convolution=NAME):
        compile_graph(graph)(*tensors.values(), y)
    exact = functional.conv2d(x.double(), w.double(), b.double()) + z.double()
    theirs = functional.conv2d(x, w, b.to(kind)) + z.to(kind)
    assert_within_rounding(y, exact, theirs.to(y.dtype), factor=2, ulps=2)


@pytest.mark.share(2)
@pytest.mark.parametrize("last", [False, True], ids=["first", "last"])
@pytest.mark.parametrize("name", ["1d", "3d", "block", "asymmetric", "dilated", "grouped", "depthwise"])
@together
def test_convolutions(name: str, last: bool) -> Steps:
    yield from convolutions.forward_and_backward(NAME, last, convolutions.CASES[name])


_WINDOWS = {
    # gradients of images that are convolutions themselves, and those that are not
    "pixels": Case((2, 16, 9, 7), (24, 16, 1, 1)),
    "pixels of a line": Case((2, 16, 30), (24, 16, 1)),
    "line": Case((2, 8, 30), (12, 8, 3), pads=(4, 4), dilations=(4,)),
    "causal line": Case((2, 8, 30), (12, 8, 2), pads=(4, 0), dilations=(4,)),
    "more zeros than the kernel covers": Case((2, 4, 5, 6), (3, 4, 2, 2), pads=(2, 2, 2, 2)),
    # zeros behind the last window that nobody reads, and such as would be read
    "unread zeros": Case((2, 8, 8, 6), (8, 8, 3, 3), (2, 2), (1, 1, 0, 0)),
    "missing zeros": Case((2, 8, 9, 7), (8, 8, 3, 3), (2, 2), (1, 1, 0, 0)),
    "zeros behind": Case((2, 8, 8, 8), (8, 1, 3, 3), (2, 2), (0, 0, 1, 1), group=8),
}


@pytest.mark.share(2)
@pytest.mark.parametrize("last", [False, True], ids=["first", "last"])
@pytest.mark.parametrize("name", _WINDOWS)
@together
def test_windows(name: str, last: bool) -> Steps:
    yield from convolutions.forward_and_backward(NAME, last, _WINDOWS[name])


def test_epilogues_of_convolutions() -> None:
    alone(convolutions.epilogues(NAME, True, convolutions.CASES["1d"]))
    convolutions.test_residual_in_another_layout(NAME)
    convolutions.test_no_images_give_zero_gradients(NAME)


def _scatter(index: np.ndarray, dy: np.ndarray, rows: int) -> Graph:
    graph = Graph("scatter")
    reads = {
        "Index": graph.add_input("index", index.shape, types.from_numpy(index.dtype)),
        "dY": graph.add_input("dy", dy.shape, types.from_numpy(dy.dtype)),
    }
    out = graph.add_array("dw", (rows, dy.shape[-1]), types.from_numpy(dy.dtype))
    graph.add_node(IndexAdd(), reads, {"dW": out})
    graph.add_output(out)
    return graph


@pytest.mark.share(2)
@pytest.mark.parametrize("kind", [np.int32, np.int64])
@pytest.mark.parametrize("shape", [(4, 6), (), (0,), (50,)])
def test_rows_are_added(shape: tuple[int, ...], kind: type) -> None:
    rng = np.random.default_rng(0)
    index = np.asarray(rng.integers(-5, 5, shape), dtype=kind)
    dy = rng.standard_normal((*shape, 8)).astype(np.float32)
    dw = np.full((5, 8), 7, np.float32)
    compile_graph(_scatter(index, dy, 5))(index, dy, dw)
    expected = np.zeros((5, 8))
    np.add.at(expected, index, dy.astype(np.float64))
    assert_within_rounding(dw, expected)


def test_a_wrong_index_writes_nowhere_else() -> None:
    index, dy = np.array([7, -9]), np.ones((2, 4), np.float32)
    memory = np.full((3 + 5 + 3, 4), 7, np.float32)
    compile_graph(_scatter(index, dy, 5))(index, dy, memory[3:8])
    assert (memory[:3] == 7).all() and (memory[8:] == 7).all()


def test_what_surrounds_a_call_does_not_change_it() -> None:
    """Autocast would round the operands, autograd would record: types and gradients have been decided."""
    a, b, y = random(5, 7), random(7, 6), np.zeros((5, 6), np.float32)
    graph, memory = products.build(a, b, y)
    run = compile_graph(graph)
    with torch.autocast("cpu", torch.bfloat16), torch.enable_grad():
        run(*memory)
    assert_within_rounding(y, a.astype(np.float64) @ b, a @ b)


def test_strides_over_sizes_may_be_negative() -> None:
    n, m = size("n"), size("m")
    graph = Graph("mirrored")
    x = graph.add_input("x", (n, m - 2), dace.float32)
    assert not has_negative_strides(graph, x)
    mirrored = graph.add_view(x, "mirrored", (n, m - 2), (2 - m, 1), (n - 1) * (m - 2))
    assert has_negative_strides(graph, mirrored)


def test_refusals_say_why() -> None:
    graph, _ = products.build(random(5, 7)[::-1], random(7, 6), np.zeros((5, 6), np.float32))
    (node,) = graph.nodes()
    assert "A has negative strides" in str(libs.why_not(NAME, node, graph))
    graph, _ = products.build(*(random(*s, dtype=np.int32) for s in ((5, 7), (7, 6), (5, 6))))
    (node,) = graph.nodes()
    assert "expected one of" in str(libs.why_not(NAME, node, graph))
    graph = _scatter(np.zeros(3, np.float32), random(3, 4), 5)
    (node,) = graph.nodes()
    assert "expected int32 or int64" in str(libs.why_not(NAME, node, graph))


def test_it_works_on_the_devices_of_its_target(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    graph, _ = products.build(random(5, 7), random(7, 6), np.zeros((5, 6), np.float32))
    (node,) = graph.nodes()
    assert libs.why_not(NAME, node, graph) == "it works on arrays of cuda; these live on cpu"
    with libs.prefer(Contraction=None):
        assert libs.choose(node, graph).name != NAME
