"""Mixed precision: autocast around a call and inside of forward, half types throughout, scaled losses, precisions."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from daceopt import optimized_module
from tests.numerics import assert_within_rounding
from tests.training.checking import interpreted

Case = tuple[Callable[[], nn.Module], Callable[[], tuple[torch.Tensor, ...]]]


@pytest.fixture
def quick() -> Iterator[None]:
    with interpreted():
        yield


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.lstm, self.head = nn.Embedding(20, 8), nn.LSTM(8, 12, batch_first=True), nn.Linear(12, 20)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.lstm(self.embedding(tokens))[0])


class States(nn.Module):
    """All that a recurrent network gives, of an input with or without a gradient."""

    def __init__(self, recurrent: nn.Module, scales: bool) -> None:
        super().__init__()
        self.recurrent, self.scale = recurrent, nn.Parameter(torch.ones(8), requires_grad=scales)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        found, state = self.recurrent(x * self.scale)
        return found, *(state if isinstance(state, tuple) else (state,))


class Heads(nn.Module):
    """Self-attention with a causal mask."""

    def __init__(self) -> None:
        super().__init__()
        self.project, self.out = nn.Linear(16, 48), nn.Linear(16, 16, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (t.unflatten(-1, (4, 4)).transpose(1, 2) for t in self.project(x).chunk(3, -1))
        return self.out(functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))


class Loss(nn.Module):
    def __init__(self, loss: Callable[..., torch.Tensor], make: Callable[[], torch.Tensor]) -> None:
        super().__init__()
        self.linear, self.loss, self.make = nn.Linear(12, 5), loss, make

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.loss(self.linear(x), self.make())


class Regions(nn.Module):
    """Autocast inside of forward, and switched off inside of that."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(12, 16), nn.Linear(16, 5)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = functional.gelu(self.first(x))
            with torch.autocast("cpu", enabled=False):
                z = self.second(y.float())
            w = self.second(y) + torch.baddbmm(x[:, None, :1], x[:, None], x[:, :, None], beta=0.5, alpha=2)[:, 0]
        return z, y, w, torch.addmm(z.new_ones(5), x, x.new_ones(12, 5))


def block() -> nn.Module:
    first = nn.Sequential(nn.Conv2d(4, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU())
    second = nn.Sequential(nn.Conv2d(8, 8, 3, stride=2, groups=8, bias=False), nn.BatchNorm2d(8), nn.ReLU())
    return nn.Sequential(first, second, nn.ConvTranspose2d(8, 4, 2, stride=2))


def rows(*shape: int) -> Callable[[], tuple[torch.Tensor, ...]]:
    return lambda: (torch.randn(*shape),)


CASES: dict[str, Case] = {
    "encoder": (
        lambda: nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True, activation="gelu"),
        rows(2, 6, 16),
    ),
    "block": (block, rows(4, 4, 9, 9)),
    "attention": (Heads, rows(2, 6, 16)),
    "lstm": (Recurrent, lambda: (torch.randint(0, 20, (3, 5)),)),
    "lstm's states": (lambda: States(nn.LSTM(8, 6, 2, bidirectional=True), True), rows(5, 3, 8)),
    "long lstm": (lambda: States(nn.LSTM(8, 6), True), rows(20, 3, 8)),  # whose products hold their weights
    "lstm of data": (lambda: States(nn.LSTM(8, 6), False), rows(5, 3, 8)),
    "rnn": (lambda: States(nn.RNN(8, 6), True), rows(5, 3, 8)),
    "long rnn of one unit": (lambda: States(nn.RNN(8, 1), True), rows(20, 3, 8)),  # columns, in memory as rows are
    "relu rnn": (lambda: States(nn.RNN(8, 6, nonlinearity="relu"), False), rows(5, 3, 8)),
    "gru": (lambda: States(nn.GRU(8, 6), True), rows(5, 3, 8)),
    "gru of narrow rows": (lambda: nn.Sequential(nn.Linear(8, 8), States(nn.GRU(8, 6), True)), rows(5, 3, 8)),
    "both ways, narrow": (
        lambda: nn.Sequential(nn.Linear(8, 8), States(nn.GRU(8, 6, 2, bidirectional=True, batch_first=True), False)),
        rows(5, 3, 8),
    ),
    "regions": (Regions, rows(6, 12)),
    "cross-entropy": (lambda: Loss(functional.cross_entropy, lambda: torch.arange(6) % 5), rows(6, 12)),
    "mean-square": (lambda: Loss(functional.mse_loss, lambda: torch.ones(6, 5)), rows(6, 12)),
    "smooth": (lambda: Loss(functional.smooth_l1_loss, lambda: torch.zeros(6, 5)), rows(6, 12)),
    "logits": (lambda: Loss(functional.binary_cross_entropy_with_logits, lambda: torch.ones(6, 5)), rows(6, 12)),
}


def run(
    module: nn.Module, arguments: tuple[torch.Tensor, ...], dtype: torch.dtype | None
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Results and gradients, under autocast to ``dtype`` where that is one."""
    module.zero_grad()
    with torch.autocast("cpu", dtype=dtype or torch.bfloat16, enabled=dtype is not None):
        found = module(*arguments)
    results = list(found) if isinstance(found, tuple) else [found]
    weights = torch.Generator().manual_seed(5)
    total = sum((r.double() * torch.rand(r.shape, generator=weights)).sum() for r in results)
    total.backward()
    return [r.detach() for r in results], [p.grad for p in module.parameters() if p.requires_grad]


def eager(
    module: nn.Module, arguments: tuple[torch.Tensor, ...], dtype: torch.dtype | None
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """PyTorch's own results and gradients; its LSTM of operators where oneDNN has none of bfloat16 (CPUs with AVX2
    alone)."""
    try:
        return run(module, arguments, dtype)
    except RuntimeError as error:
        if "could not create a primitive" not in str(error):
            raise
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch._VF, "lstm", functools.partial(lstm_of_operators, torch._VF.lstm))
        return run(module, arguments, dtype)


def lstm_of_operators(
    lstm: Callable[..., Any],
    x: torch.Tensor,
    state: Sequence[torch.Tensor],
    weights: Sequence[torch.Tensor],
    *rest: Any,
) -> Any:
    """What autocast makes of ``lstm``, which PyTorch computes without oneDNN."""
    narrow = [t.to(torch.bfloat16) for t in (x, *state, *weights)]
    enabled = torch._C._get_mkldnn_enabled()
    torch._C._set_mkldnn_enabled(False)
    try:
        with torch.autocast("cpu", enabled=False):
            return lstm(narrow[0], narrow[1:3], narrow[3:], *rest)
    finally:
        torch._C._set_mkldnn_enabled(enabled)


def exact(module: nn.Module, arguments: tuple[torch.Tensor, ...]) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """The same in float64: what is done inside of autocast and outside of it is one there."""
    wide = copy.deepcopy(module).double()
    cast, torch.Tensor.float = torch.Tensor.float, torch.Tensor.double  # type: ignore[method-assign]
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(torch, "autocast", lambda *_, **__: torch.autograd.set_grad_enabled(True))
            return run(wide, tuple(a.double() if a.is_floating_point() else a for a in arguments), None)
    finally:
        torch.Tensor.float = cast  # type: ignore[method-assign]


def check(name: str, dtype: torch.dtype | None, whole: torch.dtype = torch.float32) -> None:
    make, data = CASES[name]
    torch.manual_seed(3)
    module, arguments = make(), data()
    module = module.to(whole)
    arguments = tuple(a.to(whole) if a.is_floating_point() else a for a in arguments)
    ours = optimized_module(copy.deepcopy(module), fallback="raise")
    found, theirs, reference = run(ours, arguments, dtype), eager(module, arguments, dtype), exact(module, arguments)
    scale = max(float(g.abs().max()) for g in reference[1])
    for mine, peer, wide in zip(found[0], theirs[0], reference[0], strict=True):
        assert mine.dtype == peer.dtype and mine.stride() == peer.stride()
        assert_within_rounding(mine, wide, peer, factor=2, ulps=2)
    for mine, peer, wide in zip(found[1], theirs[1], reference[1], strict=True):
        assert mine.dtype == peer.dtype
        if float(wide.abs().max()) > 1e-6 * scale:  # else it is zero, and what stands there is rounding
            assert_within_rounding(mine, wide, peer, factor=2, ulps=4)


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("name", CASES)
def test_autocast_to_bfloat16(name: str) -> None:
    check(name, torch.bfloat16)


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("masked", [False, True])
def test_the_fused_encoder_layer(norm_first: bool, masked: bool) -> None:
    """Its products are narrow under autocast, as in PyTorch's kernel."""
    torch.manual_seed(3)
    layer = nn.TransformerEncoderLayer(16, 4, 32, 0.0, "gelu", batch_first=True, norm_first=norm_first).eval()
    mask = (torch.arange(7) > 4).expand(3, 7) if masked else None
    ours = optimized_module(copy.deepcopy(layer), fallback="raise")
    x = torch.randn(3, 7, 16)
    with torch.no_grad():
        wide = copy.deepcopy(layer).double()(x.double(), src_key_padding_mask=mask)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            found, peer = ours(x, src_key_padding_mask=mask), layer(x, src_key_padding_mask=mask)
    assert found.dtype == peer.dtype and found.stride() == peer.stride()
    assert_within_rounding(found, wide, peer, factor=2, ulps=2)


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("name", ["encoder", "block", "regions", "cross-entropy", "mean-square"])
def test_autocast_to_float16(name: str) -> None:
    check(name, torch.float16)


@pytest.mark.share(2)
@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bfloat16", "float16"])
@pytest.mark.parametrize("name", ["encoder", "block", "attention", "lstm"])
def test_modules_in_half_types(name: str, dtype: torch.dtype) -> None:
    check(name, None, dtype)


@pytest.mark.parametrize("name", ["encoder", "block", "regions", "long lstm"])
def test_built(name: str) -> None:
    check(name, torch.bfloat16)


@pytest.mark.usefixtures("quick")
def test_another_state_is_another_program() -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4))
    ours, x = optimized_module(copy.deepcopy(module), fallback="raise"), torch.randn(3, 8)

    def outside(module: nn.Module) -> torch.Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16), torch.autocast("cpu", enabled=False):
            return module(x)

    def inside(module: nn.Module, dtype: torch.dtype) -> torch.Tensor:
        with torch.autocast("cpu", dtype=dtype):
            return module(x)

    calls: list[Callable[[nn.Module], torch.Tensor]] = [
        lambda m: m(x),
        lambda m: inside(m, torch.bfloat16),
        lambda m: inside(m, torch.float16),
        outside,
    ]
    for _ in range(2):
        for call in calls:
            found, expected = call(ours), call(module)
            assert found.dtype == expected.dtype
            torch.testing.assert_close(found, expected, rtol=0.02, atol=0.02)
    assert ours.daceopt.stats.programs == 3  # outside is outside
    with torch.no_grad():
        assert inside(ours, torch.bfloat16).dtype == torch.bfloat16 and calls[0](ours).dtype == torch.float32


def test_weights_are_converted_once() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(16, 16, bias=False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.linear(torch.tanh(self.linear(x)))

    ours = optimized_module(Twice(), fallback="raise", recipe="cpu")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        ours(torch.randn(5, 16)).float().sum().backward()
    graph = ours.daceopt._pair().graphs.forward
    weights = [n for n in graph.inputs if graph.shape(n) == (16, 16)]
    assert [len(graph.all_consumers(n)) for n in weights] == [1]


@pytest.mark.usefixtures("quick")
def test_scaled_losses_and_overflow() -> None:
    """A step whose gradients overflow is skipped, and the scale halved, as with the module itself."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4))
    ours = optimized_module(copy.deepcopy(module), fallback="raise")
    seen = []
    for m in (ours, module):
        optimizer = torch.optim.SGD(m.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16, growth_interval=2)
        scales = []
        for factor in (1.0, 1.0, 1e5, 1.0):
            optimizer.zero_grad()
            x = torch.ones(3, 8) * factor
            with torch.autocast("cpu", dtype=torch.float16):
                loss = m(x).float().square().mean()
            scaler.scale(loss).backward()
            before = [p.detach().clone() for p in m.parameters()]
            scaler.step(optimizer)
            scaler.update()
            moved = any(not torch.equal(p, q) for p, q in zip(m.parameters(), before))
            scales.append((scaler.get_scale(), moved))
        seen.append(scales)
    assert seen[0] == seen[1]
    assert [moved for _, moved in seen[0]] == [True, True, False, True]
    for p, q in zip(ours.parameters(), module.parameters()):
        torch.testing.assert_close(p, q, rtol=1e-2, atol=1e-3)


@pytest.mark.usefixtures("quick")
def test_results_that_overflow_are_infinite() -> None:
    ours = optimized_module(nn.Linear(8, 4, bias=False).half(), fallback="raise")
    with torch.no_grad():
        ours.weight.fill_(1.0)
        x = torch.full((2, 8), 6e4, dtype=torch.float16)
        assert torch.isposinf(ours(x)).all() and torch.isneginf(ours(-x)).all()


@pytest.mark.usefixtures("quick")
def test_each_precision_has_a_program() -> None:
    ours, x = optimized_module(nn.Linear(8, 4), fallback="raise"), torch.randn(3, 8)
    before = torch.get_float32_matmul_precision()
    try:
        for precision in ("highest", "high", "medium", "high", "highest"):
            torch.set_float32_matmul_precision(precision)
            ours(x)
        assert ours.daceopt.stats.programs == 3
    finally:
        torch.set_float32_matmul_precision(before)
