"""Control flow by numbers of a device, which the host reads: the models of ``test_control_flow`` in the emulation."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import daceopt
from daceopt.errors import RunError, RunIndexError
from tests.modules.devices import on_device
from tests.ops.test_control_flow import CHOICE, NESTED, POWERS, WHILE, Feeds, model, onnx_runtime

_DRAW = np.random.default_rng(3)

_GATHERED = """(int64[2] places, float[5] table, float bound) => (float[2] y) {
    yes = Constant <value = bool {1}> ()
    start = Constant <value = float[2] {0, 0}> ()
    y = Loop (, yes, start) <body = b (int64 i, bool go, float[2] v) => (bool go2, float[2] w) {
        row = Gather (table, places)
        w = Add (v, row)
        sum = ReduceMax <keepdims = 0> (w)
        go2 = Less (sum, bound) }> }"""


def floats(*shape: int) -> np.ndarray:
    return _DRAW.standard_normal(shape).astype(np.float32)


def _feeds(name: str) -> list[Feeds]:
    if name == "choice":
        return [{"c": np.array(taken), "x": floats(3), "z": floats(3)} for taken in (True, False, True)]
    if name == "powers":
        return [{"n": np.array(4), "x": floats(2, 2)}] * 2
    if name == "while":
        return [{"x": np.array(1.5, np.float32), "bound": np.array(b, np.float32)} for b in (100.0, 0.5, 3e6)]
    return [{"x": floats(3), "t": floats(2, 3)}]


_TEXTS = {"choice": CHOICE, "powers": POWERS, "while": WHILE, "nested": NESTED}


def _check(name: str, device: str, recipe: str) -> None:
    run: Any = daceopt.from_onnx(model(_TEXTS[name]), fallback=False, recipe=recipe)
    for feeds in _feeds(name):
        found = run(*(torch.from_numpy(np.asarray(v)).to(device) for v in feeds.values()))
        for ours, peer in zip(found if isinstance(found, list) else [found], onnx_runtime(model(_TEXTS[name]), feeds)):
            assert ours.device.type == device
            np.testing.assert_allclose(ours.cpu().numpy(), peer, rtol=1e-5, atol=1e-6)
    assert run.pair.forward.manifest.has_stream
    assert "daceopt_read" not in str(run.sdfg.to_json())  # plain DaCe runs it on the host
    if name != "nested":  # whose numbers are all known
        assert not run.pair.forward.manifest.repeats, "a recording cannot wait for what control flow reads"


@pytest.mark.parametrize("name", _TEXTS)
def test_control_flow(name: str, emulated: None) -> None:
    _check(name, "cpu", "gpu")


@on_device
@pytest.mark.parametrize("name", _TEXTS)
def test_control_flow_on_a_device(name: str) -> None:
    _check(name, "cuda", "auto")


def _check_failures(device: str, recipe: str) -> None:
    run = daceopt.from_onnx(model(POWERS), fallback=False, recipe=recipe)
    x = torch.from_numpy(floats(2, 2)).to(device)
    for count in (3, 5, 0):
        with pytest.raises(RunError, match="number of iterations"):
            run(torch.tensor(count, device=device), x)
    run = daceopt.from_onnx(model(_GATHERED), fallback=False, recipe=recipe)
    table, bound = torch.ones(5, device=device), torch.tensor(4.0, device=device)
    assert run(torch.tensor([1, 2], device=device), table, bound).tolist() == [4, 4]
    said = r"operator Gather \('row'\): input 'places' holds 7, expected -5 to 4"
    with pytest.raises(RunIndexError, match=said):  # by this call: the host has waited
        run(torch.tensor([1, 7], device=device), table, bound)
    assert run(torch.tensor([1, 2], device=device), table, bound).tolist() == [4, 4]


def test_what_fails_ends_the_call(emulated: None) -> None:
    _check_failures("cpu", "gpu")


@on_device
def test_what_fails_on_a_device_ends_the_call() -> None:
    _check_failures("cuda", "auto")
