"""Compiled operators beside ONNX Runtime, both against the operator in float64."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnxruntime
from onnx.reference import ReferenceEvaluator
from onnxruntime.capi import onnxruntime_pybind11_state as state

import daceopt
from daceopt.build.bundle import Bundle
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
    exact = exact if exact is not None and _shapes(exact) == _shapes(peer) else peer  # the evaluator errs in some pools
    assert _shapes(ours) == _shapes(peer), f"shapes {_shapes(ours)}, expected {_shapes(peer)}"
    for found, theirs, wanted in zip(ours, peer, exact, strict=True):
        assert found.dtype == theirs.dtype, f"element type {found.dtype}, expected {theirs.dtype}"
        assert_within_rounding(found, wanted if found.dtype.kind == "f" else theirs, theirs)


def _shapes(arrays: Sequence[np.ndarray]) -> list[tuple[int, ...]]:
    return [a.shape for a in arrays]


def failures(cases: Sequence[Case]) -> list[str]:
    """What is wrong with each case that fails, the simplest first; all are compiled together."""
    bundle, programs, found = Bundle(), {}, []
    for k, case in enumerate(cases):
        try:
            programs[k] = daceopt.from_onnx(case.model(), recipe="none", fallback=False, bundle=bundle)
            programs[k].prepare(**case.fed())
        except Exception as error:
            found.append((case, error))
            programs.pop(k, None)
    for k, run in programs.items():
        try:
            results = run(**cases[k].fed())
            check(cases[k], results if isinstance(results, list) else [results])
        except Exception as error:
            found.append((cases[k], error))
    found.sort(key=lambda item: len(repr(item[0])))
    return [f"{case}\n    {type(error).__name__}: {error}" for case, error in found]


def _peer(case: Case) -> list[np.ndarray] | None:
    try:
        session = onnxruntime.InferenceSession(case.model().SerializeToString(), _QUIET)
    except (state.NotImplemented, state.Fail, state.InvalidGraph):
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
