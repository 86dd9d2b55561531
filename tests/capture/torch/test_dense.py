"""Products, attention, recurrent layers and the fused encoder layer beside eager PyTorch, in both directions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.capture.torch.checking import check

_TYPES = (torch.float32, torch.float64, torch.bfloat16)


def _random(*shapes: tuple[int, ...], dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(s, generator=generator).to(dtype) for s in shapes]


def _with_parameters(module: nn.Module, **options: Any) -> tuple[Callable[..., Any], list[torch.Tensor]]:
    """A function of the module's parameters, then its inputs; and these parameters."""
    names = [n for n, _ in module.named_parameters()]

    def call(*args: Any) -> Any:
        parameters = dict(zip(names, args))
        return torch.func.functional_call(module, parameters, args[len(names) :], options)

    return call, [p.detach() for p in module.parameters()]


PRODUCTS: dict[str, tuple[Callable[..., Any], list[tuple[int, ...]]]] = {
    "linear": (F.linear, [(2, 4, 6), (5, 6), (5,)]),
    "linear of a vector": (F.linear, [(6,), (5, 6), (5,)]),
    "linear without bias": (F.linear, [(4, 6), (5, 6)]),
    "linear to a number": (F.linear, [(4, 6), (6,)]),
    "linear of no rows": (F.linear, [(0, 6), (5, 6), (5,)]),
    "matmul of vectors": (torch.matmul, [(6,), (6,)]),
    "matmul, broadcast": (torch.matmul, [(2, 1, 3, 4), (5, 4, 2)]),
    "matmul by a vector": (torch.matmul, [(2, 3, 4), (4,)]),
    "matmul over nothing": (torch.matmul, [(3, 0), (0, 4)]),
    "mm": (torch.mm, [(3, 4), (4, 5)]),
    "bmm": (torch.bmm, [(2, 3, 4), (2, 4, 5)]),
    "mv": (torch.mv, [(3, 4), (4,)]),
    "dot": (torch.dot, [(7,), (7,)]),
    "vdot": (torch.vdot, [(7,), (7,)]),
    "outer": (torch.outer, [(3,), (4,)]),
    "addmm": (lambda c, a, b: torch.addmm(c, a, b, beta=0.5, alpha=-2), [(5,), (3, 4), (4, 5)]),
    "addmv": (lambda c, a, b: torch.addmv(c, a, b, alpha=3), [(3,), (3, 4), (4,)]),
    "baddbmm": (lambda c, a, b: torch.baddbmm(c, a, b, beta=2), [(2, 1, 5), (2, 3, 4), (2, 4, 5)]),
    "addbmm": (torch.addbmm, [(3, 5), (2, 3, 4), (2, 4, 5)]),
    "einsum": (lambda a, b: torch.einsum("bij,bkj->bik", a, b), [(2, 3, 4), (2, 5, 4)]),
    "bilinear": (F.bilinear, [(3, 4), (3, 5), (2, 4, 5), (2,)]),
    "tensordot": (lambda a, b: torch.tensordot(a, b, dims=2), [(2, 3, 4), (3, 4, 5)]),
    "kron": (torch.kron, [(2, 3), (3, 2)]),
    "trilinear": (
        lambda a, b, c: torch._trilinear(a, b, c, [1], [0], [0], [2]),
        [(2, 3), (4, 3), (4, 3)],
    ),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_product(name: str) -> None:
    fn, shapes = PRODUCTS[name]
    check(fn, *_random(*shapes))


@pytest.mark.share(2)
@pytest.mark.parametrize("dtype", _TYPES)
@pytest.mark.parametrize("name", ["linear", "addmm", "matmul, broadcast"])
def test_product_types(name: str, dtype: torch.dtype) -> None:
    fn, shapes = PRODUCTS[name]
    check(fn, *_random(*shapes, dtype=dtype))


@pytest.mark.parametrize("dtype", [torch.int8, torch.int32, torch.int64])
def test_product_of_integers(dtype: torch.dtype) -> None:
    a, b = torch.arange(-6, 6, dtype=dtype).reshape(3, 4), torch.arange(20, dtype=dtype).reshape(4, 5)
    check(torch.mm, a, b)


@pytest.mark.parametrize("name", ["linear", "bmm", "addmm"])
def test_product_of_symbolic_sizes(name: str) -> None:
    fn, shapes = PRODUCTS[name]
    check(fn, *_random(*shapes), dynamic=True)


def test_hidden_nan_is_not_added() -> None:
    c, a, b = torch.full((5,), torch.nan), *_random((3, 4), (4, 5))
    check(lambda c, a, b: torch.addmm(c, a, b, beta=0), c, a, b, grad=False)


# -------------------------------------------------------------------- attention

_MASK = torch.tensor([[1, 0, 1, 1, 0], [0, 0, 0, 0, 0], [1, 1, 1, 1, 1], [0, 0, 0, 0, 1]], dtype=torch.bool)
_ADDED = torch.where(_MASK, torch.linspace(-1, 1, 20).reshape(4, 5), -torch.inf)

ATTENTION: dict[str, dict[str, Any]] = {
    "plain": {},
    "causal": {"is_causal": True},
    "scaled": {"scale": 0.3},
    "booleans, one row without a key": {"attn_mask": _MASK},
    "floats, one row without a key": {"attn_mask": _ADDED},
    "one column for all keys": {"attn_mask": _MASK[:, :1]},
    "one mask per sequence": {"attn_mask": _MASK[:2].reshape(2, 1, 1, 5)},
}


@pytest.mark.parametrize("name", ATTENTION)
def test_attention(name: str) -> None:
    options = ATTENTION[name]
    tensors = _random((2, 3, 4, 8), (2, 3, 5, 8), (2, 3, 5, 6))
    check(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, **options), *tensors)


@pytest.mark.parametrize("name", ["plain", "causal", "floats, one row without a key"])
def test_attention_of_symbolic_sizes(name: str) -> None:
    options = ATTENTION[name]
    tensors = _random((2, 3, 4, 8), (2, 3, 5, 8), (2, 3, 5, 6))
    check(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, **options), *tensors, dynamic=True)


SHAPES: dict[str, list[tuple[int, ...]]] = {
    "two axes": [(4, 8), (5, 8), (5, 6)],
    "three axes": [(3, 4, 8), (3, 5, 8), (3, 5, 6)],
    "five axes": [(2, 3, 2, 4, 8), (2, 3, 2, 5, 8), (2, 3, 2, 5, 6)],
    "batches that broadcast": [(1, 3, 4, 8), (2, 3, 5, 8), (2, 1, 5, 6)],
    "more rows than keys": [(2, 3, 5, 8), (2, 3, 4, 8), (2, 3, 4, 8)],
}


@pytest.mark.share(2)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("name", SHAPES)
def test_shapes_of_attention(name: str, causal: bool) -> None:
    check(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=causal), *_random(*SHAPES[name]))


def test_gradient_of_a_mask() -> None:
    tensors = _random((2, 3, 4, 8), (2, 3, 5, 8), (2, 3, 5, 6), (2, 1, 4, 5))
    check(lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, attn_mask=m), *tensors)


def test_fewer_heads_of_keys() -> None:
    tensors = _random((2, 6, 4, 8), (2, 2, 5, 8), (2, 2, 5, 6))
    check(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, enable_gqa=True), *tensors)


def test_narrow_attention() -> None:
    tensors = _random((2, 3, 4, 8), (2, 3, 5, 8), (2, 3, 5, 6), dtype=torch.bfloat16)
    check(F.scaled_dot_product_attention, *tensors)


# -------------------------------------------------------------------- layers


@pytest.mark.share(3)
@pytest.mark.parametrize("cls", [nn.LSTM, nn.GRU, nn.RNN])
@pytest.mark.parametrize(
    "options", [{}, {"bidirectional": True, "num_layers": 2, "batch_first": True}, {"bias": False, "num_layers": 2}]
)
def test_recurrent(cls: type[nn.Module], options: dict[str, Any]) -> None:
    torch.manual_seed(0)
    with torch._dynamo.config.patch(allow_rnn=True):
        call, parameters = _with_parameters(cls(3, 4, **options))
        check(call, *parameters, torch.randn(5, 2, 3))


@pytest.mark.parametrize("cls", [nn.LSTMCell, nn.GRUCell, nn.RNNCell])
def test_recurrent_cell(cls: type[nn.Module]) -> None:
    torch.manual_seed(0)
    call, parameters = _with_parameters(cls(3, 4))
    check(call, *parameters, torch.randn(2, 3))


@pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")
@pytest.mark.parametrize("options", [{}, {"num_layers": 2, "bidirectional": True, "bias": False}])
def test_projected_states(options: dict[str, Any]) -> None:
    torch.manual_seed(0)
    with torch._dynamo.config.patch(allow_rnn=True):
        call, parameters = _with_parameters(nn.LSTM(3, 4, proj_size=2, **options))
        check(call, *parameters, torch.randn(5, 2, 3))


_HIDDEN = torch.tensor([[False] * 5, [False] * 3 + [True] * 2])
_LATER = torch.triu(torch.ones(5, 5, dtype=torch.bool), 1)


@pytest.mark.share(2)
@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"src_mask": _LATER},
        {"src_key_padding_mask": _HIDDEN},
        {"src_mask": _LATER, "src_key_padding_mask": _HIDDEN},
    ],
    ids=["plain", "rows", "sequences", "both"],
)
def test_encoder_layer_of_inference(options: dict[str, Any], norm_first: bool) -> None:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, norm_first=norm_first, activation="gelu").eval()
    call, parameters = _with_parameters(layer.requires_grad_(False), **options)
    check(torch.no_grad()(call), *parameters, torch.randn(2, 5, 8), grad=False)


@pytest.mark.parametrize("shape", [(40, 3), (2, 30, 3)])
def test_distances_of_points_to_themselves(shape: tuple[int, ...]) -> None:
    """More than 25 points: by a product. The gradient at a distance of zero is zero, where that of a root is none."""
    points = torch.randint(-3, 4, shape, generator=torch.Generator().manual_seed(0)).float()  # products are exact
    check(lambda x: torch.exp(-torch.cdist(x, x).square()), points)
    check(lambda x, y: torch.cdist(x, y), points, points[..., :30, :].contiguous() + 1)
