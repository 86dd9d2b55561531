"""The module contract: an optimized module behaves as the module it was, line by line."""

from __future__ import annotations

import copy
import inspect
import io
import pickle
import threading
import warnings
from collections import namedtuple
from dataclasses import dataclass

import pytest
import torch
from torch import nn

from daceopt import optimized_module
from daceopt.errors import FallbackWarning
from tests.numerics import assert_within_rounding

pytestmark = pytest.mark.usefixtures("interpreted")


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 8)
        self.second = nn.Linear(8, 3)

    def forward(self, x):
        return self.second(torch.relu(self.first(x)))


@optimized_module(fallback="raise")
class Decorated(nn.Module):
    def __init__(self, width: int = 3) -> None:
        super().__init__()
        self.linear = nn.Linear(4, width)

    def forward(self, x):
        return torch.relu(self.linear(x))


class Derived(Decorated):
    def forward(self, x):
        return super().forward(x) + 1


@dataclass
class Scores:
    logits: torch.Tensor
    hidden: torch.Tensor


Pair = namedtuple("Pair", "sum product")


def x(*shape: int) -> torch.Tensor:
    return torch.randn(*(shape or (5, 4)), generator=torch.Generator().manual_seed(3))


def pair(module: nn.Module | None = None, **options):
    """A module and its optimized twin."""
    reference = module or Net()
    return reference, optimized_module(copy.deepcopy(reference), **{"fallback": "raise", **options})


def assert_same_step(reference: nn.Module, ours: nn.Module, *inputs: torch.Tensor) -> None:
    """Outputs and gradients of parameters and inputs agree."""
    results = []
    double = copy.deepcopy(reference).double()
    for module in (ours, double, reference):
        module.zero_grad()
        args = [t.clone().requires_grad_() if t.is_floating_point() else t for t in inputs]
        args = [t.detach().double().requires_grad_() if module is double and t.is_floating_point() else t for t in args]
        out = module(*args)
        out.square().sum().backward()
        results.append([out, *[p.grad for p in module.parameters()], *[a.grad for a in args]])
    for mine, exact, theirs in zip(*results, strict=True):
        assert (mine is None) == (theirs is None)
        if theirs is not None:
            assert_within_rounding(mine, exact, theirs)


def programs_of(module: nn.Module) -> int:
    return module.daceopt.stats.programs


# Identity, state, copies


def test_the_returned_module_is_the_given_instance():
    net = Net()
    parameters = list(net.parameters())
    assert optimized_module(net) is net
    assert type(net) is Net and all(a is b for a, b in zip(net.parameters(), parameters, strict=True))


def test_a_decorated_class_keeps_its_identity():
    assert isinstance(Decorated, type) and Decorated.__name__ == "Decorated" and Decorated.__module__ == __name__
    net = Decorated()
    assert isinstance(net, Decorated) and type(net) is Decorated
    assert_same_step(nn.Sequential(copy.deepcopy(net.linear), nn.ReLU()), net, x())
    assert programs_of(net) == 1


def test_decorator_without_arguments():
    @optimized_module
    class Plain(nn.Module):
        def forward(self, a):
            return a * 2

    net = Plain()
    assert torch.equal(net(x()), x() * 2) and programs_of(net) == 1


def test_subclasses_are_optimized_as_a_whole():
    net = Derived()
    torch.testing.assert_close(net(x()), torch.relu(net.linear(x())) + 1)
    assert programs_of(net) == 1 and net.daceopt.stats.eager_calls == 0
    torch.testing.assert_close(Decorated.forward(net, x()), torch.relu(net.linear(x())))


def test_the_signature_of_forward_is_the_user_s():
    assert list(inspect.signature(optimized_module(Net()).forward).parameters) == ["x"]
    assert list(inspect.signature(Decorated().forward).parameters) == ["x"]


def test_state_dict_keys_and_loading():
    reference, ours = pair()
    assert list(ours.state_dict()) == list(reference.state_dict())
    ours(x())
    other = Net()
    ours.load_state_dict(other.state_dict())
    torch.testing.assert_close(ours(x()), other(x()))
    ours.load_state_dict(reference.state_dict(), assign=True)
    torch.testing.assert_close(ours(x()), reference(x()))


@pytest.mark.parametrize(
    "make", [lambda: optimized_module(Net(), fallback="raise"), Decorated], ids=["instance", "class"]
)
@pytest.mark.parametrize("called", [False, True])
def test_deepcopy_is_independent(make, called):
    net = make()
    if called:
        net(x())
    twin = copy.deepcopy(net)
    with torch.no_grad():
        next(twin.parameters()).mul_(2)
    assert twin.daceopt.stats.programs == 0
    assert not torch.equal(twin(x()), net(x()))
    assert_same_step(_plain(twin), twin, x())


@pytest.mark.parametrize(
    "make", [lambda: optimized_module(Net(), fallback="raise"), Decorated], ids=["instance", "class"]
)
@pytest.mark.parametrize("way", ["pickle", "torch.save"])
def test_pickle_and_torch_save(make, way):
    net = make()
    net(x())
    if way == "pickle":
        twin = pickle.loads(pickle.dumps(net))
    else:
        stream = io.BytesIO()
        torch.save(net, stream)
        stream.seek(0)
        twin = torch.load(stream, weights_only=False)
    torch.testing.assert_close(twin(x()), net(x()))
    assert programs_of(twin) == 1 and twin.daceopt is not net.daceopt


def _plain(net: nn.Module) -> nn.Module:
    """The same module, never optimized."""
    if isinstance(net, Decorated):
        return nn.Sequential(copy.deepcopy(net.linear), nn.ReLU())
    plain = Net()
    plain.load_state_dict(net.state_dict())
    return plain


# Modes and types


def test_train_and_eval():
    reference, ours = pair(nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU()))
    for mode in (True, False, True):
        reference.train(mode), ours.train(mode)
        torch.testing.assert_close(ours(x()), reference(x()))
    assert programs_of(ours) == 2


def test_a_submodule_in_eval_is_honoured():
    reference, ours = pair(nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6)))
    ours(x()), reference(x())
    reference[1].eval(), ours[1].eval()
    torch.testing.assert_close(ours(x()), reference(x()))


def test_batch_norm_updates_the_module_s_own_buffers():
    reference, ours = pair(nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6)))
    mean = ours[1].running_mean
    for _ in range(3):
        assert_same_step(reference, ours, x())
    assert ours[1].running_mean is mean and int(ours[1].num_batches_tracked) == 3
    for a, b in zip(ours.buffers(), reference.buffers(), strict=True):
        torch.testing.assert_close(a, b)


def test_to_another_dtype():
    reference, ours = pair()
    ours(x())
    reference.double(), ours.double()
    out = ours(x().double())
    assert out.dtype == torch.float64
    torch.testing.assert_close(out, reference(x().double()))


def test_no_grad_and_inference_mode():
    reference, ours = pair()
    for scope in (torch.no_grad, torch.inference_mode):
        with scope():
            out = ours(x())
            assert not out.requires_grad and out.grad_fn is None
            torch.testing.assert_close(out, reference(x()))
    assert ours(x()).requires_grad


def test_integer_inputs():
    reference, ours = pair(nn.Sequential(nn.Embedding(10, 4), nn.Linear(4, 2)))
    indices = torch.tensor([[1, 2, 3], [9, 0, 3]])
    assert_same_step(reference, ours, indices)


def test_attributes_changed_between_calls():
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale, self.terms, self.offset = 2.0, [1.0, 2.0], torch.ones(4)

        def forward(self, a):
            return a * self.scale + sum(self.terms) + self.offset

    reference, ours = pair(Scaled())
    for change in (
        lambda m: None,
        lambda m: setattr(m, "scale", 3.0),
        lambda m: m.terms.append(5.0),
        lambda m: m.offset.mul_(7),
        lambda m: setattr(m, "offset", torch.zeros(4)),
    ):
        change(reference), change(ours)
        torch.testing.assert_close(ours(x()), reference(x()))


def test_submodules_replaced():
    reference, ours = pair()
    ours(x())
    reference.second = nn.Linear(8, 2)
    ours.second = copy.deepcopy(reference.second)
    assert_same_step(reference, ours, x())


# Weights and gradients


@pytest.mark.parametrize("called", [False, True], ids=["before", "after"])
def test_optimizer_built_before_or_after(called):
    reference, ours = pair()
    for module in (reference, ours):
        if called:
            module(x())
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)
        for _ in range(3):
            optimizer.zero_grad()
            module(x()).square().sum().backward()
            optimizer.step()
    for a, b in zip(ours.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(a, b)


def test_gradient_accumulation():
    reference, ours = pair()
    for module in (reference, ours):
        for k in range(3):
            module(x() + k).sum().backward()
    for a, b in zip(ours.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad)


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(4, 4), nn.Linear(4, 4)
        self.outer.weight = self.inner.weight

    def forward(self, a):
        return self.outer(torch.tanh(self.inner(a)))


def test_tied_weights():
    reference, ours = pair(Tied())
    assert len(list(ours.parameters())) == 3
    assert_same_step(reference, ours, x())


def test_weights_untied_later():
    reference, ours = pair(Tied())
    ours(x())
    for module in (reference, ours):
        module.outer.weight = nn.Parameter(torch.ones(4, 4))
    assert_same_step(reference, ours, x())


def test_weights_changed_in_place_or_replaced():
    reference, ours = pair()
    changes = [
        lambda m: m.first.weight.data.mul_(2),
        lambda m: setattr(m.first.weight, "data", torch.ones(8, 4)),
        lambda m: setattr(m.first, "weight", nn.Parameter(torch.full((8, 4), 0.5))),
        lambda m: setattr(m.first, "bias", None),
    ]
    for change in changes:
        change(reference), change(ours)
        assert_same_step(reference, ours, x())


def test_unused_parameters_have_no_gradient():
    class Unused(Net):
        def __init__(self) -> None:
            super().__init__()
            self.spare = nn.Parameter(torch.ones(3))

    reference, ours = pair(Unused())
    assert_same_step(reference, ours, x())
    assert ours.spare.grad is None


def test_frozen_parameters_have_no_gradient():
    reference, ours = pair()
    reference.first.weight.requires_grad_(False), ours.first.weight.requires_grad_(False)
    assert_same_step(reference, ours, x())
    assert ours.first.weight.grad is None
    reference.first.weight.requires_grad_(True), ours.first.weight.requires_grad_(True)
    assert_same_step(reference, ours, x())


def test_the_gradient_of_an_input_alone():
    reference, ours = pair()
    reference.requires_grad_(False), ours.requires_grad_(False)
    assert not ours(x()).requires_grad
    assert_same_step(reference, ours, x())


def test_functional_call_swaps_weights():
    reference, ours = pair()
    weights = {k: torch.full_like(v, 0.1).requires_grad_() for k, v in reference.named_parameters()}
    ours(x())
    out = torch.func.functional_call(ours, weights, (x(),))
    torch.testing.assert_close(out, torch.func.functional_call(reference, weights, (x(),)))
    out.sum().backward()
    assert weights["first.weight"].grad is not None and ours.first.weight.grad is None


# Calls and results


def test_called_twice_before_one_backward():
    reference, ours = pair()
    for module in (reference, ours):
        (module(x()) * module(x() + 1)).sum().backward()
    torch.testing.assert_close(ours.first.weight.grad, reference.first.weight.grad)


def test_an_output_kept_while_the_module_is_called_again():
    _, ours = pair()
    kept = ours(x())
    before = kept.detach().clone()
    for k in range(3):
        ours(x() + k)
    assert torch.equal(kept, before)


def test_backward_twice():
    reference, ours = pair()
    for module in (reference, ours):
        out = module(x()).sum()
        out.backward(retain_graph=True)
        out.backward()
    torch.testing.assert_close(ours.first.weight.grad, reference.first.weight.grad)
    out = ours(x()).sum()
    out.backward()
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        out.backward()


def test_a_saved_tensor_modified_in_place():
    _, ours = pair()
    out = ours(x())
    with torch.no_grad():
        for parameter in ours.parameters():
            parameter.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


def test_an_output_modified_in_place():
    reference, ours = pair()
    for module in (reference, ours):
        out = module(x())
        out.mul_(2)
        out.sum().backward()
    torch.testing.assert_close(ours.first.weight.grad, reference.first.weight.grad)


def test_a_gradient_of_a_gradient():
    reference, ours = pair()
    found = []
    for module in (reference, ours):
        a = x().requires_grad_()
        (gradient,) = torch.autograd.grad(module(a).square().sum(), a, create_graph=True)
        gradient.square().sum().backward()
        found.append([gradient, a.grad, *[p.grad for p in module.parameters()]])
    for expected, mine in zip(*found, strict=True):
        assert (expected is None) == (mine is None)
        if expected is not None:
            torch.testing.assert_close(mine, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "change",
    [lambda t: t.t(), lambda t: t[::2], lambda t: t[:, :1].expand(4, 4), lambda t: t.flip(0)[1:]],
    ids=["transposed", "strided", "expanded", "offset"],
)
def test_non_contiguous_and_expanded_inputs(change):
    reference, ours = pair()
    a = change(x(4, 4))
    torch.testing.assert_close(ours(a), reference(a))
    grads = []
    for module in (reference, ours):
        leaf = x(4, 4).requires_grad_()
        module(change(leaf)).square().sum().backward()
        grads.append(leaf.grad)
    torch.testing.assert_close(*grads)


def test_the_third_batch_size_does_not_compile():
    reference, ours = pair()
    for batch in (5, 7, 9, 16, 2):
        assert_same_step(reference, ours, x(batch, 4))
    assert programs_of(ours) <= 2  # 1 where other modules of this code have shown that the batch varies
    assert_same_step(reference, ours, x(1, 4))


def test_sizes_that_cannot_vary_compile_each():
    class Chunked(nn.Module):
        def forward(self, a):
            return a.view(2, -1).sum(1) if a.shape[0] > 6 else a.sum(1)

    reference, ours = pair(Chunked())
    for batch in (4, 8, 6, 10, 4):
        torch.testing.assert_close(ours(x(batch, 4)), reference(x(batch, 4)))
    assert ours.daceopt.stats.eager_calls == 0


def test_nested_outputs():
    class Nested(Net):
        def forward(self, a):
            hidden = self.first(a)
            out = self.second(hidden)
            return {"a": out, "b": [hidden, (out * 2, None)], "c": 3}

    reference, ours = pair(Nested())
    got, want = ours(x()), reference(x())
    assert list(got) == ["a", "b", "c"] and got["c"] == 3 and got["b"][1][1] is None
    torch.testing.assert_close([got["a"], got["b"][0], got["b"][1][0]], [want["a"], want["b"][0], want["b"][1][0]])
    for result in (got, want):
        (result["a"].sum() + result["b"][1][0].sum()).backward()
    torch.testing.assert_close(ours.first.weight.grad, reference.first.weight.grad)


def test_tuple_namedtuple_and_dataclass_outputs():
    class Results(Net):
        def forward(self, a):
            hidden = self.first(a)
            return Scores(self.second(hidden), hidden), Pair(a + 1, a * 2)

    reference, ours = pair(Results())
    (scores, both), (want, other) = ours(x()), reference(x())
    assert isinstance(scores, Scores) and isinstance(both, Pair)
    torch.testing.assert_close([scores.logits, scores.hidden, *both], [want.logits, want.hidden, *other])


def test_outputs_that_are_inputs_or_repeat():
    class Passing(Net):
        def forward(self, a):
            out = self.first(a)
            return a, out, out, self.first.weight

    _, ours = pair(Passing())
    a = x().requires_grad_()
    same, out, again, weight = ours(a)
    assert same is a and again is out and weight is ours.first.weight
    (same.sum() + out.sum() + again.sum()).backward()
    torch.testing.assert_close(a.grad, 1 + 2 * ours.first.weight.sum(0).expand(5, 4))


def test_integer_outputs_are_not_differentiable():
    class Ranked(Net):
        def forward(self, a):
            out = self.first(a)
            return out, out.argmax(1), a.detach() * 2

    _, ours = pair(Ranked())
    out, index, detached = ours(x())
    assert out.requires_grad and not index.requires_grad and not detached.requires_grad
    out.sum().backward()


def test_one_of_several_outputs_is_differentiated():
    class Both(Net):
        def forward(self, a):
            return self.first(a), self.first(a * 2).t()

    reference, ours = pair(Both())
    for module in (reference, ours):
        module(x())[1].sum(0)[1:].sum().backward()
    torch.testing.assert_close(ours.first.weight.grad, reference.first.weight.grad)


def test_keyword_nested_and_constant_arguments():
    class Arguments(nn.Module):
        def forward(self, a, pairs, *, scale=1.0, mask=None):
            out = (a + pairs["x"][0]) * scale
            return out if mask is None else out * mask

    reference, ours = pair(Arguments())
    for kwargs in ({}, {"scale": 2.0}, {"scale": 2}, {"mask": x(5, 1)}, {"mask": x(5, 1), "scale": 3.0}):
        args = (x(), {"x": [x(1, 4)]})
        torch.testing.assert_close(ours(*args, **kwargs), reference(*args, **kwargs))
    assert ours.daceopt.stats.eager_calls == 0


# Hooks


@pytest.mark.parametrize("when", ["before", "after"])
def test_hooks_of_the_module_itself_run(when):
    _, ours = pair()
    if when == "after":
        ours(x())
    seen = []
    ours.register_forward_pre_hook(lambda m, args: (args[0] * 2,))
    ours.register_forward_hook(lambda m, args, out: seen.append(out) or out + 1)
    ours.register_full_backward_hook(lambda m, gi, go: seen.append("backward"))
    torch.testing.assert_close(ours(x()), ours.second(torch.relu(ours.first(x() * 2))) + 1)
    ours(x().requires_grad_()).sum().backward()
    assert len(seen) == 3 and seen[-1] == "backward" and ours.daceopt.stats.eager_calls == 0


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("kind", ["forward", "forward_pre"])
def test_forward_hooks_of_children_are_compiled_in(when, kind):
    reference, ours = pair()
    if when == "after":
        ours(x())

    def double(module, inputs, *results):
        return results[0] * 2 if results else (inputs[0] * 2,)

    handles = [getattr(m.first, f"register_{kind}_hook")(double) for m in (reference, ours)]
    assert_same_step(reference, ours, x())
    for handle in handles:
        handle.remove()
    assert_same_step(reference, ours, x())


@pytest.mark.parametrize("when", ["before", "after"])
def test_backward_hooks_of_children_break_the_graph(when):
    _, ours = pair(fallback="warn")
    if when == "after":
        ours(x())
    seen = []
    ours.first.register_full_backward_hook(lambda *a: seen.append(1))
    with pytest.warns(FallbackWarning, match="runs in eager PyTorch where its graph breaks.*hooks"):
        ours(x().requires_grad_()).sum().backward()
    assert seen == [1]


def test_the_reason_where_all_code_is_of_pytorch():
    """It names the line of the call."""
    net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
    net[2].register_full_backward_hook(lambda *a: None)
    optimized_module(net, recipe="cpu", fallback="warn")
    with pytest.warns(FallbackWarning, match="hooks on gradients.*at .*test_module.*here`"):
        net(torch.randn(3, 4)).sum().backward()  # here


def test_parameter_hooks_run():
    _, ours = pair()
    seen = []
    ours.first.weight.register_hook(lambda g: seen.append(g.shape))
    ours.first.weight.register_post_accumulate_grad_hook(lambda p: seen.append("done"))
    ours(x()).sum().backward()
    assert seen == [torch.Size([8, 4]), "done"]


# Threads, checkpoints, other tools


def test_eight_threads_calling_one_module():
    reference, ours = pair()
    inputs = [x() + k for k in range(8)]
    results: dict[int, torch.Tensor] = {}
    barrier = threading.Barrier(8)

    def work(k: int) -> None:
        barrier.wait()
        for _ in range(5):
            out = ours(inputs[k])
        results[k] = out

    threads = [threading.Thread(target=work, args=(k,)) for k in range(8)]
    [t.start() for t in threads], [t.join() for t in threads]
    assert programs_of(ours) == 1
    for k, a in enumerate(inputs):
        torch.testing.assert_close(results[k], reference(a))


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointing(reentrant):
    from torch.utils.checkpoint import checkpoint

    reference, ours = pair()
    for module in (reference, ours):
        a = x().requires_grad_()
        checkpoint(module, a, use_reentrant=reentrant).sum().backward()
    torch.testing.assert_close(ours.first.weight.grad, reference.first.weight.grad)


def test_saved_tensor_hooks_see_all_that_is_saved():
    _, ours = pair()
    packed = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: packed.append(t) or t, lambda t: t):
        out = ours(x())
        out.sum().backward()
    assert packed


def test_data_parallel_replicas():
    net = Decorated()
    net(x())
    replica = net._replicate_for_data_parallel()
    replica.linear = nn.Linear(4, 2)
    assert replica(x()).shape == (5, 2) and net(x()).shape == (5, 3)


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")
def test_functorch_and_forward_mode_see_plain_pytorch():
    reference, ours = pair()
    ours(x())
    torch.testing.assert_close(torch.func.jacrev(ours)(x(4)), torch.func.jacrev(reference)(x(4)))
    torch.testing.assert_close(torch.vmap(ours)(x()), reference(x()))
    _, tangent = torch.func.jvp(ours, (x(4),), (torch.ones(4),))
    assert tangent.shape == (3,)


def test_an_optimized_child_in_an_optimized_parent():
    parent = nn.Sequential(optimized_module(Net(), fallback="raise"), nn.ReLU())
    want = torch.relu(_plain(parent[0])(x()))
    optimized_module(parent, fallback="raise")
    torch.testing.assert_close(parent(x()), want)
    assert programs_of(parent[0]) == 0


def test_export_sees_the_user_s_forward():
    for net in (optimized_module(Net()), Decorated()):
        assert torch.export.export(net, (x(),)).module()(x()).shape[0] == 5


# Fallback


class Awkward(nn.Module):
    def forward(self, a):
        return a.cumsum(0) if bool(a.sum() > 0) else a


def test_fallback_warns_once_and_loses_nothing():
    ours = optimized_module(Awkward())
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(3):
            torch.testing.assert_close(ours(x()), Awkward()(x()))
    (warning,) = caught
    assert issubclass(warning.category, FallbackWarning) and "Awkward runs in eager PyTorch" in str(warning.message)
    assert warning.filename == __file__
    assert ours.daceopt.stats.eager_calls == 0 and ours.daceopt.reasons  # its parts are compiled


def test_fallback_silent():
    ours = optimized_module(Awkward(), fallback="silent")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ours(x())
    assert ours.daceopt.reasons


def test_fallback_raise():
    from daceopt.errors import CaptureError

    with pytest.raises(CaptureError):
        optimized_module(Awkward(), fallback="raise")(x())


def test_a_wrong_call_gets_pytorch_s_error_and_does_not_spoil_the_next():
    _, ours = pair(fallback="warn")
    with pytest.raises(RuntimeError, match="cannot be multiplied"):
        ours(x(5, 3))
    with pytest.raises(TypeError):
        ours()
    torch.testing.assert_close(ours(x()), ours.second(torch.relu(ours.first(x()))))
    assert ours.daceopt.stats.eager_calls == 0


@pytest.mark.parametrize(
    ("argument", "reason"),
    [
        (torch.ones(5, 4, device="meta"), "device meta"),
        (torch.eye(4).to_sparse(), "sparse"),
    ],
    ids=["device", "layout"],
)
def test_inputs_that_cannot_be_compiled(argument, reason):
    ours = optimized_module(nn.ReLU(), fallback="warn")
    with pytest.warns(FallbackWarning, match=reason):
        ours(argument)


def test_subclasses_of_tensors_stay_what_they_are():
    mine = type("Mine", (torch.Tensor,), {})
    _, ours = pair(nn.ReLU())
    result = ours(mine(torch.ones(5, 4)))
    assert type(result) is type(nn.ReLU()(mine(torch.ones(5, 4)))) and torch.equal(result, torch.ones(5, 4))


def test_autocast_is_compiled_in():
    reference, ours = pair()
    with torch.autocast("cpu", torch.bfloat16):
        result, expected = ours(x()), reference(x())
    assert result.dtype == expected.dtype == torch.bfloat16
    torch.testing.assert_close(result, expected, rtol=0.02, atol=0.02)
    assert ours(x()).dtype == torch.float32


def test_changing_numbers_are_read_at_each_call():
    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.step = 0.5

        def forward(self, a):
            return a + self.step

    ours = optimized_module(Counting(), fallback="raise")
    for step in range(20):
        ours.step = step + 0.5
        torch.testing.assert_close(ours(x()), x() + ours.step)
    assert programs_of(ours) <= 2


def test_changing_state_at_every_call_ends_in_eager_with_the_reason():
    class Choosing(nn.Module):
        def forward(self, a):
            return a + len(self.name)

    ours = optimized_module(Choosing())
    with pytest.warns(FallbackWarning, match=r"programs already.*name"):
        for step in range(40):
            ours.name = "a" * step
            torch.testing.assert_close(ours(x()), x() + step)
    assert ours.daceopt.stats.eager_calls


def test_state_set_in_forward_is_set():
    class Remembering(nn.Module):
        def forward(self, a):
            self.last = a.shape[0]
            return a * 2

    ours = optimized_module(Remembering(), fallback="raise")
    for rows in (5, 3):
        ours(x(rows, 4))
        assert ours.last == rows


def test_wrong_arguments_of_optimized_module():
    with pytest.raises(TypeError, match="nn.Module"):
        optimized_module(lambda a: a)
    with pytest.raises(ValueError, match="fallback='loud'"):
        optimized_module(Net(), fallback="loud")
    with pytest.raises(ValueError, match="verify"):
        optimized_module(Net(), verify="always")


def test_backward_option():
    _, never = pair(backward=False)
    assert not never(x()).requires_grad
    _, always = pair(backward=True)
    with torch.no_grad():
        assert not always(x()).requires_grad
    assert always.daceopt._pair().backward is not None


def test_dynamic_option_compiles_once():
    reference, ours = pair(dynamic={"x": {0: torch.export.Dim.DYNAMIC}})
    for batch in (4, 6, 8):
        torch.testing.assert_close(ours(x(batch, 4)), reference(x(batch, 4)))
    assert programs_of(ours) == 1
