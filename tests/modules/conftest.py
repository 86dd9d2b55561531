"""Where modules for CUDA run: in the emulation, on tensors of the host, or on a device."""

from __future__ import annotations

import pytest
import torch

from tests.codegen.cuda import emulated_target


@pytest.fixture
def emulated(monkeypatch: pytest.MonkeyPatch) -> None:
    emulated_target.install_on_host(monkeypatch)


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> None:
    """A device whose libraries compute in float32, not in TF32."""
    if not torch.cuda.is_available():
        pytest.skip("torch sees no CUDA device")
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    monkeypatch.setattr(torch.backends.cuda.matmul, "allow_tf32", False)
