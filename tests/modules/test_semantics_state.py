"""The Python state that a forward reads and writes is that of the program around it, at every call."""

from __future__ import annotations

import contextlib
import functools
import math
import random

import numpy as np
import pytest
import torch
from torch import nn

from daceopt import optimized_module
from daceopt.capture.torch import conditions
from tests.twins import check, grads, module, normal

pytestmark = pytest.mark.usefixtures("interpreted")

SCALE = 2.0
SHIFT = torch.ones(3, dtype=torch.float64)
TABLE = {"k": 1.0}


def test_globals():
    def scenario(optimize):
        global SCALE, SHIFT
        SCALE, SHIFT, TABLE["k"] = 2.0, torch.ones(3, dtype=torch.float64), 1.0
        net, x = optimize(module(lambda self, x: x * SCALE + SHIFT + TABLE["k"])), normal(2, 3)
        seen = [net(x)]
        SCALE = 3.0
        seen.append(net(x))
        SHIFT = SHIFT * 5
        seen.append(net(x))
        SHIFT.mul_(2)
        seen.append(net(x))
        TABLE["k"] = 7.0
        return [*seen, net(x)]

    check(scenario)


def test_closures():
    def scenario(optimize):
        factor, shift = 1.0, torch.ones(3, dtype=torch.float64)
        net, x = optimize(module(lambda self, x: x * factor + shift)), normal(2, 3)
        seen = [net(x)]
        factor = 5.0
        seen.append(net(x))
        shift = shift * 3
        seen.append(net(x))
        shift.add_(1)
        return [*seen, net(x)]

    check(scenario)


def test_attributes_of_all_kinds():
    class Net(nn.Module):
        scale = 2.0

        def __init__(self):
            super().__init__()
            self.table, self.values, self.plain = {"a": 1.0}, [1.0], torch.ones(3, dtype=torch.float64)
            self.frozen = [nn.Linear(3, 3).double()]

        def forward(self, x):
            return self.frozen[0](x) * self.scale + self.table["a"] + self.values[0] * self.plain

    def change(net):
        yield setattr(Net, "scale", 4.0)
        yield net.table.update(a=-1.0)
        yield net.values.__setitem__(0, 7.0)
        yield setattr(net, "plain", net.plain * 2)
        yield net.plain.add_(1)
        yield net.frozen.__setitem__(0, nn.Linear(3, 3).double())
        yield net.frozen[0].weight.data.mul_(3)
        yield setattr(net, "scale", 11.0)

    def scenario(optimize):
        Net.scale = 2.0
        net, x = optimize(Net()), normal(2, 3)
        return [net(x), *(net(x) for _ in change(net))]

    check(scenario)


def test_numbers_that_are_equal_and_differ():
    def scenario(optimize):
        net, x = optimize(module(lambda self, x, k: (x * k, 1 / (x * k)))), torch.arange(3)
        return [net(x, k) for k in (1, 1.0, True, 2, 2.0, 0.0, -0.0, 0, False, 3)]

    check(scenario)


def test_zeros_whose_sign_differs():
    """Python reads it where no tensor is involved."""

    def forward(self, x, k):
        return x * math.copysign(1.0, k), x * math.copysign(2.0, self.table["k"])

    def scenario(optimize):
        net, x = optimize(module(forward, table={"k": 0.0})), normal(3)
        seen = [net(x, k) for k in (0.0, -0.0, 0.5, -1.0, -0.0, 0.0)]
        net.table["k"] = -0.0
        return [*seen, net(x, 0.5), net(x, -0.0)]

    check(scenario)


@pytest.mark.parametrize(
    "values", [[(0, 1), (0.0, 1), (-0.0, True)], [{1}, {True}, {1.0}], [0j, -0j, complex(0, -0.0)]]
)
def test_collections_that_are_equal_and_differ(values):
    def forward(self, x):
        found = [self.values] if isinstance(self.values, complex) else list(self.values)
        return x * found[0], found

    def scenario(optimize):
        net, x, seen = optimize(module(forward)), normal(3), []
        for net.values in [*values, *values]:
            y, found = net(x)
            seen += [y, repr(found)]
        return seen

    check(scenario)


def test_default_dtype():
    def scenario(optimize):
        net, x = optimize(module(lambda self, x: torch.zeros(3) + x.shape[0] + torch.tensor(1.5))), normal(2, 3)
        seen = [net(x)]
        torch.set_default_dtype(torch.float64)
        try:
            seen.append(net(x))
        finally:
            torch.set_default_dtype(torch.float32)
        return [*seen, net(x)]

    check(scenario, fallback="silent")


def test_strides_and_offsets():
    def scenario(optimize):
        net = optimize(module(lambda self, x: x * x.stride(0) + (1 if x.is_contiguous() else 2) + x.storage_offset()))
        x = normal(3, 3)
        return [net(t) for t in (x, x.T, normal(4, 3)[1:], normal(3, 6)[:, ::2], x[:, :1].expand(3, 3), x)]

    check(scenario, fallback="silent")


@pytest.mark.parametrize(
    "draw",
    [
        lambda: random.random(),
        lambda: random.uniform(0, 1),
        lambda: random.randint(0, 9),
        lambda: random.choice([1, 2, 3]),
        lambda: float(np.random.rand()),  # noqa: NPY002
    ],
)
def test_random_numbers_of_python(draw):
    def scenario(optimize):
        net, x = optimize(module(lambda self, x: x * draw())), normal(3)
        return [net(x) for _ in range(3)], draw()

    check(scenario, fallback="silent")


def test_layers_left_out_at_random():
    def scenario(optimize):
        def forward(self, x):
            for w in self.weights:
                if random.random() < 0.5:
                    x = x @ w
            return x

        net = optimize(module(forward, weights=[normal(3, 3) * k for k in (1, 2, 3)]))
        return [net(normal(2, 3)) for _ in range(5)]

    check(scenario, fallback="silent")


@pytest.mark.parametrize(
    ("change", "read"),
    [
        (lambda: torch.set_grad_enabled(False), torch.is_grad_enabled),
        (lambda: torch.set_default_dtype(torch.float64), torch.get_default_dtype),
        (lambda: torch.use_deterministic_algorithms(True), torch.are_deterministic_algorithms_enabled),
        (lambda: torch.set_float32_matmul_precision("high"), torch.get_float32_matmul_precision),
    ],
)
def test_what_forward_sets_stays_set(change, read):
    def restore():
        torch.set_grad_enabled(True)
        torch.set_default_dtype(torch.float32)
        torch.use_deterministic_algorithms(False)
        torch.set_float32_matmul_precision("highest")

    def scenario(optimize):
        def forward(self, x):
            y = x * self.w
            change()
            return y, x * self.w + torch.ones(3)

        net, seen = optimize(module(forward, w=normal(3))), []
        try:
            for _ in range(2):
                seen.append([net(normal(3)), read()])
                restore()
                seen.append([net(normal(3)), read(), net(normal(3)), read()])
                restore()
        finally:
            restore()
        return seen

    check(scenario)


def test_a_default_device():
    def scenario(optimize):
        net, x = optimize(module(lambda self, x: (x * 2, torch.zeros(2)))), normal(2, 3)
        net(x)
        with torch.device("meta"):
            y, z = net(x)
        return y, z.device.type

    check(scenario, fallback="silent")


# -------------------------------------------------------------------- what forward writes


def test_buffers_counters_lists_and_caches():
    def scenario(optimize):
        def forward(self, x):
            self.mean = self.mean * 0.9 + x.mean(0) * 0.1
            self.count += 1
            self.calls += 1
            self.log.append(x * 2)
            self.cache[x.shape[0]] = self.calls
            return x - self.mean * self.calls

        net = module(forward, count=torch.tensor(0), calls=0, log=[], cache={})
        net.register_buffer("mean", torch.zeros(3, dtype=torch.float64))
        net = optimize(net)
        seen = [net(normal(n, 3)) for n in (2, 2, 3, 2)]
        return seen, dict(net.named_buffers()), net.calls, net.log, net.cache

    check(scenario, fallback="silent")


def test_state_changes_once_where_the_graph_breaks():
    def scenario(optimize):
        def forward(self, x):
            self.calls += 1
            self.log.append("before")
            y = x * 2
            torch._dynamo.graph_break()
            self.calls += 10
            self.count.add_(1)
            return y.sin() * self.calls + self.count

        net = optimize(module(forward, count=torch.tensor(0), calls=0, log=[]))
        return [net(normal(2, 3)) for _ in range(3)], net.calls, net.log, net.count

    check(scenario, fallback="silent")


def test_branches_on_values():
    def scenario(optimize):
        def forward(self, x):
            self.calls += 1
            h = x * self.w
            h = h * 2 if h.sum() > 0 else h - self.v
            return h.sin()

        net, seen = optimize(module(forward, w=normal(3), v=normal(3), calls=0)), []
        for sign in (1, -1, 1):
            x = (normal(2, 3).abs() * sign).requires_grad_()
            net.zero_grad()
            net(x).sum().backward()
            seen.append(grads(net, x))
        return seen, net.calls

    check(scenario, fallback="silent")


@pytest.mark.parametrize("late", [False, True])
def test_a_call_that_fails_changes_state_once(late):
    def scenario(optimize):
        def forward(self, x):
            self.calls += 1
            if not late and x.shape[1] == 4:
                raise ValueError("no four")
            return x @ torch.ones(3, 3, dtype=x.dtype)

        net, seen = optimize(module(forward, calls=0)), []
        for width in (3, 4, 3, 4):
            try:
                seen.append(net(normal(2, width)))
            except (ValueError, RuntimeError) as error:
                seen.append(str(error)[:20])
        return seen, net.calls

    check(scenario, fallback="silent")


def test_what_is_not_there():
    def scenario(optimize):
        def forward(self, x):
            try:
                x = x * self.table["k"]
            except KeyError:
                x = x * 3
            try:
                return x * self.factor
            except AttributeError:
                return x * 5

        net, x = optimize(module(forward, table={})), normal(3)
        seen = [net(x)]
        net.table["k"] = 7.0
        seen.append(net(x))
        net.factor = 11.0
        seen.append(net(x))
        del net.table["k"], net.factor
        return [*seen, net(x)]

    check(scenario)


def test_what_is_not_there_in_a_child_or_its_class():
    def scenario(optimize):
        class Child(nn.Module):
            def forward(self, x):
                try:
                    return x * self.extra
                except AttributeError:
                    return x + 1

        class Settings:
            pass

        def forward(self, x):
            with contextlib.suppress(AttributeError):
                x = x + self.settings.bias
            return self.child(x)

        child, settings = Child(), Settings()
        net, x, seen = optimize(module(forward, child=child, settings=settings)), normal(3), []
        full = functools.partial(torch.full, (3,), dtype=torch.float64)

        def then(change, *args):
            change(*args)
            seen.append(net(x))

        then(child.register_buffer, "extra", full(2.0))
        then(setattr, settings, "bias", 5.0)
        then(child.register_module, "unread", nn.Linear(1, 1))
        then(delattr, child, "extra")
        then(child.register_parameter, "extra", nn.Parameter(full(7.0)))
        then(delattr, settings, "bias")
        then(delattr, child, "extra")
        then(setattr, Child, "extra", 2.5)
        then(delattr, Child, "extra")
        return seen

    check(scenario)


def test_a_handler_that_nothing_reaches_costs_no_guards(monkeypatch):
    asked = []
    monkeypatch.setattr(conditions, "_check_keys", lambda builder, guard, table: asked.append(guard.name))

    def forward(self, x):
        try:
            return x * self.factor
        except AttributeError:
            return x * 5

    net = optimized_module(module(forward, factor=3.0, child=nn.Linear(2, 2)), fallback="raise")
    net(normal(3))
    assert not asked
    del net.factor
    net(normal(3))
    assert asked


def test_buffers_that_share_memory():
    def scenario(optimize):
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.register_buffer("row", torch.arange(6, dtype=torch.float64))
                self.register_buffer("table", self.row.view(2, 3))

            def forward(self, x):
                self.row.add_(1)
                y = self.table * x
                self.table.mul_(2)
                return y + self.row.sum()

        net, x = optimize(Net()), normal(3)
        seen = [net(x), net.row.clone()]
        net.table = torch.ones(2, 3, dtype=torch.float64)
        seen += [net(x), net.row.clone(), net.table.clone()]
        net.table.set_(net.row.untyped_storage(), 0, (2, 3))
        return [*seen, net(x), net.row, net.table]

    check(scenario, fallback="silent")


def test_a_growing_cache():
    def scenario(optimize):
        def forward(self, x):
            self.keys = x if self.keys is None else torch.cat([self.keys, x], 0)
            return self.keys.cumsum(0)

        net = optimize(module(forward, keys=None))
        return [net(normal(2, 3)) for _ in range(4)], net.keys

    check(scenario, fallback="silent")
