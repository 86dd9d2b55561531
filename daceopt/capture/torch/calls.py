"""Calls of ATen operators as they were traced, and what PyTorch says of their results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import sympy
import torch

from daceopt.capture.torch.custom_gradient import Backward
from daceopt.capture.torch.sizes import SizeNames
from daceopt.errors import Unsupported
from daceopt.ir.scalar import types
from daceopt.ir.scalar.dims import Shape
from daceopt.ir.scalar.types import DType

Number: TypeAlias = complex | sympy.Expr
"""A scalar argument: a number, or an expression over sizes."""
ArrayOrNumber: TypeAlias = str | Number
"""A tensor argument, by the name of its array, or the number that ATen takes in its place."""


class Promise(NamedTuple):
    """What PyTorch says of a result."""

    shape: Shape
    dtype: DType


@dataclass(frozen=True)
class Context:
    """What all translations of one graph share: its size symbols, the calls that ATen runs, with the reasons, and what
    traces assumed, as text."""

    sizes: SizeNames = field(default_factory=SizeNames)
    hosted: dict[str, str] = field(default_factory=dict)
    assumed: list[str] = field(default_factory=list)


@dataclass(frozen=True, eq=False)
class AtenCall:
    """One call of an ATen operator, apart from the arrays it reads.

    ``operands``: the fake tensors that it was traced with, in the order in which they occur in the arguments;
    ``arguments``: by name of the schema, an ``Operand`` for each tensor, extents for sizes; ``traced``: the same with
    PyTorch's own sizes. ``results``: what it gave, fake. ``position``: how many calls that draw random numbers stand
    before it in the graph. ``line``: where the model makes it (:mod:`daceopt.capture.torch.lines`).
    """

    target: Any
    arguments: Mapping[str, Any]
    traced: Mapping[str, Any]
    operands: tuple[torch.Tensor, ...]
    results: tuple[torch.Tensor | None, ...]
    context: Context
    backward: Backward | None = None
    position: int = 0
    line: str = ""

    @property
    def is_complex(self) -> bool:
        """Whether complex tensors go in or come out."""
        return any(isinstance(x, torch.Tensor) and x.is_complex() for x in (*self.operands, *self.results))

    def __deepcopy__(self, memo: dict[int, Any]) -> AtenCall:
        return self

    def __repr__(self) -> str:
        """The same for calls that compute the same of the same operands, and for no others: steps compare it."""
        draws = torch.Tag.nondeterministic_seeded in getattr(self.target, "tags", ())
        own = [self.position] if draws else [] if self.backward is None else [id(self.backward)]
        return f"<{self.target} {dict(self.arguments)} {own}>"


class Operand(int):
    """Position of a tensor argument among the operands of a :class:`AtenCall`."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({int(self)})"


class Item(Operand):
    """Position of an operand of one element that stands for a number: a float among the arguments of the call."""


class NumberArray(str):
    """The name of a float64 array of rank 0 that stands for a number."""

    def _sympy_(self) -> object:
        raise Unsupported(f"a number that comes with the call ({self}) in scalar code")


def by_name(target: Any, args: Sequence[object], kwargs: Mapping[str, object]) -> dict[str, Any]:
    """The arguments of a call by the names of its schema, defaults filled in; ``self`` stays ``self``."""
    values: dict[str, Any] = {}
    for position, argument in enumerate(target._schema.arguments):
        if position < len(args):
            values[argument.name] = args[position]
        elif argument.name in kwargs:
            values[argument.name] = kwargs[argument.name]
        else:
            values[argument.name] = argument.default_value
    return values


def to_numpy(tensor: torch.Tensor) -> np.ndarray:
    """The elements of a dense tensor, wherever it is; half types by their bits."""
    dense = tensor.detach().resolve_conj().resolve_neg()
    is_zero = dense._is_zerotensor()  # which has no memory
    dense = torch.zeros(dense.shape, dtype=dense.dtype, device="cpu") if is_zero else dense.contiguous().cpu()
    dense = torch.view_as_real(dense) if dense.is_complex() else dense
    dtype = types.to_numpy(types.from_torch(dense.dtype))
    if dtype.kind == "V":
        return dense.view({1: torch.uint8, 2: torch.uint16}[dtype.itemsize]).numpy().view(dtype)
    return np.asarray(dense.numpy())
