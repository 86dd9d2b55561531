"""Operators with several results of which only one is read: pruning takes the others away before lowering."""

from __future__ import annotations

import onnx
import pytest

import daceopt
from daceopt.codegen.bundle import Bundle
from daceopt.errors import Unsupported
from tests.onnx_suite.cases import Case, cases


def _with_several_results() -> dict[str, Case]:
    """One case of the suite for each operator and number of results."""
    found: dict[tuple[str, int], Case] = {}
    for case in cases().values():
        nodes = case.model.graph.node
        results = [o for o in nodes[0].output if o]
        if case.kind == "node" and len(nodes) == 1 and len(results) > 1:
            found.setdefault((nodes[0].op_type, len(results)), case)
    return {f"{op}-{count}": case for (op, count), case in found.items()}


def _reading_only(model: onnx.ModelProto, name: str) -> onnx.ModelProto:
    twin = onnx.ModelProto()
    twin.CopyFrom(model)
    for output in list(twin.graph.output):
        if output.name != name:
            twin.graph.output.remove(output)
            twin.graph.value_info.append(output)
    return twin


def _prepare(model: onnx.ModelProto, case: Case) -> None:
    """Generate the code, which nobody compiles."""
    run = daceopt.from_onnx(model, recipe="none", fallback=False, bundle=Bundle())
    run.prepare(*case.data()[0][0])


@pytest.mark.parametrize("which", sorted(_with_several_results()))
def test_one_result_is_enough(which: str) -> None:
    case = _with_several_results()[which]
    try:
        _prepare(case.model, case)
    except Unsupported:
        pytest.skip("not native as a whole")
    for output in case.model.graph.output:
        _prepare(_reading_only(case.model, output.name), case)
