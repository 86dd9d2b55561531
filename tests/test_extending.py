"""Pages on extending daceopt: their examples run, and what they name exists."""

from __future__ import annotations

from pathlib import Path

import dace
import numpy as np
import pytest

from daceopt import ops
from daceopt.autodiff import differentiate
from daceopt.ir.graph.graph import Graph
from daceopt.ir.interpreter.interpret import interpret
from tests.pages import blocks, missing_files, pages, run_block, run_page, workplace

__all__ = ["workplace"]
PAGES = pages("docs/extending")


@pytest.mark.filterwarnings("default")  # PyTorch's exporter warns about itself
@pytest.mark.parametrize("page", PAGES)
def test_the_examples_of_a_page_run(page: str, workplace: Path) -> None:
    run_page(page, workplace)


@pytest.mark.parametrize("page", PAGES)
def test_files_that_a_page_names_exist(page: str) -> None:
    assert not missing_files(page)


def test_the_operator_that_is_shown_and_its_gradient_rule_are_right(workplace: Path) -> None:
    shown = (code for document in PAGES for code in blocks(document, "python") if "CentredMean" in code)
    for number, code in enumerate(shown):
        run_block(code, number, workplace)
    graph = Graph("centred_mean")
    x = graph.add_input("x", (3, 4), dace.float64)
    graph.add_operator("CentredMean", [x], [y := graph.add_array("y", (3, 4), dace.float64)], domain="my.ops")
    graph.add_output(y)
    node = graph.operators()[0]
    assert ops.has_gradient(node)
    derivative = differentiate(graph, [y], [x])
    (given,), (found,) = derivative.grad_outputs.values(), derivative.grad_inputs.values()
    assert found is not None
    backward = derivative.backward
    backward.outputs[:] = [found]
    ops.lower_all(backward)
    dy = np.arange(12.0).reshape(3, 4) ** 2
    np.testing.assert_allclose(interpret(backward, {given: dy})[found], dy - dy.mean(-1, keepdims=True), atol=1e-12)
