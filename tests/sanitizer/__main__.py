"""Everything that computes addresses from data, compiled under AddressSanitizer: ``python -m tests.sanitizer 0``.

To be started with libasan preloaded. Writes one JSON line for each result; the sanitizer ends the process at the first
access outside of an array. ``0`` to ``7``: an eighth of the operators each; ``modules``: the module fuzzer's first
programs, then makes an overflow.
"""

from __future__ import annotations

import json
import re
import sys
from functools import partial
from typing import Any

import numpy as np
import torch
from onnx import TensorProto, helper

import daceopt
from daceopt.codegen import compiler
from daceopt.codegen.bundle import Bundle
from daceopt.runtime import invocation
from tests.fuzz import batch as fuzz
from tests.fuzz.__main__ import bad as is_bad
from tests.fuzz.__main__ import line
from tests.onnx_suite import batch
from tests.onnx_suite.cases import cases
from tests.onnx_suite.exclusions import excluded

_FLAG = "-fsanitize=address"
_FAMILIES = re.compile(
    r"test_(gather|scatter|tensor_?scatter|slice|split|top_?k|nonzero|compress|unique|nonmaxsuppression|one_?hot|reversesequence|"
    r"cum|pad|edge_pad|reflect_pad|wrap_pad|constant_pad|center_crop|resize|upsample|gridsample|roialign|max_?roi|maxunpool|maxpool|averagepool|"
    r"lppool|col2im|deform|basic_deform|tfidf|dft|stft|tile|expand|nllloss|sce|arg(max|min)|loop|scan|if|lstm|gru|simple_rnn|rnn)"
)
EIGHTHS = tuple("01234567")
_MODULES = 5
_EXTENT = 5
_BAD = (_EXTENT, -_EXTENT - 1, 2**40, -(2**62))


def main() -> None:
    compiler.always(compiler.Flags(compile=(_FLAG, "-fno-omit-frame-pointer", "-g1"), link=(_FLAG,)))
    commands = {"modules": _modules, **{name: partial(_operators, k) for k, name in enumerate(EIGHTHS)}}
    commands[sys.argv[1]]()


def _operators(eighth: int) -> None:
    chosen = [name for name in cases() if _FAMILIES.match(name) and name not in excluded()][eighth :: len(EIGHTHS)]
    batch.run(chosen, "native", "none", _tell)
    _out_of_range()
    _tell({"name": "done", "reason": "", "count": len(chosen)})


def _modules() -> None:
    """Random modules, forward and backward. Then one with results that are too short: the sanitizer must notice."""
    fuzz.run([str(seed) for seed in range(_MODULES)], "build", "auto", _tell_difference)
    _tell({"name": "done", "reason": "", "count": _MODULES})
    _shorten_results()
    fuzz.run(["0"], "build", "auto", _tell_difference)


def _tell_difference(message: dict[str, Any]) -> None:
    if "name" in message:
        name, result = message["name"], message["reason"]
        _tell({"name": name, "reason": line(name, result) if is_bad(result) else ""})


def _shorten_results() -> None:
    allocate = invocation.CallMemory.allocate

    def short(memory: invocation.CallMemory) -> list[torch.Tensor]:
        return [t.new_empty(t.numel() // 2) for t in allocate(memory)]

    invocation.CallMemory.allocate = short  # type: ignore[method-assign]


def _tell(message: dict[str, Any]) -> None:
    if "name" in message:
        print(json.dumps(message), flush=True)


def _model(op_type: str, shape: list[int], result: list[int], kind: int, *index: list[int], **attributes: Any) -> Any:
    """One operator over data, and integer inputs of the shapes ``index``; scatters take updates like the result."""
    values = [helper.make_tensor_value_info("x", kind, shape)]
    values += [helper.make_tensor_value_info(f"i{k}", TensorProto.INT64, s) for k, s in enumerate(index)]
    if op_type.startswith("Scatter"):
        values.append(helper.make_tensor_value_info("u", kind, index[0][: len(shape)]))
    node = helper.make_node(op_type, [v.name for v in values], ["y"], **attributes)
    graph = helper.make_graph([node], "one", values, [helper.make_tensor_value_info("y", kind, result)])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def _out_of_range() -> None:
    """Indices outside of the array end the call with an IndexError."""
    shape = [_EXTENT, 3]
    models = {
        "Gather": _model("Gather", shape, [4, 3], TensorProto.FLOAT, [4]),
        "GatherElements": _model("GatherElements", shape, [4, 3], TensorProto.FLOAT, [4, 3]),
        "GatherND": _model("GatherND", shape, [4, 3], TensorProto.FLOAT, [4, 1]),
        "ScatterElements": _model("ScatterElements", shape, shape, TensorProto.FLOAT, [4, 3]),
        "ScatterElements add": _model("ScatterElements", shape, shape, TensorProto.FLOAT, [4, 3], reduction="add"),
        "ScatterND": _model("ScatterND", [_EXTENT], [_EXTENT], TensorProto.FLOAT, [4, 1]),
    }
    bundle = Bundle()
    programs = {n: daceopt.from_onnx(m, recipe="none", fallback=False, bundle=bundle) for n, m in models.items()}
    for name, run in programs.items():
        _tell({"name": f"{name} out of range", "reason": _not_refused(run)})


def _not_refused(run: Any) -> str:
    shapes = [[d.dim_value for d in v.type.tensor_type.shape.dim] for v in run._model.graph.input]
    for bad in _BAD:
        index = np.zeros(shapes[1], np.int64)
        index.reshape(-1)[-1] = bad
        given = [np.ones(shapes[0], np.float32), index, *(np.ones(s, np.float32) for s in shapes[2:])]
        try:
            run(*given)
        except IndexError:
            continue
        return f"index {bad} was accepted"
    return ""


if __name__ == "__main__":
    main()
