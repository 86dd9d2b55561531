"""Loads that stand a known distance apart: gcc computes with vectors only where it does not know the distance."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from daceopt import optimized_module, system
from daceopt.codegen.cpu.toolchain import command
from tests.numerics import assert_within_rounding

INCLUDE = Path(__file__).parents[3] / "daceopt" / "codegen" / "include"


class Across(nn.Module):
    """Reads one layout and writes another."""

    def __init__(self, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(x).transpose(1, 2).contiguous()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("function", [torch.tanh, torch.exp, lambda x: torch.log1p(x.abs())])
def test_functions_of_what_is_turned_round(
    function: Callable[[torch.Tensor], torch.Tensor], dtype: torch.dtype
) -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 48, 70).to(dtype)
    ours = optimized_module(Across(function), fallback="raise")
    assert_within_rounding(ours(x), function(x.double()).transpose(1, 2), function(x).transpose(1, 2))
    assert "dop::opaque(" in ours.daceopt.source()


def test_cheap_values_are_loaded_as_they_stand() -> None:
    ours = optimized_module(Across(lambda x: x * 2 + 1), fallback="raise")
    x = torch.randn(2, 48, 70)
    assert torch.equal(ours(x), (x * 2 + 1).transpose(1, 2))
    assert "dop::opaque(" not in ours.daceopt.source()


@pytest.mark.skipif(getattr(system.compiler(), "family", "") != "gcc", reason="what gcc calls")
def test_the_function_is_one_of_vectors(tmp_path: Path) -> None:
    ours: Any = optimized_module(Across(torch.tanh), fallback="raise")
    ours(torch.randn(2, 48, 70))
    (kernel,) = re.findall(r'extern "C" void k_\w+\(.*?\n}\n', ours.daceopt.source(), re.S)
    source, target = tmp_path / "kernel.cpp", tmp_path / "kernel.o"
    headers = "".join(f'#include "daceopt/{name}"\n' for name in ("cpu.h", "vector_math.h", "scalar.h"))
    source.write_text(headers + kernel)
    subprocess.run([*command(), f"-I{INCLUDE}", "-c", str(source), "-o", str(target)], check=True)
    called = subprocess.run(["nm", "-u", str(target)], check=True, capture_output=True, text=True).stdout
    assert "v_tanhf" in called and " tanhf" not in called
