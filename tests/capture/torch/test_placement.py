"""Results stand in memory as PyTorch's operators place them, not as its shape rules in Python say."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from tests.capture.torch.checking import check, make_backend
from tests.capture.torch.interpreted import compile_interpreted

SHAPE = (2, 4, 3)


def laid_out() -> dict[str, torch.Tensor]:
    """One tensor of each layout, values in (0, 1)."""

    def draw(*shape: int) -> torch.Tensor:
        return torch.rand(shape) * 0.9 + 0.05

    return {
        "rows": draw(*SHAPE),
        "gaps": draw(2, 4, 6)[..., ::2],
        "first two swapped": draw(4, 2, 3).transpose(0, 1),
        "last two swapped": draw(2, 3, 4).transpose(1, 2),
        "reversed": draw(3, 4, 2).permute(2, 1, 0),
        "swapped, with gaps": draw(4, 2, 6)[..., ::2].transpose(0, 1),
        "expanded": draw(2, 4, 1).expand(SHAPE),
        "broadcast": draw(1, 4, 3),
        "column": draw(2, 1, 3),
        "vector": draw(3),
        "scalar": draw(),
    }


def compiled(fn: Callable[..., Any], dynamic: bool = False) -> Callable[..., Any]:
    torch._dynamo.reset()
    return torch._dynamo.optimize(make_backend(compile_interpreted), nopython=True, dynamic=dynamic)(fn)


BINARY = {
    "copysign": torch.copysign,
    "xlogy": torch.special.xlogy,
    "xlogy as a method": lambda x, y: x.xlogy(other=y),
    "xlog1py": torch.special.xlog1py,
    "floor_divide": torch.floor_divide,
    "//": lambda x, y: x // y,
    "div": lambda x, y: torch.div(x, y, rounding_mode="floor"),
    "logaddexp": torch.logaddexp,
    "logaddexp2": torch.logaddexp2,
    "heaviside": torch.heaviside,
    "ldexp": torch.ldexp,
    "logical": lambda x, y: (torch.logical_and(x, y), x.logical_xor(y)),
}


@pytest.mark.share(2)
@pytest.mark.parametrize("fn", BINARY.values(), ids=BINARY)
def test_functions_of_two_tensors(fn: Callable[..., Any]) -> None:
    kinds = list(laid_out().values())

    def every(x: torch.Tensor, *others: torch.Tensor) -> list[Any]:
        return torch.utils._pytree.tree_leaves([fn(x, y) for y in others])

    for x in (kinds[0], kinds[2], kinds[5], kinds[7]):
        for ours, theirs in zip(compiled(every)(x, *kinds), every(x, *kinds), strict=True):
            assert ours.stride() == theirs.stride() and ours.dtype == theirs.dtype


UNARY = {
    "rrelu": F.rrelu,
    "rrelu of torch": torch.rrelu,
    "a number to a power": lambda x: (2**x, torch.pow(2, x), torch.float_power(2, x), x**2),
    "log_sigmoid": F.logsigmoid,
    "with numbers": lambda x: (torch.xlogy(2, x), torch.xlogy(x, 2), torch.copysign(x, -2)),
}


@pytest.mark.share(2)
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("fn", UNARY.values(), ids=UNARY)
def test_functions_of_one_tensor(fn: Callable[..., Any], dynamic: bool) -> None:
    kinds = laid_out()
    for name in ("gaps", "first two swapped", "last two swapped", "reversed", "swapped, with gaps"):
        check(fn, kinds[name], dynamic=dynamic, native=False)


@pytest.mark.parametrize("dynamic", [False, True])
def test_views_of_what_was_placed(dynamic: bool) -> None:
    """A reshape of what stands as eager PyTorch's result is the view that eager PyTorch's is."""
    kinds = laid_out()

    def fn(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        found = torch.copysign(x, y)
        found.transpose(0, 1).reshape(-1).mul_(2)
        return found, found + 1

    check(fn, kinds["first two swapped"] - 0.5, kinds["rows"] - 0.5, dynamic=dynamic, grad=False)
    check(fn, kinds["rows"] - 0.5, kinds["first two swapped"] - 0.5, dynamic=dynamic, grad=False)


def test_in_place_forms_stay_where_they_are() -> None:
    def fn(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        a, b, c = x * 2, x * 3, x * 4
        return F.rrelu(a, inplace=True), torch.rrelu_(b), c.xlogy_(y), a, b, c

    kinds = laid_out()
    check(fn, kinds["reversed"], kinds["rows"])


@pytest.mark.parametrize(
    "fn",
    [torch.poisson, lambda x: F.rrelu(x - 0.5, training=True), lambda x: torch.normal(x, 1.0)],
    ids=["poisson", "rrelu", "normal"],
)
def test_draws(fn: Callable[..., Any]) -> None:
    for x in list(laid_out().values())[:6]:
        assert compiled(fn)(x).stride() == fn(x).stride()


@pytest.mark.parametrize("name", ["roll", "pad", "normal"])
def test_operators_of_others_are_called_as_they_like(name: str) -> None:
    """What a user's operator is called says nothing of where its result stands, nor of its arguments."""
    with torch.library._scoped_library("placed_by_users", "FRAGMENT") as library:
        library.define(f"{name}(Tensor x) -> Tensor")
        library.impl(name, lambda x: x.clone() + 1, "CompositeExplicitAutograd")
        library._register_fake(name, torch.empty_like)
        operator = getattr(torch.ops.placed_by_users, name)
        x = laid_out()["reversed"]
        ours = compiled(lambda x: operator(x))(x)
        assert ours.stride() == operator(x).stride() != operator(x).contiguous().stride()
        assert torch.equal(ours, x + 1)


@pytest.mark.parametrize("weighted", [False, True])
def test_losses_of_each_element(weighted: bool) -> None:
    kinds = laid_out()
    rows, swapped, gaps = kinds["rows"], kinds["last two swapped"], kinds["swapped, with gaps"]
    for x, y in product((rows, swapped, gaps), repeat=2):
        check(
            lambda x, y: F.binary_cross_entropy(x, y.detach(), y.detach() if weighted else None, reduction="none"), x, y
        )


CHANNELS_LAST = {
    "channel_shuffle": lambda x: F.channel_shuffle(x, 2),
    "roll": lambda x: (x.roll(1, 2), x.roll(0, 2), x.roll((1, 1), (2, 3)), x.roll((0, 1), (2, 3)), x.roll(1)),
    "reflect": lambda x: F.pad(x, (1, 1) * (x.dim() - 2), mode="reflect"),
    "replicate": lambda x: F.pad(x, (1, 1) * (x.dim() - 2), mode="replicate"),
    "pooled and resized": lambda x: F.interpolate(
        (F.adaptive_avg_pool2d if x.dim() == 4 else F.adaptive_avg_pool3d)(x, 1), size=(3,) * (x.dim() - 2)
    ),
    "padded by a number": lambda x: F.pad(x, (1, 1), value=2.0),
    "index_fill": lambda x: x.index_fill(1, torch.tensor([0]), 1.0),
}


@pytest.mark.share(3)
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("fn", CHANNELS_LAST.values(), ids=CHANNELS_LAST)
def test_memory_formats(fn: Callable[..., Any], dynamic: bool) -> None:
    planes = torch.randn(2, 4, 5, 6).contiguous(memory_format=torch.channels_last)
    rooms = torch.randn(2, 4, 3, 4, 5).contiguous(memory_format=torch.channels_last_3d)
    for x in (planes, planes.contiguous(), planes[..., ::2], planes.transpose(2, 3), planes.transpose(0, 1)):
        check(fn, x, dynamic=dynamic, native=False)
    if "shuffle" not in str(fn.__code__.co_names):
        check(fn, rooms, dynamic=dynamic, native=False)


@pytest.mark.parametrize("loss", [F.nll_loss, F.cross_entropy])
def test_losses_of_each_pixel(loss: Callable[..., Any]) -> None:
    x = torch.randn(2, 4, 5, 6).contiguous(memory_format=torch.channels_last)
    target = torch.randint(0, 4, (2, 6, 5)).transpose(1, 2)
    check(lambda x: loss(x, target, reduction="none"), x, grad=False)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_cross_entropy_with_probabilities(smoothing: float) -> None:
    for x in (torch.randn(2, 5, 6, 4).permute(0, 3, 1, 2), torch.randn(6, 4, 2, 5).permute(2, 1, 3, 0)):
        for target in (x.softmax(1), x.argmax(1), x.argmax(1).mT.contiguous().mT):
            check(
                lambda x, t: F.cross_entropy(x, t, reduction="none", label_smoothing=smoothing), x, target, grad=False
            )
