"""How the results of a call come out of a compiled program: plain data that is kept with it.

A result is an output of the program, or what PyTorch would return a view of: an input, another array. Views are taken
of the real tensors by the operators that took them in the model, so that they alias as in eager PyTorch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from math import prod
from operator import getitem
from typing import Any

import torch

from daceopt.runtime.arithmetic import evaluate
from daceopt.runtime.strides import in_order, row_major


@dataclass(frozen=True)
class Result:
    """One result of the call.

    ``kind``: "output" (``index`` among the program's outputs), "input" (``index`` among the arguments), "constant"
    (``value``), "size" (``value``: text over the size symbols) or "same" (the result ``index``). ``views``: operators
    to apply in turn, as (name, arguments).
    """

    kind: str
    index: int = 0
    value: Any = None
    views: tuple[Any, ...] = ()


@dataclass(frozen=True)
class Output:
    """An output of the program, which writes arrays in rows, where PyTorch promises axes in an order. The result is
    made with the strides that it has in PyTorch: it is a tensor of its own, no view of one in rows.

    ``order``: its axes in memory, outermost first; (): as they are counted. ``differentiable``: whether autograd sees
    it. A ``complex`` result is an array of both parts along one more axis. ``strides``: those that it is copied to
    where there are gaps between its elements, or overlaps. ``layout``: the strides of the tensor, per axis a number, or
    the axes whose extents multiply to it; (): those that follow from the order.
    """

    order: tuple[int, ...]
    differentiable: bool
    complex: bool = False
    strides: tuple[Any, ...] = ()
    layout: tuple[Any, ...] = ()

    def form(
        self, shape: tuple[int, ...], dtype: torch.dtype
    ) -> tuple[tuple[int, ...], torch.dtype, tuple[int, ...] | None]:
        """Shape, type and strides of the tensor for an array of ``shape``; None: strides of rows."""
        if self.complex:
            shape, dtype = shape[:-1], dtype.to_complex()
        logical = in_order(shape, self.order) if self.is_turned else shape
        if self.layout:
            return logical, dtype, tuple(_stride(s, logical) for s in self.layout)
        return logical, dtype, in_order(row_major(shape), self.order) if self.is_turned else None

    @property
    def is_turned(self) -> bool:
        """Do its axes are in memory in another order than they are counted?"""
        return self.order != tuple(sorted(self.order))


@dataclass(frozen=True)
class ResultStage:
    """Outputs that are computed from results of the call, ``held``: ("result", k), or ("argument", k) for the new value
    of an argument. Autograd sees these between the outputs and the arguments."""

    outputs: tuple[int, ...]
    held: tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class Binding:
    """``inputs``: per input of the program the argument it is, as ("tensor", k), or an empty array as long as it, as
    ("size", k). ``mutations``: (argument, output) pairs; ``symbols``: where sizes for views are read, (argument, axis
    or None); ``complex``: inputs of the program that are; ``stages``: outputs that are computed from results.
    ``unversioned``: changed arguments of whose change autograd is not told (written by ``.data``); ``exchanged``: those
    that get new memory, too."""

    inputs: tuple[tuple[str, int], ...]
    outputs: tuple[Output, ...]
    results: tuple[Result, ...]
    mutations: tuple[tuple[int, int], ...]
    symbols: dict[str, tuple[int, int | None]] = field(default_factory=dict)
    complex: tuple[int, ...] = ()
    stages: tuple[ResultStage, ...] = ()
    unversioned: tuple[int, ...] = ()
    exchanged: tuple[int, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Binding:
        """The inverse of :meth:`to_json`."""
        return cls(
            tuple((kind, k) for kind, k in data["inputs"]),
            tuple(
                Output(tuple(o["order"]), o["differentiable"], o["complex"], tuple(o["strides"]), tuple(o["layout"]))
                for o in data["outputs"]
            ),
            tuple(Result(r["kind"], r["index"], r["value"], tuple(r["views"])) for r in data["results"]),
            tuple((a, o) for a, o in data["mutations"]),
            {name: (a, axis) for name, (a, axis) in data["symbols"].items()},
            tuple(data["complex"]),
            tuple(ResultStage(tuple(s["outputs"]), tuple((kind, k) for kind, k in s["held"])) for s in data["stages"]),
            tuple(data["unversioned"]),
            tuple(data["exchanged"]),
        )


def replay(views: Sequence[Any]) -> Callable[[torch.Tensor, Mapping[str, int]], torch.Tensor]:
    """A function that takes the views of a tensor, given the values of the size symbols."""
    steps = [(_operator(name), arguments) for name, arguments in views]

    def apply(tensor: object, sizes: Mapping[str, int]) -> Any:
        for operator, arguments in steps:
            tensor = operator(tensor, *(_evaluate(a, sizes) for a in arguments))
        return tensor

    return apply


def spread(tensor: torch.Tensor, strides: Sequence[int], sizes: Mapping[str, int]) -> torch.Tensor:
    """A copy with these strides; along an axis of stride 0 all elements are the first."""
    numbers = [_evaluate(s, sizes) for s in strides]
    strided = tensor.new_empty_strided(tensor.shape, numbers)
    written, source = strided, tensor
    for axis, stride in enumerate(numbers):
        if stride == 0 and tensor.shape[axis]:
            written, source = written.narrow(axis, 0, 1), source.narrow(axis, 0, 1)
    written.copy_(source)
    return strided


def _stride(stride: Any, shape: Sequence[int]) -> int:
    return stride if isinstance(stride, int) else prod(max(shape[k], 1) for k in stride)


def _operator(name: str) -> Any:
    if name == "getitem":
        return getitem
    namespace, packet, overload = name.split(".")
    return getattr(getattr(getattr(torch.ops, namespace), packet), overload)


def _evaluate(value: object, sizes: Mapping[str, int]) -> Any:
    if isinstance(value, list):
        return [_evaluate(v, sizes) for v in value]
    if not isinstance(value, dict):
        return value
    return getattr(torch, value["type"]) if "type" in value else evaluate(value["size"], sizes)
