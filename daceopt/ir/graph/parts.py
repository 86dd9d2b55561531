"""Arrays that several nodes write in disjoint parts: single assignment per element instead of per array."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import combinations
from math import prod
from typing import TYPE_CHECKING, Any

import sympy

from daceopt.errors import IllegalParts
from daceopt.ir.data.arrays import Part
from daceopt.ir.data.views import follow
from daceopt.ir.scalar.dims import Dim
from daceopt.ir.scalar.sizes import ALL_SIZES, Sizes

if TYPE_CHECKING:
    from daceopt.ir.graph.graph import Graph


def attach(graph: Graph, name: str, whole: str, starts: Sequence[Dim]) -> None:
    """Let the array ``name``, of the rank of ``whole``, be the box of it that begins at ``starts``.

    It stands there from now on, with the strides of ``whole``; its views and what writes and reads it stay. Raises
    ValueError, and changes nothing, where a view cannot follow, and for arrays that have a place already: views,
    inputs, constants, outputs, saved arrays, parts of another array.
    """
    _check_fits(graph, name, whole)
    steps = graph.strides(whole)
    layouts = follow(graph, name, graph.strides(name), steps)
    graph._check_rows({name: steps, **{view: strides for view, (strides, _) in layouts.items()}}, written=[name])
    graph.set_strides(name, steps)
    graph._parts[name] = Part(whole, tuple(starts))
    graph._parts_of.setdefault(whole, {})[name] = None
    graph._order.edited()


def detach(graph: Graph, name: str) -> None:
    """Let the part ``name`` be an array of its own again, in the layout that it has, gaps included."""
    del graph._parts_of[graph._parts.pop(name).whole][name]
    graph._order.relaxed()


def as_views(graph: Graph, whole: str, given: str | None = None) -> None:
    """``whole`` (or a view ``given`` of it) is no longer written here but given: its parts become views of it."""
    for name in graph.parts_of(whole):
        starts, steps = graph.part(name).starts, graph.strides(whole)
        offset = sum(s * t for s, t in zip(starts, steps, strict=True))
        view = graph.add_view(given or whole, name, graph.shape(name), steps, offset)
        detach(graph, name)
        as_views(graph, name, view)
        graph.replace_uses(name, view)


def why_no_part(graph: Graph, name: str) -> str | None:
    """What keeps ``name`` from becoming a part of another array, or None."""
    taken = {
        "a view": graph.is_view(name),
        "a part already": graph.is_part(name),
        "saved for the backward graph": name in graph.saved,
        "an input, output or constant": not graph.is_transient(name),
        "an array of rank 0": not graph.shape(name),
    }
    return next((text for text, holds in taken.items() if holds), None)


def _check_fits(graph: Graph, name: str, whole: str) -> None:
    if reason := why_no_part(graph, name):
        raise ValueError(f"{name} cannot be a part of {whole}: it is {reason}")
    if graph.is_view(whole) or (graph.producers(whole) and not graph.parts_of(whole)) or whole in graph.constants:
        raise ValueError(f"{whole} has no room for the part {name}: it is a view, a constant, or written as a whole")
    if graph.dtype(name) != graph.dtype(whole) or len(graph.shape(name)) != len(graph.shape(whole)):
        raise ValueError(f"{name} cannot be a part of {whole}: expected one element type and rank")


def dissolve(graph: Graph) -> None:
    """What nobody reads as a whole need not be put together: its parts stand on their own."""
    for name, part in list(graph._parts.items()):
        if not graph.is_kept(part.whole) and not graph.all_consumers(part.whole):
            detach(graph, name)


def within(graph: Graph, whole: str) -> list[str]:
    """``whole``, its parts, and theirs."""
    found = [whole]
    for name in found:
        found.extend(graph.parts_of(name))
    return found


def covering(graph: Graph, name: str, starts: Sequence[Dim], extents: Sequence[Dim]) -> tuple[str, list[Dim]]:
    """The smallest part of ``name`` that surely has the whole box, and where the box begins in it; else ``name``."""
    for part in graph.parts_of(name):
        inside = [_plain(s - t) for s, t in zip(starts, graph.part(part).starts, strict=True)]
        rest = [n - s - e for n, s, e in zip(graph.shape(part), inside, extents, strict=True)]
        if all(map(graph.sizes.is_natural, [*inside, *rest])):
            return covering(graph, part, inside, extents)
    return name, list(starts)


# -------------------------------------------------------------------- validation


Box = tuple[Sequence[Dim], Sequence[Dim]]
"""Starts and extents."""


def tile(boxes: Sequence[Box], shape: Sequence[Dim], sizes: Sizes) -> bool:
    """Do boxes have each element of an array of ``shape`` once, for all ``sizes``?"""
    inside = all(_is_inside(box, shape, sizes) for box in boxes)
    total: Any = sum(prod(extents) for _, extents in boxes)
    full = sympy.expand(total - prod(shape)) == 0
    return inside and full and all(apart(one, other, sizes) for one, other in combinations(boxes, 2))


def check(graph: Graph, whole: str) -> None:
    """Raise IllegalParts unless the parts of ``whole`` have each of its elements once, for all sizes."""
    shape, parts, sizes = graph.shape(whole), graph.parts_of(whole), graph.sizes
    boxes = {name: (graph.part(name).starts, graph.shape(name)) for name in parts}
    for name, (starts, extents) in boxes.items():
        if not graph.producers(name):
            raise IllegalParts(f"{name}, a part of {whole}, is never written")
        if not _is_inside((starts, extents), shape, sizes):
            raise IllegalParts(f"part {_shown(name, boxes)} leaves {whole}, of shape {_listed(shape)}")
    for one, other in combinations(boxes, 2):
        if not apart(boxes[one], boxes[other], sizes):
            raise IllegalParts(f"parts {_shown(one, boxes)} and {_shown(other, boxes)} of {whole} overlap")
    total: Any = sum(prod(extents) for _, extents in boxes.values())
    if sympy.expand(total - prod(shape)) != 0:
        found = f"{', '.join(_shown(n, boxes) for n in boxes)} have {total} of its {prod(shape)} elements"
        raise IllegalParts(f"the parts of {whole}, of shape {_listed(shape)}, leave a gap: {found}")


def apart(one: Box, other: Box, sizes: Sizes = ALL_SIZES) -> bool:
    """Do two boxes have no element in common?"""
    if any(e == 0 for _, extents in (one, other) for e in extents):
        return True
    ends = zip(*one, *other, strict=True)
    return any(sizes.is_natural(t - s - e) or sizes.is_natural(s - t - f) for s, e, t, f in ends)


def _is_inside(box: Box, shape: Sequence[Dim], sizes: Sizes) -> bool:
    places = zip(*box, shape, strict=True)
    return all(sizes.is_natural(s) and sizes.is_natural(n - s - e) for s, e, n in places)


def _plain(value: Any) -> Dim:
    value = sympy.expand(value)
    return int(value) if value.is_Integer else value


def _shown(name: str, boxes: dict[str, Any]) -> str:
    return f"{name} [{', '.join(f'{s}:{sympy.sympify(s + e)}' for s, e in zip(*boxes[name]))}]"


def _listed(shape: Iterable[Any]) -> str:
    return f"[{', '.join(map(str, shape))}]"
