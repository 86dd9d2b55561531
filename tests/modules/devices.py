"""Tests that need a CUDA device."""

from __future__ import annotations

from typing import Any

import pytest


def on_device(test: Any) -> Any:
    """A test that is skipped, with the reason, where there is no device; libraries compute in float32, not in TF32."""
    return pytest.mark.gpu(pytest.mark.usefixtures("device")(test))
