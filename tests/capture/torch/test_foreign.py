"""Users' operators, and functions that TorchDynamo does not look into, are part of a graph's identity."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import nn

from daceopt import optimized_module
from daceopt.capture.torch.fingerprint import fingerprint
from daceopt.capture.torch.foreign import text_of_target
from daceopt.errors import Unsupported
from daceopt.libs import aten_call

Make = Callable[[float], object]


def _operator(scale: float, default: float = 1.0, slope: float = 2.0) -> object:
    def forward(x: torch.Tensor, k: float = default) -> torch.Tensor:
        return x * scale * k

    made = torch.library.custom_op("daceopt_tests::scaled", forward, mutates_args=())
    made.register_fake(lambda x, k=default: torch.empty_like(x))
    made.register_autograd(lambda ctx, grad: (grad * slope, None))
    return torch.ops.daceopt_tests.scaled


def _function(scale: float) -> object:
    def inner(x: torch.Tensor) -> torch.Tensor:
        return x * scale

    return inner


def _custom(scale: float) -> object:
    class Scaled(torch.autograd.Function):
        factor = scale

        @staticmethod
        def forward(ctx, x):
            return x * Scaled.factor

    return Scaled.apply


@pytest.mark.parametrize(
    "make",
    [_operator, lambda v: _operator(1.0, v), lambda v: _operator(1.0, 1.0, v), _function, _custom],
    ids=["kernel", "default argument", "derivative", "function", "autograd.Function"],
)
def test_what_a_call_computes_tells_graphs_apart(make: Make) -> None:
    def identity(value: float) -> str:
        graph = torch.fx.Graph()
        graph.output((graph.call_function(make(value), (graph.placeholder("x"),)),))
        return fingerprint(torch.fx.GraphModule(nn.Module(), graph), [])

    assert identity(2.0) == identity(2.0) != identity(3.0)


def test_kernels_that_nobody_can_read_never_come_again() -> None:
    library = torch.library.Library("daceopt_tests", "FRAGMENT")
    library.define("taken_apart(Tensor x) -> Tensor")
    library.impl("taken_apart", lambda x: x * 2, "CompositeImplicitAutograd")
    operator = torch.ops.daceopt_tests.taken_apart
    assert text_of_target(operator) != text_of_target(operator)
    library._destroy()


def test_what_is_pytorch_s_has_no_text() -> None:
    for target in (torch.sin, torch.ops.aten.sin.default, torch.nn.functional.gelu, torch._C._nn.gelu):
        assert text_of_target(target) == ""


@pytest.mark.usefixtures("interpreted")
def test_a_kernel_without_a_derivative_is_refused_where_one_is_wanted() -> None:
    """Eager PyTorch records what such a kernel calls; a graph that has no gradient there would be silently another."""
    library = torch.library.Library("daceopt_tests", "FRAGMENT")
    library.define("bare(Tensor x) -> Tensor")
    library.impl("bare", lambda x: x * 2, "CPU")
    library.impl("bare", torch.empty_like, "Meta")

    class Net(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.ops.daceopt_tests.bare(x) + x

    ours, x = optimized_module(Net(), fallback="raise"), torch.ones(3)
    assert torch.equal(ours(x), x * 3)
    with pytest.raises(Unsupported, match="no derivative of its own; expected one by torch.library.register_autograd"):
        ours(x.requires_grad_())
    library._destroy()


def test_operators_that_an_operator_calls_are_part_of_it() -> None:
    def outer(factor: float) -> object:
        inner = torch.library.custom_op("daceopt_tests::inner", _function(factor), mutates_args=())  # type: ignore[call-overload]

        def by_object(x: torch.Tensor) -> torch.Tensor:
            return inner(x) + 1

        def by_name(x: torch.Tensor) -> torch.Tensor:
            return torch.ops.daceopt_tests.inner(x) + 1

        for k, body in enumerate((by_object, by_name)):
            torch.library.custom_op(f"daceopt_tests::outer{k}", body, mutates_args=())
        return text_of_target(torch.ops.daceopt_tests.outer0), text_of_target(torch.ops.daceopt_tests.outer1)

    first, again, other = (outer(f) for f in (2.0, 2.0, 3.0))
    assert first == again and all(a != b for a, b in zip(first, other))  # type: ignore[call-overload]


def test_autocast_and_kernels_that_are_switched_off_are_part_of_it() -> None:
    def kernel(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    def text(cast: torch.dtype | None = None) -> str:
        made = torch.library.custom_op("daceopt_tests::cast", kernel, mutates_args=())
        made.register_kernel("cpu")(_function(3.0))  # type: ignore[arg-type]
        if cast is not None:
            made.register_autocast("cpu", cast)
        on = text_of_target(torch.ops.daceopt_tests.cast)
        with made.set_kernel_enabled("cpu", enabled=False):
            assert text_of_target(torch.ops.daceopt_tests.cast) != on
        return on

    texts = [text(), text(torch.bfloat16), text(torch.float16)]
    assert len(set(texts)) == 3 and text(torch.float16) == texts[2]


def test_a_call_runs_what_is_registered_now() -> None:
    """What was registered before is gone: to call it reads freed memory."""
    call = json.dumps({"target": "daceopt_tests::again.", "arguments": {"x": {"tensor": 0}}, "types": ["float32"]})
    call = call[:-1] + ', "orders": [], "results": [[0, "float32", 1]]}'
    x, found = np.ones(3, np.float32), np.zeros(3, np.float32)
    for factor in (2.0, 3.0):
        torch.library.custom_op("daceopt_tests::again", _function(factor), mutates_args=())  # type: ignore[call-overload]
        aten_call.run(call, [x], [found])
        assert found.tolist() == [factor] * 3


def test_texts_among_arguments_do_not_run_together() -> None:
    def identity(*texts: str) -> str:
        graph = torch.fx.Graph()
        graph.output(graph.call_function(torch.einsum, (texts, graph.placeholder("x"))))
        return fingerprint(torch.fx.GraphModule(nn.Module(), graph), [])

    assert identity("a", "b") != identity("a,str b")


def test_a_function_that_is_called_like_one_of_pytorch_s() -> None:
    def relu(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    assert text_of_target(functools.wraps(torch.relu)(relu)) and text_of_target(torch.relu) == ""
