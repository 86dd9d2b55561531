"""New values of inputs written over the old ones: where that is right, where it is not, and what is computed."""

from __future__ import annotations

from collections.abc import Callable

import dace
import numpy as np
import pytest
import torch
from torch import nn

from daceopt import libs, optimized_module
from daceopt.capture.torch import lifting
from daceopt.codegen import build, in_place, trial
from daceopt.codegen.assemble import load_program
from daceopt.errors import ArgumentsChanged, GraphTextError, RunError
from daceopt.ir.graph.graph import Graph
from daceopt.ir.nodes.builder import Builder
from daceopt.ir.text.parse import parse
from daceopt.ir.text.render import render
from daceopt.ops.core import algorithm
from daceopt.runtime.executable import CHANGED, Executable
from tests.ir.graph_text_checking import read_back

N = 37


class Case:
    """A graph over three inputs, with a builder."""

    def __init__(self) -> None:
        self.graph = Graph("case")
        self.w, self.v = (self.graph.add_input(n, (N,), dace.float32) for n in "wv")
        self.index = self.graph.add_input("index", (N,), dace.int64)
        self.b = Builder(self.graph)

    def replace(self, new: str, old: str) -> str:
        self.graph.replaced[len(self.graph.outputs)] = old
        self.graph.add_output(new)
        return new

    def decide(self) -> dict[str, str]:
        self.graph.order = in_place.order_of(self.graph)
        return in_place.decide(self.graph, in_place.fallible(self.graph))

    def built(self) -> Executable:
        roles = {n: f"input:{k}" for k, n in enumerate(self.graph.inputs)}
        roles |= {n: f"output:{k}" for k, n in enumerate(self.graph.outputs)}
        key = f"in-place {render(self.graph)}"
        program = load_program(*build.build(key, [(self.graph, roles)], libs.implement))
        assert program is not None
        return program


def moved(c: Case) -> None:
    """w = w - v * w"""
    c.replace(c.b.elementwise(lambda w, v: w - v * w, c.w, c.v), c.w)


def momentum(c: Case) -> None:
    """Two results of one kernel, both over what it reads."""
    w, v = c.b.elementwise(lambda w, v: (w - 2 * (v + w), v + w), c.w, c.v)
    c.replace(w, c.w)
    c.replace(v, c.v)


def chained(c: Case) -> None:
    """The new v is read again, the old one is not."""
    v = c.replace(c.b.elementwise(lambda v, w: v + w, c.v, c.w), c.v)
    c.replace(c.b.elementwise(lambda w, v: w - v, c.w, v), c.w)


def read_first(c: Case) -> None:
    """A reader that was added later runs before."""
    c.replace(c.b.elementwise(lambda w: 2 * w, c.w), c.w)
    c.graph.add_output(c.b.reduce("sum", None, c.w, axes=(0,)))


def filled(c: Case) -> None:
    """Nothing of the old value is read."""
    c.replace(c.b.elementwise(lambda v: v + 1, c.v), c.w)


def after_a_check(c: Case) -> None:
    """A gather may find a wrong index: it runs before."""
    c.replace(c.b.elementwise(lambda w: w + 1, c.w), c.w)
    c.graph.add_operator("Gather", [c.v, c.index], [y := c.graph.add_array("y", (N,), dace.float32)], {"axis": 0})
    c.graph.add_output(y)
    lower(c.graph)


def swapped(c: Case) -> None:
    """Each takes the place of what the other reads."""
    c.replace(c.b.elementwise(lambda v: v + 1, c.v), c.w)
    c.replace(c.b.elementwise(lambda w: w + 2, c.w), c.v)


def reversed_(c: Case) -> None:
    """Element i is computed from another one."""
    view = c.graph.add_view(c.w, "back", (N,), (-1,), N - 1)
    c.replace(c.b.elementwise(lambda w, r: w + r, c.w, view), c.w)


def summed(c: Case) -> None:
    """Every element needs all of the old ones."""
    total = c.b.reduce("sum", None, c.w, axes=(0,))
    c.replace(c.b.elementwise(lambda v, t: v * t, c.v, total), c.w)


def returned(c: Case) -> None:
    """The old value is a result, too."""
    c.replace(c.b.elementwise(lambda w: w + 1, c.w), c.w)
    c.graph.add_output(c.b.copy(c.w))


def checked_later(c: Case) -> None:
    """What may fail needs the new value: it cannot run before."""
    w = c.replace(c.b.elementwise(lambda w: w + 1, c.w), c.w)
    c.graph.add_operator("Gather", [w, c.index], [y := c.graph.add_array("y", (N,), dace.float32)], {"axis": 0})
    c.graph.add_output(y)
    lower(c.graph)


def updated_rows(c: Case, updates: str | None = None, sure: bool = True) -> None:
    """A call replaces what is at some places; another node has looked at these."""
    out = c.graph.add_array("rows", (N,), dace.float32)
    operands = [c.w, c.index, updates or c.v]
    algorithm.call(c.b, "scatter_rows", operands, [out], [N, 1, N, 0], updating=True, sure=sure)
    c.replace(out, c.w)


def rows_of_itself(c: Case) -> None:
    """The call reads elsewhere what it writes over."""
    updated_rows(c, updates=c.w)


def unsure_rows(c: Case) -> None:
    """The call itself may find a wrong place."""
    updated_rows(c, sure=False)


def lower(graph: Graph) -> None:
    from daceopt import ops

    ops.lower_all(graph)


CASES: list[tuple[Callable[[Case], None], int]] = [
    (moved, 1),
    (momentum, 2),
    (chained, 2),
    (read_first, 1),
    (filled, 1),
    (after_a_check, 1),
    (summed, 1),
    (returned, 1),
    (updated_rows, 1),
    (swapped, 1),  # one of them has to wait for the other
    (rows_of_itself, 0),
    (unsure_rows, 0),
    (reversed_, 0),
    (checked_later, 0),
]


@pytest.mark.parametrize(("make", "count"), CASES, ids=lambda x: getattr(x, "__name__", ""))
def test_what_is_written_in_place_and_what_comes_of_it(make: Callable[[Case], None], count: int) -> None:
    case, twin = Case(), Case()
    make(case)
    make(twin)
    assert len(case.decide()) == count
    twin.graph.replaced = {}
    rng = np.random.default_rng(0)
    given = {"input:0": rng.standard_normal(N, np.float32), "input:1": rng.standard_normal(N, np.float32)}
    given["input:2"] = rng.integers(0, N, N)
    program, plain = case.built(), twin.built()
    assert sum(t.in_place is not None for t in program.manifest.outputs) == count
    found, expected = trial.run(program, given).outputs, trial.run(plain, given).outputs
    for role, value in expected.items():
        np.testing.assert_array_equal(found[role], value)


def test_a_program_that_fails_has_changed_nothing() -> None:
    case = Case()
    after_a_check(case)
    program = case.built()
    w, v, index = np.ones(N, np.float32), np.ones(N, np.float32), np.full(N, N)
    y, arena = np.empty(N, np.float32), np.empty(program.sizes().arena, np.uint8)
    addresses = [w.ctypes.data, v.ctypes.data, index.ctypes.data, 0, y.ctypes.data, 0, arena.ctypes.data, 0]
    with pytest.raises(RunError, match="index is out of range"):
        program.run(addresses)
    np.testing.assert_array_equal(w, 1)
    index[:] = 0
    program.run(addresses)
    np.testing.assert_array_equal(w, 2)


def test_a_failure_after_the_first_change_is_told_apart() -> None:
    program = Case()
    moved(program)
    built = program.built()
    with pytest.raises(ArgumentsChanged, match="while it wrote its arguments"):
        built._fail(CHANGED)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of what Dynamo imports
@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.Adam], ids=["sgd", "adam"])
def test_a_compiled_optimizer_writes_parameters_and_state_in_place(kind: type[torch.optim.Optimizer]) -> None:
    from daceopt.modules import backend

    made: list[backend.CompiledGraph] = []

    class Noted(backend.CompiledGraph):
        def __init__(self, *args: object, **kwargs: object) -> None:
            super().__init__(*args, **kwargs)  # type: ignore[arg-type]
            made.append(self)

    options = {"momentum": 0.9} if kind is torch.optim.SGD else {"foreach": True}
    ours, theirs = (nn.Parameter(torch.ones(5, 3)) for _ in range(2))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(backend, "CompiledGraph", Noted)
        one, other = kind([ours], lr=0.1, **options), kind([theirs], lr=0.1, **options)  # type: ignore[call-arg]
        step = torch.compile(one.step, backend="daceopt")
        for k in range(4):
            ours.grad = torch.full_like(ours, k)
            theirs.grad = torch.full_like(theirs, k)
            step()
            other.step()
            torch.testing.assert_close(ours, theirs)
    outputs = made[-1].pair.forward.manifest.outputs
    assert outputs and all(t.in_place is not None for t in outputs)


class Cache(nn.Module):
    """Keys of a sequence, to which each call adds those of its tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("keys", torch.zeros(2, 3, 64, 16))

    def forward(self, x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        self.keys.index_copy_(2, at, x)
        return torch.softmax(x @ self.keys.transpose(-1, -2), -1) @ self.keys


class Indexed(Cache):
    def forward(self, x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        self.keys[:, :, at] = x
        return torch.softmax(x @ self.keys.transpose(-1, -2), -1) @ self.keys


@pytest.mark.parametrize("kind", [Cache, Indexed])
def test_rows_of_a_cache_are_written_where_it_is(kind: type[Cache], monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing else of it moves, and a wrong place is eager PyTorch's error."""
    places = []
    decide = in_place.decide
    monkeypatch.setattr(in_place, "decide", lambda *args: places.append(decide(*args)) or places[-1])
    ours, theirs = optimized_module(kind(), recipe="cpu", fallback="raise"), kind()
    with torch.no_grad():
        for at in ([0, 1], [63, 5]):
            x = torch.randn(2, 3, 2, 16)
            torch.testing.assert_close(ours(x, torch.tensor(at)), theirs(x, torch.tensor(at)))
            torch.testing.assert_close(ours.keys, theirs.keys, rtol=0, atol=0)
        assert [len(p) for p in places] == [1]
        for module in (ours, theirs):
            with pytest.raises(IndexError, match="out of bounds"):
                module(x, torch.tensor([0, 64]))
    torch.testing.assert_close(ours.keys, theirs.keys, rtol=0, atol=0)


class Sliced(Cache):
    def forward(self, x: torch.Tensor, start: int) -> torch.Tensor:
        self.keys[:, :, start : start + 2] = x
        return self.keys[:, :, : start + 2].sum(2)


def test_a_slice_of_a_cache_is_written_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """From its second value on the start is a size, and one program writes at all places."""
    places = []
    decide = in_place.decide
    monkeypatch.setattr(in_place, "decide", lambda *args: places.append(decide(*args)) or places[-1])
    ours, theirs = optimized_module(Sliced(), recipe="cpu", fallback="raise"), Sliced()
    with torch.no_grad():
        for start in (3, 17, 50):
            x = torch.randn(2, 3, 2, 16)
            torch.testing.assert_close(ours(x, start), theirs(x, start))
            torch.testing.assert_close(ours.keys, theirs.keys, rtol=0, atol=0)
    assert [len(p) for p in places] == [1, 1]


def test_lifted_tensors_are_without_gradient_where_none_is_recorded() -> None:
    graph = torch.fx.Graph()
    held = nn.Parameter(torch.ones(2))
    module = nn.Module()
    module.held = held
    node = graph.get_attr("held")
    node.meta["example_value"] = held
    graph.output((graph.call_function(torch.neg, (node,)),))
    with torch.no_grad():
        found, tensors = lifting.lift_tensors(torch.fx.GraphModule(module, graph))
    (argument,) = (n for n in found.graph.nodes if n.op == "placeholder")
    assert not argument.meta["example_value"].requires_grad and not tensors[0].requires_grad
    assert tensors[0].data_ptr() == held.data_ptr()


def test_the_text_of_a_graph_says_what_is_replaced() -> None:
    case = Case()
    momentum(case)
    assert read_back(case.graph).replaced == {0: case.w, 1: case.v}
    with pytest.raises(GraphTextError, match="an input and the position of an output"):
        parse(render(case.graph).replace("by output 1", "by output 2"))


def test_tensors_of_inference_mode_are_written_in_that_mode_alone() -> None:
    with torch.inference_mode():
        module = optimized_module(nn.BatchNorm1d(4), fallback="raise")
        module(torch.ones(5, 4))
    assert module.num_batches_tracked == 1
    with pytest.raises(RuntimeError, match="Inplace update to inference tensor"):
        module(torch.ones(5, 4))
    assert module.num_batches_tracked == 1
