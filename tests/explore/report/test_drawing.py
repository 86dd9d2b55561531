"""The drawing of a graph: what stands in it, that names stay text, and that large models stay small and quick."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from dataclasses import replace
from html.parser import HTMLParser
from typing import Any

import pytest
import torch
from torch import nn

import daceopt
from daceopt.explore.report.layers import layer_boxes
from daceopt.explore.report.report import Report
from daceopt.explore.report.scenes import tree
from daceopt.explore.report.tables import Edge, KernelRow
from tests.explore.report.test_display import HOSTILE


def kernel(label: str, origin: str = "", direction: str = "forward", **given: Any) -> KernelRow:
    return replace(KernelRow(direction, label, label, "4 x 4", 1000, 10, 1e-6, origin=origin), **given)


def report(kernels: Sequence[KernelRow], edges: Sequence[Edge]) -> Report:
    return Report("model", kernels=list(kernels), edges=list(edges), nodes=(9, len(kernels)), bytes_moved=(2e3, 1e3))


def encoder(layers: int = 2, direction: str = "forward", equal: bool = False) -> Report:
    """An embedding, layers of a product, a softmax and a sum with what came in, a head; ``equal``: of one size."""
    kernels, edges = [kernel("embed", "embedding", direction)], [Edge(None, 0, 400)]
    for k in range(layers):
        last, first = len(kernels) - 1, len(kernels)
        names = (("matmul", "attention"), ("softmax", "attention"), ("add", "norm"))
        size = {} if equal else {"contents": f"4 x {k + 4}"}
        kernels += [kernel(label, f"encoder.layer.{k}.{part}", direction, **size) for label, part in names]
        edges += [Edge(last, first, 1 << 20), Edge(first, first + 1, 1 << 24), Edge(first + 1, first + 2, 1 << 20)]
        edges.append(Edge(last, first + 2, 1 << 20))
    kernels.append(kernel("head", "head", direction))
    edges += [Edge(len(kernels) - 2, len(kernels) - 1, 1 << 20), Edge(len(kernels) - 1, None, 40)]
    return report(kernels, edges)


class Page(HTMLParser):
    """Elements with their attributes, as a browser would see them; everything must be closed."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None], tuple[str, ...]]] = []
        self.text: list[str] = []
        self.feed(html)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs), tuple(self.open)))
        if tag not in ("meta", "img"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs), tuple(self.open)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open and self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)

    def all(self, tag: str, **wanted: str) -> list[dict[str, str | None]]:
        return [
            a
            for t, a, _ in self.elements
            if t == tag and all((a.get(k) or "").startswith(v) for k, v in wanted.items())
        ]


def test_modules_open_and_kernels_show_their_rows() -> None:
    page = Page(encoder().html())
    modules = [a["data-module"] for a in page.all("details") if "data-module" in a]
    parts = [a["data-opens"] for a in page.all("g") if "data-opens" in a]
    assert (
        sorted(parts) == sorted(m for m in modules if m != "forward-0") and len(modules) == 6
    )  # encoder.layer, two of them, attention
    shown = sorted(int(a["data-shows"] or "") for a in page.all("g") if "data-shows" in a)
    rows = sorted(int(a["data-kernel"] or "") for a in page.all("tr") if "data-kernel" in a)
    assert shown == rows == list(range(8))  # every kernel is drawn once, and has its row
    assert [a for a in page.all("details") if "open" in a] == [
        a for a in page.all("details") if a.get("data-module") == "forward-0"
    ]
    assert len(page.all("svg")) == 6 and all("svg" in around for t, _, around in page.elements if t in ("rect", "path"))


def test_boxes_stand_beside_each_other_in_the_view() -> None:
    for svg in re.findall(r"<svg.*?</svg>", encoder(3).html(), re.DOTALL):
        width, height = map(int, re.findall(r'viewBox="0 0 (\d+) (\d+)"', svg)[0])
        boxes = [
            tuple(map(float, b)) for b in re.findall(r'<rect x="(\S+)" y="(\S+)" width="(\d+)" height="(\d+)"', svg)
        ]
        assert boxes and all(x >= 0 and y >= 0 and x + w <= width and y + h <= height for x, y, w, h in boxes)
        for k, (x, y, w, h) in enumerate(boxes):
            assert all(abs(x - u) >= w or abs(y - v) >= h for u, v, *_ in boxes[:k])
        for path in re.findall(r' d="([^"]+)"', svg):
            points = [float(n) for n in re.findall(r"-?[\d.]+", path)]
            assert all(0 <= n <= max(width, height) for n in points)


def test_lines_are_as_warm_as_what_they_move() -> None:
    """The softmax of attention reads the most."""
    page = Page(encoder().html())
    lines = page.all("path", **{"class": "flow"})
    hottest = [line for line in lines if "heat4" in (line["class"] or "")]
    assert len(hottest) == 2 and {line["stroke-width"] for line in hottest} == {"6.0"}
    assert min(float(line["stroke-width"] or 0) for line in lines) < 2
    assert "16.8 MB" in page.text


def test_a_compact_listing_stays_in_text() -> None:
    assert "softmax" in encoder().text() and "svg" not in encoder().text()


def test_both_directions_have_a_drawing() -> None:
    both = encoder()
    back = encoder(direction="backward")
    both.edges += [Edge(*(None if e is None else e + 8 for e in (x.source, x.target)), x.bytes) for x in back.edges]
    both.kernels += back.kernels
    page = Page(both.html())
    assert [a["data-direction"] for a in page.all("div", **{"class": "graph"})] == ["forward", "backward"]
    assert len({a["data-module"] for a in page.all("details") if "data-module" in a}) == 12


@pytest.mark.parametrize("name", HOSTILE)
def test_names_stay_text(name: str) -> None:
    def page(said: str) -> Page:
        kernels = [kernel(said, f"{part}.x") for part in (f"m{said}".replace("/", "").replace(".", ""), "n")] * 2
        return Page(report(kernels, [Edge(0, 1, 10), Edge(1, 2, 10), Edge(2, 3, 10)]).html())

    plain, hostile = page("matmul"), page(name.replace("/", "").replace(".", "").replace(", ", ""))
    assert [t for t, *_ in plain.elements] == [t for t, *_ in hostile.elements]
    assert [a.keys() for _, a, _ in plain.elements] == [a.keys() for _, a, _ in hostile.elements]


def test_nothing_comes_from_elsewhere() -> None:
    html = encoder().html()
    assert not re.search(r"https?:|<link|<img|<iframe|src=|href=|@import|url\(|fetch\(|import\(", html)
    assert "prefers-color-scheme: dark" in html
    used, made = set(re.findall(r"var\((--[\w-]+)\)", html)), html.partition("@media")
    dark = made[2].partition("\n}\n")[0]
    assert used <= set(re.findall(r"(--[\w-]+):", made[0])) and used <= set(re.findall(r"(--[\w-]+):", dark))


def test_a_large_model_opens_quickly() -> None:
    """As many kernels as a training step of BERT-large has: every drawing stays small, the page about linear."""
    start = time.process_time()
    html = encoder(200).html()
    assert time.process_time() - start < 20  # seconds; it takes a tenth of one, one large picture minutes
    page = Page(html)
    assert len(html) < 3000 * 602 and len([a for a in page.all("g") if "data-shows" in a]) == 602
    heights = [int(a["height"] or 0) for a in page.all("svg")]
    assert max(heights) < 60 * 84


def test_a_flat_model_is_drawn_in_runs() -> None:
    count = 500
    flat = report([kernel("k")] * count, [Edge(k, k + 1, 8) for k in range(count - 1)])
    page = Page(flat.html())
    assert sorted(int(a["data-shows"] or "") for a in page.all("g") if "data-shows" in a) == list(range(count))
    assert max(int(a["height"] or 0) for a in page.all("svg")) < 60 * 84


def test_equal_layers_are_drawn_once() -> None:
    layers = encoder(24, equal=True)
    layers.kernels = [replace(k, seconds=1e-3) for k in layers.kernels]
    page = Page(layers.html())
    assert sum("data-shows" in a for a in page.all("g")) == 5  # the embedding, the head, and three of one layer
    assert "0 … 23 x 24" in page.text and any("72 kernels" in text and "72 ms" in text for text in page.text)
    assert len(page.all("path", **{"class": "flow"})) < 20
    layers.kernels[40] = replace(layers.kernels[40], contents="of another size")
    (encoder_layers,) = tree(layers.kernels, "forward").parts
    assert [part.title for part in encoder_layers.parts] == ["0 … 12 x 13", "13", "14 … 23 x 10"]
    assert sorted(encoder_layers.members()) == list(range(1, 73))


def test_modules_that_alternate() -> None:
    """A module that runs again later stands in one box; what goes back to it is an edge against the order."""
    kernels = [kernel("a", "x.p"), kernel("b", "y.p"), kernel("c", "x.p"), kernel("d", "y.p")]
    found = report(kernels, [Edge(0, 1, 10), Edge(1, 2, 10), Edge(2, 3, 10)])
    assert [part.members() for part in tree(found.kernels, "forward").parts] == [[0, 2], [1, 3]]
    assert len(Page(found.html()).all("path", **{"class": "flow heat"})) >= 2 and " back" in found.html()


# -------------------------------------------------------------------- layers


def test_layers_follow_the_edges() -> None:
    layout = layer_boxes(5, [(0, 1), (1, 2), (0, 2), (2, 3), (0, 4)])
    assert {box: at for box, (_, at) in layout.place.items()} == {0: 0, 1: 1, 2: 2, 3: 3, 4: 1}
    assert len(layout.route[0, 2]) == 1 and layout.layers == 4
    assert len({*layout.place.values(), *layout.route[0, 2]}) == 6, "no two stand in one place"


def test_crossings_are_sorted_out() -> None:
    layout = layer_boxes(6, [(0, 5), (1, 4), (2, 3)])
    columns = [layout.place[b][0] for b in range(6)]
    pairs = [(columns[a], columns[b]) for a, b in ((0, 5), (1, 4), (2, 3))]
    assert sorted(pairs) == sorted(pairs, key=lambda p: p[1])


def test_edges_against_the_order_and_nothing_at_all() -> None:
    assert layer_boxes(2, [(0, 1), (1, 0)]).layers == 2
    assert layer_boxes(0, []).layers == 0 and layer_boxes(1, []).columns == 1


# -------------------------------------------------------------------- what explain finds


def test_edges_of_a_module() -> None:
    model = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 4), nn.Softmax(-1))
    found = daceopt.explain(model, torch.randn(3, 6), measure=False)
    assert not found.reason, found.reason
    own = range(len(found.kernels))
    assert all(e.source in own or e.source is None for e in found.edges)
    assert all(e.target in own or e.target is None for e in found.edges)
    for k in own:
        assert any(e.target == k for e in found.edges) and any(e.source == k for e in found.edges)
    same = [found.kernels[e.source].direction == found.kernels[e.target].direction
            for e in found.edges if e.source is not None and e.target is not None]  # fmt: skip
    assert same and all(same)
    bytes_of = {e.bytes for e in found.edges if e.source is None}
    assert 3 * 6 * 4 in bytes_of and 6 * 5 * 4 in bytes_of
    Page(found.html())
