"""Programs that are for some sizes alone: which calls they run, and what becomes of the others."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import daceopt
from daceopt.errors import DaceoptError, RunError
from daceopt.runtime.manifest import Assumption, Manifest, Symbol

TABLE = np.random.default_rng(0).standard_normal((1, 8, 3)).astype(np.float32)
POSITIONS = "length = Shape <start = 1, end = 2> (x)  rows = Slice (table, zero, length, one)  y = Add (x, rows)"


def model(nodes: str, declared: str = "") -> onnx.ModelProto:
    made = onnx.parser.parse_model(
        f'<ir_version: 9, opset_import: ["": 18]> g (float[B,S,3] x) => (float[B,S,3] y) {declared} {{'
        "zero = Constant <value = int64[1] {0}> ()  one = Constant <value = int64[1] {1}> ()"
        f"two = Constant <value = int64[1] {{2}}> ()  far = Constant <value = int64[1] {{9223372036854775807}}> ()"
        f"{nodes}}}"
    )
    made.graph.initializer.append(onnx.numpy_helper.from_array(TABLE, "table"))
    return made


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[onnx.ModelProto]:
    """The models for which a program was made."""
    from daceopt import pipeline

    found: list[onnx.ModelProto] = []
    original = pipeline.compile_model

    def compile_model(made, **options):
        pair = original(made, **options)
        found.append(made)
        return pair

    monkeypatch.setattr(pipeline, "compile_model", compile_model)
    return found


def batch(count: int, length: int) -> np.ndarray:
    return np.random.default_rng(length).standard_normal((count, length, 3)).astype(np.float32)


@pytest.mark.parametrize(
    ("nodes", "declared", "assumption", "longest", "expected"),
    [
        (POSITIONS, "", "s1 <= 8", 8, lambda n: TABLE[:, :n]),
        (POSITIONS, "<float[1,S,3] rows>", "s1 <= 8", 8, lambda n: TABLE[:, :n]),
        (
            "n = Shape <start = 1, end = 2> (x)  e = Add (n, two)  t = Slice (table, two, e, one)  y = Add (x, t)",
            "",
            "s1 <= 6",
            6,
            lambda n: TABLE[:, 2 : 2 + n],
        ),
        (
            "n = Shape <start = 1, end = 2> (x)  e = Add (n, n)  t = Slice (table, zero, e, one, two)  y = Add (x, t)",
            "",
            "2*s1 <= 8",
            4,
            lambda n: TABLE[:, : 2 * n : 2],
        ),
        (
            "n = Shape <start = 1, end = 2> (x)  s = Neg (n)  t = Slice (table, s, far, one)  y = Add (x, t)",
            "",
            "s1 <= 8",
            8,
            lambda n: TABLE[:, -n:],
        ),
    ],
)
def test_rows_of_a_table(compiled, nodes: str, declared: str, assumption: str, longest: int, expected) -> None:
    """One program up to the end of the table; a longer call is the error that the model deserves."""
    optimized = daceopt.from_onnx(model(nodes, declared=declared), recipe="none", fallback=False)
    assert assumption in map(str, optimized.pair.forward.manifest.assumptions)
    for count, length in ((2, 3), (1, longest), (3, 2)):
        x = batch(count, length)
        np.testing.assert_array_equal(optimized(x), x + expected(length))
    for _ in range(2):
        with pytest.raises(DaceoptError, match="does not fit these values and sizes"):
            optimized(batch(1, longest + 1))
    assert len(compiled) == 1


def test_sizes_beyond_get_programs_of_their_own(compiled) -> None:
    """One is the row at the front of an empty sequence, too: it is not there."""
    nodes = "h = Slice (x, zero, one, one)  r = Slice (x, one, far, one)  c = Concat <axis = 1> (h, r)  y = Add (c, x)"
    optimized = daceopt.from_onnx(model(nodes), recipe="none", fallback=False)
    for length, programs in ((3, 1), (1, 1), (0, 2), (5, 2), (0, 2)):
        x = batch(2, length)
        np.testing.assert_array_equal(optimized(x), x + x)
        assert len(compiled) == programs


def test_what_is_cut_on_purpose_needs_no_assumption(compiled) -> None:
    nodes = "e = Add (two, two)  t = Slice (x, zero, e, one)  y = Relu (t)"
    made = model(nodes)
    made.graph.output[0].type.tensor_type.shape.dim[1].dim_param = "N"
    optimized = daceopt.from_onnx(made, recipe="none", fallback=False)
    for length in (2, 4, 7):
        x = batch(2, length)
        np.testing.assert_array_equal(optimized(x), np.maximum(x[:, :4], 0))
    assert len(compiled) == 1
    assert not optimized.pair.forward.manifest.assumptions


def test_explain_says_for_which_sizes_a_program_is() -> None:
    report = daceopt.explain(model(POSITIONS), batch(2, 3), recipe="none", measure=False)
    assert "valid for s1 <= 8" in report.notes


def test_a_program_does_not_run_for_other_sizes() -> None:
    optimized = daceopt.from_onnx(model(POSITIONS), recipe="none", fallback=False)
    with pytest.raises(RunError, match="is for sizes with s1 <= 8"):
        optimized.pair.forward.sizes((1, 9))


def test_assumptions_are_plain_json() -> None:
    assumption = Assumption(((1, ("a",)), (-2, ("a", "b")), (30, ())))
    symbols = tuple(Symbol(name, "input:0", k) for k, name in enumerate("ab"))
    manifest = Manifest.from_json(Manifest("m", symbols=symbols, assumptions=(assumption,)).to_json())
    assert manifest.assumptions == (assumption,)
    assert str(assumption) == "2*a*b <= a + 30"
    assert manifest.violations((3, 5)) == []
    assert manifest.violations((3, 6)) == [assumption]
