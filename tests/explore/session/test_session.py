"""Interactive sessions: what they begin with, walked back and forth, and what takes long."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from torch import nn

import daceopt
from daceopt.errors import CaptureError, DaceoptError, SessionError
from tests.explore.sessions import Blocks, ReluTwice, chain, lowered, session, texts
from tests.onnx_models import FLOAT, proto


def test_a_module_begins_at_its_captured_graph() -> None:
    at = session()
    assert at.title == "Blocks" and not at.path and at.program.gradients is not None
    assert {n.op_type for n in at.forward.operators()} >= {"MatMul", "LayerNormalization", "Gelu"}
    assert at.report().inputs == ["x: float32[4, 8]"]


def test_the_model_stays_as_it_was() -> None:
    model = nn.BatchNorm1d(8)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    daceopt.explore(model, torch.randn(4, 8)).apply("cpu")
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_an_optimized_module_gives_its_options() -> None:
    model = daceopt.optimized_module(Blocks(), backward=False)
    assert daceopt.explore(model, torch.randn(4, 8)).program.gradients is None
    assert daceopt.explore(model, torch.randn(4, 8), backward=True).program.gradients is not None


def test_onnx_files_and_graphs(tmp_path: Path) -> None:
    node = onnx.helper.make_node
    made = proto(
        [node("Tanh", ["x"], ["t"]), node("Mul", ["t", "x"], ["y"])], [("x", FLOAT, ["n", 6])], [("y", FLOAT, ["n", 6])]
    )
    path = tmp_path / "model.onnx"
    onnx.save(made, path)
    for model in (path, str(path), made, made.SerializeToString()):
        assert [n.op_type for n in daceopt.explore(model).forward.operators()] == ["Tanh", "Mul"]
    given = daceopt.explore(path, np.ones((5, 6), np.float32), backward=True).apply("none")
    assert given.backward is not None and given.at.bytes == sum(k.bytes for k in given.report().kernels)
    with pytest.raises(TypeError, match=r"input 0: expected the shape .* found \(5, 7\)"):
        daceopt.explore(path, np.ones((5, 7), np.float32))
    with pytest.raises(TypeError, match="takes 1 inputs, 2 were given"):
        daceopt.explore(path, 1, 2)
    graph = chain("Tanh", "Relu")
    at = daceopt.explore(graph).apply("lower-operators")
    assert len(graph.operators()) == 2 and not at.forward.operators(), "the user's graph stays"


def test_what_cannot_be_explored() -> None:
    class Broken(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = torch.tanh(x)
            print("a break")
            return torch.relu(y) + 1

    class Nothing(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x

    with pytest.raises(TypeError, match="explore takes an nn.Module, an ONNX file"):
        daceopt.explore(3)
    with pytest.raises(CaptureError, match=r"Broken is 2 graphs, of 1, 2 nodes .*graph=0 to graph=1"):
        daceopt.explore(Broken(), torch.randn(3))
    assert [n.op_type for n in daceopt.explore(Broken(), torch.randn(3), graph=0).forward.operators()] == ["Tanh"]
    with pytest.raises(CaptureError, match="graph=2 of Broken; expected 0 to 1"):
        daceopt.explore(Broken(), torch.randn(3), graph=2)
    with pytest.raises(CaptureError, match="nothing of Nothing can be compiled"):
        daceopt.explore(Nothing(), torch.randn(3))
    with pytest.raises(DaceoptError, match="verify='all': expected one of"):
        session(verify="all")


def test_undo_and_redo_give_the_very_graphs() -> None:
    at = lowered()
    first = texts(at)
    second = texts(at.apply("map-fusion"))
    third = texts(at.apply("threading"))
    assert texts(at.undo()) == second and texts(at.undo()) == first
    assert texts(at.redo(2)) == third and not at.undone
    assert texts(at.undo(2)) == first
    at.apply("epilogue-fusion")
    assert not at.undone, "another way begins here"
    with pytest.raises(SessionError, match=r"redo\(1\): there are 0 changes to redo"):
        at.redo()
    with pytest.raises(SessionError, match=r"undo\(5\): there are 2 changes to undo"):
        at.undo(5)
    assert len(at.path) == 2


def test_branches_go_their_own_ways() -> None:
    main = lowered()
    fused = main.branch("fused").apply("map-fusion")
    assert len(fused.path) == 2 and len(main.path) == 1
    assert main.branch("fused") is fused and fused.branch("main") is main
    main.apply("epilogue-fusion")
    assert main.branches == fused.branches == ("main", "fused")
    assert len({v.number for v in (*main.at.line(), *fused.at.line())}) == 4
    with pytest.raises(SessionError, match="expected a name"):
        main.branch("")


def test_a_recipe_is_one_change() -> None:
    at = session().apply("cpu")
    assert at.backward is not None and len(at.path) > 30 and at.at.title == "recipe cpu"
    assert not at.undo().path and at.backward is None
    chosen = session().apply("auto")
    assert "by the cost model" in chosen.notes[-1] and chosen.path == session().apply("cpu").path


def test_graphs_that_are_looked_at_are_copies() -> None:
    at = lowered()
    before = texts(at)
    graph = at.forward
    graph.remove(graph.nodes()[-1])
    at.program.forward.name = "other"
    assert texts(at) == before


def test_the_text_shows_the_walk() -> None:
    at = lowered().apply("map-fusion").undo()
    at.branch("other")
    shown = str(at)
    assert shown.startswith("Blocks: session main, 1 step\n") and ">   1  lower-operators" in shown
    assert "redo: map-fusion" in shown and "branches: main, other" in shown
    assert "version 1" in repr(at)


def test_nothing_found_says_what_almost_matched() -> None:
    at = daceopt.explore(chain("Relu", "Relu"))
    at.apply(ReluTwice(picky=True))
    assert at.at.sites() == 0 and "almost: Relu: it is picky" in str(at)


def test_what_takes_long_shows_its_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    from daceopt import progress

    shown: list[str] = []

    class Screen:
        def show(self, rows: Any) -> None:
            shown.extend(map(str, rows))

        def close(self) -> None: ...

    monkeypatch.setattr(progress, "is_watched", lambda: True)
    monkeypatch.setattr(progress, "DELAY", 0.0)
    monkeypatch.setattr(progress, "_Terminal", Screen)
    at = lowered()
    at.sites()
    at.apply("map-fusion").compare(seconds=0.0)
    joined = "\n".join(shown)
    assert "sites" in joined and "compare" in joined
