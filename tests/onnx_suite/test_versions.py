"""The float64 reference, the lowering and ONNX Runtime beside each other: every operator, version and setting.

A sixteenth of the cases by default, all of them where DACEOPT_ONNX_SUITE says ``all``. Tests are parts, not
operators: which these are is in ONNX's suite, and reading that takes eight seconds, too long for collecting tests.
"""

from __future__ import annotations

import os
import warnings

import numpy as np
import onnxruntime
import pytest

from daceopt import ops
from daceopt.capture.onnx.file import load
from daceopt.capture.onnx.importer import import_model
from daceopt.errors import Unsupported
from daceopt.ir.interpret import interpret
from tests.onnx_suite import versions
from tests.onnx_suite.cases import share_of
from tests.onnx_suite.versions import VersionCase

pytestmark = pytest.mark.filterwarnings("ignore")
SHARES = 1 if os.environ.get("DACEOPT_ONNX_SUITE") == "all" else 16
PARTS = 12
_ROUNDING = 1e-4  # of the largest magnitude
_BYTES = "float8 int4 uint4 int2 uint2 float4".split()  # which ONNX Runtime hands over as whole bytes
_DATA_DECIDES = frozenset("Compress NonMaxSuppression NonZero Unique".split())

# Where ONNX Runtime stands alone: part of the case's name -> why.
ALONE = {
    "Resize-": "where sizes follow from scales, it takes the whole number of the result's elements for the size",
    "dilations/auto_pad=SAME": "its SAME padding of pools passes over dilations",
    "dilations_small/auto_pad=SAME": "the same",
    "dilations_use_ref_impl/auto_pad=SAME": "the same",
    "MaxUnpool-": "it takes indices for those of the declared result",
    "DynamicQuantizeLinear-": "a tie in float32, which float64 does not have",
}


@pytest.mark.parametrize("part", range(PARTS))
def test_every_version(part: int) -> None:
    operators = versions.operators()[part::PARTS]
    chosen = [c for op_type in operators for c in versions.cases(op_type) if share_of(c.name, SHARES) == 0]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = {c.name: reason for c in chosen if (reason := _finding(c))}
    unknown = {n: r for n, r in found.items() if not any(part in n for part in ALONE)}
    assert not unknown, "\n".join(f"{name}: {reason}" for name, reason in unknown.items())


def _finding(case: VersionCase) -> str | None:
    """What is wrong with ours; None where all is right, or where ONNX Runtime does not run the model."""
    theirs = _peer(case)
    if theirs is None:
        return None
    try:
        graph = import_model(load(case.model))
    except Unsupported as error:
        return None if case.model.graph.node[0].op_type in _DATA_DECIDES else f"refused: {error}"[:300]
    except Exception as error:
        return f"refused: {error}"[:300]
    feeds = dict(zip(graph.inputs, case.feeds.values(), strict=True))
    lowered = graph.copy()
    ops.lower_all(lowered)
    try:
        runs = {"reference": interpret(graph, feeds, np.float64), "lowering": interpret(lowered, feeds)}
    except IndexError:  # ONNX Runtime reads what stands beside the array
        return None
    wrong = [f"{who} {reason}" for who, run in runs.items() if (reason := _difference([*run.values()], theirs))]
    return ", ".join(wrong) or None


def _peer(case: VersionCase) -> list[np.ndarray] | None:
    """What ONNX Runtime computes; None where it does not run the model, or gives bytes for something smaller."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    try:
        session = onnxruntime.InferenceSession(
            case.model.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
        found = session.run(None, case.feeds)
    except Exception:
        return None
    if any(kind in o.type for o in session.get_outputs() for kind in _BYTES):
        return None
    return [np.asarray(v) for v in found]


def _difference(ours: list[np.ndarray], theirs: list[np.ndarray]) -> str:
    for a, b in zip(ours, theirs, strict=True):
        if a.shape != b.shape:
            return f"has shape {a.shape}, expected {b.shape}"
        x, y = np.asarray(a, np.float64), np.asarray(b, np.float64)
        if not np.array_equal(np.isnan(x), np.isnan(y)):
            return "has NaN elsewhere"
        error = np.abs(np.nan_to_num(x) - np.nan_to_num(y)).max(initial=0.0)
        if error > _ROUNDING * max(np.abs(np.nan_to_num(y)).max(initial=0.0), 1e-30):
            return f"is off by {error:.1e}"
    return ""
