"""Which versions of other packages take part in making code: one text for the keys of all that is cached."""

from __future__ import annotations

from functools import cache
from importlib.metadata import PackageNotFoundError, version

PACKAGES = (
    "torch",  # brings MKL and OpenMP
    "dace",
    "numpy",
    "sympy",
    "mpmath",
    "ml_dtypes",
    "onnx",
    "onnxruntime",
    "mkl",
    "onednn-cpu-gomp",
    "onednn-devel-cpu-gomp",
)


@cache
def text() -> str:
    """One ``package version`` a line, in a fixed order; found once per process, and nothing is imported for it."""
    return "\n".join(f"{package} {_version(package)}" for package in PACKAGES)


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "absent"
