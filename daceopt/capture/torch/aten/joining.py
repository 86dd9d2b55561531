"""Arrays put together from others, or from repetitions of one."""

from __future__ import annotations

from daceopt.capture.torch.aten.shape import insert_axis
from daceopt.capture.torch.table import translates
from daceopt.capture.torch.translation import Translation


@translates("cat")
def cat(t: Translation, tensors: list[str], dim: int) -> str:
    """Tensors of shape (0,) count for nothing beside those of other ranks."""
    rank = len(t.shape)
    parts = [n for n in tensors if len(t.shape_of(n)) == rank] or tensors
    parts = [n for n in parts if t.shape_of(n) != (0,)] or parts[:1]
    if len(parts) == 1:
        return t.cast(parts[0], t.dtype)
    return t.operator("Concat", *(t.cast(n, t.dtype) for n in parts), axis=dim % rank)


@translates("stack")
def stack(t: Translation, tensors: list[str], dim: int) -> str:
    axis = dim % len(t.shape)
    parts = [insert_axis(t, t.cast(n, t.dtype), axis) for n in tensors]
    return parts[0] if len(parts) == 1 else t.operator("Concat", *parts, axis=axis)
