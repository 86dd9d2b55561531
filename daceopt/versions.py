"""Versions of Python and of other packages: which ones daceopt runs with, and one text for the keys of all that is
cached."""

from __future__ import annotations

import platform
from functools import cache
from importlib.metadata import PackageNotFoundError, version

from daceopt.errors import InstallationError

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
    "ziglang",
)
# The first version, the first one that is too new, and what to do about another one.
_RANGES = {
    "python": ((3, 10), (3, 14), "use Python 3.10 to 3.13"),  # 3.14 lacks classes of ``ast`` that DaCe names
    "numpy": ((1, 26), (3, 0), "`pip install 'numpy>=1.26,<3'`"),
    # The metadata of 1.0.2 refuses Python 3.13 and NumPy 2, which it runs with.
    "dace": ((1, 0, 2), (1, 0, 3), "`pip install --no-deps --ignore-requires-python dace==1.0.2`"),
}


@cache
def text() -> str:
    """One ``package version`` a line, in a fixed order; found once per process, and nothing is imported for it."""
    return "\n".join(f"{package} {_version(package)}" for package in PACKAGES)


@cache
def misfits() -> dict[str, str]:
    """What to do about Python, NumPy and DaCe, each where it is not there in a version that daceopt runs with."""
    return {name: advice for name, (first, end, advice) in _RANGES.items() if not first <= _numbers(name) < end}


def require() -> None:
    """Raise InstallationError if there are :func:`misfits`."""
    if misfits():
        wrong = "; ".join(f"{name} is {_version(name)}: {advice}" for name, advice in misfits().items())
        raise InstallationError(f"daceopt does not run here: {wrong}")


def _numbers(name: str) -> tuple[int, ...]:
    return tuple(int(part) for part in _version(name).split(".")[:3] if part.isdigit())


def _version(name: str) -> str:
    if name == "python":
        return platform.python_version()
    try:
        return version(name)
    except PackageNotFoundError:
        return "absent"
