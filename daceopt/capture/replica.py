"""A structural copy of a module tree that shares its tensors: tracing happens on the copy, so the user's modules stay
untouched.
"""

from __future__ import annotations

import contextlib
import types
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from daceopt.errors import CaptureError

# The ``forward`` of an optimized module or class carries the user's own forward under this attribute.
ORIGINAL_FORWARD = "daceopt_original"

_REGISTRIES = ("_parameters", "_buffers", "_modules")
_MIRRORS = ("_flat_weights", "_flat_weight_refs")  # where nn.RNNBase.forward keeps its parameters a second time


class Replica:
    """Copies of ``root`` and its descendants: new module objects, the same parameters, buffers and attributes.

    Bound methods of copied modules kept as attributes are bound to the copies. A ``forward`` put there by daceopt, on
    the instance or on its class, is replaced by the forward it wraps. Other threads may call the original while the
    copy is traced: torch swaps parameters for fake ones in the copy only.
    """

    def __init__(self, root: nn.Module) -> None:
        self._names = {id(m): name for name, m in root.named_modules()}
        self._copies: dict[int, nn.Module] = {}
        for module in root.modules():
            self._copies[id(module)] = _shallow(module)
        for copy in self._copies.values():
            self._relink(copy)
        self.root = self._copies[id(root)]

    def _relink(self, copy: nn.Module) -> None:
        children = copy._modules
        copy.__dict__["_modules"] = {k: m if m is None else self._copies[id(m)] for k, m in children.items()}
        compiled = getattr(type(copy).forward, ORIGINAL_FORWARD, None)
        if compiled is not None and "forward" not in copy.__dict__:
            copy.__dict__["forward"] = types.MethodType(compiled, copy)
        for key, value in list(copy.__dict__.items()):
            if key == "forward":
                self._restore_forward(copy, value)
            elif isinstance(value, types.MethodType):
                copy.__dict__[key] = self._rebind(value)

    def _restore_forward(self, copy: nn.Module, forward: Any) -> None:
        original = getattr(forward, ORIGINAL_FORWARD, forward)
        if isinstance(original, types.MethodType):
            original = self._rebind(original)
        copy.__dict__["forward"] = original
        if isinstance(original, types.MethodType) and original.__func__ is getattr(type(copy), "forward", None):
            del copy.__dict__["forward"]

    def _rebind(self, method: types.MethodType) -> types.MethodType:
        owner = self._copies.get(id(method.__self__))
        return method if owner is None else types.MethodType(method.__func__, owner)

    @contextlib.contextmanager
    def unchanged(self) -> Iterator[None]:
        """Raise ``CaptureError`` naming an attribute that was set inside: such state would not change in a compiled
        call.
        """
        before = {key: {k: _own(v) for k, v in copy.__dict__.items()} for key, copy in self._copies.items()}
        yield
        for key, attributes in before.items():
            copy = self._copies[key]
            followed = _REGISTRIES + _MIRRORS if isinstance(copy, nn.RNNBase) else _REGISTRIES
            changed = _changed(attributes, copy.__dict__, followed)
            if changed is not None:
                where = self._names[key] or type(self.root).__name__
                raise CaptureError(
                    f"forward sets the attribute {changed!r} of {where!r}; a compiled call would not repeat that. "
                    "Register tensors as buffers, or keep such state out of forward."
                )


def _changed(before: dict[str, Any], after: dict[str, Any], followed: tuple[str, ...]) -> str | None:
    """The first attribute that differs; not of those ``followed``: buffers may change, the exporter tracks them."""
    for name in (*before, *(after.keys() - before.keys())):
        if name in followed:
            continue
        if name not in before or name not in after or not _same(before[name], after[name]):
            return name
    return None


def _shallow(module: nn.Module) -> nn.Module:
    if isinstance(module, torch.jit.ScriptModule):
        raise CaptureError(f"{type(module).__name__} is a TorchScript module; daceopt traces Python modules")
    copy = object.__new__(type(module))
    copy.__dict__.update({key: _own(value) for key, value in module.__dict__.items()})
    for registry in _REGISTRIES:
        copy.__dict__[registry] = dict(module.__dict__[registry])
    return copy


def _own(value: Any) -> Any:
    """A copy of plain containers down to their elements, so that forward may append to a list without anyone
    noticing.
    """
    if type(value) in (list, tuple, set):
        return type(value)(_own(v) for v in value)
    if type(value) is dict:
        return {k: _own(v) for k, v in value.items()}
    return value


def _same(before: Any, after: Any) -> bool:
    """Whether an attribute is unchanged: the same object, an equal plain value, or a container of such."""
    if before is after:
        return True
    if type(before) is not type(after):
        return False
    if type(before) in (list, tuple):
        return len(before) == len(after) and all(map(_same, before, after))
    if type(before) is dict:
        return before.keys() == after.keys() and all(_same(before[k], after[k]) for k in before)
    return isinstance(before, bool | int | float | complex | str | bytes | set) and before == after
