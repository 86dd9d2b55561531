"""What goes in and comes out of an optimized module: types, layouts, memory that is shared, and wrong calls."""

from __future__ import annotations

import math
from collections import namedtuple
from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.twins import check, grads, module, normal

pytestmark = pytest.mark.usefixtures("interpreted")

Pair = namedtuple("Pair", "first second")


@dataclass
class Scores:
    values: torch.Tensor
    count: int = 3


def calls(forward, *arguments, **state):
    """A scenario: calls with these tuples of arguments, which are returned beside the results."""

    def scenario(optimize):
        net = optimize(module(forward, **state))
        given = [tuple(a.clone() if isinstance(a, torch.Tensor) else a for a in call) for call in arguments]
        return [net(*call) for call in given], given

    return scenario


# -------------------------------------------------------------------- results


def test_results_of_all_kinds():
    def forward(self, x):
        scores = Scores(x * 4)
        return (x * 2, None, 3, 2.5, "s", True, {"a": [x + 1, (x, {})]}, Pair(x * 3, None), x.shape, scores.count)

    check(calls(forward, (normal(2, 3),)))


def test_results_share_memory_as_in_eager():
    def scenario(optimize):
        def forward(self, x):
            y = x * 2
            return x[0], x.T, y, y[0], y.view(-1), x, y.detach(), x.expand(2, 2, 3), y.clone()

        net, x = optimize(module(forward)), normal(2, 3)
        found = net(x)
        x.add_(1)
        found[2].mul_(3)
        return found, found[5] is x, [t._is_view() for t in found]

    check(scenario)


def test_results_in_other_layouts_are_tensors_of_their_own():
    def scenario(optimize):
        net = optimize(module(lambda self, x, z: (x.mT * self.w, z.mT * self.w), w=normal(2, 1)))
        x, z = normal(3, 2).requires_grad_(), torch.complex(normal(3, 2), normal(3, 2)).requires_grad_()
        found = net(x, z)
        kinds = [(t.stride(), t._is_view(), t._base is None) for t in found]
        changed = [t.mul_(3) for t in found]  # of a view that forward made PyTorch would not know the gradient
        sum(t.abs().sum() for t in changed).backward()
        with torch.no_grad():
            kinds += [(t.stride(), t._is_view()) for t in (*net(x, z), z.grad)]
        return found, kinds, grads(net, x, z)

    check(scenario)


def test_a_tensor_of_inference_mode_that_cannot_be_saved_changes_no_buffer():
    def scenario(optimize):
        def forward(self, x):
            y = x * self.w
            self.count.add_(1)
            return y

        net = optimize(module(forward, w=normal(3), count=torch.zeros((), dtype=torch.int64)))
        with torch.inference_mode():
            x = normal(2, 3)
        net(x.clone())
        try:
            net(x)
        except RuntimeError as error:
            return str(error), net.count

    check(scenario)


def test_results_that_read_the_bits_of_others():
    def scenario(optimize):
        net = optimize(
            module(lambda self, x, y: (x.view(torch.int64), (x * 2).view(torch.uint8), y + 1, (y + 1).view(-1, 2)))
        )
        x, y = normal(3, 2), torch.arange(4, dtype=torch.int32)
        bits, *rest = net(x, y)
        seen = [bits.clone(), *rest]
        bits.zero_()
        return [*seen, x]

    check(scenario)


def test_a_result_changed_in_place_through_its_view(built):
    def scenario(optimize):
        def forward(self, x):
            y = x * self.w
            return y, y[0], y.view(-1)

        net, x = optimize(module(forward, w=normal(3))), normal(2, 3).requires_grad_()
        y = net(x)
        y[1].mul_(2)
        y[2].add_(1)
        y[0].pow(2).sum().backward()
        return y, grads(net, x)

    check(scenario)


def test_strides_of_results():
    def forward(self, x):
        t = x.T
        return t * 2, t + t, torch.zeros_like(t), t.relu(), t.sum(0, keepdim=True), torch.cat([t, t]), t.softmax(0)

    check(calls(forward, (normal(2, 3),), (normal(3, 2),)))


# -------------------------------------------------------------------- arguments that change


def test_changed_arguments_and_views_of_them():
    def forward(self, a):
        a[0] = 1
        a[:, 1].mul_(2)
        a.view(-1)[-1] = 9
        return a.sum()

    check(calls(forward, (normal(3, 3),), (normal(4, 3),)))


@pytest.mark.parametrize("second", ["same", "view", "transposed", "overlapping", "beside"])
def test_a_changed_argument_that_shares_memory(built, second):
    def scenario(optimize):
        def forward(self, a, b):
            a.mul_(2)
            return b.sum(), a.sum()

        net, x = optimize(module(forward)), normal(6, 3)
        others = {"same": x[:3], "view": x[:3].view(9), "transposed": x[:3].T, "overlapping": x[1:4], "beside": x[3:]}
        return net(normal(3, 3), normal(*others[second].shape)), net(x[:3], others[second]), x

    check(scenario, fallback="silent")


def test_an_argument_that_gets_other_data():
    def forward(self, a):
        a.data = a.data * 2
        return a * 2

    check(calls(forward, (normal(3),)), fallback="silent")


def test_the_same_argument_twice():
    def scenario(optimize):
        net = optimize(module(lambda self, a, b: (a * b, a is b)))
        x, z = normal(2, 3).requires_grad_(), normal(2, 3).requires_grad_()
        for a, b in ((x, x), (x, z), (x, x)):
            net(a, b)[0].sum().backward()
        return x.grad, z.grad, [net(a, b) for a, b in ((x, x), (x, z))]

    check(scenario)


# -------------------------------------------------------------------- unusual tensors


def test_negated_and_conjugated_tensors(built):
    def scenario(optimize):
        net, c = optimize(module(lambda self, x: x * x)), torch.complex(normal(3), normal(3))
        x = normal(3).requires_grad_()
        y = net(x)
        y.backward(c.conj().imag)
        return net(c.conj().imag), net(c.conj()), x.grad

    check(scenario)


def test_conjugated_and_negated_tensors_that_are_changed():
    def scenario(optimize):
        net = optimize(module(lambda self, x, y: (x.mul_(2), y.add_(1))[0].sum()))
        z = torch.view_as_complex(normal(4, 3, 2)).clone()
        w = z.clone()
        return [net(z.conj(), w), net(z, w), net(w.conj().imag, z.conj().real), z, w]

    check(scenario)


def test_gradients_that_are_not_contiguous(built):
    def scenario(optimize):
        net, seen = optimize(module(lambda self, x: x.tanh() * self.w, w=normal(3))), []
        for g in (torch.ones(1, 1).double().expand(2, 3), normal(3, 2).T, normal(2, 6)[:, ::2], normal(4, 3)[::2]):
            x = normal(2, 3).requires_grad_()
            net.zero_grad()
            net(x).backward(g)
            seen.append(grads(net, x))
        return seen

    check(scenario)


def test_batches_of_none_and_one():
    def scenario(optimize):
        net, seen = optimize(nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)).double()), []
        for n in (4, 0, 1, 2, 0):
            x = normal(n, 3).requires_grad_()
            y = net(x)
            y.sum().backward()
            seen.append((y, x.grad))
        return seen, grads(net)

    check(scenario)


@pytest.mark.parametrize("dtype", [torch.int16, torch.int32, torch.int64])
def test_integers_wrap_around(built, dtype):
    """C++ may assume that they do not: comparisons vanish, and the power was an endless loop."""

    def forward(self, a, b):
        small = a.abs()
        return [
            a + 1 > a,
            small < 0,
            torch.div(a * 2, 2, rounding_mode="trunc"),
            -a > 0,
            a - b < a,
            1 << small,
            torch.where(small < 0, a, b),
            small.clamp(min=0),
            a * -1 <= 0,
            a**3,
            a ** b.abs().clamp(max=9),
            a * a * a < a,
        ]

    def scenario(optimize):
        least, most = torch.iinfo(dtype).min, torch.iinfo(dtype).max
        a = torch.tensor([least, most, least + 1, most - 1, 0, 1, -1, 5] * 3, dtype=dtype)
        return optimize(module(forward))(a, a.roll(3))

    check(scenario)


def _all_labels_ignored(self, x):
    none = torch.full((4,), -100)
    return F.cross_entropy(x, none), F.cross_entropy(x, none, label_smoothing=0.1), F.nll_loss(x, none)


def _half_powers(self, x):
    return (x / 0.0) ** 2.5, (x / 0.0) ** -1.5, x.abs() ** 3.5


def _products_with_zeros(self, x):
    return ((x * torch.tensor([0.0, math.nan, 2.0, 0.0, 1.0, 3.0], dtype=x.dtype)).prod(-1),)


def _taps_of_weight_zero(self, x):
    infinite = torch.cat([x[:, :1] / 0.0, x[:, 1:]], 1)[None]
    return F.adaptive_avg_pool1d(infinite, 4), F.interpolate(x[None], 3) / 0.0


def _constants_near_to_others(self, x):
    return x * math.nan, x.abs() ** math.nan, x.abs() ** 2.0000005, x.abs() ** 1.0000005, x * -1.0000005


_NOT_FINITE = (_all_labels_ignored, _half_powers, _products_with_zeros, _taps_of_weight_zero, _constants_near_to_others)


@pytest.mark.parametrize("forward", _NOT_FINITE)
def test_what_is_not_finite(built, forward):
    """What has no part in a value (an ignored label, a padded tap) takes none by being multiplied by 0 either."""

    def scenario(optimize):
        net, x = optimize(module(forward)), normal(4, 6).requires_grad_()
        results = net(x)
        return results, [torch.autograd.grad(r.sum(), x, retain_graph=True) for r in results]

    check(scenario)


def test_sparse_and_nested_tensors():
    def scenario(optimize):
        net, x = optimize(module(lambda self, x: x @ torch.ones(3, 2, dtype=x.dtype))), normal(2, 3)
        return net(x), net(x.to_sparse()), net(x)

    check(scenario, fallback="silent")


# -------------------------------------------------------------------- scalars and wrong calls


@pytest.mark.parametrize("values", [range(1, 9), [0.5, 1.5, -1.0, 0.0, 7.0, 1e30], ["a", "bb", "a"], [True, False, 2]])
def test_scalars_that_change(values):
    def forward(self, x, k):
        if isinstance(k, str):
            return x * len(k)
        return x * k + (k if k > 2 else 1)

    check(calls(forward, *((normal(3), k) for k in values)))


@pytest.mark.parametrize(
    ("forward", "good", "bad"),
    [
        (lambda self, x: x.max(), normal(2, 3), normal(0, 3)),
        (lambda self, x: torch.linalg.cholesky(x).sum(), torch.eye(2), -torch.eye(2)),
        (lambda self, x: (torch._assert_async(x.sum() > 0), x * 2)[1], torch.ones(2), -torch.ones(2)),
        (lambda self, x: F.linear(x, self.w), normal(2, 3), torch.ones(2, 3)),
        (lambda self, x: F.linear(x, self.w), normal(2, 3), normal(2, 4)),
    ],
)
def test_a_wrong_call_fails_and_the_next_does_not(forward, good, bad):
    def scenario(optimize):
        net = optimize(module(forward, w=normal(4, 3)))
        net(good)
        with pytest.raises((RuntimeError, IndexError)):
            net(bad)
        return net(good)

    check(scenario, fallback="silent")


def test_a_size_that_is_an_argument_alone():
    """No tensor has it: its value in the first call is Dynamo's symbol."""
    nets = []

    def scenario(optimize):
        nets.append(optimize(module(lambda self, x, k: x[:k] * k)))
        return [nets[-1](normal(40), k) for k in range(1, 40)]

    check(scenario)
    assert nets[-1].daceopt.stats.programs <= 2


def test_integers_of_either_sign_that_are_arguments_alone():
    def scenario(optimize):
        net = optimize(module(lambda self, x, k: (x * k, x + abs(k), x.roll(k), k // 2, k % 3)))
        return [net(normal(5), k) for k in (3, 4, -2, 0, 1, -5, 7, 2**40)]

    check(scenario)


def test_recurrent_layers_over_sizes_that_change():
    """Open sizes bring conditions of sizes, which are negated and are no tensors."""

    def scenario(optimize):
        torch.manual_seed(0)
        net = optimize(nn.LSTM(3, 4, bidirectional=True, batch_first=True).double())
        seen = []
        for shape in ((4, 5, 3), (2, 5, 3), (2, 6, 3)):
            result = net(normal(*shape))
            result[0].square().sum().backward()
            seen.append((result, grads(net)))
        return seen

    check(scenario)
