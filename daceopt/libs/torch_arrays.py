"""Arrays and their device as the C++ that calls torch's operators names them (``daceopt/torch_device.h``)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from daceopt.codegen import target
from daceopt.ir.scalar import types
from daceopt.libs.emission import extent

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from daceopt.ir.graph.graph import Graph
    from daceopt.ir.scalar.dims import Shape

_NUMBERS = {
    types.from_name(name): "k" + "".join(part.capitalize() for part in name.split("_"))
    for name in (
        *("float32", "float64", "float16", "bfloat16"),
        *("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz"),
        *("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "bool"),
    )
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


def why_no_tensors(graph: Graph, names: Iterable[str]) -> str | None:
    """Why these arrays are none of torch's: an element type that it lacks; None where they are."""
    unknown = {types.name_of(graph.dtype(n)) for n in names} - {types.name_of(dtype) for dtype in _NUMBERS}
    return f"element types {sorted(unknown)}, which torch lacks" if unknown else None


def has_negative_strides(graph: Graph, name: str) -> bool:
    """May a stride be negative, which torch does not take?"""
    sizes = graph.sizes.knowing(graph.shape(name))
    return not all(map(sizes.is_natural, graph.strides(name)))
