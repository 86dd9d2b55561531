"""Python that Dynamo would trace as something else, by itself, breaks the graph or is traced as what it is."""

from __future__ import annotations

import decimal
import functools
import operator
import random
import warnings
from collections import deque

import numpy as np
import pytest
import torch
from torch import nn

from daceopt import optimized_module
from daceopt.errors import CaptureError, FallbackWarning
from tests.twins import check, module, normal

pytestmark = pytest.mark.usefixtures("interpreted")


def check_breaks(scenario, reason):
    """Its graph breaks for that reason: the outcome is right, and said to be in parts."""
    check(scenario, fallback="silent")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        scenario(optimized_module)
    assert any(w.category is FallbackWarning and reason in str(w.message) for w in caught)
    with pytest.raises(CaptureError, match=reason):
        scenario(lambda net: optimized_module(net, fallback="raise"))


def _weighted_by_class(self, x, weight):
    kinds = (isinstance(weight, np.number), isinstance(weight, float), isinstance(weight, np.ndarray))
    return x * float(weight) + sum(k + 1 for k, is_one in enumerate(kinds) if is_one), type(weight) is np.float32


def test_the_class_of_a_scalar_of_numpy():
    """Dynamo takes one for an array, which none of these is."""
    weights = [np.float32(2), np.float64(2), np.array(2.0), np.float32(3), np.int64(2), np.float16(2), 2.0]

    def scenario(optimize):
        net = optimize(module(_weighted_by_class))
        return [net(normal(3), weight) for weight in weights]

    check(scenario, fallback="silent")


def _shares(a):
    """As I-BERT computes fixed points."""
    mantissas, exponents = np.frexp(a)
    return [int(decimal.Decimal(m * 2**8).quantize(decimal.Decimal(1))) for m in mantissas] + [
        int(e) for e in exponents
    ]


_NUMPY_RESULTS = {
    "reduction": lambda a: a.mean(),
    "function": lambda a: np.max(a) + np.dot(a, a),
    "element": lambda a: a[1],
    "element plus": lambda a: a[1] * 2 + a[0],
    "several results": lambda a: np.frexp(a[0]),
    "in place": lambda a: operator.iadd(a.sum(), 1),
    "in place of an array": lambda a: operator.iadd(np.array(2.0), 1),
    "array": lambda a: np.array(a[0]),
    "view": lambda a: a[:1].reshape(()),
    "ellipsis": lambda a: a[0, ...],
    "copy": lambda a: np.zeros(()).copy(),
    "class": lambda a: (isinstance(a.sum(), np.floating), isinstance(a.sum(), np.ndarray), type(a[0]) is np.float64),
    "decimal": _shares,
}


@pytest.mark.parametrize("compute", _NUMPY_RESULTS.values(), ids=_NUMPY_RESULTS)
def test_scalars_that_numpy_computes(compute):
    """Results of NumPy leave a graph as the class that NumPy gives them."""

    def scenario(optimize):
        y, found = optimize(module(lambda self, x: (x * 2, compute(x.detach().numpy()))))(normal(3))
        return [y, str([type(v) for v in found] if isinstance(found, tuple) else type(found)), found]

    check(scenario, fallback="silent")


@pytest.mark.parametrize(
    "draw", [lambda r: r.random(), lambda r: r.uniform(1, 2), lambda r: r.randint(0, 9), lambda r: r.choice([1, 2, 3])]
)
def test_random_numbers_of_an_own_generator(draw):
    def scenario(optimize):
        net = optimize(module(lambda self, x: x * draw(self.generator), generator=random.Random(3)))
        seen = [net(normal(3)) for _ in range(3)]
        net.generator.seed(5)
        return [*seen, net(normal(3)), net(normal(3)), net.generator.random()]

    check_breaks(scenario, "random.Random that outlives the call")


@pytest.mark.parametrize(
    "draw",
    [lambda: np.random.rand(3), lambda: np.random.normal(0, 1, 3), lambda: np.random.permutation(3)],  # noqa: NPY002
)
def test_random_arrays_of_numpy(draw):
    def scenario(optimize):
        net = optimize(module(lambda self, x: x * torch.from_numpy(draw())))
        return [net(normal(3)) for _ in range(3)], float(np.random.rand())  # noqa: NPY002

    check_breaks(scenario, "random numbers of NumPy")


def test_random_numbers_of_a_generator_of_the_call():
    def scenario(optimize):
        def forward(self, x):
            generator = random.Random(4)
            return x * generator.random() * generator.random()

        net = optimize(module(forward))
        return [net(normal(3)) for _ in range(3)]

    check(scenario)


@pytest.mark.parametrize(
    "change",
    [
        lambda queue, x: queue.append(x),
        lambda queue, x: queue.appendleft(x),
        lambda queue, x: queue.extend([x, x + 1]),
        lambda queue, x: (queue.rotate(1), queue.append(x)),
    ],
)
def test_bounded_queues(change):
    def scenario(optimize):
        def forward(self, x):
            change(self.queue, x * 2)
            return sum(self.queue) * len(self.queue)

        net = optimize(module(forward, queue=deque(maxlen=3)))
        return [net(normal(3) + k) for k in range(5)], list(net.queue), net.queue.maxlen

    check_breaks(scenario, "deque with maxlen")


def test_queues_without_a_bound_and_of_the_call():
    def scenario(optimize):
        def forward(self, x):
            own = deque(maxlen=2)
            for k in range(4):
                own.append(x * k)
            self.queue.append(x)
            return sum(own) + sum(self.queue)

        net = optimize(module(forward, queue=deque()))
        return [net(normal(3)) for _ in range(3)], list(net.queue)

    check(scenario)


@pytest.mark.parametrize("inside", [True, False])
def test_inference_mode_inside(inside):
    def scenario(optimize):
        def forward(self, x):
            with torch.inference_mode(inside):
                y = x.clone() * self.w
            return y, x * self.w

        net, seen = optimize(module(forward, w=normal(3))), []
        for outside in (False, True, False):
            with torch.inference_mode(outside):
                results = net(normal(3))
            seen.append([(y.is_inference(), y.requires_grad, y.detach().clone()) for y in results])
        return seen

    check_breaks(scenario, "inference_mode inside")


def test_gradients_that_are_not_materialized():
    class Doubled(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.set_materialize_grads(False)
            return x * 2, x * 3

        @staticmethod
        def backward(ctx, a, b):
            if a is None or b is None:
                return b * 100 if a is None else a * 1000
            return a + b

    def scenario(optimize):
        net, seen = optimize(module(lambda self, x: Doubled.apply(x))), []
        for wanted in ((0,), (1,), (0, 1)):
            x = normal(3).requires_grad_()
            results = net(x)
            sum(results[k].sum() for k in wanted).backward()
            seen.append(x.grad)
        return seen

    check_breaks(scenario, "set_materialize_grads")


@pytest.mark.parametrize("values", [(2, 3, 4, 5), (0.5, 1.5, 2.25, 0.5)])
def test_numbers_as_text(values):
    def scenario(optimize):
        net = optimize(module(lambda self, x, k: (x * k, f"{k}", f"{k:.2f}", f"{x.shape[0]} rows", f"{k!r}")))
        return [net(normal(n), k) for n, k in zip((2, 3, 4, 2), values)]

    check(scenario)


def test_values_of_tensors_as_text():
    def scenario(optimize):
        net = optimize(module(lambda self, x: (x * 2, f"{x.sum().item():.3f}", str(x.sum().item()), f"{x[0]}")))
        return [net(normal(n)) for n in (2, 3, 3)]

    check(scenario, fallback="silent")


# -------------------------------------------------------------------- cached functions


def test_a_cached_function_gives_what_it_gave_first():
    def scenario(optimize):
        factor = [2.0]

        @functools.lru_cache
        def cached(k, shift=0):
            return k * factor[0] + shift

        net, x = optimize(module(lambda self, x, k: x * cached(k) + cached(k, shift=1))), normal(3)
        seen = [net(x, k) for k in (1, 2, 1)]
        factor[0] = 5.0
        seen += [net(x, k) for k in (1, 2, 3)]
        cached.cache_clear()
        return [*seen, net(x, 1), cached(1)]

    check(scenario)


def test_a_cached_function_of_sizes():
    def scenario(optimize):
        cached = functools.cache(lambda n: n**0.5)
        net = optimize(module(lambda self, x: x * cached(x.shape[0])))
        return [net(normal(n)) for n in (2, 3, 4, 2)]

    check(scenario)


def test_a_cached_tensor_and_a_cached_method():
    class Net(torch.nn.Module):
        scale = 2.0

        @functools.lru_cache  # noqa: B019
        def steps(self, n):
            return torch.arange(n, dtype=torch.float64) * self.scale

        def forward(self, x):
            return x * self.steps(x.shape[0]).add_(1)

    def scenario(optimize):
        net = optimize(Net())
        seen = [net(normal(n)) for n in (3, 4, 3)]
        net.scale = 5.0
        return [*seen, net(normal(3)), net(normal(5))]

    check_breaks(scenario, "lru_cache")


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("inside", [False, True])
def test_padding_of_an_encoder_in_evaluation(inside):
    """Padded positions at the end are zero then, unless something is differentiated."""

    def scenario(optimize):
        layer = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True, dropout=0.0, dtype=torch.float64)
        encoder = nn.TransformerEncoder(layer, 2).eval()
        wrapped = module(lambda self, x, mask: self.encoder(x.tanh(), src_key_padding_mask=mask).sin())
        wrapped.encoder = encoder
        net, x, seen = optimize(wrapped if inside else encoder), normal(2, 5, 4), []
        masks = torch.tensor([[[0, 0, 0, 1, 1], [0, 0, 0, 0, 0]], [[1, 0, 0, 0, 1], [0, 0, 0, 0, 0]]]).bool()
        for mask in masks:
            given = {"mask" if inside else "src_key_padding_mask": mask}
            seen.append(net(x, **given))
            with torch.no_grad():
                seen.append(net(x, **given))
        return seen

    check(scenario, fallback="silent")


def _transposed_twice(y):
    z = y.t_()
    z.t_()
    same = [y]
    same[0].unsqueeze_(1)
    return z is y, z * z.shape[0] + y.shape[1], len(y), y.ndim, [row * 2 for row in y], y.stride(1)


RESHAPED = {
    "transpose_": lambda y: (y.transpose_(0, -1) * y.shape[0], y.stride(), y.is_contiguous(), y.reshape(y.shape)),
    "unsqueeze_": lambda y: (y.unsqueeze_(0).dim(), y * y.size(-3) ** 0.5, [part + 1 for part in y]),
    "squeeze_": lambda y: (y.unsqueeze_(0).squeeze_(), y.size(0), *y),
    "as_strided_": lambda y: (torch.as_strided_(y, (2, 2), (1, 2)), y * y.shape[0], y.numel()),
    "function": lambda y: (torch.Tensor.swapaxes_(y, 0, 1), torch.ops.aten.t_(y), y * y.shape[1]),
    "operator": lambda y: (torch.ops.aten.unsqueeze_.default(y, 1), y * y.shape[0], y.shape),
    "names": _transposed_twice,
}


@pytest.mark.parametrize("change", RESHAPED.values(), ids=RESHAPED)
def test_a_tensor_whose_shape_is_changed_in_place_has_that_shape(change):
    def scenario(optimize):
        return optimize(module(lambda self, x: change(x * 2)))(normal(3, 4))

    check(scenario)


CHANGES = {
    "swapaxes_": lambda y: y.swapaxes_(0, 1),
    "transpose_": lambda y: y.transpose_(-1, 0),
    "squeeze_": lambda y: y.squeeze_(),
    "unsqueeze_": lambda y: y.unsqueeze_(0),
    "function": lambda y: torch.Tensor.swapdims_(y, 1, 2),
    "twice": lambda y: (y.unsqueeze_(0), y[0, 2, 3].neg_(), y.transpose_(1, 3)),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_what_is_written_before_the_shape_changes_in_place(change):
    """At places that the tensor has no longer afterwards, or through a view that keeps its shape."""

    def forward(self, x):
        y = x * 2
        y[2:, 3] += y[2:, 3] * 0.5
        part = y[1:]
        change(y)
        part.mul_(3)
        y[0].exp_()
        return y, part

    def scenario(optimize):
        x, net = normal(3, 4, 1).requires_grad_(), optimize(module(forward))
        found = net(x)
        sum((t * t).sum() for t in found).backward()
        return [*found, x.grad]

    check(scenario)


def test_a_view_whose_shape_is_changed_in_place_is_written_in_parts():
    """Autograd, as Dynamo runs it, would look for these parts in the shape that the view had before."""

    def forward(self, x):
        y = (x * 2).permute(0, 1)
        y.transpose_(0, -1)
        for i in range(1, y.shape[0]):
            y[i] += y[i - 1].tanh()
        return y * 1, y.shape

    def scenario(optimize):
        x, net = normal(2, 3).requires_grad_(), optimize(module(forward))
        found, shape = net(x)
        (found * found).sum().backward()
        return found, shape, x.grad

    check(scenario)


@pytest.mark.parametrize("kind", [torch.Tensor, (int, torch.Tensor), nn.Module, (str, float)], ids=str)
def test_isinstance_as_torchscript_has_it(kind):
    def forward(self, x, other):
        y = self.layer(x)
        return torch.cat([y, other]) if torch.jit.isinstance(other, kind) else y * 2

    layer = nn.Linear(3, 3, dtype=torch.float64)
    net = optimized_module(module(forward, layer=layer), fallback="silent")
    x, other = normal(2, 3), normal(1, 3)
    y = net.layer(x)
    expected = torch.cat([y, other]) if isinstance(other, kind) else y * 2
    torch.testing.assert_close(net(x, other), expected)
    assert not net.daceopt.reasons and net.daceopt.stats.programs == 1
