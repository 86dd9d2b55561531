"""Calls of ATen that wait for their derivative are written with the graph, and read back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from daceopt.capture.torch import call_text
from daceopt.capture.torch.calls import AtenCall
from daceopt.errors import GraphTextError, Unsupported
from daceopt.ir.graph.graph import Graph
from daceopt.ir.text.parse import parse
from daceopt.ir.text.render import render
from tests.ir.graph_text_checking import assert_same_results, read_back
from tests.ir.text.test_parse import feeds
from tests.models.test_graph_text import graphs

CASES: dict[str, tuple[Callable[..., torch.Tensor], tuple[Any, ...]]] = {
    "entr": (lambda x: torch.special.entr(x.exp()), ((3, 4),)),
    "renorm": (lambda x: torch.renorm(x, 2, 0, 1.0), ((3, 4),)),
    "logcumsumexp": (lambda x: torch.logcumsumexp(x, -1), ((3, 4),)),
}


class Function(torch.nn.Module):
    def __init__(self, fn: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        self.fn = fn

    def forward(self, *args: torch.Tensor) -> torch.Tensor:
        return self.fn(*args)


def imported(name: str, monkeypatch: pytest.MonkeyPatch, dynamic: bool = False) -> Graph:
    fn, shapes = CASES[name]
    args = [torch.randn(*shape, requires_grad=True) for shape in shapes]
    return graphs(Function(fn), args, {}, monkeypatch, dynamic=dynamic)[0]


@pytest.mark.parametrize("name", CASES)
def test_calls_are_read_back(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = imported(name, monkeypatch)
    calls = [n for n in graph.operators() if n.domain == "aten"]
    found = read_back(graph)
    assert_same_results(graph, found, feeds(graph))
    assert calls, "nothing was kept whole"
    for node in found.operators():
        if node.domain == "aten":
            assert isinstance(node.attributes["call"], AtenCall)


def test_open_sizes_have_no_text(monkeypatch: pytest.MonkeyPatch) -> None:
    torch._dynamo.reset()
    graph = imported("renorm", monkeypatch, dynamic=True)
    with pytest.raises(GraphTextError, match="one that it cannot: no text for a call of ATen with open sizes"):
        parse(render(graph))


GOOD: list[Any] = [
    "aten::roll.default",
    [["self", ["operand", 0]]],
    [["float32", [2], [1]]],
    [["float32", [2], [1]]],
    0,
]
WRONG = [
    ("aten::nothing_of_this_name.default", *GOOD[1:]),
    ("os.system", *GOOD[1:]),
    (GOOD[0], [["self", ["eval", "x"]]], *GOOD[2:]),
    (GOOD[0], [["self", ["torch", "load"]]], *GOOD[2:]),
    (GOOD[0], GOOD[1], [["float32", [-2], [1]]], *GOOD[3:]),
    (GOOD[0], GOOD[1], [["os", [2], [1]]], *GOOD[3:]),
    (GOOD[0], GOOD[1], [None], *GOOD[3:]),
    GOOD[:3],
    "text",
    None,
]


@pytest.mark.parametrize("found", WRONG, ids=range(len(WRONG)))
def test_what_is_no_call_is_refused(found: Any) -> None:
    assert call_text.read(GOOD).target is torch.ops.aten.roll.default
    with pytest.raises(Unsupported, match="expected a call of ATen, found"):
        call_text.read(found)
