"""Every notebook runs from top to bottom in a kernel of its own, and shows what it promises."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import nbclient
import nbformat
import pytest

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "tutorials"


QUICK = [(f"seconds=0.{k}", "seconds=0.02") for k in (5, 3, 2)]  # how long is measured is not what is tested
SMALLER = {
    "first_steps.ipynb": ("torch.randn(512, 128)", "torch.randn(32, 128)"),
    "transformations.ipynb": ("torch.randn(1024, 2048", "torch.randn(64, 128"),
    "mish_study.ipynb": ("torch.randn(8, 32, 64, 64", "torch.randn(4, 16, 16, 16"),
    "scheduling.ipynb": ("N, F = 512", "N, F = 128"),
    "bert_study.ipynb": ("torch.randn(2, 128, 256", "torch.randn(2, 64, 256"),
}


def quick(notebook: Any, name: str) -> None:
    """Measure for a moment only, on smaller arrays; the rest is as users read it."""
    sizes = [SMALLER[name]] if name in SMALLER else []
    assert all(any(size in cell.source for cell in notebook.cells) for size, _ in sizes), f"{name} has other sizes now"
    for cell in notebook.cells:
        for before, after in (*sizes, *QUICK):
            cell.source = cell.source.replace(before, after)


def executed(name: str, folder: Path) -> Any:
    notebook = nbformat.read(FOLDER / name, as_version=4)
    quick(notebook, name)
    client = nbclient.NotebookClient(
        notebook, timeout=300, kernel_name="python3", resources={"metadata": {"path": folder}}
    )
    return client.execute()


def shown(notebook: Any, kind: str) -> str:
    """All outputs of one MIME type, or of the standard streams ("stream")."""
    outputs = [o for cell in notebook.cells if cell.cell_type == "code" for o in cell.outputs]
    if kind == "stream":
        return "".join(o.text for o in outputs if o.output_type == "stream")
    return "".join(o.data.get(kind, "") for o in outputs if o.output_type in ("execute_result", "display_data"))


@pytest.mark.slow
@pytest.mark.filterwarnings("default")  # the Jupyter client's own
def test_first_steps(tmp_path: Path) -> None:
    notebook = executed("first_steps.ipynb", tmp_path)
    text = shown(notebook, "stream")
    assert "scale-folding" in text
    assert "wrong-folding" in text and "Mul + Mul" in text
    assert "x eager" in text
    assert "<table" in shown(notebook, "text/html")
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_fusion_layers(tmp_path: Path) -> None:
    text = shown(executed("fusion_layers.ipynb", tmp_path), "stream")
    for step in (
        "aggregation: kernel + kernel: element-wise by 1",
        "memory-stitching: kernel + kernel: reduction by 7",
    ):
        assert step in text
    assert "parallelism-stitching: kernel + kernel" in text and "if t < " in text
    assert text.endswith("True\nTrue\n")
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.breadth
@pytest.mark.filterwarnings("default")
def test_instances(tmp_path: Path) -> None:
    notebook = executed("instances.ipynb", tmp_path)
    text = shown(notebook, "stream")
    assert "2 instances along axis 0" in text and "fewer bytes and cycles: True" in text
    assert text.endswith("True\n")
    assert shown(notebook, "text/html").count("<svg") > 10
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.breadth
@pytest.mark.filterwarnings("default")
def test_training(tmp_path: Path) -> None:
    text = shown(executed("training.ipynb", tmp_path), "stream")
    assert "1 program, run in parts for 0 reasons" in text
    assert text.endswith("the same parameters, bit by bit: True\nover 97 %: True\n")
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.breadth
@pytest.mark.filterwarnings("default")
def test_transformations(tmp_path: Path) -> None:
    """A rule of five lines and a step of under thirty, each of which leaves no tanh and is verified."""
    notebook = executed("transformations.ipynb", tmp_path)
    text = shown(notebook, "stream")
    assert "tanh in its code: 2" in text and "tanh left: 0" in text
    assert "Mul + Mul + Sigmoid + Add + Tanh" in text and "is 1.5, expected 1" in text
    assert text.count("[['tanh__swish__add__mul']]") == 2, "the step finds what the rule does not"
    assert all(line in text for line in ("eager  ", "default  ", "rule  ", "transformation  "))
    (rule,) = (c.source for c in notebook.cells if "class GnashLifting" in c.source)
    (step,) = (c.source for c in notebook.cells if "class ExponentialSharing" in c.source)
    assert len(_code(rule)) <= 5 and len(_code(step[step.index("@dataclass") :])) < 30
    assert not list(tmp_path.iterdir())


def _code(source: str) -> list[str]:
    """Lines that are neither empty nor imports."""
    return [line for line in source.splitlines() if line.strip() and not line.startswith("from ")]


@pytest.mark.slow
@pytest.mark.breadth
@pytest.mark.filterwarnings("default")
def test_scheduling(tmp_path: Path) -> None:
    """Each schedule computes the product; what would race is refused."""
    text = shown(executed("scheduling.ipynb", tmp_path), "stream")
    assert text.count("right, within rounding: True") == 6 and "right, within rounding: False" not in text
    assert "is reduced over the parallel loop i2 without a private accumulator" in text
    assert "local tile in thread:" in text and "call product:" in text
    assert text.count("% of the library's speed") == 6
    assert not list(tmp_path.iterdir())


def _is_right(text: str, versions: int) -> bool:
    """Whether each measured version says that its results and gradients are those of float64."""
    return text.count("right, within rounding: True") == versions and "rounding: False" not in text


@pytest.mark.slow
@pytest.mark.breadth
@pytest.mark.filterwarnings("default")
def test_mish_study(tmp_path: Path) -> None:
    """From 21 passes over an array in 7 kernels to 5 in 2, which is what reading and writing takes at least."""
    text = shown(executed("mish_study.ipynb", tmp_path), "stream")
    assert _is_right(text, 8)
    assert "kernels     7 -> 2" in text and "saved for the backward: 1.0 array" in text
    assert "tasklet-fusion at mul + tanh + softplus (forward)" in text
    for row in (r"unfused +7 +21 ", r"fused +2 +7 ", r"recomputed +2 +5 ", r"recipe cpu +2 +5 "):
        assert re.search(rf"^{row}.* x eager$", text, re.MULTILINE), row
    assert text.endswith("differentiate{policy='store'}\nlower-operators\nmap-fusion\nloop-merging\nvectorization\n")
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.breadth
@pytest.mark.filterwarnings("default")
def test_mbconv_study(tmp_path: Path) -> None:
    """Steps of the paper that have a counterpart are applied, and move fewer bytes than the automatic recipe."""
    text = shown(executed("mbconv_study.ipynb", tmp_path), "stream")
    assert _is_right(text, 8)
    assert "pad-conv-fusion at Conv + Pad (forward, from depthwise, pad)" in text
    moved = dict(re.findall(r"^(\w[\w ]*?) +\d+ kernels +([\d.]+) MB moved$", text, re.MULTILINE))
    by_bytes = sorted(moved, key=lambda name: -float(moved[name]))
    assert by_bytes.index("one by one") < by_bytes.index("cleaned up") < by_bytes.index("automatic")
    assert float(moved["fused anew"]) == min(map(float, moved.values())) and "automatic" not in by_bytes[-3:]
    assert float(moved["computed again"]) >= float(moved["channels first"])
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.breadth
@pytest.mark.filterwarnings("default")
def test_bert_study(tmp_path: Path) -> None:
    """Each of the paper's three fusions applies forward and backward, and each moves fewer bytes than before."""
    text = shown(executed("bert_study.ipynb", tmp_path), "stream")
    assert _is_right(text, 5)
    for fused in ("softmax", "softmax_backward", "layernormalization", "layernormalization_backward"):
        assert re.search(rf"^map-fusion at .*\b{fused}\b", text, re.MULTILINE), fused
    moved = re.findall(r"^(\w+): (\d+) kernels, ([\d.]+) MB moved$", text, re.MULTILINE)
    assert [name for name, _, _ in moved] == ["libraries", "relayout", "softmax", "normalization", "automatic"]
    for column in (1, 2):
        values = [float(row[column]) for row in moved]
        assert values == sorted(values, reverse=True) and len({*values}) == len(values)
    assert not list(tmp_path.iterdir())


def test_notebooks_are_stored_without_outputs() -> None:
    for path in FOLDER.glob("*.ipynb"):
        cells = nbformat.read(path, as_version=4).cells
        assert not any(cell.outputs or cell.execution_count for cell in cells if cell.cell_type == "code"), path
