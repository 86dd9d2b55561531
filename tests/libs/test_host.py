"""Calls from generated code into Python functions."""

from __future__ import annotations

from collections.abc import Sequence

import dace
import numpy as np
import pytest

from daceopt import libs
from daceopt.errors import Unsupported
from daceopt.ir.graph.graph import Graph
from daceopt.ir.nodes.builder import Builder
from daceopt.ir.nodes.library import HostCall
from daceopt.ir.scalar import types
from daceopt.libs.emission import literal
from tests.libs.harness import RunFailed, compile_graph


def double(payload: str, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray]) -> None:
    assert payload == 'hostile "; system("x"); // \\ \n ü ??/'
    outputs[0][...] = 2 * inputs[0]
    outputs[1][...] = inputs[0].shape[0]


def refuse(payload: str, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray]) -> None:
    raise ValueError(f"not {payload}")


def flip(payload: str, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray]) -> None:
    assert str(inputs[0].dtype) == str(outputs[0].dtype) == payload
    outputs[0][...] = inputs[0][::-1]


def program(callback: str, payload: str):
    graph = Graph("host")
    source = graph.add_input("x", (4, 3), dace.float32)
    x = graph.add_view(source, "x", (3, 4), (1, 3))
    outputs = [graph.add_array("y", (3, 4), dace.float32), graph.add_array("n", (1,), dace.int64)]
    node = HostCall(callback=callback, payload=payload)
    graph.add_node(node, {"In0": x}, {"Out0": outputs[0], "Out1": outputs[1]})
    return compile_graph(graph)


def test_operands_are_views_of_the_program_memory() -> None:
    x, y, n = np.arange(12, dtype=np.float32).reshape(4, 3), np.zeros((3, 4), np.float32), np.zeros(1, np.int64)
    program("tests.libs.test_host:double", 'hostile "; system("x"); // \\ \n ü ??/')(x, y, n)
    np.testing.assert_array_equal(y, 2 * x.T)
    assert n[0] == 3


@pytest.mark.parametrize("name", ["bfloat16", "float16", "float8_e4m3fn", "bool", "uint64"])
def test_arrays_of_any_type_come_as_what_they_are(name: str) -> None:
    """They are not widened: the callback is not ours."""
    dtype = types.from_name(name)
    graph = Graph("host")
    x, y = graph.add_input("x", (3,), dtype), graph.add_array("y", (3,), dtype)
    Builder(graph).library(HostCall, {"In0": x}, {"Out0": y}, callback="tests.libs.test_host:flip", payload=name)
    given, found = np.asarray([0, 1, 3]).astype(types.to_numpy(dtype)), np.zeros(3, types.to_numpy(dtype))
    compile_graph(graph)(given, found)
    assert found.tolist() == given[::-1].tolist()


def test_an_exception_is_reported() -> None:
    x, y, n = np.zeros((4, 3), np.float32), np.zeros((3, 4), np.float32), np.zeros(1, np.int64)
    with pytest.raises(RunFailed, match="test_host:refuse: ValueError: not today"):
        program("tests.libs.test_host:refuse", "today")(x, y, n)


def test_an_unknown_callback_is_refused() -> None:
    with pytest.raises(Unsupported, match=r"expected an importable package\.module:function"):
        program("tests.libs.test_host:absent", "")
    assert libs.get("host").available() is None


def test_literals_are_plain_ascii() -> None:
    assert literal('a"\\\n;é') == '"a\\042\\134\\012\\073\\303\\251"'
