"""What is compared computes the same, and what the machine decides has no verdict."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
from torch import nn

from benchmarks import comparison, contenders, kernels, suite
from benchmarks.checking import reference, results
from benchmarks.comparison import compare
from benchmarks.contenders import EAGER, Contender, Unavailable, enter
from benchmarks.harness import CASES, OURS, Budget, Result
from benchmarks.kernel_set import KERNELS, Applied, Kernel
from benchmarks.limits import byte_limit, product_limit
from benchmarks.measurement import Measurement
from benchmarks.steps import step_reference, steps
from daceopt.cost.rates import rates

BUDGET = Budget(seconds=0.01, repeats=1)


def _contender(model: nn.Module, x: torch.Tensor, training: bool, spoil: float = 0.0) -> Contender:
    own = results(model, [x], training)

    def spoiled() -> Sequence[torch.Tensor]:
        *others, last = own()
        return [*others, last * (1 + spoil)]

    return Contender(own, spoiled)


@pytest.mark.parametrize("weight, explained", [(-1 + 2.0**-24, True), (-0.5, False)])
def test_rounding_may_decide_on_which_side_of_zero_a_relu_reads(weight: float, explained: bool) -> None:
    model, x = nn.Sequential(nn.Linear(2, 1, bias=False), nn.ReLU()), torch.ones(1, 2, requires_grad=True)
    with torch.no_grad():
        model[0].weight.copy_(torch.tensor([[1.0, weight]]))
    check = reference(model, [x], training=True)
    not_passed = [torch.zeros_like(r) for r in results(model, [x], training=True)()]
    not_passed[0] = results(model, [x], training=True)()[0]
    assert (check.fault(not_passed) is None) is explained


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("who", [OURS, EAGER])
def test_a_wrong_result_is_no_time(who: str, training: bool) -> None:
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(8, 8), nn.GELU()), torch.randn(4, 8)
    right, wrong = _contender(model, x, training), _contender(model, x, training, spoil=1e-4)
    entered = {EAGER: right, "third": right, OURS: right} | {who: wrong}
    check = reference(model, [x], training)
    result = compare("case", "row", entered, check, BUDGET, limit=1.0, absent={})
    assert who not in result.values and "is off by" in result.notes[who]
    if who == OURS:
        assert result.met is False and not result.values
    else:
        assert set(result.values) == {"third", OURS}


def test_one_wrong_tensor_among_many_is_found() -> None:
    torch.manual_seed(0)
    model, x = nn.Sequential(*(nn.Linear(64, 64) for _ in range(8))), torch.randn(16, 64)
    check, found = reference(model, [x], training=True), results(model, [x], training=True)()
    assert check.fault(found) is None
    smallest = min(range(len(found)), key=lambda k: float(found[k].norm()))
    for spoil in (lambda t: t * 1.001, lambda t: t.flip(0), lambda t: t * torch.nan, lambda t: t[:-1]):
        assert check.fault([spoil(t) if k == smallest else t for k, t in enumerate(found)]) is not None


def test_only_noise_tells_even_rounds_from_odd_ones() -> None:
    quiet = Measurement({OURS: [1.0, 1.01] * 8, EAGER: [2.0, 2.02] * 8})
    assert quiet.is_steady and quiet.medians[EAGER] == pytest.approx(2.01) and quiet.spread[OURS] < 0.02
    assert not Measurement({OURS: [1.0, 2.0] * 8, EAGER: [2.0, 2.0] * 8}).is_steady


def test_what_noise_decides_has_no_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    noisy = Measurement({OURS: [1.0, 2.0] * 8, EAGER: [2.0, 2.0] * 8})
    tries: list[int] = []
    monkeypatch.setattr(comparison, "measure", lambda calls, budget: tries.append(1) or noisy)
    model, x = nn.Linear(8, 8), torch.randn(4, 8)
    right = _contender(model, x, training=False)
    check = reference(model, [x], training=False)
    result = compare("case", "row", {EAGER: right, OURS: right}, check, BUDGET, limit=1.0, absent={})
    assert result.met is None and "halves differ by" in result.notes["too noisy to tell"] and len(tries) > 1


def test_who_cannot_take_part_says_why() -> None:
    def refuse(model: nn.Module, inputs: Sequence[torch.Tensor], training: bool) -> Contender:
        raise Unavailable("no licence")

    entries = dict(contenders.ENTRIES)
    contenders.ENTRIES["other"] = refuse
    try:
        found, absent = enter(nn.Linear(8, 8), [torch.randn(4, 8)], False, [EAGER, "other", contenders.CHANNELS_LAST])
    finally:
        contenders.ENTRIES.clear()
        contenders.ENTRIES.update(entries)
    assert set(found) == {EAGER}
    assert absent == {"other": "no licence", contenders.CHANNELS_LAST: "no images among the inputs"}


@pytest.mark.parametrize("name", KERNELS)
def test_kernels_have_gradients(name: str) -> None:
    kernel = KERNELS[name]
    inputs = [_small(x) for x in kernel.inputs()] if name in ("mish", "gelu") else kernel.inputs()
    floats = [x.requires_grad_() for x in inputs if x.is_floating_point()]
    kernel.function(*inputs).sum().backward()
    assert all(x.grad is not None for x in floats)


def _small(x: torch.Tensor) -> torch.Tensor:
    return x[:1].clone()


def test_limits_count_bytes_and_operations() -> None:
    x = torch.randn(256, 1024, requires_grad=True)
    module = Applied(torch.relu)
    one, both = byte_limit(module, [x], training=False), byte_limit(module, [x], training=True)
    assert 0 < one < both  # input and result; again the input, and two gradients
    wide, wider = (product_limit(nn.Linear(n, n), [torch.randn(64, n)], False) for n in (512, 1024))
    assert 2 < wider / wide < 8


def test_the_fast_path_of_attention_is_counted_as_its_products() -> None:
    layer, x = nn.TransformerEncoderLayer(64, 4, 256, batch_first=True).eval(), torch.randn(2, 16, 64)
    before = torch.backends.mha.get_fastpath_enabled()
    assert before
    seconds = product_limit(layer, [x], False)
    assert torch.backends.mha.get_fastpath_enabled() is before
    products = 2 * 32 * (4 * 64 * 64 + 2 * 64 * 256)
    assert seconds > products / max([rates().product, *(rate for _, rate in rates().products)])


_MIXED = ("networks-inference-autocast", "networks-training-autocast")


@pytest.mark.parametrize("case", ["kernels", "networks-inference", "networks-training", "networks-step", *_MIXED])
def test_a_suite_end_to_end(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def network() -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
        return nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU()), (torch.randn(2, 3, 8, 8),)

    monkeypatch.setattr(suite, "SUITE", {"small": network, "other": network})
    kernel = Kernel(lambda x: torch.tanh(x) * x, lambda: (torch.randn(16, 64),))
    monkeypatch.setattr(kernels, "KERNELS", {"small": kernel, "other": kernel})
    budget = Budget(seconds=0.01, repeats=1, rows=frozenset({"small"}), peers=(EAGER,))
    rows, means = _split(CASES[case](budget))
    assert rows and all({OURS, EAGER} <= set(r.values) for r in rows)
    assert all((r.limit is None) is (case in _MIXED) for r in rows)
    assert len(means) == len(rows) and all("mean of 1" in r.measure for r in means)


def test_a_step_is_checked_by_what_it_adds_to_the_parameters() -> None:
    torch.manual_seed(0)
    model, inputs = nn.Sequential(nn.Linear(8, 8), nn.Tanh()), [torch.randn(4, 8)]
    check = step_reference(model, inputs)
    found, absent = steps(model, inputs, [EAGER, contenders.CHANNELS_LAST, OURS])
    assert set(absent) == {contenders.CHANNELS_LAST} and set(found) == {EAGER, OURS}
    added = found[EAGER].results()
    assert check.fault(added) is None
    assert check.fault([a * 1.001 for a in added]) is not None
    assert check.fault(found[EAGER].results()) is not None  # momentum has grown: these are the third and fourth step


def _split(found: Callable[..., object] | object) -> tuple[list[Result], list[Result]]:
    results_ = list(found)  # type: ignore[call-overload]
    return [r for r in results_ if r.unit == "ms"], [r for r in results_ if r.unit == "x"]
