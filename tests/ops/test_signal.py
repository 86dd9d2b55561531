"""Fourier transforms, frames, windows and mel filters against NumPy, PyTorch and the standard's evaluator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from daceopt import ops
from daceopt.ir.interpreter.interpret import interpret
from tests.autodiff.checking import check as check_gradient
from tests.numerics import assert_within_rounding
from tests.ops.compiled import compiled
from tests.ops.single import check, lowered, reference, single
from tests.ops.test_gradients import op

RNG = np.random.default_rng(3)
SIGNAL = RNG.normal(size=(2, 12, 5, 2)).astype(np.float32)
LENGTHS = [1, 2, 7, 37, 64, 360, 1009]  # 37 and 1009 are convolved


def scalar(value: int) -> np.ndarray:
    return np.array(value, np.int64)


@pytest.mark.parametrize("attributes", [{}, {"inverse": 1}, {"onesided": 1}, {"onesided": 1, "inverse": 1}], ids=str)
@pytest.mark.parametrize("axis", [0, 1, -2])
@pytest.mark.parametrize("length", [None, 4, 9, 20])
def test_transform(attributes: dict[str, int], axis: int, length: int | None) -> None:
    x = SIGNAL[..., :1] if attributes == {"onesided": 1} else SIGNAL
    given = None if length is None else scalar(length)
    check("DFT", [x, given, scalar(axis)], constants=(1, 2), opset=20, **attributes)
    if axis == 1:
        check("DFT", [x, given], constants=(1,), opset=17, **attributes)


@pytest.mark.parametrize("parts", [1, 2])
def test_components_are_optional(parts: int) -> None:
    check("DFT", [SIGNAL[..., :parts]], opset=20)
    check("DFT", [SIGNAL[..., :parts]], opset=20, inverse=1)


@pytest.mark.parametrize("length", LENGTHS)
def test_any_length_is_as_exact_as_double_allows(length: int) -> None:
    x = RNG.normal(size=(3, length, 2))
    (y,) = compiled("DFT", [x, scalar(length)], constants=(1,), opset=20)
    want = np.fft.fft(x[..., 0] + 1j * x[..., 1], axis=1)
    assert_within_rounding(y, np.stack([want.real, want.imag], -1))


@pytest.mark.share(2)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("length", [None, 7, 16])
@pytest.mark.parametrize("attributes", [{"onesided": 1}, {"onesided": 1, "inverse": 1}], ids=str)
def test_compiled_onesided(dtype: type, length: int | None, attributes: dict[str, int]) -> None:
    x = (SIGNAL if "inverse" in attributes else SIGNAL[..., :1]).astype(dtype)
    inputs = [x, None if length is None else scalar(length), scalar(1)]
    (y,) = compiled("DFT", inputs, constants=(1, 2), opset=20, **attributes)
    wide = [x.astype(np.float64), *inputs[1:]]
    assert y.dtype == dtype
    assert_within_rounding(y, reference("DFT", wide, 1, 20, **attributes)[0])


def test_empty_transforms() -> None:
    (y,) = compiled("DFT", [np.zeros((0, 4, 2), np.float32)], opset=20)
    assert y.shape == (0, 4, 2)
    (y,) = compiled("DFT", [np.zeros((2, 0, 2), np.float32), scalar(3)], constants=(1,), opset=20)
    np.testing.assert_array_equal(y, np.zeros((2, 3, 2)))


@pytest.mark.parametrize("length", [3, 5, 8])
@pytest.mark.parametrize(
    ("parts", "attributes", "peer"),
    [
        (2, {}, lambda z, n: torch.view_as_real(torch.fft.fft(torch.view_as_complex(z), n, dim=1))),
        (2, {"inverse": 1}, lambda z, n: torch.view_as_real(torch.fft.ifft(torch.view_as_complex(z), n, dim=1))),
        (1, {"onesided": 1}, lambda z, n: torch.view_as_real(torch.fft.rfft(z[..., 0], n, dim=1))),
        (2, {"onesided": 1, "inverse": 1}, lambda z, n: torch.fft.irfft(torch.view_as_complex(z), n, dim=1)[..., None]),
    ],
    ids=["fft", "ifft", "rfft", "irfft"],
)
def test_gradient(parts: int, attributes: dict[str, int], peer: Callable[..., Any], length: int) -> None:
    extents = {1: (2, length // 2 + 1, 3, 2), 2: (2, length, 3, 2)}
    shape = extents[1] if attributes == {"onesided": 1} else extents[2]
    shape = (*shape[:-1], 1) if len(attributes) == 2 else shape
    build = op("DFT", shape, {1: length, 2: 1}, **attributes)
    check_gradient(build, lambda z: peer(z, length), (2, 5, 3, parts))


@pytest.mark.parametrize("given", [("window",), ("length",), ("window", "length")], ids=str)
@pytest.mark.parametrize("onesided", [0, 1])
def test_short_time_transform(given: tuple[str, ...], onesided: int) -> None:
    x = RNG.normal(size=(2, 40, 1)).astype(np.float32)
    window = RNG.uniform(size=(16,)).astype(np.float32) if "window" in given else None
    inputs = [x, scalar(5), window, scalar(16) if "length" in given else None]
    check("STFT", inputs, constants=(1, 3), onesided=onesided)
    (y,) = compiled("STFT", inputs, constants=(1, 3), onesided=onesided)
    wide = [x.astype(np.float64), inputs[1], None if window is None else window.astype(np.float64), inputs[3]]
    assert_within_rounding(y, reference("STFT", wide, 1, 23, onesided=onesided)[0])


def test_gradient_of_overlapping_frames() -> None:
    def build(b: Any, x: str, window: str) -> str:
        y = b.graph.add_array("y", (2, 5, 5, 2), b.graph.dtype(x))
        step = b.constant(np.array(3))
        b.graph.add_operator("STFT", [x, step, window], [y], {"onesided": 1})
        return str(y)

    def peer(x: torch.Tensor, window: torch.Tensor) -> torch.Tensor:
        return torch.view_as_real(torch.fft.rfft(x[..., 0].unfold(1, 8, 3) * window, dim=-1))

    check_gradient(build, peer, (2, 20, 1), (8,))


@pytest.mark.parametrize("periodic", [0, 1])
@pytest.mark.parametrize(
    ("op_type", "peer"),
    [
        ("HannWindow", torch.hann_window),
        ("HammingWindow", lambda n, **k: torch.hamming_window(n, alpha=25 / 46, beta=21 / 46, **k)),
        ("BlackmanWindow", torch.blackman_window),
    ],
)
def test_windows(op_type: str, peer: Callable[..., torch.Tensor], periodic: int) -> None:
    graph, feeds = single(op_type, [scalar(11)], constants=(0,), periodic=periodic, output_datatype=11)
    y = interpret(lowered(graph), feeds)[graph.outputs[0]]
    assert y.dtype == np.float64
    assert_within_rounding(y, peer(11, periodic=bool(periodic), dtype=torch.float64))
    (y,) = compiled(op_type, [scalar(11)], constants=(0,), periodic=periodic)
    assert_within_rounding(y, peer(11, periodic=bool(periodic), dtype=torch.float64))


@pytest.mark.parametrize(
    "sizes", [(8, 16, 8192, 0.0, 4096.0), (40, 512, 16000, 20.0, 7600.0), (3, 9, 8000, 300.0, 310.0)]
)
def test_mel_filters(sizes: tuple[Any, ...]) -> None:
    inputs = [np.array(v, np.int64 if k < 3 else np.float32) for k, v in enumerate(sizes)]
    check("MelWeightMatrix", inputs, constants=range(5))


@pytest.mark.parametrize(
    ("op_type", "inputs", "reason"),
    [
        ("DFT", [SIGNAL, None, scalar(-1)], "the last dimension holds the components"),
        ("DFT", [SIGNAL[..., 0]], "expected at least two dimensions, the last of extent 1 or 2"),
        ("STFT", [SIGNAL[0], scalar(0), None, scalar(4)], "frame_step 0"),
        ("STFT", [SIGNAL[0], scalar(2), np.ones(3, np.float32), scalar(4)], "expected the same length"),
    ],
)
def test_refusals_say_why(op_type: str, inputs: list[Any], reason: str) -> None:
    like = [np.zeros((2, 3, 3, 2), np.float32)]
    graph, _ = single(op_type, inputs, constants=(1, 2, 3), opset=20, like=like)
    assert reason in str(ops.why_unsupported(graph, graph.operators()[0]))


def test_what_must_be_known_is_named() -> None:
    graph, _ = single("HannWindow", [scalar(4)])
    assert "run time" in str(ops.why_unsupported(graph, graph.operators()[0]))
