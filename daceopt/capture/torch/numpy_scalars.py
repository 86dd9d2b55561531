"""Scalars of NumPy among the arguments: Dynamo takes them for arrays of rank 0, which their classes are not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from daceopt.torch_internals.dynamo_guards import GuardBuilder
from daceopt.torch_internals.dynamo_tracing import NumpyNdarrayVariable, Translator, VariableTracker

Method = Callable[..., Any]

_SCALAR = "daceopt_scalar"  # where an argument of a graph keeps the class that it has as a scalar


def wrap(original: Method, self: Any, value: object) -> VariableTracker:
    """Dynamo's variable for a value of Python; the graph depends on the class of a scalar."""
    wrapped = original(self, value)
    if isinstance(value, np.generic) and isinstance(wrapped, NumpyNdarrayVariable):
        self.install_guards(GuardBuilder.TYPE_MATCH)
        wrapped.as_proxy().node.meta[_SCALAR] = type(value)
    return wrapped


def is_instance(original: Method, self: VariableTracker, tx: Translator, value: Any, classes: Any) -> VariableTracker:
    """``isinstance(value, classes)``."""
    kind = _class(value.realize())
    if kind is None:
        return original(self, tx, value, classes)
    return VariableTracker.build(tx, issubclass(kind, classes.as_python_constant()))


def class_of(original: Method, self: VariableTracker, tx: Translator, value: Any) -> VariableTracker:
    """``type(value)``."""
    kind = _class(value.realize())
    return original(self, tx, value) if kind is None else VariableTracker.build(tx, kind)


def _class(value: object) -> type | None:
    """Of a scalar of NumPy; None of all else."""
    if not isinstance(value, NumpyNdarrayVariable):
        return None
    kind: type | None = value.as_proxy().node.meta.get(_SCALAR)
    return kind
