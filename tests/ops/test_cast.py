"""Casts between all types, against ml_dtypes and the standard's own rounding."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from daceopt import ops
from daceopt.ir.interpreter.interpret import interpret
from daceopt.ir.scalar import types
from tests.ops.compiled import compiled
from tests.ops.single import lowered, single

NAMES = [types.name_of(t) for t in types.ALL]
VALUES = np.array([0, 1, -1, 2, 3, -2, 1.5, -1.75, 0.3, 6, 7, -8], np.float32)
LARGE = np.array([500, 1e6, -1e6, np.inf, -np.inf, np.nan, 300, 3e38], np.float32)
EIGHT = [n for n in NAMES if n.startswith(("float8_e4", "float8_e5"))]
POWERS = "float8_e8m0fnu"


def executed(x: np.ndarray, target: str, op_type: str = "Cast", **attributes: Any) -> np.ndarray:
    to = types.from_name(target)
    like = np.zeros(x.shape, types.to_numpy(to))
    given = [x, like[:1]] if op_type == "CastLike" else [x]
    more = {} if op_type == "CastLike" else {"to": types.to_onnx(to)}
    graph, feeds = single(op_type, given, like=[like], opset=25, **more, **attributes)
    return interpret(lowered(graph), feeds)[graph.outputs[0]]


def same(found: np.ndarray, wanted: np.ndarray) -> None:
    assert found.dtype == wanted.dtype
    np.testing.assert_array_equal(found.astype(np.float64), wanted.astype(np.float64))


def held(x: np.ndarray, name: str) -> np.ndarray:
    """The values as an array of a type, without those that it cannot hold."""
    dtype = types.to_numpy(types.from_name(name))
    if name.startswith("u") or name == POWERS:
        x = np.abs(x)
    if name == POWERS:
        x = x[x > 0]
    return x.astype(np.int64).clip(-2, 3 if name[-1] != "2" else 1).astype(dtype) if "int" in name else x.astype(dtype)


@pytest.mark.share(5)
@pytest.mark.parametrize("target", NAMES)
@pytest.mark.parametrize("source", NAMES)
def test_every_pair_of_types(source: str, target: str) -> None:
    x = held(VALUES, source)
    wide = x.astype(np.float32)
    if target == POWERS:
        x = x[wide > 0]
        wide = wide[wide > 0]
        wanted = numpy_helper.to_float8e8m0(wide, True, "up").astype(types.to_numpy(types.from_name(target)))
    elif "int" in target:
        bits = {"2": 2, "4": 4}.get(target.removeprefix("u")[3:], 64)
        whole = np.trunc(wide).astype(np.int64)
        top = 1 << (bits - 1)
        whole = (
            whole % (2 * top)
            if target[0] == "u" and bits < 64
            else (whole + top) % (2 * top) - top
            if bits < 64
            else whole
        )
        wanted = whole.astype(types.to_numpy(types.from_name(target)))
    else:
        wanted = wide.astype(types.to_numpy(types.from_name(target)))
    same(executed(x, target), wanted)
    if source == "float32":
        same(executed(x, target, "CastLike"), wanted)


@pytest.mark.parametrize("saturate", [0, 1])
@pytest.mark.parametrize("target", EIGHT)
def test_saturation(target: str, saturate: int) -> None:
    dtype = types.to_numpy(types.from_name(target))
    with np.errstate(all="ignore"):
        wanted = numpy_helper.saturate_cast(LARGE, dtype) if saturate else LARGE.astype(dtype)
    same(executed(LARGE, target, saturate=saturate), wanted)
    same(compiled("Cast", [LARGE], opset=25, to=types.to_onnx(types.from_name(target)), saturate=saturate)[0], wanted)


@pytest.mark.parametrize("saturate", [0, 1])
@pytest.mark.parametrize("mode", ["up", "down", "nearest"])
def test_powers_of_two(mode: str, saturate: int) -> None:
    x = np.concatenate([np.geomspace(1e-39, 3.4e38, 200), [1, 1.5, 3, 2**126 * 1.5, 2**127]]).astype(np.float32)
    x = np.concatenate([x, np.array([3.3e38, np.nan, np.inf], np.float32)])
    dtype = types.to_numpy(types.from_name(POWERS))
    wanted = numpy_helper.to_float8e8m0(x, bool(saturate), mode).astype(dtype)
    same(executed(x, POWERS, saturate=saturate, round_mode=mode), wanted)
    to = onnx.TensorProto.FLOAT8E8M0
    same(compiled("Cast", [x], opset=25, to=to, saturate=saturate, round_mode=mode)[0], wanted)


def test_an_unknown_direction_says_why() -> None:
    graph, _ = single(
        "Cast",
        [VALUES],
        like=[VALUES.astype(types.to_numpy(types.from_name(POWERS)))],
        to=24,
        opset=25,
        round_mode="odd",
    )
    assert "round_mode 'odd'; expected one of up, down, nearest" in str(
        ops.why_unsupported(graph, graph.operators()[0])
    )
