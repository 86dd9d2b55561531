"""The page of a live session in a browser: clicks and keys through whole optimizations, on a server of its own."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import daceopt
from tests.explore.browser import Browser, browser, needed
from tests.explore.contrast import unreadable

pytest.importorskip("uvicorn", reason="the extra explore is not installed")
pytestmark = needed

MBCONV = '''
import torch
from torch import nn


class MBConv(nn.Module):
    """An inverted residual block of EfficientNet, with squeeze and excitation."""

    def __init__(self, channels=8, expanded=16):
        super().__init__()
        self.expand = nn.Sequential(nn.Conv2d(channels, expanded, 1, bias=False), nn.BatchNorm2d(expanded), nn.SiLU())
        self.depthwise = nn.Sequential(
            nn.Conv2d(expanded, expanded, 3, padding=1, groups=expanded, bias=False), nn.BatchNorm2d(expanded),
            nn.SiLU()
        )
        self.squeeze, self.excite = nn.Conv2d(expanded, 4, 1), nn.Conv2d(4, expanded, 1)
        self.project = nn.Sequential(nn.Conv2d(expanded, channels, 1, bias=False), nn.BatchNorm2d(channels))

    def forward(self, x):
        y = self.depthwise(self.expand(x))
        scale = self.excite(nn.functional.silu(self.squeeze(y.mean((2, 3), keepdim=True))))
        return x + self.project(y * torch.sigmoid(scale))


def build():
    torch.manual_seed(0)
    return MBConv().eval().requires_grad_(False), torch.randn(1, 8, 16, 16)
'''

HOSTILE = "<img src=x onerror=hacked=1>"
NAMES = f"""
import torch
from torch import nn


class Odd(nn.Module):
    def __init__(self):
        super().__init__()
        self.add_module({HOSTILE!r}, nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4), nn.Softmax(-1)))

    def forward(self, x):
        return getattr(self, {HOSTILE!r})(x)


Odd.__name__ = Odd.__qualname__ = {HOSTILE!r}


def build():
    return Odd().requires_grad_(False), torch.ones(2, 4)
"""


@pytest.fixture(scope="module")
def page() -> Iterator[Browser]:
    with browser(online=True) as found:
        yield found


@contextmanager
def served(folder: Path, text: str) -> Iterator[str]:
    """The address of a page on the model ``build`` of a file, whose process ends at the end."""
    (folder / "model.py").write_text(text)
    command = [sys.executable, "-m", "daceopt", "explore", "model.py:build"]
    # a suite that runs in the background may have been started without SIGINT, which children inherit
    interruptible = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True, preexec_fn=interruptible) as process:
        assert process.stdout is not None
        try:
            address = re.search(r"http://\S+", process.stdout.readline())
            assert address is not None
            yield address[0]
        finally:
            process.send_signal(signal.SIGINT)
            code = process.wait(timeout=300)
    assert code == 130


def version_is(number: int) -> str:
    return f"document.querySelector('tr.here td')?.textContent === '{number}'"


def apply_step(page: Browser, step: str) -> None:
    page.evaluate(f"document.querySelector('select.step').value = '{step}'")
    page.click("button.apply-step")


def open_kernel(page: Browser, label: str) -> None:
    page.evaluate(f"[...document.querySelectorAll('button.open')].find(b => b.textContent === '{label}').click()")
    page.wait(f"document.querySelector('.kernel h2')?.textContent === '{label}'")
    page.wait("document.querySelector('.kernel pre.code').textContent.length > 3")
    page.wait("document.querySelector('.kernel ul.nearly')")


def test_a_whole_optimization_of_mbconv(page: Browser, tmp_path: Path) -> None:
    with served(tmp_path, MBCONV) as address:
        page.open(address)
        page.wait(version_is(0))
        assert "token" not in page.evaluate("location.href")
        apply_step(page, "lower-operators")
        page.wait(version_is(1))
        page.click("g.kernel")
        page.wait("document.querySelector('.graph g.shown') && document.querySelector('.kernels tr.shown')")
        open_kernel(page, "silu")
        assert "for i1 <" in page.evaluate("document.querySelector('pre.schedule').textContent")
        assert page.evaluate("document.querySelectorAll('.plot circle').length") == 1
        assert page.evaluate("document.querySelectorAll('ul.nearly li').length") > 0
        page.click("button.apply-site[data-step='map-fusion']")
        page.wait(version_is(2))
        page.click("button.undo")
        page.wait(version_is(1))
        page.click("button.redo")
        page.wait(version_is(2))
        page.evaluate("document.querySelector('input[placeholder=\"new branch\"]').value = 'by hand'")
        page.click("button.make-branch")
        page.wait("document.querySelector('.walk h2').textContent === 'Session by hand'")
        apply_step(page, "map-fusion")
        page.wait(version_is(3))
        open_kernel(page, "batchnormalization__silu")
        edit_by_hand(page)
        page.wait(version_is(4))
        apply_step(page, "threading")
        page.wait(version_is(5))
        open_kernel(page, "batchnormalization__silu")
        assert "_block < 4" in page.evaluate("document.querySelector('pre.schedule').textContent")
        page.evaluate("document.querySelector('.kernel input[type=number]').value = 0.1")
        page.click("button.measure")
        page.wait("document.querySelector('.measured').textContent.includes('median of')")
        page.evaluate("document.querySelector('select.other').value = 'main'")
        page.evaluate("document.querySelector('.comparison input').value = 0.1")
        page.click("button.compare")
        page.wait("document.querySelector('pre.compared')?.textContent.includes('times as fast')")
        page.click("button.save")
        page.wait("document.querySelector('.message').textContent.startsWith('written')")
        page.click("button.save")
        page.wait("document.querySelector('button.overwrite')")
        page.click("button.overwrite")
        page.wait("document.querySelector('.message').textContent.startsWith('written')")
        assert not page.errors
    page.wait("document.querySelector('.message').textContent.startsWith('the session has ended')")
    names: dict[str, Any] = {}
    exec(MBCONV, names)
    model, x = names["build"]()
    again = daceopt.explore(model, x).apply(tmp_path / "my_path.py")
    steps = [step.inner.name for step in again.path]
    assert steps == ["lower-operators", "map-fusion", "map-fusion", "map-tiling", "threading"]
    compared = again.compare(seconds=0.01)
    assert compared.difference is not None and compared.difference[0] < 1e-4


def edit_by_hand(page: Browser) -> None:
    """An edit that is not legal says why at once, one that is shows what it gives."""
    page.click("details.editor summary")
    page.wait("document.querySelector('.verdict p')")
    page.evaluate(
        "{ const loops = document.querySelector('input.loops'); loops.value = 'nowhere';"
        " loops.dispatchEvent(new Event('input')) }"
    )
    page.wait("document.querySelector('.illegal')?.textContent.includes('there is no loop over nowhere')")
    assert page.evaluate("document.querySelector('button.apply-edit').disabled")
    page.evaluate(
        "{ const names = document.querySelector('details.editor .quiet').textContent.split('; ');"
        " document.querySelector('input.loops').value = names.at(-1).split(' ')[0];"
        " document.querySelector('input.size').value = '4';"
        " document.querySelector('input.size').dispatchEvent(new Event('input')) }"
    )
    page.wait("document.querySelector('.legal') && !document.querySelector('button.apply-edit').disabled")
    page.click("button.apply-edit")


def test_keys_alone_reach_all_of_it(page: Browser, tmp_path: Path) -> None:
    with served(tmp_path, MBCONV) as address:
        page.open(address)
        page.wait(version_is(0))
        reached = []
        for _ in range(40):
            page.press("Tab")
            reached.append(page.evaluate("document.activeElement.getAttribute('class')"))
        assert {"step", "apply-step", "save", "compare", "other", "kernel"} <= {str(name) for name in reached}
        page.evaluate("document.querySelector('g.part').focus()")
        first = page.evaluate("document.activeElement.dataset.y")
        page.press("ArrowDown")
        assert float(page.evaluate("document.activeElement.dataset.y")) > float(first)
        page.press("ArrowUp")
        page.press("Enter")
        page.wait("document.querySelector('button.crumb') && document.activeElement.matches('g.kernel')")
        page.press("Enter")
        page.wait("document.querySelector('.kernel h3')")
        page.evaluate("document.querySelector('button.apply-step').focus()")
        page.press("Enter")
        page.wait(version_is(1))
        assert page.evaluate("document.activeElement.className") == "apply-step", "what is drawn anew keeps the focus"
        assert not page.errors


def test_it_can_be_read_in_both_schemes(page: Browser, tmp_path: Path) -> None:
    with served(tmp_path, MBCONV) as address:
        for scheme in ("light", "dark"):
            page.open(address, scheme)
            page.wait("document.querySelector('tr.here')")
            if scheme == "light":
                apply_step(page, "lower-operators")
                page.wait(version_is(1))
            open_kernel(page, "sigmoid")
            page.click("details.editor summary")
            page.wait("document.querySelector('.verdict p')")
            assert not unreadable(page)
            assert not page.errors


def test_names_of_models_do_nothing(page: Browser, tmp_path: Path) -> None:
    with served(tmp_path, NAMES) as address:
        page.open(address)
        page.wait(version_is(0))
        apply_step(page, "cpu")
        page.wait(version_is(1))
        assert HOSTILE in page.evaluate("document.querySelector('h1').textContent")
        open_kernel(page, page.evaluate("document.querySelector('button.open').textContent"))
        assert HOSTILE in page.evaluate("document.body.textContent")
        assert page.evaluate("window.hacked === undefined && document.querySelectorAll('img').length === 0")
        page.open(address.replace("token=", "token=x"))
        assert "the token is missing or wrong" in page.evaluate("document.body.innerText")


IN_A_WIDGET = """
import("/live.js").then(module => {
  const sent = [], model = {send: message => sent.push(message), on: (name, hear) => { model[name] = hear; }};
  const el = document.createElement("div");
  document.body.append(el);
  module.default.render({model, el});
  model["msg:custom"]({id: sent[0].id, ok: {title: "a title", version: null, failure: "it is gone"}});
  return new Promise(done => setTimeout(() => done([sent[0].verb, el.innerText]), 100));
})
"""


def test_the_module_renders_as_a_widget(page: Browser, tmp_path: Path) -> None:
    with served(tmp_path, NAMES) as address:
        page.open(address)
        page.wait(version_is(0))
        verb, text = page.evaluate(IN_A_WIDGET)
        assert (
            verb == "state"
            and text.split() == "a title it is gone: end the command, put this right and start it again".split()
        )


@pytest.mark.slow
@pytest.mark.models
def test_a_model_of_24_layers_opens_and_stays_responsive(page: Browser, tmp_path: Path) -> None:
    """BERT-large's graph with narrow layers: a page depends on how many kernels there are."""
    text = """
import torch
from transformers import BertConfig, BertModel


def build():
    config = BertConfig(hidden_size=32, num_hidden_layers=24, num_attention_heads=2, intermediate_size=64)
    return BertModel(config).eval().requires_grad_(False), torch.randint(0, 100, (1, 16))
"""
    with served(tmp_path, text) as address:
        page.open(address)
        page.wait(version_is(0))
        start = time.process_time()
        page.open(address)
        page.wait("document.querySelector('g.part')")
        apply_step(page, "cpu")
        page.wait("!document.querySelector('progress').hidden")
        page.click("button.open")
        page.wait("document.querySelector('.kernel h2')")
        assert page.evaluate("document.querySelector('tr.here td').textContent") == "0", "while the recipe runs"
        assert time.process_time() - start < 30
        page.wait(version_is(1))
        assert not page.errors
