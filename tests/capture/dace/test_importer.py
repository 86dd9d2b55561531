"""Programs of DaCe's frontend as graphs: executed beside NumPy, and refused with the state and the node."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import dace
import numpy as np
import pytest

import daceopt.ops  # noqa: F401  (how nodes are executed)
from daceopt.capture.dace.importer import import_sdfg
from daceopt.errors import Unsupported
from daceopt.ir.interpreter.interpret import interpret
from tests.capture.dace import programs

RANDOM = np.random.default_rng(0)


def run(program: Any, arguments: Mapping[str, Any], sizes: Mapping[str, int] | None = None) -> dict[str, np.ndarray]:
    """The results by their names."""
    found = import_sdfg(program.to_sdfg(simplify=False), sizes)
    found.graph.validate()
    feeds = {array: np.asarray(arguments[name]) for array, name in zip(found.graph.inputs, found.inputs, strict=True)}
    done = interpret(found.graph, feeds)
    return {name: done[array] for name, array in zip(found.outputs, found.graph.outputs, strict=True)}


def close(found: Mapping[str, np.ndarray], **expected: np.ndarray) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-5, atol=1e-6)


def floats(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    return RANDOM.standard_normal(shape).astype(dtype)


@pytest.mark.parametrize(("n", "m"), [(3, 5), (1, 1), (7, 2)])
def test_products_and_reductions_of_any_size(n: int, m: int) -> None:
    q, k, v = floats(n, 8, dtype=float), floats(m, 8, dtype=float), floats(m, 8, dtype=float)
    weights = np.exp(q @ k.T - (q @ k.T).max())
    close(run(programs.attention, {"q": q, "k": k, "v": v}), __return=weights @ v / weights.sum())


def test_arguments_that_are_written_in_part_over_and_over() -> None:
    a, b = floats(9, dtype=float), floats(9, dtype=float)
    found = run(programs.stencil, {"a": a, "b": b}, {"T": 3})
    a, b = a.copy(), b.copy()
    for _ in range(3):
        b[1:-1] = 0.33333 * (a[:-2] + a[1:-1] + a[2:])
        a[1:-1] = 0.33333 * (b[:-2] + b[1:-1] + b[2:])
    close(found, a=a, b=b)


def test_conflict_resolutions_add_to_what_stands_there() -> None:
    a, out = floats(4, 6), floats(4)
    found = run(programs.histogram_rows, {"a": a, "out": out})
    close(found, out=out + np.where(a > 0, a * a, np.exp(a)).sum(1))


def test_boxes_and_single_elements() -> None:
    a, out = floats(6, 7), floats(6, 7)
    expected = out.copy()
    expected[1:4, 2:5], expected[5, 0] = a[0:3, 4:7] * 2, a[0, 0]
    close(run(programs.corner, {"a": a, "out": out}), out=expected)


def test_elements_that_an_index_chooses() -> None:
    a, k = floats(9), np.array([3, 0, 8, 8, 1])
    close(run(programs.gathered, {"a": a, "k": k}), __return=a[k])


def test_several_results_and_a_number() -> None:
    a = floats(4, 5)
    found = run(programs.several, {"a": a, "scale": np.float32(2)})
    close(found, __return_0=(2 * a).sum(1), __return_1=(2 * a).max(0))


def test_products_with_zero_are_those_of_floats() -> None:
    x = np.array([1, -1, np.inf, -np.inf, np.nan])
    found = run(programs.nothing, {"x": x})
    with np.errstate(invalid="ignore"):
        for name, zero in (("zero", 0.0), ("negative", -0.0), ("whole", 0)):
            np.testing.assert_array_equal(found[name], x * zero)
            assert (np.signbit(found[name]) == np.signbit(x * zero))[:2].all(), name


def test_quotients_of_integers_are_python_s() -> None:
    a = np.array([-7, -1, 4, 5], np.int32)
    close(run(programs.whole_quotient, {"a": a}), __return=a // 2 + a % 3)


REFUSED = {
    "branching": "is left by .*it is a loop whose bounds are no numbers, or a choice",
    "looping": "loop|sequential|several",
    "triangular": "is no rectangle: .* depends on a map around it",
    "strided": "DaCe's frontend loses the step of a slice",
    "stencil": "symbol 'T'|a loop whose bounds are no numbers",
    "inverse": "library node Inv .* is not known; known are .*MatMul|is not supported",
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(name: str) -> None:
    with pytest.raises(Unsupported, match=REFUSED[name]) as caught:
        import_sdfg(getattr(programs, name).to_sdfg(simplify=False))
    assert "state" in str(caught.value)


def test_a_size_that_the_program_does_not_have() -> None:
    with pytest.raises(Unsupported, match=r"the program has no symbol 'Q'; it has \['M', 'N'\]"):
        import_sdfg(programs.attention.to_sdfg(), {"Q": 3})


def test_code_that_is_no_python() -> None:
    sdfg = dace.SDFG("cpp")
    sdfg.add_array("a", (4,), dace.float32)
    state = sdfg.add_state("only")
    code = "o = sqrtf(1);"
    tasklet = state.add_tasklet("root", {}, {"o"}, code, dace.Language.CPP)
    state.add_edge(tasklet, "o", state.add_access("a"), None, dace.Memlet("a[0]"))
    with pytest.raises(Unsupported, match="tasklet 'root' is written in CPP; expected Python"):
        import_sdfg(sdfg)
