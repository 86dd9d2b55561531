"""The one numeric criterion of the test suite: our error against float64 may not exceed what rounding explains."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import torch


def assert_within_rounding(
    ours: object, reference64: object, theirs: object | None = None, *, factor: float = 4.0, ulps: float = 8.0
) -> None:
    """Compare ``ours`` with a float64 reference, bounded by ``theirs`` (the peer's result in the same precision).

    The largest error, relative to the largest magnitude of the reference, may be at most ``factor`` times the peer's
    plus ``ulps`` units in the last place of our own dtype. NaN and infinities must stand in the same places.
    """
    a, ref = _array(ours), _array(reference64).astype(np.float64)
    assert a.shape == ref.shape, f"shape {a.shape}, expected {ref.shape}"
    if a.dtype.kind in "biu":
        np.testing.assert_array_equal(a, ref)
        return
    np.testing.assert_array_equal(np.isnan(a), np.isnan(ref))
    np.testing.assert_array_equal(np.isposinf(a), np.isposinf(ref))
    np.testing.assert_array_equal(np.isneginf(a), np.isneginf(ref))
    finite, limits = np.isfinite(ref), ml_dtypes.finfo(a.dtype)
    if not finite.any():
        return
    scale = max(float(np.abs(ref[finite]).max()), float(limits.tiny))
    error = float(np.abs(a[finite].astype(np.float64) - ref[finite]).max()) / scale
    peer = 0.0
    if theirs is not None:
        peer = float(np.abs(_array(theirs)[finite].astype(np.float64) - ref[finite]).max()) / scale
    bound = factor * peer + ulps * float(limits.eps)
    assert error <= bound, f"error {error:.3e} against float64 exceeds {bound:.3e} (peer's own error {peer:.3e})"


_CODES = torch.int16  # NumPy takes no bfloat16 from torch


def _array(x: object) -> np.ndarray:
    if hasattr(x, "detach"):
        x = x.detach().cpu()  # type: ignore[attr-defined]
        if str(x.dtype) == "torch.bfloat16":
            return np.asarray(x.view(_CODES).numpy().view(ml_dtypes.bfloat16))
        x = x.numpy()
    return np.asarray(x)
