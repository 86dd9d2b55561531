"""NVIDIA's compiler: where it is, and what kernels are compiled and linked with."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from functools import cache
from pathlib import Path

from daceopt.errors import BuildError

INSTALL = "install the CUDA toolkit, version 12 or later, and put nvcc on PATH or set CUDA_HOME to its folder"
_DEFAULT = "/usr/local/cuda"
# 177: functions of our headers that a kernel does not call. Products are rounded by themselves, as on the CPU.
_FLAGS = ("-std=c++17", "-O3", "-fmad=false", "-Xcompiler=-fPIC,-fvisibility=hidden", "-diag-suppress=177")

UNIT = 8, None
"""The least and the most kernels that nvcc takes at once: its start costs as much as 20 of them."""


@cache
def nvcc() -> str | None:
    """The path of nvcc: in ``$CUDA_HOME``, on PATH, or where the toolkit installs itself; None if there is none."""
    home = os.environ.get("CUDA_HOME", "")
    candidates = [f"{home}/bin/nvcc"] if home else ["nvcc", f"{_DEFAULT}/bin/nvcc"]
    return next((path for name in candidates if (path := shutil.which(name))), None)


def require_nvcc() -> str:
    """``nvcc()``, or BuildError that says what to install."""
    path = nvcc()
    if path is None:
        raise BuildError(f"nvcc is needed to build kernels for cuda, and is not there; {INSTALL}")
    return path


@cache
def has_device() -> bool:
    """Is there a device that runs what is compiled here?"""
    return Path("/dev/nvidia0").exists()


def driver() -> str | None:
    """The first line of what NVIDIA's kernel driver says of itself; None where there is none."""
    try:
        lines = Path("/proc/driver/nvidia/version").read_text().splitlines()
    except OSError:
        return None
    return lines[0].removeprefix("NVRM version:").strip() if lines else None


def command() -> tuple[str, ...]:
    """What compiles a kernel: for the devices of this machine; where it has none, for any of compute capability 8.0 or
    later, whose driver then translates it."""
    return (require_nvcc(), *_FLAGS, "-arch=native" if has_device() else "-arch=compute_80")


@cache
def version() -> str:
    """The last line of what nvcc says of itself."""
    answer = subprocess.run([require_nvcc(), "--version"], capture_output=True, text=True, timeout=60)
    return answer.stdout.strip().rsplit("\n", 1)[-1]


@cache
def link() -> tuple[str, ...]:
    """The CUDA runtime, statically: a program needs nothing but the driver. Raises BuildError."""
    command = [require_nvcc(), "--dryrun", "nothing.cu", "-o", os.devnull]
    output = subprocess.run(command, capture_output=True, text=True, timeout=60).stderr
    folders = re.search(r"^#\$ LIBRARIES=(.*)$", output, re.MULTILINE)
    if folders is None:
        raise BuildError(f"{command[0]} does not say where its libraries are; {INSTALL}")
    return (*shlex.split(folders.group(1)), "-lcudart_static", "-ldl", "-lrt", "-lpthread")
