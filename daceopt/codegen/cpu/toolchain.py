"""The C++ compiler, and the flags that fit kernels to this CPU."""

from __future__ import annotations

import re
from functools import cache

from daceopt import system

COMMON = ("-std=c++17", "-pipe", "-fopenmp", "-fPIC", "-fvisibility=hidden", "-fno-semantic-interposition", "-fno-plt")
# Nothing here gives up infinities, NaN or signed zeros: masks of -inf and isnan() must keep working. No product is
# rounded only with what is added to it: a number that two kernels compute, each for itself, must be the same in both.
_KERNEL = ("-O3", "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=off")

UNIT = 4, 8
"""The least and about the most kernels that gcc takes at once: its start and our headers cost as much as one of them.
More gain nothing, and where a program changes, units are what is compiled anew."""

# A word boundary behind the first letters leaves these to be searched for as a text, fifty times as fast.
_BOTH = re.compile(r"sin(?<=\bsin)f?\("), re.compile(r"cos(?<=\bcos)f?\(")
_APART = tuple(f"-fno-builtin-{name}" for name in ("sin", "cos", "sinf", "cosf"))

_INTEGER_VALUES = re.compile(r"int(?:(?<=\bint)|(?<=\buint))\d+_t [av]\d")  # as kernels name what they compute, collect


def host(*specific: str) -> tuple[str, ...]:
    """The compiler with the flags of every source and ``specific`` ones. Raises BuildError where there is none."""
    compiler = system.require_compiler()
    gcc_only = ("-fno-gnu-unique",) if compiler.family == "gcc" else ()
    return (*compiler.command, *COMMON, *gcc_only, *specific)


def command() -> tuple[str, ...]:
    """What compiles a kernel."""
    return host(*_KERNEL, *target_flags())


def arithmetic(source: str) -> tuple[str, ...]:
    """The flags that fit a kernel's values. Integers wrap around, where C++ lets the compiler assume that none does and
    make an endless loop of it; kernels without integers keep what it concludes from that about their loops. Sine and
    cosine of one number would become a call that gives both, of which there is none for vectors: thirty times as slow.
    """
    wrapping = ("-fwrapv",) if _INTEGER_VALUES.search(source) else ()
    return wrapping + (_APART if all(f.search(source) for f in _BOTH) else ())


@cache
def target_flags() -> tuple[str, ...]:
    """Return the flags that fit code to this CPU, at its full vector width."""
    wide = ("-mprefer-vector-width=512",) if system.vector_bits() == 512 else ()
    return (f"-march={system.march()}", *wide)
