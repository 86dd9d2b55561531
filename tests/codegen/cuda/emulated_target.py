"""The target ``cuda`` with the host's compiler and ``emulation.h`` in the place of nvcc and the CUDA runtime."""

from __future__ import annotations

from dataclasses import replace

import pytest

from daceopt import system
from daceopt.codegen import target, toolchain
from daceopt.codegen.toolchain import Toolchain
from tests.codegen.cuda.emulated import EMULATION, FLAGS, emulation, text


def install(monkeypatch: pytest.MonkeyPatch) -> None:
    """In this test, kernels for cuda are compiled for the emulation."""
    command = (*system.require_compiler().command, *FLAGS, "-include", EMULATION.name)
    monkeypatch.setenv("CPATH", str(emulation()))  # not in the command, which is part of the key of an object
    runtime = str(emulation() / "emulation.o")
    emulated = Toolchain(lambda: command, link=lambda: (runtime,), fingerprint=text)
    monkeypatch.setitem(toolchain._TOOLCHAINS, "cuda", emulated)


def install_on_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same, and arrays for cuda live on the host: modules are called on tensors there, libraries work on these."""
    install(monkeypatch)
    monkeypatch.setitem(target._TARGETS, "cuda", replace(target.get("cuda"), device="cpu"))
