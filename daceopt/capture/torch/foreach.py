"""Operators on lists of tensors, such as ``_foreach_add`` of optimizers, as operators on each of the tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import torch

from daceopt.torch_internals import torch_operators

_PREFIX = "_foreach_"
_OTHERS = ("norm", "max", "mm")  # no functions of single elements


@cache
def decompositions() -> dict[Any, Callable[..., Any]]:
    """By overload: functional ones whose lists have an operator of the same name for their elements."""
    return {target: _each(target, element) for target, element in _overloads()}


def _overloads() -> Iterator[tuple[Any, Any]]:
    names = (n.removeprefix("aten::") for n in torch_operators.operator_names() if n.startswith("aten::_foreach_"))
    for packet, _, overload in (n.partition(".") for n in sorted(names)):
        name = packet.removeprefix(_PREFIX)
        element = getattr(torch.ops.aten, name, None)
        if element is not None and name not in _OTHERS and not name.endswith("_") and not overload.endswith("out"):
            target = getattr(getattr(torch.ops.aten, packet), overload or "default")
            if not any(a.name == "scalars" and name.startswith("addc") for a in target._schema.arguments):
                yield target, element


def _each(target: Any, element: Any) -> Callable[..., Any]:
    """``element`` for each place of the lists; what is no list is the same for all."""
    arguments = [a.name for a in target._schema.arguments]
    listed = {a.name for a in target._schema.arguments if str(a.type).startswith("List[")}
    schemas = (getattr(element, o)._schema for o in element.overloads())
    by_name = {a.name for schema in schemas for a in schema.arguments if a.kwarg_only} & set(arguments)

    def decompose(*args: Any, **kwargs: Any) -> list[Any]:
        values = {**dict(zip(arguments, args)), **kwargs}
        count = max(len(v) for k, v in values.items() if k in listed)
        calls = ({k: v[i] if k in listed else v for k, v in values.items()} for i in range(count))
        return [
            element(*(v for k, v in c.items() if k not in by_name), **{k: c[k] for k in by_name & c.keys()})
            for c in calls
        ]

    return decompose
