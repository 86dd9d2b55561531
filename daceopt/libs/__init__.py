"""Dense libraries behind one interface: who implements a library node, and how it is called from generated code."""

from daceopt.libs import algorithms, aten, collectives, host, mkl, native, onednn, onednn_product, pool, product
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
    portable,
    prefer,
    reasons,
    register,
    seal,
    why_not,
)

seal()

__all__ = [
    "PREFERENCE",
    "Library",
    "Missing",
    "Requirements",
    "algorithms",
    "aten",
    "candidates",
    "choose",
    "collectives",
    "get",
    "host",
    "implement",
    "mkl",
    "names",
    "native",
    "onednn",
    "onednn_product",
    "pool",
    "portable",
    "prefer",
    "product",
    "reasons",
    "register",
    "why_not",
]
