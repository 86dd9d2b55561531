"""What a call saves for its backward under hooks on saved tensors: the arrays themselves, as eager PyTorch hands them.

A program's saved arrays are in one block of bytes. A hook that stores half types, or compresses, would get bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

import torch

from daceopt.runtime.arithmetic import evaluate
from daceopt.runtime.invocation import torch_dtype
from daceopt.runtime.manifest import Manifest
from daceopt.torch_internals import autograd_engine

Kind = tuple[torch.dtype, torch.Size]
Place = tuple[int, torch.dtype, tuple[int, ...]]


def are_hooked() -> bool:
    """Whether hooks on saved tensors are in force where a call is made."""
    return autograd_engine.saved_tensors_hooks() is not None


def kinds(tensors: Sequence[torch.Tensor]) -> list[Kind]:
    """What ``restore`` expects again."""
    return [(t.dtype, t.shape) for t in tensors]


def restore(tensors: Sequence[torch.Tensor], expected: Sequence[Kind]) -> list[torch.Tensor]:
    """What hooks gave back, in the types that were saved. Raises RuntimeError for other shapes."""
    for tensor, (dtype, shape) in zip(tensors, expected, strict=True):
        if tensor.shape != shape:
            raise RuntimeError(
                f"a hook on saved tensors gave back a tensor of shape {tuple(tensor.shape)} for one of shape "
                f"{tuple(shape)} ({dtype})"
            )
    return [t.to(dtype) for t, (dtype, _) in zip(tensors, expected)]


def arrays(block: torch.Tensor, manifest: Manifest, symbols: Sequence[int]) -> list[torch.Tensor]:
    """The arrays that are in a block; the block itself where a program does not say."""
    places = _places(manifest, symbols)
    return [_view(block, place) for place in places] or [block]


def block_of(
    tensors: Sequence[torch.Tensor],
    manifest: Manifest,
    symbols: Sequence[int],
    allocate: Callable[[], torch.Tensor],
    is_own: bool,
) -> torch.Tensor:
    """A block with these arrays. ``is_own``: it may be written, so that it is another than that of the arrays."""
    places = _places(manifest, symbols)
    if not places:
        return tensors[0].clone() if is_own else tensors[0]
    common = None if is_own else _common(tensors, places)
    if common is not None:
        return common
    block = allocate()
    for place, tensor in zip(places, tensors, strict=True):
        _view(block, place).copy_(tensor)
    return block


def _places(manifest: Manifest, symbols: Sequence[int]) -> list[Place]:
    saved = getattr(manifest, "saved", ())
    sizes = {s.name: value for s, value in zip(manifest.symbols, symbols)} if saved else {}
    return [
        (evaluate(a.offset, sizes), torch_dtype(a.dtype), tuple(evaluate(extent, sizes) for extent in a.shape))
        for a in saved
    ]


def _view(block: torch.Tensor, place: Place) -> torch.Tensor:
    offset, dtype, shape = place
    return block[offset : offset + prod(shape) * dtype.itemsize].view(dtype).view(shape)


def _common(tensors: Sequence[torch.Tensor], places: Sequence[Place]) -> torch.Tensor | None:
    """The block in which the arrays are already, as where a region is computed again by ``checkpoint``."""
    starts = {(t.untyped_storage()._cdata, t.data_ptr() - p[0]) for t, p in zip(tensors, places) if t.numel()}
    if len(starts) != 1 or not all(t.is_contiguous() for t in tensors):
        return None
    storage, ((_, start),) = tensors[0].untyped_storage(), starts
    first = start - storage.data_ptr()
    if first < 0:
        return None
    whole: torch.Tensor = torch.empty(0, dtype=torch.uint8, device=tensors[0].device)
    return whole.set_(storage, first, (storage.nbytes() - first,))
