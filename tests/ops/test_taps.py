"""Weighted taps along axes, against the dense matrices that they stand for, in both directions."""

from __future__ import annotations

import numpy as np
import pytest

from daceopt.ir.graph.graph import Graph
from daceopt.ir.interpreter.interpret import interpret
from daceopt.ir.scalar import types
from daceopt.ops.core import registry
from daceopt.ops.families import taps
from daceopt.ops.families.interpolation import Table

_FLOAT = types.from_name("float64")
_MEANS = Table(np.array([[0, 1], [1, 2], [2, 3]]), np.array([[0.5, 0.5], [0.25, 0.75], [1.0, 0.0]]), None)
_TWICE = Table(np.repeat(np.arange(3), 2)[:, None], None, None)
_FEWER = Table(np.array([[2], [0]]), None, None)


def _matrix(table: Table, extent: int) -> np.ndarray:
    matrix = np.zeros((len(table.index), extent))
    weight = np.ones(table.index.shape) if table.weight is None else table.weight
    np.add.at(matrix, (np.arange(len(matrix))[:, None], table.index), weight)
    return matrix


TABLES = {"repeated": {1: _TWICE}, "picked": {1: _FEWER}, "weighted": {0: _MEANS}, "both": {0: _MEANS, 1: _FEWER}}


def _graph(tables: dict[int, Table]) -> tuple[Graph, str, str]:
    graph = Graph("taps")
    x = graph.add_input("x", (4, 3), _FLOAT)
    shape = [len(tables[k].index) if k in tables else n for k, n in enumerate((4, 3))]
    y = graph.add_array("y", shape, _FLOAT)
    graph.add_operator("Taps", [x], [y], taps.attributes(tables), taps.DOMAIN)
    graph.outputs = [y]
    return graph, x, y


@pytest.mark.parametrize("name", TABLES)
def test_taps_are_a_matrix(name: str) -> None:
    tables = TABLES[name]
    graph, x, y = _graph(tables)
    registry.lower_all(graph)
    values = np.linspace(-1, 2, 12).reshape(4, 3)
    left = _matrix(tables[0], 4) if 0 in tables else np.eye(4)
    right = _matrix(tables[1], 3) if 1 in tables else np.eye(3)
    np.testing.assert_allclose(interpret(graph, {x: values})[y], left @ values @ right.T, rtol=1e-14)
