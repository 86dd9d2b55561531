"""What C++ that calls torch is compiled and linked with: its headers, and the libraries that are in the process."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from daceopt import system
from daceopt.codegen.compiler import Flags
from daceopt.errors import BuildError
from daceopt.libs.base import Library, Missing


def torch_include() -> Path | None:
    """The folder of torch's C++ headers; None where it comes without them."""
    folder = system.torch_library_folder()
    include = folder.parent / "include" if folder else None
    return include if include and (include / "ATen/ATen.h").is_file() else None


def link_to_torch() -> Flags:
    """Flags for a source that includes torch's headers. Raises BuildError where they are missing."""
    folder, include = system.torch_library_folder(), torch_include()
    if folder is None or include is None:
        raise BuildError("torch comes without its C++ headers; install the wheel of torch for Linux")
    return Flags(
        includes=(str(include), str(include / "torch/csrc/api/include")),
        link=(f"-L{folder}", f"-Wl,-rpath,{folder}", "-l:libtorch_cpu.so", "-l:libc10.so"),
    )


class TorchOperators(Library):
    """A library of torch's operators, on CUDA devices where a subclass does not say more."""

    targets: ClassVar[tuple[str, ...]] = ("cuda",)

    def available(self) -> Missing | None:
        """Missing where torch comes without its C++ headers."""
        if torch_include() is not None:
            return None
        return Missing("torch comes without its C++ headers", "install the wheel of torch for Linux")

    def version(self) -> str:
        import torch

        return str(torch.__version__)
