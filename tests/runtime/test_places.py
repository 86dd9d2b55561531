"""Where the tensors of a call are."""

from __future__ import annotations

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from daceopt.errors import DaceoptError
from daceopt.runtime.places import common_device


def _on(device: str, *shape: int) -> torch.Tensor:
    with FakeTensorMode():
        return torch.empty(shape, device=device)


def test_the_device_of_arrays_counts() -> None:
    assert common_device({}) is None
    assert common_device({"x": _on("cpu", 2)}) == torch.device("cpu")
    assert common_device({"n": _on("cpu"), "x": _on("cuda:1", 2)}) == torch.device("cuda:1")
    assert common_device({"n": _on("cpu"), "m": _on("cpu")}) == torch.device("cpu")


@pytest.mark.parametrize("other", ["cpu", "cuda:1"])
def test_several_devices(other: str) -> None:
    with pytest.raises(DaceoptError, match=rf"several devices: x is on cuda:0, y is on {other}; move"):
        common_device({"x": _on("cuda:0", 2), "y": _on(other, 2)})


def test_a_device_without_programs() -> None:
    with pytest.raises(DaceoptError, match="x is on device meta; compiled programs run on cpu and cuda"):
        common_device({"x": _on("meta", 2)})
