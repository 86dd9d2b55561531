"""What reading back must give: the same text, the same arrays, statements and schedules, the same results."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from daceopt.ir.control import region
from daceopt.ir.graph.graph import Graph
from daceopt.ir.interpreter.interpret import interpret
from daceopt.ir.text.parse import parse
from daceopt.ir.text.render import render


def read_back(graph: Graph) -> Graph:
    """``graph`` written and read; equal in text and in structure, and valid."""
    large: dict[str, np.ndarray] = {}
    text = render(graph, large)
    found = parse(text, large)
    assert render(found) == text
    found.validate()
    for ours, theirs in zip(region.everything(graph), region.everything(found), strict=True):
        _assert_same_arrays(ours, theirs)
        _assert_same_nodes(ours, theirs)
    return found


def _assert_same_arrays(ours: Graph, theirs: Graph) -> None:
    assert (ours.inputs, ours.outputs, ours.saved) == (theirs.inputs, theirs.outputs, theirs.saved)
    assert ours.replaced == theirs.replaced
    assert sorted(ours.arrays()) == sorted(theirs.arrays())
    assert (ours.symbols, ours.assumptions, ours.options) == (theirs.symbols, theirs.assumptions, theirs.options)
    assert set(ours.size_names) == set(theirs.size_names)
    for name in ours.arrays():
        layouts = [(g.shape(name), g.strides(name), g.dtype(name), g.is_transient(name)) for g in (ours, theirs)]
        assert layouts[0] == layouts[1], name
        assert ours.desc(name).total_size == theirs.desc(name).total_size
        assert (ours.is_view(name), ours.root(name)) == (theirs.is_view(name), theirs.root(name))
        assert ours.origins.get(name) == theirs.origins.get(name)
        assert ours.source.names.get(name) == theirs.source.names.get(name)
    for name, value in ours.constants.items():
        assert value.dtype == theirs.constants[name].dtype
        assert value.tobytes() == theirs.constants[name].tobytes(), name


def _assert_same_nodes(ours: Graph, theirs: Graph) -> None:
    for node, twin in zip(ours.nodes(), theirs.nodes(), strict=True):
        assert type(node) is type(twin) and node.label == twin.label
        assert ours.inputs_of(node) == theirs.inputs_of(twin)
        assert ours.outputs_of(node) == theirs.outputs_of(twin)
        if node in ours.kernels():
            assert node.kernel == twin.kernel
        elif not hasattr(node, "op_type"):
            assert ours.reads(node) == theirs.reads(twin) and ours.writes(node) == theirs.writes(twin)


def assert_same_results(graph: Graph, found: Graph, inputs: Mapping[str, np.ndarray]) -> None:
    """To the last bit, in the graph's own types and in float64."""
    for dtype in (None, np.float64):
        with np.errstate(all="ignore"):
            ours, theirs = interpret(graph, inputs, dtype), interpret(found, inputs, dtype)
        for name in ours:
            assert ours[name].dtype == theirs[name].dtype
            assert ours[name].tobytes() == theirs[name].tobytes(), name
