"""Copies and conversions: values do not change in a functional graph, so a copy is the array itself."""

from __future__ import annotations

import torch

from daceopt.capture.torch.table import translates
from daceopt.capture.torch.translation import Translation
from daceopt.errors import Unsupported
from daceopt.ir.scalar import types


@translates("_to_copy")
def to_copy(t: Translation, self: str, **options: object) -> str:
    return t.cast(self, t.dtype)


@translates("clone", "_lazy_clone", "alias", "alias_copy", "lift", "lift_fresh", "lift_fresh_copy", "positive")
@translates("_conj", "resolve_conj", "resolve_neg")
def same(t: Translation, self: str, **options: object) -> str:
    return self


@translates("copy")
def copy(t: Translation, self: str, src: str, non_blocking: bool) -> str:
    """``src`` in the kind of ``self``."""
    return t.expand(t.cast(src, t.dtype), t.shape)


@translates("view.dtype")
def view_as(t: Translation, self: str, dtype: torch.dtype | None) -> str:
    """The same bits."""
    own = t.dtype_of(self)
    if own == t.dtype:
        return self
    if types.itemsize(own) != types.itemsize(t.dtype):
        raise Unsupported(f"{types.name_of(own)} seen as {types.name_of(t.dtype)}; expected types of one size")
    return t.operator("BitCast", self, to=types.to_onnx(t.dtype))
