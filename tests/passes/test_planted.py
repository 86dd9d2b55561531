"""Ten planted bugs, forward and backward, in modules and ONNX files: each is found, with its step and its site, by
``verify="numerics"`` and by bisection, and its reproducer says it again."""

from __future__ import annotations

import runpy
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import dace
import numpy as np
import onnx
import pytest
import sympy
import torch
from torch import nn

import daceopt
from daceopt import optimized_module, recipes
from daceopt.capture.onnx.file import load
from daceopt.capture.onnx.importer import import_model
from daceopt.codegen import target
from daceopt.errors import VerificationError
from daceopt.ir.control.imported import Gradients
from daceopt.ir.control.program import Program
from daceopt.ir.graph.graph import Graph
from daceopt.ir.kernel.kernel import Kernel
from daceopt.ir.nodes.builder import Builder
from daceopt.passes.bisect import bisect
from daceopt.passes.recipe import Recipe
from daceopt.passes.runner import Runner
from daceopt.transform import Site, Transformation
from tests.onnx_models import FLOAT, proto
from tests.passes import planted

STEPS = ("lower-operators", "differentiate", "lower-operators")
Case = tuple[type[planted.Planted], bool]
CASES: list[Case] = [(cls, backward) for cls in planted.ALL for backward in (False, True)]
ONE_DIRECTION: list[Case] = [(cls, bool(k % 2)) for k, cls in enumerate(planted.ALL)]
OTHER_DIRECTION = [case for case in CASES if case not in ONE_DIRECTION]
QUICK: list[Case] = [(planted.DroppedTile, False), (planted.Race, True), (planted.SwappedOperands, True)]


def bugs(default: Sequence[Case]) -> pytest.MarkDecorator:
    """Each bug in both directions, of which ``default`` is run by default, and few are not slow."""

    def marks(case: Case) -> list[Any]:
        found = [] if case in QUICK else [pytest.mark.slow]
        return found if case in default else [*found, pytest.mark.breadth]

    cases = [pytest.param(*case, marks=marks(case)) for case in CASES]
    return pytest.mark.parametrize(("bug", "backward"), cases, ids=lambda v: getattr(v, "__name__", str(v)))


class Net(nn.Module):
    """A place for each of the bugs: a window, sums, square products, rows that are broadcast."""

    def __init__(self) -> None:
        super().__init__()
        self.window = nn.Conv2d(2, 2, 3, padding=1)
        self.weight, self.bias = nn.Parameter(torch.randn(8, 8)), nn.Parameter(torch.randn(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = torch.tanh(self.window(x)).sum((0, 1))
        h = torch.softmax(torch.sigmoid(h * 2) @ self.weight - self.bias, -1)
        return (h @ (h - self.bias)).sum(1)


def recipe(bug: type[planted.Planted], backward: bool) -> Recipe:
    return Recipe("planted", (*STEPS, bug(backward=backward)))


def model() -> onnx.ModelProto:
    """The same as a file."""
    h = onnx.helper
    nodes = [
        h.make_node("Conv", ["x", "window"], ["c"], pads=[1, 1, 1, 1]),
        h.make_node("Tanh", ["c"], ["t"]),
        h.make_node("ReduceSum", ["t", "axes"], ["r"], keepdims=0),
        h.make_node("Sigmoid", ["r"], ["g"]),
        h.make_node("MatMul", ["g", "weight"], ["m"]),
        h.make_node("Sub", ["m", "bias"], ["d"]),
        h.make_node("Softmax", ["d"], ["s"], axis=-1),
        h.make_node("Sub", ["s", "bias"], ["e"]),
        h.make_node("MatMul", ["s", "e"], ["y"]),
    ]
    random = np.random.default_rng(0)
    shapes = {"window": (2, 2, 3, 3), "weight": (8, 8), "bias": (8,)}
    constants = {n: random.standard_normal(shape, dtype=np.float32) for n, shape in shapes.items()}
    constants["axes"] = np.array([0, 1])
    return proto(nodes, [("x", FLOAT, [2, 2, 8, 8])], [("y", FLOAT, [8, 8])], constants=constants)


def program() -> Program:
    """The file with its gradient by its input."""
    return Program.of(import_model(load(model())), Gradients((0,), (0,)))


def test_the_program_without_bugs_passes() -> None:
    assert bisect(Recipe("right", STEPS), program()) is None
    Runner(Recipe("right", STEPS), "numerics").run(program())


@bugs(OTHER_DIRECTION)
def test_files(bug: type[planted.Planted], backward: bool) -> None:
    """Verification names step and site; bisection finds them by itself; the reproducer ends with 1."""
    with pytest.raises(VerificationError, match=rf"step {bug.kebab_name()}.*site 1 of 1: \w+") as caught:
        Runner(recipe(bug, backward), "numerics").run(program())
    assert "reproducer in" in str(caught.value)
    found = bisect(recipe(bug, backward), program())
    assert found is not None and found.step.startswith(bug.kebab_name()) and (found.index, found.site) == (3, 1)
    assert found.graph.endswith(planted.BACKWARD) == backward
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(found.reproducer), run_name="__main__")
    assert ended.value.code == 1


@bugs(ONE_DIRECTION[::4])
def test_modules(bug: type[planted.Planted], backward: bool) -> None:
    """The first call raises, and the handle's own bisection names the same step."""
    net = optimized_module(Net(), recipe=recipe(bug, backward), verify="numerics", fallback="raise")
    x = torch.randn(2, 2, 8, 8, requires_grad=True)
    with pytest.raises(VerificationError, match=rf"step {bug.kebab_name()}.*site 1 of 1"):
        net(x)
    found = net.daceopt.bisect(x, built=False)
    assert found is not None and found.step.startswith(bug.kebab_name())
    assert found.graph.endswith(planted.BACKWARD) == backward


@pytest.mark.parametrize("bug", planted.ALL)
def test_compiled_files(bug: type[planted.Planted]) -> None:
    """What a verification finds is never answered by another runtime."""
    steps = ("lower-operators", bug())
    with pytest.raises(VerificationError, match=bug.kebab_name()):
        daceopt.from_onnx(model(), recipe=Recipe("planted", steps), fallback=True, verify="numerics")


@bugs(QUICK[:1])
def test_reproducers_alone(bug: type[planted.Planted], backward: bool, tmp_path: Path) -> None:
    """``python reproducer.py``, somewhere else, without the tests."""
    found = bisect(recipe(bug, backward), program())
    assert found is not None
    file = tmp_path / "reproducer.py"
    file.write_text(found.reproducer.read_text())
    done = subprocess.run([sys.executable, file.name], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 1 and bug.kebab_name() in done.stdout, done.stderr


# ---------------------------------------------------------------- what only some checks can see


@dataclass(frozen=True)
class ResultType(Transformation):
    """Gives a result in another type."""

    level = "coarse"
    sites_are_independent = True

    def match(self, graph: Graph) -> Iterator[Site]:
        yield Site(graph, (graph.nodes()[-1],))

    def apply(self, site: Site) -> None:
        (old,) = site.graph.outputs
        wide = Builder(site.graph).cast(old, dace.float64)
        site.graph.outputs.clear()
        site.graph.add_output(wide)


def test_a_result_of_another_type_is_found() -> None:
    with pytest.raises(VerificationError, match=r"result-type.*: expected output 0 is \w+ of shape \(8, 8\), found"):
        Runner(Recipe("planted", (ResultType(),)), "structure").run(import_model(load(model())))


@dataclass(frozen=True)
class DoubledSaved(planted.PlantedInKernel):
    """Spoils what only the backward pass reads."""

    def spoiled(self, graph: Graph, kernel: Kernel) -> Kernel | None:
        (stage,) = kernel.stages
        if not {a.array for a in stage.writes.values()} <= set(graph.saved):
            return None
        last = stage.assignments[-1]
        doubled = replace(last, expr=2 * last.expr)
        return replace(kernel, stages=[replace(stage, assignments=(*stage.assignments[:-1], doubled))])


def test_what_only_the_backward_pass_reads_is_verified() -> None:
    """The forward's outputs stay right, and the backward graph by itself, too."""
    graph = Graph("saving")
    b = Builder(graph)
    x = graph.add_input("x", (5,), dace.float32)
    kept = b.elementwise(lambda v: sympy.sin(v), x)
    graph.add_output(b.elementwise(lambda v: v * v, x))
    graph.saved = [kept]
    with pytest.raises(VerificationError, match=r"step doubled-saved: saved array kernel_\d+ has error"):
        Runner(Recipe("planted", (DoubledSaved(),)), "numerics").run(graph)


def test_elements_that_nobody_writes_are_seen_where_they_ought_to_be_zero() -> None:
    graph = Graph("zeros")
    x = graph.add_input("x", (7,), dace.float32)
    graph.add_output(Builder(graph).elementwise(lambda v: v * 0 + sympy.Integer(0) * v, x, dtype=dace.float32))
    with pytest.raises(VerificationError, match="step dropped-tile: output"):
        Runner(Recipe("planted", (planted.DroppedTile(),)), "numerics").run(graph)


@pytest.fixture
def of_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """A printer that forgets what all threads but the first have summed up."""
    original = target.get("cpu").print_kernel

    def changed(*args: Any) -> Any:
        source = original(*args)
        return replace(source, text=source.text.replace("t < threads", "t < 1"))

    monkeypatch.setitem(target._TARGETS, "cpu", replace(target.get("cpu"), print_kernel=changed))


def summed() -> Graph:
    graph = Graph("summed")
    x = graph.add_input("x", (1 << 20,), dace.float32)
    graph.add_output(Builder(graph).reduce("sum", lambda v: v * v, x, axes=(0,)))
    return graph


@pytest.mark.usefixtures("of_one_thread")
def test_what_only_threads_show_is_found_in_what_is_built() -> None:
    """The graphs are right after each step; what is compiled is wrong since the loop was given to threads."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        found = bisect(recipes.get("cpu"), summed(), built=True)
    finally:
        torch.set_num_threads(threads)
    assert found is not None and found.step.startswith("threading") and "the compiled program" in found.reason
    assert found.reproducer.is_file()
