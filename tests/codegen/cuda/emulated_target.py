"""The target ``cuda`` with the host's compiler and ``emulation.h`` in the place of nvcc and the CUDA runtime."""

from __future__ import annotations

import pytest

from daceopt.codegen import toolchain
from daceopt.codegen.toolchain import Toolchain
from daceopt.store import system
from tests.codegen.cuda.emulated import EMULATION, FLAGS


def install(monkeypatch: pytest.MonkeyPatch) -> None:
    """In this test, kernels for cuda are compiled for the emulation."""
    flags = [f for f in FLAGS if f != "-shared"]
    command = (*system.require_compiler().command, *flags, "-include", str(EMULATION))
    emulated = Toolchain(lambda: command, fingerprint=EMULATION.read_text)
    monkeypatch.setitem(toolchain._TOOLCHAINS, "cuda", emulated)
