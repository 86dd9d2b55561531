"""The command line: help, exit codes, one readable line for an error."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import daceopt
from daceopt.commands.main import main
from daceopt.errors import FallbackWarning
from daceopt.models.onnx_model import OnnxModel
from daceopt.ops.core import reference
from tests.numerics import assert_within_rounding
from tests.onnx_models import detector


def test_unknown_command_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        main(["frobnicate"])
    assert exit_.value.code == 2
    assert "doctor" in capsys.readouterr().err


def test_a_missing_model_is_one_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["optimize", str(tmp_path / "absent.onnx")]) == 2
    error = capsys.readouterr().err
    assert error.startswith("daceopt optimize: ") and error.count("\n") == 1 and "absent.onnx" in error


def test_a_missing_package_is_one_line(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "daceopt.commands.cache", raising=False)  # another test may have loaded it
    monkeypatch.setitem(sys.modules, "daceopt.store.cache", None)
    assert main(["cache", "info"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("daceopt cache: ") and error.count("\n") == 1 and "`daceopt doctor` says" in error


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """softmax(x @ w) with a batch of any size."""
    weights = np.random.default_rng(0).standard_normal((6, 5)).astype(np.float32)
    nodes = [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("Softmax", ["h"], ["y"])]
    values = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["batch", k]) for n, k in (("x", 6), ("y", 5))]
    graph = helper.make_graph(nodes, "g", values[:1], values[1:], [numpy_helper.from_array(weights, "w")])
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    path = tmp_path / "model.onnx"
    path.write_bytes(proto.SerializeToString())
    return path


def test_optimize(
    model: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    command = ["optimize", str(model), "--verify", "numerics", "--seconds", "0", "-o", str(tmp_path / "out")]
    assert main(command) == 0
    assert "within rounding" in capsys.readouterr().out
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert summary["correct"] and summary["error"] < 1e-6 and summary["kernels"] > 0
    assert "kernel" in (tmp_path / "out" / "graph.txt").read_text()
    assert summary["error_written"] < 1e-6
    x = np.random.default_rng(1).standard_normal((3, 6)).astype(np.float32)
    assert_within_rounding(daceopt.load(tmp_path / "out")(x), np.asarray(daceopt.from_onnx(model)(x), np.float64))

    compiled = OnnxModel.__call__
    monkeypatch.setattr(OnnxModel, "__call__", lambda self, *args: compiled(self, *args) * np.float32(1 + 3e-5))
    assert main(command) == 1, "an error of 3e-5 is more than rounding explains"
    assert "LARGER THAN ROUNDING" in capsys.readouterr().out


@pytest.fixture
def wrong_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    """The float64 reference computes Softmax as if it were Identity."""
    monkeypatch.setattr(reference, "correction", lambda node: (lambda _, x: x) if node.op_type == "Softmax" else None)


@pytest.mark.usefixtures("wrong_reference")
def test_a_reference_that_stands_alone(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Whatever else agrees is as far from it, and no proof."""
    assert main(["optimize", str(model), "--seconds", "0"]) == 1
    assert "the float64 reference stands alone: what operator Softmax" in capsys.readouterr().out
    assert main(["optimize", str(model), "--seconds", "0", "--verify", "numerics"]) == 2
    assert "the float64 reference stands alone: what operator Softmax" in capsys.readouterr().err


def test_a_file_that_cannot_be_loaded_is_one_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["optimize", "x.onnx", "--load", str(tmp_path / "absent.py")]) == 2
    assert "no such file" in capsys.readouterr().err


def test_unknown_recipe_and_step(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["optimize", "x.onnx", "--recipe", "fastest"]) == 2
    known = "apollo, auto, cpu, cuda-kernels, disco, gpu, graphturbo, graphturbo-scratchpad, inference, layer-wise"
    assert f"no recipe is called 'fastest'; there are: {known}, none, training\n" in capsys.readouterr().err
    assert main(["bisect", "x.onnx", "--add", "no-such-step"]) == 2
    assert "no transformation is called 'no-such-step'" in capsys.readouterr().err


def test_cache(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DACEOPT_CACHE_DIR", str(tmp_path / "cache"))
    assert main(["cache", "info"]) == 0
    assert str(tmp_path / "cache") in capsys.readouterr().out
    assert main(["cache", "clear"]) == 0
    assert "0 entries removed" in capsys.readouterr().out


def test_operators(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["operators"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith("Softmax") and "native" in line for line in lines)


def test_operators_of_aten(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["operators", "--aten"]) == 0
    rows = {line.split()[0]: line.split()[1:] for line in capsys.readouterr().out.splitlines() if line.endswith(".py")}
    assert rows["relu.default"] == ["own", "-", "activation.py"]
    assert rows["view_as_real.default"] == ["-", "own", "complex.py"]
    assert "special_i1e.default" not in rows


def test_operators_of_aten_as_their_document_has_them(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["operators", "--aten", "--markdown"]) == 0
    document = Path(__file__).parents[2] / "docs" / "aten.md"
    assert document.read_text(encoding="utf-8").endswith(capsys.readouterr().out)


def test_importing_the_command_line_is_light() -> None:
    code = "import sys, daceopt.commands.main, daceopt.recipes as r; r.get('cpu').fingerprint(); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"dace", "onnx", "sympy", "torch"} & set(done.stdout.split())


def test_inputs_of_a_call_for_a_model_that_depends_on_them(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path, inputs = tmp_path / "detector.onnx", tmp_path / "inputs.npz"
    path.write_bytes(detector(batch=None).SerializeToString())
    np.savez(inputs, picture=np.ones(3))
    with pytest.warns(FallbackWarning, match="NonMaxSuppression"):
        assert main(["optimize", str(path), "--inputs", str(inputs)]) == 2
    assert "one array for each of the inputs ['image'], found ['picture']" in capsys.readouterr().err
    np.savez(inputs, image=np.random.default_rng(0).standard_normal((1, 3, 32, 32)).astype(np.float32))
    with pytest.warns(FallbackWarning, match="NonMaxSuppression"):
        assert main(["optimize", str(path), "--seconds", "0", "--inputs", str(inputs)]) == 0
    shown = capsys.readouterr().out
    assert "within rounding" in shown and "in ONNX Runtime: NonMaxSuppression, Gather, Squeeze" in shown
    assert main(["explain", str(path), "--inputs", str(inputs)]) == 0
    assert "image: float32[1, 3, 32, 32]" in capsys.readouterr().out
    inputs.write_bytes(b"no archive")
    assert main(["explain", str(path), "--inputs", str(inputs)]) == 2
    assert "numpy.savez" in capsys.readouterr().err


def test_a_model_whose_shapes_depend_on_values_asks_for_inputs(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    given = [("x", TensorProto.FLOAT, [4, 6]), ("shape", TensorProto.INT64, [2])]
    graph = helper.make_graph(
        [helper.make_node("Reshape", ["x", "shape"], ["y"]), helper.make_node("Relu", ["y"], ["z"])],
        "reshapes",
        [helper.make_tensor_value_info(*of) for of in given],
        [helper.make_tensor_value_info("z", TensorProto.FLOAT, [None, None])],
    )
    path, inputs = tmp_path / "reshapes.onnx", tmp_path / "inputs.npz"
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    path.write_bytes(made.SerializeToString())
    assert main(["optimize", str(path), "--seconds", "0"]) == 2
    asked = "--inputs FILE.npz with x: torch.float32 of shape [4, 6]; shape: torch.int64 of shape [2]"
    assert f"depends on values of 'shape': give inputs, {asked}" in capsys.readouterr().err
    np.savez(inputs, x=np.ones((4, 6), np.float32), shape=np.array([3, 8]))
    assert main(["optimize", str(path), "--seconds", "0", "--inputs", str(inputs)]) == 0
    assert "within rounding" in capsys.readouterr().out


def test_what_cannot_be_written_is_said_after_the_summary(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "detector.onnx"
    path.write_bytes(detector(batch=1).SerializeToString())
    with pytest.warns(FallbackWarning, match="NonMaxSuppression"):
        assert main(["optimize", str(path), "--seconds", "0", "-o", str(tmp_path / "out")]) == 2
    shown = capsys.readouterr()
    assert "within rounding" in shown.out and shown.err.count("\n") == 1
    assert "out has no program: it cannot be exported: ONNX Runtime does a part of its work" in shown.err
    assert not (tmp_path / "out").exists(), "a folder without a program would be taken for one"


def test_explain_prints_schedule_and_code_of_a_kernel(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", str(model), "--kernel", "SOFT"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("// forward, softmax") and 'extern "C" void k_' in shown and "contraction" not in shown
    left, _, right = shown.partition("\n---")[2].splitlines()[1].partition(" | ")
    assert left.startswith("parallel for i0") and right.startswith(
        'extern "C" void k_'
    )  # the schedule beside the source
    assert main(["explain", str(model), "--kernel", "gelu"]) == 2
    assert "no kernel's label contains 'gelu'; there are: " in capsys.readouterr().err


MODELS = r"""
import torch
from torch import nn
from beside import WIDTH

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.Linear(WIDTH, 8)
        self.norm = nn.BatchNorm1d(8)

    def forward(self, x, scale=None):
        y = torch.tanh(self.norm(self.up(x)))
        return y if scale is None else y * scale

def example_inputs():
    return torch.ones(4, WIDTH)

def made():
    return Net(), (torch.randn(3, WIDTH),)

def named():
    return Net()

def named_inputs():
    return {"x": torch.randn(3, WIDTH), "scale": torch.randn(8)}

class Branching(nn.Module):
    def forward(self, x):
        x = x * 2
        return x + 1 if x.sum() > 0 else x - 1

instance = Net()
number = 3
def needs(width): return Net()
def fails(): raise ValueError("no such\nluck")
def exits(): raise SystemExit(3)
def wrong(): return 3
"""


@pytest.fixture
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "beside", raising=False)
    (tmp_path / "beside.py").write_text("WIDTH = 5\n")
    path = tmp_path / "models.py"
    path.write_text(MODELS)
    return path


@pytest.mark.parametrize("name", ["Net", "made", "named", "instance"])
def test_optimize_takes_what_a_python_file_makes(
    models: Path, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["optimize", f"{models}:{name}", "--seconds", "0", "-o", str(tmp_path / "out")]) == 0
    shown = capsys.readouterr().out
    assert "within rounding" in shown and "as fast as PyTorch" in shown
    run = daceopt.load(tmp_path / "out")
    assert run.input_names == (["x", "scale"] if name == "named" else ["x"])


def test_a_module_on_disk_needs_no_onnx(models: Path, tmp_path: Path) -> None:
    """From the file to the folder that runs alone, through PyTorch's own front end."""
    block = "import sys\nfor name in ('onnxscript', 'onnxruntime'): sys.modules[name] = None\n"
    target = f"{models}:named"
    commands = [["optimize", target, "--seconds", "0", "-o", str(tmp_path / "out")], ["bisect", target]]
    code = block + f"from daceopt.commands.main import main\nsys.exit(any(map(main, {commands!r})))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_module_of_several_graphs_is_one_line(models: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["optimize", f"{models}:Branching"]) == 2
    shown = capsys.readouterr()
    assert (
        shown.err.count("\n") == 1 and "is no single graph" in shown.err and "in forward: `return x + 1 if" in shown.err
    )


def test_bisect_takes_what_a_python_file_makes(models: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bisect", f"{models}:named"]) == 0
    assert "no step of the recipe breaks the model" in capsys.readouterr().out


def test_explain_takes_what_a_python_file_makes(models: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", f"{models}:named"]) == 0
    shown = capsys.readouterr().out
    assert "Net: " in shown and "float32[3, 5]" in shown and "forward: " in shown


@pytest.mark.parametrize("command", ["explain", "optimize", "bisect"])
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("models.py", "which module of this file? expected an ONNX file, or file.py:name"),
        ("models.py:Nett", "the file defines no 'Nett'; it has Net, example_inputs, .*; did you mean 'Net'?"),
        ("models.py:number", "expected a module or (module, inputs), found int"),
        ("models.py:wrong", "expected a module or (module, inputs), found int"),
        ("models.py:needs", "missing a required argument: 'width'"),
        ("models.py:fails", "failed: ValueError: no such (models.py, line 36)"),
        ("models.py:exits", "failed: SystemExit: 3"),
        ("absent.py:Net", "absent.py: no such file"),
        ("folder.py:Net", "it is a folder"),
        ("broken.py:Net", "failed: ZeroDivisionError: division by zero"),
        ("syntax.py:Net", "failed: SyntaxError: invalid syntax"),
        ("quits.py:Net", "failed: SystemExit: 4"),
        ("alone.py:Net", "on what is it called? return (module, inputs), or define Net_inputs() or example_inputs()"),
        ("empty.onnx", "the file is empty"),
        ("absent.onnx", "No such file"),
        ("folder.onnx", "Is a directory"),
        ("text.onnx", "expected an ONNX model"),
    ],
)
def test_files_that_are_no_models_are_one_line(
    models: Path, command: str, name: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = models.parent
    for file, text in {
        "broken.py": "1 / 0",
        "syntax.py": "def def",
        "quits.py": "raise SystemExit(4)",
        "alone.py": "from torch import nn\nNet = nn.ReLU\n",
        "empty.onnx": "",
        "text.onnx": "hello",
    }.items():
        (folder / file).write_text(text)
    for made in ("folder.py", "folder.onnx"):
        (folder / made).mkdir()
    assert main([command, str(folder / name)]) == 2
    shown = capsys.readouterr()
    assert shown.out == "" and shown.err.count("\n") == 1 and shown.err.startswith(f"daceopt {command}: ")
    assert re.search(re.escape(message).replace(re.escape(".*"), ".*"), shown.err)


def test_inputs_of_a_python_file_come_from_itself(models: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", f"{models}:Net", "--inputs", "x.npz"]) == 2
    assert "--inputs is for ONNX files" in capsys.readouterr().err


def test_bench_writes_where_it_is_told_to(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    started: list[list[str]] = []
    monkeypatch.setattr(subprocess, "call", lambda command, **options: started.append(command) or 0)
    monkeypatch.chdir(tmp_path)
    assert main(["bench", "calls", "--quick", "--peers", "eager", "--record"]) == 0
    assert main(["bench", "-o", "results"]) == 0
    assert started[0][1:] == ["-B", "-m", "benchmarks", "calls", "--quick", "--record", "--peers", "eager"]
    assert started[1][1:] == ["-B", "-m", "benchmarks", "--output", str(tmp_path / "results")]
