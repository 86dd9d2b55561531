"""Dense libraries behind one interface: who implements a library node, and how it is called from generated code."""

from daceopt.libs import mkl, native, onednn
from daceopt.libs.base import (
    PREFERENCE,
    Library,
    Missing,
    Requirements,
    candidates,
    choose,
    get,
    implement,
    names,
    prefer,
    reasons,
    register,
)

__all__ = [
    "PREFERENCE",
    "Library",
    "Missing",
    "Requirements",
    "candidates",
    "choose",
    "get",
    "implement",
    "mkl",
    "names",
    "native",
    "onednn",
    "prefer",
    "reasons",
    "register",
]
