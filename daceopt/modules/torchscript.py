"""``torch.jit.script`` of optimized modules: it reads the source of a forward, of the one before it was optimized."""

from __future__ import annotations

import types
from typing import Any

from torch import nn
from torch.jit import _recursive

_make_stub_from_method = _recursive.make_stub_from_method


def install() -> None:
    """Let TorchScript read original forwards, if that is not done yet."""
    _recursive.make_stub_from_method = _stub


def _stub(module: nn.Module, name: str) -> Any:
    original = getattr(getattr(module, name), "daceopt_original", None)
    if original is None:
        return _make_stub_from_method(module, name)
    bound = original if isinstance(original, types.MethodType) else types.MethodType(original, module)
    return _recursive.make_stub(bound, name)
