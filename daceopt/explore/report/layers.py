"""Places the boxes of a directed graph in layers, as Sugiyama, Tagawa and Toda (1981) do.

Layers by the longest path, long edges through places of their own in the layers between, order within a layer by the
mean of the neighbours, a few times down and up.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

_SWEEPS = 6
Pair = tuple[int, int]


@dataclass(frozen=True)
class Layout:
    """``place``: box -> (column, layer), columns from 0 and perhaps between whole numbers.

    ``route``: edge -> the places that it goes through between its ends; ``columns`` and ``layers``: how many there are.
    """

    place: Mapping[int, tuple[float, int]]
    route: Mapping[Pair, Sequence[tuple[float, int]]]
    columns: int
    layers: int


def layer_boxes(count: int, edges: Iterable[Pair]) -> Layout:
    """Boxes ``0 ... count - 1`` in layers. Edges go from a box to a later one; others, against the order, have no layer
    of their own and are only drawn."""
    edges = list(dict.fromkeys(edges))
    layer = _layers(count, edges)
    rows: list[list[int]] = [[] for _ in range(max(layer, default=-1) + 1)]
    for box, at in enumerate(layer):
        rows[at].append(box)
    chains = {edge: _chain(edge, layer, rows, count) for edge in edges if edge[0] < edge[1]}
    links = [pair for (a, b), inner in chains.items() for pair in zip([a, *inner], [*inner, b])]
    _order(rows, links)
    width = max(map(len, rows), default=0)
    positions = {}
    for at, row in enumerate(rows):
        for k, box in enumerate(row):
            positions[box] = (k + (width - len(row)) / 2, at)
    route = {edge: [positions[b] for b in chains.get(edge, ())] for edge in edges}
    return Layout({b: positions[b] for b in range(count)}, route, width, len(rows))


def _layers(count: int, edges: Sequence[Pair]) -> list[int]:
    layer = [0] * count
    for a, b in sorted(edges):
        if a < b:
            layer[b] = max(layer[b], layer[a] + 1)
    return layer


def _chain(edge: Pair, layer: Sequence[int], rows: list[list[int]], count: int) -> list[int]:
    """New places, one in each layer between the ends of ``edge``."""
    numbers = []
    for at in range(layer[edge[0]] + 1, layer[edge[1]]):
        numbers.append(count + sum(map(len, rows)))
        rows[at].append(numbers[-1])
    return numbers


def _order(rows: list[list[int]], links: Sequence[Pair]) -> None:
    above: dict[int, list[int]] = {}
    below: dict[int, list[int]] = {}
    for a, b in links:
        above.setdefault(b, []).append(a)
        below.setdefault(a, []).append(b)
    place = {box: (k + 0.5) / len(row) for row in rows for k, box in enumerate(row)}
    for sweep in range(_SWEEPS):
        down = sweep % 2 == 0
        neighbours = above if down else below
        for row in rows if down else reversed(rows):
            means = {box: _mean([place[n] for n in neighbours.get(box, ())], place[box]) for box in row}
            row.sort(key=means.__getitem__)
            place |= {box: (k + 0.5) / len(row) for k, box in enumerate(row)}


def _mean(values: Sequence[float], otherwise: float) -> float:
    return sum(values) / len(values) if values else otherwise
