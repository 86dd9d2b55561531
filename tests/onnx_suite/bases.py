"""Models of one operator each, by operator: the suite's, and a few for operators that it leaves out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from daceopt.ir.graph.operator import schema_of
from tests.onnx_suite.cases import cases, is_numeric
from tests.onnx_suite.exclusions import excluded

FLOAT = TensorProto.FLOAT
_SUBGRAPHS = frozenset("If Loop Scan".split())
CHANCE = frozenset("Bernoulli Multinomial RandomNormal RandomNormalLike RandomUniform RandomUniformLike".split())


@dataclass(frozen=True)
class Base:
    """A model of one node, and values for its inputs; ``None`` stands for one that has to be made up."""

    name: str
    model: onnx.ModelProto
    inputs: Sequence[Any]

    @property
    def node(self) -> onnx.NodeProto:
        return self.model.graph.node[0]


@cache
def bases() -> dict[str, list[Base]]:
    """Operator of the default domain -> its models at the newest version of the operator, in a fixed order."""
    found: dict[str, list[Base]] = {}
    for base in (*_of_the_suite(), *_others()):
        found.setdefault(base.node.op_type, []).append(base)
    return found


def base(name: str) -> Base:
    return _by_name()[name]


@cache
def _by_name() -> dict[str, Base]:
    return {b.name: b for group in bases().values() for b in group}


def _of_the_suite() -> list[Base]:
    found = []
    for case in cases().values():
        model = case.model
        alone = case.kind == "node" and len(model.graph.node) == 1 and not model.graph.initializer
        passes = case.name not in excluded() or model.graph.node[0].op_type in CHANCE
        if alone and passes and is_numeric(model) and _is_current(model):
            found.append(Base(case.name, model, case.data()[0][0]))
    return found


def _is_current(model: onnx.ModelProto) -> bool:
    node = model.graph.node[0]
    version = next((o.version for o in model.opset_import if o.domain in ("", "ai.onnx")), None)
    if node.domain not in ("", "ai.onnx") or version is None or node.op_type in _SUBGRAPHS:
        return False
    newest = schema_of(node.op_type)
    schema = schema_of(node.op_type, "", version)
    if newest is None or schema is None:
        return False
    return bool(newest.deprecated or schema.since_version == newest.since_version)


def _others() -> list[Base]:
    rois = np.array([[0, 0, 0, 3, 3], [0, 1, 1, 4, 5]], np.float32)
    return [
        _made("GlobalLpPool", [_ramp(1, 2, 3, 4)], (1, 2, 1, 1), p=2),
        _made("MaxRoiPool", [_ramp(1, 2, 6, 6), rois], (2, 2, 2, 2), pooled_shape=[2, 2]),
        _made("Multinomial", [_ramp(2, 3)], (2, 4), TensorProto.INT32, sample_size=4),
        _made("RandomNormal", [], (2, 3), shape=[2, 3], seed=1.0),
        _made("RandomUniform", [], (2, 3), shape=[2, 3], seed=1.0),
        _made("RandomNormalLike", [_ramp(2, 3)], (2, 3), dtype=FLOAT),
        _made("RandomUniformLike", [_ramp(2, 3)], (2, 3), dtype=FLOAT),
        _branches(),
        _repetition(),
        _scan(),
    ]  # fmt: skip


def _ramp(*shape: int) -> np.ndarray:
    return (np.arange(np.prod(shape), dtype=np.float32) % 5 + 1).reshape(shape)


def _made(
    op_type: str, inputs: Sequence[np.ndarray], extents: Sequence[int], result: int = FLOAT, /, **attributes: Any
) -> Base:
    names = [f"x{k}" for k in range(len(inputs))]
    values = [_value(n, a) for n, a in zip(names, inputs)]
    node = helper.make_node(op_type, names, ["y"], **attributes)
    return _base(op_type, node, values, [helper.make_tensor_value_info("y", result, extents)], inputs)


def _value(name: str, array: np.ndarray) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)


def _base(op_type: str, node: onnx.NodeProto, values: Any, results: Any, inputs: Sequence[Any]) -> Base:
    graph = helper.make_graph([node], "single", values, results)
    version = onnx.defs.onnx_opset_version()
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", version)])
    model.ir_version = 10
    return Base(f"own_{op_type.lower()}", model, inputs)


def _branches() -> Base:
    y = helper.make_tensor_value_info("y", FLOAT, (3,))
    x = helper.make_tensor_value_info("x", FLOAT, (3,))
    then, other = (
        helper.make_graph([helper.make_node("Identity", ["x"], [name])], name, [], [_renamed(y, name)])
        for name in ("then", "other")
    )
    node = helper.make_node("If", ["c"], ["y"], then_branch=then, else_branch=other)
    condition = helper.make_tensor_value_info("c", TensorProto.BOOL, ())
    return _base("If", node, [condition, x], [y], [np.array(True), _ramp(3)])


def _repetition() -> Base:
    x = helper.make_tensor_value_info("x", FLOAT, (3,))
    flag = helper.make_tensor_value_info("go", TensorProto.BOOL, ())
    count = helper.make_tensor_value_info("n", TensorProto.INT64, ())
    body = helper.make_graph(
        [helper.make_node("Identity", ["go"], ["on"]), helper.make_node("Identity", ["x"], ["next"])],
        "body", [_renamed(count, "i"), flag, x], [_renamed(flag, "on"), _renamed(x, "next")],
    )  # fmt: skip
    node = helper.make_node("Loop", ["n", "", "start"], ["y"], body=body)
    return _base("Loop", node, [count, _renamed(x, "start")], [_renamed(x, "y")], [np.array(3), _ramp(3)])


def _scan() -> Base:
    row, rows = (helper.make_tensor_value_info("x", FLOAT, s) for s in ((3,), (4, 3)))
    body = helper.make_graph([helper.make_node("Identity", ["x"], ["next"])], "body", [row], [_renamed(row, "next")])
    node = helper.make_node("Scan", ["xs"], ["y"], body=body, num_scan_inputs=1)
    return _base("Scan", node, [_renamed(rows, "xs")], [_renamed(rows, "y")], [_ramp(4, 3)])


def _renamed(value: onnx.ValueInfoProto, name: str) -> onnx.ValueInfoProto:
    made = onnx.ValueInfoProto()
    made.CopyFrom(value)
    made.name = name
    return made


def formals(formal: Sequence[Any], actual: Sequence[str]) -> Mapping[str, Any]:
    """Operand name -> the schema's formal parameter."""
    return {name: formal[min(k, len(formal) - 1)] for k, name in enumerate(actual) if name}
