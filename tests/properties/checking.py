"""Compiled operators beside ONNX Runtime, both against the operator in float64."""

from __future__ import annotations

import numpy as np
import onnxruntime
from onnx.reference import ReferenceEvaluator

import daceopt
from tests.numerics import assert_within_rounding
from tests.properties.cases import Case, widened

_QUIET = onnxruntime.SessionOptions()
_QUIET.log_severity_level = 4


def check(case: Case, ours: list[np.ndarray]) -> None:
    """Types and shapes as ONNX Runtime has them, integers equal, floats within rounding of float64."""
    peer, exact = _peer(case), _exact(case)
    if peer is None and exact is None:
        raise AssertionError("neither ONNX Runtime nor the reference computes this case")
    peer = peer if peer is not None else _in_type_of(exact, ours)
    exact = exact if exact is not None else peer
    assert len(ours) == len(peer)
    for found, theirs, wanted in zip(ours, peer, exact):
        assert (found.dtype, found.shape) == (theirs.dtype, theirs.shape)
        assert_within_rounding(found, wanted if found.dtype.kind == "f" else theirs, theirs)


def compiled(case: Case) -> list[np.ndarray]:
    """What our code computes, compiled for this case alone."""
    run = daceopt.from_onnx(case.model(), recipe="none", fallback=False)
    found = run(**case.fed())
    return found if isinstance(found, list) else [found]


def _peer(case: Case) -> list[np.ndarray] | None:
    try:
        session = onnxruntime.InferenceSession(case.model().SerializeToString(), _QUIET)
    except (onnxruntime.capi.onnxruntime_pybind11_state.NotImplemented, onnxruntime.capi.onnxruntime_pybind11_state.Fail):
        return None
    return [np.asarray(r) for r in session.run(None, case.fed())]


def _exact(case: Case) -> list[np.ndarray] | None:
    """ONNX's reference evaluator over float64; None where it cannot."""
    try:
        with np.errstate(all="ignore"):
            evaluator = ReferenceEvaluator(case.model(wide=True))
            return [np.asarray(r) for r in evaluator.run(None, {n: widened(v) for n, v in case.fed().items()})]
    except (NotImplementedError, RuntimeError, TypeError, ValueError, IndexError):
        return None


def _in_type_of(exact: list[np.ndarray] | None, ours: list[np.ndarray]) -> list[np.ndarray]:
    return [e.astype(o.dtype) for e, o in zip(exact or [], ours)]
