"""Arrays and their device as the C++ that calls torch's operators names them (``daceopt/torch_device.h``)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import dace

from daceopt.codegen import target
from daceopt.ir import types
from daceopt.libs.emission import extent

if TYPE_CHECKING:
    from collections.abc import Mapping

    from daceopt.ir.graph import Graph, Shape

_NUMBERS = {
    dace.float32: "kFloat32",
    dace.float64: "kFloat64",
    types.HALVES[0]: "kFloat16",
    types.HALVES[1]: "kBfloat16",
    dace.int32: "kInt32",
    dace.int64: "kInt64",
    dace.bool_: "kBool",
}
_WHERE = {"cuda": "kCuda", "cpu": "kHost"}


def place(graph: Graph) -> str:
    """Where the arrays of ``graph`` live."""
    return f"daceopt::Where::{_WHERE[target.get(graph.options.target).device]}"


def array(graph: Graph, names: Mapping[str, str], connector: str, layout: tuple[Shape, Shape] | None = None) -> str:
    """A DeviceArray, none where nothing is connected. ``layout``: shape and strides, where these are not its own."""
    if connector not in names:
        return "{}"
    name = names[connector]
    shape, strides = layout or (graph.shape(name), graph.strides(name))
    kind = f"daceopt::Number::{_NUMBERS[graph.dtype(name)]}"
    extents, steps = (", ".join(map(extent, values)) for values in (shape, strides))
    return f"{{{connector}, {kind}, {{{extents}}}, {{{steps}}}}}"


def is_negative(stride: Any) -> bool:
    """Is a stride known to be one that torch does not take?"""
    return bool(stride < 0) if isinstance(stride, int) else stride.is_negative is True
