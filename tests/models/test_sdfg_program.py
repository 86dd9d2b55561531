"""``from_sdfg``: programs of DaCe as callables with gradients."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch

import daceopt
from daceopt.errors import DaceoptError
from tests.capture.dace import programs


def reference(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    weights = torch.exp(q @ k.T - (q @ k.T).max())
    return weights @ v / weights.sum()


def operands(n: int, m: int, gradient: bool = False) -> list[torch.Tensor]:
    return [torch.randn(*s, dtype=torch.float64, requires_grad=gradient) for s in ((n, 8), (m, 8), (m, 8))]


@pytest.fixture(scope="module")
def attention() -> daceopt.models.sdfg_program.SdfgProgram:
    return daceopt.from_sdfg(programs.attention, "cpu", verify="numerics")


def test_sizes_are_those_of_each_call(attention) -> None:
    assert (attention.input_names, attention.output_names) == (["q", "k", "v"], ["__return"])
    for n, m in ((3, 5), (1, 1), (6, 2)):
        q, k, v = operands(n, m)
        torch.testing.assert_close(attention(q, k, v=v), reference(q, k, v))
        found = attention(q.numpy(), k.numpy(), v.numpy())
        assert isinstance(found, np.ndarray) and np.allclose(found, reference(q, k, v))


def test_gradients_are_those_of_pytorch(attention) -> None:
    ours, theirs = operands(4, 6, gradient=True), operands(4, 6, gradient=True)
    for a, b in zip(ours, theirs):
        b.data.copy_(a.data)
    attention(*ours).pow(2).sum().backward()
    reference(*theirs).pow(2).sum().backward()
    for a, b in zip(ours, theirs):
        torch.testing.assert_close(a.grad, b.grad)


def test_only_what_requires_a_gradient_gets_one(attention) -> None:
    q, k, v = operands(2, 3)
    v.requires_grad_()
    attention(q, k, v).sum().backward()
    assert q.grad is None and v.grad is not None
    with torch.no_grad():
        assert not attention(q, k, v).requires_grad


def test_arguments_stay_and_their_new_values_are_returned() -> None:
    program = daceopt.from_sdfg(programs.stencil, "cpu", sizes={"T": 2})
    a, b = np.arange(6.0), np.ones(6)
    new = program(a, b)
    assert program.output_names == ["a", "b"] and len(new) == 2
    np.testing.assert_array_equal(a, np.arange(6.0))
    for _ in range(2):
        b[1:-1] = 0.33333 * (a[:-2] + a[1:-1] + a[2:])
        a[1:-1] = 0.33333 * (b[:-2] + b[1:-1] + b[2:])
    np.testing.assert_allclose(new[0], a)
    np.testing.assert_allclose(new[1], b)


def test_files_and_graphs_and_threads(tmp_path: Path, attention) -> None:
    file = tmp_path / "program.sdfg"
    programs.attention.to_sdfg().save(str(file))
    program = daceopt.from_sdfg(file, "cpu")
    q, k, v = operands(3, 4)
    expected = reference(q, k, v)
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: program(q, k, v), range(8)))
    for each in found:
        torch.testing.assert_close(each, expected)
    assert program.history and type(program.sdfg).__name__ == "SDFG"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda q, k, v: (q, k), r"expected the inputs \['q', 'k', 'v'\], by position or by name; got 2"),
        (lambda q, k, v: (q, k[:-1], v), r"input 'v', axis 0: expected 4 \(s1\), got 5"),
        (lambda q, k, v: (q[:, :3], k, v), "input 'q', axis 1: expected 8, got 3"),
        (lambda q, k, v: (q.float(), k, v), "input 'q': expected torch.float64 of shape .*, got torch.float32"),
        (lambda q, k, v: ("q", k, v), "input 'q': expected torch.float64"),
    ],
)
def test_wrong_arguments(attention, change, message: str) -> None:
    with pytest.raises(DaceoptError, match=message):
        attention(*change(*operands(3, 5)))


def test_names_that_are_nearly_right(attention) -> None:
    q, k, v = operands(3, 5)
    with pytest.raises(DaceoptError, match="did you mean 'v'"):
        attention(q, k, vv=v)
    with pytest.raises(DaceoptError, match="from_sdfg takes a @dace.program, an SDFG or a file of one, not int"):
        daceopt.from_sdfg(3)
    with pytest.raises(DaceoptError, match="there is no file"):
        daceopt.from_sdfg("nowhere.sdfg")


def test_numbers_and_recipes() -> None:
    """A bare number where the program takes one; a transformation of DaCe in the recipe."""
    recipe = daceopt.recipes.get("cpu").before("map-fusion", "dace:MapFusion")
    program = daceopt.from_sdfg(programs.several, recipe, verify="numerics")
    a = np.arange(20, dtype=np.float32).reshape(4, 5)
    rows, largest = program(a, 3)
    np.testing.assert_allclose(rows, (3 * a).sum(1))
    np.testing.assert_allclose(largest, (3 * a).max(0))
