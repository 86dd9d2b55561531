"""An absent operand is an error where it is asked for, never an array called "None"."""

from __future__ import annotations

import copy
import re
from pathlib import Path

import dace
import pytest

import daceopt
from daceopt import ops
from daceopt.errors import Unsupported
from daceopt.ir.graph.graph import Graph
from daceopt.ir.graph.operands import Operands, all_required, require
from daceopt.ir.graph.operator import make

FOLDERS = ("ops", "autodiff", "libs", "ir", "transformations")
# names of operands turned into text: "None" for an absent one
TEXT = re.compile(
    r"str\((?:\w+\.)*(?:inputs|outputs|inputs_of\(\w+\)|outputs_of\(\w+\)|grads_out)\[|map\(str, (?:in|out)puts"
    r"|required\((?:\w+\.)*(?:in|out)puts_of\(\w+\)"
)


def test_operands_are_asked_for_by_position() -> None:
    names = Operands(["a", None, "c"], make("Clip", "", 3, 1, {}), "input")
    assert require(names, 0) == "a"
    assert require(names, -1) == "c"
    assert all_required(["a", "b"]) == ["a", "b"]
    assert all_required(names, 1) == ["a"]
    for position in (1, 3, -2, -4):
        with pytest.raises(Unsupported, match=rf"operand {position} of inputs of Clip 'Clip' is absent"):
            require(names, position)
    with pytest.raises(Unsupported, match="operand 1"):
        all_required(names)
    assert copy.deepcopy(names) == names


def test_a_graph_is_asked_by_position() -> None:
    graph = Graph("asked")
    x, y = graph.add_input("x", (3,), dace.float32), graph.add_array("y", (3,), dace.float32)
    node = graph.add_operator("Clip", [x, None, x], [y])
    assert (graph.operand(node, 0), graph.operand(node, 2), graph.result(node, 0)) == (x, x, y)
    assert graph.operands(node, 1) == [x]
    for ask in (lambda: graph.operand(node, 1), lambda: graph.operands(node), lambda: graph.operands(node, 2)):
        with pytest.raises(Unsupported, match=r"operand 1 of inputs of Clip 'Clip' is absent.*given are .*'absent'"):
            ask()
    with pytest.raises(Unsupported, match="operand 1 of outputs of Clip"):
        graph.result(node, 1)


def test_a_rule_that_asks_for_an_absent_operand_says_so() -> None:
    graph = Graph("absent")
    x = graph.add_input("x", (3,), dace.float32)
    y = graph.add_array("y", (3,), dace.float32)
    node = graph.add_operator("Mod", [x, None], [y])
    assert (graph.inputs_of(node), graph.outputs_of(node)) == ([x, None], [y])
    with pytest.raises(Unsupported, match=r"operand 1 of inputs of Mod .* is absent.*given are .*'absent'"):
        require(graph.inputs_of(node), 1)
    other = graph.add_operator("TensorScatter", [x, None, None], [graph.add_array("z", (3,), dace.float32)])
    with pytest.raises(Unsupported, match="operand 1 of inputs of TensorScatter"):
        ops.why_unsupported(graph, other)


def test_no_rule_turns_an_operand_into_text() -> None:
    root = Path(daceopt.__file__).parent
    files = [f for folder in FOLDERS for f in sorted((root / folder).rglob("*.py"))]
    found = [f"{f.name}: {line.strip()}" for f in files for line in f.read_text().splitlines() if TEXT.search(line)]
    found = [line for line in found if not line.startswith("dataflow_graph.py: return")]
    assert not found, "use graph.operand, graph.result or daceopt.ir.graph.operands.require"
