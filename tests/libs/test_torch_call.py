"""Calls of ATen on a CPU: through torch's dispatcher, below all that surrounds the caller."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from torch._subclasses.functional_tensor import FunctionalTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from daceopt.capture.torch.calls import Operand
from daceopt.ir.graph.graph import Graph
from daceopt.ir.scalar import types
from daceopt.libs import aten_call
from daceopt.libs.base import choose
from tests.libs.harness import RunFailed, compile_graph

_F32 = types.from_name("float32")


def _program(target: Any, operand: torch.Tensor, result: torch.Tensor, **given: Any) -> Callable[[], np.ndarray]:
    """``target`` of ``operand``, compiled; complex tensors as arrays of both parts."""
    graph = Graph("call")
    arrays = [torch.view_as_real(t) if t.is_complex() else t for t in (operand, result)]
    x = graph.add_input("x", tuple(arrays[0].shape), _F32)
    arguments = {a.name: given.get(a.name, a.default_value) for a in target._schema.arguments}
    arguments[target._schema.arguments[0].name] = Operand(0)
    kinds = [[0] if t.is_complex() else [] for t in (operand, result)]
    (y,) = aten_call.add(graph, target, arguments, [x], [(tuple(arrays[1].shape), _F32)], *kinds)
    graph.add_output(str(y))
    assert choose(graph.nodes()[0], graph).name == "torch_call"
    compiled, elements, shape = compile_graph(graph), arrays[0].contiguous().numpy(), tuple(arrays[1].shape)

    def run() -> np.ndarray:
        found = np.full(shape, np.nan, np.float32)
        compiled(elements, found)
        return found

    return run


@cache
def _spectrum() -> tuple[Callable[[], np.ndarray], np.ndarray]:
    z = torch.randn(3, 4, 5, dtype=torch.complex64)
    expected = torch.fft.fft2(z)
    run = _program(torch.ops.aten._fft_c2c.default, z, expected, dim=[1, 2], normalization=0, forward=True)
    return run, torch.view_as_real(expected).numpy()


class _Refusing(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise AssertionError(f"{func} was seen")


_AROUND: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "nothing": ExitStack,
    "a dispatch mode": _Refusing,
    "functionalization": FunctionalTensorMode,
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
    "grad mode": torch.enable_grad,
    "inference mode": torch.inference_mode,
}


@pytest.mark.parametrize("around", _AROUND)
def test_nothing_of_the_caller_is_seen(around: str) -> None:
    run, expected = _spectrum()
    with _AROUND[around]():
        found = run()
    np.testing.assert_array_equal(found, expected)


def test_a_transform_of_the_caller_is_not_seen() -> None:
    run, expected = _spectrum()
    found: list[np.ndarray] = []
    torch.func.vmap(lambda x: (found.append(run()), x)[1])(torch.zeros(2))
    np.testing.assert_array_equal(found[0], expected)


def test_what_atens_kernel_says_is_the_error() -> None:
    x = -torch.eye(3)
    with pytest.raises(RunFailed, match="linalg.cholesky: The factorization could not be completed"):
        _program(torch.ops.aten.linalg_cholesky.default, x, x)()


def test_a_result_of_another_shape_is_refused() -> None:
    x = torch.ones(2, 3)
    with pytest.raises(RunFailed, match=r"ATen returned shape \[3, 2\]; expected \[2, 3\]"):
        _program(torch.ops.aten.t.default, x, x)()


def test_the_generator_is_torchs() -> None:
    x = torch.full((50,), 0.5)
    run = _program(torch.ops.aten.bernoulli.default, x, x)
    torch.manual_seed(3)
    found = run()
    torch.manual_seed(3)
    np.testing.assert_array_equal(found, torch.bernoulli(x).numpy())


def test_an_operator_in_python_and_its_exception() -> None:
    def kernel(x: torch.Tensor) -> torch.Tensor:
        if x.sum() < 0:
            raise ValueError("nothing below zero")
        return x * 2

    torch.library.custom_op("daceopt_tests::positive", kernel, mutates_args=())  # type: ignore[call-overload]
    x = torch.ones(3)
    assert _program(torch.ops.daceopt_tests.positive.default, x, x)().tolist() == [2.0] * 3
    with pytest.raises(RunFailed, match="nothing below zero"):
        _program(torch.ops.daceopt_tests.positive.default, -x, x)()
