"""Runs a batch of cases in this process; whoever called it lives in another, so a crash costs no other result."""

from __future__ import annotations

import signal
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from daceopt.codegen.bundle import Bundle
from daceopt.errors import RunError
from daceopt.libs.onnxruntime_model import RuntimeModel
from daceopt.models import onnx_backend
from tests.onnx_suite.cases import Case
from tests.onnx_suite.variations import find

MODES = ("native", "fallback", "onnxruntime")
SECONDS = 100  # for one step of one case; the alarm ends the process
_BFLOAT16 = 2.0**-6

Send = Callable[[dict[str, Any]], None]


def run(names: Sequence[str], mode: str, recipe: str, send: Send) -> None:
    """Prepare all, compile them together, then run each. ``send`` gets {"doing": name} before each step, and
    {"name", "reason"} for each result; an empty reason is a success."""
    warnings.simplefilter("ignore")
    bundle = Bundle()
    ready = []
    for name in names:
        with _step(name, send):
            ready.append((name, _prepare(find(name), mode, recipe, bundle)))
    signal.alarm(SECONDS * max(1, len(ready)))
    bundle.build()
    for name, backend in ready:
        with _step(name, send):
            _check(find(name), backend)
            send({"name": name, "reason": ""})
    signal.alarm(0)


class _step:
    def __init__(self, name: str, send: Send):
        self.name, self.send = name, send

    def __enter__(self) -> None:
        self.send({"doing": self.name})
        signal.alarm(SECONDS)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: Any) -> bool:
        signal.alarm(0)
        if isinstance(error, Exception):
            self.send({"name": self.name, "reason": f"{type(error).__name__}: {str(error).strip()}"})
        return isinstance(error, Exception)


class _Runtime:
    """ONNX Runtime itself, with the face of a prepared backend."""

    def __init__(self, model: Any):
        self.run = RuntimeModel(model).run


def _prepare(case: Case, mode: str, recipe: str, bundle: Bundle) -> Any:
    if mode == "onnxruntime":
        return _Runtime(case.model)
    options = {"fallback": mode == "fallback", "recipe": recipe, "bundle": bundle}
    prepared = onnx_backend.prepare(case.model, "CPU", **options)
    for inputs, _ in case.data():
        prepared.model.prepare(*inputs)
    return prepared


def _check(case: Case, backend: Any) -> None:
    for inputs, expected in case.data():
        try:
            found = list(backend.run(inputs))
        except RunError:
            if expected is not None:
                raise
        if expected is None:
            continue  # there is nothing to compare with
        assert len(found) == len(expected), f"{len(found)} outputs, expected {len(expected)}"
        for k, (ours, theirs) in enumerate(zip(found, expected)):
            for place, a, b in _leaves(f"output {k}", ours, theirs):
                _compare(place, a, b, *case.tolerances)


def _leaves(place: str, ours: Any, theirs: Any) -> Iterator[tuple[str, Any, Any]]:
    if not isinstance(theirs, list | tuple):
        yield place, ours, theirs
        return
    assert isinstance(ours, list | tuple) and len(ours) == len(theirs), f"{place}: expected a list of {len(theirs)}"
    for k, (a, b) in enumerate(zip(ours, theirs)):
        yield from _leaves(f"{place}[{k}]", a, b)


def _compare(place: str, ours: Any, theirs: Any, rtol: float, atol: float) -> None:
    if theirs is None:
        assert ours is None, f"{place}: expected nothing"
        return
    theirs = np.asarray(theirs)
    assert isinstance(ours, np.ndarray | np.generic), f"{place}: expected an array, got {type(ours).__name__}"
    assert ours.shape == theirs.shape, f"{place}: shape {ours.shape}, expected {theirs.shape}"
    if theirs.dtype.kind in "OU":
        np.testing.assert_array_equal(ours.astype(object), theirs.astype(object), err_msg=place)
        return
    assert ours.dtype == theirs.dtype, f"{place}: {ours.dtype}, expected {theirs.dtype}"
    if theirs.dtype.type.__module__.startswith("ml_dtypes"):
        rtol = max(rtol, _BFLOAT16) if theirs.dtype.name == "bfloat16" else rtol
        ours, theirs = ours.astype(np.float32), theirs.astype(np.float32)
    np.testing.assert_allclose(ours, theirs, rtol=rtol, atol=atol, err_msg=place)
