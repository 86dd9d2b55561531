"""Operators that work element by element."""

from __future__ import annotations

from typing import Any

from daceopt.capture.torch.table import translates
from daceopt.capture.torch.translation import Translation


@translates("relu")
def relu(t: Translation, self: str) -> str:
    return t.operator("Relu", self)


@translates("tanh")
def tanh(t: Translation, self: str) -> str:
    return t.operator("Tanh", t.cast(self, t.dtype))


@translates("add.Tensor")
def add(t: Translation, self: str, other: Any, alpha: Any) -> str:
    other = other if alpha == 1 else t.operator("Mul", t.cast(other, t.dtype), t.array(alpha, t.dtype), results=None)
    return t.operator("Add", t.cast(self, t.dtype), t.array(other, t.dtype))


@translates("mul.Tensor")
def mul(t: Translation, self: str, other: Any) -> str:
    return t.operator("Mul", t.cast(self, t.dtype), t.array(other, t.dtype))
