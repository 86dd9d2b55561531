"""Padding and windows against eager PyTorch."""

import pytest
import torch
from torch.nn import functional

from tests.capture.torch.checking import check

X = torch.cos(torch.arange(240.0) * 1.3).reshape(2, 3, 5, 8)

CASES = {
    "constant": lambda x: functional.pad(x, (1, 2, 0, 1)),
    "constant_value": lambda x: functional.pad(x, (1, 2), value=float("-inf")).exp(),
    "constant_cropping": lambda x: functional.pad(x, (-1, 2, 1, -2), value=1.5),
    "constant_only_cropping": lambda x: functional.pad(x, (-1, -2)),
    "constant_nothing": lambda x: functional.pad(x, (0, 0)) * 2,
    "reflect_1d": lambda x: functional.pad(x[0], (2, 3), mode="reflect"),
    "reflect_2d": lambda x: functional.pad(x, (1, 2, 3, 0), mode="reflect"),
    "reflect_3d": lambda x: functional.pad(x, (1, 2, 3, 0, 1, 1), mode="reflect"),
    "replicate_1d": lambda x: functional.pad(x[0], (2, 9), mode="replicate"),
    "replicate_2d": lambda x: functional.pad(x, (1, 2, 3, 0), mode="replicate"),
    "replicate_3d": lambda x: functional.pad(x, (1, 2, 3, 0, 1, 1), mode="replicate"),
    "circular_1d": lambda x: functional.pad(x[0], (2, 3), mode="circular"),
    "circular_2d": lambda x: functional.pad(x, (1, 2, 3, 0), mode="circular"),
    "unfold": lambda x: functional.unfold(x, (2, 3), dilation=2, padding=1, stride=(1, 2)),
    "unfold_one": lambda x: functional.unfold(x[0], 2),
    "fold": lambda x: functional.fold(x.reshape(2, 6, 20), (5, 7), (2, 3), padding=0, stride=1),
    "fold_strided": lambda x: functional.fold(x.reshape(2, 12, 10)[:, :, :6], (6, 8), (2, 3), padding=1, stride=(3, 4)),
}


@pytest.mark.parametrize("name", CASES)
def test_padding(name):
    check(lambda x: CASES[name](x * 1), X)


@pytest.mark.parametrize("mode", ["reflect", "replicate"])
def test_cropped_elements_are_mirrored_and_repeated(mode):
    check(lambda x: functional.pad(x[0, :, :, :3], (-2, 2), mode=mode), X, native=False)


@pytest.mark.parametrize("name", ["constant", "constant_value", "reflect_1d", "replicate_2d"])
def test_symbolic_sizes(name):
    check(lambda x: CASES[name](x * 1), X, dynamic=True)


@pytest.mark.share(2)
@pytest.mark.parametrize("name", ["constant", "reflect_2d", "replicate_2d", "unfold", "fold"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_element_types(name, dtype):
    check(CASES[name], X.to(dtype))


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.uint8])
def test_types_that_are_moved(dtype):
    check(CASES["constant"], (X > 0).to(dtype))
