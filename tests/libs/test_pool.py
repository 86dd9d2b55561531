"""Pools, forward and backward, against torch in float64."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import dace
import numpy as np
import pytest
import torch
import torch.nn.functional as F

from daceopt.codegen import toolchain
from daceopt.codegen.compiler import Flags, compile_objects
from daceopt.codegen.cuda.toolchain import nvcc
from daceopt.ir.graph.graph import Graph
from daceopt.ir.nodes.library import Pool, PoolBackward
from daceopt.libs.base import Requirements
from daceopt.libs.pool import DevicePool
from tests.codegen.cuda import emulated_target
from tests.libs.test_convolution import execute, make
from tests.numerics import assert_within_rounding


class Case(NamedTuple):
    shape: tuple[int, ...]
    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    pads: tuple[int, ...]
    dilations: tuple[int, ...] = ()
    ceil_mode: bool = False

    @property
    def attributes(self) -> dict[str, object]:
        rank = len(self.kernel)
        both = (*self.pads, *self.pads)
        return {
            "kernel": self.kernel,
            "strides": self.strides,
            "pads": both,
            "dilations": self.dilations or (1,) * rank,
            "ceil_mode": self.ceil_mode,
        }


CASES = {
    "1d": Case((2, 3, 11), (3,), (2,), (1,)),
    "2d": Case((2, 40, 9, 8), (3, 3), (2, 2), (1, 1)),
    "3d": Case((2, 3, 5, 6, 7), (2, 3, 2), (1, 2, 2), (0, 1, 1)),
    "ceil": Case((2, 5, 10, 9), (3, 2), (2, 2), (0, 0), ceil_mode=True),
    "ceil with padding": Case((1, 5, 10, 9), (3, 2), (2, 2), (1, 1), ceil_mode=True),
    "overlap": Case((2, 64, 16, 16), (3, 3), (1, 1), (1, 1)),
    "global": Case((2, 64, 4, 4), (4, 4), (1, 1), (0, 0)),
    "large": Case((2, 3, 16, 20), (6, 8), (5, 8), (2, 3), ceil_mode=True),
    "large 3d": Case((2, 3, 5, 6, 12), (2, 3, 6), (2, 2, 5), (1, 0, 1)),
    "long row": Case((2, 3, 100), (40,), (30,), (20,)),
    "one channel": Case((2, 1, 6, 6), (2, 2), (2, 2), (0, 0)),
}
DILATED = {
    "dilated": Case((2, 20, 12, 11), (3, 3), (2, 1), (1, 1), (2, 3)),
    "dilated rows of several vectors": Case((2, 3, 6, 70), (3, 4), (2, 3), (1, 2), (1, 2)),
}


def _linked_to_emulation(requirements: Callable[..., Requirements]) -> Callable[..., Requirements]:
    """Programs for the host link nothing of a device."""

    def linked(*args: object) -> Requirements:
        needs = requirements(*args)
        return replace(needs, flags=needs.flags + Flags(link=toolchain.get("cuda").link()))

    return linked


@pytest.fixture(params=["pool", "device_pool"])
def library(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The pools of the host, and those of devices in the emulation, on arrays of the host."""
    if request.param == "device_pool":
        emulated_target.install(monkeypatch)
        monkeypatch.setattr(DevicePool, "targets", ("cpu",))
        monkeypatch.setattr(DevicePool, "requirements", _linked_to_emulation(DevicePool.requirements))
    return str(request.param)


@pytest.mark.share(5)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
@pytest.mark.parametrize("last", [False, True], ids=["first", "last"])
@pytest.mark.parametrize("name", [*CASES, *DILATED])
def test_max(library: str, name: str, last: bool, dtype: torch.dtype) -> None:
    case = CASES.get(name) or DILATED[name]
    x = make(case.shape, last, dtype)
    function = {1: F.max_pool1d, 2: F.max_pool2d, 3: F.max_pool3d}[len(case.kernel)]
    wide = x.double().requires_grad_()
    expected = function(wide, case.kernel, case.strides, case.pads, case.dilations or 1, case.ceil_mode)
    y, dy = make(tuple(expected.shape), last, dtype), make(tuple(expected.shape), last, dtype)
    expected.backward(dy.double())
    node = Pool(kind="max", **case.attributes)
    where = torch.empty_like(y, dtype=torch.uint8 if int(np.prod(case.kernel)) <= 256 else torch.int32)
    alone, dx = torch.zeros_like(y), torch.full_like(x, 7.0)
    execute(
        library,
        (node, {"X": x}, {"Y": y, "Workspace": where}),
        (Pool(kind="max", **case.attributes), {"X": x}, {"Y": alone}),
        (PoolBackward(kind="max", **case.attributes), {"dY": dy, "Workspace": where}, {"dX": dx}),
    )
    assert torch.equal(y.double(), expected)
    assert torch.equal(alone, y)
    assert_within_rounding(dx, wide.grad)


@pytest.mark.parametrize("last", [False, True], ids=["first", "last"])
def test_workspace_in_another_layout(library: str, last: bool) -> None:
    """As when the result is the program's own, or its gradient comes from a product."""
    case = CASES["2d"]
    x = make(case.shape, last)
    wide = x.double().requires_grad_()
    expected = F.max_pool2d(wide, case.kernel, case.strides, case.pads)
    y, dy = make(tuple(expected.shape), last), make(tuple(expected.shape), last)
    expected.backward(dy.double())
    where, dx = make(tuple(expected.shape), not last).to(torch.uint8), torch.full_like(x, 7.0)
    assert where.stride() != y.stride()
    execute(
        library,
        (Pool(kind="max", **case.attributes), {"X": x}, {"Y": y, "Workspace": where}),
        (PoolBackward(kind="max", **case.attributes), {"dY": dy, "Workspace": where}, {"dX": dx}),
    )
    assert torch.equal(y.double(), expected)
    assert_within_rounding(dx, wide.grad)


@pytest.mark.parametrize("last", [False, True], ids=["first", "last"])
def test_windows_of_padding_alone_leave_no_gradient(library: str, last: bool) -> None:
    """A window with a gap in which the image lies; eager PyTorch's index is beyond the image."""
    window = Case((2, 3, 2, 9), (2, 2), (1, 1), (1, 1), (3, 1)).attributes
    x, y, dy = make((2, 3, 2, 9), last), make((2, 3, 1, 10), last), make((2, 3, 1, 10), last)
    where, dx = torch.empty_like(y, dtype=torch.uint8), torch.full_like(x, 7.0)
    execute(
        library,
        (Pool(kind="max", **window), {"X": x}, {"Y": y, "Workspace": where}),
        (PoolBackward(kind="max", **window), {"dY": dy, "Workspace": where}, {"dX": dx}),
    )
    assert torch.all(y == -torch.inf)
    assert not dx.any()


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8], ids=["int8", "uint8"])
def test_maximum_of_bytes(library: str, dtype: torch.dtype) -> None:
    x = (make((2, 3, 9, 8), False) * 100).to(dtype)
    expected = F.max_pool2d(x.double(), 3, 2, 1)
    y = torch.zeros(expected.shape, dtype=dtype)
    execute(library, (Pool(kind="max", kernel=[3, 3], strides=[2, 2], pads=[1] * 4), {"X": x}, {"Y": y}))
    assert torch.equal(y.double(), expected)
    empty = torch.full((2, 3, 5, 5), 7, dtype=dtype)
    execute(library, (Pool(kind="max", kernel=[1, 1], strides=[2, 2], pads=[2, 2, 0, 0]), {"X": x}, {"Y": empty}))
    assert (empty[:, :, 0] == torch.iinfo(dtype).min).all()


@pytest.mark.share(5)
@pytest.mark.parametrize("padding", [False, True], ids=["inside", "padding"])
@pytest.mark.parametrize("last", [False, True], ids=["first", "last"])
@pytest.mark.parametrize("name", CASES)
def test_average(library: str, name: str, last: bool, padding: bool) -> None:
    case = CASES[name]
    x = make(case.shape, last)
    function = {1: F.avg_pool1d, 2: F.avg_pool2d, 3: F.avg_pool3d}[len(case.kernel)]
    wide, single = x.double().requires_grad_(), x.clone().requires_grad_()
    arguments = (case.kernel, case.strides, case.pads, case.ceil_mode, padding)
    expected, theirs = function(wide, *arguments), function(single, *arguments)
    y, dy = make(tuple(expected.shape), last), make(tuple(expected.shape), last)
    expected.backward(dy.double())
    theirs.backward(dy)
    attributes = {**case.attributes, "count_include_pad": padding}
    dx = torch.full_like(x, 7.0)
    execute(
        library,
        (Pool(kind="average", **attributes), {"X": x}, {"Y": y}),
        (PoolBackward(kind="average", **attributes), {"dY": dy}, {"dX": dx}),
    )
    assert_within_rounding(y, expected, theirs)
    assert_within_rounding(dx, wide.grad, single.grad)


@pytest.mark.parametrize("last", [False, True], ids=["first", "last"])
def test_nan_and_infinity_are_maxima(library: str, last: bool) -> None:
    x = torch.full((1, 16, 4, 4), -torch.inf)
    x[0, 0, 0, 1], x[0, 1, 2, 2] = torch.nan, torch.inf
    x = x.contiguous(memory_format=torch.channels_last) if last else x
    expected = F.max_pool2d(x, 2)
    y = torch.zeros_like(expected, memory_format=torch.channels_last if last else torch.contiguous_format)
    execute(library, (Pool(kind="max", kernel=[2, 2], strides=[2, 2]), {"X": x}, {"Y": y}))
    np.testing.assert_array_equal(y, expected)


@pytest.mark.parametrize("last", [False, True], ids=["first", "last"])
@pytest.mark.parametrize("window", [(6, 8), (3, 4)], ids=["large", "small"])
@pytest.mark.parametrize("pad", [0, 1], ids=["inside", "padding"])
def test_places_of_equal_maxima_and_of_nan(library: str, window: tuple[int, int], pad: int, last: bool) -> None:
    """The first of equal ones in the order of rows, the last NaN."""
    x = (make((3, 5, 12, 16), last) * 3).round()
    x[:, 1, 3, 5] = x[:, 1, 2, 6] = x[:, 2, 9, 1] = torch.nan
    x[:, 3] = -torch.inf
    expected, flat = F.max_pool2d(x, window, padding=pad, return_indices=True)
    y, where = torch.zeros_like(expected), torch.zeros_like(expected, dtype=torch.uint8)
    node = Pool(kind="max", kernel=list(window), strides=list(window), pads=[pad] * 4)
    execute(library, (node, {"X": x}, {"Y": y, "Workspace": where}))
    np.testing.assert_array_equal(y, expected)
    place = [(flat // 16 + pad) % window[0], (flat % 16 + pad) % window[1]]
    np.testing.assert_array_equal(where, place[0] * window[1] + place[1])


@pytest.mark.slow
@pytest.mark.skipif(nvcc() is None, reason="there is no nvcc")
def test_nvcc_compiles_pools_of_devices() -> None:
    graph = Graph("pools")
    x = graph.add_input("x", (1, 2, 9, 9), dace.float32)
    y = graph.add_array("y", (1, 2, 3, 3), dace.float32)
    node = Pool(kind="max", kernel=[3, 3], strides=[3, 3])
    graph.add_node(node, {"X": x}, {"Y": y})
    assert compile_objects(DevicePool().requirements(node, graph).jobs)
