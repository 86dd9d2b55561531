"""What products of float32 are computed in on devices: the user's switches are read, set aside, and put back."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from daceopt.runtime import device_precision


@pytest.mark.parametrize("allowed", [False, True])
def test_products_are_exact_within_a_check(allowed: bool) -> None:
    """By the older switches, which set the newer ones."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if allowed else "highest")
    try:
        _check_switches(allowed)
        assert torch.get_float32_matmul_precision() == ("high" if allowed else "highest")
    finally:
        torch.set_float32_matmul_precision(before)


def test_products_are_exact_where_the_newer_switches_say_otherwise() -> None:
    place: Any = torch.backends.cuda.matmul
    before = place.fp32_precision
    place.fp32_precision = "tf32"
    try:
        _check_switches(True)
    finally:
        place.fp32_precision = before


def _check_switches(allowed: bool) -> None:
    matmul, conv = torch.backends.cuda.matmul, torch.backends.cudnn.allow_tf32
    reduced = matmul.allow_bf16_reduced_precision_reduction
    assert device_precision.uses_tf32() == allowed
    with device_precision.exact():
        assert not device_precision.uses_tf32() and not matmul.allow_bf16_reduced_precision_reduction
        assert torch.get_float32_matmul_precision() == "highest"
    assert device_precision.uses_tf32() == allowed and torch.backends.cudnn.allow_tf32 == conv
    assert matmul.allow_bf16_reduced_precision_reduction == reduced
