"""A reproducer is one file that runs alone and says the same failure, for as long as it is there."""

from __future__ import annotations

import os
import re
import runpy
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import pytest
import torch
from torch import nn

import daceopt
from daceopt import recipes
from daceopt.capture.onnx.file import load
from daceopt.capture.onnx.importer import import_model
from daceopt.codegen import target
from daceopt.codegen.kernel_unit import KernelSource
from daceopt.errors import VerificationError
from daceopt.passes import reproducer
from daceopt.passes.bisect import bisect
from daceopt.passes.loading import load_file, transformations
from daceopt.passes.recipe import Recipe
from daceopt.passes.runner import Runner
from tests.onnx_models import FLOAT, proto
from tests.registered import restored

STEP = '''
"""A step with a bug."""

from dataclasses import dataclass

from daceopt.passes.transform import Site, Transformation


@dataclass(frozen=True)
class TanhToExp(Transformation):
    """Wrong, and called so.

    before:  Tanh(x)
    after:   Exp(x)
    """

    level = "coarse"
    name_of_it: str = "Tanh"
    also: str = ""

    def match_at(self, graph, node):
        if getattr(node, "op_type", "") == self.name_of_it and node.label != "done":
            yield Site(graph, (node,))

    def apply(self, site):
        (node,) = site.nodes
        x, y = site.graph.inputs_of(node)[0], site.graph.outputs_of(node)[0]
        site.graph.remove(node)
        site.graph.add_operator(WRONG, [x], [y]).label = "done"


WRONG = "Exp"
'''


def run(file: Path, *before: str) -> tuple[int, str]:
    """The exit code and what is printed, in a process and a folder of its own."""
    lines = [*before, f"import runpy; runpy.run_path({str(file)!r}, run_name='__main__')"]
    command = [sys.executable, str(file)] if not before else [sys.executable, "-c", "\n".join(lines)]
    search = os.pathsep.join([str(Path(daceopt.__file__).parents[2]), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": search}
    done = subprocess.run(command, capture_output=True, text=True, cwd=file.parent, env=environment, check=False)
    return done.returncode, done.stdout + done.stderr


def inside(file: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """The same in this process, which costs no imports."""
    capsys.readouterr()
    with pytest.raises(SystemExit) as done:
        runpy.run_path(str(file), run_name="__main__")
    said = capsys.readouterr()
    return int(done.value.code or 0), said.out + said.err


def file_of(message: str) -> Path:
    return Path(message.rpartition("reproducer in ")[2].strip())


@pytest.fixture
def wrong_step(tmp_path: Path) -> Iterator[str]:
    path = tmp_path / "tanh_to_exp.py"
    path.write_text(STEP)
    with restored():
        assert load_file(path) == ["tanh-to-exp"]
        yield "tanh-to-exp{also=\"a '''b\"}"


def tanh_model() -> onnx.ModelProto:
    node = onnx.helper.make_node
    nodes = [node("MatMul", ["x", "w"], ["h"]), node("Tanh", ["h"], ["t"]), node("Add", ["t", "x"], ["y"])]
    weights = {"w": np.linspace(-1, 1, 36, dtype=np.float32).reshape(6, 6)}
    return proto(nodes, [("x", FLOAT, ["n", 6])], [("y", FLOAT, ["n", 6])], constants=weights)


def check(file: Path, run: Callable[[Path], tuple[int, str]] = run) -> None:
    """It says the failure; with the bug repaired, it says that it is gone."""
    code, said = run(file)
    assert code == 1, said
    assert re.search(r"step tanh-to-exp.*output \w+ has error .* against float64", said)
    text = file.read_text()
    assert 'WRONG = "Exp"' in text
    file.write_text(text.replace('WRONG = "Exp"', 'WRONG = "Tanh"'))
    code, said = run(file)
    assert code == 0 and said.startswith("gone: step tanh-to-exp"), said


def test_an_onnx_file(wrong_step: str) -> None:
    with pytest.raises(VerificationError, match="reproducer in ") as caught:
        recipe = recipes.get("cpu").before("constant-folding", wrong_step)
        Runner(recipe, "numerics").run(import_model(load(tanh_model())))
    check(file_of(str(caught.value)))


def test_a_module(wrong_step: str, capsys: pytest.CaptureFixture[str]) -> None:
    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(5, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.tanh(self.linear(x))

    recipe = recipes.get("cpu").before("constant-folding", wrong_step)
    model = daceopt.optimized_module(Layer(), recipe=recipe, verify="numerics", fallback="raise")
    with pytest.raises(VerificationError, match="reproducer in ") as caught:
        model(torch.randn(3, 5))
    check(file_of(str(caught.value)), lambda file: inside(file, capsys))


def test_bisect(wrong_step: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = bisect(recipes.get("cpu").before("constant-folding", wrong_step), import_model(load(tanh_model())))
    assert found is not None and found.step == wrong_step and str(found).endswith(str(found.reproducer))
    check(found.reproducer, lambda file: inside(file, capsys))


def test_a_step_that_raises(wrong_step: str, capsys: pytest.CaptureFixture[str]) -> None:
    made = transformations.get("tanh-to-exp")
    broken = made(name_of_it="Tanh", also="x")
    module = sys.modules[made.__module__]
    module.WRONG = None  # type: ignore[attr-defined]
    with pytest.raises(VerificationError, match="(?s)failed on graph .*; reproducer in ") as caught:
        Runner(Recipe("r", (broken,)), "numerics").run(import_model(load(tanh_model())))
    assert inside(file_of(str(caught.value)), capsys)[0] == 1  # the file says "Exp", which is wrong in another way


def test_a_step_at_one_of_its_sites(wrong_step: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The file of the step comes along, though the step that fails is one of daceopt's own."""
    step = transformations.get("at-site").with_options({"step": wrong_step, "site": "Tanh"})
    with pytest.raises(VerificationError, match="step at-site.*reproducer in ") as caught:
        Runner(Recipe("r", (step,)), "numerics").run(import_model(load(tanh_model())))
    code, said = inside(file_of(str(caught.value)), capsys)
    assert code == 1 and said.startswith("step at-site{step=")


def test_the_step_that_differentiates(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """It edits a program: what is to be differentiated is written, too."""
    from daceopt.ir.control.imported import Gradients
    from daceopt.ir.control.program import Program
    from daceopt.transformations.differentiate import differentiate

    def fails(*_: object, **__: object) -> None:
        raise ZeroDivisionError("no derivative today")

    monkeypatch.setattr(differentiate, "differentiate", fails)
    program = Program.of(import_model(load(tanh_model())), Gradients((0,), (0,)))
    with pytest.raises(VerificationError, match="no derivative today; reproducer in ") as caught:
        Runner(recipes.get("cpu"), "numerics").run(program)
    file = file_of(str(caught.value))
    code, said = inside(file, capsys)
    assert code == 1 and said == "step differentiate: ZeroDivisionError: no derivative today\n"
    monkeypatch.undo()
    assert inside(file, capsys)[0] == 0


def _with_sine(source: KernelSource) -> KernelSource:
    return replace(source, text=source.text.replace("tanhf(", "sinf("))


PLANTED = """
import dataclasses
from daceopt.codegen import target
original = target.get("cpu").print_kernel
def changed(*args):
    source = original(*args)
    return dataclasses.replace(source, text=source.text.replace("tanhf(", "sinf("))
target._TARGETS["cpu"] = dataclasses.replace(target.get("cpu"), print_kernel=changed)
"""


def test_a_compiled_program(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Both directions are compiled again and compared with the interpreter."""
    original = target.get("cpu")
    wrong = replace(original, print_kernel=lambda *args: _with_sine(original.print_kernel(*args)))
    monkeypatch.setitem(target._TARGETS, "cpu", wrong)
    model = daceopt.optimized_module(nn.Tanh(), verify="numerics", fallback="raise")
    with pytest.raises(VerificationError, match="reproducer in ") as caught:
        model(torch.randn(3, 4, requires_grad=True))
    monkeypatch.undo()
    file = file_of(str(caught.value))
    assert inside(file, capsys)[0] == 0
    status, said = run(file, PLANTED)
    assert status == 1 and "the compiled program of graph" in said and "in float64" in said


def test_values_that_were_given_are_in_the_file() -> None:
    graph = import_model(load(tanh_model()))
    x = np.full((2, 6), 0.5, np.float32)
    step = recipes.get("cpu").resolve()[0]
    given, drawn = (reproducer.of_step(step, graph, values, "why").read_text() for values in ({graph.inputs[0]: x}, {}))
    assert f"INPUTS = {{\n    {graph.inputs[0]!r}: 'float32 [2, 6] " in given and "INPUTS = {}" in drawn


def test_values_of_every_type() -> None:
    arrays = {
        "a": np.array([1.5, np.nan], ml_dtypes.bfloat16),
        "b": np.arange(3, dtype=np.uint8).astype(ml_dtypes.uint4),
        "c": np.zeros((0, 2)),
        "d": np.array(True),
        "e": np.array([-0.0, np.inf], np.float32),
    }
    found = reproducer.unpack(reproducer.pack(arrays))
    assert {k: (v.dtype, v.shape, v.tobytes()) for k, v in found.items()} == {
        k: (v.dtype, v.shape, v.tobytes()) for k, v in arrays.items()
    }


def test_no_text_ends_its_string(capsys: pytest.CaptureFixture[str]) -> None:
    """Whatever a failure or a name says, it is data in the file."""
    graph = import_model(load(tanh_model()))
    graph.source.names[graph.inputs[0]] = "a\"\"\"\n'''); raise SystemExit(7) #"
    failure = '"""\nraise SystemExit(7)\r\nraise SystemExit(7)\x0braise SystemExit(7)\x85raise SystemExit(7)\0'
    file = reproducer.of_step(recipes.get("cpu").resolve()[0], graph, {}, failure)
    code, said = inside(file, capsys)
    assert code == 0, said


def test_what_cannot_run_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    graph = import_model(load(tanh_model()))
    file = reproducer.of_step(recipes.get("cpu").resolve()[0], graph, {}, "a failure")
    file.write_text(file.read_text().replace("graph program(", "grph program(", 1))
    code, said = inside(file, capsys)
    assert code == 2 and "line 1, column 1: expected 'graph '" in said and "a failure" in said
