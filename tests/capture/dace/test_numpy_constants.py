"""Numbers of NumPy in programs of DaCe are written as numbers, whatever NumPy's ``repr`` is."""

from __future__ import annotations

import ast

import numpy as np
import pytest
from dace.codegen import cppunparse
from dace.frontend.python import astutils

from daceopt.capture.dace import importer  # noqa: F401  (installs it)
from tests.capture.dace import programs

NUMBERS = [
    (np.int64(1), "1"),
    (np.uint8(255), "255"),
    (np.float32(0.1), "0.1"),
    (np.float64(1e300), "1e+300"),
    (np.float64(np.inf), "1e309"),
    (np.bool_(True), "True"),
]


@pytest.mark.parametrize(("value", "text"), NUMBERS)
def test_python(value: np.generic, text: str) -> None:
    assert astutils.unparse(ast.Constant(value)) == text


@pytest.mark.parametrize(("value", "text"), NUMBERS[:-1])
def test_cpp(value: np.generic, text: str) -> None:
    assert cppunparse.cppunparse(ast.Constant(value)) == text


def test_first_values_of_loops() -> None:
    sdfg = programs.looping.to_sdfg(simplify=False)
    assert "1" in [value for edge in sdfg.all_interstate_edges() for value in edge.data.assignments.values()]
