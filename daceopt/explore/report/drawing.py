"""A drawing of the graph of a report: kernels and modules in layers, in SVG that stands in the page itself.

Every module has a drawing of its own, of the kernels in it and of its parts as boxes, which open with a click: so
that a model of hundreds of kernels stays readable, and a browser lays out only what somebody looks at. Lines are as
wide and as warm as the bytes that they stand for.
"""

from __future__ import annotations

import itertools
import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from html import escape

from daceopt.explore.report.layers import Layout, layer_boxes
from daceopt.explore.report.tables import Edge, KernelRow, Tables
from daceopt.explore.report.units import amount, duration, plural

_WIDTH, _HEIGHT, _ACROSS, _DOWN = 168, 44, 22, 40  # of a box, and between boxes
_MOST = 48  # boxes in one drawing; more of them are put together in runs
_LETTERS = 23
_HEATS = 5
Path = tuple[str, ...]


@dataclass
class Module:
    """A part of a model: its name below the part around it, kernels by their places in the report, and its own parts in
    the order in which they first run."""

    name: str
    kernels: list[int] = field(default_factory=list)
    parts: list[Module] = field(default_factory=list)

    def members(self) -> list[int]:
        """All kernels in it."""
        return [*self.kernels, *(k for part in self.parts for k in part.members())]


# -------------------------------------------------------------------- modules


def tree(kernels: Sequence[KernelRow], direction: str) -> Module:
    """The modules of one direction: a kernel stands in the innermost one that all of its origins share."""
    root = Module(direction)
    modules: dict[Path, Module] = {(): root}
    for k, kernel in enumerate(kernels):
        if kernel.direction == direction:
            _module(modules, path_of(kernel.origin)).kernels.append(k)
    return _tidy(root)


def path_of(origin: str) -> Path:
    """``encoder.0`` for ``encoder.0.norm, encoder.0.linear``; nodes of an ONNX file have slashes."""
    paths = [tuple(filter(None, re.split(r"/" if "/" in one else r"\.", one))) for one in origin.split(", ")]
    shared = []
    for parts in zip(*paths):
        if len(set(parts)) > 1:
            break
        shared.append(parts[0])
    return tuple(shared)


def _module(modules: dict[Path, Module], path: Path) -> Module:
    for length in range(1, len(path) + 1):
        if path[:length] not in modules:
            modules[path[:length]] = module = Module(path[length - 1])
            modules[path[: length - 1]].parts.append(module)
    return modules[path]


def _tidy(module: Module) -> Module:
    """A part that is all there is of a module takes its place; many boxes are put together in runs."""
    parts = [_tidy(part) for part in module.parts]
    inner = [part for part in parts if len(part.members()) > 1]
    loose = [k for part in parts if len(part.members()) <= 1 for k in part.members()]
    module.kernels, module.parts = sorted([*module.kernels, *loose]), inner
    if len(inner) == 1 and not module.kernels:
        return Module(f"{module.name}.{inner[0].name}", inner[0].kernels, inner[0].parts)
    while len(module.kernels) + len(module.parts) > _MOST:
        module = _in_runs(module)
    return module


def _in_runs(module: Module) -> Module:
    boxes = sorted([*module.parts, *(Module("", [k]) for k in module.kernels)], key=lambda m: min(m.members()))
    size = max(2, math.ceil(len(boxes) / _MOST))
    runs = [boxes[k : k + size] for k in range(0, len(boxes), size)]
    parts = []
    for at, run in enumerate(runs):
        kernels = [k for box in run if not box.name for k in box.kernels]
        parts.append(Module(f"part {at + 1}", kernels, [box for box in run if box.name]))
    return Module(module.name, [], parts)


# -------------------------------------------------------------------- drawings


def drawings(report: Tables) -> Iterator[str]:
    """The drawing of each direction, with those of the modules in it, closed."""
    for direction in ("forward", "backward"):
        if any(k.direction == direction for k in report.kernels):
            yield f"<h2>Graph, {direction}</h2>"
            yield from _Drawing(report, direction).all()


class _Drawing:
    def __init__(self, report: Tables, direction: str):
        self._kernels, self._direction = report.kernels, direction
        self._root = tree(report.kernels, direction)
        own = {k for k, kernel in enumerate(report.kernels) if kernel.direction == direction}
        self._edges = [e for e in report.edges if e.source in own or e.target in own]
        self._most = max((e.bytes for e in self._edges), default=1)
        self._number = 0

    def all(self) -> Iterator[str]:
        yield f'<div class="graph" data-direction="{self._direction}">'
        yield from self._module(self._root, self._edges, True)
        yield "</div>"

    def _module(self, module: Module, edges: Sequence[Edge], opened: bool) -> Iterator[str]:
        """The drawing of one module, and of its parts below it; ``edges`` touch the module."""
        number, self._number = self._number, self._number + 1
        members = module.members()
        moved = sum(self._kernels[k].bytes for k in members)
        text = f"{plural(len(members), 'kernel')}, {amount(moved, 'B')}{self._time(members)}"
        state = " open" if opened else ""
        yield f'<details class="module" data-module="{self._direction}-{number}"{state}>'
        yield f'<summary><b>{escape(module.name)}</b> <span class="quiet">{escape(text)}</span></summary>'
        boxes: list[Module | int] = [*module.parts, *module.kernels]
        boxes.sort(key=_first)
        owner = {k: at for at, box in enumerate(boxes) for k in _members(box)}
        inside: list[str] = []
        numbers = {}
        for part in module.parts:
            numbers[id(part)] = f"{self._direction}-{self._number}"
            own = set(part.members())
            inside += self._module(part, [e for e in edges if e.source in own or e.target in own], False)
        names = [numbers.get(id(box), "") for box in boxes]
        yield self._svg(boxes, names, _flows(edges, owner))
        yield from inside
        yield "</details>"

    def _time(self, members: Sequence[int]) -> str:
        spent = [self._kernels[k].seconds for k in members]
        return f", {duration(sum(s or 0 for s in spent))}" if any(s is not None for s in spent) else ""

    def _svg(self, boxes: Sequence[Module | int], names: Sequence[str], flows: Counter[tuple[int, int]]) -> str:
        """Boxes in layers; what comes from outside stands above them all, what goes there below."""
        first, last = any(a < 0 for a, _ in flows), any(b < 0 for _, b in flows)
        shift, count = int(first), len(boxes) + int(first) + int(last)
        pairs = {(0 if a < 0 else a + shift, count - 1 if b < 0 else b + shift): n for (a, b), n in flows.items()}
        layout = layer_boxes(count, pairs)
        width = max(1, layout.columns) * (_WIDTH + _ACROSS) + _ACROSS
        height = layout.layers * (_HEIGHT + _DOWN) + _DOWN
        lines = [self._line(layout, pair, moved) for pair, moved in sorted(pairs.items(), key=lambda p: p[1])]
        shown = [self._box(layout, k + shift, box, names[k]) for k, box in enumerate(boxes)]
        ends = [_end(layout, 0, "in")] * first + [_end(layout, count - 1, "out")] * last
        view = f'viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
        return f'<div class="scroll"><svg {view} role="img">{"".join([*lines, *shown, *ends])}</svg></div>'

    def _line(self, layout: Layout, pair: tuple[int, int], moved: int) -> str:
        (x0, y0), (x1, y1) = _corner(*layout.place[pair[0]]), _corner(*layout.place[pair[1]])
        through = [_corner(*place) for place in layout.route[pair]]
        points = [(x0, y0 + _HEIGHT), *((x, y + _HEIGHT / 2) for x, y in through), (x1, y1)]
        heat = math.log1p(moved) / math.log1p(self._most) if self._most else 0
        back = " back" if pair[1] <= pair[0] else ""
        look = f'class="flow heat{min(_HEATS - 1, int(heat**4 * _HEATS))}{back}" stroke-width="{1 + 5 * heat**4:.1f}"'
        return f'<path {look} d="{_curve(points)}"><title>{escape(amount(moved, "B"))}</title></path>'

    def _box(self, layout: Layout, at: int, box: Module | int, name: str) -> str:
        x, y = _corner(*layout.place[at])
        members = _members(box)
        moved = amount(sum(self._kernels[k].bytes for k in members), "B") + self._time(members)
        if isinstance(box, Module):
            label, detail = box.name, f"{plural(len(members), 'kernel')}, {moved}"
            mark = f'class="part" data-opens="{name}"'
        else:
            label, detail = self._kernels[box].label, moved
            library = " library" if self._kernels[box].library else ""
            mark = f'class="kernel{library}" data-shows="{box}"'
        left = x - _WIDTH / 2
        return (
            f'<g {mark} tabindex="0" role="button"><title>{escape(self._hint(box))}</title>'
            f'<rect x="{left:.1f}" y="{y:.1f}" width="{_WIDTH}" height="{_HEIGHT}" rx="6"/>'
            f'<text x="{x:.1f}" y="{y + 18:.1f}">{escape(_short(label))}</text>'
            f'<text class="detail" x="{x:.1f}" y="{y + 34:.1f}">{escape(_short(detail, 30))}</text></g>'
        )

    def _hint(self, box: Module | int) -> str:
        if isinstance(box, Module):
            return box.name
        kernel = self._kernels[box]
        return f"{kernel.label}: {kernel.contents}" + (f", from {kernel.origin}" if kernel.origin else "")


def _flows(edges: Sequence[Edge], owner: dict[int, int]) -> Counter[tuple[int, int]]:
    """Bytes from box to box; -1 is what stands outside."""
    flows: Counter[tuple[int, int]] = Counter()
    for edge in edges:
        ends = (
            owner.get(-1 if edge.source is None else edge.source, -1),
            owner.get(-1 if edge.target is None else edge.target, -1),
        )
        if ends[0] != ends[1]:
            flows[ends] += edge.bytes
    return flows


def _members(box: Module | int) -> list[int]:
    return box.members() if isinstance(box, Module) else [box]


def _first(box: Module | int) -> int:
    return min(_members(box))


def _corner(column: float, layer: int) -> tuple[float, float]:
    """The middle of the upper side of a box."""
    return _ACROSS + _WIDTH / 2 + column * (_WIDTH + _ACROSS), _DOWN / 2 + layer * (_HEIGHT + _DOWN)


def _curve(points: Sequence[tuple[float, float]]) -> str:
    path = f"M{points[0][0]:.1f} {points[0][1]:.1f}"
    for (x0, y0), (x1, y1) in itertools.pairwise(points):
        middle = (y0 + y1) / 2
        path += f"C{x0:.1f} {middle:.1f} {x1:.1f} {middle:.1f} {x1:.1f} {y1:.1f}"
    return path


def _end(layout: Layout, at: int, name: str) -> str:
    x, y = _corner(*layout.place[at])
    return f'<g class="end"><text x="{x:.1f}" y="{y + _HEIGHT / 2 + 5:.1f}">{name}</text></g>'


def _short(text: str, most: int = _LETTERS) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"
