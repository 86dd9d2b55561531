"""What a drawing of the graph of a report shows: a scene of boxes and lines for each module, placed in layers.

The scene of a module has the kernels in it and its parts as boxes, so that a model of hundreds of kernels stays
readable. Lines are as wide and as warm as the bytes that they stand for.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from daceopt.explore.report.layers import Layout, layer_boxes
from daceopt.explore.report.tables import Edge, KernelRow, Tables
from daceopt.explore.report.units import amount, duration, plural
from daceopt.ir.data.provenance import shared_path

WIDTH, HEIGHT = 168, 44  # of a box
_ACROSS, _DOWN = 22, 40  # between boxes
_MOST = 48  # boxes in one scene; more of them are put together in runs
_LETTERS, _DETAILS = 23, 30
_HEATS = 5
Path = tuple[str, ...]
Likeness = tuple[object, ...]


@dataclass
class Module:
    """A part of a model: its name below the part around it, kernels by their places in the report, and its own parts in
    the order in which they first run. ``alike``: the parts that follow it and have the same kernels in them, which are
    drawn with it, once."""

    name: str
    kernels: list[int] = field(default_factory=list)
    parts: list[Module] = field(default_factory=list)
    alike: list[Module] = field(default_factory=list)

    def members(self) -> list[int]:
        """All kernels in it, without those alike."""
        return [*self.kernels, *(k for part in self.parts for k in part.everything())]

    def everything(self) -> list[int]:
        """All kernels in it and in those alike."""
        return [k for module in (self, *self.alike) for k in module.members()]

    @property
    def title(self) -> str:
        """``0``, or ``0 … 23 x 24``."""
        return f"{self.name} … {self.alike[-1].name} x {1 + len(self.alike)}" if self.alike else self.name


# -------------------------------------------------------------------- modules


def tree(kernels: Sequence[KernelRow], direction: str) -> Module:
    """The modules of one direction: a kernel is in the innermost one that all of its origins share."""
    root = Module(direction)
    modules: dict[Path, Module] = {(): root}
    for k, kernel in enumerate(kernels):
        if kernel.direction == direction:
            _module(modules, shared_path(kernel.origin.split(", "))).kernels.append(k)
    return _tidy(root, kernels)


def _module(modules: dict[Path, Module], path: Path) -> Module:
    for length in range(1, len(path) + 1):
        if path[:length] not in modules:
            modules[path[:length]] = module = Module(path[length - 1])
            modules[path[: length - 1]].parts.append(module)
    return modules[path]


def _tidy(module: Module, rows: Sequence[KernelRow]) -> Module:
    """A part that is all there is of a module takes its place; equal layers are drawn once, and many boxes are put
    together in runs."""
    parts = [_tidy(part, rows) for part in module.parts]
    inner = [part for part in parts if len(part.members()) > 1]
    loose = [k for part in parts if len(part.members()) <= 1 for k in part.members()]
    module.kernels, module.parts = sorted([*module.kernels, *loose]), inner
    if len(inner) == 1 and not module.kernels:
        return Module(f"{module.name}.{inner[0].name}", inner[0].kernels, inner[0].parts)
    module.parts = _fold_equal(inner, rows)
    while len(module.kernels) + len(module.parts) > _MOST:
        module = _in_runs(module)
    return module


def _fold_equal(parts: Sequence[Module], rows: Sequence[KernelRow]) -> list[Module]:
    """Parts of which those that follow an equal one stand with it."""
    folded: list[Module] = []
    for part in parts:
        if folded and _likeness(folded[-1], rows) == _likeness(part, rows):
            folded[-1].alike.append(part)
        else:
            folded.append(part)
    return folded


def _likeness(module: Module, rows: Sequence[KernelRow]) -> Likeness:
    """What equal layers have in common: their kernels, and their parts with their names."""
    kernels = tuple((rows[k].label, rows[k].contents) for k in module.kernels)
    return kernels, tuple((part.name, len(part.alike), _likeness(part, rows)) for part in module.parts)


def _in_runs(module: Module) -> Module:
    boxes = sorted([*module.parts, *(Module("", [k]) for k in module.kernels)], key=_first)
    size = max(2, math.ceil(len(boxes) / _MOST))
    runs = [boxes[k : k + size] for k in range(0, len(boxes), size)]
    parts = []
    for at, run in enumerate(runs):
        kernels = [k for box in run if not box.name for k in box.kernels]
        parts.append(Module(f"part {at + 1}", kernels, [box for box in run if box.name]))
    return Module(module.name, [], parts)


# -------------------------------------------------------------------- scenes


@dataclass(frozen=True)
class SceneBox:
    """A kernel, a part of the module, or an end (what comes from outside, or goes there). ``x``, ``y``: the middle of
    its upper side. ``number``: of the kernel in the report, or of the module that a part is; 0 of an end."""

    kind: str
    number: int
    x: float
    y: float
    label: str
    detail: str = ""
    hint: str = ""
    library: bool = False


@dataclass(frozen=True)
class SceneLine:
    """What moves from a box to another one; ``path``: as SVG writes it. ``heat``: from 0 to 4."""

    path: str
    moved: str
    width: str
    heat: int
    back: bool


@dataclass(frozen=True)
class Scene:
    """One module: its name, how much is in it, and what is drawn in a field of ``width`` by ``height``."""

    name: str
    text: str
    width: int
    height: int
    lines: Sequence[SceneLine]
    boxes: Sequence[SceneBox]


class Scenes:
    """The scenes of one direction; modules have numbers, a part after what it is in."""

    def __init__(self, report: Tables, direction: str):
        self._kernels = report.kernels
        self.modules = list(_in_order(tree(report.kernels, direction)))
        self._numbers = {id(module): k for k, module in enumerate(self.modules)}
        own = {k for k, kernel in enumerate(report.kernels) if kernel.direction == direction}
        self._edges = [e for e in report.edges if e.source in own or e.target in own]
        self._touching: dict[int | None, list[int]] = {}
        for k, edge in enumerate(self._edges):
            for end in (edge.source, edge.target):
                self._touching.setdefault(end, []).append(k)
        self._most = max((e.bytes for e in self._edges), default=1)

    def parts(self, module: int) -> list[int]:
        """The numbers of the modules directly in one."""
        return [self._numbers[id(part)] for part in self.modules[module].parts]

    def scene(self, number: int) -> Scene:
        """What is drawn of a module; what comes from outside is above all its boxes, what goes there below."""
        module = self.modules[number]
        members = module.members()
        moved = sum(self._kernels[k].bytes for k in members)
        text = f"{plural(len(members), 'kernel')}, {amount(moved, 'B')}{self._time(members)}"
        boxes: list[Module | int] = [*module.parts, *module.kernels]
        boxes.sort(key=_first)
        touching = sorted({e for k in members for e in self._touching.get(k, ())})
        flows = _flows([self._edges[e] for e in touching], {k: at for at, b in enumerate(boxes) for k in _members(b)})
        first, last = any(a < 0 for a, _ in flows), any(b < 0 for _, b in flows)
        shift, count = int(first), len(boxes) + int(first) + int(last)
        pairs = {(0 if a < 0 else a + shift, count - 1 if b < 0 else b + shift): n for (a, b), n in flows.items()}
        layout = layer_boxes(count, pairs)
        width = max(1, layout.columns) * (WIDTH + _ACROSS) + _ACROSS
        height = layout.layers * (HEIGHT + _DOWN) + _DOWN
        lines = [self._line(layout, pair, moved) for pair, moved in sorted(pairs.items(), key=lambda p: p[1])]
        shown = [self._box(layout, k + shift, box) for k, box in enumerate(boxes)]
        ends = [_end(layout, 0, "in")] * first + [_end(layout, count - 1, "out")] * last
        return Scene(module.title, text, width, height, lines, [*shown, *ends])

    def _time(self, members: Sequence[int]) -> str:
        spent = [self._kernels[k].seconds for k in members]
        return f", {duration(sum(s or 0 for s in spent))}" if any(s is not None for s in spent) else ""

    def _line(self, layout: Layout, pair: tuple[int, int], moved: int) -> SceneLine:
        (x0, y0), (x1, y1) = _corner(*layout.place[pair[0]]), _corner(*layout.place[pair[1]])
        through = [_corner(*place) for place in layout.route[pair]]
        points = [(x0, y0 + HEIGHT), *((x, y + HEIGHT / 2) for x, y in through), (x1, y1)]
        heat = math.log1p(moved) / math.log1p(self._most) if self._most else 0
        step = min(_HEATS - 1, int(heat**4 * _HEATS))
        return SceneLine(_curve(points), amount(moved, "B"), f"{1 + 5 * heat**4:.1f}", step, pair[1] <= pair[0])

    def _box(self, layout: Layout, at: int, box: Module | int) -> SceneBox:
        x, y = _corner(*layout.place[at])
        members = _members(box)
        moved = amount(sum(self._kernels[k].bytes for k in members), "B") + self._time(members)
        if isinstance(box, Module):
            detail = _short(f"{plural(len(members), 'kernel')}, {moved}", _DETAILS)
            return SceneBox("part", self._numbers[id(box)], x, y, _short(box.title), detail, box.title)
        kernel = self._kernels[box]
        hint = f"{kernel.label}: {kernel.contents}" + (f", from {kernel.origin}" if kernel.origin else "")
        return SceneBox("kernel", box, x, y, _short(kernel.label), _short(moved, _DETAILS), hint, bool(kernel.library))


def _in_order(module: Module) -> Iterator[Module]:
    yield module
    for part in module.parts:
        yield from _in_order(part)


def _flows(edges: Sequence[Edge], owner: dict[int, int]) -> Counter[tuple[int, int]]:
    """Bytes from box to box; -1 is what is outside."""
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
    return box.everything() if isinstance(box, Module) else [box]


def _first(box: Module | int) -> int:
    return min(_members(box))


def _corner(column: float, layer: int) -> tuple[float, float]:
    """The middle of the upper side of a box."""
    return _ACROSS + WIDTH / 2 + column * (WIDTH + _ACROSS), _DOWN / 2 + layer * (HEIGHT + _DOWN)


def _curve(points: Sequence[tuple[float, float]]) -> str:
    path = f"M{points[0][0]:.1f} {points[0][1]:.1f}"
    for (x0, y0), (x1, y1) in itertools.pairwise(points):
        middle = (y0 + y1) / 2
        path += f"C{x0:.1f} {middle:.1f} {x1:.1f} {middle:.1f} {x1:.1f} {y1:.1f}"
    return path


def _end(layout: Layout, at: int, name: str) -> SceneBox:
    x, y = _corner(*layout.place[at])
    return SceneBox("end", 0, x, y, name)


def _short(text: str, most: int = _LETTERS) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"
