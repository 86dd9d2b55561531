"""Numbers of Python that change from call to call are run-time values of one program, whatever holds or reads them."""

from __future__ import annotations

import copy
import math
import re
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.testing import assert_close
from torch.utils._pytree import tree_leaves

from daceopt import optimized_module
from daceopt.errors import FallbackWarning
from tests.numerics import assert_within_rounding

pytestmark = pytest.mark.usefixtures("interpreted")

CALLS = 5
X = torch.randn(5, 4, generator=torch.Generator().manual_seed(1))

whole, weight = 0, 1.0  # globals that a model below reads


class Config:
    def __init__(self) -> None:
        self.n, self.w = 1, 1.0


class Reverse(torch.autograd.Function):
    """The reversal of gradients, by an annealed weight."""

    @staticmethod
    def forward(ctx, x, weight):
        ctx.weight = weight
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        return -ctx.weight * grad, None


class Normalize(torch.autograd.Function):
    """A normalization with a gradient of its own, that of a scale."""

    @staticmethod
    def forward(ctx, x, eps):
        ctx.eps = eps
        return F.layer_norm(x, (4,), eps=eps)

    @staticmethod
    def backward(ctx, grad):
        return grad * ctx.eps, None


class Model(nn.Module):
    """Counts its calls and anneals a number; what it computes with them is ``body``."""

    def __init__(self, body: Callable[[Model, torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.a, self.body = nn.Linear(4, 4), body
        self.step, self.tau = 0, 1.0
        self.config, self.items, self.table = Config(), [1.0, 2], {"n": 1, "w": 1.0}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.step += 1
        self.tau = self.tau * 0.93
        return self.body(self, x)


def assert_few_programs(
    model: nn.Module, count: int, calls: int = CALLS, **arguments: Callable[[int], object]
) -> nn.Module:
    """Steps are right, and so few programs are made; ``arguments``: what is handed over in the k-th call. The optimized
    model."""
    ours, double = optimized_module(copy.deepcopy(model), fallback="raise"), copy.deepcopy(model).double()
    for k in range(calls):
        given = {name: value(k) for name, value in arguments.items()}
        results = []
        for module in (ours, double, model):
            module.zero_grad()
            x = X.to(module.a.weight.dtype)
            out = module(x, **given)
            out.square().sum().backward()
            results.append([out, *(p.grad for p in module.parameters())])
        for mine, exact, theirs in zip(*results, strict=True):
            assert_within_rounding(mine.detach(), exact.detach(), theirs.detach())
    assert (ours.daceopt.stats.programs, ours.daceopt.stats.eager_calls) == (count, 0)
    return ours


BODIES: dict[str, Callable[[Model, torch.Tensor], torch.Tensor]] = {
    "counted only": lambda s, x: s.a(x),
    "warm-up": lambda s, x: s.a(x) * min(1.0, s.step / 100),
    "cosine": lambda s, x: s.a(x) * 0.5 * (1 + math.cos(math.pi * s.step / 100)),
    "sigmoid": lambda s, x: s.a(x) * (2 / (1 + math.exp(-10 * s.step / 100)) - 1),
    "powers": lambda s, x: s.a(x) * 0.99**s.step + s.step**2 * 1e-3 + math.pow(0.99, s.step) + s.step**-0.5,
    "powers below zero": lambda s, x: s.a(x) * (-s.tau) ** 2 + (s.tau - 1) ** 3 - (s.tau - 2) ** -1,
    "logarithms": lambda s, x: s.a(x) * math.log(1 + s.step) + math.log10(1.0 + s.step) + math.log(2 + s.step, 2),
    "whole": lambda s, x: s.a(x) * int(s.step / 3 + 1) + math.floor(s.step / 3) + math.ceil(s.step / 4) + s.step // 2,
    "below zero": lambda s, x: s.a(x) * (3 - s.step) + abs(3 - s.step) + max(3 - s.step, 0) * 0.5,
    "temperature": lambda s, x: torch.softmax(s.a(x) / s.tau, -1),
    "slope": lambda s, x: F.leaky_relu(s.a(x), s.tau) + F.elu(x, s.tau),
    "bounds": lambda s, x: s.a(x).clamp(1 - s.tau, 1 + s.tau) + F.hardtanh(s.a(x), -s.tau, s.tau),
    "average": lambda s, x: x.clone().lerp_(s.a(x), 1 - s.tau) + x.mul(s.tau).add_(s.a(x), alpha=1 - s.tau),
    "exponent": lambda s, x: (s.a(x).abs() + 1) ** s.tau + s.tau**x,
    "fills": lambda s, x: (
        s.a(x).masked_fill(x > 0, -s.step) + torch.where(x > s.tau, s.tau, x) + x.new_full((4,), s.tau)
    ),
    "tensors": lambda s, x: s.a(x) + torch.tensor(s.tau) + torch.tensor([s.tau, 1.0, 2, 3]) + torch.full((4,), s.tau),
    "operand": lambda s, x: torch.add(x, s.a(x), alpha=s.tau) + torch.addcmul(x, s.a(x), x, value=s.tau) + s.tau / x,
    "remainder": lambda s, x: torch.div(s.a(x), s.tau, rounding_mode="floor") + torch.fmod(x, s.tau) + s.a(x),
    "list": lambda s, x: sum(torch._foreach_mul([s.a(x), x], s.tau)),
    "size": lambda s, x: s.a(x.repeat(s.step, 1))[: s.step + 1].sum(0) + x.repeat(s.step, 1)[s.step],
    "reversal": lambda s, x: s.a(Reverse.apply(torch.tanh(s.a(x)), s.tau)),
    "reversal by step": lambda s, x: s.a(Reverse.apply(torch.tanh(s.a(x)), min(1.0, s.step / 100))),
    "in a custom function": lambda s, x: Normalize.apply(s.a(x), 0.1 * s.tau),
    "two numbers": lambda s, x: s.a(x) * s.step * s.tau + s.step,
}


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
def test_a_number_on_the_module(body):
    assert_few_programs(Model(body), 2)


def test_a_number_that_decides_about_code_costs_a_program_for_each_decision():
    assert_few_programs(Model(lambda s, x: s.a(x * 2 if s.step % 3 == 0 else x)), 3, calls=8)


def _narrow_after(s: Model, x: torch.Tensor) -> torch.Tensor:
    with torch.autocast("cpu", torch.bfloat16, enabled=s.step > 3), torch.set_grad_enabled(s.step < 3):
        y = x.round() @ x.round().T  # exact in either type
    return s.a(x) * y.sum(1, keepdim=True).float()


def test_a_number_that_decides_about_a_context_of_torch():
    ours, model = optimized_module(Model(_narrow_after), fallback="raise"), Model(_narrow_after)
    ours.load_state_dict(model.state_dict())
    for _ in range(CALLS):
        assert_close(ours(X), model(X))
    assert ours.daceopt.stats.programs <= CALLS and not ours.daceopt.reasons


COMPUTED: dict[str, Callable[[float], float]] = {
    "hypot": lambda w: math.hypot(w, 1.0),
    "angles": lambda w: math.atan2(w, 2.0) + math.degrees(w),
    "signs": lambda w: math.copysign(w, -2.0) + math.fmod(w, 0.4),
    "special functions": lambda w: math.erf(w) + math.lgamma(w + 1) + math.expm1(w),
    "sums": lambda w: math.fsum([w, w, 1.0]) + math.dist([w], [0.0]),
    "parts": lambda w: math.modf(w)[0] + math.frexp(w)[0] + w.as_integer_ratio()[1] * 1e-20,
    "NumPy": lambda w: float(np.sqrt(w)) + float(np.float64(w)),
    "tens": lambda w: round(int(100 * w), -1) + round(w, 1),
    "rounded quotients": lambda w: 1 // (w - 0.3) + w // 0.1,
}


@pytest.mark.parametrize("function", COMPUTED.values(), ids=COMPUTED)
def test_what_python_computes_of_a_number(function):
    """Functions that symbols do not have: a program for each value, never that of another."""

    class Net(nn.Module):
        def forward(self, x, w):
            return x + function(w)

    net = optimized_module(Net(), fallback="raise", recipe="none")
    for w in (0.5, 0.7, 1.25, 3.75):
        assert_close(net(X, w), X + function(w))


DOMAINS: dict[str, tuple[Callable[[float], float], float]] = {
    "root": (lambda w: math.sqrt(w), -1.5),
    "arc cosine": (lambda w: math.acos(w), 1.5),
    "logarithm": (lambda w: math.log(w), 0.0),
    "logarithm to base 10": (lambda w: math.log10(w), -1.0),
    "exponential": (lambda w: math.exp(w), 1e3),
    "hyperbolic cosine": (lambda w: math.cosh(w), 1e3),
    "quotient": (lambda w: 1 / w, 0.0),
    "rounded quotient": (lambda w: 1 // w, 0.0),
    "root's inverse": (lambda w: w**-0.5, 0.0),
    "power beyond all": (lambda w: 10.0**w, 400.0),
}
"""Functions, and a number of which they have no value."""


@pytest.mark.parametrize("function, outside", DOMAINS.values(), ids=DOMAINS)
def test_a_number_out_of_a_functions_domain_raises_what_python_raises(function, outside):
    class Net(nn.Module):
        def forward(self, x, w):
            return x + function(w)

    net = optimized_module(Net(), recipe="none")
    for w in (0.5, 0.7, 0.25):
        assert_close(net(X, w), X + function(w))
    with pytest.raises((ValueError, ArithmeticError)) as theirs:
        function(outside)
    with pytest.raises(theirs.type, match=f"^{re.escape(str(theirs.value))}$"):
        net(X, outside)
    assert_close(net(X, 0.9), X + function(0.9))


def test_numbers_on_objects_and_in_collections():
    def body(s: Model, x: torch.Tensor) -> torch.Tensor:
        s.config.n += 1
        s.config.w *= 0.9
        s.table["n"] += 2
        s.table["w"] *= 0.8
        s.items[0] *= 0.7
        s.items[1] += 3
        return s.a(x) * s.config.w + s.config.n + s.table["n"] * s.table["w"] + s.items[0] * s.items[1]

    assert_few_programs(Model(body), 2)


def test_globals_and_closures():
    state = 0

    def change(k: int) -> None:
        nonlocal state
        global whole, weight
        state, whole, weight = 2 * k, 3 * k, 1 - 0.1 * k

    class Reads(Model):
        def forward(self, x: torch.Tensor, k: object) -> torch.Tensor:
            return self.a(x) * weight + whole + state

    assert_few_programs(Reads(lambda s, x: x), 2, k=change)


def test_arguments():
    class Takes(Model):
        def forward(self, x: torch.Tensor, n: int, w: float) -> torch.Tensor:
            return self.a(Reverse.apply(x * self.a(x), w)) * max(0.0, 1 - n / 5) + 0.5 ** (n / 10)

    assert_few_programs(Takes(lambda s, x: x), 2, n=lambda k: k + 2, w=lambda k: 0.1 * k + 0.05)


def test_what_one_model_makes_constant_does_not_concern_another():
    """Both have a number of one name; PyTorch keeps for all code which of them are constants."""
    fixed = optimized_module(Model(lambda s, x: torch.quantile(s.a(x), s.tau * 0.5)))
    for _ in range(3):
        fixed(X)
    assert_few_programs(Model(BODIES["temperature"]), 2)


LABELS = torch.tensor([0, 1, 2, 3, 0])

FLOATS: dict[str, Callable[[Model, torch.Tensor], torch.Tensor]] = {
    "layer norm": lambda s, x: F.layer_norm(s.a(x), (4,), eps=1e-2 * s.tau),
    "rms norm": lambda s, x: F.rms_norm(s.a(x), (4,), eps=1e-2 * s.tau),
    "group norm": lambda s, x: F.group_norm(s.a(x), 2, eps=1e-2 * s.step),
    # squared: without, the gradient by the bias is zero, of which rounding leaves what each CPU pleases
    "batch norm": lambda s, x: F.batch_norm(s.a(x), None, None, training=True, eps=1e-2 * s.tau) + s.a(x) ** 2,
    "nothing dropped": lambda s, x: F.dropout(s.a(x), 0.5 * s.tau, training=False),
    "smoothed labels": lambda s, x: F.cross_entropy(s.a(x), LABELS, label_smoothing=0.1 * s.tau),
    "smooth l1": lambda s, x: F.smooth_l1_loss(s.a(x), x, beta=0.9 * s.tau),
    "huber": lambda s, x: F.huber_loss(s.a(x), x, delta=0.9 * s.tau),
    "attention": lambda s, x: F.scaled_dot_product_attention(s.a(x)[None], x[None], x[None], scale=0.9 * s.tau),
    "attention, causal": lambda s, x: F.scaled_dot_product_attention(
        s.a(x)[None], x[None], x[None], is_causal=True, scale=3.0 + s.step
    ),
    "normalized": lambda s, x: F.normalize(s.a(x), p=1 + 0.9 * s.tau, eps=1e-3 * s.tau),
    "similarity": lambda s, x: F.cosine_similarity(s.a(x), x, eps=1e-2 * s.tau),
    "norms": lambda s, x: torch.linalg.vector_norm(s.a(x), 2 + s.tau) + s.a(x).norm(1 + 0.9 * s.tau),
    "distances": lambda s, x: torch.cdist(s.a(x), x, p=1 + 0.9 * s.tau) + F.pairwise_distance(s.a(x), x, eps=s.tau),
    "margins": lambda s, x: (
        F.triplet_margin_loss(s.a(x), x, x * 2, margin=s.tau)
        + F.cosine_embedding_loss(s.a(x), x, LABELS * 0 + 1, margin=0.9 * s.tau)
        + F.multi_margin_loss(s.a(x), LABELS, margin=s.tau)
    ),
    "bounds": lambda s, x: F.hardshrink(s.a(x), 0.3 * s.tau) + F.softshrink(s.a(x), 0.3 * s.tau) + F.celu(x, s.tau),
    "softplus": lambda s, x: F.softplus(s.a(x), beta=0.9 * s.tau) + F.softplus(x, threshold=s.tau),
    "quantile": lambda s, x: torch.quantile(s.a(x), 0.5 * s.tau),
    "not a number": lambda s, x: torch.nan_to_num(s.a(x) / (x * 0), nan=s.tau, posinf=s.tau, neginf=0.5 * s.tau),
    "losses": lambda s, x: (
        F.poisson_nll_loss(s.a(x), x.abs(), eps=s.tau) + torch.logit(s.a(x).sigmoid(), eps=0.1 * s.tau)
    ),
    "alpha": lambda s, x: torch.addmm(s.a(x)[:4], x.T, s.a(x), beta=s.tau, alpha=1 - s.tau),
    "two of one value": lambda s, x: (
        F.layer_norm(s.a(x), (4,), eps=0.1 * s.tau) + F.layer_norm(x, (4,), eps=0.1 * s.tau)
    ),
    "a constant of the same value": lambda s, x: F.layer_norm(s.a(x), (4,), eps=s.tau) * 0.93,
}
"""What a schema calls a float."""


@pytest.mark.parametrize("body", FLOATS.values(), ids=FLOATS)
def test_a_number_that_an_operator_takes_as_a_float(body):
    assert_few_programs(Model(body), 2, calls=4)


READS: dict[str, Callable[[Model, torch.Tensor], torch.Tensor]] = {
    "a factor": lambda s, x: s.a(x) * x.sum().item() + x.mean().item(),
    "a factor that has a history": lambda s, x: s.a(x) / s.a(x).abs().max().item() + s.a(x).mean().item(),
    "a whole one": lambda s, x: s.a(x) * (x.argmax().item() + 1.0) + x.argmin().item(),
    "conversions": lambda s, x: s.a(x) * float(x.mean()) + int(x.abs().sum()) + float(x.argmax()),
    "mathematics": lambda s, x: s.a(x) * math.exp(x.mean().item()) * max(x.max().item(), 0.5) + x.std().item() ** 2,
    "with another number": lambda s, x: s.a(x) * (s.tau * x.max().item() + s.step / (1 + x.argmax().item())),
    "bounds": lambda s, x: s.a(x).clamp(x.min().item(), x.max().item()) + F.leaky_relu(s.a(x), x.mean().item()),
    "fills": lambda s, x: s.a(x).masked_fill(x > 0, x.mean().item()) + torch.where(x > 0, x.max().item(), x),
    "operands": lambda s, x: torch.add(x, s.a(x), alpha=x.max().item()) + (s.a(x).abs() + 1) ** x.std().item(),
    "tensors": lambda s, x: s.a(x) + torch.full((4,), x.max().item()) + torch.tensor(x.min().item()),
    "of one element": lambda s, x: s.a(x) * x[:1, :1].item() + x[1, 2].item(),
    "a custom function": lambda s, x: s.a(Reverse.apply(torch.tanh(s.a(x)), x.std().item())),
    "infinite": lambda s, x: s.a(x).clamp(max=(x.max() / 0).item()) + (1 / (x.max() / 0).item()),
    "twice": lambda s, x: sum(s.a(x) * x[k].max().item() for k in range(3)),
}
"""Numbers out of tensors, which nothing but arithmetic reads."""


@pytest.mark.parametrize("body", READS.values(), ids=READS)
def test_a_number_out_of_a_tensor(body):
    assert not assert_few_programs(Model(body), 2, calls=3).daceopt.explain_breaks()


def _where_large(s: nn.Module, x: torch.Tensor) -> torch.Tensor:
    with torch.set_grad_enabled(float(x.abs().mean()) > 1):
        return s.a(x)


DECIDES: dict[str, Callable[[nn.Module, torch.Tensor], object]] = {
    "gradients": _where_large,
    "a branch": lambda s, x: s.a(x) if x.mean().item() > 0 else s.a(-x),
    "a comparison of two": lambda s, x: s.a(x) * (2 if x[0].sum().item() < x[1].sum().item() else 3),
    "a loop": lambda s, x: sum((s.a(x) for _ in range(int(x.abs().max().item() * 2))), x),
    "a result": lambda s, x: (s.a(x), x.mean().item(), x.argmax().item()),
    "text": lambda s, x: (s.a(x), f"{x.mean().item():.4f}"),
    "a number of schema": lambda s, x: F.layer_norm(s.a(x), (4,), eps=x.abs().mean().item()),
    "both": lambda s, x: s.a(x) * x.mean().item() + (1 if x.sum().item() > 0 else 0),
    "remainders of large numbers": lambda s, x: s.a(x) * ((x.argmax().item() + 7) * 6364136223846793005 % 1000003),
}
"""What something else reads: the graph breaks there."""


SIZES: dict[str, Callable[[nn.Module, torch.Tensor], object]] = {
    "a size": lambda s, x: s.a(x)[: x.abs().sum().long().item() % 5] + torch.zeros(4),
    "an index": lambda s, x: s.a(x)[x[:, 0].argmax().item()],
}
"""What sizes and places depend on: the graph is cut there, and stays whole."""


@pytest.mark.parametrize("body", SIZES.values(), ids=SIZES)
def test_a_number_out_of_a_tensor_that_is_a_size(body):
    model = Deciding(body)
    ours = optimized_module(copy.deepcopy(model), fallback="raise")
    for k in range(4):
        x = X * (-1.3) ** k
        assert_equal(ours(x), model(x))


class Deciding(nn.Module):
    def __init__(self, body: Callable[[nn.Module, torch.Tensor], object]) -> None:
        super().__init__()
        self.a, self.body = nn.Linear(4, 4), body

    def forward(self, x: torch.Tensor) -> object:
        return self.body(self, x)


@pytest.mark.parametrize("body", DECIDES.values(), ids=DECIDES)
def test_a_number_out_of_a_tensor_that_decides(body):
    model = Deciding(body)
    ours = optimized_module(copy.deepcopy(model))
    with pytest.warns(FallbackWarning, match="a number is read out of a tensor"):
        for k in range(4):
            x = X * (-1.3) ** k
            assert_equal(ours(x), model(x))


HELD: dict[str, Callable[[torch.Tensor, torch.Tensor], object]] = {
    "a factor": lambda x, k: x * k.item() + float(k) + int(k),
    "computed": lambda x, k: x * (k.item() + 1) / (2 * k.item()) + k,
    "a quotient": lambda x, k: x * (int(k) // 2),
    "a size": lambda x, k: (x * k, x.repeat(int(k), 1), x[: int(k) - 1]),
    "a branch": lambda x, k: x * 2 if k.item() > 3 else x + k.item(),
    "a result": lambda x, k: (x * k, k.item() * 2),
}


@pytest.mark.parametrize("made", [torch.tensor, np.int64], ids=["tensor", "NumPy"])
@pytest.mark.parametrize("body", HELD.values(), ids=HELD)
def test_a_whole_number_that_an_argument_holds(body, made):
    class Holding(nn.Module):
        def forward(self, x, k):
            return body(x, k)

    ours = optimized_module(Holding(), fallback="silent")
    for k in (2, 3, 4, 5):
        assert_equal(ours(X, made(k)), body(X, made(k)))
    assert not any("compiler rejected" in reason for reason in ours.daceopt.reasons)


def assert_equal(ours: object, theirs: object) -> None:
    """Of results that may hold numbers and text."""
    for mine, other in zip(tree_leaves(ours), tree_leaves(theirs), strict=True):
        assert mine == other if isinstance(other, str) else assert_close(mine, other) is None


def test_whole_numbers_that_would_leave_64_bits():
    class Hashes(nn.Module):
        def forward(self, x: torch.Tensor, n: int) -> torch.Tensor:
            return x * (n * 6364136223846793005 % 1000003)

    model = Hashes()
    ours = optimized_module(model)
    for n in (3, 5, 7, 11):
        assert_close(ours(X, n), model(X, n))


DRAWS: dict[str, Callable[[Model, torch.Tensor], torch.Tensor]] = {
    "dropout": lambda s, x: F.dropout(s.a(x), 0.5 * s.tau),
    "whole channels": lambda s, x: F.dropout1d(s.a(x)[None], 0.5 * s.tau)[0],
    "in attention": lambda s, x: F.scaled_dot_product_attention(s.a(x), x, x, dropout_p=0.3 * s.tau),
    "alpha dropout": lambda s, x: F.alpha_dropout(s.a(x), 0.5 * s.tau),
    "normal": lambda s, x: s.a(x) + torch.empty_like(x).normal_(0, s.tau),
    "uniform": lambda s, x: s.a(x) + torch.empty_like(x).uniform_(-s.tau, s.tau),
    "bernoulli": lambda s, x: s.a(x) * torch.empty_like(x).bernoulli_(0.5 * s.tau),
    "gumbel": lambda s, x: F.gumbel_softmax(s.a(x), tau=s.tau),
}


@pytest.mark.parametrize("body", DRAWS.values(), ids=DRAWS)
def test_a_number_that_decides_what_is_drawn(body):
    ours = optimized_module(Model(body), fallback="raise")
    for _ in range(4):
        assert ours(X).square().sum().isfinite()
    assert (ours.daceopt.stats.programs, ours.daceopt.stats.eager_calls) == (2, 0)


def test_infinity_is_another_program():
    """It has other norms and distances than large numbers."""

    class Distances(Model):
        def forward(self, x: torch.Tensor, p: float) -> torch.Tensor:
            return torch.cdist(self.a(x), x, p=p) + self.a(x).norm(p)

    assert_few_programs(Distances(lambda s, x: x), 4, calls=6, p=lambda k: [3.0, 4.0, 5.0, math.inf, 2.0, 6.0][k])


def test_what_is_dropped_follows_the_probability_of_the_call():
    """From nothing to everything: both ends are other programs, as they are other code in PyTorch."""

    class Drops(nn.Module):
        def forward(self, x: torch.Tensor, p: float) -> torch.Tensor:
            return F.dropout(x, p)

    ours, kept = optimized_module(Drops(), fallback="raise"), []
    for p in (0.5, 0.25, 0.75, 0.0, 0.1, 1.0, 0.9):
        x = torch.ones(4000, requires_grad=True)
        out = ours(x, p)
        out.sum().backward()
        there = out != 0
        assert_close(out[there], torch.full_like(out[there], 1 / (1 - p) if p < 1 else 0.0))
        assert_close(x.grad, out.detach())
        kept.append(there.float().mean().item())
    assert kept == pytest.approx([0.5, 0.75, 0.25, 1, 0.9, 0, 0.1], abs=0.04)
    assert (ours.daceopt.stats.programs, ours.daceopt.stats.eager_calls) == (4, 0)


def test_running_statistics_follow_the_momentum_of_the_call():
    class Normalizes(Model):
        def __init__(self) -> None:
            super().__init__(lambda s, x: x)
            self.norm = nn.BatchNorm1d(4)

        def forward(self, x: torch.Tensor, momentum: float) -> torch.Tensor:
            self.norm.momentum = momentum
            return self.norm(self.a(x))

    model = Normalizes()
    ours, double = optimized_module(copy.deepcopy(model), fallback="raise"), copy.deepcopy(model).double()
    for momentum in (0.5, 0.4, 0.3, 0.2):
        for module in (ours, double, model):
            module(X.to(module.a.weight.dtype), momentum).sum().backward()
    for name in ("running_mean", "running_var", "bias"):
        mine, exact, theirs = (getattr(m.norm, name) for m in (ours, double, model))
        assert_within_rounding(mine.detach(), exact.detach(), theirs.detach())
    assert (ours.daceopt.stats.programs, ours.daceopt.stats.eager_calls) == (2, 0)


def test_a_number_that_decides_with_others_about_code_costs_a_program_for_each_value():
    """PyTorch checks that the lower bound is not above the upper one, and its formula draws numbers of its own."""
    ours = optimized_module(Model(lambda s, x: F.rrelu(s.a(x), 0.1 * s.tau, 0.9, training=True)), fallback="raise")
    for _ in range(4):
        ours(X).sum().backward()
    assert (ours.daceopt.stats.programs, ours.daceopt.stats.eager_calls) == (4, 0)


def test_what_changes_is_told_when_there_are_too_many_programs(monkeypatch):
    monkeypatch.setattr("daceopt.modules.options.RECOMPILE_LIMIT", 3)
    model = optimized_module(Model(lambda s, x: F.rrelu(s.a(x), 0.1 * s.tau, 0.9, training=True)))
    with pytest.warns(
        FallbackWarning, match=r"3 programs already; most often, this did not hold: \w+\.tau == \d\.\d+\. Instead: pad"
    ):
        for _ in range(5):
            model(X)


def test_which_numbers_decide_sizes_is_known_of_a_program(built: None) -> None:
    class Model(nn.Module):
        step = 2

        def forward(self, x):
            self.step += 1
            return x.repeat(self.n, 1) * self.step

    model = Model()
    model.n = 2
    optimized = optimized_module(model, fallback="raise")
    for n in (2, 3, 4):
        model.n = n
        assert_within_rounding(optimized(X), X.double().repeat(n, 1) * model.step)
    manifest = optimized.daceopt._pair().forward.manifest
    assert len(manifest.symbols) == 2 and len(manifest.numbers) == 1


@pytest.mark.parametrize("count", [lambda r: math.ceil(r) % 50, math.floor, lambda r: int(3 * r), lambda r: round(r)])
def test_whole_numbers_of_a_float_that_leave_the_program(count):
    class Annealed(nn.Module):
        def forward(self, x, rate):
            self.count = count(rate)
            return x * rate

    model = optimized_module(Annealed(), fallback="raise")
    for rate in (0.5, 1.5, 2.75, 100.25):
        assert torch.equal(model(X, rate), X * rate)
        assert model.count == count(rate)


_COUNTS = {
    "power": lambda n: 2 ** (n - 1),
    "large power": lambda n: 2 ** (10 * n),
    "its own power": lambda n: n**n,
    "shifts": lambda n: (1 << n) - (n >> 1),
    "bits": lambda n: (n & 6) + (n | 5) + (n ^ 3),
    "above": lambda n: math.ceil(n / 3),
    "below": lambda n: math.floor(n / 3),
    "toward zero": lambda n: int(n / 3),
    "nearest": lambda n: round(n / 4),
    "floors": lambda n: n // 3 + n % 3 - (-n // 4),
    "root": lambda n: int(math.sqrt(n)),
}


@pytest.mark.parametrize("of_argument", [True, False], ids=["argument", "size"])
@pytest.mark.parametrize("count", _COUNTS.values(), ids=_COUNTS)
def test_what_python_computes_of_whole_numbers_leaves_the_program(count, of_argument):
    class Counting(nn.Module):
        def forward(self, x, n):
            return x * 2, count(n if of_argument else x.shape[0])

    model = optimized_module(Counting(), fallback="raise")
    for n in (5, 7, 8, 12):
        x = X[:1].expand(n, 4)
        y, found = model(x, n)
        assert torch.equal(y, x * 2) and found == count(n) and type(found) is int
