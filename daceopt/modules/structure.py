"""What a model installs at its first call: hooks, attributes, flags. Who looks at its code then sees that happen; later
it is done."""

from __future__ import annotations

from typing import Any

from torch import nn


def structure(model: nn.Module) -> list[dict[str, Any]]:
    """For each module of a model its attributes: of a flag or a text the value, of a collection the length."""
    return [{name: _kind(value) for name, value in vars(module).items()} for module in model.modules()]


def _kind(value: object) -> object:
    if value is None or isinstance(value, bool | str):
        return value
    return len(value) if isinstance(value, dict) else type(value)
