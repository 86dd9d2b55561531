"""The scenes of the graph of a report as SVG that is in the page itself.

Parts of a module open with a click, so that a browser lays out only what somebody looks at.
"""

from __future__ import annotations

from collections.abc import Iterator
from html import escape

from daceopt.explore.report.scenes import HEIGHT, WIDTH, Scene, SceneBox, SceneLine, Scenes
from daceopt.explore.report.tables import Tables


def drawings(report: Tables) -> Iterator[str]:
    """The drawing of each direction, with those of the modules in it, closed."""
    for direction in ("forward", "backward"):
        if any(k.direction == direction for k in report.kernels):
            yield f"<h2>Graph, {direction}</h2>"
            yield f'<div class="graph" data-direction="{direction}">'
            yield from _module(Scenes(report, direction), direction, 0)
            yield "</div>"


def _module(scenes: Scenes, direction: str, number: int) -> Iterator[str]:
    """The drawing of one module, and of its parts below it."""
    scene = scenes.scene(number)
    yield f'<details class="module" data-module="{direction}-{number}"{"" if number else " open"}>'
    yield f'<summary><b>{escape(scene.name)}</b> <span class="quiet">{escape(scene.text)}</span></summary>'
    yield _svg(scene, direction)
    for part in scenes.parts(number):
        yield from _module(scenes, direction, part)
    yield "</details>"


def _svg(scene: Scene, direction: str) -> str:
    view = f'viewBox="0 0 {scene.width} {scene.height}" width="{scene.width}" height="{scene.height}"'
    drawn = "".join([*map(_line, scene.lines), *(_box(box, direction) for box in scene.boxes)])
    return f'<div class="scroll"><svg {view} role="img">{drawn}</svg></div>'


def _line(line: SceneLine) -> str:
    look = f'class="flow heat{line.heat}{" back" * line.back}" stroke-width="{line.width}"'
    return f'<path {look} d="{line.path}"><title>{escape(line.moved)}</title></path>'


def _box(box: SceneBox, direction: str) -> str:
    x, y = box.x, box.y
    if box.kind == "end":
        return f'<g class="end"><text x="{x:.1f}" y="{y + HEIGHT / 2 + 5:.1f}">{box.label}</text></g>'
    opens = f'data-opens="{direction}-{box.number}"' if box.kind == "part" else f'data-shows="{box.number}"'
    return (
        f'<g class="{box.kind}{" library" * box.library}" {opens} tabindex="0" role="button">'
        f"<title>{escape(box.hint)}</title>"
        f'<rect x="{x - WIDTH / 2:.1f}" y="{y:.1f}" width="{WIDTH}" height="{HEIGHT}" rx="6"/>'
        f'<text x="{x:.1f}" y="{y + 18:.1f}">{escape(box.label)}</text>'
        f'<text class="detail" x="{x:.1f}" y="{y + 34:.1f}">{escape(box.detail)}</text></g>'
    )
