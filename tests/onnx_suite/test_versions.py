"""The float64 reference, the lowering and ONNX Runtime beside each other: every operator, version and setting.

A sixteenth of the cases by default, all of them where DACEOPT_ONNX_SUITE says ``all``. Tests are parts, not
operators: which these are is in ONNX's suite, and reading that takes eight seconds, too long for collecting tests.
"""

from __future__ import annotations

import os
import re
import warnings

import numpy as np
import onnxruntime
import pytest

from daceopt import ops
from daceopt.capture.onnx.file import load
from daceopt.capture.onnx.importer import import_model
from daceopt.errors import Unsupported
from daceopt.ir.interpreter.interpret import interpret
from tests.onnx_suite import versions
from tests.onnx_suite.cases import share_of
from tests.onnx_suite.versions import VersionCase

pytestmark = pytest.mark.filterwarnings("ignore")
SHARES = 1 if os.environ.get("DACEOPT_ONNX_SUITE") == "all" else 16
PARTS = 12
_ROUNDING = 1e-4  # of the largest magnitude
_BYTES = "float8 int4 uint4 int2 uint2 float4".split()  # which ONNX Runtime hands over as whole bytes
_DATA_DECIDES = frozenset("Compress NonMaxSuppression NonZero Unique".split())

_SIZES = "where sizes follow from scales, it takes the whole number of the result's elements for the size"
_TIE = "a tie in float32, which float64 does not have"
_PADDING = "its SAME padding of pools passes over dilations"
_MODES = tuple(f"nearest_mode={m}" for m in ("floor", "ceil", "round_prefer_floor", "round_prefer_ceil"))
_ALIGNED = ("", *"antialias=0 antialias=1 cubic_coeff_a=-0.5 exclude_outside=0 mode=cubic mode=linear".split(), *_MODES)
_CORNERS, _HALF = (f"coordinate_transformation_mode={m}" for m in ("align_corners", "pytorch_half_pixel"))
_RESIZED = {
    "downsample_scales_linear_align_corners": (*_ALIGNED, _CORNERS, _HALF, "mode=nearest", "without mode"),
    "downsample_scales_cubic_align_corners": (*_ALIGNED, _CORNERS, "exclude_outside=1"),
    "downsample_scales_linear": (_CORNERS, _HALF),
    "downsample_scales_cubic": (_CORNERS,),
    "downsample_scales_nearest": (_CORNERS,),
}
_DILATED = [f"{op}Pool/test_{op.lower()}pool_2d_dilations" for op in ("Average", "Lp", "Max")]
_DILATED += [f"MaxPool/test_maxpool_3d_dilations{what}" for what in ("", "_use_ref_impl")]
_DILATED += ["AveragePool/test_averagepool_3d_dilations_small"]

# Where ONNX Runtime stands alone: the case's name without the version -> why.
ALONE = {
    f"Resize/test_resize_{base}/{what}".removesuffix("/"): _SIZES for base, all_ in _RESIZED.items() for what in all_
}
ALONE |= {f"{base}/auto_pad=SAME_{side}": _PADDING for base in _DILATED for side in ("UPPER", "LOWER")}
ALONE |= {
    "Resize/test_resize_downsample_scales_nearest/nearest_mode=floor": _TIE,
    "Resize/test_resize_tf_crop_and_resize/without mode": _TIE,
    "Resize/test_resize_tf_crop_and_resize_axes_2_3/without mode": _TIE,
    "Resize/test_resize_tf_crop_and_resize_axes_3_2/without mode": _TIE,
    "DynamicQuantizeLinear/test_dynamicquantizelinear": _TIE,
    "MaxUnpool/test_maxunpool_export_with_output_shape": "it takes indices for those of the declared result",
}


@pytest.mark.parametrize("part", range(PARTS))
def test_every_version(part: int) -> None:
    operators = versions.operators()[part::PARTS]
    chosen = [c for op_type in operators for c in versions.cases(op_type) if share_of(c.name, SHARES) == 0]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = {c.name: reason for c in chosen if (reason := _finding(c))}
    unknown = {n: r for n, r in found.items() if _unversioned(n) not in ALONE}
    assert not unknown, "\n".join(f"{name}: {reason}" for name, reason in unknown.items())
    agreed = {n for n in ALONE if n.split("/")[0] in operators} - {*map(_unversioned, found)}
    assert SHARES > 1 or not agreed, f"ONNX Runtime agrees: {sorted(agreed)}"


def _unversioned(name: str) -> str:
    return re.sub(r"^(\w+)-\d+", r"\1", name)


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
