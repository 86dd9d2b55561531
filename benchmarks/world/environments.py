"""Interpreters that have a row's packages, and what importing them takes."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).resolve().parents[2]


def interpreter(environment: str) -> str:
    """The interpreter of an environment. Raises FileNotFoundError where ``make world`` has not made it."""
    if environment == "main":
        return sys.executable
    path = _ROOT / f".venv-{environment}" / "bin" / "python"
    if not path.exists():
        raise FileNotFoundError(f"expected the interpreter {path}; run `make world`")
    return str(path)


def passing_over(prefix: str) -> None:
    """Import torchvision although its C++ operators are missing beside a CPU build of PyTorch: their fake forms, which
    would be registered for operators that do not exist, are passed over."""
    import torch

    register = torch.library.register_fake

    def registered(op: Any, *args: Any, **kwargs: Any) -> Callable[..., Any]:
        if isinstance(op, str) and op.startswith(prefix):
            return lambda function: function
        return register(op, *args, **kwargs)

    torch.library.register_fake = registered
    try:
        import torchvision  # noqa: F401
    finally:
        torch.library.register_fake = register
