"""Dynamic dimensions: from the user's notation to one specification per flat tensor input."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import torch
from torch.export import Dim

from daceopt.errors import CaptureError
from daceopt.torch_internals.pytree import TreeSpec, tree_flatten, tree_unflatten

Spec = Mapping[int, Any] | Sequence[Any] | None


def flat_specs(
    dynamic: object, leaves: Sequence[object], in_tree: TreeSpec, forward: Callable[..., Any]
) -> dict[int, Spec]:
    """Per flat input index, the ``torch.export`` specification of that tensor.

    ``dynamic`` is None (static), ``{flat index: {axis, ...}}`` (those axes may vary), or what ``torch.export.export``
    takes as ``dynamic_shapes``: by parameter name or by position, nested like the arguments.
    """
    if dynamic is None:
        return {}
    specs: dict[int, Spec] = {}
    if isinstance(dynamic, Mapping) and all(isinstance(key, int) for key in dynamic):
        specs.update({i: dict.fromkeys(_axes(i, axes), Dim.DYNAMIC) for i, axes in dynamic.items()})
    else:
        _spread(dynamic, _index_tree(len(leaves), in_tree, forward, dynamic), specs, "dynamic")
    _check(specs, leaves)
    return specs


def mark(dynamic: object, forward: Callable[..., Any], args: Sequence[object], kwargs: Mapping[str, object]) -> None:
    """Tell Dynamo which axes of a call's tensors vary. Raises CaptureError for what the call does not have."""
    from daceopt.torch_internals.dynamo_frames import mark_dynamic

    leaves, tree = tree_flatten((tuple(args), dict(kwargs)))
    for index, spec in flat_specs(dynamic, leaves, tree, forward).items():
        axes = spec.items() if isinstance(spec, Mapping) else enumerate(spec or ())
        for axis, dim in axes:
            if dim not in (None, Dim.STATIC) and not isinstance(dim, int):
                mark_dynamic(leaves[index], axis)


def _axes(index: int, axes: object) -> Collection[int]:
    if isinstance(axes, Collection) and not isinstance(axes, Mapping | str) and all(isinstance(a, int) for a in axes):
        return axes
    raise CaptureError(f"dynamic[{index}] is {axes!r}; expected a set of axes, as in {{0: {{0}}}}")


def _index_tree(
    count: int, in_tree: TreeSpec, forward: Callable[..., Any], dynamic: object
) -> dict[str, object] | list[object]:
    """The call's arguments with each leaf replaced by its flat index, by parameter name or by position like
    ``dynamic``.
    """
    args, kwargs = tree_unflatten(list(range(count)), in_tree)
    named = inspect.signature(forward).bind(*args, **kwargs).arguments
    return {**kwargs, **named} if isinstance(dynamic, Mapping) else list(named.values())


def _spread(spec: Any, indices: Any, specs: dict[int, Spec], where: str) -> None:
    if spec is None:
        return
    if isinstance(indices, int):
        specs[indices] = spec
        return
    children = dict(indices) if isinstance(indices, Mapping) else dict(enumerate(_children(indices, where)))
    items = spec.items() if isinstance(spec, Mapping) else enumerate(spec)
    for key, child in items:
        if key not in children:
            raise CaptureError(f"{where}[{key!r}] names no argument; the call has {list(children)}")
        _spread(child, children[key], specs, f"{where}[{key!r}]")


def _children(indices: object, where: str) -> Sequence[Any]:
    if isinstance(indices, list | tuple):
        return indices
    raise CaptureError(
        f"{where}: cannot look inside a {type(indices).__qualname__}; use {{flat input index: {{axes}}}}"
    )


def _check(specs: Mapping[int, Spec], leaves: Sequence[Any]) -> None:
    for index, spec in specs.items():
        if not 0 <= index < len(leaves) or not isinstance(leaves[index], torch.Tensor):
            raise CaptureError(f"dynamic names input {index}, which is not a tensor; the call has {len(leaves)} leaves")
        axes = range(len(spec)) if isinstance(spec, Sequence) else (spec or {})
        for axis in axes:
            if not 0 <= axis < leaves[index].ndim:
                rank = leaves[index].ndim
                raise CaptureError(f"dynamic names axis {axis} of input {index}, which has {rank} dimensions")
