"""``torch.jit.script`` of optimized modules: it reads the source of a forward, of the one before it was optimized."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

from torch import nn

from daceopt.torch_internals.replacements import replace
from daceopt.torch_internals.scripting import make_stub


def install() -> None:
    """Let TorchScript read original forwards, if that is not done yet."""
    replace("make_stub_from_method", _stub)


def _stub(make: Callable[[nn.Module, str], Any], module: nn.Module, name: str) -> object:
    original = getattr(getattr(module, name), "daceopt_original", None)
    if original is None:
        return make(module, name)
    bound = original if isinstance(original, types.MethodType) else types.MethodType(original, module)
    return make_stub(bound, name)
