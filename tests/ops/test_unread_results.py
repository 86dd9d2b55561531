"""Operators with several results of which only one is read: pruning takes the others away before lowering."""

from __future__ import annotations

from functools import cache

import onnx
import pytest

import daceopt
from daceopt.codegen.bundle import Bundle
from daceopt.errors import Unsupported
from tests.onnx_suite.cases import Case, cases

# To find them takes seconds, which no process spends that only collects the tests.
LISTED = """
Adagrad-2 Adagrad-4 Adam-3 Adam-6 Attention-2 Attention-3 Attention-4 BatchNormalization-3 CausalConvWithState-2
Dropout-2 DynamicQuantizeLinear-3 GRU-2 LSTM-2 LayerNormalization-3 LinearAttention-2 Loop-2 MaxPool-2
Momentum-2 Momentum-4 RNN-2 Scan-2 Scan-3 SequenceMap-2 SoftmaxCrossEntropyLoss-2 Split-2 Split-3 Split-4
StringSplit-2 TopK-2 Unique-4
""".split()


@cache
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


def test_all_are_listed() -> None:
    assert sorted(_with_several_results()) == LISTED


@pytest.mark.parametrize("which", LISTED)
def test_one_result_is_enough(which: str) -> None:
    case = _with_several_results()[which]
    try:
        _prepare(case.model, case)
    except Unsupported:
        pytest.skip("not native as a whole")
    for output in case.model.graph.output:
        _prepare(_reading_only(case.model, output.name), case)
