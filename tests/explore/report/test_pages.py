"""Pages in a browser: nothing goes wrong in them, nothing is fetched, all can be read, clicks show what they say."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from onnx import helper
from torch import nn

import daceopt
from daceopt.distributed.search.step_simulator import StepEvent
from daceopt.explore import Report, Session
from daceopt.explore.report import step_timeline
from daceopt.explore.report.tables import MemoryRow
from tests.explore.browser import Browser, browser, needed
from tests.explore.contrast import unreadable
from tests.explore.report.test_display import HOSTILE, _report
from tests.explore.report.test_drawing import Edge, encoder
from tests.onnx_models import FLOAT, proto

pytestmark = needed

OPEN_ALL = "document.querySelectorAll('details').forEach(d => d.open = true)"
SHOWN = "[...document.querySelectorAll('tr.shown')].map(row => row.dataset.kernel)"


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.norm, self.down = nn.Linear(16, 32), nn.LayerNorm(32), nn.Linear(32, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(nn.functional.gelu(self.norm(self.up(x))))


@pytest.fixture(scope="module")
def page() -> Iterator[Browser]:
    with browser() as found:
        yield found


@pytest.fixture(scope="module")
def session() -> Session:
    torch.manual_seed(0)
    found = daceopt.explore(Layer(), torch.randn(8, 16)).apply("cpu").apply("threading").undo()
    found.branch("other")
    return found


@pytest.fixture(scope="module")
def explained() -> Report:
    torch.manual_seed(0)
    return daceopt.explain(nn.Sequential(Layer(), Layer()), torch.randn(8, 16))


def check(page: Browser, file: Path) -> None:
    """In both colour schemes, closed and with all of it open: no errors, no requests, everything can be read."""
    for scheme in ("light", "dark"):
        page.open(file, scheme)
        assert not unreadable(page)
        page.evaluate(OPEN_ALL)
        assert not unreadable(page)
        assert not page.errors and page.requests == [file.resolve().as_uri()]


def test_a_report(page: Browser, explained: Report, tmp_path: Path) -> None:
    file = tmp_path / "report.html"
    file.write_text(explained.html())
    check(page, file)
    headings = page.evaluate("[...document.querySelectorAll('h2')].map(h => h.innerText.split(/[:,]/)[0])")
    assert headings[0] == "What to do first" or not explained.advice
    drawn = ["A steady call", "A steady backward", "Graph", "Graph", "Roofline", "Timeline of a step", "Memory"]
    assert headings[bool(explained.advice) :][:7] == drawn
    points, marks = (page.evaluate(f"document.querySelectorAll('{s}').length") for s in ("circle", "g > rect.event"))
    assert marks == len(explained.kernels) >= points == sum(k.flops > 0 for k in explained.kernels) > 0


def test_the_report_of_a_session(page: Browser, session: Session, tmp_path: Path) -> None:
    file = tmp_path / "session.html"
    file.write_text(session.html(measure=True))
    check(page, file)
    text = page.evaluate("document.body.innerText")
    assert "recipe cpu" in text and "undone" in text and "Branches: main, other." in text
    file.write_text(session.html())
    check(page, file)


def test_the_operators_that_a_session_begins_with(page: Browser, tmp_path: Path) -> None:
    file = tmp_path / "captured.html"
    file.write_text(daceopt.explore(Layer(), torch.randn(8, 16)).html())
    check(page, file)
    assert "LayerNormalization" in page.evaluate("document.body.innerText")


@pytest.mark.parametrize(
    "selector", ["g.kernel[data-shows]", "svg.roofline g:last-of-type circle", "g[data-marks] rect.event"]
)
def test_a_click_shows_the_kernel(page: Browser, explained: Report, tmp_path: Path, selector: str) -> None:
    file = tmp_path / "report.html"
    file.write_text(explained.html())
    page.open(file)
    page.evaluate(OPEN_ALL)
    place = f"document.querySelector('{selector}').closest('g').dataset"
    wanted = page.evaluate(f"{place}.shows ?? {place}.marks")
    page.click(selector)
    assert page.evaluate(SHOWN) == [wanted]
    kernel = explained.kernels[int(wanted)]
    shown = page.evaluate("[...document.querySelectorAll('tr.shown pre')].map(p => p.textContent)")
    assert shown == [t for t in (kernel.schedule, kernel.source) if t]
    assert page.evaluate("document.querySelectorAll('g.shown').length") == 2 - (kernel.flops == 0)
    assert not page.errors


def test_modules_open_and_columns_sort(page: Browser, tmp_path: Path) -> None:
    file = tmp_path / "modules.html"
    file.write_text(encoder(3).html())
    page.open(file)
    closed = "document.querySelectorAll('details.module:not([open])').length"
    before = page.evaluate(closed)
    page.click("g.part")
    assert page.evaluate(closed) == before - 1
    page.evaluate("document.querySelector('th').focus()")
    rows = "[...document.querySelectorAll('tr[data-kernel] b')].map(b => b.innerText)"
    page.click("th")
    assert page.evaluate(rows) == sorted(page.evaluate(rows))
    page.click("th")
    assert page.evaluate(rows) == sorted(page.evaluate(rows), reverse=True)
    assert not page.errors


def test_several_fragments_on_one_page_leave_each_other_alone(page: Browser, session: Session, tmp_path: Path) -> None:
    file = tmp_path / "notebook.html"
    fragments = f"<div id=first>{session._repr_html_()}</div><div id=second>{session._repr_html_()}</div>"
    file.write_text(f"<!DOCTYPE html><meta charset=utf-8><body>{fragments}{session.sites()._repr_html_()}</body>")
    page.open(file)
    page.click("#second g.kernel")
    inside = "document.querySelectorAll('#{} tr.shown[data-kernel]').length"
    assert (page.evaluate(inside.format("first")), page.evaluate(inside.format("second"))) == (0, 1)
    assert not page.errors and len(page.requests) == 1


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_do_nothing(page: Browser, tmp_path: Path, name: str) -> None:
    report = _report(name.replace("alert(1)", "(window.hacked = 1)"))
    report.edges.append(Edge(0, None, 100))
    report.memory.append(MemoryRow("forward", name, 100, name))
    report.peak = 100
    file = tmp_path / "hostile.html"
    file.write_text(report.html(), encoding="utf-8")
    check(page, file)
    assert page.evaluate("window.hacked === undefined && document.querySelectorAll('img').length === 0")


def test_other_pages(page: Browser, tmp_path: Path) -> None:
    simulated = tmp_path / "simulated.html"
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU())
    daceopt.simulate(model, torch.randn(8, 3, 32, 32), machine="stcp920").to_html(simulated)
    check(page, simulated)
    steps = tmp_path / "steps.html"
    events = [StepEvent("computation", "a", 0.0, 2.0), StepEvent("communication", "bucket 0", 1.0, 4.0)]
    steps.write_text(step_timeline.page({"measured": events}, "said"))
    check(page, steps)
    colours = page.evaluate("[...document.querySelectorAll('rect.event')].map(r => getComputedStyle(r).fill)")
    assert len(set(colours)) == 2


def test_a_step_of_onnx_shows_its_names(page: Browser, tmp_path: Path) -> None:
    """Sizes that are open have numbers in the page: those of the call."""
    nodes = [helper.make_node("Tanh", ["x"], ["t"]), helper.make_node("Mul", ["t", "x"], ["y"])]
    model = proto(nodes, [("x", FLOAT, ["n", 6])], [("y", FLOAT, ["n", 6])])
    at = daceopt.explore(model, np.ones((5, 6), np.float32)).apply("cpu")
    file = tmp_path / "onnx.html"
    file.write_text(at.html())
    check(page, file)
    assert "output y" in page.evaluate("document.body.innerText")


@pytest.mark.slow
@pytest.mark.models
def test_a_model_of_24_layers_opens_quickly(page: Browser, tmp_path: Path) -> None:
    """BERT-large's graph, forward and backward, with narrow layers: a page depends on how many kernels there are."""
    from transformers import BertConfig, BertModel

    config = BertConfig(hidden_size=32, num_hidden_layers=24, num_attention_heads=2, intermediate_size=64)
    at = daceopt.explore(BertModel(config), torch.randint(0, 100, (1, 16))).apply("cpu")
    assert at.at.nodes > 800
    file = tmp_path / "bert.html"
    file.write_text(at.html())
    assert page.open(file) < 5
    assert not page.errors and len(page.requests) == 1
    page.click("g.part")
    assert not unreadable(page)
