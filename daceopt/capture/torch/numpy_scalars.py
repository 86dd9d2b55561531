"""Scalars of NumPy, as arguments and results: Dynamo takes them for arrays of rank 0, which their classes are not."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np
from torch import Tensor, fx

from daceopt.torch_internals.dynamo_guards import GuardBuilder
from daceopt.torch_internals.dynamo_tracing import (
    NumpyNdarrayVariable,
    Translator,
    VariableTracker,
    numpy_call,
    subscript_with,
)

Method = Callable[..., Any]

_SCALAR = "daceopt_scalar"  # where an argument of a graph keeps the class that it has as a scalar
_REDUCTIONS = frozenset(
    "all amax amin any argmax argmin average cond count_nonzero det dot inner max mean median min norm percentile prod"
    " ptp quantile std sum trace var vdot".split()
)  # functions and methods that are no ufuncs; all others give arrays of rank 0

_IN_PLACE = frozenset(
    "iadd iand ifloordiv ilshift imatmul imod imul ior ipow irshift isub itruediv ixor".split()
)  # of the module ``operator``


def wrap(original: Method, self: Any, value: object) -> VariableTracker:
    """Dynamo's variable for a value of Python; the graph depends on the class of a scalar."""
    wrapped = original(self, value)
    if isinstance(value, np.generic) and isinstance(wrapped, NumpyNdarrayVariable):
        self.install_guards(GuardBuilder.TYPE_MATCH)
        wrapped.as_proxy().node.meta[_SCALAR] = type(value)
    return wrapped


def load(original: Method, self: Any, value: object, allow_cache: bool = True) -> None:
    """Write code that loads a value, behind the graph: what NumPy computes as a scalar is one."""
    original(self, value, allow_cache)
    if isinstance(value, NumpyNdarrayVariable) and value.source is None and _class(value) is not None:
        subscript_with(self, ())


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
    node = value.as_proxy().node
    if not _is_scalar(node):
        return None
    kind: type | None = node.meta.get(_SCALAR)
    return kind or np.dtype(str(node.meta["example_value"].dtype).removeprefix("torch.")).type


def _is_scalar(node: fx.Node) -> bool:
    """Whether NumPy has a scalar where a graph of Dynamo's has this node."""
    example = node.meta.get("example_value")
    if _SCALAR in node.meta:
        return True
    return isinstance(example, Tensor) and example.ndim == 0 and _computes_scalar(node)


def _computes_scalar(node: fx.Node) -> bool:
    """Whether the call gives a scalar where its result has rank 0, and not an array, as views and copies do."""
    kind, name = numpy_call(node.target)
    first = node.args[0] if node.args else None
    if node.target is operator.getitem or (kind, name) == ("operator", "getitem"):
        return _selects_scalar(node, first)
    if kind == "operator":
        return name not in _IN_PLACE or (isinstance(first, fx.Node) and _is_scalar(first))
    return bool(kind) and (name in _REDUCTIONS or isinstance(getattr(np, name, None), np.ufunc))


def _selects_scalar(node: fx.Node, first: Any) -> bool:
    """Of ``first[index]``: one of several results of a function, or an element of an array."""
    if isinstance(first, fx.Node) and isinstance(first.meta.get("example_value"), (tuple, list)):
        return _computes_scalar(first)
    index = node.args[1]
    return Ellipsis not in (index if isinstance(index, tuple) else (index,))
