"""Compiled operators beside ONNX Runtime, both against the operator in float64."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnxruntime
from onnx.reference import ReferenceEvaluator
from onnxruntime.capi import onnxruntime_pybind11_state as state

import daceopt
from daceopt import ops
from daceopt.capture.onnx.importer import import_model
from daceopt.codegen.bundle import Bundle
from daceopt.errors import Unsupported
from daceopt.ir.interpreter.interpret import interpret
from tests.numerics import assert_within_rounding
from tests.properties.cases import Case, narrow_dtype, widened

_QUIET = onnxruntime.SessionOptions()
_NEAR = 1e-5
onnxruntime.set_default_logger_severity(4)
_QUIET.log_severity_level = 4


def check(case: Case, ours: list[np.ndarray]) -> None:
    """Types and shapes as ONNX Runtime has them, integers equal, floats within rounding of float64."""
    peer, exact = _peer(case), _exact(case)
    if exact is not None and peer is not None and _shapes(exact) != _shapes(peer):
        inferred = _inferred(case)  # the evaluator errs in some pools, ONNX Runtime in reductions of nothing
        exact, peer = (r if _shapes(r) == inferred else None for r in (exact, peer))
    exact = exact if exact is not None else _interpreted(case, peer)
    peer = peer if peer is not None else [e.astype(o.dtype) for e, o in zip(exact, ours)]
    assert _shapes(ours) == _shapes(peer), f"shapes {_shapes(ours)}, expected {_shapes(peer)}"
    for found, theirs, wanted in zip(ours, peer, exact, strict=True):
        assert found.dtype == theirs.dtype, f"element type {found.dtype}, expected {theirs.dtype}"
        assert_within_rounding(_as_computed(case, found), wanted if found.dtype.kind == "f" else theirs, theirs)


def _as_computed(case: Case, found: np.ndarray) -> np.ndarray:
    """In the type of the case; an operator need not round what the cast after it reads."""
    return found.astype(narrow_dtype(case.narrow)) if found.dtype == np.float32 and case.narrow else found


def _shapes(arrays: Sequence[np.ndarray]) -> list[tuple[int, ...]]:
    return [a.shape for a in arrays]


def _inferred(case: Case) -> list[tuple[int, ...]]:
    return [tuple(d.dim_value for d in o.type.tensor_type.shape.dim) for o in case.model().graph.output]


def failures(cases: Sequence[Case], open_sizes: bool = False) -> list[str]:
    """What is wrong with each case that fails, the simplest first; all are compiled together.

    ``open_sizes``: with symbols for the extents of the inputs; what is then refused is no failure.
    """
    bundle, programs = Bundle(), {}
    found: list[tuple[Case, Exception]] = []
    for k, case in enumerate(cases):
        try:
            model = case.open_model() if open_sizes else case.model()
            programs[k] = daceopt.from_onnx(model, recipe="none", fallback=False, bundle=bundle)
            programs[k].prepare(**case.fed())
        except Unsupported as error:
            found += [] if open_sizes else [(case, error)]
            programs.pop(k, None)
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
        return [np.asarray(r) for r in session.run(None, case.fed())]
    except (state.NotImplemented, state.Fail, state.InvalidGraph, state.RuntimeException):
        return [np.linalg.det(*case.fed().values())] if case.op_type == "Det" else None


def _exact(case: Case) -> list[np.ndarray] | None:
    """ONNX's reference evaluator over float64; None where it cannot."""
    if case.op_type == "Det":  # of float64, too: the evaluator rounds as much as what it is compared with
        return [_determinants(next(iter(case.fed().values())))]
    try:
        with np.errstate(all="ignore"):
            evaluator = ReferenceEvaluator(case.model(wide=True))
            return [np.asarray(r) for r in evaluator.run(None, {n: widened(v) for n, v in case.fed().items()})]
    except (NotImplementedError, RuntimeError, TypeError, ValueError, IndexError, OverflowError):
        return None


def _determinants(matrices: np.ndarray) -> np.ndarray:
    """By elimination in extended precision, with the largest pivot of each column."""
    a = matrices.astype(np.longdouble)
    found = np.empty(a.shape[:-2], np.float64)
    for at in np.ndindex(found.shape):
        m, det = a[at], np.longdouble(1)
        for k in range(len(m)):
            pivot = k + int(np.abs(m[k:, k]).argmax())
            m[[k, pivot]] = m[[pivot, k]]
            det *= m[k, k] if pivot == k else -m[k, k]
            m[k + 1 :, k:] -= np.outer(m[k + 1 :, k] / m[k, k], m[k, k:])
        found[at] = det
    return found


def _interpreted(case: Case, peer: list[np.ndarray] | None) -> list[np.ndarray]:
    """The lowering in float64, of which ONNX Runtime is as near as float32 allows."""
    assert peer is not None, "neither ONNX Runtime nor the reference computes this case"
    graph = import_model(case.model())
    ops.lower_all(graph)
    graph.prune()
    found = interpret(graph, dict(zip(graph.inputs, case.fed().values(), strict=True)), np.float64)
    results = [found[name] for name in graph.outputs]
    for theirs, exact in zip(peer, results, strict=True):
        scale = max(float(np.abs(theirs[np.isfinite(theirs)]).max(initial=1.0)), 1.0)
        np.testing.assert_allclose(theirs, exact, rtol=1e-4, atol=_NEAR * scale, err_msg="ONNX Runtime differs")
    return results
