"""Text and HTML of reports: complete, aligned, and harmless whatever the model's names are."""

from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from daceopt.cost.machine import Machine
from daceopt.errors import DaceoptError
from daceopt.explore.report.report import Report
from daceopt.explore.report.tables import KernelRow, OperatorRow, StepRow
from daceopt.explore.report.units import amount, change, duration, percent, plural

HOSTILE = [
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "</style></div>",
    "a\nb\x1b[31m",
    "'; DROP",
    "&lt;",
    "Ünïcødé ✓",
    "x" * 10_000,
]
MACHINE = Machine("CPU", 2, 1, 2, 3, ((1 << 20, 100e9), (1 << 30, 10e9)), 1e12)


def _report(name: str = "matmul") -> Report:
    return Report(
        title=name,
        mode="training",
        recipe=name,
        inputs=[f"{name}: float32[2, 3]"],
        notes=[name],
        operators=[OperatorRow(name, 3, "native"), OperatorRow("Other", 1, "fallback", name)],
        kernels=[
            KernelRow("forward", name, name, name, 4_000_000, 2_000_000, 0.001, 0.002, *[name] * 5),
            KernelRow("backward", "mul_backward", "gradient of w", "8 x 8", 1000, 10, 1e-6),
        ],
        steps=[
            StepRow("forward", name, "local", 0.25, 2, (9, 4), (8000, 4000)),
            StepRow("backward", "idle", "local", 0.1, 0, (4, 4), (1, 1)),
        ],
        seconds={"build": 1.5},
        nodes=(9, 4),
        bytes_moved=(8e6, 4e6),
        machine=MACHINE,
    )


class _Reader(HTMLParser):
    """Tags and attributes as a browser would see them; checks that everything is closed."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.tags: list[str] = []
        self.attributes: list[str] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [name for name, _ in attrs]
        if tag not in ("meta", "img"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open and self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def _read(html: str) -> _Reader:
    reader = _Reader()
    reader.feed(html)
    reader.close()
    assert not reader.open
    return reader


def test_the_page_has_everything_and_needs_nothing() -> None:
    html = _report().html()
    page = _read(html)
    text = " ".join(page.text)
    for expected in ("matmul", "50 %", "2 ms", "4 MB", "9 -> 4", "gradient of w", "1 fallback", "Found no site: idle"):
        assert expected in text
    assert html.startswith("<!DOCTYPE html>") and not re.search(r"https?://|<link|src=", html)
    assert 'style="width:50.0%"' in html  # the bar is the share of the limit
    assert page.attributes.count("data-order") >= 6  # numbers sort as numbers


def test_a_notebook_shows_a_fragment_that_touches_nothing_outside() -> None:
    html = _report()._repr_html_()
    assert html.startswith('<div class="daceopt-report">') and "<html" not in html
    style = re.search(r"<style>(.*?)</style>", html, re.DOTALL)
    assert style and all(line.startswith((".daceopt-report", "@media", "}")) for line in style[1].strip().splitlines())


@pytest.mark.parametrize("name", HOSTILE)
def test_names_of_models_stay_text(name: str) -> None:
    plain, hostile = _read(_report().html()), _read(_report(name).html())
    assert hostile.tags == plain.tags and hostile.attributes == plain.attributes
    assert name in hostile.text


@pytest.mark.parametrize("name", HOSTILE)
def test_text_shows_control_characters_instead_of_obeying_them(name: str) -> None:
    text = _report(name).text()
    assert "\x1b" not in text and len(text.splitlines()) == len(_report().text().splitlines())
    kernel = replace(_report(name).kernels[0], schedule="", source="")
    assert "\x1b" not in kernel.text() and len(kernel.text().splitlines()) == 2


def test_text_has_the_same_facts_in_columns() -> None:
    lines = str(_report()).splitlines()
    assert lines[0] == "matmul: training, recipe matmul"
    forward = lines.index("forward: 1 kernel, 2 ms")
    columns = r"matmul +matmul +matmul +2 ms +1 ms +50 % +4 MB +2 M +matmul \(matmul\) +matmul"
    assert re.search(columns, lines[forward + 2])
    assert "backward: 1 kernel" in lines and lines[-1] == "  found no site: idle"


def test_a_model_that_falls_back_says_so_first() -> None:
    report = Report("Net", reason="operator Foo has no native form")
    assert "runs outside of compiled code: operator Foo" in str(report).splitlines()[1]
    assert "operator Foo" in " ".join(_read(report.html()).text)


def test_kernels_that_were_not_measured_have_no_share() -> None:
    kernel = _report().of("backward")[0]
    assert kernel.share is None and _report().of("forward")[0].share == 0.5


def test_units() -> None:
    assert [amount(v, "B") for v in (0, 999, 1000, 1_234_567)] == ["0 B", "999 B", "1 kB", "1.23 MB"]
    assert [duration(v) for v in (2.5, 0.0123, 4.2e-6)] == ["2.50 s", "12.3 ms", "4.2 us"]
    assert [percent(None), percent(0.256), percent(1.5)] == ["-", "26 %", "150 %"]
    assert [change(3, 3), change(3, 2), plural(1, "step"), plural(2, "step")] == ["3", "3 -> 2", "1 step", "2 steps"]


def test_schedule_and_source_of_a_kernel_unfold_below_its_row() -> None:
    report = _report()
    texts = {"source": "a < b && c;", "schedule": "for i0 < 8:\n  s0(i0)\n", "origin": "head"}
    report.kernels[1] = KernelRow("backward", "mul_backward", "w", "8 x 8", 1000, 10, 1e-6, **texts)
    html, kernel = report.html(), report.kernel("BACK")
    assert "<details><summary>C++</summary><pre>a &lt; b &amp;&amp; c;</pre></details>" in html
    assert "<details><summary>schedule</summary><pre>for i0 &lt; 8:\n  s0(i0)\n</pre></details>" in html
    assert '<div class="quiet">from head</div>' in html
    assert kernel.text() == "// backward, mul_backward: w\n// from head\nfor i0 < 8:\n  s0(i0)\n\na < b && c;"
    hint = "schedule and C++: print(report.kernel('matmul').text()), or explain --kernel matmul"
    assert "s0" not in str(report) and hint in str(report)


def _named(*labels: str) -> Report:
    kernels = [
        KernelRow("backward" if label.endswith("_backward") else "forward", label, "y", f"{k} x tanh", 1, 1, 1e-6)
        for k, label in enumerate(labels)
    ]
    return Report("Net", kernels=kernels)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("softmax", "add__softmax"),
        ("log", "logsoftmax"),
        ("softmax_backward", "softmax__mul_backward"),
        ("MUL_backward", "mul_backward"),
        ("add__", "add__softmax"),
        ("logsoftmax", "logsoftmax"),
        ("3 x", "mul_backward"),
    ],
)
def test_a_kernel_by_its_name(text: str, expected: str) -> None:
    report = _named("add__softmax", "logsoftmax", "softmax__mul_backward", "mul_backward", "add__softmax")
    assert report.kernel(text).label == expected


def test_of_equal_kernels_the_origin_tells_which() -> None:
    report = _named("add", "add")
    report.kernels[:] = [replace(k, origin=f"blocks.{n}") for n, k in enumerate(report.kernels)]
    assert report.kernel("add") is report.kernels[0] and report.kernel("blocks.1") is report.kernels[1]


def test_a_name_that_fits_several_kernels_or_none() -> None:
    report = _named("matmul", "grad", "gradual")
    with pytest.raises(DaceoptError, match="'gra' fits several kernels: grad, gradual; say more of the label"):
        report.kernel("gra")
    with pytest.raises(DaceoptError, match=r"'grat'; there are: matmul, grad, gradual; did you mean 'grad'\?"):
        report.kernel("grat")
